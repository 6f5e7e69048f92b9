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

/// What tables call interrupts that ask for a flush of the TLB.
pub(super) const FLUSHES: &str = "flush interrupts";

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

    /// The counts of each phase on each machine, as tables for a terminal: one for each kind of count.
    pub fn table(&self) -> String {
        let phases = || self.runs.iter().flat_map(|run| &run.phases);
        let mut lines = Vec::new();
        for group in columns(phases()).chunk_by(|one, next| one.kind == next.kind) {
            lines.extend(self.table_of(group));
            lines.push(String::new());
        }
        lines.pop();
        for skipped in self.runs.first().iter().flat_map(|run| &run.skipped) {
            lines.push(format!("skipped {}: {}", skipped.name, skipped.reason));
        }
        lines.join("\n")
    }

    /// The lines of a table of `columns`, which are of one kind.
    fn table_of(&self, columns: &[Column]) -> Vec<String> {
        let mut names: Vec<&str> = Vec::new();
        for phase in self.runs.iter().flat_map(|run| &run.phases) {
            if !names.contains(&phase.name.as_str()) {
                names.push(&phase.name);
            }
        }
        let mut header = format!("{:<20}{:>5}{:>12}", "phase", "CPUs", "operations");
        for Column { name, .. } in columns {
            header += &format!("{name:>width$}", width = width(name));
        }
        let title = columns.first().map_or("", |column| column.kind.title());
        let mut lines = vec![format!("{title} per operation of each phase:"), header];
        for name in names {
            for run in &self.runs {
                for phase in run.phases.iter().filter(|phase| phase.name == name) {
                    let mut line = format!("{name:<20}{:>5}{:>12}", run.cpus, phase.operations);
                    for column in columns {
                        let cell = (column.value)(phase).map_or_else(|| "-".to_owned(), number);
                        line += &format!("{cell:>width$}", width = width(&column.name));
                    }
                    lines.push(line);
                }
            }
        }
        lines
    }
}

/// Takes a count from a phase that has it.
type Count = fn(&Phase) -> Option<u64>;

/// What a table shows of a phase that has it.
type Value = Box<dyn Fn(&Phase) -> Option<f64>>;

/// A count of a phase.
pub(super) struct Column {
    /// What a table calls it.
    pub(super) name: String,
    /// What it is about.
    pub(super) kind: Kind,
    /// The count, for one operation unless its name says otherwise.
    pub(super) value: Value,
}

/// What a count is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Instructions executed.
    Instructions,
    /// Accesses to memory.
    Memory,
    /// Interrupts, of which the system's own kernel tells.
    Interrupts,
    /// What else the system's own kernel counted.
    Kernel,
}

impl Kind {
    /// What a table of such counts is headed.
    const fn title(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Memory => "accesses to memory",
            Self::Interrupts => "interrupts",
            Self::Kernel => "what the kernel counted",
        }
    }
}

/// The counts that `phases` have, those of one kind together.
pub(super) fn columns<'a>(phases: impl Iterator<Item = &'a Phase> + Clone) -> Vec<Column> {
    let mut columns = Vec::new();
    let mut add = |kind, name: &str, value: Value| {
        columns.push(Column {
            name: name.to_owned(),
            kind,
            value,
        });
    };
    let per_operation =
        |count: Count| -> Value { Box::new(move |phase| Some(phase.per_operation(count(phase)?))) };
    let instructions: [(&str, Count); 4] = [
        ("kernel", |phase| Some(phase.instructions.kernel)),
        ("bulk", |phase| Some(phase.instructions.bulk)),
        ("program", |phase| Some(phase.instructions.app)),
        ("iterations", |phase| {
            let strings = phase.string_iterations;
            Some(strings.kernel + strings.bulk + strings.app)
        }),
    ];
    for (name, count) in instructions {
        add(Kind::Instructions, name, per_operation(count));
    }
    if phases.clone().any(|phase| phase.memory.is_some()) {
        let accesses: [(&str, Count); 6] = [
            ("local accesses", |phase| Some(phase.memory.as_ref()?.all.local())),
            ("remote accesses", |phase| {
                Some(phase.memory.as_ref()?.all.remote())
            }),
            ("local misses", |phase| {
                Some(phase.memory.as_ref()?.misses.local())
            }),
            ("remote misses", |phase| {
                Some(phase.memory.as_ref()?.misses.remote())
            }),
            ("shared-line writes", |phase| {
                Some(phase.memory.as_ref()?.shared_line_writes)
            }),
            ("kernel's shared-line writes", |phase| {
                Some(phase.memory.as_ref()?.kernel_shared_line_writes())
            }),
        ];
        for (name, count) in accesses {
            add(Kind::Memory, name, per_operation(count));
        }
    }
    if phases.clone().any(|phase| phase.interrupts.is_some()) {
        let interrupts: [(&str, Count); 3] = [
            ("timer interrupts", |phase| Some(phase.interrupts?.timer)),
            ("wake interrupts", |phase| Some(phase.interrupts?.wake)),
            (FLUSHES, |phase| Some(phase.interrupts?.flush)),
        ];
        for (name, count) in interrupts {
            add(Kind::Interrupts, name, per_operation(count));
        }
    }
    if phases.clone().any(|phase| phase.beside.is_some()) {
        let flushes: Value = Box::new(Phase::flushes_per_computing_cpu);
        add(Kind::Interrupts, "flushes per computing CPU", flushes);
        let milliseconds: Value = Box::new(|phase| Some(phase.beside?.microseconds as f64 / 1000.0));
        add(Kind::Interrupts, "milliseconds of the phase", milliseconds);
    }
    let names: BTreeSet<&String> = phases.flat_map(|phase| phase.counters.keys()).collect();
    for name in names {
        let key = name.clone();
        let value = move |phase: &Phase| Some(phase.per_operation(*phase.counters.get(&key)?));
        add(Kind::Kernel, &name.replace('_', " "), Box::new(value));
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
    use crate::measurement::{Beside, ByCode, Interrupts};

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
                beside: Some(Beside {
                    computing: cpus - 1,
                    microseconds: 1_234_000,
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
    fn each_kind_of_count_has_a_table_with_a_row_for_each_machine() {
        let text = result("homenode", [1_234_567, 20]).table();
        let tables: Vec<&str> = text.split("\n\n").collect();
        let [instructions, interrupts, kernel] = tables[..] else {
            panic!("{text}")
        };
        let rows = |table: &str| -> Vec<Vec<String>> {
            let rows = table.lines().filter(|line| line.starts_with("unmap_16"));
            let words = |row: &str| row.split_whitespace().skip(1).map(str::to_owned).collect();
            rows.map(words).collect()
        };
        assert!(instructions.starts_with("instructions per operation"), "{text}");
        assert_eq!(
            rows(instructions),
            [
                ["1", "10", "123,457", "0.0", "7.7", "0.0"],
                ["2", "10", "2.0", "0.0", "7.7", "0.0"]
            ]
        );
        // Of a machine with one CPU, none computes beside.
        assert_eq!(
            rows(interrupts),
            [
                ["1", "10", "0.0", "0.5", "3.0", "-", "1,234"],
                ["2", "10", "0.0", "0.5", "3.0", "30", "1,234"]
            ]
        );
        assert_eq!(rows(kernel), [["1", "10", "4.0"], ["2", "10", "4.0"]]);
        assert!(kernel.contains(" table locks\n"), "{text}");
        assert!(kernel.ends_with("skipped protect_16: needs rights"), "{text}");
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(
            [0.0, 9.94, 10.4, 999.6, 1234.0, 1_234_567.0].map(number),
            ["0.0", "9.9", "10", "1,000", "1,234", "1,234,567"]
        );
    }
}
