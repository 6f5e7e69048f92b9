//! Huge pages under both kinds of page-table locks, touched by one thread and by all.

use boot_tests::{Boot, End, Outcome};

/// 64 pages, more than one for each of 8 CPUs.
const PAGES: &str = "64";

fn run(locks: &str, arguments: &[&str]) -> Outcome {
    let outcome = Boot::application("hugelock")
        .machine(4, 8, "512M")
        .cmdline(&format!("ptlock={locks}"))
        .arguments(arguments)
        .run();
    outcome.assert_end(End::Program(0));
    assert!(
        outcome
            .line("page-table locks ")
            .contains(&format!("page-table locks {locks},")),
        "{}",
        outcome.console
    );
    outcome
}

/// How many pages of 2 MiB lie on each node, from a line like `N=64 T=8: node 0: 16 x 2 MiB, node 1: 48 x 2 MiB`.
fn huge_pages(line: &str) -> Vec<u64> {
    let (_, nodes) = line.split_once(": ").expect("N and T come first");
    let number = |text: &str| {
        let (_, pages) = text.split_once(": ")?;
        pages.strip_suffix(" x 2 MiB")?.parse().ok()
    };
    let pages: Option<_> = nodes.trim_end().split(", ").map(number).collect();
    pages.unwrap_or_else(|| panic!("not only pages of 2 MiB: {line}"))
}

#[test]
fn threads_fault_in_their_own_ranges_under_split_locks() {
    let outcome = run("split", &["--own", "--pages", PAGES, "--threads", "8,24"]);
    assert_eq!(huge_pages(outcome.line("N=64 T=8: node")), [16; 4]);
    assert_eq!(
        huge_pages(outcome.line("N=64 T=24: node")).iter().sum::<u64>(),
        64
    );
    outcome.line("phase 112 hugelock_touch ops=128 cpus=8");
    // 64 pages, 8 and 24 threads, 10 rounds.
    outcome.line("phase 114 hugelock_access ops=20480 cpus=8");
}

#[test]
fn threads_fault_in_one_array_under_both_locks() {
    for locks in ["split", "coarse"] {
        let outcome = run(locks, &["--slices", "--pages", PAGES, "--repeat", "3"]);
        assert_eq!(huge_pages(outcome.line("N=64 T=8: node")), [16; 4]);
        outcome.line("N=64 T=8: total ");
        outcome.line("phase 112 hugelock_touch ops=192 cpus=8");
    }
}

#[test]
fn the_default_is_scaled_to_the_memory() {
    let outcome = run("coarse", &[]);
    assert_eq!(
        huge_pages(outcome.line("N=100 T=8: node")).iter().sum::<u64>(),
        100
    );
    let scaled = outcome.line("N=6000 is scaled to N=").trim_end();
    let most = scaled
        .strip_prefix("N=6000 is scaled to N=")
        .and_then(|rest| rest.split(':').next()?.parse::<u64>().ok())
        .unwrap_or_else(|| panic!("no number: {scaled}"));
    // Three quarters of 512 MiB, less what the firmware keeps.
    assert!((180..=192).contains(&most), "{scaled}");
    let pages = huge_pages(outcome.line(&format!("N={most} T=8: node")));
    assert_eq!(pages.iter().sum::<u64>(), most);
    assert!(
        pages.len() >= 3,
        "{most} pages on four nodes of 128 MiB: {pages:?}"
    );
}

#[test]
fn bad_arguments_are_answered_with_the_usage_and_status_2() {
    let outcome = Boot::application("hugelock")
        .arguments(&["--own", "--slices"])
        .run();
    outcome.assert_end(End::Program(2));
    let position = |text: &str| {
        let found = outcome.console.find(text);
        found.unwrap_or_else(|| panic!("no `{text}`; the console:\n{}", outcome.console))
    };
    assert!(position("usage: hugelock") < position("hugelock: `--own --slices`: these exclude each other"));
}
