//! SLIT: the distances between proximity domains (ACPI specification 6.5, 5.2.17).

use alloc::vec::Vec;

use zerocopy::{FromBytes, Immutable, KnownLayout, LE, U64, Unaligned};

use super::header::{Table, TableError, TableErrorKind, TableId};

const SLIT: TableId = TableId {
    name: "SLIT",
    signature: *b"SLIT",
};

#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FixedPart {
    localities: U64<LE>,
}

/// The distances between proximity domains, as the firmware gives them: they need not make sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slit {
    localities: usize,
    matrix: Vec<u8>,
}

impl Slit {
    /// Reads a SLIT.
    ///
    /// # Errors
    /// If the table is not whole, not a SLIT, or smaller than its matrix.
    pub fn parse(bytes: &[u8]) -> Result<Self, TableError> {
        let table = Table::open(SLIT, bytes)?;
        let (fixed, _, rest) = table.fixed_part::<FixedPart>()?;
        let localities = fixed.localities.get();
        let fitting = usize::try_from(localities)
            .ok()
            .and_then(|rows| Some((rows, rest.get(..rows.checked_mul(rows)?)?)));
        let (rows, matrix) = fitting.ok_or_else(|| {
            SLIT.error(TableErrorKind::Matrix {
                localities,
                bytes: rest.len(),
            })
        })?;
        Ok(Self {
            localities: rows,
            matrix: matrix.to_vec(),
        })
    }

    /// The number of proximity domains: the matrix is about the domains below it.
    #[must_use]
    pub const fn localities(&self) -> usize {
        self.localities
    }

    /// The distance between two domains, or `None` if the matrix says nothing about one of them.
    #[must_use]
    pub fn distance(&self, from: u32, to: u32) -> Option<u8> {
        let (from, to) = (from as usize, to as usize);
        let inside = from < self.localities && to < self.localities;
        inside.then(|| self.matrix[from * self.localities + to])
    }

    /// Every element with its row and its column.
    pub(crate) fn elements(&self) -> impl Iterator<Item = (usize, usize, u8)> {
        let rows = self.localities;
        self.matrix
            .iter()
            .enumerate()
            .map(move |(index, distance)| (index / rows, index % rows, *distance))
    }
}
