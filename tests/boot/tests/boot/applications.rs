//! The applications, as a new user runs them.

use boot_tests::{Boot, End, application_image};

/// The largest image that is accepted, in bytes.
const LARGEST_IMAGE: u64 = 3_000_000;

#[test]
fn hello_is_said_by_every_cpu_on_its_node() {
    let outcome = Boot::application("hello").machine(4, 8, "1G").run();
    outcome.assert_end(End::Program(0));
    for cpu in 0..8 {
        outcome.line(&format!("hello from CPU {cpu} on node {}", cpu / 2));
    }
}

#[test]
fn images_are_small() {
    for name in ["fft3d", "hello", "hugelock"] {
        let bytes = application_image(name).metadata().unwrap().len();
        assert!(bytes <= LARGEST_IMAGE, "{name}: {bytes} bytes");
    }
}

/// Large arrays that come and go with their threads broke an early split of Linux's page-table lock on 24 CPUs, and not on 8.
#[test]
fn fft3d_verifies_itself_while_threads_and_grids_come_and_go_on_24_cpus() {
    const ROUNDS: usize = 6;
    // The grid's two huge pages and some small ones are first written to by several threads each.
    let arguments = "--n 72x64x64 --realloc --first-touch demand --json --repeat";
    let rounds = ROUNDS.to_string();
    let arguments: Vec<_> = arguments.split(' ').chain([rounds.as_str()]).collect();
    let outcome = Boot::application("fft3d")
        .machine(4, 24, "1G")
        .arguments(&arguments)
        .run();
    outcome.assert_end(End::Program(0));
    let report = outcome.json();
    assert_eq!(report["verified"], true, "{report}");
    let checks = report["checks"].as_array().expect("a list of checks");
    let passed: Vec<_> = checks
        .iter()
        .map(|check| (check["name"].as_str().unwrap(), &check["passed"], &check["count"]))
        .collect();
    assert_eq!(
        passed,
        [
            ("spectrum of plane waves", &true.into(), &1.into()),
            ("inverse of forward", &true.into(), &ROUNDS.into())
        ]
    );
}

#[test]
fn fft3d_matches_the_published_checksums() {
    let outcome = Boot::application("fft3d")
        .machine(2, 4, "1G")
        .arguments(&["--npb", "S"])
        .run();
    outcome.assert_end(End::Program(0));
    outcome.line("t = 6: checksum 554.26834119");
    let check = outcome.line("check: published checksums: ");
    assert!(check.ends_with(": passed"), "{check}");
}

#[test]
fn fft3d_answers_bad_arguments_with_its_usage_and_status_2() {
    let outcome = Boot::application("fft3d").arguments(&["--n", "7"]).run();
    outcome.assert_end(End::Program(2));
    // The error comes last, so that it is seen.
    let position = |text: &str| {
        let found = outcome.console.find(text);
        found.unwrap_or_else(|| panic!("no `{text}`; the console:\n{}", outcome.console))
    };
    assert!(position("usage: fft3d") < position("fft3d: `--n 7`: expected N or NXxNYxNZ"));
}

#[test]
fn fft3d_says_which_node_lacks_memory_and_for_how_much() {
    let outcome = Boot::application("fft3d")
        .machine(2, 2, "256M")
        .arguments(&["--n", "512", "--policy", "bind:1"])
        .run();
    outcome.assert_end(End::Program(3));
    let error = outcome.line("fft3d: not enough memory for a grid of 2 GiB: ");
    assert!(error.contains("on node 1 (policy bind:1)"), "{error}");
}

#[test]
fn fft3d_ends_when_its_workers_stacks_do_not_fit() {
    for first_touch in ["worker", "master"] {
        // On one CPU no worker runs, and touches more of its stack, before the last one is started.
        let outcome = Boot::application("fft3d")
            .machine(1, 1, "128M")
            .cmdline("numa=fake=2")
            .arguments(&["--threads", "4000", "--n", "8", "--first-touch", first_touch])
            .run();
        outcome.assert_end(End::Program(3));
        let error = outcome.line("fft3d: not enough memory for the stack of a worker, ");
        assert!(error.contains("on any of nodes 0 to 1: "), "{error}");
        assert!(
            error.contains(" workers have started; try fewer --threads"),
            "{error}"
        );
    }
}
