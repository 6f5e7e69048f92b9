//! The per-CPU frame caches: their CPUs take and give frames while others empty them.

use homenode_mm::{Frame, FrameAllocator, NodeMemory, PageSize, Policy, Purpose, Size4KiB, model};
use homenode_topology::{NodeId, PhysAddr, PhysRange};

use crate::cores::{Cores, MEMORY, lend, on_cpu};

const NODE: NodeId = NodeId(0);
/// A chain is full with so many frames: half a cache of three CPUs.
const CHAIN: usize = 8;

/// All memory, on one node, for so many CPUs.
pub(crate) fn allocator(cpus: usize) -> FrameAllocator<Cores> {
    let memory = NodeMemory {
        usable: vec![PhysRange::new(PhysAddr(0), PhysAddr(MEMORY))],
        fallback: Vec::new(),
    };
    // SAFETY: the machine is new and its memory used by nothing else.
    unsafe { FrameAllocator::new(Cores::new(cpus), vec![memory], &vec![NODE; cpus]) }.unwrap()
}

fn take(frames: &FrameAllocator<Cores>) -> Frame<Size4KiB> {
    let allocation = frames.allocate(Policy::Local, NODE, 0, Purpose::Program);
    allocation.expect("there is plenty").memory
}

fn free_bytes(frames: &FrameAllocator<Cores>) -> u64 {
    frames.stats(NODE).unwrap().free_bytes()
}

/// Runs `model` on an allocator whose CPU 0 has frames in its cache, and checks that all frames are back at its end.
fn check(preemptions: usize, cpus: usize, scenario: fn(&'static FrameAllocator<Cores>)) {
    model::check(preemptions, move || {
        lend(allocator(cpus), |frames| {
            let free = free_bytes(frames);
            frames.free(take(frames));
            frames.watch_caches();
            scenario(frames);
            assert_eq!(free_bytes(frames), free);
            frames.drain();
            assert_eq!(frames.stats(NODE).unwrap().cached_bytes, 0);
            assert_eq!(free_bytes(frames), free);
        });
    });
}

#[test]
fn a_cache_is_emptied_while_its_cpu_uses_it() {
    check(4, 2, |frames| {
        let other = on_cpu(1, || frames.drain());
        let (first, second) = (take(frames), take(frames));
        assert_ne!(first, second);
        frames.free(first);
        frames.free(second);
        other.join().unwrap();
    });
}

#[test]
fn no_frame_is_handed_out_twice() {
    check(4, 3, |frames| {
        let taking = on_cpu(1, || take(frames));
        let draining = on_cpu(2, || frames.drain());
        let mine = take(frames);
        let other = taking.join().unwrap();
        draining.join().unwrap();
        assert_ne!(mine, other);
        // Each is given back by the other CPU, as it were.
        frames.free(other);
        frames.free(mine);
    });
}

/// What is put into a cache behind the back of one who empties it is noted, so that the next one finds it.
#[test]
fn nothing_stays_in_a_cache_that_is_thought_empty() {
    check(4, 2, |frames| {
        let frame = take(frames);
        let other = on_cpu(1, || frames.drain());
        frames.free(frame);
        other.join().unwrap();
    });
}

/// Gives frames back in one go, so that they are handed over as a chain.
fn free_together(frames: &FrameAllocator<Cores>, together: &[Frame<Size4KiB>]) {
    let mut freeing = frames.freeing();
    for frame in together {
        freeing.push(frame.start(), PageSize::Size4KiB);
    }
}

/// One CPU puts chains into the depot, another takes what is there, and a third empties it.
#[test]
fn a_chain_goes_through_the_depot_once() {
    check(3, 3, |frames| {
        frames.watch_depots();
        let many: Vec<_> = (0..CHAIN).map(|_| take(frames)).collect();
        free_together(frames, &many);
        let mine = [take(frames), take(frames)];
        let taking = on_cpu(1, || take(frames));
        let draining = on_cpu(2, || frames.drain());
        free_together(frames, &mine);
        let other = taking.join().unwrap();
        draining.join().unwrap();
        let own = take(frames);
        assert_ne!(own, other);
        frames.free(own);
        frames.free(other);
    });
}

/// What was given back before the depot and the caches were emptied is not hidden from who empties them by going from one to the
/// other.
#[test]
fn nothing_is_put_into_a_depot_behind_a_drain() {
    check(3, 2, |frames| {
        frames.watch_depots();
        let mine = [take(frames), take(frames)];
        let many: Vec<_> = (0..2 * CHAIN).map(|_| take(frames)).collect();
        frames.drain();
        free_together(frames, &many);
        let draining = on_cpu(1, || {
            frames.drain();
            frames.stats(NODE).unwrap().cached_bytes
        });
        free_together(frames, &mine);
        let left = draining.join().unwrap();
        assert!(left <= 2 * 4096, "{left} bytes are cached still");
    });
}
