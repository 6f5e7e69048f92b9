//! Physical frames: no overlap, no loss, coalescing, placement by policy, caches that keep nothing from anyone, and clear words for
//! misuse.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use homenode_mm::{
    Block, BuildError, Frame, FrameAllocator, FrameSize, NodeEvent, NodeMemory, NodeStats, NumaEvent, ORDERS,
    Order, OutOfMemory, PageSize, Policy, Purpose, Size1GiB, Size2MiB, Size4KiB,
};
use homenode_topology::{CpuId, NodeId, PhysAddr, PhysRange};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::machine::FakeMachine;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const NODE0: NodeId = NodeId(0);
const NODE1: NodeId = NodeId(1);
const NODE2: NodeId = NodeId(2);
const HUGE: Order = PageSize::Size2MiB.order();

pub(crate) fn range(start: u64, end: u64) -> PhysRange {
    PhysRange::new(PhysAddr(start), PhysAddr(end))
}

/// A node with these ranges that falls back to these nodes.
pub(crate) fn node(usable: &[PhysRange], fallback: &[u32]) -> NodeMemory {
    NodeMemory {
        usable: usable.to_vec(),
        fallback: fallback.iter().map(|&node| NodeId(node)).collect(),
    }
}

pub(crate) fn build(machine: &FakeMachine, nodes: Vec<NodeMemory>) -> FrameAllocator<&FakeMachine> {
    // SAFETY: the machine's memory is used by nothing else.
    unsafe { FrameAllocator::new(machine, nodes, machine.cpus()) }.expect("a description that can be right")
}

fn stats<M: homenode_mm::Machine>(frames: &FrameAllocator<M>) -> Vec<NodeStats> {
    (0..frames.nodes())
        .map(|node| frames.stats(NodeId::from(node)).unwrap())
        .collect()
}

/// Takes a frame for the kernel.
fn take<S: FrameSize>(frames: &FrameAllocator<&FakeMachine>, local: NodeId) -> Result<Frame<S>, OutOfMemory> {
    let allocation = frames.allocate(Policy::Local, local, 0, Purpose::Kernel)?;
    Ok(allocation.memory)
}

/// The number of aligned pages of this size that `range` holds.
fn whole_pages(range: &PhysRange, size: PageSize) -> u64 {
    (range.end.0 / size.bytes()).saturating_sub(range.start.0.div_ceil(size.bytes()))
}

/// What is free on a node: where each stretch begins and ends.
#[derive(Clone, Debug, Default)]
struct FreeMemory(BTreeMap<u64, u64>);

impl FreeMemory {
    fn add(&mut self, range: PhysRange) {
        let (mut start, mut end) = (range.start.0, range.end.0);
        if let Some((&below, &until)) = self.0.range(..start).next_back()
            && until == start
        {
            start = below;
        }
        if let Some(above) = self.0.remove(&end) {
            end = above;
        }
        self.0.insert(start, end);
    }

    /// Takes a range out; `false` if it is not all free.
    fn remove(&mut self, range: PhysRange) -> bool {
        let Some((&start, &end)) = self.0.range(..=range.start.0).next_back() else {
            return false;
        };
        if end < range.end.0 {
            return false;
        }
        self.0.remove(&start);
        for (start, end) in [(start, range.start.0), (range.end.0, end)] {
            if start < end {
                self.0.insert(start, end);
            }
        }
        true
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// Whether an aligned block of this order is free.
    fn can_serve(&self, order: Order) -> bool {
        self.0
            .iter()
            .any(|(start, end)| start.next_multiple_of(order.bytes()) + order.bytes() <= *end)
    }
}

/// All that the allocator hands out from, by node.
fn all_free(frames: &FrameAllocator<&FakeMachine>, nodes: &[NodeMemory]) -> Vec<FreeMemory> {
    let mut free = vec![FreeMemory::default(); nodes.len()];
    for usable in nodes.iter().flat_map(|node| &node.usable) {
        let first = usable.start.0.next_multiple_of(4 * KIB);
        for start in (first..usable.end.0).step_by(4096) {
            if let Some(node) = frames.node_of(PhysAddr(start)) {
                free[node.index()].add(range(start, start + 4 * KIB));
            }
        }
    }
    free
}

#[derive(Clone, Debug)]
enum Step {
    Allocate {
        order: Order,
        policy: Policy,
        local: NodeId,
        page_index: u64,
        purpose: Purpose,
    },
    Free(Index),
    /// Gives many 4 KiB frames, and some others, back at once.
    FreeMany(Index, usize),
    /// Takes many 4 KiB frames.
    TakeMany(NodeId, u32),
    Split(Index, Order),
    Drain,
    /// The following is done on this CPU.
    RunOn(CpuId),
}

/// Up to four nodes: alternating used and left-out stretches of memory, dealt out to the nodes, with ragged ends; and
/// each node's order of fallback.
fn nodes() -> impl Strategy<Value = Vec<NodeMemory>> {
    let size = prop_oneof![
        1..16 * KIB,
        1..3 * MIB,
        1..40 * MIB,
        (1..64u64).prop_map(|pages| pages * MIB)
    ];
    let stretches = prop::collection::vec((size.clone(), prop_oneof![Just(0), size], any::<Index>()), 1..12);
    (1..5usize, stretches).prop_flat_map(|(count, stretches)| {
        let all: Vec<NodeId> = (0..count).map(NodeId::from).collect();
        let orders = prop::collection::vec(Just(all).prop_shuffle(), count);
        orders.prop_map(move |orders| {
            let mut nodes: Vec<NodeMemory> = orders
                .into_iter()
                .map(|fallback| NodeMemory {
                    usable: Vec::new(),
                    fallback,
                })
                .collect();
            let mut at = 0;
            for (used, hole, owner) in &stretches {
                let owner = owner.index(count);
                nodes[owner].usable.push(range(at, at + used));
                at += used + hole;
            }
            nodes
        })
    })
}

fn step(nodes: usize) -> impl Strategy<Value = Step> {
    let id = (0..nodes).prop_map(NodeId::from);
    let order =
        prop_oneof![6 => 0..4u8, 4 => Just(9u8), 1 => 0..19u8].prop_map(|order| Order::new(order).unwrap());
    let policy = prop_oneof![
        3 => Just(Policy::Local),
        1 => (0..nodes as u32 + 1).prop_map(|node| Policy::Bind(NodeId(node))),
        1 => (0..nodes as u32).prop_map(|node| Policy::Preferred(NodeId(node))),
        1 => Just(Policy::Interleave)
    ];
    let purpose = prop_oneof![Just(Purpose::Program), Just(Purpose::Kernel)];
    prop_oneof![
        12 => (order.clone(), policy, id.clone(), any::<u64>(), purpose).prop_map(
            |(order, policy, local, page_index, purpose)| {
                Step::Allocate { order, policy, local, page_index, purpose }
            }
        ),
        8 => any::<Index>().prop_map(Step::Free),
        2 => (any::<Index>(), 0..300usize).prop_map(|(first, count)| Step::FreeMany(first, count)),
        2 => (id.clone(), 0..300u32).prop_map(|(node, count)| Step::TakeMany(node, count)),
        1 => (any::<Index>(), order).prop_map(|(which, into)| Step::Split(which, into)),
        1 => Just(Step::Drain),
        2 => (0..6u32).prop_map(|cpu| Step::RunOn(CpuId(cpu))),
    ]
}

/// Nodes, the nodes of the CPUs, and what is done.
fn nodes_and_steps() -> impl Strategy<Value = (Vec<NodeMemory>, Vec<NodeId>, Vec<Step>)> {
    nodes().prop_flat_map(|nodes| {
        let cpus = prop::collection::vec((0..nodes.len()).prop_map(NodeId::from), 0..6);
        let steps = prop::collection::vec(step(nodes.len()), 0..200);
        (Just(nodes), cpus, steps)
    })
}

/// Where a policy allows memory to come from, the intended node first: the order of the description.
fn allowed(
    nodes: &[NodeMemory],
    stats: &[NodeStats],
    policy: Policy,
    local: NodeId,
    index: u64,
) -> Vec<NodeId> {
    let has_memory = |node: &NodeId| stats.get(node.index()).is_some_and(|stats| stats.total_bytes > 0);
    let first = match policy {
        Policy::Local => local,
        Policy::Preferred(node) => node,
        Policy::Bind(node) => return Some(node).filter(has_memory).into_iter().collect(),
        Policy::Interleave => {
            let all: Vec<NodeId> = (0..nodes.len()).map(NodeId::from).filter(has_memory).collect();
            match all.len() as u64 {
                0 => local,
                count => all[(index % count) as usize],
            }
        }
    };
    let others = nodes[first.index()]
        .fallback
        .iter()
        .copied()
        .filter(|&node| node != first);
    std::iter::once(first).chain(others).filter(has_memory).collect()
}

/// The counter's name in Linux's `/proc/vmstat`.
fn name(event: NumaEvent) -> &'static str {
    match event {
        NumaEvent::Hit => "numa_hit",
        NumaEvent::Miss => "numa_miss",
        NumaEvent::Foreign => "numa_foreign",
        NumaEvent::Interleave => "numa_interleave",
        NumaEvent::Local => "numa_local",
        NumaEvent::Other => "numa_other",
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn frames_are_disjoint_placed_by_policy_and_never_lost((nodes, cpus, steps) in nodes_and_steps()) {
        let machine = FakeMachine::with_cpus(GIB, &cpus);
        FakeMachine::run_on(CpuId(0));
        let frames = build(&machine, nodes.clone());
        let initial = stats(&frames);
        machine.asked.lock().unwrap().clear();
        let all = all_free(&frames, &nodes);
        for (free, stats) in all.iter().zip(&initial) {
            prop_assert_eq!(free.bytes(), stats.total_bytes);
            prop_assert_eq!(stats.free_bytes(), stats.total_bytes);
        }
        let mut free = all.clone();
        let mut live: Vec<Block> = Vec::new();
        let mut cpu = CpuId(0);
        for step in steps {
            match step {
                Step::Allocate { order, policy, local, page_index, purpose } => {
                    let before = stats(&frames);
                    let kept = |node: &NodeId| match purpose {
                        Purpose::Program => before[node.index()].kept_bytes,
                        Purpose::Kernel => 0,
                    };
                    let allowed = allowed(&nodes, &initial, policy, local, page_index);
                    let expected = allowed.iter().copied().find(|node| {
                        free[node.index()].can_serve(order)
                            && free[node.index()].bytes() >= kept(node) + order.bytes()
                    });
                    let result = frames.allocate_block(order, policy, local, page_index, purpose);
                    let got = result.as_ref().ok().map(|allocation| allocation.placement.node);
                    if got != expected {
                        // What is in the CPU's cache is had without asking how much is left.
                        prop_assert_eq!(got, allowed.first().copied());
                        prop_assert_eq!(got, cpus.get(cpu.index()).copied());
                        prop_assert!(before[got.unwrap().index()].cached_bytes > 0);
                        prop_assert_eq!(purpose, Purpose::Program);
                    }
                    match result {
                        Ok(allocation) => {
                            let placement = allocation.placement;
                            let block = allocation.memory;
                            prop_assert_eq!(placement.intended, allowed[0]);
                            prop_assert_eq!(placement.local, local);
                            prop_assert_eq!(placement.interleaved, policy == Policy::Interleave);
                            prop_assert_eq!(block.order(), order);
                            prop_assert!(free[placement.node.index()].remove(block.range()), "{:?} was not free", block);
                            live.push(block);
                        }
                        Err(error) => {
                            let free = allowed.iter().map(|node| free[node.index()].bytes()).sum();
                            prop_assert_eq!((error.order, error.policy, error.free_bytes), (order, policy, free));
                            let kept = allowed.iter().map(kept).sum::<u64>();
                            prop_assert!(error.kept_bytes == 0 || error.kept_bytes == kept);
                        }
                    }
                }
                Step::Free(which) if !live.is_empty() => {
                    let block = live.swap_remove(which.index(live.len()));
                    free[frames.node_of(block.start()).unwrap().index()].add(block.range());
                    frames.free_block(block);
                }
                Step::FreeMany(first, count) if !live.is_empty() => {
                    let first = first.index(live.len());
                    let mut freeing = frames.freeing();
                    for block in live.drain(first..live.len().min(first + count)) {
                        free[frames.node_of(block.start()).unwrap().index()].add(block.range());
                        let size = PageSize::ALL.into_iter().find(|size| size.order() == block.order());
                        match size {
                            Some(size) => {
                                let node = freeing.push(block.start(), size);
                                prop_assert_eq!(Some(node), frames.node_of(block.start()));
                            }
                            None => frames.free_block(block),
                        }
                    }
                }
                Step::TakeMany(node, count) => {
                    for _ in 0..count {
                        let Ok(frame) = take::<Size4KiB>(&frames, node) else { break };
                        let owner = frames.node_of(frame.start()).unwrap();
                        // A node is passed over only when it has nothing.
                        let allowed = allowed(&nodes, &initial, Policy::Local, node, 0);
                        let expected = allowed.iter().find(|node| free[node.index()].bytes() > 0);
                        prop_assert_eq!(Some(&owner), expected);
                        prop_assert!(free[owner.index()].remove(frame.range()), "{:?} was not free", frame);
                        live.push(frame.into());
                    }
                }
                Step::Split(which, into) if !live.is_empty() => {
                    let which = which.index(live.len());
                    let block = live[which];
                    if into <= block.order() && block.order().bytes() / into.bytes() <= 512 {
                        frames.split(block, into);
                        live.swap_remove(which);
                        let starts = (block.start().0..block.range().end.0).step_by(into.bytes() as usize);
                        live.extend(starts.map(|start| Block::new(PhysAddr(start), into).unwrap()));
                    }
                }
                Step::Drain => {
                    frames.drain();
                    prop_assert!(stats(&frames).iter().all(|stats| stats.cached_bytes == 0));
                }
                Step::RunOn(next) => {
                    cpu = next;
                    FakeMachine::run_on(cpu);
                }
                Step::Free(_) | Step::FreeMany(..) | Step::Split(..) => {}
            }
            for (free, now) in free.iter().zip(stats(&frames)) {
                prop_assert_eq!(now.free_bytes(), free.bytes());
                // The caches and the depot, one part each.
                prop_assert!(now.cached_bytes <= now.total_bytes / 16);
            }
        }
        live.into_iter().for_each(|block| frames.free_block(block));
        frames.drain();
        prop_assert_eq!(stats(&frames), initial);
        // What is kept about frames is reached by the pointers that were asked for at the start.
        prop_assert!(machine.asked.lock().unwrap().is_empty());
    }

    #[test]
    fn metadata_is_small_and_costs_no_huge_frame_that_it_need_not(nodes in nodes()) {
        let machine = FakeMachine::new(GIB);
        let frames = build(&machine, nodes.clone());
        for (index, memory) in nodes.iter().enumerate() {
            let stats = frames.stats(NodeId::from(index)).unwrap();
            let bytes: u64 = memory.usable.iter().map(PhysRange::bytes).sum();
            prop_assert!(stats.metadata_bytes <= bytes * 16 / 4096 + 8 * KIB);
            let free: u64 = stats.free_blocks[9..].iter().zip(0..).map(|(blocks, shift)| blocks << shift).sum();
            let whole: u64 = memory.usable.iter().map(|usable| whole_pages(usable, PageSize::Size2MiB)).sum();
            prop_assert!(free + 1 >= whole, "{} of {} 2 MiB frames are left", free, whole);
        }
    }
}

#[test]
fn every_frame_is_handed_out_once_and_only_metadata_is_written() {
    let bytes = 6 * MIB + 20 * KIB;
    let usable = range(8 * KIB, 8 * KIB + bytes);
    let machine = FakeMachine::new(8 * MIB);
    let memory = homenode_mm::Machine::memory(&machine, usable);
    // SAFETY: the machine's memory is used by nothing else yet.
    unsafe { memory.write_bytes(0xa5, bytes as usize) };
    machine.asked.lock().unwrap().clear();
    let frames = build(&machine, vec![node(&[usable], &[])]);
    let total = frames.stats(NODE0).unwrap().total_bytes;
    let metadata = machine.asked.lock().unwrap()[0];
    assert_eq!(total + metadata.bytes(), bytes);

    let take = || take::<Size4KiB>(&frames, NODE0);
    let mut all: Vec<Frame<Size4KiB>> = std::iter::from_fn(|| take().ok()).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len() as u64 * 4 * KIB, total);
    assert_eq!(take().unwrap_err().free_bytes, 0);
    all.iter().for_each(|&frame| frames.free(frame));
    assert_eq!(frames.stats(NODE0).unwrap().free_bytes(), total);

    let untouched = (0..bytes)
        .filter(|&offset| !metadata.contains(usable.start + offset))
        .all(|offset| {
            // SAFETY: in bounds; nothing writes now.
            unsafe { memory.add(offset as usize).read() == 0xa5 }
        });
    assert!(untouched);
}

#[test]
fn aligned_memory_gives_1_gib_frames_around_holes() {
    // As a PC's: memory up to 2 GiB, a hole for devices, and the rest above 4 GiB.
    let machine = FakeMachine::new(7 * GIB);
    let frames = build(
        &machine,
        vec![node(
            &[range(MIB, 2 * GIB), range(4 * GIB, 6 * GIB + 4 * MIB)],
            &[],
        )],
    );
    let metadata = frames.stats(NODE0).unwrap().metadata_bytes;
    assert!(
        metadata <= 4 * GIB * 16 / 4096 + 20 * KIB,
        "no metadata for the hole: {metadata} bytes"
    );
    let take_largest = || take::<Size1GiB>(&frames, NODE0);
    let mut all: Vec<u64> = std::iter::from_fn(|| take_largest().ok())
        .map(|frame| frame.start().0)
        .collect();
    all.sort_unstable();
    assert_eq!(all, [GIB, 4 * GIB, 5 * GIB]);

    // Split one to its smallest frames; given back, they are one again.
    frames.free(Frame::<Size1GiB>::new(PhysAddr(4 * GIB)).unwrap());
    let smallest = frames.stats(NODE0).unwrap().free_bytes() / Size4KiB::BYTES;
    let small: Vec<_> = (0..smallest)
        .map(|_| take::<Size4KiB>(&frames, NODE0).unwrap())
        .collect();
    small.into_iter().for_each(|frame| frames.free(frame));
    assert_eq!(take_largest().map(Frame::start), Ok(PhysAddr(4 * GIB)));
}

#[test]
fn adjacent_ranges_of_a_node_are_one() {
    let machine = FakeMachine::new(3 * GIB);
    let ranges = [
        range(GIB + 512 * MIB, 2 * GIB),
        range(GIB, GIB + 512 * MIB),
        range(2 * GIB, 2 * GIB + 8 * MIB),
    ];
    let frames = build(&machine, vec![node(&ranges, &[])]);
    assert_eq!(frames.stats(NODE0).unwrap().free_blocks[Order::MAX.index()], 1);
}

#[test]
fn memory_in_many_small_pieces_is_served_as_far_as_its_metadata_fits() {
    // 1,000 single frames need four for metadata, which no piece holds; two frames in a row hold that of 504, and the directory.
    let machine = FakeMachine::new(16 * MIB);
    let mut ranges: Vec<PhysRange> = (0..1000)
        .map(|piece| piece * 8 * KIB)
        .map(|start| range(start, start + 4 * KIB))
        .collect();
    ranges.push(range(10 * MIB, 10 * MIB + 8 * KIB));
    let frames = build(&machine, vec![node(&ranges, &[])]);
    let stats = frames.stats(NODE0).unwrap();
    assert_eq!(
        (stats.metadata_bytes, stats.total_bytes),
        (8 * KIB, 502 * 4 * KIB)
    );
    assert_eq!(stats.free_bytes(), stats.total_bytes);
}

/// Three nodes of 16 MiB and one without memory; the distances are unequal.
fn four_nodes(machine: &FakeMachine) -> FrameAllocator<&FakeMachine> {
    let usable = |node: u64| [range(node * 16 * MIB, (node + 1) * 16 * MIB)];
    build(
        machine,
        vec![
            node(&usable(0), &[0, 2, 1, 3]),
            node(&usable(1), &[1, 0, 2]),
            node(&usable(2), &[3, 1, 0]),
            node(&[], &[2, 1, 0]),
        ],
    )
}

/// What has been counted since the last time, by the names of Linux's counters.
fn counted(machine: &FakeMachine) -> Vec<(u32, &'static str)> {
    let mut events: Vec<(u32, &str)> = machine
        .counted
        .lock()
        .unwrap()
        .drain()
        .map(|((node, event), n)| match event {
            NodeEvent::Numa(event) if n == 1 => (node.0, name(event)),
            other => panic!("{other:?} was counted {n} times"),
        })
        .collect();
    events.sort_unstable();
    events
}

/// Takes a 2 MiB frame for the kernel: its node.
fn take_huge(
    frames: &FrameAllocator<&FakeMachine>,
    policy: Policy,
    local: NodeId,
    page_index: u64,
) -> Result<NodeId, OutOfMemory> {
    let allocation = frames.allocate::<Size2MiB>(policy, local, page_index, Purpose::Kernel)?;
    Ok(allocation.placement.node)
}

#[test]
fn local_falls_back_by_distance_and_is_counted_as_numastat_does() {
    let machine = FakeMachine::new(64 * MIB);
    let frames = four_nodes(&machine);
    let take = |local| take_huge(&frames, Policy::Local, local, 0);
    assert_eq!(take(NODE0), Ok(NODE0));
    assert_eq!(counted(&machine), [(0, "numa_hit"), (0, "numa_local")]);
    // 7 of 8: one is broken up by the metadata.
    (1..7).for_each(|_| assert_eq!(take(NODE0), Ok(NODE0)));
    machine.counted.lock().unwrap().clear();
    assert_eq!(take(NODE0), Ok(NODE2));
    let missed = [(0, "numa_foreign"), (2, "numa_miss"), (2, "numa_other")];
    assert_eq!(counted(&machine), missed);
    // What is nearest to a node without memory is what is intended for it.
    assert_eq!(take(NodeId(3)), Ok(NODE2));
    assert_eq!(counted(&machine), [(2, "numa_hit"), (2, "numa_other")]);
    (2..7).for_each(|_| assert_eq!(take(NODE0), Ok(NODE2)));
    (0..7).for_each(|_| assert_eq!(take(NODE0), Ok(NODE1)));
    machine.counted.lock().unwrap().clear();
    let error = take(NODE2).unwrap_err();
    assert_eq!(
        error.to_string(),
        "out of memory: no free 2 MiB page on any node, from node 2 on by distance (policy local); \
         5.8 MiB of 47.8 MiB free there in smaller blocks"
    );
    assert_eq!(counted(&machine), [], "what fails is not counted");
}

#[test]
fn bind_stays_on_its_node_and_says_what_is_missing() {
    let machine = FakeMachine::new(64 * MIB);
    let frames = four_nodes(&machine);
    let take = |node| take_huge(&frames, Policy::Bind(node), NODE0, 0);
    assert_eq!(take(NODE1), Ok(NODE1));
    assert_eq!(counted(&machine), [(1, "numa_hit"), (1, "numa_other")]);
    (1..7).for_each(|_| assert_eq!(take(NODE1), Ok(NODE1)));
    assert_eq!(
        take(NODE1).unwrap_err().to_string(),
        "out of memory: no free 2 MiB page on node 1 (policy bind:1); \
         1.9 MiB of 15.9 MiB free there in smaller blocks"
    );
    for none in [NodeId(3), NodeId(4), NodeId(u32::MAX)] {
        let message = format!("out of memory: node {none} has no memory (policy bind:{none})");
        assert_eq!(take(none).unwrap_err().to_string(), message);
    }
}

#[test]
fn preferred_is_one_node_and_then_those_near_to_it() {
    let machine = FakeMachine::new(64 * MIB);
    let frames = four_nodes(&machine);
    let take = |node| take_huge(&frames, Policy::Preferred(node), NODE2, 0);
    assert_eq!(take(NODE1), Ok(NODE1));
    assert_eq!(counted(&machine), [(1, "numa_hit"), (1, "numa_other")]);
    (1..7).for_each(|_| assert_eq!(take(NODE1), Ok(NODE1)));
    machine.counted.lock().unwrap().clear();
    // From node 1 it is nearer to node 0 than to node 2, which asks.
    assert_eq!(take(NODE1), Ok(NODE0));
    let missed = [(0, "numa_miss"), (0, "numa_other"), (1, "numa_foreign")];
    assert_eq!(counted(&machine), missed);
    assert_eq!(take(NodeId(3)), Ok(NODE2));
}

#[test]
fn interleave_is_even_over_the_nodes_with_memory() {
    let machine = FakeMachine::new(64 * MIB);
    let frames = four_nodes(&machine);
    let take = |index| take_huge(&frames, Policy::Interleave, NODE0, index);
    let nodes: Vec<u32> = (0..21).map(|index| take(index).unwrap().0).collect();
    assert_eq!(nodes, [0, 1, 2].repeat(7));
    assert!(take(0).is_err());

    let machine = FakeMachine::new(64 * MIB);
    let frames = four_nodes(&machine);
    let take = |index| take_huge(&frames, Policy::Interleave, NODE0, index);
    assert_eq!(take(1), Ok(NODE1));
    let hit = [(1, "numa_hit"), (1, "numa_interleave"), (1, "numa_other")];
    assert_eq!(counted(&machine), hit);
    (1..7).for_each(|_| assert_eq!(take(1), Ok(NODE1)));
    machine.counted.lock().unwrap().clear();
    assert_eq!(take(1), Ok(NODE0));
    let missed = [(0, "numa_local"), (0, "numa_miss"), (1, "numa_foreign")];
    assert_eq!(counted(&machine), missed);
}

#[test]
fn programs_leave_each_node_its_share_for_the_kernel() {
    let machine = FakeMachine::new(GIB);
    // 32 and 96 MiB: shares of 2 and 6 MiB.
    let nodes = vec![
        node(&[range(0, 32 * MIB)], &[1]),
        node(&[range(64 * MIB, 160 * MIB)], &[0]),
    ];
    let frames = build(&machine, nodes);
    let kept = [NODE0, NODE1].map(|node| frames.stats(node).unwrap().kept_bytes);
    assert_eq!(
        kept.map(|kept| kept.next_multiple_of(64 * KIB)),
        [2 * MIB, 6 * MIB]
    );
    let free = |node| frames.stats(node).unwrap().free_bytes();
    let take = |policy, purpose| frames.allocate::<Size4KiB>(policy, NODE0, 0, purpose);
    while take(Policy::Bind(NODE0), Purpose::Program).is_ok() {}
    assert_eq!(free(NODE0), kept[0]);
    let refused = take(Policy::Bind(NODE0), Purpose::Program).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "out of memory: no free 4 KiB page on node 0 (policy bind:0); \
         2 MiB of 31.8 MiB free there, and 2 MiB are kept for the kernel"
    );
    // Programs go on elsewhere, and the kernel here.
    let elsewhere = take(Policy::Local, Purpose::Program).unwrap();
    assert_eq!(elsewhere.placement.node, NODE1);
    let kernel = take(Policy::Local, Purpose::Kernel).unwrap();
    assert_eq!(kernel.placement.node, NODE0);
    while take(Policy::Local, Purpose::Program).is_ok() {}
    assert_eq!(
        take(Policy::Local, Purpose::Program).unwrap_err().kept_bytes,
        kept[0] + kept[1]
    );
    while take(Policy::Local, Purpose::Kernel).is_ok() {}
    assert_eq!((free(NODE0), free(NODE1)), (0, 0));
    assert_eq!(take(Policy::Local, Purpose::Kernel).unwrap_err().kept_bytes, 0);
}

#[test]
fn a_cache_keeps_no_frame_from_anyone() {
    // CPUs 0 and 1 on node 0, CPU 2 on node 1.
    let machine = FakeMachine::with_cpus(GIB, &[NODE0, NODE0, NODE1]);
    // Behind 64 MiB there is room for the metadata and little more.
    let nodes = vec![
        node(&[range(0, 64 * MIB + 300 * KIB)], &[1]),
        node(&[range(128 * MIB, 192 * MIB)], &[0]),
    ];
    let frames = build(&machine, nodes);
    let initial = stats(&frames);
    let cached = |node| frames.stats(node).unwrap().cached_bytes;
    FakeMachine::run_on(CpuId(1));
    let first = take::<Size4KiB>(&frames, NODE0).unwrap();
    assert_eq!(
        cached(NODE0),
        63 * 4 * KIB,
        "an aligned block of 64 frames was taken"
    );
    let near: Vec<_> = (0..63)
        .map(|_| take::<Size4KiB>(&frames, NODE0).unwrap())
        .collect();
    assert_eq!(cached(NODE0), 0);
    assert!(first.start().is_aligned(64 * 4 * KIB));
    assert!(
        near.iter()
            .all(|frame| frame.start().0 / (256 * KIB) == first.start().0 / (256 * KIB))
    );
    // What another node's CPU frees goes to the frames' node at once, and what a CPU frees stays with it.
    FakeMachine::run_on(CpuId(2));
    frames.free(first);
    assert_eq!((cached(NODE0), cached(NODE1)), (0, 0));
    FakeMachine::run_on(CpuId(1));
    near.into_iter().for_each(|frame| frames.free(frame));
    assert_eq!(cached(NODE0), 63 * 4 * KIB);

    // The cached frames keep 2 MiB in pieces, but another CPU gets all the same before it is sent to another node.
    FakeMachine::run_on(CpuId(0));
    let mut huge = Vec::new();
    for _ in 0..31 {
        huge.push(take::<Size2MiB>(&frames, NODE0).unwrap());
    }
    assert_eq!(cached(NODE0), 63 * 4 * KIB);
    huge.push(take::<Size2MiB>(&frames, NODE0).unwrap());
    assert_eq!(cached(NODE0), 0);
    assert!(
        huge.iter()
            .all(|frame| frames.node_of(frame.start()) == Some(NODE0))
    );
    let elsewhere = take::<Size2MiB>(&frames, NODE0).unwrap();
    assert_eq!(frames.node_of(elsewhere.start()), Some(NODE1));

    // Where memory is scarce, no cache is filled from it.
    let last = take::<Size4KiB>(&frames, NODE0).unwrap();
    assert_eq!(cached(NODE0), 0);
    frames.free(last);
    huge.into_iter().for_each(|frame| frames.free(frame));
    frames.free(elsewhere);
    frames.drain();
    assert_eq!(stats(&frames), initial);
}

#[test]
fn a_full_cache_gives_half_back() {
    let machine = FakeMachine::with_cpus(GIB, &[NODE0]);
    FakeMachine::run_on(CpuId(0));
    let frames = build(&machine, vec![node(&[range(0, 512 * MIB)], &[])]);
    for _ in 0..2 {
        let small: Vec<_> = (0..300)
            .map(|_| take::<Size4KiB>(&frames, NODE0).unwrap())
            .collect();
        let huge: Vec<_> = (0..30)
            .map(|_| take::<Size2MiB>(&frames, NODE0).unwrap())
            .collect();
        small.into_iter().for_each(|frame| frames.free(frame));
        // All of them are kept: in the cache, and the halves that were too much for it in the depot.
        let cached = frames.stats(NODE0).unwrap().cached_bytes;
        assert_eq!(
            cached % (2 * MIB) / (4 * KIB),
            320,
            "five blocks of 64 frames were taken"
        );
        huge.into_iter().for_each(|frame| frames.free(frame));
        let cached = frames.stats(NODE0).unwrap().cached_bytes / (2 * MIB);
        assert!((2..=4).contains(&cached), "{cached} frames of 2 MiB");
    }
}

/// Takes so many 4 KiB frames for the kernel.
fn take_many(frames: &FrameAllocator<&FakeMachine>, count: u64) -> Vec<Frame<Size4KiB>> {
    (0..count).map(|_| take(frames, NODE0).unwrap()).collect()
}

fn free_many(frames: &FrameAllocator<&FakeMachine>, many: &[Frame<Size4KiB>]) {
    let mut freeing = frames.freeing();
    for frame in many {
        let node = freeing.push(frame.start(), PageSize::Size4KiB);
        assert_eq!(Some(node), frames.node_of(frame.start()));
    }
}

#[test]
fn frames_given_back_together_go_round_without_the_free_lists() {
    let machine = FakeMachine::with_cpus(GIB, &[NODE0, NODE0]);
    FakeMachine::run_on(CpuId(0));
    let frames = build(&machine, vec![node(&[range(0, 512 * MIB)], &[])]);
    let initial = stats(&frames);
    let cached = || frames.stats(NODE0).unwrap().cached_bytes / (4 * KIB);
    let many = take_many(&frames, 1024);
    assert_eq!(cached(), 0);
    // In parts that no chain ends with.
    many.chunks(50).for_each(|part| free_many(&frames, part));
    assert_eq!(cached(), 1024);
    // Both CPUs get the same frames again. One chain at least stays with the CPU that gave it back.
    let mut again = take_many(&frames, 512);
    FakeMachine::run_on(CpuId(1));
    again.extend(take_many(&frames, 448));
    assert_eq!(cached(), 64);
    assert!(again.iter().all(|frame| many.contains(frame)));
    again.sort_unstable();
    again.dedup();
    assert_eq!(again.len(), 960);
    free_many(&frames, &again);
    frames.drain();
    assert_eq!(cached(), 0);
    assert_eq!(stats(&frames), initial);
}

#[test]
fn a_depot_keeps_a_share_of_its_node_and_no_frame_from_anyone() {
    let machine = FakeMachine::with_cpus(GIB, &[NODE0, NODE0]);
    FakeMachine::run_on(CpuId(0));
    let frames = build(&machine, vec![node(&[range(0, 64 * MIB + 300 * KIB)], &[])]);
    let initial = stats(&frames);
    let cached = || frames.stats(NODE0).unwrap().cached_bytes;
    let many = take_many(&frames, 4096);
    free_many(&frames, &many);
    // 2 MiB in the depot, and a chain of 64 frames with the CPU.
    assert_eq!(cached(), 2 * MIB + 256 * KIB);
    // What it keeps in pieces another CPU gets as a whole.
    FakeMachine::run_on(CpuId(1));
    let huge: Vec<_> = std::iter::from_fn(|| take::<Size2MiB>(&frames, NODE0).ok()).collect();
    assert_eq!(huge.len(), 32);
    huge.into_iter().for_each(|frame| frames.free(frame));
    // And every frame comes out of it, though none is put into it while there is little else.
    FakeMachine::run_on(CpuId(0));
    let many = take_many(&frames, 4096);
    free_many(&frames, &many);
    FakeMachine::run_on(CpuId(1));
    let all: Vec<_> = std::iter::from_fn(|| take::<Size4KiB>(&frames, NODE0).ok()).collect();
    assert_eq!(all.len() as u64 * 4 * KIB, initial[0].total_bytes);
    free_many(&frames, &all[..512]);
    assert!(cached() <= 256 * KIB, "{}", cached());
    free_many(&frames, &all[512..]);
    assert!(cached() > 2 * MIB);
    frames.drain();
    assert_eq!(stats(&frames), initial);
}

#[test]
fn what_other_nodes_give_back_is_found() {
    let machine = FakeMachine::with_cpus(GIB, &[NODE0, NODE1]);
    FakeMachine::run_on(CpuId(1));
    let nodes = vec![
        node(&[range(0, 64 * MIB)], &[1]),
        node(&[range(128 * MIB, 192 * MIB)], &[0]),
    ];
    let frames = build(&machine, nodes);
    let initial = stats(&frames);
    let many = take_many(&frames, 100);
    free_many(&frames, &many);
    assert_eq!(frames.stats(NODE0).unwrap().cached_bytes, 100 * 4 * KIB);
    frames.drain();
    assert_eq!(stats(&frames), initial);
}

#[test]
fn what_is_given_back_twice_among_many_is_noticed() {
    let machine = FakeMachine::with_cpus(GIB, &[NODE0]);
    FakeMachine::run_on(CpuId(0));
    let frames = build(&machine, vec![node(&[range(0, 512 * MIB)], &[])]);
    let initial = stats(&frames);
    let many = take_many(&frames, 300);
    let huge = take::<Size2MiB>(&frames, NODE0).unwrap();
    let twice = [&many[..], &many[100..101]].concat();
    let message = format!("freed {:?} twice: it is free, in a cache, as 4 KiB", many[100]);
    assert_eq!(panic_of(|| free_many(&frames, &twice)), message);
    assert_eq!(
        panic_of(|| free_many(&frames, &many[..1])),
        message.replace(&many[100].start().to_string(), &many[0].start().to_string())
    );
    let message = panic_of(|| _ = frames.freeing().push(huge.start(), PageSize::Size4KiB));
    assert_eq!(
        message,
        format!("freed 4 KiB at {}, which was handed out as 2 MiB", huge.start())
    );
    assert!(panic_of(|| _ = frames.freeing().push(PhysAddr(GIB), PageSize::Size4KiB)).contains("no memory"));
    let node = frames.freeing().push(huge.start(), PageSize::Size2MiB);
    assert_eq!(node, NODE0);
    frames.drain();
    assert_eq!(stats(&frames), initial);
}

#[test]
fn what_can_be_reclaimed_is_used_before_another_node() {
    let machine = FakeMachine::new(64 * MIB);
    let frames = four_nodes(&machine);
    let held = std::cell::RefCell::new(Vec::new());
    let asked = std::cell::Cell::new(0);
    let reclaim = || {
        asked.set(asked.get() + 1);
        held.borrow_mut()
            .pop()
            .map(|block| frames.free_block(block))
            .is_some()
    };
    let take = || {
        frames
            .allocate_reclaiming(HUGE, Policy::Local, NODE0, 0, Purpose::Kernel, &reclaim)
            .unwrap()
    };
    for _ in 0..7 {
        let taken = take();
        assert_eq!((taken.placement.node, asked.get()), (NODE0, 0));
        held.borrow_mut().push(taken.memory);
    }
    // Once for each allocation, and then the next node's turn comes.
    for calls in 1..=7 {
        assert_eq!((take().placement.node, asked.get()), (NODE0, calls));
    }
    assert_eq!((take().placement.node, asked.get()), (NODE2, 8));
    let small = frames.allocate_reclaiming(Order::MIN, Policy::Local, NODE0, 0, Purpose::Kernel, &reclaim);
    assert_eq!((small.unwrap().placement.node, asked.get()), (NODE0, 8));
}

#[test]
fn small_nodes_have_no_caches() {
    // 512 CPUs on two nodes, one of them small.
    let cpus: Vec<NodeId> = (0..512).map(|cpu| NodeId(cpu % 2)).collect();
    let machine = FakeMachine::with_cpus(2 * GIB, &cpus);
    let nodes = vec![
        node(&[range(0, 64 * MIB)], &[1]),
        node(&[range(GIB, 2 * GIB)], &[0]),
    ];
    let frames = build(&machine, nodes);
    for cpu in 0..512 {
        FakeMachine::run_on(CpuId(cpu));
        take::<Size4KiB>(&frames, NodeId(cpu % 2)).unwrap();
    }
    take::<Size2MiB>(&frames, NODE1).unwrap();
    let cached = [NODE0, NODE1].map(|node| frames.stats(node).unwrap().cached_bytes);
    // 1 GiB / 32 / 256 CPUs is 128 KiB: half of it for 4 KiB frames, half of that at once, and one was taken of these.
    assert_eq!(cached, [0, 256 * (8 - 1) * 4 * KIB]);
}

/// The metadata of the first node, as it was when the allocator was built.
fn metadata_of(machine: &FakeMachine) -> PhysRange {
    machine.asked.lock().unwrap()[0]
}

#[test]
fn the_start_does_not_depend_on_what_memory_held() {
    let usable = [range(12 * KIB, 20 * MIB - 8 * KIB), range(GIB, 2 * GIB + 6 * MIB)];
    let machine = FakeMachine::with_cpus(3 * GIB, &[NODE0]);
    FakeMachine::run_on(CpuId(0));
    let initial = stats(&build(&machine, vec![node(&usable, &[])]));
    let metadata = metadata_of(&machine);
    // Handed out and free blocks of several orders, in caches, tables, and no state at all.
    for word in [
        0x200,
        0x209,
        0x212,
        0x100,
        0x109,
        0x112,
        0x300,
        0x309,
        0x400,
        0xa5a5_a5a5,
    ] {
        machine.fill(metadata, word);
        let frames = build(&machine, vec![node(&usable, &[])]);
        assert_eq!(stats(&frames), initial);
        let largest = take::<Size1GiB>(&frames, NODE0).unwrap();
        for inside in [4 * KIB, 2 * MIB, 4 * MIB + 4 * KIB, 128 * MIB] {
            let start = largest.start() + inside;
            panic_of(|| frames.free(Frame::<Size4KiB>::new(start).unwrap()));
            if let Some(frame) = Frame::<Size2MiB>::new(start) {
                panic_of(|| frames.free(frame));
            }
        }
        frames.free(largest);
        // Every frame is taken and given back, and then it is as at the start.
        let small: Vec<_> = std::iter::from_fn(|| take::<Size4KiB>(&frames, NODE0).ok()).collect();
        assert_eq!(small.len() as u64 * 4 * KIB, initial[0].total_bytes);
        small.into_iter().for_each(|frame| frames.free(frame));
        frames.drain();
        assert_eq!(stats(&frames), initial);
    }
}

#[test]
fn the_start_touches_little_however_large_memory_is() {
    const TIB: u64 = 1 << 40;
    let machine = FakeMachine::with_cpus(TIB, &[NODE0; 64]);
    FakeMachine::run_on(CpuId(0));
    let frames = build(&machine, vec![node(&[range(0, TIB)], &[])]);
    let stats = frames.stats(NODE0).unwrap();
    assert_eq!(
        stats.free_blocks[Order::MAX.index()],
        1019,
        "five hold the metadata"
    );
    let metadata = metadata_of(&machine);
    // The directory, the caches, the first frames of the blocks, and one end's 2 MiB blocks.
    let touched = machine.touched_pages(metadata);
    assert!(
        touched < 64 + 140 + 1024 + 512 + 16,
        "{touched} pages of metadata"
    );
    assert_eq!(machine.touched_pages(range(0, metadata.start.0)), 0);
    // A 1 GiB block that is not divided costs nothing more when it comes and goes.
    for _ in 0..2 {
        let largest = take::<Size1GiB>(&frames, NODE0).unwrap();
        frames.free(largest);
    }
    assert_eq!(machine.touched_pages(metadata), touched);
}

/// The words that a misuse panics with.
fn panic_of(misuse: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(misuse)).expect_err("a misuse is noticed");
    *payload.downcast::<String>().expect("a formatted message")
}

#[test]
fn what_was_not_handed_out_can_not_be_given_back() {
    let machine = FakeMachine::with_cpus(64 * MIB, &[NODE0]);
    let frames = build(&machine, vec![node(&[range(0, 32 * MIB)], &[])]);
    let initial = stats(&frames);
    // A CPU without a cache, to begin with.
    FakeMachine::run_on(CpuId(1));
    let frame = take::<Size2MiB>(&frames, NODE0).unwrap();
    let start = frame.start();
    let foreign = Frame::<Size4KiB>::new(PhysAddr(48 * MIB)).unwrap();
    assert_eq!(
        panic_of(|| frames.free(foreign)),
        "freed 4 KiB at 0x3000000, which is no memory of the frame allocator"
    );
    assert_eq!(
        panic_of(|| frames.free(Frame::<Size4KiB>::new(start).unwrap())),
        format!("freed 4 KiB at {start}, which was handed out as 2 MiB")
    );
    let inside = Frame::<Size4KiB>::new(start + 4 * KIB).unwrap();
    assert_eq!(
        panic_of(|| frames.free(inside)),
        format!(
            "freed 4 KiB at {} twice, or it is a part of another block",
            inside.start()
        )
    );
    frames.free(frame);
    assert!(panic_of(|| frames.free(frame)).contains(" twice"));
    assert!(panic_of(|| frames.split(frame.into(), Order::MIN)).starts_with("divided 2 MiB"));
    assert_eq!(
        stats(&frames),
        initial,
        "a misuse that was noticed has changed nothing"
    );
    let metadata = metadata_of(&machine).start;
    assert_eq!(frames.node_of(metadata), None);

    FakeMachine::run_on(CpuId(0));
    let frame = take::<Size4KiB>(&frames, NODE0).unwrap();
    frames.free(frame);
    let message = format!("freed {frame:?} twice: it is free, in a cache, as 4 KiB");
    assert_eq!(panic_of(|| frames.free(frame)), message);
    frames.drain();
    assert_eq!(stats(&frames), initial);
}

#[test]
fn a_block_that_is_split_is_given_back_in_parts() {
    let machine = FakeMachine::new(3 * GIB);
    let frames = build(&machine, vec![node(&[range(0, 2 * GIB)], &[])]);
    let initial = stats(&frames);
    let largest = take::<Size1GiB>(&frames, NODE0).unwrap();
    frames.split(largest.into(), HUGE);
    let mut parts: Vec<Block> = (0..512)
        .map(|part| Block::new(largest.start() + part * HUGE.bytes(), HUGE).unwrap())
        .collect();
    assert!(panic_of(|| frames.free(largest)).contains("which was handed out as 2 MiB"));
    let divided = parts.swap_remove(300);
    frames.split(divided, Order::MIN);
    let small = (0..512).map(|part| divided.start() + part * 4 * KIB);
    parts.extend(small.map(|start| Block::new(start, Order::MIN).unwrap()));
    parts.into_iter().for_each(|part| frames.free_block(part));
    assert_eq!(stats(&frames), initial);
    assert!(panic_of(|| frames.split(Block::from(largest), Order::MIN)).contains(" twice"));
}

#[test]
fn descriptions_that_can_not_be_right_are_refused() {
    let machine = FakeMachine::new(64 * MIB);
    let error = |nodes| {
        // SAFETY: the machine's memory is used by nothing else.
        let result = unsafe { FrameAllocator::new(&machine, nodes, &[]) };
        result.err().map(|error| error.to_string())
    };
    let (low, high) = (range(0, 8 * MIB), range(4 * MIB, 12 * MIB));
    let overlap = Some("usable memory at 0x0-0x800000 and at 0x400000-0xc00000 overlaps".to_owned());
    assert_eq!(error(vec![node(&[high, low], &[])]), overlap);
    assert_eq!(error(vec![node(&[high], &[]), node(&[low], &[])]), overlap);
    let missing = BuildError::NoSuchNode {
        node: NODE0,
        fallback: NODE1,
    };
    assert_eq!(error(vec![node(&[low], &[1])]), Some(missing.to_string()));
    let large = range(0, 16 << 40);
    assert_eq!(
        error(vec![node(&[large], &[])]).as_deref(),
        Some("node 0 has 16 TiB, but a node may have less than 16 TiB only")
    );
    assert_eq!(error(vec![]), None);
}

#[test]
fn a_machine_without_memory_has_none_to_give() {
    let machine = FakeMachine::new(64 * MIB);
    let frames = build(
        &machine,
        vec![node(&[], &[]), node(&[range(1, 4095), range(8192, 8192)], &[])],
    );
    for policy in [Policy::Local, Policy::Interleave, Policy::Bind(NODE1)] {
        assert!(
            frames
                .allocate::<Size4KiB>(policy, NODE0, 5, Purpose::Kernel)
                .is_err()
        );
    }
    assert_eq!(frames.stats(NODE1).unwrap().free_blocks, [0; ORDERS]);
    assert_eq!(frames.stats(NODE2), None);
}

#[test]
fn threads_share_the_frames_without_losing_any() {
    let cpus = [NODE0, NODE0, NODE1, NODE1, NODE2, NODE2];
    let machine = FakeMachine::with_cpus(64 * MIB, &cpus);
    let frames = four_nodes(&machine);
    let initial = stats(&frames);
    assert!(initial.iter().all(|stats| stats.cached_bytes == 0));
    let in_use: Vec<AtomicBool> = (0..48 * MIB / 4096).map(|_| AtomicBool::new(false)).collect();
    // Whether a block changes hands as a whole.
    let mark = |block: Block, used: bool| {
        let first = (block.start().0 / 4096) as usize;
        in_use[first..first + block.order().frames() as usize]
            .iter()
            .for_each(|frame| assert_ne!(frame.swap(used, Ordering::Relaxed), used, "{block}"));
    };
    std::thread::scope(|scope| {
        for thread in 0..6u32 {
            let (frames, mark) = (&frames, &mark);
            scope.spawn(move || {
                FakeMachine::run_on(CpuId(thread));
                let mut held: Vec<Block> = Vec::new();
                let give = |block: Block| {
                    mark(block, false);
                    frames.free_block(block);
                };
                for step in 0..6000u32 {
                    let order = match (step + thread) % 16 {
                        0..12 => Order::MIN,
                        12..14 => HUGE,
                        _ => Order::new((step * 7 % 11) as u8).unwrap(),
                    };
                    let purpose = [Purpose::Program, Purpose::Kernel][step as usize % 2];
                    match frames.allocate_block(order, Policy::Local, NodeId(thread / 2), 0, purpose) {
                        Ok(allocation) => {
                            mark(allocation.memory, true);
                            held.push(allocation.memory);
                        }
                        Err(_) => held.drain(..).for_each(give),
                    }
                    if step % 3 == 0 && !held.is_empty() {
                        give(held.swap_remove(step as usize % held.len()));
                    }
                    if step % 500 == thread {
                        frames.drain();
                    }
                }
                held.into_iter().for_each(give);
            });
        }
    });
    frames.drain();
    assert_eq!(stats(&frames), initial);
}
