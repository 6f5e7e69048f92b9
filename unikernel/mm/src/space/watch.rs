//! What loom's models watch of program memory.

use homenode_topology::PhysAddr;

use super::AddressSpace;
use crate::addr::{VirtAddr, VirtRange};
use crate::frame::Frame;
use crate::machine::Machine;
use crate::size::{PageSize, Size4KiB};
use crate::table::entry::EntryValue;
use crate::table::level::Level;

impl<M: Machine> AddressSpace<'_, M> {
    /// Watches the entries over `address` in all tables that there are now, and these tables' locks.
    pub fn watch(&self, address: VirtAddr) {
        self.coarse.watch();
        let mut table = self.root.start();
        let mut level = Level::Pml4;
        loop {
            let entry = &self.table(table)[level.index(address)];
            let value = entry.load();
            entry.watch();
            self.table_metadata(table).watch();
            match level.below() {
                Some(below) if value.is_table(level) => {
                    table = value.next_table();
                    level = below;
                }
                _ => return,
            }
        }
    }

    /// Watches the entries over `address` in a frame that is to become a table of any level, and that table's lock.
    pub fn watch_future_table(&self, frame: Frame<Size4KiB>, address: VirtAddr) {
        let mut level = Some(Level::Pt);
        while let Some(this) = level {
            self.table(frame.start())[this.index(address)].watch();
            level = this.above();
        }
        self.frames.watch_table(frame.start());
    }

    /// Writes the entries of a new table once more, where they are watched.
    pub(super) fn fill_watched(&self, table: Frame<Size4KiB>, value: impl Fn(u64) -> EntryValue) {
        for (index, entry) in (0..).zip(self.table(table.start())) {
            entry.store(value(index));
        }
    }

    /// Watches the CPUs' queues of what has been given back.
    pub fn watch_queues(&self) {
        self.retired.watch();
    }

    /// Takes all pages of `range` away, and leaves nothing of it reserved; its addresses stay the caller's.
    pub fn clear(&self, range: VirtRange) {
        self.discard(range).expect("no page has to be divided");
        self.unmark_reserved(range);
    }

    /// The frame of the page at `address`, as the page walker of a CPU finds it: with no regard to anybody.
    pub fn walk_as_cpu(&self, address: VirtAddr) -> Option<PhysAddr> {
        let found = self.descend(address)?;
        let size: PageSize = found
            .level
            .page_size()
            .filter(|_| found.value.is_leaf(found.level))?;
        Some(found.value.frame(size))
    }
}
