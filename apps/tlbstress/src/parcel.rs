//! Regions that go from thread to thread.

use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;

use homenode::mem::{Options, OutOfMemory, PageSize, Pages, Protection, RegionError};
use homenode::{CpuId, NodeId, thread};

use crate::tag::{Stamp, Tag};

/// The size of all pages of this program, in bytes.
const PAGE_BYTES: usize = PageSize::Size4KiB.bytes() as usize;

/// Where in each page a tag stands: at its two ends.
const TAG_OFFSETS: [usize; 2] = [0, PAGE_BYTES - size_of::<u64>()];

/// A few pages of 4 KiB, with tags.
pub(crate) struct Parcel {
    pages: Pages,
    stamp: Stamp,
    hops: u32,
}

/// A page that did not hold what was written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    address: usize,
    expected: Tag,
    found: Tag,
    /// Where it was found.
    cpu: CpuId,
    /// What had been done to the region just before.
    after: &'static str,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            address,
            expected,
            found,
            cpu,
            after,
        } = self;
        write!(
            f,
            "wrong tag at {address:#x} on CPU {cpu} after {after}: expected {expected}; found {found}"
        )
    }
}

impl Parcel {
    /// A new region of `pages` pages of 4 KiB, all of them touched and tagged.
    ///
    /// # Errors
    /// If there are no addresses for it.
    pub(crate) fn new(pages: usize, stamp: Stamp) -> Result<Self, RegionError> {
        let options = Options {
            page_size: PageSize::Size4KiB,
            ..Options::default()
        };
        let mut parcel = Self {
            pages: Pages::reserve(pages * PAGE_BYTES, options)?,
            stamp,
            hops: 0,
        };
        parcel.write(stamp);
        Ok(parcel)
    }

    /// The stamp of its tags.
    pub(crate) const fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// How often its tags have been replaced.
    pub(crate) const fn hops(&self) -> u32 {
        self.hops
    }

    /// How many pages it has.
    pub(crate) const fn pages(&self) -> usize {
        self.pages.bytes() / PAGE_BYTES
    }

    /// How many tags it has.
    pub(crate) const fn tags(&self) -> usize {
        self.pages() * TAG_OFFSETS.len()
    }

    /// How many of its pages are there in this size.
    pub(crate) fn pages_of(&self, size: PageSize) -> usize {
        let pages = (0..self.pages()).filter_map(|page| self.pages.query(page * PAGE_BYTES));
        pages.filter(|page| page.size == size).count()
    }

    fn word(&self, page: usize, offset: usize) -> NonNull<u64> {
        // SAFETY: the callers' pages are of this region, and the offsets within a page.
        unsafe { self.pages.start().add(page * PAGE_BYTES + offset).cast() }
    }

    /// Replaces the tags of all pages.
    pub(crate) fn rewrite(&mut self, stamp: Stamp) {
        self.hops += 1;
        self.write(stamp);
    }

    fn write(&mut self, stamp: Stamp) {
        self.stamp = stamp;
        for page in 0..self.pages() {
            let tag = Tag::new(stamp, page);
            for offset in TAG_OFFSETS {
                // SAFETY: the word lies in a page of the region, which is this thread's own and may be written to.
                unsafe { self.word(page, offset).write_volatile(tag.word()) };
            }
        }
    }

    /// Checks the tags of all pages, `after` something was done to the region.
    ///
    /// # Errors
    /// The first wrong one.
    pub(crate) fn check(&self, after: &'static str) -> Result<(), Mismatch> {
        self.expect(0..self.pages(), after, |page| Tag::new(self.stamp, page))
    }

    fn expect(
        &self,
        pages: Range<usize>,
        after: &'static str,
        expected: impl Fn(usize) -> Tag,
    ) -> Result<(), Mismatch> {
        for page in pages {
            for offset in TAG_OFFSETS {
                let word = self.word(page, offset);
                // SAFETY: the word lies in a page of the region, which is this thread's own and may be read.
                let found = Tag::from_word(unsafe { word.read_volatile() });
                let expected = expected(page);
                if found != expected {
                    return Err(Mismatch {
                        address: word.addr().get(),
                        expected,
                        found,
                        cpu: thread::current_cpu(),
                        after,
                    });
                }
            }
        }
        Ok(())
    }

    /// Gives the memory of some pages back, and checks that those that come in their place are zero. They have no tags then.
    ///
    /// # Errors
    /// The first tag that is not zero.
    ///
    /// # Panics
    /// If there is no memory to note it in.
    pub(crate) fn discard(&mut self, pages: Range<usize>) -> Result<(), Mismatch> {
        expect_memory(
            self.pages
                .discard(pages.start * PAGE_BYTES..pages.end * PAGE_BYTES),
        );
        self.expect(pages, "discard", |_| Tag::NONE)
    }

    /// Forbids writing and allows it again, and checks the tags between.
    ///
    /// # Errors
    /// The first wrong tag.
    ///
    /// # Panics
    /// If there is no memory to note it in.
    pub(crate) fn protect(&mut self) -> Result<(), Mismatch> {
        let all = 0..self.pages.bytes();
        expect_memory(self.pages.protect(all.clone(), Protection::Read));
        let checked = self.check("protect");
        expect_memory(self.pages.protect(all, Protection::ReadWrite));
        checked
    }

    /// Moves the pages to `node`, and checks the tags.
    ///
    /// # Errors
    /// The first wrong tag.
    ///
    /// # Panics
    /// If the machine has no such node.
    pub(crate) fn move_to(&mut self, node: NodeId) -> Result<(), Mismatch> {
        // Where the node has no memory, the pages stay where they are.
        _ = self.pages.move_to(0..self.pages.bytes(), node);
        self.check("move")
    }

    /// Makes both tags of a page wrong.
    #[cfg(test)]
    pub(crate) fn spoil(&self, page: usize) {
        for offset in TAG_OFFSETS {
            // SAFETY: the word lies in a page of the region, which is this thread's own and may be written to.
            unsafe { self.word(page, offset).write_volatile(1) };
        }
    }

    /// Gives the region back, so that on return no CPU can reach it.
    pub(crate) fn revoke(self) {
        self.pages.revoke();
    }
}

/// # Panics
/// If there was no memory.
fn expect_memory(result: Result<(), OutOfMemory>) {
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Stamp = Stamp { thread: 3, round: 1 };
    const SECOND: Stamp = Stamp { thread: 4, round: 9 };

    fn parcel() -> Parcel {
        Parcel::new(3, FIRST).expect("there are addresses")
    }

    #[test]
    fn tags_are_right_whatever_is_done_to_the_pages() {
        let mut parcel = parcel();
        assert_eq!((parcel.pages(), parcel.tags(), parcel.hops()), (3, 6, 0));
        assert_eq!(parcel.pages_of(PageSize::Size4KiB), 3);
        assert_eq!(parcel.check("nothing"), Ok(()));
        assert_eq!(parcel.protect(), Ok(()));
        assert_eq!(parcel.move_to(NodeId(0)), Ok(()));
        assert_eq!(parcel.discard(1..3), Ok(()));
        assert!(parcel.check("discard").is_err());
        parcel.rewrite(SECOND);
        assert_eq!(parcel.check("rewriting"), Ok(()));
        assert_eq!((parcel.stamp(), parcel.hops()), (SECOND, 1));
        parcel.revoke();
    }

    #[test]
    fn a_wrong_tag_is_found_at_either_end_of_a_page() {
        for (page, offset) in [(0, 0), (1, PAGE_BYTES - 8), (2, 0)] {
            let parcel = parcel();
            let word = parcel.word(page, offset);
            // SAFETY: the word lies in the region.
            unsafe { word.write(Tag::new(SECOND, 0).word()) };
            let mismatch = parcel.check("a stray write").expect_err("a tag is wrong");
            let expected = Mismatch {
                address: word.addr().get(),
                expected: Tag::new(FIRST, page),
                found: Tag::new(SECOND, 0),
                ..mismatch
            };
            assert_eq!(mismatch, expected);
            let text = mismatch.to_string();
            for part in [
                "after a stray write: expected ",
                "; found ",
                "by thread 4 in round 9 for page 0",
            ] {
                assert!(text.contains(part), "{text}");
            }
        }
    }
}
