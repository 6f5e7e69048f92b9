//! What is counted for each vCPU: a row of numbers that only grow.

use crate::code::Code;
use crate::topology::Node;

/// A load or a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Load,
    /// A store.
    Store,
}

impl Access {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Load, Self::Store];
}

/// Whether all accesses are counted, or those that miss in the model cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// All.
    Before,
    /// Those that miss.
    After,
}

/// A counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Instructions executed.
    Instructions(Code),
    /// Iterations of string instructions with one access each.
    Iterations(Code),
    /// Accesses of string instructions with two in each iteration.
    PairedAccesses(Code),
    /// Accesses to a node's memory, before or after the model cache.
    Accesses(Code, Access, Level, Node),
    /// Stores to lines that another vCPU wrote last.
    SharedLineWrites(Code),
    /// Accesses to devices and to addresses of no node.
    Elsewhere(Code),
}

/// Where each counter stands in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    nodes: usize,
}

impl Layout {
    /// How many counters stand first in each row, whatever else is counted: instructions and iterations.
    const WITHOUT_ACCESSES: usize = 3 * Code::ALL.len();

    /// Rows of instructions only.
    pub const TOTALS: Self = Self { nodes: 0 };

    /// Rows with accesses to each of `nodes` nodes.
    #[must_use]
    pub fn numa(nodes: usize) -> Self {
        Self { nodes }
    }

    /// How many nodes accesses are counted for: none if accesses are not counted.
    #[must_use]
    pub fn nodes(self) -> usize {
        self.nodes
    }

    /// How many counters a row has.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no row is empty")]
    pub fn len(self) -> usize {
        match self.nodes {
            0 => Self::WITHOUT_ACCESSES,
            _ => Self::WITHOUT_ACCESSES + Code::ALL.len() * self.accesses_of_code(),
        }
    }

    /// How many counters each kind of code has for its accesses: loads and stores, before and after the cache, to each node; then two.
    fn accesses_of_code(self) -> usize {
        2 * 2 * self.nodes + 2
    }

    /// Where `counter` stands.
    #[must_use]
    pub fn index(self, counter: Counter) -> usize {
        let kinds = Code::ALL.len();
        let accesses = |code: Code| Self::WITHOUT_ACCESSES + code.index() * self.accesses_of_code();
        match counter {
            Counter::Instructions(code) => code.index(),
            Counter::Iterations(code) => kinds + code.index(),
            Counter::PairedAccesses(code) => 2 * kinds + code.index(),
            Counter::Accesses(code, access, level, node) => {
                let group = 2 * access as usize + level as usize;
                accesses(code) + group * self.nodes + node
            }
            Counter::SharedLineWrites(code) => accesses(code) + 4 * self.nodes,
            Counter::Elsewhere(code) => accesses(code) + 4 * self.nodes + 1,
        }
    }
}

/// The counters of one vCPU at one time, or what they grew by.
pub type Row = Vec<u64>;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_counter_has_a_place_of_its_own_and_none_is_left_over() {
        for nodes in 1..5 {
            let layout = Layout::numa(nodes);
            let mut places = BTreeSet::new();
            let mut take = |counter| assert!(places.insert(layout.index(counter)), "{counter:?}");
            for code in Code::ALL {
                take(Counter::Instructions(code));
                take(Counter::Iterations(code));
                take(Counter::PairedAccesses(code));
                take(Counter::SharedLineWrites(code));
                take(Counter::Elsewhere(code));
                for access in Access::ALL {
                    for node in 0..nodes {
                        take(Counter::Accesses(code, access, Level::Before, node));
                        take(Counter::Accesses(code, access, Level::After, node));
                    }
                }
            }
            assert_eq!(
                places.into_iter().collect::<Vec<_>>(),
                (0..layout.len()).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn instructions_stand_in_the_same_places_whatever_else_is_counted() {
        for code in Code::ALL {
            for counter in [Counter::Instructions(code), Counter::PairedAccesses(code)] {
                assert!(Layout::TOTALS.index(counter) < Layout::TOTALS.len());
                assert_eq!(Layout::TOTALS.index(counter), Layout::numa(3).index(counter));
            }
        }
    }
}
