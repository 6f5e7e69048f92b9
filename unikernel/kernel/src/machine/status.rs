//! What the metrics server shows of the kernel.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use homenode_metrics::{
    CpuCounter, CpuCounters, FreeMemory, MappedBytes, NodeMemory, NodeStatus, PageTableLocks, Program,
    Source, Status,
};
use homenode_topology::{CpuId, NodeId};

use super::percpu::{self, PerCpu};
use super::{clock, memory, net, program, program_memory, rtc, sched, sys, tlb};

/// The running kernel.
pub(crate) struct Kernel;

impl Source for Kernel {
    fn status(&self) -> Status {
        let counters = self.cpu_counters();
        let counters = counters.iter().map(|&(_, counters)| counters);
        Status {
            version: env!("CARGO_PKG_VERSION"),
            uptime: clock::now(),
            boot_time: rtc::boot_time(),
            boot_duration: program::boot_duration(),
            program: Program {
                name: program::name().to_string(),
                state: program::state(),
            },
            threads: sched::thread_counts(),
            page_faults: CpuCounters::sum(counters.clone(), CpuCounter::PageFault),
            page_table_locks: PageTableLocks::counted_by(program_memory::lock_scheme(), counters.clone()),
            tlb: tlb::status(),
            nodes: sys::topology()
                .nodes()
                .iter()
                .map(|node| node_status(node.id(), counters.clone()))
                .collect(),
            network: net::status(),
        }
    }

    fn topology(&self) -> String {
        serde_json::to_string(sys::topology()).expect("a topology has nothing that JSON lacks")
    }

    fn cpu_counters(&self) -> Vec<(CpuId, &CpuCounters)> {
        online().map(|cpu| (cpu.cpu.get(), cpu.counters.get())).collect()
    }
}

fn online() -> impl Iterator<Item = &'static PerCpu> {
    percpu::all()
        .iter()
        .copied()
        .filter(|cpu| cpu.online.load(Ordering::Acquire))
}

fn node_status<'a>(node: NodeId, counters: impl IntoIterator<Item = &'a CpuCounters> + Clone) -> NodeStatus {
    let memory = memory::frames().stats(node);
    NodeStatus {
        node,
        cpus_online: online().filter(|cpu| cpu.node.get() == node).count() as u64,
        memory: memory.map_or_else(NodeMemory::default, |memory| NodeMemory {
            total_bytes: memory.total_bytes,
            free: FreeMemory::new(&memory.free_blocks),
            cached_bytes: memory.cached_bytes,
            kept_bytes: memory.kept_bytes,
        }),
        mapped_bytes: MappedBytes::counted_by(node, counters),
        tlb: tlb::status_of(node),
    }
}
