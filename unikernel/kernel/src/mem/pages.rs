//! Reservations without a type.

use core::fmt;
use core::num::NonZeroUsize;
use core::ops::Range;
use core::ptr::NonNull;

use homenode_mm::{OutOfMemory, PageSize, Policy, Protection};
use homenode_topology::NodeId;

use super::{Options, Page, RegionError, check, existing_node};
use crate::contract::PageReport;
use crate::sys;

/// What reservations and all ranges in them are multiples of.
pub(super) const GRANULE_BYTES: usize = PageSize::Size4KiB.bytes() as usize;

const HUGE_PAGE_BYTES: usize = PageSize::Size2MiB.bytes() as usize;

/// A reservation: a range of addresses that belongs to the program, and the memory that has come behind it. Both are given back
/// when this is dropped.
///
/// The memory is zero at first. A page of it comes when it is first touched, or with [`populate`](Self::populate). An access that
/// the [`Protection`] does not allow, or beyond the end, ends the program with a report; so does a first touch for which there is
/// no memory where the policy allows it.
///
/// Ranges are in bytes from the start, and multiples of 4 KiB. All functions may be called from many threads at once, and while
/// other threads use the memory.
///
/// ```
/// use homenode::mem::{Options, Pages, PageSize, Protection};
///
/// # fn main() -> Result<(), homenode::mem::RegionError> {
/// let pages = Pages::reserve(1 << 20, Options { page_size: PageSize::Size4KiB, ..Options::default() })?;
/// assert_eq!(pages.query(0), None, "no page is there before the first touch");
/// let first = pages.start().cast::<u64>();
/// // SAFETY: the word lies in the reservation, which nobody else knows.
/// unsafe { first.write(49) };
/// let page = pages.query(0).expect("a page has come");
/// assert_eq!((page.size, page.protection), (PageSize::Size4KiB, Protection::ReadWrite));
///
/// pages.protect(0..4096, Protection::Read)?;
/// // SAFETY: as above, and reading is still allowed.
/// assert_eq!(unsafe { first.read() }, 49);
///
/// // The page goes, the addresses stay.
/// pages.discard(0..4096)?;
/// // SAFETY: as above.
/// assert_eq!(unsafe { first.read() }, 0);
/// # Ok(())
/// # }
/// ```
pub struct Pages {
    start: NonNull<u8>,
    /// A multiple of the granule; 0 if there is no reservation and `start` is no address of anything.
    bytes: usize,
    page_size: PageSize,
}

// SAFETY: this owns a range of addresses and never reads or writes there; who does so through `start` answers for that.
unsafe impl Send for Pages {}
// SAFETY: as above; the lower halves' functions may be called from many threads at once.
unsafe impl Sync for Pages {}

impl Pages {
    /// Reserves `bytes` bytes, rounded up to a multiple of 4 KiB. None of them has memory yet.
    ///
    /// # Errors
    /// If the address space has no such range, if there is no memory to note it in, or if the policy names a node that the machine
    /// does not have.
    pub fn reserve(bytes: usize, options: Options) -> Result<Self, RegionError> {
        options.policy.map_or(Ok(()), check)?;
        let rounded = bytes
            .checked_next_multiple_of(GRANULE_BYTES)
            .filter(|rounded| isize::try_from(*rounded).is_ok())
            .ok_or(RegionError::too_many_bytes(bytes))?;
        let start = match rounded {
            0 => NonNull::without_provenance(const { NonZeroUsize::new(GRANULE_BYTES).unwrap() }),
            _ => sys::reserve(rounded, options)?,
        };
        Ok(Self {
            start,
            bytes: rounded,
            page_size: options.page_size,
        })
    }

    /// The address of the first byte: a multiple of the largest page size that the options allow and that is no larger than the
    /// reservation.
    ///
    /// The bytes up to [`bytes`](Self::bytes) may be read and written until this is dropped, as the protection says. They change by
    /// themselves only where [`discard`](Self::discard) makes them zero.
    #[must_use]
    pub const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The size in bytes, a multiple of 4 KiB.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Backs each page of the range that has no memory yet, as if it were touched now, but whatever its protection is.
    ///
    /// # Errors
    /// If there is no memory where the policy allows it; pages that came before that stay.
    ///
    /// # Panics
    /// If the range is not within the reservation, or does not begin and end at multiples of 4 KiB.
    #[track_caller]
    pub fn populate(&self, range: Range<usize>) -> Result<(), OutOfMemory> {
        let Some((start, bytes)) = self.part(range) else {
            return Ok(());
        };
        // SAFETY: the part lies in this reservation.
        unsafe { sys::populate(start, bytes, None) }
    }

    /// Backs each page that holds a byte of the range, in whole pages of the reservation's size where it has such, by `policy`.
    pub(super) fn populate_around(&self, range: Range<usize>, policy: Policy) -> Result<(), OutOfMemory> {
        let page_bytes = match self.page_size {
            PageSize::Size4KiB => GRANULE_BYTES,
            PageSize::Size2MiB | PageSize::Size1GiB => HUGE_PAGE_BYTES,
        };
        let Some((start, bytes)) = self.part(self.around(range, page_bytes)) else {
            return Ok(());
        };
        // SAFETY: the part lies in this reservation.
        unsafe { sys::populate(start, bytes, Some(policy)) }
    }

    /// Gives the memory behind the range back; the addresses stay reserved, and what is touched there next is zero. Part of a large
    /// page goes too: the rest of it stays, in smaller pages.
    ///
    /// # Errors
    /// If a large page has to be divided and there is no memory to note that in; then pages of the range are left as they were.
    ///
    /// # Panics
    /// As for [`populate`](Self::populate).
    #[track_caller]
    pub fn discard(&self, range: Range<usize>) -> Result<(), OutOfMemory> {
        let Some((start, bytes)) = self.part(range) else {
            return Ok(());
        };
        // SAFETY: the part lies in this reservation; who reads it through a pointer expects what `start` says.
        unsafe { sys::discard(start, bytes) }
    }

    /// Says what may be done with the range, also with pages that come later. On return no thread can do more.
    ///
    /// # Errors
    /// If there is no memory to note it in; then a first part of the range has the new protection.
    ///
    /// # Panics
    /// As for [`populate`](Self::populate).
    #[track_caller]
    pub fn protect(&self, range: Range<usize>, protection: Protection) -> Result<(), OutOfMemory> {
        let Some((start, bytes)) = self.part(range) else {
            return Ok(());
        };
        // SAFETY: the part lies in this reservation; who uses it through a pointer obeys the protection.
        unsafe { sys::protect(start, bytes, protection) }
    }

    /// Says where pages of the range come from that come later; `None` leaves it to the thread that touches them. Pages that are
    /// there stay where they are.
    ///
    /// # Errors
    /// If there is no memory to note it in; then a first part of the range has the new policy.
    ///
    /// # Panics
    /// As for [`populate`](Self::populate), and if the policy names a node that the machine does not have.
    #[track_caller]
    pub fn set_policy(&self, range: Range<usize>, policy: Option<Policy>) -> Result<(), OutOfMemory> {
        if let Err(error) = policy.map_or(Ok(()), check) {
            panic!("{error}");
        }
        let Some((start, bytes)) = self.part(range) else {
            return Ok(());
        };
        // SAFETY: the part lies in this reservation.
        unsafe { sys::set_policy(start, bytes, policy) }
    }

    /// Moves the pages of the range to `node`, with what they hold, and returns how many pages it moved: those that were there
    /// already do not count. Pages of which only a part is in the range are divided. Neither policy nor protection changes.
    ///
    /// # Errors
    /// If the node has no memory for a page; those that have moved before stay there.
    ///
    /// # Panics
    /// As for [`populate`](Self::populate), and if the machine has no such node.
    #[track_caller]
    pub fn move_to(&self, range: Range<usize>, node: NodeId) -> Result<usize, OutOfMemory> {
        if let Err(error) = existing_node(node) {
            panic!("{error}");
        }
        let Some((start, bytes)) = self.part(range) else {
            return Ok(0);
        };
        // SAFETY: the part lies in this reservation.
        unsafe { sys::move_pages(start, bytes, node) }
    }

    /// The page behind the byte at `offset`, or `None` if none has come yet.
    ///
    /// # Panics
    /// If the offset is not within the reservation.
    #[must_use]
    #[track_caller]
    pub fn query(&self, offset: usize) -> Option<Page> {
        assert!(
            offset < self.bytes,
            "byte {offset} of a reservation of {} bytes",
            self.bytes
        );
        // SAFETY: the address lies in this reservation.
        unsafe { sys::query(self.start.add(offset)) }
    }

    /// Reports the pages behind the range.
    pub(super) fn placement(&self, range: Range<usize>, report: &mut PageReport<'_>) {
        if let Some((start, bytes)) = self.part(range) {
            // SAFETY: the part lies in this reservation.
            unsafe { sys::placement(start, bytes, report) };
        }
    }

    /// The smallest range of whole pages of `page_bytes` that holds the range, cut off at the end of the reservation.
    pub(super) fn around(&self, range: Range<usize>, page_bytes: usize) -> Range<usize> {
        if range.is_empty() {
            return 0..0;
        }
        let start = range.start - range.start % page_bytes;
        let end = range
            .end
            .checked_next_multiple_of(page_bytes)
            .map_or(self.bytes, |end| end.min(self.bytes));
        start..end
    }

    /// Where the range begins and its size; `None` if it is empty.
    #[track_caller]
    fn part(&self, range: Range<usize>) -> Option<(NonNull<u8>, usize)> {
        assert!(
            range.start <= range.end && range.end <= self.bytes,
            "bytes {range:?} of a reservation of {} bytes",
            self.bytes
        );
        assert!(
            range.start.is_multiple_of(GRANULE_BYTES) && range.end.is_multiple_of(GRANULE_BYTES),
            "bytes {range:?} of a reservation are not whole pages: both ends have to be multiples of {GRANULE_BYTES}"
        );
        // SAFETY: within the reservation.
        (!range.is_empty()).then(|| (unsafe { self.start.add(range.start) }, range.len()))
    }
}

impl Pages {
    /// Gives the memory back, as dropping does, but returns only when no CPU can reach it any more: an access by a pointer that
    /// somebody has kept ends the program from then on. Dropping is enough where nobody has one, and waits for no CPU.
    pub fn revoke(mut self) {
        let bytes = core::mem::take(&mut self.bytes);
        if bytes > 0 {
            // SAFETY: this is the whole reservation, and nothing is left for `drop`.
            unsafe { sys::revoke(self.start, bytes) };
        }
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages")
            .field("start", &self.start)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: this is the whole reservation, and who borrowed from it is gone.
            unsafe { sys::release(self.start, self.bytes) };
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The number of pages of the reservations in these tests.
    const PAGES: usize = 12;

    fn bytes_of(pages: &Range<usize>) -> Range<usize> {
        pages.start * GRANULE_BYTES..pages.end * GRANULE_BYTES
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(usize, u8),
        Populate(Range<usize>),
        Discard(Range<usize>),
        Protect(Range<usize>, Protection),
        SetPolicy(Range<usize>, Option<Policy>),
        MoveTo(Range<usize>),
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = || (0..=PAGES, 0..=PAGES).prop_map(|(a, b)| a.min(b)..a.max(b));
        let protection = prop_oneof![
            1 => Just(Protection::None),
            1 => Just(Protection::Read),
            3 => Just(Protection::ReadWrite)
        ];
        let policy = prop_oneof![
            Just(None),
            Just(Some(Policy::Local)),
            Just(Some(Policy::Bind(NodeId(0)))),
            Just(Some(Policy::Preferred(NodeId(0)))),
            Just(Some(Policy::Interleave)),
        ];
        prop_oneof![
            4 => (0..PAGES, 1..=u8::MAX).prop_map(|(page, value)| Step::Write(page, value)),
            1 => range().prop_map(Step::Populate),
            2 => range().prop_map(Step::Discard),
            2 => (range(), protection).prop_map(|(range, protection)| Step::Protect(range, protection)),
            1 => (range(), policy).prop_map(|(range, policy)| Step::SetPolicy(range, policy)),
            1 => range().prop_map(Step::MoveTo),
        ]
    }

    /// What a page has to be.
    #[derive(Clone, Copy, Default)]
    struct Model {
        is_there: bool,
        value: u8,
        protection: Protection,
    }

    proptest! {
        #[test]
        fn pages_are_what_was_done_to_them(steps in prop::collection::vec(step(), 1..40)) {
            let options = Options { page_size: PageSize::Size4KiB, ..Options::default() };
            let pages = Pages::reserve(PAGES * GRANULE_BYTES, options).expect("there are addresses");
            let at = |page: usize| pages.start().as_ptr().wrapping_add(page * GRANULE_BYTES + page);
            let mut model = [Model::default(); PAGES];
            for step in steps {
                match step {
                    Step::Write(page, value) => {
                        if model[page].protection == Protection::ReadWrite {
                            // SAFETY: the byte lies in the reservation and may be written.
                            unsafe { at(page).write_volatile(value) };
                            model[page] = Model { is_there: true, value, ..model[page] };
                        }
                    }
                    Step::Populate(range) => {
                        pages.populate(bytes_of(&range)).expect("there is memory");
                        model[range].iter_mut().for_each(|page| page.is_there = true);
                    }
                    Step::Discard(range) => {
                        pages.discard(bytes_of(&range)).expect("it is noted");
                        for page in &mut model[range] {
                            *page = Model { protection: page.protection, ..Model::default() };
                        }
                    }
                    Step::Protect(range, protection) => {
                        pages.protect(bytes_of(&range), protection).expect("it is noted");
                        model[range].iter_mut().for_each(|page| page.protection = protection);
                    }
                    Step::SetPolicy(range, policy) => {
                        pages.set_policy(bytes_of(&range), policy).expect("it is noted");
                    }
                    Step::MoveTo(range) => {
                        pages.move_to(bytes_of(&range), NodeId(0)).expect("pages move");
                    }
                }
            }
            for (number, page) in model.into_iter().enumerate() {
                let found = pages.query(number * GRANULE_BYTES + 1);
                prop_assert_eq!(found.is_some(), page.is_there, "page {}", number);
                if let Some(found) = found {
                    prop_assert_eq!(found.protection, page.protection, "page {}", number);
                    prop_assert!(found.node.index() < crate::topology().nodes().len());
                }
                if page.protection != Protection::None {
                    // SAFETY: the byte lies in the reservation and may be read.
                    prop_assert_eq!(unsafe { at(number).read_volatile() }, page.value, "page {}", number);
                }
            }
        }
    }

    /// Whether a copy of this process survives `access`.
    pub(in crate::mem) fn survives(access: impl FnOnce()) -> bool {
        // SAFETY: the copy makes one memory access or system call and ends without running anything of this process's.
        match unsafe { libc::fork() } {
            0 => {
                access();
                // SAFETY: this ends the copy.
                unsafe { libc::_exit(0) }
            }
            child => {
                let mut status = 0;
                // SAFETY: this waits for the copy and writes its status.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert!(
                    libc::WIFEXITED(status) || libc::WTERMSIG(status) == libc::SIGSEGV,
                    "{status}"
                );
                libc::WIFEXITED(status)
            }
        }
    }

    #[test]
    fn only_what_the_protection_allows_is_survived() {
        let pages = Pages::reserve(3 * GRANULE_BYTES, Options::default()).expect("there are addresses");
        pages.populate(0..pages.bytes()).expect("there is memory");
        for (page, protection) in [Protection::None, Protection::Read, Protection::ReadWrite]
            .into_iter()
            .enumerate()
        {
            let first = page * GRANULE_BYTES;
            pages
                .protect(first..first + GRANULE_BYTES, protection)
                .expect("it is noted");
            let byte = pages.start().as_ptr().wrapping_add(first);
            // SAFETY: none is needed in a copy of this process: it ends, and that is what is looked at.
            let reads = survives(|| _ = unsafe { byte.read_volatile() });
            // SAFETY: as above.
            let writes = survives(|| unsafe { byte.write_volatile(1) });
            assert_eq!(reads, protection != Protection::None, "{protection}");
            assert_eq!(writes, protection == Protection::ReadWrite, "{protection}");
        }
    }

    #[test]
    fn a_reservation_that_was_given_back_is_gone() {
        for give_back in [drop::<Pages>, Pages::revoke] {
            let pages = Pages::reserve(GRANULE_BYTES, Options::default()).expect("there are addresses");
            let byte = pages.start().as_ptr();
            // SAFETY: the byte lies in the reservation.
            let there = survives(|| unsafe { byte.write_volatile(1) });
            assert!(there);
            let still_there = survives(move || {
                give_back(pages);
                // SAFETY: none is needed in a copy of this process: it ends, and that is what is looked at.
                unsafe { byte.write_volatile(1) };
            });
            assert!(!still_there);
        }
    }

    #[test]
    fn a_reservation_is_of_whole_pages() {
        for (bytes, rounded) in [(0, 0), (1, 4096), (4096, 4096), (4097, 8192)] {
            let pages = Pages::reserve(bytes, Options::default()).expect("there are addresses");
            assert_eq!(pages.bytes(), rounded);
            pages.populate(0..rounded).expect("there is memory");
            pages.discard(0..rounded).expect("it is noted");
        }
    }

    #[test]
    fn what_can_not_be_reserved_is_an_error() {
        for bytes in [usize::MAX, isize::MAX as usize, 1 << 50] {
            let error = Pages::reserve(bytes, Options::default()).expect_err("there are no such addresses");
            assert_eq!(error, RegionError::too_many_bytes(bytes));
        }
        for policy in [Policy::Bind(NodeId(4000)), Policy::Preferred(NodeId(4000))] {
            let error = Pages::reserve(1, policy.into()).expect_err("there is no such node");
            assert_eq!(error, RegionError::NoSuchNode(NodeId(4000)));
            assert!(
                error.to_string().contains("no node 4000: the last one is node "),
                "{error}"
            );
        }
    }

    fn one_page() -> Pages {
        Pages::reserve(1, Options::default()).expect("there are addresses")
    }

    #[test]
    #[should_panic(expected = "bytes 0..100 of a reservation are not whole pages")]
    fn parts_of_pages_are_no_range() {
        _ = one_page().protect(0..100, Protection::Read);
    }

    #[test]
    #[should_panic(expected = "bytes 4096..8192 of a reservation of 4096 bytes")]
    fn ranges_beyond_the_end_are_none() {
        _ = one_page().discard(4096..8192);
    }

    #[test]
    #[should_panic(expected = "byte 4096 of a reservation of 4096 bytes")]
    fn there_is_no_page_at_the_end() {
        _ = one_page().query(4096);
    }

    #[test]
    #[should_panic(expected = "there is no node 4000: the last one is node ")]
    fn pages_are_not_moved_to_a_node_that_is_not_there() {
        _ = one_page().move_to(0..4096, NodeId(4000));
    }

    #[test]
    #[should_panic(expected = "there is no node 4000: the last one is node ")]
    fn a_policy_names_a_node_that_is_there() {
        _ = one_page().set_policy(0..4096, Some(Policy::Bind(NodeId(4000))));
    }
}
