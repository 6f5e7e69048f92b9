//! The heap of one CPU's threads.

use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::fmt;
use core::ptr::{self, NonNull};

use crossbeam_utils::CachePadded;
use talc::base::Talc;
use talc::base::binning::{Binning, DefaultBinning};
use talc::source::Source;

use super::class::Class;
use super::returns::Returns;
use super::slab::{Notice, SLAB_BYTES, SLAB_SHIFT, Slab};
use super::{LARGEST_SMALL_BYTES, is_small, padded_bytes};

/// Heaps get their memory by segments, aligned to this many bytes.
pub const SEGMENT_BYTES: usize = 64 << 20;
/// What they use of a segment. The rest need not be memory.
pub const SEGMENT_USED_BYTES: usize = SEGMENT_BYTES - (2 << 20);
/// The largest block of a heap, in bytes, and the largest alignment.
pub const LARGEST_BLOCK_BYTES: usize = 16 << 20;

/// Blocks that are not small are cut from memory that grows by so much at a time, so that a segment's pages are touched in order.
const GROWTH_BYTES: usize = 2 << 20;
/// What [`Talc`] may need beside a block to be sure of room for it: its lists, its tags, and the block's alignment.
const GROWTH_OVERHEAD_BYTES: usize = 4 << 10;

/// Where [`CpuHeap`]s get memory.
///
/// # Safety
/// A segment is an address that is a multiple of [`SEGMENT_BYTES`], with [`SEGMENT_USED_BYTES`] bytes of zeros, readable and
/// writable, for good. Memory may come when it is touched.
pub unsafe trait Segments: Copy + fmt::Debug {
    /// A segment for the running CPU; `None` if there is none. It must not use the heap that asks.
    fn reserve(&self) -> Option<NonNull<u8>>;
}

/// The start of a segment: whose it is, and, if it is divided into slabs, what is known of them. The first slab of a segment is not
/// used, since this is in its place.
#[repr(C, align(64))]
struct Header {
    owner: *const Returns,
}

const _: () = assert!(size_of::<Header>() == size_of::<Slab>());
const _: () = assert!(SEGMENT_BYTES / SLAB_BYTES * size_of::<Slab>() <= SLAB_BYTES);

/// The segment that an address lies in.
fn header_of(block: NonNull<u8>) -> *mut Header {
    block
        .as_ptr()
        .map_addr(|address| address & !(SEGMENT_BYTES - 1))
        .cast()
}

/// What is known of the slab that a block lies in.
fn slab_of(block: NonNull<u8>) -> *mut Slab {
    let index = (block.as_ptr().addr() & (SEGMENT_BYTES - 1)) >> SLAB_SHIFT;
    header_of(block).cast::<Slab>().wrapping_add(index)
}

/// The heap of one CPU's threads, its owners. Small blocks come from slabs, others from a heap of [`Talc`]'s.
///
/// An owner's allocation or free of a small block takes no lock, uses no atomic instruction and writes only to lines that no
/// other CPU writes. A free by anyone else is one atomic exchange on a line of the heap's; the owner takes those blocks in when it
/// runs out of blocks of some class, or allocates one that is not small. Slabs without a block in use serve other classes. A heap
/// keeps the memory that it once had.
pub struct CpuHeap<S: Segments> {
    returns: CachePadded<Returns>,
    own: UnsafeCell<Own<S>>,
}

/// What only the owner touches.
struct Own<S: Segments> {
    segments: S,
    /// The slab of each class that blocks are taken from, the first of its list of slabs with room; it may itself be full.
    current: [*mut Slab; Class::COUNT],
    /// Slabs that were in use once and are not, linked by `next`.
    unused: *mut Slab,
    /// The newest segment's first slab that was never used, as a pointer to what is known of it, and the end of these.
    fresh: *mut Slab,
    fresh_end: *mut Slab,
    other: Talc<Growing<S>, DefaultBinning>,
}

// SAFETY: `own` is used by one CPU at a time, by the contract of the functions that use it; the rest is atomic.
unsafe impl<S: Segments + Send> Sync for CpuHeap<S> {}
// SAFETY: nothing in it is bound to a CPU.
unsafe impl<S: Segments + Send> Send for CpuHeap<S> {}

impl<S: Segments> CpuHeap<S> {
    /// A heap without memory.
    #[must_use]
    pub const fn new(segments: S) -> Self {
        Self {
            returns: CachePadded::new(Returns::new()),
            own: UnsafeCell::new(Own {
                segments,
                current: [Slab::nothing(); Class::COUNT],
                unused: ptr::null_mut(),
                fresh: ptr::null_mut(),
                fresh_end: ptr::null_mut(),
                other: Talc::new(Growing {
                    segments,
                    owner: ptr::null(),
                    end: None,
                    limit: ptr::null_mut(),
                }),
            }),
        }
    }

    fn owner(&self) -> *const Returns {
        &raw const *self.returns
    }

    /// A block with this layout; `None` if there is no memory, or if the layout is larger than [`LARGEST_BLOCK_BYTES`].
    ///
    /// # Safety
    /// The layout's size is not 0. The caller is the heap's owner: no other owner's function of this heap runs until this returns.
    #[inline]
    pub unsafe fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        let Some(class) = Class::of(layout) else {
            // SAFETY: by the caller.
            return unsafe { self.allocate_other(layout.pad_to_align()) };
        };
        // SAFETY: by the caller. The current slab is this heap's or has no blocks. No class has a higher index than there are classes.
        unsafe {
            let current = &raw const (*self.own.get()).current;
            match Slab::take(*current.cast::<*mut Slab>().add(class.index())) {
                None => self.allocate_from_next(class),
                block => block,
            }
        }
    }

    /// Frees a block, whichever heap it is from.
    ///
    /// # Safety
    /// The block is from a heap of this type, with this layout, and nobody uses it any more. The caller is the owner of *this* heap,
    /// as for [`allocate`](Self::allocate).
    #[inline]
    pub unsafe fn free(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: by the caller; every segment has a header that is never changed.
        unsafe {
            if (*header_of(block)).owner != self.owner() {
                return Self::free_remotely(block, layout);
            }
            if is_small(layout) {
                (*self.own.get()).free_small(block);
            } else {
                (*self.own.get()).free_other(block, padded_bytes(layout));
            }
        }
    }

    /// Frees a block from anywhere: its owner finds it later.
    ///
    /// # Safety
    /// The block is from a heap of this type, with this layout, and nobody uses it any more.
    pub unsafe fn free_remotely(block: NonNull<u8>, layout: Layout) {
        // SAFETY: by the caller; every segment has a header that is never changed, and leads to a heap that lives as long.
        unsafe { (*(*header_of(block)).owner).push(block, padded_bytes(layout)) }
    }

    /// Whether the block has `new_bytes` bytes where it is, or has them now.
    ///
    /// # Safety
    /// As for [`free`](Self::free), but that the block stays in use; and `new_bytes` is not 0.
    pub unsafe fn resize_in_place(&self, block: NonNull<u8>, layout: Layout, new_bytes: usize) -> bool {
        let Ok(new) = Layout::from_size_align(new_bytes, layout.align()) else {
            return false;
        };
        match (Class::of(layout), Class::of(new)) {
            // SAFETY: by the caller; every segment has a header that is never changed.
            (None, None) => unsafe {
                (*header_of(block)).owner == self.owner()
                    && (*self.own.get()).other.try_realloc_in_place(
                        block.as_ptr(),
                        layout.pad_to_align(),
                        padded_bytes(new),
                    )
            },
            (old, new) => old == new,
        }
    }

    /// A small block when the current slab of its class has none.
    ///
    /// # Safety
    /// As for [`allocate`](Self::allocate).
    #[cold]
    #[inline(never)]
    unsafe fn allocate_from_next(&self, class: Class) -> Option<NonNull<u8>> {
        // SAFETY: by the caller.
        unsafe {
            let own = &mut *self.own.get();
            own.take_in(&self.returns);
            let current = own.current[class.index()];
            if let Some(block) = Slab::take(current) {
                return Some(block);
            }
            let next = match NonNull::new((*current).next) {
                Some(next) => next.as_ptr(),
                None => own.new_slab(class, self.owner())?,
            };
            if current != Slab::nothing() {
                Slab::set_unlisted(current);
            }
            (*next).previous = ptr::null_mut();
            own.current[class.index()] = next;
            Slab::take(next)
        }
    }

    /// A block that is not small.
    ///
    /// # Safety
    /// As for [`allocate`](Self::allocate); the size is a multiple of the alignment.
    #[inline(never)]
    unsafe fn allocate_other(&self, layout: Layout) -> Option<NonNull<u8>> {
        if layout.size() > LARGEST_BLOCK_BYTES {
            return None;
        }
        // SAFETY: by the caller.
        unsafe {
            let own = &mut *self.own.get();
            own.take_in(&self.returns);
            own.other.source.owner = self.owner();
            own.other.allocate(layout)
        }
    }
}

impl<S: Segments> Own<S> {
    /// Frees what others have freed of this heap.
    fn take_in(&mut self, returns: &Returns) {
        for (block, bytes) in returns.take() {
            // SAFETY: whoever returned it promised that it is this heap's, of that size, and not in use.
            unsafe {
                if bytes <= LARGEST_SMALL_BYTES {
                    self.free_small(block);
                } else {
                    self.free_other(block, bytes);
                }
            }
        }
    }

    /// # Safety
    /// The block is a small one of this heap, and nobody uses it any more.
    #[inline]
    unsafe fn free_small(&mut self, block: NonNull<u8>) {
        let slab = slab_of(block);
        // SAFETY: by the caller.
        unsafe {
            if let Some(notice) = Slab::free(slab, block) {
                self.heed(slab, notice);
            }
        }
    }

    /// # Safety
    /// The block is one of this heap that is not small, of that size, and nobody uses it any more.
    #[inline(never)]
    unsafe fn free_other(&mut self, block: NonNull<u8>, bytes: usize) {
        // SAFETY: by the caller. Talc looks at the size only.
        unsafe {
            self.other
                .deallocate(block.as_ptr(), Layout::from_size_align_unchecked(bytes, 1));
        }
    }

    /// # Safety
    /// `slab` has just given this notice.
    #[cold]
    unsafe fn heed(&mut self, slab: *mut Slab, notice: Notice) {
        // SAFETY: listed slabs of this heap lead to each other. A class that has a slab has a current one, which is listed.
        unsafe {
            let current = self.current[(*slab).class.index()];
            let second = (*current).next;
            match notice {
                Notice::HasRoom => {
                    if !second.is_null() && (*second).is_empty() {
                        self.retire(second);
                    }
                    let next = (*current).next;
                    Slab::set_listed(slab);
                    (*slab).previous = current;
                    (*slab).next = next;
                    (*current).next = slab;
                    if !next.is_null() {
                        (*next).previous = slab;
                    }
                }
                // The first two stay with their class though they are empty, so that a program that frees and allocates does not
                // change slabs each time.
                Notice::Empty if slab == current || slab == second => {}
                Notice::Empty => self.retire(slab),
            }
        }
    }

    /// Takes an empty slab off its list, to serve any class.
    ///
    /// # Safety
    /// The slab is listed, and not the first of its list.
    unsafe fn retire(&mut self, slab: *mut Slab) {
        // SAFETY: by the caller; listed slabs of this heap lead to each other.
        unsafe {
            let Slab { previous, next, .. } = *slab;
            (*previous).next = next;
            if !next.is_null() {
                (*next).previous = previous;
            }
            (*slab).next = self.unused;
        }
        self.unused = slab;
    }

    /// A slab of fresh blocks, which is on no list.
    fn new_slab(&mut self, class: Class, owner: *const Returns) -> Option<*mut Slab> {
        let slab = if let Some(unused) = NonNull::new(self.unused) {
            // SAFETY: one of this heap's slabs.
            self.unused = unsafe { unused.as_ref().next };
            unused.as_ptr()
        } else {
            if self.fresh == self.fresh_end {
                let segment = new_segment(self.segments, owner)?.as_ptr();
                self.fresh = segment.cast::<Slab>().wrapping_add(1);
                self.fresh_end = segment
                    .cast::<Slab>()
                    .wrapping_add(SEGMENT_USED_BYTES / SLAB_BYTES);
            }
            let fresh = self.fresh;
            self.fresh = fresh.wrapping_add(1);
            fresh
        };
        let segment = slab.map_addr(|address| address & !(SEGMENT_BYTES - 1));
        let index = (slab.addr() - segment.addr()) / size_of::<Slab>();
        // SAFETY: the slab's memory is this heap's and not in use, and its place in the header as well.
        unsafe { slab.write(Slab::new(class, segment.cast::<u8>().add(index * SLAB_BYTES))) };
        Some(slab)
    }
}

/// A segment that `owner` owns.
fn new_segment<S: Segments>(segments: S, owner: *const Returns) -> Option<NonNull<u8>> {
    let segment = segments.reserve()?;
    assert!(
        segment.addr().get().is_multiple_of(SEGMENT_BYTES),
        "a segment is not aligned"
    );
    // SAFETY: the segment is new, so that nobody reads this yet.
    unsafe { segment.cast::<Header>().write(Header { owner }) };
    Some(segment)
}

/// Memory for [`Talc`]: the part of a segment that it has so far.
#[derive(Debug)]
struct Growing<S> {
    segments: S,
    owner: *const Returns,
    /// The end of the part, once there is one.
    end: Option<NonNull<u8>>,
    /// The end of the segment.
    limit: *mut u8,
}

// SAFETY: it does not use the heap, and a segment is the heap's own.
unsafe impl<S: Segments> Source for Growing<S> {
    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        let growth = (layout.size() + layout.align() + GROWTH_OVERHEAD_BYTES).next_multiple_of(GROWTH_BYTES);
        let Growing {
            segments,
            owner,
            end,
            limit,
        } = talc.source;
        let end = match end {
            Some(end) if growth <= limit.addr() - end.addr().get() => {
                // SAFETY: the end of what Talc has; what follows is untouched memory of the segment.
                unsafe { talc.extend(end, end.as_ptr().add(growth)) }
            }
            _ => {
                let segment = new_segment(segments, owner).ok_or(())?.as_ptr();
                talc.source.limit = segment.wrapping_add(SEGMENT_USED_BYTES);
                let start = segment.wrapping_add(size_of::<Header>());
                // SAFETY: untouched memory of the segment, behind its header.
                unsafe { talc.claim(start, growth - size_of::<Header>()) }.ok_or(())?
            }
        };
        talc.source.end = Some(end);
        Ok(())
    }
}
