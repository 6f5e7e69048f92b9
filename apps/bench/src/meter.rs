//! A phase with what its kernel counted meanwhile, which no counter outside of the machine sees: interrupts, locks of page tables
//! and flushes of the TLB.

use core::ops::Sub;
use core::time::Duration;

use homenode::metrics::{Interrupts, TableLocks, TlbCounts, interrupts, table_locks, tlb};
use homenode::phase::Phase;
use homenode::println;
use homenode::time::Instant;

use crate::team::cpus;

/// A phase that has begun.
#[must_use = "a phase that begins also ends"]
pub(crate) struct Meter<const NUMBER: u8> {
    phase: Phase<NUMBER>,
    before: Counts,
    begun: Instant,
}

/// A phase that has ended.
#[must_use = "what was measured is told"]
pub(crate) struct Measured<const NUMBER: u8> {
    phase: Phase<NUMBER>,
    counts: Counts,
    lasted: Duration,
}

impl<const NUMBER: u8> Meter<NUMBER> {
    /// Begins `phase`, when all memory that was given back before is free.
    pub(crate) fn begin(phase: Phase<NUMBER>) -> Self {
        homenode::tlb::drain();
        let before = Counts::now();
        let begun = Instant::now();
        phase.begin();
        Self { phase, before, begun }
    }

    /// Ends the phase, when all memory that was given back in it is free: what a kernel puts off is its cost, too.
    pub(crate) fn end(self) -> Measured<NUMBER> {
        homenode::tlb::drain();
        self.phase.end();
        let lasted = self.begun.elapsed();
        Measured {
            phase: self.phase,
            counts: Counts::now().since(&self.before),
            lasted,
        }
    }
}

impl<const NUMBER: u8> Measured<NUMBER> {
    /// Prints what the phase was: it did `operations`, by `threads` threads. And what its kernel counted:
    /// `interrupts NN timer=A wake=B flush=C`, and `counters NN NAME=K...` where it has such counters.
    pub(crate) fn announce(self, operations: usize, threads: usize) {
        self.phase.announce(operations as u64, cpus(threads));
        let Counts {
            interrupts,
            locks,
            tlb,
        } = self.counts;
        if let Some(Interrupts { timer, wake, flush }) = interrupts {
            println!("interrupts {NUMBER} timer={timer} wake={wake} flush={flush}");
        }
        if let Some(TableLocks { taken, contended }) = locks {
            println!("counters {NUMBER} table_locks={taken} table_locks_contended={contended}");
        }
        if let Some(TlbCounts {
            forced,
            interrupts_sent,
            catch_ups,
            retired,
            flush_all,
            flush_one,
        }) = tlb
        {
            println!(
                "counters {NUMBER} tlb_forced={forced} tlb_interrupts_sent={interrupts_sent} tlb_catch_ups={catch_ups} \
                 tlb_retired={retired} tlb_flush_all={flush_all} tlb_flush_one={flush_one}"
            );
        }
    }

    /// Like [`announce`](Self::announce), of a phase whose operations one thread did while others computed, so that `threads` CPUs
    /// were busy: prints how many computed, and for how long: `beside NN computing=C microseconds=U`.
    pub(crate) fn announce_beside(self, operations: usize, threads: usize) {
        let microseconds = self.lasted.as_micros();
        self.announce(operations, threads);
        println!(
            "beside {NUMBER} computing={} microseconds={microseconds}",
            cpus(threads) - 1
        );
    }
}

/// What the kernel counts, since boot or in a phase; `None` where it does not say.
struct Counts {
    interrupts: Option<Interrupts>,
    locks: Option<TableLocks>,
    tlb: Option<TlbCounts>,
}

impl Counts {
    fn now() -> Self {
        Self {
            interrupts: interrupts(),
            locks: table_locks(),
            tlb: tlb(),
        }
    }

    /// What was counted after `before`.
    fn since(&self, before: &Self) -> Self {
        fn difference<T: Sub<Output = T>>(after: Option<T>, before: Option<T>) -> Option<T> {
            Some(after? - before?)
        }
        Self {
            interrupts: difference(self.interrupts, before.interrupts),
            locks: difference(self.locks, before.locks),
            tlb: difference(self.tlb, before.tlb),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_before_the_phase_is_not_of_it() {
        let counts = |tlb, base: u64| Counts {
            interrupts: Some(Interrupts {
                timer: base,
                wake: 2 * base,
                flush: 3 * base,
            }),
            locks: None,
            tlb,
        };
        let tlb = |base: u64| TlbCounts {
            forced: base,
            interrupts_sent: 2 * base,
            catch_ups: 3 * base,
            retired: 4 * base,
            flush_all: 5 * base,
            flush_one: 6 * base,
        };
        let phase = counts(Some(tlb(12)), 12).since(&counts(Some(tlb(5)), 5));
        assert_eq!(phase.interrupts, counts(None, 7).interrupts);
        assert_eq!(phase.locks, None);
        assert_eq!(phase.tlb, Some(tlb(7)));
        assert_eq!(counts(None, 12).since(&phase).tlb, None);
    }
}
