//! The timers of known frequency that the clock is calibrated against: HPET, ACPI power management timer, 8254.

use core::fmt;
use core::ops::RangeInclusive;
use core::ptr::NonNull;

use homenode_topology::PhysAddr;
use log::warn;
use x86_64::instructions::port::Port;

use crate::firmware::{PM_TIMER_HZ, PmTimer, Register, Tables};
use crate::machine::memory::map_device;

/// Which timer a counter belongs to, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// High Precision Event Timer.
    Hpet,
    /// ACPI power management timer.
    AcpiPm,
    /// Programmable Interval Timer, the 8254.
    Pit,
}

impl Timer {
    /// All timers, the best first.
    pub(super) const ALL: [Self; 3] = [Self::Hpet, Self::AcpiPm, Self::Pit];

    /// Starts the timer's counter, or `None` if this machine says that it has no such timer.
    pub(super) fn start(self, tables: &Tables<'_>) -> Option<Counter> {
        match self {
            Self::Hpet => tables.hpet.and_then(start_hpet),
            Self::AcpiPm => tables.pm_timer.and_then(pm_timer),
            Self::Pit => Some(start_pit()),
        }
    }
}

impl fmt::Display for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hpet => "HPET",
            Self::AcpiPm => "ACPI PM timer",
            Self::Pit => "PIT",
        })
    }
}

/// A counter of known frequency that counts up and wraps around.
pub(super) struct Counter {
    access: Access,
    /// The frequency in Hz.
    pub(super) hz: u64,
    /// The bits that count.
    mask: u32,
}

/// How a counter is read.
enum Access {
    Memory(NonNull<u32>),
    Port(u16),
    Pit,
}

impl Counter {
    /// The current count; it means something only in [`ticks_between`](Self::ticks_between).
    pub(super) fn read(&self) -> u32 {
        match self.access {
            // SAFETY: this register was mapped when the counter was started, and reading it changes nothing.
            Access::Memory(register) => unsafe { register.read_volatile() },
            // SAFETY: this port is the PM timer's by the FADT, and reading it changes nothing.
            Access::Port(port) => unsafe { Port::new(port).read() },
            Access::Pit => read_pit(),
        }
    }

    /// The ticks from one reading to a later one, less than one turn of the counter apart.
    pub(super) fn ticks_between(&self, first: u32, last: u32) -> u64 {
        u64::from(last.wrapping_sub(first) & self.mask)
    }
}

/// Maps `bytes` bytes of registers, or warns and returns `None`.
fn map(timer: Timer, registers: PhysAddr, bytes: usize) -> Option<NonNull<u8>> {
    map_device(registers, bytes)
        .map_err(|error| warn!("{timer}: the registers at {registers} can not be mapped: {error}"))
        .ok()
}

/// Turns an HPET's main counter on and reads its lower half (IA-PC HPET specification 1.0a, 2.3).
fn start_hpet(registers: PhysAddr) -> Option<Counter> {
    const BYTES: usize = 0x400;
    /// The upper half of the capabilities: the counter's period in fs.
    const PERIOD: usize = 0x004;
    const CONFIGURATION: usize = 0x010;
    const MAIN_COUNTER: usize = 0x0f0;
    /// In the configuration: the main counter runs.
    const ENABLE: u32 = 1 << 0;
    const FS_PER_S: u64 = 1_000_000_000_000_000;
    /// The specification's maximum is 100 ns; nothing counts faster than 1 GHz.
    const PERIODS_FS: RangeInclusive<u32> = 1_000_000..=100_000_000;

    let base = map(Timer::Hpet, registers, BYTES)?;
    // SAFETY: the register lies in the mapped ones.
    let period = unsafe { base.byte_add(PERIOD).cast::<u32>().read_volatile() };
    if !PERIODS_FS.contains(&period) {
        warn!("HPET: a period of {period} fs can not be");
        return None;
    }
    // SAFETY: both registers lie in the mapped ones, which are an HPET's by its ACPI table and its period; setting ENABLE
    // starts the counter and changes nothing else.
    let counter = unsafe {
        let configuration = base.byte_add(CONFIGURATION).cast::<u32>();
        configuration.write_volatile(configuration.read_volatile() | ENABLE);
        base.byte_add(MAIN_COUNTER).cast()
    };
    Some(Counter {
        access: Access::Memory(counter),
        hz: FS_PER_S / u64::from(period),
        mask: u32::MAX,
    })
}

fn pm_timer(timer: PmTimer) -> Option<Counter> {
    let access = match timer.register {
        Register::Port(port) => Access::Port(port),
        Register::Memory(register) => Access::Memory(map(Timer::AcpiPm, register, 4)?.cast()),
    };
    Some(Counter {
        access,
        hz: PM_TIMER_HZ,
        mask: if timer.bits == 32 { u32::MAX } else { (1 << 24) - 1 },
    })
}

/// The 8254's ports (Intel 8254 data sheet), and the one with channel 2's gate.
const PIT_CHANNEL_2: u16 = 0x42;
const PIT_COMMAND: u16 = 0x43;
const PIT_GATE: u16 = 0x61;

/// Lets channel 2 of the 8254, which raises no interrupt, count down from 65535 over and over.
fn start_pit() -> Counter {
    /// In the gate's port: channel 2 counts.
    const GATE: u8 = 1 << 0;
    /// In the gate's port: channel 2 is heard.
    const SPEAKER: u8 = 1 << 1;
    /// Channel 2, both bytes of the count, mode 0, binary.
    const COUNT_DOWN: u8 = 0b1011_0000;
    // SAFETY: only this module uses the 8254, and channel 2 drives the speaker alone.
    unsafe {
        let mut gate = Port::<u8>::new(PIT_GATE);
        let value = gate.read();
        gate.write(value & !SPEAKER | GATE);
        Port::new(PIT_COMMAND).write(COUNT_DOWN);
        Port::new(PIT_CHANNEL_2).write(0xffu8);
        Port::new(PIT_CHANNEL_2).write(0xffu8);
    }
    Counter {
        access: Access::Pit,
        hz: 1_193_182,
        mask: 0xffff,
    }
}

/// Channel 2's count, turned around so that it counts up.
fn read_pit() -> u32 {
    /// Channel 2: hold the count for reading.
    const LATCH: u8 = 0b1000_0000;
    // SAFETY: as in `start_pit`; a latched count is read as two bytes.
    let count = unsafe {
        let mut data = Port::<u8>::new(PIT_CHANNEL_2);
        Port::new(PIT_COMMAND).write(LATCH);
        u16::from_le_bytes([data.read(), data.read()])
    };
    u32::from(!count)
}
