//! Program memory: address ranges of the lower half, backed by 2 MiB pages when asked for.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use hermit_sync::{OnceCell, SpinMutex};
use homenode_metrics::NodeCounter;
use homenode_mm::{
    Block, Flags, Frame, FrameSize, Machine, MapError, OutOfMemory, PageSize, Policy, Size2MiB, Size4KiB,
    VirtAddr, VirtRange,
};
use homenode_topology::NodeId;

use super::memory::{self, DirectMap};
use super::percpu::this_cpu;
use super::{cpu, gate, tlb};

/// Where reservations begin: high enough that no small integer is a usable pointer.
const START: u64 = 64 << 30;
/// Where they end, and the program's heaps begin.
pub(crate) const END: u64 = 64 << 40;

/// Ranges that were released, by their size, for reservations of the same size.
static RELEASED: SpinMutex<BTreeMap<u64, Vec<u64>>> = SpinMutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(START);

fn flags() -> Flags {
    Flags::WRITABLE | Flags::NO_EXECUTE
}

/// Unmapped addresses behind each reservation, so that running over its end is noticed.
const GUARD_BYTES: u64 = Size2MiB::BYTES;

/// A range of `bytes` (a positive multiple of 2 MiB) with nothing behind it, aligned to 2 MiB; `None` when there is none left.
pub(crate) fn reserve(bytes: usize) -> Option<NonNull<u8>> {
    let bytes = bytes as u64;
    gate::enter(move || {
        let released = RELEASED.lock().get_mut(&bytes).and_then(Vec::pop);
        let start = match released {
            Some(start) => start,
            None => {
                let start = NEXT
                    .try_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                        next.checked_add(bytes)?
                            .checked_add(GUARD_BYTES)
                            .filter(|&end| end <= END)
                    })
                    .ok()?;
                tolerate_wide_reads(start + bytes);
                start
            }
        };
        NonNull::new(start as *mut u8)
    })
}

/// The page of zeros behind reservations under an emulator that reads too far.
static ZEROS: OnceCell<Option<Frame<Size4KiB>>> = OnceCell::new();

/// Makes the first page of the guard at `end` readable where QEMU emulates the CPU: up to version 10 at least, it reads 32 bytes
/// for the 16 of a `VINSERTF128` from memory, and so faults at the end of correct programs' buffers.
fn tolerate_wide_reads(end: u64) {
    let zeros = ZEROS.get_or_init(|| {
        if !cpu::is_emulated_by_qemu() {
            return None;
        }
        let frame = memory::allocate_frame::<Size4KiB>(memory::local_node(), Policy::Local, 0).ok()?;
        // SAFETY: a fresh frame.
        unsafe { DirectMap.zero(frame.range()) };
        Some(frame)
    });
    let Some(frame) = zeros else { return };
    let page = VirtAddr::new_truncated(end);
    let mut tables = memory::local_tables(memory::local_node());
    let mapped = memory::tables().map(
        page,
        frame.start(),
        PageSize::Size4KiB,
        Flags::NO_EXECUTE,
        &mut tables,
    );
    if let Err(error) = mapped {
        log::debug!("no page of zeros behind {end:#x}: {error}");
    }
}

/// Whether `address` lies in a range that was reserved once.
pub(crate) fn is_reserved(address: u64) -> bool {
    (START..NEXT.load(Ordering::Relaxed)).contains(&address)
}

/// Backs each 2 MiB page of the range that has no memory yet, from the running CPU's point of view.
///
/// # Errors
/// When `policy` finds no frame. What was backed until then stays.
pub(crate) fn populate(start: u64, bytes: u64, policy: Policy) -> Result<(), OutOfMemory> {
    gate::enter(move || populate_on(memory::local_node(), start, bytes, policy))
}

/// Like [`populate`], from the point of view of a CPU of `node`. Inside the gate.
///
/// # Errors
/// As for [`populate`].
pub(crate) fn populate_on(node: NodeId, start: u64, bytes: u64, policy: Policy) -> Result<(), OutOfMemory> {
    let huge = Size2MiB::BYTES;
    let first = start & !(huge - 1);
    for page in (first..start.saturating_add(bytes)).step_by(huge as usize) {
        let page = VirtAddr::new_truncated(page);
        let there = memory::tables().query(page);
        if there.is_none_or(|mapping| mapping.size == PageSize::Size4KiB) {
            populate_page(node, page, policy)?;
        }
    }
    Ok(())
}

/// Backs one 2 MiB page: by a 2 MiB frame, or by 4 KiB frames where there is no such frame or the page is divided already.
fn populate_page(node: NodeId, page: VirtAddr, policy: Policy) -> Result<(), OutOfMemory> {
    let index = page.as_u64() / Size2MiB::BYTES;
    // Where an earlier call found no more memory, small pages are there already.
    if memory::tables().query(page).is_none() {
        match map_new(node, page, PageSize::Size2MiB, policy, index) {
            Ok(()) => return Ok(()),
            Err(NotMapped::NoFrame(error)) => count(error.node, NodeCounter::ThpFaultFallback),
            Err(NotMapped::Divided) => count(node, NodeCounter::ThpFaultFallback),
        }
    }
    for small in (page.as_u64()..page.as_u64() + Size2MiB::BYTES).step_by(Size4KiB::BYTES as usize) {
        let small = VirtAddr::new_truncated(small);
        if memory::tables().query(small).is_some() {
            continue;
        }
        match map_new(node, small, PageSize::Size4KiB, policy, index) {
            Ok(()) => {}
            Err(NotMapped::NoFrame(error)) => return Err(error),
            Err(NotMapped::Divided) => return Err(memory::no_table_frame(node)),
        }
    }
    Ok(())
}

fn count(node: NodeId, counter: NodeCounter) {
    if let Some(counters) = this_cpu().counters.get() {
        counters.add_node(node, counter, 1);
    }
}

/// Why [`map_new`] mapped nothing.
enum NotMapped {
    NoFrame(OutOfMemory),
    /// Smaller pages were there before.
    Divided,
}

/// Maps a zeroed frame at `page` unless something is mapped there already.
fn map_new(
    node: NodeId,
    page: VirtAddr,
    size: PageSize,
    policy: Policy,
    index: u64,
) -> Result<(), NotMapped> {
    let frames = memory::frames();
    let allocation = frames
        .allocate_block(size.order(), policy, node, index)
        .map_err(NotMapped::NoFrame)?;
    let block = allocation.memory;
    if !memory::kernel_reserve_is_left(allocation.placement.node) {
        frames.free_block(block);
        let refused = frames.out_of_memory(size.order(), policy, node, index);
        let kept_bytes = memory::KERNEL_RESERVE_BYTES;
        return Err(NotMapped::NoFrame(OutOfMemory {
            kept_bytes,
            ..refused
        }));
    }
    // SAFETY: the block is this function's own until it is mapped.
    unsafe { DirectMap.zero(block.range()) };
    match memory::tables().map(
        page,
        block.start(),
        size,
        flags(),
        &mut memory::local_tables(node),
    ) {
        Ok(()) => {
            memory::count(allocation.placement);
            if size == PageSize::Size2MiB {
                count(allocation.placement.node, NodeCounter::ThpFaultAlloc);
            }
            account(allocation.placement.node, size, 1);
            Ok(())
        }
        Err(error) => {
            frames.free_block(block);
            match error {
                // Another thread was faster: its page stays.
                MapError::AlreadyMapped(_) => Ok(()),
                MapError::Divided { .. } => Err(NotMapped::Divided),
                _ => Err(NotMapped::NoFrame(memory::no_table_frame(node))),
            }
        }
    }
}

/// Pages of program memory by node and size.
static MAPPED_PAGES: OnceCell<Vec<[AtomicU64; PageSize::ALL.len()]>> = OnceCell::new();

fn account(node: NodeId, size: PageSize, change: i64) {
    let pages = MAPPED_PAGES.get_or_init(|| {
        (0..memory::frames().nodes())
            .map(|_| [const { AtomicU64::new(0) }; PageSize::ALL.len()])
            .collect()
    });
    if let Some(pages) = pages.get(node.index()) {
        pages[size as usize].fetch_add(change as u64, Ordering::Relaxed);
    }
}

/// Program memory on `node` in bytes, by page size.
pub(crate) fn mapped_bytes(node: NodeId) -> [u64; PageSize::ALL.len()] {
    let pages = MAPPED_PAGES.get().and_then(|nodes| nodes.get(node.index()));
    PageSize::ALL
        .map(|size| pages.map_or(0, |pages| pages[size as usize].load(Ordering::Relaxed)) * size.bytes())
}

/// Frames that wait for a TLB flush before they are free, at most this many per flush.
const BATCH: usize = 512;

/// Gives a whole reservation back: its pages at once, its addresses once no CPU can translate them any more.
pub(crate) fn release(start: u64, bytes: u64) {
    gate::enter(move || {
        let Some(range) = VirtAddr::new(start).and_then(|start| VirtRange::new(start, bytes)) else {
            return;
        };
        let mut batch = ArrayVec::<Block, BATCH>::new();
        let unmapped = memory::tables().unmap_range(range, |mapping| {
            let block = Block::new(mapping.frame, mapping.size.order());
            batch.push(block.expect("a mapped frame is aligned to its size"));
            if let Some(node) = memory::frames().node_of(mapping.frame) {
                account(node, mapping.size, -1);
            }
            if batch.is_full() {
                free_after_flush(&mut batch);
            }
        });
        debug_assert!(unmapped.is_ok(), "a reservation holds whole pages");
        if !batch.is_empty() {
            free_after_flush(&mut batch);
        }
        RELEASED.lock().entry(bytes).or_default().push(start);
    });
}

/// Frees frames that are no longer mapped, once no CPU can translate to them any more.
fn free_after_flush(batch: &mut ArrayVec<Block, BATCH>) {
    tlb::flush_all_cpus();
    for block in batch.drain(..) {
        memory::frames().free_block(block);
    }
}

/// Calls `report` with node, size and number of the pages behind the range, page by page.
pub(crate) fn placement(start: u64, bytes: u64, report: &mut dyn FnMut(NodeId, PageSize, usize)) {
    let Some(range) = VirtAddr::new(start).and_then(|start| VirtRange::new(start, bytes)) else {
        return;
    };
    memory::tables().visit(range, |mapping| {
        if let Some(node) = memory::frames().node_of(mapping.frame) {
            report(node, mapping.size, 1);
        }
    });
}
