//! A small model of a vCPU's cache: set-associative, least recently used, physically addressed, kept coherent by versions of lines.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::lines::{LINE_BYTES, Lines, Store, Version};

/// How large a cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    sets: usize,
    ways: usize,
}

impl Geometry {
    /// A cache of `bytes` bytes in sets of `ways` lines.
    ///
    /// # Errors
    /// If that gives no whole number of sets which is a power of two.
    pub fn new(bytes: u64, ways: usize) -> Result<Self, String> {
        let way_bytes = LINE_BYTES.checked_mul(ways as u64).unwrap_or(0);
        let sets = bytes.checked_div(way_bytes).unwrap_or(0);
        if !sets.is_power_of_two() || sets * way_bytes != bytes {
            return Err(format!(
                "a cache of {bytes} bytes in {ways} ways has no power of two of sets of {LINE_BYTES}-byte lines"
            ));
        }
        Ok(Self {
            sets: usize::try_from(sets).map_err(|error| error.to_string())?,
            ways,
        })
    }

    /// How many bytes it holds.
    #[must_use]
    pub fn bytes(self) -> u64 {
        LINE_BYTES * (self.sets * self.ways) as u64
    }

    /// How many lines a set has.
    #[must_use]
    pub fn ways(self) -> usize {
        self.ways
    }
}

/// A line in the cache. All is zero in an empty way.
#[derive(Debug, Default)]
struct Way {
    /// The line's number plus one.
    tag: AtomicU64,
    /// The version that was taken into the cache.
    version: AtomicU64,
}

/// The cache of one vCPU. Only the thread of that vCPU uses it: its fields are atomic so that it can be reached from a `static`
/// without a lock.
#[derive(Debug)]
pub struct Cache {
    geometry: Geometry,
    ways: Box<[Way]>,
}

impl Cache {
    /// An empty cache.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            ways: (0..geometry.sets * geometry.ways)
                .map(|_| Way::default())
                .collect(),
        }
    }

    /// Loads from `address`; returns whether that missed. It misses too if the line was written by another vCPU since.
    ///
    /// # Panics
    /// If the address lies past the end of `lines`.
    pub fn load(&self, address: u64, lines: &Lines) -> bool {
        let version = lines.version(address);
        self.touch(address, version, version)
    }

    /// Stores to `address`; returns whether that missed, and what the line's last writer was. A miss takes the line into the cache.
    ///
    /// # Panics
    /// If the address lies past the end of `lines`.
    pub fn store(&self, address: u64, vcpu: u16, lines: &Lines) -> (bool, Store) {
        let store = lines.store(address, vcpu);
        (self.touch(address, store.before, store.after), store)
    }

    /// Makes the line of `address` the most recently used of its set, with the version `after`; returns whether it was absent or had
    /// another version than `before`.
    fn touch(&self, address: u64, before: Version, after: Version) -> bool {
        let line = address / LINE_BYTES;
        let tag = line + 1;
        let set = line as usize & (self.geometry.sets - 1);
        let ways = &self.ways[set * self.geometry.ways..][..self.geometry.ways];
        let found = ways.iter().position(|way| way.tag.load(Relaxed) == tag);
        let missed = found.is_none_or(|way| ways[way].version.load(Relaxed) != before.number());
        // The lines before it move back by one; without it, the last one falls out.
        for way in (1..=found.unwrap_or(ways.len() - 1)).rev() {
            let (tag, version) = (&ways[way - 1].tag, &ways[way - 1].version);
            ways[way].tag.store(tag.load(Relaxed), Relaxed);
            ways[way].version.store(version.load(Relaxed), Relaxed);
        }
        ways[0].tag.store(tag, Relaxed);
        ways[0].version.store(after.number(), Relaxed);
        missed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn cache(bytes: u64, ways: usize) -> Cache {
        Cache::new(Geometry::new(bytes, ways).unwrap())
    }

    #[test]
    fn a_line_misses_once_and_then_hits() {
        let (cache, lines) = (cache(4096, 4), Lines::new(1 << 20));
        assert!(cache.load(0, &lines));
        assert!(!cache.load(63, &lines));
        assert!(cache.load(64, &lines));
        assert!(!cache.store(0, 0, &lines).0);
        assert!(!cache.load(0, &lines), "one's own store leaves the line fresh");
    }

    #[test]
    fn another_cpus_store_makes_the_copy_stale() {
        let lines = Lines::new(1 << 20);
        let (a, b) = (cache(4096, 4), cache(4096, 4));
        assert!(a.load(0, &lines));
        assert!(b.store(0, 1, &lines).0);
        assert!(a.load(0, &lines));
        assert!(!b.load(0, &lines), "a load elsewhere takes nothing away");
        let (missed, store) = a.store(0, 0, &lines);
        assert!(!missed && store.shared);
        assert!(b.store(0, 1, &lines).0);
    }

    #[test]
    fn the_least_recently_used_line_of_a_set_falls_out() {
        // Two sets of two lines: every second line goes to the same set.
        let (cache, lines) = (cache(256, 2), Lines::new(1 << 20));
        let line = |n: u64| n * 64;
        assert!(cache.load(line(0), &lines));
        assert!(cache.load(line(2), &lines));
        assert!(!cache.load(line(0), &lines));
        assert!(cache.load(line(4), &lines), "pushes line 2 out");
        assert!(!cache.load(line(0), &lines));
        assert!(cache.load(line(2), &lines));
    }

    #[test]
    fn impossible_geometries_are_refused() {
        assert!(Geometry::new(4096, 4).is_ok());
        for (bytes, ways) in [
            (0, 1),
            (4096, 0),
            (4096, 3),
            (4000, 1),
            (64, 2),
            (3 * 64, 1),
            (u64::MAX, usize::MAX),
        ] {
            assert!(Geometry::new(bytes, ways).is_err(), "{bytes} {ways}");
        }
    }

    proptest! {
        /// Against a list per set, the plain definition of such a cache.
        #[test]
        fn it_agrees_with_the_definition(accesses in prop::collection::vec(0_u64..40, 1..400), ways in 1_usize..5) {
            let sets = 4;
            let cache = cache(64 * sets * ways as u64, ways);
            let lines = Lines::new(1 << 20);
            let mut reference = vec![VecDeque::new(); sets as usize];
            for line in accesses {
                let set = &mut reference[(line % sets) as usize];
                let position = set.iter().position(|&held| held == line);
                if let Some(position) = position {
                    set.remove(position);
                }
                set.push_front(line);
                set.truncate(ways);
                prop_assert_eq!(cache.load(line * 64, &lines), position.is_none());
            }
        }
    }
}
