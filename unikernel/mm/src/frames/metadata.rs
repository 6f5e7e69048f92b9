//! Per-frame metadata: twelve bytes for each 4 KiB frame, in one array on the frames' own node.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use homenode_topology::PhysRange;

use crate::machine::Machine;
use crate::size::{BASE_SHIFT, Order};

/// What a frame is to the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not the first frame of a block.
    Interior,
    /// The first frame of a free block.
    Free(Order),
    /// The first frame of a block that was handed out.
    Allocated(Order),
}

impl State {
    const FREE: u32 = 1 << 8;
    const ALLOCATED: u32 = 2 << 8;
    const ORDER: u32 = 0xff;

    const fn encode(self) -> u32 {
        match self {
            // Zero, so that a zeroed array needs no further initialisation.
            Self::Interior => 0,
            Self::Free(order) => Self::FREE | order.index() as u32,
            Self::Allocated(order) => Self::ALLOCATED | order.index() as u32,
        }
    }

    fn decode(word: u32) -> Self {
        let order = Order::new((word & Self::ORDER) as u8).unwrap_or(Order::MAX);
        match word & !Self::ORDER {
            Self::FREE => Self::Free(order),
            Self::ALLOCATED => Self::Allocated(order),
            _ => Self::Interior,
        }
    }
}

/// One frame's metadata. Atomics, for later use outside of the node's lock; under it, relaxed accesses do.
#[repr(C)]
pub(super) struct FrameMetadata {
    state: AtomicU32,
    /// The next and previous free block of the order, while the frame is the first of a free block.
    next: AtomicU32,
    previous: AtomicU32,
}

impl FrameMetadata {
    /// The index that stands for "no frame".
    pub(super) const NONE: u32 = u32::MAX;

    pub(super) fn state(&self) -> State {
        State::decode(self.state.load(Ordering::Relaxed))
    }

    pub(super) fn set_state(&self, state: State) {
        self.state.store(state.encode(), Ordering::Relaxed);
    }

    pub(super) fn next(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    pub(super) fn set_next(&self, index: u32) {
        self.next.store(index, Ordering::Relaxed);
    }

    pub(super) fn previous(&self) -> u32 {
        self.previous.load(Ordering::Relaxed)
    }

    pub(super) fn set_previous(&self, index: u32) {
        self.previous.store(index, Ordering::Relaxed);
    }
}

/// The metadata of a node's frames, by index.
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

    /// The bytes that the metadata of `frames` frames takes, in whole frames.
    pub(super) const fn bytes_for(frames: u64) -> u64 {
        (frames * size_of::<FrameMetadata>() as u64).next_multiple_of(1 << BASE_SHIFT)
    }

    /// An array for `frames` frames in `range`, all of them [`State::Interior`].
    ///
    /// # Safety
    /// `range` is memory, aligned to 4 KiB and large enough, that nothing else uses while the array exists, and
    /// `machine` lives as long as the array.
    pub(super) unsafe fn new<M: Machine>(machine: &M, range: PhysRange, frames: u32) -> Self {
        assert!(
            Self::bytes_for(frames.into()) <= range.bytes(),
            "the metadata fits into {range}"
        );
        // SAFETY: the caller gives the range to this array alone.
        unsafe { machine.zero(range) };
        Self {
            first: machine.memory(range).cast(),
            frames,
        }
    }

    /// The metadata of the frame with this index.
    ///
    /// # Panics
    /// If there is no such frame: the allocator's own lists are damaged.
    pub(super) fn get(&self, index: u32) -> &FrameMetadata {
        assert!(index < self.frames, "frame index {index} of {}", self.frames);
        // SAFETY: the index is in bounds of an array that `new` has initialised; only shared references to its items,
        // which are atomics, are ever made, and by `new`'s contract the memory outlives them.
        unsafe { self.first.add(index as usize).as_ref() }
    }
}
