//! A CPU's own frames: a few of 4 KiB and of 2 MiB from its node, so that most allocations write nothing that other CPUs use.

use core::ptr::NonNull;

use homenode_topology::{NodeId, PhysAddr};

use super::depot::Chain;
use super::lock::Lock;
use super::metadata::{FrameMetadata, MetadataArray, State};
use crate::frame::{Block, Frame};
use crate::size::{Order, PageSize, Size4KiB};

/// A cache holds at most so many 4 KiB frames, and …
const MOST_SMALL: u32 = 512;
/// … so many of 2 MiB.
const MOST_HUGE: u32 = 8;
/// Fewer than this are not worth a cache: the metadata of so many 4 KiB frames fills two cache lines.
const FEWEST_SMALL: u32 = 8;
const FEWEST_HUGE: u32 = 2;
/// All caches of a node together hold at most its memory divided by this.
const SHARE: u64 = 32;
/// As many 4 KiB frames are taken at once at most: 256 KiB, whose metadata fills sixteen cache lines.
const MOST_TAKEN: u32 = 64;

/// The sizes that are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Small,
    Huge,
}

impl Kind {
    pub(super) const ALL: [Self; 2] = [Self::Small, Self::Huge];

    /// The kind of blocks of this order, or `None` if they are not cached.
    #[inline]
    pub(super) const fn of(order: Order) -> Option<Self> {
        const SMALL: usize = Kind::Small.order().index();
        const HUGE: usize = Kind::Huge.order().index();
        match order.index() {
            SMALL => Some(Self::Small),
            HUGE => Some(Self::Huge),
            _ => None,
        }
    }

    pub(super) const fn order(self) -> Order {
        match self {
            Self::Small => PageSize::Size4KiB.order(),
            Self::Huge => PageSize::Size2MiB.order(),
        }
    }
}

/// How many frames of each kind a cache may hold: powers of two or 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Capacity {
    small: u32,
    huge: u32,
}

impl Capacity {
    /// For each of the `cpus` CPUs of a node with so many 4 KiB frames.
    pub(super) fn for_node(frames: u64, cpus: u64) -> Self {
        let share = match cpus {
            0 => 0,
            cpus => frames / SHARE / cpus,
        };
        let fit = |share: u64, fewest: u32, most: u32| match share.min(most.into()) as u32 {
            few if few < fewest => 0,
            enough => 1 << enough.ilog2(),
        };
        let small = fit(share / 2, FEWEST_SMALL, MOST_SMALL);
        let rest = share - u64::from(small) - u64::from(small / 2);
        let rest = rest / u64::from(Kind::Huge.order().frames());
        let huge = fit(rest, FEWEST_HUGE, MOST_HUGE);
        Self { small, huge }
    }

    pub(super) const fn is_none(self) -> bool {
        self.small == 0
    }

    /// How many 4 KiB frames are taken or given at once.
    pub(super) const fn chain_frames(self) -> u32 {
        self.small / 2
    }

    /// The 4 KiB frames that a full cache holds.
    pub(super) const fn frames(self) -> u64 {
        self.small as u64 + self.chain_frames() as u64 + ((self.huge as u64) << Kind::Huge.order().index())
    }
}

/// A frame in a cache, and where its metadata is.
#[derive(Clone, Copy)]
pub(super) struct CachedFrame {
    start: PhysAddr,
    metadata: NonNull<FrameMetadata>,
}

// SAFETY: the metadata is reached by shared references, and made of atomics.
unsafe impl Send for CachedFrame {}

impl CachedFrame {
    const NONE: Self = Self {
        start: PhysAddr(0),
        metadata: NonNull::dangling(),
    };

    #[inline]
    pub(super) fn new(start: PhysAddr, metadata: &FrameMetadata) -> Self {
        Self {
            start,
            metadata: NonNull::from(metadata),
        }
    }

    /// The frame as the block of this kind that it is.
    #[inline]
    pub(super) fn block(&self, kind: Kind) -> Block {
        Block::new(self.start, kind.order()).expect("a cached frame is aligned")
    }

    /// The frame, if it is of 4 KiB.
    #[inline]
    pub(super) fn small(&self) -> Frame<Size4KiB> {
        Frame::containing(self.start)
    }

    /// # Safety
    /// The allocator whose metadata it is still exists, and the value came from [`new`](Self::new).
    #[inline]
    pub(super) unsafe fn metadata(&self) -> &FrameMetadata {
        // SAFETY: by the caller: metadata lives as long as its allocator.
        unsafe { self.metadata.as_ref() }
    }
}

/// How full a stack is.
#[derive(Clone, Copy, Default)]
struct Level {
    count: u32,
    capacity: u32,
}

/// The frames of a cache. The levels and the chain come first, on the cache line of the lock.
#[repr(C)]
pub(super) struct Stacks {
    small: Level,
    huge: Level,
    /// 4 KiB frames that were given back many at once, half as many as the capacity at most.
    chain: Chain,
    small_frames: [CachedFrame; MOST_SMALL as usize],
    huge_frames: [CachedFrame; MOST_HUGE as usize],
}

impl Stacks {
    #[inline]
    const fn level(&self, kind: Kind) -> Level {
        match kind {
            Kind::Small => self.small,
            Kind::Huge => self.huge,
        }
    }

    #[inline]
    fn parts(&mut self, kind: Kind) -> (&mut Level, &mut [CachedFrame]) {
        match kind {
            Kind::Small => (&mut self.small, &mut self.small_frames),
            Kind::Huge => (&mut self.huge, &mut self.huge_frames),
        }
    }

    #[inline]
    pub(super) const fn count(&self, kind: Kind) -> u32 {
        self.level(kind).count
    }

    #[inline]
    pub(super) const fn capacity(&self, kind: Kind) -> u32 {
        self.level(kind).capacity
    }

    /// Whether there are frames, and room for another: a cache that stops being empty has to be noted.
    #[inline]
    pub(super) const fn is_between(&self, kind: Kind) -> bool {
        let Level { count, capacity } = self.level(kind);
        count > 0 && count < capacity
    }

    /// The places that are free, if there are frames: a cache that stops being empty has to be noted.
    #[inline]
    pub(super) fn room_if_any(&mut self, kind: Kind) -> Option<&mut [CachedFrame]> {
        let (level, frames) = self.parts(kind);
        (level.count > 0).then_some(())?;
        frames.get_mut(level.count as usize..level.capacity as usize)
    }

    /// Counts frames that have been put into the first free places.
    #[inline]
    pub(super) fn add(&mut self, kind: Kind, count: u32) {
        self.parts(kind).0.count += count;
    }

    /// Whether there is room for another frame.
    #[inline]
    pub(super) const fn has_room(&self, kind: Kind) -> bool {
        let Level { count, capacity } = self.level(kind);
        count < capacity
    }

    /// How many frames are taken from the node at once.
    pub(super) fn batch(&self, kind: Kind) -> u32 {
        (self.capacity(kind) / 2).min(MOST_TAKEN)
    }

    /// Takes the frame that was put in last.
    #[inline]
    pub(super) fn pop(&mut self, kind: Kind) -> Option<CachedFrame> {
        let (level, frames) = self.parts(kind);
        let count = level.count.checked_sub(1)?;
        let frame = *frames.get(count as usize)?;
        level.count = count;
        Some(frame)
    }

    /// Puts frames in that follow each other from `start` on and have this metadata, of each `step` the first; the first frame is
    /// the next to be taken. There must be room.
    pub(super) fn push_all(&mut self, kind: Kind, start: PhysAddr, metadata: &[FrameMetadata], step: usize) {
        let (level, frames) = self.parts(kind);
        let count = metadata.len() / step;
        let room = &mut frames[level.count as usize..][..count];
        let put = |slot: &mut CachedFrame, number: usize| {
            metadata[number].set_state(State::Cached(kind.order()));
            *slot = CachedFrame::new(
                start + number as u64 * PageSize::Size4KiB.bytes(),
                &metadata[number],
            );
        };
        for (slot, part) in room.iter_mut().zip((0..count).rev()) {
            put(slot, part * step);
        }
        level.count += count as u32;
    }

    /// Puts a frame in. There must be room.
    #[inline]
    pub(super) fn push(&mut self, kind: Kind, frame: CachedFrame) {
        let (level, frames) = self.parts(kind);
        frames[level.count as usize] = frame;
        level.count += 1;
    }

    /// Room for `count` frames of 4 KiB, which `fill` fills; the last is the next to be taken. There must be room.
    pub(super) fn push_chain(&mut self, count: u32, fill: impl FnOnce(&mut [CachedFrame])) {
        fill(&mut self.small_frames[self.small.count as usize..][..count as usize]);
        self.small.count += count;
    }

    /// Takes the chain of frames that were given back many at once.
    pub(super) const fn take_chain(&mut self) -> Chain {
        self.chain.take()
    }

    /// How many frames the chain has.
    pub(super) const fn chained(&self) -> u32 {
        self.chain.count()
    }

    /// Keeps frames that were given back many at once: what is too much.
    pub(super) fn gather(&mut self, metadata: &MetadataArray, chain: Chain) -> Option<Chain> {
        let most = self.batch(Kind::Small);
        self.chain.join(metadata, chain, most)
    }

    /// Takes out the `count` frames that have been there the longest, which `give` is shown.
    pub(super) fn take_oldest(&mut self, kind: Kind, count: u32, give: impl FnOnce(&[CachedFrame])) {
        let (level, frames) = self.parts(kind);
        let count = count.min(level.count) as usize;
        give(&frames[..count]);
        frames.copy_within(count..level.count as usize, 0);
        level.count -= count as u32;
    }
}

/// A CPU's frames, on cache lines of their own. Only that CPU puts frames in; others take the lock to empty it.
#[repr(C, align(128))]
pub(super) struct CpuCache {
    /// Whose frames these are, and where the cache itself lies.
    pub(super) node: NodeId,
    pub(super) stacks: Lock<Stacks>,
}

impl CpuCache {
    pub(super) fn new(node: NodeId, capacity: Capacity) -> Self {
        let level = |capacity| Level { count: 0, capacity };
        let stacks = Stacks {
            small: level(capacity.small),
            huge: level(capacity.huge),
            chain: Chain::EMPTY,
            small_frames: [CachedFrame::NONE; MOST_SMALL as usize],
            huge_frames: [CachedFrame::NONE; MOST_HUGE as usize],
        };
        Self {
            node,
            stacks: Lock::new(stacks),
        }
    }
}

/// A cache in memory of its node, which it keeps as long as the allocator exists.
#[derive(Clone, Copy)]
pub(super) struct CacheRef(NonNull<CpuCache>);

// SAFETY: a cache is reached by shared references only, and what changes in it is under its lock.
unsafe impl Send for CacheRef {}
// SAFETY: as above.
unsafe impl Sync for CacheRef {}

impl CacheRef {
    /// Puts a cache at `place`.
    ///
    /// # Safety
    /// `place` is memory for a cache, aligned to 128 bytes, that nothing else uses while this value or a copy of it exists.
    pub(super) unsafe fn new(place: NonNull<u8>, cache: CpuCache) -> Self {
        let place = place.cast();
        // SAFETY: by the caller.
        unsafe { place.write(cache) };
        Self(place)
    }

    #[inline]
    pub(super) fn get(&self) -> &CpuCache {
        // SAFETY: `new` has written it, and nothing else uses its memory.
        unsafe { self.0.as_ref() }
    }
}
