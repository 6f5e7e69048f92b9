//! One node's buddy allocator (Knuth, The Art of Computer Programming, volume 1, 2.5).
//!
//! Free blocks are linked through their first frame's metadata, so that free memory is never touched.

use alloc::vec::Vec;

use crossbeam_utils::CachePadded;
use homenode_topology::{PhysAddr, PhysRange};

use super::cache::CachedFrame;
use super::depot::Chain;
use super::directory::Directory;
use super::lock::Lock;
use super::metadata::{FrameMetadata, MetadataArray, State};
use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::frame::{Block, Frame};
use crate::machine::Machine;
use crate::size::{BASE_SHIFT, ORDERS, Order, PageSize, Size4KiB};

const HUGE: Order = PageSize::Size2MiB.order();

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

    /// The address of the frame with this index, which is of this section.
    #[inline]
    fn address(&self, index: u32) -> PhysAddr {
        self.range.start + (u64::from(index - self.first_index) << BASE_SHIFT)
    }
}

/// Why a node gives no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It has none that is large enough.
    Empty,
    /// Fewer frames would be left than are to be kept.
    Kept,
}

/// The free blocks of a node, by order.
struct FreeLists {
    /// The index of each list's first block, or `FrameMetadata::NONE`.
    heads: [u32; ORDERS],
    /// The number of blocks in each list.
    blocks: [u64; ORDERS],
    /// A bit for each list that is not empty.
    orders: u32,
    /// The 4 KiB frames in all lists.
    frames: u64,
}

impl FreeLists {
    const fn new() -> Self {
        Self {
            heads: [FrameMetadata::NONE; ORDERS],
            blocks: [0; ORDERS],
            orders: 0,
            frames: 0,
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
        self.orders |= 1 << order.index();
        self.frames += u64::from(order.frames());
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
        if self.heads[order.index()] == FrameMetadata::NONE {
            self.orders &= !(1 << order.index());
        }
        self.frames -= u64::from(order.frames());
    }

    /// Takes the smallest free block of at least this order out of its list: its first frame's index and its order.
    fn pop(&mut self, metadata: &MetadataArray, order: Order) -> Option<(u32, Order)> {
        let found = (self.orders >> order.index()).trailing_zeros() + order.index() as u32;
        let found = Order::new(found as u8)?;
        let index = self.heads[found.index()];
        self.remove(metadata, index, found);
        Some((index, found))
    }
}

/// What can be known of the lists without their lock. Written under it only.
struct Summary {
    orders: AtomicU32,
    frames: AtomicU64,
}

/// Whether lists with these orders and frames have a block of this order and keep `kept` frames beside it.
fn check(orders: u32, frames: u64, order: Order, kept: u64) -> Result<(), Refusal> {
    if orders >> order.index() == 0 {
        Err(Refusal::Empty)
    } else if frames < kept + u64::from(order.frames()) {
        Err(Refusal::Kept)
    } else {
        Ok(())
    }
}

/// The frames of one node.
pub(super) struct Buddy {
    /// In order of address and of index.
    sections: Vec<Section>,
    metadata: MetadataArray,
    lists: CachePadded<Lock<FreeLists>>,
    summary: CachePadded<Summary>,
}

impl Buddy {
    /// Watches the lock, what it protects and what is read without it, in one of loom's models.
    #[cfg(loom)]
    pub(super) fn watch(&self) {
        self.lists.watch();
        self.summary.orders.watch();
        self.summary.frames.watch();
    }

    /// An allocator of all of `sections`, which are whole frames in order of address, at most 2³² − 1. It has none before
    /// [`insert_all`](Self::insert_all). The sections' metadata is in `metadata`, one after the other.
    pub(super) fn new(sections: Vec<PhysRange>, metadata: MetadataArray) -> Self {
        let mut first_index = 0;
        let sections = sections
            .into_iter()
            .map(|range| {
                let section = Section { range, first_index };
                first_index += (range.bytes() >> BASE_SHIFT) as u32;
                section
            })
            .collect();
        Self {
            sections,
            metadata,
            lists: CachePadded::new(Lock::new(FreeLists::new())),
            summary: CachePadded::new(Summary {
                orders: AtomicU32::new(0),
                frames: AtomicU64::new(0),
            }),
        }
    }

    /// The ranges that are handed out from, in order of address, and the index of each one's first frame.
    pub(super) fn sections(&self) -> impl Iterator<Item = (PhysRange, u32)> {
        self.sections
            .iter()
            .map(|section| (section.range, section.first_index))
    }

    #[inline]
    pub(super) const fn metadata(&self) -> &MetadataArray {
        &self.metadata
    }

    /// Works on the lists, and says in the summary what has come of it.
    fn update<R>(&self, machine: &impl Machine, work: impl FnOnce(&mut FreeLists) -> R) -> R {
        self.lists.with(machine, |lists| {
            let result = work(lists);
            self.summary.orders.store(lists.orders, Ordering::Relaxed);
            self.summary.frames.store(lists.frames, Ordering::Relaxed);
            result
        })
    }

    /// Puts every section into the free lists, in the largest aligned blocks that it holds: a step for each, and one for each
    /// smaller frame in those below 1 GiB, which are at the ends of sections only.
    pub(super) fn insert_all(&self, machine: &impl Machine, directory: &Directory) {
        self.update(machine, |lists| {
            for section in &self.sections {
                let mut start = section.range.start;
                while let Some(index) = section.index(start) {
                    let fits = |order: &Order| {
                        start.is_aligned(order.bytes()) && order.bytes() <= section.range.end - start
                    };
                    let order = Order::all().rev().find(fits).unwrap_or(Order::MIN);
                    let end = start + order.bytes();
                    if order < HUGE {
                        self.clear(index, order.frames(), 1);
                        directory.set_small(start);
                    } else if order < Order::MAX {
                        self.clear(index, order.frames(), HUGE.frames());
                        directory.set_huge(PhysRange::new(start, end));
                    }
                    lists.push(&self.metadata, index, order);
                    start = end;
                }
            }
        });
    }

    /// Makes every `step`th of the `frames` frames from `index` on an interior one.
    fn clear(&self, index: u32, frames: u32, step: u32) {
        for at in (index..index + frames).step_by(step as usize) {
            self.metadata.get(at).set_state(State::Interior);
        }
    }

    /// Makes the metadata of all frames in the 2 MiB from `start` on valid, the first excepted, which is so already.
    fn open_huge(&self, directory: &Directory, start: PhysAddr, index: u32) {
        if !directory.has_small(start) {
            self.clear(index + 1, HUGE.frames() - 1, 1);
            directory.set_small(start);
        }
    }

    /// Makes the metadata of the first frames of all 2 MiB in the 1 GiB from `start` on valid, as above.
    fn open_largest(&self, directory: &Directory, start: PhysAddr, index: u32) {
        if !directory.has_huge(start) {
            self.clear(
                index + HUGE.frames(),
                Order::MAX.frames() - HUGE.frames(),
                HUGE.frames(),
            );
            directory.set_huge(PhysRange::new(start, start + Order::MAX.bytes()));
        }
    }

    /// The number of free blocks of each order.
    pub(super) fn free_blocks(&self, machine: &impl Machine) -> [u64; ORDERS] {
        self.lists.with(machine, |lists| lists.blocks)
    }

    /// The free 4 KiB frames, as of now or a little earlier.
    #[inline]
    pub(super) fn free_frames(&self) -> u64 {
        self.summary.frames.load(Ordering::Relaxed)
    }

    /// Takes a block of exactly this order out of the lists, from the smallest free block that holds one; its state is for the
    /// caller to set.
    fn take(&self, lists: &mut FreeLists, directory: &Directory, order: Order) -> Option<u32> {
        let (index, found) = lists.pop(&self.metadata, order)?;
        if order < HUGE && found >= HUGE || order < Order::MAX && found == Order::MAX {
            let start = self.address(index);
            if found == Order::MAX {
                self.open_largest(directory, start, index);
            }
            if order < HUGE {
                self.open_huge(directory, start, index);
            }
        }
        // The upper half goes back, as often as the block is twice as large as needed or more.
        let mut rest = found;
        while rest > order
            && let Some(half) = rest.smaller()
        {
            lists.push(&self.metadata, index + half.frames(), half);
            rest = half;
        }
        Some(index)
    }

    /// Takes a block of this order, unless fewer than `kept` frames would be left.
    ///
    /// # Errors
    /// If there is no such block or it is to be kept. Where both the summary and the lists say so, nothing has been written.
    pub(super) fn allocate(
        &self,
        machine: &impl Machine,
        directory: &Directory,
        order: Order,
        kept: u64,
    ) -> Result<Block, Refusal> {
        let (orders, frames) = (&self.summary.orders, &self.summary.frames);
        check(
            orders.load(Ordering::Relaxed),
            frames.load(Ordering::Relaxed),
            order,
            kept,
        )?;
        let index = self.update(machine, |lists| {
            check(lists.orders, lists.frames, order, kept)?;
            let index = self.take(lists, directory, order).ok_or(Refusal::Empty)?;
            self.metadata.get(index).set_state(State::Allocated(order));
            Ok(index)
        })?;
        Ok(Block::new(self.address(index), order).expect("a buddy allocator's blocks are aligned"))
    }

    /// Takes up to `count` (a power of two) blocks of this order for a cache, in as few larger blocks as there are, which are given
    /// to `put` from the last to the first; none if fewer than `kept` frames would be left.
    ///
    /// Blocks of 2 MiB are taken one by one, so that nothing larger is broken up needlessly.
    pub(super) fn allocate_batch(
        &self,
        machine: &impl Machine,
        directory: &Directory,
        order: Order,
        count: u32,
        kept: u64,
        mut put: impl FnMut(PhysAddr, &[FrameMetadata]),
    ) {
        let kept = kept + u64::from(count) * u64::from(order.frames());
        if count == 0 || self.free_frames() < kept {
            return;
        }
        let whole = Order::new((order.index() as u32 + count.ilog2()) as u8).unwrap_or(order);
        self.update(machine, |lists| {
            if lists.frames < kept {
                return;
            }
            let mut left = count;
            while left > 0 {
                // A block for all of them, or else the largest that there is.
                let below = lists.orders & ((1 << whole.index()) - 1);
                let some = match lists.orders >> whole.index() {
                    0 => below.checked_ilog2().and_then(|order| Order::new(order as u8)),
                    _ => Some(whole),
                };
                let Some(some) = some.filter(|&some| some >= order && some.frames() / order.frames() <= left)
                else {
                    return;
                };
                let Some(index) = self.take(lists, directory, some) else {
                    return;
                };
                let start = self.address(index);
                let metadata = self.metadata.slice(index, some.frames());
                put(start, metadata);
                let parts = some.frames() / order.frames();
                left -= parts;
            }
        });
    }

    /// Puts blocks back, and joins each with its free neighbours. They are blocks of this node that were given back, by
    /// [`FrameMetadata::give_back`], and are in nobody's hands.
    pub(super) fn free(&self, machine: &impl Machine, blocks: impl Iterator<Item = Block>) {
        self.update(machine, |lists| {
            blocks.for_each(|block| {
                let (section, index) = self.find(block.start());
                self.insert(lists, section, index, block);
            });
        });
    }

    /// Puts the frames of a chain back, as [`free`](Self::free).
    pub(super) fn free_chain(&self, machine: &impl Machine, mut chain: Chain) {
        if chain.is_empty() {
            return;
        }
        self.update(machine, |lists| {
            while let Some((index, _)) = chain.pop(&self.metadata) {
                let section = self.section(index);
                let block = Block::from(Frame::<Size4KiB>::containing(section.address(index)));
                self.insert(lists, section, index, block);
            }
        });
    }

    /// Takes a chain apart into as many slots as it has frames.
    pub(super) fn take_apart(&self, mut chain: Chain, slots: &mut [CachedFrame]) {
        // Frames that were given back together are mostly of the same section.
        let (mut first, mut frames, mut start) = (0, 0, PhysAddr(0));
        for slot in slots {
            let Some((index, metadata)) = chain.pop(&self.metadata) else {
                return;
            };
            if index.wrapping_sub(first) >= frames {
                let section = self.section(index);
                first = section.first_index;
                frames = (section.range.bytes() >> BASE_SHIFT) as u32;
                start = section.range.start;
            }
            let start = start + (u64::from(index - first) << BASE_SHIFT);
            *slot = CachedFrame::new(start, metadata);
        }
    }

    /// Puts back a block that begins at the frame of `section` with this index.
    fn insert(&self, lists: &mut FreeLists, section: &Section, mut index: u32, block: Block) {
        let mut order = block.order();
        let mut start = block.start();
        self.metadata.get(index).set_state(State::Interior);
        while let Some(larger) = order.larger() {
            let Some(buddy) = section.index(PhysAddr(start.0 ^ order.bytes())) else {
                break;
            };
            // Valid: what this block once was a part of has been divided, or began at the end of the section as several.
            if self.metadata.get(buddy).state() != State::Free(order) {
                break;
            }
            lists.remove(&self.metadata, buddy, order);
            index = index.min(buddy);
            start = start.align_down(larger.bytes());
            order = larger;
        }
        lists.push(&self.metadata, index, order);
    }

    /// Divides a block of this node that was handed out into blocks of the order `into`, which are handed out then.
    pub(super) fn split(&self, directory: &Directory, block: Block, into: Order) {
        let (_, index) = self.find(block.start());
        if block.order() == Order::MAX && into < Order::MAX {
            self.open_largest(directory, block.start(), index);
        }
        if block.order() >= HUGE && into < HUGE {
            for part in 0..block.order().frames() / HUGE.frames() {
                let start = block.start() + u64::from(part) * HUGE.bytes();
                self.open_huge(directory, start, index + part * HUGE.frames());
            }
        }
        for at in (index..index + block.order().frames()).step_by(into.frames() as usize) {
            self.metadata.get(at).set_state(State::Allocated(into));
        }
    }

    /// The section of the frame that starts at `address`, and the frame's index.
    ///
    /// # Panics
    /// If it is no frame of this node: the directory and the allocator disagree.
    fn find(&self, address: PhysAddr) -> (&Section, u32) {
        let below = self
            .sections
            .partition_point(|section| section.range.start <= address);
        self.sections[..below]
            .last()
            .and_then(|section| Some((section, section.index(address)?)))
            .expect("the directory knows whose a frame is")
    }

    /// The address of the frame with this index.
    fn address(&self, index: u32) -> PhysAddr {
        self.section(index).address(index)
    }

    /// The section of the frame with this index.
    fn section(&self, index: u32) -> &Section {
        let below = self
            .sections
            .partition_point(|section| section.first_index <= index);
        &self.sections[below - 1]
    }
}
