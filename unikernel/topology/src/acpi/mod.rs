//! The ACPI tables that describe CPUs and nodes: MADT, SRAT, SLIT and HMAT (ACPI specification 6.5, 5.2).
//!
//! Each parser takes the bytes of a whole table, header included, and checks signature, length and checksum. A table
//! whose entries can not be told apart is an error; an entry that is whole but makes no sense is left out and
//! reported as a [`Skip`]. Bytes behind the table's own length are ignored.

mod entries;
mod header;
mod hmat;
mod madt;
mod slit;
mod srat;

pub use entries::{Skip, SkipReason};
pub use header::{TableError, TableErrorKind};
pub use hmat::{Hmat, HmatAccess};
pub use madt::{CpuState, Madt, MadtCpu};
pub use slit::Slit;
pub use srat::{CpuAffinity, MemoryAffinity, Srat};
