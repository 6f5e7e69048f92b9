//! The one door to hardware.

use core::ptr::NonNull;

use homenode_topology::{CpuId, NodeId, PhysAddr, PhysRange};

use crate::addr::VirtAddr;
use crate::size::PageSize;
use crate::tlb::{Cause, SafePoint};

/// What is counted for each CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A page fault was handled.
    Fault,
    /// A page-table lock was taken.
    TableLock,
    /// A page-table lock was held by another CPU when it was wanted.
    TableLockContended,
    /// A page was divided into 512 smaller ones.
    Split,
    /// A page was moved to another node.
    Moved,
    /// A page that was to be moved stayed where it was.
    NotMoved,
    /// This CPU dropped its translation of one page.
    FlushOne,
    /// This CPU dropped all of its translations.
    FlushAll,
    /// This CPU asked others to drop their translations.
    RemoteFlush,
    /// This CPU did not wait for others' safe points.
    Forced(Cause),
    /// This CPU interrupted another one, so that it drops translations.
    InterruptsSent(Cause),
    /// This CPU dropped translations because of a newer generation or request.
    CaughtUp(SafePoint),
    /// This CPU was too late for a request, and so dropped all of its translations.
    RingOverrun,
    /// A range was taken out of the page table, and waits until no CPU has translations of it.
    Retired,
}

/// What is counted for each pair of a CPU and a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeEvent {
    /// A frame was taken, in Linux's terms.
    Numa(crate::policy::NumaEvent),
    /// A 2 MiB page was mapped to a frame of the node.
    HugeAllocated,
    /// Smaller pages had to do where a 2 MiB page was intended for the node.
    HugeFallback,
    /// A page of this size maps, or no longer maps, a frame of the node.
    Mapped(PageSize),
    /// Three in one: a frame was taken by a CPU of the node, as was intended, and a page of this size maps it.
    MappedAtHome(PageSize),
}

/// What the memory manager asks of the machine: physical memory as bytes, who runs, invalidation of translations, interrupts to
/// other CPUs, and a clock.
///
/// The kernel's is its direct map and its instructions; the simulated machine's is an array and cores of its own. It is used by
/// static dispatch.
///
/// # Safety
/// An implementor promises that a pointer from [`memory`](Self::memory) is valid for reads and writes of the whole range
/// for as long as the implementor lives, that equal addresses give equal pointers and different addresses different
/// ones, that `invalidate_*` change nothing but the CPU's cached translations, and drop them before they return, and that
/// [`cpu`](Self::cpu) gives different numbers to code that runs at the same time.
pub unsafe trait Machine: Send + Sync {
    /// A pointer to the first byte of `range`, which must be memory (not device registers).
    fn memory(&self, range: PhysRange) -> NonNull<u8>;

    /// Sets all bytes of `range` to zero.
    ///
    /// # Safety
    /// Nothing else may use the range meanwhile, and no reference to it may be live.
    unsafe fn zero(&self, range: PhysRange) {
        let bytes = usize::try_from(range.bytes()).expect("64-bit machine");
        // SAFETY: `memory` gives a pointer to all of the range, and the caller promises that nothing else uses it.
        unsafe { self.memory(range).write_bytes(0, bytes) }
    }

    /// Copies the bytes of `from` to those from `to` on.
    ///
    /// # Safety
    /// Nothing else may use the target or write to the source meanwhile, no reference to the target may be live, and the two do not
    /// overlap.
    unsafe fn copy(&self, from: PhysRange, to: PhysAddr) {
        let bytes = usize::try_from(from.bytes()).expect("64-bit machine");
        let target = self.memory(PhysRange::new(to, to + from.bytes()));
        // SAFETY: `memory` gives pointers to all of both ranges, and the caller promises the rest.
        unsafe { self.memory(from).copy_to_nonoverlapping(target, bytes) }
    }

    /// The running CPU.
    fn cpu(&self) -> CpuId;

    /// The running CPU's node.
    fn node(&self) -> NodeId;

    /// Drops the running CPU's cached translation of the page that `page` lies in, global or not, and its cached entries of tables
    /// above (`INVLPG`).
    fn invalidate_page(&self, page: VirtAddr);

    /// Drops all of the running CPU's cached translations of program memory.
    fn invalidate_all(&self);

    /// Drops all of the running CPU's cached translations of program memory, and lets it have no new ones: not even the CPU's own
    /// page walker finds any.
    fn load_idle_root(&self);

    /// Drops all of the running CPU's cached translations of program memory, and lets it have new ones.
    fn load_program_root(&self);

    /// Interrupts other CPUs, so that each calls [`TlbEngine::catch_up`](crate::TlbEngine::catch_up) soon.
    fn interrupt(&self, cpus: impl Iterator<Item = CpuId>);

    /// The time since some moment, in nanoseconds, the same on all CPUs.
    fn now_ns(&self) -> u64;

    /// Lets the running CPU call [`AddressSpace::alarm`](crate::AddressSpace::alarm) once, soon after the time `at_ns`: no earlier
    /// alarm of this CPU is left.
    fn set_alarm(&self, at_ns: u64);

    /// Called again and again while the running CPU waits for another one. Interrupts may be handled meanwhile.
    fn relax(&self);

    /// Counts `n` events of the running CPU.
    fn count(&self, event: Event, n: u64);

    /// Counts `n` events of the running CPU about a node; what is a level rather than a sum falls again by negative numbers.
    fn count_on(&self, node: NodeId, event: NodeEvent, n: i64);
}

// SAFETY: everything is handed on to an implementor that lives at least as long as the reference.
unsafe impl<M: Machine> Machine for &M {
    fn memory(&self, range: PhysRange) -> NonNull<u8> {
        (**self).memory(range)
    }

    unsafe fn zero(&self, range: PhysRange) {
        // SAFETY: the caller's promise is handed on.
        unsafe { (**self).zero(range) }
    }

    unsafe fn copy(&self, from: PhysRange, to: PhysAddr) {
        // SAFETY: the caller's promise is handed on.
        unsafe { (**self).copy(from, to) }
    }

    fn cpu(&self) -> CpuId {
        (**self).cpu()
    }

    fn node(&self) -> NodeId {
        (**self).node()
    }

    fn invalidate_page(&self, page: VirtAddr) {
        (**self).invalidate_page(page);
    }

    fn invalidate_all(&self) {
        (**self).invalidate_all();
    }

    fn load_idle_root(&self) {
        (**self).load_idle_root();
    }

    fn load_program_root(&self) {
        (**self).load_program_root();
    }

    fn interrupt(&self, cpus: impl Iterator<Item = CpuId>) {
        (**self).interrupt(cpus);
    }

    fn now_ns(&self) -> u64 {
        (**self).now_ns()
    }

    fn set_alarm(&self, at_ns: u64) {
        (**self).set_alarm(at_ns);
    }

    fn relax(&self) {
        (**self).relax();
    }

    fn count(&self, event: Event, n: u64) {
        (**self).count(event, n);
    }

    fn count_on(&self, node: NodeId, event: NodeEvent, n: i64) {
        (**self).count_on(node, event, n);
    }
}
