//! Values that are made once, by the first thread that needs them.

use core::cell::{Cell, UnsafeCell};
use core::fmt;
use core::mem::MaybeUninit;
use core::ops::Deref;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sys;

const EMPTY: u32 = 0;
const BUSY: u32 = 1;
/// Busy, and others wait for the end.
const AWAITED: u32 = 2;
const FULL: u32 = 3;

/// A cell that is written at most once.
pub struct OnceLock<T> {
    state: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value is written by one thread before the state becomes FULL, and only shared afterwards; it may be made by one thread
// and dropped by another, so it must be `Send` too.
unsafe impl<T: Send + Sync> Sync for OnceLock<T> {}

/// What the making of a value leaves in the state, also when it panics in a test and unwinds.
struct Making<'a> {
    state: &'a AtomicU32,
    result: u32,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        if self.state.swap(self.result, Release) == AWAITED {
            sys::wake(self.state, u32::MAX);
        }
    }
}

impl<T> OnceLock<T> {
    /// An empty cell.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: AtomicU32::new(EMPTY),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The value, if there is one.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // SAFETY: the value was written before the state became FULL, which never changes again.
        (self.state.load(Acquire) == FULL).then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }

    /// The value, which `make` makes if there is none. Other threads that need the value meanwhile wait.
    ///
    /// A `make` that needs the value of its own cell waits for ever.
    #[inline]
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if self.get().is_none() {
            self.initialize(make);
        }
        self.get().expect("the value has been made")
    }

    /// Puts `value` into the cell.
    ///
    /// # Errors
    /// Gives `value` back if there is one already.
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        self.get_or_init(|| value.take().expect("a value is made once"));
        value.map_or(Ok(()), Err)
    }

    #[cold]
    fn initialize(&self, make: impl FnOnce() -> T) {
        loop {
            match self.state.compare_exchange(EMPTY, BUSY, Acquire, Acquire) {
                Ok(_) => break,
                Err(FULL) => return,
                Err(BUSY) => {
                    // Whatever the state has become, the next round looks at it.
                    let _ = self.state.compare_exchange(BUSY, AWAITED, Relaxed, Relaxed);
                }
                Err(_) => {
                    sys::wait(&self.state, AWAITED, None);
                }
            }
        }
        let mut making = Making {
            state: &self.state,
            result: EMPTY,
        };
        let value = make();
        // SAFETY: only the thread that made the state BUSY gets here, and nobody reads before it is FULL.
        unsafe { (*self.value.get()).write(value) };
        making.result = FULL;
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for OnceLock<T> {
    fn drop(&mut self) {
        if *self.state.get_mut() == FULL {
            // SAFETY: the state says that there is a value, and nobody else reaches it any more.
            unsafe { self.value.get_mut().assume_init_drop() };
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnceLock").field(&self.get()).finish()
    }
}

/// A value that is made when it is first used.
pub struct LazyLock<T, F = fn() -> T> {
    cell: OnceLock<T>,
    make: Cell<Option<F>>,
}

// SAFETY: `make` is taken only inside of the cell's initialisation, which one thread runs, and may be another than the one that
// created it, so it must be `Send`; the value is shared as a `OnceLock` shares it.
unsafe impl<T, F: Send> Sync for LazyLock<T, F> where OnceLock<T>: Sync {}

impl<T, F: FnOnce() -> T> LazyLock<T, F> {
    /// A value that `make` will make.
    pub const fn new(make: F) -> Self {
        Self {
            cell: OnceLock::new(),
            make: Cell::new(Some(make)),
        }
    }
}

impl<T, F: FnOnce() -> T> Deref for LazyLock<T, F> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.cell
            .get_or_init(|| self.make.take().expect("a value is made once")())
    }
}

impl<T: fmt::Debug, F> fmt::Debug for LazyLock<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LazyLock").field(&self.cell.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicUsize;

    use super::*;
    use crate::thread;

    #[test]
    fn a_value_is_made_once_and_everyone_sees_it() {
        for _ in 0..50 {
            let made = AtomicUsize::new(0);
            let cell = OnceLock::new();
            thread::scope(|scope| {
                for _ in 0..6 {
                    scope.spawn(|| {
                        let value = cell.get_or_init(|| {
                            thread::yield_now();
                            made.fetch_add(1, Relaxed);
                            String::from("made")
                        });
                        assert_eq!(value, "made");
                    });
                }
            });
            assert_eq!(made.into_inner(), 1);
        }
    }

    #[test]
    fn a_second_value_is_given_back() {
        let cell = OnceLock::new();
        assert_eq!(cell.get(), None);
        assert_eq!(cell.set(1), Ok(()));
        assert_eq!(cell.set(2), Err(2));
        assert_eq!(cell.get(), Some(&1));
    }

    #[test]
    fn a_value_is_dropped_with_its_cell() {
        let value = std::sync::Arc::new(());
        let cell = OnceLock::new();
        cell.set(value.clone()).expect("the cell is empty");
        assert_eq!(std::sync::Arc::strong_count(&value), 2);
        drop(cell);
        assert_eq!(std::sync::Arc::strong_count(&value), 1);
    }

    #[test]
    fn a_lazy_value_waits_for_its_first_use() {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        static LAZY: LazyLock<usize> = LazyLock::new(|| MADE.fetch_add(1, Relaxed) + 40);
        assert_eq!(MADE.load(Relaxed), 0);
        assert_eq!((*LAZY, *LAZY), (40, 40));
        assert_eq!(MADE.load(Relaxed), 1);
    }
}
