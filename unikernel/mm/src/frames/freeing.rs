//! Giving back many frames at once.

use arrayvec::ArrayVec;
use homenode_topology::{NodeId, PhysAddr};

use super::FrameAllocator;
use super::cache::{CachedFrame, CpuCache, Kind};
use super::depot::Chain;
use super::directory::{Place, Stretch};
use super::metadata::FrameMetadata;
use crate::frame::Block;
use crate::machine::Machine;
use crate::size::{Order, PageSize};

/// Chains for so many nodes are built at the same time, and …
const OTHERS: usize = 7;
/// … are this long at nodes whose CPUs have no caches.
const MOST_CHAINED: u32 = 64;

/// Gives back frames, in a few instructions each if they are of 4 KiB.
///
/// The running CPU's cache takes those that it has room for. The others are linked to chains, which are handed over when they are
/// long, or when the value is dropped: until then nobody can have them. No lock is held meanwhile.
pub struct Freeing<'a, M: Machine> {
    frames: &'a FrameAllocator<M>,
    /// The running CPU's cache, which takes what it has room for.
    cache: Option<&'a CpuCache>,
    /// Where the last frame was found: the next is likely to be near.
    stretch: Stretch<'a>,
    /// The index of its first frame.
    stretch_index: u32,
    /// The node of the chain that is being built, and how long the chain becomes.
    node: NodeId,
    most: u32,
    chain: Chain,
    /// Chains of other nodes.
    others: ArrayVec<(NodeId, Chain), OTHERS>,
}

impl<M: Machine> FrameAllocator<M> {
    /// Begins to give back frames.
    #[inline]
    pub fn freeing(&self) -> Freeing<'_, M> {
        Freeing {
            frames: self,
            cache: self.own_cache(),
            stretch: Stretch::EMPTY,
            stretch_index: 0,
            node: NodeId(0),
            most: 0,
            chain: Chain::EMPTY,
            others: ArrayVec::new(),
        }
    }

    /// Gives back a chain of this node: the running CPU keeps one that it needs next, and what is too much goes to the node.
    fn hand_over(&self, node: NodeId, chain: Chain) {
        let home = &self.nodes[node.index()];
        match self.own_cache() {
            Some(cache) if cache.node == node => cache.stacks.with(&self.machine, |stacks| {
                home.note_cached();
                // Under the lock, as who empties the cache would not find the chain otherwise.
                if let Some(chain) = stacks.gather(home.buddy.metadata(), chain) {
                    home.put_chain(&self.machine, chain);
                }
            }),
            _ => home.put_chain(&self.machine, chain),
        }
    }

    /// How long chains of this node become.
    fn most_chained(&self, node: NodeId) -> u32 {
        match self.nodes[node.index()].chain_frames {
            0 => MOST_CHAINED,
            frames => frames,
        }
    }
}

impl<'a, M: Machine> Freeing<'a, M> {
    /// Gives a frame back to its node, which is returned.
    ///
    /// # Panics
    /// If no frame of this size at this address was handed out, or it was given back since.
    #[inline]
    pub fn push(&mut self, frame: PhysAddr, size: PageSize) -> NodeId {
        if size == PageSize::Size4KiB
            && let Some((place, within)) = self.stretch.find(frame)
            && place.is_valid_small(frame)
            && place.metadata.give_back(Order::MIN).is_ok()
        {
            let node = place.node;
            freed(frame);
            self.add(self.stretch_index.wrapping_add(within), place.metadata);
            return node;
        }
        self.push_slowly(frame, size)
    }

    /// Gives back the first of these 4 KiB frames: as many as lie near the last one that was given back and as the running CPU's
    /// cache, whose node is returned, takes. How many these are.
    #[inline(always)]
    pub fn keep(&mut self, frames: impl Iterator<Item = PhysAddr>) -> (u32, NodeId) {
        let Some(cache) = self.cache.filter(|cache| cache.node == self.node) else {
            return (0, NodeId::default());
        };
        let stretch = &self.stretch;
        let kept = cache.stacks.try_with(
            #[inline(always)]
            |stacks| {
                // A cache that stops being empty has to be noted.
                let room = stacks.room_if_any(Kind::Small)?;
                let kept = room.iter_mut().zip(frames).map_while(|(slot, frame)| {
                    let (place, _) = stretch.find(frame)?;
                    if !place.is_valid_small(frame) {
                        return None;
                    }
                    place.metadata.give_back(Order::MIN).ok()?;
                    freed(frame);
                    *slot = CachedFrame::new(frame, place.metadata);
                    Some(())
                });
                let kept = kept.count() as u32;
                stacks.add(Kind::Small, kept);
                Some(kept)
            },
        );
        (kept.unwrap_or(0), cache.node)
    }

    /// Gives back a frame that is not near the last one, or that is no 4 KiB frame.
    #[inline(never)]
    fn push_slowly(&mut self, frame: PhysAddr, size: PageSize) -> NodeId {
        let frames = self.frames;
        let block = Block::new(frame, size.order()).expect("a frame is aligned");
        if size != PageSize::Size4KiB {
            frames.free_block(block);
            return frames.node_of(frame).expect("it has just been freed");
        }
        let Place { node, metadata, .. } = frames.given_back(block);
        if node != self.node || self.most == 0 {
            self.turn_to(node);
        }
        let index = frames.nodes[node.index()].buddy.metadata().index_of(metadata);
        // A frame that is found in a stretch has the stretch's node; others leave none.
        self.stretch = frames.directory.stretch(frame).unwrap_or(Stretch::EMPTY);
        if let Some((_, within)) = self.stretch.find(frame) {
            self.stretch_index = index.wrapping_sub(within);
        }
        freed(frame);
        self.add(index, metadata);
        node
    }

    /// Adds a frame of the node whose chain is being built.
    #[inline]
    fn add(&mut self, index: u32, metadata: &FrameMetadata) {
        self.chain.push(index, metadata);
        if self.chain.count() == self.most {
            self.hand_over();
        }
    }

    #[inline(never)]
    fn hand_over(&mut self) {
        self.frames.hand_over(self.node, self.chain.take());
    }

    /// Goes on with the chain of another node.
    fn turn_to(&mut self, node: NodeId) {
        let known = self.others.iter().position(|&(other, _)| other == node);
        let next = known.map_or(Chain::EMPTY, |at| self.others.swap_remove(at).1);
        let before = core::mem::replace(&mut self.chain, next);
        if !before.is_empty()
            && let Err(full) = self.others.try_push((self.node, before))
        {
            let (node, chain) = full.element();
            self.frames.hand_over(node, chain);
        }
        self.node = node;
        self.most = self.frames.most_chained(node);
    }
}

/// Says that a frame of 4 KiB may be handed out again from now on, to who simulates the machine.
#[inline(always)]
fn freed(_frame: PhysAddr) {
    #[cfg(feature = "simulation")]
    crate::simulation::frames(
        crate::frame::Frame::<crate::size::Size4KiB>::containing(_frame).range(),
        crate::simulation::FrameEvent::Freed,
    );
}

impl<M: Machine> Drop for Freeing<'_, M> {
    #[inline]
    fn drop(&mut self) {
        if !self.chain.is_empty() {
            self.hand_over();
        }
        for (node, chain) in self.others.drain(..) {
            self.frames.hand_over(node, chain);
        }
    }
}
