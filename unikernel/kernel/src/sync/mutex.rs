//! A mutual exclusion lock of one word: free, held, or held with others waiting (Ulrich Drepper, "Futexes Are Tricky", mutex 3).

use core::cell::UnsafeCell;
use core::fmt;
use core::hint;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sys;

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and who frees it must wake a waiter.
const CONTENDED: u32 = 2;

/// How often a locker looks again before it sleeps: about the length of a short critical section.
const SPINS: u32 = 100;

/// A lock around a value.
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: whoever reaches the value through a shared mutex has it alone, so sharing the mutex is no more than sending the value.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

/// Access to the value in a [`Mutex`], which is locked as long as this exists.
#[must_use = "the mutex is unlocked as soon as the guard is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// A guard stays in its thread.
    not_send: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives a shared reference to the value and nothing else.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<T> Mutex<T> {
    /// An unlocked mutex around `value`.
    pub const fn new(value: T) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// The value, when nobody shares the mutex any more.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until the mutex is free and locks it.
    ///
    /// A thread that locks a mutex that it holds waits for ever.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| {
            self.lock_contended();
            self.guard()
        })
    }

    /// Locks the mutex if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.state
            .compare_exchange(FREE, HELD, Acquire, Relaxed)
            .ok()
            .map(|_| self.guard())
    }

    /// The value, which an exclusive reference reaches without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    fn guard(&self) -> MutexGuard<'_, T> {
        MutexGuard {
            mutex: self,
            not_send: PhantomData,
        }
    }

    #[cold]
    fn lock_contended(&self) {
        // Spinning beside a queue would only take the lock from those who wait in it.
        let mut spins = 0;
        while self.state.load(Relaxed) == HELD && spins < SPINS {
            hint::spin_loop();
            spins += 1;
        }
        if self.state.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok() {
            return;
        }
        // Who has slept can not know whether others still do, and so takes the lock as contended.
        while self.state.swap(CONTENDED, Acquire) != FREE {
            sys::wait(&self.state, CONTENDED, None);
        }
    }

    #[inline]
    fn unlock(&self) {
        if self.state.swap(FREE, Release) == CONTENDED {
            self.wake_one();
        }
    }

    #[cold]
    fn wake_one(&self) {
        sys::wake(&self.state, 1);
    }
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// The mutex that the guard locks.
    pub(super) fn mutex(&self) -> &'a Mutex<T> {
        self.mutex
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so no other thread reaches the value.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock and is borrowed exclusively.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.mutex.unlock();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut mutex = f.debug_struct("Mutex");
        match self.try_lock() {
            Some(value) => mutex.field("value", &&*value),
            None => mutex.field("value", &format_args!("<locked>")),
        };
        mutex.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread;

    #[test]
    fn no_increment_is_lost() {
        let total = Mutex::new(0_u64);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        // Read and written apart, so that two holders at once would lose one.
                        let mut total = total.lock();
                        let seen = *total;
                        hint::black_box(());
                        *total = seen + 1;
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 8 * 20_000);
    }

    #[test]
    fn sleepers_get_the_lock() {
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let held = order.lock();
            for number in 0..4 {
                let order = &order;
                scope.spawn(move || order.lock().push(number));
            }
            // Long enough for all four to have gone to sleep.
            thread::sleep(core::time::Duration::from_millis(50));
            drop(held);
        });
        let mut order = order.into_inner();
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2, 3]);
    }

    #[test]
    fn a_held_mutex_is_not_taken_twice() {
        let mutex = Mutex::new("value");
        let guard = mutex.lock();
        assert!(mutex.try_lock().is_none());
        assert_eq!(format!("{mutex:?}"), "Mutex { value: <locked> }");
        drop(guard);
        assert_eq!(*mutex.try_lock().expect("the mutex is free"), "value");
        assert_eq!(format!("{mutex:?}"), "Mutex { value: \"value\" }");
    }
}
