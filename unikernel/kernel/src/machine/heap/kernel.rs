//! The kernel's heap: pinned memory of the node that asks.

use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ptr::NonNull;

use hermit_sync::{OnceCell, SpinMutex, SpinMutexGuard};
use homenode_mm::heap::{NodeHeap, NodeHeaps, PinnedMemory, PinnedRange};
use homenode_mm::{FrameSize, Order, OutOfMemory, Policy, Purpose, Size2MiB};
use homenode_topology::NodeId;
use talc::base::Talc;
use talc::base::binning::DefaultBinning;
use talc::source::Manual;

use crate::machine::percpu::this_cpu;
use crate::machine::{image, memory, smp};

/// The size of the heap before there are frames.
const EARLY_BYTES: usize = 512 << 10;

#[repr(C, align(16))]
struct EarlyMemory(UnsafeCell<[u8; EARLY_BYTES]>);

// SAFETY: only the early heap uses it, under its lock.
unsafe impl Sync for EarlyMemory {}

static EARLY_MEMORY: EarlyMemory = EarlyMemory(UnsafeCell::new([0; EARLY_BYTES]));

type EarlyHeap = Talc<Manual, DefaultBinning>;

static EARLY_HEAP: SpinMutex<EarlyHeap> = SpinMutex::new(Talc::new(Manual));

fn early_heap() -> SpinMutexGuard<'static, EarlyHeap> {
    let mut heap = EARLY_HEAP.lock();
    if !heap.is_metadata_established() {
        // SAFETY: claimed once; nothing else uses it.
        unsafe { heap.claim(EARLY_MEMORY.0.get().cast(), EARLY_BYTES) };
    }
    heap
}

/// Blocks of frames in the direct map.
struct Frames;

// SAFETY: fresh blocks, mapped for good and never given back; a frame's node does not change.
unsafe impl PinnedMemory for Frames {
    fn acquire(&self, node: NodeId, bytes: usize) -> Option<PinnedRange> {
        let needed = bytes as u64;
        // 2 MiB at a time; where there is no such block left, whatever is enough, rather than going to another node.
        let orders = || {
            Order::all()
                .rev()
                .filter(|order| order.bytes() <= needed.next_power_of_two().max(Size2MiB::BYTES))
                .take_while(|order| order.bytes() >= needed)
        };
        let allocate = |policy, order| {
            memory::frames()
                .allocate_block(order, policy, node, 0, Purpose::Kernel)
                .ok()
        };
        let block = orders()
            .find_map(|order| allocate(Policy::Bind(node), order))
            .or_else(|| orders().find_map(|order| allocate(Policy::Local, order)))?
            .memory;
        Some(PinnedRange {
            start: NonNull::new(memory::direct_map(block.start()))?,
            bytes: block.order().bytes() as usize,
            node: memory::frames().node_of(block.start())?,
        })
    }

    fn node_of(&self, block: NonNull<u8>) -> NodeId {
        memory::frames()
            .node_of(memory::physical_address(block.as_ptr()))
            .expect("the kernel's memory lies on a node")
    }
}

static HEAPS: OnceCell<NodeHeaps<Frames>> = OnceCell::new();

/// Lets the kernel's heap grow, now that there are frames.
///
/// # Errors
/// When there is no memory for its beginnings.
pub(crate) fn init() -> Result<(), OutOfMemory> {
    let nodes = (0..memory::frames().nodes()).map(NodeId::from);
    let heaps = nodes
        .map(|node| Ok(&smp::on_node(node, 1, || NodeHeap::new(node))?[0]))
        .collect::<Result<_, _>>()?;
    let set = HEAPS.set(NodeHeaps::new(Frames, heaps));
    assert!(set.is_ok(), "the kernel's heap is set up once");
    Ok(())
}

/// # Safety
/// Inside the gate, and not from an interrupt of kernel code; the layout has a size.
pub(super) unsafe fn allocate(layout: Layout) -> Option<NonNull<u8>> {
    match HEAPS.get() {
        Some(heaps) => {
            let cpu = this_cpu();
            // SAFETY: by the caller; kernel code is not preempted, so this CPU's cache is in nobody else's use.
            unsafe { heaps.allocate(&cpu.heaps.kernel, cpu.node.get(), layout) }
        }
        // SAFETY: by the caller.
        None => unsafe { early_heap().try_allocate(layout) },
    }
}

/// # Safety
/// Inside the gate, and not from an interrupt of kernel code; the block came from [`allocate`] with this layout, and nobody uses it
/// any more.
pub(super) unsafe fn free(block: NonNull<u8>, layout: Layout) {
    match HEAPS.get() {
        Some(heaps) if (block.addr().get() as u64) < image::OFFSET => {
            let cpu = this_cpu();
            // SAFETY: by the caller; kernel code is not preempted, so this CPU's cache is in nobody else's use.
            unsafe { heaps.free(&cpu.heaps.kernel, cpu.node.get(), block, layout) }
        }
        // SAFETY: by the caller; in the image there is the early heap only.
        _ => unsafe { early_heap().deallocate(block.as_ptr(), layout) },
    }
}
