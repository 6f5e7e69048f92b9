//! A spin lock whose waiting is the machine's affair.

use core::cell::UnsafeCell;

use crate::atomic::{AtomicU32, Ordering, access};
use crate::machine::Machine;

const FREE: u32 = 0;
const HELD: u32 = 1;

/// A value that one CPU at a time works on. Not a guard but a closure holds it, so that it is never held across a return.
#[repr(C)]
pub(crate) struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: one CPU at a time reaches the value, as `with` sees to.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            word: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Calls `work` unless another CPU works on the value, then `None`. For short paths that do not wait.
    #[inline(always)]
    pub(crate) fn try_with<R>(&self, work: impl FnOnce(&mut T) -> Option<R>) -> Option<R> {
        if self.word.swap(HELD, Ordering::Acquire) != FREE {
            return None;
        }
        let value = self.value.get();
        // SAFETY: as in `with`.
        let result = access(value, || work(unsafe { &mut *value }));
        self.word.store(FREE, Ordering::Release);
        result
    }

    /// Calls `work` while no other CPU works on the value. It must not come back to the same lock.
    #[inline]
    pub(crate) fn with<R>(&self, machine: &impl Machine, work: impl FnOnce(&mut T) -> R) -> R {
        while self.word.swap(HELD, Ordering::Acquire) != FREE {
            // Reading leaves the holder's cache line alone.
            while self.word.load(Ordering::Relaxed) != FREE {
                machine.relax();
            }
        }
        let value = self.value.get();
        // SAFETY: who has changed the word from free to held has the value to itself until it changes it back.
        let result = access(value, || work(unsafe { &mut *value }));
        self.word.store(FREE, Ordering::Release);
        result
    }

    /// Watches the lock and its value, in one of loom's models.
    #[cfg(loom)]
    pub(crate) fn watch(&self) {
        self.word.watch();
        crate::model::watch_value(self.value.get());
    }
}
