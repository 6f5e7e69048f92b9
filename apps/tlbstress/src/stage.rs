//! What all threads share. It lies in the program's image, not on the heap.

use core::iter;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use homenode::mem::RegionError;
use homenode::println;
use homenode::sync::Mutex;

use crate::mailbox::Mailbox;
use crate::options::MAX_THREADS;
use crate::parcel::{Mismatch, Parcel};

/// What is done to regions, in the order of the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Map,
    Pass,
    Discard,
    Protect,
    Move,
    Drop,
    Revoke,
    Compute,
    Sleep,
}

impl Operation {
    /// All of them, with what the summary calls them.
    pub(crate) const ALL: [(Self, &'static str); 9] = [
        (Self::Map, "mapped"),
        (Self::Pass, "passed on"),
        (Self::Discard, "discarded"),
        (Self::Protect, "protected"),
        (Self::Move, "moved"),
        (Self::Drop, "dropped"),
        (Self::Revoke, "revoked"),
        (Self::Compute, "computed"),
        (Self::Sleep, "slept"),
    ];
}

/// Why a run can not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Mismatch(Mismatch),
    NoRegion(RegionError),
}

/// The mailboxes, the counters, and the end.
pub(crate) struct Stage {
    mailboxes: [Mailbox; MAX_THREADS],
    arrived: AtomicUsize,
    counts: [AtomicU64; Operation::ALL.len()],
    tags: AtomicU64,
    over: AtomicBool,
    stop: Mutex<Option<Stop>>,
}

impl Stage {
    pub(crate) const fn new() -> Self {
        Self {
            mailboxes: [const { Mailbox::new() }; MAX_THREADS],
            arrived: AtomicUsize::new(0),
            counts: [const { AtomicU64::new(0) }; Operation::ALL.len()],
            tags: AtomicU64::new(0),
            over: AtomicBool::new(false),
            stop: Mutex::new(None),
        }
    }

    /// The mailbox of a thread.
    pub(crate) fn mailbox(&self, thread: usize) -> &Mailbox {
        &self.mailboxes[thread]
    }

    /// What has been left in all mailboxes.
    pub(crate) fn left(&self) -> impl Iterator<Item = Parcel> {
        self.mailboxes
            .iter()
            .flat_map(|mailbox| iter::from_fn(|| mailbox.take()))
    }

    /// Notes that a thread has started.
    pub(crate) fn arrive(&self) {
        self.arrived.fetch_add(1, Release);
    }

    /// How many threads have started.
    pub(crate) fn arrived(&self) -> usize {
        self.arrived.load(Acquire)
    }

    pub(crate) fn count(&self, operation: Operation) {
        self.counts[operation as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn count_of(&self, operation: Operation) -> u64 {
        self.counts[operation as usize].load(Relaxed)
    }

    /// All operations.
    pub(crate) fn operations(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// Notes that so many tags have been looked at.
    pub(crate) fn count_tags(&self, tags: usize) {
        self.tags.fetch_add(tags as u64, Relaxed);
    }

    pub(crate) fn tags(&self) -> u64 {
        self.tags.load(Relaxed)
    }

    /// Ends the run. A wrong tag is reported at once, if it is the first: who knows what the next wrong access breaks.
    pub(crate) fn end(&self, stop: Option<Stop>) {
        self.over.store(true, Release);
        let Some(stop) = stop else {
            return;
        };
        let mut first = self.stop.lock();
        if first.is_none() {
            *first = Some(stop);
            if let Stop::Mismatch(mismatch) = stop {
                println!("{mismatch}");
            }
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Acquire)
    }

    /// What has stopped the run before its time.
    pub(crate) fn stopped_by(&self) -> Option<Stop> {
        *self.stop.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_numbered_as_they_are_listed() {
        for (index, (operation, _)) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, index);
        }
    }
}
