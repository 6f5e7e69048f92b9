//! Pages of one table that are held busy while they are changed.

use super::{AddressSpace, Found};
use crate::addr::{VirtAddr, VirtRange};
use crate::attributes::AttributesId;
use crate::machine::Machine;
use crate::table::entry::{Entry, EntryValue, Table};
use crate::table::level::Level;
use crate::tlb::StalePages;

/// The entries of one table that this has made busy, with what was in them. Each must be set before this goes.
pub(super) struct Held<'s> {
    table: Option<&'s Table>,
    level: Level,
    first_page: VirtAddr,
    /// Which entries are held.
    indices: [u64; 8],
    /// What was in the entries that are held.
    values: [EntryValue; Level::ENTRIES as usize],
}

/// A page that is held.
pub(super) struct HeldPage<'s> {
    /// The page's first address.
    pub(super) page: VirtAddr,
    /// The level of its table.
    pub(super) level: Level,
    /// The entry, which is busy.
    pub(super) entry: &'s Entry,
    /// What was in the entry: a page.
    pub(super) value: EntryValue,
}

impl HeldPage<'_> {
    /// The number of the range's attributes.
    pub(super) fn id(&self) -> AttributesId {
        self.value.attributes()
    }
}

/// How an attempt to hold pages ended.
pub(super) enum Hold {
    /// Pages of one table are held; where to go on.
    Pages(Option<VirtAddr>),
    /// Nothing there is a page; where to go on.
    Nothing(Option<VirtAddr>),
    /// The page at the address is only partly in the range, and has to be divided first.
    Larger(Level, EntryValue),
    /// Another CPU works on a page.
    Wait,
    /// Something changed meanwhile.
    Again,
}

impl<M: Machine> AddressSpace<'_, M> {
    /// Makes all pages busy that lie in `range`, from `address` on, in the lowest table over `address`, up to the first
    /// entry that is a table, and puts them into `held`, which is empty.
    pub(super) fn hold<'s>(&'s self, address: VirtAddr, range: VirtRange, held: &mut Held<'s>) -> Hold {
        let _walk = self.tlb.begin_walk(self.machine());
        let Some(Found {
            table,
            level,
            value,
            entry,
        }) = self.descend(address)
        else {
            return Hold::Nothing(None);
        };
        if value.is_busy() {
            return Hold::Wait;
        }
        if !value.holds_page(level) {
            return Hold::Nothing(super::next_entry(address, level));
        }
        if !range.contains_aligned(address, level.entry_bytes()) {
            return Hold::Larger(level, value);
        }
        let Some(locked) = self.lock(table) else {
            return Hold::Again;
        };
        if !entry.load().holds_page(level) {
            return Hold::Again;
        }
        held.table = Some(self.table(table));
        held.level = level;
        held.first_page = address.align_down(level.table_bytes());
        let mut next = Some(address.align_down(level.entry_bytes()));
        for index in level.index(address)..held.values.len() {
            let Some(at) = next.filter(|at| range.contains_aligned(*at, level.entry_bytes())) else {
                break;
            };
            let value = locked.entry(index).load();
            if value.is_table(level) || value.is_busy() {
                // The next call waits for it, or goes down.
                break;
            }
            if value.holds_page(level) {
                held.values[index] = locked.replace(index, EntryValue::busy(value.attributes()));
                held.indices[index / 64] |= 1 << (index % 64);
            }
            next = super::next_entry(at, level);
        }
        Hold::Pages(next)
    }
}

impl<'s> Held<'s> {
    /// Nothing is held.
    pub(super) fn new() -> Self {
        Self {
            table: None,
            level: Level::Pt,
            first_page: VirtAddr::default(),
            indices: [0; 8],
            values: [EntryValue::EMPTY; Level::ENTRIES as usize],
        }
    }

    /// The pages that CPUs may have translations of.
    pub(super) fn stale_pages(&self) -> StalePages {
        let mut stale = StalePages::None;
        let is_held = |index: usize| self.indices[index / 64] & 1 << (index % 64) != 0;
        let (first, last) = (
            (0..self.values.len()).find(|&index| is_held(index)),
            (0..self.values.len()).rfind(|&index| is_held(index)),
        );
        for index in [first, last].into_iter().flatten() {
            stale.add(self.page(index), self.level.entry_bytes().trailing_zeros());
        }
        stale
    }

    /// The first address of the page with this index.
    fn page(&self, index: usize) -> VirtAddr {
        VirtAddr::new_truncated(self.first_page.as_u64() + index as u64 * self.level.entry_bytes())
    }

    /// The pages that are held, in order of address. They are no longer held here afterwards.
    pub(super) fn take(&mut self) -> impl Iterator<Item = HeldPage<'s>> {
        let (table, level) = (self.table.take(), self.level);
        let indices = core::mem::take(&mut self.indices);
        let is_held = move |index: &usize| indices[index / 64] & 1 << (index % 64) != 0;
        let pages = table.into_iter().flat_map(move |table| {
            (0..table.len())
                .filter(is_held)
                .map(move |index| (index, &table[index]))
        });
        pages.map(move |(index, entry)| HeldPage {
            page: self.page(index),
            level,
            entry,
            value: self.values[index],
        })
    }
}
