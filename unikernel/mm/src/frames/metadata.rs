//! Per-frame metadata: sixteen bytes for each 4 KiB frame, in one array per node, on the frames' own node.

use core::ptr::NonNull;

use crate::atomic::{AtomicU32, Ordering};
use crate::size::Order;

/// What a frame is to the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Not the first frame of a block.
    Interior,
    /// The first frame of a block in its node's free lists.
    Free(Order),
    /// The first frame of a block that was handed out.
    Allocated(Order),
    /// The first frame of a block that was given back and is in a CPU's cache, in its node's depot, or on its way there.
    Cached(Order),
    /// A page table. Handed out as 4 KiB.
    Table,
}

impl State {
    const FREE: u32 = 1 << 8;
    const ALLOCATED: u32 = 2 << 8;
    const CACHED: u32 = 3 << 8;
    const TABLE: u32 = 4 << 8;
    /// An order.
    const LOW: u32 = 0xff;
    /// One of the above.
    const KIND: u32 = 0xff00;
    /// Above both, in the first frame of a chain in a depot, how many frames it has.
    const CHAIN_SHIFT: u32 = 16;

    #[inline]
    const fn encode(self) -> u32 {
        match self {
            Self::Interior => 0,
            Self::Free(order) => Self::FREE | order.index() as u32,
            Self::Allocated(order) => Self::ALLOCATED | order.index() as u32,
            Self::Cached(order) => Self::CACHED | order.index() as u32,
            Self::Table => Self::TABLE,
        }
    }

    fn decode(word: u32) -> Self {
        let low = word & Self::LOW;
        let order = Order::new(low as u8).unwrap_or(Order::MAX);
        match word & Self::KIND {
            Self::FREE => Self::Free(order),
            Self::ALLOCATED => Self::Allocated(order),
            Self::CACHED => Self::Cached(order),
            Self::TABLE => Self::Table,
            _ => Self::Interior,
        }
    }
}

/// One frame's metadata.
///
/// `next` and `previous` are links under the node's lock while the frame is the first of a free block. In a chain, `next` is the
/// next frame; in one in a depot, `previous` is the last frame in the first one, and the next chain in the last one. While the
/// frame is a page table, `lock` is that table's lock and `next` the number of its used entries.
#[repr(C)]
pub(crate) struct FrameMetadata {
    state: AtomicU32,
    next: AtomicU32,
    previous: AtomicU32,
    lock: TableLock,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<FrameMetadata>() == 16);

/// A page table's lock, and whether the table has been taken out of the tree.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct TableLock(AtomicU32);

impl TableLock {
    const LOCKED: u32 = 1;
    const STRAY: u32 = 2;

    /// A lock that nobody holds, of a table in the tree.
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Makes it as it was when it was new.
    fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Takes the lock unless it is held. What its last holder wrote is then seen.
    #[inline]
    pub(crate) fn try_lock(&self) -> bool {
        // A lock that is held is only read, so that its holder keeps the cache line.
        self.0.load(Ordering::Relaxed) & Self::LOCKED == 0
            && self.0.fetch_or(Self::LOCKED, Ordering::Acquire) & Self::LOCKED == 0
    }

    /// Gives the lock back. Only its holder may.
    #[inline]
    pub(crate) fn unlock(&self) {
        // Others only set the bit that is set already, so a plain store loses nothing.
        let word = self.0.load(Ordering::Relaxed);
        self.0.store(word & !Self::LOCKED, Ordering::Release);
    }

    /// Whether the page table has been taken out of the tree. To be relied on, the lock has to be held.
    #[inline]
    pub(crate) fn is_stray(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::STRAY != 0
    }

    /// Says that the page table is taken out of the tree. Under the lock.
    pub(crate) fn set_stray(&self) {
        let word = self.0.load(Ordering::Relaxed);
        self.0.store(word | Self::STRAY, Ordering::Relaxed);
    }

    /// Watches the lock, in one of loom's models.
    #[cfg(loom)]
    pub(crate) fn watch(&self) {
        self.0.watch();
    }
}

impl FrameMetadata {
    /// The index that stands for "no frame".
    pub(super) const NONE: u32 = u32::MAX;

    pub(crate) fn state(&self) -> State {
        State::decode(self.state.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn set_state(&self, state: State) {
        self.state.store(state.encode(), Ordering::Relaxed);
    }

    /// Turns a handed-out block of this order into one that was given back; of CPUs that try it at the same time one succeeds.
    ///
    /// # Errors
    /// What the frame is, if it is no such block. Nothing has been changed then.
    #[inline]
    pub(super) fn give_back(&self, order: Order) -> Result<(), State> {
        let given_back = State::Cached(order).encode();
        let change = |from: u32| {
            self.state
                .compare_exchange(from, given_back, Ordering::Relaxed, Ordering::Relaxed)
        };
        let Err(found) = change(State::Allocated(order).encode()) else {
            return Ok(());
        };
        let state = State::decode(found);
        match state {
            State::Table if order == Order::MIN => change(found).map(drop).map_err(State::decode),
            _ => Err(state),
        }
    }

    /// Says that this frame, which was given back, is the first of a chain in a depot.
    pub(super) fn set_chain(&self, frames: u32, last: u32) {
        let state = State::Cached(Order::MIN).encode() | frames << State::CHAIN_SHIFT;
        self.state.store(state, Ordering::Relaxed);
        self.set_previous(last);
    }

    /// Of the first frame of a chain in a depot: how many frames the chain has, and its last.
    pub(super) fn chain(&self) -> (u32, u32) {
        (
            self.state.load(Ordering::Relaxed) >> State::CHAIN_SHIFT,
            self.previous(),
        )
    }

    #[inline]
    pub(super) fn next(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set_next(&self, index: u32) {
        self.next.store(index, Ordering::Relaxed);
    }

    pub(super) fn previous(&self) -> u32 {
        self.previous.load(Ordering::Relaxed)
    }

    pub(super) fn set_previous(&self, index: u32) {
        self.previous.store(index, Ordering::Relaxed);
    }

    /// The metadata of a page table whose frame no allocator knows.
    pub(crate) fn table() -> Self {
        Self {
            state: AtomicU32::new(State::Table.encode()),
            next: AtomicU32::new(0),
            previous: AtomicU32::new(0),
            lock: TableLock::new(),
        }
    }

    /// Makes a frame that was handed out, and that no other CPU knows of yet, a page table with so many used entries: unlocked and
    /// attached. It is given back like any 4 KiB frame.
    pub(crate) fn become_table(&self, used: u32) {
        self.lock.reset();
        self.next.store(used, Ordering::Relaxed);
        self.set_state(State::Table);
    }

    /// The lock of a page table.
    #[inline]
    pub(crate) fn lock(&self) -> &TableLock {
        &self.lock
    }

    /// The number of the page table's used entries. To be relied on, its lock has to be held.
    #[inline]
    pub(crate) fn used(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    /// Adds to the number of the page table's used entries. Under its lock.
    #[inline]
    pub(crate) fn add_used(&self, change: i32) {
        self.next
            .store(self.used().wrapping_add_signed(change), Ordering::Relaxed);
    }

    /// Watches what a page table keeps here, in one of loom's models.
    #[cfg(loom)]
    pub(crate) fn watch(&self) {
        self.lock.watch();
        self.next.watch();
    }
}

/// The metadata of a node's frames, by index.
#[derive(Clone, Copy)]
pub(super) struct MetadataArray {
    first: NonNull<FrameMetadata>,
    frames: u32,
}

// SAFETY: the array is memory that belongs to it alone, and its items are atomics.
unsafe impl Send for MetadataArray {}
// SAFETY: as above.
unsafe impl Sync for MetadataArray {}

impl MetadataArray {
    /// The array of no frames.
    pub(super) const EMPTY: Self = Self {
        first: NonNull::dangling(),
        frames: 0,
    };

    /// An array for `frames` frames at `first`. Its items are what the memory holds until they are written.
    ///
    /// # Safety
    /// `first` is aligned memory for so many items, that nothing else uses while the array or a copy of it exists. Any bytes are
    /// valid items.
    pub(super) const unsafe fn new(first: NonNull<FrameMetadata>, frames: u32) -> Self {
        Self { first, frames }
    }

    /// The metadata of the frame with this index.
    ///
    /// # Panics
    /// If there is no such frame: the allocator's own lists are damaged.
    #[inline]
    pub(super) fn get(&self, index: u32) -> &FrameMetadata {
        assert!(index < self.frames, "frame index {index} of {}", self.frames);
        // SAFETY: in bounds; only shared references to the items, which are atomics, are ever made, and by `new`'s contract the
        // memory outlives them.
        unsafe { self.first.add(index as usize).as_ref() }
    }

    /// The index of the frame with this metadata, which is of this array.
    #[inline]
    pub(super) fn index_of(&self, metadata: &FrameMetadata) -> u32 {
        let offset = core::ptr::from_ref(metadata).addr() - self.first.as_ptr().addr();
        (offset / size_of::<FrameMetadata>()) as u32
    }

    /// The metadata of `count` frames from this index on.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    pub(super) fn slice(&self, index: u32, count: u32) -> &[FrameMetadata] {
        let end = index.checked_add(count).filter(|&end| end <= self.frames);
        assert!(
            end.is_some(),
            "{count} frames from index {index} of {}",
            self.frames
        );
        // SAFETY: in bounds; else as in `get`.
        unsafe { core::slice::from_raw_parts(self.first.add(index as usize).as_ptr(), count as usize) }
    }

    /// The address that frame number 0 of all physical memory would have if the array reached down to it, the frame with this
    /// index having this number.
    pub(super) fn biased(&self, index: u32, number: u64) -> *const FrameMetadata {
        self.first
            .as_ptr()
            .wrapping_add(index as usize)
            .wrapping_sub(number as usize)
    }
}
