//! The pages: one array, or a range for each thread.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use homenode::NodeId;
use homenode::mem::{PageSize, Policy, Region, RegionError};

/// The size of the pages that are meant to be touched, in bytes.
pub(crate) const PAGE_BYTES: usize = PageSize::Size2MiB.bytes() as usize;
/// 64-bit words of a page.
const PAGE_WORDS: usize = PAGE_BYTES / size_of::<AtomicU64>();
/// What one page-table page of 2 MiB entries covers, in bytes. Ranges that start at multiples of it share no such table.
const TABLE_BYTES: usize = PageSize::Size1GiB.bytes() as usize;

/// Pages that take memory when they are touched. They are numbered in order, from 0.
pub(crate) struct Array {
    regions: Vec<Region<AtomicU64>>,
    parts: Vec<Part>,
}

/// Pages that one thread touches if threads do.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    region: usize,
    /// Where in the region the first page starts.
    first_word: usize,
    /// The numbers of the pages.
    pages: Range<usize>,
}

/// How many pages of which size lie on which node.
pub(crate) type PageCounts = BTreeMap<(NodeId, PageSize), usize>;

impl Array {
    /// `pages` pages in a row, in `parts` parts.
    ///
    /// # Errors
    /// If the address space has no such range.
    pub(crate) fn in_a_row(pages: usize, parts: usize) -> Result<Self, RegionError> {
        let region = region(pages)?;
        let parts = shares(pages, parts).map(|pages| Part {
            region: 0,
            first_word: pages.start * PAGE_WORDS,
            pages,
        });
        Ok(Self {
            parts: parts.collect(),
            regions: Vec::from([region]),
        })
    }

    /// `pages` pages in `parts` ranges, each of which starts at a multiple of 1 GiB.
    ///
    /// # Errors
    /// If the address space has no such ranges.
    pub(crate) fn in_own_ranges(pages: usize, parts: usize) -> Result<Self, RegionError> {
        let mut array = Self {
            regions: Vec::new(),
            parts: Vec::new(),
        };
        for (index, pages) in shares(pages, parts).enumerate() {
            // A region starts where a page may; in so many more, a multiple of 1 GiB lies before the pages.
            let before = TABLE_BYTES / PAGE_BYTES - 1;
            let region = region(if pages.is_empty() { 0 } else { before + pages.len() })?;
            array.parts.push(Part {
                region: index,
                first_word: if pages.is_empty() {
                    0
                } else {
                    region.as_ptr().align_offset(TABLE_BYTES)
                },
                pages,
            });
            array.regions.push(region);
        }
        Ok(array)
    }

    /// Writes a word of each page of part `index`: the page's number and one more.
    ///
    /// # Panics
    /// If there is no such part.
    pub(crate) fn touch(&self, index: usize) {
        let part = &self.parts[index];
        for (word, number) in self.words(part).zip(part.pages.clone()) {
            word.store(number as u64 + 1, Relaxed);
        }
    }

    /// Reads the word of every page, and returns their sum.
    pub(crate) fn read(&self) -> u64 {
        self.all_words().map(|word| word.load(Relaxed)).sum()
    }

    /// What [`read`](Self::read) finds when every page was touched.
    pub(crate) fn sum(&self) -> u64 {
        let pages = self.parts.last().map_or(0, |part| part.pages.end as u64);
        pages * (pages + 1) / 2
    }

    /// How large the pages with these words are, and on which nodes.
    pub(crate) fn page_counts(&self) -> PageCounts {
        let mut counts = PageCounts::new();
        for part in &self.parts {
            let region = &self.regions[part.region];
            let words = (part.first_word..).step_by(PAGE_WORDS).take(part.pages.len());
            for page in words.filter_map(|word| region.query(word)) {
                *counts.entry((page.node, page.size)).or_default() += 1;
            }
        }
        counts
    }

    fn all_words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.parts.iter().flat_map(|part| self.words(part))
    }

    fn words(&self, part: &Part) -> impl Iterator<Item = &AtomicU64> + use<'_> {
        let words = &self.regions[part.region][part.first_word..];
        words.iter().step_by(PAGE_WORDS).take(part.pages.len())
    }
}

/// Addresses of `pages` pages.
fn region(pages: usize) -> Result<Region<AtomicU64>, RegionError> {
    Region::new(pages * PAGE_WORDS, Policy::Local)
}

/// `count` things in `parts` parts that differ by one at most.
fn shares(count: usize, parts: usize) -> impl Iterator<Item = Range<usize>> {
    let boundary = move |index| (count as u128 * index as u128 / parts as u128) as usize;
    (0..parts).map(move |index| boundary(index)..boundary(index + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addresses(array: &Array) -> Vec<usize> {
        array.all_words().map(|word| (&raw const *word).addr()).collect()
    }

    proptest! {
        #[test]
        fn shares_are_fair_and_cover_everything_once(count in 0_usize..10_000, parts in 1_usize..5_000) {
            let mut next = 0;
            for share in shares(count, parts) {
                prop_assert_eq!(share.start, next);
                prop_assert!([count / parts, count.div_ceil(parts)].contains(&share.len()));
                next = share.end;
            }
            prop_assert_eq!(next, count);
        }

        #[test]
        fn pages_in_a_row_are_neighbours(pages in 1_usize..600, parts in 1_usize..40) {
            let array = Array::in_a_row(pages, parts).unwrap();
            let addresses = addresses(&array);
            prop_assert_eq!(addresses.len(), pages);
            prop_assert!(addresses.windows(2).all(|pair| pair[1] - pair[0] == PAGE_BYTES));
            prop_assert!(addresses[0].is_multiple_of(PAGE_BYTES));
        }

        #[test]
        fn own_ranges_share_no_table(pages in 1_usize..2_000, parts in 1_usize..9) {
            let array = Array::in_own_ranges(pages, parts).unwrap();
            let mut tables = BTreeMap::new();
            let mut total = 0;
            for (index, part) in array.parts.iter().enumerate() {
                for (number, word) in array.words(part).enumerate() {
                    let address = (&raw const *word).addr();
                    prop_assert_eq!(address % TABLE_BYTES, number * PAGE_BYTES % TABLE_BYTES);
                    prop_assert_eq!(*tables.entry(address / TABLE_BYTES).or_insert(index), index);
                    total += 1;
                }
            }
            prop_assert_eq!(total, pages);
        }
    }

    #[test]
    fn a_page_that_was_not_touched_is_missing_from_the_sum() {
        for array in [Array::in_a_row(7, 3), Array::in_own_ranges(7, 3)] {
            let array = array.unwrap();
            array.touch(0);
            array.touch(2);
            assert_ne!(array.read(), array.sum());
            array.touch(1);
            assert_eq!((array.read(), array.sum()), (28, 28));
        }
    }

    #[test]
    fn only_touched_pages_are_counted() {
        for array in [Array::in_a_row(5, 2), Array::in_own_ranges(5, 2)] {
            let array = array.unwrap();
            assert_eq!(array.page_counts(), PageCounts::new());
            array.touch(1);
            assert_eq!(array.page_counts().into_values().sum::<usize>(), 3);
        }
    }

    #[test]
    fn more_parts_than_pages_leave_some_without() {
        for array in [Array::in_a_row(2, 5), Array::in_own_ranges(2, 5)] {
            let array = array.unwrap();
            (0..5).for_each(|part| array.touch(part));
            assert_eq!(array.read(), 3);
        }
    }
}
