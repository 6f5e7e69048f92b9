//! The CPUs' part in TLB coherence: when they have translations of program memory, where they drop them, and when memory that was
//! given back is free.

use core::time::Duration;

use homenode_metrics::{CpuCounter, NodeTlb, Tlb};
use homenode_mm::{Cause, SafePoint};
use homenode_topology::NodeId;

use super::memory::DirectMap;
use super::percpu::{self, Due, PerCpu, this_cpu};
use super::program_memory::space;
use super::{clock, gate};

/// Lets the running CPU, whose data is `cpu`, take part. Once, before its first thread.
pub(crate) fn join(cpu: &PerCpu) {
    cpu.space.set(Some(space().of_cpu(cpu.cpu.get())));
    exit_idle();
}

/// Lets the running CPU, which was idle, use program memory from now on.
pub(crate) fn exit_idle() {
    space().tlb().exit_idle(&DirectMap);
}

/// Lets nobody wait for the running CPU until [`exit_idle`], before which it touches no program memory.
pub(crate) fn enter_idle() {
    space().tlb().enter_idle(&DirectMap);
}

/// Drops this CPU's translations if others wait for that. Called where it holds no lock and walks no page table.
#[inline(always)]
pub(crate) fn safe_point() {
    if is_behind() {
        catch_up(SafePoint::Kernel);
    }
}

/// As [`safe_point`], where the program says so.
#[inline]
pub(crate) fn quiesce() {
    if is_behind() {
        gate::enter(|| catch_up(SafePoint::Quiesce));
    }
}

/// Whether others wait until the running CPU has dropped its translations.
#[inline(always)]
fn is_behind() -> bool {
    let space = this_cpu().space.get();
    space.is_some_and(|space| space.is_behind())
}

#[cold]
fn catch_up(at: SafePoint) -> bool {
    space().tlb().catch_up(&DirectMap, at)
}

/// Drops this CPU's translations as another CPU asks. Called by the interrupt.
pub(crate) fn answer_flush(cpu: &PerCpu) {
    if catch_up(SafePoint::Interrupt) {
        cpu.count(CpuCounter::TlbRemoteFlushReceived);
    }
}

/// Called by the timer: notes the memory manager's alarm as due when its time has come.
pub(crate) fn note_alarm(cpu: &PerCpu) {
    if clock::now_ns() >= cpu.alarm_at_ns.get() {
        cpu.alarm_at_ns.set(u64::MAX);
        cpu.set_due(Due::ALARM);
    }
}

/// Does what the alarm was set for. Inside the gate, interrupts on.
pub(crate) fn alarm() {
    space().alarm();
}

/// Returns when all that has been given back until now is free; whether there was anything. Inside the gate, interrupts on.
pub(crate) fn drain(cause: Cause) -> bool {
    space().drain(cause)
}

/// What becomes of memory that is given back: "lazy" or "off".
pub(crate) fn mode() -> &'static str {
    if space().is_lazy() { "lazy" } else { "off" }
}

/// What holds for all CPUs, for the metrics.
pub(crate) fn status() -> Tlb {
    let (space, tlb) = (space(), space().tlb());
    Tlb {
        lazy: space.is_lazy(),
        deadline: Duration::from_nanos(space.deadline_ns()),
        range_max_pages: tlb.range_max_pages(),
        generation: tlb.epoch(),
    }
}

/// How far the CPUs of a node are, for the metrics.
pub(crate) fn status_of(node: NodeId) -> NodeTlb {
    let space = space();
    let cpus = || {
        let of_node = percpu::all().iter().filter(move |cpu| cpu.node.get() == node);
        of_node.map(|cpu| cpu.cpu.get())
    };
    NodeTlb {
        pending_bytes: cpus().map(|cpu| space.pending_bytes(cpu)).sum(),
        pending_max_bytes: space.pending_max_bytes(node),
        generation_lag: cpus().map(|cpu| space.tlb().lag(cpu)).max().unwrap_or(0),
    }
}
