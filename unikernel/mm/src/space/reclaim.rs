//! Taking ranges out of the page table, and, when no CPU can reach them any more, their frames, tables and addresses.

use core::mem;

use homenode_topology::{NodeId, PhysAddr};

use super::AddressSpace;
use super::empty::EmptyTable;
use super::retire::Retired;
use crate::addr::{VirtAddr, VirtRange};
use crate::frames::{Freeing, RetiredFrames};
use crate::machine::{Machine, NodeEvent};
use crate::size::PageSize;
use crate::table::entry::{Entry, EntryValue};
use crate::table::level::Level;
use crate::tlb::{Cause, StalePages};

/// What became of a range that is taken out.
#[derive(Default)]
struct TakenOut {
    /// The pages that CPUs may have translations of.
    stale: StalePages,
    /// The bytes of their frames.
    bytes: u64,
}

/// What has been done to the first entries of some.
#[derive(Default)]
struct Passed {
    /// How many of them there are.
    entries: u64,
    /// How many are empty that were not.
    emptied: i32,
    /// How many are pages that have become retiring ones, and the first and the last of these, counted from the first entry.
    pages: u64,
    first_page: u64,
    last_page: u64,
    /// Whether it ended at a busy one.
    busy: bool,
}

/// Leaves nothing reserved in the first of these entries of a table of this level, up to one that is a table or busy; pages become
/// retiring.
#[inline(always)]
fn take_out_entries(entries: &[Entry], level: Level) -> Passed {
    let mut passed = Passed::default();
    for entry in entries {
        let value = entry.load();
        if value.is_table(level) {
            break;
        }
        if value.is_present() || value.holds_page(level) {
            entry.store(value.retiring());
            if passed.pages == 0 {
                passed.first_page = passed.entries;
            }
            passed.last_page = passed.entries;
            passed.pages += 1;
        } else if value != EntryValue::EMPTY {
            if value.is_busy() {
                passed.busy = true;
                break;
            }
            entry.store(EntryValue::EMPTY);
            passed.emptied += 1;
        }
        passed.entries += 1;
    }
    passed
}

impl<M: Machine> AddressSpace<'_, M> {
    /// Gives `range` back, and with it the addresses that it was reserved from, once no CPU can reach its pages: later, unless
    /// nothing is to be left for later. Nobody may use the range any more. Parts of it that are not reserved are left out.
    pub fn release_from(&self, range: VirtRange, addresses: VirtRange) {
        let taken = self.take_out(range);
        let retired = Retired { range, addresses };
        if !taken.stale.is_none() {
            if self.is_lazy() {
                return self.retire(retired, taken.bytes);
            }
            self.tlb.invalidate(self.machine(), &taken.stale, Cause::Off);
        }
        self.reclaim(&[retired]);
    }

    /// As [`release_from`](Self::release_from), but on return no CPU can reach the range.
    pub fn revoke_from(&self, range: VirtRange, addresses: VirtRange) {
        let taken = self.take_out(range);
        if !taken.stale.is_none() {
            self.tlb.invalidate(self.machine(), &taken.stale, Cause::Revoke);
        }
        self.reclaim(&[Retired { range, addresses }]);
    }

    /// Leaves nothing of `range` reserved, whose addresses stay the caller's. No page of it has ever been there.
    pub(super) fn unmark_reserved(&self, range: VirtRange) {
        let taken = self.take_out(range);
        debug_assert!(taken.stale.is_none(), "{range} had pages");
        self.give_back_entries([(range, u64::MAX)].into_iter());
    }

    /// Leaves nothing of `range` reserved; pages become retiring.
    fn take_out(&self, range: VirtRange) -> TakenOut {
        let mut taken = TakenOut::default();
        let mut address = Some(range.start());
        while let Some(at) = address.filter(|at| range.contains(*at)) {
            address = self.take_out_of_table(at, range, &mut taken);
        }
        taken
    }

    /// Takes out what lies in one table, from `address` on; where to go on.
    fn take_out_of_table(
        &self,
        address: VirtAddr,
        range: VirtRange,
        taken: &mut TakenOut,
    ) -> Option<VirtAddr> {
        let walk = self.tlb.begin_walk(self.machine());
        let found = self.descend_near(address)?;
        let level = found.level;
        if self.table(found.table)[level.index(address)].load() == EntryValue::EMPTY {
            return if self.is_gone(&found) {
                Some(address)
            } else {
                super::next_entry(address, level)
            };
        }
        let indices = level.entries_within(address, range);
        debug_assert!(!indices.is_empty(), "{range} is part of a larger reservation");
        let Some(locked) = self.lock_found(&found) else {
            return Some(address);
        };
        let entries = &locked.entries()[indices];
        let passed = match level {
            // The commonest level, with constants of its own.
            Level::Pt => take_out_entries(entries, Level::Pt),
            level => take_out_entries(entries, level),
        };
        locked.add_used(-passed.emptied);
        drop(locked);
        drop(walk);
        if passed.pages > 0 {
            let shift = level.entry_bytes().trailing_zeros();
            for entry in [passed.first_page, passed.last_page] {
                taken.stale.add(
                    VirtAddr::new_truncated(address.as_u64() + (entry << shift)),
                    shift,
                );
            }
            taken.bytes += passed.pages << shift;
        }
        if passed.busy {
            self.machine().relax();
        }
        super::entries_behind(address, level, passed.entries)
    }

    /// Gives back what ranges that were taken out have left: no CPU can reach them any more.
    pub(super) fn reclaim(&self, retired: &[Retired]) {
        let parts = |retired: &Retired| (retired.range, retired.addresses.bytes());
        self.give_back_entries(retired.iter().map(parts));
        for retired in retired {
            self.free_addresses(retired.addresses);
        }
    }

    /// Gives back the frames of retiring entries, and tables that this leaves empty. With each range comes how many addresses it is a
    /// part of.
    fn give_back_entries(&self, ranges: impl Iterator<Item = (VirtRange, u64)>) {
        let mut tables = RetiredFrames::new();
        let mut freeing = self.frames.freeing();
        for (range, own_bytes) in ranges {
            self.give_back_range(range, own_bytes, &mut freeing, &mut tables);
        }
        drop(freeing);
        self.retire_tables(tables);
    }

    #[inline(always)]
    fn give_back_range(
        &self,
        range: VirtRange,
        own_bytes: u64,
        freeing: &mut Freeing<'_, M>,
        tables: &mut RetiredFrames,
    ) {
        let mut address = Some(range.start());
        while let Some(at) = address.filter(|at| range.contains(*at)) {
            let (next, level, unused) = self.give_back_in_table(at, range, freeing);
            if unused {
                let is_shared = own_bytes < level.table_bytes();
                self.handle_empty(EmptyTable { address: at, level }, is_shared, tables);
            }
            address = next;
        }
    }

    /// Gives back the frames of retiring entries in one table, from `address` on: where to go on, the table's level, and whether
    /// nothing is left in it.
    fn give_back_in_table(
        &self,
        address: VirtAddr,
        range: VirtRange,
        freeing: &mut Freeing<'_, M>,
    ) -> (Option<VirtAddr>, Level, bool) {
        let _walk = self.tlb.begin_walk(self.machine());
        let Some(found) = self.descend_near(address) else {
            return (None, Level::Pml4, false);
        };
        let level = found.level;
        let entries = &self.table(found.table)[level.entries_within(address, range)];
        let passed = match level {
            Level::Pt => self.free_retiring(entries, level, PageSize::Size4KiB, freeing),
            Level::Pd => self.free_retiring(entries, level, PageSize::Size2MiB, freeing),
            Level::Pdpt => self.free_retiring(entries, level, PageSize::Size1GiB, freeing),
            Level::Pml4 => Passed::default(),
        };
        let Some(locked) = self.lock_found(&found) else {
            // Then nothing in it was retiring, and there is another one in its place.
            return (Some(address), level, false);
        };
        locked.add_used(-passed.emptied);
        let unused = locked.is_unused();
        drop(locked);
        // An entry that is only partly in the range is one of nothing.
        let next = super::entries_behind(address, level, passed.entries.max(1));
        (next, level, unused)
    }

    /// Gives back the frames of the retiring ones of these entries of a table of this level, up to one that is a table.
    #[inline(always)]
    fn free_retiring(
        &self,
        entries: &[Entry],
        level: Level,
        size: PageSize,
        freeing: &mut Freeing<'_, M>,
    ) -> Passed {
        let mut passed = Passed::default();
        if size == PageSize::Size4KiB {
            // The commonest case, with few instructions for each page.
            let values = entries.iter().map(Entry::load);
            let frames = values
                .take_while(|value| value.is_retiring())
                .map(|value| value.frame(PageSize::Size4KiB));
            let (kept, node) = freeing.keep(frames);
            let kept_entries = &entries[..kept as usize];
            kept_entries
                .iter()
                .for_each(|entry| entry.store(EntryValue::EMPTY));
            self.machine()
                .count_on(node, NodeEvent::Mapped(size), -i64::from(kept));
            passed.emptied = kept as i32;
            passed.entries = u64::from(kept);
            if kept as usize == entries.len() {
                return passed;
            }
        }
        let (mut node, mut pages) = (NodeId::default(), 0);
        let unmapped = |node, pages: i64| self.machine().count_on(node, NodeEvent::Mapped(size), -pages);
        for entry in &entries[passed.entries as usize..] {
            // Retiring entries are this CPU's own, so that no lock is needed: they keep the table in the tree.
            let value = entry.load();
            if value.is_retiring() {
                let on = freeing.push(value.frame(size), size);
                if on != node {
                    unmapped(node, mem::take(&mut pages));
                    node = on;
                }
                pages += 1;
                entry.store(EntryValue::EMPTY);
                passed.emptied += 1;
            } else if value.is_table(level) {
                break;
            }
            passed.entries += 1;
        }
        unmapped(node, pages);
        passed
    }

    pub(super) fn count_unmapped(&self, frame: PhysAddr, size: PageSize) {
        if let Some(node) = self.frames.node_of(frame) {
            self.machine().count_on(node, NodeEvent::Mapped(size), -1);
        }
    }
}
