//! From an address to its node and its metadata, by a table with an item per 128 MiB of physical address space.
//!
//! The items also say whose metadata is valid. What lies in the array of a node when the allocator is built may be anything, and
//! writing all of it would take time in proportion to memory, so an entry is written only when it can be asked for: that of a
//! block's first frame when the block comes into being, and those of the frames inside of a 2 MiB block, and of the 2 MiB blocks
//! inside of a 1 GiB block, when it is divided for the first time. That no one asks for others is for the callers to see to, by
//! [`Place::is_valid`].

use alloc::vec::Vec;
use core::ptr::{self, NonNull};

use homenode_topology::{NodeId, PhysAddr, PhysRange};

use super::metadata::{FrameMetadata, MetadataArray};
use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::frame::Block;
use crate::size::{BASE_SHIFT, Order, PageSize};

/// 128 MiB: 64 blocks of 2 MiB, a bit of a word for each.
const CHUNK_SHIFT: u32 = 27;
const CHUNK_BYTES: u64 = 1 << CHUNK_SHIFT;
const CHUNK_FRAMES: u32 = 1 << (CHUNK_SHIFT - BASE_SHIFT);
const HUGE: Order = PageSize::Size2MiB.order();

/// What is known about 128 MiB of addresses. Written at the start and when memory is divided for the first time; else only read.
#[repr(C)]
pub(super) struct Chunk {
    /// The metadata of frame number 0 of all memory, if the array of the largest piece reached down to it.
    metadata: *const FrameMetadata,
    /// The largest piece of memory without a hole: its first frame, counted in the chunk, and its frames. Others are searched for.
    first: u32,
    frames: u32,
    node: NodeId,
    /// 1 if the metadata of all 2 MiB blocks' first frames is valid.
    huge: AtomicU32,
    /// By 2 MiB: whether the metadata of all of its frames is valid.
    small: AtomicU64,
}

impl Chunk {
    /// The bit in `small` of the 2 MiB that `address` lies in.
    const fn bit(address: PhysAddr) -> u64 {
        1 << (address.0 / HUGE.bytes() % 64)
    }
}

/// Where a frame is.
pub(super) struct Place<'a> {
    pub(super) node: NodeId,
    pub(super) metadata: &'a FrameMetadata,
    chunk: &'a Chunk,
}

impl Place<'_> {
    /// Whether the metadata of a block at this place has ever been written, if it is one; if not, it is none.
    #[inline]
    pub(super) fn is_valid(&self, block: Block) -> bool {
        if block.order() < HUGE {
            self.is_valid_small(block.start())
        } else {
            block.order() == Order::MAX || self.chunk.huge.load(Ordering::Acquire) != 0
        }
    }

    /// As [`is_valid`](Self::is_valid), for the 4 KiB frame at `address`, which is this place's.
    #[inline(always)]
    pub(super) fn is_valid_small(&self, address: PhysAddr) -> bool {
        self.chunk.small.load(Ordering::Acquire) & Chunk::bit(address) != 0
    }
}

/// Frames without a hole in one chunk, where those that are near to another one are found without the directory.
#[derive(Clone, Copy)]
pub(super) struct Stretch<'a> {
    /// The number of the first frame, and how many there are.
    first: u64,
    frames: u64,
    node: NodeId,
    /// As [`Chunk::metadata`].
    metadata: *const FrameMetadata,
    /// There is one if there are frames.
    chunk: Option<&'a Chunk>,
}

impl<'a> Stretch<'a> {
    /// A stretch without frames.
    pub(super) const EMPTY: Self = Self {
        first: 0,
        frames: 0,
        node: NodeId(0),
        metadata: ptr::null(),
        chunk: None,
    };

    /// Where the frame at `address` is, and the how manieth of the stretch it is, if it lies in it.
    #[inline(always)]
    pub(super) fn find(&self, address: PhysAddr) -> Option<(Place<'a>, u32)> {
        let within = (address.0 >> BASE_SHIFT).wrapping_sub(self.first);
        if within >= self.frames {
            return None;
        }
        // SAFETY: there are frames; and the address lies in the memory that the pointer is biased for.
        let place = unsafe {
            let chunk = self.chunk.unwrap_unchecked();
            Directory::place(chunk, self.node, self.metadata, address)
        };
        Some((place, within as u32))
    }
}

/// Memory without a hole, and the metadata of frame number 0 of all memory, if its array reached down to it.
struct Section {
    range: PhysRange,
    node: NodeId,
    metadata: *const FrameMetadata,
}

/// All memory by its address.
pub(super) struct Directory {
    chunks: NonNull<Chunk>,
    count: u64,
    /// The number of the first chunk.
    first: u64,
    /// In order of address.
    sections: Vec<Section>,
}

// SAFETY: the chunks are memory of the directory's own, in which only the atomics change once it is built, and the pointers are to
// arrays of atomics that are shared as well.
unsafe impl Send for Directory {}
// SAFETY: as above.
unsafe impl Sync for Directory {}

impl Directory {
    /// The bytes that the table takes for memory in `span`.
    pub(super) fn bytes_for(span: PhysRange) -> u64 {
        Self::chunks(span).1 * size_of::<Chunk>() as u64
    }

    /// The number of the first chunk of `span`, and how many there are.
    fn chunks(span: PhysRange) -> (u64, u64) {
        let first = span.start.0 >> CHUNK_SHIFT;
        (first, span.end.0.div_ceil(CHUNK_BYTES).saturating_sub(first))
    }

    /// A directory without memory yet.
    pub(super) const EMPTY: Self = Self {
        chunks: NonNull::dangling(),
        count: 0,
        first: 0,
        sections: Vec::new(),
    };

    /// A directory for memory in `span`, whose table is at `place`.
    ///
    /// # Safety
    /// `place` is memory of [`bytes_for`](Self::bytes_for) bytes, aligned to 64, that nothing else uses while the directory exists.
    pub(super) unsafe fn new(place: NonNull<u8>, span: PhysRange) -> Self {
        let (first, count) = Self::chunks(span);
        let chunks = place.cast::<Chunk>();
        for index in 0..count as usize {
            let empty = Chunk {
                metadata: ptr::null(),
                first: 0,
                frames: 0,
                node: NodeId(0),
                huge: AtomicU32::new(0),
                small: AtomicU64::new(0),
            };
            // SAFETY: the caller gives memory for so many.
            unsafe { chunks.add(index).write(empty) };
        }
        Self {
            chunks,
            count,
            first,
            sections: Vec::new(),
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds memory without a hole, which is in the span and not there yet; `first` is the index of its first frame in `array`.
    pub(super) fn add(&mut self, range: PhysRange, node: NodeId, array: &MetadataArray, first: u32) {
        let metadata = array.biased(first, range.start.0 >> BASE_SHIFT);
        let mut start = range.start;
        while start < range.end {
            let chunk_start = start.align_down(CHUNK_BYTES);
            let end = range.end.min(chunk_start + CHUNK_BYTES);
            let frames = ((end - start) >> BASE_SHIFT) as u32;
            let index = (start.0 >> CHUNK_SHIFT) - self.first;
            assert!(index < self.count, "{range} is in the span");
            // SAFETY: in bounds, and nobody else has a reference, since `self` is exclusive.
            let chunk = unsafe { self.chunks.add(index as usize).as_mut() };
            if frames > chunk.frames {
                chunk.metadata = metadata;
                chunk.first = ((start - chunk_start) >> BASE_SHIFT) as u32;
                chunk.frames = frames;
                chunk.node = node;
            }
            start = end;
        }
        let at = self.sections.partition_point(|section| section.range < range);
        let section = Section {
            range,
            node,
            metadata,
        };
        self.sections.insert(at, section);
    }

    /// Where the frame that `address` lies in is, or `None` if there is no such frame.
    #[inline(always)]
    pub(super) fn find(&self, address: PhysAddr) -> Option<Place<'_>> {
        self.find_fast(address).or_else(|| self.search(address))
    }

    /// As [`find`](Self::find), without a call; but also `None` for frames that are not in the largest piece of their 128 MiB.
    #[inline(always)]
    pub(super) fn find_fast(&self, address: PhysAddr) -> Option<Place<'_>> {
        let chunk = self.chunk(address)?;
        let number = address.0 >> BASE_SHIFT;
        let within = (number as u32 & (CHUNK_FRAMES - 1)).wrapping_sub(chunk.first);
        // SAFETY: the address lies in the memory that the pointer is biased for.
        (within < chunk.frames).then(|| unsafe { Self::place(chunk, chunk.node, chunk.metadata, address) })
    }

    /// The frames around `address`, in its chunk, if there is such a frame.
    pub(super) fn stretch(&self, address: PhysAddr) -> Option<Stretch<'_>> {
        let chunk = self.chunk(address)?;
        let section = self.section(address)?;
        let start = address.align_down(CHUNK_BYTES);
        let part = section
            .range
            .intersection(&PhysRange::new(start, start + CHUNK_BYTES))?;
        Some(Stretch {
            first: part.start.0 >> BASE_SHIFT,
            frames: part.bytes() >> BASE_SHIFT,
            node: section.node,
            metadata: section.metadata,
            chunk: Some(chunk),
        })
    }

    /// The section that `address` lies in.
    fn section(&self, address: PhysAddr) -> Option<&Section> {
        let below = self
            .sections
            .partition_point(|section| section.range.start <= address);
        let section = self.sections[..below].last()?;
        section.range.contains(address).then_some(section)
    }

    #[cold]
    #[inline(never)]
    fn search(&self, address: PhysAddr) -> Option<Place<'_>> {
        let section = self.section(address)?;
        let chunk = self.chunk(address)?;
        // SAFETY: as in `find_fast`.
        Some(unsafe { Self::place(chunk, section.node, section.metadata, address) })
    }

    /// # Safety
    /// The address lies in the memory whose array `metadata` is biased for.
    #[inline(always)]
    unsafe fn place(
        chunk: &Chunk,
        node: NodeId,
        metadata: *const FrameMetadata,
        address: PhysAddr,
    ) -> Place<'_> {
        let number = (address.0 >> BASE_SHIFT) as usize;
        // SAFETY: by the caller, the sum is an item of the array, which lives as long as the allocator and to which only shared
        // references are made.
        let metadata = unsafe { &*metadata.wrapping_add(number) };
        Place {
            node,
            metadata,
            chunk,
        }
    }

    #[inline(always)]
    fn chunk(&self, address: PhysAddr) -> Option<&Chunk> {
        let index = (address.0 >> CHUNK_SHIFT).wrapping_sub(self.first);
        // SAFETY: in bounds, and `new` has written all of them.
        (index < self.count).then(|| unsafe { self.chunks.add(index as usize).as_ref() })
    }

    /// Whether the metadata of all frames in the 2 MiB at `address` is valid.
    pub(super) fn has_small(&self, address: PhysAddr) -> bool {
        self.chunk(address)
            .is_some_and(|chunk| chunk.small.load(Ordering::Acquire) & Chunk::bit(address) != 0)
    }

    /// Says that the metadata of all frames of memory in the 2 MiB at `address` has been written.
    pub(super) fn set_small(&self, address: PhysAddr) {
        if let Some(chunk) = self.chunk(address) {
            chunk.small.fetch_or(Chunk::bit(address), Ordering::Release);
        }
    }

    /// Whether the metadata of the first frame of each 2 MiB of memory in the 128 MiB at `address` is valid.
    pub(super) fn has_huge(&self, address: PhysAddr) -> bool {
        self.chunk(address)
            .is_some_and(|chunk| chunk.huge.load(Ordering::Acquire) != 0)
    }

    /// Says that the metadata of the first frame of each 2 MiB of memory has been written, in all 128 MiB that `range` touches.
    pub(super) fn set_huge(&self, range: PhysRange) {
        let mut address = range.start.align_down(CHUNK_BYTES);
        while address < range.end {
            if let Some(chunk) = self.chunk(address) {
                chunk.huge.store(1, Ordering::Release);
            }
            address = address + CHUNK_BYTES;
        }
    }
}
