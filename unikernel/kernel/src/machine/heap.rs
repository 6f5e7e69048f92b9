//! The one global allocator of an image. It serves pinned kernel memory inside the gate and program memory outside, and frees
//! by address.
//!
//! The program's heap is one heap per CPU, each in an address range of its own and on its CPU's node, so that threads that
//! allocate share nothing; memory that another CPU's thread frees goes back to the heap that its address names.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};

use hermit_sync::RawSpinMutex;
use homenode_mm::{FrameSize, Order, Policy, Size2MiB};
use talc::TalcLock;
use talc::base::Talc;
use talc::base::binning::Binning;
use talc::source::Source;

use super::percpu::this_cpu;
use super::{gate, memory, program_memory};

/// The kernel's heap before there are frames.
const EARLY_BYTES: usize = 512 << 10;

#[repr(C, align(16))]
struct EarlyHeap(UnsafeCell<[u8; EARLY_BYTES]>);

// SAFETY: only the allocator uses it, under its lock.
unsafe impl Sync for EarlyHeap {}

static EARLY_HEAP: EarlyHeap = EarlyHeap(UnsafeCell::new([0; EARLY_BYTES]));

/// What the allocator needs beside the layout to be sure of room for it: alignment and its own headers.
const OVERHEAD: usize = 256;

/// Where the kernel's heap grows from: blocks of frames in the direct map.
#[derive(Debug)]
struct KernelSource {
    early_claimed: bool,
}

// SAFETY: it calls nothing that allocates.
unsafe impl Source for KernelSource {
    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        if !talc.source.early_claimed {
            talc.source.early_claimed = true;
            // SAFETY: claimed once; nothing else uses it.
            return unsafe { talc.claim(EARLY_HEAP.0.get().cast(), EARLY_BYTES) }
                .map(drop)
                .ok_or(());
        }
        let frames = memory::try_frames().ok_or(())?;
        let needed = (layout.size() + layout.align() + OVERHEAD) as u64;
        // 2 MiB at a time; when there is no such block left, whatever is enough.
        let block = Order::all()
            .rev()
            .filter(|order| order.bytes() <= needed.next_power_of_two().max(Size2MiB::BYTES))
            .take_while(|order| order.bytes() >= needed)
            .find_map(|order| {
                frames
                    .allocate_block(order, Policy::Local, memory::local_node(), 0)
                    .ok()
            })
            .ok_or(())?
            .memory;
        // SAFETY: a fresh block, mapped for good.
        unsafe { talc.claim(memory::direct_map(block.start()), block.order().bytes() as usize) }
            .map(drop)
            .ok_or(())
    }
}

/// Address space of one CPU's program heap.
const PROGRAM_HEAP_BYTES: u64 = 256 << 30;
/// How many program heaps there are: they fill the lower half. CPUs beyond share them, and then their nodes' memory too.
const PROGRAM_HEAPS: usize = 256;

/// Where a program heap grows from: 2 MiB pages of its range.
#[derive(Debug)]
struct ProgramSource {
    /// The heap's number.
    index: usize,
    /// Bytes of its range that are backed.
    backed: u64,
    /// The end of the heap, once it has been claimed.
    end: Option<NonNull<u8>>,
}

// SAFETY: the pointer is into memory that the heap owns.
unsafe impl Send for ProgramSource {}

// SAFETY: it calls nothing that allocates program memory: behind the gate is the kernel's heap.
unsafe impl Source for ProgramSource {
    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        let ProgramSource { index, backed, end } = talc.source;
        let needed = (layout.size() + layout.align() + OVERHEAD) as u64;
        let grow = needed.next_multiple_of(Size2MiB::BYTES);
        if backed + grow > PROGRAM_HEAP_BYTES {
            return Err(());
        }
        let heap = program_memory::END + index as u64 * PROGRAM_HEAP_BYTES;
        program_memory::populate(heap + backed, grow, Policy::Local).map_err(drop)?;
        let start = (heap + backed) as *mut u8;
        // SAFETY: backed, adjacent to what the heap has, and in a range that is the heap's own.
        let end = unsafe {
            let new_end = start.add(grow as usize);
            match end {
                Some(end) => talc.extend(end, new_end),
                None => talc.claim(start, grow as usize).ok_or(())?,
            }
        };
        talc.source.backed = backed + grow;
        talc.source.end = Some(end);
        Ok(())
    }
}

const _: () = assert!(program_memory::END + PROGRAM_HEAPS as u64 * PROGRAM_HEAP_BYTES == 1 << 47);

type KernelHeap = TalcLock<RawSpinMutex, KernelSource>;
type ProgramHeap = TalcLock<RawSpinMutex, ProgramSource>;

struct ImageAllocator {
    kernel: KernelHeap,
    program: [ProgramHeap; PROGRAM_HEAPS],
}

#[global_allocator]
static ALLOCATOR: ImageAllocator = ImageAllocator::new();

impl ImageAllocator {
    const fn new() -> Self {
        let mut program = [const {
            TalcLock::new(ProgramSource {
                index: 0,
                backed: 0,
                end: None,
            })
        }; PROGRAM_HEAPS];
        let mut index = 0;
        while index < PROGRAM_HEAPS {
            program[index] = TalcLock::new(ProgramSource {
                index,
                backed: 0,
                end: None,
            });
            index += 1;
        }
        Self {
            kernel: TalcLock::new(KernelSource { early_claimed: false }),
            program,
        }
    }

    /// The program heap that `address` belongs to, or `None` for the kernel's.
    fn program_heap_of(&self, address: *mut u8) -> Option<&ProgramHeap> {
        let offset = (address as u64).checked_sub(program_memory::END)?;
        self.program.get((offset / PROGRAM_HEAP_BYTES) as usize)
    }
}

// SAFETY: each block comes from the heap that its address names, and goes back to it.
unsafe impl GlobalAlloc for ImageAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout has a size above 0.
        let block = unsafe {
            if gate::inside() {
                self.kernel.lock().allocate(layout)
            } else {
                self.program[this_cpu().cpu.get().index() % PROGRAM_HEAPS]
                    .lock()
                    .allocate(layout)
            }
        };
        block.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: by the caller, the block came from `alloc` with this layout.
        unsafe {
            match self.program_heap_of(block) {
                Some(heap) => heap.lock().deallocate(block, layout),
                None if gate::inside() => self.kernel.lock().deallocate(block, layout),
                // The kernel's lock is taken inside the gate only, so that housekeeping on this CPU finds it free.
                None => gate::enter(move || ALLOCATOR.kernel.lock().deallocate(block, layout)),
            }
        }
    }
}
