//! Physical memory: bytes, and what each frame is being used for.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use homenode_mm::PageSize;
use homenode_topology::{NodeId, PhysAddr, PhysRange};
use memmap2::{MmapMut, MmapOptions};

/// The size of a frame in bytes.
pub(crate) const FRAME: u64 = 4096;

/// What memory holds that nobody has written yet.
const GARBAGE: u64 = 0xdead_f00d_5ca1_ab1e;

/// Who a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// No memory, or firmware's.
    Nobody,
    /// The frame allocator, which has it to hand out.
    Free,
    /// Whoever the frame allocator handed it out to.
    Allocated,
    /// The frame allocator, for what it knows about frames.
    Metadata,
}

/// What a frame's bytes are, so that memory which nobody uses costs nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Garbage that has not been written into the host's memory yet.
    Garbage,
    Zero,
    /// Whatever the host's memory holds.
    Written,
}

#[derive(Clone, Copy)]
struct Frame {
    owner: Owner,
    content: Content,
    /// How many translations and paging-structure cache entries name just this frame.
    cached: u16,
    /// The time at which it was last freed.
    freed_at: u32,
}

/// What the frame allocator has of a node, in frames.
#[derive(Default)]
struct Stock {
    total: Cell<u64>,
    free: Cell<u64>,
    /// When less than half of it was free for the last time.
    scarce_at: Cell<u32>,
}

impl Stock {
    fn is_scarce(&self) -> bool {
        self.free.get() < self.total.get() / 2
    }
}

/// Something that must not happen.
#[derive(Clone, Debug)]
pub(crate) struct Violation(pub(crate) String);

/// The physical memory of all nodes.
pub(crate) struct Memory {
    bytes: NonNull<u8>,
    /// Keeps the bytes.
    _map: MmapMut,
    frames: Vec<Cell<Frame>>,
    /// How many translations of 2 MiB pages name each 2 MiB of memory, and 1 GiB pages each 1 GiB.
    cached_large: Vec<Cell<u16>>,
    cached_giant: Vec<Cell<u16>>,
    nodes: Vec<Vec<PhysRange>>,
    stocks: Vec<Stock>,
    /// Goes up with each frame that is freed.
    time: Cell<u32>,
    /// While the frame allocator is built, what it reaches becomes its metadata.
    building: Cell<bool>,
}

impl Memory {
    /// Memory for `nodes` nodes of `bytes` bytes each. Each node's consists of two ranges, as where firmware keeps a part.
    pub(crate) fn new(nodes: usize, bytes: u64) -> Self {
        let stride = bytes.next_multiple_of(4 << 20) + (4 << 20);
        let ranges = |node: u64| {
            let start = PhysAddr(stride * node + (1 << 20));
            // What lies before the hole is 2 MiB aligned at its end, or not.
            let hole = start + (bytes / 4).next_multiple_of(FRAME) + 3 * FRAME * (node & 1);
            let rest = PhysRange::new(hole + 2 * FRAME, start + bytes);
            vec![PhysRange::new(start, hole), rest]
        };
        let nodes: Vec<_> = (0..nodes as u64).map(ranges).collect();
        let span = (stride * nodes.len() as u64).next_multiple_of(PageSize::Size2MiB.bytes());
        let mut map = MmapOptions::new()
            .len(span as usize)
            .no_reserve_swap()
            .map_anon()
            .expect("the host has addresses for the simulated memory");
        let frame = Frame {
            owner: Owner::Nobody,
            content: Content::Garbage,
            cached: 0,
            freed_at: 0,
        };
        let units = |size: PageSize| span.div_ceil(size.bytes()) as usize;
        Self {
            bytes: NonNull::new(map.as_mut_ptr()).expect("a mapping is not at 0"),
            _map: map,
            frames: vec![Cell::new(frame); units(PageSize::Size4KiB)],
            cached_large: vec![Cell::new(0); units(PageSize::Size2MiB)],
            cached_giant: vec![Cell::new(0); units(PageSize::Size1GiB)],
            stocks: nodes.iter().map(|_| Stock::default()).collect(),
            nodes,
            time: Cell::new(1),
            building: Cell::new(true),
        }
    }

    /// The memory of each node.
    pub(crate) fn nodes(&self) -> &[Vec<PhysRange>] {
        &self.nodes
    }

    /// The node that the address lies on.
    pub(crate) fn node_of(&self, address: PhysAddr) -> Option<NodeId> {
        let on = |ranges: &Vec<PhysRange>| ranges.iter().any(|range| range.contains(address));
        self.nodes.iter().position(on).map(NodeId::from)
    }

    /// The time: what has been cached before this and is used later is stale if its frame was freed in between.
    pub(crate) fn time(&self) -> u32 {
        self.time.get()
    }

    /// Makes what has been cached until now older than what is cached from now on; the time from now on.
    pub(crate) fn advance(&self) -> u32 {
        self.time.set(self.time.get() + 1);
        self.time.get()
    }

    /// The frame allocator is built: the rest of memory is free.
    pub(crate) fn finish_building(&self) {
        self.building.set(false);
        for (ranges, Stock { total, free, .. }) in self.nodes.iter().zip(&self.stocks) {
            for frame in ranges.iter().flat_map(|range| self.frames_of(*range)).flatten() {
                self.update(frame, |frame| {
                    if frame.owner == Owner::Nobody {
                        frame.owner = Owner::Free;
                        total.set(total.get() + 1);
                    }
                });
            }
            free.set(total.get());
        }
    }

    /// How many frames of a node are free.
    pub(crate) fn free_frames(&self, node: usize) -> u64 {
        self.stocks[node].free.get()
    }

    /// Whether less than half of the node's memory was free at any time since.
    pub(crate) fn was_scarce_since(&self, node: usize, since: u32) -> bool {
        let stock = &self.stocks[node];
        stock.is_scarce() || stock.scarce_at.get() >= since
    }

    /// The number of frames, also where there is no memory.
    pub(crate) fn frames(&self) -> usize {
        self.frames.len()
    }

    /// A pointer to the range, for the kernel, which may write there.
    pub(crate) fn reach(&self, range: PhysRange) -> Result<NonNull<u8>, Violation> {
        for frame in self.frames_of(range)? {
            self.check_kernel(frame)?;
            self.write_garbage(frame);
            self.update(frame, |frame| frame.content = Content::Written);
        }
        Ok(self.pointer(range.start))
    }

    /// Checks that the kernel may access the byte at this address of the host, if it is simulated memory at all.
    pub(crate) fn check_host_access(&self, host: usize) -> Result<(), Violation> {
        let offset = host.wrapping_sub(self.bytes.as_ptr() as usize) as u64;
        match self.frames.get((offset / FRAME) as usize) {
            Some(_) => self.check_kernel((offset / FRAME) as usize),
            None => Ok(()),
        }
    }

    /// Sets a range to zero.
    pub(crate) fn zero(&self, range: PhysRange, mut between: impl FnMut()) -> Result<(), Violation> {
        for frame in self.frames_of(range)? {
            self.check_kernel(frame)?;
            if self.frames[frame].get().content == Content::Written {
                between();
                // SAFETY: the frame lies in the mapping, of which no references exist.
                unsafe { self.frame_pointer(frame).write_bytes(0, FRAME as usize) };
            }
            self.update(frame, |frame| frame.content = Content::Zero);
        }
        Ok(())
    }

    /// Copies a range.
    pub(crate) fn copy(
        &self,
        from: PhysRange,
        to: PhysAddr,
        mut between: impl FnMut(),
    ) -> Result<(), Violation> {
        let target = self.frames_of(PhysRange::new(to, to + from.bytes()))?;
        for (from, to) in self.frames_of(from)?.zip(target) {
            self.check_kernel(from)?;
            self.check_kernel(to)?;
            self.write_garbage(from);
            let content = self.frames[from].get().content;
            let both_zero = content == Content::Zero && self.frames[to].get().content == Content::Zero;
            if !both_zero {
                between();
                // SAFETY: both frames lie in the mapping and are distinct; no references to them exist.
                unsafe {
                    self.frame_pointer(from)
                        .copy_to_nonoverlapping(self.frame_pointer(to), FRAME as usize);
                }
            }
            // Read again: a program that writes meanwhile, which it must not, is to be seen.
            self.update(to, |to| to.content = self.frames[from].get().content);
        }
        Ok(())
    }

    /// A word of an allocated frame, for a program, or for a CPU's walk; `writes` if it will be written to.
    ///
    /// `since` is the time at which the caller learnt that the frame is what it takes it for.
    pub(crate) fn word(&self, address: PhysAddr, since: u32, writes: bool) -> Result<&AtomicU64, Violation> {
        let index = (address.0 / FRAME) as usize;
        let Some(frame) = self.frames.get(index).map(Cell::get) else {
            return Err(Violation(format!("a CPU accesses {address}, which is no memory")));
        };
        if frame.owner != Owner::Allocated || frame.freed_at >= since {
            let Frame { owner, freed_at, .. } = frame;
            return Err(Violation(format!(
                "a CPU accesses the frame at {address} as what it was at time {since}, but the frame was freed at {freed_at} and is \
                 {owner:?} now"
            )));
        }
        if writes || frame.content == Content::Garbage {
            self.write_garbage(index);
            self.update(index, |frame| frame.content = Content::Written);
        }
        let word = self.pointer(address.align_down(8)).cast::<u64>();
        // SAFETY: the word lies in the mapping, is aligned, and is accessed by atomics and by `zero` and `copy` in this thread
        // only.
        Ok(unsafe { AtomicU64::from_ptr(word.as_ptr()) })
    }

    /// The word at an address, for checks only.
    pub(crate) fn peek(&self, address: PhysAddr) -> Option<u64> {
        let owner = self.owner(address)?;
        let word = self.word(address, self.time(), false).ok()?;
        (owner == Owner::Allocated).then(|| word.load(Ordering::Relaxed))
    }

    /// Who the frame at this address belongs to.
    pub(crate) fn owner(&self, address: PhysAddr) -> Option<Owner> {
        Some(self.frames.get((address.0 / FRAME) as usize)?.get().owner)
    }

    /// How many frames belong to this owner.
    pub(crate) fn count(&self, owner: Owner) -> u64 {
        self.frames
            .iter()
            .filter(|frame| frame.get().owner == owner)
            .count() as u64
    }

    /// The frame allocator hands out these frames.
    pub(crate) fn allocated(&self, range: PhysRange) -> Result<(), Violation> {
        for frame in self.frames_of(range)? {
            let owner = self.frames[frame].get().owner;
            if owner != Owner::Free {
                return Err(Violation(format!(
                    "{range} was handed out, but its frame {frame:#x} is {owner:?}"
                )));
            }
            self.update(frame, |frame| frame.owner = Owner::Allocated);
        }
        let Stock { free, .. } = self.stock_of(range.start);
        free.set(free.get() - range.bytes() / FRAME);
        Ok(())
    }

    /// The frame allocator gets these frames back.
    pub(crate) fn freed(&self, range: PhysRange) -> Result<(), Violation> {
        let now = self.time.get();
        self.time.set(now + 1);
        for index in self.frames_of(range)? {
            let frame = self.frames[index].get();
            if frame.owner != Owner::Allocated {
                let owner = frame.owner;
                return Err(Violation(format!(
                    "{range} was freed, but its frame {index:#x} is {owner:?}"
                )));
            }
            self.update(index, |frame| {
                frame.owner = Owner::Free;
                frame.freed_at = now;
            });
        }
        let stock = self.stock_of(range.start);
        if stock.is_scarce() {
            stock.scarce_at.set(now);
        }
        stock.free.set(stock.free.get() + range.bytes() / FRAME);
        match self.is_cached(range) {
            true => Err(Violation(format!(
                "{range} was freed while a CPU's caches still name it"
            ))),
            false => Ok(()),
        }
    }

    fn stock_of(&self, address: PhysAddr) -> &Stock {
        &self.stocks[self.node_of(address).map_or(0, NodeId::index)]
    }

    /// Whether any translation or paging-structure cache entry of any CPU names a part of the range.
    fn is_cached(&self, range: PhysRange) -> bool {
        let any = |counts: &[Cell<u16>], unit: u64| {
            let (first, last) = (range.start.0 / unit, (range.end.0 - 1) / unit);
            counts[first as usize..=last as usize]
                .iter()
                .any(|count| count.get() > 0)
        };
        let frames = (range.start.0 / FRAME) as usize..(range.end.0 / FRAME) as usize;
        any(&self.cached_giant, PageSize::Size1GiB.bytes())
            || any(&self.cached_large, PageSize::Size2MiB.bytes())
            || self.frames[frames].iter().any(|frame| frame.get().cached > 0)
    }

    /// A CPU caches something that names this page frame or table, or drops it.
    pub(crate) fn count_cached(&self, start: PhysAddr, size: PageSize, more: i16) {
        let index = (start.0 / size.bytes()) as usize;
        let add = |count: u16| {
            count
                .checked_add_signed(more)
                .expect("what was cached is counted")
        };
        match size {
            PageSize::Size4KiB => self.update(index, |frame| frame.cached = add(frame.cached)),
            PageSize::Size2MiB => self.cached_large[index].set(add(self.cached_large[index].get())),
            PageSize::Size1GiB => self.cached_giant[index].set(add(self.cached_giant[index].get())),
        }
    }

    /// Whether the range lies in memory.
    pub(crate) fn holds(&self, start: PhysAddr, size: PageSize) -> bool {
        let last = start.0.saturating_add(size.bytes() - 1);
        (last / FRAME) < self.frames.len() as u64
    }

    fn frames_of(&self, range: PhysRange) -> Result<std::ops::Range<usize>, Violation> {
        let frames = (range.start.0 / FRAME) as usize..range.end.0.div_ceil(FRAME) as usize;
        match frames.end <= self.frames.len() {
            true => Ok(frames),
            false => Err(Violation(format!("{range} is no memory"))),
        }
    }

    fn check_kernel(&self, frame: usize) -> Result<(), Violation> {
        match self.frames[frame].get().owner {
            Owner::Allocated | Owner::Metadata => Ok(()),
            Owner::Nobody if self.building.get() => {
                self.update(frame, |frame| frame.owner = Owner::Metadata);
                Ok(())
            }
            owner => Err(Violation(format!(
                "the kernel accesses the frame {frame:#x}, which is {owner:?}"
            ))),
        }
    }

    fn write_garbage(&self, index: usize) {
        if self.frames[index].get().content == Content::Garbage {
            let words = self.frame_pointer(index).cast::<u64>();
            for word in 0..FRAME as usize / size_of::<u64>() {
                // SAFETY: the word lies in the frame, to which no references exist.
                unsafe { words.add(word).write(GARBAGE) };
            }
            self.update(index, |frame| frame.content = Content::Written);
        }
    }

    fn update(&self, frame: usize, change: impl FnOnce(&mut Frame)) {
        let mut value = self.frames[frame].get();
        change(&mut value);
        self.frames[frame].set(value);
    }

    fn frame_pointer(&self, frame: usize) -> NonNull<u8> {
        self.pointer(PhysAddr(frame as u64 * FRAME))
    }

    fn pointer(&self, address: PhysAddr) -> NonNull<u8> {
        debug_assert!((address.0 / FRAME) < self.frames.len() as u64);
        // SAFETY: the address lies in the mapping, which begins at physical address 0.
        unsafe { self.bytes.add(address.0 as usize) }
    }
}
