//! A phase with the interrupts and the locks of page tables that its kernel took meanwhile, which no counter outside of the machine
//! sees.

use homenode::metrics::{Interrupts, TableLocks, interrupts, table_locks};
use homenode::phase::Phase;
use homenode::println;

use crate::team::cpus;

/// A phase that has begun.
#[must_use = "a phase that begins also ends"]
pub(crate) struct Meter<const NUMBER: u8> {
    phase: Phase<NUMBER>,
    before: Option<Interrupts>,
    locks_before: Option<TableLocks>,
}

/// A phase that has ended.
#[must_use = "what was measured is told"]
pub(crate) struct Measured<const NUMBER: u8> {
    phase: Phase<NUMBER>,
    interrupts: Option<Interrupts>,
    locks: Option<TableLocks>,
}

impl<const NUMBER: u8> Meter<NUMBER> {
    /// Begins `phase`.
    pub(crate) fn begin(phase: Phase<NUMBER>) -> Self {
        let (before, locks_before) = (interrupts(), table_locks());
        phase.begin();
        Self {
            phase,
            before,
            locks_before,
        }
    }

    /// Ends the phase.
    pub(crate) fn end(self) -> Measured<NUMBER> {
        self.phase.end();
        let interrupts = self.before.zip(interrupts()).map(|(before, after)| Interrupts {
            timer: after.timer - before.timer,
            wake: after.wake - before.wake,
            flush: after.flush - before.flush,
        });
        let locks = self
            .locks_before
            .zip(table_locks())
            .map(|(before, after)| TableLocks {
                taken: after.taken - before.taken,
                contended: after.contended - before.contended,
            });
        Measured {
            phase: self.phase,
            interrupts,
            locks,
        }
    }
}

impl<const NUMBER: u8> Measured<NUMBER> {
    /// Prints what the phase was: it did `operations`, by `threads` threads. And what its kernel counted:
    /// `interrupts NN timer=A wake=B flush=C`, and `counters NN table_locks=A table_locks_contended=B` where there are such locks.
    pub(crate) fn announce(self, operations: usize, threads: usize) {
        self.phase.announce(operations as u64, cpus(threads));
        if let Some(Interrupts { timer, wake, flush }) = self.interrupts {
            println!("interrupts {NUMBER} timer={timer} wake={wake} flush={flush}");
        }
        if let Some(TableLocks { taken, contended }) = self.locks {
            println!("counters {NUMBER} table_locks={taken} table_locks_contended={contended}");
        }
    }
}
