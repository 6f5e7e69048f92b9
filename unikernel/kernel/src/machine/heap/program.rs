//! The program's heaps, one per CPU, and its large blocks.

use core::alloc::Layout;
use core::ptr::NonNull;

use homenode_mm::heap::{CpuHeap, SEGMENT_USED_BYTES, Segments, is_small, padded_bytes};
use homenode_mm::{Attributes, FrameSize, PageSize, Policy, Protection, Size2MiB};

use crate::machine::percpu::this_cpu;
use crate::machine::program_memory;

/// Blocks of this size and larger are reservations of their own: their pages come when they are touched, and so lie where the threads are
/// that touch them first, by the policy of these threads; and they leave the machine's memory when they are freed.
pub(super) const LARGE_BYTES: usize = 1 << 20;

/// A heap is its CPU's: whatever policy the thread has that happens to make it grow, its memory is of the CPU's node.
const HEAP: Attributes = Attributes {
    protection: Protection::ReadWrite,
    policy: Some(Policy::Local),
    page_size: PageSize::Size2MiB,
};
const LARGE: Attributes = Attributes { policy: None, ..HEAP };

/// Reservations for the heaps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reservations;

// SAFETY: reservations are zeroed and nobody else's. Together with the page that stays free behind it, a segment takes more than half of
// its size, so that it is aligned to all of it.
unsafe impl Segments for Reservations {
    fn reserve(&self) -> Option<NonNull<u8>> {
        program_memory::reserve(SEGMENT_USED_BYTES, HEAP).ok()
    }
}

pub(super) type Heap = CpuHeap<Reservations>;

/// Whether a block of the program's or of the kernel's is at this address: the program has the lower half of all addresses.
#[inline]
pub(super) fn owns(block: NonNull<u8>) -> bool {
    block.addr().get().cast_signed() > 0
}

pub(super) fn is_large(layout: Layout) -> bool {
    padded_bytes(layout) >= LARGE_BYTES
}

/// The bytes that are reserved for a large block: room to grow up to the next power of 4, but for a page that is left free behind it;
/// beyond 64 GiB, to the next multiple of that. Blocks that are freed so leave addresses of few sizes behind. Only pages that are
/// touched take memory.
fn reserved_bytes(layout: Layout) -> Option<usize> {
    const STEP: usize = 64 << 30;
    const FREE: usize = Size2MiB::BYTES as usize;
    let needed = padded_bytes(layout).checked_add(FREE)?;
    let slot = if needed > STEP {
        needed.checked_next_multiple_of(STEP)?
    } else {
        let power = needed.next_power_of_two();
        power << (power.ilog2() % 2)
    };
    Some(slot - FREE)
}

/// # Safety
/// Outside the gate, on a thread's stack; the layout has a size.
#[inline]
pub(super) unsafe fn allocate(layout: Layout) -> Option<NonNull<u8>> {
    if is_small(layout) {
        // SAFETY: program threads of this CPU run one at a time and change only inside the gate, so that this one is the heap's only
        // user; whatever interrupts it is inside the gate. By the caller, the layout has a size.
        unsafe { this_cpu().heaps.program.allocate(layout) }
    } else {
        // SAFETY: by the caller.
        unsafe { allocate_not_small(layout) }
    }
}

/// # Safety
/// As for [`allocate`].
#[inline(never)]
unsafe fn allocate_not_small(layout: Layout) -> Option<NonNull<u8>> {
    if is_large(layout) {
        allocate_large(layout)
    } else {
        // SAFETY: as for `allocate`.
        unsafe { this_cpu().heaps.program.allocate(layout) }
    }
}

fn allocate_large(layout: Layout) -> Option<NonNull<u8>> {
    let bytes = reserved_bytes(layout)?;
    let start = program_memory::reserve(bytes, LARGE).ok()?;
    if start.addr().get().is_multiple_of(layout.align()) {
        return Some(start);
    }
    program_memory::release(start.addr().get() as u64, bytes as u64);
    None
}

/// # Safety
/// The block came from [`allocate`] with this layout, and nobody uses it any more. Outside the gate, on a thread's stack.
#[inline]
pub(super) unsafe fn free(block: NonNull<u8>, layout: Layout) {
    if is_small(layout) {
        // SAFETY: as for `allocate`; by the caller.
        unsafe { this_cpu().heaps.program.free(block, layout) }
    } else {
        // SAFETY: by the caller.
        unsafe { free_not_small(block, layout) }
    }
}

/// # Safety
/// As for [`free`].
#[inline(never)]
unsafe fn free_not_small(block: NonNull<u8>, layout: Layout) {
    if is_large(layout) {
        free_large(block, layout);
    } else {
        // SAFETY: as for `allocate`; by the caller.
        unsafe { this_cpu().heaps.program.free(block, layout) }
    }
}

/// Like [`free`], but inside the gate: a thread of this CPU may have been interrupted in its heap.
///
/// # Safety
/// The block came from [`allocate`] with this layout, and nobody uses it any more.
pub(super) unsafe fn free_inside_gate(block: NonNull<u8>, layout: Layout) {
    if is_large(layout) {
        return free_large(block, layout);
    }
    // SAFETY: by the caller.
    unsafe { Heap::free_remotely(block, layout) }
}

fn free_large(block: NonNull<u8>, layout: Layout) {
    let bytes = reserved_bytes(layout).expect("it was reserved");
    program_memory::release(block.addr().get() as u64, bytes as u64);
}

/// Whether the block has `new_bytes` bytes where it is, or has them now.
///
/// # Safety
/// The block came from [`allocate`] with this layout; `new_bytes` is not 0. Outside the gate, on a thread's stack.
pub(super) unsafe fn resize_in_place(block: NonNull<u8>, layout: Layout, new_bytes: usize) -> bool {
    let Ok(new) = Layout::from_size_align(new_bytes, layout.align()) else {
        return false;
    };
    match (is_large(layout), is_large(new)) {
        (true, true) if reserved_bytes(layout) == reserved_bytes(new) => {
            give_back_tail(block, layout, new);
            true
        }
        // SAFETY: as for `allocate`; by the caller.
        (false, false) => unsafe { this_cpu().heaps.program.resize_in_place(block, layout, new_bytes) },
        _ => false,
    }
}

/// Gives back the memory of the pages that a smaller layout leaves.
fn give_back_tail(block: NonNull<u8>, old: Layout, new: Layout) {
    let end = |layout: Layout| (layout.size() as u64).next_multiple_of(Size2MiB::BYTES);
    if end(new) < end(old) {
        let start = block.addr().get() as u64;
        // Without memory for a page table, the pages stay until the block is freed.
        _ = program_memory::discard(start + end(new), end(old) - end(new));
    }
}
