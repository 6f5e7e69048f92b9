//! One node's buddy allocator (Knuth, The Art of Computer Programming, volume 1, 2.5).
//!
//! Free blocks are linked through their first frame's metadata, so that free memory is never touched.

use alloc::vec::Vec;

use crossbeam_utils::CachePadded;
use homenode_topology::{PhysAddr, PhysRange};
use spin::Mutex;

use super::layout;
use super::metadata::{FrameMetadata, MetadataArray, State};
use crate::frame::Block;
use crate::machine::Machine;
use crate::size::{BASE_SHIFT, ORDERS, Order};

/// Frames without a hole, and the index of the first one's metadata.
struct Section {
    range: PhysRange,
    first_index: u32,
}

impl Section {
    /// The index of the frame that starts at `address`, or `None` if it is not of this section.
    fn index(&self, address: PhysAddr) -> Option<u32> {
        // A section's frames are counted in 32 bits, as `Buddy::new`'s caller has checked.
        self.range
            .contains(address)
            .then(|| self.first_index + ((address - self.range.start) >> BASE_SHIFT) as u32)
    }
}

/// The free blocks of a node, by order.
struct FreeLists {
    /// The index of each list's first block, or `FrameMetadata::NONE`.
    heads: [u32; ORDERS],
    /// The number of blocks in each list.
    blocks: [u64; ORDERS],
}

impl FreeLists {
    const fn new() -> Self {
        Self {
            heads: [FrameMetadata::NONE; ORDERS],
            blocks: [0; ORDERS],
        }
    }

    /// Makes the frame with this index the first of a free block.
    fn push(&mut self, metadata: &MetadataArray, index: u32, order: Order) {
        let head = &mut self.heads[order.index()];
        let frame = metadata.get(index);
        frame.set_state(State::Free(order));
        frame.set_next(*head);
        frame.set_previous(FrameMetadata::NONE);
        if *head != FrameMetadata::NONE {
            metadata.get(*head).set_previous(index);
        }
        *head = index;
        self.blocks[order.index()] += 1;
    }

    /// Takes the free block that starts at the frame with this index out of its list.
    fn remove(&mut self, metadata: &MetadataArray, index: u32, order: Order) {
        let frame = metadata.get(index);
        let (next, previous) = (frame.next(), frame.previous());
        match previous {
            FrameMetadata::NONE => self.heads[order.index()] = next,
            previous => metadata.get(previous).set_next(next),
        }
        if next != FrameMetadata::NONE {
            metadata.get(next).set_previous(previous);
        }
        frame.set_state(State::Interior);
        self.blocks[order.index()] -= 1;
    }

    /// Takes the smallest free block of at least this order out of its list: its first frame's index and its order.
    fn pop(&mut self, metadata: &MetadataArray, order: Order) -> Option<(u32, Order)> {
        let found = Order::all()
            .skip(order.index())
            .find(|order| self.heads[order.index()] != FrameMetadata::NONE)?;
        let index = self.heads[found.index()];
        self.remove(metadata, index, found);
        Some((index, found))
    }
}

/// The frames of one node.
pub(super) struct Buddy {
    /// In order of address and of index.
    sections: Vec<Section>,
    metadata: MetadataArray,
    metadata_range: Option<PhysRange>,
    free: CachePadded<Mutex<FreeLists>>,
}

impl Buddy {
    /// An allocator of all of `sections`, which are whole frames in order of address, except for what their metadata
    /// takes of them.
    ///
    /// Beside the zeroing of the metadata the time does not depend on how much memory there is, beyond its 1 GiB blocks.
    ///
    /// # Safety
    /// The sections are memory, at most 2³² − 1 frames, that nothing else uses while the allocator exists, and
    /// `machine` lives as long as it.
    pub(super) unsafe fn new<M: Machine>(machine: &M, mut sections: Vec<PhysRange>) -> Self {
        let metadata_range = layout::carve_metadata(&mut sections);
        let frames = layout::frames(&sections) as u32;
        let metadata = match metadata_range {
            // SAFETY: by the caller's contract, and the range has just been taken out of what is handed out.
            Some(range) => unsafe { MetadataArray::new(machine, range, frames) },
            None => MetadataArray::EMPTY,
        };
        let mut first_index = 0;
        let sections = sections
            .into_iter()
            .map(|range| {
                let section = Section { range, first_index };
                first_index += (range.bytes() >> BASE_SHIFT) as u32;
                section
            })
            .collect();
        let buddy = Self {
            sections,
            metadata,
            metadata_range,
            free: CachePadded::new(Mutex::new(FreeLists::new())),
        };
        buddy.insert_all();
        buddy
    }

    /// Puts every section into the free lists, in the largest aligned blocks that it holds.
    fn insert_all(&self) {
        let mut free = self.free.lock();
        for section in &self.sections {
            let mut start = section.range.start;
            while let Some(index) = section.index(start) {
                let fits = |order: &Order| {
                    start.is_aligned(order.bytes()) && order.bytes() <= section.range.end - start
                };
                let order = Order::all().rev().find(fits).unwrap_or(Order::MIN);
                free.push(&self.metadata, index, order);
                start = start + order.bytes();
            }
        }
    }

    /// The ranges that are handed out from, in order of address.
    pub(super) fn ranges(&self) -> impl Iterator<Item = PhysRange> {
        self.sections.iter().map(|section| section.range)
    }

    /// Where the metadata lies, if there are frames.
    pub(super) fn metadata_range(&self) -> Option<PhysRange> {
        self.metadata_range
    }

    /// The number of free blocks of each order.
    pub(super) fn free_blocks(&self) -> [u64; ORDERS] {
        self.free.lock().blocks
    }

    /// Takes a block of this order, from the smallest free block that holds one.
    pub(super) fn allocate(&self, order: Order) -> Option<Block> {
        let index = {
            let mut free = self.free.lock();
            let (index, found) = free.pop(&self.metadata, order)?;
            // The upper half goes back, as often as the block is twice as large as needed or more.
            for half in Order::all().rev().filter(|half| (order..found).contains(half)) {
                free.push(&self.metadata, index + half.frames(), half);
            }
            self.metadata.get(index).set_state(State::Allocated(order));
            index
        };
        Block::new(self.address(index), order)
    }

    /// Gives a block back, and joins it with its free neighbours.
    ///
    /// # Panics
    /// If the block is not one that was handed out and not given back since.
    pub(super) fn free(&self, block: Block) {
        let Some((section, mut index)) = self.find(block.start()) else {
            panic!("freed {block}: no frame of this node");
        };
        let mut order = block.order();
        let mut start = block.start();
        let mut free = self.free.lock();
        let state = self.metadata.get(index).state();
        if state != State::Allocated(order) {
            // What reports the panic may want to read the counts.
            drop(free);
            match state {
                State::Free(as_part_of) => {
                    panic!("freed {block} twice: it is free, in a block of {as_part_of}")
                }
                State::Allocated(other) => panic!("freed {block}, which was handed out as {other}"),
                State::Interior => panic!("freed {block} twice, or it is a part of another block"),
            }
        }
        self.metadata.get(index).set_state(State::Interior);
        while let Some(larger) = order.larger() {
            let Some(buddy) = section.index(PhysAddr(start.0 ^ order.bytes())) else {
                break;
            };
            if self.metadata.get(buddy).state() != State::Free(order) {
                break;
            }
            free.remove(&self.metadata, buddy, order);
            index = index.min(buddy);
            start = start.align_down(larger.bytes());
            order = larger;
        }
        free.push(&self.metadata, index, order);
    }

    /// The section of the frame that starts at `address`, and the frame's index.
    fn find(&self, address: PhysAddr) -> Option<(&Section, u32)> {
        let section = &self.sections[..self
            .sections
            .partition_point(|section| section.range.start <= address)]
            .last()?;
        Some((section, section.index(address)?))
    }

    /// The address of the frame with this index.
    fn address(&self, index: u32) -> PhysAddr {
        let section = &self.sections[self
            .sections
            .partition_point(|section| section.first_index <= index)
            - 1];
        section.range.start + (u64::from(index - section.first_index) << BASE_SHIFT)
    }
}
