//! Slabs: 64 KiB of memory in blocks of one size.

use core::ptr::{self, NonNull};

use super::FreeBlock;
use super::class::Class;

pub(super) const SLAB_BYTES: usize = 1 << SLAB_SHIFT;
pub(super) const SLAB_SHIFT: u32 = 16;

/// What its owner knows of a slab. It lies apart from the slab, on a cache line of its own.
#[repr(C, align(64))]
pub(super) struct Slab {
    /// Blocks that were freed.
    free: *mut FreeBlock,
    /// The first block that was never used.
    fresh: *mut u8,
    /// Where no more block fits.
    end: *mut u8,
    /// How many blocks are in use.
    used: u32,
    /// When a free brings `used` down to this, the heap has to move the slab to another list: see [`Slab::free`].
    notice_at: u32,
    block_bytes: u32,
    pub(super) class: Class,
    /// Neighbours in the heap's list of slabs of this class with room. One list of one heap at a time.
    pub(super) next: *mut Slab,
    pub(super) previous: *mut Slab,
}

/// A slab without blocks, for heaps that have none of a class yet. It is never written to.
#[repr(transparent)]
struct Nothing(Slab);

// SAFETY: immutable.
unsafe impl Sync for Nothing {}

static NOTHING: Nothing = Nothing(Slab {
    free: ptr::null_mut(),
    fresh: ptr::null_mut(),
    end: ptr::null_mut(),
    used: 0,
    notice_at: 0,
    block_bytes: 0,
    class: Class::SMALLEST,
    next: ptr::null_mut(),
    previous: ptr::null_mut(),
});

/// What a free leaves to the heap to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// The slab was full and off its list, and has room again.
    HasRoom,
    /// None of its blocks is in use.
    Empty,
}

impl Slab {
    /// The slab that has no block. It must not be written to.
    pub(super) const fn nothing() -> *mut Self {
        (&raw const NOTHING.0).cast_mut()
    }

    /// A slab of fresh blocks.
    ///
    /// # Safety
    /// `memory` is the start of [`SLAB_BYTES`] bytes, aligned to that.
    pub(super) unsafe fn new(class: Class, memory: *mut u8) -> Self {
        let blocks = SLAB_BYTES / class.bytes();
        Self {
            free: ptr::null_mut(),
            fresh: memory,
            // SAFETY: not beyond the memory.
            end: unsafe { memory.add(blocks * class.bytes()) },
            used: 0,
            notice_at: 0,
            block_bytes: class.bytes() as u32,
            class,
            next: ptr::null_mut(),
            previous: ptr::null_mut(),
        }
    }

    /// A block, if there is one left: one that was used before, which is likelier to be cached, else a fresh one.
    ///
    /// # Safety
    /// `slab` leads to a slab that its owner alone uses, or to [`nothing`](Self::nothing).
    #[inline]
    pub(super) unsafe fn take(slab: *mut Self) -> Option<NonNull<u8>> {
        // SAFETY: by the caller; nothing is written when there is no block. A free block's first word leads to the next one.
        unsafe {
            if let Some(block) = NonNull::new((*slab).free) {
                (*slab).free = (*block.as_ptr()).next;
                (*slab).used += 1;
                return Some(block.cast());
            }
            let fresh = (*slab).fresh;
            if fresh == (*slab).end {
                return None;
            }
            (*slab).fresh = fresh.add((*slab).block_bytes as usize);
            (*slab).used += 1;
            NonNull::new(fresh)
        }
    }

    /// Takes a block back. Gives what the heap has to do for it now, if anything.
    ///
    /// Slabs that are listed notify when they become empty. Full ones are not listed and notify at their first free block; both
    /// are one comparison, since `used` goes down by one at a time.
    ///
    /// # Safety
    /// `slab` leads to a slab that its owner alone uses, and `block` is one of its blocks, which nobody uses any more.
    #[inline]
    pub(super) unsafe fn free(slab: *mut Self, block: NonNull<u8>) -> Option<Notice> {
        let block = block.cast::<FreeBlock>();
        // SAFETY: by the caller.
        unsafe {
            // First, since a page of program memory may have to come for it.
            block.write(FreeBlock { next: (*slab).free });
            (*slab).free = block.as_ptr();
            (*slab).used -= 1;
            if (*slab).used != (*slab).notice_at {
                return None;
            }
            Some(if (*slab).notice_at == 0 {
                Notice::Empty
            } else {
                Notice::HasRoom
            })
        }
    }

    /// Whether none of its blocks is in use.
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The slab is full and leaves its list.
    ///
    /// # Safety
    /// `slab` leads to a full slab that its owner alone uses.
    pub(super) unsafe fn set_unlisted(slab: *mut Self) {
        // SAFETY: by the caller. A slab has two blocks at least, so this is not 0.
        unsafe { (*slab).notice_at = (*slab).used - 1 };
    }

    /// The slab has room and is on its list.
    ///
    /// # Safety
    /// `slab` leads to a slab that its owner alone uses.
    pub(super) unsafe fn set_listed(slab: *mut Self) {
        // SAFETY: by the caller.
        unsafe { (*slab).notice_at = 0 };
    }
}

const _: () = assert!(size_of::<Slab>() == 64 && SLAB_BYTES >= 2 * super::LARGEST_SMALL_BYTES);
