//! What a measured run says: the lines in which a program announces its phases, and the referee's counts of them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// The version of the referee's document that this module reads.
const REPORT_VERSION: u32 = 1;

/// A phase as the program announces it: `phase NN NAME ops=K cpus=C`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The even number of its marker.
    pub number: u8,
    /// Its name.
    pub name: String,
    /// How many operations it did.
    pub operations: u64,
    /// On how many CPUs.
    pub cpus: u32,
}

impl Announcement {
    /// Reads a line of the console; `None` if it announces no phase.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.trim_end().strip_prefix("phase ")?.split(' ');
        let number = words.next()?.parse().ok()?;
        let name = words.next()?.to_owned();
        let operations = words.next()?.strip_prefix("ops=")?.parse().ok()?;
        let cpus = words.next()?.strip_prefix("cpus=")?.parse().ok()?;
        words.next().is_none().then_some(Self {
            number,
            name,
            operations,
            cpus,
        })
    }
}

/// A benchmark that the program left out: `skipped NAME: REASON`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The phase that there is not.
    pub name: String,
    /// Why.
    pub reason: String,
}

impl Skipped {
    fn parse(line: &str) -> Option<Self> {
        let (name, reason) = line.trim_end().strip_prefix("skipped ")?.split_once(": ")?;
        Some(Self {
            name: name.to_owned(),
            reason: reason.to_owned(),
        })
    }
}

/// Interrupts that the system's own kernel counted in a phase: `interrupts NN timer=A wake=B flush=C`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupts {
    /// The CPUs' own timers.
    pub timer: u64,
    /// Requests to look for a thread to run.
    pub wake: u64,
    /// Requests to flush the TLB.
    pub flush: u64,
}

impl Interrupts {
    /// Reads a line of the console: the phase's number, and its interrupts.
    fn parse(line: &str) -> Option<(u8, Self)> {
        let mut words = line.trim_end().strip_prefix("interrupts ")?.split(' ');
        let number = words.next()?.parse().ok()?;
        let mut count = |kind| words.next()?.strip_prefix(kind)?.strip_prefix('=')?.parse().ok();
        let interrupts = Self {
            timer: count("timer")?,
            wake: count("wake")?,
            flush: count("flush")?,
        };
        Some((number, interrupts))
    }
}

/// What the rest of the program did while one of its threads did a phase's operations: `beside NN computing=C microseconds=U`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beside {
    /// How many CPUs computed, without calling the kernel.
    pub computing: u32,
    /// How long, by the guest's clock, in microseconds. A kernel that puts work off for at most so long can interrupt each of these
    /// CPUs only so often.
    pub microseconds: u64,
}

impl Beside {
    /// Reads a line of the console: the phase's number, and what was beside it.
    fn parse(line: &str) -> Option<(u8, Self)> {
        let mut words = line.trim_end().strip_prefix("beside ")?.split(' ');
        let number = words.next()?.parse().ok()?;
        let computing = words.next()?.strip_prefix("computing=")?.parse().ok()?;
        let microseconds = words.next()?.strip_prefix("microseconds=")?.parse().ok()?;
        words.next().is_none().then_some((
            number,
            Self {
                computing,
                microseconds,
            },
        ))
    }
}

/// What the system's own kernel counted in a phase besides: `counters NN NAME=K...`, as the locks of page tables that it took, and
/// the flushes of the TLB. A phase may have several such lines.
fn parse_counters(line: &str) -> Option<(u8, BTreeMap<String, u64>)> {
    let mut words = line.trim_end().strip_prefix("counters ")?.split(' ');
    let number = words.next()?.parse().ok()?;
    let counter = |word: &str| {
        let (name, count) = word.split_once('=')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    Some((number, words.map(counter).collect::<Option<_>>()?))
}

/// A number each for the kernel, the program, and the kernel's zeroing and copying of pages, which the first leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByCode {
    /// The kernel.
    pub kernel: u64,
    /// The program.
    pub app: u64,
    /// The kernel's zeroing and copying of pages.
    pub bulk: u64,
}

/// Accesses to memory by the node that it is on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByNode {
    /// To the accessing CPU's own node.
    pub local: u64,
    /// To other nodes, by their numbers.
    pub remote: BTreeMap<String, u64>,
}

impl ByNode {
    /// To all other nodes.
    pub fn remote_sum(&self) -> u64 {
        self.remote.values().sum()
    }
}

/// Loads and stores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accesses {
    /// Loads.
    pub loads: ByNode,
    /// Stores.
    pub stores: ByNode,
}

impl Accesses {
    /// To the own node.
    pub fn local(&self) -> u64 {
        self.loads.local + self.stores.local
    }

    /// To other nodes.
    pub fn remote(&self) -> u64 {
        self.loads.remote_sum() + self.stores.remote_sum()
    }
}

/// The referee's counts of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryCounts {
    /// All loads and stores.
    #[serde(flatten)]
    pub all: Accesses,
    /// Those that the model cache did not hold.
    pub misses: Accesses,
    /// Stores to cache lines that another CPU wrote last.
    pub shared_line_writes: u64,
    /// Who did them.
    pub by_code: MemoryByCode,
}

impl MemoryCounts {
    /// Stores of the kernel to cache lines that another CPU wrote last. Its zeroing and copying of pages is left out: that a frame
    /// was another CPU's before says nothing of what the kernel shares.
    pub fn kernel_shared_line_writes(&self) -> u64 {
        self.by_code.kernel.shared_line_writes
    }
}

/// Counts of memory of the kernel, the program, and the kernel's zeroing and copying of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryByCode {
    /// The kernel.
    pub kernel: CodeMemory,
    /// The program.
    pub app: CodeMemory,
    /// The kernel's zeroing and copying of pages.
    pub bulk: CodeMemory,
}

/// Counts of memory of one kind of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeMemory {
    /// Stores to cache lines that another CPU wrote last.
    pub shared_line_writes: u64,
}

/// The referee's counts of a phase, over all CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Counts {
    /// Instructions.
    #[serde(flatten)]
    pub instructions: ByCode,
    /// Iterations of string instructions, each of which is one instruction above.
    pub string_iterations: ByCode,
    /// Accesses to memory, where they were counted.
    #[serde(flatten)]
    pub memory: Option<MemoryCounts>,
}

/// A phase in the referee's document.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct CountedPhase {
    /// The even number of its marker.
    pub nn: u8,
    /// How often its start marker was executed.
    pub entries: u64,
    /// Whether its end marker was missing.
    pub open_at_exit: bool,
    /// The counts.
    pub total: Counts,
}

/// The referee's document.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Report {
    /// The version of its form.
    pub version: u32,
    /// End markers without a start.
    pub unmatched_ends: u64,
    /// The phases.
    pub phases: Vec<CountedPhase>,
}

impl Report {
    /// Reads the document.
    ///
    /// # Errors
    /// If it is none, or of another version.
    pub fn parse(json: &str) -> Result<Self> {
        let report: Self = serde_json::from_str(json).context("the referee's document can not be read")?;
        ensure!(
            report.version == REPORT_VERSION,
            "the referee's document has version {}, not {REPORT_VERSION}: build xtask and the referee from one source tree",
            report.version
        );
        Ok(report)
    }
}

/// A phase that was announced and counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// How many operations it did.
    pub operations: u64,
    /// On how many CPUs.
    pub cpus: u32,
    /// Instructions.
    pub instructions: ByCode,
    /// Iterations of string instructions, each of which is one instruction above.
    pub string_iterations: ByCode,
    /// Interrupts, where the kernel said how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupts: Option<Interrupts>,
    /// What the program did beside the operations, where that was computing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<Beside>,
    /// What else the kernel counted, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, u64>,
    /// Accesses to memory, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryCounts>,
}

impl Phase {
    /// A count of the phase for one of its operations.
    pub fn per_operation(&self, count: u64) -> f64 {
        count as f64 / self.operations as f64
    }

    /// How often the whole phase interrupted a CPU that computed beside it for a flush of the TLB, on average. The thread that does
    /// the operations is taken to have asked for all flushes and to have got no such interrupt itself.
    pub fn flushes_per_computing_cpu(&self) -> Option<f64> {
        let Beside { computing, .. } = self.beside.filter(|beside| beside.computing > 0)?;
        Some(self.interrupts?.flush as f64 / f64::from(computing))
    }
}

/// What a run measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measurement {
    /// The phases, in the order in which the program announced them.
    pub phases: Vec<Phase>,
    /// What the program left out.
    pub skipped: Vec<Skipped>,
}

impl Measurement {
    /// Puts a program's `console` and the referee's `report` together.
    ///
    /// # Errors
    /// If the program announced a phase that was not counted, or not once from start to end, or that did nothing.
    pub fn new(console: &str, report: &Report) -> Result<Self> {
        ensure!(
            report.unmatched_ends == 0,
            "a phase of the program ended without having begun"
        );
        let interrupts: BTreeMap<u8, Interrupts> = console.lines().filter_map(Interrupts::parse).collect();
        let beside: BTreeMap<u8, Beside> = console.lines().filter_map(Beside::parse).collect();
        let mut counters = BTreeMap::<u8, BTreeMap<String, u64>>::new();
        for (number, counted) in console.lines().filter_map(parse_counters) {
            counters.entry(number).or_default().extend(counted);
        }
        let mut measurement = Self::default();
        for line in console.lines() {
            measurement.skipped.extend(Skipped::parse(line));
            let Some(announced) = Announcement::parse(line) else {
                continue;
            };
            let Announcement {
                number,
                name,
                operations,
                cpus,
            } = announced;
            let counted = report.phases.iter().find(|phase| phase.nn == number);
            let counted =
                counted.with_context(|| format!("the referee saw no marker of `{name}` ({number})"))?;
            if counted.open_at_exit || operations == 0 {
                bail!("the phase `{name}` did not end, or did nothing");
            }
            let Counts {
                instructions,
                string_iterations,
                memory,
            } = counted.total.clone();
            measurement.phases.push(Phase {
                name,
                operations,
                cpus,
                instructions,
                string_iterations,
                interrupts: interrupts.get(&number).copied(),
                beside: beside.get(&number).copied(),
                counters: counters.remove(&number).unwrap_or_default(),
                memory,
            });
        }
        Ok(measurement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTALS: &str = r#"{"version": 1, "mode": "totals", "unmatched_ends": 0, "phases": [
        {"nn": 2, "entries": 1, "open_at_exit": false, "cpus": [],
         "total": {"kernel": 1000, "app": 50, "bulk": 3, "string_iterations": {"kernel": 1, "app": 2, "bulk": 512}}}]}"#;

    const NUMA: &str = r#"{"version": 1, "mode": "numa", "unmatched_ends": 0, "phases": [
        {"nn": 2, "entries": 1, "open_at_exit": false, "cpus": [],
         "total": {"kernel": 9, "app": 8, "bulk": 0, "string_iterations": {"kernel": 0, "app": 0, "bulk": 0},
            "loads": {"local": 5, "remote": {"1": 2, "3": 4}}, "stores": {"local": 1, "remote": {}},
            "misses": {"loads": {"local": 1, "remote": {"1": 1}}, "stores": {"local": 0, "remote": {}}},
            "shared_line_writes": 7, "elsewhere": 0,
            "by_code": {"kernel": {"shared_line_writes": 3}, "app": {"shared_line_writes": 2}, "bulk": {"shared_line_writes": 2}}}}]}"#;

    const CONSOLE: &str = "[ 0.1] boot\nskipped y: needs a thing: really\nphase 2 x ops=100 cpus=4\r\ninterrupts 2 timer=1 wake=2 flush=3\r\n\
         beside 2 computing=2 microseconds=1500\r\ncounters 2 table_locks=5 table_locks_contended=0\ncounters 2 x\n\
         counters 2 tlb_retired=9\nbeside 2 computing=9\nphase\nend\n";

    fn measure(console: &str, report: &str) -> Result<Measurement> {
        Measurement::new(console, &Report::parse(report)?)
    }

    #[test]
    fn what_is_announced_is_found_in_the_counts() {
        let measurement = measure(CONSOLE, TOTALS).unwrap();
        let [phase] = measurement.phases.as_slice() else {
            panic!("{measurement:?}")
        };
        assert_eq!((phase.name.as_str(), phase.operations, phase.cpus), ("x", 100, 4));
        assert_eq!(phase.per_operation(phase.instructions.kernel), 10.0);
        assert_eq!(phase.string_iterations.bulk, 512);
        assert_eq!(phase.memory, None);
        let expected = Interrupts {
            timer: 1,
            wake: 2,
            flush: 3,
        };
        assert_eq!(phase.interrupts, Some(expected));
        let expected = Beside {
            computing: 2,
            microseconds: 1500,
        };
        assert_eq!(phase.beside, Some(expected));
        let counters: Vec<_> = phase
            .counters
            .iter()
            .map(|(name, &count)| (name.as_str(), count))
            .collect();
        assert_eq!(
            counters,
            [
                ("table_locks", 5),
                ("table_locks_contended", 0),
                ("tlb_retired", 9)
            ]
        );
        let [skipped] = measurement.skipped.as_slice() else {
            panic!("{measurement:?}")
        };
        assert_eq!(
            (skipped.name.as_str(), skipped.reason.as_str()),
            ("y", "needs a thing: really")
        );
    }

    #[test]
    fn flushes_are_shared_out_to_the_cpus_that_computed() {
        let phase = |console: &str| measure(console, TOTALS).unwrap().phases.remove(0);
        assert_eq!(phase(CONSOLE).flushes_per_computing_cpu(), Some(1.5));
        let alone = CONSOLE.replace("computing=2", "computing=0");
        assert_eq!(phase(&alone).flushes_per_computing_cpu(), None);
        let uncounted = CONSOLE.replace("interrupts", "-");
        assert_eq!(phase(&uncounted).flushes_per_computing_cpu(), None);
        let together = CONSOLE.replace("beside", "-");
        assert_eq!(phase(&together).flushes_per_computing_cpu(), None);
    }

    #[test]
    fn accesses_are_told_by_node() {
        let phase = measure(CONSOLE, NUMA).unwrap().phases.remove(0);
        let memory = phase.memory.clone().unwrap();
        assert_eq!((memory.all.local(), memory.all.remote()), (6, 6));
        assert_eq!((memory.misses.local(), memory.misses.remote()), (1, 1));
        assert_eq!(
            (memory.shared_line_writes, memory.kernel_shared_line_writes()),
            (7, 3)
        );
        let json = serde_json::to_string(&phase).unwrap();
        assert_eq!(serde_json::from_str::<Phase>(&json).unwrap(), phase);
    }

    #[test]
    fn counts_that_do_not_fit_the_program_are_refused() {
        for (console, report, reason) in [
            ("phase 4 z ops=1 cpus=1\n", TOTALS.to_owned(), "no marker of `z`"),
            ("phase 2 x ops=0 cpus=1\n", TOTALS.to_owned(), "did nothing"),
            (CONSOLE, TOTALS.replace("false", "true"), "did not end"),
            (
                CONSOLE,
                TOTALS.replace("\"unmatched_ends\": 0", "\"unmatched_ends\": 1"),
                "without having begun",
            ),
            (
                CONSOLE,
                TOTALS.replace("\"version\": 1", "\"version\": 2"),
                "version 2",
            ),
        ] {
            let message = measure(console, &report).unwrap_err().to_string();
            assert!(message.contains(reason), "{message}");
        }
    }

    #[test]
    fn other_lines_announce_nothing() {
        for line in [
            "phase 2 x ops=1",
            "phase 2 x ops=1 cpus=1 more",
            "phase x",
            "a phase 2 x ops=1 cpus=1",
        ] {
            assert_eq!(Announcement::parse(line), None, "{line}");
        }
    }
}
