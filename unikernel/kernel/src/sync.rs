//! Locks and meeting points for a program's threads. All of them block, after a short spin, by `sys::wait`.
//!
//! There is no poisoning: a thread that panics ends the program, so nobody sees what it left behind.

mod barrier;
mod condvar;
mod mutex;
mod once;

pub use barrier::{Barrier, BarrierWaitResult};
pub use condvar::{Condvar, WaitTimeoutResult};
pub use mutex::{Mutex, MutexGuard};
pub use once::{LazyLock, OnceLock};

/// Keeps what is inside in cache lines of its own: 128 bytes, since CPUs fetch lines in pairs (Intel's optimization reference
/// manual, "spatial prefetcher").
#[repr(align(128))]
struct CachePadded<T>(T);
