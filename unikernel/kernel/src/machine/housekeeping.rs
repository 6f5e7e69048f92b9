//! What the kernel does beside the program: the network. Either on a CPU of its own (`housekeeping=CPU`), polling; or from a
//! 1 ms timer on the last CPU. Without a network no CPU does it, and no timer runs.

use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

use alloc::vec::Vec;
use homenode_topology::CpuId;
use x86_64::instructions::interrupts;

use super::percpu::{self, Due, PerCpu, this_cpu};
use super::traps::vector;
use super::{apic, clock, net, sched, tlb};

/// Time between two polls from the timer, in nanoseconds.
const PERIOD_NS: u64 = 1_000_000;

/// Who keeps house.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keeper {
    /// This CPU, which runs no program thread unless one is pinned to it.
    Dedicated(CpuId),
    /// This CPU, beside the program.
    Shared(CpuId),
}

/// Why the CPU that the command line names cannot keep house.
#[derive(Debug)]
pub(crate) enum KeeperError {
    NoSuchCpu(CpuId, usize),
    NoneLeft(CpuId),
}

impl fmt::Display for KeeperError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchCpu(cpu, count) => {
                write!(f, "housekeeping={cpu}: the machine has CPUs 0-{} only", count - 1)
            }
            Self::NoneLeft(cpu) => write!(
                f,
                "housekeeping={cpu}: the machine has no other CPU for the program: leave this word out"
            ),
        }
    }
}

impl Keeper {
    /// The CPU that the command line asks for, else the last one.
    ///
    /// # Errors
    /// When there is no such CPU, or no other for the program.
    pub(crate) fn choose(all: &[&'static PerCpu], asked: Option<CpuId>) -> Result<Self, KeeperError> {
        match asked {
            Some(cpu) if cpu.index() >= all.len() => Err(KeeperError::NoSuchCpu(cpu, all.len())),
            Some(cpu) if all.len() == 1 => Err(KeeperError::NoneLeft(cpu)),
            Some(cpu) => Ok(Self::Dedicated(cpu)),
            None => Ok(Self::Shared(CpuId::from(all.len() - 1))),
        }
    }

    /// The CPUs that program threads are placed on by default.
    pub(crate) fn program_cpus(self, all: &[&'static PerCpu]) -> Vec<CpuId> {
        let dedicated = match self {
            Self::Dedicated(cpu) => Some(cpu),
            Self::Shared(_) => None,
        };
        all.iter()
            .map(|cpu| cpu.cpu.get())
            .filter(|cpu| Some(*cpu) != dedicated)
            .collect()
    }
}

/// No CPU.
const NOBODY: u32 = u32::MAX;
/// The CPU whose timer keeps house.
static SHARED: AtomicU32 = AtomicU32::new(NOBODY);
/// The CPU that polls.
static DEDICATED: AtomicU32 = AtomicU32::new(NOBODY);

/// Lets the keeper begin.
pub(crate) fn start(keeper: Keeper) {
    let cpu = match keeper {
        Keeper::Dedicated(cpu) => {
            DEDICATED.store(cpu.0, Ordering::Release);
            cpu
        }
        Keeper::Shared(cpu) => {
            SHARED.store(cpu.0, Ordering::Release);
            cpu
        }
    };
    let cpu = percpu::all()[cpu.index()];
    if core::ptr::eq(cpu, this_cpu()) {
        begin_ticking_if_asked(cpu);
    } else {
        // A CPU's timer can only be armed by itself.
        let sent = apic::local().send_ipi(cpu.apic_id.get(), vector::WAKE);
        debug_assert!(sent.is_ok(), "an online CPU can be interrupted");
    }
}

/// Whether `cpu` does nothing but housekeeping.
pub(crate) fn is_dedicated(cpu: &PerCpu) -> bool {
    DEDICATED.load(Ordering::Relaxed) == cpu.cpu.get().0
}

/// Arms the running CPU's timer if it has become the keeper. Interrupts are off.
pub(crate) fn begin_ticking_if_asked(cpu: &'static PerCpu) {
    if cpu.housekeeping_at_ns.get() == u64::MAX && SHARED.load(Ordering::Acquire) == cpu.cpu.get().0 {
        cpu.housekeeping_at_ns.set(clock::now_ns() + PERIOD_NS);
        sched::arm_timer(cpu);
    }
}

/// Called by the timer: notes housekeeping as due when its time has come.
pub(crate) fn note_tick(cpu: &PerCpu) {
    let now_ns = clock::now_ns();
    if now_ns >= cpu.housekeeping_at_ns.get() {
        cpu.set_due(Due::HOUSEKEEPING);
        cpu.housekeeping_at_ns.set(now_ns + PERIOD_NS);
    }
}

/// Does what fell due on this CPU. Inside the gate, interrupts on.
#[inline]
pub(crate) fn run_if_due() {
    if this_cpu().due.get() != Due::empty() {
        run_due();
    }
}

#[cold]
fn run_due() {
    let due = interrupts::without_interrupts(|| this_cpu().due.replace(Due::empty()));
    if due.contains(Due::ALARM) {
        tlb::alarm();
    }
    if due.contains(Due::HOUSEKEEPING) {
        net::poll();
    }
}
