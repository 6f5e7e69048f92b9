//! The one source of chance: a run is a function of its seed.

use std::cell::RefCell;

use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// A seeded generator that all parts of a run share.
pub(crate) struct Random(RefCell<Xoshiro256PlusPlus>);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(RefCell::new(Xoshiro256PlusPlus::seed_from_u64(seed)))
    }

    /// A number below `end`, which is not 0. (Not quite uniform for huge ends, which does not matter here.)
    pub(crate) fn below(&self, end: u64) -> u64 {
        let number = u128::from(self.0.borrow_mut().next_u64());
        ((number * u128::from(end)) >> 64) as u64
    }

    /// An index below `end`, which is not 0.
    pub(crate) fn index(&self, end: usize) -> usize {
        self.below(end as u64) as usize
    }

    /// True once in `times` on average.
    pub(crate) fn once_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of the items.
    pub(crate) fn pick<T: Copy>(&self, items: &[T]) -> T {
        items[self.index(items.len())]
    }

    /// One of the items, each as likely as its weight says.
    pub(crate) fn weighted<T: Copy>(&self, items: &[(T, u32)]) -> T {
        let total: u32 = items.iter().map(|(_, weight)| weight).sum();
        let mut left = self.below(u64::from(total)) as u32;
        for (item, weight) in items {
            match left.checked_sub(*weight) {
                Some(rest) => left = rest,
                None => return *item,
            }
        }
        unreachable!("the weights sum up to the total")
    }

    /// A number between 1 and `most`, small ones being far more likely: its size in bits is uniform.
    pub(crate) fn skewed(&self, most: u64) -> u64 {
        let bits = self.below(u64::from(most.ilog2()) + 1);
        ((1 << bits) + self.below(1 << bits)).min(most)
    }
}
