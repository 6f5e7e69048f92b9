//! Checks of memory from inside a guest: where pages lie, what may be done with them, and what becomes of them.

use alloc::vec::Vec;
use core::hint::black_box;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};

use homenode::mem::{Options, PageSize, Pages, Policy, Protection, Region, RegionError, Reservation};
use homenode::thread::{Builder, ScopedJoinHandle};
use homenode::{Args, ExitCode, Node, NodeId, println, thread, topology};

use crate::checks::passed;

const SMALL_PAGE_BYTES: usize = PageSize::Size4KiB.bytes() as usize;
const HUGE_PAGE_BYTES: usize = PageSize::Size2MiB.bytes() as usize;

/// Elements of a region of 4 MiB.
const LEN: usize = (4 << 20) / 8;

pub(crate) fn memory(_: &mut Args) -> ExitCode {
    bound_pages_stay_on_their_node();
    interleaved_pages_are_even();
    populated_pages_are_local();
    first_touch_is_local();
    policies_of_threads_are_obeyed();
    policies_of_ranges_are_obeyed();
    parts_of_a_page_can_be_discarded();
    rights_are_taken_and_given();
    pages_move_while_they_are_used();
    a_part_of_a_page_moves_alone();
    what_does_not_fit_is_an_error();
    released_memory_comes_back();
    stale_translations_are_gone();
    deep_recursion_has_its_stack();
    heap_is_shared();
    passed("memory")
}

fn nodes_with_memory() -> Vec<NodeId> {
    let nodes = topology().nodes().iter().filter(|node| node.has_memory());
    nodes.map(Node::id).collect()
}

/// Whether no other node with memory is nearer to `from`.
fn is_nearest(node: NodeId, from: NodeId) -> bool {
    let distance = |to| topology().distance(from, to);
    let nearest = nodes_with_memory().into_iter().map(distance).min();
    Some(distance(node)) == nearest
}

fn options(policy: impl Into<Option<Policy>>, page_size: PageSize) -> Options {
    Options {
        policy: policy.into(),
        page_size,
    }
}

/// The node of the page that holds an element.
#[track_caller]
fn node_of<T>(region: &Region<T>, index: usize) -> NodeId {
    region.query(index).expect("the page has been touched").node
}

fn bound_pages_stay_on_their_node() {
    for node in nodes_with_memory() {
        let region = Region::<u64>::populated(LEN, Policy::Bind(node)).expect("4 MiB fit on each node");
        assert!(
            region.placement().iter().all(|pages| pages.node == node),
            "bound pages stay on their node"
        );
        assert!(region.iter().all(|&word| word == 0), "fresh memory is zero");
    }
}

fn interleaved_pages_are_even() {
    let nodes = nodes_with_memory().len();
    for is_populated in [false, true] {
        let region = Region::<u64>::new(nodes * LEN, Policy::Interleave);
        let mut region = region.expect("there are addresses");
        if is_populated {
            region.populate(0..region.len()).expect("4 MiB per node fit");
        }
        region.fill(1);
        let placement = region.placement();
        assert_eq!(placement.len(), nodes);
        for pages in placement {
            assert_eq!(
                (pages.size, pages.count),
                (PageSize::Size2MiB, 2),
                "node {}",
                pages.node
            );
        }
    }
}

fn populated_pages_are_local() {
    let cpus = thread::available_parallelism().get();
    let reservation = Reservation::<u64>::new(cpus * LEN).expect("there are addresses");
    let places: Vec<NodeId> = thread::scope(|scope| {
        let workers: Vec<_> = (0..cpus)
            .map(|index| {
                let reservation = &reservation;
                scope.spawn(move || {
                    reservation
                        .populate(index * LEN..(index + 1) * LEN, Policy::Local)
                        .expect("4 MiB per CPU fit");
                    thread::current_node()
                })
            })
            .collect();
        workers.into_iter().map(ScopedJoinHandle::join).collect()
    });
    let region = reservation.finish();
    for (index, from) in places.into_iter().enumerate() {
        for element in [index * LEN, (index + 1) * LEN - 1] {
            let node = node_of(&region, element);
            assert!(is_nearest(node, from), "from node {from}: node {node}");
        }
    }
}

/// A page lies on the node of the CPU that touches it first.
fn first_touch_is_local() {
    let cpus = topology().cpus();
    for size in [PageSize::Size4KiB, PageSize::Size2MiB] {
        let words = size.bytes() as usize / 8;
        let region = Region::<AtomicU64>::with_options(cpus.len() * words, options(None, size));
        let region = &region.expect("there are addresses");
        thread::scope(|scope| {
            for (index, cpu) in cpus.iter().enumerate() {
                let touch = move || region[index * words].store(1, Relaxed);
                let toucher = Builder::new().cpu(cpu.id).spawn_scoped(scope, touch);
                toucher.expect("the CPU exists");
            }
        });
        for (index, cpu) in cpus.iter().enumerate() {
            let page = region.query(index * words).expect("the page has been touched");
            assert_eq!(page.size, size);
            assert!(
                is_nearest(page.node, cpu.node),
                "CPU {}: node {}",
                cpu.id,
                page.node
            );
        }
    }
}

fn policies_of_threads_are_obeyed() {
    let touch = || {
        let mut region = Region::<u64>::with_options(1, Options::default()).expect("there are addresses");
        region[0] = 1;
        node_of(&region, 0)
    };
    for node in nodes_with_memory() {
        for policy in [Policy::Bind(node), Policy::Preferred(node)] {
            let places = move || {
                assert_eq!(thread::policy(), policy);
                [touch(), thread::spawn(touch).join()]
            };
            let thread = Builder::new().policy(policy).spawn(places);
            assert_eq!(thread.expect("it starts").join(), [node; 2], "{policy}");
        }
    }
    assert_eq!(thread::policy(), Policy::Local, "a thread's policy is its own");

    let nodes = nodes_with_memory();
    let interleave = || {
        thread::set_policy(Policy::Interleave);
        let region = Region::<u64>::with_options(nodes.len() * LEN, Options::default());
        let mut region = region.expect("there are addresses");
        region.fill(1);
        let places: Vec<NodeId> = region.placement().iter().map(|pages| pages.node).collect();
        assert_eq!(places, nodes);
    };
    thread::scope(|scope| scope.spawn(interleave).join());
}

fn policies_of_ranges_are_obeyed() {
    let nodes = nodes_with_memory();
    let (first, last) = (nodes[0], nodes[nodes.len() - 1]);
    let mut region = Region::<u64>::new(3 * LEN, Policy::Bind(last)).expect("there are addresses");
    let third = |number| number * LEN..(number + 1) * LEN;
    region
        .set_policy(third(1), Some(Policy::Preferred(first)))
        .and_then(|()| region.set_policy(third(2), None))
        .expect("it is noted");
    region.fill(1);
    assert_eq!(node_of(&region, 0), last);
    assert_eq!(node_of(&region, LEN), first);
    let node = node_of(&region, 2 * LEN);
    assert!(
        is_nearest(node, thread::current_node()),
        "the thread's policy is local"
    );
}

/// A reservation whose every word holds its own offset.
fn filled(bytes: usize, options: Options) -> Pages {
    let pages = Pages::reserve(bytes, options).expect("there are addresses");
    for offset in (0..bytes).step_by(8) {
        // SAFETY: the word lies in the reservation, which nobody else knows.
        unsafe { pages.start().add(offset).cast().write(offset) };
    }
    pages
}

/// Whether every word of a part of a [`filled`] reservation is as it was.
fn is_filled(pages: &Pages, offsets: core::ops::Range<usize>) -> bool {
    let word = |offset| {
        // SAFETY: the word lies in the reservation, and may be read.
        unsafe { pages.start().add(offset).cast::<usize>().read_volatile() }
    };
    offsets.step_by(8).all(|offset| word(offset) == offset)
}

/// The rest of the page keeps its contents, in smaller pages.
fn parts_of_a_page_can_be_discarded() {
    let pages = filled(2 * HUGE_PAGE_BYTES, options(None, PageSize::Size2MiB));
    let size = |offset| pages.query(offset).map(|page| page.size);
    assert_eq!(size(0), Some(PageSize::Size2MiB));
    let hole = HUGE_PAGE_BYTES - SMALL_PAGE_BYTES..HUGE_PAGE_BYTES + 3 * SMALL_PAGE_BYTES;
    pages.discard(hole.clone()).expect("it is noted");
    assert_eq!(size(hole.start - 8), Some(PageSize::Size4KiB));
    assert_eq!(size(hole.start), None);
    assert!(is_filled(&pages, 0..hole.start) && is_filled(&pages, hole.end..pages.bytes()));
    for offset in hole.clone().step_by(8) {
        // SAFETY: the word lies in the reservation, which nobody else knows.
        let word = unsafe { pages.start().add(offset).cast::<usize>().read_volatile() };
        assert_eq!(word, 0, "what was discarded is zero");
    }
    assert_eq!(size(hole.start), Some(PageSize::Size4KiB));
    pages.discard(0..pages.bytes()).expect("it is noted");
    assert_eq!(size(0), None);
}

fn rights_are_taken_and_given() {
    for size in [PageSize::Size4KiB, PageSize::Size2MiB] {
        let pages = filled(2 * HUGE_PAGE_BYTES, options(None, size));
        let part = SMALL_PAGE_BYTES..HUGE_PAGE_BYTES + SMALL_PAGE_BYTES;
        let protection = |offset| pages.query(offset).map(|page| page.protection);
        for taken in [Protection::Read, Protection::None] {
            pages.protect(part.clone(), taken).expect("it is noted");
            assert_eq!(protection(part.start - 1), Some(Protection::ReadWrite));
            assert_eq!(protection(part.start), Some(taken));
            assert_eq!(protection(part.end - 1), Some(taken));
            assert_eq!(protection(part.end), Some(Protection::ReadWrite));
            if taken == Protection::Read {
                assert!(is_filled(&pages, 0..pages.bytes()), "reading is allowed");
            }
        }
        pages
            .protect(0..pages.bytes(), Protection::ReadWrite)
            .expect("it is noted");
        assert!(is_filled(&pages, 0..pages.bytes()), "rights change no contents");
        // SAFETY: the byte lies in the reservation, which nobody else knows, and may be written again.
        unsafe { pages.start().add(part.start).write_volatile(1) };
    }
    // A page that comes later is what its range is, and memory comes for one that may not be touched, too.
    let pages = Pages::reserve(1, Options::default()).expect("there are addresses");
    pages
        .protect(0..pages.bytes(), Protection::Read)
        .expect("it is noted");
    // SAFETY: the byte lies in the reservation, and may be read.
    assert_eq!(unsafe { pages.start().read_volatile() }, 0);
    let page = pages.query(0).expect("the page has been touched");
    assert_eq!(page.protection, Protection::Read);
    let pages = Pages::reserve(1, Options::default()).expect("there are addresses");
    pages
        .protect(0..pages.bytes(), Protection::None)
        .and_then(|()| pages.populate(0..pages.bytes()))
        .expect("one page fits");
    let page = pages.query(0).expect("the page was asked for");
    assert_eq!(page.protection, Protection::None);
}

/// Nothing that other CPUs write is lost while pages move, and they read nothing else than what was written.
fn pages_move_while_they_are_used() {
    const WORDS: usize = SMALL_PAGE_BYTES / 8;
    const UNTOUCHED: usize = WORDS - 1;
    let nodes = nodes_with_memory();
    let cpus = topology().cpus().iter();
    let others: Vec<_> = cpus.filter(|cpu| cpu.id != thread::current_cpu()).collect();
    for size in [PageSize::Size4KiB, PageSize::Size2MiB] {
        let region = Region::<AtomicU64>::with_options(LEN, options(Policy::Bind(nodes[0]), size));
        let region = region.expect("there are addresses");
        region
            .iter()
            .zip(0..)
            .for_each(|(word, number)| word.store(number, Relaxed));
        let done = AtomicBool::new(false);
        let use_pages = |own: usize| {
            let mut rounds = 0;
            while !done.load(Relaxed) {
                for page in (0..LEN).step_by(WORDS) {
                    let before = region[page + own].fetch_add(1, Relaxed);
                    assert_eq!(before, (page + own) as u64 + rounds, "a write was lost");
                    assert_eq!(region[page + UNTOUCHED].load(Relaxed), (page + UNTOUCHED) as u64);
                }
                rounds += 1;
            }
        };
        thread::scope(|scope| {
            for (own, cpu) in others.iter().enumerate() {
                let use_pages = &use_pages;
                let user = Builder::new()
                    .cpu(cpu.id)
                    .spawn_scoped(scope, move || use_pages(own % UNTOUCHED));
                user.expect("the CPU exists");
            }
            for &node in nodes.iter().cycle().take(1 + 3 * nodes.len()) {
                let is_there = node_of(&region, 0) == node;
                let moved = region.move_to(0..LEN, node).expect("4 MiB fit on each node");
                assert_eq!(moved == 0, is_there, "only what lies elsewhere moves");
                for page in (0..LEN).step_by(WORDS) {
                    assert_eq!(node_of(&region, page), node);
                }
            }
            done.store(true, Relaxed);
        });
    }
}

fn a_part_of_a_page_moves_alone() {
    let nodes = nodes_with_memory();
    let [first, .., last] = nodes[..] else { return };
    let pages = filled(HUGE_PAGE_BYTES, options(Policy::Bind(first), PageSize::Size2MiB));
    let part = SMALL_PAGE_BYTES..3 * SMALL_PAGE_BYTES;
    assert_eq!(pages.move_to(part.clone(), last), Ok(2));
    for (offset, node) in [
        (0, first),
        (part.start, last),
        (part.end - 1, last),
        (part.end, first),
    ] {
        assert_eq!(
            pages.query(offset).expect("it is there").node,
            node,
            "byte {offset}"
        );
    }
    assert!(is_filled(&pages, 0..pages.bytes()), "moving changes no contents");
}

fn what_does_not_fit_is_an_error() {
    let node = nodes_with_memory().pop().expect("there is memory");
    let bytes = topology().nodes()[node.index()].memory_bytes() as usize;
    let policy = Policy::Bind(node);
    match Region::<u8>::populated(bytes, policy) {
        Err(RegionError::OutOfMemory(error)) => {
            assert_eq!((error.node, error.policy), (node, policy));
        }
        other => panic!("a node can not give all of its memory to one region: {other:?}"),
    }
    Region::<u64>::populated(LEN, policy).expect("what was refused is free again");
    let error = Region::<u8>::new(usize::MAX, policy).expect_err("no address space is so large");
    assert!(matches!(error, RegionError::TooLarge { .. }), "{error}");
}

fn released_memory_comes_back() {
    // More in all than the machine has.
    let machine_bytes: u64 = topology().nodes().iter().map(Node::memory_bytes).sum();
    let rounds = 1 + machine_bytes / (8 * LEN as u64 * 8);
    for _ in 0..rounds {
        let mut region =
            Region::<u64>::populated(8 * LEN, Policy::Local).expect("what was released is free again");
        assert_eq!(region[8 * LEN - 1], 0, "reused memory is zero again");
        region[8 * LEN - 1] = 1;
    }
}

/// A CPU that has used an address must find the new memory there after the old was discarded.
fn stale_translations_are_gone() {
    let cpus = topology().cpus().iter();
    let others: Vec<_> = cpus.filter(|cpu| cpu.id != thread::current_cpu()).collect();
    let Some(other) = others.first() else { return };
    for (tag, size) in (1_usize..=20).zip([PageSize::Size4KiB, PageSize::Size2MiB].into_iter().cycle()) {
        let pages = Pages::reserve(4 << 20, options(None, size)).expect("there are addresses");
        let write = |value| {
            // SAFETY: the word lies in the reservation, and the other thread is not there meanwhile.
            unsafe { pages.start().cast::<usize>().write_volatile(value) };
        };
        let read_there = || {
            // SAFETY: as above: the word may be read, and nobody writes meanwhile.
            let read = || unsafe { pages.start().cast::<usize>().read_volatile() };
            thread::scope(|scope| {
                let reader = Builder::new().cpu(other.id).spawn_scoped(scope, read);
                reader.expect("the CPU exists").join()
            })
        };
        write(1000 + tag);
        assert_eq!(read_there(), 1000 + tag);
        pages.discard(0..pages.bytes()).expect("it is noted");
        // Takes the frames that have just become free, at another address.
        let mut filler = Region::<u64>::new(2 * LEN, Policy::Local).expect("there are addresses");
        filler.fill(7);
        assert_eq!(read_there(), 0, "CPU {} has a stale translation", other.id);
        write(tag);
        assert_eq!(read_there(), tag);
    }
}

/// Stacks get their memory as they are used, down to their end.
fn deep_recursion_has_its_stack() {
    const STACK_BYTES: usize = 8 << 20;
    const FRAME_BYTES: usize = 4096;
    #[inline(never)]
    fn recurse(depth: u64) -> u64 {
        let mut frame = [depth as u8; FRAME_BYTES];
        black_box(&mut frame);
        let below = if depth == 0 { 0 } else { recurse(depth - 1) };
        below + u64::from(black_box(&frame).iter().all(|byte| *byte == depth as u8))
    }
    // All but an eighth, which is for what the compiler puts beside.
    let depth = (STACK_BYTES / 8 * 7 / (FRAME_BYTES + 256)) as u64;
    let threads: Vec<_> = (0..2)
        .map(|_| {
            Builder::new()
                .stack_size(STACK_BYTES)
                .spawn(move || recurse(depth))
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.expect("it starts").join(), depth + 1);
    }
}

fn heap_is_shared() {
    // Each thread frees what another one allocated.
    let vectors: Vec<Vec<u8>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..thread::available_parallelism().get())
            .map(|index| scope.spawn(move || alloc::vec![index as u8; 100_000]))
            .collect();
        workers.into_iter().map(ScopedJoinHandle::join).collect()
    });
    thread::scope(|scope| {
        for (index, vector) in vectors.into_iter().enumerate() {
            scope.spawn(move || assert!(vector.iter().all(|&byte| byte == index as u8)));
        }
    });
}

/// A page of 1 GiB, and what becomes of it when parts of it are treated differently.
pub(crate) fn giant_pages(_: &mut Args) -> ExitCode {
    const GIANT_PAGE_BYTES: usize = PageSize::Size1GiB.bytes() as usize;
    let node = thread::current_node();
    let options = options(Policy::Bind(node), PageSize::Size1GiB);
    let pages = Pages::reserve(GIANT_PAGE_BYTES, options).expect("there are addresses");
    assert!(pages.start().as_ptr().addr().is_multiple_of(GIANT_PAGE_BYTES));
    let word = |offset| {
        // SAFETY: the offsets below lie in the reservation.
        unsafe { pages.start().add(offset).cast::<usize>() }
    };
    let offsets = [
        0,
        300 << 20,
        (300 << 20) + 2 * SMALL_PAGE_BYTES,
        GIANT_PAGE_BYTES - 8,
    ];
    for offset in offsets {
        // SAFETY: the word lies in the reservation, which nobody else knows.
        unsafe { word(offset).write_volatile(offset + 1) };
        let page = pages.query(offset).expect("the page has been touched");
        assert_eq!((page.size, page.node), (PageSize::Size1GiB, node));
    }
    let hole = offsets[1] + SMALL_PAGE_BYTES..offsets[2];
    pages.discard(hole.clone()).expect("it is noted");
    assert_eq!(pages.query(hole.start), None);
    pages
        .protect(0..HUGE_PAGE_BYTES, Protection::Read)
        .expect("it is noted");
    for offset in offsets {
        // SAFETY: as above.
        assert_eq!(unsafe { word(offset).read_volatile() }, offset + 1);
    }
    let size = |offset| pages.query(offset).map(|page| page.size);
    assert_eq!(size(offsets[1]), Some(PageSize::Size4KiB), "beside the hole");
    assert_eq!(
        size(GIANT_PAGE_BYTES - 8),
        Some(PageSize::Size2MiB),
        "far from it"
    );
    passed("giant-pages")
}

pub(crate) fn out_of_memory(_: &mut Args) -> ExitCode {
    let bytes: u64 = topology().nodes().iter().map(Node::memory_bytes).sum();
    match Region::<u8>::populated(bytes as usize, Policy::Bind(NodeId(0))) {
        Err(error @ RegionError::OutOfMemory(_)) => {
            println!("{error}");
            passed("out-of-memory")
        }
        Err(error) => panic!("another error was expected: {error}"),
        Ok(_) => panic!("more memory was given than there is"),
    }
}
