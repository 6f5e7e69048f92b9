//! What the kernel reports about itself at the time of a request.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use homenode_topology::{CpuId, NodeId};
use serde::{Serialize, Serializer};

use crate::counters::{CpuCounter, CpuCounters};

/// Where the numbers come from. The kernel implements it; it is asked anew for each request, and must not wait.
pub trait Source {
    /// The machine's present state.
    fn status(&self) -> Status;

    /// The topology as JSON.
    fn topology(&self) -> String;

    /// The counters of each CPU that runs, in the order of the CPUs.
    fn cpu_counters(&self) -> Vec<(CpuId, &CpuCounters)>;
}

/// The machine's state, as `/status` shows it and as `/metrics` takes its gauges from.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The kernel's version.
    pub version: &'static str,
    /// The time since the kernel's entry.
    #[serde(rename = "uptime_seconds", serialize_with = "seconds")]
    pub uptime: Duration,
    /// The wall-clock time of the kernel's entry since 1970-01-01 00:00 UTC; `None` if the machine has no such clock.
    #[serde(rename = "boot_time_seconds", serialize_with = "optional_seconds")]
    pub boot_time: Option<Duration>,
    /// The time from the kernel's entry to the application's `main`; before that, the time so far.
    #[serde(rename = "boot_duration_seconds", serialize_with = "seconds")]
    pub boot_duration: Duration,
    /// The application.
    pub program: Program,
    /// How many threads are in each state.
    pub threads: Threads,
    /// Page faults on program memory that were handled since boot, by all CPUs.
    pub page_faults: u64,
    /// The locks of program memory's page table.
    pub page_table_locks: PageTableLocks,
    /// TLB coherence.
    pub tlb: Tlb,
    /// One item for each node, in the order of the nodes.
    pub nodes: Vec<NodeStatus>,
    /// The network interface.
    pub network: NetworkStatus,
}

/// The application.
#[derive(Clone, Debug, Serialize)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Whether it runs.
    #[serde(flatten)]
    pub state: ProgramState,
}

/// Whether the application runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum ProgramState {
    /// `main` has not returned.
    Running,
    /// `main` has returned, and the machine lingers.
    Ended {
        /// The application's exit status.
        exit_status: i32,
    },
}

/// Numbers of threads by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Threads {
    /// On a CPU.
    pub running: u64,
    /// Able to run, and waiting for a CPU.
    pub ready: u64,
    /// Waiting for something else.
    pub blocked: u64,
}

impl Threads {
    /// Each state's name and number.
    pub(crate) const fn by_state(&self) -> [(&'static str, u64); 3] {
        [
            ("running", self.running),
            ("ready", self.ready),
            ("blocked", self.blocked),
        ]
    }
}

/// The locks of program memory's page table since boot, summed over all CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PageTableLocks {
    /// `split` if each page of the table has its own lock, `coarse` if all have one.
    pub scheme: &'static str,
    /// How many times one was taken.
    pub acquisitions: u64,
    /// How many of these found it held by another CPU.
    pub contended: u64,
}

impl PageTableLocks {
    /// What `cpus` counted under `scheme`.
    pub fn counted_by<'a, C>(scheme: &'static str, cpus: C) -> Self
    where
        C: IntoIterator<Item = &'a CpuCounters> + Clone,
    {
        // First, so that what is counted between the two makes the contended ones look fewer, never more than all.
        let contended = CpuCounters::sum(cpus.clone(), CpuCounter::TableLockContended);
        Self {
            scheme,
            acquisitions: CpuCounters::sum(cpus, CpuCounter::TableLock),
            contended,
        }
    }
}

/// What becomes of memory that is given back, and how far CPUs are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tlb {
    /// Whether it waits until CPUs have dropped their translations by themselves.
    pub lazy: bool,
    /// How long it waits before CPUs are interrupted.
    #[serde(rename = "deadline_seconds", serialize_with = "seconds")]
    pub deadline: Duration,
    /// The most pages that CPUs drop one by one.
    pub range_max_pages: u32,
    /// The newest generation that CPUs are to pass.
    pub generation: u64,
}

/// A node's part in TLB coherence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeTlb {
    /// The bytes that its CPUs have given back and that wait.
    pub pending_bytes: u64,
    /// How many may wait.
    pub pending_max_bytes: u64,
    /// How many generations that of its CPUs which is furthest behind has yet to pass, idle ones left out.
    pub generation_lag: u64,
}

/// One node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeStatus {
    /// Its number.
    pub node: NodeId,
    /// How many of its CPUs run.
    pub cpus_online: u64,
    /// Its memory.
    pub memory: NodeMemory,
    /// Program memory that is mapped to this node's frames.
    pub mapped_bytes: MappedBytes,
    /// Its part in TLB coherence.
    pub tlb: NodeTlb,
}

/// The memory of a node that is under the frame allocator's care.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeMemory {
    /// All of it.
    pub total_bytes: u64,
    /// What is free.
    #[serde(flatten)]
    pub free: FreeMemory,
    /// How much of the free memory lies in the CPUs' caches.
    pub cached_bytes: u64,
    /// How much free memory outside the caches programs leave to the kernel.
    pub kept_bytes: u64,
}

/// Free memory by the size of the free blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FreeMemory {
    free_bytes: u64,
    free_bytes_by_order: Vec<u64>,
}

impl FreeMemory {
    /// `blocks[n]` free blocks of 2ⁿ frames of 4 KiB, for each n.
    #[must_use]
    pub fn new(blocks: &[u64]) -> Self {
        let free_bytes_by_order: Vec<u64> = (12..)
            .zip(blocks)
            .map(|(shift, blocks)| blocks << shift)
            .collect();
        Self {
            free_bytes: free_bytes_by_order.iter().sum(),
            free_bytes_by_order,
        }
    }

    pub(crate) fn by_order(&self) -> &[u64] {
        &self.free_bytes_by_order
    }
}

/// Bytes mapped, by the size of the page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MappedBytes {
    /// By pages of 4 KiB.
    #[serde(rename = "4KiB")]
    pub by_4k: u64,
    /// By pages of 2 MiB.
    #[serde(rename = "2MiB")]
    pub by_2m: u64,
    /// By pages of 1 GiB.
    #[serde(rename = "1GiB")]
    pub by_1g: u64,
}

impl MappedBytes {
    /// What `cpus`, which must be all that ever counted, say of the frames of `node`.
    ///
    /// They go on counting meanwhile. A page that one CPU maps and another one unmaps may thus be seen to go but not to come, so
    /// that a sum can be a few pages short; it is never shown below 0.
    pub fn counted_by<'a, C>(node: NodeId, cpus: C) -> Self
    where
        C: IntoIterator<Item = &'a CpuCounters> + Clone,
    {
        let [by_4k, by_2m, by_1g] = [(0, 12), (1, 21), (2, 30)].map(|(size, shift)| {
            let shares = cpus.clone().into_iter().map(|cpu| cpu.pages(node, size));
            let pages = shares.fold(0, i64::wrapping_add).max(0);
            pages.cast_unsigned() << shift
        });
        Self { by_4k, by_2m, by_1g }
    }

    /// Each page size's name and number of bytes.
    pub(crate) const fn by_page_size(&self) -> [(&'static str, u64); 3] {
        [("4KiB", self.by_4k), ("2MiB", self.by_2m), ("1GiB", self.by_1g)]
    }
}

/// Ethernet frames since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NetworkStatus {
    /// Received.
    pub received_packets: u64,
    /// Sent.
    pub transmitted_packets: u64,
}

fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

fn optional_seconds<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    duration
        .map(|duration| duration.as_secs_f64())
        .serialize(serializer)
}
