//! A machine with fixed numbers.

use std::sync::Once;
use std::time::Duration;

use homenode_metrics::{
    AppCounter, CpuCounter, CpuCounters, FreeMemory, MappedBytes, NetworkStatus, NodeCounter, NodeCounters,
    NodeMemory, NodeStatus, NodeTlb, PageTableLocks, Program, ProgramState, Source, Status, Threads, Tlb,
};
use homenode_topology::{CpuId, NodeId};

/// An application's counter, which [`Machine::new`] sets to 1.
static TRANSFORMS: AppCounter = AppCounter::new(
    "fft3d_transforms_total",
    "Transforms done, \"forward\" and inverse.",
);

/// Two nodes; node 0 has CPUs 0 and 1, node 1 has memory only.
pub(crate) struct Machine {
    cpus: [CpuCounters; 2],
    pub(crate) program: ProgramState,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let cpus =
            [0, 1].map(|_| CpuCounters::new(Box::leak(Box::new([NodeCounters::new(), NodeCounters::new()]))));
        cpus[0].add(CpuCounter::TimerInterrupt, 5);
        cpus[1].add(CpuCounter::WakeInterrupt, 2);
        cpus[1].add(CpuCounter::ContextSwitch, 9);
        for (cpu, n) in cpus.iter().zip([3, 4]) {
            cpu.add(CpuCounter::TlbLocalFlushOne, n);
            cpu.add(CpuCounter::PageFault, 10 * n);
            cpu.add(CpuCounter::TableLock, 100 * n);
        }
        cpus[0].add(CpuCounter::TableLockContended, 6);
        cpus[0].add(CpuCounter::TlbRetired, 40);
        cpus[0].add(CpuCounter::TlbForcedDeadline, 1);
        cpus[0].add(CpuCounter::TlbSentDeadline, 3);
        cpus[1].add(CpuCounter::TlbCaughtUpInterrupt, 1);
        cpus[1].add(CpuCounter::TlbCaughtUpKernel, 5);
        cpus[1].add(CpuCounter::Split, 1);
        cpus[0].add(CpuCounter::MigrateSuccess, 8);
        cpus[1].add(CpuCounter::MigrateFail, 2);
        for (cpu, n) in cpus.iter().zip([1, 2]) {
            cpu.add_node(NodeId(0), NodeCounter::NumaHit, n);
            cpu.add_node(NodeId(1), NodeCounter::NumaMiss, 10 * n);
            cpu.add_node(NodeId(0), NodeCounter::ThpFaultAlloc, 20);
        }
        cpus[0].add_node(NodeId(1), NodeCounter::ThpFaultFallback, 1);
        // CPU 1 unmaps what CPU 0 has mapped.
        cpus[0].add_pages(NodeId(0), 0, 3);
        cpus[1].add_pages(NodeId(0), 0, -2);
        cpus[0].add_pages(NodeId(0), 1, 20);
        cpus[1].add_pages(NodeId(1), 0, 1);
        static TRANSFORMED: Once = Once::new();
        TRANSFORMED.call_once(|| TRANSFORMS.add(CpuId(0), 1));
        Self {
            cpus,
            program: ProgramState::Running,
        }
    }
}

impl Source for Machine {
    fn status(&self) -> Status {
        let node = |node, cpus_online, free_blocks: &[u64], cached_bytes| NodeStatus {
            node: NodeId(node),
            cpus_online,
            memory: NodeMemory {
                total_bytes: 1 << 30,
                free: FreeMemory::new(free_blocks),
                cached_bytes,
                kept_bytes: 2 << 20,
            },
            mapped_bytes: MappedBytes::counted_by(NodeId(node), &self.cpus),
            tlb: NodeTlb {
                pending_bytes: cached_bytes * 16,
                pending_max_bytes: 32 << 20,
                generation_lag: cpus_online,
            },
        };
        Status {
            version: "0.1.0",
            uptime: Duration::from_millis(12_500),
            boot_time: Some(Duration::from_secs(1_800_000_000)),
            boot_duration: Duration::from_millis(250),
            program: Program {
                name: "fft3d".into(),
                state: self.program,
            },
            threads: Threads {
                running: 2,
                ready: 0,
                blocked: 1,
            },
            page_faults: CpuCounters::sum(&self.cpus, CpuCounter::PageFault),
            page_table_locks: PageTableLocks::counted_by("split", &self.cpus),
            tlb: Tlb {
                lazy: true,
                deadline: Duration::from_millis(10),
                range_max_pages: 33,
                generation: 17,
            },
            nodes: vec![node(0, 2, &[1, 0, 3], 4096), node(1, 0, &[0, 0, 0], 0)],
            network: NetworkStatus {
                received_packets: 11,
                transmitted_packets: 12,
            },
        }
    }

    fn topology(&self) -> String {
        r#"{"nodes":2}"#.into()
    }

    fn cpu_counters(&self) -> Vec<(CpuId, &CpuCounters)> {
        self.cpus
            .iter()
            .enumerate()
            .map(|(cpu, counters)| (CpuId::from(cpu), counters))
            .collect()
    }
}
