//! Taking memory and giving it back.

use alloc::alloc::{Layout, handle_alloc_error};
use core::hint;
use core::ptr::NonNull;

use homenode::mem::{Policy, Region, Reservation};
use homenode::phase::Phase;
use homenode::thread::{self, Builder};

use crate::Failure;
#[cfg(feature = "hosted")]
use crate::linux;
use crate::meter::Meter;
#[cfg(not(feature = "hosted"))]
use crate::skip;
use crate::team::{beside_computing, cpus, measure, settle};

const HUGE_PAGE_BYTES: usize = 2 << 20;
/// 64-bit words of a huge page.
const HUGE_PAGE_WORDS: usize = HUGE_PAGE_BYTES / size_of::<u64>();

/// 2 MiB pages that each thread takes.
const HUGE_PAGES: usize = 32;
/// 4 KiB pages that each thread takes.
#[cfg(feature = "hosted")]
const SMALL_PAGES: usize = 8192;

/// How often memory is taken and given back while other threads compute.
#[cfg(feature = "hosted")]
const SMALL_UNMAPS: usize = 1000;
const HUGE_UNMAPS: usize = 200;

#[cfg(not(feature = "hosted"))]
const NO_DEMAND_PAGING: &str = "needs demand paging, which Homenode does not have yet";
#[cfg(not(feature = "hosted"))]
const NO_SMALL_PAGES: &str = "needs ranges of 4 KiB pages, which Homenode does not have yet";

/// First touches of 4 KiB and of 2 MiB pages, and 2 MiB pages taken without a fault: each thread its own.
pub(crate) fn faults(threads: usize) -> Result<(), Failure> {
    #[cfg(not(feature = "hosted"))]
    for name in ["fault_4k", "fault_2m"] {
        skip(name, NO_DEMAND_PAGING);
    }
    #[cfg(feature = "hosted")]
    {
        use linux::{Mapping, PageSize};
        measure(
            Phase::<0x10>::new("fault_4k"),
            threads,
            SMALL_PAGES,
            threads * SMALL_PAGES,
            |pages| Mapping::touched(pages, PageSize::Small),
        )?;
        measure(
            Phase::<0x12>::new("fault_2m"),
            threads,
            HUGE_PAGES,
            threads * HUGE_PAGES,
            |pages| Mapping::touched(pages, PageSize::Huge),
        )?;
    }
    measure(
        Phase::<0x14>::new("populate_2m"),
        threads,
        HUGE_PAGES,
        threads * HUGE_PAGES,
        |pages| {
            let reservation = Reservation::<u64>::new(pages * HUGE_PAGE_WORDS)?;
            reservation
                .populate(0..reservation.len(), Policy::Local)
                .map_err(|error| Failure::Memory(error.into()))?;
            Ok(reservation)
        },
    )
}

/// One thread takes, touches and gives back, while the others compute.
pub(crate) fn unmap(threads: usize) -> Result<(), Failure> {
    #[cfg(not(feature = "hosted"))]
    for name in ["unmap_16", "protect_16"] {
        skip(name, NO_SMALL_PAGES);
    }
    #[cfg(feature = "hosted")]
    {
        const PAGES: usize = 16;
        use linux::{Mapping, PageSize};
        let unmap = |count| (0..count).try_for_each(|_| Mapping::touched(PAGES, PageSize::Small).map(drop));
        beside(Phase::<0x20>::new("unmap_16"), threads, SMALL_UNMAPS, unmap)?;
        let mapping = Mapping::touched(PAGES, PageSize::Small)?;
        let protect = |count| {
            for _ in 0..count {
                mapping.protect_and_restore();
                mapping.touch();
            }
            Ok(())
        };
        beside(Phase::<0x22>::new("protect_16"), threads, SMALL_UNMAPS, protect)?;
    }
    let unmap = |count| {
        for _ in 0..count {
            let mut region = Region::<u64>::new(HUGE_PAGE_WORDS, Policy::Local)?;
            region[0] = 1;
        }
        Ok(())
    };
    beside(Phase::<0x24>::new("unmap_2m"), threads, HUGE_UNMAPS, unmap)
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
    measured.announce(operations, threads);
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

/// `pages` pages are touched, then `threads` threads read one word of each, again and again. An operation is a thread, with its share
/// of the pages.
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
