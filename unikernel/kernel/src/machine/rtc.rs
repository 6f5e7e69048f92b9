//! The wall clock: the CMOS clock's time at boot, plus the monotonic clock.

use core::hint;
use core::time::Duration;

use log::warn;
use spin::Once;
use x86_64::instructions::interrupts;
use x86_64::instructions::port::Port;

use super::clock;
use crate::civil::CmosRegisters;
use crate::firmware::Tables;

/// How often the clock is asked whether its update is over. An update takes at most 2.2 ms, a port access about 1 µs.
const UPDATE_POLLS: u32 = 20_000;

/// How often the clock is read in the hope of two equal readings.
const READINGS: u32 = 8;

/// The time since 1970-01-01 00:00:00 UTC at which the monotonic clock stood at 0.
static BOOT: Once<Duration> = Once::new();

/// Reads the CMOS clock, which is taken to run in UTC. Call it once, after `clock::calibrate`.
///
/// Without a usable clock, a warning is logged and the wall clock starts at 1970.
pub(crate) fn init(tables: &Tables<'_>) {
    let seconds = if tables.no_cmos_rtc {
        None
    } else {
        read(tables.century_register)
    };
    if seconds.is_none() {
        warn!("no usable CMOS clock; the wall clock starts at 1970-01-01");
    }
    if let Some(seconds) = seconds {
        BOOT.call_once(|| Duration::from_secs(seconds).saturating_sub(clock::now()));
    }
}

/// The time since 1970-01-01 00:00:00 UTC at which the machine was started, or `None` if no clock told it.
pub(crate) fn boot_time() -> Option<Duration> {
    BOOT.get().copied()
}

/// The time since 1970-01-01 00:00:00 UTC, to the second at boot and advancing with the monotonic clock.
pub(crate) fn unix_time() -> Duration {
    boot_time().unwrap_or_default() + clock::now()
}

/// The clock's time in seconds since 1970, or `None` if it never settles or makes no sense.
///
/// Two equal readings with no update under way before either are consistent, even if an update fell between them.
fn read(century_register: Option<u8>) -> Option<u64> {
    let mut last = None;
    for _ in 0..READINGS {
        wait_for_update()?;
        let reading = registers(century_register);
        if last == Some(reading) {
            return reading.decode().unix_seconds();
        }
        last = Some(reading);
    }
    None
}

/// Reads the clock, perhaps while it is updated.
fn registers(century_register: Option<u8>) -> CmosRegisters {
    CmosRegisters {
        second: cmos(0x00),
        minute: cmos(0x02),
        hour: cmos(0x04),
        day: cmos(0x07),
        month: cmos(0x08),
        year: cmos(0x09),
        century: century_register.map(cmos),
        register_b: cmos(0x0b),
    }
}

/// Waits until no update is under way; `None` if it never ends, as where there is no clock at all.
fn wait_for_update() -> Option<()> {
    /// In register A.
    const UPDATE_IN_PROGRESS: u8 = 1 << 7;
    for _ in 0..UPDATE_POLLS {
        if cmos(0x0a) & UPDATE_IN_PROGRESS == 0 {
            return Some(());
        }
        hint::spin_loop();
    }
    None
}

/// The CMOS register with this index (0 to 127).
fn cmos(index: u8) -> u8 {
    // Bit 7 of the index port would mask NMIs.
    interrupts::without_interrupts(|| {
        // SAFETY: selecting and reading a CMOS register changes nothing that the kernel keeps there, and interrupts are
        // off between the two. Only the boot CPU reads the clock.
        unsafe {
            Port::new(0x70).write(index & 0x7f);
            Port::new(0x71).read()
        }
    })
}
