//! Typed buffers.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut, Range};
use core::slice;

use homenode_mm::{OutOfMemory, Policy};
use homenode_topology::NodeId;
use zerocopy::FromZeros;

use super::pages::GRANULE_BYTES;
use super::{Options, Page, Pages, PagesOn, RegionError};

/// Addresses for `len` elements, of which threads place the memory before any of them can be read.
pub struct Reservation<T> {
    region: Region<T>,
}

impl<T: FromZeros> Reservation<T> {
    /// Addresses for `len` elements, with no memory behind them.
    ///
    /// # Errors
    /// If the address space has no such range, or there is no memory to note it in.
    pub fn new(len: usize) -> Result<Self, RegionError> {
        let region = Region::with_options(len, Options::default())?;
        Ok(Self { region })
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
    #[track_caller]
    pub fn populate(&self, elements: Range<usize>, policy: Policy) -> Result<(), OutOfMemory> {
        self.region
            .pages
            .populate_around(self.region.bytes_of(elements), policy)
    }

    /// Gives the addresses and their memory back, as [`Region::revoke`] does.
    pub fn revoke(self) {
        self.region.revoke();
    }

    /// The region. Pages that no thread has backed come when they are first touched, by the toucher's policy.
    #[must_use]
    pub fn finish(self) -> Region<T> {
        self.region
    }
}

impl<T> Reservation<T> {
    /// The number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.region.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.region.len == 0
    }
}

impl<T> fmt::Debug for Reservation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// A buffer of `len` elements: a slice that is zero at first and begins at a multiple of 4 KiB, or of 2 MiB if it is as large.
///
/// ```
/// use homenode::mem::{Policy, Region};
///
/// # fn main() -> Result<(), homenode::mem::RegionError> {
/// let mut numbers = Region::<f64>::new(100_000, Policy::Local)?;
/// numbers[70_000] = 0.5;
/// let node = numbers.query(70_000).expect("it has been touched").node;
///
/// // All of it there, or an error, before the first access.
/// let table = Region::<u32>::populated(10_000, Policy::Bind(node))?;
/// assert!(table.placement().iter().all(|pages| pages.node == node));
/// # Ok(())
/// # }
/// ```
pub struct Region<T> {
    pages: Pages,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: FromZeros> Region<T> {
    /// A zeroed buffer of `len` elements. Each page comes when it is first touched, from where `policy` says; when there is no
    /// memory for it then, the program ends with a report that names node, size and policy.
    ///
    /// # Errors
    /// If the address space has no such range, if there is no memory to note it in, or if the policy names a node that the machine
    /// does not have.
    pub fn new(len: usize, policy: Policy) -> Result<Self, RegionError> {
        Self::with_options(len, policy.into())
    }

    /// A zeroed buffer of `len` elements, all of it backed by memory from where `policy` says.
    ///
    /// # Errors
    /// As for [`new`](Self::new), and if there is no memory where the policy allows it.
    pub fn populated(len: usize, policy: Policy) -> Result<Self, RegionError> {
        let region = Self::new(len, policy)?;
        region.populate(0..len)?;
        Ok(region)
    }

    /// A zeroed buffer of `len` elements like that of [`new`](Self::new), with these options.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with_options(len: usize, options: Options) -> Result<Self, RegionError> {
        const {
            assert!(size_of::<T>() > 0, "a region's elements have a size");
            assert!(
                align_of::<T>() <= GRANULE_BYTES,
                "a region begins at a multiple of 4 KiB"
            );
            assert!(
                !core::mem::needs_drop::<T>(),
                "a region's elements are never dropped, so they must need no drop"
            );
        }
        let too_large = RegionError::TooLarge {
            len,
            element_bytes: size_of::<T>(),
        };
        let bytes = size_of::<T>().checked_mul(len).ok_or(too_large)?;
        let pages = Pages::reserve(bytes, options).map_err(|error| match error {
            RegionError::TooLarge { .. } => too_large,
            error => error,
        })?;
        Ok(Self {
            pages,
            len,
            elements: PhantomData,
        })
    }
}

impl<T> Region<T> {
    /// Backs the pages that hold any of these `elements` and have no memory yet, as if they were touched now.
    ///
    /// # Errors
    /// If there is no memory where the policy allows it; pages that came before that stay.
    ///
    /// # Panics
    /// If the range is not within `0..len`.
    #[track_caller]
    pub fn populate(&self, elements: Range<usize>) -> Result<(), OutOfMemory> {
        self.pages.populate(self.pages_of(elements))
    }

    /// Says where pages that hold any of these `elements` come from, as far as they have not come yet; `None` leaves it to the
    /// thread that touches them.
    ///
    /// # Errors
    /// If there is no memory to note it in; then a first part of the elements has the new policy.
    ///
    /// # Panics
    /// If the range is not within `0..len`, or the policy names a node that the machine does not have.
    #[track_caller]
    pub fn set_policy(&self, elements: Range<usize>, policy: Option<Policy>) -> Result<(), OutOfMemory> {
        self.pages.set_policy(self.pages_of(elements), policy)
    }

    /// Gives the buffer back, as dropping does, but returns only when no CPU can reach its memory any more: an access by a pointer
    /// that somebody has kept ends the program from then on. Dropping is enough where nobody has one, and waits for no CPU.
    pub fn revoke(self) {
        self.pages.revoke();
    }

    /// Moves the pages that hold any of these `elements` to `node`, and returns how many pages it moved: those that were there
    /// already do not count. Other threads may use the elements meanwhile.
    ///
    /// # Errors
    /// If the node has no memory for a page; those that have moved before stay there.
    ///
    /// # Panics
    /// If the range is not within `0..len`, or the machine has no such node.
    #[track_caller]
    pub fn move_to(&self, elements: Range<usize>, node: NodeId) -> Result<usize, OutOfMemory> {
        self.pages.move_to(self.pages_of(elements), node)
    }

    /// The page that holds the first byte of an element, or `None` if it has not come yet.
    ///
    /// # Panics
    /// If there is no element with this index.
    #[must_use]
    #[track_caller]
    pub fn query(&self, index: usize) -> Option<Page> {
        assert!(
            index < self.len,
            "element {index} of a region with {} elements",
            self.len
        );
        self.pages.query(index * size_of::<T>())
    }

    /// How many pages of which size lie on which node, by node and then by size. Pages that have not come yet are on none.
    #[must_use]
    pub fn placement(&self) -> Vec<PagesOn> {
        let mut counts = BTreeMap::new();
        self.pages
            .placement(0..self.pages.bytes(), &mut |node, size, count| {
                *counts.entry((node, size)).or_default() += count;
            });
        counts
            .into_iter()
            .map(|((node, size), count)| PagesOn { node, size, count })
            .collect()
    }

    #[track_caller]
    fn bytes_of(&self, elements: Range<usize>) -> Range<usize> {
        assert!(
            elements.start <= elements.end && elements.end <= self.len,
            "elements {elements:?} of a region with {} elements",
            self.len
        );
        elements.start * size_of::<T>()..elements.end * size_of::<T>()
    }

    #[track_caller]
    fn pages_of(&self, elements: Range<usize>) -> Range<usize> {
        self.pages.around(self.bytes_of(elements), GRANULE_BYTES)
    }
}

impl<T> Deref for Region<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the reservation begins at a multiple of `T`'s alignment and holds `len` elements, which may be read and written:
        // only `Pages` could forbid it, or take back what was written, and this region's are its own. Memory that comes is zero,
        // and that is a valid `T: FromZeros`, without which no region is made.
        unsafe { slice::from_raw_parts(self.pages.start().cast().as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Region<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and this region is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.pages.start().cast().as_ptr(), self.len) }
    }
}

impl<T> fmt::Debug for Region<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;
    use core::sync::atomic::Ordering::Relaxed;

    use homenode_mm::PageSize;

    use super::*;
    use crate::mem::pages::tests::survives;
    use crate::thread;

    fn bytes_of(placement: &[PagesOn]) -> usize {
        placement
            .iter()
            .map(|pages| pages.count * pages.size.bytes() as usize)
            .sum()
    }

    #[test]
    fn a_region_is_zero_writable_and_aligned() {
        let mut region = Region::<u64>::new(300_000, Policy::Local).expect("there are addresses");
        assert_eq!(region.len(), 300_000);
        assert!(region.as_ptr().addr().is_multiple_of(2 << 20));
        assert!(region.iter().all(|&number| number == 0));
        region
            .iter_mut()
            .zip(1..)
            .for_each(|(element, number)| *element = number);
        assert_eq!(region.iter().sum::<u64>(), 300_000 * 300_001 / 2);
    }

    #[test]
    fn a_page_comes_with_the_first_write() {
        let options = Options {
            page_size: PageSize::Size4KiB,
            policy: Some(Policy::Preferred(NodeId(0))),
        };
        let mut region = Region::<u64>::with_options(10 * 512, options).expect("there are addresses");
        assert_eq!(region.placement(), []);
        region[5 * 512 + 7] = 1;
        let there: Vec<bool> = (0..10).map(|page| region.query(page * 512).is_some()).collect();
        assert_eq!(there.iter().filter(|there| **there).count(), 1);
        assert!(there[5]);
        region.populate(511..513).expect("there is memory");
        assert_eq!(
            bytes_of(&region.placement()),
            3 * 4096,
            "elements 511 and 512 are on two pages"
        );
    }

    #[test]
    fn every_page_of_a_populated_region_has_a_node() {
        for policy in [
            Policy::Local,
            Policy::Bind(NodeId(0)),
            Policy::Preferred(NodeId(0)),
            Policy::Interleave,
        ] {
            let region = Region::<u8>::populated(5 << 20, policy).expect("there is memory");
            let placement = region.placement();
            assert_eq!(bytes_of(&placement), 5 << 20, "{policy}: {placement:?}");
            assert!(
                placement
                    .iter()
                    .all(|pages| pages.node.index() < crate::topology().nodes().len())
            );
        }
    }

    #[test]
    fn a_region_that_can_not_be_populated_names_the_policy() {
        let policy = Policy::Bind(NodeId(0));
        let error = Region::<u8>::populated(1 << 43, policy).expect_err("no machine has that");
        let RegionError::OutOfMemory(error) = error else {
            panic!("addresses cost nothing: {error}");
        };
        assert_eq!((error.node, error.policy), (NodeId(0), policy));
    }

    fn nodes_with_memory() -> impl Iterator<Item = NodeId> {
        let nodes = crate::topology().nodes().iter();
        nodes.filter(|node| node.has_memory()).map(crate::Node::id)
    }

    /// The node of a page that the calling thread touches first, in a range with this policy.
    fn place_of_a_touch(policy: Option<Policy>) -> NodeId {
        let options = Options {
            policy,
            ..Options::default()
        };
        let mut region = Region::<u8>::with_options(1, options).expect("there are addresses");
        region[0] = 1;
        region.query(0).expect("it has been touched").node
    }

    #[test]
    fn first_touches_are_where_the_policies_say() {
        for node in nodes_with_memory() {
            for policy in [Policy::Bind(node), Policy::Preferred(node)] {
                assert_eq!(place_of_a_touch(Some(policy)), node);
                let thread = thread::Builder::new().policy(policy).spawn(|| {
                    let inherited = thread::spawn(|| place_of_a_touch(None)).join();
                    [place_of_a_touch(None), inherited]
                });
                assert_eq!(thread.expect("it starts").join(), [node; 2], "{policy}");
            }
            let cpus = crate::topology().cpus().iter();
            for cpu in cpus.filter(|cpu| cpu.node == node) {
                let thread = thread::Builder::new()
                    .cpu(cpu.id)
                    .spawn(|| [place_of_a_touch(None), place_of_a_touch(Some(Policy::Local))]);
                assert_eq!(thread.expect("it starts").join(), [node; 2], "CPU {}", cpu.id);
            }
        }
        let options = Options {
            policy: Some(Policy::Interleave),
            page_size: PageSize::Size4KiB,
        };
        let mut region = Region::<u64>::with_options(1 << 20, options).expect("there are addresses");
        region.fill(1);
        let places: Vec<NodeId> = region.placement().iter().map(|pages| pages.node).collect();
        assert!(places.into_iter().eq(nodes_with_memory()));
    }

    #[test]
    fn moved_elements_keep_their_values() {
        const LEN: u32 = 3 << 20;
        const MOVED: Range<usize> = 1000..2 << 20;
        let last = nodes_with_memory().last().expect("there is memory");
        let mut region = Region::<u32>::new(LEN as usize, Policy::Interleave).expect("there are addresses");
        region
            .iter_mut()
            .zip(0..)
            .for_each(|(element, number)| *element = number);
        for node in [NodeId(0), last] {
            let is_there = region.query(MOVED.start).expect("it is there").node == node;
            let moved = region.move_to(MOVED, node).expect("there is memory");
            assert!(moved > 0 || is_there, "node {node}");
            assert!(region.iter().copied().eq(0..LEN));
            for element in MOVED.step_by(512) {
                assert_eq!(region.query(element).expect("it is there").node, node);
            }
            let again = region.move_to(MOVED, node);
            assert_eq!(again, Ok(0), "what is there already does not move");
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
        let region = reservation.finish();
        assert_eq!(bytes_of(&region.placement()), LEN * 4);
        assert!(region.iter().all(|&number| number == 0));
    }

    #[test]
    fn threads_share_a_region() {
        let region = Region::<AtomicU64>::new(1000, Policy::Interleave).expect("there are addresses");
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| region.iter().for_each(|number| _ = number.fetch_add(1, Relaxed)));
            }
        });
        assert!(region.iter().all(|number| number.load(Relaxed) == 4));
    }

    #[test]
    fn an_empty_region_takes_nothing() {
        let region = Region::<u64>::populated(0, Policy::Local).expect("nothing is needed");
        assert!(region.is_empty());
        assert_eq!(region.placement(), []);
    }

    #[test]
    fn no_pointer_reaches_a_revoked_region() {
        let mut region = Region::<u64>::populated(1000, Policy::Local).expect("there is memory");
        let element = region.as_mut_ptr();
        // SAFETY: the element lies in the region.
        let there = survives(|| unsafe { element.write_volatile(1) });
        let still_there = survives(move || {
            region.revoke();
            // SAFETY: none is needed in a copy of this process: it ends, and that is what is looked at.
            unsafe { element.write_volatile(1) };
        });
        assert_eq!((there, still_there), (true, false));
    }

    #[test]
    fn no_pointer_reaches_a_revoked_reservation() {
        let reservation = Reservation::<u64>::new(1000).expect("there are addresses");
        let element = reservation.region.as_ptr().cast_mut();
        // SAFETY: the element lies in the reservation.
        let there = survives(|| unsafe { element.write_volatile(1) });
        let still_there = survives(move || {
            reservation.revoke();
            // SAFETY: none is needed in a copy of this process: it ends, and that is what is looked at.
            unsafe { element.write_volatile(1) };
        });
        assert_eq!((there, still_there), (true, false));
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
    #[should_panic(expected = "elements 5..11 of a region with 10 elements")]
    fn elements_outside_of_a_reservation_are_not_populated() {
        let reservation = Reservation::<u64>::new(10).expect("there are addresses");
        _ = reservation.populate(5..11, Policy::Local);
    }
}
