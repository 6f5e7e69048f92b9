//! Physical memory as the kernel sees it: the direct map, the image by access rights, device registers, and the frames.
//!
//! | from | what |
//! |---|---|
//! | 0 | program memory (`program_memory`) |
//! | `0xffff_8000_0000_0000` | direct map: RAM, and only RAM, once |
//! | `0xffff_c000_0000_0000` | device registers, uncached |
//! | `0xffff_d000_0000_0000` | kernel stacks, with guards (`stacks`) |
//! | `0xffff_ffff_8000_0000` | the image |

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use alloc::vec::Vec;
use hermit_sync::OnceCell;
use homenode_metrics::NodeCounter;
use homenode_mm::{
    Flags, Frame, FrameAllocator, FrameSize, LocalTables, Machine, MapError, NodeMemory, NumaEvent, Order,
    OutOfMemory, PageSize, PageTable, Placement, Policy, Size4KiB, TableFrames, VirtAddr,
};
use homenode_topology::{MemoryKind, MemoryMapEntry, NodeId, PhysAddr, PhysRange, Topology};
use x86_64::instructions::tlb;
use x86_64::registers::control::{Cr3, Cr3Flags, Cr4, Cr4Flags};
use x86_64::structures::paging::PhysFrame;

use super::backtrace;
use super::percpu::{self, this_cpu};

const DIRECT_MAP: u64 = 0xffff_8000_0000_0000;
const DEVICES: u64 = 0xffff_c000_0000_0000;
const DEVICES_END: u64 = 0xffff_d000_0000_0000;
/// The lowest kernel stack slot.
pub(crate) const KERNEL_STACKS: u64 = 0xffff_d000_0000_0000;
const IMAGE_OFFSET: u64 = 0xffff_ffff_8000_0000;

/// The video window between the first RAM and the firmware's ROM: registers, in effect.
const VIDEO_WINDOW: PhysRange = PhysRange::new(PhysAddr(0xa_0000), PhysAddr(0xc_0000));
/// What lies below belongs to firmware and to the start of the other CPUs.
const LOW_MEMORY: u64 = 1 << 20;
/// What `boot/start.s` maps.
const BOOT_MAPPED: PhysRange = PhysRange::new(PhysAddr(LOW_MEMORY), PhysAddr(4 << 30));

unsafe extern "C" {
    static __text_start: u8;
    static __text_end: u8;
    static __rodata_start: u8;
    static __rodata_end: u8;
    static __data_start: u8;
    static __data_end: u8;
}

/// A part of the image, as virtual addresses.
pub(crate) struct ImageRange {
    /// The first address.
    pub(crate) start: u64,
    /// The first address behind it.
    pub(crate) end: u64,
}

impl ImageRange {
    /// The whole pages that it is loaded to.
    fn frames(&self) -> PhysRange {
        let page = Size4KiB::BYTES;
        PhysRange::new(
            PhysAddr(self.start - IMAGE_OFFSET).align_down(page),
            PhysAddr((self.end - IMAGE_OFFSET).next_multiple_of(page)),
        )
    }
}

/// The kernel's own rights to `writable`, `executable` memory that is mapped in every root.
fn kernel_flags(writable: bool, executable: bool) -> Flags {
    let mut flags = Flags::GLOBAL;
    if writable {
        flags |= Flags::WRITABLE;
    }
    if !executable {
        flags |= Flags::NO_EXECUTE;
    }
    flags
}

/// The image's parts, in order of address, each with its rights.
fn image() -> [(ImageRange, Flags); 4] {
    let range = |start: *const u8, end: *const u8| ImageRange {
        start: start as u64,
        end: end as u64,
    };
    [
        (
            range(&raw const __text_start, &raw const __text_end),
            kernel_flags(false, true),
        ),
        (
            range(&raw const __rodata_start, &raw const __rodata_end),
            kernel_flags(false, false),
        ),
        (
            range(&raw const __data_start, &raw const __data_end),
            kernel_flags(true, false),
        ),
        (backtrace::symbol_table_range(), kernel_flags(false, false)),
    ]
}

/// The kernel's door to hardware for the memory manager.
#[derive(Clone, Copy)]
pub(crate) struct DirectMap;

// SAFETY: RAM is mapped once in the direct map, at distinct addresses, for good.
unsafe impl Machine for DirectMap {
    fn memory(&self, range: PhysRange) -> NonNull<u8> {
        NonNull::new(direct_map(range.start)).expect("the direct map does not begin at 0")
    }

    unsafe fn zero(&self, range: PhysRange) {
        // SAFETY: by the caller.
        unsafe { zero_bytes(direct_map(range.start), range.bytes()) }
    }

    fn invalidate_page(&self, page: VirtAddr) {
        tlb::flush(x86_64::VirtAddr::new(page.as_u64()));
    }

    fn invalidate_all(&self) {
        flush_tlb();
    }
}

/// Sets `bytes` bytes to zero. A function of its own, so that instruction counts can tell zeroing from the rest.
///
/// # Safety
/// The bytes are writable, and nothing else uses them meanwhile.
#[inline(never)]
#[unsafe(link_section = ".bulk.zero")]
unsafe fn zero_bytes(start: *mut u8, bytes: u64) {
    // SAFETY: by the caller. `rep stosb` is the fast way on all x86-64 CPUs with ERMS, and right on the others.
    unsafe {
        core::arch::asm!("rep stosb", inout("rcx") bytes => _, inout("rdi") start => _, in("al") 0u8,
            options(nostack, preserves_flags));
    }
}

/// Drops all of this CPU's cached translations, global ones included (Intel SDM volume 3, 4.10.4.1).
pub(crate) fn flush_tlb() {
    let cr4 = Cr4::read_raw();
    // SAFETY: the same value again, but for PGE in between.
    unsafe {
        Cr4::write_raw(cr4 & !Cr4Flags::PAGE_GLOBAL.bits());
        Cr4::write_raw(cr4);
    }
}

/// The byte at `address` in the direct map. Only RAM is mapped there.
pub(crate) fn direct_map(address: PhysAddr) -> *mut u8 {
    (DIRECT_MAP + address.0) as *mut u8
}

/// The physical address of a byte in the direct map or in the image.
pub(crate) fn physical_address(pointer: *const u8) -> PhysAddr {
    let address = pointer as u64;
    PhysAddr(if address >= IMAGE_OFFSET {
        address - IMAGE_OFFSET
    } else {
        address - DIRECT_MAP
    })
}

/// Frames for the first page tables: taken from the RAM behind the image, and never given back.
pub(crate) struct EarlyFrames {
    start: PhysAddr,
    next: PhysAddr,
    end: PhysAddr,
}

impl EarlyFrames {
    /// From the largest piece of usable RAM that `boot/start.s` maps, outside the image.
    fn new(memory_map: &[MemoryMapEntry], image: PhysRange) -> Option<Self> {
        let reachable = memory_map
            .iter()
            .filter(|entry| entry.kind == MemoryKind::Usable)
            .filter_map(|entry| entry.range.intersection(&BOOT_MAPPED));
        let piece = reachable
            .flat_map(|range| without(range, image))
            .max_by_key(PhysRange::bytes)?;
        let start = piece.start.align_up(Size4KiB::BYTES)?;
        Some(Self {
            start,
            next: start,
            end: piece.end,
        })
    }

    /// What was taken.
    fn taken(&self) -> PhysRange {
        PhysRange::new(self.start, self.next)
    }
}

// SAFETY: each frame is given out once, and lies in usable RAM that is mapped and that nothing else uses.
unsafe impl TableFrames for EarlyFrames {
    fn allocate(&mut self) -> Option<Frame<Size4KiB>> {
        let frame = Frame::containing(self.next);
        (frame.range().end <= self.end).then(|| {
            self.next = frame.range().end;
            frame
        })
    }

    fn free(&mut self, _: Frame<Size4KiB>) {
        // Only a race for a table gives one back, and one CPU has nobody to race with.
    }
}

/// The parts of `range` outside of `hole`.
fn without(range: PhysRange, hole: PhysRange) -> impl Iterator<Item = PhysRange> {
    let below = PhysRange::new(range.start, range.end.min(hole.start.max(range.start)));
    let above = PhysRange::new(range.start.max(hole.end.min(range.end)), range.end);
    [below, above].into_iter().filter(|part| !part.is_empty())
}

static TABLES: OnceCell<PageTable<DirectMap>> = OnceCell::new();
static FRAMES: OnceCell<FrameAllocator<DirectMap>> = OnceCell::new();
/// Which physical ranges the direct map covers.
static MAPPED_RAM: OnceCell<Vec<PhysRange>> = OnceCell::new();
static NEXT_DEVICE_PAGE: AtomicU64 = AtomicU64::new(DEVICES);

/// The page tables that every CPU uses.
pub(crate) fn tables() -> &'static PageTable<DirectMap> {
    TABLES
        .get()
        .expect("the page tables are built before they are used")
}

/// The frames of all nodes.
///
/// # Panics
/// Before [`init_frames`].
pub(crate) fn frames() -> &'static FrameAllocator<DirectMap> {
    FRAMES
        .get()
        .expect("the frame allocator is built before it is used")
}

/// Like [`frames`], but `None` in early boot.
pub(crate) fn try_frames() -> Option<&'static FrameAllocator<DirectMap>> {
    FRAMES.get()
}

/// Why the memory could not be set up.
#[derive(Debug)]
pub(crate) enum InitError {
    NoEarlyFrames,
    Map(PhysRange, MapError),
    Frames(homenode_mm::BuildError),
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoEarlyFrames => write!(f, "no usable RAM between 1 MiB and 4 GiB besides the image"),
            Self::Map(range, error) => write!(f, "cannot map {range}: {error}"),
            Self::Frames(error) => write!(f, "cannot manage the RAM: {error}"),
        }
    }
}

/// Builds the page tables for all of RAM and the image, and loads them.
///
/// # Safety
/// Called once, on the boot processor, on the tables of `boot/start.s`.
pub(crate) unsafe fn init_tables(
    memory_map: &[MemoryMapEntry],
    ram: &[PhysRange],
) -> Result<EarlyFrames, InitError> {
    let parts = image();
    let whole_image = PhysRange::new(parts[0].0.frames().start, parts[3].0.frames().end);
    let mut early = EarlyFrames::new(memory_map, whole_image).ok_or(InitError::NoEarlyFrames)?;
    let tables = PageTable::new(DirectMap, &mut early).ok_or(InitError::NoEarlyFrames)?;

    let largest = if super::cpu::has_1gib_pages() {
        PageSize::Size1GiB
    } else {
        PageSize::Size2MiB
    };
    let mut map = |start: u64, range: PhysRange, largest: PageSize, flags: Flags| {
        tables
            .map_range(VirtAddr::new_truncated(start), range, largest, flags, &mut early)
            .map_err(|error| InitError::Map(range, error))
    };
    let mut mapped = Vec::new();
    for &block in ram {
        for block in without(block, VIDEO_WINDOW) {
            for part in without(block, whole_image) {
                map(
                    DIRECT_MAP + part.start.0,
                    part,
                    largest,
                    kernel_flags(true, false),
                )?;
            }
            mapped.push(block);
        }
    }
    for (part, flags) in &parts {
        let frames = part.frames();
        // Read-only frames are read-only in the direct map too, and nothing is executable there.
        map(
            DIRECT_MAP + frames.start.0,
            frames,
            PageSize::Size4KiB,
            *flags | Flags::NO_EXECUTE,
        )?;
        map(IMAGE_OFFSET + frames.start.0, frames, PageSize::Size4KiB, *flags)?;
    }

    // SAFETY: the tables map the running code, its stack and its data as they were.
    unsafe { load_root(tables.root().start()) };
    assert!(
        MAPPED_RAM.set(mapped).is_ok() && TABLES.set(tables).is_ok(),
        "the tables are built once"
    );
    Ok(early)
}

/// # Safety
/// The CPU runs on code, data and a stack that the tables below `root` map at the same addresses.
unsafe fn load_root(root: PhysAddr) {
    let frame = PhysFrame::containing_address(x86_64::PhysAddr::new(root.0));
    // SAFETY: by the caller.
    unsafe {
        Cr3::write(frame, Cr3Flags::empty());
        Cr4::update(|flags| *flags |= Cr4Flags::PAGE_GLOBAL);
    }
}

/// Gives all usable RAM that is not taken yet to the frame allocators of its nodes.
///
/// # Safety
/// Called once, after [`init_tables`], with the early frames that it gave.
pub(crate) unsafe fn init_frames(
    topology: &Topology,
    memory_map: &[MemoryMapEntry],
    early: EarlyFrames,
) -> Result<(), InitError> {
    let parts = image();
    let taken = [
        PhysRange::new(PhysAddr(0), PhysAddr(LOW_MEMORY)),
        PhysRange::new(parts[0].0.frames().start, parts[3].0.frames().end),
        early.taken(),
    ];
    let mut free: Vec<PhysRange> = memory_map
        .iter()
        .filter(|entry| entry.kind == MemoryKind::Usable)
        .map(|entry| entry.range)
        .collect();
    for entry in memory_map.iter().filter(|entry| entry.kind != MemoryKind::Usable) {
        free = free
            .into_iter()
            .flat_map(|range| without(range, entry.range))
            .collect();
    }
    for hole in taken {
        free = free.into_iter().flat_map(|range| without(range, hole)).collect();
    }
    let nodes = topology
        .nodes()
        .iter()
        .map(|node| NodeMemory {
            usable: node
                .memory()
                .iter()
                .flat_map(|owned| free.iter().filter_map(|range| range.intersection(owned)))
                .collect(),
            fallback: topology.nodes_by_distance(node.id()),
        })
        .collect();
    // SAFETY: usable by the memory map, and none of it taken by the image, the tables or the firmware.
    let frames = unsafe { FrameAllocator::new(DirectMap, nodes) }.map_err(InitError::Frames)?;
    assert!(FRAMES.set(frames).is_ok(), "the frame allocator is built once");
    Ok(())
}

/// Whether the direct map covers all of `range`.
pub(crate) fn covers(range: PhysRange) -> bool {
    MAPPED_RAM.get().is_some_and(|mapped| {
        mapped
            .iter()
            .any(|ram| ram.start <= range.start && range.start <= range.end && range.end <= ram.end)
    })
}

/// Why device registers could not be mapped.
#[derive(Debug)]
pub(crate) enum DeviceError {
    NoAddressSpace,
    Map(MapError),
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddressSpace => write!(f, "no address space left for device registers"),
            Self::Map(error) => error.fmt(f),
        }
    }
}

/// Maps `bytes` bytes of device registers at `start`, uncached.
///
/// # Errors
/// When there is no memory for page tables or no address space left.
pub(crate) fn map_device(start: PhysAddr, bytes: usize) -> Result<NonNull<u8>, DeviceError> {
    let page = Size4KiB::BYTES;
    let first = start.align_down(page);
    let end = start
        .0
        .checked_add(bytes as u64)
        .and_then(|end| PhysAddr(end).align_up(page));
    let end = end.ok_or(DeviceError::NoAddressSpace)?;
    let range = PhysRange::new(first, end);
    let at = NEXT_DEVICE_PAGE.fetch_add(range.bytes(), Ordering::Relaxed);
    if at.checked_add(range.bytes()).is_none_or(|end| end > DEVICES_END) {
        return Err(DeviceError::NoAddressSpace);
    }
    let flags = kernel_flags(true, false) | Flags::NO_CACHE | Flags::WRITE_THROUGH;
    tables()
        .map_range(
            VirtAddr::new_truncated(at),
            range,
            PageSize::Size4KiB,
            flags,
            &mut local_tables(local_node()),
        )
        .map_err(DeviceError::Map)?;
    NonNull::new((at + (start - first)) as *mut u8).ok_or(DeviceError::NoAddressSpace)
}

/// The running CPU's node.
pub(crate) fn local_node() -> NodeId {
    if percpu::installed() {
        this_cpu().node.get()
    } else {
        NodeId(0)
    }
}

/// Frames for page tables from `node` or its neighbours.
pub(crate) fn local_tables(node: NodeId) -> LocalTables<'static, DirectMap, fn(Placement)> {
    LocalTables::new(frames(), node, count)
}

/// Counts an allocation in this CPU's counters.
pub(crate) fn count(placement: Placement) {
    let Some(counters) = this_cpu().counters.get() else {
        return;
    };
    for (node, event) in placement.events() {
        let counter = match event {
            NumaEvent::Hit => NodeCounter::NumaHit,
            NumaEvent::Miss => NodeCounter::NumaMiss,
            NumaEvent::Foreign => NodeCounter::NumaForeign,
            NumaEvent::Interleave => NodeCounter::NumaInterleave,
            NumaEvent::Local => NodeCounter::NumaLocal,
            NumaEvent::Other => NodeCounter::NumaOther,
        };
        counters.add_node(node, counter, 1);
    }
}

/// A frame on `node` or, if it is full, on its neighbours; counted, not zeroed.
///
/// # Errors
/// When no node has one.
pub(crate) fn allocate_frame<S: FrameSize>(
    node: NodeId,
    policy: Policy,
    page_index: u64,
) -> Result<Frame<S>, OutOfMemory> {
    let allocation = frames().allocate::<S>(policy, node, page_index)?;
    count(allocation.placement);
    Ok(allocation.memory)
}

/// The error when there is no frame on `node` or elsewhere for a page table, or no address space.
pub(crate) fn no_table_frame(node: NodeId) -> OutOfMemory {
    let (free_bytes, total_bytes) = frames()
        .stats(node)
        .map_or((0, 0), |stats| (stats.free_bytes(), stats.total_bytes));
    OutOfMemory {
        node,
        order: Order::MIN,
        policy: Policy::Local,
        free_bytes,
        total_bytes,
    }
}

/// Whether something is mapped at `address`.
pub(crate) fn is_mapped(address: VirtAddr) -> bool {
    match TABLES.get() {
        Some(tables) => tables.query(address).is_some(),
        // The boot tables map the image's first GiB.
        None => address.as_u64() >= IMAGE_OFFSET && address.as_u64() < IMAGE_OFFSET + (1 << 30),
    }
}

/// The rights of pinned kernel memory other than the image.
pub(crate) fn kernel_data_flags() -> Flags {
    kernel_flags(true, false)
}
