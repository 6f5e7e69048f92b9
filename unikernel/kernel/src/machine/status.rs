//! What the metrics server shows of the kernel.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use homenode_metrics::{CpuCounters, MappedBytes, NodeMemory, NodeStatus, Program, Source, Status};
use homenode_topology::{CpuId, NodeId};

use super::percpu::{self, PerCpu};
use super::{clock, memory, net, program, program_memory, rtc, sched, sys};

/// The running kernel.
pub(crate) struct Kernel;

impl Source for Kernel {
    fn status(&self) -> Status {
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
            nodes: sys::topology()
                .nodes()
                .iter()
                .map(|node| node_status(node.id()))
                .collect(),
            network: net::status(),
        }
    }

    fn topology(&self) -> String {
        serde_json::to_string(sys::topology()).expect("a topology has nothing that JSON lacks")
    }

    fn cpu_counters(&self) -> Vec<(CpuId, &CpuCounters)> {
        online()
            .filter_map(|cpu| Some((cpu.cpu.get(), cpu.counters.get()?)))
            .collect()
    }
}

fn online() -> impl Iterator<Item = &'static PerCpu> {
    percpu::all()
        .iter()
        .copied()
        .filter(|cpu| cpu.online.load(Ordering::Acquire))
}

fn node_status(node: NodeId) -> NodeStatus {
    let memory = memory::frames().stats(node);
    let [by_4k, by_2m, by_1g] = program_memory::mapped_bytes(node);
    NodeStatus {
        node,
        cpus_online: online().filter(|cpu| cpu.node.get() == node).count() as u64,
        memory: memory.map_or(NodeMemory::new(0, &[]), |memory| {
            NodeMemory::new(memory.total_bytes, &memory.free_blocks)
        }),
        mapped_bytes: MappedBytes { by_4k, by_2m, by_1g },
    }
}
