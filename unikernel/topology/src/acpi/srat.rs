//! SRAT: which CPUs and which memory are near each other (ACPI specification 6.5, 5.2.16).

use alloc::vec::Vec;

use zerocopy::{FromBytes, Immutable, KnownLayout, LE, U16, U32, U64, Unaligned};

use super::entries::{Entry, ShortHeader, Skip, SkipReason, entries};
use super::header::{Table, TableError, TableId};
use crate::{ApicId, PhysAddr, PhysRange};

const SRAT: TableId = TableId {
    name: "SRAT",
    signature: *b"SRAT",
};

const LOCAL_APIC: u16 = 0;
const MEMORY: u16 = 1;
const LOCAL_X2APIC: u16 = 2;

const ENABLED: u32 = 1 << 0;
const HOT_PLUGGABLE: u32 = 1 << 1;
const NON_VOLATILE: u32 = 1 << 2;

/// Revision 1, of ACPI 2.0 and older, has proximity domains of 8 bits and garbage above them.
const FIRST_REVISION_WITH_WIDE_DOMAINS: u8 = 2;

#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FixedPart {
    reserved: [u8; 12],
}

/// 5.2.16.1
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LocalApicAffinity {
    domain_low: u8,
    apic_id: u8,
    flags: U32<LE>,
    local_sapic_eid: u8,
    domain_high: [u8; 3],
    clock_domain: U32<LE>,
}

/// 5.2.16.2
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawMemoryAffinity {
    domain: U32<LE>,
    reserved1: U16<LE>,
    base: U64<LE>,
    length: U64<LE>,
    reserved2: U32<LE>,
    flags: U32<LE>,
    reserved3: U64<LE>,
}

/// 5.2.16.3
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LocalX2ApicAffinity {
    reserved1: U16<LE>,
    domain: U32<LE>,
    apic_id: U32<LE>,
    flags: U32<LE>,
    clock_domain: U32<LE>,
    reserved2: U32<LE>,
}

/// A CPU's proximity domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuAffinity {
    /// The CPU.
    pub apic_id: ApicId,
    /// Its proximity domain.
    pub domain: u32,
}

/// A memory range's proximity domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryAffinity {
    /// The addresses; there may be less memory behind them, or none.
    pub range: PhysRange,
    /// Their proximity domain.
    pub domain: u32,
    /// Whether memory can be plugged in there while the machine runs.
    pub hot_pluggable: bool,
    /// Whether the memory keeps its content without power.
    pub non_volatile: bool,
}

/// The enabled entries of an SRAT, in the table's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Srat {
    /// CPUs, by APIC id of either width.
    pub cpus: Vec<CpuAffinity>,
    /// Memory ranges, none of them empty.
    pub memory: Vec<MemoryAffinity>,
    /// Entries that were left out.
    pub skipped: Vec<Skip>,
}

impl Srat {
    /// Reads an SRAT; entries that are disabled or of other types than CPUs and memory are stepped over.
    ///
    /// # Errors
    /// If the table is not whole, not an SRAT, or its entries' lengths are broken.
    pub fn parse(bytes: &[u8]) -> Result<Self, TableError> {
        let table = Table::open(SRAT, bytes)?;
        let (_, offset, rest) = table.fixed_part::<FixedPart>()?;
        let wide_domains = table.revision >= FIRST_REVISION_WITH_WIDE_DOMAINS;
        let mut srat = Self {
            cpus: Vec::new(),
            memory: Vec::new(),
            skipped: Vec::new(),
        };
        for entry in entries::<ShortHeader>(SRAT, offset, rest) {
            match srat.read(&entry?, wide_domains) {
                Ok(()) => {}
                Err(skip) => srat.skipped.push(skip),
            }
        }
        Ok(srat)
    }

    fn read(&mut self, entry: &Entry<'_>, wide_domains: bool) -> Result<(), Skip> {
        match entry.kind {
            LOCAL_APIC => {
                let (cpu, _) = entry.fields::<LocalApicAffinity>()?;
                if cpu.flags.get() & ENABLED != 0 {
                    let [high1, high2, high3] = if wide_domains { cpu.domain_high } else { [0; 3] };
                    let domain = u32::from_le_bytes([cpu.domain_low, high1, high2, high3]);
                    self.cpus.push(CpuAffinity {
                        apic_id: ApicId(cpu.apic_id.into()),
                        domain,
                    });
                }
            }
            LOCAL_X2APIC => {
                let (cpu, _) = entry.fields::<LocalX2ApicAffinity>()?;
                if cpu.flags.get() & ENABLED != 0 {
                    let apic_id = ApicId(cpu.apic_id.get());
                    self.cpus.push(CpuAffinity {
                        apic_id,
                        domain: cpu.domain.get(),
                    });
                }
            }
            MEMORY => {
                let (memory, _) = entry.fields::<RawMemoryAffinity>()?;
                let (base, bytes, flags) = (memory.base.get(), memory.length.get(), memory.flags.get());
                if flags & ENABLED == 0 || bytes == 0 {
                    return Ok(());
                }
                let end = base
                    .checked_add(bytes)
                    .ok_or_else(|| entry.skip(SkipReason::AddressOverflow { base, bytes }))?;
                let domain = memory.domain.get();
                self.memory.push(MemoryAffinity {
                    range: PhysRange::new(PhysAddr(base), PhysAddr(end)),
                    domain: if wide_domains { domain } else { domain & 0xff },
                    hot_pluggable: flags & HOT_PLUGGABLE != 0,
                    non_volatile: flags & NON_VOLATILE != 0,
                });
            }
            _ => {}
        }
        Ok(())
    }
}
