//! Frames for page tables.

use homenode_topology::NodeId;

use super::{FrameAllocator, Purpose};
use crate::frame::Frame;
use crate::machine::Machine;
use crate::policy::Policy;
use crate::size::Size4KiB;
use crate::table::TableFrames;

/// Frames for page tables from a node, or from those nearest to it when it has none.
pub struct LocalTables<'a, M> {
    frames: &'a FrameAllocator<M>,
    node: NodeId,
}

impl<'a, M: Machine> LocalTables<'a, M> {
    /// Frames from `node`.
    pub const fn new(frames: &'a FrameAllocator<M>, node: NodeId) -> Self {
        Self { frames, node }
    }
}

// SAFETY: the allocator hands a frame out once until it is given back, and its frames are memory by its own contract.
unsafe impl<M: Machine> TableFrames for LocalTables<'_, M> {
    fn allocate(&mut self) -> Option<Frame<Size4KiB>> {
        let taken = self.frames.allocate(Policy::Local, self.node, 0, Purpose::Kernel);
        Some(taken.ok()?.memory)
    }

    fn free(&mut self, frame: Frame<Size4KiB>) {
        self.frames.free(frame);
    }
}
