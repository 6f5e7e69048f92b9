//! The one door to hardware.

use core::ptr::NonNull;

use homenode_topology::PhysRange;

use crate::addr::VirtAddr;

/// What the memory manager asks of the machine: physical memory as bytes, and invalidation of translations.
///
/// The kernel's is its direct map and its instructions; the host tests' is an array. It is used by static dispatch, and
/// grows with what the memory manager does: the current CPU, clocks and interrupts to other CPUs are not asked for yet.
///
/// # Safety
/// An implementor promises that a pointer from [`memory`](Self::memory) is valid for reads and writes of the whole range
/// for as long as the implementor lives, that equal addresses give equal pointers and different addresses different
/// ones, and that `invalidate_*` change nothing but the CPU's cached translations.
pub unsafe trait Machine: Send + Sync {
    /// A pointer to the first byte of `range`, which must be memory (not device registers).
    fn memory(&self, range: PhysRange) -> NonNull<u8>;

    /// Sets all bytes of `range` to zero.
    ///
    /// # Safety
    /// Nothing else may use the range meanwhile, and no reference to it may be live.
    unsafe fn zero(&self, range: PhysRange) {
        let bytes = usize::try_from(range.bytes()).expect("64-bit machine");
        // SAFETY: `memory` gives a pointer to all of the range, and the caller promises that nothing else uses it.
        unsafe { self.memory(range).write_bytes(0, bytes) }
    }

    /// Drops the current CPU's cached translation of the page that `page` lies in, global or not (`INVLPG`).
    fn invalidate_page(&self, page: VirtAddr);

    /// Drops all of the current CPU's cached translations, the global ones too.
    fn invalidate_all(&self);
}

// SAFETY: everything is handed on to an implementor that lives at least as long as the reference.
unsafe impl<M: Machine> Machine for &M {
    fn memory(&self, range: PhysRange) -> NonNull<u8> {
        (**self).memory(range)
    }

    unsafe fn zero(&self, range: PhysRange) {
        // SAFETY: the caller's promise is handed on.
        unsafe { (**self).zero(range) }
    }

    fn invalidate_page(&self, page: VirtAddr) {
        (**self).invalidate_page(page);
    }

    fn invalidate_all(&self) {
        (**self).invalidate_all();
    }
}
