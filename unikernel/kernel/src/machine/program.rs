//! The program's life: its main thread, its end, and how long the metrics stay up after it.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use hermit_sync::OnceCell;
use homenode_metrics::ProgramState;
use homenode_mm::Policy;

use super::power::{Cause, power_off};
use super::{clock, crash, gate, net, percpu, sched, sys};
use crate::args::{Args, ExitCode};
use crate::thread;

/// Stack of the main thread, in bytes.
const MAIN_STACK_BYTES: usize = 8 << 20;

/// No exit status yet.
const RUNNING: u32 = u32::MAX;

static STATE: AtomicU32 = AtomicU32::new(RUNNING);
static SETTINGS: OnceCell<Settings> = OnceCell::new();

struct Settings {
    linger: Duration,
    boot_duration: Duration,
}

unsafe extern "Rust" {
    /// What `#[homenode::main]` makes of the application's main function.
    safe fn __homenode_main(args: Args) -> ExitCode;
    /// The application's crate.
    safe static __homenode_program: &'static str;
}

/// The application's name: its crate's.
pub(crate) fn name() -> &'static str {
    __homenode_program
}

/// Time from the first instruction in Rust to the start of the application.
pub(crate) fn boot_duration() -> Duration {
    SETTINGS
        .get()
        .map_or(Duration::ZERO, |settings| settings.boot_duration)
}

/// Whether the program still runs.
pub(crate) fn state() -> ProgramState {
    match STATE.load(Ordering::Relaxed) {
        RUNNING => ProgramState::Running,
        status => ProgramState::Ended {
            exit_status: status as i32,
        },
    }
}

/// Starts the application's main thread, on the first CPU for programs.
pub(crate) fn start(arguments: Vec<String>, linger: Duration) {
    let settings = Settings {
        linger,
        boot_duration: clock::now(),
    };
    assert!(SETTINGS.set(settings).is_ok(), "the program starts once");
    let mut entry: Option<sched::Entry> = Some(Box::new(move || {
        let arguments = arguments
            .into_iter()
            .map(|argument| &*String::leak(argument))
            .collect();
        let code = __homenode_main(Args::new(name(), arguments));
        end(code.to_u8());
    }));
    let cpu = percpu::all()[sys::cpus()[0].index()];
    if let Err(error) = sched::spawn(
        Some(Arc::from("main")),
        cpu,
        MAIN_STACK_BYTES,
        Policy::Local,
        true,
        &mut entry,
    ) {
        crash::stop_boot(format_args!("no memory for the main thread: {error}"));
    }
}

/// Ends the program: the metrics linger, then the machine stops. The first status holds.
pub(crate) fn end(status: u8) -> ! {
    let first = STATE
        .compare_exchange(RUNNING, u32::from(status), Ordering::Relaxed, Ordering::Relaxed)
        .is_ok();
    let linger = SETTINGS.get().map_or(Duration::ZERO, |settings| settings.linger);
    if first {
        log::info!("the program ended with status {status}");
        if !linger.is_zero() && net::is_up() {
            log::info!("metrics stay up for {} s", linger.as_secs_f64());
            thread::sleep(linger);
        }
        gate::enter(move || -> ! { power_off(status, Cause::Program) });
    }
    // Another thread ends the program already.
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}
