//! Heaps: blocks do not overlap, are as aligned as asked for and keep their contents, whoever frees them; memory comes round again.

use std::alloc::Layout;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use homenode_mm::heap::{
    CpuCache, CpuHeap, LARGEST_BLOCK_BYTES, LARGEST_SMALL_BYTES, NodeHeap, NodeHeaps, PinnedMemory,
    PinnedRange, SEGMENT_BYTES, SEGMENT_USED_BYTES, Segments,
};
use homenode_topology::NodeId;
use proptest::prelude::*;
use proptest::sample::Index;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Memory of the host that comes when it is touched, at a multiple of [`SEGMENT_BYTES`]. It is never given back.
fn map_segment() -> NonNull<u8> {
    // SAFETY: a new mapping.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            2 * SEGMENT_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED, "the host has addresses");
    let start = start.cast::<u8>();
    NonNull::new(start.wrapping_add(start.align_offset(SEGMENT_BYTES))).unwrap()
}

thread_local! {
    /// How many segments this thread may still have.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    /// How many it has had.
    static RESERVED: Cell<usize> = const { Cell::new(0) };
}

#[derive(Clone, Copy, Debug)]
struct HostSegments;

// SAFETY: new mappings of the host, larger than a segment.
unsafe impl Segments for HostSegments {
    fn reserve(&self) -> Option<NonNull<u8>> {
        LEFT.set(LEFT.get().checked_sub(1)?);
        RESERVED.set(RESERVED.get() + 1);
        Some(map_segment())
    }
}

type Heap = CpuHeap<HostSegments>;

/// A heap that lives on, as its blocks may.
fn new_heap() -> &'static Heap {
    Box::leak(Box::new(Heap::new(HostSegments)))
}

/// A block in use, filled with a pattern.
#[derive(Debug)]
struct Block {
    start: NonNull<u8>,
    layout: Layout,
    tag: u8,
}

// SAFETY: whoever has it uses its memory alone.
unsafe impl Send for Block {}

impl Block {
    fn new(start: NonNull<u8>, layout: Layout, tag: u8) -> Self {
        assert!(
            start.as_ptr().addr().is_multiple_of(layout.align()),
            "{start:?} for {layout:?}"
        );
        let block = Self { start, layout, tag };
        // SAFETY: the block's own memory.
        block
            .offsets(0)
            .for_each(|offset| unsafe { start.add(offset).write(block.byte_at(offset)) });
        block
    }

    /// Some offsets into the block, the first and the last among them; from 16 on, to leave out what a free block holds, if asked.
    fn offsets(&self, from: usize) -> impl Iterator<Item = usize> + use<> {
        let size = self.layout.size();
        (from..size.min(64))
            .chain((64..size).step_by(511))
            .chain(size.saturating_sub(64).max(from)..size)
    }

    fn byte_at(&self, offset: usize) -> u8 {
        self.tag ^ (offset as u8).wrapping_mul(31)
    }

    fn check(&self) {
        for offset in self.offsets(0) {
            // SAFETY: the block's own memory, and written by `new`.
            let byte = unsafe { self.start.add(offset).read() };
            assert_eq!(byte, self.byte_at(offset), "at {offset} of {self:?}");
        }
    }
}

/// Blocks in use, of any heaps, none of which overlap.
#[derive(Default)]
struct Live {
    blocks: Vec<Block>,
    ends: BTreeMap<usize, usize>,
    next_tag: u8,
}

impl Live {
    fn add(&mut self, start: NonNull<u8>, layout: Layout) {
        let (from, to) = (start.as_ptr().addr(), start.as_ptr().addr() + layout.size());
        let below = self.ends.range(..to).next_back();
        assert!(
            below.is_none_or(|(_, &end)| end <= from),
            "{from:#x}-{to:#x} overlaps what ends at {below:#x?}"
        );
        self.ends.insert(from, to);
        self.next_tag = self.next_tag.wrapping_add(1);
        self.blocks.push(Block::new(start, layout, self.next_tag));
    }

    fn remove(&mut self, index: Index) -> Option<Block> {
        if self.blocks.is_empty() {
            return None;
        }
        let block = self.blocks.swap_remove(index.index(self.blocks.len()));
        self.ends.remove(&block.start.as_ptr().addr());
        block.check();
        Some(block)
    }
}

fn layouts() -> impl Strategy<Value = Layout> {
    let sizes = prop_oneof![
        8 => 1..600usize,
        4 => 600..LARGEST_SMALL_BYTES,
        2 => LARGEST_SMALL_BYTES..MIB,
        1 => Just(4 * KIB),
    ];
    let shifts = prop_oneof![6 => 0..5u32, 2 => 5..13u32, 1 => 13..21u32];
    (sizes, shifts).prop_map(|(size, shift)| Layout::from_size_align(size, 1 << shift).unwrap())
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(Layout),
    /// Frees a block, by the second heap's owner, or by nobody's.
    Free(Index, Freer),
    Resize(Index, usize),
}

#[derive(Clone, Copy, Debug)]
enum Freer {
    Owner,
    OtherOwner,
    Nobody,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let freers = prop_oneof![
        4 => Just(Freer::Owner),
        1 => Just(Freer::OtherOwner),
        1 => Just(Freer::Nobody)
    ];
    let step = prop_oneof![
        5 => layouts().prop_map(Step::Allocate),
        4 => (any::<Index>(), freers).prop_map(|(index, freer)| Step::Free(index, freer)),
        1 => (any::<Index>(), 1..2 * MIB).prop_map(|(index, bytes)| Step::Resize(index, bytes)),
    ];
    proptest::collection::vec(step, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn blocks_of_a_cpus_heap_are_sound(steps in steps()) {
        let (heap, other) = (new_heap(), new_heap());
        let mut live = Live::default();
        for step in steps {
            // SAFETY: this thread owns both heaps; blocks are freed once, with their layouts.
            unsafe {
                match step {
                    Step::Allocate(layout) => live.add(heap.allocate(layout).expect("there is memory"), layout),
                    Step::Free(index, freer) => {
                        let Some(Block { start, layout, .. }) = live.remove(index) else { continue };
                        match freer {
                            Freer::Owner => heap.free(start, layout),
                            Freer::OtherOwner => other.free(start, layout),
                            Freer::Nobody => Heap::free_remotely(start, layout),
                        }
                    }
                    Step::Resize(index, bytes) => {
                        let Some(Block { start, layout, .. }) = live.remove(index) else { continue };
                        let resized = heap.resize_in_place(start, layout, bytes);
                        let size = if resized { bytes } else { layout.size() };
                        live.add(start, Layout::from_size_align(size, layout.align()).unwrap());
                    }
                }
            }
        }
        live.blocks.iter().for_each(Block::check);
    }
}

/// Allocates blocks of this size until `bytes` bytes are in use.
fn fill(heap: &Heap, size: usize, bytes: usize) -> Vec<(NonNull<u8>, Layout)> {
    let layout = Layout::from_size_align(size, 1).unwrap();
    // SAFETY: the callers own the heap.
    let block = |_| unsafe { (heap.allocate(layout).expect("there is memory"), layout) };
    (0..bytes / size).map(block).collect()
}

#[test]
fn memory_serves_other_sizes_and_comes_back_from_other_owners() {
    // Each round takes nearly what a segment has.
    const BYTES: usize = 40 * MIB;
    let heap = new_heap();
    for (round, size) in [16, 48, 4 * KIB, 200, 32 * KIB, 1000].into_iter().enumerate() {
        for (block, layout) in fill(heap, size, BYTES * size / (size + 16)) {
            // SAFETY: the block is freed once, with its layout; each thread owns the heap that it frees into.
            unsafe {
                if round % 2 == 0 {
                    heap.free(block, layout);
                } else {
                    Heap::free_remotely(block, layout);
                }
            }
        }
    }
    assert_eq!(RESERVED.get(), 1, "what is free serves the next size");

    for _ in 0..3 {
        let blocks = fill(heap, 100 * KIB, BYTES);
        // SAFETY: as above.
        blocks
            .into_iter()
            .for_each(|(block, layout)| unsafe { Heap::free_remotely(block, layout) });
    }
    assert_eq!(RESERVED.get(), 2, "large blocks that others freed are joined");
}

#[test]
fn resizing_in_place_happens_where_there_is_room() {
    let heap = new_heap();
    let layout = |size| Layout::from_size_align(size, 8).unwrap();
    // SAFETY: this thread owns the heap; the layouts are those of the blocks.
    unsafe {
        let small = heap.allocate(layout(97)).unwrap();
        assert!(heap.resize_in_place(small, layout(97), 112), "the same class");
        assert!(!heap.resize_in_place(small, layout(112), 113), "the next class");
        assert!(!heap.resize_in_place(small, layout(112), 40 * KIB));

        let large = heap.allocate(layout(40 * KIB)).unwrap();
        assert!(
            heap.resize_in_place(large, layout(40 * KIB), 300 * KIB),
            "nothing is behind it"
        );
        assert!(
            !heap.resize_in_place(large, layout(300 * KIB), 100),
            "small blocks lie elsewhere"
        );
        assert!(
            !new_heap().resize_in_place(large, layout(300 * KIB), 400 * KIB),
            "only its owner can tell"
        );
        let behind = heap.allocate(layout(40 * KIB)).unwrap();
        assert!(behind >= large.add(300 * KIB), "the block has grown");
    }
}

#[test]
fn no_memory_is_said_and_survived() {
    let heap = new_heap();
    let small = Layout::new::<u64>();
    let large = Layout::from_size_align(MIB, 1).unwrap();
    let too_large = Layout::from_size_align(LARGEST_BLOCK_BYTES + 1, 1).unwrap();
    LEFT.set(0);
    // SAFETY: this thread owns the heap; layouts have sizes.
    unsafe {
        assert_eq!(heap.allocate(small), None);
        assert_eq!(heap.allocate(large), None);
        LEFT.set(2);
        assert_eq!(heap.allocate(too_large), None);
        let mut blocks = Vec::new();
        while let Some(block) = heap.allocate(small) {
            blocks.push(block);
        }
        assert!(
            blocks.len() * 16 > 2 * SEGMENT_USED_BYTES - MIB,
            "both segments are used up"
        );
        assert_eq!(heap.allocate(large), None);
        let last = blocks.pop().unwrap();
        heap.free(last, small);
        assert_eq!(heap.allocate(small), Some(last), "what was freed is found");
    }
}

#[test]
fn threads_free_what_others_allocated() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 30_000;
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..THREADS).map(|_| mpsc::sync_channel::<Block>(64)).unzip();
    let sizes: [usize; 7] = [1, 24, 100, 700, 4096, 9000, 70_000];
    let segments: Vec<usize> = thread::scope(|scope| {
        let workers: Vec<_> = receivers
            .into_iter()
            .enumerate()
            .map(|(index, receiver)| {
                let next = senders[(index + 1) % THREADS].clone();
                scope.spawn(move || {
                    let heap = new_heap();
                    let mut kept = Vec::new();
                    for round in 0..ROUNDS {
                        let layout = Layout::from_size_align(sizes[round % sizes.len()], 8).unwrap();
                        // SAFETY: this thread owns the heap.
                        let block = unsafe { heap.allocate(layout) }.expect("there is memory");
                        let mine = Block::new(block, layout, round as u8);
                        // Nobody waits for anybody, so that none waits for ever.
                        match next.try_send(mine) {
                            Ok(()) => {}
                            Err(mpsc::TrySendError::Full(mine) | mpsc::TrySendError::Disconnected(mine)) => {
                                kept.push(mine);
                            }
                        }
                        for block in receiver.try_iter().chain(kept.pop()) {
                            block.check();
                            // SAFETY: whoever receives it is the only one to have it; this thread owns its heap.
                            unsafe { heap.free(block.start, block.layout) };
                        }
                    }
                    RESERVED.get()
                })
            })
            .collect();
        drop(senders);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    assert!(
        segments.iter().all(|&segments| segments <= 2),
        "what others freed is used again: {segments:?}"
    );
}

/// Nodes of the host's memory, so large each, and what they have given.
struct HostNodes {
    used: Vec<AtomicUsize>,
}

/// Each node has the addresses of one segment.
const NODE_BYTES: usize = 4 * MIB;
const NODES: u32 = 3;

#[derive(Clone, Copy)]
struct HostNode<'a> {
    nodes: &'a HostNodes,
    start: usize,
}

// SAFETY: new mappings of the host; a range's node is where it lies in them.
unsafe impl PinnedMemory for HostNode<'_> {
    fn acquire(&self, node: NodeId, bytes: usize) -> Option<PinnedRange> {
        let bytes = bytes.next_multiple_of(256 * KIB);
        (0..NODES)
            .map(|hop| NodeId((node.0 + hop) % NODES))
            .find_map(|node| {
                let take = |used: usize| Some(used + bytes).filter(|&used| used <= NODE_BYTES);
                let offset = self.nodes.used[node.index()]
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                    .ok()?;
                let start =
                    ptr::with_exposed_provenance_mut::<u8>(self.start + node.index() * NODE_BYTES + offset);
                Some(PinnedRange {
                    start: NonNull::new(start)?,
                    bytes,
                    node,
                })
            })
    }

    fn node_of(&self, block: NonNull<u8>) -> NodeId {
        NodeId(((block.as_ptr().addr() - self.start) / NODE_BYTES) as u32)
    }
}

fn node_heaps(nodes: &HostNodes) -> (HostNode<'_>, NodeHeaps<HostNode<'_>>) {
    let memory = HostNode {
        nodes,
        start: map_segment().as_ptr().expose_provenance(),
    };
    let heaps = (0..NODES)
        .map(|node| &*Box::leak(Box::new(NodeHeap::new(NodeId(node)))))
        .collect();
    (memory, NodeHeaps::new(memory, heaps))
}

impl HostNodes {
    fn new() -> Self {
        Self {
            used: (0..NODES).map(|_| AtomicUsize::new(0)).collect(),
        }
    }

    fn used(&self) -> Vec<usize> {
        self.used
            .iter()
            .map(|used| used.load(Ordering::Relaxed))
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn blocks_of_node_heaps_are_sound(
        steps in proptest::collection::vec((0..NODES, any::<bool>(), layouts(), any::<Index>()), 1..600),
    ) {
        let nodes = HostNodes::new();
        let (_, heaps) = node_heaps(&nodes);
        let caches: Vec<CpuCache> = (0..NODES).map(|_| CpuCache::new()).collect();
        let mut live = Live::default();
        for (cpu, allocate, layout, index) in steps {
            let (cache, node) = (&caches[cpu as usize], NodeId(cpu));
            // SAFETY: this thread alone uses the caches; blocks are freed once, with their layouts.
            unsafe {
                if allocate {
                    if let Some(block) = heaps.allocate(cache, node, layout) {
                        live.add(block, layout);
                    }
                } else if let Some(Block { start, layout, .. }) = live.remove(index) {
                    heaps.free(cache, node, start, layout);
                }
            }
        }
        live.blocks.iter().for_each(Block::check);
    }
}

#[test]
fn node_heaps_are_local_until_a_node_is_full() {
    let nodes = HostNodes::new();
    let (memory, heaps) = node_heaps(&nodes);
    let caches: Vec<CpuCache> = (0..NODES).map(|_| CpuCache::new()).collect();
    let layout = Layout::from_size_align(224, 8).unwrap();
    let mut blocks = Vec::new();
    // SAFETY: this thread alone uses the caches; blocks are freed once, with their layouts, on several CPUs.
    unsafe {
        for round in 0..5 {
            for cpu in 0..NODES {
                for _ in 0..500 {
                    let block = heaps
                        .allocate(&caches[cpu as usize], NodeId(cpu), layout)
                        .unwrap();
                    assert_eq!(memory.node_of(block), NodeId(cpu), "each node has memory");
                    blocks.push((cpu, block));
                }
            }
            for (cpu, block) in blocks.drain(..) {
                let cpu = (cpu + round) % NODES;
                heaps.free(&caches[cpu as usize], NodeId(cpu), block, layout);
            }
        }
        assert_eq!(
            nodes.used(),
            [256 * KIB; NODES as usize],
            "memory comes round again, on its node"
        );

        let taken: Vec<_> = std::iter::from_fn(|| heaps.allocate(&caches[0], NodeId(0), layout)).collect();
        assert!(taken.len() * layout.size() > NODES as usize * NODE_BYTES * 4 / 5);
        assert_eq!(nodes.used(), [NODE_BYTES; NODES as usize], "all nodes help out");
        for &block in &taken {
            heaps.free(&caches[1], NodeId(1), block, layout);
        }
        let again = std::iter::from_fn(|| heaps.allocate(&caches[2], NodeId(2), layout)).count();
        assert!(
            again > taken.len() - 100,
            "{again} of {} blocks are found again",
            taken.len()
        );
    }
}
