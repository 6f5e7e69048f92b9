//! The virtual address ranges of program memory: which are taken, and by whom.
//!
//! Ranges below 1 GiB are *slots*: powers of two, aligned to their size, so that a slot never shares a page table with more
//! than it must and 2 MiB pages fit where they can. Each CPU has an arena that divides 1 GiB chunks of its own into slots, the
//! upper half of a division being kept for the next request, and that keeps a few released slots of each size, the last
//! released first. What is more goes to a depot of that size, which all CPUs share and visit by batches: so slots that one
//! CPU reserves and another releases come round again. Slots are divided but never joined: what was once slots of a size
//! serves that size and smaller ones from then on, so that the addresses in use are bounded by the sum, over the sizes, of
//! the most that was ever in use of each, plus what the arenas keep.
//!
//! Ranges of 1 GiB or more, and the chunks, come from one list of free extents: whole GiBs, first fit, joined when released.

use alloc::vec;
use alloc::vec::Vec;
use core::{array, iter};

use arrayvec::ArrayVec;
use crossbeam_utils::CachePadded;
use homenode_topology::CpuId;
use spin::Mutex;

use crate::addr::{VirtAddr, VirtRange};

/// The size of a chunk, and the unit of ranges that are no slots.
const CHUNK_BYTES: u64 = 1 << CHUNK_SHIFT;
const CHUNK_SHIFT: u32 = 30;

/// The smallest slot, as a power of two: a page and its guard.
const SMALLEST_SHIFT: u32 = 13;

/// How many sizes of slots there are: 8 KiB to 512 MiB.
const CLASSES: usize = (CHUNK_SHIFT - SMALLEST_SHIFT) as usize;

/// The most slots that move between an arena and a depot at once.
const LARGEST_BATCH: usize = 16;

/// The most bytes that move between an arena and a depot at once, if that is at least two slots.
const BATCH_BYTES: u64 = 64 << 20;

/// Hands out ranges of virtual addresses, of which nobody else has been handed any part.
///
/// CPUs that work on slots do not write to a common cache line, except once per batch.
pub struct VirtualRanges {
    arenas: Vec<CachePadded<Mutex<Arena>>>,
    shared: Shared,
}

impl VirtualRanges {
    /// Hands out what lies in `whole`, by whole GiBs, to CPUs with numbers below `cpus`.
    ///
    /// # Panics
    /// If `whole` reaches the highest address there is.
    #[must_use]
    pub fn new(whole: VirtRange, cpus: usize) -> Self {
        Self {
            arenas: iter::repeat_with(CachePadded::default).take(cpus).collect(),
            shared: Shared {
                depots: array::from_fn(|_| CachePadded::default()),
                extents: CachePadded::new(Mutex::new(Extents::new(whole))),
            },
        }
    }

    /// A range of `bytes` bytes, which must include whatever is to stay free behind the caller's memory as a guard. It is
    /// aligned to `bytes` rounded up to a power of two, but to no more than 1 GiB and no less than 8 KiB.
    ///
    /// `None` says that there are no such addresses left, or no memory for the record of them. `cpu` is the CPU that this
    /// runs on; any other is slower, but right.
    ///
    /// # Panics
    /// If `bytes` is 0, or there is no such CPU.
    #[must_use]
    pub fn allocate(&self, cpu: CpuId, bytes: u64) -> Option<VirtRange> {
        assert_ne!(bytes, 0, "a range has bytes");
        let start = match Class::of(bytes) {
            Some(class) => self.arena(cpu).lock().allocate(class, &self.shared)?,
            None => self.shared.extents.lock().allocate(bytes)?,
        };
        Some(VirtRange::new(start, bytes).expect("the whole range is canonical"))
    }

    /// Takes a range back, as [`allocate`](Self::allocate) returned it. Needs no memory, and never fails.
    ///
    /// # Panics
    /// If it is seen not to be such a range, or there is no such CPU.
    pub fn free(&self, cpu: CpuId, range: VirtRange) {
        match Class::of(range.bytes()) {
            Some(class) => {
                assert!(range.start().is_aligned(class.bytes()), "{range} is no slot");
                self.arena(cpu).lock().free(class, range.start(), &self.shared);
            }
            None => self.shared.extents.lock().free(range),
        }
    }

    fn arena(&self, cpu: CpuId) -> &Mutex<Arena> {
        &self.arenas[cpu.0 as usize]
    }
}

/// A size of slots, as an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class(usize);

impl Class {
    /// The smallest slots that `bytes` bytes fit into; `None` if no slot is large enough.
    fn of(bytes: u64) -> Option<Self> {
        let shift = bytes
            .max(1 << SMALLEST_SHIFT)
            .checked_next_power_of_two()?
            .ilog2();
        (shift < CHUNK_SHIFT).then_some(Self((shift - SMALLEST_SHIFT) as usize))
    }

    fn larger(self) -> Option<Self> {
        (self.0 + 1 < CLASSES).then_some(Self(self.0 + 1))
    }

    const fn bytes(self) -> u64 {
        1 << (SMALLEST_SHIFT + self.0 as u32)
    }

    /// How many slots move between an arena and the depot at once: an even number.
    fn batch(self) -> usize {
        usize::try_from(BATCH_BYTES / self.bytes())
            .map_or(LARGEST_BATCH, |slots| slots.clamp(2, LARGEST_BATCH))
    }
}

/// What the arenas have in common.
struct Shared {
    depots: [CachePadded<Mutex<Depot>>; CLASSES],
    extents: CachePadded<Mutex<Extents>>,
}

impl Shared {
    fn depot(&self, class: Class) -> &Mutex<Depot> {
        &self.depots[class.0]
    }
}

/// A CPU's free slots.
#[derive(Default)]
struct Arena {
    /// At most two batches of each size, the last released last.
    free: [ArrayVec<VirtAddr, { 2 * LARGEST_BATCH }>; CLASSES],
    /// How many slots of each size may be made by dividing larger ones: the depot has room for them.
    credit: [usize; CLASSES],
}

impl Arena {
    fn allocate(&mut self, class: Class, shared: &Shared) -> Option<VirtAddr> {
        if let Some(slot) = self.free[class.0].pop() {
            return Some(slot);
        }
        if self.credit[class.0] == 0 {
            if let Some(slot) = self.refill(class, shared) {
                return Some(slot);
            }
            shared.depot(class).lock().reserve(class.batch())?;
            self.credit[class.0] = class.batch();
        }
        let larger = match class.larger() {
            Some(larger) => self.allocate(larger, shared),
            None => shared.extents.lock().allocate(CHUNK_BYTES),
        };
        let Some(divided) = larger else {
            // The addresses are used up: all that is left is what came back.
            return self.refill(class, shared);
        };
        self.credit[class.0] -= 2;
        self.free[class.0].push(VirtAddr::new_truncated(divided.as_u64() + class.bytes()));
        Some(divided)
    }

    /// Takes a batch out of the depot, and one slot of it.
    fn refill(&mut self, class: Class, shared: &Shared) -> Option<VirtAddr> {
        let mut depot = shared.depot(class).lock();
        let rest = depot.free.len().saturating_sub(class.batch());
        self.free[class.0].extend(depot.free.drain(rest..));
        self.free[class.0].pop()
    }

    fn free(&mut self, class: Class, slot: VirtAddr, shared: &Shared) {
        let free = &mut self.free[class.0];
        debug_assert!(!free.contains(&slot), "{slot} is released twice");
        if free.len() == 2 * class.batch() {
            shared.depot(class).lock().put(free.drain(..class.batch()));
        }
        free.push(slot);
    }
}

/// The free slots of a size that no arena keeps.
#[derive(Default)]
struct Depot {
    /// Has room for all slots of this size that there are or may be, so that putting one here needs no memory.
    free: Vec<VirtAddr>,
    /// How many these are.
    slots: usize,
}

impl Depot {
    /// Makes room for more slots of this size, or returns `None` if there is no memory for that.
    fn reserve(&mut self, more: usize) -> Option<()> {
        let slots = self.slots + more;
        self.free.try_reserve(slots - self.free.len()).ok()?;
        self.slots = slots;
        Some(())
    }

    fn put(&mut self, slots: impl ExactSizeIterator<Item = VirtAddr>) {
        assert!(
            self.free.len() + slots.len() <= self.slots,
            "more slots come back than there are"
        );
        self.free.extend(slots);
    }
}

/// A run of free addresses.
#[derive(Clone, Copy)]
struct Extent {
    start: u64,
    bytes: u64,
}

impl Extent {
    const fn end(self) -> u64 {
        self.start + self.bytes
    }
}

/// The free addresses that are in no chunk, by whole GiBs.
struct Extents {
    /// In order of address; no two touch. Has room for as many as `taken` ranges can separate.
    free: Vec<Extent>,
    /// How many ranges have been handed out.
    taken: usize,
    /// The addresses that there are.
    all: Extent,
}

impl Extents {
    fn new(whole: VirtRange) -> Self {
        let start = whole.start().as_u64().next_multiple_of(CHUNK_BYTES);
        let end = whole.start().as_u64().checked_add(whole.bytes());
        let end = end.expect("program memory is not at the end of the address space");
        let bytes = end.saturating_sub(start) / CHUNK_BYTES * CHUNK_BYTES;
        let all = Extent { start, bytes };
        Self {
            free: if bytes == 0 { Vec::new() } else { vec![all] },
            taken: 0,
            all,
        }
    }

    /// Takes the lowest addresses that fit.
    fn allocate(&mut self, bytes: u64) -> Option<VirtAddr> {
        let bytes = bytes.checked_next_multiple_of(CHUNK_BYTES)?;
        let index = self.free.iter().position(|extent| extent.bytes >= bytes)?;
        // N ranges leave at most N + 1 gaps.
        let gaps = self.taken + 2;
        self.free.try_reserve(gaps.saturating_sub(self.free.len())).ok()?;
        self.taken += 1;
        let extent = &mut self.free[index];
        let start = extent.start;
        extent.start += bytes;
        extent.bytes -= bytes;
        if extent.bytes == 0 {
            self.free.remove(index);
        }
        Some(VirtAddr::new_truncated(start))
    }

    fn free(&mut self, range: VirtRange) {
        let start = range.start().as_u64();
        let bytes = range.bytes().next_multiple_of(CHUNK_BYTES);
        let freed = Extent { start, bytes };
        // The first extent above, and the last below.
        let index = self.free.partition_point(|extent| extent.start < start);
        let above = self.free.get(index).copied();
        let below = index.checked_sub(1).map(|below| self.free[below]);
        assert!(
            start.is_multiple_of(CHUNK_BYTES)
                && below.map_or(self.all.start, Extent::end) <= start
                && freed.end() <= above.map_or(self.all.end(), |above| above.start),
            "{range} was not handed out, or is released twice"
        );
        self.taken -= 1;
        let joins_below = below.is_some_and(|below| below.end() == start);
        let joins_above = above.is_some_and(|above| above.start == freed.end());
        match (joins_below, joins_above) {
            (true, true) => {
                self.free[index - 1].bytes += bytes + self.free[index].bytes;
                self.free.remove(index);
            }
            (true, false) => self.free[index - 1].bytes += bytes,
            (false, true) => {
                self.free[index].start = start;
                self.free[index].bytes += bytes;
            }
            (false, false) => self.free.insert(index, freed),
        }
    }
}
