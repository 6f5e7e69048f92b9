//! The one global allocator of an image. It serves pinned kernel memory inside the gate and program memory outside, and frees by
//! address.
//!
//! Inside the gate: one heap per node, and a few blocks of each small size at hand on each CPU ([`NodeHeaps`]). Nothing in it turns
//! interrupts off, so no interrupt handler may allocate or free, unless it has interrupted program code.
//!
//! Outside: one heap per CPU, which its threads use without a lock, since a thread leaves its CPU only inside the gate ([`CpuHeap`]).
//! What other CPUs free, or the kernel does, goes back to the heap that it is from over a list. Large blocks are reservations of
//! their own.
//!
//! [`NodeHeaps`]: homenode_mm::heap::NodeHeaps
//! [`CpuHeap`]: homenode_mm::heap::CpuHeap

mod kernel;
mod program;

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};

use homenode_mm::heap::{CpuCache, as_pointer};

pub(crate) use self::kernel::init;
use self::program::Heap;
use super::gate;
use super::percpu::this_cpu;

/// What one CPU has of the heaps.
pub(crate) struct CpuHeaps {
    kernel: CpuCache,
    program: Heap,
}

impl CpuHeaps {
    pub(crate) const fn new() -> Self {
        Self {
            kernel: CpuCache::new(),
            program: Heap::new(program::Reservations),
        }
    }
}

struct ImageAllocator;

#[global_allocator]
static ALLOCATOR: ImageAllocator = ImageAllocator;

/// As [`gate::inside`], for allocations: there are none before the CPU's data are installed.
#[inline]
fn inside_gate() -> bool {
    this_cpu().gate_depth.get() != 0
}

/// Frees a block of the kernel's.
///
/// # Safety
/// As for [`GlobalAlloc::dealloc`].
#[inline(never)]
unsafe fn free_in_gate(block: NonNull<u8>, layout: Layout) {
    // SAFETY: by the caller, and inside the gate. Interrupt handlers do not free in kernel code.
    gate::enter(move || unsafe { kernel::free(block, layout) });
}

// SAFETY: each block comes from the heap that its address names, and goes back to it.
unsafe impl GlobalAlloc for ImageAllocator {
    #[inline(always)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout has a size above 0. Interrupt handlers do not allocate in kernel code.
        as_pointer(unsafe {
            if inside_gate() {
                kernel::allocate(layout)
            } else {
                program::allocate(layout)
            }
        })
    }

    #[inline(always)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: by the caller, the block came from `alloc` with this layout.
        unsafe {
            let block = NonNull::new_unchecked(block);
            if !program::owns(block) {
                free_in_gate(block, layout);
            } else if inside_gate() {
                program::free_inside_gate(block, layout);
            } else {
                program::free(block, layout);
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the caller.
        let block = unsafe { self.alloc(layout) };
        let is_zero = program::is_large(layout) && !inside_gate();
        if !block.is_null() && !is_zero {
            // SAFETY: a fresh block of this size.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        // SAFETY: by the caller, the block came from `alloc` with this layout, and a layout of the new size exists.
        unsafe {
            let old = NonNull::new_unchecked(block);
            if program::owns(old) && !inside_gate() && program::resize_in_place(old, layout, new_bytes) {
                return block;
            }
            let new = self.alloc(Layout::from_size_align_unchecked(new_bytes, layout.align()));
            if !new.is_null() {
                ptr::copy_nonoverlapping(block, new, layout.size().min(new_bytes));
                self.dealloc(block, layout);
            }
            new
        }
    }
}
