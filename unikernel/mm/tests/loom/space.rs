//! Program memory: locks of page-table pages, the check for stray ones, and their reuse, on the real thing.

use homenode_mm::{
    Access, AddressSpace, Attributes, Cause, FrameAllocator, LockScheme, PageSize, PageState, Policy,
    Protection, Purpose, Retirement, Size4KiB, TlbEngine, VirtAddr, VirtRange, model,
};
use homenode_topology::{NodeId, PhysAddr};
use loom::cell::UnsafeCell;

use crate::cores::{Cores, MEMORY, as_cpu, lend, on_cpu};
use crate::frames::allocator;

const PAGE: u64 = 4 << 10;
const TABLE: u64 = 2 << 20;
const CPUS: usize = 2;

const ATTRIBUTES: Attributes = Attributes {
    protection: Protection::ReadWrite,
    policy: None,
    page_size: PageSize::Size4KiB,
};

/// CPUs on one node.
fn engine() -> TlbEngine {
    TlbEngine::new(&[NodeId(0); CPUS], TlbEngine::RANGE_MAX_PAGES)
}

/// A machine with program memory, and addresses in it that nobody has.
struct World {
    frames: &'static FrameAllocator<Cores>,
    engine: &'static TlbEngine,
    space: AddressSpace<'static, Cores>,
    /// Two page tables' addresses.
    addresses: VirtRange,
    /// A cell for each frame, for loom to watch accesses to it.
    contents: Vec<UnsafeCell<()>>,
}

// SAFETY: the cells are what loom watches, and have nothing in them.
unsafe impl Sync for World {}

/// Runs `scenario`, which says how many frames are in use at its end, tables among them.
fn check(preemptions: usize, scheme: LockScheme, scenario: fn(&'static World) -> u64) {
    check_with(preemptions, scheme, false, scenario);
}

/// As [`check`], where what is given back waits, if it is `lazy`, until nobody reaches it.
fn check_with(preemptions: usize, scheme: LockScheme, lazy: bool, scenario: fn(&'static World) -> u64) {
    model::check(preemptions, move || {
        lend((allocator(CPUS), engine()), |(frames, engine)| {
            frames.machine().connect(engine);
            let root = frames.allocate::<Size4KiB>(Policy::Local, NodeId(0), 0, Purpose::Kernel);
            let whole = VirtRange::new(VirtAddr::new(1 << 39).unwrap(), 1 << 39).unwrap();
            let retirement = Retirement {
                lazy,
                deadline_ns: 0,
                pending_max_bytes: vec![MEMORY],
            };
            // SAFETY: the root is a frame of its own, of zeros as all memory is.
            let space = unsafe {
                AddressSpace::new(root.unwrap().memory, whole, frames, engine, scheme, &retirement)
            };
            let free = || frames.stats(NodeId(0)).unwrap().free_bytes();
            let before = free();
            let addresses = space.allocate_addresses(2 * TABLE).unwrap();
            let world = World {
                frames,
                engine,
                space,
                addresses,
                contents: (0..MEMORY / PAGE).map(|_| UnsafeCell::new(())).collect(),
            };
            lend(world, |world| {
                engine.exit_idle(frames.machine());
                let used = scenario(world);
                assert_eq!((before - free()) / PAGE, used);
            });
        });
    });
}

impl World {
    /// The page with this number.
    fn page(&self, page: u64) -> VirtRange {
        let start = self.addresses.start().checked_add(page * PAGE).unwrap();
        VirtRange::new(start, PAGE).unwrap()
    }

    fn reserve(&self, page: u64) {
        self.space.mark_reserved(self.page(page), ATTRIBUTES).unwrap();
    }

    fn touch(&self, page: u64) {
        self.space
            .fault(self.page(page).start(), Access::Write, Policy::Local)
            .unwrap();
    }

    fn release(&self, page: u64) {
        self.space.clear(self.page(page));
    }

    fn frame(&self, page: u64) -> PhysAddr {
        match self.space.query(self.page(page).start()) {
            PageState::Page { frame, .. } => frame,
            other => panic!("page {page} is {other:?}"),
        }
    }

    /// Watches these pages' entries, the tables over them, and the engine.
    fn watch(&self, pages: &[u64], engine: bool) {
        for page in pages {
            self.space.watch(self.page(*page).start());
        }
        if engine {
            self.engine.watch();
            self.engine.watch_requests();
        }
    }

    /// The running CPU accesses a page by its own translation, if it has one or finds one.
    fn access(&self, page: u64) {
        let machine = self.frames.machine();
        let at = self.page(page).start();
        if machine.translation(at).is_none() {
            machine.cache(at, self.space.walk_as_cpu(at));
        }
        if let Some(frame) = machine.translation(at) {
            self.contents[(frame.0 / PAGE) as usize].with(|_| ());
        }
    }
}

/// One CPU empties a page table, so that it is taken out of the tree, while another one puts a page into it.
fn stray(world: &'static World) -> u64 {
    // The neighbour's table stays, and with it those above.
    world.reserve(TABLE / PAGE);
    world.reserve(0);
    as_cpu(1, || world.engine.exit_idle(world.frames.machine()));
    world.watch(&[0, 1], false);
    let other = on_cpu(1, || {
        world.reserve(1);
        world.touch(1);
        world.frames.machine().compute_until_done(2);
    });
    world.release(0);
    world.frames.machine().compute_until_done(1);
    other.join().unwrap();
    world.frame(1);
    // The page, its table, the neighbour's, and two above.
    5
}

#[test]
fn nothing_is_put_into_a_stray_table() {
    check(1, LockScheme::Split, stray);
}

#[test]
fn nothing_is_put_into_a_stray_table_under_the_coarse_lock() {
    check(1, LockScheme::Coarse, stray);
}

/// Two CPUs touch the same page at once.
#[test]
fn a_page_that_two_touch_comes_once() {
    check(4, LockScheme::Split, |world| {
        world.reserve(0);
        world.watch(&[0], false);
        let other = on_cpu(1, || {
            world.touch(0);
            world.frame(0)
        });
        world.touch(0);
        let mine = world.frame(0);
        assert_eq!(other.join().unwrap(), mine);
        // One page, and the tables of three levels.
        4
    });
}

/// Two CPUs change different entries of one table; both are counted, or the table would be lost or reclaimed too early.
#[test]
fn the_number_of_used_entries_is_right() {
    check(4, LockScheme::Split, |world| {
        world.reserve(2);
        world.watch(&[0, 1], false);
        let other = on_cpu(1, || world.reserve(1));
        world.reserve(0);
        other.join().unwrap();
        for page in 0..3 {
            world.touch(page);
            world.release(page);
        }
        // The table would still be there if an entry had been counted too many, and an earlier `touch` have failed if one too few.
        0
    });
}

/// Two CPUs need the same table, which is not there yet.
#[test]
fn a_table_that_two_need_comes_once() {
    check(4, LockScheme::Split, |world| {
        world.reserve(TABLE / PAGE);
        world.watch(&[0], false);
        let other = on_cpu(1, || {
            world.reserve(0);
            world.touch(0);
        });
        world.reserve(1);
        world.touch(1);
        other.join().unwrap();
        assert_ne!(world.frame(0), world.frame(1));
        // Two pages, their table, the neighbour's, and two above.
        6
    });
}

/// One CPU takes a page's memory away and uses the frame for something else, while another one reads the page.
#[test]
fn a_frame_is_reused_after_all_have_dropped_it() {
    check(4, LockScheme::Split, |world| {
        world.reserve(0);
        world.touch(0);
        let frame = world.frame(0);
        as_cpu(1, || world.engine.exit_idle(world.frames.machine()));
        world.watch(&[0], true);
        let other = on_cpu(1, || {
            world.access(0);
            world.frames.machine().compute_until_done(2);
        });
        world.space.discard(world.page(0)).unwrap();
        world.contents[(frame.0 / PAGE) as usize].with_mut(|_| ());
        world.frames.machine().compute_until_done(1);
        other.join().unwrap();
        // The tables.
        3
    });
}

/// One CPU gives ranges back, which wait in its queue, while another one drains all queues: each frame is given back once, and used
/// otherwise after nobody reaches it.
#[test]
fn a_queue_is_drained_while_its_cpu_uses_it() {
    check_with(1, LockScheme::Split, true, |world| {
        let released = world.space.reserve(PAGE, ATTRIBUTES).unwrap();
        let at = released.start();
        world.space.fault(at, Access::Write, Policy::Local).unwrap();
        let frame = world.space.walk_as_cpu(at).unwrap();
        world.engine.watch();
        world.space.watch_queues();
        let other = on_cpu(1, || world.space.drain(Cause::Drain));
        world.space.release(released);
        let drained = world.space.drain(Cause::Drain);
        assert!(other.join().unwrap() | drained);
        world.contents[(frame.0 / PAGE) as usize].with_mut(|_| ());
        // Tables that the other one has left empty.
        world.space.drain(Cause::Drain);
        0
    });
}

/// A new table is seen as it was filled by whoever comes to it.
#[test]
fn a_new_table_is_seen_filled() {
    check(4, LockScheme::Split, |world| {
        world.reserve(TABLE / PAGE);
        // A whole reservation of a table's size is one entry above, until a part of it is touched.
        let whole = VirtRange::new(world.addresses.start(), TABLE).unwrap();
        world.space.mark_reserved(whole, ATTRIBUTES).unwrap();
        let next = world
            .frames
            .allocate::<Size4KiB>(Policy::Local, NodeId(0), 0, Purpose::Program);
        let next = next.unwrap().memory;
        world.space.watch_future_table(next, world.page(0).start());
        world.space.watch_future_table(next, world.page(1).start());
        world.frames.free(next);
        world.watch(&[0], false);
        let other = on_cpu(1, || world.touch(1));
        world.touch(0);
        other.join().unwrap();
        assert_ne!(world.frame(0), world.frame(1));
        // Two pages, their table, the neighbour's, and two above.
        6
    });
}
