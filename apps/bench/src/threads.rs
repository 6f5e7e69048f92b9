//! Starting and ending threads.

use homenode::phase::Phase;
use homenode::sync::{Condvar, Mutex};
use homenode::thread::{self, Builder};

use crate::Failure;
use crate::memory::SMALL_STACK_BYTES;
use crate::meter::Meter;
use crate::team::settle;

/// At least how many threads are started one after the other.
const STARTS: usize = 1024;

/// One thread for each of `threads` CPUs is started and joined, again and again.
pub(crate) fn create_join(threads: usize) -> Result<(), Failure> {
    const PHASE: Phase<0x50> = Phase::new("thread_create_join");
    let rounds = STARTS.div_ceil(threads);
    let work = |rounds: usize| {
        for _ in 0..rounds {
            thread::scope(|scope| -> Result<(), Failure> {
                for _ in 0..threads {
                    Builder::new()
                        .stack_size(SMALL_STACK_BYTES)
                        .spawn_scoped(scope, || ())?;
                }
                Ok(())
            })?;
        }
        settle()
    };
    work(rounds.div_ceil(8))?;
    let meter = Meter::begin(PHASE);
    work(rounds)?;
    meter.end().announce(rounds * threads, threads);
    Ok(())
}

/// Many blocked threads end at once.
pub(crate) fn exit() -> Result<(), Failure> {
    exit_of(Phase::<0x52>::new("thread_exit_512"), 512)?;
    exit_of(Phase::<0x54>::new("thread_exit_1024"), 1024)
}

/// `threads` threads, spread over all CPUs, block on one condition, are woken together, end and are joined.
fn exit_of<const NUMBER: u8>(phase: Phase<NUMBER>, threads: usize) -> Result<(), Failure> {
    let work = |threads: usize| {
        let (state, changed) = (Mutex::new(State::default()), Condvar::new());
        let meter = thread::scope(|scope| {
            for _ in 0..threads {
                let block = || {
                    let mut state = state.lock();
                    state.blocked += 1;
                    drop(changed.wait_while(state, |state| !state.is_over));
                };
                let started = Builder::new()
                    .stack_size(SMALL_STACK_BYTES)
                    .spawn_scoped(scope, block);
                if let Err(error) = started {
                    state.lock().is_over = true;
                    changed.notify_all();
                    return Err(Failure::from(error));
                }
            }
            while state.lock().blocked < threads {
                thread::yield_now();
            }
            // The last of them has unlocked the mutex; now it gets to sleep.
            let settled = settle();
            let meter = Meter::begin(phase);
            state.lock().is_over = true;
            changed.notify_all();
            settled.map(|()| meter)
        })?;
        settle()?;
        Ok::<_, Failure>(meter.end())
    };
    work(threads)?.announce(threads, threads);
    Ok(())
}

#[derive(Default)]
struct State {
    blocked: usize,
    is_over: bool,
}
