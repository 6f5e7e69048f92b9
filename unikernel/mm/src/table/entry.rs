//! Entries of page tables (Intel SDM volume 3, 4.5.4 and tables 4-14 to 4-20).

use core::sync::atomic::{AtomicU64, Ordering};

use homenode_topology::PhysAddr;

use super::level::Level;
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
        /// Software: the page was mapped writable, whatever [`WRITABLE`](Self::WRITABLE) says now.
        const ORIGINALLY_WRITABLE = 1 << 9;
        /// Software: the entry's kind. Set for a hint, whose next access is to fault; clear for a plain entry.
        const HINT = 1 << 10;
        /// Instructions are not fetched from the page.
        const NO_EXECUTE = 1 << 63;

        /// The rest: the address, and bits that have no meaning here.
        const _ = !0;
    }
}

impl Flags {
    /// The bits that the page table sets itself and that [`map`](super::PageTable::map) does not take.
    pub(super) const OWN: Self = Self::HUGE.union(Self::ORIGINALLY_WRITABLE).union(Self::HINT);

    /// The bits that are an address: 12 to 51.
    pub(super) const ADDRESS: Self = Self::from_bits_retain(0x000f_ffff_ffff_f000);
}

/// The value of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryValue(u64);

impl EntryValue {
    pub(super) const EMPTY: Self = Self(0);

    /// An entry that names the table at `table`. It allows everything: the leaf below decides.
    pub(super) const fn table(table: PhysAddr) -> Self {
        Self(table.0 | Flags::PRESENT.union(Flags::WRITABLE).union(Flags::USER).bits())
    }

    /// An entry that maps a page of this size.
    pub(super) const fn leaf(frame: PhysAddr, size: PageSize, flags: Flags) -> Self {
        let huge = match size {
            PageSize::Size4KiB => Flags::empty(),
            PageSize::Size2MiB | PageSize::Size1GiB => Flags::HUGE,
        };
        let original = if flags.contains(Flags::WRITABLE) {
            Flags::ORIGINALLY_WRITABLE
        } else {
            Flags::empty()
        };
        Self(frame.0 | flags.union(Flags::PRESENT).union(huge).union(original).bits())
    }

    pub(super) const fn is_present(self) -> bool {
        self.0 & Flags::PRESENT.bits() != 0
    }

    /// Whether this, in a table of that level, maps a page.
    pub(super) const fn is_leaf(self, level: Level) -> bool {
        let huge = self.0 & Flags::HUGE.bits() != 0;
        self.is_present()
            && match level {
                Level::Pt => true,
                Level::Pd | Level::Pdpt => huge,
                Level::Pml4 => false,
            }
    }

    /// The frame that a leaf of this size maps.
    pub(super) const fn frame(self, size: PageSize) -> PhysAddr {
        // Bit 12 of a huge leaf is part of the memory type, so what is below the page's size is cut off.
        PhysAddr(self.0 & Flags::ADDRESS.bits()).align_down(size.bytes())
    }

    /// The table that an entry names.
    pub(super) const fn next_table(self) -> PhysAddr {
        PhysAddr(self.0 & Flags::ADDRESS.bits())
    }

    /// Everything but the address.
    pub(super) const fn flags(self) -> Flags {
        Flags::from_bits_retain(self.0 & !Flags::ADDRESS.bits())
    }
}

/// An entry in a table. The CPU reads it at any time and sets its accessed and dirty bits.
#[repr(transparent)]
pub(super) struct Entry(AtomicU64);

impl Entry {
    pub(super) fn load(&self) -> EntryValue {
        // Acquire: a table that this names has been zeroed before it was named.
        EntryValue(self.0.load(Ordering::Acquire))
    }

    /// Sets the entry if it is empty; else says what is there.
    pub(super) fn set_if_empty(&self, value: EntryValue) -> Result<(), EntryValue> {
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
    pub(super) fn clear(&self, value: EntryValue) -> Result<EntryValue, EntryValue> {
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
}

/// A table: 512 entries, which fill a 4 KiB frame.
pub(super) type Table = [Entry; 512];

const _: () = assert!(size_of::<Table>() as u64 == PageSize::Size4KiB.bytes());

#[cfg(test)]
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

    #[test]
    fn the_memory_type_bit_of_a_huge_page_is_no_part_of_its_frame() {
        let large = PageSize::Size2MiB;
        let leaf = EntryValue(EntryValue::leaf(PhysAddr(0x20_0000), large, Flags::empty()).0 | 1 << 12);
        assert_eq!(leaf.frame(large), PhysAddr(0x20_0000));
    }
}
