//! MADT: the CPUs (ACPI specification 6.5, 5.2.12).

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use zerocopy::{FromBytes, Immutable, KnownLayout, LE, U16, U32, U64, Unaligned};

use super::entries::{Entry, ShortHeader, Skip, SkipReason, entries};
use super::header::{Table, TableError, TableId};
use crate::{ApicId, PhysAddr};

const MADT: TableId = TableId {
    name: "MADT",
    signature: *b"APIC",
};

const LOCAL_APIC: u16 = 0;
const LOCAL_APIC_ADDRESS_OVERRIDE: u16 = 5;
const LOCAL_X2APIC: u16 = 9;

/// Interrupts sent to this id reach every CPU, so that none can have it.
const XAPIC_BROADCAST: u8 = 0xff;
const X2APIC_BROADCAST: u32 = 0xffff_ffff;

const ENABLED: u32 = 1 << 0;
const ONLINE_CAPABLE: u32 = 1 << 1;

#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FixedPart {
    local_apic_address: U32<LE>,
    flags: U32<LE>,
}

/// 5.2.12.2
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LocalApic {
    processor_uid: u8,
    apic_id: u8,
    flags: U32<LE>,
}

/// 5.2.12.8
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LocalApicAddressOverride {
    reserved: U16<LE>,
    address: U64<LE>,
}

/// 5.2.12.12
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LocalX2Apic {
    reserved: U16<LE>,
    apic_id: U32<LE>,
    flags: U32<LE>,
    processor_uid: U32<LE>,
}

/// Whether a CPU is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuState {
    /// It is there and can be started.
    Enabled,
    /// It is not there, but can be plugged in while the machine runs.
    OnlineCapable,
}

/// A CPU in the MADT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadtCpu {
    /// The number by which interrupts reach the CPU.
    pub apic_id: ApicId,
    /// The number by which other tables and ACPI's namespace name the CPU.
    pub processor_uid: u32,
    /// Whether it is there.
    pub state: CpuState,
}

/// What the MADT says about CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Madt {
    /// Where each CPU finds its own APIC's registers; from the 64-bit entry if there is one.
    pub local_apic_address: PhysAddr,
    /// The CPUs in the table's order, without those that can never be used. No two have one APIC id.
    pub cpus: Vec<MadtCpu>,
    /// Entries that were left out.
    pub skipped: Vec<Skip>,
}

impl Madt {
    /// Reads a MADT; entries of other types than CPUs and the local APIC's address are stepped over.
    ///
    /// # Errors
    /// If the table is not whole, not a MADT, or its entries' lengths are broken.
    pub fn parse(bytes: &[u8]) -> Result<Self, TableError> {
        let table = Table::open(MADT, bytes)?;
        let (fixed, offset, rest) = table.fixed_part::<FixedPart>()?;
        let mut madt = Self {
            local_apic_address: PhysAddr(fixed.local_apic_address.get().into()),
            cpus: Vec::new(),
            skipped: Vec::new(),
        };
        let mut seen = BTreeSet::new();
        for entry in entries::<ShortHeader>(MADT, offset, rest) {
            match madt.read(&entry?, &mut seen) {
                Ok(()) => {}
                Err(skip) => madt.skipped.push(skip),
            }
        }
        Ok(madt)
    }

    /// The APIC ids of the CPUs that are there, in the table's order: the order of CPU numbers.
    pub fn enabled(&self) -> impl Iterator<Item = ApicId> {
        self.cpus
            .iter()
            .filter(|cpu| cpu.state == CpuState::Enabled)
            .map(|cpu| cpu.apic_id)
    }

    fn read(&mut self, entry: &Entry<'_>, seen: &mut BTreeSet<ApicId>) -> Result<(), Skip> {
        let (apic_id, broadcast, processor_uid, flags) = match entry.kind {
            LOCAL_APIC => {
                let (cpu, _) = entry.fields::<LocalApic>()?;
                let broadcast = cpu.apic_id == XAPIC_BROADCAST;
                (
                    cpu.apic_id.into(),
                    broadcast,
                    cpu.processor_uid.into(),
                    cpu.flags.get(),
                )
            }
            LOCAL_X2APIC => {
                let (cpu, _) = entry.fields::<LocalX2Apic>()?;
                let apic_id = cpu.apic_id.get();
                (
                    apic_id,
                    apic_id == X2APIC_BROADCAST,
                    cpu.processor_uid.get(),
                    cpu.flags.get(),
                )
            }
            LOCAL_APIC_ADDRESS_OVERRIDE => {
                let (address, _) = entry.fields::<LocalApicAddressOverride>()?;
                self.local_apic_address = PhysAddr(address.address.get());
                return Ok(());
            }
            _ => return Ok(()),
        };
        let state = match flags {
            flags if flags & ENABLED != 0 => CpuState::Enabled,
            flags if flags & ONLINE_CAPABLE != 0 => CpuState::OnlineCapable,
            // Firmware leaves such entries for sockets that are empty.
            _ => return Ok(()),
        };
        if broadcast {
            return Err(entry.skip(SkipReason::BroadcastApicId));
        }
        let apic_id = ApicId(apic_id);
        if !seen.insert(apic_id) {
            return Err(entry.skip(SkipReason::DuplicateApicId(apic_id.0)));
        }
        self.cpus.push(MadtCpu {
            apic_id,
            processor_uid,
            state,
        });
        Ok(())
    }
}
