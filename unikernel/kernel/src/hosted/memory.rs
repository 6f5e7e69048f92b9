//! Reservations and the pages behind them: `mmap(2)`, `mprotect(2)`, `madvise(2)`, `mbind(2)`, `move_pages(2)`.
//!
//! Linux hands memory out at the first touch too, but rather kills a program later than refuse it memory; so what can be refused here
//! is refused before.

use alloc::vec::Vec;
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU8, Ordering};
use std::{fs, io};

use homenode_mm::{OutOfMemory, PageSize, Policy, Protection};
use homenode_topology::NodeId;

use super::cpus::{node_of_os, os_node, topology};
use super::threads::current_node;
use crate::contract::PageReport;
use crate::mem::{Options, Page, RegionError};

const PAGE_BYTES: usize = PageSize::Size4KiB.bytes() as usize;

/// How many pages one question to Linux is about.
const PAGES_AT_ONCE: usize = 4096;

// From Linux's `include/uapi/linux/mempolicy.h`.
/// To `get_mempolicy`: the policy of an address is wanted.
const MPOL_F_ADDR: c_int = 1 << 1;
/// To `move_pages`: this process's own pages are to be moved.
const MPOL_MF_MOVE: c_int = 1 << 1;

pub(crate) fn reserve(bytes: usize, options: Options) -> Result<NonNull<u8>, RegionError> {
    let too_large = RegionError::TooLarge {
        len: bytes,
        element_bytes: 1,
    };
    let largest = PageSize::ALL
        .into_iter()
        .rfind(|size| *size <= options.page_size && size.bytes() <= bytes as u64)
        .unwrap_or(PageSize::Size4KiB);
    let start = map_aligned(bytes, largest.bytes() as usize).ok_or(too_large)?;
    let advice = if largest == PageSize::Size4KiB {
        libc::MADV_NOHUGEPAGE
    } else {
        libc::MADV_HUGEPAGE
    };
    // SAFETY: the advice is about the new mapping.
    unsafe { libc::madvise(start.as_ptr().cast(), bytes, advice) };
    if options.policy.is_some() {
        // SAFETY: as above.
        let noted = unsafe { set_policy(start, bytes, options.policy) };
        if let Err(error) = noted {
            // SAFETY: this is the new mapping, which nobody knows.
            unsafe { release(start, bytes) };
            return Err(error.into());
        }
    }
    Ok(start)
}

/// A new mapping that begins at a multiple of `alignment`, a power of two of at least a page.
fn map_aligned(bytes: usize, alignment: usize) -> Option<NonNull<u8>> {
    // Enough to find an aligned part in it, wherever it lies.
    let mapped_bytes = bytes.checked_add(alignment - PAGE_BYTES)?;
    // SAFETY: a new mapping where Linux finds room touches nothing that exists.
    let mapped = unsafe {
        libc::mmap(
            ptr::null_mut(),
            mapped_bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        return None;
    }
    let mapped = mapped.cast::<u8>();
    let before = mapped.align_offset(alignment);
    let after = mapped_bytes - before - bytes;
    // SAFETY: what is cut off are the two ends of the new mapping, which nobody knows yet.
    unsafe {
        let start = mapped.add(before);
        if before > 0 {
            libc::munmap(mapped.cast(), before);
        }
        if after > 0 {
            libc::munmap(start.add(bytes).cast(), after);
        }
        NonNull::new(start)
    }
}

/// Linux keeps a policy that is given here for pages of the range that come later, too.
///
/// # Safety
/// As `contract.rs` says: the range lies in one reservation.
pub(crate) unsafe fn populate(
    start: NonNull<u8>,
    bytes: usize,
    policy: Option<Policy>,
) -> Result<(), OutOfMemory> {
    let asked = policy
        .or_else(|| range_policy(start))
        .unwrap_or_else(thread_policy);
    if let Policy::Bind(node) = asked
        && !has_memory(node)
    {
        return Err(no_memory_on(node));
    }
    // Linux would hand out more than it has, and later kill whoever uses it.
    let available = available_bytes();
    // SAFETY: the caller's promise.
    if available.is_some_and(|available| unsafe { misses_more_than(start.as_ptr(), bytes, available) }) {
        return Err(out_of_memory(asked, PageSize::Size2MiB, available));
    }
    if let Some(policy) = policy {
        // SAFETY: the caller's promise.
        unsafe { set_policy(start, bytes, Some(policy)) }?;
    }
    // SAFETY: the caller's promise.
    match unsafe { populate_writable(start, bytes) } {
        Populated::Done => Ok(()),
        Populated::NoMemory => Err(out_of_memory(asked, PageSize::Size4KiB, available)),
        // SAFETY: the caller's promise.
        Populated::NotWritable => unsafe { populate_by_parts(start, bytes, asked, available) },
    }
}

/// What came of populating.
enum Populated {
    Done,
    NoMemory,
    /// A part may not be written to, or Linux (before 5.14) does not know how to populate.
    NotWritable,
}

/// Backs a range that may be written to.
///
/// # Safety
/// The range lies in one reservation.
unsafe fn populate_writable(start: NonNull<u8>, bytes: usize) -> Populated {
    loop {
        // SAFETY: the caller's promise; populating writes nothing to pages that exist.
        if unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_POPULATE_WRITE) } == 0 {
            return Populated::Done;
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            Some(libc::EINVAL) => return Populated::NotWritable,
            _ => return Populated::NoMemory,
        }
    }
}

/// Backs a range of which some parts may not be written to: those may be for as long as it takes.
///
/// # Safety
/// The range lies in one reservation.
unsafe fn populate_by_parts(
    start: NonNull<u8>,
    bytes: usize,
    policy: Policy,
    available: Option<u64>,
) -> Result<(), OutOfMemory> {
    for (part, protection) in protections(start.addr().get()..start.addr().get() + bytes) {
        // SAFETY: the part lies in the range.
        let (start, bytes) = unsafe { (start.add(part.start - start.addr().get()), part.len()) };
        if protection != Protection::ReadWrite {
            // SAFETY: as above.
            unsafe { protect(start, bytes, Protection::ReadWrite) }?;
        }
        // SAFETY: as above, and now the part may be written to.
        let populated = unsafe { populate_writable(start, bytes) };
        if let Populated::NotWritable = populated {
            for offset in (0..bytes).step_by(PAGE_BYTES) {
                // SAFETY: the byte lies in the part and may be written to; adding 0 changes no value, whatever others do there.
                unsafe { AtomicU8::from_ptr(start.as_ptr().add(offset)) }.fetch_or(0, Ordering::Relaxed);
            }
        }
        if protection != Protection::ReadWrite {
            // SAFETY: as above: this is what the part was.
            unsafe { protect(start, bytes, protection) }?;
        }
        if let Populated::NoMemory = populated {
            return Err(out_of_memory(policy, PageSize::Size4KiB, available));
        }
    }
    Ok(())
}

/// # Safety
/// As `contract.rs` says: the range lies in one reservation.
pub(crate) unsafe fn discard(start: NonNull<u8>, bytes: usize) -> Result<(), OutOfMemory> {
    // SAFETY: the caller's promise.
    let status = unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_DONTNEED) };
    noted(status)
}

/// # Safety
/// As `contract.rs` says: the range lies in one reservation.
pub(crate) unsafe fn protect(
    start: NonNull<u8>,
    bytes: usize,
    protection: Protection,
) -> Result<(), OutOfMemory> {
    let rights = match protection {
        Protection::None => libc::PROT_NONE,
        Protection::Read => libc::PROT_READ,
        Protection::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
    };
    // SAFETY: the caller's promise.
    noted(unsafe { libc::mprotect(start.as_ptr().cast(), bytes, rights) })
}

/// # Safety
/// As `contract.rs` says: the range lies in one reservation.
pub(crate) unsafe fn set_policy(
    start: NonNull<u8>,
    bytes: usize,
    policy: Option<Policy>,
) -> Result<(), OutOfMemory> {
    let (mode, nodes) = policy.map_or((libc::MPOL_DEFAULT, NodeMask::default()), mode_and_nodes);
    // SAFETY: the mask has as many bits as the call is told, and changing the policy changes no page.
    let status = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            start.as_ptr(),
            bytes,
            mode,
            nodes.pointer(),
            nodes.bits(),
            0,
        )
    };
    // Where Linux refuses it for another reason than memory, the program runs on without it.
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOMEM) if status != 0 => Err(nothing_to_note_it_in()),
        _ => Ok(()),
    }
}

/// The policy of the range that holds `address`, if it has one.
fn range_policy(address: NonNull<u8>) -> Option<Policy> {
    let (mut mode, mut nodes) = (libc::MPOL_DEFAULT, NodeMask::default());
    // SAFETY: the mask has room for as many bits as the call is told, and the address is only looked up.
    let status = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            nodes.0.as_mut_ptr(),
            nodes.bits(),
            address.as_ptr(),
            MPOL_F_ADDR,
        )
    };
    match mode {
        _ if status != 0 => None,
        libc::MPOL_LOCAL => Some(Policy::Local),
        libc::MPOL_BIND => nodes.first().map(Policy::Bind),
        libc::MPOL_PREFERRED => nodes.first().map(Policy::Preferred),
        libc::MPOL_INTERLEAVE => Some(Policy::Interleave),
        _ => None,
    }
}

std::thread_local! {
    static THREAD_POLICY: Cell<Policy> = const { Cell::new(Policy::Local) };
}

/// Linux does not say.
pub(crate) fn page_table_locks() -> &'static str {
    "linux"
}

pub(crate) fn set_thread_policy(policy: Policy) {
    THREAD_POLICY.set(policy);
    if topology().nodes().len() > 1 {
        let (mode, nodes) = mode_and_nodes(policy);
        // SAFETY: the mask has as many bits as the call is told. Where Linux refuses it, the program runs on without it.
        unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, nodes.pointer(), nodes.bits()) };
    }
}

pub(crate) fn thread_policy() -> Policy {
    THREAD_POLICY.get()
}

/// A set of nodes, by Linux's numbers.
#[derive(Default)]
struct NodeMask([u64; 16]);

impl NodeMask {
    fn of(nodes: impl IntoIterator<Item = NodeId>) -> Self {
        let mut mask = Self::default();
        for number in nodes.into_iter().filter_map(os_node) {
            if let Some(word) = mask.0.get_mut(number / 64) {
                *word |= 1 << (number % 64);
            }
        }
        mask
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    fn first(&self) -> Option<NodeId> {
        let numbers = 0..self.bits();
        let mut set = numbers.filter(|number| self.0[number / 64] >> (number % 64) & 1 == 1);
        set.next().and_then(node_of_os)
    }

    /// The set as Linux takes it; null if no node is in it, as policies without nodes want it.
    fn pointer(&self) -> *const u64 {
        if self.is_empty() {
            ptr::null()
        } else {
            self.0.as_ptr()
        }
    }

    /// How many bits there are at [`pointer`](Self::pointer), unless it is null.
    fn bits(&self) -> usize {
        size_of_val(&self.0) * 8
    }
}

fn mode_and_nodes(policy: Policy) -> (c_int, NodeMask) {
    match policy {
        Policy::Local => (libc::MPOL_LOCAL, NodeMask::default()),
        Policy::Bind(node) => (libc::MPOL_BIND, NodeMask::of([node])),
        Policy::Preferred(node) => (libc::MPOL_PREFERRED, NodeMask::of([node])),
        Policy::Interleave => {
            let nodes = topology().nodes().iter().filter(|node| node.has_memory());
            (
                libc::MPOL_INTERLEAVE,
                NodeMask::of(nodes.map(homenode_topology::Node::id)),
            )
        }
    }
}

/// # Safety
/// As `contract.rs` says: the range lies in one reservation.
pub(crate) unsafe fn move_pages(
    start: NonNull<u8>,
    bytes: usize,
    node: NodeId,
) -> Result<usize, OutOfMemory> {
    let Some(target) = os_node(node).filter(|_| topology().nodes().len() > 1) else {
        return Ok(0);
    };
    let target = target as c_int;
    let mut moved = 0;
    for pages in pages_of(start, bytes).chunks(PAGES_AT_ONCE) {
        // SAFETY: the caller's promise.
        let places = unsafe { place(pages, None) }.unwrap_or_default();
        let elsewhere = pages.iter().zip(places);
        let elsewhere: Vec<_> = elsewhere
            .filter(|(_, place)| *place >= 0 && *place != target)
            .map(|(page, _)| *page)
            .collect();
        if elsewhere.is_empty() {
            continue;
        }
        if !has_memory(node) {
            return Err(no_memory_on(node));
        }
        // SAFETY: as above.
        let Some(places) = (unsafe { place(&elsewhere, Some(target)) }) else {
            continue;
        };
        moved += places.iter().filter(|place| **place == target).count();
        if places.contains(&-libc::ENOMEM) {
            return Err(out_of_memory(
                Policy::Bind(node),
                PageSize::Size4KiB,
                available_bytes(),
            ));
        }
    }
    Ok(moved)
}

/// # Safety
/// As `contract.rs` says: the range lies in one reservation.
pub(crate) unsafe fn query(address: NonNull<u8>) -> Option<Page> {
    let offset = address.addr().get() % PAGE_BYTES;
    let mut page = None;
    // SAFETY: a reservation is of whole pages.
    unsafe {
        placement(address.sub(offset), PAGE_BYTES, &mut |node, size, _| {
            page = Some((node, size));
        });
    }
    page.map(|(node, size)| {
        let start = address.addr().get() - offset;
        let mut protections = protections(start..start + PAGE_BYTES).into_iter();
        Page {
            node,
            size,
            protection: protections.next().map_or(Protection::ReadWrite, |part| part.1),
        }
    })
}

/// # Safety
/// As `contract.rs` says: this is a whole reservation, and nobody uses it any more.
pub(crate) unsafe fn release(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
}

/// Linux does not say to everyone how large a page is, so all are reported as pages of 4 KiB.
///
/// # Safety
/// As `contract.rs` says: the range lies in one reservation.
pub(crate) unsafe fn placement(start: NonNull<u8>, bytes: usize, report: &mut PageReport<'_>) {
    for pages in pages_of(start, bytes).chunks(PAGES_AT_ONCE) {
        // SAFETY: the caller's promise.
        let places = unsafe { place(pages, None).unwrap_or_else(|| presence(pages)) };
        for same in places.chunk_by(|a, b| a == b) {
            // A negative number says that there is no page.
            if let Ok(number) = usize::try_from(same[0]) {
                report(
                    node_of_os(number).unwrap_or_default(),
                    PageSize::Size4KiB,
                    same.len(),
                );
            }
        }
    }
}

/// The addresses of a range's pages.
fn pages_of(start: NonNull<u8>, bytes: usize) -> Vec<*mut u8> {
    let offsets = (0..bytes).step_by(PAGE_BYTES);
    offsets
        .map(|offset| start.as_ptr().wrapping_add(offset))
        .collect()
}

/// Moves each page to Linux's node `target`, or leaves it, and says for each on which of Linux's nodes it lies now; a negative
/// number says why on none (`move_pages(2)`). `None` if Linux refuses altogether.
///
/// # Safety
/// The pages belong to a reservation.
unsafe fn place(pages: &[*mut u8], target: Option<c_int>) -> Option<Vec<c_int>> {
    let targets = target.map(|target| alloc::vec![target; pages.len()]);
    let mut places = alloc::vec![-libc::ENOENT; pages.len()];
    // SAFETY: all arrays have as many items as the call is told.
    let status = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages.len(),
            pages.as_ptr().cast::<*const c_void>(),
            targets.as_ref().map_or(ptr::null(), Vec::as_ptr),
            places.as_mut_ptr(),
            if targets.is_some() { MPOL_MF_MOVE } else { 0 },
        )
    };
    // A positive status counts pages that could not be moved: see their places.
    (status >= 0).then_some(places)
}

/// Like [`place`] where Linux knows no nodes: node 0 if there is a page.
///
/// # Safety
/// The pages belong to a reservation.
unsafe fn presence(pages: &[*mut u8]) -> Vec<c_int> {
    let is_there = |page: &*mut u8| {
        let mut there = 0_u8;
        // SAFETY: there is a byte for the one page.
        let status = unsafe { libc::mincore(page.cast(), PAGE_BYTES, &raw mut there) };
        status == 0 && there & 1 == 1
    };
    let place = |page| if is_there(page) { 0 } else { -libc::ENOENT };
    pages.iter().map(place).collect()
}

/// Whether more than `limit` bytes of a range have no page.
///
/// # Safety
/// The range lies in one reservation.
unsafe fn misses_more_than(start: *mut u8, bytes: usize, limit: u64) -> bool {
    if bytes as u64 <= limit {
        return false;
    }
    let mut missing = 0;
    let mut present = [0_u8; PAGES_AT_ONCE];
    for offset in (0..bytes).step_by(PAGES_AT_ONCE * PAGE_BYTES) {
        let part = (bytes - offset).min(PAGES_AT_ONCE * PAGE_BYTES);
        // SAFETY: the part lies in the range, and there is a byte for each of its pages.
        unsafe { libc::mincore(start.add(offset).cast(), part, present.as_mut_ptr()) };
        missing += present[..part / PAGE_BYTES]
            .iter()
            .filter(|&&page| page & 1 == 0)
            .count()
            * PAGE_BYTES;
        if missing as u64 > limit {
            return true;
        }
    }
    false
}

/// What may be done with the parts of a range, by `/proc/self/maps` (`proc(5)`).
fn protections(range: Range<usize>) -> Vec<(Range<usize>, Protection)> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    parse_protections(&maps, range)
}

fn parse_protections(maps: &str, range: Range<usize>) -> Vec<(Range<usize>, Protection)> {
    let parse = |line: &str| {
        let (addresses, rest) = line.split_once(' ')?;
        let (start, end) = addresses.split_once('-')?;
        let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).ok());
        let part = start?.max(range.start)..end?.min(range.end);
        let protection = match rest.as_bytes().get(..2)? {
            b"rw" => Protection::ReadWrite,
            b"r-" => Protection::Read,
            _ => Protection::None,
        };
        (!part.is_empty()).then_some((part, protection))
    };
    maps.lines().filter_map(parse).collect()
}

/// How many bytes Linux could hand out without swapping, if it says so.
fn available_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// What the status of a call means that fails only when Linux can not note something.
fn noted(status: c_int) -> Result<(), OutOfMemory> {
    if status == 0 {
        Ok(())
    } else {
        Err(nothing_to_note_it_in())
    }
}

/// Linux has no memory for its own notes about a range, or allows no more of them (`vm.max_map_count`).
fn nothing_to_note_it_in() -> OutOfMemory {
    out_of_memory(Policy::Local, PageSize::Size4KiB, available_bytes())
}

fn has_memory(node: NodeId) -> bool {
    let node = topology().nodes().get(node.index());
    node.is_some_and(homenode_topology::Node::has_memory)
}

/// Memory of a node that has none, or is none, was asked for.
fn no_memory_on(node: NodeId) -> OutOfMemory {
    OutOfMemory {
        free_bytes: 0,
        total_bytes: 0,
        ..out_of_memory(Policy::Bind(node), PageSize::Size4KiB, None)
    }
}

fn out_of_memory(policy: Policy, size: PageSize, available: Option<u64>) -> OutOfMemory {
    let node = match policy {
        Policy::Bind(node) | Policy::Preferred(node) => node,
        Policy::Local | Policy::Interleave => current_node(),
    };
    OutOfMemory {
        node,
        order: size.order(),
        policy,
        free_bytes: available.unwrap_or(0),
        total_bytes: topology()
            .nodes()
            .iter()
            .map(homenode_topology::Node::memory_bytes)
            .sum(),
        kept_bytes: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_memory_than_there_is_is_refused() {
        let bytes = 1 << 44;
        let start = reserve(bytes, Options::default()).expect("addresses cost nothing");
        // SAFETY: this lies in the reservation.
        let error = unsafe { populate(start, 1 << 43, Some(Policy::Bind(NodeId(0)))) };
        let error = error.expect_err("no machine has that");
        assert_eq!((error.node, error.policy), (NodeId(0), Policy::Bind(NodeId(0))));
        assert!(error.free_bytes < 1 << 43);
        // SAFETY: as above, and nobody has a reference to it.
        unsafe { release(start, bytes) };
    }

    #[test]
    fn reservations_begin_where_their_largest_page_does() {
        let (huge, giant) = (2 << 20, 1 << 30);
        for (bytes, page_size, alignment) in [
            (PAGE_BYTES, PageSize::Size1GiB, PAGE_BYTES),
            (huge - PAGE_BYTES, PageSize::Size2MiB, PAGE_BYTES),
            (huge, PageSize::Size2MiB, huge),
            (giant, PageSize::Size2MiB, huge),
            (giant - PAGE_BYTES, PageSize::Size1GiB, huge),
            (giant, PageSize::Size1GiB, giant),
        ] {
            let options = Options {
                page_size,
                ..Options::default()
            };
            let start = reserve(bytes, options).expect("there are addresses");
            assert!(
                start.addr().get().is_multiple_of(alignment),
                "{bytes} bytes, {options:?}"
            );
            // SAFETY: this is the whole reservation, and nobody has a reference to it.
            unsafe { release(start, bytes) };
        }
    }

    #[test]
    fn linux_knows_the_policies_of_ranges() {
        const BYTES: usize = 8 * PAGE_BYTES;
        let start = reserve(BYTES, Policy::Interleave.into()).expect("there are addresses");
        if range_policy(start).is_none() {
            eprintln!("left out: Linux knows no policies here");
            return;
        }
        assert_eq!(range_policy(start), Some(Policy::Interleave));
        // SAFETY: all of this lies in the reservation.
        unsafe {
            for policy in [
                Some(Policy::Bind(NodeId(0))),
                Some(Policy::Preferred(NodeId(0))),
                Some(Policy::Local),
                None,
                Some(Policy::Interleave),
            ] {
                set_policy(start.add(PAGE_BYTES), PAGE_BYTES, policy).expect("it is noted");
                assert_eq!(range_policy(start.add(PAGE_BYTES)), policy);
                assert_eq!(range_policy(start.add(2 * PAGE_BYTES)), Some(Policy::Interleave));
            }
            release(start, BYTES);
        }
    }

    #[test]
    fn protections_are_read_as_linux_writes_them() {
        let maps = "1000-3000 rw-p 00000000 00:00 0 \n\
                    3000-4000 r--p 00000000 00:00 0   [heap]\n\
                    4000-5000 ---p 00000000 00:00 0\n\
                    7000-8000 r-xp 00000000 fe:00 12  /bin/x\nnonsense\n";
        let expected = [
            (0x2000..0x3000, Protection::ReadWrite),
            (0x3000..0x4000, Protection::Read),
            (0x4000..0x5000, Protection::None),
        ];
        assert_eq!(parse_protections(maps, 0x2000..0x6000), expected);
    }
}
