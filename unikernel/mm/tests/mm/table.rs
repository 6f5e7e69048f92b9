//! Page tables: agreement with a simple model and with the `x86_64` crate's reading of the same tables, exact cover of
//! ranges, and races to populate.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use homenode_mm::{
    Flags, Frame, FrameAllocator, LocalTables, Machine, MapError, Mapping, PageSize, PageTable, Policy,
    Purpose, Size4KiB, TableFrames, UnmapError, VirtAddr, VirtRange,
};
use homenode_topology::{NodeId, PhysAddr, PhysRange};
use proptest::prelude::*;
use x86_64::structures::paging::mapper::{MappedFrame, OffsetPageTable, Translate, TranslateResult};

use crate::frames::{build, node, range};
use crate::machine::{FakeMachine, Invalidation};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const UPPER: u64 = 0xffff_8000_0000_0000;
const ARENA: u64 = 32 * MIB;

fn virt(address: u64) -> VirtAddr {
    VirtAddr::new(address).unwrap()
}

fn virt_range(start: u64, bytes: u64) -> VirtRange {
    VirtRange::new(virt(start), bytes).unwrap()
}

fn allocator(machine: &FakeMachine) -> FrameAllocator<&FakeMachine> {
    build(machine, vec![node(&[range(0, ARENA)], &[])])
}

/// Frames for tables from the first node, with rubbish in them.
struct Rubbish<'a>(&'a FrameAllocator<&'a FakeMachine>);

// SAFETY: the frames come from `LocalTables`, and what is in them does not matter.
unsafe impl TableFrames for Rubbish<'_> {
    fn allocate(&mut self) -> Option<Frame<Size4KiB>> {
        let frame = LocalTables::new(self.0, NodeId(0)).allocate()?;
        // SAFETY: the frame has just been handed out.
        unsafe { self.0.machine().memory(frame.range()).write_bytes(0xa5, 4096) };
        Some(frame)
    }

    fn free(&mut self, frame: Frame<Size4KiB>) {
        LocalTables::new(self.0, NodeId(0)).free(frame);
    }
}

/// What the `x86_64` crate, which reads the same tables, finds at `address`.
fn by_x86_64(table: &PageTable<&FakeMachine>, machine: &FakeMachine, address: VirtAddr) -> Option<Mapping> {
    let base = machine.memory(range(0, 1)).as_ptr() as u64;
    let mut root = machine
        .memory(table.root().range())
        .cast::<x86_64::structures::paging::PageTable>();
    // SAFETY: the root is a table, all tables lie in the machine's memory, which begins at `base`, and nobody else uses
    // them now.
    let reader = unsafe { OffsetPageTable::new(root.as_mut(), x86_64::VirtAddr::new(base)) };
    match reader.translate(x86_64::VirtAddr::new(address.as_u64())) {
        TranslateResult::Mapped { frame, offset, flags } => {
            let size = match frame {
                MappedFrame::Size4KiB(_) => PageSize::Size4KiB,
                MappedFrame::Size2MiB(_) => PageSize::Size2MiB,
                MappedFrame::Size1GiB(_) => PageSize::Size1GiB,
            };
            Some(Mapping {
                page: virt(address.as_u64() - offset),
                size,
                frame: PhysAddr(frame.start_address().as_u64()),
                flags: Flags::from_bits_retain(flags.bits()),
            })
        }
        TranslateResult::NotMapped => None,
        TranslateResult::InvalidFrameAddress(address) => panic!("a frame at {address:?}"),
    }
}

/// The mappings of a page table, and the places that have been divided by a table.
#[derive(Default)]
struct Model {
    pages: BTreeMap<VirtAddr, Mapping>,
    divided: BTreeSet<(VirtAddr, PageSize)>,
}

impl Model {
    fn query(&self, address: VirtAddr) -> Option<Mapping> {
        let (_, &mapping) = self.pages.range(..=address).next_back()?;
        (address.as_u64() - mapping.page.as_u64() < mapping.size.bytes()).then_some(mapping)
    }

    fn map(&mut self, page: VirtAddr, frame: PhysAddr, size: PageSize, flags: Flags) -> Result<(), MapError> {
        // A page of this size is in the way if it covers the first address; smaller ones are if there is a table.
        if let Some(there) = self.query(page).filter(|there| there.size >= size) {
            return Err(MapError::AlreadyMapped(there));
        }
        if self.divided.contains(&(page, size)) {
            return Err(MapError::Divided { page, size });
        }
        for larger in PageSize::ALL.into_iter().filter(|larger| *larger > size) {
            self.divided.insert((page.align_down(larger.bytes()), larger));
        }
        let mut all = flags | Flags::PRESENT;
        all.set(Flags::HUGE, size > PageSize::Size4KiB);
        self.pages.insert(
            page,
            Mapping {
                page,
                size,
                frame,
                flags: all,
            },
        );
        Ok(())
    }

    fn unmap(&mut self, page: VirtAddr) -> Result<Mapping, UnmapError> {
        let there = self.query(page).ok_or(UnmapError::NotMapped(page))?;
        if there.page != page {
            return Err(UnmapError::Larger(there));
        }
        self.pages.remove(&page);
        Ok(there)
    }

    fn visit(&self, range: VirtRange) -> Vec<Mapping> {
        // The last address may be the last of all, so ends are included.
        let Some(length) = range.bytes().checked_sub(1) else {
            return Vec::new();
        };
        let overlaps = |mapping: &&Mapping| {
            mapping.page.as_u64() <= range.start().as_u64() + length
                && range.start().as_u64() <= mapping.page.as_u64() + (mapping.size.bytes() - 1)
        };
        self.pages.values().filter(overlaps).copied().collect()
    }

    fn unmap_range(&mut self, range: VirtRange) -> Result<Vec<Mapping>, UnmapError> {
        let pages = self.visit(range);
        let straddles = |mapping: &&Mapping| {
            !(range.contains(mapping.page)
                && range.contains(virt(mapping.page.as_u64() + (mapping.size.bytes() - 1))))
        };
        match pages.iter().rfind(straddles) {
            Some(&there) => Err(UnmapError::Larger(there)),
            None => {
                self.pages.retain(|_, mapping| !pages.contains(mapping));
                Ok(pages)
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Map {
        page: VirtAddr,
        frame: PhysAddr,
        size: PageSize,
        flags: Flags,
    },
    Unmap(VirtAddr),
    UnmapRange(VirtRange),
    Query(VirtAddr),
    Visit(VirtRange),
}

/// Few addresses, so that steps meet: around three GiB of both halves, some on the ends of tables.
fn address() -> impl Strategy<Value = u64> {
    let base = prop::sample::select(vec![0, 511 * GIB, UPPER, 0xffff_ffff_4000_0000]);
    (
        base,
        0..3u64,
        prop::sample::select(vec![0, 1, 511]),
        prop::sample::select(vec![0, 1, 511]),
    )
        .prop_map(|(base, gib, pd, pt)| base + gib * GIB + pd * 2 * MIB + pt * 4 * KIB)
}

fn page_size() -> impl Strategy<Value = PageSize> {
    prop::sample::select(PageSize::ALL.to_vec())
}

fn virtual_range() -> impl Strategy<Value = VirtRange> {
    let bytes = prop::sample::select(vec![0, 1, 4 * KIB, 8 * KIB, 2 * MIB, 4 * MIB, GIB]);
    (address(), bytes)
        .prop_map(|(start, bytes)| VirtRange::new(virt(start), bytes).unwrap_or(virt_range(start, 0)))
}

fn step() -> impl Strategy<Value = Step> {
    let flags = prop::sample::select(vec![
        Flags::empty(),
        Flags::WRITABLE | Flags::NO_EXECUTE,
        Flags::PRESENT | Flags::WRITABLE | Flags::GLOBAL,
        Flags::NO_CACHE | Flags::WRITE_THROUGH | Flags::USER,
    ]);
    prop_oneof![
        4 => (address(), 0..1u64 << 22, page_size(), flags).prop_map(|(page, frame, size, flags)| Step::Map {
            page: virt(page).align_down(size.bytes()),
            frame: PhysAddr(frame * size.bytes()),
            size,
            flags,
        }),
        3 => (address(), page_size()).prop_map(|(page, size)| Step::Unmap(virt(page).align_down(size.bytes()))),
        1 => virtual_range().prop_map(Step::UnmapRange),
        2 => (address(), 0..4096u64).prop_map(|(page, offset)| Step::Query(virt(page + offset))),
        1 => virtual_range().prop_map(Step::Visit),
    ]
}

proptest! {
    #[test]
    fn a_page_table_does_as_its_model(steps in prop::collection::vec(step(), 0..120)) {
        let machine = FakeMachine::new(ARENA);
        let frames = allocator(&machine);
        let mut tables = Rubbish(&frames);
        let table = PageTable::new(&machine, &mut tables).unwrap();
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Map { page, frame, size, flags } => {
                    let result = table.map(page, frame, size, flags, &mut tables);
                    prop_assert_eq!(result, model.map(page, frame, size, flags));
                    prop_assert_eq!(by_x86_64(&table, &machine, page), model.query(page));
                }
                Step::Unmap(page) => {
                    let result = table.unmap(page);
                    prop_assert_eq!(result, model.unmap(page));
                    prop_assert_eq!(by_x86_64(&table, &machine, page), model.query(page));
                    let invalidated: Vec<_> = result.iter().map(|there| Invalidation::Page(there.page)).collect();
                    prop_assert_eq!(std::mem::take(&mut *machine.invalidated.lock().unwrap()), invalidated);
                }
                Step::UnmapRange(range) => {
                    let mut unmapped = Vec::new();
                    let result = table.unmap_range(range, |there| unmapped.push(there));
                    prop_assert_eq!(result.map(|()| unmapped.clone()), model.unmap_range(range));
                    let pages: Vec<_> = unmapped.iter().map(|there| Invalidation::Page(there.page)).collect();
                    prop_assert_eq!(std::mem::take(&mut *machine.invalidated.lock().unwrap()), pages);
                }
                Step::Query(address) => {
                    prop_assert_eq!(table.query(address), model.query(address));
                    prop_assert_eq!(by_x86_64(&table, &machine, address), model.query(address));
                }
                Step::Visit(range) => {
                    let mut seen = Vec::new();
                    table.visit(range, |there| seen.push(there));
                    prop_assert_eq!(seen, model.visit(range));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_mapped_range_is_covered_exactly_by_the_largest_pages(
        first in 0..1u64 << 18,
        pages in prop_oneof![0..5u64, 0..2000u64, 0..3u64 << 18],
        // Frames that lie as the pages do to 1 GiB, to 2 MiB, to 4 KiB.
        skew in prop::sample::select(vec![0, 2 * MIB, 4 * KIB, 3 * GIB]),
        base in prop::sample::select(vec![4 * GIB, UPPER]),
        largest in page_size(),
    ) {
        let machine = FakeMachine::new(ARENA);
        let frames = allocator(&machine);
        let mut tables = Rubbish(&frames);
        let table = PageTable::new(&machine, &mut tables).unwrap();
        let (start, bytes) = (base + first * 4 * KIB, pages * 4 * KIB);
        let memory = range(first * 4 * KIB + skew, first * 4 * KIB + skew + bytes);
        let flags = Flags::WRITABLE | Flags::NO_EXECUTE | Flags::GLOBAL;
        table.map_range(virt(start), memory, largest, flags, &mut tables).unwrap();

        let mut next = start;
        table.visit(virt_range(start & !(GIB - 1), 5 * GIB), |there| {
            assert_eq!((there.page.as_u64(), there.frame), (next, memory.start + (next - start)));
            assert!(there.size <= largest && there.flags.contains(flags));
            next += there.size.bytes();
            // No larger page would have fitted around this one.
            for larger in PageSize::ALL.into_iter().filter(|&larger| there.size < larger && larger <= largest) {
                let page = there.page.align_down(larger.bytes()).as_u64();
                let inside = start <= page && page + larger.bytes() <= start + bytes;
                assert!(!inside || !skew.is_multiple_of(larger.bytes()), "{there:?} could be {larger}");
            }
        });
        prop_assert_eq!(next, start + bytes);
        prop_assert_eq!(table.query(virt(start - 1)).or(table.query(virt(next))), None);
    }
}

#[test]
fn one_of_the_threads_that_populate_a_page_wins() {
    const THREADS: usize = 4;
    const PAGES: u64 = 600;
    let machine = FakeMachine::new(ARENA);
    let frames = allocator(&machine);
    let table = PageTable::new(&machine, &mut Rubbish(&frames)).unwrap();
    let before = frames.stats(NodeId(0)).unwrap().free_bytes();
    let barrier = Barrier::new(THREADS);
    // A page in each second 2 MiB, so that tables are raced for as well.
    let pages: Vec<VirtAddr> = (0..PAGES).map(|page| virt(4 * GIB + page * 4 * MIB)).collect();
    let won: Vec<Vec<(VirtAddr, PhysAddr)>> = std::thread::scope(|scope| {
        let populate = || {
            let mut tables = Rubbish(&frames);
            let mut won = Vec::new();
            barrier.wait();
            for &page in &pages {
                let frame = frames
                    .allocate::<Size4KiB>(Policy::Local, NodeId(0), 0, Purpose::Kernel)
                    .unwrap()
                    .memory;
                match table.map(
                    page,
                    frame.start(),
                    PageSize::Size4KiB,
                    Flags::WRITABLE,
                    &mut tables,
                ) {
                    Ok(()) => won.push((page, frame.start())),
                    Err(MapError::AlreadyMapped(there)) => {
                        assert_eq!(Some(there), table.query(page));
                        frames.free(frame);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            won
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(populate)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut all: Vec<_> = won.into_iter().flatten().collect();
    all.sort_unstable();
    assert_eq!(
        all.iter().map(|(page, _)| *page).collect::<Vec<_>>(),
        pages,
        "each page is won once"
    );
    for (page, frame) in all {
        assert_eq!(table.query(page).map(|there| there.frame), Some(frame));
        assert_eq!(by_x86_64(&table, &machine, page), table.query(page));
    }
    // Below the root: one PDPT, the PDs of 600 × 4 MiB, and a PT for each page; the losers' are given back.
    let used = 1 + (PAGES * 4 * MIB).div_ceil(GIB) + PAGES + PAGES;
    assert_eq!(
        before - frames.stats(NodeId(0)).unwrap().free_bytes(),
        used * 4 * KIB
    );
}

#[test]
fn one_of_the_threads_that_unmap_a_page_gets_its_frame() {
    let machine = FakeMachine::new(ARENA);
    let frames = allocator(&machine);
    let mut tables = Rubbish(&frames);
    let table = PageTable::new(&machine, &mut tables).unwrap();
    let memory = range(GIB, GIB + 2000 * 4 * KIB);
    table
        .map_range(
            virt(GIB + 4 * KIB),
            memory,
            PageSize::Size2MiB,
            Flags::WRITABLE,
            &mut tables,
        )
        .unwrap();
    let unmapped = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let range = virt_range(GIB, 16 * MIB);
                table.unmap_range(range, |there| {
                    unmapped.fetch_add(there.size.bytes(), Ordering::Relaxed);
                })
            });
        }
    });
    assert_eq!(unmapped.into_inner(), memory.bytes());
}

#[test]
fn each_page_that_is_unmapped_is_invalidated() {
    const PAGES: u64 = 40;
    let machine = FakeMachine::new(ARENA);
    let frames = allocator(&machine);
    let mut tables = Rubbish(&frames);
    let table = PageTable::new(&machine, &mut tables).unwrap();
    let memory = range(GIB, GIB + PAGES * 4 * KIB);
    let first = virt(GIB + 4 * KIB);
    table
        .map_range(first, memory, PageSize::Size2MiB, Flags::empty(), &mut tables)
        .unwrap();
    table.unmap_range(virt_range(GIB, GIB), |_| ()).unwrap();
    let invalidated = std::mem::take(&mut *machine.invalidated.lock().unwrap());
    let one_by_one: Vec<_> = (1..=PAGES)
        .map(|page| Invalidation::Page(virt(GIB + page * 4 * KIB)))
        .collect();
    assert_eq!(invalidated, one_by_one);
}

/// A frame source that lets another CPU map a page first, each time that a table is missing.
struct Slow<'a> {
    tables: Rubbish<'a>,
    table: &'a PageTable<&'a FakeMachine>,
    page: VirtAddr,
}

// SAFETY: the frames come from the source behind it.
unsafe impl TableFrames for Slow<'_> {
    fn allocate(&mut self) -> Option<Frame<Size4KiB>> {
        let (size, mut tables) = (PageSize::Size4KiB, Rubbish(self.tables.0));
        let _ = self
            .table
            .map(self.page, PhysAddr(0x1000), size, Flags::empty(), &mut tables);
        self.tables.allocate()
    }

    fn free(&mut self, frame: Frame<Size4KiB>) {
        self.tables.free(frame);
    }
}

#[test]
fn a_table_that_another_cpu_was_faster_to_add_is_used_and_the_own_one_given_back() {
    let machine = FakeMachine::new(ARENA);
    let frames = allocator(&machine);
    let before = frames.stats(NodeId(0)).unwrap().free_bytes();
    let table = PageTable::new(&machine, &mut Rubbish(&frames)).unwrap();
    let mut slow = Slow {
        tables: Rubbish(&frames),
        table: &table,
        page: virt(GIB),
    };
    let mut map = |page| {
        table.map(
            virt(page),
            PhysAddr(0x2000),
            PageSize::Size4KiB,
            Flags::empty(),
            &mut slow,
        )
    };
    let there = Mapping {
        page: virt(GIB),
        size: PageSize::Size4KiB,
        frame: PhysAddr(0x1000),
        flags: Flags::PRESENT,
    };
    assert_eq!(map(GIB), Err(MapError::AlreadyMapped(there)));
    assert_eq!(map(GIB + 4 * KIB), Ok(()));
    assert_eq!(
        before - frames.stats(NodeId(0)).unwrap().free_bytes(),
        4 * 4 * KIB
    );
}

#[test]
fn a_page_knows_the_physical_addresses_in_it() {
    let page = Mapping {
        page: virt(UPPER),
        size: PageSize::Size2MiB,
        frame: PhysAddr(6 * MIB),
        flags: Flags::PRESENT,
    };
    assert_eq!(
        page.translate(virt(UPPER + 2 * MIB - 1)),
        Some(PhysAddr(8 * MIB - 1))
    );
    assert_eq!(page.translate(virt(UPPER + 2 * MIB)), None);
    assert_eq!(page.translate(virt(0)), None);
}

/// A frame source that has only so many.
struct Few<T>(T, usize);

// SAFETY: only fewer frames come than from the source behind it.
unsafe impl<T: TableFrames> TableFrames for Few<T> {
    fn allocate(&mut self) -> Option<Frame<Size4KiB>> {
        self.1 = self.1.checked_sub(1)?;
        self.0.allocate()
    }

    fn free(&mut self, frame: Frame<Size4KiB>) {
        self.0.free(frame);
    }
}

#[test]
fn what_can_not_be_mapped_is_refused_by_name() {
    let machine = FakeMachine::new(ARENA);
    let frames = allocator(&machine);
    let mut tables = Few(Rubbish(&frames), 3);
    let table = PageTable::new(&machine, &mut tables).unwrap();
    let (small, large) = (PageSize::Size4KiB, PageSize::Size2MiB);
    let mut map = |page, frame, size, flags| table.map(virt(page), PhysAddr(frame), size, flags, &mut tables);
    let misaligned = |page, frame, size| {
        Err(MapError::Misaligned {
            page: virt(page),
            frame: PhysAddr(frame),
            size,
        })
    };
    assert_eq!(
        map(4 * KIB, 0, large, Flags::empty()),
        misaligned(4 * KIB, 0, large)
    );
    assert_eq!(
        map(0, 4 * KIB, large, Flags::empty()),
        misaligned(0, 4 * KIB, large)
    );
    assert_eq!(map(0, 1, small, Flags::empty()), misaligned(0, 1, small));
    for own in [Flags::HUGE, Flags::from_bits_retain(1 << 20)] {
        assert_eq!(map(0, 0, small, own), Err(MapError::NotAllowed(own)));
    }
    for frame in [1 << 52, u64::MAX - 4 * KIB + 1] {
        assert_eq!(
            map(0, frame, small, Flags::empty()),
            Err(MapError::NoSuchFrame(PhysAddr(frame)))
        );
    }
    // The root and two of the three tables below it are all that there is.
    assert_eq!(
        map(0, 0, small, Flags::empty()),
        Err(MapError::NoTableFrame(virt(0)))
    );
    assert_eq!(map(0, (1 << 52) - 2 * MIB, large, Flags::empty()), Ok(()));
    let there = table.query(virt(2 * MIB - 1)).unwrap();
    assert_eq!(there.frame, PhysAddr((1 << 52) - 2 * MIB));
    assert_eq!(table.unmap(virt(4 * KIB)), Err(UnmapError::Larger(there)));

    let mut map_range =
        |page, memory: PhysRange| table.map_range(virt(page), memory, small, Flags::empty(), &mut tables);
    assert_eq!(
        map_range(0, range(0, 4 * KIB)),
        Err(MapError::AlreadyMapped(there))
    );
    assert_eq!(map_range(0, range(0, 1)), misaligned(0, 1, small));
    assert_eq!(
        map_range((1 << 47) - 4 * KIB, range(0, 8 * KIB)),
        Err(MapError::NotCanonical(virt((1 << 47) - 4 * KIB)))
    );
}

#[test]
fn an_entry_in_use_by_others_is_left_alone() {
    let machine = FakeMachine::new(ARENA);
    let frames = allocator(&machine);
    let mut tables = Rubbish(&frames);
    let root = tables.allocate().unwrap();
    let entries = machine.memory(root.range()).cast::<u64>();
    // SAFETY: a frame of the machine's memory that was just handed out. Its entry 0 is not present, but not empty.
    let table = unsafe {
        machine.zero(root.range());
        entries.write(0x1234_5000);
        PageTable::from_root(&machine, root)
    };
    let page = virt(4 * KIB);
    let result = table.map(page, PhysAddr(0), PageSize::Size4KiB, Flags::empty(), &mut tables);
    assert_eq!(result, Err(MapError::Occupied(page)));
    assert_eq!(table.query(page), None);
    // SAFETY: in bounds.
    assert_eq!(unsafe { entries.read() }, 0x1234_5000);
}
