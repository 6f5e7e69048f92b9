//! Program memory: the page table is the address space.
//!
//! There is no other record of what is reserved. Every entry over program memory says what its addresses are, at the highest level
//! that covers a range: *empty* (not reserved), *reserved* (a page comes when it is touched), *busy* (a CPU works on the page), a
//! *page*, or a *table* of smaller entries. All but empty entries and tables carry the number of the range's [`Attributes`].
//!
//! **Locks.** Entries are read without locks, and changed under the lock of the table that they are in, one lock per page-table page, in
//! its frame's metadata. Whoever has descended to a table and locked it checks that the table is not *stray*, that is, taken out of
//! the tree since, and that the entry is what it was. Locks nest from a table to the one below only, and nothing waits for
//! another CPU while it holds one: what takes long makes the entry busy, unlocks, works, and then sets the entry, which nobody
//! else may change meanwhile. [`LockScheme::Coarse`] is one lock instead of all these, for comparison.
//!
//! **Reuse.** What is taken out goes through the [`TlbEngine`]: it is free when every CPU has dropped its translations, and has ended
//! the walk that may have led there. What is given back for good waits for that without anybody waiting (see `retire`): its entries
//! keep their frames, as *retiring* ones, until then. An entry whose page changes its size or its frame is busy until then (Intel
//! SDM volume 3, 4.10.2.3 and 4.10.4), and CPUs are interrupted.

mod empty;
mod error;
mod fault;
mod held;
mod last;
mod lock;
mod modify;
mod nearest;
mod reclaim;
mod reserve;
mod retire;
#[cfg(loom)]
mod watch;

use alloc::boxed::Box;
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

use crossbeam_utils::CachePadded;
use homenode_topology::{CpuId, NodeId, PhysAddr};

use self::empty::EmptyTables;
pub use self::error::{FaultError, RangeError, ReserveError};
pub use self::last::CpuSpace;
use self::last::LastTable;
pub use self::lock::LockScheme;
use self::retire::RetireQueues;
pub use self::retire::Retirement;
use crate::addr::{VirtAddr, VirtRange};
use crate::attributes::{Attributes, AttributesId, AttributesTable, PackedAttributes};
use crate::frame::Frame;
use crate::frames::{FrameAllocator, FrameMetadata, OutOfMemory, Purpose, TableLock};
use crate::machine::Machine;
use crate::policy::Policy;
use crate::ranges::VirtualRanges;
use crate::size::{FrameSize, PageSize, Size4KiB};
use crate::table::entry::{Entry, EntryValue, Table};
use crate::table::level::Level;
use crate::tlb::TlbEngine;

/// How program memory is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Access {
    /// Data is read.
    Read = PackedAttributes::READ,
    /// Data is written.
    Write = PackedAttributes::WRITE,
    /// An instruction is fetched, which no program memory allows.
    Execute = 0,
}

impl Access {
    /// Whether a range with these attributes allows the access.
    #[inline]
    const fn is_allowed_by(self, attributes: PackedAttributes) -> bool {
        attributes.allows(self as u32)
    }
}

/// What is at an address of program memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// Nothing: the address is not reserved.
    Unreserved,
    /// A reserved range, with no page yet, or with one that a CPU is working on.
    Reserved(Attributes),
    /// A page.
    Page {
        /// Its first address.
        page: VirtAddr,
        /// Its size.
        size: PageSize,
        /// Where its frame begins.
        frame: PhysAddr,
        /// The node that the frame lies on.
        node: NodeId,
        /// What the range is.
        attributes: Attributes,
    },
}

/// The program memory of a machine: the part `whole` of the address space that a page table's root leads to.
///
/// Its methods may be called by any number of CPUs at once, with interrupts on and with no lock held that an interrupt handler
/// takes.
pub struct AddressSpace<'a, M> {
    root: Frame<Size4KiB>,
    /// The root's, which no frame allocator may know.
    root_metadata: CachePadded<FrameMetadata>,
    whole: VirtRange,
    frames: &'a FrameAllocator<M>,
    tlb: &'a TlbEngine,
    ranges: VirtualRanges,
    attributes: AttributesTable,
    retired: RetireQueues,
    empty_tables: EmptyTables,
    /// By CPU.
    last_tables: Box<[CachePadded<LastTable>]>,
    scheme: LockScheme,
    /// The one lock of [`LockScheme::Coarse`].
    coarse: CachePadded<TableLock>,
}

/// The table that holds the lowest entry over an address that is no table.
struct FoundTable<'s> {
    table: PhysAddr,
    level: Level,
    metadata: &'s FrameMetadata,
}

/// The lowest entry over an address that is no table.
struct Found<'s> {
    table: PhysAddr,
    level: Level,
    entry: &'s Entry,
    value: EntryValue,
}

impl<'a, M: Machine> AddressSpace<'a, M> {
    /// Program memory at the addresses of `whole`, a multiple of 512 GiB, below the table in the frame `root`, for as many CPUs as
    /// `tlb` knows.
    ///
    /// # Safety
    /// The root is a page table in memory that the machine reaches, stays one as long as the value exists, and its entries over
    /// `whole` are empty and changed by nobody else. Whoever loads the root into CR3 vouches for what is done through this value
    /// from then on.
    pub unsafe fn new(
        root: Frame<Size4KiB>,
        whole: VirtRange,
        frames: &'a FrameAllocator<M>,
        tlb: &'a TlbEngine,
        scheme: LockScheme,
        retirement: &Retirement,
    ) -> Self {
        Self {
            root,
            root_metadata: CachePadded::new(FrameMetadata::table()),
            whole,
            frames,
            tlb,
            ranges: VirtualRanges::new(whole, tlb.cpus()),
            attributes: AttributesTable::new(),
            retired: RetireQueues::new(tlb, retirement),
            empty_tables: EmptyTables::new(tlb.cpus()),
            last_tables: (0..tlb.cpus())
                .map(|_| CachePadded::new(LastTable::none()))
                .collect(),
            scheme,
            coarse: CachePadded::new(TableLock::new()),
        }
    }

    /// Program memory as `cpu` sees it.
    ///
    /// # Panics
    /// If there is no such CPU.
    #[inline]
    #[must_use]
    pub fn of_cpu(&self, cpu: CpuId) -> CpuSpace<'_, M> {
        CpuSpace::new(self, cpu)
    }

    /// The engine that keeps CPUs' translations coherent.
    #[must_use]
    pub const fn tlb(&self) -> &'a TlbEngine {
        self.tlb
    }

    /// How page-table pages are locked.
    #[must_use]
    pub const fn scheme(&self) -> LockScheme {
        self.scheme
    }

    /// What is at `address`.
    #[must_use]
    pub fn query(&self, address: VirtAddr) -> PageState {
        let _walk = self.tlb.begin_walk(self.machine());
        let Some(Found { level, value, .. }) = self.descend(address) else {
            return PageState::Unreserved;
        };
        self.state(address, level, value)
    }

    /// Calls `visitor` for each page in `range`, wholly or in part, in order of address, while it says `true`; whether it always
    /// did. What changes meanwhile may be seen or not.
    pub fn visit_while(&self, range: VirtRange, mut visitor: impl FnMut(PageState) -> bool) -> bool {
        let mut address = Some(range.start());
        while let Some(at) = address.filter(|at| range.contains(*at)) {
            let (state, level) = {
                let _walk = self.tlb.begin_walk(self.machine());
                match self.descend(at) {
                    Some(Found { level, value, .. }) => (self.state(at, level, value), level),
                    None => return true,
                }
            };
            if matches!(state, PageState::Page { .. }) && !visitor(state) {
                return false;
            }
            address = next_entry(at, level);
        }
        true
    }

    fn state(&self, address: VirtAddr, level: Level, value: EntryValue) -> PageState {
        let id = value.attributes();
        if id == AttributesId::NONE {
            return PageState::Unreserved;
        }
        let attributes = self.attributes.get(id).unpack();
        match level.page_size() {
            Some(size) if value.holds_page(level) => {
                let frame = value.frame(size);
                PageState::Page {
                    page: address.align_down(size.bytes()),
                    size,
                    frame,
                    node: self.frames.node_of(frame).unwrap_or_default(),
                    attributes,
                }
            }
            _ => PageState::Reserved(attributes),
        }
    }

    fn machine(&self) -> &M {
        self.frames.machine()
    }

    /// The table that holds the lowest entry over `address` that is no table, or `None` outside of program memory: it is often the
    /// last. Within a walk.
    #[inline(always)]
    fn descend_near(&self, address: VirtAddr) -> Option<FoundTable<'_>> {
        let cpu = self.of_cpu(self.machine().cpu());
        if let Some((table, metadata)) = cpu.known(address) {
            return Some(FoundTable {
                table,
                level: Level::Pt,
                metadata,
            });
        }
        self.descend_far(address, &cpu)
    }

    #[inline(never)]
    fn descend_far(&self, address: VirtAddr, cpu: &CpuSpace<'_, M>) -> Option<FoundTable<'_>> {
        let Found { table, level, .. } = self.descend(address)?;
        let metadata = self.table_metadata(table);
        if level == Level::Pt {
            cpu.keep(address, table, metadata);
        }
        Some(FoundTable {
            table,
            level,
            metadata,
        })
    }

    /// The lowest entry over `address` that is no table, or `None` outside of program memory. Within a walk.
    #[inline]
    fn descend(&self, address: VirtAddr) -> Option<Found<'_>> {
        self.descend_to(address, Level::Pt)
    }

    /// As [`descend`](Self::descend), but no further down than to a table of level `lowest`, whose entry may then be a table.
    #[inline]
    fn descend_to(&self, address: VirtAddr, lowest: Level) -> Option<Found<'_>> {
        self.whole
            .contains(address)
            .then(|| self.descend_from_root(address, lowest))
    }

    /// As [`descend_to`](Self::descend_to), for any address: outside of program memory, no entry has attributes.
    #[inline(always)]
    fn descend_from_root(&self, address: VirtAddr, lowest: Level) -> Found<'_> {
        let mut table = self.root.start();
        // One round per level, each with constants of its own: this is the way of every page fault.
        macro_rules! step {
            ($level:expr) => {
                let entry = &self.table(table)[$level.index(address)];
                let value = entry.load();
                if $level == lowest || !value.is_table($level) {
                    return Found {
                        table,
                        level: $level,
                        entry,
                        value,
                    };
                }
                table = value.next_table();
            };
        }
        step!(Level::Pml4);
        step!(Level::Pdpt);
        step!(Level::Pd);
        let entry = &self.table(table)[Level::Pt.index(address)];
        Found {
            table,
            level: Level::Pt,
            entry,
            value: entry.load(),
        }
    }

    /// The table at this address, which the root or an entry names.
    #[inline]
    fn table(&self, start: PhysAddr) -> &Table {
        let bytes = self
            .machine()
            .memory(Frame::<Size4KiB>::containing(start).range());
        // SAFETY: the root is a table by the contract of `new`; a table that an entry names is 4 KiB of memory, accessed by atomics
        // only, and stays a table until every CPU has ended the walks that began before it was taken out of the tree.
        unsafe { bytes.cast::<Table>().as_ref() }
    }

    /// A new table, not yet in the tree, all of its entries `value`.
    fn new_table(&self, value: EntryValue) -> Result<Frame<Size4KiB>, OutOfMemory> {
        let node = self.machine().node();
        let allocation = self.frames.allocate_reclaiming(
            Size4KiB::ORDER,
            Policy::Local,
            node,
            0,
            Purpose::Program,
            &|| self.free_retired(),
        )?;
        let table = Frame::containing(allocation.memory.start());
        let used = if value == EntryValue::EMPTY {
            0
        } else {
            Level::ENTRIES as u32
        };
        self.frames.metadata(table.start()).become_table(used);
        // SAFETY: the frame has just been handed out, to this function alone, and has room for so many entries, all of which are
        // written.
        unsafe {
            let entries = self
                .machine()
                .memory(table.range())
                .cast::<MaybeUninit<EntryValue>>();
            NonNull::slice_from_raw_parts(entries, Level::ENTRIES as usize)
                .as_mut()
                .fill(MaybeUninit::new(value));
        }
        #[cfg(loom)]
        self.fill_watched(table, |_| value);
        Ok(table)
    }

    /// Fills a table that is not yet in the tree, and whose entries are empty, with pages that depend on their index.
    fn fill_table(&self, table: Frame<Size4KiB>, page: impl Fn(u64) -> EntryValue) {
        self.frames
            .metadata(table.start())
            .become_table(Level::ENTRIES as u32);
        self.fill(table, page);
    }

    /// Writes all entries of a table that is not yet in the tree.
    fn fill(&self, table: Frame<Size4KiB>, value: impl Fn(u64) -> EntryValue) {
        let entries = self.machine().memory(table.range()).cast::<EntryValue>();
        for index in 0..Level::ENTRIES {
            // SAFETY: the table's frame has room for so many entries, and is the caller's own as long as no entry names it.
            unsafe { entries.add(index as usize).write(value(index)) };
        }
        #[cfg(loom)]
        self.fill_watched(table, value);
    }

    /// Gives a table back that never was in the tree.
    fn free_unused_table(&self, table: Frame<Size4KiB>) {
        self.frames.free(table);
    }

    /// The number of these attributes.
    fn intern(&self, attributes: Attributes) -> Result<AttributesId, RangeError> {
        let unusable = match attributes.policy {
            Some(Policy::Bind(node) | Policy::Preferred(node)) => node.index() >= self.frames.nodes(),
            Some(Policy::Local | Policy::Interleave) | None => false,
        };
        if unusable {
            let policy = attributes.policy.unwrap_or_default();
            return Err(RangeError::OutOfMemory(self.frames.out_of_memory(
                PageSize::Size4KiB.order(),
                policy,
                self.machine().node(),
                0,
            )));
        }
        self.attributes
            .intern(attributes)
            .ok_or(RangeError::TooManyAttributes)
    }
}

/// The first address behind the entry of this level over `address`, or `None` at the end of the address space's half.
fn next_entry(address: VirtAddr, level: Level) -> Option<VirtAddr> {
    entries_behind(address, level, 1)
}

/// The first address behind so many entries of this level, the first of which is over `address`; as for [`next_entry`].
#[inline]
fn entries_behind(address: VirtAddr, level: Level, entries: u64) -> Option<VirtAddr> {
    address
        .align_down(level.entry_bytes())
        .checked_add(entries * level.entry_bytes())
}

impl<M> fmt::Debug for AddressSpace<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressSpace")
            .field("whole", &self.whole)
            .field("scheme", &self.scheme)
            .finish_non_exhaustive()
    }
}
