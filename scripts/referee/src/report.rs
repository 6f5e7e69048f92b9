//! The counts as one JSON document, and as a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::AddAssign;

use serde::Serialize;

use crate::cache::Geometry;
use crate::code::Code;
use crate::counters::{Access, Counter, Layout, Level, Row};
use crate::lines::LINE_BYTES;
use crate::phases::Phases;
use crate::topology::Topology;

/// The document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The version of this format.
    version: u32,
    qemu: Emulator,
    mode: &'static str,
    threads: Threads,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<CacheSize>,
    unmatched_ends: u64,
    phases: Vec<PhaseReport>,
}

/// What the plugin knows of QEMU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Emulator {
    /// The emulated architecture.
    pub target: String,
    /// The version of QEMU's plugin interface.
    pub plugin_api: i32,
}

/// How vCPUs share the host's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Threads {
    /// One runs them all, in turn.
    Single,
    /// Each has its own.
    Multi,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct CacheSize {
    bytes: u64,
    ways: usize,
    line: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct PhaseReport {
    nn: u8,
    entries: u64,
    open_at_exit: bool,
    total: Counts,
    cpus: Vec<Counts>,
}

/// A number for each kind of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct PerCode<T> {
    kernel: T,
    app: T,
    bulk: T,
}

impl<T> PerCode<T> {
    fn new(value: impl Fn(Code) -> T) -> Self {
        Self {
            kernel: value(Code::Kernel),
            app: value(Code::App),
            bulk: value(Code::Bulk),
        }
    }
}

impl<T: AddAssign> AddAssign for PerCode<T> {
    fn add_assign(&mut self, other: Self) {
        self.kernel += other.kernel;
        self.app += other.app;
        self.bulk += other.bulk;
    }
}

/// What one vCPU did, or all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Counts {
    #[serde(flatten)]
    instructions: PerCode<u64>,
    string_iterations: PerCode<u64>,
    #[serde(flatten)]
    memory: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by_code: Option<PerCode<Memory>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Memory {
    loads: Nodes,
    stores: Nodes,
    misses: Misses,
    shared_line_writes: u64,
    elsewhere: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Misses {
    loads: Nodes,
    stores: Nodes,
}

/// Accesses by where the memory is, seen from the vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Nodes {
    local: u64,
    /// By the memory's node.
    remote: BTreeMap<usize, u64>,
}

impl AddAssign for Nodes {
    fn add_assign(&mut self, other: Self) {
        self.local += other.local;
        for (node, accesses) in other.remote {
            *self.remote.entry(node).or_default() += accesses;
        }
    }
}

impl AddAssign for Memory {
    fn add_assign(&mut self, other: Self) {
        self.loads += other.loads;
        self.stores += other.stores;
        self.misses.loads += other.misses.loads;
        self.misses.stores += other.misses.stores;
        self.shared_line_writes += other.shared_line_writes;
        self.elsewhere += other.elsewhere;
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.instructions += other.instructions;
        self.string_iterations += other.string_iterations;
        if let Some(memory) = other.memory {
            *self.memory.get_or_insert_default() += memory;
        }
        if let Some(by_code) = other.by_code {
            *self.by_code.get_or_insert_default() += by_code;
        }
    }
}

/// The memory's side of what is counted.
#[derive(Clone, Copy, Debug)]
pub struct Numa<'a> {
    /// The machine.
    pub topology: &'a Topology,
    /// The model cache of each vCPU.
    pub cache: Geometry,
}

impl Report {
    /// Makes the document of what was counted.
    ///
    /// `threads` says whose figures can be told apart: where one host thread runs several vCPUs, QEMU names the wrong one, so that only
    /// totals are reported.
    #[must_use]
    pub fn new(qemu: Emulator, threads: Threads, numa: Option<Numa<'_>>, phases: &Phases) -> Self {
        let topology = numa.map(|numa| numa.topology);
        let phase_reports = phases.iter().map(|(nn, phase)| {
            let rows = phase.growth.iter().enumerate();
            let cpus: Vec<Counts> = rows
                .map(|(cpu, row)| Counts::of_row(cpu, row, topology))
                .collect();
            let mut total = Counts::default();
            for cpu in &cpus {
                total += cpu.clone();
            }
            let known_apart = threads == Threads::Multi || cpus.len() == 1;
            PhaseReport {
                nn,
                entries: phase.entries,
                open_at_exit: phase.open_at_exit,
                total,
                cpus: if known_apart { cpus } else { Vec::new() },
            }
        });
        Self {
            version: 1,
            qemu,
            mode: if numa.is_some() { "numa" } else { "totals" },
            threads,
            cache: numa.map(|numa| CacheSize {
                bytes: numa.cache.bytes(),
                ways: numa.cache.ways(),
                line: LINE_BYTES,
            }),
            unmatched_ends: phases.unmatched_ends(),
            phases: phase_reports.collect(),
        }
    }

    /// The document's text.
    ///
    /// # Panics
    /// Never: all its keys are strings or numbers.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and strings are JSON")
    }

    /// A table of the totals of each phase.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut table = format!(
            "{:>5} {:>7} {:>14} {:>14} {:>12} {:>14}",
            "phase", "entries", "kernel", "app", "bulk", "iterations"
        );
        if self.cache.is_some() {
            table += &format!(
                " {:>12} {:>12} {:>12} {:>12} {:>10}",
                "local", "remote", "local miss", "remote miss", "shared"
            );
        }
        table.push('\n');
        for phase in &self.phases {
            let total = &phase.total;
            let PerCode { kernel, app, bulk } = total.instructions;
            let iterations = total.string_iterations;
            let iterations = iterations.kernel + iterations.app + iterations.bulk;
            let (nn, entries) = (phase.nn, phase.entries);
            let mut row = format!("{nn:>5} {entries:>7} {kernel:>14} {app:>14} {bulk:>12} {iterations:>14}");
            if let Some(memory) = &total.memory {
                let sum = |loads: &Nodes, stores: &Nodes| {
                    let remote: u64 = loads.remote.values().chain(stores.remote.values()).sum();
                    (loads.local + stores.local, remote)
                };
                let (local, remote) = sum(&memory.loads, &memory.stores);
                let (local_miss, remote_miss) = sum(&memory.misses.loads, &memory.misses.stores);
                let shared = memory.shared_line_writes;
                // Writing to a string does not fail.
                let _ = write!(
                    row,
                    " {local:>12} {remote:>12} {local_miss:>12} {remote_miss:>12} {shared:>10}"
                );
            }
            table.push_str(&row);
            table.push('\n');
        }
        table
    }
}

impl Counts {
    fn of_row(cpu: usize, row: &Row, topology: Option<&Topology>) -> Self {
        let layout = topology.map_or(Layout::TOTALS, |topology| Layout::numa(topology.nodes()));
        let count = |counter| row.get(layout.index(counter)).copied().unwrap_or(0);
        let by_code =
            topology.map(|topology| PerCode::new(|code| Memory::of_row(cpu, code, topology, &count)));
        let mut memory = None;
        if let Some(PerCode { kernel, app, bulk }) = by_code.clone() {
            let mut sum = kernel;
            sum += app;
            sum += bulk;
            memory = Some(sum);
        }
        Self {
            instructions: PerCode::new(|code| count(Counter::Instructions(code))),
            string_iterations: PerCode::new(|code| {
                count(Counter::Iterations(code)) + count(Counter::PairedAccesses(code)) / 2
            }),
            memory,
            by_code,
        }
    }
}

impl Memory {
    fn of_row(cpu: usize, code: Code, topology: &Topology, count: &impl Fn(Counter) -> u64) -> Self {
        let nodes = |access, level| {
            let mut nodes = Nodes::default();
            for node in 0..topology.nodes() {
                let accesses = count(Counter::Accesses(code, access, level, node));
                if topology.node_of_cpu(cpu) == Some(node) {
                    nodes.local = accesses;
                } else if accesses > 0 {
                    nodes.remote.insert(node, accesses);
                }
            }
            nodes
        };
        Self {
            loads: nodes(Access::Load, Level::Before),
            stores: nodes(Access::Store, Level::Before),
            misses: Misses {
                loads: nodes(Access::Load, Level::After),
                stores: nodes(Access::Store, Level::After),
            },
            shared_line_writes: count(Counter::SharedLineWrites(code)),
            elsewhere: count(Counter::Elsewhere(code)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::x86::Marker;

    fn qemu() -> Emulator {
        Emulator {
            target: "x86_64".to_owned(),
            plugin_api: 4,
        }
    }

    fn phases(rows: Vec<Row>) -> Phases {
        let mut phases = Phases::default();
        let nothing = rows.iter().map(|row| vec![0; row.len()]).collect();
        phases.mark(Marker::Start(2), || nothing);
        phases.mark(Marker::End(2), || rows);
        phases
    }

    fn json(report: &Report) -> Value {
        serde_json::from_str(&report.to_json()).unwrap()
    }

    #[test]
    fn totals_have_no_accesses() {
        let rows = vec![
            vec![1, 2, 3, 10, 20, 30, 8, 0, 4],
            vec![100, 0, 0, 0, 0, 0, 0, 0, 0],
        ];
        let report = Report::new(qemu(), Threads::Multi, None, &phases(rows));
        let cpu = |kernel, app, bulk, iterations| json!({"kernel": kernel, "app": app, "bulk": bulk, "string_iterations": iterations});
        let iterations = json!({"kernel": 14, "app": 20, "bulk": 32});
        assert_eq!(
            json(&report),
            json!({
                "version": 1,
                "qemu": {"target": "x86_64", "plugin_api": 4},
                "mode": "totals",
                "threads": "multi",
                "unmatched_ends": 0,
                "phases": [{
                    "nn": 2,
                    "entries": 1,
                    "open_at_exit": false,
                    "total": cpu(101, 2, 3, iterations.clone()),
                    "cpus": [cpu(1, 2, 3, iterations), cpu(100, 0, 0, json!({"kernel": 0, "app": 0, "bulk": 0}))],
                }],
            })
        );
        let table = report.to_table();
        let row = table
            .lines()
            .nth(1)
            .unwrap()
            .split_whitespace()
            .collect::<Vec<_>>();
        assert_eq!(row, ["2", "1", "101", "2", "3", "66"]);
    }

    #[test]
    fn one_thread_for_several_cpus_gives_totals_only() {
        let rows = vec![vec![1; Layout::TOTALS.len()], vec![2; Layout::TOTALS.len()]];
        let report = json(&Report::new(qemu(), Threads::Single, None, &phases(rows)));
        assert_eq!(report["phases"][0]["total"]["kernel"], 3);
        assert_eq!(report["phases"][0]["cpus"], json!([]));
        let one = json(&Report::new(
            qemu(),
            Threads::Single,
            None,
            &phases(vec![vec![1; 9]]),
        ));
        assert_eq!(one["phases"][0]["cpus"][0]["kernel"], 1);
    }

    #[test]
    fn accesses_are_local_or_remote_by_the_cpus_node() {
        let topology = r#"{"nodes":[{"cpus":[0],"memory":4096},{"cpus":[1],"memory":4096}]}"#;
        let topology = Topology::parse(topology).unwrap();
        let layout = Layout::numa(2);
        let mut rows = vec![vec![0; layout.len()]; 2];
        let mut set = |cpu: usize, counter, count| rows[cpu][layout.index(counter)] = count;
        set(0, Counter::Accesses(Code::App, Access::Load, Level::Before, 0), 5);
        set(0, Counter::Accesses(Code::App, Access::Load, Level::Before, 1), 7);
        set(
            0,
            Counter::Accesses(Code::Kernel, Access::Load, Level::Before, 1),
            100,
        );
        set(0, Counter::Accesses(Code::App, Access::Load, Level::After, 1), 3);
        set(
            1,
            Counter::Accesses(Code::App, Access::Store, Level::Before, 1),
            11,
        );
        set(
            1,
            Counter::Accesses(Code::App, Access::Store, Level::Before, 0),
            13,
        );
        set(1, Counter::SharedLineWrites(Code::App), 2);
        set(1, Counter::Elsewhere(Code::Kernel), 1);
        let numa = Numa {
            topology: &topology,
            cache: Geometry::new(4096, 4).unwrap(),
        };
        let report = Report::new(qemu(), Threads::Multi, Some(numa), &phases(rows));
        let report = json(&report);
        assert_eq!(report["mode"], "numa");
        assert_eq!(report["cache"], json!({"bytes": 4096, "ways": 4, "line": 64}));
        let phase = &report["phases"][0];
        assert_eq!(
            phase["cpus"][0]["loads"],
            json!({"local": 5, "remote": {"1": 107}})
        );
        assert_eq!(
            phase["cpus"][0]["by_code"]["app"]["loads"],
            json!({"local": 5, "remote": {"1": 7}})
        );
        assert_eq!(
            phase["cpus"][1]["stores"],
            json!({"local": 11, "remote": {"0": 13}})
        );
        let total = &phase["total"];
        assert_eq!(total["loads"], json!({"local": 5, "remote": {"1": 107}}));
        assert_eq!(total["stores"], json!({"local": 11, "remote": {"0": 13}}));
        assert_eq!(total["misses"]["loads"], json!({"local": 0, "remote": {"1": 3}}));
        assert_eq!(
            (&total["shared_line_writes"], &total["elsewhere"]),
            (&json!(2), &json!(1))
        );
    }
}
