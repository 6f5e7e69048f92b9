//! Which core runs, and for how long.

use std::panic::{AssertUnwindSafe, catch_unwind};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::Config;
use crate::hardware::memory::Violation;
use crate::profile::Profile;
use crate::program::{Phase, Program};

/// The size of a core's stack in bytes.
const STACK: usize = 256 << 10;

/// How many turns may pass while no operation ends.
const MOST_TURNS: u64 = 5_000_000;

/// The most turns for which a core is not chosen.
const MOST_STARVED: u64 = 5000;

/// A core that is not chosen for a while.
struct Starved {
    core: usize,
    turns: u64,
}

/// Runs the program on all cores to its end; how often all state was checked, or what went wrong.
pub(crate) fn run(program: &Program<'_>, config: &Config) -> Result<u64, String> {
    let cores = (0..config.cores).map(|_| {
        let stack = DefaultStack::new(STACK).expect("the host has memory for a core's stack");
        let body = |yielder: &Yielder<(), ()>, ()| {
            program.hardware.set_yielder(yielder);
            program.run_core();
        };
        // SAFETY: the coroutines are dropped at the end of this function, before what they borrow, and stay in this thread.
        unsafe { Coroutine::with_stack_unchecked(stack, body) }
    });
    let mut cores: Vec<Coroutine<(), (), (), DefaultStack>> = cores.collect();
    let result = take_turns(program, config, &mut cores);
    for core in &mut cores {
        if !core.done() {
            // SAFETY: the core is never resumed, and nobody looks for what is on its stack any more. Unwinding it would run code of
            // the memory manager in a state that is known to be wrong.
            unsafe { core.force_reset() };
        }
    }
    result
}

fn take_turns(
    program: &Program<'_>,
    config: &Config,
    cores: &mut [Coroutine<(), (), (), DefaultStack>],
) -> Result<u64, String> {
    let hardware = program.hardware;
    let random = &hardware.random;
    let mut starved: Option<Starved> = None;
    // How many turns in a row have ended in waiting.
    let mut waits = 0;
    let mut audits = 0;
    let mut next_audit = config.audit_every;
    let mut progress = (0, Phase::Run);
    let mut turns = 0;
    while cores.iter().any(|core| !core.done()) {
        match &mut starved {
            Some(Starved { turns, .. }) if *turns > 0 && waits < 4 * cores.len() => *turns -= 1,
            _ => starved = None,
        }
        let core = random.index(cores.len());
        let is_starved = starved.as_ref().is_some_and(|starved| starved.core == core);
        if cores[core].done() || (is_starved && cores.len() > 1) {
            continue;
        }
        let mut result = Ok(CoroutineResult::Yield(()));
        let waited = hardware.turn(core, program.profile.get().turn_length(random), || {
            result = catch_unwind(AssertUnwindSafe(|| cores[core].resume(())));
        });
        waits = if waited { waits + 1 } else { 0 };
        // A core that has been stopped where it matters most is left there for a while more often than others.
        let times = if hardware.is_handling(core) { 4 } else { 200 };
        if starved.is_none() && random.once_in(times) {
            let turns = random.skewed(MOST_STARVED);
            starved = Some(Starved { core, turns });
        }
        if let Some(Violation(what)) = hardware.take_violation() {
            return Err(what);
        }
        if let Err(panic) = result {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            return Err(format!("panicked: {}", text.unwrap_or("for no known reason")));
        }
        if random.once_in(2) {
            hardware.speculate();
        }
        turns += 1;
        if progress != (program.done.get(), program.phase.get()) {
            progress = (program.done.get(), program.phase.get());
            turns = 0;
        }
        let (done, phase) = progress;
        if turns > MOST_TURNS {
            return Err(format!("no operation has ended in {MOST_TURNS} turns"));
        }
        match phase {
            Phase::Run if done >= next_audit.min(config.steps) => {
                program.rest.set(program.rest.get() + 1);
                program.phase.set(Phase::Rest);
            }
            Phase::Rest if program.resting.get() == cores.len() => {
                program.audit().map_err(|Violation(what)| what)?;
                audits += 1;
                next_audit += config.audit_every;
                program.resting.set(0);
                program.profile.set(Profile::choose(random));
                let next = match done < config.steps {
                    true => Phase::Run,
                    false if program.is_last_rest.get() => Phase::End,
                    false => Phase::Release,
                };
                program.phase.set(next);
            }
            Phase::Release if program.model.count() == 0 => {
                program.is_last_rest.set(true);
                program.rest.set(program.rest.get() + 1);
                program.phase.set(Phase::Rest);
            }
            _ => {}
        }
    }
    Ok(audits)
}
