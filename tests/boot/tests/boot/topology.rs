//! Nodes, CPUs, memory and distances: from the firmware, from the command line, and impossible ones.

use boot_tests::{Boot, End, Outcome};

/// A boot that only shows the topology.
fn boot() -> Boot {
    Boot::application("guest").arguments(&["exit", "0"])
}

/// The distances that the kernel shows.
fn distances(outcome: &Outcome) -> Vec<Vec<u32>> {
    let mut lines = outcome
        .console
        .lines()
        .skip_while(|line| !line.starts_with("distances:"))
        .skip(1);
    let mut rows = Vec::new();
    while let Some((from, row)) = lines.next().and_then(|line| line.split_once(':')) {
        if from.trim() != rows.len().to_string() {
            break;
        }
        rows.push(
            row.split_ascii_whitespace()
                .map(|distance| distance.parse().unwrap())
                .collect(),
        );
    }
    rows
}

#[test]
fn one_node() {
    let outcome = boot().machine(1, 2, "512M").run();
    outcome.assert_end(End::Program(0));
    outcome.line("nodes: 1, CPUs: 2, memory: 512 MiB, source: acpi");
    outcome.line("node 0: CPUs 0-1, 512 MiB at 0x0-");
}

#[test]
fn two_nodes_with_shares_that_differ() {
    let outcome = boot().machine(2, 3, "513M").run();
    outcome.assert_end(End::Program(0));
    outcome.line("node 0: CPUs 0-1, 257 MiB at ");
    outcome.line("node 1: CPUs 2, 256 MiB at ");
    assert_eq!(
        distances(&outcome),
        [[10, 20], [20, 10]],
        "without a SLIT, distances are Linux's defaults"
    );
}

#[test]
fn four_nodes_and_memory_above_the_hole_below_4_gib() {
    let outcome = boot().machine(4, 8, "4G").run();
    outcome.assert_end(End::Program(0));
    outcome.line("nodes: 4, CPUs: 8, memory: 4 GiB");
    for (node, cpus) in ["0-1", "2-3", "4-5", "6-7"].iter().enumerate() {
        outcome.line(&format!("node {node}: CPUs {cpus}, 1 GiB at "));
    }
}

#[test]
fn eight_nodes() {
    let outcome = boot().machine(8, 8, "1G").run();
    outcome.assert_end(End::Program(0));
    for node in 0..8 {
        outcome.line(&format!("node {node}: CPUs {node}, 128 MiB at "));
    }
}

#[test]
fn nodes_without_cpus_and_without_memory() {
    let outcome = boot()
        .machine(1, 2, "512M")
        .memoryless(1)
        .cpuless(1)
        .distance("0:2:40")
        .run();
    outcome.assert_end(End::Program(0));
    outcome.line("node 0: CPUs 0, 256 MiB at ");
    outcome.line("node 1: CPUs 1, no memory");
    outcome.line("node 2: no CPUs, 256 MiB at ");
    assert_eq!(distances(&outcome), [[10, 20, 40], [20, 10, 20], [40, 20, 10]]);
}

#[test]
fn distances_differ_by_direction() {
    let outcome = boot()
        .machine(3, 3, "512M")
        .distance("0:1:25")
        .distance("1:0:27")
        .distance("1:2:31")
        .run();
    outcome.assert_end(End::Program(0));
    assert_eq!(distances(&outcome), [[10, 25, 20], [27, 10, 31], [20, 31, 10]]);
}

#[test]
fn a_machine_can_be_split_by_numa_fake() {
    let outcome = boot()
        .no_acpi_numa()
        .machine(1, 4, "1G")
        .cmdline("numa=fake=4")
        .run();
    outcome.assert_end(End::Program(0));
    for node in 0..4 {
        outcome.line(&format!("node {node}: CPUs {node}, "));
    }
}

#[test]
fn numa_off_makes_one_node() {
    let outcome = boot().machine(2, 2, "512M").cmdline("numa=off").run();
    outcome.assert_end(End::Program(0));
    outcome.line("nodes: 1, CPUs: 2, memory: 512 MiB");
}

#[test]
fn the_command_line_alone_knows_the_nodes() {
    let words =
        "numa=node,nodeid=0,cpus=0-1,mem=1G numa=node,nodeid=1,cpus=2-3,mem=1G numa=dist,src=0,dst=1,val=25";
    let outcome = boot().no_acpi_numa().machine(1, 4, "2G").cmdline(words).run();
    outcome.assert_end(End::Program(0));
    outcome.line("nodes: 2, CPUs: 4, memory: 2 GiB, source: command line");
    outcome.line("node 0: CPUs 0-1, 1 GiB at ");
    outcome.line("node 1: CPUs 2-3, 1 GiB at ");
    assert_eq!(distances(&outcome), [[10, 25], [25, 10]]);
}

#[test]
fn a_distance_on_the_command_line_overlays_the_firmwares() {
    let boot = boot()
        .machine(2, 2, "512M")
        .distance("0:1:25")
        .cmdline("numa=dist,src=0,dst=1,val=33");
    let outcome = boot.run();
    outcome.assert_end(End::Program(0));
    outcome.line("source: acpi and command line");
    assert_eq!(distances(&outcome), [[10, 33], [33, 10]]);
}

/// Each pair is a command line for a machine of 4 CPUs and 512 MiB, and the part of it that the message must quote.
#[test]
fn impossible_topologies_stop_the_boot_and_are_quoted() {
    let impossible = [
        (
            "numa=node,nodeid=0,cpus=0-1,mem=256M numa=node,nodeid=1,cpus=2-9,mem=256M",
            "cpus=2-9",
        ),
        (
            "numa=node,nodeid=0,cpus=0-2,mem=256M numa=node,nodeid=1,cpus=2-3,mem=256M",
            "cpus=2-3",
        ),
        (
            "numa=node,nodeid=0,cpus=0-3,mem=0x0-0x10000000 numa=node,nodeid=1,mem=0x8000000-0x20000000",
            "mem=0x8000000-0x20000000",
        ),
        ("numa=node,nodeid=0,cpus=0-3,mem=8G", "mem=8G"),
        (
            "numa=node,nodeid=0,cpus=0-3,mem=512M numa=dist,src=0,dst=7,val=20",
            "dst=7",
        ),
        ("numa=fake=0", "numa=fake=0"),
        ("numa=nodes", "numa=nodes"),
    ];
    for (words, token) in impossible {
        let outcome = boot().no_acpi_numa().machine(1, 4, "512M").cmdline(words).run();
        assert_eq!(
            outcome.end,
            End::Boot,
            "{words}; the console:\n{}",
            outcome.console
        );
        let line = outcome.line("boot stopped: ");
        assert!(
            line.contains(token),
            "{words} must be answered with `{token}`: {line}"
        );
    }
}

#[test]
fn an_unknown_word_stops_the_boot_and_names_the_nearest() {
    let outcome = boot().cmdline("lgo=debug").run();
    outcome.assert_end(End::Boot);
    let line = outcome.line("boot stopped: ");
    assert!(line.contains("lgo") && line.contains("log="), "{line}");
}
