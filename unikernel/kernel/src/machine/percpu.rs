//! What each CPU owns: found through GS, written by its own CPU only, but for the few atomics that others write.

use core::cell::{Cell, UnsafeCell};
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, Ordering};

use alloc::sync::Arc;
use hermit_sync::{InterruptSpinMutex, OnceCell};
use homenode_metrics::{CpuCounter, CpuCounters};
use homenode_mm::CpuSpace;
use homenode_topology::{ApicId, CpuId, NodeId};
use x86_64::registers::model_specific::GsBase;

use super::heap::CpuHeaps;
use super::memory::DirectMap;
use super::sched::{RunQueue, Thread, TimerQueue};
use super::segments::Segments;
use crate::destination::LogicalId;

/// One CPU's data. Its first fields are read by assembly through GS.
#[repr(C, align(64))]
pub(crate) struct PerCpu {
    this: Cell<*const PerCpu>,
    /// The lowest address of the running thread's kernel stack.
    pub(crate) kernel_stack_bottom: Cell<u64>,
    /// The address behind the running thread's kernel stack.
    pub(crate) kernel_stack_top: Cell<u64>,
    /// The lowest address of this CPU's interrupt-stack-table and emergency stacks.
    pub(crate) trap_stacks_bottom: Cell<u64>,
    /// The address behind them.
    pub(crate) trap_stacks_top: Cell<u64>,
    /// The stack that a fault without a usable stack is reported on.
    pub(crate) emergency_stack_top: Cell<u64>,
    /// 0 while program code runs, 1 inside the gate.
    pub(crate) gate_depth: Cell<u32>,

    /// This CPU's number.
    pub(crate) cpu: Cell<CpuId>,
    /// Its APIC id.
    pub(crate) apic_id: Cell<ApicId>,
    /// How interrupts reach it together with others; `None` if by its APIC id only.
    pub(crate) logical_id: Cell<Option<LogicalId>>,
    /// Its node.
    pub(crate) node: Cell<NodeId>,
    /// The thread that runs.
    pub(crate) current: UnsafeCell<Option<Arc<Thread>>>,
    /// The thread that ran before the last switch, until the next one has taken over.
    pub(crate) previous: UnsafeCell<Option<Arc<Thread>>>,
    /// What runs when nothing else is ready.
    pub(crate) idle_thread: UnsafeCell<Option<Arc<Thread>>>,
    /// What program memory wants to have at hand here, once it is set up.
    pub(crate) space: Cell<Option<CpuSpace<'static, DirectMap>>>,
    /// What fell due while it could not run.
    pub(crate) due: Cell<Due>,
    /// When the memory manager asked to be called, on the monotonic clock; `u64::MAX` if it did not.
    pub(crate) alarm_at_ns: Cell<u64>,
    /// When housekeeping is due next on this CPU, on the monotonic clock; `u64::MAX` on all but the housekeeper.
    pub(crate) housekeeping_at_ns: Cell<u64>,
    /// Segment and interrupt-stack tables.
    pub(crate) segments: UnsafeCell<Segments>,
    /// Event counts, once the number of nodes is known.
    pub(crate) counters: Cell<&'static CpuCounters>,
    /// What it has of the heaps.
    pub(crate) heaps: CpuHeaps,
    /// Threads blocked here with a deadline.
    pub(crate) timers: InterruptSpinMutex<TimerQueue>,

    /// Threads ready to run here; any CPU may add one.
    pub(crate) run_queue: InterruptSpinMutex<RunQueue>,
    /// Whether this CPU halts until an interrupt, so that whoever adds a thread has to send one.
    pub(crate) idle: AtomicBool,
    /// Whether this CPU runs and answers interrupts.
    pub(crate) online: AtomicBool,
}

// SAFETY: the `Cell`s and `UnsafeCell`s are written by the owning CPU only, or before it runs. Others read only those that are
// not written once it runs (its numbers, its counters), the atomics and what is locked.
unsafe impl Sync for PerCpu {}
// SAFETY: nothing in it is bound to the CPU that built it.
unsafe impl Send for PerCpu {}

bitflags::bitflags! {
    /// What is left to do on a CPU when it holds no lock and its interrupts are on.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Due: u8 {
        /// Housekeeping.
        const HOUSEKEEPING = 1 << 0;
        /// The memory manager's alarm.
        const ALARM = 1 << 1;
    }
}

/// Offsets for assembly.
pub(crate) mod offset {
    use super::{PerCpu, offset_of};

    pub(crate) const KERNEL_STACK_BOTTOM: usize = offset_of!(PerCpu, kernel_stack_bottom);
    pub(crate) const KERNEL_STACK_TOP: usize = offset_of!(PerCpu, kernel_stack_top);
    pub(crate) const TRAP_STACKS_BOTTOM: usize = offset_of!(PerCpu, trap_stacks_bottom);
    pub(crate) const TRAP_STACKS_TOP: usize = offset_of!(PerCpu, trap_stacks_top);
    pub(crate) const EMERGENCY_STACK_TOP: usize = offset_of!(PerCpu, emergency_stack_top);
    pub(crate) const GATE_DEPTH: usize = offset_of!(PerCpu, gate_depth);
}

impl PerCpu {
    /// Data of a CPU that does not run yet. It counts as inside the gate until its first thread leaves it.
    pub(crate) const fn new() -> Self {
        Self {
            this: Cell::new(core::ptr::null()),
            kernel_stack_bottom: Cell::new(0),
            kernel_stack_top: Cell::new(0),
            trap_stacks_bottom: Cell::new(0),
            trap_stacks_top: Cell::new(0),
            emergency_stack_top: Cell::new(0),
            gate_depth: Cell::new(1),
            cpu: Cell::new(CpuId(0)),
            apic_id: Cell::new(ApicId(0)),
            logical_id: Cell::new(None),
            node: Cell::new(NodeId(0)),
            current: UnsafeCell::new(None),
            previous: UnsafeCell::new(None),
            idle_thread: UnsafeCell::new(None),
            space: Cell::new(None),
            due: Cell::new(Due::empty()),
            alarm_at_ns: Cell::new(u64::MAX),
            housekeeping_at_ns: Cell::new(u64::MAX),
            segments: UnsafeCell::new(Segments::new()),
            counters: Cell::new(&EARLY_COUNTERS),
            heaps: CpuHeaps::new(),
            timers: InterruptSpinMutex::new(TimerQueue::new()),
            run_queue: InterruptSpinMutex::new(RunQueue::new()),
            idle: AtomicBool::new(false),
            online: AtomicBool::new(false),
        }
    }

    /// Makes this the running CPU's data.
    ///
    /// # Safety
    /// The caller runs on the CPU that owns it, for good.
    pub(crate) unsafe fn install(&'static self) {
        self.this.set(self);
        GsBase::write(x86_64::VirtAddr::from_ptr(self));
    }

    /// Notes that `what` is left to do. The owning CPU only, with interrupts off.
    pub(crate) fn set_due(&self, what: Due) {
        self.due.set(self.due.get() | what);
    }

    /// Counts one event. The owning CPU only.
    pub(crate) fn count(&self, counter: CpuCounter) {
        self.counters.get().add(counter, 1);
    }

    /// The running thread, or `None` before threads exist.
    pub(crate) fn current(&self) -> Option<&Arc<Thread>> {
        // SAFETY: written only by a switch on this CPU, which comes back with the same thread.
        unsafe { (*self.current.get()).as_ref() }
    }
}

/// What happens before the number of nodes is known is counted here, and not shown.
static EARLY_COUNTERS: CpuCounters = CpuCounters::new(&[]);

/// The boot processor's data: needed before there is any memory to allocate from.
static BOOT_CPU: PerCpu = PerCpu::new();

/// All CPUs' data, by CPU number.
static ALL: OnceCell<&'static [&'static PerCpu]> = OnceCell::new();

/// Whether the boot processor's data are installed.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// The boot processor's data.
pub(crate) fn boot_cpu() -> &'static PerCpu {
    &BOOT_CPU
}

/// Installs the boot processor's data.
///
/// # Safety
/// Called once, on the boot processor, before anything else of this module.
pub(crate) unsafe fn install_boot_cpu() {
    // SAFETY: by the caller.
    unsafe { BOOT_CPU.install() };
    INSTALLED.store(true, Ordering::Release);
}

/// The running CPU's data.
#[inline(always)]
pub(crate) fn this_cpu() -> &'static PerCpu {
    let this: *const PerCpu;
    // SAFETY: GS points at this CPU's data from the first Rust code on; its first word is its own address, and never changes while
    // a thread runs, since threads stay on their CPUs.
    unsafe {
        core::arch::asm!("mov {}, gs:[0]", out(reg) this, options(nostack, pure, nomem, preserves_flags));
        &*this
    }
}

/// Whether [`this_cpu`] may be called.
pub(crate) fn installed() -> bool {
    INSTALLED.load(Ordering::Acquire)
}

/// Publishes the data of all CPUs, in order of their numbers.
pub(crate) fn set_all(all: &'static [&'static PerCpu]) {
    assert!(ALL.set(all).is_ok(), "the CPUs are set once");
}

/// All CPUs' data, by number; empty until the CPUs are known.
pub(crate) fn all() -> &'static [&'static PerCpu] {
    ALL.get().copied().unwrap_or(&[])
}
