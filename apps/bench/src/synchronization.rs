//! Meeting, and excluding each other.

use core::hint;

use homenode::phase::Phase;
use homenode::sync::{Barrier, Mutex};

use crate::Failure;
use crate::team::measure;

/// How often all threads meet.
const MEETINGS: usize = 2000;
/// How often each thread locks.
const LOCKS: usize = 2000;

/// All threads meet. An operation is a meeting.
pub(crate) fn barrier(threads: usize) -> Result<(), Failure> {
    let barrier = Barrier::new(threads);
    measure(
        Phase::<0x60>::new("barrier"),
        threads,
        MEETINGS,
        MEETINGS,
        |count| {
            for _ in 0..count {
                barrier.wait();
            }
            Ok(())
        },
    )
}

/// All threads want the same lock. An operation is locking and unlocking.
pub(crate) fn mutex(threads: usize) -> Result<(), Failure> {
    let total = Mutex::new(0_u64);
    measure(
        Phase::<0x62>::new("mutex"),
        threads,
        LOCKS,
        threads * LOCKS,
        |count| {
            for _ in 0..count {
                let mut total = total.lock();
                *total += 1;
                // An emulator with one thread for all CPUs turns to the next one here, which finds the mutex locked.
                hint::spin_loop();
            }
            Ok(())
        },
    )
}
