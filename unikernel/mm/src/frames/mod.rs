//! Physical frames, per node.
//!
//! Each node has a buddy allocator of 4 KiB to 1 GiB blocks under one lock, and each CPU a cache of 4 KiB and 2 MiB frames of its
//! own node before that, so that most allocations and frees write to nothing that another CPU uses. Between both lies the node's
//! depot of 4 KiB frames, in chains of up to 64, which are exchanged as a whole (see `depot`).
//!
//! # An allocation
//! 1. The CPU's cache, if the memory is wanted from the CPU's node first. An empty cache is refilled with a chain: its own of frames
//!    that were given back together, or one of the depot. If there is none, it gets an aligned block of up to 256 KiB (so that CPUs
//!    do not write to each other's metadata) or four 2 MiB frames, while its node has plenty: more than all its caches can hold
//!    beside what is kept for the kernel.
//! 2. For each node that the policy allows, the nearest first: its buddy allocator, then, if something may be in them, the depot,
//!    which is emptied into it chain by chain until that is enough, the caches of its CPUs, which are emptied as well, and the buddy
//!    allocator again. So a node is passed over, or the allocation fails, only when the node has nothing; and that is found out by
//!    reading a few cache lines, without writing to any. Who has memory elsewhere that can be got back says so by
//!    [`allocate_reclaiming`](FrameAllocator::allocate_reclaiming), and is asked for it before the first node is passed over.
//!
//! Where memory is not plentiful, caches are not refilled from the buddy allocator, and nothing is put into the depot, so that none
//! keeps what another CPU needs. Their capacities are a share of the node's memory, and small nodes have none.
//!
//! # Giving back
//! A frame goes to the cache of the CPU that gives it back, if it is of the CPU's node. A full cache gives half of itself to the
//! depot, or to the buddy allocator where that is full, under one lock. Many frames are given back by a [`Freeing`], which links
//! them to chains: one of them stays with the CPU, and the others go to their nodes' depots.
//!
//! For [`Purpose::Program`] a node keeps 8 MiB, times its share of all memory, in its buddy allocator: the kernel needs memory to
//! report that there is none.
//!
//! # What it costs
//! What is known about a 4 KiB frame, 16 bytes, lies in an array on the frame's own node, which is taken out of its memory when the
//! allocator is built, together with the caches of its CPUs (8.4 KiB each): a node pays 16/4096, or 0.4 %, of its memory. The
//! array is not initialised as a whole, but piece by piece as blocks are divided for the first time (see `directory`). Beside it,
//! 32 bytes per 128 MiB of address space lead from an address to its node and metadata in a few instructions.
//!
//! A machine with 1 TiB has 4 GiB of metadata and a directory of 256 KiB. At the start, 8192 items of the directory and the first
//! frames of 1024 blocks are written, and for each end of a range that is not a multiple of 1 GiB, up to 511 entries for its 2 MiB
//! blocks and up to 511 for its last frames.

mod buddy;
mod cache;
mod depot;
mod directory;
mod error;
mod freeing;
mod layout;
pub(crate) mod lock;
mod metadata;
mod retired;
mod tables;
#[cfg(loom)]
mod watch;

use alloc::vec::Vec;

use crossbeam_utils::CachePadded;
use homenode_topology::{CpuId, NodeId, PhysAddr, PhysRange};

use self::buddy::{Buddy, Refusal};
use self::cache::{CacheRef, CachedFrame, Capacity, CpuCache, Kind, Stacks};
use self::depot::{Chain, Depot};
use self::directory::{Directory, Place};
pub use self::error::{BuildError, OutOfMemory};
pub use self::freeing::Freeing;
use self::lock::Lock;
pub(crate) use self::metadata::{FrameMetadata, TableLock};
use self::metadata::{MetadataArray, State};
pub(crate) use self::retired::RetiredFrames;
pub use self::tables::LocalTables;
use crate::atomic::{AtomicU32, Ordering};
use crate::frame::{Block, Frame};
use crate::machine::{Machine, NodeEvent};
use crate::policy::{Allocation, NumaEvent, Placement, Policy};
use crate::size::{BASE_SHIFT, FrameSize, ORDERS, Order, Size4KiB};

/// What programs leave to the kernel on all nodes together, in bytes.
const KEPT_BYTES: u64 = 8 << 20;
/// A node's depot holds at most its memory divided by this.
const DEPOT_SHARE: u64 = 32;

/// What the allocator is told about a node.
#[derive(Clone, Debug, Default)]
pub struct NodeMemory {
    /// The node's memory that nobody uses yet, in any order. Parts of a 4 KiB frame at the ends are left out.
    pub usable: Vec<PhysRange>,
    /// The other nodes, the nearest first. The node itself may be among them or not: it always comes first.
    pub fallback: Vec<NodeId>,
}

/// What memory is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// The program's pages: what a node keeps for the kernel is not handed out.
    Program,
    /// The kernel's own needs: all may be handed out.
    Kernel,
}

/// What the allocator holds of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStats {
    /// The bytes that it hands out from, free or not.
    pub total_bytes: u64,
    /// The bytes that what it keeps about these takes beside them: metadata, the caches themselves, the directory.
    pub metadata_bytes: u64,
    /// The number of free blocks of each order, those in CPUs' caches and in the node's depot included.
    pub free_blocks: [u64; ORDERS],
    /// The bytes of the free blocks that are in CPUs' caches and in the node's depot.
    pub cached_bytes: u64,
    /// The bytes that are not handed out for [`Purpose::Program`].
    pub kept_bytes: u64,
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
    metadata_bytes: u64,
    /// The frames that programs leave to the kernel.
    kept_frames: u64,
    /// Caches are filled while no fewer frames than this are left.
    plenty_frames: u64,
    /// The caches of the node's CPUs.
    caches: Vec<CacheRef>,
    /// What the caches do not hold, and whether it holds anything ever.
    depot: CachePadded<Lock<Depot>>,
    has_depot: bool,
    /// How many 4 KiB frames go to and from `depot` at once.
    chain_frames: u32,
    /// 0 if `depot` and all of `caches` are known to be empty, or are being emptied.
    may_be_cached: CachePadded<AtomicU32>,
    /// How many CPUs are emptying them.
    drains: CachePadded<AtomicU32>,
    /// This node, then the others, the nearest first; without the nodes that have no memory.
    order: Vec<NodeId>,
}

/// The physical frames of all nodes.
pub struct FrameAllocator<M> {
    machine: M,
    nodes: Vec<Node>,
    /// The nodes that have memory, for interleaving.
    with_memory: Vec<NodeId>,
    directory: Directory,
    /// By CPU: its cache, if it has one.
    caches: Vec<Option<CacheRef>>,
}

impl<M: Machine> FrameAllocator<M> {
    /// An allocator of the memory of `nodes`, which are the nodes 0, 1, … in this order, for CPUs on the nodes `cpus`, which are the
    /// CPUs 0, 1, … in this order. CPUs that are not named, or whose node has little memory for so many, have no cache.
    ///
    /// Takes a few small vectors from the heap, so that there must be one already.
    ///
    /// # Errors
    /// If the description can not be right.
    ///
    /// # Safety
    /// All usable ranges are memory that `machine` reaches, and nothing else uses them while the allocator exists, except
    /// for what it hands out.
    pub unsafe fn new(machine: M, nodes: Vec<NodeMemory>, cpus: &[NodeId]) -> Result<Self, BuildError> {
        let mut sections: Vec<Vec<PhysRange>> =
            nodes.iter().map(|node| layout::sections(&node.usable)).collect();
        check(&nodes, &sections)?;
        let span = span(&sections);
        // The directory goes where there is most room in one place.
        let largest = |sections: &Vec<PhysRange>| sections.iter().map(PhysRange::bytes).max();
        let holder = (0..sections.len()).max_by_key(|&node| largest(&sections[node]));
        let mut directory = Directory::EMPTY;
        let mut caches = Vec::new();
        caches.resize(cpus.len(), None);
        let mut built = Vec::with_capacity(nodes.len());
        for (index, sections) in sections.iter_mut().enumerate() {
            let node = NodeId::from(index);
            let own_cpus = || (0..cpus.len()).filter(|&cpu| cpus[cpu] == node);
            let capacity = Capacity::for_node(layout::frames(sections), own_cpus().count() as u64);
            let own_cpus = own_cpus().filter(|_| !capacity.is_none());
            let caches_bytes = own_cpus.clone().count() as u64 * size_of::<CpuCache>() as u64;
            let directory_bytes = if holder == Some(index) {
                Directory::bytes_for(span)
            } else {
                0
            };
            let place = layout::carve(sections, caches_bytes + directory_bytes);
            let frames = layout::frames(sections);
            let mut metadata = MetadataArray::EMPTY;
            if let Some(place) = place {
                let bytes = |offset| PhysRange::new(place.start + offset, place.end);
                // SAFETY: the place has just been taken out of what is handed out, is large enough for all three, and all of their
                // sizes are multiples of their alignments; the rest is by the caller's contract, since `machine` is kept.
                unsafe {
                    metadata = MetadataArray::new(machine.memory(place).cast(), frames as u32);
                    let mut offset = layout::metadata_bytes(frames);
                    for cpu in own_cpus {
                        let cache = CpuCache::new(node, capacity);
                        caches[cpu] = Some(CacheRef::new(machine.memory(bytes(offset)), cache));
                        offset += size_of::<CpuCache>() as u64;
                    }
                    if directory_bytes > 0 {
                        directory = Directory::new(machine.memory(bytes(offset)), span);
                    }
                }
            }
            built.push((
                core::mem::take(sections),
                metadata,
                place.map_or(0, |place| place.bytes()),
                capacity,
            ));
        }
        let total_bytes: Vec<u64> = built
            .iter()
            .map(|(sections, ..)| layout::frames(sections) << BASE_SHIFT)
            .collect();
        let all_bytes: u64 = total_bytes.iter().sum();
        if all_bytes > 0 && directory.is_empty() {
            return Err(BuildError::NoRoom(span));
        }
        let nodes: Vec<Node> = built
            .into_iter()
            .zip(nodes)
            .enumerate()
            .map(
                |(index, ((sections, metadata, metadata_bytes, capacity), memory))| {
                    let node = NodeId::from(index);
                    let mut order: Vec<NodeId> = Vec::with_capacity(total_bytes.len());
                    for other in core::iter::once(node).chain(memory.fallback) {
                        if total_bytes[other.index()] > 0 && !order.contains(&other) {
                            order.push(other);
                        }
                    }
                    let caches: Vec<CacheRef> = caches
                        .iter()
                        .flatten()
                        .filter(|cache| cache.get().node == node)
                        .copied()
                        .collect();
                    let total_frames = total_bytes[index] >> BASE_SHIFT;
                    let depot_frames = if caches.is_empty() {
                        0
                    } else {
                        total_frames / DEPOT_SHARE
                    };
                    let share = u128::from(KEPT_BYTES >> BASE_SHIFT) * u128::from(total_bytes[index]);
                    let kept_frames = share.checked_div(all_bytes.into()).unwrap_or(0) as u64;
                    Node {
                        buddy: Buddy::new(sections, metadata),
                        total_bytes: total_bytes[index],
                        metadata_bytes,
                        kept_frames,
                        plenty_frames: kept_frames + caches.len() as u64 * capacity.frames(),
                        caches,
                        depot: CachePadded::new(Lock::new(Depot::new(depot_frames, capacity.chain_frames()))),
                        has_depot: depot_frames > 0,
                        chain_frames: capacity.chain_frames(),
                        may_be_cached: CachePadded::new(AtomicU32::new(0)),
                        drains: CachePadded::new(AtomicU32::new(0)),
                        order,
                    }
                },
            )
            .collect();
        for (index, Node { buddy, .. }) in nodes.iter().enumerate() {
            for (range, first) in buddy.sections() {
                directory.add(range, NodeId::from(index), buddy.metadata(), first);
            }
        }
        for node in &nodes {
            node.buddy.insert_all(&machine, &directory);
        }
        let with_memory = (0..nodes.len())
            .map(NodeId::from)
            .filter(|node| nodes[node.index()].total_bytes > 0)
            .collect();
        Ok(Self {
            machine,
            nodes,
            with_memory,
            directory,
            caches,
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
    /// [`Policy::Interleave`] goes by. Counted by [`Machine::count_on`].
    ///
    /// # Errors
    /// If no block is free where the policy allows one, or none beside what is kept for the kernel.
    #[inline]
    pub fn allocate<S: FrameSize>(
        &self,
        policy: Policy,
        local: NodeId,
        page_index: u64,
        purpose: Purpose,
    ) -> Result<Allocation<Frame<S>>, OutOfMemory> {
        let taken = self.allocate_block(S::ORDER, policy, local, page_index, purpose)?;
        Ok(Allocation {
            memory: Frame::containing(taken.memory.start()),
            placement: taken.placement,
        })
    }

    /// Takes a block of an order that is known at run time only; else as [`allocate`](Self::allocate).
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    #[inline]
    pub fn allocate_block(
        &self,
        order: Order,
        policy: Policy,
        local: NodeId,
        page_index: u64,
        purpose: Purpose,
    ) -> Result<Allocation<Block>, OutOfMemory> {
        self.allocate_reclaiming(order, policy, local, page_index, purpose, &|| false)
    }

    /// As [`allocate_block`](Self::allocate_block), but where the node that is asked first has nothing left, `reclaim` is called
    /// once, without a lock, and the node asked again if it says that it has given something back.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    #[inline]
    pub fn allocate_reclaiming(
        &self,
        order: Order,
        policy: Policy,
        local: NodeId,
        page_index: u64,
        purpose: Purpose,
        reclaim: &dyn Fn() -> bool,
    ) -> Result<Allocation<Block>, OutOfMemory> {
        if let Some(kind) = Kind::of(order)
            && let Some(cache) = self.own_cache()
            && self.intended(policy, local, page_index) == cache.node
            && let Some(frame) = cache.stacks.try_with(|stacks| stacks.pop(kind))
        {
            return Ok(self.taken_from_cache(frame, cache.node, kind, policy, local));
        }
        self.take_slowly(order, policy, local, page_index, purpose, reclaim)
    }

    /// The cache of `cpu`.
    #[inline]
    pub(crate) fn at_hand(&self, cpu: CpuId) -> AtHand<'_> {
        let cache = self.caches.get(cpu.index());
        AtHand(cache.and_then(|cache| cache.as_ref().map(CacheRef::get)))
    }

    /// The running CPU's cache.
    #[inline]
    fn own_cache(&self) -> Option<&CpuCache> {
        let cache = self.caches.get(self.machine.cpu().index())?;
        cache.as_ref().map(CacheRef::get)
    }

    /// What is done about a frame that has just been taken from a cache of `node`, which is where it was wanted from.
    #[inline(always)]
    fn taken_from_cache(
        &self,
        frame: CachedFrame,
        node: NodeId,
        kind: Kind,
        policy: Policy,
        local: NodeId,
    ) -> Allocation<Block> {
        // SAFETY: what a cache holds was put there with its metadata, and this is the allocator.
        unsafe { frame.metadata() }.set_state(State::Allocated(kind.order()));
        let block = frame.block(kind);
        self.counted(block, node, node, local, policy == Policy::Interleave)
    }

    /// Takes a block where the running CPU's cache does not have it at once: from the cache once it is filled, or from the nodes.
    #[inline(never)]
    fn take_slowly(
        &self,
        order: Order,
        policy: Policy,
        local: NodeId,
        page_index: u64,
        purpose: Purpose,
        reclaim: &dyn Fn() -> bool,
    ) -> Result<Allocation<Block>, OutOfMemory> {
        if let Some(kind) = Kind::of(order)
            && let Some(cache) = self.own_cache()
            && self.intended(policy, local, page_index) == cache.node
            && let Some(frame) = cache.stacks.with(&self.machine, |stacks| {
                stacks.pop(kind).or_else(|| self.refill(cache.node, stacks, kind))
            })
        {
            return Ok(self.taken_from_cache(frame, cache.node, kind, policy, local));
        }
        self.take_from_nodes(order, policy, local, page_index, purpose, reclaim)
    }

    /// Fills an empty cache from its chain, from its node's depot, or from its node's free lists, if there is plenty in them, and
    /// takes a frame from it.
    fn refill(&self, node: NodeId, stacks: &mut Stacks, kind: Kind) -> Option<CachedFrame> {
        let node = &self.nodes[node.index()];
        let chain = match kind {
            Kind::Small if stacks.chained() > 0 => Some(stacks.take_chain()),
            Kind::Small => node.take_chain(&self.machine),
            Kind::Huge => None,
        };
        match chain {
            Some(chain) => {
                stacks.push_chain(chain.count(), |slots| node.buddy.take_apart(chain, slots));
            }
            None => node.buddy.allocate_batch(
                &self.machine,
                &self.directory,
                kind.order(),
                stacks.batch(kind),
                node.plenty_frames,
                |start, metadata| stacks.push_all(kind, start, metadata, kind.order().frames() as usize),
            ),
        }
        let frame = stacks.pop(kind)?;
        node.note_cached();
        Some(frame)
    }

    /// Takes a block from the nodes themselves.
    fn take_from_nodes(
        &self,
        order: Order,
        policy: Policy,
        local: NodeId,
        page_index: u64,
        purpose: Purpose,
        reclaim: &dyn Fn() -> bool,
    ) -> Result<Allocation<Block>, OutOfMemory> {
        let (_, allowed) = self.allowed(policy, local, page_index);
        let mut kept = false;
        for (rank, &node) in allowed.iter().enumerate() {
            let take = || self.take_from(&self.nodes[node.index()], order, purpose);
            let taken = take().or_else(|refusal| match rank {
                0 if reclaim() => take(),
                _ => Err(refusal),
            });
            match taken {
                Ok(block) => {
                    let interleaved = policy == Policy::Interleave;
                    return Ok(self.counted(block, node, allowed[0], local, interleaved));
                }
                Err(refusal) => kept |= refusal == Refusal::Kept,
            }
        }
        let kept_bytes = match kept {
            true => allowed
                .iter()
                .map(|node| self.nodes[node.index()].kept_bytes())
                .sum(),
            false => 0,
        };
        Err(OutOfMemory {
            kept_bytes,
            ..self.out_of_memory(order, policy, local, page_index)
        })
    }

    /// Takes a block from a node: from its free lists, and if that can not be, from there once so much of its depot and its CPUs' caches
    /// is in them that it can be.
    fn take_from(&self, node: &Node, order: Order, purpose: Purpose) -> Result<Block, Refusal> {
        let kept = match purpose {
            Purpose::Program => node.kept_frames,
            Purpose::Kernel => 0,
        };
        let allocate = || node.buddy.allocate(&self.machine, &self.directory, order, kept);
        allocate().or_else(|_| {
            // Asked again even if no cache holds anything now: another CPU may have emptied them meanwhile.
            self.drain_until(node, || allocate().ok())
                .map_or_else(allocate, Ok)
        })
    }

    /// Counts an allocation as Linux's `zone_statistics()` does: one for each, whatever its size.
    #[inline(always)]
    fn counted(
        &self,
        memory: Block,
        node: NodeId,
        intended: NodeId,
        local: NodeId,
        interleaved: bool,
    ) -> Allocation<Block> {
        #[cfg(feature = "simulation")]
        crate::simulation::frames(memory.range(), crate::simulation::FrameEvent::Allocated);
        let count = |node, event| self.machine.count_on(node, NodeEvent::Numa(event), 1);
        if node == intended {
            count(node, NumaEvent::Hit);
            if interleaved {
                count(node, NumaEvent::Interleave);
            }
        } else {
            count(node, NumaEvent::Miss);
            count(intended, NumaEvent::Foreign);
        }
        count(
            node,
            if node == local {
                NumaEvent::Local
            } else {
                NumaEvent::Other
            },
        );
        let placement = Placement {
            node,
            intended,
            local,
            interleaved,
        };
        Allocation { memory, placement }
    }

    /// The node that is asked first. It may have no memory.
    #[inline(always)]
    fn intended(&self, policy: Policy, local: NodeId, page_index: u64) -> NodeId {
        match policy {
            Policy::Local => local,
            Policy::Bind(node) | Policy::Preferred(node) => node,
            Policy::Interleave => match self.with_memory.len() as u64 {
                0 => local,
                nodes => self.with_memory[(page_index % nodes) as usize],
            },
        }
    }

    /// The node that is asked first, and those that may be asked, the nearest first; nodes without memory left out.
    fn allowed(&self, policy: Policy, local: NodeId, page_index: u64) -> (NodeId, &[NodeId]) {
        let first = self.intended(policy, local, page_index);
        let by_distance = self.nodes.get(first.index()).map_or(&[][..], |node| &node.order);
        let allowed = match policy {
            Policy::Bind(node) => by_distance
                .get(..1)
                .filter(|first| first[0] == node)
                .unwrap_or(&[]),
            Policy::Local | Policy::Preferred(_) | Policy::Interleave => by_distance,
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
    #[inline]
    pub fn free<S: FrameSize>(&self, frame: Frame<S>) {
        self.give_back(frame.into());
    }

    /// Gives a block back to its node.
    ///
    /// # Panics
    /// If this block was not handed out with this order, or was given back since.
    pub fn free_block(&self, block: Block) {
        self.give_back(block);
    }

    #[inline]
    fn give_back(&self, block: Block) {
        #[cfg(feature = "simulation")]
        crate::simulation::frames(block.range(), crate::simulation::FrameEvent::Freed);
        if let Some(kind) = Kind::of(block.order())
            && let Some(place) = self.directory.find_fast(block.start())
            && place.is_valid(block)
            && let Some(cache) = self.own_cache()
            && cache.node == place.node
            && let Some(()) = cache.stacks.try_with(|stacks| {
                if !stacks.is_between(kind) {
                    return None;
                }
                place.metadata.give_back(kind.order()).ok()?;
                stacks.push(kind, CachedFrame::new(block.start(), place.metadata));
                Some(())
            })
        {
            return;
        }
        self.give_back_slowly(block);
    }

    /// Where a block is that is given back, once that is noted there.
    ///
    /// # Panics
    /// As [`free_block`](Self::free_block).
    fn given_back(&self, block: Block) -> Place<'_> {
        match self.directory.find(block.start()) {
            Some(place) if place.is_valid(block) && place.metadata.give_back(block.order()).is_ok() => place,
            _ => self.misuse("freed", block),
        }
    }

    /// Gives a block back where the running CPU's cache does not take it at once.
    #[inline(never)]
    fn give_back_slowly(&self, block: Block) {
        let place = self.given_back(block);
        if let Some(kind) = Kind::of(block.order())
            && let Some(cache) = self.own_cache()
            && cache.node == place.node
            && cache.stacks.with(&self.machine, |stacks| {
                let ready = self.make_room(cache.node, stacks, kind);
                if ready {
                    stacks.push(kind, CachedFrame::new(block.start(), place.metadata));
                }
                ready
            })
        {
            return;
        }
        let buddy = &self.nodes[place.node.index()].buddy;
        buddy.free(&self.machine, core::iter::once(block));
    }

    /// Prepares a cache, which may be full or empty, for another frame; `false` if it never holds any.
    fn make_room(&self, node: NodeId, stacks: &mut Stacks, kind: Kind) -> bool {
        if stacks.capacity(kind) == 0 {
            return false;
        }
        let node = &self.nodes[node.index()];
        node.note_cached();
        if !stacks.has_room(kind) {
            let half = stacks.capacity(kind) / 2;
            match kind {
                Kind::Small => stacks.take_oldest(kind, half, |frames| self.put_frames(node, frames)),
                Kind::Huge => self.empty(node, stacks, kind, half),
            }
        }
        true
    }

    /// Gives 4 KiB frames of a cache to its node's depot.
    fn put_frames(&self, node: &Node, frames: &[CachedFrame]) {
        let mut chain = Chain::EMPTY;
        for frame in frames {
            // SAFETY: what a cache holds was put there with its metadata, and this is the allocator.
            let metadata = unsafe { frame.metadata() };
            chain.push(node.buddy.metadata().index_of(metadata), metadata);
        }
        node.put_chain(&self.machine, chain);
    }

    /// Gives `count` frames of a cache to its node's free lists.
    fn empty(&self, node: &Node, stacks: &mut Stacks, kind: Kind, count: u32) {
        stacks.take_oldest(kind, count, |frames| {
            let blocks = frames.iter().map(|frame| frame.block(kind));
            node.buddy.free(&self.machine, blocks);
        });
    }

    /// Gives the frames in all nodes' depots and CPUs' caches back to their nodes' free lists.
    pub fn drain(&self) {
        for node in &self.nodes {
            self.drain_until(node, || None::<()>);
        }
    }

    /// Empties a node's depot, chain by chain until `enough` gives something, and then the caches of the node's CPUs.
    fn drain_until<R>(&self, node: &Node, enough: impl Fn() -> Option<R>) -> Option<R> {
        let (may_be_cached, drains) = (&node.may_be_cached, &node.drains);
        // While another CPU is emptying them, what they hold is noted nowhere.
        if may_be_cached.load(Ordering::Acquire) == 0 && drains.load(Ordering::Acquire) == 0 {
            return None;
        }
        drains.fetch_add(1, Ordering::AcqRel);
        // What is put into the depot or a cache after it was emptied here is noted after this, as both happen under its lock.
        may_be_cached.swap(0, Ordering::AcqRel);
        let mut found = None;
        while found.is_none() && node.drain_chain(&self.machine) {
            found = enough();
        }
        if found.is_some() {
            may_be_cached.store(1, Ordering::Release);
        } else {
            // From here on nothing goes from a cache to the depot, or from there to a cache that is empty already.
            for cache in &node.caches {
                cache.get().stacks.with(&self.machine, |stacks| {
                    node.buddy.free_chain(&self.machine, stacks.take_chain());
                    for kind in Kind::ALL {
                        self.empty(node, stacks, kind, stacks.count(kind));
                    }
                });
            }
        }
        drains.fetch_sub(1, Ordering::AcqRel);
        found
    }

    /// Divides a block that was handed out into blocks of the order `into`, which are handed out then and are given back one by one.
    ///
    /// # Panics
    /// If the block was not handed out with its order, or was given back since, or `into` is a larger order.
    pub fn split(&self, block: Block, into: Order) {
        assert!(into <= block.order(), "{block} can not be divided into {into}");
        match self.directory.find(block.start()) {
            Some(place)
                if place.is_valid(block) && place.metadata.state() == State::Allocated(block.order()) =>
            {
                let buddy = &self.nodes[place.node.index()].buddy;
                buddy.split(&self.directory, block, into);
            }
            _ => self.misuse("divided", block),
        }
    }

    /// What is wrong with a block that is not one that was handed out.
    #[cold]
    fn misuse(&self, done: &str, block: Block) -> ! {
        let Some(place) = self.directory.find(block.start()) else {
            panic!("{done} {block}, which is no memory of the frame allocator");
        };
        // The state is known if the frame can be the first of any block.
        let known = Order::all()
            .filter_map(|order| Block::new(block.start(), order))
            .any(|block| place.is_valid(block));
        match place.metadata.state() {
            State::Free(as_part_of) if known => {
                panic!("{done} {block} twice: it is free, in a block of {as_part_of}")
            }
            State::Cached(order) if known => {
                panic!("{done} {block} twice: it is free, in a cache, as {order}")
            }
            State::Allocated(other) if known => panic!("{done} {block}, which was handed out as {other}"),
            State::Table if known => panic!("{done} {block}, which is a page table"),
            _ => panic!("{done} {block} twice, or it is a part of another block"),
        }
    }

    /// The node that the frame at `address` was or would be handed out from, or `None` if the allocator has no such
    /// frame.
    #[inline]
    #[must_use]
    pub fn node_of(&self, address: PhysAddr) -> Option<NodeId> {
        self.directory.find(address).map(|place| place.node)
    }

    /// The metadata of a frame that was handed out.
    ///
    /// # Panics
    /// If `frame` is no memory of the allocator's.
    #[inline(always)]
    pub(crate) fn metadata(&self, frame: PhysAddr) -> &FrameMetadata {
        match self.directory.find(frame) {
            Some(Place { metadata, .. }) => metadata,
            None => panic!("there is no frame at {frame}"),
        }
    }

    /// The number of nodes, those without memory included.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// What the allocator holds of a node, or `None` if there is no such node. Exact when nobody allocates or frees meanwhile.
    #[must_use]
    pub fn stats(&self, node: NodeId) -> Option<NodeStats> {
        let node = self.nodes.get(node.index())?;
        let mut free_blocks = node.buddy.free_blocks(&self.machine);
        let chained = node.depot.with(&self.machine, |depot| depot.frames());
        free_blocks[Order::MIN.index()] += chained;
        let mut cached_bytes = chained * Order::MIN.bytes();
        for cache in &node.caches {
            let counts = cache.get().stacks.with(&self.machine, |stacks| {
                let chained = |kind| if kind == Kind::Small { stacks.chained() } else { 0 };
                Kind::ALL.map(|kind| stacks.count(kind) + chained(kind))
            });
            for (kind, count) in Kind::ALL.into_iter().zip(counts) {
                free_blocks[kind.order().index()] += u64::from(count);
                cached_bytes += u64::from(count) * kind.order().bytes();
            }
        }
        Some(NodeStats {
            total_bytes: node.total_bytes,
            metadata_bytes: node.metadata_bytes,
            free_blocks,
            cached_bytes,
            kept_bytes: node.kept_bytes(),
        })
    }
}

/// A CPU's cache, for the page-fault path: nothing is waited for.
#[derive(Clone, Copy)]
pub(crate) struct AtHand<'a>(Option<&'a CpuCache>);

impl AtHand<'_> {
    /// A 4 KiB frame of the CPU's node, if the cache has one; not counted. By that CPU only.
    #[inline(always)]
    pub(crate) fn take(self) -> Option<(Frame<Size4KiB>, NodeId)> {
        let cache = self.0?;
        let taken = cache.stacks.try_with(
            #[inline(always)]
            |stacks| stacks.pop(Kind::Small),
        )?;
        // SAFETY: what a cache holds was put there with its metadata, which lives as long as the cache.
        unsafe { taken.metadata() }.set_state(State::Allocated(Order::MIN));
        let frame = taken.small();
        #[cfg(feature = "simulation")]
        crate::simulation::frames(frame.range(), crate::simulation::FrameEvent::Allocated);
        Some((frame, cache.node))
    }
}

impl Node {
    const fn kept_bytes(&self) -> u64 {
        self.kept_frames << BASE_SHIFT
    }

    /// Notes that a cache of this node, or its depot, may hold something from now on. Under its lock.
    fn note_cached(&self) {
        if self.may_be_cached.load(Ordering::Relaxed) == 0 {
            self.may_be_cached.store(1, Ordering::Relaxed);
        }
    }
}

/// From the first to the last address of all sections.
fn span(sections: &[Vec<PhysRange>]) -> PhysRange {
    let all = || sections.iter().flatten();
    let start = all().map(|section| section.start).min();
    let end = all().map(|section| section.end).max();
    PhysRange::new(start.unwrap_or_default(), end.unwrap_or_default())
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
