//! What loom's models watch of the frame allocator.

use homenode_topology::PhysAddr;

use super::{CacheRef, FrameAllocator};
use crate::machine::Machine;

impl<M: Machine> FrameAllocator<M> {
    /// Watches the nodes' locks, and what they protect.
    pub fn watch_nodes(&self) {
        for node in &self.nodes {
            node.buddy.watch();
        }
    }

    /// Watches the locks of the CPUs' caches, what they protect, and what says whether any holds frames.
    pub fn watch_caches(&self) {
        for node in &self.nodes {
            node.may_be_cached.watch();
            node.drains.watch();
        }
        for cache in self.caches.iter().flatten().map(CacheRef::get) {
            cache.stacks.watch();
        }
    }

    /// Watches the depots' locks, and what they protect.
    pub fn watch_depots(&self) {
        for node in &self.nodes {
            node.depot.watch();
        }
    }

    /// Watches the lock of the page table in this frame, and its number of used entries.
    pub(crate) fn watch_table(&self, table: PhysAddr) {
        self.metadata(table).watch();
    }
}
