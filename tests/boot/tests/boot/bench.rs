//! The benchmarks, and the referee that counts what they cost.

use boot_tests::{Boot, End};
use xtask::bench::{self, Options, results::ResultFile};

fn measure(name: &str, numa: bool) -> ResultFile {
    let options = Options {
        name: name.to_owned(),
        cpus_list: vec![2],
        nodes: 2,
        memory: "512M".parse().unwrap(),
        numa,
        json: false,
        save: false,
        timeout: 180,
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
fn what_homenode_can_not_do_is_skipped_by_name() {
    let outcome = Boot::application("bench").arguments(&["faults"]).run();
    outcome.assert_end(End::Program(0));
    outcome.line("skipped fault_4k: needs demand paging");
    outcome.line("phase 20 populate_2m ops=64 cpus=2");
}

#[test]
fn bad_arguments_are_answered_with_the_usage_and_status_2() {
    let outcome = Boot::application("bench").arguments(&["fault"]).run();
    outcome.assert_end(End::Program(2));
    outcome.line("`fault`: no such group");
}
