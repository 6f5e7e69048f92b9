//! The sizes of small blocks: 16 to 128 bytes in steps of 16, then four steps for each doubling, up to 32 KiB.

use core::alloc::Layout;

use super::last_offset;

/// The largest small block, in bytes.
pub const LARGEST_SMALL_BYTES: usize = 32 << 10;

/// The first classes differ by so much, and no block is smaller, as a power of two.
const STEP_SHIFT: u32 = 4;
/// How many classes there are per doubling, as a power of two.
const DIVISIONS_SHIFT: u32 = 2;
/// From this size on (as a power of two) each doubling has its own step.
const LINEAR_SHIFT: u32 = STEP_SHIFT + DIVISIONS_SHIFT;

/// A size of small blocks, as an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class(u8);

impl Class {
    /// The one with the smallest blocks.
    pub(super) const SMALLEST: Self = Self(0);

    /// How many there are: no class has a higher index.
    pub(super) const COUNT: usize = Self::compute(LARGEST_SMALL_BYTES - 1).index() + 1;

    /// The class with the smallest blocks that a request fits into; `None` if it fits into none. Its size is not 0.
    #[inline]
    pub(super) const fn of(layout: Layout) -> Option<Self> {
        let last = last_offset(layout);
        if last < LARGEST_SMALL_BYTES {
            Some(BY_STEPS[last >> STEP_SHIFT])
        } else {
            None
        }
    }

    /// The class with the smallest blocks that have a byte at the offset `last`.
    const fn compute(last: usize) -> Self {
        let shift = (last | (1 << LINEAR_SHIFT)).ilog2() - DIVISIONS_SHIFT;
        Self((last >> shift) as u8 + (((shift - STEP_SHIFT) as u8) << DIVISIONS_SHIFT))
    }

    #[inline]
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }

    /// The size of its blocks.
    pub(super) const fn bytes(self) -> usize {
        let doublings = self.0.saturating_sub(1 << DIVISIONS_SHIFT) >> DIVISIONS_SHIFT;
        let steps = self.0 - (doublings << DIVISIONS_SHIFT) + 1;
        (steps as usize) << (STEP_SHIFT + doublings as u32)
    }
}

/// Classes by the offset of the last byte, in steps: looking up is shorter than computing.
static BY_STEPS: [Class; LARGEST_SMALL_BYTES >> STEP_SHIFT] = {
    let mut classes = [Class(0); _];
    let mut step = 0;
    while step < classes.len() {
        classes[step] = Class::compute(step << STEP_SHIFT);
        step += 1;
    }
    classes
};

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn layout(bytes: usize, align: usize) -> Layout {
        Layout::from_size_align(bytes, align).unwrap()
    }

    #[test]
    fn sizes_are_the_documented_ones() {
        let sizes: Vec<usize> = (0..Class::COUNT as u8)
            .map(|class| Class(class).bytes())
            .collect();
        assert_eq!(
            sizes[..14],
            [16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384]
        );
        assert_eq!(sizes.last(), Some(&LARGEST_SMALL_BYTES));
        assert_eq!(Class::of(layout(LARGEST_SMALL_BYTES + 1, 1)), None);
        assert_eq!(Class::of(layout(1, 2 * LARGEST_SMALL_BYTES)), None);
    }

    #[test]
    fn class_is_the_smallest_that_fits() {
        for bytes in 1..=LARGEST_SMALL_BYTES {
            let class = Class::of(layout(bytes, 1)).unwrap();
            assert!(bytes <= class.bytes(), "{bytes} do not fit");
            assert!(
                class.0 == 0 || Class(class.0 - 1).bytes() < bytes,
                "{bytes} fit into a smaller class"
            );
        }
    }

    proptest! {
        /// Blocks that begin at multiples of a class's size, from a well-aligned start, are as aligned as was asked for.
        #[test]
        fn rounding_to_a_multiple_is_alignment_enough(bytes in 1usize..=LARGEST_SMALL_BYTES, shift in 0u32..=15) {
            let align = 1 << shift;
            if let Some(class) = Class::of(layout(bytes, align)) {
                prop_assert!(bytes <= class.bytes());
                prop_assert_eq!(class.bytes() % align, 0);
            }
        }
    }
}
