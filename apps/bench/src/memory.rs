//! Taking memory and giving it back.

use alloc::alloc::{Layout, handle_alloc_error};
use alloc::vec::Vec;
use core::hint;
use core::ptr::NonNull;

use homenode::Node;
use homenode::mem::{Options, PageSize, Pages, Policy, Protection, Region, RegionError, Reservation};
use homenode::phase::Phase;
use homenode::println;
use homenode::sync::Barrier;
use homenode::thread::{self, Builder};

use crate::Failure;
use crate::meter::Meter;
use crate::team::{beside_computing, cpus, measure, measure_turns, settle, warm_up_turns};

const HUGE_PAGE_BYTES: usize = PageSize::Size2MiB.bytes() as usize;
/// 64-bit words of a huge page.
const HUGE_PAGE_WORDS: usize = HUGE_PAGE_BYTES / size_of::<u64>();

/// What one table of 2 MiB pages maps.
const TABLE_BYTES: usize = PageSize::Size1GiB.bytes() as usize;

/// 2 MiB pages that each thread takes.
const HUGE_PAGES: usize = 32;
/// 4 KiB pages that each thread takes.
const SMALL_PAGES: usize = 8192;

/// How often memory is taken and given back while other threads compute.
const SMALL_UNMAPS: usize = 1000;
const HUGE_UNMAPS: usize = 200;
/// How often each thread takes memory and gives it back while all others do, too.
const UNMAPS_AT_ONCE: usize = 200;
/// How often threads take memory, give it back and meet.
const ROUNDS: usize = 200;
/// 4 KiB pages of a thread's region in such a round.
const ROUND_PAGES: usize = 4;

/// First touches of 4 KiB and of 2 MiB pages, and 2 MiB pages taken without a fault.
pub(crate) fn faults(threads: usize) -> Result<(), Failure> {
    fault::<0x10>("fault_4k", threads, SMALL_PAGES, PageSize::Size4KiB)?;
    fault::<0x12>("fault_2m", threads, HUGE_PAGES, PageSize::Size2MiB)?;
    fault_in_own_table(threads)?;
    fault_in_shared_array(threads)?;
    populate(threads)
}

/// Each thread asks for 2 MiB pages of its own. An operation is a page.
fn populate(threads: usize) -> Result<(), Failure> {
    const NAME: &str = "populate_2m";
    const PHASE: Phase<0x14> = Phase::new(NAME);
    let pages = affordable(NAME, threads, HUGE_PAGES, PageSize::Size2MiB);
    measure(PHASE, threads, pages, threads * pages, |pages| {
        let reservation = Reservation::<u64>::new(pages * HUGE_PAGE_WORDS)?;
        reservation
            .populate(0..reservation.len(), Policy::Local)
            .map_err(RegionError::from)?;
        Ok(reservation)
    })
}

/// Each thread touches pages of its own. An operation is a page.
fn fault<const NUMBER: u8>(
    name: &'static str,
    threads: usize,
    pages: usize,
    size: PageSize,
) -> Result<(), Failure> {
    let pages = affordable(name, threads, pages, size);
    let work = |pages| touched(pages, size);
    measure(Phase::<NUMBER>::new(name), threads, pages, threads * pages, work)
}

/// Each thread touches 2 MiB pages in a GiB of addresses of its own, so that no two of them share a table. An operation is a page.
fn fault_in_own_table(threads: usize) -> Result<(), Failure> {
    const NAME: &str = "fault_2m_1g";
    const PHASE: Phase<0x16> = Phase::new(NAME);
    let pages = affordable(NAME, threads, HUGE_PAGES, PageSize::Size2MiB);
    let room = |_| Pages::reserve(2 * TABLE_BYTES, Options::default());
    let rooms = (0..threads).map(room).collect::<Result<Vec<_>, _>>()?;
    measure_turns(PHASE, threads, pages, threads * pages, |thread, turns| {
        let room = &rooms[thread];
        let first = room.start().as_ptr().align_offset(TABLE_BYTES) + turns.start * HUGE_PAGE_BYTES;
        touch(room, first, turns.len(), PageSize::Size2MiB);
        Ok(())
    })
}

/// All threads touch 2 MiB pages of one array, each in a slice of its own. An operation is a page.
fn fault_in_shared_array(threads: usize) -> Result<(), Failure> {
    const NAME: &str = "fault_2m_shared";
    const PHASE: Phase<0x18> = Phase::new(NAME);
    let pages = affordable(NAME, threads, HUGE_PAGES, PageSize::Size2MiB);
    let slice_bytes = (warm_up_turns(pages) + pages) * HUGE_PAGE_BYTES;
    let array = Pages::reserve(threads * slice_bytes, Options::default())?;
    measure_turns(PHASE, threads, pages, threads * pages, |thread, turns| {
        let first = thread * slice_bytes + turns.start * HUGE_PAGE_BYTES;
        touch(&array, first, turns.len(), PageSize::Size2MiB);
        Ok(())
    })
}

/// As many of `pages` pages for each thread as leave a quarter of the machine's memory free. Says so if these are not all.
fn affordable(name: &str, threads: usize, pages: usize, size: PageSize) -> usize {
    let memory: u64 = homenode::topology().nodes().iter().map(Node::memory_bytes).sum();
    let fitting = (memory / 4 * 3 / size.bytes()) as usize / threads;
    // The warm-up's may be there at the same time.
    let fitting = (fitting * 8 / 9).clamp(1, pages);
    if fitting < pages {
        println!("scaled {name}: {fitting} of {pages} pages for each thread, since memory is short");
    }
    fitting
}

/// A reservation of `pages` pages of this size, each written to.
fn touched(pages: usize, size: PageSize) -> Result<Pages, Failure> {
    let options = Options {
        page_size: size,
        ..Options::default()
    };
    let reservation = Pages::reserve(pages * size.bytes() as usize, options)?;
    touch(&reservation, 0, pages, size);
    Ok(reservation)
}

/// Writes to each of `pages` pages, the first of which begins at the byte `first`.
fn touch(reservation: &Pages, first: usize, pages: usize, size: PageSize) {
    let page_bytes = size.bytes() as usize;
    assert!(
        first + pages * page_bytes <= reservation.bytes(),
        "pages lie in their reservation"
    );
    for page in 0..pages {
        // SAFETY: the byte lies in the reservation, in a part that only this thread uses, and may be written to.
        unsafe {
            reservation
                .start()
                .add(first + page * page_bytes)
                .write_volatile(1);
        }
    }
}

/// Taking, touching and giving back: by one thread while the others compute, by all at once, and by all in rounds.
pub(crate) fn unmap(threads: usize) -> Result<(), Failure> {
    const PAGES: usize = 16;
    const SIZE: PageSize = PageSize::Size4KiB;
    let unmap = |count| (0..count).try_for_each(|_| touched(PAGES, SIZE).map(drop));
    beside(Phase::<0x20>::new("unmap_16"), threads, SMALL_UNMAPS, unmap)?;
    measure(
        Phase::<0x26>::new("unmap_16_all"),
        threads,
        UNMAPS_AT_ONCE,
        threads * UNMAPS_AT_ONCE,
        unmap,
    )?;
    let pages = touched(PAGES, SIZE)?;
    let protect = |count| {
        for _ in 0..count {
            for protection in [Protection::Read, Protection::ReadWrite] {
                pages
                    .protect(0..pages.bytes(), protection)
                    .map_err(RegionError::from)?;
            }
            touch(&pages, 0, PAGES, SIZE);
        }
        Ok(())
    };
    beside(Phase::<0x22>::new("protect_16"), threads, SMALL_UNMAPS, protect)?;
    let unmap = |count| {
        for _ in 0..count {
            let mut region = Region::<u64>::new(HUGE_PAGE_WORDS, Policy::Local)?;
            region[0] = 1;
        }
        Ok(())
    };
    beside(Phase::<0x24>::new("unmap_2m"), threads, HUGE_UNMAPS, unmap)?;
    fork_join(threads)
}

/// In each round, every thread takes a few pages, works on them, gives them back, and meets the others. An operation is a thread's
/// round.
fn fork_join(threads: usize) -> Result<(), Failure> {
    const PHASE: Phase<0x28> = Phase::new("fork_join_4");
    let barrier = Barrier::new(threads);
    measure(PHASE, threads, ROUNDS, threads * ROUNDS, |rounds| {
        let mut result = Ok(());
        for _ in 0..rounds {
            result = result.and_then(|()| work_on_own_pages());
            // Whoever could not work meets the others all the same: they wait.
            barrier.wait();
        }
        result
    })
}

/// A thread's part of a round.
fn work_on_own_pages() -> Result<(), Failure> {
    const WORDS: usize = ROUND_PAGES * PageSize::Size4KiB.bytes() as usize / size_of::<u64>();
    let mut region = Region::<u64>::new(WORDS, Policy::Local)?;
    (0..)
        .zip(region.iter_mut())
        .for_each(|(number, word)| *word = number);
    hint::black_box(region.iter().sum::<u64>());
    Ok(())
}

/// Measures `work(operations)` by the calling thread, after a warm-up, while other threads compute.
fn beside<const NUMBER: u8>(
    phase: Phase<NUMBER>,
    threads: usize,
    operations: usize,
    work: impl Fn(usize) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let measured = beside_computing(threads, || {
        work(operations / 8)?;
        let meter = Meter::begin(phase);
        work(operations)?;
        Ok(meter.end())
    })?;
    measured.announce_beside(operations, threads);
    Ok(())
}

/// The grids: pages and threads.
pub(crate) fn grid() -> Result<(), Failure> {
    grid_of(Phase::<0x30>::new("grid_100_100"), 100, 100)?;
    grid_of(Phase::<0x32>::new("grid_100_1000"), 100, 1000)
}

/// How often each thread of a grid reads every page.
const GRID_ROUNDS: usize = 10;

/// The stack that a thread needs that does little, in bytes.
pub(crate) const SMALL_STACK_BYTES: usize = 32 << 10;

/// `pages` pages are touched, then `threads` threads read one word of each, again and again. An operation is a thread, with its
/// share of the pages.
fn grid_of<const NUMBER: u8>(phase: Phase<NUMBER>, pages: usize, threads: usize) -> Result<(), Failure> {
    let work = |pages: usize, threads: usize| -> Result<(), Failure> {
        let mut region = Region::<u64>::new(pages * HUGE_PAGE_WORDS, Policy::Local)?;
        region
            .iter_mut()
            .step_by(HUGE_PAGE_WORDS)
            .for_each(|word| *word = 1);
        let region = &region;
        thread::scope(|scope| -> Result<(), Failure> {
            for _ in 0..threads {
                let read = move || {
                    for _ in 0..GRID_ROUNDS {
                        region
                            .iter()
                            .step_by(HUGE_PAGE_WORDS)
                            .for_each(|word| _ = hint::black_box(*word));
                    }
                };
                Builder::new()
                    .stack_size(SMALL_STACK_BYTES)
                    .spawn_scoped(scope, read)?;
            }
            Ok(())
        })?;
        settle()
    };
    work(1, cpus(threads))?;
    let meter = Meter::begin(phase);
    work(pages, threads)?;
    meter.end().announce(threads, threads);
    Ok(())
}

/// Blocks that each thread takes before it gives them back.
const BLOCKS_AT_ONCE: usize = 32;
const BLOCK: Layout = match Layout::from_size_align(4096, 4096) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};
/// How many blocks each thread takes altogether.
const BLOCKS: usize = 2048;

/// The program's allocator, by all threads at once.
pub(crate) fn alloc(threads: usize) -> Result<(), Failure> {
    measure(
        Phase::<0x40>::new("alloc_4k"),
        threads,
        BLOCKS,
        threads * BLOCKS,
        |count| {
            for _ in 0..count / BLOCKS_AT_ONCE {
                let blocks: [NonNull<u8>; BLOCKS_AT_ONCE] = core::array::from_fn(|_| allocate_block());
                for block in blocks {
                    // SAFETY: the block came from this allocator with this layout, and nobody else knows it.
                    unsafe { alloc::alloc::dealloc(block.as_ptr(), BLOCK) };
                }
            }
            Ok(())
        },
    )
}

/// A block whose first byte is written.
fn allocate_block() -> NonNull<u8> {
    // SAFETY: the layout has a size.
    let block = NonNull::new(unsafe { alloc::alloc::alloc(BLOCK) });
    let block = block.unwrap_or_else(|| handle_alloc_error(BLOCK));
    // SAFETY: the block is this thread's own. Volatile, so that the compiler does not take the whole allocation out.
    unsafe { block.write_volatile(1) };
    block
}
