//! Waiting for a change of what a mutex protects: a word that counts the notifications is what threads sleep on.

use core::fmt;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use super::{Mutex, MutexGuard};
use crate::contract::WaitOutcome;
use crate::sys;
use crate::time::Instant;

/// A queue of threads that wait for a condition on what a [`Mutex`] protects.
#[derive(Default)]
pub struct Condvar {
    /// Goes up with each notification, so that one between unlocking and sleeping keeps the thread from sleeping.
    notifications: AtomicU32,
}

/// Whether a wait ended because its time was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the time was over before a notification came.
    #[must_use]
    pub fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    /// A condition that nobody waits for.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            notifications: AtomicU32::new(0),
        }
    }

    /// Unlocks the mutex, sleeps until a notification, and locks it again. May also return without a notification.
    pub fn wait<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.sleep(guard, None).0
    }

    /// Waits as long as `condition` is true.
    pub fn wait_while<'a, T: ?Sized>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        while condition(&mut guard) {
            guard = self.wait(guard);
        }
        guard
    }

    /// As [`wait`](Self::wait), for `timeout` at most.
    pub fn wait_timeout<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        let (guard, outcome) = self.sleep(guard, Some(timeout));
        (guard, WaitTimeoutResult(outcome == WaitOutcome::TimedOut))
    }

    /// Waits as long as `condition` is true, for `timeout` at most. The result says whether it still is.
    pub fn wait_timeout_while<'a, T: ?Sized>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        let start = Instant::now();
        while condition(&mut guard) {
            let Some(left) = timeout.checked_sub(start.elapsed()) else {
                return (guard, WaitTimeoutResult(true));
            };
            guard = self.sleep(guard, Some(left)).0;
        }
        (guard, WaitTimeoutResult(false))
    }

    /// Wakes one thread that waits, if there is one.
    pub fn notify_one(&self) {
        self.notify(1);
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.notify(u32::MAX);
    }

    fn notify(&self, threads: u32) {
        // The order against the condition itself comes from the mutex, which a waiter holds while it reads the count.
        self.notifications.fetch_add(1, Relaxed);
        sys::wake(&self.notifications, threads);
    }

    fn sleep<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Option<Duration>,
    ) -> (MutexGuard<'a, T>, WaitOutcome) {
        let seen = self.notifications.load(Relaxed);
        let mutex: &'a Mutex<T> = guard.mutex();
        drop(guard);
        let outcome = sys::wait(&self.notifications, seen, timeout);
        (mutex.lock(), outcome)
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condvar").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::thread;

    #[test]
    fn a_bounded_queue_delivers_everything_once() {
        const ITEMS: u64 = 10_000;
        const CAPACITY: usize = 3;
        let queue = Mutex::new(VecDeque::new());
        let (filled, emptied) = (Condvar::new(), Condvar::new());
        let sum = Mutex::new(0_u64);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for item in 1..=ITEMS {
                        let mut queue = emptied.wait_while(queue.lock(), |queue| queue.len() == CAPACITY);
                        queue.push_back(item);
                        filled.notify_one();
                    }
                });
                scope.spawn(|| {
                    for _ in 0..ITEMS {
                        let mut queue = filled.wait_while(queue.lock(), |queue| queue.is_empty());
                        *sum.lock() += queue.pop_front().expect("the queue is not empty");
                        emptied.notify_one();
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 3 * ITEMS * (ITEMS + 1) / 2);
        assert!(queue.into_inner().is_empty());
    }

    #[test]
    fn notify_all_wakes_everyone() {
        let go = Mutex::new(false);
        let condvar = Condvar::new();
        thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| assert!(*condvar.wait_while(go.lock(), |go| !*go)));
            }
            thread::sleep(Duration::from_millis(20));
            *go.lock() = true;
            condvar.notify_all();
        });
    }

    #[test]
    fn a_wait_that_nobody_ends_times_out() {
        let mutex = Mutex::new(());
        let condvar = Condvar::new();
        let start = Instant::now();
        let (guard, result) = condvar.wait_timeout_while(mutex.lock(), Duration::from_millis(30), |()| true);
        assert!(result.timed_out());
        assert!(start.elapsed() >= Duration::from_millis(30));
        assert!(
            condvar
                .wait_timeout(guard, Duration::from_millis(1))
                .1
                .timed_out()
        );
    }
}
