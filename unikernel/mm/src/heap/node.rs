//! Heaps of pinned memory, one per node, with a few blocks at hand on each CPU.

use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::iter;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, Ordering};

use alloc::vec::Vec;
use crossbeam_utils::CachePadded;
use homenode_topology::NodeId;
use spin::{Mutex, MutexGuard};
use talc::base::binning::DefaultBinning;
use talc::base::{CHUNK_UNIT, Talc};
use talc::source::Manual;

use super::FreeBlock;
use super::class::Class;
use super::returns::Returns;

/// The largest block that CPUs keep at hand, in bytes.
const LARGEST_CACHED_BYTES: usize = 1 << 10;
const CACHED_CLASSES: usize = match Layout::from_size_align(LARGEST_CACHED_BYTES, 1) {
    Ok(largest) => Class::of(largest).expect("it is small").index() + 1,
    Err(_) => unreachable!(),
};
/// How many bytes a CPU takes from its node's heap at once, and gives back at once; no less than two blocks, and no more than 16.
const BATCH_BYTES: usize = 2 << 10;

/// What [`Talc`] may need beside a block to be sure of room for it: its lists, its tags, and the block's alignment.
const OVERHEAD_BYTES: usize = 2 << 10;

/// The class of the blocks that a CPU keeps at hand for requests of this layout, which is padded; `None` if it keeps none.
#[inline]
fn cached_class(layout: Layout) -> Option<Class> {
    // Talc's blocks have at least this alignment, whatever their size.
    if layout.size() <= LARGEST_CACHED_BYTES && layout.align() <= CHUNK_UNIT {
        Class::of(layout)
    } else {
        None
    }
}

fn batch(class: Class) -> usize {
    (BATCH_BYTES / class.bytes()).clamp(2, 16)
}

/// The layout of a class's blocks in a node's heap.
fn class_layout(class: Class) -> Layout {
    Layout::from_size_align(class.bytes(), CHUNK_UNIT).expect("a class is small")
}

/// Memory for [`NodeHeaps`], for good.
#[derive(Clone, Copy, Debug)]
pub struct PinnedRange {
    /// Its first byte.
    pub start: NonNull<u8>,
    /// Its size.
    pub bytes: usize,
    /// Where it lies.
    pub node: NodeId,
}

/// Where [`NodeHeaps`] get memory.
///
/// # Safety
/// Ranges are readable and writable, nobody else's, for good, and never fault; and each block's node is its range's.
pub unsafe trait PinnedMemory {
    /// At least `bytes` bytes of `node`, or of another node. It must not use the heaps.
    fn acquire(&self, node: NodeId, bytes: usize) -> Option<PinnedRange>;

    /// The node of the range that `block` is from.
    fn node_of(&self, block: NonNull<u8>) -> NodeId;
}

type Blocks = Talc<Manual, DefaultBinning>;

/// The heap of one node. It holds memory of that node only, so that a block's address tells its heap.
pub struct NodeHeap {
    blocks: CachePadded<Mutex<Blocks>>,
    returns: CachePadded<Returns>,
    /// The node that had memory when this one had none the last time, or this one.
    supplier: AtomicU32,
}

// SAFETY: the blocks are under a lock and belong to no thread, and the rest is atomic.
unsafe impl Sync for NodeHeap {}
// SAFETY: as for `Sync`.
unsafe impl Send for NodeHeap {}

impl NodeHeap {
    /// A heap without memory.
    #[must_use]
    pub const fn new(node: NodeId) -> Self {
        Self {
            blocks: CachePadded::new(Mutex::new(Talc::new(Manual))),
            returns: CachePadded::new(Returns::new()),
            supplier: AtomicU32::new(node.0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Blocks> {
        let mut blocks = self.blocks.lock();
        for (block, bytes) in self.returns.take() {
            // SAFETY: whoever returned it promised that it is this heap's, of that size, and not in use. Talc looks at the size only.
            unsafe { blocks.deallocate(block.as_ptr(), Layout::from_size_align_unchecked(bytes, 1)) };
        }
        blocks
    }
}

/// Free blocks at hand of one CPU, of one size.
struct List {
    first: *mut FreeBlock,
    length: usize,
}

/// Free blocks at hand of one CPU.
pub struct CpuCache(UnsafeCell<Cached>);

struct Cached {
    /// The node that the newest blocks are from, and almost always all of them.
    node: Option<NodeId>,
    lists: [List; CACHED_CLASSES],
}

// SAFETY: used by one CPU at a time, by the contract of the functions that take it.
unsafe impl Sync for CpuCache {}
// SAFETY: nothing in it is bound to a CPU.
unsafe impl Send for CpuCache {}

impl CpuCache {
    /// No blocks.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "one per CPU, in statics and per-CPU data only"
    )]
    pub const fn new() -> Self {
        Self(UnsafeCell::new(Cached {
            node: None,
            lists: [const {
                List {
                    first: ptr::null_mut(),
                    length: 0,
                }
            }; CACHED_CLASSES],
        }))
    }
}

impl Cached {
    #[inline]
    fn pop(&mut self, class: Class) -> Option<NonNull<u8>> {
        let list = &mut self.lists[class.index()];
        let block = NonNull::new(list.first)?;
        // SAFETY: a free block at hand leads to the next one.
        list.first = unsafe { block.as_ref().next };
        list.length -= 1;
        Some(block.cast())
    }

    /// Gives the list's new length.
    ///
    /// # Safety
    /// The block is of this class, and nobody uses it any more.
    #[inline]
    unsafe fn push(&mut self, class: Class, block: NonNull<u8>) -> usize {
        let list = &mut self.lists[class.index()];
        let block = block.cast::<FreeBlock>();
        // SAFETY: by the caller.
        unsafe { block.write(FreeBlock { next: list.first }) };
        list.first = block.as_ptr();
        list.length += 1;
        list.length
    }
}

/// The heaps of all nodes. A block comes from the node that asks, or from another one when that has no memory left; it goes back
/// to the heap that it is from.
///
/// What holds a lock of these heaps waits for nothing, and takes no other lock; interrupts may be on. Whatever may interrupt a
/// CPU in the middle of a function of this type must not call any with the same [`CpuCache`], nor wait for such a CPU.
pub struct NodeHeaps<M> {
    memory: M,
    nodes: Vec<&'static NodeHeap>,
}

impl<M: PinnedMemory> NodeHeaps<M> {
    /// Heaps that get memory from `memory`; one for each node, by number.
    #[must_use]
    pub fn new(memory: M, nodes: Vec<&'static NodeHeap>) -> Self {
        Self { memory, nodes }
    }

    fn heap(&self, node: NodeId) -> &'static NodeHeap {
        self.nodes[node.index()]
    }

    /// A block with this layout, of `node` if there is memory, else of another node.
    ///
    /// # Safety
    /// The layout's size is not 0, and no other function uses `cache` until this returns.
    #[inline]
    pub unsafe fn allocate(&self, cache: &CpuCache, node: NodeId, layout: Layout) -> Option<NonNull<u8>> {
        let layout = layout.pad_to_align();
        match cached_class(layout) {
            // SAFETY: by the caller.
            Some(class) => unsafe {
                let cached = &mut *cache.0.get();
                match cached.pop(class) {
                    None => self.refill(cached, node, class),
                    block => block,
                }
            },
            // SAFETY: by the caller.
            None => self.take(node, layout, |blocks| unsafe { blocks.try_allocate(layout) }),
        }
    }

    /// Frees a block.
    ///
    /// # Safety
    /// The block is from these heaps, with this layout, and nobody uses it any more; `node` is the caller's; no other function uses
    /// `cache` until this returns.
    #[inline]
    pub unsafe fn free(&self, cache: &CpuCache, node: NodeId, block: NonNull<u8>, layout: Layout) {
        let layout = layout.pad_to_align();
        let owner = self.memory.node_of(block);
        // SAFETY: by the caller.
        unsafe {
            match cached_class(layout) {
                Some(class) => {
                    let cached = &mut *cache.0.get();
                    if cached.node != Some(owner) {
                        self.heap(owner).returns.push(block, class.bytes());
                    } else if cached.push(class, block) > 2 * batch(class) {
                        self.trim(cached, owner, class);
                    }
                }
                None if owner == node => self.heap(owner).lock().deallocate(block.as_ptr(), layout),
                None => self.heap(owner).returns.push(block, layout.size()),
            }
        }
    }

    /// A block, and some more for the next times.
    #[cold]
    #[inline(never)]
    fn refill(&self, cached: &mut Cached, node: NodeId, class: Class) -> Option<NonNull<u8>> {
        let layout = class_layout(class);
        let block = self.take(node, layout, |blocks| {
            // SAFETY: the layout has a size.
            let mut next = || unsafe { blocks.try_allocate(layout) };
            let first = next()?;
            for more in iter::from_fn(next).take(batch(class) - 1) {
                // SAFETY: fresh from the heap.
                unsafe { cached.push(class, more) };
            }
            Some(first)
        })?;
        cached.node = Some(self.memory.node_of(block));
        Some(block)
    }

    /// Gives blocks back to the heap of `node`, or to where they are from.
    #[cold]
    #[inline(never)]
    fn trim(&self, cached: &mut Cached, node: NodeId, class: Class) {
        let mut blocks = self.heap(node).lock();
        for block in iter::from_fn(|| cached.pop(class)).take(batch(class)) {
            let owner = self.memory.node_of(block);
            // SAFETY: blocks at hand are free, and each is from its node's heap.
            unsafe {
                if owner == node {
                    blocks.deallocate(block.as_ptr(), class_layout(class));
                } else {
                    self.heap(owner).returns.push(block, class.bytes());
                }
            }
        }
    }

    /// Takes what needs memory for `layout` from the heap of `node`, of the node that helped out last, from new memory, or, at last,
    /// from any heap.
    fn take<R>(
        &self,
        node: NodeId,
        layout: Layout,
        mut take: impl FnMut(&mut Blocks) -> Option<R>,
    ) -> Option<R> {
        let local = self.heap(node);
        if let Some(taken) = take(&mut local.lock()) {
            return Some(taken);
        }
        let supplier = NodeId(local.supplier.load(Ordering::Relaxed));
        if supplier != node
            && let Some(taken) = take(&mut self.heap(supplier).lock())
        {
            return Some(taken);
        }
        let needed = layout.size() + layout.align() + OVERHEAD_BYTES;
        let Some(new) = self.memory.acquire(node, needed) else {
            return self.nodes.iter().find_map(|heap| take(&mut heap.lock()));
        };
        local.supplier.store(new.node.0, Ordering::Relaxed);
        let mut blocks = self.heap(new.node).lock();
        // SAFETY: the range is new, and this heap's from now on.
        unsafe { blocks.claim(new.start.as_ptr(), new.bytes) };
        take(&mut blocks)
    }
}
