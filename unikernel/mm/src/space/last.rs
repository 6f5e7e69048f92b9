//! The page table that a CPU was last in: what it does next is often in the same.

use core::fmt;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use homenode_topology::{CpuId, PhysAddr};

use super::AddressSpace;
use crate::addr::VirtAddr;
use crate::frames::{AtHand, FrameMetadata};
use crate::machine::Machine;
use crate::table::level::Level;
use crate::tlb::Progress;

/// A CPU's last page table. Only its own CPU uses it, so that no ordering is needed.
///
/// What it names is a page table, though perhaps a stray one, as long as the CPU has published no generation since: until then,
/// none that it has seen is given back.
pub(super) struct LastTable {
    /// The addresses that the table translates, divided by how many these are.
    part: AtomicU64,
    published: AtomicU64,
    table: AtomicU64,
    metadata: AtomicPtr<FrameMetadata>,
}

impl LastTable {
    /// None so far.
    pub(super) const fn none() -> Self {
        Self {
            part: AtomicU64::new(u64::MAX),
            published: AtomicU64::new(0),
            table: AtomicU64::new(0),
            metadata: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

/// Program memory as a CPU sees it: what is to be at hand on each page fault and at each safe point.
pub struct CpuSpace<'a, M> {
    pub(super) space: &'a AddressSpace<'a, M>,
    pub(super) frames: AtHand<'a>,
    last: &'a LastTable,
    progress: Progress<'a>,
}

impl<M> Clone for CpuSpace<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for CpuSpace<'_, M> {}

const fn part(address: VirtAddr) -> u64 {
    address.as_u64() / Level::Pt.table_bytes()
}

impl<'a, M: Machine> CpuSpace<'a, M> {
    #[inline]
    pub(super) fn new(space: &'a AddressSpace<'a, M>, cpu: CpuId) -> Self {
        Self {
            space,
            frames: space.frames.at_hand(cpu),
            last: &space.last_tables[cpu.index()],
            progress: space.tlb.progress_of(cpu),
        }
    }

    /// Whether the CPU has generations to pass.
    #[inline(always)]
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.progress.is_behind()
    }

    /// The page table over `address`, if it was the last, with its metadata. The CPU can not publish a generation before it is done
    /// with it.
    #[inline(always)]
    pub(super) fn known(&self, address: VirtAddr) -> Option<(PhysAddr, &'a FrameMetadata)> {
        let is_known = self.last.part.load(Ordering::Relaxed) == part(address)
            && self.last.published.load(Ordering::Relaxed) == self.progress.published();
        is_known.then(|| {
            let table = PhysAddr(self.last.table.load(Ordering::Relaxed));
            // SAFETY: with a part that is one of an address, `keep` has stored the metadata of a frame, which is a reference as
            // long as the space's frame allocator exists.
            (table, unsafe { &*self.last.metadata.load(Ordering::Relaxed) })
        })
    }

    /// Makes this table over `address`, which is in the tree now, the last.
    pub(super) fn keep(&self, address: VirtAddr, table: PhysAddr, metadata: &FrameMetadata) {
        let last = self.last;
        last.published.store(self.progress.published(), Ordering::Relaxed);
        last.table.store(table.0, Ordering::Relaxed);
        last.metadata
            .store(ptr::from_ref(metadata).cast_mut(), Ordering::Relaxed);
        last.part.store(part(address), Ordering::Relaxed);
    }

    /// Keeps no table: the last is stray.
    #[cold]
    pub(super) fn forget(&self) {
        self.last.part.store(u64::MAX, Ordering::Relaxed);
    }
}

impl<M> fmt::Debug for CpuSpace<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuSpace")
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}
