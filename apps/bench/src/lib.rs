//! Small benchmarks of what a parallel program asks of its kernel: memory, threads, synchronisation.
//!
//! Each benchmark does some work to warm up, then puts a [phase marker](homenode::phase) on either side of the measured work, and
//! prints `phase NN NAME ops=K cpus=C`. An instruction counter outside of the machine does the rest. A clock there is only to say
//! how long other CPUs have computed, since how often they are interrupted depends on it. A phase ends when all that its operations
//! have begun is done: threads have ended, memory is given back, and no CPU can reach it any more.
//!
//! The same source runs on the bare machine and on Linux.
#![cfg_attr(not(feature = "hosted"), no_std)]

extern crate alloc;

#[cfg(feature = "hosted")]
mod linux;
mod memory;
mod message;
mod meter;
mod options;
mod synchronization;
mod team;
mod threads;

use core::fmt;

use command_line::options_or_status;
use homenode::mem::RegionError;
use homenode::thread::SpawnError;
use homenode::{Args, ExitCode, eprintln};

use options::{Group, Options, USAGE};

/// The status when there is no memory for a benchmark.
const MEMORY_STATUS: u8 = 3;

/// Does what `args` ask for.
pub fn run(args: Args) -> ExitCode {
    let options = match options_or_status("bench", USAGE, Options::parse(args)) {
        Ok(options) => options,
        Err(status) => return status,
    };
    for group in options.groups {
        if let Err(error) = run_group(group, options.threads) {
            eprintln!("bench: {}: {error}", group.name());
            return ExitCode::from(MEMORY_STATUS);
        }
    }
    ExitCode::SUCCESS
}

fn run_group(group: Group, threads: usize) -> Result<(), Failure> {
    match group {
        Group::Faults => memory::faults(threads),
        Group::Unmap => memory::unmap(threads),
        Group::Grid => memory::grid(),
        Group::Threads => threads::create_join(threads),
        Group::Exit => threads::exit(),
        Group::Barrier => synchronization::barrier(threads),
        Group::Mutex => synchronization::mutex(threads),
        Group::Alloc => memory::alloc(threads),
        Group::Message => message::round_trips(),
    }
}

/// Why a benchmark could not run.
#[derive(Debug)]
enum Failure {
    Memory(RegionError),
    Thread(SpawnError),
}

impl From<RegionError> for Failure {
    fn from(error: RegionError) -> Self {
        Self::Memory(error)
    }
}

impl From<SpawnError> for Failure {
    fn from(error: SpawnError) -> Self {
        Self::Thread(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(error) => error.fmt(f),
            Self::Thread(error) => error.fmt(f),
        }
    }
}
