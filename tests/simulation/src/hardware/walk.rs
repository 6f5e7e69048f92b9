//! How a CPU translates an address by the tables (Intel SDM volume 3, 4.5 and 4.10), one access to memory at a time.

use std::sync::atomic::Ordering;

use homenode_mm::PageSize;
use homenode_topology::PhysAddr;

use super::memory::{Memory, Violation};
use super::tlb::{Dropped, Level, ROOT, SIZES, Tlb, Translation, shift};

/// Bits of an entry.
pub(crate) mod bits {
    pub(crate) const PRESENT: u64 = 1;
    pub(crate) const WRITABLE: u64 = 1 << 1;
    pub(crate) const ACCESSED: u64 = 1 << 5;
    pub(crate) const DIRTY: u64 = 1 << 6;
    pub(crate) const HUGE: u64 = 1 << 7;
    pub(crate) const GLOBAL: u64 = 1 << 8;
    pub(crate) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
}

/// A walk that is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    address: u64,
    /// The table that is looked at next, its level, and when its address was read.
    table: PhysAddr,
    level: Level,
    since: u32,
    /// Whether all entries so far allow writing.
    writable: bool,
    /// Whether the walk is for a write.
    writes: bool,
}

/// Why an access of a program can not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageFault {
    /// An entry is not present.
    NotPresent,
    /// The access is a write, and an entry does not allow that.
    NotWritable,
    /// Something happened that must not.
    Violation,
}

/// What a step of a walk led to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// To another table.
    Table,
    /// To a page.
    Page(Translation),
    /// Nowhere.
    Fault(PageFault),
}

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    NotPresent,
    Table(PhysAddr),
    Page(PhysAddr, PageSize),
}

/// What the entry of a table of this level says, if a CPU can understand it.
pub(crate) fn meaning(memory: &Memory, entry: u64, level: Level) -> Result<Meaning, Violation> {
    if entry & bits::PRESENT == 0 {
        return Ok(Meaning::NotPresent);
    }
    let names = PhysAddr(entry & bits::ADDRESS);
    let meaning = match level {
        ROOT if entry & bits::HUGE != 0 => None,
        0 => Some(Meaning::Page(names, PageSize::Size4KiB)),
        _ if entry & bits::HUGE == 0 => Some(Meaning::Table(names)),
        _ => Some(Meaning::Page(names, SIZES[level])).filter(|_| names.is_aligned(SIZES[level].bytes())),
    };
    let size = match meaning {
        Some(Meaning::Page(_, size)) => size,
        _ => PageSize::Size4KiB,
    };
    meaning
        .filter(|_| memory.holds(names, size))
        .ok_or_else(|| Violation(format!("a level {level} entry {entry:#018x} makes no sense")))
}

impl Walk {
    /// Begins a walk, at the lowest table that the CPU's caches know or, if they do not or `from_root`, at the root.
    pub(crate) fn new(
        tlb: &Tlb,
        root: PhysAddr,
        now: u32,
        address: u64,
        writes: bool,
        from_root: bool,
    ) -> Self {
        let cached = if from_root {
            None
        } else {
            tlb.lookup_table(address)
        };
        let (level, table, writable, since) = match cached {
            Some((level, entry)) => (level, entry.table, entry.writable, entry.since),
            None => (ROOT, root, true, now),
        };
        Self {
            address,
            table,
            level,
            since,
            writable,
            writes,
        }
    }

    /// The table that is looked at next.
    pub(crate) const fn table(&self) -> PhysAddr {
        self.table
    }

    /// Reads an entry, marks it accessed (and dirty), and caches what it says; `dropped` is told what goes from the caches for it.
    pub(crate) fn step(
        &mut self,
        memory: &Memory,
        tlb: &mut Tlb,
        mut dropped: impl FnMut(Dropped),
    ) -> Result<Step, Violation> {
        let index = self.address >> shift(self.level) & 511;
        let now = memory.time();
        let word = memory.word(self.table + index * 8, self.since, true)?;
        // Only CPUs' marks and whole entries are written, and nothing runs between this read and the write below.
        let entry = word.load(Ordering::Relaxed);
        let writable = self.writable && entry & bits::WRITABLE != 0;
        match meaning(memory, entry, self.level)? {
            Meaning::NotPresent => Ok(Step::Fault(PageFault::NotPresent)),
            Meaning::Table(table) => {
                word.fetch_or(bits::ACCESSED, Ordering::Relaxed);
                memory.count_cached(table, PageSize::Size4KiB, 1);
                let level = self.level - 1;
                if let Some(old) = tlb.insert_table(self.address, level, table, writable, now) {
                    dropped(old);
                }
                (self.table, self.level, self.since, self.writable) = (table, level, now, writable);
                Ok(Step::Table)
            }
            Meaning::Page(_, _) if self.writes && !writable => Ok(Step::Fault(PageFault::NotWritable)),
            Meaning::Page(frame, size) => {
                let marks = bits::ACCESSED | if self.writes { bits::DIRTY } else { 0 };
                word.fetch_or(marks, Ordering::Relaxed);
                let translation = Translation {
                    page: self.address & !(size.bytes() - 1),
                    size,
                    frame,
                    writable,
                    dirty: (entry | marks) & bits::DIRTY != 0,
                    global: entry & bits::GLOBAL != 0,
                    since: now,
                };
                memory.count_cached(frame, size, 1);
                if let Some(old) = tlb.insert(translation) {
                    dropped(old);
                }
                // Intel SDM volume 3, 4.10.2.3: software must not let this happen where it matters which of them is used.
                if let Some(other) = tlb.other_size(translation) {
                    let text = format!("a core has both {translation:x?} and {other:x?}");
                    return Err(Violation(text));
                }
                Ok(Step::Page(translation))
            }
        }
    }
}
