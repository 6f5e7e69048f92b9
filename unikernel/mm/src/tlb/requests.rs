//! Requests to drop a few pages: a ring that whoever asks writes, and that the interrupted CPUs read.
//!
//! Nobody waits for room. A request takes the place of the one that came a whole ring earlier, and a CPU that has not read that one by then finds another
//! number in its place and drops everything.

use core::array;

use crossbeam_utils::CachePadded;

use crate::addr::VirtAddr;
use crate::atomic::{AtomicU64, Ordering, fence};
use crate::machine::{Event, Machine};

/// How many requests the ring holds: one in loom's models, so that any two overtake it.
const SLOTS: u64 = if cfg!(loom) { 1 } else { 64 };

/// Pages of one size, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageRun {
    pub(crate) start: VirtAddr,
    /// The size of each, as a power of two of bytes.
    pub(crate) shift: u32,
    pub(crate) pages: u32,
}

/// Pages whose entries have been changed, and of which CPUs may have kept translations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StalePages {
    #[default]
    None,
    /// All of them in one run.
    Run(PageRun),
    /// They are in no one run.
    Many,
}

impl StalePages {
    /// Adds a page of `1 << shift` bytes. Pages come in order of address; what lies between two of the same size counts as changed as well.
    #[inline]
    pub(crate) fn add(&mut self, page: VirtAddr, shift: u32) {
        match self {
            Self::None => {
                *self = Self::Run(PageRun {
                    start: page,
                    shift,
                    pages: 1,
                });
            }
            Self::Run(run) if run.shift == shift => {
                let pages = ((page.as_u64() - run.start.as_u64()) >> shift) + 1;
                match u32::try_from(pages) {
                    Ok(pages) => run.pages = pages,
                    Err(_) => *self = Self::Many,
                }
            }
            Self::Run(_) => *self = Self::Many,
            Self::Many => {}
        }
    }

    pub(crate) const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// The pages, if they are at most `most` in one run.
    pub(super) fn within(&self, most: u32) -> Option<PageRun> {
        match self {
            Self::Run(run) if run.pages <= most => Some(*run),
            _ => None,
        }
    }
}

/// A place of the ring.
struct Slot {
    /// The number of the request that the place holds; [`WRITING`](Self::WRITING) while it changes.
    number: AtomicU64,
    start: AtomicU64,
    /// The number of pages, and from bit 32 on the power of two of their size.
    shape: AtomicU64,
}

impl Slot {
    const WRITING: u64 = u64::MAX;
}

/// The requests of all CPUs, by number, the first being 1.
pub(super) struct Requests {
    newest: CachePadded<AtomicU64>,
    slots: [Slot; SLOTS as usize],
}

impl Requests {
    pub(super) fn new() -> Self {
        Self {
            newest: CachePadded::new(AtomicU64::new(0)),
            slots: array::from_fn(|_| Slot {
                number: AtomicU64::new(0),
                start: AtomicU64::new(0),
                shape: AtomicU64::new(0),
            }),
        }
    }

    fn slot(&self, number: u64) -> &Slot {
        &self.slots[(number % SLOTS) as usize]
    }

    /// The number of the newest request. Entries that were changed before it was made are seen changed.
    pub(super) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// Adds a request for pages whose entries this CPU has changed before; its number.
    pub(super) fn add(&self, run: PageRun) -> u64 {
        // Release: who sees the number sees the entries changed.
        let number = self.newest.fetch_add(1, Ordering::SeqCst) + 1;
        let slot = self.slot(number);
        // If a request that came a ring earlier or later is just being written, this one finds no place, and readers drop everything.
        if slot.number.swap(Slot::WRITING, Ordering::Acquire) != Slot::WRITING {
            // Who reads what follows also reads that it is being written.
            fence(Ordering::Release);
            slot.start.store(run.start.as_u64(), Ordering::Relaxed);
            slot.shape.store(
                u64::from(run.shift) << 32 | u64::from(run.pages),
                Ordering::Relaxed,
            );
            slot.number.store(number, Ordering::Release);
        }
        number
    }

    /// What was asked for under this number, if it still or already stands in the ring.
    fn read(&self, number: u64) -> Option<PageRun> {
        let slot = self.slot(number);
        if slot.number.load(Ordering::Acquire) != number {
            return None;
        }
        let start = slot.start.load(Ordering::Relaxed);
        let shape = slot.shape.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (slot.number.load(Ordering::Relaxed) == number).then_some(PageRun {
            start: VirtAddr::new_truncated(start),
            shift: (shape >> 32) as u32,
            pages: shape as u32,
        })
    }

    /// Drops the running CPU's translations of the pages of all requests after `answered` up to `newest`, if all stand in the ring and
    /// they are at most `most` pages; else says `false`.
    pub(super) fn answer<M: Machine>(&self, machine: &M, answered: u64, newest: u64, most: u32) -> bool {
        let mut left = most;
        for number in answered + 1..=newest {
            let Some(run) = self.read(number) else {
                machine.count(Event::RingOverrun, 1);
                return false;
            };
            let Some(rest) = left.checked_sub(run.pages) else {
                return false;
            };
            left = rest;
            for page in 0..u64::from(run.pages) {
                let page = run.start.as_u64() + (page << run.shift);
                machine.invalidate_page(VirtAddr::new_truncated(page));
            }
            machine.count(Event::FlushOne, u64::from(run.pages));
        }
        true
    }

    /// Watches the ring, in one of loom's models.
    #[cfg(loom)]
    pub(super) fn watch(&self) {
        self.newest.watch();
        for slot in &self.slots {
            slot.number.watch();
            slot.start.watch();
            slot.shape.watch();
        }
    }
}
