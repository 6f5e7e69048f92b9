//! What only Linux needs.

/// Waits until Linux has passed a grace period, behind which it frees what ended threads leave: `membarrier(2)`, "the calling thread is
/// informed when all running threads have passed through a state where all memory accesses match program order".
pub(crate) fn wait_for_grace_period() {
    // A kernel that refuses has nothing to wait for that a program could know.
    // SAFETY: the call takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
}
