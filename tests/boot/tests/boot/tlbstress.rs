//! Regions that go from CPU to CPU, with a check of every tag.

use boot_tests::{Boot, End};
use serde_json::Value;

/// What the heap's first page of 2 MiB takes; threads do not use it while they work.
const HEAP_BYTES: u64 = 2 << 20;

/// On more CPUs than emulators have threads to spare, so that CPUs are behind for long. Pages of 2 MiB would let the emulator drop
/// more than it is asked to, and so hide errors.
#[test]
fn no_cpu_keeps_a_translation_too_long_on_16_cpus() {
    let guest = Boot::application("tlbstress")
        .machine(4, 16, "1G")
        .arguments(&["--seconds", "20"])
        .start();
    guest.wait_for("3 s: ");
    let status: Value = serde_json::from_str(&guest.get("/status").body).expect("JSON");
    let nodes = status["nodes"].as_array().expect("a list of nodes");
    let huge = |node: &Value| node["mapped_bytes"]["2MiB"].as_u64().expect("a number");
    assert!(nodes.iter().map(huge).sum::<u64>() <= HEAP_BYTES, "{status}");
    let outcome = guest.finish();
    outcome.assert_end(End::Program(0));
    outcome.line("tlbstress: 16 threads on 16 CPUs of 4 nodes ");
    outcome.line("TLB lazy, a region of 4 pages has 4 of 4 KiB, 0 of 2 MiB");
    outcome.line("tags checked, wrong: 0");
    outcome.line("verification: passed");
}

#[test]
fn bad_arguments_are_answered_with_the_usage_and_status_2() {
    let outcome = Boot::application("tlbstress")
        .arguments(&["--pages", "257"])
        .run();
    outcome.assert_end(End::Program(2));
    let position = |text: &str| {
        let found = outcome.console.find(text);
        found.unwrap_or_else(|| panic!("no `{text}`; the console:\n{}", outcome.console))
    };
    assert!(
        position("usage: tlbstress") < position("tlbstress: `--pages 257`: expected a number from 1 to 256")
    );
}
