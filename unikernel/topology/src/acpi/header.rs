//! What all system description tables share (ACPI specification 6.5, 5.2.6).

use core::fmt;

use zerocopy::{FromBytes, Immutable, KnownLayout, LE, U32, Unaligned};

/// The header of a system description table.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    signature: [u8; 4],
    length: U32<LE>,
    revision: u8,
    checksum: u8,
    oem_id: [u8; 6],
    oem_table_id: [u8; 8],
    oem_revision: U32<LE>,
    creator_id: [u8; 4],
    creator_revision: U32<LE>,
}

/// A table that can not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableError {
    /// The table's name: `MADT`, `SRAT`, `SLIT` or `HMAT`.
    pub table: &'static str,
    /// What is wrong.
    pub kind: TableErrorKind,
}

/// What is wrong with a table. Offsets and lengths are in bytes, from the start of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableErrorKind {
    /// There is not even a header, or not what the table's fixed part needs.
    TooShort {
        /// How long the table is.
        bytes: usize,
        /// How long it has to be at least.
        needed: usize,
    },
    /// It is another table.
    Signature {
        /// The signature found.
        found: [u8; 4],
    },
    /// The header claims more bytes than there are.
    Length {
        /// The length in the header.
        claimed: u32,
        /// The bytes that are there.
        bytes: usize,
    },
    /// The bytes do not add up to 0 modulo 256.
    Checksum {
        /// The sum found.
        sum: u8,
    },
    /// The table is of a revision with another meaning.
    Revision {
        /// The revision found.
        found: u8,
        /// The oldest revision that is understood.
        oldest: u8,
    },
    /// An entry's length is too small for an entry, or reaches behind the table.
    EntryLength {
        /// Where the entry starts.
        offset: usize,
        /// The length in the entry, if it has room for one.
        claimed: Option<u64>,
        /// The bytes from the entry's start to the table's end.
        left: usize,
    },
    /// A matrix claims more elements than the table holds.
    Matrix {
        /// The number of rows and columns.
        localities: u64,
        /// The bytes that are there for them.
        bytes: usize,
    },
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.table)?;
        match &self.kind {
            TableErrorKind::TooShort { bytes, needed } => {
                write!(f, "the table has {bytes} bytes, and needs {needed} at least")
            }
            TableErrorKind::Signature { found } => {
                write!(f, "the signature is \"{}\"", found.escape_ascii())
            }
            TableErrorKind::Length { claimed, bytes } => {
                write!(f, "the header says {claimed} bytes, but there are {bytes}")
            }
            TableErrorKind::Checksum { sum } => {
                write!(
                    f,
                    "the checksum is wrong: the bytes add up to {sum:#04x}, not to 0"
                )
            }
            TableErrorKind::Revision { found, oldest } => {
                write!(
                    f,
                    "the table has revision {found}; {oldest} is the oldest that is understood"
                )
            }
            TableErrorKind::EntryLength {
                offset,
                claimed: Some(claimed),
                left,
            } => {
                write!(
                    f,
                    "the entry at byte {offset} says {claimed} bytes, but {left} are left"
                )
            }
            TableErrorKind::EntryLength {
                offset,
                claimed: None,
                left,
            } => {
                write!(f, "the entry at byte {offset} is cut off: {left} bytes are left")
            }
            TableErrorKind::Matrix { localities, bytes } => {
                write!(
                    f,
                    "a matrix of {localities} localities does not fit into {bytes} bytes"
                )
            }
        }
    }
}

impl core::error::Error for TableError {}

/// A table's name for people and its signature in memory.
#[derive(Clone, Copy)]
pub(super) struct TableId {
    pub(super) name: &'static str,
    pub(super) signature: [u8; 4],
}

impl TableId {
    pub(super) const fn error(self, kind: TableErrorKind) -> TableError {
        TableError {
            table: self.name,
            kind,
        }
    }
}

/// A table whose signature, length and checksum are right.
pub(super) struct Table<'a> {
    pub(super) id: TableId,
    pub(super) revision: u8,
    /// What follows the header.
    pub(super) body: &'a [u8],
}

impl<'a> Table<'a> {
    /// The offset of `body` in the table.
    pub(super) const BODY_OFFSET: usize = size_of::<Header>();

    pub(super) fn open(id: TableId, bytes: &'a [u8]) -> Result<Self, TableError> {
        let too_short = |bytes| {
            id.error(TableErrorKind::TooShort {
                bytes,
                needed: size_of::<Header>(),
            })
        };
        let (header, _) = Header::ref_from_prefix(bytes).map_err(|_| too_short(bytes.len()))?;
        if header.signature != id.signature {
            return Err(id.error(TableErrorKind::Signature {
                found: header.signature,
            }));
        }
        let claimed = header.length.get();
        let length = claimed as usize;
        let table = bytes.get(..length).ok_or_else(|| {
            id.error(TableErrorKind::Length {
                claimed,
                bytes: bytes.len(),
            })
        })?;
        let body = table
            .get(size_of::<Header>()..)
            .ok_or_else(|| too_short(length))?;
        let sum = table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        if sum != 0 {
            return Err(id.error(TableErrorKind::Checksum { sum }));
        }
        Ok(Self {
            id,
            revision: header.revision,
            body,
        })
    }

    /// The table's fixed part, which follows the header, and the offset in `body` and the bytes of what comes then.
    pub(super) fn fixed_part<T: FromBytes + Immutable + KnownLayout + Unaligned>(
        &self,
    ) -> Result<(&'a T, usize, &'a [u8]), TableError> {
        let (fixed, rest) = T::ref_from_prefix(self.body).map_err(|_| {
            self.id.error(TableErrorKind::TooShort {
                bytes: Self::BODY_OFFSET + self.body.len(),
                needed: Self::BODY_OFFSET + size_of::<T>(),
            })
        })?;
        Ok((fixed, Self::BODY_OFFSET + size_of::<T>(), rest))
    }
}
