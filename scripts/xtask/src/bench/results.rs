//! Result files: what a benchmark cost, on which machine, and how that was measured.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::measurement::{Interrupts, Phase, Skipped};
use crate::workspace;

/// The change of instructions per operation that is told, as a share of the old value.
const TOLERANCE: f64 = 0.1;

/// The change of instructions per operation below which a share means nothing.
const LEAST_CHANGE: f64 = 1.0;

/// What one benchmark cost on machines of several sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultFile {
    /// The benchmark's name, with the mode if that is not the usual one.
    pub benchmark: String,
    /// Which system did the work: `homenode` or `linux`.
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
        match self.system.as_str() {
            "homenode" => self.benchmark.clone(),
            system => format!("{}-{system}", self.benchmark),
        }
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
        let with_memory = self
            .runs
            .iter()
            .flat_map(|run| &run.phases)
            .any(|phase| phase.memory.is_some());
        let mut lines = vec!["per operation of each phase:".to_owned(), header(with_memory)];
        let mut names: Vec<&str> = Vec::new();
        for phase in self.runs.iter().flat_map(|run| &run.phases) {
            if !names.contains(&phase.name.as_str()) {
                names.push(&phase.name);
            }
        }
        for name in names {
            for run in &self.runs {
                let phases = run.phases.iter().filter(|phase| phase.name == name);
                lines.extend(phases.map(|phase| row(run.cpus, phase)));
            }
        }
        for skipped in self.runs.first().iter().flat_map(|run| &run.skipped) {
            lines.push(format!("skipped {}: {}", skipped.name, skipped.reason));
        }
        lines.join("\n")
    }
}

fn header(with_memory: bool) -> String {
    let mut line = format!(
        "{:<20}{:>5}{:>12}{:>15}{:>13}{:>16}{:>14}{:>9}{:>9}{:>9}",
        "phase",
        "CPUs",
        "operations",
        "kernel instr.",
        "bulk instr.",
        "program instr.",
        "string iter.",
        "timer",
        "wake",
        "flush"
    );
    if with_memory {
        line += &format!(
            "{:>12}{:>12}{:>14}{:>14}{:>14}",
            "local acc.", "remote acc.", "local misses", "remote misses", "shared writes"
        );
    }
    line
}

fn row(cpus: u32, phase: &Phase) -> String {
    let per = |count| number(phase.per_operation(count));
    let strings = phase.string_iterations;
    let interrupts = |kind: fn(Interrupts) -> u64| {
        phase
            .interrupts
            .map_or_else(|| "-".to_owned(), |interrupts| per(kind(interrupts)))
    };
    let mut line = format!(
        "{:<20}{cpus:>5}{:>12}{:>15}{:>13}{:>16}{:>14}{:>9}{:>9}{:>9}",
        phase.name,
        phase.operations,
        per(phase.instructions.kernel),
        per(phase.instructions.bulk),
        per(phase.instructions.app),
        per(strings.kernel + strings.bulk + strings.app),
        interrupts(|interrupts| interrupts.timer),
        interrupts(|interrupts| interrupts.wake),
        interrupts(|interrupts| interrupts.flush)
    );
    if let Some(memory) = &phase.memory {
        line += &format!(
            "{:>12}{:>12}{:>14}{:>14}{:>14}",
            per(memory.all.local()),
            per(memory.all.remote()),
            per(memory.misses.local()),
            per(memory.misses.remote()),
            per(memory.shared_line_writes)
        );
    }
    line
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
    use crate::measurement::ByCode;

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
