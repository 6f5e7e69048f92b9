//! Page faults: the first touch of a page brings its memory.

use homenode_topology::PhysAddr;

use super::last::CpuSpace;
use super::{Access, AddressSpace, FaultError, Found};
use crate::addr::{VirtAddr, VirtRange};
use crate::attributes::{AttributesId, Protection};
use crate::frame::Block;
use crate::frames::{FrameMetadata, OutOfMemory, Purpose};
use crate::machine::{Event, Machine, NodeEvent};
use crate::policy::Policy;
use crate::size::PageSize;
use crate::table::entry::{Entry, EntryValue};
use crate::table::level::Level;

/// What to do about a fault.
enum Next {
    /// The access can be repeated.
    Done,
    /// Another CPU works on the page.
    Wait,
    /// Something changed meanwhile, or a level was passed.
    Again,
}

impl<'a, M: Machine> CpuSpace<'a, M> {
    /// Handles the commonest fault, and says whether it was one: a read or a write that is the first of a page of 4 KiB, in a table
    /// that is there, of a range that may be written to, with a frame of the CPU's node at hand. It waits for nothing, and every
    /// instruction of it counts. All others are left to [`fault`](AddressSpace::fault), which does the same for any page.
    ///
    /// Called for a thread whose policy is [`Policy::Local`], with interrupts off: this CPU can not be made to publish a generation
    /// meanwhile, so that no walk has to be announced. The running CPU is the value's.
    #[inline(always)]
    pub fn fault_at_once(&self, address: VirtAddr) -> bool {
        const SIZE: PageSize = PageSize::Size4KiB;
        let space = self.space;
        let machine = space.machine();
        let Some((table, metadata)) = self.known(address).or_else(|| self.find_table(address)) else {
            return false;
        };
        let entry = &space.table(table)[Level::Pt.index(address)];
        let value = entry.load();
        let id = value.attributes();
        // Those of what is not reserved allow nothing.
        let attributes = space.attributes.get(id);
        if value != EntryValue::reserved(id) || !attributes.is_usual() {
            return false;
        }
        match space.try_lock(table, metadata) {
            Some(_locked) if entry.load() == value => entry.store(EntryValue::busy(id)),
            _ => return false,
        }
        let Some((frame, node)) = self.frames.take() else {
            entry.store(value);
            return false;
        };
        // SAFETY: the frame has just been handed out, to this function alone.
        unsafe { machine.zero(frame.range()) };
        let page = EntryValue::page(frame.start(), SIZE, Protection::ReadWrite, id);
        entry.store(page);
        machine.count(Event::Fault, 1);
        machine.count_on(node, NodeEvent::MappedAtHome(SIZE), 1);
        true
    }

    /// The page table over `address`, if there is one, which becomes the CPU's last.
    #[cold]
    #[inline(never)]
    fn find_table(&self, address: VirtAddr) -> Option<(PhysAddr, &'a FrameMetadata)> {
        let space = self.space;
        let found = space.descend_from_root(address, Level::Pt);
        (found.level == Level::Pt).then(|| {
            let metadata = space.frames.metadata(found.table);
            self.keep(address, found.table, metadata);
            (found.table, metadata)
        })
    }
}

impl<M: Machine> AddressSpace<'_, M> {
    /// Handles a page fault of the running CPU: brings the page, or finds that the CPU's translation was old.
    ///
    /// `policy` is the running thread's, for ranges that have none.
    ///
    /// # Errors
    /// If the access is an error of the program, or if there is no memory. The page stays untouched then.
    pub fn fault(&self, address: VirtAddr, access: Access, policy: Policy) -> Result<(), FaultError> {
        self.machine().count(Event::Fault, 1);
        self.touch(address, Some(access), None, policy)
    }

    /// Brings all pages of `range` that are reserved and have no memory yet, placed by `by` if given, else as on a fault.
    ///
    /// # Errors
    /// If there is no memory, or if an address of the range is not reserved. Pages before it stay.
    pub fn populate(
        &self,
        range: VirtRange,
        by: Option<Policy>,
        thread_policy: Policy,
    ) -> Result<(), FaultError> {
        let mut address = Some(range.start());
        while let Some(at) = address.filter(|at| range.contains(*at)) {
            let there = {
                let _walk = self.tlb.begin_walk(self.machine());
                self.descend(at)
                    .filter(|found| found.value.holds_page(found.level))
                    .map(|found| found.level)
            };
            match there {
                Some(level) => address = super::next_entry(at, level),
                None => self.touch(at, None, by, thread_policy)?,
            }
        }
        Ok(())
    }

    fn touch(
        &self,
        address: VirtAddr,
        access: Option<Access>,
        by: Option<Policy>,
        thread_policy: Policy,
    ) -> Result<(), FaultError> {
        loop {
            match self.try_touch(address, access, by, thread_policy)? {
                Next::Done => return Ok(()),
                Next::Wait => self.machine().relax(),
                Next::Again => {}
            }
        }
    }

    #[inline]
    fn try_touch(
        &self,
        address: VirtAddr,
        access: Option<Access>,
        by: Option<Policy>,
        thread_policy: Policy,
    ) -> Result<Next, FaultError> {
        let walk = self.tlb.begin_walk(self.machine());
        let Some(Found {
            table,
            level,
            entry,
            value,
        }) = self.descend(address)
        else {
            return Err(FaultError::NotReserved(address));
        };
        let id = value.attributes();
        let attributes = self.attributes.get(id);
        let allowed = access.is_none_or(|access| access.is_allowed_by(attributes));
        if value != EntryValue::reserved(id) || id == AttributesId::NONE || !allowed {
            return self.not_to_be_brought(address, access, level, value);
        }
        let size = match level.page_size() {
            Some(size) if size <= attributes.page_size() => size,
            _ => {
                drop(walk);
                self.divide_reserved(address, level, value)?;
                return Ok(Next::Again);
            }
        };

        // From here on the page is this CPU's: once, and without the lock.
        match self.lock(table) {
            Some(_locked) if entry.load() == value => entry.store(EntryValue::busy(id)),
            _ => return Ok(Next::Again),
        }
        drop(walk);
        let policy = by.or(attributes.policy()).unwrap_or(thread_policy);
        match self.new_page(address, size, policy) {
            Ok(block) => {
                entry.store(EntryValue::page(block.start(), size, attributes.protection(), id));
                Ok(Next::Done)
            }
            Err(error) => self.without_page(level, entry, id, error).map(|()| Next::Again),
        }
    }

    /// What to do about a fault on an entry that is not reserved, or reserved in a way that forbids the access.
    #[cold]
    fn not_to_be_brought(
        &self,
        address: VirtAddr,
        access: Option<Access>,
        level: Level,
        value: EntryValue,
    ) -> Result<Next, FaultError> {
        let id = value.attributes();
        if id == AttributesId::NONE {
            return Err(FaultError::NotReserved(address));
        }
        let attributes = self.attributes.get(id);
        if let Some(access) = access.filter(|access| !access.is_allowed_by(attributes)) {
            return Err(FaultError::NotAllowed {
                address,
                access,
                protection: attributes.protection(),
            });
        }
        if value.is_busy() {
            return Ok(Next::Wait);
        }
        debug_assert!(value.holds_page(level), "{address} {level:?}");
        // Another CPU was faster, or this one has kept a translation from before the page allowed more.
        self.machine().invalidate_page(address);
        self.machine().count(Event::FlushOne, 1);
        Ok(Next::Done)
    }

    /// A zeroed frame for the page of this size over `address`, counted as mapped.
    #[inline]
    fn new_page(&self, address: VirtAddr, size: PageSize, policy: Policy) -> Result<Block, OutOfMemory> {
        let machine = self.machine();
        let local = machine.node();
        let index = address.as_u64() >> size.shift();
        let taken =
            self.frames
                .allocate_reclaiming(size.order(), policy, local, index, Purpose::Program, &|| {
                    self.free_retired()
                })?;
        let (block, node) = (taken.memory, taken.placement.node);
        if size == PageSize::Size2MiB {
            machine.count_on(node, NodeEvent::HugeAllocated, 1);
        }
        // SAFETY: the block has just been handed out, to this function alone.
        unsafe { machine.zero(block.range()) };
        machine.count_on(node, NodeEvent::Mapped(size), 1);
        Ok(block)
    }

    /// Ends the work on a busy entry for whose page there is no frame: smaller pages may do.
    #[cold]
    fn without_page(
        &self,
        level: Level,
        entry: &Entry,
        id: AttributesId,
        error: OutOfMemory,
    ) -> Result<(), FaultError> {
        let reserved = EntryValue::reserved(id);
        if level == Level::Pt {
            entry.store(reserved);
            return Err(error.into());
        }
        match self.new_table(reserved) {
            Ok(table) => {
                if level == Level::Pd {
                    self.machine().count_on(error.node, NodeEvent::HugeFallback, 1);
                }
                entry.store(EntryValue::table(table.start()));
                Ok(())
            }
            Err(error) => {
                entry.store(reserved);
                Err(error.into())
            }
        }
    }

    /// Puts a table in place of the entry of this level over `address`, which was `value`, reserved or empty: the same for smaller
    /// parts of the range. If the entry is no longer that, nothing happens.
    ///
    /// # Errors
    /// If there is no frame for the table.
    pub(super) fn divide_reserved(
        &self,
        address: VirtAddr,
        level: Level,
        value: EntryValue,
    ) -> Result<(), OutOfMemory> {
        let new = self.new_table(value)?;
        let set = {
            let _walk = self.tlb.begin_walk(self.machine());
            self.descend_to(address, level)
                .filter(|found| found.level == level && found.value == value)
                .and_then(|found| self.lock(found.table))
                .filter(|locked| locked.entry(level.index(address)).load() == value)
                .map(|locked| locked.replace(level.index(address), EntryValue::table(new.start())))
        };
        if set.is_none() {
            self.free_unused_table(new);
        }
        Ok(())
    }
}
