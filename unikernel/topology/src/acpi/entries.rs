//! Stepping over the entries of a table, whatever their lengths claim.

use core::fmt;

use zerocopy::{FromBytes, Immutable, KnownLayout, LE, U16, U32, Unaligned};

use super::header::{TableError, TableErrorKind, TableId};

/// An entry that was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    /// The table's name.
    pub table: &'static str,
    /// Where the entry starts, in bytes from the start of the table.
    pub offset: usize,
    /// Why it was left out.
    pub reason: SkipReason,
}

/// Why an entry was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SkipReason {
    /// It is shorter than an entry of its type.
    TooShort {
        /// Its type.
        kind: u16,
        /// Its length in bytes.
        bytes: usize,
    },
    /// A CPU is enabled but has the APIC id that means all CPUs.
    BroadcastApicId,
    /// A CPU has the APIC id of an earlier entry.
    DuplicateApicId(u32),
    /// A memory range ends behind the last address.
    AddressOverflow {
        /// Where it starts.
        base: u64,
        /// How long it claims to be, in bytes.
        bytes: u64,
    },
    /// The entry's lists do not fit into the entry.
    Lists {
        /// The number of initiators that it claims.
        initiators: u32,
        /// The number of targets that it claims.
        targets: u32,
    },
    /// A value times the entry's unit is more than 64 bits can hold.
    ValueOverflow,
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: the entry at byte {} is left out: ",
            self.table, self.offset
        )?;
        match self.reason {
            SkipReason::TooShort { kind, bytes } => {
                write!(f, "{bytes} bytes are too few for an entry of type {kind}")
            }
            SkipReason::BroadcastApicId => f.write_str("a CPU can not have the broadcast APIC id"),
            SkipReason::DuplicateApicId(id) => write!(f, "APIC id {id} was named before"),
            SkipReason::AddressOverflow { base, bytes } => {
                write!(f, "{bytes:#x} bytes from {base:#x} end behind the last address")
            }
            SkipReason::Lists { initiators, targets } => {
                write!(
                    f,
                    "its lists for {initiators} initiators and {targets} targets do not fit into it"
                )
            }
            SkipReason::ValueOverflow => f.write_str("a value times its unit does not fit into 64 bits"),
        }
    }
}

/// How an entry begins: its type and its length in bytes, which counts this too.
pub(super) trait EntryHeader: FromBytes + Immutable + KnownLayout + Unaligned {
    fn kind(&self) -> u16;
    fn length(&self) -> u32;
}

/// MADT and SRAT.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct ShortHeader {
    kind: u8,
    length: u8,
}

impl EntryHeader for ShortHeader {
    fn kind(&self) -> u16 {
        self.kind.into()
    }

    fn length(&self) -> u32 {
        self.length.into()
    }
}

/// HMAT.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct LongHeader {
    kind: U16<LE>,
    reserved: U16<LE>,
    length: U32<LE>,
}

impl EntryHeader for LongHeader {
    fn kind(&self) -> u16 {
        self.kind.get()
    }

    fn length(&self) -> u32 {
        self.length.get()
    }
}

/// An entry.
pub(super) struct Entry<'a> {
    table: TableId,
    offset: usize,
    pub(super) kind: u16,
    /// What follows the entry's header.
    body: &'a [u8],
    header_bytes: usize,
}

impl<'a> Entry<'a> {
    /// The fields that follow the entry's header, and the bytes behind them.
    pub(super) fn fields<T: FromBytes + Immutable + KnownLayout + Unaligned>(
        &self,
    ) -> Result<(&'a T, &'a [u8]), Skip> {
        T::ref_from_prefix(self.body).map_err(|_| {
            let bytes = self.header_bytes + self.body.len();
            self.skip(SkipReason::TooShort {
                kind: self.kind,
                bytes,
            })
        })
    }

    pub(super) fn skip(&self, reason: SkipReason) -> Skip {
        Skip {
            table: self.table.name,
            offset: self.offset,
            reason,
        }
    }
}

/// The entries in `rest`, which starts at byte `offset` of the table. The first broken length ends them.
pub(super) fn entries<H: EntryHeader>(
    table: TableId,
    mut offset: usize,
    mut rest: &[u8],
) -> impl Iterator<Item = Result<Entry<'_>, TableError>> {
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let left = rest.len();
        let claimed = H::ref_from_prefix(rest)
            .ok()
            .map(|(header, _)| (header.kind(), header.length()));
        let whole = claimed.and_then(|(kind, length)| {
            let (entry, behind) = rest.split_at_checked(length as usize)?;
            Some((kind, entry.get(size_of::<H>()..)?, behind))
        });
        let Some((kind, body, behind)) = whole else {
            rest = &[];
            let claimed = claimed.map(|(_, length)| length.into());
            return Some(Err(table.error(TableErrorKind::EntryLength {
                offset,
                claimed,
                left,
            })));
        };
        let entry = Entry {
            table,
            offset,
            kind,
            body,
            header_bytes: size_of::<H>(),
        };
        offset += left - behind.len();
        rest = behind;
        Some(Ok(entry))
    })
}
