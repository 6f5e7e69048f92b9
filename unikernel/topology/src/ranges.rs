//! Sets of addresses as sorted lists of disjoint ranges that do not touch.

use alloc::vec::Vec;

use crate::{PAGE_BYTES, PhysAddr, PhysRange};

/// The union of `ranges`: sorted, without empty, overlapping or touching ranges.
pub(crate) fn union(mut ranges: Vec<PhysRange>) -> Vec<PhysRange> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable();
    let mut merged: Vec<PhysRange> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// The whole pages inside each of `ranges`; what is less than a page goes.
pub(crate) fn whole_pages(ranges: Vec<PhysRange>) -> Vec<PhysRange> {
    let inner = |range: PhysRange| {
        let start = range.start.align_up(PAGE_BYTES)?;
        let inner = PhysRange::new(start, range.end.align_down(PAGE_BYTES));
        (!inner.is_empty()).then_some(inner)
    };
    ranges.into_iter().filter_map(inner).collect()
}

/// The part of `set` that lies inside `range`.
pub(crate) fn within(set: &[PhysRange], range: &PhysRange) -> Vec<PhysRange> {
    set.iter().filter_map(|part| part.intersection(range)).collect()
}

/// The part of `set` that lies outside `range`.
pub(crate) fn without(set: &[PhysRange], range: &PhysRange) -> Vec<PhysRange> {
    if range.is_empty() {
        return set.to_vec();
    }
    set.iter()
        .flat_map(|part| {
            [
                PhysRange::new(part.start, part.end.min(range.start)),
                PhysRange::new(part.start.max(range.end), part.end),
            ]
        })
        .filter(|part| !part.is_empty())
        .collect()
}

/// Takes the lowest `bytes` bytes out of `set`, or all of it if it holds fewer.
pub(crate) fn take_lowest(set: &mut Vec<PhysRange>, mut bytes: u64) -> Vec<PhysRange> {
    let mut taken = Vec::new();
    let mut left = Vec::new();
    for part in set.drain(..) {
        let cut = part.start + part.bytes().min(bytes);
        bytes -= cut - part.start;
        taken.push(PhysRange::new(part.start, cut));
        left.push(PhysRange::new(cut, part.end));
    }
    *set = union(left);
    union(taken)
}

/// How many bytes `set` holds.
pub(crate) fn bytes(set: &[PhysRange]) -> u64 {
    set.iter().map(PhysRange::bytes).sum()
}

/// Whether `address` is in `set`.
pub(crate) fn contains(set: &[PhysRange], address: PhysAddr) -> bool {
    set.iter().any(|part| part.contains(address))
}
