//! Per-CPU data for all CPUs, and the start of the application processors.

use core::cell::UnsafeCell;
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use core::{fmt, hint, slice};

use alloc::vec::Vec;
use homenode_metrics::{CpuCounters, NodeCounters};
use homenode_mm::{FrameSize, Order, OutOfMemory, Size4KiB};
use homenode_topology::{ApicId, CpuId, NodeId, PhysAddr, PhysRange, Topology};

use super::percpu::{self, PerCpu};
use super::segments::{InterruptStack, Segments};
use super::stacks::{KernelStack, TrapStacks};
use super::traps::{self, vector};
use super::{apic, clock, cpu, memory, sched, tlb};

unsafe extern "C" {
    static trampoline_start: u8;
    static trampoline_protected: u8;
    static trampoline_protected_pointer: u8;
    static trampoline_end: u8;
    static mut ap_table: u64;
    static mut ap_table_entries: u64;
    static mut ap_root: u64;
}

/// What `boot/start.s` looks up by its APIC id.
#[repr(C)]
struct ApEntry {
    apic_id: u32,
    padding: u32,
    stack_top: u64,
    cpu: &'static PerCpu,
}

/// Why not all CPUs run.
#[derive(Debug)]
pub(crate) enum StartError {
    OutOfMemory(OutOfMemory),
    NoLowMemory,
    Interrupt(ApicId, apic::IpiError),
    Silent(CpuId, ApicId),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory(error) => write!(f, "cannot start the CPUs: {error}"),
            Self::NoLowMemory => write!(f, "cannot start the CPUs: no usable page of RAM below 640 KiB"),
            Self::Interrupt(apic_id, error) => {
                write!(f, "cannot start the CPU with APIC id {apic_id}: {error}")
            }
            Self::Silent(cpu, apic_id) => write!(
                f,
                "CPU {cpu} (APIC id {apic_id}) did not start within {} s",
                ANSWER_TIMEOUT.as_secs()
            ),
        }
    }
}

impl From<OutOfMemory> for StartError {
    fn from(error: OutOfMemory) -> Self {
        Self::OutOfMemory(error)
    }
}

/// How long the CPUs may take to start. Hundreds of emulated CPUs share few real ones.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Between INIT and the first STARTUP interrupt, for CPUs that are not of this century (Intel SDM volume 3, 9.4.4).
const STARTUP_DELAY: Duration = Duration::from_micros(200);
/// A clock that differs by more than this between CPUs is reported.
const CLOCK_TOLERANCE_NS: u64 = 1_000_000;

unsafe extern "C" {
    static boot_stack: u8;
    static boot_stack_top: u8;
}

/// Stacks for the exceptions of early boot: one for each interrupt stack, and the emergency stack.
#[repr(C, align(4096))]
struct EarlyTrapStacks(UnsafeCell<[[u8; EARLY_TRAP_STACK_BYTES]; InterruptStack::ALL.len() + 1]>);

const EARLY_TRAP_STACK_BYTES: usize = 8 << 10;

// SAFETY: used as stacks of the boot processor only.
unsafe impl Sync for EarlyTrapStacks {}

static EARLY_TRAP_STACKS: EarlyTrapStacks = EarlyTrapStacks(UnsafeCell::new(
    [[0; EARLY_TRAP_STACK_BYTES]; InterruptStack::ALL.len() + 1],
));

/// Makes exceptions on the boot processor reportable, before there is memory for stacks of their own.
///
/// # Safety
/// Called once, first of all, on the boot processor.
pub(crate) unsafe fn install_boot_cpu() {
    let cpu = percpu::boot_cpu();
    let bottom = EARLY_TRAP_STACKS.0.get() as u64;
    let top = |index: u64| bottom + (index + 1) * EARLY_TRAP_STACK_BYTES as u64;
    cpu.trap_stacks_bottom.set(bottom);
    cpu.trap_stacks_top.set(top(TrapStacks::EMERGENCY));
    cpu.emergency_stack_top.set(top(TrapStacks::EMERGENCY));
    cpu.kernel_stack_bottom.set(&raw const boot_stack as u64);
    cpu.kernel_stack_top.set(&raw const boot_stack_top as u64);
    // SAFETY: the tables are not loaded yet; the stacks are static.
    unsafe {
        let segments = &mut *cpu.segments.get();
        for (index, stack) in (0..).zip(InterruptStack::ALL) {
            segments.set_stack(stack, top(index));
        }
        percpu::install_boot_cpu();
        load(cpu);
    }
}

/// Gives every CPU its data, its stacks and its counters, on its own node, and sets the boot processor's up.
///
/// # Errors
/// When there is no memory for them.
///
/// # Panics
/// If the topology lacks the boot processor.
///
/// # Safety
/// Called once, on the boot processor.
pub(crate) unsafe fn prepare(topology: &'static Topology) -> Result<&'static PerCpu, StartError> {
    let boot_apic_id = apic::this_cpu_id();
    let mut all = Vec::with_capacity(topology.cpus().len());
    let mut boot = None;
    for description in topology.cpus() {
        let cpu = if description.apic_id == boot_apic_id {
            boot = Some(percpu::boot_cpu());
            percpu::boot_cpu()
        } else {
            &on_node(description.node, 1, PerCpu::new)?[0]
        };
        cpu.cpu.set(description.id);
        cpu.apic_id.set(description.apic_id);
        cpu.node.set(description.node);
        prepare_one(cpu, topology.nodes().len())?;
        all.push(cpu);
    }
    let boot = boot.expect("the boot processor is one of the topology's");
    percpu::set_all(Vec::leak(all));
    // SAFETY: the boot processor, whose stacks have just been set.
    unsafe { load(boot) };
    apic::local().set_logical_id(boot);
    tlb::join(boot);
    boot.online.store(true, Ordering::Release);
    Ok(boot)
}

/// Puts `count` values into frames of `node`, or of its neighbours, for good.
pub(crate) fn on_node<T: Send + Sync>(
    node: NodeId,
    count: usize,
    value: impl Fn() -> T,
) -> Result<&'static [T], OutOfMemory> {
    let bytes = (size_of::<T>() * count) as u64;
    let order = Order::all()
        .find(|order| order.bytes() >= bytes)
        .expect("per-CPU data is smaller than the largest block");
    let block = memory::allocate_block(node, order)?;
    let place = memory::direct_map(block.start()).cast::<T>();
    // SAFETY: a fresh block, large and aligned enough for all values, never freed.
    unsafe {
        for index in 0..count {
            place.add(index).write(value());
        }
        Ok(slice::from_raw_parts(place, count))
    }
}

fn prepare_one(cpu: &'static PerCpu, nodes: usize) -> Result<(), OutOfMemory> {
    let node = cpu.node.get();
    let node_counters = on_node(node, nodes, NodeCounters::new)?;
    let [counters] = on_node(node, 1, || CpuCounters::new(node_counters))? else {
        unreachable!("one value was asked for");
    };
    cpu.counters.set(counters);

    let stacks = TrapStacks::new(node)?;
    cpu.trap_stacks_bottom.set(stacks.bottom());
    cpu.trap_stacks_top.set(stacks.top(TrapStacks::EMERGENCY));
    cpu.emergency_stack_top.set(stacks.top(TrapStacks::EMERGENCY));
    // SAFETY: nobody else has a reference. The boot processor's table is in use, but no exception comes from here.
    let segments = unsafe { &mut *cpu.segments.get() };
    for (index, stack) in (0..).zip(InterruptStack::ALL) {
        segments.set_stack(stack, stacks.top(index));
    }

    let idle_stack = KernelStack::new(node)?;
    cpu.kernel_stack_bottom.set(idle_stack.bottom());
    cpu.kernel_stack_top.set(idle_stack.top());
    sched::adopt_idle(cpu, idle_stack);
    Ok(())
}

/// Loads the running CPU's segments and interrupt table.
///
/// # Safety
/// `cpu` is the running CPU's data, and prepared.
unsafe fn load(this: &'static PerCpu) {
    // SAFETY: by the caller.
    unsafe {
        Segments::load(this.segments.get());
        // Loading segment registers may clear the bases.
        this.install();
        traps::install();
    }
    cpu::enable_machine_checks();
}

/// Starts all CPUs but the running one, all at once, and waits until they run.
///
/// # Errors
/// When one does not answer.
pub(crate) fn start(boot: &'static PerCpu, usable: &[PhysRange]) -> Result<(), StartError> {
    let others = || percpu::all().iter().copied().filter(|cpu| !ptr::eq(*cpu, boot));
    if others().next().is_none() {
        return Ok(());
    }
    let page = trampoline_page(usable).ok_or(StartError::NoLowMemory)?;
    let entries: Vec<ApEntry> = others()
        .map(|cpu| ApEntry {
            apic_id: cpu.apic_id.get().0,
            padding: 0,
            stack_top: cpu.kernel_stack_top.get(),
            cpu,
        })
        .collect();
    let entries = Vec::leak(entries);
    let start = &raw const trampoline_start;
    let place = memory::direct_map(page);
    let offset = |symbol: *const u8| symbol as usize - start as usize;
    // SAFETY: a usable page that nothing else has; the other CPUs read all of this only after they are started below.
    unsafe {
        ap_root = memory::tables().root().start().0;
        ap_table = entries.as_ptr() as u64;
        ap_table_entries = entries.len() as u64;
        ptr::copy_nonoverlapping(start, place, offset(&raw const trampoline_end));
        let protected = page.0 as u32 + offset(&raw const trampoline_protected) as u32;
        place
            .add(offset(&raw const trampoline_protected_pointer))
            .cast::<u32>()
            .write_unaligned(protected);
    }

    let apic = apic::local();
    let vector = (page.0 >> 12) as u8;
    let started_ns = clock::now_ns();
    for cpu in others() {
        apic.send_init(cpu.apic_id.get())
            .map_err(|error| StartError::Interrupt(cpu.apic_id.get(), error))?;
    }
    pause(STARTUP_DELAY);
    for _ in 0..2 {
        for cpu in others().filter(|cpu| !cpu.online.load(Ordering::Acquire)) {
            apic.send_startup(cpu.apic_id.get(), vector)
                .map_err(|error| StartError::Interrupt(cpu.apic_id.get(), error))?;
        }
        pause(STARTUP_DELAY);
    }
    let deadline = clock::now() + ANSWER_TIMEOUT;
    for cpu in others() {
        while !cpu.online.load(Ordering::Acquire) {
            if clock::now() > deadline {
                return Err(StartError::Silent(cpu.cpu.get(), cpu.apic_id.get()));
            }
            hint::spin_loop();
        }
    }
    let earliest = EARLIEST_START_NS.load(Ordering::Relaxed);
    let latest = LATEST_START_NS.load(Ordering::Relaxed);
    if earliest + CLOCK_TOLERANCE_NS < started_ns || latest > clock::now_ns() + CLOCK_TOLERANCE_NS {
        log::warn!(
            "the CPUs' time-stamp counters differ: times measured on different CPUs cannot be compared"
        );
    }
    Ok(())
}

static EARLIEST_START_NS: AtomicU64 = AtomicU64::new(u64::MAX);
static LATEST_START_NS: AtomicU64 = AtomicU64::new(0);

fn pause(duration: Duration) {
    let until = clock::now() + duration;
    while clock::now() < until {
        hint::spin_loop();
    }
}

/// The highest usable page below 640 KiB: real mode reaches no further than 1 MiB.
fn trampoline_page(usable: &[PhysRange]) -> Option<PhysAddr> {
    let reachable = PhysRange::new(PhysAddr(Size4KiB::BYTES), PhysAddr(0xa_0000));
    usable
        .iter()
        .filter_map(|range| range.intersection(&reachable))
        .filter_map(|range| {
            let page = PhysAddr(range.end.0 - 1).align_down(Size4KiB::BYTES);
            let page = if page + Size4KiB::BYTES > range.end {
                PhysAddr(page.0.checked_sub(Size4KiB::BYTES)?)
            } else {
                page
            };
            (page >= range.start).then_some(page)
        })
        .max()
}

/// The first Rust code of an application processor: on its idle stack and the kernel's page tables, interrupts off.
pub(crate) extern "C" fn application_processor_main(cpu: &'static PerCpu) -> ! {
    cpu::enable_features();
    // SAFETY: the boot processor prepared `cpu` for this CPU alone.
    unsafe {
        cpu.install();
        load(cpu);
    }
    apic::local().init_this_cpu(apic::Vectors {
        timer: vector::TIMER,
        error: Some(vector::APIC_ERROR),
    });
    apic::local().set_logical_id(cpu);
    let now = clock::now_ns();
    EARLIEST_START_NS.fetch_min(now, Ordering::Relaxed);
    LATEST_START_NS.fetch_max(now, Ordering::Relaxed);
    tlb::join(cpu);
    cpu.online.store(true, Ordering::Release);
    sched::idle()
}
