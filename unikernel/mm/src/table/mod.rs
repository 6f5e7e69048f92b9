//! x86-64 page tables of four levels (Intel SDM volume 3, 4.5).
//!
//! Entries are atomics, and no lock is taken: an entry is set only if it is empty, so that of several CPUs that populate
//! the same page one wins and the others learn what is there. A table, once it has been named by an entry, stays where it
//! is until the whole page table is given up: unmapping leaves empty tables behind, and a range that once was mapped by
//! small pages can not be mapped by larger ones.

pub(crate) mod entry;
mod error;
pub(crate) mod level;

use core::fmt;

use homenode_topology::{PhysAddr, PhysRange};

pub use self::entry::Flags;
use self::entry::{Entry, EntryValue, Table};
pub use self::error::{MapError, UnmapError};
use self::level::Level;
use crate::addr::{VirtAddr, VirtRange};
use crate::frame::Frame;
use crate::machine::Machine;
use crate::size::{PageSize, Size4KiB};

/// Where the frames of page tables come from.
///
/// # Safety
/// An implementor promises that a frame from [`allocate`](Self::allocate) is memory that the page table's machine reaches
/// and that nothing else uses until it is given to [`free`](Self::free).
pub unsafe trait TableFrames {
    /// Takes a frame; its bytes may be anything.
    fn allocate(&mut self) -> Option<Frame<Size4KiB>>;

    /// Gives back a frame that was taken and then not needed.
    fn free(&mut self, frame: Frame<Size4KiB>);
}

/// A page that is mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// The page's first address.
    pub page: VirtAddr,
    /// The page's size.
    pub size: PageSize,
    /// The first address of the frame that it is mapped to.
    pub frame: PhysAddr,
    /// The entry's flags.
    pub flags: Flags,
}

impl Mapping {
    /// The physical address of `address`, or `None` if it is not in the page.
    #[must_use]
    pub fn translate(&self, address: VirtAddr) -> Option<PhysAddr> {
        (address.align_down(self.size.bytes()) == self.page)
            .then(|| self.frame + (address.as_u64() - self.page.as_u64()))
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            page,
            size,
            frame,
            flags,
        } = self;
        write!(f, "{size} page {page} -> {frame} ({flags:?})")
    }
}

/// A page table: its root, and the machine whose memory its tables lie in.
///
/// Its methods are safe, since a table that no CPU uses changes nothing. **Loading the root into CR3 is what is unsafe**,
/// and whoever does it vouches for all that is done through this value from then on: it must be kept where only code
/// that upholds the rules of the address space can reach it.
pub struct PageTable<M> {
    root: Frame<Size4KiB>,
    machine: M,
}

/// An entry that a descent ended at.
struct Found<'a> {
    entry: &'a Entry,
    value: EntryValue,
    level: Level,
}

impl Found<'_> {
    /// The mapping that the entry makes for `address`, if it is a leaf.
    fn mapping(&self, address: VirtAddr) -> Option<Mapping> {
        mapping(self.value, self.level, address)
    }
}

/// The mapping that an entry of a table of this level makes for `address`, if it is a leaf.
fn mapping(value: EntryValue, level: Level, address: VirtAddr) -> Option<Mapping> {
    let size = level.page_size().filter(|_| value.is_leaf(level))?;
    let page = address.align_down(size.bytes());
    Some(Mapping {
        page,
        size,
        frame: value.frame(size),
        flags: value.flags(),
    })
}

impl<M: Machine> PageTable<M> {
    /// An empty page table, or `None` if there is no frame for its root.
    #[must_use]
    pub fn new(machine: M, tables: &mut impl TableFrames) -> Option<Self> {
        let root = tables.allocate()?;
        // SAFETY: `TableFrames` promises that the frame is memory that nothing else uses.
        unsafe { machine.zero(root.range()) };
        Some(Self { root, machine })
    }

    /// The page table that has its root in this frame.
    ///
    /// # Safety
    /// The frame holds the root of a valid tree of tables, which lie in memory that `machine` reaches and which are not
    /// freed, nor written to except by atomic accesses, while the value exists.
    #[must_use]
    pub const unsafe fn from_root(machine: M, root: Frame<Size4KiB>) -> Self {
        Self { root, machine }
    }

    /// The frame of the root, which CR3 takes.
    #[must_use]
    pub const fn root(&self) -> Frame<Size4KiB> {
        self.root
    }

    /// Another root, which leads to the same tables in the upper half of the address space and to none in the lower one. So that it
    /// stays true, all mappings that are added to the upper half later must lie in `growing`, which gets its uppermost tables now.
    ///
    /// # Errors
    /// If there is no frame for a table or for the root.
    pub fn upper_half_root(
        &self,
        growing: &[VirtRange],
        tables: &mut impl TableFrames,
    ) -> Result<Frame<Size4KiB>, MapError> {
        for range in growing {
            let mut page = Some(range.start());
            while let Some(at) = page.filter(|at| range.contains(*at)) {
                self.table_for(at, Level::Pdpt, tables)?;
                page = at.checked_add(Level::Pml4.entry_bytes());
            }
        }
        let root = tables
            .allocate()
            .ok_or(MapError::NoTableFrame(VirtAddr::default()))?;
        // SAFETY: `TableFrames` promises that the frame is memory that nothing else uses.
        unsafe { self.machine.zero(root.range()) };
        let upper_half = Level::ENTRIES as usize / 2..;
        let (from, to) = (self.table(self.root.start()), self.table(root.start()));
        for (from, to) in from[upper_half.clone()].iter().zip(&to[upper_half]) {
            to.store(from.load());
        }
        Ok(root)
    }

    /// Maps `page` to `frame`, with the `flags` and [`Flags::PRESENT`].
    ///
    /// # Errors
    /// If something is mapped there, or if the arguments can not be; nothing has been changed then, except that tables
    /// may have been added.
    pub fn map(
        &self,
        page: VirtAddr,
        frame: PhysAddr,
        size: PageSize,
        flags: Flags,
        tables: &mut impl TableFrames,
    ) -> Result<(), MapError> {
        check_flags(flags)?;
        check_frames(PhysRange::new(
            frame,
            PhysAddr(frame.0.saturating_add(size.bytes())),
        ))?;
        if !page.is_aligned(size.bytes()) || !frame.is_aligned(size.bytes()) {
            return Err(MapError::Misaligned { page, frame, size });
        }
        let level = Level::of(size);
        let table = self.table_for(page, level, tables)?;
        set_leaf(table, page, frame, size, flags)
    }

    /// Maps the pages from `page` on to `frames`, by the largest pages that fit, but none larger than `largest`; none
    /// reaches beyond the range's ends.
    ///
    /// # Errors
    /// As for [`map`](Self::map); what comes before the failing page has been mapped then.
    pub fn map_range(
        &self,
        page: VirtAddr,
        frames: PhysRange,
        largest: PageSize,
        flags: Flags,
        tables: &mut impl TableFrames,
    ) -> Result<(), MapError> {
        const BASE: PageSize = PageSize::Size4KiB;
        check_flags(flags)?;
        check_frames(frames)?;
        for frame in [frames.start, frames.end] {
            if !page.is_aligned(BASE.bytes()) || !frame.is_aligned(BASE.bytes()) {
                return Err(MapError::Misaligned {
                    page,
                    frame,
                    size: BASE,
                });
            }
        }
        if VirtRange::new(page, frames.bytes()).is_none() {
            return Err(MapError::NotCanonical(page));
        }
        let size_at = |done: u64| {
            PageSize::ALL.into_iter().rev().find(|size| {
                *size <= largest
                    && size.bytes() <= frames.bytes() - done
                    && (page.as_u64() + done).is_multiple_of(size.bytes())
                    && (frames.start.0 + done).is_multiple_of(size.bytes())
            })
        };
        let mut done = 0;
        while let Some(size) = size_at(done) {
            let at = VirtAddr::new_truncated(page.as_u64() + done);
            let level = Level::of(size);
            let table = self.table_for(at, level, tables)?;
            // One descent serves all pages of this size in the table.
            for index in level.index(at)..table.len() {
                let at = VirtAddr::new_truncated(page.as_u64() + done);
                debug_assert_eq!(level.index(at), index);
                set_leaf(table, at, frames.start + done, size, flags)?;
                done += size.bytes();
                if size_at(done) != Some(size) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Unmaps the page that starts at `page`, invalidates the current CPU's translation, and says what was mapped.
    ///
    /// The other CPUs may still use their translations: the frame must not be used otherwise before they have dropped
    /// them, which is for the caller to see to.
    ///
    /// # Errors
    /// If no page starts there.
    pub fn unmap(&self, page: VirtAddr) -> Result<Mapping, UnmapError> {
        let there = self.query(page).ok_or(UnmapError::NotMapped(page))?;
        if there.page != page {
            return Err(UnmapError::Larger(there));
        }
        let last = self.clear(page).ok_or(UnmapError::NotMapped(page))?;
        self.machine.invalidate_page(page);
        Ok(last)
    }

    /// Unmaps all pages in `range`, invalidates the current CPU's translations of each, and calls `unmapped` for it, in order of
    /// address.
    ///
    /// The other CPUs may still use their translations: a frame must not be used otherwise before they have dropped them, which is
    /// for the caller to see to.
    ///
    /// # Errors
    /// If a page lies only partly in the range; nothing has been changed then.
    pub fn unmap_range(&self, range: VirtRange, mut unmapped: impl FnMut(Mapping)) -> Result<(), UnmapError> {
        let mut straddles = None;
        self.visit(range, |there| {
            let last = VirtAddr::new_truncated(there.page.as_u64() + (there.size.bytes() - 1));
            if !range.contains(there.page) || !range.contains(last) {
                straddles = Some(there);
            }
        });
        if let Some(there) = straddles {
            return Err(UnmapError::Larger(there));
        }
        self.visit(range, |there| {
            // Another CPU may have been faster.
            if let Some(last) = self.clear(there.page) {
                self.machine.invalidate_page(last.page);
                unmapped(last);
            }
        });
        Ok(())
    }

    /// The page that is mapped at `address`.
    #[must_use]
    pub fn query(&self, address: VirtAddr) -> Option<Mapping> {
        self.descend(address).mapping(address)
    }

    /// Calls `visitor` for each page that is mapped in `range`, wholly or in part, in order of address.
    ///
    /// Parts that are not mapped are passed over by whole tables. What changes meanwhile may be seen or not.
    pub fn visit(&self, range: VirtRange, mut visitor: impl FnMut(Mapping)) {
        let mut address = range.start();
        while range.contains(address) {
            let found = self.descend(address);
            if let Some(there) = found.mapping(address) {
                visitor(there);
            }
            let covered = found.level.entry_bytes();
            match address.align_down(covered).checked_add(covered) {
                Some(next) => address = next,
                None => break,
            }
        }
    }

    /// Empties the entry that maps `address`, and says what it mapped last.
    fn clear(&self, address: VirtAddr) -> Option<Mapping> {
        let found = self.descend(address);
        found.mapping(address)?;
        let last = found.entry.clear(found.value).ok()?;
        mapping(last, found.level, address)
    }

    /// The lowest entry that covers `address`: a leaf, or one that is not present.
    fn descend(&self, address: VirtAddr) -> Found<'_> {
        let mut table = self.root.start();
        let mut level = Level::Pml4;
        loop {
            let entry = &self.table(table)[level.index(address)];
            let value = entry.load();
            match level.below() {
                Some(below) if value.is_present() && !value.is_leaf(level) => {
                    table = value.next_table();
                    level = below;
                }
                _ => return Found { entry, value, level },
            }
        }
    }

    /// The table of this level that covers `page`. Tables that are missing on the way are added.
    fn table_for(
        &self,
        page: VirtAddr,
        level: Level,
        tables: &mut impl TableFrames,
    ) -> Result<&Table, MapError> {
        let mut table = self.table(self.root.start());
        let mut above = Level::Pml4;
        while let Some(below) = above.below().filter(|_| above > level) {
            let entry = &table[above.index(page)];
            let mut value = entry.load();
            if value == EntryValue::EMPTY {
                value = self
                    .add_table(entry, tables)
                    .ok_or(MapError::NoTableFrame(page))?;
            }
            if let Some(there) = mapping(value, above, page) {
                return Err(MapError::AlreadyMapped(there));
            }
            if !value.is_present() {
                return Err(MapError::Occupied(page));
            }
            table = self.table(value.next_table());
            above = below;
        }
        Ok(table)
    }

    /// Adds an empty table below an empty entry, unless another CPU is faster; what is in the entry then.
    fn add_table(&self, entry: &Entry, tables: &mut impl TableFrames) -> Option<EntryValue> {
        let frame = tables.allocate()?;
        // SAFETY: `TableFrames` promises that the frame is memory that nothing else uses.
        unsafe { self.machine.zero(frame.range()) };
        let value = EntryValue::table(frame.start());
        Some(match entry.set_if_empty(value) {
            Ok(()) => value,
            Err(faster) => {
                tables.free(frame);
                faster
            }
        })
    }

    /// The table at this address, which the root or an entry names.
    fn table(&self, start: PhysAddr) -> &Table {
        let bytes = self.machine.memory(Frame::<Size4KiB>::containing(start).range());
        // SAFETY: the root and every table that an entry names are 4 KiB of memory that stays a table as long as this
        // value exists, by the contracts of `TableFrames` and `from_root`, and that is accessed by atomics only.
        unsafe { bytes.cast::<Table>().as_ref() }
    }
}

/// Sets the entry of `page` in its table, if it is empty.
fn set_leaf(
    table: &Table,
    page: VirtAddr,
    frame: PhysAddr,
    size: PageSize,
    flags: Flags,
) -> Result<(), MapError> {
    let level = Level::of(size);
    table[level.index(page)]
        .set_if_empty(EntryValue::leaf(frame, size, flags))
        .map_err(|found| match mapping(found, level, page) {
            Some(there) => MapError::AlreadyMapped(there),
            None if found.is_present() => MapError::Divided { page, size },
            None => MapError::Occupied(page),
        })
}

/// Whether a caller may ask for these flags.
fn check_flags(flags: Flags) -> Result<(), MapError> {
    if flags.intersects(Flags::HUGE.union(Flags::ADDRESS)) {
        Err(MapError::NotAllowed(flags))
    } else {
        Ok(())
    }
}

/// Whether all of `frames` can be named by an entry.
fn check_frames(frames: PhysRange) -> Result<(), MapError> {
    // The address field, and the 4 KiB below it.
    let limit = Flags::ADDRESS.bits() + PageSize::Size4KiB.bytes();
    if frames.end.0 <= limit {
        Ok(())
    } else {
        Err(MapError::NoSuchFrame(frames.start))
    }
}
