//! Why a page can not be mapped or unmapped.

use core::error::Error;
use core::fmt;

use homenode_topology::PhysAddr;

use super::{Flags, Mapping};
use crate::addr::VirtAddr;
use crate::size::PageSize;

/// Why [`map`](super::PageTable::map) or [`map_range`](super::PageTable::map_range) failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The page, the frame or the range's end is not a multiple of the page size.
    Misaligned {
        /// The page.
        page: VirtAddr,
        /// The frame.
        frame: PhysAddr,
        /// The page size that they should be multiples of.
        size: PageSize,
    },
    /// The physical address has more than 52 bits.
    NoSuchFrame(PhysAddr),
    /// The virtual range leaves its half of the address space.
    NotCanonical(VirtAddr),
    /// The flags hold bits that are an address, or that the page table sets itself.
    NotAllowed(Flags),
    /// There is a mapping already, which may have another size.
    AlreadyMapped(Mapping),
    /// A table for smaller pages is in the page's place, be there pages in it or not.
    Divided {
        /// The page.
        page: VirtAddr,
        /// The size that was to be mapped.
        size: PageSize,
    },
    /// The page is not mapped, but its entry is in use.
    Occupied(VirtAddr),
    /// There was no frame for a page table.
    NoTableFrame(VirtAddr),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misaligned { page, frame, size } => {
                write!(f, "page {page} or frame {frame} is not a multiple of {size}")
            }
            Self::NoSuchFrame(frame) => write!(f, "{frame} is no physical address"),
            Self::NotCanonical(start) => {
                write!(f, "the range from {start} leaves its half of the address space")
            }
            Self::NotAllowed(flags) => write!(f, "flags {flags:?} can not be asked for"),
            Self::AlreadyMapped(there) => {
                write!(
                    f,
                    "a {} page at {} is mapped already, to {}",
                    there.size, there.page, there.frame
                )
            }
            Self::Divided { page, size } => {
                write!(f, "page {page} of {size} is divided into smaller ones")
            }
            Self::Occupied(page) => write!(f, "the entry of page {page} is in use"),
            Self::NoTableFrame(page) => write!(f, "no frame for a page table of page {page}"),
        }
    }
}

impl Error for MapError {}

/// Why [`unmap`](super::PageTable::unmap) or [`unmap_range`](super::PageTable::unmap_range) failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmapError {
    /// Nothing is mapped there.
    NotMapped(VirtAddr),
    /// The mapping there begins earlier or ends later than what was to be unmapped.
    Larger(Mapping),
}

impl fmt::Display for UnmapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMapped(address) => write!(f, "nothing is mapped at {address}"),
            Self::Larger(there) => {
                write!(
                    f,
                    "the {} page at {} can not be unmapped in part",
                    there.size, there.page
                )
            }
        }
    }
}

impl Error for UnmapError {}
