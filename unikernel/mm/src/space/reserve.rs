//! Reserving ranges of addresses, and giving them back.

use homenode_topology::PhysAddr;

use super::{AddressSpace, Found, RangeError, ReserveError};
use crate::addr::{VirtAddr, VirtRange};
use crate::attributes::{Attributes, AttributesId};
use crate::frames::RetiredFrames;
use crate::machine::{Machine, NodeEvent};
use crate::size::{FrameSize, PageSize, Size2MiB, Size4KiB};
use crate::table::entry::EntryValue;
use crate::table::level::Level;

/// How many bytes behind a reservation of `bytes` bytes stay unreserved at least, so that running over its end is noticed.
const fn guard_bytes(bytes: u64) -> u64 {
    if bytes < Size2MiB::BYTES {
        Size4KiB::BYTES
    } else {
        Size2MiB::BYTES
    }
}

/// The addresses that a reservation takes altogether: `None` if there can not be so many.
fn with_guard(bytes: u64) -> Option<u64> {
    bytes
        .checked_next_multiple_of(Size4KiB::BYTES)?
        .checked_add(guard_bytes(bytes))
}

impl<M: Machine> AddressSpace<'_, M> {
    /// A range of `bytes` addresses (above 0; rounded up to 4 KiB), with nothing behind it, that is aligned as well as its size
    /// needs. No memory is taken but for page tables: pages come when they are touched.
    ///
    /// # Errors
    /// If there are no addresses, or no memory for page tables.
    pub fn reserve(&self, bytes: u64, attributes: Attributes) -> Result<VirtRange, ReserveError> {
        let no_addresses = ReserveError::NoAddresses { bytes };
        let slot = with_guard(bytes)
            .and_then(|bytes| self.allocate_addresses(bytes))
            .ok_or(no_addresses)?;
        let range = VirtRange::new(slot.start(), bytes.next_multiple_of(Size4KiB::BYTES));
        let range = range.ok_or(no_addresses)?;
        match self.mark_reserved(range, attributes) {
            Ok(()) => Ok(range),
            Err(error) => {
                self.free_addresses(slot);
                Err(error.into())
            }
        }
    }

    /// Gives back what [`reserve`](Self::reserve) gave, the whole of it: pages, tables and addresses. Nobody may use it any more.
    pub fn release(&self, range: VirtRange) {
        self.clear_reserved(range);
        let slot = with_guard(range.bytes()).and_then(|bytes| VirtRange::new(range.start(), bytes));
        self.free_addresses(slot.expect("the reservation was as large"));
    }

    /// Addresses that nobody else has, of which none is reserved yet: for reservations with a layout of their own.
    pub fn allocate_addresses(&self, bytes: u64) -> Option<VirtRange> {
        self.ranges.allocate(self.machine().cpu(), bytes)
    }

    /// Gives back what [`allocate_addresses`](Self::allocate_addresses) gave, once none of it is reserved.
    pub fn free_addresses(&self, addresses: VirtRange) {
        self.ranges.free(self.machine().cpu(), addresses);
    }

    /// Marks the addresses of `range` (whole pages of 4 KiB, none of them reserved, and the caller's own) as reserved.
    ///
    /// # Errors
    /// If there is no memory for page tables; nothing is reserved then.
    pub fn mark_reserved(&self, range: VirtRange, attributes: Attributes) -> Result<(), RangeError> {
        let id = self.intern(attributes)?;
        self.try_mark(range, id)
            .inspect_err(|_| self.clear_reserved(range))
    }

    fn try_mark(&self, range: VirtRange, id: AttributesId) -> Result<(), RangeError> {
        let mut address = Some(range.start());
        while let Some(at) = address.filter(|at| range.contains(*at)) {
            address = self.mark_in_table(at, range, id)?;
        }
        Ok(())
    }

    /// Marks what lies in one table, from `address` on; where to go on.
    fn mark_in_table(
        &self,
        address: VirtAddr,
        range: VirtRange,
        id: AttributesId,
    ) -> Result<Option<VirtAddr>, RangeError> {
        let walk = self.tlb.begin_walk(self.machine());
        let Some(Found {
            table, level, value, ..
        }) = self.descend(address)
        else {
            return Err(RangeError::NotReserved(address));
        };
        if !range.contains_aligned(address, level.entry_bytes()) {
            drop(walk);
            self.divide_reserved(address, level, value)?;
            return Ok(Some(address));
        }
        let Some(locked) = self.lock(table) else {
            return Ok(Some(address));
        };
        let mut next = Some(address);
        for index in level.index(address)..Level::ENTRIES as usize {
            let Some(at) = next.filter(|at| range.contains_aligned(*at, level.entry_bytes())) else {
                break;
            };
            if locked.entry(index).load() != EntryValue::EMPTY {
                // A table from an earlier use, which is on its way out or serves a neighbour.
                debug_assert!(
                    locked.entry(index).load().is_table(level),
                    "{at} is reserved already"
                );
                break;
            }
            locked.replace(index, EntryValue::reserved(id));
            next = super::next_entry(at, level);
        }
        Ok(next)
    }

    /// Gives back all pages and page tables of `range` and leaves it unreserved; returns when no CPU can reach them any more.
    pub fn clear_reserved(&self, range: VirtRange) {
        let mut retired = RetiredFrames::new();
        let mut address = Some(range.start());
        while let Some(at) = address.filter(|at| range.contains(*at)) {
            address = self.clear_in_table(at, range, &mut retired);
        }
        self.complete_and_free(retired);
    }

    /// Waits until no CPU can reach what has been taken out, and gives it back.
    pub(super) fn complete_and_free(&self, retired: RetiredFrames) {
        if retired.is_empty() {
            return;
        }
        let generation = self.tlb.retire();
        self.tlb.complete(self.machine(), generation);
        self.frames.free_retired(retired);
    }

    /// Clears what lies in one table, from `address` on; where to go on.
    fn clear_in_table(
        &self,
        address: VirtAddr,
        range: VirtRange,
        retired: &mut RetiredFrames,
    ) -> Option<VirtAddr> {
        let walk = self.tlb.begin_walk(self.machine());
        let Found {
            table, level, value, ..
        } = self.descend(address)?;
        if value == EntryValue::EMPTY {
            drop(walk);
            // A reservation that failed may have left it, with a new table for nothing.
            self.detach_unused(address, level, retired);
            return super::next_entry(address, level);
        }
        debug_assert!(
            range.contains_aligned(address, level.entry_bytes()),
            "{range} is part of a larger reservation"
        );
        let Some(locked) = self.lock(table) else {
            return Some(address);
        };
        let mut next = Some(address);
        let mut busy = false;
        for index in level.index(address)..Level::ENTRIES as usize {
            let Some(at) = next.filter(|at| range.contains_aligned(*at, level.entry_bytes())) else {
                break;
            };
            let value = locked.entry(index).load();
            if value.is_table(level) {
                break;
            }
            if value.is_busy() {
                busy = true;
                break;
            }
            let last = locked.replace(index, EntryValue::EMPTY);
            if let Some(size) = level.page_size().filter(|_| last.holds_page(level)) {
                let frame = last.frame(size);
                self.count_unmapped(frame, size);
                self.frames.retire(retired, frame);
            }
            next = super::next_entry(at, level);
        }
        let unused = locked.is_unused();
        drop(locked);
        drop(walk);
        if unused {
            self.detach_unused(address, level, retired);
        }
        if busy {
            self.machine().relax();
        }
        next
    }

    pub(super) fn count_unmapped(&self, frame: PhysAddr, size: PageSize) {
        if let Some(node) = self.frames.node_of(frame) {
            self.machine().count_on(node, NodeEvent::Mapped(size), -1);
        }
    }

    /// Takes the table of this level over `address` out of the tree if all its entries are empty, and those above that become empty by
    /// this.
    fn detach_unused(&self, address: VirtAddr, level: Level, retired: &mut RetiredFrames) {
        let mut level = level;
        while let Some(above) = level.above() {
            let _walk = self.tlb.begin_walk(self.machine());
            let Some(found) = self
                .descend_to(address, above)
                .filter(|found| found.level == above && found.value.is_table(above))
            else {
                return;
            };
            let Some(locked) = self.lock(found.table) else {
                return;
            };
            let index = above.index(address);
            let value = locked.entry(index).load();
            if !value.is_table(above) {
                return;
            }
            let table = self.lock_below(value.next_table(), &locked);
            if !table.is_unused() {
                return;
            }
            table.set_stray();
            locked.replace(index, EntryValue::EMPTY);
            // Whoever waits for this lock finds the table stray, and the entry above empty already: its next walk does not come back.
            drop(table);
            self.frames.retire(retired, value.next_table());
            if !locked.is_unused() {
                return;
            }
            level = above;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Whatever its size: also one that would fill its slot, with the next slot right behind it.
    #[test]
    fn a_guard_follows_each_reservation() {
        let (small, huge) = (Size4KiB::BYTES, Size2MiB::BYTES);
        let guard = |bytes: u64| {
            with_guard(bytes).map(|taken| (taken % small, taken - bytes.next_multiple_of(small)))
        };
        for bytes in [1, small - 1, small, small + 1, huge - small] {
            assert_eq!(guard(bytes), Some((0, small)), "{bytes:#x}");
        }
        for bytes in [huge, huge + 1, 512 * huge, (1 << 46) - huge] {
            assert_eq!(guard(bytes), Some((0, huge)), "{bytes:#x}");
        }
        assert_eq!(with_guard(u64::MAX), None);
        assert_eq!(with_guard(u64::MAX - huge), None);
    }
}
