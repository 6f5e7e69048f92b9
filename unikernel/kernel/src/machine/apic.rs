//! The local APIC: interrupts between CPUs, and the timer of each.
//!
//! Both ways to its registers are behind one type: MSRs in x2APIC mode, memory in xAPIC mode. Section numbers are those of
//! the Intel SDM, volume 3A, in the editions whose chapter 13 is "Advanced Programmable Interrupt Controller".

use core::arch::x86_64::{_mm_lfence, _mm_mfence};
use core::fmt;
use core::hint;
use core::ptr::NonNull;

use homenode_topology::{ApicId, PhysAddr};
use raw_cpuid::CpuId;
use spin::Once;
use x86_64::instructions::interrupts;
use x86_64::instructions::port::Port;
use x86_64::registers::model_specific::Msr;

use super::memory::{DeviceError, map_device};
use super::percpu::{self, PerCpu};
use crate::destination::{Address, Destination, LogicalId, destinations};

/// The vector of spurious interrupts. Its handler returns without [`LocalApic::eoi`] (13.9).
pub(crate) const SPURIOUS_VECTOR: u8 = 0xff;

/// How often the delivery status of an interprocessor interrupt is read before it counts as stuck.
const DELIVERY_POLLS: u32 = 1_000_000;

/// The MSR that places and enables the local APIC (13.4.4).
const IA32_APIC_BASE: u32 = 0x1b;
const APIC_BASE_X2APIC: u64 = 1 << 10;
const APIC_BASE_ENABLE: u64 = 1 << 11;
const APIC_BASE_ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// The registers' numbers: an MSR is at 0x800 plus the number, a memory register at 16 times the number (table 13-6).
#[derive(Clone, Copy)]
#[repr(u32)]
enum Register {
    Version = 0x03,
    TaskPriority = 0x08,
    EndOfInterrupt = 0x0b,
    LogicalDestination = 0x0d,
    DestinationFormat = 0x0e,
    SpuriousVector = 0x0f,
    ErrorStatus = 0x28,
    InterruptCommand = 0x30,
    InterruptCommandHigh = 0x31,
    LvtTimer = 0x32,
    LvtPerformance = 0x34,
    LvtLint0 = 0x35,
    LvtLint1 = 0x36,
    LvtError = 0x37,
    TimerInitialCount = 0x38,
    TimerCurrentCount = 0x39,
    TimerDivide = 0x3e,
}

/// In an entry of the local vector table: nothing is delivered.
const LVT_MASKED: u32 = 1 << 16;
/// In an entry of the local vector table: delivered as an NMI.
const LVT_NMI: u32 = 0b100 << 8;
/// In the spurious vector register: the APIC is on.
const SOFTWARE_ENABLE: u32 = 1 << 8;
/// In the destination format register: each CPU has a bit of the logical destination. The reserved bits are 1.
const FLAT: u32 = u32::MAX;
/// In the divide register: the timer counts each tick of its clock.
const DIVIDE_BY_1: u32 = 0b1011;

/// In the interrupt command register (13.6.1), delivery modes.
const FIXED: u32 = 0b000 << 8;
const NMI: u32 = 0b100 << 8;
const INIT: u32 = 0b101 << 8;
const STARTUP: u32 = 0b110 << 8;
/// The destination is a logical id.
const LOGICAL: u32 = 1 << 11;
/// The interrupt has not been accepted yet; xAPIC mode only.
const DELIVERY_PENDING: u32 = 1 << 12;
/// The level is "assert", as all but one obsolete message need.
const ASSERT: u32 = 1 << 14;

static LOCAL_APIC: Once<LocalApic> = Once::new();

/// How the registers are reached; the same on all CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// By MSRs, with 32-bit ids.
    X2Apic,
    /// In memory, with 8-bit ids.
    XApic,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::X2Apic => "x2APIC",
            Self::XApic => "xAPIC",
        })
    }
}

/// The vectors that a CPU's own APIC raises.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vectors {
    /// The timer's.
    pub(crate) timer: u8,
    /// That of errors the APIC detects; `None` leaves them unreported.
    pub(crate) error: Option<u8>,
}

/// Why an interprocessor interrupt was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IpiError {
    /// xAPIC mode reaches ids below 255 only.
    IdTooLarge(ApicId),
    /// The APIC did not get rid of an interrupt.
    Stuck,
}

impl fmt::Display for IpiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IdTooLarge(id) => {
                write!(
                    f,
                    "no interrupt reaches APIC id {id} in xAPIC mode; enable x2APIC in the firmware"
                )
            }
            Self::Stuck => f.write_str("the local APIC does not deliver an interprocessor interrupt"),
        }
    }
}

impl core::error::Error for IpiError {}

/// The local APIC of whichever CPU uses it.
#[derive(Clone, Copy)]
pub(crate) struct LocalApic {
    /// The registers in memory; `None` in x2APIC mode.
    registers: Option<NonNull<u8>>,
}

// SAFETY: the mapping is never taken away, and behind the same address each CPU finds its own registers.
unsafe impl Send for LocalApic {}
// SAFETY: as above.
unsafe impl Sync for LocalApic {}

/// Chooses the mode for the whole machine and masks the legacy interrupt controllers. Call it once, on the boot CPU; then
/// each CPU calls [`LocalApic::init_this_cpu`].
///
/// x2APIC mode is taken where the CPU has it or firmware has turned it on.
///
/// # Errors
/// If the registers can not be mapped.
pub(crate) fn init() -> Result<LocalApic, DeviceError> {
    mask_legacy_controllers();
    let base = read_msr(IA32_APIC_BASE);
    let x2apic = base & APIC_BASE_X2APIC != 0
        || CpuId::new()
            .get_feature_info()
            .is_some_and(|features| features.has_x2apic());
    let registers = if x2apic {
        None
    } else {
        Some(map_device(PhysAddr(base & APIC_BASE_ADDRESS), 0x1000)?)
    };
    Ok(*LOCAL_APIC.call_once(|| LocalApic { registers }))
}

/// The id of this CPU's APIC as CPUID tells it, which works at any time, also before [`init`] (13.4.6, 13.12.8.1).
pub(crate) fn this_cpu_id() -> ApicId {
    let cpuid = CpuId::new();
    let x2apic = cpuid
        .get_extended_topology_info()
        .and_then(|mut levels| levels.next())
        .map(|level| level.x2apic_id());
    let id = x2apic.or_else(|| {
        cpuid
            .get_feature_info()
            .map(|features| features.initial_local_apic_id().into())
    });
    ApicId(id.unwrap_or(0))
}

/// This CPU's local APIC.
///
/// # Panics
/// Before [`init`].
pub(crate) fn local() -> LocalApic {
    try_local().expect("the local APIC is used after apic::init")
}

/// This CPU's local APIC, or `None` before [`init`]: for crash reports.
pub(crate) fn try_local() -> Option<LocalApic> {
    LOCAL_APIC.get().copied()
}

impl LocalApic {
    /// The mode that all CPUs use.
    pub(crate) fn mode(self) -> Mode {
        if self.registers.is_some() {
            Mode::XApic
        } else {
            Mode::X2Apic
        }
    }

    /// Turns this CPU's APIC on: every vector is accepted, the timer is stopped, LINT1 raises NMIs, and nothing else in
    /// the local vector table is delivered but, if asked for, errors.
    pub(crate) fn init_this_cpu(self, vectors: Vectors) {
        /// The version register's highest entry of the local vector table from which on there is a performance one.
        const WITH_PERFORMANCE: u32 = 4;

        let base = read_msr(IA32_APIC_BASE);
        // SAFETY: this is the mode that `init` chose, and going from off to xAPIC to x2APIC is the order that 13.12.5
        // allows. The address stays.
        unsafe {
            let mut base_msr = Msr::new(IA32_APIC_BASE);
            if base & APIC_BASE_ENABLE == 0 {
                base_msr.write(base | APIC_BASE_ENABLE);
            }
            if self.mode() == Mode::X2Apic && base & APIC_BASE_X2APIC == 0 {
                base_msr.write(base | APIC_BASE_ENABLE | APIC_BASE_X2APIC);
            }
        }

        if self.mode() == Mode::XApic {
            self.write(Register::DestinationFormat, FLAT);
        }
        self.write(
            Register::SpuriousVector,
            SOFTWARE_ENABLE | u32::from(SPURIOUS_VECTOR),
        );
        self.write(Register::TaskPriority, 0);
        self.write(Register::LvtLint0, LVT_MASKED);
        self.write(Register::LvtLint1, LVT_NMI);
        // The thermal entry may be firmware's and stays.
        if self.read(Register::Version) >> 16 & 0xff >= WITH_PERFORMANCE {
            self.write(Register::LvtPerformance, LVT_MASKED);
        }
        // Two writes: the first latches what has gathered, the second starts afresh.
        self.write(Register::ErrorStatus, 0);
        self.write(Register::ErrorStatus, 0);
        self.write(Register::LvtError, vectors.error.map_or(LVT_MASKED, u32::from));
        // One-shot mode is 0 in bits 17 and 18.
        self.write(Register::TimerInitialCount, 0);
        self.write(Register::TimerDivide, DIVIDE_BY_1);
        self.write(Register::LvtTimer, u32::from(vectors.timer));
    }

    /// Gives the running CPU, whose data is `this`, its logical id, if it can have one. Each CPU calls it, after
    /// [`init_this_cpu`](Self::init_this_cpu) and once the number of CPUs is known, before it is interrupted.
    pub(crate) fn set_logical_id(self, this: &PerCpu) {
        /// The bits of a flat logical destination.
        const FLAT_CPUS: usize = 8;

        let id = match self.mode() {
            // Read, not derived from the APIC id: that is how software is to learn it (13.12.10.1).
            Mode::X2Apic => LogicalId::new(self.read(Register::LogicalDestination)),
            Mode::XApic if percpu::all().len() <= FLAT_CPUS => {
                let bit = 1 << this.cpu.get().0;
                self.write(Register::LogicalDestination, bit << 24);
                LogicalId::new(bit)
            }
            // Clusters in xAPIC mode have 4 CPUs each, end at 60, and need devices that manage them (13.6.2.2).
            Mode::XApic => None,
        };
        this.logical_id.set(id);
    }

    /// Ends the interrupt in service, so that others of its priority and below may come.
    pub(crate) fn eoi(self) {
        self.write(Register::EndOfInterrupt, 0);
    }

    /// What has gone wrong since the last call, as the bits of the error status register (13.5.3).
    pub(crate) fn take_errors(self) -> u32 {
        self.write(Register::ErrorStatus, 0);
        self.read(Register::ErrorStatus)
    }

    /// Raises the interrupt `vector` (16 to 255) on the CPU `target`. What this CPU wrote before is visible to the handler.
    ///
    /// # Errors
    /// If xAPIC mode can not name the target, or the interrupt is not taken off this APIC.
    pub(crate) fn send_ipi(self, target: ApicId, vector: u8) -> Result<(), IpiError> {
        self.send_to(target, FIXED | ASSERT | u32::from(vector))
    }

    /// Raises the interrupt `vector` (16 to 255) once on each of the running CPUs `targets`, with as few commands as their
    /// order allows: best is that of their APIC ids. What this CPU wrote before the call is visible to the handlers.
    ///
    /// # Errors
    /// As [`send_ipi`](Self::send_ipi); the targets that come later are not interrupted.
    pub(crate) fn send_ipi_to(
        self,
        targets: impl Iterator<Item = &'static PerCpu>,
        vector: u8,
    ) -> Result<(), IpiError> {
        let command = FIXED | ASSERT | u32::from(vector);
        let addresses = targets.map(|cpu| Address {
            id: cpu.apic_id.get(),
            logical: cpu.logical_id.get(),
        });
        self.publish();
        destinations(addresses).try_for_each(|destination| match destination {
            Destination::Physical(id) => self.command(self.physical(id)?, command),
            Destination::Logical(ids) => self.command(ids.bits(), LOGICAL | command),
        })
    }

    /// Raises an NMI on the CPU `target`.
    ///
    /// # Errors
    /// As [`send_ipi`](Self::send_ipi).
    pub(crate) fn send_nmi(self, target: ApicId) -> Result<(), IpiError> {
        self.send_to(target, NMI | ASSERT)
    }

    /// Resets the CPU `target`, which then waits for [`send_startup`](Self::send_startup).
    ///
    /// # Errors
    /// As [`send_ipi`](Self::send_ipi).
    pub(crate) fn send_init(self, target: ApicId) -> Result<(), IpiError> {
        self.send_to(target, INIT | ASSERT)
    }

    /// Starts the CPU `target` in real mode at the physical address `page` × 4096 (volume 3A, "Typical AP Initialization
    /// Sequence").
    ///
    /// # Errors
    /// As [`send_ipi`](Self::send_ipi).
    pub(crate) fn send_startup(self, target: ApicId, page: u8) -> Result<(), IpiError> {
        self.send_to(target, STARTUP | ASSERT | u32::from(page))
    }

    /// Raises the timer's interrupt once, when its clock has ticked `ticks` times; 0 disarms it.
    pub(crate) fn arm_oneshot(self, ticks: u32) {
        self.write(Register::TimerInitialCount, ticks);
    }

    /// Stops the timer. An interrupt that is already pending still comes.
    pub(crate) fn disarm(self) {
        self.arm_oneshot(0);
    }

    /// The ticks that are left until the timer's interrupt; 0 when it is not armed.
    pub(crate) fn current_count(self) -> u32 {
        self.read(Register::TimerCurrentCount)
    }

    fn send_to(self, target: ApicId, command: u32) -> Result<(), IpiError> {
        let destination = self.physical(target)?;
        self.publish();
        self.command(destination, command)
    }

    /// The destination field for one CPU.
    fn physical(self, target: ApicId) -> Result<u32, IpiError> {
        if self.mode() == Mode::XApic && target.0 >= 0xff {
            return Err(IpiError::IdTooLarge(target));
        }
        Ok(target.0)
    }

    /// Makes what this CPU wrote visible before the interrupts that it sends next. A write to the registers in memory does
    /// so by itself; WRMSR does not wait for earlier stores (13.12.3).
    fn publish(self) {
        if self.mode() == Mode::X2Apic {
            // SAFETY: this CPU has SSE2, as every 64-bit one.
            unsafe {
                _mm_mfence();
                _mm_lfence();
            }
        }
    }

    /// Writes the interrupt command register.
    fn command(self, destination: u32, command: u32) -> Result<(), IpiError> {
        if self.mode() == Mode::X2Apic {
            let value = u64::from(destination) << 32 | u64::from(command);
            // SAFETY: this CPU is in x2APIC mode, and the command is one of this module's.
            unsafe { Msr::new(msr(Register::InterruptCommand)).write(value) };
            return Ok(());
        }
        // A handler that sends as well must not come between the two writes.
        interrupts::without_interrupts(|| {
            self.wait_for_delivery()?;
            self.write(Register::InterruptCommandHigh, destination << 24);
            self.write(Register::InterruptCommand, command);
            self.wait_for_delivery()
        })
    }

    fn wait_for_delivery(self) -> Result<(), IpiError> {
        for _ in 0..DELIVERY_POLLS {
            if self.read(Register::InterruptCommand) & DELIVERY_PENDING == 0 {
                return Ok(());
            }
            hint::spin_loop();
        }
        Err(IpiError::Stuck)
    }

    fn read(self, register: Register) -> u32 {
        match self.in_memory(register) {
            // SAFETY: the address is that of a mapped register, and reading it changes nothing.
            Some(address) => unsafe { address.read_volatile() },
            // The upper half of what is read here is reserved.
            None => read_msr(msr(register)) as u32,
        }
    }

    fn write(self, register: Register, value: u32) {
        match self.in_memory(register) {
            // SAFETY: the address is that of a mapped register, and this module writes valid values.
            Some(address) => unsafe { address.write_volatile(value) },
            // SAFETY: this CPU is in x2APIC mode, where these MSRs exist, and this module writes valid values.
            None => unsafe { Msr::new(msr(register)).write(u64::from(value)) },
        }
    }

    /// The address of a register in xAPIC mode.
    fn in_memory(self, register: Register) -> Option<NonNull<u32>> {
        // SAFETY: `init` mapped all 4 KiB of registers.
        self.registers
            .map(|base| unsafe { base.byte_add(register as usize * 16) }.cast())
    }
}

/// The MSR of a register in x2APIC mode.
fn msr(register: Register) -> u32 {
    0x800 + register as u32
}

fn read_msr(number: u32) -> u64 {
    // SAFETY: only for the APIC base, which every 64-bit CPU has, and for the APIC's own MSRs in x2APIC mode; reading
    // them changes nothing.
    unsafe { Msr::new(number).read() }
}

/// Masks all inputs of the two 8259 controllers, which are not used.
fn mask_legacy_controllers() {
    const MASTER_MASK: u16 = 0x21;
    const SLAVE_MASK: u16 = 0xa1;
    // SAFETY: outside of their initialisation these ports are the 8259s' interrupt masks, or nothing.
    unsafe {
        Port::new(MASTER_MASK).write(0xffu8);
        Port::new(SLAVE_MASK).write(0xffu8);
    }
}
