//! What a CPU caches of page tables: translations, and the addresses of tables (Intel SDM volume 3, 4.10).

use std::cmp::Ordering;

use homenode_mm::PageSize;
use homenode_topology::PhysAddr;

use crate::random::Random;

/// A cached translation of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Translation {
    /// The page's first address.
    pub(crate) page: u64,
    pub(crate) size: PageSize,
    /// The first address of the frame.
    pub(crate) frame: PhysAddr,
    pub(crate) writable: bool,
    /// Whether the page was marked dirty when the translation was cached; if not, a write walks again.
    pub(crate) dirty: bool,
    pub(crate) global: bool,
    /// When the entry was read that this comes from.
    pub(crate) since: u32,
}

/// A cached entry of a table that names another table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableEntry {
    /// The addresses that the entry covers: their bits above those that the next table translates.
    prefix: u64,
    /// The next table.
    pub(crate) table: PhysAddr,
    pub(crate) writable: bool,
    /// When the entry was read.
    pub(crate) since: u32,
}

/// The level of a table: 0 for a page table, 3 for the root.
pub(crate) type Level = usize;

/// The level of the root.
pub(crate) const ROOT: Level = 3;

/// The number of address bits that lie below those that index a table of this level.
pub(crate) const fn shift(level: Level) -> u32 {
    12 + 9 * level as u32
}

/// The sizes of pages by the level of the table whose entries map them.
pub(crate) const SIZES: [PageSize; ROOT] = PageSize::ALL;

/// How many translations are cached of pages of each size.
const TRANSLATIONS: [usize; ROOT] = [64, 32, 4];

/// How many entries are cached that name tables of each level.
const TABLE_ENTRIES: [usize; ROOT] = [16, 4, 4];

/// One CPU's caches. Where a value goes depends on its address; what was there goes.
pub(crate) struct Tlb {
    translations: [Vec<Option<Translation>>; ROOT],
    /// By the level of the table that is named.
    tables: [Vec<Option<TableEntry>>; ROOT],
}

/// What a CPU no longer caches: the frame of a page, or a table.
pub(crate) type Dropped = (PhysAddr, PageSize);

impl From<Translation> for Dropped {
    fn from(translation: Translation) -> Self {
        (translation.frame, translation.size)
    }
}

impl From<TableEntry> for Dropped {
    fn from(entry: TableEntry) -> Self {
        (entry.table, PageSize::Size4KiB)
    }
}

impl Tlb {
    pub(crate) fn new() -> Self {
        Self {
            translations: TRANSLATIONS.map(|entries| vec![None; entries]),
            tables: TABLE_ENTRIES.map(|entries| vec![None; entries]),
        }
    }

    /// A translation of the address. If there are several, of pages of different sizes, then it is any of them.
    pub(crate) fn lookup(&self, address: u64, random: &Random) -> Option<Translation> {
        let of = |level: Level| {
            let slot = self.translations[level][slot(address >> shift(level), TRANSLATIONS[level])];
            slot.filter(|translation| translation.page == address >> shift(level) << shift(level))
        };
        let found: [Option<Translation>; ROOT] = std::array::from_fn(of);
        match found.iter().flatten().count() {
            0 => None,
            1 => found.into_iter().flatten().next(),
            several => found.into_iter().flatten().nth(random.index(several)),
        }
    }

    /// Caches a translation; what it takes the place of.
    pub(crate) fn insert(&mut self, translation: Translation) -> Option<Dropped> {
        let level = SIZES
            .iter()
            .position(|size| *size == translation.size)
            .unwrap_or(0);
        let slot = slot(translation.page >> shift(level), TRANSLATIONS[level]);
        self.translations[level][slot]
            .replace(translation)
            .map(Dropped::from)
    }

    /// A translation of a page of another size that has addresses in common with this one's.
    pub(crate) fn other_size(&self, translation: Translation) -> Option<Translation> {
        let larger = |level: Level| {
            let other = self.translations[level][slot(translation.page >> shift(level), TRANSLATIONS[level])];
            other.filter(|other| other.page == translation.page >> shift(level) << shift(level))
        };
        let smaller = |level: Level| {
            let within =
                |other: &Translation| other.page & !(translation.size.bytes() - 1) == translation.page;
            self.translations[level].iter().flatten().copied().find(within)
        };
        (0..ROOT).find_map(|level| match SIZES[level].cmp(&translation.size) {
            Ordering::Less => smaller(level),
            Ordering::Equal => None,
            Ordering::Greater => larger(level),
        })
    }

    /// The lowest table that is known to translate the address, and its level.
    pub(crate) fn lookup_table(&self, address: u64) -> Option<(Level, TableEntry)> {
        (0..ROOT).find_map(|level| {
            let prefix = address >> shift(level + 1);
            let found = self.tables[level][slot(prefix, TABLE_ENTRIES[level])];
            Some((level, found.filter(|entry| entry.prefix == prefix)?))
        })
    }

    /// Caches an entry that covers `address` and names a table of this level; what it takes the place of.
    pub(crate) fn insert_table(
        &mut self,
        address: u64,
        level: Level,
        table: PhysAddr,
        writable: bool,
        since: u32,
    ) -> Option<Dropped> {
        let prefix = address >> shift(level + 1);
        let entry = TableEntry {
            prefix,
            table,
            writable,
            since,
        };
        self.tables[level][slot(prefix, TABLE_ENTRIES[level])]
            .replace(entry)
            .map(Dropped::from)
    }

    /// Drops the translations of an address, global or not.
    pub(crate) fn drop_translations(&mut self, address: u64, mut dropped: impl FnMut(Dropped)) {
        for (level, translations) in self.translations.iter_mut().enumerate() {
            let number = address >> shift(level);
            let slot = &mut translations[slot(number, TRANSLATIONS[level])];
            if let Some(translation) = slot.take_if(|translation| translation.page == number << shift(level))
            {
                dropped(translation.into());
            }
        }
    }

    /// Drops all entries that name tables.
    pub(crate) fn drop_tables(&mut self, mut dropped: impl FnMut(Dropped)) {
        let entries = self.tables.iter_mut().flatten();
        entries
            .filter_map(Option::take)
            .for_each(|entry| dropped(entry.into()));
    }

    /// Drops all translations but the global ones.
    pub(crate) fn drop_all_translations(&mut self, mut dropped: impl FnMut(Dropped)) {
        for slot in self.translations.iter_mut().flatten() {
            if let Some(translation) = slot.take_if(|translation| !translation.global) {
                dropped(translation.into());
            }
        }
    }

    /// Drops one entry of the caches, if what chance points at is one.
    pub(crate) fn evict(&mut self, random: &Random) -> Option<Dropped> {
        let level = random.index(ROOT);
        match random.once_in(4) {
            true => self.tables[level][random.index(TABLE_ENTRIES[level])]
                .take()
                .map(Dropped::from),
            false => self.translations[level][random.index(TRANSLATIONS[level])]
                .take()
                .map(Dropped::from),
        }
    }

    /// All translations.
    pub(crate) fn translations(&self) -> impl Iterator<Item = Translation> {
        self.translations.iter().flatten().flatten().copied()
    }

    /// All cached entries that name tables: the first address that each covers, the level of the table, and the entry.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (u64, Level, TableEntry)> {
        let of = |(level, entries)| {
            let entries: &Vec<Option<TableEntry>> = entries;
            let entries = entries.iter().flatten();
            entries.map(move |entry| (entry.prefix << shift(level + 1), level, *entry))
        };
        self.tables.iter().enumerate().flat_map(of)
    }
}

/// Where a page or prefix goes in a cache of this many entries.
const fn slot(number: u64, entries: usize) -> usize {
    // Far and near pages fall together now and then, as they do in hashed caches.
    ((number ^ number >> 9 ^ number >> 18) % entries as u64) as usize
}
