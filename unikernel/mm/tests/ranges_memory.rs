//! What virtual ranges need of the heap: nothing to release a range, and no more for the thousandth than for the first.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

use homenode_mm::{VirtAddr, VirtRange, VirtualRanges};
use homenode_topology::CpuId;

/// The system's allocator, which counts a thread's allocations and refuses them where a test says so.
struct Watched;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
    static REFUSES: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: all is handed on to the system's allocator; a null pointer is how an allocation is refused.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + layout.size());
        if REFUSES.get() {
            return ptr::null_mut();
        }
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static HEAP: Watched = Watched;

const GIB: u64 = 1 << 30;
const CPUS: [CpuId; 2] = [CpuId(0), CpuId(1)];

fn ranges() -> VirtualRanges {
    let whole = VirtRange::new(VirtAddr::new(GIB).unwrap(), GIB << 16).unwrap();
    VirtualRanges::new(whole, CPUS.len())
}

/// 8 KiB to 4 GiB.
fn bytes(index: u64) -> u64 {
    8192 << (index % 20)
}

/// The bytes that `action` asked the heap for.
fn allocated_by(action: impl FnOnce()) -> usize {
    let before = ALLOCATED.get();
    action();
    ALLOCATED.get() - before
}

#[test]
fn releasing_needs_no_memory() {
    let ranges = ranges();
    let live: Vec<VirtRange> = (0..4000)
        .map(|index| ranges.allocate(CPUS[0], bytes(index)).unwrap())
        .collect();
    // Every other one first, so that the large ones do not join at once; by the CPU that has not reserved them.
    let asked = allocated_by(|| {
        let (even, odd) = (live.iter().step_by(2), live.iter().skip(1).step_by(2));
        even.chain(odd).for_each(|range| ranges.free(CPUS[1], *range));
    });
    assert_eq!(asked, 0);
}

#[test]
fn the_memory_in_use_does_not_grow_with_time() {
    let ranges = ranges();
    let round = || {
        let mut live = [None; 500];
        for (index, slot) in (0..).zip(&mut live) {
            *slot = ranges.allocate(CPUS[0], bytes(index));
        }
        live.into_iter()
            .flatten()
            .for_each(|range| ranges.free(CPUS[1], range));
    };
    (0..20).for_each(|_| round());
    assert_eq!(allocated_by(|| (0..100).for_each(|_| round())), 0);
}

#[test]
fn no_memory_is_an_error_that_loses_nothing() {
    let ranges = ranges();
    let held: Vec<VirtRange> = (0..40)
        .map(|index| ranges.allocate(CPUS[0], bytes(index)).unwrap())
        .collect();
    let mut more = Vec::with_capacity(100_000);
    REFUSES.set(true);
    let refused = (0..20).map(|size| {
        while let Some(range) = ranges.allocate(CPUS[0], bytes(size)) {
            more.push(range);
            if more.len() == more.capacity() {
                return false;
            }
        }
        true
    });
    let refused = refused.filter(|refused| *refused).count();
    REFUSES.set(false);
    assert_eq!(refused, 20);
    let mut all: Vec<VirtRange> = more.into_iter().chain(held).collect();
    all.extend((0..40).map(|index| ranges.allocate(CPUS[0], bytes(index)).unwrap()));
    all.sort_by_key(VirtRange::start);
    for pair in all.windows(2) {
        assert!(!pair[0].contains(pair[1].start()), "{} and {}", pair[0], pair[1]);
    }
}
