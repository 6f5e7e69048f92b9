//! The locks of page-table pages, split or coarse.

use core::fmt;

use homenode_topology::PhysAddr;

use super::{AddressSpace, FoundTable};
use crate::frames::{FrameMetadata, TableLock};
use crate::machine::{Event, Machine};
use crate::table::entry::{Entry, EntryValue, Table};

/// How page-table pages are locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockScheme {
    /// Each by a lock of its own.
    #[default]
    Split,
    /// All by one lock: what split locks are compared with.
    Coarse,
}

impl fmt::Display for LockScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Split => "split",
            Self::Coarse => "coarse",
        })
    }
}

/// A page-table page whose entries only the holder of this may change, but for busy ones; unlocked when this is dropped.
pub(super) struct LockedTable<'s> {
    entries: &'s Table,
    metadata: &'s FrameMetadata,
    /// What to unlock: nothing if a lock that is held already covers this table.
    lock: Option<&'s TableLock>,
}

impl<M: Machine> AddressSpace<'_, M> {
    /// Locks the table at this address, which a walk that still goes on has come to; `None` if it has been taken out of the tree.
    #[inline]
    pub(super) fn lock(&self, table: PhysAddr) -> Option<LockedTable<'_>> {
        self.lock_with(table, self.table_metadata(table))
    }

    /// As [`lock`](Self::lock), for a table that [`descend_near`](Self::descend_near) has found.
    #[inline(always)]
    pub(super) fn lock_found<'s>(&'s self, found: &FoundTable<'s>) -> Option<LockedTable<'s>> {
        let locked = self.lock_with(found.table, found.metadata);
        if locked.is_none() {
            self.of_cpu(self.machine().cpu()).forget();
        }
        locked
    }

    /// Whether a table that [`descend_near`](Self::descend_near) has found has been taken out of the tree: what it says is not true
    /// then.
    pub(super) fn is_gone(&self, found: &FoundTable<'_>) -> bool {
        let is_gone = found.metadata.lock().is_stray();
        if is_gone {
            self.of_cpu(self.machine().cpu()).forget();
        }
        is_gone
    }

    #[inline(always)]
    fn lock_with<'s>(&'s self, table: PhysAddr, metadata: &'s FrameMetadata) -> Option<LockedTable<'s>> {
        let lock = self.lock_of(metadata);
        self.acquire(lock);
        self.locked(table, metadata, lock)
    }

    /// As [`lock`](Self::lock), but `None` too if the lock is held. The metadata is the table's.
    #[inline(always)]
    pub(super) fn try_lock<'s>(
        &'s self,
        table: PhysAddr,
        metadata: &'s FrameMetadata,
    ) -> Option<LockedTable<'s>> {
        let lock = self.lock_of(metadata);
        if !lock.try_lock() {
            return None;
        }
        self.machine().count(Event::TableLock, 1);
        self.locked(table, metadata, lock)
    }

    #[inline(always)]
    fn lock_of<'s>(&'s self, metadata: &'s FrameMetadata) -> &'s TableLock {
        match self.scheme {
            LockScheme::Split => metadata.lock(),
            LockScheme::Coarse => &self.coarse,
        }
    }

    /// What a lock that is held has locked, unless that has been taken out of the tree.
    #[inline(always)]
    fn locked<'s>(
        &'s self,
        table: PhysAddr,
        metadata: &'s FrameMetadata,
        lock: &'s TableLock,
    ) -> Option<LockedTable<'s>> {
        let locked = LockedTable {
            entries: self.table(table),
            metadata,
            lock: Some(lock),
        };
        (!metadata.lock().is_stray()).then_some(locked)
    }

    /// Locks a table below a locked one, which an entry of that one names: it can not be stray.
    pub(super) fn lock_below<'s>(&'s self, table: PhysAddr, _above: &LockedTable<'s>) -> LockedTable<'s> {
        let metadata = self.table_metadata(table);
        let lock = match self.scheme {
            LockScheme::Split => Some(metadata.lock()),
            LockScheme::Coarse => None,
        };
        if let Some(lock) = lock {
            self.acquire(lock);
        }
        LockedTable {
            entries: self.table(table),
            metadata,
            lock,
        }
    }

    #[inline(always)]
    fn acquire(&self, lock: &TableLock) {
        self.machine().count(Event::TableLock, 1);
        if !lock.try_lock() {
            self.wait_for(lock);
        }
    }

    /// Takes a lock that was held a moment ago.
    #[cold]
    fn wait_for(&self, lock: &TableLock) {
        self.machine().count(Event::TableLockContended, 1);
        while !lock.try_lock() {
            self.machine().relax();
        }
    }

    #[inline]
    pub(super) fn table_metadata(&self, table: PhysAddr) -> &FrameMetadata {
        if table == self.root.start() {
            &self.root_metadata
        } else {
            self.frames.metadata(table)
        }
    }
}

impl<'s> LockedTable<'s> {
    /// The table's entry with this index.
    #[inline]
    pub(super) fn entry(&self, index: usize) -> &'s Entry {
        &self.entries[index]
    }

    /// Sets an entry, which is not busy, and says what was in it.
    pub(super) fn replace(&self, index: usize, value: EntryValue) -> EntryValue {
        let last = self.entries[index].replace(value);
        let used = |value| i32::from(value != EntryValue::EMPTY);
        match used(value) - used(last) {
            0 => {}
            change => self.metadata.add_used(change),
        }
        last
    }

    /// The table's entries.
    #[inline]
    pub(super) fn entries(&self) -> &'s Table {
        self.entries
    }

    /// Adds to the number of used entries those that have been set, or emptied if it is negative, not by
    /// [`replace`](Self::replace).
    #[inline]
    pub(super) fn add_used(&self, change: i32) {
        if change != 0 {
            self.metadata.add_used(change);
        }
    }

    /// Whether all entries are empty.
    pub(super) fn is_unused(&self) -> bool {
        self.metadata.used() == 0
    }

    /// Marks the table, which is unused, as taken out of the tree.
    pub(super) fn set_stray(&self) {
        self.metadata.lock().set_stray();
    }
}

impl Drop for LockedTable<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(lock) = self.lock {
            lock.unlock();
        }
    }
}
