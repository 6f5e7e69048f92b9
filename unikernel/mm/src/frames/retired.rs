//! Frames that have been taken out of the page table and that some CPU may still reach.

use homenode_topology::PhysAddr;

use super::FrameAllocator;
use super::metadata::{FrameMetadata, State};
use crate::frame::Block;
use crate::machine::Machine;
use crate::size::{BASE_SHIFT, FrameSize, Order, PageSize, Size4KiB};

/// Frames of any size, page tables among them, that wait until no CPU can reach them: linked through their metadata, so that a list
/// of any length needs no memory of its own.
#[derive(Default)]
#[must_use = "the frames are lost unless they are freed"]
pub(crate) struct RetiredFrames {
    /// The frame that was added last.
    last: Option<PhysAddr>,
}

impl RetiredFrames {
    pub(crate) const fn new() -> Self {
        Self { last: None }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.last.is_none()
    }
}

impl FrameMetadata {
    /// The end of a list.
    const END: u64 = u64::MAX;

    /// Names the frame that was retired before this one.
    fn set_link(&self, frame: Option<PhysAddr>) {
        let number = frame.map_or(Self::END, |frame| frame.0 >> BASE_SHIFT);
        self.set_next(number as u32);
        self.set_previous((number >> 32) as u32);
    }

    /// The frame that was retired before this one.
    fn link(&self) -> Option<PhysAddr> {
        let number = u64::from(self.previous()) << 32 | u64::from(self.next());
        (number != Self::END).then_some(PhysAddr(number << BASE_SHIFT))
    }
}

impl<M: Machine> FrameAllocator<M> {
    /// Adds the block that begins at `frame`, which was handed out, to `list`.
    pub(crate) fn retire(&self, list: &mut RetiredFrames, frame: PhysAddr) {
        self.metadata(frame).set_link(list.last.replace(frame));
    }

    /// Moves the frames of `from`, all of 4 KiB, to `list`; how many bytes they have.
    pub(crate) fn append_tables(&self, list: &mut RetiredFrames, from: &mut RetiredFrames) -> u64 {
        let mut bytes = 0;
        while let Some(table) = from.last {
            from.last = self.metadata(table).link();
            self.retire(list, table);
            bytes += Size4KiB::BYTES;
        }
        bytes
    }

    /// Gives all frames of `list` back to their nodes: no CPU can reach them any more.
    ///
    /// # Panics
    /// If one of them is not handed out.
    pub(crate) fn free_retired(&self, mut list: RetiredFrames) {
        let mut freeing = self.freeing();
        while let Some(frame) = list.last {
            let metadata = self.metadata(frame);
            list.last = metadata.link();
            match metadata.state() {
                State::Allocated(order) if order != Order::MIN => {
                    self.free_block(Block::new(frame, order).expect("a frame is aligned"));
                }
                // What is wrong with any other is said where it is given back.
                _ => _ = freeing.push(frame, PageSize::Size4KiB),
            }
        }
    }
}
