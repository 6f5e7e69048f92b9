//! A phase with the interrupts that its kernel took meanwhile, which no counter outside of the machine sees.

use homenode::metrics::{Interrupts, interrupts};
use homenode::phase::Phase;
use homenode::println;

use crate::team::cpus;

/// A phase that has begun.
#[must_use = "a phase that begins also ends"]
pub(crate) struct Meter<const NUMBER: u8> {
    phase: Phase<NUMBER>,
    before: Option<Interrupts>,
}

/// A phase that has ended.
#[must_use = "what was measured is told"]
pub(crate) struct Measured<const NUMBER: u8> {
    phase: Phase<NUMBER>,
    interrupts: Option<Interrupts>,
}

impl<const NUMBER: u8> Meter<NUMBER> {
    /// Begins `phase`.
    pub(crate) fn begin(phase: Phase<NUMBER>) -> Self {
        let before = interrupts();
        phase.begin();
        Self { phase, before }
    }

    /// Ends the phase.
    pub(crate) fn end(self) -> Measured<NUMBER> {
        self.phase.end();
        let interrupts = self.before.zip(interrupts()).map(|(before, after)| Interrupts {
            timer: after.timer - before.timer,
            wake: after.wake - before.wake,
            flush: after.flush - before.flush,
        });
        Measured {
            phase: self.phase,
            interrupts,
        }
    }
}

impl<const NUMBER: u8> Measured<NUMBER> {
    /// Prints what the phase was: it did `operations`, by `threads` threads. And `interrupts NN timer=A wake=B flush=C`.
    pub(crate) fn announce(self, operations: usize, threads: usize) {
        self.phase.announce(operations as u64, cpus(threads));
        if let Some(Interrupts { timer, wake, flush }) = self.interrupts {
            println!("interrupts {NUMBER} timer={timer} wake={wake} flush={flush}");
        }
    }
}
