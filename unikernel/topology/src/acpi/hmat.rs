//! HMAT: latency and bandwidth between proximity domains (ACPI specification 6.5, 5.2.28).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use zerocopy::{FromBytes, Immutable, KnownLayout, LE, U16, U32, U64, Unaligned};

use super::entries::{Entry, LongHeader, Skip, SkipReason, entries};
use super::header::{Table, TableError, TableErrorKind, TableId};
use crate::{AccessAttributes, Bandwidth, Latency};

const HMAT: TableId = TableId {
    name: "HMAT",
    signature: *b"HMAT",
};

/// Revision 1 (ACPI 6.2) has the same structure with other units, which firmwares did not agree on.
const OLDEST_REVISION: u8 = 2;

const SYSTEM_LOCALITY: u16 = 1;

/// The bits of the flags that tell memory (0) from caches in front of it.
const HIERARCHY_MASK: u8 = 0xf;
const HIERARCHY_MEMORY: u8 = 0;

/// Values without a meaning: nothing known, and no way from one to the other.
const NOT_PROVIDED: u16 = 0;
const UNREACHABLE: u16 = 0xffff;

/// The unit of bandwidth is MB/s; as in QEMU, which writes such tables, these are 2²⁰ bytes.
const BANDWIDTH_UNIT_BYTES: u64 = 1 << 20;

#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FixedPart {
    reserved: U32<LE>,
}

/// 5.2.28.4
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SystemLocality {
    flags: u8,
    data_type: u8,
    minimum_transfer_size: u8,
    reserved1: u8,
    initiators: U32<LE>,
    targets: U32<LE>,
    reserved2: U32<LE>,
    entry_base_unit: U64<LE>,
}

/// What one matrix of the table is about.
enum Quantity {
    Latency,
    Bandwidth,
}

/// How one domain reaches the memory of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HmatAccess {
    /// The proximity domain that reads and writes.
    pub initiator: u32,
    /// The proximity domain of the memory.
    pub target: u32,
    /// How fast. Where the table has several figures (read and write, or by transfer size), the worst.
    pub attributes: AccessAttributes,
}

/// What an HMAT says about memory itself; what it says about caches in front of memory is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hmat {
    /// Each pair of domains once, in order.
    pub accesses: Vec<HmatAccess>,
    /// Entries that were left out, in whole or from a value on.
    pub skipped: Vec<Skip>,
}

impl Hmat {
    /// Reads an HMAT of revision 2 or later.
    ///
    /// # Errors
    /// If the table is not whole, not an HMAT, too old, or its entries' lengths are broken.
    pub fn parse(bytes: &[u8]) -> Result<Self, TableError> {
        let table = Table::open(HMAT, bytes)?;
        if table.revision < OLDEST_REVISION {
            return Err(HMAT.error(TableErrorKind::Revision {
                found: table.revision,
                oldest: OLDEST_REVISION,
            }));
        }
        let (_, offset, rest) = table.fixed_part::<FixedPart>()?;
        let mut accesses = BTreeMap::new();
        let mut skipped = Vec::new();
        for entry in entries::<LongHeader>(HMAT, offset, rest) {
            match read(&entry?, &mut accesses) {
                Ok(()) => {}
                Err(skip) => skipped.push(skip),
            }
        }
        let accesses = accesses
            .into_iter()
            .map(|((initiator, target), attributes)| HmatAccess {
                initiator,
                target,
                attributes,
            })
            .collect();
        Ok(Self { accesses, skipped })
    }
}

fn read(entry: &Entry<'_>, accesses: &mut BTreeMap<(u32, u32), AccessAttributes>) -> Result<(), Skip> {
    if entry.kind != SYSTEM_LOCALITY {
        return Ok(());
    }
    let (fields, lists) = entry.fields::<SystemLocality>()?;
    if fields.flags & HIERARCHY_MASK != HIERARCHY_MEMORY {
        return Ok(());
    }
    let quantity = match fields.data_type {
        0..=2 => Quantity::Latency,
        3..=5 => Quantity::Bandwidth,
        _ => return Ok(()),
    };
    let (initiators, targets) = (fields.initiators.get(), fields.targets.get());
    let (initiators, targets, values) = split(lists, initiators, targets)
        .ok_or_else(|| entry.skip(SkipReason::Lists { initiators, targets }))?;
    let unit = match quantity {
        Quantity::Latency => Some(fields.entry_base_unit.get()),
        Quantity::Bandwidth => fields.entry_base_unit.get().checked_mul(BANDWIDTH_UNIT_BYTES),
    };
    let pairs = initiators
        .iter()
        .flat_map(|from| targets.iter().map(|to| (from.get(), to.get())));
    for (pair, value) in pairs.zip(values) {
        let value = value.get();
        if value == NOT_PROVIDED || value == UNREACHABLE {
            continue;
        }
        let value = unit
            .and_then(|unit| unit.checked_mul(value.into()))
            .ok_or_else(|| entry.skip(SkipReason::ValueOverflow))?;
        let known = accesses.entry(pair).or_default();
        match quantity {
            Quantity::Latency => known.latency = known.latency.max(Some(Latency::from_picoseconds(value))),
            Quantity::Bandwidth => {
                let bandwidth = Bandwidth::from_bytes_per_second(value);
                known.bandwidth = Some(known.bandwidth.map_or(bandwidth, |worst| worst.min(bandwidth)));
            }
        }
    }
    Ok(())
}

type Lists<'a> = (&'a [U32<LE>], &'a [U32<LE>], &'a [U16<LE>]);

/// The initiators, the targets, and the values row by row; `None` if they are longer than `lists`.
fn split(lists: &[u8], initiators: u32, targets: u32) -> Option<Lists<'_>> {
    let (rows, columns) = (initiators as usize, targets as usize);
    let (initiators, rest) = <[U32<LE>]>::ref_from_prefix_with_elems(lists, rows).ok()?;
    let (targets, rest) = <[U32<LE>]>::ref_from_prefix_with_elems(rest, columns).ok()?;
    let (values, _) = <[U16<LE>]>::ref_from_prefix_with_elems(rest, rows.checked_mul(columns)?).ok()?;
    Some((initiators, targets, values))
}
