//! What is written into pages.

use core::fmt;

/// Who has written a region's tags, and in which of its rounds: no two writings have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The writer's number.
    pub(crate) thread: u16,
    /// The number of its writings until then, this one included: at least 1.
    pub(crate) round: u64,
}

/// The word in a page: a stamp and the number of the page in its region. It is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u64);

const PAGE_BITS: u32 = 8;
const ROUND_BITS: u32 = 40;

/// The most pages of a region that tags can tell apart.
pub(crate) const MAX_PAGES: usize = 1 << PAGE_BITS;

impl Tag {
    /// What a page holds that nobody has written to.
    pub(crate) const NONE: Self = Self(0);

    /// The tag of page `page`, which is less than [`MAX_PAGES`].
    pub(crate) const fn new(stamp: Stamp, page: usize) -> Self {
        let round = stamp.round & ((1 << ROUND_BITS) - 1);
        Self(((stamp.thread as u64) << (ROUND_BITS + PAGE_BITS)) | (round << PAGE_BITS) | page as u64)
    }

    /// The tag that a page holds.
    pub(crate) const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// What to write into a page.
    pub(crate) const fn word(self) -> u64 {
        self.0
    }

    const fn stamp(self) -> Stamp {
        Stamp {
            thread: (self.0 >> (ROUND_BITS + PAGE_BITS)) as u16,
            round: (self.0 >> PAGE_BITS) & ((1 << ROUND_BITS) - 1),
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NONE {
            return f.write_str("0, which nobody writes");
        }
        let Stamp { thread, round } = self.stamp();
        let page = self.0 % MAX_PAGES as u64;
        write!(
            f,
            "{:#018x}, by thread {thread} in round {round} for page {page}",
            self.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_tell_who_wrote_which_page_when() {
        let stamp = Stamp {
            thread: 1023,
            round: 123_456_789_012,
        };
        let tag = Tag::new(stamp, 255);
        assert_eq!((tag.stamp(), Tag::from_word(tag.word())), (stamp, tag));
        assert!(
            tag.to_string()
                .ends_with("by thread 1023 in round 123456789012 for page 255"),
            "{tag}"
        );
        assert_eq!(Tag::NONE.to_string(), "0, which nobody writes");
    }

    #[test]
    fn no_two_pages_have_the_same_tag() {
        let tags = [(0, 1, 0), (0, 1, 1), (0, 2, 0), (1, 1, 0)]
            .map(|(thread, round, page)| Tag::new(Stamp { thread, round }, page));
        for (index, tag) in tags.iter().enumerate() {
            assert_ne!(*tag, Tag::NONE);
            assert!(!tags[..index].contains(tag), "{tag}");
        }
    }
}
