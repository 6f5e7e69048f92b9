//! Threads, thread-local storage, memory, and the machines that they must work on.

use boot_tests::{Boot, End, Network, Outcome, Version, qemu};

fn run(boot: Boot, arguments: &[&str]) -> Outcome {
    let outcome = boot.arguments(arguments).run();
    outcome.assert_end(End::Program(0));
    outcome
}

fn guest() -> Boot {
    Boot::application("guest").machine(2, 4, "512M")
}

#[test]
fn the_programs_status_arrives() {
    guest()
        .arguments(&["exit", "7"])
        .run()
        .assert_end(End::Program(7));
}

#[test]
fn threads_and_their_synchronisation() {
    run(guest(), &["threads"]);
}

#[test]
fn thread_local_storage() {
    run(guest(), &["tls"]);
}

#[test]
fn memory_and_its_policies() {
    run(guest(), &["memory"]);
}

#[test]
fn memory_behind_one_lock() {
    run(guest().cmdline("ptlock=coarse"), &["memory"]);
}

#[test]
fn allocation_on_all_cpus() {
    run(guest(), &["heap"]);
}

#[test]
fn pages_of_1_gib() {
    run(Boot::application("guest").machine(1, 2, "4G"), &["giant-pages"]);
}

#[test]
fn an_error_says_which_node_lacks_memory_and_the_program_goes_on() {
    let outcome = run(guest(), &["out-of-memory"]);
    outcome.line("out of memory: no free 4 KiB page on node 0 (policy bind:0)");
    outcome.line("out-of-memory: passed");
}

#[test]
fn stacks_take_memory_as_they_are_used() {
    run(guest(), &["many-stacks"]);
}

#[test]
fn cpus_on_a_node_without_memory_use_their_neighbours() {
    let boot = Boot::application("guest")
        .machine(2, 4, "512M")
        .cmdline("numa=node,nodeid=0,cpus=0-1,mem=512M numa=node,nodeid=1,cpus=2-3");
    run(boot, &["memory"]);
}

#[test]
fn sixty_four_cpus() {
    let outcome = run(Boot::application("guest").machine(4, 64, "1G"), &["threads"]);
    outcome.line("nodes: 4, CPUs: 64,");
}

#[test]
fn more_cpus_than_an_xapic_can_address() {
    if qemu().version < Version::EMULATES_X2APIC {
        eprintln!("left out: QEMU {} emulates no x2APIC", qemu().version);
        return;
    }
    let outcome = run(Boot::application("guest").machine(4, 300, "1G"), &["exit", "0"]);
    outcome.line("nodes: 4, CPUs: 300,");
    outcome.line("CPUs: 300 of 300 run");
}

#[test]
fn a_machine_with_neither_x2apic_nor_1_gib_pages() {
    let outcome = run(
        guest().qemu_arguments(&["-cpu", "max,-x2apic,-pdpe1gb"]),
        &["threads"],
    );
    outcome.line("xAPIC");
}

/// No CPU comes to this deadline, and no node to this much memory that waits.
const LONG_DEADLINE: &str = "ip=off tlb.deadline=30s tlb.pending_max=64M";

#[test]
fn memory_that_is_given_back_interrupts_no_cpu() {
    // CPUs of two clusters.
    let boot = Boot::application("guest").machine(4, 20, "1G");
    run(boot.cmdline(LONG_DEADLINE), &["tlb"]);
    let without_x2apic = guest().qemu_arguments(&["-cpu", "max,-x2apic"]);
    run(without_x2apic.cmdline(LONG_DEADLINE), &["tlb"]);
}

#[test]
fn without_laziness_each_time_interrupts_all_cpus() {
    run(guest().cmdline("ip=off tlb.lazy=off"), &["tlb"]);
}

#[test]
fn a_cpu_that_computes_is_interrupted_once_per_deadline() {
    run(
        guest().cmdline("ip=off tlb.deadline=50ms tlb.pending_max=64M"),
        &["tlb-deadline"],
    );
}

#[test]
fn a_machine_without_a_network_card() {
    run(guest().network(Network::None), &["exit", "0"]);
}
