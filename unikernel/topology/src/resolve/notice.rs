//! What was odd about the firmware's tables, and what was made of it.

use alloc::vec::Vec;
use core::fmt;

use crate::acpi::{Skip, TableError};
use crate::topology::RangeList;
use crate::{ApicId, Bytes, CpuId, MAX_NODES, PhysRange};

/// Something about the firmware's tables that does not fit, and was survived; shown in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A table is broken and was ignored.
    BrokenTable(TableError),
    /// An entry of a table was left out.
    Skipped(Skip),
    /// A table about proximity domains was ignored, since no SRAT says what is in them.
    WithoutSrat(&'static str),
    /// The SRAT was ignored: it names none of this machine's CPUs or RAM.
    UselessSrat,
    /// The SRAT was ignored: it has more domains than there can be nodes.
    TooManyDomains(usize),
    /// The SRAT names CPUs that the MADT does not have or does not enable; their entries were ignored.
    UnknownCpus(Vec<ApicId>),
    /// The SRAT has a CPU in two domains; the first one counts.
    CpuTwice {
        /// The CPU.
        apic_id: ApicId,
        /// The domain that counts.
        kept: u32,
        /// The other one.
        ignored: u32,
    },
    /// The SRAT says nothing about these CPUs; they went to node 0.
    CpusWithoutDomain(Vec<CpuId>),
    /// The SRAT has RAM in two domains; the first one counts.
    MemoryTwice {
        /// The RAM.
        range: PhysRange,
        /// The domain that counts.
        kept: u32,
        /// The other one.
        ignored: u32,
    },
    /// The SRAT says nothing about this RAM; it went to node 0.
    MemoryWithoutDomain(Vec<PhysRange>),
    /// The SLIT does not reach the highest proximity domain, and was ignored.
    SlitTooSmall {
        /// How many domains it is about.
        localities: usize,
        /// The highest domain.
        domain: u32,
    },
    /// The SLIT has a distance that can not be (local: not 10; remote: below 10), and was ignored.
    SlitDistance {
        /// The row.
        from: usize,
        /// The column.
        to: usize,
        /// The distance.
        distance: u8,
    },
    /// The HMAT is about domains that the SRAT does not have; these values were ignored.
    UnknownHmatDomains(Vec<u32>),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BrokenTable(error) => write!(f, "{error}; the table is ignored"),
            Self::Skipped(skip) => skip.fmt(f),
            Self::WithoutSrat(table) => write!(f, "{table}: there is no usable SRAT; the table is ignored"),
            Self::UselessSrat => {
                f.write_str("SRAT: it names none of the machine's CPUs or RAM; the table is ignored")
            }
            Self::TooManyDomains(domains) => {
                write!(
                    f,
                    "SRAT: {domains} domains are more than {MAX_NODES} nodes; the table is ignored"
                )
            }
            Self::UnknownCpus(ids) => {
                let list = RangeList(ids.iter().map(|id| id.0));
                write!(
                    f,
                    "SRAT: the MADT enables no CPUs with APIC ids {list}; their entries are ignored"
                )
            }
            Self::CpuTwice {
                apic_id,
                kept,
                ignored,
            } => {
                write!(
                    f,
                    "SRAT: APIC id {apic_id} is in domains {kept} and {ignored}; {kept} counts"
                )
            }
            Self::CpusWithoutDomain(cpus) => {
                let list = RangeList(cpus.iter().map(|cpu| cpu.0));
                write!(f, "SRAT: CPUs {list} are in no domain; they go to node 0")
            }
            Self::MemoryTwice { range, kept, ignored } => {
                write!(
                    f,
                    "SRAT: {range} is in domains {kept} and {ignored}; {kept} counts"
                )
            }
            Self::MemoryWithoutDomain(ranges) => {
                let bytes = ranges.iter().map(PhysRange::bytes).sum();
                write!(
                    f,
                    "SRAT: {} of RAM are in no domain and go to node 0:",
                    Bytes(bytes)
                )?;
                ranges.iter().try_for_each(|range| write!(f, " {range}"))
            }
            Self::SlitTooSmall { localities, domain } => {
                write!(
                    f,
                    "SLIT: {localities} localities do not reach domain {domain}; the table is ignored"
                )
            }
            Self::SlitDistance { from, to, distance } => {
                write!(
                    f,
                    "SLIT: {distance} can not be the distance from {from} to {to}; the table is ignored"
                )
            }
            Self::UnknownHmatDomains(domains) => {
                let list = RangeList(domains.iter().copied());
                write!(
                    f,
                    "HMAT: the SRAT has no domains {list} with CPUs or RAM; their values are ignored"
                )
            }
        }
    }
}
