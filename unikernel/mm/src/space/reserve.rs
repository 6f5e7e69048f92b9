//! Reserving ranges of addresses, and giving them back.

use super::{AddressSpace, RangeError, ReserveError};
use crate::addr::{VirtAddr, VirtRange};
use crate::attributes::{Attributes, AttributesId};
use crate::machine::Machine;
use crate::size::{FrameSize, Size2MiB, Size4KiB};
use crate::table::entry::{Entry, EntryValue};
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

/// Marks the first of these entries of a table of this level as reserved, up to one that is a table: how many.
#[inline(always)]
fn mark_entries(entries: &[Entry], level: Level, id: AttributesId) -> i32 {
    let mut marked = 0;
    for entry in entries {
        let value = entry.load();
        if value.is_table(level) {
            // From an earlier use, on its way out, or a neighbour's.
            break;
        }
        debug_assert!(value == EntryValue::EMPTY, "it is reserved already");
        entry.store(EntryValue::reserved(id));
        marked += 1;
    }
    marked
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

    /// The addresses that the reservation `range` was made from: it and its guard.
    ///
    /// # Panics
    /// If there can be no such reservation.
    #[must_use]
    pub fn addresses_of(range: VirtRange) -> VirtRange {
        with_guard(range.bytes())
            .and_then(|bytes| VirtRange::new(range.start(), bytes))
            .expect("the reservation was as large")
    }

    /// Gives back what [`reserve`](Self::reserve) gave, the whole of it: pages, tables and addresses. Nobody may use it any more.
    /// It is free when no CPU can reach it any more, which nobody waits for.
    pub fn release(&self, range: VirtRange) {
        self.release_from(range, Self::addresses_of(range));
    }

    /// As [`release`](Self::release), but on return no CPU can reach the range.
    pub fn revoke(&self, range: VirtRange) {
        self.revoke_from(range, Self::addresses_of(range));
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
            .inspect_err(|_| self.unmark_reserved(range))
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
        let Some(found) = self.descend_near(address) else {
            return Err(RangeError::NotReserved(address));
        };
        let level = found.level;
        let indices = level.entries_within(address, range);
        if indices.is_empty() {
            drop(walk);
            self.divide_reserved(address, level, EntryValue::EMPTY)?;
            return Ok(Some(address));
        }
        let Some(locked) = self.lock_found(&found) else {
            return Ok(Some(address));
        };
        let entries = &locked.entries()[indices];
        let marked = match level {
            // The commonest level, with constants of its own.
            Level::Pt => mark_entries(entries, Level::Pt, id),
            level => mark_entries(entries, level, id),
        };
        locked.add_used(marked);
        Ok(super::entries_behind(address, level, marked as u64))
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
