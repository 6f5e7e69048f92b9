//! The grid: its size, and how threads share it.

use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use core::str::FromStr;

use crate::complex::Complex;
use crate::fft::{MAX_LEN, Plan};

/// Points along each axis; x varies fastest in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Points along x.
    pub x: usize,
    /// Points along y.
    pub y: usize,
    /// Points along z.
    pub z: usize,
}

impl Size {
    /// Points of the grid.
    pub fn points(self) -> usize {
        self.x * self.y * self.z
    }

    /// Binary logarithm of the number of points.
    pub fn log2_points(self) -> f64 {
        libm::log2(self.points() as f64)
    }

    /// Floating-point operations that one transform is counted as: 5 N log₂ N.
    pub fn operations(self) -> f64 {
        5.0 * self.points() as f64 * self.log2_points()
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.x, self.y, self.z)
    }
}

/// The text is not `N` or `NXxNYxNZ` with lengths of the form 2ᵃ3ᵇ5ᶜ up to [`MAX_LEN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidSize;

impl fmt::Display for InvalidSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "expected N or NXxNYxNZ, each of the form 2^a 3^b 5^c from 1 to {MAX_LEN}"
        )
    }
}

impl FromStr for Size {
    type Err = InvalidSize;

    fn from_str(s: &str) -> Result<Self, InvalidSize> {
        let mut lengths = [0; 3];
        let mut count = 0;
        for text in s.split('x') {
            let length: usize = text.parse().map_err(|_| InvalidSize)?;
            *lengths.get_mut(count).ok_or(InvalidSize)? = length;
            count += 1;
        }
        let [x, y, z] = match count {
            1 => [lengths[0]; 3],
            3 => lengths,
            _ => return Err(InvalidSize),
        };
        if [x, y, z].iter().all(|&length| Plan::supports(length)) {
            Ok(Self { x, y, z })
        } else {
            Err(InvalidSize)
        }
    }
}

/// A grid that several threads work on, each on points of its own.
///
/// It stands for an exclusive borrow of the whole grid. Who hands it to threads owes them an agreement on who accesses which
/// point when: until they next meet at a barrier, a point belongs to one thread, or all threads only read it. The functions
/// that access points are `unsafe` for that reason alone.
#[derive(Debug)]
pub struct SharedGrid<'a> {
    base: *mut Complex,
    len: usize,
    borrow: PhantomData<&'a mut [Complex]>,
}

// SAFETY: it is a mutable borrow of plain numbers; all access is through functions whose callers promise to keep threads apart.
unsafe impl Send for SharedGrid<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedGrid<'_> {}

impl<'a> SharedGrid<'a> {
    /// Shares `grid`.
    pub fn new(grid: &'a mut [Complex]) -> Self {
        Self {
            base: grid.as_mut_ptr(),
            len: grid.len(),
            borrow: PhantomData,
        }
    }

    /// Number of points.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no points.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first point.
    pub(crate) fn as_ptr(&self) -> *mut Complex {
        self.base
    }

    /// The points `range`, to read.
    ///
    /// # Safety
    /// No thread may write these points while the result lives.
    ///
    /// # Panics
    /// If the range reaches beyond the grid.
    pub unsafe fn points(&self, range: Range<usize>) -> &[Complex] {
        self.check(&range);
        // SAFETY: within the borrowed grid; nobody writes, as the caller promises.
        unsafe { core::slice::from_raw_parts(self.base.add(range.start), range.len()) }
    }

    /// The points `range`, to change.
    ///
    /// # Safety
    /// Nobody else may access these points while the result lives.
    ///
    /// # Panics
    /// If the range reaches beyond the grid.
    #[expect(clippy::mut_from_ref, reason = "the caller keeps the threads apart")]
    pub unsafe fn points_mut(&self, range: Range<usize>) -> &mut [Complex] {
        self.check(&range);
        // SAFETY: within the borrowed grid; nobody else accesses it, as the caller promises.
        unsafe { core::slice::from_raw_parts_mut(self.base.add(range.start), range.len()) }
    }

    fn check(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "points {range:?} of a grid of {}",
            self.len
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        assert_eq!(
            "128".parse(),
            Ok(Size {
                x: 128,
                y: 128,
                z: 128
            })
        );
        assert_eq!("128x64x32".parse(), Ok(Size { x: 128, y: 64, z: 32 }));
        assert_eq!("1x1x1".parse(), Ok(Size { x: 1, y: 1, z: 1 }));
        assert_eq!(Size { x: 1024, y: 15, z: 1 }.to_string(), "1024x15x1");
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for text in [
            "",
            "x",
            "0",
            "7",
            "14",
            "1025",
            "1080",
            "64x64",
            "64x64x64x64",
            "64x0x64",
            "-8",
            "64x",
            "8 ",
        ] {
            assert_eq!(text.parse::<Size>(), Err(InvalidSize), "{text:?}");
        }
    }
}
