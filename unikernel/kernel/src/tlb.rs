//! When memory that was given back is free again.
//!
//! A CPU keeps translations of program memory, and so could reach what has been given back. Memory therefore waits until all CPUs
//! have dropped theirs. They do so by themselves at *safe points*: at the end of each call into the kernel and of each page fault,
//! at the barriers of [`sync`](crate::sync), and where the program calls [`quiesce`]. Only a CPU that comes to none of these for
//! the time of `tlb.deadline` (10 ms) is interrupted, once per deadline at most. So giving memory back costs the same on any number
//! of CPUs.
//!
//! Dropping a [`Region`](crate::mem::Region) or [`Pages`](crate::mem::Pages) is lazy in this way. Until the memory is free, a
//! pointer that somebody has kept may still reach it. After [`Region::revoke`](crate::mem::Region::revoke) and
//! [`Pages::revoke`](crate::mem::Pages::revoke) it never does: they interrupt the CPUs that are behind, and wait for them.
//!
//! On Linux these functions do nothing: there, memory does not wait.

use crate::sys;

/// Says that the running CPU is at a safe point, for programs that compute for long and have barriers of their own: it drops its
/// translations if memory waits for that. If none does, this costs a few instructions.
#[inline]
pub fn quiesce() {
    sys::quiesce();
}

/// Returns when all memory that any thread has given back until now is free: CPUs that are behind are interrupted. For programs
/// that measure, or that want to know how much memory is free.
pub fn drain() {
    sys::drain();
}

/// What becomes of memory that is given back: `lazy` if it waits, `off` if CPUs are interrupted each time (`tlb.lazy=off` on the
/// kernel's command line), and `linux` on Linux.
#[must_use]
pub fn mode() -> &'static str {
    sys::tlb_mode()
}

#[cfg(all(test, feature = "hosted"))]
mod tests {
    use super::*;
    use crate::metrics;

    #[test]
    fn linux_keeps_nothing_for_later_and_counts_nothing() {
        quiesce();
        drain();
        assert_eq!(mode(), "linux");
        assert_eq!(metrics::tlb(), None);
    }
}
