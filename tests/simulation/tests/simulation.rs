//! Short runs of machines of different shapes.

use homenode_mm::LockScheme;
use simulation::{Config, Summary, run};

fn check(config: &Config) -> Summary {
    run(config).unwrap_or_else(|failure| panic!("{failure}"))
}

fn shape(seed: u64, cores: usize, nodes: usize) -> Config {
    Config {
        seed,
        cores,
        nodes,
        steps: 20_000,
        ..Config::default()
    }
}

#[test]
fn two_cores_on_one_node() {
    check(&shape(1, 2, 1));
}

#[test]
fn four_cores_on_four_nodes() {
    check(&shape(2, 4, 4));
}

#[test]
fn sixteen_cores_on_three_nodes() {
    check(&shape(3, 16, 3));
}

#[test]
fn one_lock_for_all_tables() {
    check(&Config {
        locks: LockScheme::Coarse,
        ..shape(4, 4, 2)
    });
}

#[test]
fn nothing_waits() {
    let summary = check(&Config {
        lazy: false,
        ..shape(10, 4, 4)
    });
    assert_eq!(summary.counts.retired, 0, "{summary}");
}

#[test]
fn so_many_cores_that_requests_overtake_each_other() {
    let summary = check(&shape(11, 96, 4));
    assert!(summary.counts.ring_overruns > 0, "{summary}");
}

#[test]
fn little_memory() {
    let summary = check(&Config {
        node_bytes: 16 << 20,
        ..shape(5, 3, 2)
    });
    assert!(summary.out_of_memory > 0, "{summary}");
}

#[test]
fn memory_enough_for_the_largest_pages() {
    check(&Config {
        node_bytes: 3 << 30,
        ..shape(6, 4, 2)
    });
}

#[test]
fn a_run_does_everything() {
    let summary = check(&shape(7, 4, 4));
    for (kind, count) in &summary.operations {
        assert!(*count > 0, "no {kind}: {summary}");
    }
    let counts = &summary.counts;
    for count in [
        summary.refused,
        counts.faults,
        counts.contended,
        counts.splits,
        counts.moves,
        counts.interrupts.iter().sum(),
        counts.alarms,
        counts.retired,
        counts.flushes,
        counts.speculations,
    ] {
        assert!(count > 0, "{summary}");
    }
}

#[test]
fn a_seed_gives_one_run_and_another_seed_another() {
    let run = |seed| check(&shape(seed, 4, 4)).to_string();
    assert_eq!(run(8), run(8));
    assert_ne!(run(8), run(9));
}
