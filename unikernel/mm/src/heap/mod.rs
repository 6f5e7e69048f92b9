//! Heaps that scale, with no hardware in them: what an allocator of a machine with many CPUs and nodes is made of.
//!
//! - [`CpuHeap`] is the heap of one CPU's threads. Only its CPU takes from it, without a lock; what other CPUs free of it goes
//!   onto a list that its owner takes over whole. It is for programs: its memory comes by large, demand-paged ranges.
//! - [`NodeHeaps`] is one heap per node, under one lock each, behind a [`CpuCache`] per CPU that holds a few blocks of each small
//!   size. It is for the kernel, which needs little memory on each of many CPUs.
//!
//! Both round a request up to a multiple of its alignment, and then, if it is small, up to a size class. A class's blocks are
//! aligned to the largest power of two that divides its size, so that this is all that alignment takes.

mod class;
mod cpu;
mod node;
mod returns;
mod slab;

use core::alloc::Layout;
use core::ptr::NonNull;

pub use class::LARGEST_SMALL_BYTES;
pub use cpu::{CpuHeap, LARGEST_BLOCK_BYTES, SEGMENT_BYTES, SEGMENT_USED_BYTES, Segments};
pub use node::{CpuCache, NodeHeap, NodeHeaps, PinnedMemory, PinnedRange};

/// The first word of a block that is free.
#[repr(C)]
struct FreeBlock {
    next: *mut FreeBlock,
}

/// The offset of the last byte of a request whose size is rounded up to a multiple of its alignment. The size is not 0.
#[inline]
const fn last_offset(layout: Layout) -> usize {
    // An alignment is a power of two, so this is rounding up, but for adding 1.
    layout.size().wrapping_sub(1) | (layout.align() - 1)
}

/// The number of bytes that a request takes before it is rounded up to a class: a multiple of its alignment. Its size is not 0.
#[inline]
#[must_use]
pub const fn padded_bytes(layout: Layout) -> usize {
    last_offset(layout).wrapping_add(1)
}

/// Whether a request is served by size classes, being of at most [`LARGEST_SMALL_BYTES`] bytes with its padding.
#[inline]
#[must_use]
pub const fn is_small(layout: Layout) -> bool {
    last_offset(layout) < LARGEST_SMALL_BYTES
}

/// A pointer for `alloc`'s callers.
#[inline]
#[must_use]
pub fn as_pointer(block: Option<NonNull<u8>>) -> *mut u8 {
    block.map_or(core::ptr::null_mut(), NonNull::as_ptr)
}
