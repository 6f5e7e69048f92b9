//! TLB coherence of this slice: synchronous. Whoever unmaps asks every other running CPU to flush and waits for all answers.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use hermit_sync::SpinMutex;
use homenode_metrics::CpuCounter;

use super::percpu::{self, PerCpu, this_cpu};
use super::traps::vector;
use super::{apic, memory};

/// Number of the newest request.
static REQUESTED: AtomicU64 = AtomicU64::new(0);
/// How many CPUs have not answered it yet.
static MISSING: AtomicU32 = AtomicU32::new(0);
/// One request at a time. Its holder keeps interrupts on, so that it answers nobody late; others spin with interrupts on.
static REQUEST: SpinMutex<()> = SpinMutex::new(());

/// Drops all cached translations of program memory on every running CPU, and returns when that is done. Inside the gate,
/// interrupts on, no lock held.
pub(crate) fn flush_all_cpus() {
    let this = this_cpu();
    let _one_at_a_time = REQUEST.lock();
    let others = || {
        percpu::all()
            .iter()
            .filter(|cpu| !core::ptr::eq(**cpu, this) && cpu.online.load(Ordering::Acquire))
    };
    MISSING.store(others().count() as u32, Ordering::Relaxed);
    // Orders the cleared entries before the request: who sees the number flushes what was unmapped.
    REQUESTED.fetch_add(1, Ordering::SeqCst);
    let apic = apic::local();
    for cpu in others() {
        let sent = apic.send_ipi(cpu.apic_id.get(), vector::FLUSH);
        assert!(sent.is_ok(), "an online CPU can be interrupted");
    }
    if others().next().is_some() {
        this.count(CpuCounter::TlbRemoteFlush);
    }
    memory::flush_tlb();
    this.count(CpuCounter::TlbLocalFlushAll);
    while MISSING.load(Ordering::Acquire) != 0 {
        spin_loop();
    }
}

/// Answers a request of another CPU. Called by the interrupt.
pub(crate) fn answer(cpu: &PerCpu) {
    let requested = REQUESTED.load(Ordering::SeqCst);
    if cpu.flushed.replace(requested) == requested {
        return;
    }
    memory::flush_tlb();
    cpu.count(CpuCounter::TlbRemoteFlushReceived);
    cpu.count(CpuCounter::TlbLocalFlushAll);
    MISSING.fetch_sub(1, Ordering::Release);
}
