//! The simulated machine itself: that it does what a CPU may do, and notices what must not be.

use std::sync::atomic::Ordering;

use super::memory::FRAME;
use super::*;

/// A page's address: its tables have the indices 1, 2, 3, 4.
const PAGE: u64 = 1 << 39 | 2 << 30 | 3 << 21 | 4 << 12;

const TABLE: u64 = bits::PRESENT | bits::WRITABLE;

/// A machine whose tables a test writes by hand.
struct Bench {
    hardware: Hardware,
    next: Cell<u64>,
    tables: [PhysAddr; 4],
}

impl Bench {
    /// A machine with one core and tables, but no page, for [`PAGE`].
    fn new() -> Self {
        let hardware = Hardware::new(1, 1, 1, 64 << 20);
        hardware.memory.finish_building();
        hardware.load_program_root();
        let mut bench = Self {
            hardware,
            next: Cell::new(2 << 20),
            tables: [PhysAddr(0); 4],
        };
        bench.tables = std::array::from_fn(|_| bench.frame(FRAME));
        bench.hardware.set_root(bench.tables[ROOT]);
        for level in (1..=ROOT).rev() {
            bench.set(level, PAGE, bench.tables[level - 1].0 | TABLE);
        }
        bench
    }

    /// A zeroed block of this size.
    fn frame(&self, bytes: u64) -> PhysAddr {
        let start = PhysAddr(self.next.get().next_multiple_of(bytes));
        self.next.set(start.0 + bytes);
        let range = PhysRange::new(start, start + bytes);
        self.hardware.memory.allocated(range).unwrap();
        self.hardware.memory.zero(range, || ()).unwrap();
        start
    }

    fn word(&self, address: PhysAddr) -> &AtomicU64 {
        self.hardware
            .memory
            .word(address, self.hardware.memory.time(), true)
            .unwrap()
    }

    fn entry(&self, level: usize, address: u64) -> &AtomicU64 {
        self.word(self.tables[level] + (address >> shift(level) & 511) * 8)
    }

    fn set(&self, level: usize, address: u64, entry: u64) {
        self.entry(level, address).store(entry, Ordering::Relaxed);
    }

    fn get(&self, level: usize, address: u64) -> u64 {
        self.entry(level, address).load(Ordering::Relaxed)
    }

    /// The physical address that an access goes to.
    fn access(&self, address: u64, writes: bool) -> Result<PhysAddr, PageFault> {
        let result = self.hardware.access(address, writes, |_, physical| physical);
        assert!(
            !self.hardware.is_violated(),
            "{:?}",
            self.hardware.take_violation()
        );
        result
    }

    fn free(&self, frame: PhysAddr) -> Result<(), Violation> {
        self.hardware.memory.freed(PhysRange::new(frame, frame + FRAME))
    }
}

#[test]
fn a_translation_stays_until_it_is_dropped() {
    let bench = Bench::new();
    let frames = [bench.frame(FRAME), bench.frame(FRAME)];
    bench.set(0, PAGE, frames[0].0 | TABLE);
    assert_eq!(bench.access(PAGE + 8, true), Ok(frames[0] + 8));
    bench.set(0, PAGE, frames[1].0 | TABLE);
    assert_eq!(bench.access(PAGE + 8, true), Ok(frames[0] + 8));
    bench
        .hardware
        .invalidate_page(VirtAddr::new_truncated(PAGE + FRAME));
    assert_eq!(bench.access(PAGE + 8, true), Ok(frames[0] + 8));
    bench.hardware.invalidate_page(VirtAddr::new_truncated(PAGE));
    assert_eq!(bench.access(PAGE + 8, true), Ok(frames[1] + 8));
    bench.set(0, PAGE, 0);
    assert_eq!(bench.access(PAGE, false), Ok(frames[1]));
    bench.hardware.invalidate_all();
    assert_eq!(bench.access(PAGE, false), Err(PageFault::NotPresent));
}

#[test]
fn what_is_not_present_is_not_cached() {
    let bench = Bench::new();
    assert_eq!(bench.access(PAGE, false), Err(PageFault::NotPresent));
    let frame = bench.frame(FRAME);
    bench.set(0, PAGE, frame.0 | TABLE);
    assert_eq!(bench.access(PAGE, false), Ok(frame));
}

#[test]
fn a_frame_that_is_freed_too_early_is_noticed_at_once_and_at_each_access() {
    let bench = Bench::new();
    let frame = bench.frame(FRAME);
    bench.set(0, PAGE, frame.0 | TABLE);
    assert_eq!(bench.access(PAGE, false), Ok(frame));
    bench.set(0, PAGE, 0);
    bench.free(frame).expect_err("a core has a translation");
    let _ = bench.hardware.access(PAGE, false, |_, _| ());
    assert!(bench.hardware.take_violation().is_some());
    // It does not help that it is handed out again: it is not what it was.
    bench
        .hardware
        .memory
        .allocated(PhysRange::new(frame, frame + FRAME))
        .unwrap();
    let _ = bench.hardware.access(PAGE, false, |_, _| ());
    assert!(bench.hardware.take_violation().is_some());
}

#[test]
fn a_frame_that_is_freed_after_a_flush_is_not_complained_about() {
    let bench = Bench::new();
    let frame = bench.frame(FRAME);
    bench.set(0, PAGE, frame.0 | TABLE);
    assert_eq!(bench.access(PAGE, false), Ok(frame));
    bench.set(0, PAGE, 0);
    bench.hardware.invalidate_page(VirtAddr::new_truncated(PAGE));
    bench.free(frame).unwrap();
    assert_eq!(bench.access(PAGE, false), Err(PageFault::NotPresent));
}

#[test]
fn accesses_mark_entries_as_they_should() {
    let marks = bits::ACCESSED | bits::DIRTY;
    let bench = Bench::new();
    let frame = bench.frame(FRAME);
    bench.set(0, PAGE, frame.0 | TABLE);
    assert_eq!(bench.access(PAGE, false), Ok(frame));
    for level in 0..=ROOT {
        assert_eq!(bench.get(level, PAGE) & marks, bits::ACCESSED, "level {level}");
    }
    assert_eq!(bench.access(PAGE, true), Ok(frame));
    assert_eq!(bench.get(0, PAGE) & marks, marks);
    // While the translation stays, nothing is marked again.
    bench.set(0, PAGE, frame.0 | TABLE);
    assert_eq!(bench.access(PAGE, true), Ok(frame));
    assert_eq!(bench.get(0, PAGE) & marks, 0);
}

#[test]
fn the_first_write_looks_at_the_entry_again() {
    let bench = Bench::new();
    let frame = bench.frame(FRAME);
    bench.set(0, PAGE, frame.0 | TABLE);
    assert_eq!(bench.access(PAGE, false), Ok(frame));
    bench.set(0, PAGE, frame.0 | bits::PRESENT);
    assert_eq!(bench.access(PAGE, true), Err(PageFault::NotWritable));
    assert_eq!(bench.get(0, PAGE) & bits::DIRTY, 0);
    assert_eq!(bench.access(PAGE, false), Ok(frame));
    // Later ones do not.
    bench.set(0, PAGE, frame.0 | TABLE);
    bench.hardware.invalidate_all();
    assert_eq!(bench.access(PAGE, true), Ok(frame));
    bench.set(0, PAGE, frame.0 | bits::PRESENT);
    assert_eq!(bench.access(PAGE, true), Ok(frame));
}

#[test]
fn a_write_needs_the_permission_of_every_level() {
    for level in 0..=ROOT {
        let bench = Bench::new();
        bench.set(0, PAGE, bench.frame(FRAME).0 | TABLE);
        bench.set(level, PAGE, bench.get(level, PAGE) & !bits::WRITABLE);
        assert!(bench.access(PAGE, false).is_ok());
        assert_eq!(
            bench.access(PAGE, true),
            Err(PageFault::NotWritable),
            "level {level}"
        );
        // Also where the walk begins at a table that is known.
        assert!(bench.access(PAGE, false).is_ok());
        bench.hardware.cores[0]
            .tlb
            .borrow_mut()
            .drop_translations(PAGE, |old| bench.hardware.dropped(old));
        assert_eq!(
            bench.access(PAGE, true),
            Err(PageFault::NotWritable),
            "level {level}"
        );
    }
}

/// Replaces the page table of [`PAGE`] without a flush, and finds a page by an address that no translation exists for. True if the
/// core has used the old table.
fn uses_an_old_table(bench: &Bench) -> bool {
    let frames = [bench.frame(FRAME), bench.frame(FRAME)];
    bench.set(0, PAGE, frames[0].0 | TABLE);
    bench.set(0, PAGE + FRAME, frames[0].0 | TABLE);
    assert_eq!(bench.access(PAGE, false), Ok(frames[0]));
    let new = bench.frame(FRAME);
    bench
        .word(new + 5 * 8)
        .store(frames[1].0 | TABLE, Ordering::Relaxed);
    bench.set(1, PAGE, new.0 | TABLE);
    bench.access(PAGE + FRAME, false) == Ok(frames[0])
}

#[test]
fn tables_are_cached_too() {
    // A walk may begin at the root instead, so one try is not enough.
    assert!((0..8).any(|_| uses_an_old_table(&Bench::new())));
}

#[test]
fn one_invalidation_drops_all_cached_tables() {
    let bench = Bench::new();
    bench.set(0, PAGE, bench.frame(FRAME).0 | TABLE);
    bench.access(PAGE, false).unwrap();
    let known = || bench.hardware.cores[0].tlb.borrow().tables().count();
    assert_eq!(known(), 3);
    bench.hardware.invalidate_page(VirtAddr::new_truncated(1 << 46));
    assert_eq!(known(), 0);
    bench.access(PAGE, false).expect("its translation is still there");
}

#[test]
fn a_table_that_is_freed_too_early_is_noticed() {
    let bench = Bench::new();
    bench.set(0, PAGE, bench.frame(FRAME).0 | TABLE);
    bench.access(PAGE, false).unwrap();
    bench.set(1, PAGE, 0);
    let table = bench.tables[0];
    // Not by the translation, but by what is known of tables.
    bench.hardware.cores[0]
        .tlb
        .borrow_mut()
        .drop_translations(PAGE, |old| bench.hardware.dropped(old));
    bench.free(table).expect_err("a core knows the table");
    // If not then, at some speculative or other walk through it.
    let walks = (0..100).any(|_| {
        let _ = bench.hardware.access(PAGE + FRAME, false, |_, _| ());
        bench.hardware.speculate();
        bench.hardware.take_violation().is_some()
    });
    assert!(walks);
}

#[test]
fn large_pages_are_translated_whole() {
    for (level, size) in [(1, PageSize::Size2MiB), (2, PageSize::Size1GiB)] {
        let bench = Bench::new();
        // There is no 1 GiB of memory: an entry that leads out of it is not followed.
        let frame = if level == 1 {
            bench.frame(size.bytes())
        } else {
            PhysAddr(0)
        };
        bench.set(level, PAGE, frame.0 | TABLE | bits::HUGE);
        let offset = PAGE & (size.bytes() - 1);
        let result = bench.hardware.access(PAGE + 16, false, |_, physical| physical);
        match level {
            1 => assert_eq!(result, Ok(frame + offset + 16)),
            _ => assert!(bench.hardware.take_violation().is_some()),
        }
    }
}

#[test]
fn an_entry_that_makes_no_sense_is_noticed() {
    let bench = Bench::new();
    // A 2 MiB page in the middle of 2 MiB.
    bench.set(1, PAGE, 3 << 20 | TABLE | bits::HUGE);
    assert!(bench.hardware.access(PAGE, false, |_, _| ()).is_err());
    assert!(bench.hardware.take_violation().is_some());
}

#[test]
fn cores_translate_ahead_and_mark_accessed_but_never_dirty() {
    let bench = Bench::new();
    let neighbour = PAGE + FRAME;
    bench.set(0, PAGE, bench.frame(FRAME).0 | TABLE);
    bench.set(0, neighbour, bench.frame(FRAME).0 | TABLE);
    bench.access(PAGE, false).unwrap();
    (0..10_000).for_each(|_| bench.hardware.speculate());
    assert_eq!(bench.get(0, neighbour) & bits::ACCESSED, bits::ACCESSED);
    assert_eq!((bench.get(0, PAGE) | bench.get(0, neighbour)) & bits::DIRTY, 0);
    assert!(!bench.hardware.is_violated());
}

#[test]
fn only_global_translations_survive_a_load_of_cr3() {
    let bench = Bench::new();
    let frames = [bench.frame(FRAME), bench.frame(FRAME)];
    bench.set(0, PAGE, frames[0].0 | TABLE);
    bench.set(0, PAGE + FRAME, frames[1].0 | TABLE | bits::GLOBAL);
    bench.access(PAGE, false).unwrap();
    bench.access(PAGE + FRAME, false).unwrap();
    bench.set(0, PAGE, 0);
    bench.set(0, PAGE + FRAME, 0);
    bench.hardware.invalidate_all();
    assert_eq!(bench.access(PAGE, false), Err(PageFault::NotPresent));
    assert_eq!(bench.access(PAGE + FRAME, false), Ok(frames[1]));
    bench
        .hardware
        .invalidate_page(VirtAddr::new_truncated(PAGE + FRAME));
    assert_eq!(bench.access(PAGE + FRAME, false), Err(PageFault::NotPresent));
}

#[test]
fn a_page_fault_drops_what_caused_it() {
    let bench = Bench::new();
    let frame = bench.frame(FRAME);
    bench.set(0, PAGE, frame.0 | bits::PRESENT);
    bench.access(PAGE, false).unwrap();
    bench.set(0, PAGE, frame.0 | TABLE);
    assert_eq!(bench.access(PAGE, true), Err(PageFault::NotWritable));
    assert_eq!(bench.access(PAGE, true), Ok(frame));
}

#[test]
fn a_copy_of_what_can_be_written_to_is_noticed() {
    let bench = Bench::new();
    let frames = [bench.frame(FRAME), bench.frame(FRAME)];
    bench.set(0, PAGE, frames[0].0 | TABLE);
    bench.access(PAGE, true).unwrap();
    let from = PhysRange::new(frames[0], frames[0] + FRAME);
    // SAFETY: the machine's memory is nobody else's.
    unsafe { bench.hardware.copy(from, frames[1]) };
    assert!(bench.hardware.take_violation().is_some());
    bench.hardware.invalidate_all();
    // SAFETY: as above.
    unsafe { bench.hardware.copy(from, frames[1]) };
    assert!(!bench.hardware.is_violated());
}

#[test]
fn memory_is_garbage_until_it_is_zeroed() {
    let bench = Bench::new();
    let range = PhysRange::new(PhysAddr(32 << 20), PhysAddr((32 << 20) + FRAME));
    bench.hardware.memory.allocated(range).unwrap();
    assert_ne!(bench.hardware.memory.peek(range.start), Some(0));
    bench.hardware.memory.zero(range, || ()).unwrap();
    assert_eq!(bench.hardware.memory.peek(range.start), Some(0));
}

#[test]
fn the_kernel_reaches_no_free_frame() {
    let bench = Bench::new();
    let frame = bench.frame(FRAME);
    let range = PhysRange::new(frame, frame + FRAME);
    let pointer = bench.hardware.memory.reach(range).unwrap().as_ptr();
    bench.hardware.memory.check_host_access(pointer.addr()).unwrap();
    bench.free(frame).unwrap();
    bench.hardware.memory.reach(range).unwrap_err();
    bench
        .hardware
        .memory
        .check_host_access(pointer.addr())
        .unwrap_err();
    bench.free(frame).expect_err("it is free already");
}

#[test]
fn translations_of_two_sizes_are_noticed() {
    let bench = Bench::new();
    let frame = bench.frame(2 << 20);
    for index in 0..512 {
        bench.set(
            0,
            PAGE & !0x1f_ffff | index << 12,
            (frame + index * FRAME).0 | TABLE,
        );
    }
    bench.access(PAGE, false).unwrap();
    bench.set(1, PAGE, frame.0 | TABLE | bits::HUGE);
    // What the core knows of the table is dropped, but not the small translation.
    bench
        .hardware
        .invalidate_page(VirtAddr::new_truncated(PAGE + FRAME));
    let _ = bench.hardware.access(PAGE + FRAME, false, |_, _| ());
    assert!(bench.hardware.take_violation().is_some());
}
