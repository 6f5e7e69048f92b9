//! The end: leaving an exit status behind and switching the machine off.

use core::fmt::{self, Write};
use core::hint;
use core::sync::atomic::{AtomicBool, Ordering};

use spin::Once;
use x86_64::instructions::port::Port;
use x86_64::instructions::{hlt, interrupts};

use super::serial;
use crate::firmware::SleepType;

/// The port of QEMU's (and Bochs') debug console, which reads as its own number where it exists.
const DEBUG_CONSOLE: u16 = 0xe9;

/// The port of QEMU's `isa-debug-exit`; writing `n` ends the emulator with status `2 n + 1`.
const DEBUG_EXIT: u16 = 0xf4;

/// How often another CPU that is switching the machine off is waited for, in spins.
const OTHER_CPU_SPINS: u32 = 10_000_000;

/// How often firmware is asked whether it has left legacy mode.
const ACPI_ENABLE_POLLS: u32 = 1_000_000;

static SLEEP: Once<SleepType> = Once::new();

/// Some CPU is in `power_off`.
static STOPPING: AtomicBool = AtomicBool::new(false);

/// Why the machine is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The program returned.
    Program,
    /// Rust code panicked.
    Panic,
    /// The CPU raised an exception that nothing handles.
    Exception,
    /// The kernel could not boot.
    Boot,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Program => "program",
            Self::Panic => "panic",
            Self::Exception => "exception",
            Self::Boot => "boot",
        })
    }
}

/// Says how this machine enters S5, as found in its ACPI tables. Only the first call counts.
pub(crate) fn set_sleep(sleep: SleepType) {
    SLEEP.call_once(|| sleep);
}

/// Switches the machine off and leaves `exit status=… cause=…` behind: under an emulator on its debug console, else on
/// the serial console. It works at any time of boot, with interrupts on or off, on any stack.
///
/// Only the first caller leaves a record. A later one waits a little and then only stops the machine: perhaps the first
/// call is what it interrupted.
pub(crate) fn power_off(status: u8, cause: Cause) -> ! {
    interrupts::disable();
    if STOPPING.swap(true, Ordering::AcqRel) {
        for _ in 0..OTHER_CPU_SPINS {
            hint::spin_loop();
        }
    } else {
        // Neither writer returns an error.
        let _ = if has_debug_console() {
            writeln!(DebugConsole, "exit status={status} cause={cause}")
        } else {
            writeln!(serial::Emergency, "exit status={status} cause={cause}")
        };
    }
    if has_debug_console() {
        // SAFETY: under an emulator with a debug console this port is `isa-debug-exit` or nothing.
        unsafe { Port::<u32>::new(DEBUG_EXIT).write(0) };
    }
    if let Some(sleep) = SLEEP.get() {
        enter(sleep);
    }
    loop {
        hlt();
    }
}

fn has_debug_console() -> bool {
    // SAFETY: reading this port has no effect: it is the debug console, or on a PC nothing.
    u16::from(unsafe { Port::<u8>::new(DEBUG_CONSOLE).read() }) == DEBUG_CONSOLE
}

/// QEMU's debug console, byte by byte.
struct DebugConsole;

impl Write for DebugConsole {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: the debug console takes any byte; the caller saw that it is there.
            unsafe { Port::new(DEBUG_CONSOLE).write(byte) };
        }
        Ok(())
    }
}

/// Enters the sleeping state by way of the PM1 control registers (ACPI specification 6.5, 4.8.3.2.1 and 16.1.6).
/// Returns if the machine stays awake.
fn enter(sleep: &SleepType) {
    /// The PM1 registers belong to ACPI.
    const SCI_EN: u16 = 1 << 0;
    const SLP_TYP_SHIFT: u32 = 10;
    const SLP_TYP: u16 = 0b111 << SLP_TYP_SHIFT;
    const SLP_EN: u16 = 1 << 13;

    let mut pm1a = Port::<u16>::new(sleep.pm1a_control);
    let mut pm1b = sleep.pm1b_control.map(Port::<u16>::new);
    // SAFETY: the FADT, whose checksum holds, names these ports as the PM1 control and SMI command registers, and nothing
    // else of the kernel uses them. The machine is meant to stop.
    unsafe {
        if let Some(enable) = sleep.enable
            && pm1a.read() & SCI_EN == 0
        {
            Port::new(enable.port).write(enable.value);
            let mut polls = 0;
            while pm1a.read() & SCI_EN == 0 && polls < ACPI_ENABLE_POLLS {
                polls += 1;
                hint::spin_loop();
            }
        }
        let a = pm1a.read() & !(SLP_TYP | SLP_EN) | u16::from(sleep.a) << SLP_TYP_SHIFT;
        let b = pm1b.as_mut().map(|pm1b| {
            (
                pm1b.read() & !(SLP_TYP | SLP_EN) | u16::from(sleep.b) << SLP_TYP_SHIFT,
                pm1b,
            )
        });
        pm1a.write(a | SLP_EN);
        if let Some((b, pm1b)) = b {
            pm1b.write(b | SLP_EN);
        }
    }
}
