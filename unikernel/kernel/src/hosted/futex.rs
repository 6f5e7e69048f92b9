//! Sleeping on a word: Linux's `futex(2)`.

use core::ptr;
use core::sync::atomic::AtomicU32;
use core::time::Duration;
use std::io;

use crate::contract::WaitOutcome;

pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> WaitOutcome {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the word and the timeout live as long as the call, and the call only reads them.
    let status = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            timeout,
        )
    };
    if status == 0 {
        return WaitOutcome::Woken;
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN) => WaitOutcome::Changed,
        Some(libc::ETIMEDOUT) => WaitOutcome::TimedOut,
        // A signal.
        _ => WaitOutcome::Woken,
    }
}

pub(crate) fn wake(word: &AtomicU32, count: u32) {
    let count = i32::try_from(count).unwrap_or(i32::MAX);
    // SAFETY: Linux takes the address for a key and reads nothing there.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            count,
        );
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering::SeqCst;

    use super::*;

    #[test]
    fn a_wait_says_how_it_ended() {
        let word = AtomicU32::new(3);
        assert_eq!(wait(&word, 4, None), WaitOutcome::Changed);
        assert_eq!(
            wait(&word, 3, Some(Duration::from_millis(1))),
            WaitOutcome::TimedOut
        );
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(SeqCst) == 3 {
                    wait(&word, 3, Some(Duration::MAX));
                }
            });
            std::thread::sleep(Duration::from_millis(10));
            word.store(4, SeqCst);
            wake(&word, u32::MAX);
        });
    }
}
