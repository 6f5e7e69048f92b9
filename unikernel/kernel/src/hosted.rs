//! The lower half on Linux: `std` threads, futexes and `mmap`. Its functions are those of `contract.rs`.
//!
//! CPUs and nodes are those that this process may use, numbered densely from 0. Where Linux refuses something that only places
//! threads or pages better (pinning, huge pages, a node's memory policy), the program runs on without it.

mod cpus;
mod futex;
mod memory;
mod threads;

use alloc::boxed::Box;
use core::time::Duration;
use std::io::Write;
use std::process;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, panic};

pub(crate) use cpus::{cpus, topology};
pub(crate) use futex::{wait, wake};
pub(crate) use memory::{
    discard, move_pages, page_table_locks, placement, populate, protect, query, release, release as revoke,
    reserve, set_policy, set_thread_policy, thread_policy,
};
pub(crate) use threads::{current_cpu, current_node, current_thread, spawn, thread_name, yield_now};

use crate::contract::{Interrupts, Stream, TableLocks, TlbCounts};
use crate::{Args, ExitCode};

/// The status of a program that panicked, the same as that of any Rust program.
const PANIC_STATUS: u8 = 101;

/// The status of a program that was called wrongly.
const USAGE_STATUS: u8 = 2;

/// The environment variable that takes the place of the kernel's word `log=`.
const LOG_VARIABLE: &str = "HOMENODE_LOG";

pub(crate) fn monotonic() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a place for the result.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    assert_eq!(status, 0, "Linux has a monotonic clock");
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

pub(crate) fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

pub(crate) fn interrupts() -> Option<Interrupts> {
    parse_interrupts(&std::fs::read_to_string("/proc/interrupts").ok()?)
}

pub(crate) fn table_locks() -> Option<TableLocks> {
    None
}

pub(crate) fn tlb_counts() -> Option<TlbCounts> {
    None
}

/// Linux interrupts CPUs where it must.
pub(crate) fn quiesce() {}

/// Nothing waits.
pub(crate) fn drain() {}

/// Linux's way.
pub(crate) fn tlb_mode() -> &'static str {
    "linux"
}

/// Sums the rows of `/proc/interrupts` (`proc(5)`; on x86, `arch/x86/kernel/irq.c` names those of the local APIC).
fn parse_interrupts(table: &str) -> Option<Interrupts> {
    let row = |name| {
        let mut words = table.lines().map(str::split_ascii_whitespace);
        let row = words.find_map(|mut words| (words.next() == Some(name)).then_some(words))?;
        Some(row.map_while(|word| word.parse::<u64>().ok()).sum())
    };
    Some(Interrupts {
        timer: row("LOC:")?,
        wake: row("RES:")?,
        flush: row("TLB:")?,
    })
}

pub(crate) fn exit(status: u8) -> ! {
    process::exit(status.into())
}

pub(crate) fn write_console(stream: Stream, bytes: &[u8]) {
    // Like the bare machine's console, this one takes what it is given, heard or not.
    let _ = match stream {
        Stream::Output => std::io::stdout().write_all(bytes),
        Stream::Error => std::io::stderr().write_all(bytes),
    };
}

/// Runs a program: what stands behind `#[homenode::main]`.
#[doc(hidden)]
pub fn __run(main: impl FnOnce(Args) -> ExitCode) -> process::ExitCode {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        exit(PANIC_STATUS);
    }));
    start_log();
    threads::adopt_main();
    let mut words = Vec::new();
    for (number, word) in env::args_os().enumerate() {
        match word.into_string() {
            Ok(word) => words.push(&*word.leak()),
            Err(word) => {
                crate::eprintln!("error: argument {number} is not UTF-8: {word:?}");
                return USAGE_STATUS.into();
            }
        }
    }
    let path = if words.is_empty() { "" } else { words.remove(0) };
    let program = path.rsplit('/').next().unwrap_or(path);
    main(Args::new(program, words)).to_u8().into()
}

/// Writes log lines to standard error.
struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        crate::eprintln!("{:<5} {}: {}", record.level(), record.target(), record.args());
    }

    fn flush(&self) {}
}

fn start_log() {
    let level = match env::var(LOG_VARIABLE) {
        Err(_) => log::LevelFilter::Info,
        Ok(level) => level.parse().unwrap_or_else(|_| {
            crate::eprintln!(
                "error: {LOG_VARIABLE}={level:?}: set it to off, error, warn, info, debug or trace"
            );
            exit(USAGE_STATUS)
        }),
    };
    if log::set_logger(&Logger).is_ok() {
        log::set_max_level(level);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_all_cpus_are_summed() {
        let table = "           CPU0       CPU1\n  0:   9   8   IO-APIC   2-edge   timer\n\
                     LOC:   100   23   Local timer interrupts\nRES:   4   5   Rescheduling interrupts\n\
                     TLB:   0   7   TLB shootdowns\n";
        let expected = Interrupts {
            timer: 123,
            wake: 9,
            flush: 7,
        };
        assert_eq!(parse_interrupts(table), Some(expected));
        assert_eq!(parse_interrupts("CPU0\n"), None);
    }
}
