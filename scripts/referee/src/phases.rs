//! Which phases are under way, and what the counters grew by in each.

use std::collections::BTreeMap;

use crate::counters::Row;
use crate::x86::Marker;

/// What one phase counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Phase {
    /// How often it was entered while it was not under way.
    pub entries: u64,
    /// Whether it was still under way at the end.
    pub open_at_exit: bool,
    /// How many starts have no end yet.
    depth: u64,
    /// The counters of each vCPU when it was entered.
    at_entry: Vec<Row>,
    /// What the counters of each vCPU grew by.
    pub growth: Vec<Row>,
}

/// The phases of a run.
///
/// Starts and ends of one number nest: a phase is under way from its first start to the end that matches it, and what every vCPU does in
/// that time counts. Phases of different numbers may overlap; each counts for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    phases: BTreeMap<u8, Phase>,
    unmatched_ends: u64,
}

impl Phases {
    /// Takes note of a marker; `now` reads the counters of all vCPUs.
    pub fn mark(&mut self, marker: Marker, now: impl FnOnce() -> Vec<Row>) {
        match marker {
            Marker::Start(number) => {
                let phase = self.phases.entry(number).or_default();
                if phase.depth == 0 {
                    phase.entries += 1;
                    phase.at_entry = now();
                }
                phase.depth += 1;
            }
            Marker::End(number) => match self.phases.get_mut(&number) {
                Some(phase) if phase.depth > 0 => {
                    phase.depth -= 1;
                    if phase.depth == 0 {
                        phase.add_growth(&now());
                    }
                }
                _ => self.unmatched_ends += 1,
            },
        }
    }

    /// Ends the phases that are still under way, and notes that they were.
    pub fn finish(&mut self, now: impl FnOnce() -> Vec<Row>) {
        let mut open: Vec<&mut Phase> = self.phases.values_mut().filter(|phase| phase.depth > 0).collect();
        if open.is_empty() {
            return;
        }
        let now = now();
        for phase in &mut open {
            phase.depth = 0;
            phase.open_at_exit = true;
            phase.add_growth(&now);
        }
    }

    /// Whether any phase is under way.
    #[must_use]
    pub fn any_open(&self) -> bool {
        self.phases.values().any(|phase| phase.depth > 0)
    }

    /// Each phase that was entered, by its number.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &Phase)> {
        self.phases.iter().map(|(&number, phase)| (number, phase))
    }

    /// How many ends came without a start.
    #[must_use]
    pub fn unmatched_ends(&self) -> u64 {
        self.unmatched_ends
    }
}

impl Phase {
    fn add_growth(&mut self, now: &[Row]) {
        self.growth.resize(now.len(), Row::new());
        for ((growth, now), before) in self.growth.iter_mut().zip(now).zip(&self.at_entry) {
            growth.resize(now.len(), 0);
            for ((growth, now), before) in growth.iter_mut().zip(now).zip(before) {
                // Another vCPU's counter may be read while it grows, never while it shrinks.
                *growth += now.saturating_sub(*before);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use Marker::{End, Start};

    use super::*;

    fn rows(values: [u64; 2]) -> Vec<Row> {
        values.map(|value| vec![value]).to_vec()
    }

    fn growth(phases: &Phases, number: u8) -> Vec<Row> {
        phases
            .iter()
            .find(|&(n, _)| n == number)
            .unwrap()
            .1
            .growth
            .clone()
    }

    #[test]
    fn growth_is_summed_over_entries() {
        let mut phases = Phases::default();
        phases.mark(Start(2), || rows([10, 100]));
        assert!(phases.any_open());
        phases.mark(End(2), || rows([15, 100]));
        assert!(!phases.any_open());
        phases.mark(Start(2), || rows([1000, 1000]));
        phases.mark(End(2), || rows([1001, 1007]));
        assert_eq!(growth(&phases, 2), rows([6, 7]));
        assert_eq!(phases.iter().next().unwrap().1.entries, 2);
        assert_eq!(phases.unmatched_ends(), 0);
    }

    #[test]
    fn a_phase_of_several_cpus_lasts_from_the_first_start_to_the_last_end() {
        let mut phases = Phases::default();
        phases.mark(Start(4), || rows([1, 1]));
        phases.mark(Start(4), || panic!("it is under way already"));
        phases.mark(End(4), || panic!("one start has no end yet"));
        phases.mark(End(4), || rows([11, 21]));
        assert_eq!(growth(&phases, 4), rows([10, 20]));
        assert_eq!(phases.iter().next().unwrap().1.entries, 1);
    }

    #[test]
    fn phases_overlap_and_count_for_themselves() {
        let mut phases = Phases::default();
        phases.mark(Start(2), || rows([0, 0]));
        phases.mark(Start(6), || rows([5, 0]));
        phases.mark(End(2), || rows([7, 0]));
        assert!(phases.any_open());
        phases.mark(End(6), || rows([9, 1]));
        assert_eq!(growth(&phases, 2), rows([7, 0]));
        assert_eq!(growth(&phases, 6), rows([4, 1]));
    }

    #[test]
    fn an_end_without_a_start_is_noted_and_counts_nothing() {
        let mut phases = Phases::default();
        phases.mark(End(8), || panic!("nothing to read"));
        assert_eq!(phases.unmatched_ends(), 1);
        assert_eq!(phases.iter().count(), 0);
    }

    #[test]
    fn a_phase_that_is_under_way_at_exit_says_so() {
        let mut phases = Phases::default();
        phases.mark(Start(2), || rows([0, 0]));
        phases.finish(|| rows([3, 4]));
        let (_, phase) = phases.iter().next().unwrap();
        assert!(phase.open_at_exit);
        assert_eq!(phase.growth, rows([3, 4]));
        let mut none = Phases::default();
        none.finish(|| panic!("nothing is under way"));
        assert_eq!(none, Phases::default());
    }
}
