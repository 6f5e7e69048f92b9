//! The levels of the page-table tree.

use core::ops::Range;

use crate::addr::{VirtAddr, VirtRange};
use crate::size::PageSize;

/// A table's level, by the names of Intel SDM volume 3, 4.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Level {
    /// Page table: each entry maps 4 KiB.
    Pt,
    /// Page directory: each entry covers 2 MiB.
    Pd,
    /// Page-directory-pointer table: each entry covers 1 GiB.
    Pdpt,
    /// Page-map level 4, the root: each entry covers 512 GiB.
    Pml4,
}

impl Level {
    /// The entries of a table.
    pub(crate) const ENTRIES: u64 = 512;

    const fn shift(self) -> u32 {
        12 + 9 * self as u32
    }

    /// The bytes that one entry of a table of this level covers.
    pub(crate) const fn entry_bytes(self) -> u64 {
        1 << self.shift()
    }

    /// The bytes that a table of this level covers.
    pub(crate) const fn table_bytes(self) -> u64 {
        self.entry_bytes() * Self::ENTRIES
    }

    /// The index of the entry that covers `address` in a table of this level: 0 to 511.
    pub(crate) const fn index(self, address: VirtAddr) -> usize {
        (address.as_u64() >> self.shift()) as usize & 511
    }

    /// The entries of one table of this level, from that over `address` on, that lie wholly in `range`: their indices, which are
    /// none if the first does not.
    #[inline]
    pub(crate) fn entries_within(self, address: VirtAddr, range: VirtRange) -> Range<usize> {
        let first = self.index(address);
        let start = address.align_down(self.entry_bytes());
        if start < range.start() {
            return first..first;
        }
        let left = range
            .bytes()
            .saturating_sub(start.as_u64() - range.start().as_u64());
        let entries = (left >> self.shift()).min(Self::ENTRIES - first as u64);
        first..first + entries as usize
    }

    /// The level below, or `None` below a page table.
    pub(crate) const fn below(self) -> Option<Self> {
        match self {
            Self::Pml4 => Some(Self::Pdpt),
            Self::Pdpt => Some(Self::Pd),
            Self::Pd => Some(Self::Pt),
            Self::Pt => None,
        }
    }

    /// The level above, or `None` above the root.
    pub(crate) const fn above(self) -> Option<Self> {
        match self {
            Self::Pml4 => None,
            Self::Pdpt => Some(Self::Pml4),
            Self::Pd => Some(Self::Pdpt),
            Self::Pt => Some(Self::Pd),
        }
    }

    /// The level whose entries map pages of this size.
    pub(crate) const fn of(size: PageSize) -> Self {
        match size {
            PageSize::Size4KiB => Self::Pt,
            PageSize::Size2MiB => Self::Pd,
            PageSize::Size1GiB => Self::Pdpt,
        }
    }

    /// The size of the pages that entries of this level map, or `None` at the root.
    pub(crate) const fn page_size(self) -> Option<PageSize> {
        match self {
            Self::Pt => Some(PageSize::Size4KiB),
            Self::Pd => Some(PageSize::Size2MiB),
            Self::Pdpt => Some(PageSize::Size1GiB),
            Self::Pml4 => None,
        }
    }
}
