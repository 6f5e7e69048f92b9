//! Entries of page tables (Intel SDM volume 3, 4.5.4 and tables 4-14 to 4-20).

use homenode_topology::PhysAddr;

use super::level::Level;
use crate::atomic::{AtomicU64, Ordering};
use crate::attributes::{AttributesId, Protection};
use crate::size::PageSize;

bitflags::bitflags! {
    /// What an entry says beside its address.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u64 {
        /// The entry maps a page or names a table.
        const PRESENT = 1 << 0;
        /// The page may be written to.
        const WRITABLE = 1 << 1;
        /// The page may be accessed in ring 3.
        const USER = 1 << 2;
        /// Writes go through the cache.
        const WRITE_THROUGH = 1 << 3;
        /// The page is not cached.
        const NO_CACHE = 1 << 4;
        /// The CPU has used the entry.
        const ACCESSED = 1 << 5;
        /// The CPU has written to the page.
        const DIRTY = 1 << 6;
        /// In a page directory or a page-directory-pointer table: the entry maps a page. (In a page table this bit is
        /// part of the memory type, which is not used here.)
        const HUGE = 1 << 7;
        /// The translation survives a load of CR3.
        const GLOBAL = 1 << 8;
        /// Instructions are not fetched from the page.
        const NO_EXECUTE = 1 << 63;

        /// The rest: the address, and bits that have no meaning here.
        const _ = !0;
    }
}

impl Flags {
    /// The bits that are an address: 12 to 51.
    pub(crate) const ADDRESS: Self = Self::from_bits_retain(0x000f_ffff_ffff_f000);
}

/// The value of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryValue(u64);

impl EntryValue {
    pub(crate) const EMPTY: Self = Self(0);

    /// An entry that names the table at `table`. It allows everything: the leaf below decides.
    pub(crate) const fn table(table: PhysAddr) -> Self {
        Self(table.0 | Flags::PRESENT.union(Flags::WRITABLE).union(Flags::USER).bits())
    }

    /// An entry that maps a page of this size.
    pub(crate) const fn leaf(frame: PhysAddr, size: PageSize, flags: Flags) -> Self {
        let huge = match size {
            PageSize::Size4KiB => Flags::empty(),
            PageSize::Size2MiB | PageSize::Size1GiB => Flags::HUGE,
        };
        Self(frame.0 | flags.union(Flags::PRESENT).union(huge).bits())
    }

    pub(crate) const fn is_present(self) -> bool {
        self.0 & Flags::PRESENT.bits() != 0
    }

    /// Whether this, in a table of that level, maps a page.
    pub(crate) const fn is_leaf(self, level: Level) -> bool {
        let huge = self.0 & Flags::HUGE.bits() != 0;
        self.is_present()
            && match level {
                Level::Pt => true,
                Level::Pd | Level::Pdpt => huge,
                Level::Pml4 => false,
            }
    }

    /// The frame that a leaf of this size maps.
    pub(crate) const fn frame(self, size: PageSize) -> PhysAddr {
        // Bit 12 of a huge leaf is part of the memory type, so what is below the page's size is cut off.
        PhysAddr(self.0 & Flags::ADDRESS.bits()).align_down(size.bytes())
    }

    /// The table that an entry names.
    pub(crate) const fn next_table(self) -> PhysAddr {
        PhysAddr(self.0 & Flags::ADDRESS.bits())
    }

    /// Whether this, in a table of that level, names the next table.
    #[inline]
    pub(crate) const fn is_table(self, level: Level) -> bool {
        // In the root the second bit is never set.
        let (present, huge) = (Flags::PRESENT.bits(), Flags::HUGE.bits());
        !matches!(level, Level::Pt) && self.0 & (present | huge) == present
    }

    /// Everything but the address.
    pub(crate) const fn flags(self) -> Flags {
        Flags::from_bits_retain(self.0 & !Flags::ADDRESS.bits())
    }
}

/// Software: where the number of a range's attributes stands. CPUs ignore these bits (protection keys are off).
const ATTRIBUTES_SHIFT: u32 = 52;
/// Software, in an entry that is not present: a CPU works on the page, and will set the entry.
const BUSY: u64 = 1 << 1;
/// Software, in an entry that is not present: it holds a frame all the same, which nobody may access now.
const NO_ACCESS: u64 = 1 << 11;
/// Software, in an entry that is not present and has no attributes: the frame of a page that was given back, which CPUs may still
/// reach.
const RETIRING: u64 = 1 << 10;

/// Entries over program memory, which say what a range is as well as where its pages are.
impl EntryValue {
    /// A range that is reserved and has no page.
    pub(crate) const fn reserved(attributes: AttributesId) -> Self {
        Self(attributes.as_u64() << ATTRIBUTES_SHIFT)
    }

    /// A range on which a CPU works; nobody else may change the entry.
    pub(crate) const fn busy(attributes: AttributesId) -> Self {
        Self(Self::reserved(attributes).0 | BUSY)
    }

    /// A page of a reserved range, accessed and, if it can be written to, dirty: whoever asks is about to use it, and the CPU need
    /// not write to the entry once more.
    pub(crate) const fn page(
        frame: PhysAddr,
        size: PageSize,
        protection: Protection,
        attributes: AttributesId,
    ) -> Self {
        let data = Flags::NO_EXECUTE.union(Flags::ACCESSED);
        let leaf = match protection {
            Protection::ReadWrite => Self::leaf(frame, size, data.union(Flags::WRITABLE).union(Flags::DIRTY)),
            Protection::Read => Self::leaf(frame, size, data),
            Protection::None => Self(Self::leaf(frame, size, data).0 & !Flags::PRESENT.bits() | NO_ACCESS),
        };
        Self(leaf.0 | Self::reserved(attributes).0)
    }

    /// What this, a page, becomes when its range is given back: nothing that is reserved, but the entry keeps the frame until no
    /// CPU can reach it. Nobody but who gives the range back may change the entry.
    pub(crate) const fn retiring(self) -> Self {
        Self(self.0 & Flags::ADDRESS.bits() | RETIRING)
    }

    /// Whether the entry keeps the frame of a page that was given back.
    pub(crate) const fn is_retiring(self) -> bool {
        self.0 & (Flags::PRESENT.bits() | RETIRING) == RETIRING
    }

    /// The number of the range's attributes.
    pub(crate) const fn attributes(self) -> AttributesId {
        AttributesId::from_bits(self.0 >> ATTRIBUTES_SHIFT)
    }

    /// Whether a CPU works on the page.
    pub(crate) const fn is_busy(self) -> bool {
        self.0 & (Flags::PRESENT.bits() | BUSY | NO_ACCESS) == BUSY
    }

    /// Whether the entry, in a table of that level, holds a page's frame, be it accessible now or not.
    pub(crate) const fn holds_page(self, level: Level) -> bool {
        self.is_leaf(level) || !self.is_present() && self.0 & NO_ACCESS != 0
    }
}

/// An entry in a table. The CPU reads it at any time and sets its accessed and dirty bits.
#[repr(transparent)]
pub(crate) struct Entry(AtomicU64);

impl Entry {
    pub(crate) fn load(&self) -> EntryValue {
        // Acquire: a table that this names has been zeroed before it was named.
        EntryValue(self.0.load(Ordering::Acquire))
    }

    /// Sets the entry if it is empty; else says what is there.
    pub(crate) fn set_if_empty(&self, value: EntryValue) -> Result<(), EntryValue> {
        // Release: a new table's zeroes are seen by whoever sees its address. Acquire: so are a winner's by the loser.
        match self
            .0
            .compare_exchange(EntryValue::EMPTY.0, value.0, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => Ok(()),
            Err(found) => Err(EntryValue(found)),
        }
    }

    /// Empties the entry if it is still `value`, but for the bits that the CPU sets; says what was in it, or else what is.
    pub(crate) fn clear(&self, value: EntryValue) -> Result<EntryValue, EntryValue> {
        let by_cpu = Flags::ACCESSED.union(Flags::DIRTY).bits();
        let mut expected = value.0;
        loop {
            match self
                .0
                .compare_exchange(expected, EntryValue::EMPTY.0, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(last) => return Ok(EntryValue(last)),
                Err(found) if (found ^ expected) & !by_cpu == 0 => expected = found,
                Err(found) => return Err(EntryValue(found)),
            }
        }
    }

    /// Sets the entry. Only whoever holds the table's lock or has made the entry busy may do so.
    pub(crate) fn store(&self, value: EntryValue) {
        // Release: what the entry leads to has been filled.
        self.0.store(value.0, Ordering::Release);
    }

    /// Sets the entry, and says what was in it, with the bits that the CPU has set until now.
    pub(crate) fn replace(&self, value: EntryValue) -> EntryValue {
        EntryValue(self.0.swap(value.0, Ordering::AcqRel))
    }

    /// Watches the entry, in one of loom's models.
    #[cfg(loom)]
    pub(crate) fn watch(&self) {
        self.0.watch();
    }
}

/// A table: 512 entries, which fill a 4 KiB frame.
pub(crate) type Table = [Entry; 512];

const _: () = assert!(size_of::<Table>() as u64 == PageSize::Size4KiB.bytes());

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;

    use alloc::vec::Vec;
    use core::hint::spin_loop;
    use core::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    #[test]
    fn of_those_who_set_an_entry_at_once_one_succeeds() {
        const ROUNDS: usize = 10_000;
        let entries: Vec<Entry> = (0..ROUNDS).map(|_| Entry(AtomicU64::new(0))).collect();
        let arrived = AtomicUsize::new(0);
        let set_all = |table: PhysAddr| {
            let set = |(round, entry): &(usize, &Entry)| {
                // Both threads leave this loop within a cache miss of each other, if there is a core for each.
                arrived.fetch_add(1, Ordering::AcqRel);
                let mut spins = 0;
                while arrived.load(Ordering::Acquire) < 2 * (round + 1) {
                    spins += 1;
                    if spins % 2000 == 0 {
                        thread::yield_now();
                    } else {
                        spin_loop();
                    }
                }
                entry.set_if_empty(EntryValue::table(table)).is_ok()
            };
            entries.iter().enumerate().filter(set).count()
        };
        let set = thread::scope(|scope| {
            let other = scope.spawn(|| set_all(PhysAddr(0x1000)));
            set_all(PhysAddr(0x2000)) + other.join().unwrap()
        });
        assert_eq!(set, ROUNDS);
    }

    #[test]
    fn what_the_cpu_marks_meanwhile_neither_stops_a_clear_nor_is_lost() {
        let leaf = EntryValue::leaf(PhysAddr(0x5000), PageSize::Size4KiB, Flags::WRITABLE);
        let marks = Flags::ACCESSED | Flags::DIRTY;
        let entry = Entry(AtomicU64::new(leaf.0 | marks.bits()));
        let last = entry.clear(leaf).ok().expect("only marks have changed");
        assert_eq!(last.flags(), leaf.flags() | marks);
        assert!(entry.load() == EntryValue::EMPTY);
    }

    #[test]
    fn an_entry_that_others_have_changed_stays() {
        let leaf = |frame| EntryValue::leaf(PhysAddr(frame), PageSize::Size4KiB, Flags::empty());
        let entry = Entry(AtomicU64::new(leaf(0x5000).0));
        assert!(entry.clear(leaf(0x6000)) == Err(leaf(0x5000)));
        assert!(entry.set_if_empty(leaf(0x7000)) == Err(leaf(0x5000)));
        assert!(entry.load() == leaf(0x5000));
    }

    /// Also what a divided page becomes: marks that the CPU has set in the one entry are lost otherwise.
    #[test]
    fn a_page_is_marked_as_used_from_the_start() {
        let page = |protection| {
            EntryValue::page(
                PhysAddr(0x5000),
                PageSize::Size4KiB,
                protection,
                AttributesId::NONE,
            )
            .flags()
        };
        let (used, written) = (Flags::ACCESSED, Flags::ACCESSED | Flags::DIRTY);
        assert!(page(Protection::ReadWrite).contains(written));
        assert!(page(Protection::Read).contains(used) && !page(Protection::Read).contains(Flags::WRITABLE));
    }

    #[test]
    fn the_memory_type_bit_of_a_huge_page_is_no_part_of_its_frame() {
        let large = PageSize::Size2MiB;
        let leaf = EntryValue(EntryValue::leaf(PhysAddr(0x20_0000), large, Flags::empty()).0 | 1 << 12);
        assert_eq!(leaf.frame(large), PhysAddr(0x20_0000));
    }
}
