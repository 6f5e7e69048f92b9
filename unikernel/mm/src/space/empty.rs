//! Page tables that have become empty.

use alloc::boxed::Box;
use core::mem;

use arrayvec::ArrayVec;
use crossbeam_utils::CachePadded;
use homenode_topology::PhysAddr;

use super::AddressSpace;
use crate::addr::VirtAddr;
use crate::frames::RetiredFrames;
use crate::frames::lock::Lock;
use crate::machine::Machine;
use crate::table::entry::EntryValue;
use crate::table::level::Level;

/// How many empty tables a CPU leaves in the tree.
const MOST: usize = 64;

/// A table that was seen to have empty entries only, by an address that it translates.
#[derive(Clone, Copy, Debug)]
pub(super) struct EmptyTable {
    pub(super) address: VirtAddr,
    pub(super) level: Level,
}

impl EmptyTable {
    fn is_the_same_as(&self, other: &Self) -> bool {
        let bytes = self.level.table_bytes();
        self.level == other.level && self.address.align_down(bytes) == other.address.align_down(bytes)
    }
}

/// Empty tables that CPUs have left in the tree, by CPU, the oldest first.
pub(super) struct EmptyTables(Box<[CachePadded<Lock<ArrayVec<EmptyTable, MOST>>>]>);

impl EmptyTables {
    pub(super) fn new(cpus: usize) -> Self {
        let none = |_| CachePadded::new(Lock::new(ArrayVec::new()));
        Self((0..cpus).map(none).collect())
    }
}

impl<M: Machine> AddressSpace<'_, M> {
    /// Takes a table that has become empty out of the tree, to `tables`. One whose addresses further ranges share stays a while
    /// instead, since those that are reserved soon may need it: the same addresses serve the same sizes of ranges again.
    #[cold]
    pub(super) fn handle_empty(&self, table: EmptyTable, is_shared: bool, tables: &mut RetiredFrames) {
        if !is_shared {
            self.detach_unused(table, tables);
        } else if let Some(oldest) = self.keep_empty(table) {
            self.detach_unused(oldest, tables);
        }
    }

    /// Leaves an empty table in the tree. Which one is to be taken out for it, if any.
    fn keep_empty(&self, table: EmptyTable) -> Option<EmptyTable> {
        let own = &self.empty_tables.0[self.machine().cpu().index()];
        own.with(self.machine(), |kept| {
            if kept.last().is_some_and(|last| last.is_the_same_as(&table)) {
                return None;
            }
            let oldest = kept.is_full().then(|| kept.remove(0));
            kept.push(table);
            oldest
        })
    }

    /// Takes all empty tables that are left out of the tree.
    pub(super) fn detach_empty_tables(&self) {
        let mut tables = RetiredFrames::new();
        for of in &self.empty_tables.0 {
            let kept = of.with(self.machine(), mem::take);
            kept.into_iter()
                .for_each(|table| self.detach_unused(table, &mut tables));
        }
        self.retire_tables(tables);
    }

    /// Takes a table out of the tree if all its entries are empty still, and those above that become empty by this: to `tables`.
    fn detach_unused(&self, EmptyTable { address, mut level }: EmptyTable, tables: &mut RetiredFrames) {
        while let Some(above) = level.above() {
            let Some((table, unused)) = self.detach_if_unused(address, above) else {
                return;
            };
            self.frames.retire(tables, table);
            if !unused {
                return;
            }
            level = above;
        }
    }

    /// Takes the table out of the tree that the entry of level `above` over `address` names, if all its entries are empty: it, and
    /// whether the table above is empty now.
    fn detach_if_unused(&self, address: VirtAddr, above: Level) -> Option<(PhysAddr, bool)> {
        let _walk = self.tlb.begin_walk(self.machine());
        let found = self
            .descend_to(address, above)
            .filter(|found| found.level == above && found.value.is_table(above))?;
        let locked = self.lock(found.table)?;
        let index = above.index(address);
        let value = locked.entry(index).load();
        if !value.is_table(above) {
            return None;
        }
        let table = self.lock_below(value.next_table(), &locked);
        if !table.is_unused() {
            return None;
        }
        table.set_stray();
        locked.replace(index, EntryValue::EMPTY);
        // Whoever waits for this lock finds the table stray, and the entry above empty already: its next walk does not come back.
        drop(table);
        Some((value.next_table(), locked.is_unused()))
    }
}
