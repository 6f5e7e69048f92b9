//! An application that does on request what a correct one never does, and that checks the API from inside a guest.
//!
//! The boot tests start it with the name of one of its [`COMMANDS`].
#![cfg_attr(not(feature = "hosted"), no_std, no_main)]

extern crate alloc;

mod checks;
mod crimes;
mod heap;
mod memory;
mod tlb;

use core::time::Duration;

use homenode::{Args, ExitCode, eprintln, println, thread};

/// A command's name, what it does, and the function that does it.
type Command = (&'static str, &'static str, fn(&mut Args) -> ExitCode);

const COMMANDS: &[Command] = &[
    ("exit", "N: ends with the status N", exit),
    ("sleep", "SECONDS: sleeps, then ends with success", sleep),
    ("spin", "computes on all CPUs for ever", spin),
    (
        "topology",
        "prints the machine's nodes, CPUs and distances",
        topology,
    ),
    (
        "threads",
        "checks threads, mutex, condvar and barrier",
        checks::threads,
    ),
    ("tls", "checks thread-local values", checks::thread_locals),
    (
        "memory",
        "checks where pages lie, what may be done with them, and the heap",
        memory::memory,
    ),
    (
        "giant-pages",
        "checks a page of 1 GiB, and its division",
        memory::giant_pages,
    ),
    (
        "out-of-memory",
        "asks node 0 for more memory than it has",
        memory::out_of_memory,
    ),
    (
        "many-stacks",
        "starts threads whose stacks are larger than the memory",
        checks::many_stacks,
    ),
    ("heap", "stresses the allocator on all CPUs", heap::heap),
    (
        "tlb",
        "checks what other CPUs notice of memory that is given back; with tlb.deadline=30s tlb.pending_max=64M",
        tlb::tlb,
    ),
    (
        "tlb-deadline",
        "checks how often a CPU that computes is interrupted; with a deadline of 50 ms",
        tlb::tlb_deadline,
    ),
    ("panic", "panics in a named thread", crimes::panic),
    ("null-write", "writes through a null pointer", crimes::null_write),
    ("text-write", "writes to its own code", crimes::text_write),
    (
        "read-only-write",
        "writes to a page that may be read only",
        crimes::read_only_write,
    ),
    (
        "revoked-read",
        "reads a page that another CPU has revoked",
        crimes::revoked_read,
    ),
    (
        "beyond-the-end",
        "writes behind the end of a reservation",
        crimes::beyond_the_end,
    ),
    (
        "touch-without-memory",
        "touches more pages of the last node than it has",
        crimes::touch_without_memory,
    ),
    ("stack-execute", "runs code on its stack", crimes::stack_execute),
    (
        "stack-overflow",
        "recurses without end in a named thread",
        crimes::stack_overflow,
    ),
    (
        "kernel-stack-overflow",
        "uses up the kernel's stack",
        crimes::kernel_stack_overflow,
    ),
    (
        "wild-stack",
        "faults with a stack pointer that leads nowhere",
        crimes::wild_stack,
    ),
    ("undefined", "runs an undefined instruction", crimes::undefined),
    (
        "triple-fault",
        "takes the interrupt table away and faults",
        crimes::triple_fault,
    ),
];

#[homenode::main]
fn main(mut args: Args) -> ExitCode {
    let name = args.next().unwrap_or("");
    match COMMANDS.iter().find(|command| command.0 == name) {
        Some((_, _, run)) => run(&mut args),
        None => {
            eprintln!("guest: no command \"{name}\"; there are:");
            for (name, what, _) in COMMANDS {
                eprintln!("  {name:22} {what}");
            }
            ExitCode::from(2)
        }
    }
}

/// The next argument as a number, or the status for wrong usage.
fn number(args: &mut Args) -> Result<u64, ExitCode> {
    let word = args.next().unwrap_or("");
    word.parse().map_err(|_| {
        eprintln!("guest: \"{word}\" is not a number");
        ExitCode::from(2)
    })
}

fn exit(args: &mut Args) -> ExitCode {
    match number(args).map(u8::try_from) {
        Ok(Ok(status)) => ExitCode::from(status),
        Ok(Err(_)) => {
            eprintln!("guest: a status is at most 255");
            ExitCode::from(2)
        }
        Err(status) => status,
    }
}

fn sleep(args: &mut Args) -> ExitCode {
    match number(args) {
        Ok(seconds) => {
            println!("sleeping {seconds} s");
            thread::sleep(Duration::from_secs(seconds));
            ExitCode::SUCCESS
        }
        Err(status) => status,
    }
}

fn spin(_: &mut Args) -> ExitCode {
    println!("spinning");
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().get() {
            scope.spawn(|| {
                loop {
                    core::hint::spin_loop();
                }
            });
        }
    });
    ExitCode::FAILURE
}

fn topology(_: &mut Args) -> ExitCode {
    println!("{}", homenode::topology());
    ExitCode::SUCCESS
}
