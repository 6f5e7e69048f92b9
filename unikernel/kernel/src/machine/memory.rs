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
use core::hint::spin_loop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use alloc::vec::Vec;
use hermit_sync::OnceCell;
use homenode_metrics::{CpuCounter, NodeCounter};
use homenode_mm::{
    Block, Cause, Event, Flags, Frame, FrameAllocator, FrameSize, LocalTables, Machine, MapError, NodeEvent,
    NodeMemory, NumaEvent, Order, OutOfMemory, PageSize, PageTable, Policy, Purpose, SafePoint, Size4KiB,
    TableFrames, VirtAddr, VirtRange,
};
use homenode_topology::{CpuId, MemoryKind, MemoryMapEntry, NodeId, PhysAddr, PhysRange, Topology};
use x86_64::instructions::{interrupts, tlb};
use x86_64::registers::control::{Cr3, Cr3Flags, Cr4, Cr4Flags};
use x86_64::structures::paging::PhysFrame;

use super::percpu::{self, this_cpu};
use super::traps::vector;
use super::{apic, clock, cpu, image, sched};

const DIRECT_MAP: u64 = 0xffff_8000_0000_0000;
const DIRECT_MAP_BYTES: u64 = DEVICES - DIRECT_MAP;
const DEVICES: u64 = 0xffff_c000_0000_0000;
const DEVICES_END: u64 = 0xffff_d000_0000_0000;
/// The lowest kernel stack slot.
pub(crate) const KERNEL_STACKS: u64 = 0xffff_d000_0000_0000;
/// The address space of all kernel stacks.
pub(crate) const KERNEL_STACKS_BYTES: u64 = 1 << 44;

/// The video window between the first RAM and the firmware's ROM: registers, in effect.
const VIDEO_WINDOW: PhysRange = PhysRange::new(PhysAddr(0xa_0000), PhysAddr(0xc_0000));
/// What lies below belongs to firmware and to the start of the other CPUs.
const LOW_MEMORY: u64 = 1 << 20;
/// What `boot/start.s` maps.
const BOOT_MAPPED: PhysRange = PhysRange::new(PhysAddr(LOW_MEMORY), PhysAddr(4 << 30));

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

/// The kernel's door to hardware for the memory manager.
#[derive(Clone, Copy)]
pub(crate) struct DirectMap;

// SAFETY: RAM is mapped once in the direct map, at distinct addresses, for good.
unsafe impl Machine for DirectMap {
    fn memory(&self, range: PhysRange) -> NonNull<u8> {
        // SAFETY: physical addresses have at most 52 bits, so the sum is not 0.
        unsafe { NonNull::new_unchecked(direct_map(range.start)) }
    }

    unsafe fn zero(&self, range: PhysRange) {
        // SAFETY: by the caller.
        unsafe { zero_bytes(direct_map(range.start), range.bytes()) }
    }

    fn invalidate_page(&self, page: VirtAddr) {
        tlb::flush(x86_64::VirtAddr::new(page.as_u64()));
    }

    fn invalidate_all(&self) {
        // Program memory is not global, so loading the root again drops it, and what is cached of the tables above (Intel SDM
        // volume 3, 4.10.4.1).
        tlb::flush_all();
    }

    fn cpu(&self) -> CpuId {
        this_cpu().cpu.get()
    }

    fn node(&self) -> NodeId {
        this_cpu().node.get()
    }

    fn load_idle_root(&self) {
        let root = IDLE_ROOT.get().copied().unwrap_or_else(|| tables().root());
        // SAFETY: the root maps the kernel, and whoever asks for it touches no program memory.
        unsafe { load_root(root.start()) };
    }

    fn load_program_root(&self) {
        // SAFETY: the tables map the kernel and program memory.
        unsafe { load_root(tables().root().start()) };
    }

    fn interrupt(&self, cpus: impl Iterator<Item = CpuId>) {
        let targets = cpus.map(|cpu| percpu::all()[cpu.index()]);
        let sent = apic::local().send_ipi_to(targets, vector::FLUSH);
        assert!(sent.is_ok(), "an online CPU can be interrupted");
    }

    fn now_ns(&self) -> u64 {
        clock::now_ns()
    }

    fn set_alarm(&self, at_ns: u64) {
        interrupts::without_interrupts(|| {
            let cpu = this_cpu();
            cpu.alarm_at_ns.set(at_ns);
            sched::arm_timer(cpu);
        });
    }

    fn relax(&self) {
        spin_loop();
    }

    fn count(&self, event: Event, n: u64) {
        let counters = this_cpu().counters.get();
        let counter = match event {
            Event::Fault => CpuCounter::PageFault,
            Event::TableLock => CpuCounter::TableLock,
            Event::TableLockContended => CpuCounter::TableLockContended,
            Event::Split => CpuCounter::Split,
            Event::Moved => CpuCounter::MigrateSuccess,
            Event::NotMoved => CpuCounter::MigrateFail,
            Event::FlushOne => CpuCounter::TlbLocalFlushOne,
            Event::FlushAll => CpuCounter::TlbLocalFlushAll,
            Event::RemoteFlush => CpuCounter::TlbRemoteFlush,
            Event::Forced(cause) => match cause {
                Cause::Deadline => CpuCounter::TlbForcedDeadline,
                Cause::Pending => CpuCounter::TlbForcedPending,
                Cause::Memory => CpuCounter::TlbForcedMemory,
                Cause::Drain => CpuCounter::TlbForcedDrain,
                Cause::Revoke => CpuCounter::TlbForcedRevoke,
                Cause::Change => CpuCounter::TlbForcedChange,
                Cause::Off => CpuCounter::TlbForcedOff,
            },
            Event::InterruptsSent(cause) => match cause {
                Cause::Deadline => CpuCounter::TlbSentDeadline,
                Cause::Pending => CpuCounter::TlbSentPending,
                Cause::Memory => CpuCounter::TlbSentMemory,
                Cause::Drain => CpuCounter::TlbSentDrain,
                Cause::Revoke => CpuCounter::TlbSentRevoke,
                Cause::Change => CpuCounter::TlbSentChange,
                Cause::Off => CpuCounter::TlbSentOff,
            },
            Event::CaughtUp(at) => match at {
                SafePoint::Interrupt => CpuCounter::TlbCaughtUpInterrupt,
                SafePoint::Kernel => CpuCounter::TlbCaughtUpKernel,
                SafePoint::Quiesce => CpuCounter::TlbCaughtUpQuiesce,
                SafePoint::Idle => CpuCounter::TlbCaughtUpIdle,
                SafePoint::Own => CpuCounter::TlbCaughtUpOwn,
            },
            Event::RingOverrun => CpuCounter::TlbRingOverrun,
            Event::Retired => CpuCounter::TlbRetired,
        };
        counters.add(counter, n);
    }

    fn count_on(&self, node: NodeId, event: NodeEvent, n: i64) {
        let counters = this_cpu().counters.get();
        let counter = match event {
            NodeEvent::Numa(NumaEvent::Hit) => NodeCounter::NumaHit,
            NodeEvent::Numa(NumaEvent::Miss) => NodeCounter::NumaMiss,
            NodeEvent::Numa(NumaEvent::Foreign) => NodeCounter::NumaForeign,
            NodeEvent::Numa(NumaEvent::Interleave) => NodeCounter::NumaInterleave,
            NodeEvent::Numa(NumaEvent::Local) => NodeCounter::NumaLocal,
            NodeEvent::Numa(NumaEvent::Other) => NodeCounter::NumaOther,
            NodeEvent::HugeAllocated => NodeCounter::ThpFaultAlloc,
            NodeEvent::HugeFallback => NodeCounter::ThpFaultFallback,
            NodeEvent::Mapped(size) => return counters.add_pages(node, size as usize, n),
            NodeEvent::MappedAtHome(size) => return counters.add_page_at_home(node, size as usize),
        };
        counters.add_node(node, counter, n as u64);
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

/// The byte at `address` in the direct map. Only RAM is mapped there.
pub(crate) fn direct_map(address: PhysAddr) -> *mut u8 {
    (DIRECT_MAP + address.0) as *mut u8
}

/// The physical address of a byte in the direct map or in the image.
pub(crate) fn physical_address(pointer: *const u8) -> PhysAddr {
    let address = pointer as u64;
    PhysAddr(if address >= image::OFFSET {
        address - image::OFFSET
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
    fn new(usable: &[PhysRange]) -> Option<Self> {
        let piece = usable
            .iter()
            .filter_map(|range| range.intersection(&BOOT_MAPPED))
            .flat_map(|range| without(range, image::frames()))
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
/// The root that idle CPUs use: without program memory.
static IDLE_ROOT: OnceCell<Frame<Size4KiB>> = OnceCell::new();
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

/// The firmware's memory map without what the direct map has no room for and what the CPU cannot address.
pub(crate) fn reachable(memory_map: Vec<MemoryMapEntry>) -> Vec<MemoryMapEntry> {
    let end = PhysAddr(DIRECT_MAP_BYTES.min(1 << cpu::physical_address_bits()));
    let everything = PhysRange::new(PhysAddr(0), end);
    let mut lost = 0;
    let kept = memory_map
        .into_iter()
        .filter_map(|entry| {
            let range = entry.range.intersection(&everything);
            if entry.kind == MemoryKind::Usable {
                lost += entry.range.bytes() - range.map_or(0, |range| range.bytes());
            }
            Some(MemoryMapEntry {
                range: range?,
                kind: entry.kind,
            })
        })
        .collect();
    if lost > 0 {
        log::warn!(
            "firmware: {} MiB of RAM lie above {end} and are not used",
            lost >> 20
        );
    }
    kept
}

/// The RAM that the firmware leaves to the kernel: entries of other kinds win where the memory map overlaps itself.
pub(crate) fn usable(memory_map: &[MemoryMapEntry]) -> Vec<PhysRange> {
    let (usable, others): (Vec<&MemoryMapEntry>, Vec<&MemoryMapEntry>) = memory_map
        .iter()
        .partition(|entry| entry.kind == MemoryKind::Usable);
    let mut ranges: Vec<PhysRange> = usable.into_iter().map(|entry| entry.range).collect();
    for other in others {
        ranges = ranges
            .into_iter()
            .flat_map(|range| without(range, other.range))
            .collect();
    }
    ranges.sort_unstable();
    // Usable entries that overlap each other count once.
    for index in 1..ranges.len() {
        ranges[index].start = ranges[index].start.max(ranges[index - 1].end);
        ranges[index].end = ranges[index].end.max(ranges[index].start);
    }
    ranges.retain(|range| !range.is_empty());
    ranges
}

/// `range`, cut where the memory map changes from one kind to another: those parts may differ in their memory types, which no
/// large page should cover both.
fn by_kind<'a>(
    range: PhysRange,
    memory_map: &'a [MemoryMapEntry],
) -> impl Iterator<Item = PhysRange> + use<'a> {
    let mut cuts: Vec<PhysAddr> = memory_map
        .iter()
        .flat_map(|entry| [entry.range.start, entry.range.end])
        .map(|cut| cut.align_down(Size4KiB::BYTES))
        .filter(|cut| range.start < *cut && *cut < range.end)
        .collect();
    cuts.push(range.end);
    cuts.sort_unstable();
    let mut start = range.start;
    cuts.into_iter()
        .map(move |end| PhysRange::new(core::mem::replace(&mut start, end), end))
        .filter(|part| !part.is_empty())
}

/// Builds the page tables for all of RAM and the image, and loads them.
///
/// # Safety
/// Called once, on the boot processor, on the tables of `boot/start.s`; `usable` is RAM that nobody uses.
pub(crate) unsafe fn init_tables(
    memory_map: &[MemoryMapEntry],
    ram: &[PhysRange],
    usable: &[PhysRange],
) -> Result<EarlyFrames, InitError> {
    let mut early = EarlyFrames::new(usable).ok_or(InitError::NoEarlyFrames)?;
    let tables = PageTable::new(DirectMap, &mut early).ok_or(InitError::NoEarlyFrames)?;

    let largest = if cpu::has_1gib_pages() {
        PageSize::Size1GiB
    } else {
        PageSize::Size2MiB
    };
    let mut map = |start: u64, range: PhysRange, largest: PageSize, flags: Flags| {
        tables
            .map_range(VirtAddr::new_truncated(start), range, largest, flags, &mut early)
            .map_err(|error| InitError::Map(range, error))
    };
    let mapped: Vec<PhysRange> = ram
        .iter()
        .flat_map(|&block| without(block, VIDEO_WINDOW))
        .collect();
    for part in mapped
        .iter()
        .flat_map(|&block| by_kind(block, memory_map))
        .flat_map(|part| without(part, image::frames()))
    {
        map(DIRECT_MAP + part.start.0, part, largest, kernel_data_flags())?;
    }
    for image::Part {
        frames,
        writable,
        executable,
    } in image::parts()
    {
        // Read-only frames are read-only in the direct map too, and nothing is executable there.
        let flags = kernel_flags(writable, false);
        map(DIRECT_MAP + frames.start.0, frames, PageSize::Size4KiB, flags)?;
        let flags = kernel_flags(writable, executable);
        map(image::OFFSET + frames.start.0, frames, PageSize::Size4KiB, flags)?;
    }

    // SAFETY: the tables map the running code, its stack and its data as they were.
    unsafe {
        load_root(tables.root().start());
        Cr4::update(|flags| *flags |= Cr4Flags::PAGE_GLOBAL);
    }
    assert!(
        MAPPED_RAM.set(mapped).is_ok() && TABLES.set(tables).is_ok(),
        "the tables are built once"
    );
    Ok(early)
}

/// Builds the root that idle CPUs use. Once, after [`init_frames`].
///
/// # Errors
/// If there is no memory for it.
pub(crate) fn init_idle_root() -> Result<(), MapError> {
    let area = |start: u64, bytes: u64| {
        VirtAddr::new(start)
            .and_then(|start| VirtRange::new(start, bytes))
            .expect("the kernel's areas lie in the upper half")
    };
    let growing = [
        area(DEVICES, DEVICES_END - DEVICES),
        area(KERNEL_STACKS, KERNEL_STACKS_BYTES),
    ];
    let root = tables().upper_half_root(&growing, &mut local_tables(local_node()))?;
    assert!(IDLE_ROOT.set(root).is_ok(), "the idle root is built once");
    Ok(())
}

/// # Safety
/// The CPU runs on code, data and a stack that the tables below `root` map at the same addresses, and needs nothing else.
unsafe fn load_root(root: PhysAddr) {
    let frame = PhysFrame::containing_address(x86_64::PhysAddr::new(root.0));
    // SAFETY: by the caller.
    unsafe { Cr3::write(frame, Cr3Flags::empty()) };
}

/// Gives all usable RAM that is not taken yet to the frame allocators of its nodes.
///
/// # Safety
/// Called once, after [`init_tables`], with the same usable RAM and the early frames that it gave.
pub(crate) unsafe fn init_frames(
    topology: &Topology,
    usable: &[PhysRange],
    early: EarlyFrames,
) -> Result<(), InitError> {
    let taken = [
        PhysRange::new(PhysAddr(0), PhysAddr(LOW_MEMORY)),
        image::frames(),
        early.taken(),
    ];
    let mut free = usable.to_vec();
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
    let cpus: Vec<NodeId> = topology.cpus().iter().map(|cpu| cpu.node).collect();
    // SAFETY: usable by the memory map, and none of it taken by the image, the tables or the firmware.
    let frames = unsafe { FrameAllocator::new(DirectMap, nodes, &cpus) }.map_err(InitError::Frames)?;
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
    Ram(PhysRange),
    NoSuchAddress(PhysRange),
    NoAddressSpace,
    Map(MapError),
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ram(range) => write!(f, "there is RAM at {range}, not a device"),
            Self::NoSuchAddress(range) => write!(f, "{range} is beyond what this CPU can address"),
            Self::NoAddressSpace => write!(f, "no address space left for device registers"),
            Self::Map(error) => error.fmt(f),
        }
    }
}

/// Maps `bytes` bytes of device registers at `start`, uncached.
///
/// # Errors
/// When RAM is at that address or nothing can be, or when there is no memory for page tables or no address space left.
pub(crate) fn map_device(start: PhysAddr, bytes: usize) -> Result<NonNull<u8>, DeviceError> {
    let page = Size4KiB::BYTES;
    let first = start.align_down(page);
    let end = start
        .0
        .checked_add(bytes as u64)
        .and_then(|end| PhysAddr(end).align_up(page));
    let end = end.ok_or(DeviceError::NoAddressSpace)?;
    let range = PhysRange::new(first, end);
    if MAPPED_RAM
        .get()
        .is_some_and(|ram| ram.iter().any(|ram| ram.intersection(&range).is_some()))
    {
        return Err(DeviceError::Ram(range));
    }
    if range.end.0 > 1 << cpu::physical_address_bits() {
        return Err(DeviceError::NoSuchAddress(range));
    }
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
pub(crate) fn local_tables(node: NodeId) -> LocalTables<'static, DirectMap> {
    LocalTables::new(frames(), node)
}

/// A frame on `node` or, if it is full, on its neighbours, for the kernel; not zeroed.
///
/// # Errors
/// When no node has one.
pub(crate) fn allocate_frame<S: FrameSize>(node: NodeId) -> Result<Frame<S>, OutOfMemory> {
    let allocation = frames().allocate::<S>(Policy::Local, node, 0, Purpose::Kernel)?;
    Ok(allocation.memory)
}

/// A block of this order on `node` or, if it is full, on its neighbours, for the kernel; not zeroed.
///
/// # Errors
/// When no node has one.
pub(crate) fn allocate_block(node: NodeId, order: Order) -> Result<Block, OutOfMemory> {
    let allocation = frames().allocate_block(order, Policy::Local, node, 0, Purpose::Kernel)?;
    Ok(allocation.memory)
}

/// The error when there is no frame on `node` or elsewhere for a page table, or no address space.
pub(crate) fn no_table_frame(node: NodeId) -> OutOfMemory {
    frames().out_of_memory(Order::MIN, Policy::Local, node, 0)
}

/// Whether something is mapped at `address`.
pub(crate) fn is_mapped(address: VirtAddr) -> bool {
    match TABLES.get() {
        Some(tables) => tables.query(address).is_some(),
        // The boot tables map the image's first GiB.
        None => address.as_u64() >= image::OFFSET && address.as_u64() < image::OFFSET + (1 << 30),
    }
}

/// The rights of pinned kernel memory other than the image.
pub(crate) fn kernel_data_flags() -> Flags {
    kernel_flags(true, false)
}
