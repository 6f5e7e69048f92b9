//! Threads that do the same work at the same time, or that compute beside it.

use alloc::vec::Vec;
use core::hint;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicUsize};

use homenode::phase::Phase;
use homenode::sync::Barrier;
use homenode::thread::{self, Builder, Scope, SpawnError};
use homenode::{ExitCode, eprintln};

use crate::meter::Meter;
use crate::{Failure, MEMORY_STATUS};

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
    let work = |_, turns: Range<usize>| work(turns.len());
    measure_turns(phase, threads, count, operations, work)
}

/// The turns of a thread's warm-up, before `count` turns that are measured.
pub(crate) const fn warm_up_turns(count: usize) -> usize {
    count.div_ceil(8)
}

/// Like [`measure`], with `work(thread, turns)`: threads are numbered from 0, and so are a thread's turns, those of the warm-up first.
///
/// # Errors
/// As for [`measure`].
pub(crate) fn measure_turns<const NUMBER: u8, R>(
    phase: Phase<NUMBER>,
    threads: usize,
    count: usize,
    operations: usize,
    work: impl Fn(usize, Range<usize>) -> Result<R, Failure> + Sync,
) -> Result<(), Failure> {
    let meeting = Barrier::new(threads);
    let first = warm_up_turns(count);
    let member = |thread: usize| {
        let warm = work(thread, 0..first).map(drop);
        meeting.wait();
        let meter = (thread == 0).then(|| Meter::begin(phase));
        meeting.wait();
        let result = work(thread, first..first + count);
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

/// Runs `member` on `threads` threads, each with its number, and returns what one of them has to tell.
fn together<R: Send>(
    threads: usize,
    member: impl Fn(usize) -> Result<Option<R>, Failure> + Sync,
) -> Result<Option<R>, Failure> {
    let member = &member;
    thread::scope(|scope| {
        let spawn = |number| {
            let started = Builder::new().spawn_scoped(scope, move || member(number));
            started.unwrap_or_else(|error| give_up(number, &error))
        };
        let members: Vec<_> = (0..threads).map(spawn).collect();
        let mut results = members.into_iter().map(thread::ScopedJoinHandle::join);
        results.try_fold(None, |told, result| Ok(told.or(result?)))
    })
}

/// Ends the program, since `started` threads wait for one that can not be started.
fn give_up(started: usize, error: &SpawnError) -> ! {
    eprintln!(
        "bench: {started} threads have started, but no more: {error}; try fewer --threads, or more memory"
    );
    homenode::exit(ExitCode::from(MEMORY_STATUS))
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
            let other = Builder::new().spawn_scoped(scope, || {
                started.fetch_add(1, Relaxed);
                compute_until(&done);
            });
            // Those that have started would compute for ever.
            other.inspect_err(|_| done.store(true, Relaxed))?;
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
