//! Physical frames, per node.
//!
//! Each node has a buddy allocator of 4 KiB to 1 GiB blocks under one lock. What it knows about a frame, twelve bytes,
//! lies in an array on the frame's own node, which is taken out of the node's memory when the allocator is built: a node
//! pays 12/4096, or 0.3 %, of its memory. A machine with 1 TiB pays 3 GiB, and the zeroing of these at the start; the rest
//! of the initialisation is one step per 1 GiB block and per end of a range.

mod buddy;
mod error;
mod layout;
mod metadata;

use alloc::vec::Vec;

use homenode_topology::{NodeId, PhysAddr, PhysRange};

use self::buddy::Buddy;
pub use self::error::{BuildError, OutOfMemory};
use crate::frame::{Block, Frame};
use crate::machine::Machine;
use crate::policy::{Allocation, Placement, Policy};
use crate::size::{BASE_SHIFT, FrameSize, ORDERS, Order, Size4KiB};
use crate::table::TableFrames;

/// What the allocator is told about a node.
#[derive(Clone, Debug, Default)]
pub struct NodeMemory {
    /// The node's memory that nobody uses yet, in any order. Parts of a 4 KiB frame at the ends are left out.
    pub usable: Vec<PhysRange>,
    /// The other nodes, the nearest first. The node itself may be among them or not: it always comes first.
    pub fallback: Vec<NodeId>,
}

/// What the allocator holds of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStats {
    /// The bytes that it hands out from, free or not.
    pub total_bytes: u64,
    /// The bytes that its metadata takes beside these.
    pub metadata_bytes: u64,
    /// The number of free blocks of each order.
    pub free_blocks: [u64; ORDERS],
}

impl NodeStats {
    /// The bytes that are free.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        Order::all()
            .map(|order| self.free_blocks[order.index()] * order.bytes())
            .sum()
    }
}

struct Node {
    buddy: Buddy,
    total_bytes: u64,
    /// This node, then the others, the nearest first; without the nodes that have no memory.
    order: Vec<NodeId>,
}

/// The physical frames of all nodes.
pub struct FrameAllocator<M> {
    machine: M,
    nodes: Vec<Node>,
    /// The nodes that have memory, for interleaving.
    with_memory: Vec<NodeId>,
    /// What is handed out from, in order of address, and whose it is.
    ranges: Vec<(PhysRange, NodeId)>,
}

impl<M: Machine> FrameAllocator<M> {
    /// An allocator of the memory of `nodes`, which are the nodes 0, 1, … in this order.
    ///
    /// Takes a few small vectors from the heap, so that there must be one already.
    ///
    /// # Errors
    /// If the description can not be right.
    ///
    /// # Safety
    /// All usable ranges are memory that `machine` reaches, and nothing else uses them while the allocator exists, except
    /// for what it hands out.
    pub unsafe fn new(machine: M, nodes: Vec<NodeMemory>) -> Result<Self, BuildError> {
        let count = nodes.len();
        let sections: Vec<Vec<PhysRange>> = nodes.iter().map(|node| layout::sections(&node.usable)).collect();
        check(&nodes, &sections)?;
        let buddies: Vec<Buddy> = sections
            .into_iter()
            // SAFETY: by the caller's contract; the sections are distinct, and `machine` is kept beside the allocators.
            .map(|sections| unsafe { Buddy::new(&machine, sections) })
            .collect();
        let total_bytes: Vec<u64> = buddies
            .iter()
            .map(|buddy| buddy.ranges().map(|range| range.bytes()).sum())
            .collect();
        let nodes: Vec<Node> = buddies
            .into_iter()
            .zip(nodes)
            .enumerate()
            .map(|(index, (buddy, node))| {
                let mut order: Vec<NodeId> = Vec::with_capacity(count);
                for other in core::iter::once(NodeId::from(index)).chain(node.fallback) {
                    if total_bytes[other.index()] > 0 && !order.contains(&other) {
                        order.push(other);
                    }
                }
                Node {
                    buddy,
                    total_bytes: total_bytes[index],
                    order,
                }
            })
            .collect();
        let with_memory = (0..count)
            .map(NodeId::from)
            .filter(|node| nodes[node.index()].total_bytes > 0)
            .collect();
        let mut ranges: Vec<(PhysRange, NodeId)> = nodes
            .iter()
            .enumerate()
            .flat_map(|(index, node)| node.buddy.ranges().map(move |range| (range, NodeId::from(index))))
            .collect();
        ranges.sort_unstable();
        Ok(Self {
            machine,
            nodes,
            with_memory,
            ranges,
        })
    }

    /// The machine whose memory this is.
    #[must_use]
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// Takes a frame. Its bytes are whatever they were.
    ///
    /// `local` is the node of the CPU that asks, and `page_index` the page's index in its range, which
    /// [`Policy::Interleave`] goes by.
    ///
    /// # Errors
    /// If no block is free where the policy allows one.
    pub fn allocate<S: FrameSize>(
        &self,
        policy: Policy,
        local: NodeId,
        page_index: u64,
    ) -> Result<Allocation<Frame<S>>, OutOfMemory> {
        self.take(S::ORDER, policy, local, page_index, |block| {
            Frame::new(block.start()).expect("a block is aligned to its size")
        })
    }

    /// Takes a block of an order that is known at run time only; else as [`allocate`](Self::allocate).
    ///
    /// # Errors
    /// If no block is free where the policy allows one.
    pub fn allocate_block(
        &self,
        order: Order,
        policy: Policy,
        local: NodeId,
        page_index: u64,
    ) -> Result<Allocation<Block>, OutOfMemory> {
        self.take(order, policy, local, page_index, |block| block)
    }

    fn take<T>(
        &self,
        order: Order,
        policy: Policy,
        local: NodeId,
        page_index: u64,
        memory: impl FnOnce(Block) -> T,
    ) -> Result<Allocation<T>, OutOfMemory> {
        let (_, allowed) = self.allowed(policy, local, page_index);
        for &node in allowed {
            if let Some(block) = self.nodes[node.index()].buddy.allocate(order) {
                let interleaved = policy == Policy::Interleave;
                let placement = Placement {
                    node,
                    intended: allowed[0],
                    local,
                    interleaved,
                };
                return Ok(Allocation {
                    memory: memory(block),
                    placement,
                });
            }
        }
        Err(self.out_of_memory(order, policy, local, page_index))
    }

    /// The node that is asked first, and those that may be asked, the nearest first; nodes without memory left out.
    fn allowed(&self, policy: Policy, local: NodeId, page_index: u64) -> (NodeId, &[NodeId]) {
        let first = match policy {
            Policy::Local => local,
            Policy::Bind(node) => node,
            Policy::Interleave => match self.with_memory.len() as u64 {
                0 => local,
                nodes => self.with_memory[(page_index % nodes) as usize],
            },
        };
        let by_distance = self.nodes.get(first.index()).map_or(&[][..], |node| &node.order);
        let allowed = match policy {
            Policy::Bind(node) => by_distance
                .get(..1)
                .filter(|first| first[0] == node)
                .unwrap_or(&[]),
            Policy::Local | Policy::Interleave => by_distance,
        };
        (first, allowed)
    }

    /// The error that an allocation with these arguments gives if no block is free, for those who have a reason of their own to
    /// refuse it.
    #[must_use]
    pub fn out_of_memory(&self, order: Order, policy: Policy, local: NodeId, page_index: u64) -> OutOfMemory {
        let (node, allowed) = self.allowed(policy, local, page_index);
        let stats = || allowed.iter().filter_map(|&node| self.stats(node));
        OutOfMemory {
            node,
            order,
            policy,
            free_bytes: stats().map(|stats| stats.free_bytes()).sum(),
            total_bytes: stats().map(|stats| stats.total_bytes).sum(),
            kept_bytes: 0,
        }
    }

    /// Gives a frame back to its node.
    ///
    /// # Panics
    /// If this frame was not handed out with this size, or was given back since.
    pub fn free<S: FrameSize>(&self, frame: Frame<S>) {
        self.free_block(frame.into());
    }

    /// Gives a block back to its node.
    ///
    /// # Panics
    /// If this block was not handed out with this order, or was given back since.
    pub fn free_block(&self, block: Block) {
        let Some(node) = self.node_of(block.start()) else {
            panic!("freed {block}, which is no memory of the frame allocator");
        };
        self.nodes[node.index()].buddy.free(block);
    }

    /// The node that the frame at `address` was or would be handed out from, or `None` if the allocator has no such
    /// frame.
    #[must_use]
    pub fn node_of(&self, address: PhysAddr) -> Option<NodeId> {
        let below = self.ranges.partition_point(|(range, _)| range.start <= address);
        let (range, node) = self.ranges[..below].last()?;
        range.contains(address).then_some(*node)
    }

    /// The number of nodes, those without memory included.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// What the allocator holds of a node, or `None` if there is no such node.
    #[must_use]
    pub fn stats(&self, node: NodeId) -> Option<NodeStats> {
        let Node {
            buddy, total_bytes, ..
        } = self.nodes.get(node.index())?;
        let metadata_bytes = buddy.metadata_range().map_or(0, |range| range.bytes());
        Some(NodeStats {
            total_bytes: *total_bytes,
            metadata_bytes,
            free_blocks: buddy.free_blocks(),
        })
    }
}

/// Whether the description of the nodes can be right.
fn check(nodes: &[NodeMemory], sections: &[Vec<PhysRange>]) -> Result<(), BuildError> {
    for (index, (memory, sections)) in nodes.iter().zip(sections).enumerate() {
        let node = NodeId::from(index);
        let frames = layout::frames(sections);
        if frames >= u64::from(u32::MAX) {
            return Err(BuildError::TooLarge {
                node,
                bytes: frames << BASE_SHIFT,
            });
        }
        if let Some(&fallback) = memory.fallback.iter().find(|other| other.index() >= nodes.len()) {
            return Err(BuildError::NoSuchNode { node, fallback });
        }
    }
    let mut all: Vec<PhysRange> = sections.iter().flatten().copied().collect();
    all.sort_unstable();
    match all.windows(2).find(|pair| pair[0].end > pair[1].start) {
        Some(pair) => Err(BuildError::Overlap(pair[0], pair[1])),
        None => Ok(()),
    }
}

/// Frames for page tables from a node, or from those nearest to it when it has none, counted through a function.
pub struct LocalTables<'a, M, F> {
    frames: &'a FrameAllocator<M>,
    node: NodeId,
    count: F,
}

impl<'a, M: Machine, F: FnMut(Placement)> LocalTables<'a, M, F> {
    /// Frames from `node`; `count` is called for each.
    pub const fn new(frames: &'a FrameAllocator<M>, node: NodeId, count: F) -> Self {
        Self { frames, node, count }
    }
}

// SAFETY: the allocator hands a frame out once until it is given back, and its frames are memory by its own contract.
unsafe impl<M: Machine, F: FnMut(Placement)> TableFrames for LocalTables<'_, M, F> {
    fn allocate(&mut self) -> Option<Frame<Size4KiB>> {
        let Allocation { memory, placement } = self.frames.allocate(Policy::Local, self.node, 0).ok()?;
        (self.count)(placement);
        Some(memory)
    }

    fn free(&mut self, frame: Frame<Size4KiB>) {
        self.frames.free(frame);
    }
}
