//! Blocks on their way back to the heap that they are from.

use core::iter;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};

/// What a returned block holds in its first 16 bytes, which every block has.
#[repr(C)]
struct Returned {
    next: *mut Returned,
    bytes: usize,
}

/// Blocks that somebody else than their heap's owner has freed: anyone adds one at a time, the owner takes all at once. So no
/// entry is taken while another is added behind it, and addresses that come round again do no harm.
pub(super) struct Returns {
    newest: AtomicPtr<Returned>,
}

impl Returns {
    pub(super) const fn new() -> Self {
        Self {
            newest: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Adds a block of `bytes` bytes.
    ///
    /// # Safety
    /// The block is of the heap that this belongs to, of that size, aligned to 16 bytes, and nobody uses it any more.
    pub(super) unsafe fn push(&self, block: NonNull<u8>, bytes: usize) {
        let returned = block.as_ptr().cast::<Returned>();
        let mut next = self.newest.load(Ordering::Relaxed);
        loop {
            // SAFETY: by the caller, the block is free and has room for this.
            unsafe { returned.write(Returned { next, bytes }) };
            // Release: the owner must see what was written here, and that all uses of the block were before.
            match self
                .newest
                .compare_exchange_weak(next, returned, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(newer) => next = newer,
            }
        }
    }

    /// Takes all that there are: blocks and their sizes.
    pub(super) fn take(&self) -> impl Iterator<Item = (NonNull<u8>, usize)> + use<> {
        // The swap would take the line from those who push, so it waits until there is something.
        let mut newest = if self.newest.load(Ordering::Relaxed).is_null() {
            ptr::null_mut()
        } else {
            self.newest.swap(ptr::null_mut(), Ordering::Acquire)
        };
        iter::from_fn(move || {
            let block = NonNull::new(newest)?;
            // SAFETY: pushed, and taken off by the swap, so it is this iterator's own until it is given out.
            let Returned { next, bytes } = unsafe { block.read() };
            newest = next;
            Some((block.cast(), bytes))
        })
    }
}
