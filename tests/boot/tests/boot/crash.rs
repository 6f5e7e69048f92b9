//! What a program that goes wrong leaves behind: a report on the console, and a status that tells how it ended.

use std::time::Duration;

use boot_tests::{Boot, End, Outcome};

fn guest(what: &str) -> Outcome {
    Boot::application("guest")
        .machine(2, 2, "512M")
        .arguments(&[what])
        .run()
}

/// The lines of the report's backtrace.
fn backtrace(outcome: &Outcome) -> Vec<&str> {
    let lines = outcome
        .console
        .lines()
        .skip_while(|line| !line.starts_with("backtrace"));
    lines.skip(1).take_while(|line| line.starts_with(' ')).collect()
}

#[track_caller]
fn assert_backtrace_names(outcome: &Outcome, function: &str) {
    let backtrace = backtrace(outcome);
    assert!(
        backtrace.iter().any(|line| line.contains(function)),
        "`{function}` is not in {backtrace:#?}; the console:\n{}",
        outcome.console
    );
}

#[test]
fn a_null_write_is_reported_with_registers_and_a_backtrace() {
    let outcome = guest("null-write");
    outcome.assert_end(End::Exception);
    outcome.line("page fault (exception 14)");
    outcome.line("write to 0x0000000000000000");
    outcome.line("null pointer");
    outcome.line("on CPU 0 (APIC id 0), node 0, in program code");
    outcome.line("rip 0x");
    assert_backtrace_names(&outcome, "null_write");
    assert_backtrace_names(&outcome, "__homenode_main");
}

#[test]
fn a_stack_overflow_is_called_by_its_name() {
    let outcome = guest("stack-overflow");
    outcome.assert_end(End::Exception);
    outcome.line("stack overflow: the address lies in the guard");
    outcome.line("'deep'");
    assert_backtrace_names(&outcome, "recurse");
}

#[test]
fn a_kernel_stack_overflow_is_reported_too() {
    let outcome = guest("kernel-stack-overflow");
    outcome.assert_end(End::Exception);
    outcome.line("kernel stack overflow");
}

#[test]
fn code_can_not_be_written() {
    let outcome = guest("text-write");
    outcome.assert_end(End::Exception);
    assert!(
        outcome
            .line("write to 0xffffffff8")
            .contains("the page does not allow it")
    );
}

#[test]
fn a_page_that_may_be_read_only_is_read_but_not_written() {
    let outcome = guest("read-only-write");
    outcome.assert_end(End::Exception);
    let read = outcome.line("read 17 at 0x");
    let address = read.rsplit("0x").next().unwrap();
    let report = outcome.line("write to 0x");
    assert!(
        report.contains(address) && report.contains("the page does not allow it"),
        "{report}"
    );
    assert_backtrace_names(&outcome, "read_only_write");
}

#[test]
fn what_is_revoked_is_out_of_reach_at_once() {
    let outcome = guest("revoked-read");
    outcome.assert_end(End::Exception);
    let revoked = outcome.line("revoked at 0x");
    let address = revoked.rsplit("0x").next().unwrap();
    let report = outcome.line("read of 0x");
    assert!(report.contains(address), "{address}: {report}");
}

#[test]
fn a_write_behind_a_reservation_names_the_nearest_reservations() {
    let outcome = guest("beyond-the-end");
    outcome.assert_end(End::Exception);
    let reserved = outcome.line("reserved 3145728 bytes at 0x");
    let start = reserved.rsplit("0x").next().unwrap();
    let report = outcome.line("nearest reservation");
    assert!(report.contains(start), "{start}: {report}");
    assert_backtrace_names(&outcome, "beyond_the_end");
}

#[test]
fn a_first_touch_without_memory_names_node_size_and_policy() {
    let outcome = guest("touch-without-memory");
    outcome.assert_end(End::Exception);
    let report = outcome.line("out of memory: ");
    assert!(
        report.contains("no free 4 KiB page on node 1 (policy bind:1)"),
        "{report}"
    );
    assert_backtrace_names(&outcome, "touch_without_memory");
}

#[test]
fn a_stack_can_not_be_executed() {
    let outcome = guest("stack-execute");
    outcome.assert_end(End::Exception);
    outcome.line("instruction fetch from 0x");
}

#[test]
fn an_undefined_instruction_is_reported() {
    let outcome = guest("undefined");
    outcome.assert_end(End::Exception);
    outcome.line("invalid opcode (exception 6)");
}

#[test]
fn a_stack_pointer_that_leads_nowhere_is_reported() {
    let outcome = guest("wild-stack");
    outcome.assert_end(End::Exception);
    outcome.line("0x0000123456788ff8");
}

#[test]
fn a_triple_fault_is_told_from_an_end() {
    guest("triple-fault").assert_end(End::Reset);
}

#[test]
fn a_program_that_computes_for_ever_is_stopped_from_outside() {
    let boot = Boot::application("guest")
        .machine(1, 2, "256M")
        .arguments(&["spin"]);
    let outcome = boot.timeout(Duration::from_secs(15)).run();
    outcome.assert_end(End::Timeout);
    outcome.line("spinning");
}

#[test]
fn a_panic_says_where_why_and_in_which_thread() {
    let outcome = guest("panic");
    outcome.assert_end(End::Panic);
    outcome.line("'culprit' panicked at tests/guest/src/crimes.rs:");
    outcome.line("this is a test of panics");
    assert_backtrace_names(&outcome, "crimes::panic");
}
