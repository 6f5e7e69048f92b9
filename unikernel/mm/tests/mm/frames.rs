//! Physical frames: no overlap, no loss, coalescing, placement by policy, and clear words for misuse.

use std::panic::{AssertUnwindSafe, catch_unwind};

use homenode_mm::{
    Block, BuildError, Frame, FrameAllocator, FrameSize, NodeMemory, NodeStats, NumaEvent, ORDERS, Order,
    OutOfMemory, PageSize, Policy, Size1GiB, Size2MiB, Size4KiB,
};
use homenode_topology::{NodeId, PhysAddr, PhysRange};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::machine::FakeMachine;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const NODE0: NodeId = NodeId(0);
const NODE1: NodeId = NodeId(1);
const NODE2: NodeId = NodeId(2);

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
    // SAFETY: the machine is new and its memory used by nothing else.
    unsafe { FrameAllocator::new(machine, nodes) }.expect("a description that can be right")
}

fn stats<M: homenode_mm::Machine>(frames: &FrameAllocator<M>) -> Vec<NodeStats> {
    (0..frames.nodes())
        .map(|node| frames.stats(NodeId::from(node)).unwrap())
        .collect()
}

fn can_serve(stats: &NodeStats, order: Order) -> bool {
    stats.free_blocks[order.index()..]
        .iter()
        .any(|&blocks| blocks > 0)
}

/// The number of aligned pages of this size that `range` holds.
fn whole_pages(range: &PhysRange, size: PageSize) -> u64 {
    (range.end.0 / size.bytes()).saturating_sub(range.start.0.div_ceil(size.bytes()))
}

#[derive(Clone, Debug)]
enum Step {
    Allocate {
        order: Order,
        policy: Policy,
        local: NodeId,
        page_index: u64,
    },
    Free(Index),
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
        prop_oneof![3 => 0..4u8, 2 => Just(9u8), 1 => 0..19u8].prop_map(|order| Order::new(order).unwrap());
    let policy = prop_oneof![
        Just(Policy::Local),
        (0..nodes as u32 + 1).prop_map(|node| Policy::Bind(NodeId(node))),
        Just(Policy::Interleave)
    ];
    prop_oneof![
        3 => (order, policy, id, any::<u64>()).prop_map(|(order, policy, local, page_index)| {
            Step::Allocate { order, policy, local, page_index }
        }),
        2 => any::<Index>().prop_map(Step::Free),
    ]
}

fn nodes_and_steps() -> impl Strategy<Value = (Vec<NodeMemory>, Vec<Step>)> {
    nodes().prop_flat_map(|nodes| {
        let steps = prop::collection::vec(step(nodes.len()), 0..200);
        (Just(nodes), steps)
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
    fn frames_are_disjoint_placed_by_policy_and_never_lost((nodes, steps) in nodes_and_steps()) {
        let machine = FakeMachine::new(GIB);
        let frames = build(&machine, nodes.clone());
        let initial = stats(&frames);
        let metadata = std::mem::take(&mut *machine.asked.lock().unwrap());
        let mut live: Vec<(NodeId, Block)> = Vec::new();
        for step in steps {
            let before = stats(&frames);
            match step {
                Step::Allocate { order, policy, local, page_index } => {
                    let allowed = allowed(&nodes, &initial, policy, local, page_index);
                    let expected = allowed.iter().copied().find(|node| can_serve(&before[node.index()], order));
                    let result = frames.allocate_block(order, policy, local, page_index);
                    prop_assert_eq!(result.as_ref().ok().map(|allocation| allocation.placement.node), expected);
                    match result {
                        Ok(allocation) => {
                            let placement = allocation.placement;
                            let block = allocation.memory;
                            prop_assert_eq!(placement.intended, allowed[0]);
                            prop_assert_eq!(placement.local, local);
                            prop_assert_eq!(placement.interleaved, policy == Policy::Interleave);
                            prop_assert_eq!(block.order(), order);
                            prop_assert!(block.start().is_aligned(order.bytes()));
                            prop_assert_eq!(frames.node_of(block.start()), Some(placement.node));
                            // The description's ranges may touch, and a block may then cross from one to the next.
                            let own: u64 = nodes[placement.node.index()].usable.iter()
                                .filter_map(|usable| usable.intersection(&block.range()))
                                .map(|part| part.bytes())
                                .sum();
                            prop_assert_eq!(own, order.bytes(), "{:?} is not all memory of its node", block);
                            for other in live.iter().map(|(_, block)| block.range()).chain(metadata.iter().copied()) {
                                prop_assert_eq!(other.intersection(&block.range()), None);
                            }
                            live.push((placement.node, block));
                        }
                        Err(error) => {
                            let free = allowed.iter().map(|node| before[node.index()].free_bytes()).sum();
                            prop_assert_eq!((error.order, error.policy, error.free_bytes), (order, policy, free));
                        }
                    }
                }
                Step::Free(_) if live.is_empty() => {}
                Step::Free(which) => frames.free_block(live.swap_remove(which.index(live.len())).1),
            }
            for (index, now) in stats(&frames).iter().enumerate() {
                let held: u64 = live.iter().filter(|(node, _)| node.index() == index)
                    .map(|(_, block)| block.order().bytes()).sum();
                prop_assert_eq!(now.free_bytes() + held, now.total_bytes);
            }
        }
        for (_, block) in live {
            frames.free_block(block);
        }
        prop_assert_eq!(stats(&frames), initial);
        // Metadata is reached by the one pointer that was asked for at the start.
        prop_assert!(machine.asked.lock().unwrap().is_empty());
    }

    #[test]
    fn metadata_is_small_and_costs_no_huge_frame_that_it_need_not(nodes in nodes()) {
        let machine = FakeMachine::new(GIB);
        let frames = build(&machine, nodes.clone());
        for (index, memory) in nodes.iter().enumerate() {
            let stats = frames.stats(NodeId::from(index)).unwrap();
            let bytes: u64 = memory.usable.iter().map(PhysRange::bytes).sum();
            prop_assert!(stats.metadata_bytes <= bytes * 12 / 4096 + 4 * KIB);
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

    let take = || {
        frames
            .allocate::<Size4KiB>(Policy::Local, NODE0, 0)
            .map(|allocation| allocation.memory)
    };
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
        metadata <= 4 * GIB * 12 / 4096 + 16 * KIB,
        "no metadata for the hole: {metadata} bytes"
    );
    let take = || {
        frames
            .allocate::<Size1GiB>(Policy::Local, NODE0, 0)
            .map(|allocation| allocation.memory)
    };
    let mut all: Vec<u64> = std::iter::from_fn(|| take().ok())
        .map(|frame| frame.start().0)
        .collect();
    all.sort_unstable();
    assert_eq!(all, [GIB, 4 * GIB, 5 * GIB]);

    // Split one to its smallest frames; given back, they are one again.
    frames.free(Frame::<Size1GiB>::new(PhysAddr(4 * GIB)).unwrap());
    let smallest = frames.stats(NODE0).unwrap().free_bytes() / Size4KiB::BYTES;
    let small: Vec<_> = (0..smallest)
        .map(|_| frames.allocate::<Size4KiB>(Policy::Local, NODE0, 0).unwrap())
        .collect();
    small.iter().for_each(|allocation| frames.free(allocation.memory));
    assert_eq!(take().map(Frame::start), Ok(PhysAddr(4 * GIB)));
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
    // 1,000 single frames need three for metadata, which no piece holds; two frames in a row hold that of 682.
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
        (8 * KIB, 680 * 4 * KIB)
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

fn events(allocation: homenode_mm::Allocation<Frame<Size2MiB>>) -> Vec<(u32, &'static str)> {
    allocation
        .placement
        .events()
        .map(|(node, event)| (node.0, name(event)))
        .collect()
}

#[test]
fn local_falls_back_by_distance_and_is_counted_as_numastat_does() {
    let machine = FakeMachine::new(64 * MIB);
    let frames = four_nodes(&machine);
    let take = |local| frames.allocate::<Size2MiB>(Policy::Local, local, 0);
    assert_eq!(events(take(NODE0).unwrap()), [(0, "numa_hit"), (0, "numa_local")]);
    // 7 of 8: one is broken up by the metadata.
    (1..7).for_each(|_| assert_eq!(take(NODE0).unwrap().placement.node, NODE0));
    let missed = [(2, "numa_miss"), (0, "numa_foreign"), (2, "numa_other")];
    assert_eq!(events(take(NODE0).unwrap()), missed);
    // What is nearest to a node without memory is what is intended for it.
    assert_eq!(
        events(take(NodeId(3)).unwrap()),
        [(2, "numa_hit"), (2, "numa_other")]
    );
    (2..7).for_each(|_| assert_eq!(take(NODE0).unwrap().placement.node, NODE2));
    (0..7).for_each(|_| assert_eq!(take(NODE0).unwrap().placement.node, NODE1));
    let error = take(NODE2).unwrap_err();
    assert_eq!(
        error.to_string(),
        "out of memory: no free 2 MiB page on any node, from node 2 on by distance (policy local); \
         5.8 MiB of 47.8 MiB free there in smaller blocks"
    );
}

#[test]
fn bind_stays_on_its_node_and_says_what_is_missing() {
    let machine = FakeMachine::new(64 * MIB);
    let frames = four_nodes(&machine);
    let take = |node| frames.allocate::<Size2MiB>(Policy::Bind(node), NODE0, 0);
    assert_eq!(events(take(NODE1).unwrap()), [(1, "numa_hit"), (1, "numa_other")]);
    (1..7).for_each(|_| assert_eq!(take(NODE1).unwrap().placement.node, NODE1));
    let error: OutOfMemory = take(NODE1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "out of memory: no free 2 MiB page on node 1 (policy bind:1); \
         1.9 MiB of 15.9 MiB free there in smaller blocks"
    );
    for none in [NodeId(3), NodeId(4), NodeId(u32::MAX)] {
        let message = format!("out of memory: node {none} has no memory (policy bind:{none})");
        assert_eq!(take(none).unwrap_err().to_string(), message);
    }
}

#[test]
fn interleave_is_even_over_the_nodes_with_memory() {
    let machine = FakeMachine::new(64 * MIB);
    let frames = four_nodes(&machine);
    let take = |index| frames.allocate::<Size2MiB>(Policy::Interleave, NODE0, index);
    let nodes: Vec<u32> = (0..21)
        .map(|index| take(index).unwrap().placement.node.0)
        .collect();
    assert_eq!(nodes, [0, 1, 2].repeat(7));
    assert!(take(0).is_err());

    let machine = FakeMachine::new(64 * MIB);
    let frames = four_nodes(&machine);
    let take = |index| frames.allocate::<Size2MiB>(Policy::Interleave, NODE0, index);
    let hit = [(1, "numa_hit"), (1, "numa_interleave"), (1, "numa_other")];
    assert_eq!(events(take(1).unwrap()), hit);
    (1..7).for_each(|_| assert_eq!(take(1).unwrap().placement.node, NODE1));
    assert_eq!(
        events(take(1).unwrap()),
        [(0, "numa_miss"), (1, "numa_foreign"), (0, "numa_local")]
    );
}

/// The words that a misuse panics with.
fn panic_of(misuse: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(misuse)).expect_err("a misuse is noticed");
    *payload.downcast::<String>().expect("a formatted message")
}

#[test]
fn what_was_not_handed_out_can_not_be_given_back() {
    let machine = FakeMachine::new(64 * MIB);
    let frames = build(&machine, vec![node(&[range(0, 32 * MIB)], &[])]);
    let initial = stats(&frames);
    let frame = frames
        .allocate::<Size2MiB>(Policy::Local, NODE0, 0)
        .unwrap()
        .memory;
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
    assert_eq!(
        panic_of(|| frames.free(Frame::<Size4KiB>::new(start + 4 * KIB).unwrap())),
        format!(
            "freed 4 KiB at {} twice, or it is a part of another block",
            start + 4 * KIB
        )
    );
    frames.free(frame);
    assert!(panic_of(|| frames.free(frame)).contains(" twice"));
    assert_eq!(
        stats(&frames),
        initial,
        "a misuse that was noticed has changed nothing"
    );
    let metadata = machine.asked.lock().unwrap()[0].start;
    assert_eq!(frames.node_of(metadata), None);
}

#[test]
fn descriptions_that_can_not_be_right_are_refused() {
    let machine = FakeMachine::new(64 * MIB);
    let error = |nodes| {
        // SAFETY: the machine's memory is used by nothing else.
        let result = unsafe { FrameAllocator::new(&machine, nodes) };
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
        assert!(frames.allocate::<Size4KiB>(policy, NODE0, 5).is_err());
    }
    assert_eq!(frames.stats(NODE1).unwrap().free_blocks, [0; ORDERS]);
    assert_eq!(frames.stats(NODE2), None);
}

#[test]
fn threads_share_the_frames_without_losing_any() {
    let machine = FakeMachine::new(64 * MIB);
    let frames = four_nodes(&machine);
    let initial = stats(&frames);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let frames = &frames;
            scope.spawn(move || {
                let mut held: Vec<Block> = Vec::new();
                for step in 0..4000u32 {
                    let order = Order::new(((step * 7 + thread) % 11) as u8).unwrap();
                    match frames.allocate_block(order, Policy::Local, NodeId(thread), 0) {
                        Ok(allocation) => held.push(allocation.memory),
                        Err(_) => held.drain(..).for_each(|block| frames.free_block(block)),
                    }
                    if step % 3 == 0 && !held.is_empty() {
                        frames.free_block(held.swap_remove(step as usize % held.len()));
                    }
                }
                held.into_iter().for_each(|block| frames.free_block(block));
            });
        }
    });
    assert_eq!(stats(&frames), initial);
}
