//! Address ranges and the pages behind them: `mmap(2)`, `madvise(2)`, `mbind(2)`, `move_pages(2)`.

use alloc::vec::Vec;
use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU8, Ordering};
use std::{fs, io};

use homenode_mm::{OutOfMemory, PageSize, Policy};

use super::cpus::{node_of_os, os_node, topology};
use super::threads::current_node;
use crate::contract::PageReport;

const PAGE_BYTES: usize = PageSize::Size4KiB.bytes() as usize;
const HUGE_PAGE_BYTES: usize = PageSize::Size2MiB.bytes() as usize;

/// How many pages one question to Linux is about.
const PAGES_AT_ONCE: usize = 4096;

pub(crate) fn reserve(bytes: usize) -> Option<NonNull<u8>> {
    // Enough to find an aligned part in it, wherever it lies.
    let mapped_bytes = bytes.checked_add(HUGE_PAGE_BYTES - PAGE_BYTES)?;
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
    let before = mapped.align_offset(HUGE_PAGE_BYTES);
    let after = mapped_bytes - before - bytes;
    // SAFETY: what is cut off are the two ends of the new mapping, which nobody knows yet; the advice is about the rest.
    unsafe {
        let start = mapped.add(before);
        if before > 0 {
            libc::munmap(mapped.cast(), before);
        }
        if after > 0 {
            libc::munmap(start.add(bytes).cast(), after);
        }
        libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE);
        NonNull::new(start)
    }
}

/// # Safety
/// As `contract.rs` says: the bytes lie in one reservation.
pub(crate) unsafe fn populate(start: NonNull<u8>, bytes: usize, policy: Policy) -> Result<(), OutOfMemory> {
    let before = start.addr().get() % HUGE_PAGE_BYTES;
    let bytes = (before + bytes).next_multiple_of(HUGE_PAGE_BYTES);
    // SAFETY: a reservation is of whole 2 MiB pages, so the page's start lies in it too.
    let start = unsafe { start.sub(before) }.as_ptr();
    let out_of_memory = |available| out_of_memory(policy, available);

    // Linux would hand out more than it has, and later kill whoever uses it.
    let available = available_bytes();
    // SAFETY: the range lies in a reservation.
    if available.is_some_and(|available| unsafe { misses_more_than(start, bytes, available) }) {
        return Err(out_of_memory(available));
    }
    if topology().nodes().len() > 1 {
        // SAFETY: as above.
        unsafe { set_policy(start, bytes, policy) };
    }
    loop {
        // SAFETY: as above; populating writes nothing to pages that exist.
        if unsafe { libc::madvise(start.cast(), bytes, libc::MADV_POPULATE_WRITE) } == 0 {
            return Ok(());
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // Linux before 5.14.
            Some(libc::EINVAL) => break,
            _ => return Err(out_of_memory(available)),
        }
    }
    for offset in (0..bytes).step_by(PAGE_BYTES) {
        // SAFETY: the byte lies in the reservation, is aligned, and before the reservation is finished is only accessed atomically,
        // here. Afterwards nothing is missing and nobody gets here.
        unsafe { AtomicU8::from_ptr(start.add(offset)) }.fetch_or(0, Ordering::Relaxed);
    }
    Ok(())
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
/// As `contract.rs` says: the bytes lie in one reservation.
pub(crate) unsafe fn placement(start: NonNull<u8>, bytes: usize, report: &mut PageReport<'_>) {
    let mut pages: Vec<*mut c_void> = (0..bytes)
        .step_by(PAGE_BYTES)
        .map(|offset| start.as_ptr().wrapping_add(offset).cast())
        .collect();
    for pages in pages.chunks_mut(PAGES_AT_ONCE) {
        let mut nodes = alloc::vec![0 as c_int; pages.len()];
        // SAFETY: both arrays have as many items as the call is told; without a list of nodes to move to, it only asks.
        let status = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                pages.len(),
                pages.as_ptr(),
                ptr::null::<c_int>(),
                nodes.as_mut_ptr(),
                0,
            )
        };
        if status != 0 {
            // Linux without NUMA, or a sandbox: node 0, as everything.
            nodes.fill(0);
        }
        for same in nodes.chunk_by(|a, b| a == b) {
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

/// Tells Linux where pages that are still missing from a range should come from.
///
/// # Safety
/// The range lies in one reservation.
unsafe fn set_policy(start: *mut u8, bytes: usize, policy: Policy) {
    let mut mask = [0_u64; 16];
    let mut add = |node| {
        if let Some(number) = os_node(node)
            && let Some(word) = mask.get_mut(number / 64)
        {
            *word |= 1 << (number % 64);
        }
    };
    let mode = match policy {
        Policy::Local => libc::MPOL_LOCAL,
        Policy::Bind(node) => {
            add(node);
            libc::MPOL_BIND
        }
        Policy::Interleave => {
            let nodes = topology().nodes().iter();
            nodes
                .filter(|node| node.has_memory())
                .for_each(|node| add(node.id()));
            libc::MPOL_INTERLEAVE
        }
    };
    // A local policy comes without nodes.
    let bits = if mode == libc::MPOL_LOCAL {
        0
    } else {
        size_of_val(&mask) * 8
    };
    // SAFETY: the mask has this many bits, and changing the policy changes no page.
    unsafe { libc::syscall(libc::SYS_mbind, start, bytes, mode, mask.as_ptr(), bits, 0) };
}

/// How many bytes Linux could hand out without swapping, if it says so.
fn available_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

fn out_of_memory(policy: Policy, available: Option<u64>) -> OutOfMemory {
    let node = if let Policy::Bind(node) = policy {
        node
    } else {
        current_node()
    };
    OutOfMemory {
        node,
        order: PageSize::Size2MiB.order(),
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
    use homenode_topology::NodeId;

    use super::*;

    #[test]
    fn more_memory_than_there_is_is_refused() {
        let bytes = 1 << 44;
        let start = reserve(bytes).expect("addresses cost nothing");
        // SAFETY: this is the whole reservation.
        let error =
            unsafe { populate(start, 1 << 43, Policy::Bind(NodeId(0))) }.expect_err("no machine has that");
        assert_eq!((error.node, error.policy), (NodeId(0), Policy::Bind(NodeId(0))));
        assert!(error.free_bytes < 1 << 43);
        // SAFETY: as above, and nobody has a reference to it.
        unsafe { release(start, bytes) };
    }
}
