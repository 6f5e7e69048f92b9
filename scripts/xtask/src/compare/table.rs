//! Comparisons as tables of text.

use std::fmt::Write as _;

use super::{Comparison, Side};
use crate::bench::results::number;
use crate::measurement::{Interrupts, MemoryCounts, Phase};

/// Stands where there is no number.
const NONE: &str = "-";

impl Comparison {
    /// The tables: costs side by side, and what Linux counted itself.
    pub(super) fn tables(&self) -> String {
        let mut text = format!(
            "{} {}\nQEMU {}: {}\nHomenode: {}\nLinux {}: {}\n",
            self.app,
            self.arguments.join(" "),
            self.qemu,
            self.machine.join(" "),
            self.homenode.command_line,
            self.linux_version,
            self.linux.command_line
        );
        let instructions: [(&str, Cost); 3] = [
            ("Kernel instructions, string iterations left out", |phase| {
                phase.instructions.kernel
            }),
            ("Zeroing and copying (see docs/measuring.md)", |phase| {
                phase.instructions.bulk + phase.string_iterations.kernel + phase.string_iterations.bulk
            }),
            ("Instructions of the program", |phase| phase.instructions.app),
        ];
        for (title, cost) in instructions {
            self.per_operation(&mut text, title, |phase| Some(cost(phase)));
        }
        let interrupts: [(&str, InterruptCost); 3] = [
            ("Timer interrupts", |interrupts| interrupts.timer),
            ("Interrupts that ask for a flush of the TLB", |interrupts| {
                interrupts.flush
            }),
            ("Interrupts that ask to look for a thread to run", |interrupts| {
                interrupts.wake
            }),
        ];
        for (title, cost) in interrupts {
            self.per_operation(&mut text, title, |phase| phase.interrupts.as_ref().map(cost));
        }
        let title = "Interrupts that ask for a flush of the TLB, per CPU that computed beside the phase";
        self.side_by_side(&mut text, title, Phase::flushes_per_computing_cpu);
        let title = "Milliseconds of phases beside which CPUs computed, by the guest's clock";
        self.side_by_side(&mut text, title, |phase| {
            Some(phase.beside?.microseconds as f64 / 1000.0)
        });
        let accesses: [(&str, MemoryCost); 5] = [
            ("Accesses to the own node's memory", |memory| memory.all.local()),
            ("Accesses to other nodes' memory", |memory| memory.all.remote()),
            ("Misses of the model cache to other nodes", |memory| {
                memory.misses.remote()
            }),
            ("Stores to lines that another CPU wrote last", |memory| {
                memory.shared_line_writes
            }),
            ("Those of them by the kernel", |memory| {
                memory.kernel_shared_line_writes()
            }),
        ];
        for (title, cost) in accesses {
            self.per_operation(&mut text, title, |phase| phase.memory.as_ref().map(cost));
        }
        self.skipped(&mut text);
        self.linux_counters(&mut text);
        text
    }

    /// A table of what an operation costs.
    fn per_operation(&self, text: &mut String, title: &str, cost: impl Fn(&Phase) -> Option<u64>) {
        self.side_by_side(text, &format!("{title}, per operation"), |phase| {
            Some(phase.per_operation(cost(phase)?))
        });
    }

    /// A table with a row for each phase that one of the kernels ran; nothing if neither kernel counted this.
    fn side_by_side(&self, text: &mut String, title: &str, value: impl Fn(&Phase) -> Option<f64>) {
        let header = [
            "phase",
            "operations",
            "CPUs",
            "Homenode",
            "Linux",
            "Linux/Homenode",
        ];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        let mut is_counted = false;
        for (ours, theirs) in self.pairs() {
            let Some(phase) = ours.or(theirs) else { continue };
            let (ours, theirs) = (ours.and_then(&value), theirs.and_then(&value));
            is_counted |= ours.or(theirs).is_some();
            let ratio = ours.zip(theirs).filter(|(ours, _)| *ours > 0.0);
            rows.push(vec![
                phase.name.clone(),
                phase.operations.to_string(),
                phase.cpus.to_string(),
                ours.map_or(NONE.to_owned(), number),
                theirs.map_or(NONE.to_owned(), number),
                ratio.map_or(NONE.to_owned(), |(ours, theirs)| format!("{:.2}", theirs / ours)),
            ]);
        }
        if is_counted {
            let _ = write!(text, "\n{title}:\n{}", align(&rows));
        }
    }

    /// The phases in Homenode's order, those of Linux alone last.
    fn pairs(&self) -> impl Iterator<Item = (Option<&Phase>, Option<&Phase>)> {
        let named = |side: &'_ Side, name: &str| side.phases.iter().position(|phase| phase.name == name);
        let ours = self.homenode.phases.iter().map(move |phase| {
            (
                Some(phase),
                named(&self.linux, &phase.name).map(|at| &self.linux.phases[at]),
            )
        });
        let theirs = self
            .linux
            .phases
            .iter()
            .filter(move |phase| named(&self.homenode, &phase.name).is_none())
            .map(|phase| (None, Some(phase)));
        ours.chain(theirs)
    }

    fn skipped(&self, text: &mut String) {
        for (name, side) in [("Homenode", &self.homenode), ("Linux", &self.linux)] {
            for skipped in &side.skipped {
                let _ = write!(text, "\n{name} skipped {}: {}", skipped.name, skipped.reason);
            }
            if !side.skipped.is_empty() {
                text.push('\n');
            }
        }
    }

    fn linux_counters(&self, text: &mut String) {
        let header = ["", "before", "after", "change"].map(str::to_owned).to_vec();
        let row = |name: String, before: u64, after: u64| {
            let change = i128::from(after) - i128::from(before);
            vec![name, before.to_string(), after.to_string(), format!("{change:+}")]
        };
        let mut rows = vec![header.clone()];
        rows.extend(
            self.vmstat
                .iter()
                .map(|counter| row(counter.name.clone(), counter.before, counter.after)),
        );
        let _ = write!(
            text,
            "\nLinux's /proc/vmstat around the program:\n{}",
            align(&rows)
        );
        let mut rows = vec![header];
        rows.extend(self.interrupts.iter().map(|interrupt| {
            let name = format!("{} {}", interrupt.name, interrupt.description);
            row(name, interrupt.before.iter().sum(), interrupt.after.iter().sum())
        }));
        let _ = write!(
            text,
            "\nLinux's /proc/interrupts around the program, over all CPUs:\n{}",
            align(&rows)
        );
    }
}

/// Takes a count from a phase.
type Cost = fn(&Phase) -> u64;

/// Takes a count of interrupts.
type InterruptCost = fn(&Interrupts) -> u64;

/// Takes a count of accesses to memory.
type MemoryCost = fn(&MemoryCounts) -> u64;

/// Lines of columns: the first flush left, the others flush right.
fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let _ = if column == 0 {
                write!(text, "{cell:<width$}")
            } else {
                write!(text, "  {cell:>width$}")
            };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::proc;
    use crate::measurement::{Beside, ByCode, Skipped};

    fn phase(name: &str, operations: u64, kernel: u64) -> Phase {
        Phase {
            name: name.to_owned(),
            operations,
            cpus: 4,
            instructions: ByCode {
                kernel,
                app: 5 * operations,
                bulk: 0,
            },
            string_iterations: ByCode::default(),
            interrupts: None,
            beside: None,
            counters: Default::default(),
            memory: None,
        }
    }

    fn side(phases: Vec<Phase>) -> Side {
        Side {
            command_line: "quiet".to_owned(),
            emulator_seconds: 1.0,
            phases,
            skipped: Vec::new(),
        }
    }

    fn comparison() -> Comparison {
        let mut homenode = side(vec![phase("fault_4k", 100, 60_000), phase("barrier", 8, 0)]);
        homenode.phases[0].interrupts = Some(Interrupts {
            timer: 3,
            wake: 0,
            flush: 200,
        });
        homenode.phases[0].beside = Some(Beside {
            computing: 2,
            microseconds: 12_300,
        });
        homenode.skipped.push(Skipped {
            name: "message".to_owned(),
            reason: "it is not built yet".to_owned(),
        });
        Comparison {
            app: "bench".to_owned(),
            arguments: vec!["faults".to_owned()],
            machine: vec!["-smp".to_owned(), "4".to_owned()],
            qemu: "10.0".to_owned(),
            homenode,
            linux: side(vec![phase("fault_4k", 100, 290_000), phase("fork", 2, 7)]),
            linux_version: "6.1.0".to_owned(),
            vmstat: vec![proc::Row {
                name: "pgfault".to_owned(),
                before: 10,
                after: 110,
            }],
            interrupts: vec![proc::Interrupt {
                name: "TLB".to_owned(),
                description: "TLB shootdowns".to_owned(),
                before: vec![1, 2],
                after: vec![1, 7],
            }],
        }
    }

    fn words(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }

    #[test]
    fn costs_stand_side_by_side_with_their_ratio() {
        let text = comparison().tables();
        let kernel = text.split("\n\n").nth(1).unwrap();
        let rows: Vec<Vec<&str>> = kernel.lines().skip(2).map(words).collect();
        assert_eq!(
            rows,
            [
                ["fault_4k", "100", "4", "600", "2,900", "4.83"],
                // Nothing is no base of a ratio, and a phase of one kernel has no other side.
                ["barrier", "8", "4", "0.0", "-", "-"],
                ["fork", "2", "4", "-", "3.5", "-"],
            ],
            "{text}"
        );
        assert!(
            text.contains("Homenode skipped message: it is not built yet\n"),
            "{text}"
        );
    }

    #[test]
    fn linux_counters_are_summed_over_cpus() {
        let text = comparison().tables();
        let has = |row: &[&str]| text.lines().any(|line| words(line) == row);
        assert!(has(&["pgfault", "10", "110", "+100"]), "{text}");
        assert!(has(&["TLB", "TLB", "shootdowns", "3", "8", "+5"]), "{text}");
    }

    #[test]
    fn only_what_was_counted_has_a_table() {
        let text = comparison().tables();
        let flushes = text.split("ask for a flush").nth(1).unwrap();
        let row = flushes.lines().nth(2).unwrap();
        assert_eq!(words(row), ["fault_4k", "100", "4", "2.0", "-", "-"]);
        assert!(!text.contains("Accesses to"), "{text}");
    }

    #[test]
    fn a_phase_beside_which_cpus_computed_has_rows_of_its_own() {
        let text = comparison().tables();
        let row = |title: &str| {
            let table = text.split(title).nth(1).unwrap();
            words(table.lines().nth(2).unwrap())
        };
        assert_eq!(
            row("per CPU that computed"),
            ["fault_4k", "100", "4", "100", "-", "-"]
        );
        assert_eq!(row("Milliseconds"), ["fault_4k", "100", "4", "12", "-", "-"]);
    }

    #[test]
    fn columns_line_up() {
        let rows =
            [vec!["a", "1"], vec!["long", "1000"]].map(|row| row.into_iter().map(str::to_owned).collect());
        assert_eq!(align(&rows), "a        1\nlong  1000\n");
    }
}
