//! Threads that do the same work at the same time, or that compute beside it.

use alloc::vec::Vec;
use core::hint;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicUsize};

use homenode::phase::Phase;
use homenode::sync::Barrier;
use homenode::thread::{self, Builder, Scope};

use crate::Failure;
use crate::meter::Meter;

/// Rounds of a computing thread between two spin hints. An emulator that has one thread for all CPUs turns to the next at a hint;
/// without any, every interrupt would wait for the end of a time slice.
const COMPUTING_ROUNDS: u32 = 1000;

/// The number of CPUs that `threads` threads have.
pub(crate) fn cpus(threads: usize) -> usize {
    threads.min(thread::available_parallelism().get())
}

/// Measures `work(count)` by `threads` threads at once, after a warm-up with fewer. `operations` is what all of them do together.
/// What the work returns is dropped after the phase.
///
/// # Errors
/// When there is no memory for the threads, or the work fails.
pub(crate) fn measure<const NUMBER: u8, R>(
    phase: Phase<NUMBER>,
    threads: usize,
    count: usize,
    operations: usize,
    work: impl Fn(usize) -> Result<R, Failure> + Sync,
) -> Result<(), Failure> {
    let meeting = Barrier::new(threads);
    let member = |is_leader: bool| {
        let warm = work(count.div_ceil(8)).map(drop);
        meeting.wait();
        let meter = is_leader.then(|| Meter::begin(phase));
        meeting.wait();
        let result = work(count);
        meeting.wait();
        let measured = meter.map(Meter::end);
        // What is dropped must not fall into the phase of a leader who is late.
        meeting.wait();
        warm.and(result.map(drop)).map(|()| measured)
    };
    if let Some(measured) = together(threads, member)? {
        measured.announce(operations, threads);
    }
    Ok(())
}

/// Runs `member` on `threads` threads, of which one is told that it is the leader, and returns what one of them has to tell.
fn together<R: Send>(
    threads: usize,
    member: impl Fn(bool) -> Result<Option<R>, Failure> + Sync,
) -> Result<Option<R>, Failure> {
    let member = &member;
    thread::scope(|scope| {
        let spawn = |number| scope.spawn(move || member(number == 0));
        let members: Vec<_> = (0..threads).map(spawn).collect();
        let mut results = members.into_iter().map(thread::ScopedJoinHandle::join);
        results.try_fold(None, |told, result| Ok(told.or(result?)))
    })
}

/// Calls `work` while threads on other CPUs compute, so that `threads` CPUs are busy (all, if there are fewer).
///
/// # Errors
/// When there is no memory for the threads, or the work fails.
pub(crate) fn beside_computing<R>(
    threads: usize,
    work: impl FnOnce() -> Result<R, Failure>,
) -> Result<R, Failure> {
    let others = cpus(threads) - 1;
    let (started, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..others {
            Builder::new().spawn_scoped(scope, || {
                started.fetch_add(1, Relaxed);
                compute_until(&done);
            })?;
        }
        while started.load(Relaxed) < others {
            hint::spin_loop();
        }
        let result = work();
        done.store(true, Relaxed);
        result
    })
}

fn compute_until(done: &AtomicBool) {
    let mut number = 1_u64;
    while !done.load(Relaxed) {
        for _ in 0..COMPUTING_ROUNDS {
            number = hint::black_box(number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
        }
        hint::spin_loop();
    }
}

/// Waits until threads that were joined before have left their CPUs for good, and the kernel has no work left over from them: one more
/// thread runs on each CPU, behind them.
///
/// # Errors
/// When there is no memory for these threads.
pub(crate) fn settle() -> Result<(), Failure> {
    thread::scope(|scope| -> Result<(), Failure> {
        on_each_cpu(scope)?;
        Ok(())
    })?;
    #[cfg(feature = "hosted")]
    crate::linux::wait_for_grace_period();
    Ok(())
}

fn on_each_cpu<'scope>(scope: &'scope Scope<'scope, '_>) -> Result<(), Failure> {
    for cpu in homenode::topology().cpus() {
        Builder::new().cpu(cpu.id).spawn_scoped(scope, || ())?;
    }
    Ok(())
}
