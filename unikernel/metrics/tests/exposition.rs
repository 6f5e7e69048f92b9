//! What `/metrics` and `/status` show for a machine with fixed numbers, and that `docs/metrics.md` describes it.

mod common;

use std::collections::BTreeSet;

use common::Machine;
use homenode_metrics::{
    CpuCounters, Format, HttpStatistics, MappedBytes, NodeCounters, ProgramState, Source, render,
};
use homenode_topology::NodeId;
use serde_json::json;

fn text(format: Format) -> String {
    render(format, &Machine::new(), &HttpStatistics::default())
}

#[test]
fn prometheus() {
    assert_eq!(
        text(Format::Prometheus),
        include_str!("expected/metrics.prometheus")
    );
}

#[test]
fn openmetrics() {
    assert_eq!(
        text(Format::OpenMetrics),
        include_str!("expected/metrics.openmetrics")
    );
}

/// Every family is declared once, before its samples, and no sample appears twice.
#[test]
fn families_are_contiguous_and_samples_unique() {
    let text = text(Format::Prometheus);
    let mut families = BTreeSet::new();
    let mut samples = BTreeSet::new();
    let mut family = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().unwrap();
            assert!(families.insert(family), "{family} is declared twice");
        } else if !line.starts_with('#') {
            let (name, _) = line.rsplit_once(' ').unwrap();
            assert_eq!(
                name.split('{').next().unwrap(),
                family,
                "a sample under another family's name"
            );
            assert!(samples.insert(name), "{name} appears twice");
        }
    }
}

/// `name{label,label}` of the sample that `line` holds, or `None` for a comment.
fn without_values(line: &str) -> Option<String> {
    let (sample, _value) = line.rsplit_once(' ').filter(|_| !line.starts_with('#'))?;
    let Some((name, labels)) = sample.split_once('{') else {
        return Some(sample.into());
    };
    let labels: Vec<&str> = labels
        .split(',')
        .map(|label| label.split('=').next().unwrap())
        .collect();
    Some(format!("{name}{{{}}}", labels.join(",")))
}

#[test]
fn the_documentation_has_every_family_with_its_labels_and_no_other() {
    let text = text(Format::Prometheus);
    let shown: BTreeSet<String> = text
        .lines()
        .filter_map(without_values)
        .filter(|name| !name.starts_with("homenode_app_"))
        .collect();
    let documented: BTreeSet<String> = include_str!("../../../docs/metrics.md")
        .lines()
        .filter(|line| line.starts_with("| `homenode_"))
        .map(|line| line.split('`').nth(1).unwrap().into())
        .collect();
    assert_eq!(documented, shown);
}

#[test]
fn status() {
    let mut machine = Machine::new();
    let mut expected = json!({
        "version": "0.1.0",
        "uptime_seconds": 12.5,
        "boot_time_seconds": 1_800_000_000.0,
        "boot_duration_seconds": 0.25,
        "program": { "name": "fft3d", "state": "running" },
        "threads": { "running": 2, "ready": 0, "blocked": 1 },
        "page_faults": 70,
        "page_table_locks": { "scheme": "split", "acquisitions": 700, "contended": 6 },
        "tlb": { "lazy": true, "deadline_seconds": 0.01, "range_max_pages": 33, "generation": 17 },
        "nodes": [
            {
                "node": 0,
                "cpus_online": 2,
                "memory": {
                    "total_bytes": 1 << 30,
                    "free_bytes": 53_248,
                    "cached_bytes": 4096,
                    "kept_bytes": 2 << 20,
                    "free_bytes_by_order": [4096, 0, 49_152],
                },
                "mapped_bytes": { "4KiB": 4096, "2MiB": 40 << 20, "1GiB": 0 },
                "tlb": { "pending_bytes": 65536, "pending_max_bytes": 32 << 20, "generation_lag": 2 },
            },
            {
                "node": 1,
                "cpus_online": 0,
                "memory": {
                    "total_bytes": 1 << 30,
                    "free_bytes": 0,
                    "cached_bytes": 0,
                    "kept_bytes": 2 << 20,
                    "free_bytes_by_order": [0, 0, 0],
                },
                "mapped_bytes": { "4KiB": 4096, "2MiB": 0, "1GiB": 0 },
                "tlb": { "pending_bytes": 0, "pending_max_bytes": 32 << 20, "generation_lag": 0 },
            },
        ],
        "network": { "received_packets": 11, "transmitted_packets": 12 },
    });
    assert_eq!(serde_json::to_value(machine.status()).unwrap(), expected);

    machine.program = ProgramState::Ended { exit_status: 3 };
    expected["program"] = json!({ "name": "fft3d", "state": "ended", "exit_status": 3 });
    assert_eq!(serde_json::to_value(machine.status()).unwrap(), expected);
}

/// What is read while others count may be short, and must not turn into a number of about 2⁶⁴.
#[test]
fn mapped_bytes_are_never_negative() {
    let cpus = [2, -3].map(|pages| {
        let cpu = CpuCounters::new(Box::leak(Box::new([NodeCounters::new()])));
        for size in 0..3 {
            cpu.add_pages(NodeId(0), size, pages);
        }
        cpu
    });
    assert_eq!(MappedBytes::counted_by(NodeId(0), &cpus), MappedBytes::default());
    cpus[1].add_pages(NodeId(0), 2, 2);
    let expected = MappedBytes {
        by_1g: 1 << 30,
        ..MappedBytes::default()
    };
    assert_eq!(MappedBytes::counted_by(NodeId(0), &cpus), expected);
}
