//! Regions that go from CPU to CPU, with a check of every tag.

use boot_tests::{Boot, End};

/// Without 2 MiB pages, and on more CPUs than the emulator has threads to spare, so that CPUs are behind for long.
#[test]
fn no_cpu_keeps_a_translation_too_long_on_16_cpus() {
    let outcome = Boot::application("tlbstress")
        .machine(4, 16, "1G")
        .arguments(&["--seconds", "20"])
        .run();
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
