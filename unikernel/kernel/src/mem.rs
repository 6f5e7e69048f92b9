//! Typed buffers whose pages lie on chosen nodes.
//!
//! A [`Region`] is backed by 2 MiB pages, all of them before it can be read: an access never waits for memory and never fails. Who is
//! to work on which part is best decided before: then each thread [`populate`](Reservation::populate)s its own part of a
//! [`Reservation`], and finds it on its own node.
//!
//! ```
//! use homenode::mem::{Policy, Region, Reservation};
//!
//! # fn main() -> Result<(), homenode::mem::RegionError> {
//! // All at once, pages on all nodes in turn.
//! let mut table = Region::<u64>::new(1000, Policy::Interleave)?;
//! table[7] = 49;
//!
//! // Each thread its half.
//! let reservation = Reservation::<u64>::new(1000)?;
//! homenode::thread::scope(|scope| {
//!     for half in [0..500, 500..1000] {
//!         let reservation = &reservation;
//!         scope.spawn(move || reservation.populate(half, Policy::Local));
//!     }
//! });
//! let halves: Region<u64> = reservation.finish()?;
//! assert_eq!(halves[999], 0);
//! # Ok(())
//! # }
//! ```

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut, Range};
use core::ptr::NonNull;
use core::slice;

pub use homenode_mm::{OutOfMemory, PageSize, Policy};
use homenode_topology::NodeId;
pub use zerocopy::FromZeros;

use crate::contract::PageReport;
use crate::sys;

/// What a range of addresses starts at and is a multiple of.
const GRANULE_BYTES: usize = PageSize::Size2MiB.bytes() as usize;

/// Why there is no buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionError {
    /// There is no memory where the policy allows it.
    OutOfMemory(OutOfMemory),
    /// No range of addresses is as large as this.
    TooLarge {
        /// The number of elements that were asked for.
        len: usize,
        /// The size of one, in bytes.
        element_bytes: usize,
    },
}

impl From<OutOfMemory> for RegionError {
    fn from(error: OutOfMemory) -> Self {
        Self::OutOfMemory(error)
    }
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory(error) => error.fmt(f),
            Self::TooLarge { len, element_bytes } => {
                write!(
                    f,
                    "{len} elements of {element_bytes} bytes are more than the address space holds"
                )
            }
        }
    }
}

impl core::error::Error for RegionError {}

/// How many pages of one size lie on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagesOn {
    /// The node.
    pub node: NodeId,
    /// The size of each page.
    pub size: PageSize,
    /// How many there are.
    pub count: usize,
}

/// Addresses for `len` elements, of which nothing can be read yet.
pub struct Reservation<T> {
    range: AddressRange,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: FromZeros> Reservation<T> {
    /// Addresses for `len` elements, with no memory behind them.
    ///
    /// # Errors
    /// If the address space has no such range.
    pub fn new(len: usize) -> Result<Self, RegionError> {
        const {
            assert!(size_of::<T>() > 0, "a region's elements have a size");
            assert!(
                align_of::<T>() <= GRANULE_BYTES,
                "a region starts at a multiple of 2 MiB"
            );
            assert!(
                !core::mem::needs_drop::<T>(),
                "a region's elements are never dropped, so they must need no drop"
            );
        }
        let range = size_of::<T>().checked_mul(len).and_then(AddressRange::reserve);
        let range = range.ok_or(RegionError::TooLarge {
            len,
            element_bytes: size_of::<T>(),
        })?;
        Ok(Self {
            range,
            len,
            elements: PhantomData,
        })
    }

    /// The number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Backs the pages that hold any of these `elements` and have no memory yet with zeroed memory, as `policy` says.
    ///
    /// Many threads may do this at once. A page that holds elements of two threads lies where the first of them wanted it.
    ///
    /// # Errors
    /// If there is no memory where `policy` allows it; pages that were backed before that stay.
    ///
    /// # Panics
    /// If the range is not within `0..len`.
    pub fn populate(&self, elements: Range<usize>, policy: Policy) -> Result<(), OutOfMemory> {
        assert!(
            elements.start <= elements.end && elements.end <= self.len,
            "elements {elements:?} of a reservation with {} elements",
            self.len
        );
        self.range.populate(
            elements.start * size_of::<T>()..elements.end * size_of::<T>(),
            policy,
        )
    }

    /// The region, after backing what no thread has backed with memory near the calling thread.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn finish(self) -> Result<Region<T>, OutOfMemory> {
        self.populate(0..self.len, Policy::Local)?;
        Ok(Region {
            range: self.range,
            len: self.len,
            elements: PhantomData,
        })
    }
}

impl<T> fmt::Debug for Reservation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// A buffer of `len` elements, a slice that is zero at first and lies at a multiple of 2 MiB.
pub struct Region<T> {
    range: AddressRange,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: FromZeros> Region<T> {
    /// A zeroed buffer of `len` elements, placed by `policy`.
    ///
    /// # Errors
    /// If there is no memory where `policy` allows it, or no such range of addresses.
    pub fn new(len: usize, policy: Policy) -> Result<Self, RegionError> {
        let reservation = Reservation::new(len)?;
        reservation.populate(0..len, policy)?;
        Ok(reservation.finish()?)
    }
}

impl<T> Region<T> {
    /// How many pages of which size lie on which node, by node and then by size.
    #[must_use]
    pub fn placement(&self) -> Vec<PagesOn> {
        let mut counts = BTreeMap::new();
        self.range
            .placement(self.len * size_of::<T>(), &mut |node, size, count| {
                *counts.entry((node, size)).or_default() += count;
            });
        counts
            .into_iter()
            .map(|((node, size), count)| PagesOn { node, size, count })
            .collect()
    }
}

impl<T> Deref for Region<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the range starts at a multiple of `T`'s alignment, holds `len` elements, is backed by memory throughout, and zeroed
        // memory is a valid `T: FromZeros`, without which no region is made. Only this region uses the range.
        unsafe { slice::from_raw_parts(self.range.start.cast().as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Region<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and this region is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.range.start.cast().as_ptr(), self.len) }
    }
}

impl<T> fmt::Debug for Region<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// A range of addresses that is given back when this is dropped.
struct AddressRange {
    start: NonNull<u8>,
    /// A multiple of the granule; 0 if there is no range and `start` is no address of anything.
    bytes: usize,
}

// SAFETY: this owns a range of addresses and does nothing with what is stored there; what a region stores there is sent and shared as
// its `PhantomData<T>` says.
unsafe impl Send for AddressRange {}
// SAFETY: as above; populating is allowed from many threads at once.
unsafe impl Sync for AddressRange {}

impl AddressRange {
    /// A range of at least `bytes` bytes, if there is one.
    fn reserve(bytes: usize) -> Option<Self> {
        let bytes = bytes.checked_next_multiple_of(GRANULE_BYTES)?;
        let start = if bytes == 0 {
            NonNull::without_provenance(core::num::NonZeroUsize::new(GRANULE_BYTES)?)
        } else {
            sys::reserve(bytes)?
        };
        Some(Self { start, bytes })
    }

    /// Backs the pages of these `bytes` of the range.
    fn populate(&self, bytes: Range<usize>, policy: Policy) -> Result<(), OutOfMemory> {
        assert!(bytes.end <= self.bytes);
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the bytes lie in a range that `reserve` gave and that is not released before this is dropped.
        unsafe { sys::populate(self.start.add(bytes.start), bytes.len(), policy) }
    }

    /// Reports the pages behind the first `bytes` of the range.
    fn placement(&self, bytes: usize, report: &mut PageReport<'_>) {
        if bytes > 0 {
            // SAFETY: as in `populate`.
            unsafe { sys::placement(self.start, bytes, report) };
        }
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: this is the whole range that `reserve` gave, and who borrowed from it is gone.
            unsafe { sys::release(self.start, self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;
    use core::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::thread;

    fn bytes_of(placement: &[PagesOn]) -> usize {
        placement
            .iter()
            .map(|pages| pages.count * pages.size.bytes() as usize)
            .sum()
    }

    #[test]
    fn a_region_is_zero_writable_and_aligned() {
        let mut region = Region::<u64>::new(300_000, Policy::Local).expect("there is memory");
        assert_eq!(region.len(), 300_000);
        assert!(region.as_ptr().addr().is_multiple_of(GRANULE_BYTES));
        assert!(region.iter().all(|&number| number == 0));
        region
            .iter_mut()
            .zip(1..)
            .for_each(|(element, number)| *element = number);
        assert_eq!(region.iter().sum::<u64>(), 300_000 * 300_001 / 2);
    }

    #[test]
    fn every_page_of_a_region_has_a_node() {
        for policy in [Policy::Local, Policy::Bind(NodeId(0)), Policy::Interleave] {
            let region = Region::<u8>::new(5 << 20, policy).expect("there is memory");
            let placement = region.placement();
            assert!(bytes_of(&placement) >= 5 << 20, "{policy}: {placement:?}");
            assert!(
                placement
                    .iter()
                    .all(|pages| pages.node.index() < crate::topology().nodes().len())
            );
        }
    }

    #[test]
    fn threads_that_populate_the_same_pages_lose_nothing() {
        const LEN: usize = 3 << 20;
        let reservation = Reservation::<u32>::new(LEN).expect("there are addresses");
        thread::scope(|scope| {
            for thread in 0..4 {
                let reservation = &reservation;
                scope.spawn(move || {
                    // Overlapping, and cut where no page begins.
                    for part in 0..6 {
                        let start = (part + thread) % 6 * (LEN / 6) + thread;
                        let elements = start..(start + LEN / 4).min(LEN);
                        reservation
                            .populate(elements, Policy::Local)
                            .expect("there is memory");
                    }
                });
            }
        });
        let region = reservation.finish().expect("there is memory");
        assert!(region.iter().all(|&number| number == 0));
        assert!(bytes_of(&region.placement()) >= LEN * 4);
    }

    #[test]
    fn threads_share_a_region() {
        let region = Region::<AtomicU64>::new(1000, Policy::Interleave).expect("there is memory");
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| region.iter().for_each(|number| _ = number.fetch_add(1, Relaxed)));
            }
        });
        assert!(region.iter().all(|number| number.load(Relaxed) == 4));
    }

    #[test]
    fn an_empty_region_takes_nothing() {
        let region = Region::<u64>::new(0, Policy::Local).expect("nothing is needed");
        assert!(region.is_empty());
        assert_eq!(region.placement(), []);
    }

    #[test]
    fn a_range_larger_than_the_address_space_is_an_error() {
        for len in [usize::MAX, usize::MAX / 8, 1 << 50] {
            let error = Reservation::<u64>::new(len).expect_err("there are no such addresses");
            assert_eq!(
                error,
                RegionError::TooLarge {
                    len,
                    element_bytes: 8
                }
            );
        }
    }

    #[test]
    #[should_panic(expected = "of a reservation with 10 elements")]
    fn elements_outside_of_a_reservation_are_not_populated() {
        let reservation = Reservation::<u64>::new(10).expect("there are addresses");
        _ = reservation.populate(5..11, Policy::Local);
    }
}
