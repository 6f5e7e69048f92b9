//! The atomics of loom's models.
//!
//! A model that explored every atomic of the memory manager would not end, and loom's atomics do not fit into page tables and frame
//! metadata. So under `cfg(loom)` the atomics look like core's, and a model *watches* those that it is about, before it starts its
//! threads: only these become loom's. At the others no thread is switched, and they hide no store.

extern crate std;

use core::cell::RefCell;
use core::ptr;
use core::sync::atomic;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread_local;

use loom::cell::UnsafeCell;
use loom::thread::{Builder, JoinHandle};

use crate::atomic::Ordering;

/// The stack of a model's thread, in words.
const STACK_WORDS: usize = 32 << 10;

thread_local! {
    // All of a model's threads run on the one thread that explores it.
    static VALUES: RefCell<HashMap<usize, Rc<UnsafeCell<()>>>> = RefCell::default();
}

/// Explores `model`, in which at most `preemptions` times a thread loses its turn where it could go on. Models take turns: each
/// execution maps and unmaps stacks, at which a process's threads would only hold each other up.
pub fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    let model = Arc::new(model);
    builder.check(move || {
        let model = Arc::clone(&model);
        let whole = move || {
            forget();
            model();
            forget();
        };
        spawn(whole).join().expect("the model says what is wrong");
    });
}

/// A thread of a model, with more stack than loom's own.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let thread = Builder::new().stack_size(STACK_WORDS).spawn(work);
    thread.expect("loom's threads need nothing that could be missing")
}

loom::lazy_static! {
    static ref FENCES: loom::sync::atomic::AtomicU64 = loom::sync::atomic::AtomicU64::new(0);
}

/// A fence at which threads are switched: at loom's own they are not, so that it would miss orders of fences.
pub(crate) fn fence(ordering: Ordering) {
    FENCES.fetch_add(1, Ordering::Relaxed);
    loom::sync::atomic::fence(ordering);
}

fn forget() {
    AtomicU32::forget();
    AtomicU64::forget();
    VALUES.with_borrow_mut(HashMap::clear);
}

/// Watches a value that a lock protects: accesses that nothing orders are then errors.
pub(crate) fn watch_value<T>(value: *const T) {
    let cell = Rc::new(UnsafeCell::new(()));
    VALUES.with_borrow_mut(|values| values.insert(value.addr(), cell));
}

/// Does `work`, which accesses this value.
pub(crate) fn access<T, R>(value: *const T, work: impl FnOnce() -> R) -> R {
    let cell = VALUES.with_borrow(|values| values.get(&value.addr()).cloned());
    match cell {
        Some(cell) => cell.with_mut(|_| work()),
        None => work(),
    }
}

macro_rules! atomic {
    ($name:ident, $integer:ty, $watched:ident) => {
        thread_local! {
            static $watched: RefCell<HashMap<usize, Rc<loom::sync::atomic::$name>>> = RefCell::default();
        }

        /// Core's atomic, or loom's where a model watches.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub(crate) struct $name(atomic::$name);

        #[allow(dead_code)]
        impl $name {
            pub(crate) const fn new(value: $integer) -> Self {
                Self(atomic::$name::new(value))
            }

            /// Makes this one loom's, until the model's execution ends. It must not move.
            pub(crate) fn watch(&self) {
                let value = self.0.load(Ordering::SeqCst);
                let atomic = Rc::new(loom::sync::atomic::$name::new(value));
                $watched.with_borrow_mut(|watched| watched.insert(ptr::from_ref(self).addr(), atomic));
            }

            fn forget() {
                $watched.with_borrow_mut(HashMap::clear);
            }

            fn watched(&self) -> Option<Rc<loom::sync::atomic::$name>> {
                $watched.with_borrow(|watched| watched.get(&ptr::from_ref(self).addr()).cloned())
            }

            pub(crate) fn load(&self, ordering: Ordering) -> $integer {
                match self.watched() {
                    Some(atomic) => atomic.load(ordering),
                    None => self.0.load(ordering),
                }
            }

            pub(crate) fn store(&self, value: $integer, ordering: Ordering) {
                match self.watched() {
                    Some(atomic) => atomic.store(value, ordering),
                    None => self.0.store(value, ordering),
                }
            }

            pub(crate) fn compare_exchange(
                &self,
                current: $integer,
                new: $integer,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$integer, $integer> {
                match self.watched() {
                    Some(atomic) => atomic.compare_exchange(current, new, success, failure),
                    None => self.0.compare_exchange(current, new, success, failure),
                }
            }

            pub(crate) fn swap(&self, value: $integer, ordering: Ordering) -> $integer {
                self.update(|_| value, ordering)
            }

            pub(crate) fn fetch_or(&self, value: $integer, ordering: Ordering) -> $integer {
                self.update(|old| old | value, ordering)
            }

            pub(crate) fn fetch_and(&self, value: $integer, ordering: Ordering) -> $integer {
                self.update(|old| old & value, ordering)
            }

            pub(crate) fn fetch_max(&self, value: $integer, ordering: Ordering) -> $integer {
                self.update(|old| old.max(value), ordering)
            }

            pub(crate) fn fetch_add(&self, value: $integer, ordering: Ordering) -> $integer {
                self.update(|old| old.wrapping_add(value), ordering)
            }

            pub(crate) fn fetch_sub(&self, value: $integer, ordering: Ordering) -> $integer {
                self.update(|old| old.wrapping_sub(value), ordering)
            }

            /// Changes the value to `new` of it; what it was. Where nothing changes and nothing is released, nothing is stored:
            /// loom would let a later plain store of another thread come before such a store, as it never does.
            fn update(&self, new: impl Fn($integer) -> $integer, ordering: Ordering) -> $integer {
                let failure = match ordering {
                    Ordering::AcqRel => Ordering::Acquire,
                    Ordering::Release => Ordering::Relaxed,
                    other => other,
                };
                // What nothing here ever is, so that the newest value is only read.
                const NONE: $integer = <$integer>::MAX / 3;
                let mut old = self
                    .compare_exchange(NONE, NONE, ordering, failure)
                    .unwrap_or_else(|newest| newest);
                let releases = matches!(
                    ordering,
                    Ordering::Release | Ordering::AcqRel | Ordering::SeqCst
                );
                while releases || new(old) != old {
                    match self.compare_exchange(old, new(old), ordering, failure) {
                        Ok(_) => break,
                        Err(newest) => old = newest,
                    }
                }
                old
            }
        }
    };
}

atomic!(AtomicU32, u32, WATCHED32);
atomic!(AtomicU64, u64, WATCHED64);
