//! The benchmarks, and the referee that counts what they cost.

use std::time::Duration;

use boot_tests::{Boot, End};
use xtask::bench::{self, Options, results::ResultFile};

fn measure(name: &str, numa: bool) -> ResultFile {
    let options = Options {
        name: name.to_owned(),
        cpus_list: vec![2],
        nodes: 2,
        memory: "512M".parse().unwrap(),
        cmdline: String::new(),
        linux: false,
        linux_kernel: None,
        numa,
        json: false,
        save: false,
        timeout: Duration::from_secs(180),
    };
    bench::measure(&options).unwrap_or_else(|error| panic!("{error:#}"))
}

#[test]
fn counts_are_the_same_each_time() {
    let [once, again] = [(); 2].map(|()| measure("threads", false).runs.remove(0).phases.remove(0));
    assert_eq!(
        (once.name.as_str(), once.operations),
        ("thread_create_join", 1024)
    );
    let [a, b] = [&once, &again].map(|phase| phase.per_operation(phase.instructions.kernel));
    assert!(
        a > 100.0 && b > 100.0,
        "starting and ending a thread takes more: {a}, {b}"
    );
    assert!(
        (a - b).abs() <= 0.02 * a,
        "{a} and {b} instructions per operation"
    );
}

#[test]
fn messages_between_nodes_cross_them() {
    let phase = measure("message", true).runs.remove(0).phases.remove(0);
    assert_eq!(phase.name, "message");
    let memory = phase.memory.expect("accesses are counted");
    assert!(memory.all.remote() > phase.operations, "{memory:?}");
    assert!(memory.shared_line_writes > phase.operations, "{memory:?}");
}

#[test]
fn pages_are_touched_unmapped_and_protected() {
    let boot = Boot::application("bench").arguments(&["faults", "unmap"]);
    // On a busy host, each unmapping waits for the other CPU's turn.
    let outcome = boot.timeout(Duration::from_secs(400)).run();
    outcome.assert_end(End::Program(0));
    for phase in [
        "phase 16 fault_4k ops=16384",
        "phase 18 fault_2m ops=64",
        "phase 22 fault_2m_1g ops=64",
        "phase 24 fault_2m_shared ops=64",
        "phase 20 populate_2m ops=64",
        "phase 32 unmap_16 ops=1000",
        "phase 38 unmap_16_all ops=400",
        "phase 34 protect_16 ops=1000",
        "phase 36 unmap_2m ops=200",
        "phase 40 fork_join_4 ops=400",
    ] {
        outcome.line(&format!("{phase} cpus=2"));
    }
}

#[test]
fn fewer_pages_are_touched_where_memory_is_short() {
    let boot = Boot::application("bench").machine(1, 4, "128M");
    let outcome = boot.arguments(&["faults", "--threads", "4"]).run();
    outcome.assert_end(End::Program(0));
    outcome.line("scaled fault_2m: 10 of 32 pages for each thread");
    outcome.line("phase 18 fault_2m ops=40 cpus=4");
}

#[test]
fn bad_arguments_are_answered_with_the_usage_and_status_2() {
    let outcome = Boot::application("bench").arguments(&["fault"]).run();
    outcome.assert_end(End::Program(2));
    outcome.line("`fault`: no such group");
}
