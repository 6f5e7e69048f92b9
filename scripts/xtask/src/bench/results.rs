//! Result files: what a benchmark cost, on which machine, and how that was measured.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::measurement::{Phase, Skipped};
use crate::workspace;

/// The change of instructions per operation that is told, as a share of the old value.
const TOLERANCE: f64 = 0.1;

/// The change of instructions per operation below which a share means nothing.
const LEAST_CHANGE: f64 = 1.0;

/// What results call the system of this tree.
pub const HOMENODE: &str = "homenode";

/// What one benchmark cost on machines of several sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultFile {
    /// The benchmark's name, with the mode if that is not the usual one.
    pub benchmark: String,
    /// Which system did the work: `homenode` or `linux`, and the words that its command line had.
    pub system: String,
    /// The command that made the file.
    pub command: String,
    /// What took part, and in which version.
    pub versions: BTreeMap<String, String>,
    /// A run for each machine.
    pub runs: Vec<Run>,
}

/// What a benchmark cost on one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The machine's CPUs.
    pub cpus: u32,
    /// The machine's nodes.
    pub nodes: u32,
    /// QEMU's arguments for the machine.
    pub machine: String,
    /// The system's command line.
    pub command_line: String,
    /// What was measured.
    pub phases: Vec<Phase>,
    /// What the program left out.
    pub skipped: Vec<Skipped>,
}

/// Where the result files are.
pub fn folder() -> PathBuf {
    workspace::root().join("docs/results")
}

impl ResultFile {
    /// The name of the file without folder and ending.
    pub fn stem(&self) -> String {
        if self.system == HOMENODE {
            return self.benchmark.clone();
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric();
        let words = self
            .system
            .split(|c| !is_plain(c))
            .filter(|word| !word.is_empty());
        let system = words.collect::<Vec<_>>().join("-");
        format!("{}-{system}", self.benchmark)
    }

    /// The numbers of CPUs of its machines.
    pub fn cpus(&self) -> Vec<u32> {
        self.runs.iter().map(|run| run.cpus).collect()
    }

    /// Where the file is kept.
    pub fn path(&self) -> PathBuf {
        folder().join(format!("{}.json", self.stem()))
    }

    /// The file as text.
    ///
    /// # Panics
    /// Never: it has nothing that JSON lacks.
    pub fn to_json(&self) -> String {
        let json = serde_json::to_string_pretty(self).expect("a result has nothing that JSON lacks");
        json + "\n"
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// If it is not in the form of this type.
    pub fn parse(json: &str) -> Result<Self> {
        serde_json::from_str(json).context("it is no result of a benchmark")
    }

    /// Reads the file that was kept of the same benchmark; `None` if there is none.
    ///
    /// # Errors
    /// If it can not be read.
    pub fn kept(&self) -> Result<Option<Self>> {
        let path = self.path();
        if !path.exists() {
            return Ok(None);
        }
        let json =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let kept = Self::parse(&json).with_context(|| path.display().to_string())?;
        Ok(Some(kept))
    }

    /// Keeps the file.
    ///
    /// # Errors
    /// If it can not be written.
    pub fn save(&self) -> Result<()> {
        let path = self.path();
        std::fs::create_dir_all(folder())
            .and_then(|()| std::fs::write(&path, self.to_json()))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// A sentence for each phase that costs more than a tenth more or less than in `kept`, on a machine of the same size.
    pub fn changes(&self, kept: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        for run in &self.runs {
            let Some(old) = kept
                .runs
                .iter()
                .find(|old| (old.cpus, old.nodes) == (run.cpus, run.nodes))
            else {
                continue;
            };
            for phase in &run.phases {
                let cost = |phase: &Phase| phase.per_operation(phase.instructions.kernel);
                let Some(old) = old.phases.iter().find(|old| old.name == phase.name).map(cost) else {
                    continue;
                };
                let new = cost(phase);
                if (new - old).abs() > (old * TOLERANCE).max(LEAST_CHANGE) {
                    let change = (new - old) / old * 100.0;
                    changes.push(format!(
                        "{} on {} CPUs: {new:.0} kernel instructions per operation, {old:.0} in the kept result ({change:+.0} %)",
                        phase.name, run.cpus
                    ));
                }
            }
        }
        changes
    }

    /// The counts of each phase on each machine, as a table for a terminal.
    pub fn table(&self) -> String {
        let phases = || self.runs.iter().flat_map(|run| &run.phases);
        let columns = columns(phases());
        let mut names: Vec<&str> = Vec::new();
        for phase in phases() {
            if !names.contains(&phase.name.as_str()) {
                names.push(&phase.name);
            }
        }
        let mut header = format!("{:<20}{:>5}{:>12}", "phase", "CPUs", "operations");
        for Column { name, .. } in &columns {
            header += &format!("{name:>width$}", width = width(name));
        }
        let mut lines = vec!["per operation of each phase:".to_owned(), header];
        for name in names {
            for run in &self.runs {
                for phase in run.phases.iter().filter(|phase| phase.name == name) {
                    let mut line = format!("{name:<20}{:>5}{:>12}", run.cpus, phase.operations);
                    for column in &columns {
                        let count = (column.count)(phase).map(|count| number(phase.per_operation(count)));
                        let cell = count.unwrap_or_else(|| "-".to_owned());
                        line += &format!("{cell:>width$}", width = width(&column.name));
                    }
                    lines.push(line);
                }
            }
        }
        for skipped in self.runs.first().iter().flat_map(|run| &run.skipped) {
            lines.push(format!("skipped {}: {}", skipped.name, skipped.reason));
        }
        lines.join("\n")
    }
}

/// Takes a count from a phase that has it.
type Count = Box<dyn Fn(&Phase) -> Option<u64>>;

/// A count of a phase.
pub(super) struct Column {
    /// What a table calls it.
    pub(super) name: String,
    /// What it is about.
    pub(super) kind: Kind,
    /// The count.
    pub(super) count: Count,
}

/// What a count is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Instructions executed.
    Instructions,
    /// Accesses to memory.
    Memory,
    /// What the system's own kernel counted.
    Kernel,
}

/// The counts that `phases` have.
pub(super) fn columns<'a>(phases: impl Iterator<Item = &'a Phase> + Clone) -> Vec<Column> {
    let mut columns = Vec::new();
    let mut add = |kind, name: &str, count: fn(&Phase) -> Option<u64>| {
        columns.push(Column {
            name: name.to_owned(),
            kind,
            count: Box::new(count),
        });
    };
    add(Kind::Instructions, "kernel", |phase| {
        Some(phase.instructions.kernel)
    });
    add(Kind::Instructions, "bulk", |phase| Some(phase.instructions.bulk));
    add(Kind::Instructions, "program", |phase| {
        Some(phase.instructions.app)
    });
    add(Kind::Instructions, "iterations", |phase| {
        let strings = phase.string_iterations;
        Some(strings.kernel + strings.bulk + strings.app)
    });
    if phases.clone().any(|phase| phase.memory.is_some()) {
        add(Kind::Memory, "local accesses", |phase| {
            Some(phase.memory.as_ref()?.all.local())
        });
        add(Kind::Memory, "remote accesses", |phase| {
            Some(phase.memory.as_ref()?.all.remote())
        });
        add(Kind::Memory, "local misses", |phase| {
            Some(phase.memory.as_ref()?.misses.local())
        });
        add(Kind::Memory, "remote misses", |phase| {
            Some(phase.memory.as_ref()?.misses.remote())
        });
        add(Kind::Memory, "shared-line writes", |phase| {
            Some(phase.memory.as_ref()?.shared_line_writes)
        });
        add(Kind::Memory, "kernel's shared-line writes", |phase| {
            Some(phase.memory.as_ref()?.kernel_shared_line_writes())
        });
    }
    if phases.clone().any(|phase| phase.interrupts.is_some()) {
        add(Kind::Kernel, "timer interrupts", |phase| {
            Some(phase.interrupts?.timer)
        });
        add(Kind::Kernel, "wake interrupts", |phase| {
            Some(phase.interrupts?.wake)
        });
        add(Kind::Kernel, "flush interrupts", |phase| {
            Some(phase.interrupts?.flush)
        });
    }
    let names: BTreeSet<&String> = phases.flat_map(|phase| phase.counters.keys()).collect();
    for name in names {
        let key = name.clone();
        columns.push(Column {
            name: name.replace('_', " "),
            kind: Kind::Kernel,
            count: Box::new(move |phase| phase.counters.get(&key).copied()),
        });
    }
    columns
}

/// How wide a table's column is: two spaces, and the name or a large number.
fn width(name: &str) -> usize {
    2 + name.len().max("1,000,000".len())
}

/// A count for an operation: whole with its thousands apart, or with one decimal if it is small.
pub(crate) fn number(value: f64) -> String {
    if value < 10.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::measurement::{ByCode, Interrupts};

    /// A result of one phase, on machines of 1 and 2 CPUs, with these kernel instructions for 10 operations.
    pub(crate) fn result(system: &str, kernel: [u64; 2]) -> ResultFile {
        let run = |(cpus, kernel)| Run {
            cpus,
            nodes: 1,
            machine: format!("-smp {cpus}"),
            command_line: "-- unmap".to_owned(),
            phases: vec![Phase {
                name: "unmap_16".to_owned(),
                operations: 10,
                cpus,
                instructions: ByCode {
                    kernel,
                    app: 77,
                    bulk: 0,
                },
                string_iterations: ByCode::default(),
                interrupts: Some(Interrupts {
                    timer: 0,
                    wake: 5,
                    flush: 30,
                }),
                counters: BTreeMap::from([("table_locks".to_owned(), 40)]),
                memory: None,
            }],
            skipped: vec![Skipped {
                name: "protect_16".to_owned(),
                reason: "needs rights".to_owned(),
            }],
        };
        ResultFile {
            benchmark: "unmap".to_owned(),
            system: system.to_owned(),
            command: "cargo xtask bench unmap".to_owned(),
            versions: BTreeMap::from([("qemu".to_owned(), "10.0".to_owned())]),
            runs: [1, 2].into_iter().zip(kernel).map(run).collect(),
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let result = result("homenode", [1000, 2000]);
        assert_eq!(ResultFile::parse(&result.to_json()).unwrap(), result);
        assert!(result.to_json().ends_with("}\n"));
    }

    #[test]
    fn each_system_has_a_file_of_its_own() {
        assert!(
            result("homenode", [1, 1])
                .path()
                .ends_with("docs/results/unmap.json")
        );
        assert!(
            result("linux", [1, 1])
                .path()
                .ends_with("docs/results/unmap-linux.json")
        );
        assert!(
            result("homenode ptlock=coarse", [1, 1])
                .path()
                .ends_with("docs/results/unmap-homenode-ptlock-coarse.json")
        );
    }

    #[test]
    fn changes_of_more_than_a_tenth_are_told() {
        let old = result("homenode", [10_000, 10_000]);
        assert!(old.changes(&old).is_empty());
        assert!(result("homenode", [10_990, 9_010]).changes(&old).is_empty());
        let changes = result("homenode", [11_100, 8_000]).changes(&old);
        assert_eq!(changes.len(), 2, "{changes:?}");
        assert!(
            changes[0].contains("on 1 CPUs") && changes[0].contains("+11 %"),
            "{changes:?}"
        );
        assert!(changes[1].contains("-20 %"), "{changes:?}");
    }

    #[test]
    fn a_change_of_less_than_an_instruction_is_none() {
        let old = result("homenode", [10, 0]);
        assert!(result("homenode", [19, 9]).changes(&old).is_empty());
        assert!(!result("homenode", [21, 0]).changes(&old).is_empty());
    }

    #[test]
    fn the_table_has_a_row_for_each_machine() {
        let table = result("homenode", [1_234_567, 20]).table();
        let rows: Vec<_> = table
            .lines()
            .filter(|line| line.starts_with("unmap_16"))
            .collect();
        assert_eq!(rows.len(), 2);
        assert!(
            rows[0].contains("123,457") && rows[0].contains(" 7.7 "),
            "{table}"
        );
        assert!(rows[1].contains(" 2.0 "), "{table}");
        assert!(
            rows[1].ends_with(" 4.0") && table.contains(" table locks\n"),
            "{table}"
        );
        assert!(table.contains("skipped protect_16: needs rights"), "{table}");
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(
            [0.0, 9.94, 10.4, 999.6, 1234.0, 1_234_567.0].map(number),
            ["0.0", "9.9", "10", "1,000", "1,234", "1,234,567"]
        );
    }
}
