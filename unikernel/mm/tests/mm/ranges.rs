//! Virtual ranges: no overlap, alignment, nothing lost, and addresses that do not run away.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::mpsc;
use std::thread;

use homenode_mm::{VirtAddr, VirtRange, VirtualRanges};
use homenode_topology::CpuId;
use proptest::prelude::*;
use proptest::sample::Index;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const CPU0: CpuId = CpuId(0);
const CPU1: CpuId = CpuId(1);
/// Neither the start nor the end of what there is need be aligned.
const START: u64 = GIB - 5 * MIB;
const FIRST: u64 = GIB;

fn ranges(bytes: u64, cpus: usize) -> VirtualRanges {
    let whole = VirtRange::new(VirtAddr::new(START).unwrap(), bytes + 7 * MIB).unwrap();
    VirtualRanges::new(whole, cpus)
}

/// What a range is aligned to, by the documentation of `allocate`.
fn alignment(bytes: u64) -> u64 {
    bytes.next_power_of_two().clamp(8 * KIB, GIB)
}

/// What a range takes: its slot, or whole GiBs.
fn taken(bytes: u64) -> u64 {
    bytes.next_multiple_of(alignment(bytes))
}

/// The ranges that are handed out, checked on the way.
#[derive(Default)]
struct Model {
    /// The ends of what is taken, by start.
    live: BTreeMap<u64, u64>,
    /// By what a range takes: how many there are and were at most.
    count: BTreeMap<u64, (u64, u64)>,
    highest: u64,
}

impl Model {
    fn add(&mut self, range: VirtRange, bytes: u64) {
        let (start, end) = (range.start().as_u64(), range.start().as_u64() + taken(bytes));
        assert_eq!(range.bytes(), bytes);
        assert!(
            start >= START && range.start().is_aligned(alignment(bytes)),
            "{range}"
        );
        if let Some((other, other_end)) = self.live.range(..end).next_back() {
            assert!(*other_end <= start, "{range} overlaps {other:#x}-{other_end:#x}");
        }
        self.live.insert(start, end);
        let (now, peak) = self.count.entry(taken(bytes)).or_default();
        *now += 1;
        *peak = (*peak).max(*now);
        self.highest = self.highest.max(end);
    }

    fn remove(&mut self, range: VirtRange) {
        assert!(self.live.remove(&range.start().as_u64()).is_some());
        self.count.get_mut(&taken(range.bytes())).unwrap().0 -= 1;
    }

    /// The most addresses that slots may have used: the sum of the peaks, and what each CPU may keep of each size.
    fn bound(&self, cpus: u64) -> u64 {
        let slots = self.count.iter().filter(|(size, _)| **size < GIB);
        let peaks: u64 = slots.map(|(size, (_, peak))| size * peak).sum();
        let kept = (13..30).map(|shift| 3 * (1 << shift) * ((64 * MIB) >> shift).clamp(2, 16));
        (peaks + cpus * kept.sum::<u64>()).next_multiple_of(GIB)
    }

    fn used(&self) -> u64 {
        self.highest.saturating_sub(FIRST)
    }
}

/// Sizes of all magnitudes below `limit`, a power of two.
fn sizes(limit: u64) -> impl Strategy<Value = u64> {
    (0..limit.ilog2()).prop_flat_map(|shift| 1_u64 << shift..=2 << shift)
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { cpu: u32, bytes: u64 },
    Free { cpu: u32, index: Index },
}

fn steps(cpus: u32, limit: u64) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..cpus, sizes(limit)).prop_map(|(cpu, bytes)| Step::Allocate { cpu, bytes }),
        (0..cpus, any::<Index>()).prop_map(|(cpu, index)| Step::Free { cpu, index }),
    ];
    prop::collection::vec(step, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn ranges_are_aligned_and_disjoint(steps in steps(3, 8 * GIB)) {
        let ranges = ranges(64 * TIB, 3);
        let mut model = Model::default();
        let mut live = Vec::new();
        for step in steps {
            match step {
                Step::Allocate { cpu, bytes } => {
                    let range = ranges.allocate(CpuId(cpu), bytes).unwrap();
                    model.add(range, bytes);
                    live.push(range);
                }
                Step::Free { .. } if live.is_empty() => {}
                Step::Free { cpu, index } => {
                    let range = live.swap_remove(index.index(live.len()));
                    model.remove(range);
                    ranges.free(CpuId(cpu), range);
                }
            }
        }
    }

    /// The same steps over and over, with everything released at the end of each round, by whichever CPU.
    #[test]
    fn churn_uses_no_more_addresses_than_its_peaks(steps in steps(2, GIB / 2)) {
        let ranges = ranges(64 * TIB, 2);
        let mut model = Model::default();
        for round in 0..40 {
            let mut live = Vec::new();
            for step in &steps {
                match step {
                    Step::Allocate { cpu, bytes } => {
                        let range = ranges.allocate(CpuId(*cpu), *bytes).unwrap();
                        model.add(range, *bytes);
                        live.push(range);
                    }
                    Step::Free { .. } if live.is_empty() => {}
                    Step::Free { cpu, index } => {
                        let range = live.swap_remove(index.index(live.len()));
                        model.remove(range);
                        ranges.free(CpuId(*cpu), range);
                    }
                }
            }
            for (index, range) in live.drain(..).enumerate() {
                model.remove(range);
                ranges.free(CpuId::from((index + round) % 2), range);
            }
        }
        prop_assert!(model.used() <= model.bound(2), "{:#x} of {:#x}", model.used(), model.bound(2));
    }

    /// Whatever the order, the extents join again: one range of all there is can be had at the end.
    #[test]
    fn large_ranges_come_back_whole(
        bytes in prop::collection::vec(GIB..20 * GIB, 1..40),
        order in Just((0..80).collect::<Vec<usize>>()).prop_shuffle(),
        partly in any::<Index>(),
    ) {
        let all = 1024 * GIB;
        let ranges = ranges(all, 1);
        let mut live: Vec<VirtRange> = bytes.iter().map(|&bytes| ranges.allocate(CPU0, bytes).unwrap()).collect();
        let again = live.split_off(partly.index(live.len()));
        for range in again {
            ranges.free(CPU0, range);
        }
        live.extend(bytes.iter().map_while(|&bytes| ranges.allocate(CPU0, bytes)));
        let mut model = Model::default();
        for range in &live {
            model.add(*range, range.bytes());
        }
        for index in order.into_iter().filter(|&index| index < live.len()) {
            ranges.free(CPU0, live[index]);
        }
        let whole = ranges.allocate(CPU0, all).unwrap();
        prop_assert_eq!((whole.start().as_u64(), whole.bytes()), (FIRST, all));
    }
}

#[test]
fn every_slot_of_a_chunk_is_handed_out_once_and_comes_back() {
    let ranges = ranges(GIB, 1);
    let allocate = || ranges.allocate(CPU0, 8 * KIB);
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let all: Vec<VirtRange> = iter::from_fn(allocate).collect();
        assert_eq!(all.len() as u64, GIB / (8 * KIB));
        seen.extend(all.iter().map(|range| range.start().as_u64()));
        for range in all {
            ranges.free(CPU0, range);
        }
    }
    assert_eq!(seen.len() as u64, GIB / (8 * KIB));
    assert!(ranges.allocate(CPU0, GIB).is_none());
}

#[test]
fn the_end_of_the_addresses_is_no_panic_and_changes_nothing() {
    let ranges = ranges(3 * GIB, 2);
    assert!(ranges.allocate(CPU0, u64::MAX).is_none());
    assert!(ranges.allocate(CPU0, 4 * GIB).is_none());
    let two = ranges.allocate(CPU0, GIB + 1).unwrap();
    let half = ranges.allocate(CPU1, GIB / 2).unwrap();
    assert!(ranges.allocate(CPU0, 1).is_none());
    ranges.free(CPU0, two);
    assert!(ranges.allocate(CPU0, 1).is_some());
    assert!(ranges.allocate(CPU1, half.bytes()).is_some());
}

#[test]
fn a_range_beyond_a_gibibyte_wastes_less_than_one() {
    let bytes = TIB + TIB / 10;
    let ranges = ranges(2 * bytes.next_multiple_of(GIB), 1);
    assert!(ranges.allocate(CPU0, bytes).is_some());
    assert!(ranges.allocate(CPU0, bytes).is_some());
}

#[test]
fn cpus_that_exchange_nothing_share_no_chunk() {
    let ranges = ranges(TIB, 2);
    let chunks = |cpu| -> BTreeSet<u64> {
        let sizes = (0..300).map(|index| (4 * KIB) << (index % 12));
        let slots: Vec<VirtRange> = sizes.map(|bytes| ranges.allocate(cpu, bytes).unwrap()).collect();
        slots.iter().map(|slot| slot.start().as_u64() / GIB).collect()
    };
    assert!(chunks(CPU0).is_disjoint(&chunks(CPU1)));
}

#[test]
fn misuse_is_named() {
    let ranges = ranges(8 * GIB, 1);
    let large = ranges.allocate(CPU0, 2 * GIB).unwrap();
    let panics = |action: &dyn Fn()| catch_unwind(AssertUnwindSafe(action)).is_err();
    ranges.free(CPU0, large);
    assert!(panics(&|| ranges.free(CPU0, large)));
    let slot = ranges.allocate(CPU0, 64 * KIB).unwrap();
    let inside = VirtAddr::new(slot.start().as_u64() + 8 * KIB).unwrap();
    assert!(panics(
        &|| ranges.free(CPU0, VirtRange::new(inside, slot.bytes()).unwrap())
    ));
    assert!(panics(&|| assert!(ranges.allocate(CPU0, 0).is_none())));
}

/// What one CPU reserves, the other releases: far more than would fit if addresses leaked.
#[test]
fn producer_and_consumer_use_bounded_addresses() {
    let ranges = ranges(64 * TIB, 2);
    let model = Mutex::new(Model::default());
    let (sender, receiver) = mpsc::sync_channel::<VirtRange>(50);
    thread::scope(|scope| {
        scope.spawn(|| {
            let sender = sender;
            for index in 0..20_000 {
                let bytes = (GIB / 2) >> (index % 10);
                let range = ranges.allocate(CPU0, bytes).unwrap();
                model.lock().unwrap().add(range, bytes);
                sender.send(range).unwrap();
            }
        });
        for range in receiver {
            model.lock().unwrap().remove(range);
            ranges.free(CPU1, range);
        }
    });
    let model = model.into_inner().unwrap();
    assert!(model.live.is_empty());
    assert!(
        model.used() <= model.bound(2),
        "{:#x} of {:#x}",
        model.used(),
        model.bound(2)
    );
}

/// All CPUs at once, each releasing what its neighbour reserved: no two hold the same address at any time.
#[test]
fn threads_never_hold_the_same_addresses() {
    const CPUS: usize = 4;
    let ranges = ranges(64 * TIB, CPUS);
    let model = Mutex::new(Model::default());
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..CPUS).map(|_| mpsc::channel::<VirtRange>()).unzip();
    thread::scope(|scope| {
        for (cpu, receiver) in receivers.into_iter().enumerate() {
            let (ranges, model, next) = (&ranges, &model, senders[(cpu + 1) % CPUS].clone());
            let cpu = CpuId::from(cpu);
            scope.spawn(move || {
                let release = |range: VirtRange| {
                    model.lock().unwrap().remove(range);
                    ranges.free(cpu, range);
                };
                let mut random = u64::from(cpu.0) + 1;
                for _ in 0..5_000 {
                    // Marsaglia's xorshift64.
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let shift = 12 + random % 19;
                    let bytes = (1 << shift) + (random >> 32) % (1 << shift);
                    let range = ranges.allocate(cpu, bytes).unwrap();
                    model.lock().unwrap().add(range, bytes);
                    match random >> 20 & 3 {
                        0 => release(range),
                        // The last to end has nobody left to send to.
                        _ => drop(next.send(range)),
                    }
                    if random >> 24 & 1 == 0 {
                        receiver.try_iter().take(8).for_each(release);
                    }
                }
                drop(next);
            });
        }
        drop(senders);
    });
}
