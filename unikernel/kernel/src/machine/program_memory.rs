//! Program memory: the lower half of the address space, whose pages come when they are touched.

use core::fmt::{self, Write};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};

use alloc::boxed::Box;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use hermit_sync::OnceCell;
use homenode_mm::{
    Access, AddressSpace, Attributes, FaultError, FrameSize, LockScheme, MapError, OutOfMemory, PageSize,
    PageState, Policy, Protection, RangeError, ReserveError, Retirement, Size4KiB, TlbEngine, VirtAddr,
    VirtRange,
};
use homenode_topology::{Bytes, Node, NodeId, Topology};

use super::memory::{self, DirectMap};
use super::percpu::{PerCpu, this_cpu};
use super::{cpu, gate, stacks};
use crate::cmdline;

/// Where program memory begins: high enough that no small integer is a usable pointer, and a whole entry of the root.
const START: u64 = 512 << 30;
/// Where it ends: with the lower half, but for the last entry of the root, so that no range ends where addresses do.
const END: u64 = (1 << 47) - (512 << 30);

static SPACE: OnceCell<AddressSpace<'static, DirectMap>> = OnceCell::new();

/// The part of a node's memory that may wait for CPUs to drop translations, unless the command line says how much.
const PENDING_SHARE: u64 = 32;

/// Sets program memory up for the CPUs of `topology`.
///
/// # Errors
/// If there is no memory for the root that idle CPUs use.
pub(crate) fn init(topology: &Topology, scheme: LockScheme, words: &cmdline::Tlb) -> Result<(), MapError> {
    memory::init_idle_root()?;
    let nodes_of_cpus: Vec<NodeId> = topology.cpus().iter().map(|cpu| cpu.node).collect();
    let tlb = Box::leak(Box::new(TlbEngine::new(&nodes_of_cpus, words.range_max_pages)));
    let pending_max = |node: &Node| {
        words
            .pending_max_bytes
            .unwrap_or(node.memory_bytes() / PENDING_SHARE)
    };
    let retirement = Retirement {
        lazy: words.lazy,
        deadline_ns: u64::try_from(words.deadline.as_nanos()).unwrap_or(u64::MAX),
        pending_max_bytes: topology.nodes().iter().map(pending_max).collect(),
    };
    let whole = VirtAddr::new(START).and_then(|start| VirtRange::new(start, END - START));
    let whole = whole.expect("the lower half is larger");
    let root = memory::tables().root();
    // SAFETY: the root is never given back, and nothing else touches its lower half.
    let space = unsafe { AddressSpace::new(root, whole, memory::frames(), tlb, scheme, &retirement) };
    assert!(SPACE.set(space).is_ok(), "program memory is set up once");
    Ok(())
}

/// Program memory, once it is set up.
pub(super) fn space() -> &'static AddressSpace<'static, DirectMap> {
    SPACE.get().expect("program memory is set up before it is used")
}

/// How page-table pages are locked.
pub(crate) fn lock_scheme() -> &'static str {
    match space().scheme() {
        LockScheme::Split => "split",
        LockScheme::Coarse => "coarse",
    }
}

/// Whether `address` is one of program memory, reserved or not.
pub(crate) fn contains(address: u64) -> bool {
    (START..END).contains(&address)
}

/// The policy of the running thread.
#[inline]
fn thread_policy() -> Policy {
    this_cpu()
        .current()
        .map_or(Policy::Local, |thread| thread.policy())
}

/// Handles a page fault by a read or a write if it is of the commonest kind; whether it was. Interrupts are off.
#[inline(always)]
pub(crate) fn fault_at_once(cpu: &PerCpu, address: u64) -> bool {
    let Some(space) = cpu.space.get() else {
        return false;
    };
    thread_policy() == Policy::Local && space.fault_at_once(VirtAddr::new_truncated(address))
}

/// Handles any page fault. Interrupts are on.
///
/// # Errors
/// If it is the program's error, or if there is no memory.
pub(crate) fn fault(address: u64, access: Access) -> Result<(), FaultError> {
    let at = VirtAddr::new_truncated(address);
    if !contains(address) {
        return Err(FaultError::NotReserved(at));
    }
    match space().fault(at, access, thread_policy()) {
        Err(error) => retry_fault(at, access, error),
        Ok(()) => Ok(()),
    }
}

#[cold]
fn retry_fault(address: VirtAddr, access: Access, error: FaultError) -> Result<(), FaultError> {
    let may_help = match error {
        FaultError::OutOfMemory(_) => stacks::free_unused(),
        FaultError::NotReserved(_) => access == Access::Read && tolerate_wide_read(address),
        FaultError::NotAllowed { .. } => false,
    };
    if may_help {
        space().fault(address, access, thread_policy())
    } else {
        Err(error)
    }
}

/// How far an emulated `VINSERTF128` reads too far.
const WIDE_READ_BYTES: u64 = 16;

/// Makes the page at `address` readable if it is the first one behind a reservation, the read goes no further than a correct
/// program's can, and QEMU emulates the CPU: up to version 10 at least, it reads 32 bytes for the 16 of a `VINSERTF128` from
/// memory, and so faults at the end of correct programs' buffers.
fn tolerate_wide_read(address: VirtAddr) -> bool {
    let page = address.align_down(Size4KiB::BYTES);
    let before = VirtAddr::new(page.as_u64() - 1);
    let tolerated = cpu::is_emulated_by_qemu()
        && address.as_u64() - page.as_u64() < WIDE_READ_BYTES
        && before.is_some_and(|before| space().query(before) != PageState::Unreserved)
        && VirtRange::new(page, Size4KiB::BYTES)
            .is_some_and(|range| space().mark_reserved(range, WIDE_READ_PAGE).is_ok());
    if tolerated {
        WIDE_READS.store(true, Ordering::Relaxed);
    }
    tolerated
}

/// Whether [`tolerate_wide_read`] has ever put a page behind a reservation.
static WIDE_READS: AtomicBool = AtomicBool::new(false);

/// What [`tolerate_wide_read`] puts behind a reservation.
const WIDE_READ_PAGE: Attributes = Attributes {
    protection: Protection::Read,
    policy: Some(Policy::Local),
    page_size: PageSize::Size4KiB,
};

/// A reservation of `bytes` bytes at `start` and what [`tolerate_wide_read`] has put behind it, if it has.
#[inline]
fn with_wide_read(start: u64, bytes: u64) -> Option<VirtRange> {
    let behind = || VirtAddr::new(start + bytes).map(|page| space().query(page));
    (WIDE_READS.load(Ordering::Relaxed) && behind() != Some(PageState::Unreserved))
        .then(|| range(start, bytes + Size4KiB::BYTES))
}

fn range(start: u64, bytes: u64) -> VirtRange {
    VirtAddr::new(start)
        .and_then(|start| VirtRange::new(start, bytes))
        .expect("what was reserved lies in one half of the address space")
}

/// Reserves `bytes` bytes (above 0), with nothing behind them. Where the CPU lacks 1 GiB pages, 2 MiB pages serve.
///
/// # Errors
/// If there are no addresses, or no memory for page tables.
pub(crate) fn reserve(bytes: usize, attributes: Attributes) -> Result<NonNull<u8>, ReserveError> {
    let page_size = match attributes.page_size {
        PageSize::Size1GiB if !cpu::has_1gib_pages() => PageSize::Size2MiB,
        size => size,
    };
    let attributes = Attributes {
        page_size,
        ..attributes
    };
    gate::enter(move || {
        let range = space().reserve(bytes as u64, attributes)?;
        Ok(NonNull::new(range.start().as_mut_ptr()).expect("program memory does not begin at 0"))
    })
}

/// Gives a whole reservation back.
pub(crate) fn release(start: u64, bytes: u64) {
    gate::enter(move || {
        let bytes = bytes.next_multiple_of(Size4KiB::BYTES);
        let range = range(start, bytes);
        match with_wide_read(start, bytes) {
            None => space().release(range),
            Some(more) => space().release_from(more, AddressSpace::<DirectMap>::addresses_of(range)),
        }
    });
}

/// As [`release`], but on return no CPU can reach the memory.
pub(crate) fn revoke(start: u64, bytes: u64) {
    gate::enter(move || {
        let bytes = bytes.next_multiple_of(Size4KiB::BYTES);
        let range = range(start, bytes);
        let more = with_wide_read(start, bytes).unwrap_or(range);
        space().revoke_from(more, AddressSpace::<DirectMap>::addresses_of(range));
    });
}

/// Reserves the last `bytes` bytes of `guard_bytes + bytes` addresses that nobody else has; where the whole begins.
///
/// # Errors
/// As for [`reserve`].
pub(crate) fn reserve_above_guard(
    guard_bytes: u64,
    bytes: u64,
    attributes: Attributes,
) -> Result<u64, ReserveError> {
    let space = space();
    // And an unreserved page behind.
    let addresses = space
        .allocate_addresses(guard_bytes + bytes + Size4KiB::BYTES)
        .ok_or(ReserveError::NoAddresses { bytes })?;
    let start = addresses.start().as_u64();
    match space.mark_reserved(range(start + guard_bytes, bytes), attributes) {
        Ok(()) => Ok(start),
        Err(error) => {
            space.free_addresses(addresses);
            Err(error.into())
        }
    }
}

/// Gives back what [`reserve_above_guard`] gave.
pub(crate) fn release_above_guard(start: u64, guard_bytes: u64, bytes: u64) {
    let first = start + guard_bytes;
    space().release_from(
        with_wide_read(first, bytes).unwrap_or_else(|| range(first, bytes)),
        range(start, guard_bytes + bytes + Size4KiB::BYTES),
    );
}

/// Backs each page of the range that has no memory yet, by `policy`, else by the range's, else by the thread's.
///
/// # Errors
/// When there is no memory where the policy allows it. What was backed until then stays.
///
/// # Panics
/// If the range is not reserved.
pub(crate) fn populate(start: u64, bytes: u64, policy: Option<Policy>) -> Result<(), OutOfMemory> {
    gate::enter(move || {
        stacks::with_unused_released(|| {
            match space().populate(range(start, bytes), policy, thread_policy()) {
                Ok(()) => Ok(()),
                Err(FaultError::OutOfMemory(error)) => Err(error),
                Err(error) => panic!("memory that was to be populated: {error}"),
            }
        })
    })
}

/// Takes the memory of the range away, which stays reserved.
///
/// # Errors
/// When there is no memory for a page table.
pub(crate) fn discard(start: u64, bytes: u64) -> Result<(), OutOfMemory> {
    change(|| space().discard(range(start, bytes)))
}

/// Allows what `protection` says, and nothing else.
///
/// # Errors
/// When there is no memory for a page table.
pub(crate) fn protect(start: u64, bytes: u64, protection: Protection) -> Result<(), OutOfMemory> {
    change(|| space().protect(range(start, bytes), protection))
}

/// Places pages that come from now on by `policy`.
///
/// # Errors
/// When there is no memory for a page table, or where the policy allows it.
pub(crate) fn set_policy(start: u64, bytes: u64, policy: Option<Policy>) -> Result<(), OutOfMemory> {
    change(|| space().set_policy(range(start, bytes), policy))
}

/// Moves the pages of the range to `node`; how many have moved.
///
/// # Errors
/// When the node has no more memory.
pub(crate) fn move_pages(start: u64, bytes: u64, node: NodeId) -> Result<usize, OutOfMemory> {
    change(|| space().move_pages(range(start, bytes), node))
}

/// # Panics
/// If the range is not reserved, or if there are more kinds of ranges than the page table can tell apart.
fn change<T>(work: impl Fn() -> Result<T, RangeError>) -> Result<T, OutOfMemory> {
    gate::enter(move || {
        stacks::with_unused_released(|| {
            work().map_err(|error| match error {
                RangeError::OutOfMemory(error) => error,
                RangeError::NotReserved(_) | RangeError::TooManyAttributes => panic!("{error}"),
            })
        })
    })
}

/// What is at `address`.
pub(crate) fn query(address: u64) -> PageState {
    gate::enter(move || {
        VirtAddr::new(address).map_or(PageState::Unreserved, |address| space().query(address))
    })
}

/// Runs of pages that [`placement`] finds before it reports them.
const RUNS: usize = 64;

/// Calls `report` with node, size and number of the pages behind the range, run by run in order of address.
pub(crate) fn placement(start: u64, bytes: u64, report: &mut dyn FnMut(NodeId, PageSize, usize)) {
    let end = start + bytes;
    let mut next = start;
    while next < end {
        // `report` is program code, so it is called outside the gate.
        let (runs, reached) = gate::enter(move || {
            let mut runs = ArrayVec::<(NodeId, PageSize, usize), RUNS>::new();
            let mut reached = next;
            let full = space().visit_while(range(next, end - next), |state| {
                let PageState::Page { page, size, node, .. } = state else {
                    return true;
                };
                let last = runs.last_mut().filter(|run| (run.0, run.1) == (node, size));
                if let Some((_, _, count)) = last {
                    *count += 1;
                } else if runs.try_push((node, size, 1)).is_err() {
                    return false;
                }
                reached = page.as_u64() + size.bytes();
                true
            });
            (runs, if full { end } else { reached })
        });
        for (node, size, count) in runs {
            report(node, size, count);
        }
        next = reached;
    }
}

/// Writes which reservations lie nearest to an address that is not reserved.
pub(crate) fn write_nearest(out: &mut impl Write, address: u64) -> fmt::Result {
    let Some(space) = SPACE.get().filter(|_| contains(address)) else {
        return Ok(());
    };
    let (below, above) = space.nearest(VirtAddr::new_truncated(address));
    if let Some(below) = below {
        let distance = address - below.last().as_u64() - 1;
        writeln!(
            out,
            "nearest reservation below: {below} ({}), which ends {distance} bytes before",
            Bytes(below.bytes())
        )?;
    }
    if let Some(above) = above {
        let distance = above.start().as_u64() - address;
        writeln!(
            out,
            "nearest reservation above: {above} ({}), which begins {distance} bytes behind",
            Bytes(above.bytes())
        )?;
    }
    if below.is_none() && above.is_none() {
        writeln!(out, "no program memory is reserved")?;
    }
    Ok(())
}
