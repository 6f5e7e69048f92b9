//! How a node's memory is laid out: sections without holes, and a place for what the allocator keeps about them.

use alloc::vec::Vec;
use core::cmp::Reverse;

use homenode_topology::{PhysAddr, PhysRange};

use super::metadata::FrameMetadata;
use crate::size::{BASE_SHIFT, PageSize};

/// What comes behind the metadata begins at a multiple of this.
const ALIGN: u64 = 128;

/// The bytes that the metadata of so many frames takes, with what the alignment of the next thing behind it needs.
pub(super) const fn metadata_bytes(frames: u64) -> u64 {
    (frames * size_of::<FrameMetadata>() as u64).next_multiple_of(ALIGN)
}

/// The whole 4 KiB frames of `ranges`, in order of address, with adjacent ranges joined.
pub(super) fn sections(ranges: &[PhysRange]) -> Vec<PhysRange> {
    const FRAME: u64 = PageSize::Size4KiB.bytes();
    let mut whole: Vec<PhysRange> = ranges
        .iter()
        .filter_map(|range| {
            Some(PhysRange::new(
                range.start.align_up(FRAME)?,
                range.end.align_down(FRAME),
            ))
        })
        .filter(|range| !range.is_empty())
        .collect();
    whole.sort_unstable();
    whole.dedup_by(|next, joined| {
        let adjacent = joined.end == next.start;
        if adjacent {
            joined.end = next.end;
        }
        adjacent
    });
    whole
}

/// The number of 4 KiB frames in `sections`.
pub(super) fn frames(sections: &[PhysRange]) -> u64 {
    sections.iter().map(|section| section.bytes() >> BASE_SHIFT).sum()
}

/// Takes a place for the metadata of all of `sections` and `extra` bytes behind it out of them, in whole frames at an end of one,
/// where it costs the fewest 1 GiB frames and then the fewest 2 MiB frames.
///
/// Sections that are too many and too small to hold it are left out, the smallest first: each is then smaller than what is
/// kept about all.
pub(super) fn carve(sections: &mut Vec<PhysRange>, extra: u64) -> Option<PhysRange> {
    while !sections.is_empty() {
        let bytes = (metadata_bytes(frames(sections)) + extra).next_multiple_of(PageSize::Size4KiB.bytes());
        let place = (0..sections.len())
            .filter(|&index| sections[index].bytes() >= bytes)
            .flat_map(|index| {
                let PhysRange { start, end } = sections[index];
                let (low_end, high_start) = (start + bytes, PhysAddr(end.0 - bytes));
                [
                    (
                        index,
                        PhysRange::new(start, low_end),
                        PhysRange::new(low_end, end),
                    ),
                    (
                        index,
                        PhysRange::new(high_start, end),
                        PhysRange::new(start, high_start),
                    ),
                ]
            })
            .min_by_key(|(index, _, rest)| {
                let lost = |size| whole_pages(&sections[*index], size) - whole_pages(rest, size);
                (lost(PageSize::Size1GiB), lost(PageSize::Size2MiB))
            });
        if let Some((index, metadata, rest)) = place {
            sections[index] = rest;
            sections.retain(|section| !section.is_empty());
            return Some(metadata);
        }
        let smallest = (0..sections.len()).min_by_key(|&index| (sections[index].bytes(), Reverse(index)));
        sections.remove(smallest?);
    }
    None
}

/// The number of aligned pages of this size in `range`.
fn whole_pages(range: &PhysRange, size: PageSize) -> u64 {
    let first = range.start.0.div_ceil(size.bytes());
    (range.end.0 / size.bytes()).saturating_sub(first)
}
