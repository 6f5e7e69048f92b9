//! The kernel's own counters: one set per CPU, written by that CPU, summed when read.
//!
//! A new counter is one line in a table below; the renderer, and the test that compares the output with `docs/metrics.md`,
//! find it there.

use core::sync::atomic::{AtomicU64, Ordering};

use homenode_topology::NodeId;

use crate::exposition::Family;

/// Defines an enum of counters. Each names its family; counters of one family differ in one label, and stand together.
macro_rules! counter_table {
    (
        $(#[$doc:meta])* $name:ident {
            $($(#[$variant_doc:meta])* $variant:ident => $family:ident $([$label:literal = $value:literal])?,)+
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            /// Every counter of the table, in its order.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name and the help under which the counter is shown.
            pub(crate) const fn family(self) -> &'static Family {
                match self {
                    $(Self::$variant => &$family,)+
                }
            }

            /// The label that tells the counter from the others of its family.
            pub(crate) const fn label(self) -> Option<(&'static str, &'static str)> {
                match self {
                    $($(Self::$variant => Some(($label, $value)),)?)+
                    #[allow(unreachable_patterns)]
                    _ => None,
                }
            }
        }
    };
}

const INTERRUPTS: Family = Family::counter("interrupts_total", "Interrupts taken, by kind and CPU.");
const NR_TLB_REMOTE_FLUSH: Family = Family::counter(
    "nr_tlb_remote_flush_total",
    "TLB flushes that this CPU asked of the other CPUs.",
);
const NR_TLB_REMOTE_FLUSH_RECEIVED: Family = Family::counter(
    "nr_tlb_remote_flush_received_total",
    "TLB flushes that another CPU asked of this one.",
);
const NR_TLB_LOCAL_FLUSH_ALL: Family = Family::counter(
    "nr_tlb_local_flush_all_total",
    "Times that this CPU dropped all of its translations.",
);
const NR_TLB_LOCAL_FLUSH_ONE: Family = Family::counter(
    "nr_tlb_local_flush_one_total",
    "Times that this CPU dropped the translation of a single page.",
);
const TLB_RETIRED: Family = Family::counter(
    "tlb_retired_total",
    "Ranges of program memory that this CPU gave back and that wait for CPUs to drop translations.",
);
const TLB_CATCH_UPS: Family = Family::counter(
    "tlb_catch_ups_total",
    "Times that this CPU dropped translations for which others wait, by where it did.",
);
const TLB_FORCED: Family = Family::counter(
    "tlb_forced_total",
    "Times that this CPU did not wait for the other CPUs' safe points, by cause.",
);
const TLB_INTERRUPTS_SENT: Family = Family::counter(
    "tlb_interrupts_sent_total",
    "CPUs that this CPU interrupted so that they drop translations, by cause.",
);
const TLB_RING_OVERRUNS: Family = Family::counter(
    "tlb_ring_overruns_total",
    "Times that this CPU came too late for a request to drop a few pages, and dropped all translations.",
);
const PGFAULT: Family = Family::counter(
    "pgfault_total",
    "Page faults on program memory that this CPU handled.",
);
const PAGE_TABLE_LOCK_ACQUISITIONS: Family = Family::counter(
    "page_table_lock_acquisitions_total",
    "Page-table locks that this CPU took.",
);
const PAGE_TABLE_LOCK_CONTENDED: Family = Family::counter(
    "page_table_lock_contended_total",
    "Page-table locks that another CPU held when this one came to take them.",
);
const THP_SPLIT_PMD: Family = Family::counter(
    "thp_split_pmd_total",
    "2 MiB mappings that this CPU split into mappings of 4 KiB.",
);
const PGMIGRATE_SUCCESS: Family = Family::counter(
    "pgmigrate_success_total",
    "Pages of any size that this CPU moved to another node.",
);
const PGMIGRATE_FAIL: Family = Family::counter(
    "pgmigrate_fail_total",
    "Pages of any size that this CPU was to move to another node and could not.",
);
const CONTEXT_SWITCHES: Family = Family::counter(
    "context_switches_total",
    "Switches from one thread to another, by CPU.",
);

counter_table! {
    /// What is counted, and shown, for each CPU.
    CpuCounter {
        /// The CPU's own timer.
        TimerInterrupt => INTERRUPTS["kind" = "timer"],
        /// Another CPU's request to look at the run queue.
        WakeInterrupt => INTERRUPTS["kind" = "wake"],
        /// Another CPU's request to flush the TLB.
        FlushInterrupt => INTERRUPTS["kind" = "flush"],
        /// The local APIC's spurious vector.
        SpuriousInterrupt => INTERRUPTS["kind" = "spurious"],
        /// A TLB flush asked of the other CPUs.
        TlbRemoteFlush => NR_TLB_REMOTE_FLUSH,
        /// A TLB flush that another CPU asked for.
        TlbRemoteFlushReceived => NR_TLB_REMOTE_FLUSH_RECEIVED,
        /// A flush of all of this CPU's translations.
        TlbLocalFlushAll => NR_TLB_LOCAL_FLUSH_ALL,
        /// A flush of one page's translation on this CPU.
        TlbLocalFlushOne => NR_TLB_LOCAL_FLUSH_ONE,
        /// A range given back that waits.
        TlbRetired => TLB_RETIRED,
        /// Translations dropped in the interrupt that asks for it.
        TlbCaughtUpInterrupt => TLB_CATCH_UPS["at" = "interrupt"],
        /// Translations dropped where the kernel is left.
        TlbCaughtUpKernel => TLB_CATCH_UPS["at" = "kernel"],
        /// Translations dropped where the program says that it may be done.
        TlbCaughtUpQuiesce => TLB_CATCH_UPS["at" = "quiesce"],
        /// Translations dropped at the end of idleness.
        TlbCaughtUpIdle => TLB_CATCH_UPS["at" = "idle"],
        /// Translations dropped while this CPU waits for others itself.
        TlbCaughtUpOwn => TLB_CATCH_UPS["at" = "own"],
        /// Something has waited for as long as it may.
        TlbForcedDeadline => TLB_FORCED["cause" = "deadline"],
        /// More bytes wait than may.
        TlbForcedPending => TLB_FORCED["cause" = "pending"],
        /// A node is out of memory.
        TlbForcedMemory => TLB_FORCED["cause" = "memory"],
        /// The program wants all that waits.
        TlbForcedDrain => TLB_FORCED["cause" = "drain"],
        /// The program gives memory back for good at once.
        TlbForcedRevoke => TLB_FORCED["cause" = "revoke"],
        /// Pages that stay in use change.
        TlbForcedChange => TLB_FORCED["cause" = "change"],
        /// Nothing is left for later.
        TlbForcedOff => TLB_FORCED["cause" = "off"],
        /// As [`TlbForcedDeadline`](Self::TlbForcedDeadline), CPUs interrupted.
        TlbSentDeadline => TLB_INTERRUPTS_SENT["cause" = "deadline"],
        /// As [`TlbForcedPending`](Self::TlbForcedPending), CPUs interrupted.
        TlbSentPending => TLB_INTERRUPTS_SENT["cause" = "pending"],
        /// As [`TlbForcedMemory`](Self::TlbForcedMemory), CPUs interrupted.
        TlbSentMemory => TLB_INTERRUPTS_SENT["cause" = "memory"],
        /// As [`TlbForcedDrain`](Self::TlbForcedDrain), CPUs interrupted.
        TlbSentDrain => TLB_INTERRUPTS_SENT["cause" = "drain"],
        /// As [`TlbForcedRevoke`](Self::TlbForcedRevoke), CPUs interrupted.
        TlbSentRevoke => TLB_INTERRUPTS_SENT["cause" = "revoke"],
        /// As [`TlbForcedChange`](Self::TlbForcedChange), CPUs interrupted.
        TlbSentChange => TLB_INTERRUPTS_SENT["cause" = "change"],
        /// As [`TlbForcedOff`](Self::TlbForcedOff), CPUs interrupted.
        TlbSentOff => TLB_INTERRUPTS_SENT["cause" = "off"],
        /// A request that this CPU came too late for.
        TlbRingOverrun => TLB_RING_OVERRUNS,
        /// A page fault on program memory.
        PageFault => PGFAULT,
        /// A page-table lock taken.
        TableLock => PAGE_TABLE_LOCK_ACQUISITIONS,
        /// A page-table lock that was not free at the first try; it is counted as taken, too, once it is.
        TableLockContended => PAGE_TABLE_LOCK_CONTENDED,
        /// A 2 MiB mapping divided into 512 mappings of 4 KiB.
        Split => THP_SPLIT_PMD,
        /// A page moved to another node: one, whatever its size.
        MigrateSuccess => PGMIGRATE_SUCCESS,
        /// A page that was to move to another node and stayed: one, whatever its size.
        MigrateFail => PGMIGRATE_FAIL,
        /// A switch from one thread to another.
        ContextSwitch => CONTEXT_SWITCHES,
    }
}

const NUMA_HIT: Family = Family::counter("numa_hit_total", "Frames allocated on this node, as intended.");
const NUMA_MISS: Family = Family::counter(
    "numa_miss_total",
    "Frames allocated on this node though another node was intended.",
);
const NUMA_FOREIGN: Family = Family::counter(
    "numa_foreign_total",
    "Frames intended for this node but allocated on another node.",
);
const NUMA_INTERLEAVE: Family = Family::counter(
    "numa_interleave_total",
    "Frames that an interleaving policy intended for this node and got here.",
);
const NUMA_LOCAL: Family = Family::counter(
    "numa_local_total",
    "Frames allocated on this node by a CPU of this node.",
);
const NUMA_OTHER: Family = Family::counter(
    "numa_other_total",
    "Frames allocated on this node by a CPU of another node.",
);
const THP_FAULT_ALLOC: Family = Family::counter(
    "thp_fault_alloc_total",
    "2 MiB pages of program memory populated on this node.",
);
const THP_FAULT_FALLBACK: Family = Family::counter(
    "thp_fault_fallback_total",
    "2 MiB pages of program memory intended for this node and populated with 4 KiB pages instead.",
);

counter_table! {
    /// What is counted for each pair of a CPU and a node, and shown for each node.
    ///
    /// The `Numa` counters mean what Linux's `numastat` means by them, and count one for each frame, whatever its size.
    NodeCounter {
        /// The node was intended and gave the frame.
        NumaHit => NUMA_HIT,
        /// Another node was intended, this one gave the frame.
        NumaMiss => NUMA_MISS,
        /// This node was intended, another one gave the frame.
        NumaForeign => NUMA_FOREIGN,
        /// An interleaving policy intended this node, which gave the frame.
        NumaInterleave => NUMA_INTERLEAVE,
        /// The node gave a frame to a CPU of its own.
        NumaLocal => NUMA_LOCAL,
        /// The node gave a frame to a CPU of another node.
        NumaOther => NUMA_OTHER,
        /// A 2 MiB page of program memory was populated on the node.
        ThpFaultAlloc => THP_FAULT_ALLOC,
        /// 4 KiB pages were populated in place of a 2 MiB page intended for the node.
        ThpFaultFallback => THP_FAULT_FALLBACK,
    }
}

/// The number of page sizes: 4 KiB, 2 MiB and 1 GiB.
const PAGE_SIZES: usize = 3;

/// One CPU's counters about one node. The kernel keeps one per CPU and node, on the CPU's node.
#[derive(Debug)]
#[repr(align(64))]
pub struct NodeCounters {
    events: [AtomicU64; NodeCounter::ALL.len()],
    /// What this CPU mapped less what it unmapped, in pages of each size: two's complement, so that additions are plain.
    pages: [AtomicU64; PAGE_SIZES],
}

impl NodeCounters {
    /// All zero.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            events: [const { AtomicU64::new(0) }; NodeCounter::ALL.len()],
            pages: [const { AtomicU64::new(0) }; PAGE_SIZES],
        }
    }
}

impl Default for NodeCounters {
    fn default() -> Self {
        Self::new()
    }
}

/// One CPU's counters. No two CPUs' counters share a cache line, so that counting never moves one between CPUs.
///
/// Additions are atomic, so that interrupts may count too, and relaxed: a reader sees each counter's recent value, not a
/// moment common to all of them.
#[derive(Debug)]
#[repr(align(64))]
pub struct CpuCounters {
    cpu: [AtomicU64; CpuCounter::ALL.len()],
    nodes: &'static [NodeCounters],
}

impl CpuCounters {
    /// All zero; `nodes` has one item per node of the machine, indexed by node.
    #[must_use]
    pub const fn new(nodes: &'static [NodeCounters]) -> Self {
        Self {
            cpu: [const { AtomicU64::new(0) }; CpuCounter::ALL.len()],
            nodes,
        }
    }

    /// Adds `n` to `counter`.
    pub fn add(&self, counter: CpuCounter, n: u64) {
        self.cpu[counter as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// The value of `counter`.
    #[must_use]
    pub fn get(&self, counter: CpuCounter) -> u64 {
        self.cpu[counter as usize].load(Ordering::Relaxed)
    }

    /// The sum of `counter` over `cpus`.
    pub fn sum<'a>(cpus: impl IntoIterator<Item = &'a Self>, counter: CpuCounter) -> u64 {
        wrapping_sum(cpus.into_iter().map(|cpu| cpu.get(counter)))
    }

    /// The sum of `counter`, and of all others that are shown under the same name, over `cpus`.
    pub fn sum_of_family<'a>(cpus: impl Iterator<Item = &'a Self> + Clone, counter: CpuCounter) -> u64 {
        let family = CpuCounter::ALL
            .iter()
            .filter(|other| other.family() == counter.family());
        wrapping_sum(family.map(|&counter| Self::sum(cpus.clone(), counter)))
    }

    /// The sum of `counter` of `node` over `cpus`.
    pub(crate) fn sum_node<'a>(
        cpus: impl IntoIterator<Item = &'a Self>,
        node: NodeId,
        counter: NodeCounter,
    ) -> u64 {
        wrapping_sum(cpus.into_iter().map(|cpu| cpu.get_node(node, counter)))
    }

    /// Adds `n` to `counter` of `node`. A node past the end of the slice that [`new`](Self::new) got is not counted.
    pub fn add_node(&self, node: NodeId, counter: NodeCounter, n: u64) {
        if let Some(counters) = self.nodes.get(node.index()) {
            counters.events[counter as usize].fetch_add(n, Ordering::Relaxed);
        }
    }

    /// Counts a page of the size with this index that was mapped to a frame of `node`, where this CPU is and as was intended.
    #[inline]
    pub fn add_page_at_home(&self, node: NodeId, size: usize) {
        if let Some(counters) = self.nodes.get(node.index()) {
            counters.events[NodeCounter::NumaHit as usize].fetch_add(1, Ordering::Relaxed);
            counters.events[NodeCounter::NumaLocal as usize].fetch_add(1, Ordering::Relaxed);
            counters.pages[size].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The value of `counter` of `node`: 0 for a node past the end of the slice that [`new`](Self::new) got.
    #[must_use]
    pub fn get_node(&self, node: NodeId, counter: NodeCounter) -> u64 {
        self.nodes.get(node.index()).map_or(0, |counters| {
            counters.events[counter as usize].load(Ordering::Relaxed)
        })
    }

    /// Adds `n`, which may be negative, to the number of program pages that are mapped to `node`'s frames: pages of 4 KiB if
    /// `size` is 0, of 2 MiB if it is 1, of 1 GiB if it is 2. A node past the end of the slice that [`new`](Self::new) got is
    /// not counted.
    ///
    /// # Panics
    /// If `size` is more than 2.
    pub fn add_pages(&self, node: NodeId, size: usize, n: i64) {
        if let Some(counters) = self.nodes.get(node.index()) {
            counters.pages[size].fetch_add(n.cast_unsigned(), Ordering::Relaxed);
        }
    }

    /// This CPU's share of the program pages of `size` that are mapped to `node`'s frames, as for
    /// [`add_pages`](Self::add_pages). It is negative if the CPU unmapped more than it mapped; only the sum over all CPUs is a
    /// number of pages. It is 0 for a node past the end of the slice that [`new`](Self::new) got.
    ///
    /// # Panics
    /// If `size` is more than 2.
    #[must_use]
    pub fn pages(&self, node: NodeId, size: usize) -> i64 {
        self.nodes.get(node.index()).map_or(0, |counters| {
            counters.pages[size].load(Ordering::Relaxed).cast_signed()
        })
    }
}

/// A counter that has come round to 0 again is no reason to panic.
fn wrapping_sum(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;
    use core::mem::align_of;

    use super::*;

    fn counters(nodes: usize) -> CpuCounters {
        CpuCounters::new(Box::leak((0..nodes).map(|_| NodeCounters::new()).collect()))
    }

    #[test]
    fn each_counter_has_a_place_of_its_own() {
        let counters = counters(2);
        for (i, &counter) in (1..).zip(CpuCounter::ALL) {
            counters.add(counter, i);
        }
        for (i, &counter) in (1..).zip(NodeCounter::ALL) {
            counters.add_node(NodeId(1), counter, i);
        }
        for (i, &counter) in (1..).zip(CpuCounter::ALL) {
            assert_eq!(counters.get(counter), i);
        }
        for (i, &counter) in (1..).zip(NodeCounter::ALL) {
            assert_eq!(counters.get_node(NodeId(1), counter), i);
            assert_eq!(counters.get_node(NodeId(0), counter), 0);
        }
        for size in 0..PAGE_SIZES {
            assert_eq!(counters.pages(NodeId(1), size), 0);
        }
    }

    #[test]
    fn a_family_is_summed_over_cpus() {
        let cpus = [counters(0), counters(0)];
        for cpu in &cpus {
            for (i, &counter) in CpuCounter::ALL.iter().enumerate() {
                cpu.add(counter, 1 << i);
            }
        }
        let forced = [
            CpuCounter::TlbForcedDeadline,
            CpuCounter::TlbForcedPending,
            CpuCounter::TlbForcedMemory,
            CpuCounter::TlbForcedDrain,
            CpuCounter::TlbForcedRevoke,
            CpuCounter::TlbForcedChange,
            CpuCounter::TlbForcedOff,
        ];
        let sum: u64 = forced.iter().map(|&counter| 2 << counter as u32).sum();
        for counter in forced {
            assert_eq!(CpuCounters::sum_of_family(cpus.iter(), counter), sum);
        }
        let retired = CpuCounter::TlbRetired;
        assert_eq!(
            CpuCounters::sum_of_family(cpus.iter(), retired),
            2 << retired as u32
        );
    }

    #[test]
    fn pages_go_up_and_down_by_node_and_size() {
        let counters = counters(2);
        for (size, n) in [(0, 5), (1, -3), (2, 1), (0, -7)] {
            counters.add_pages(NodeId(1), size, n);
        }
        assert_eq!([0, 1, 2].map(|size| counters.pages(NodeId(1), size)), [-2, -3, 1]);
        assert_eq!([0, 1, 2].map(|size| counters.pages(NodeId(0), size)), [0; 3]);
        for &counter in NodeCounter::ALL {
            assert_eq!(counters.get_node(NodeId(1), counter), 0);
        }
    }

    #[test]
    fn a_sum_that_passes_the_end_wraps() {
        let cpus = [counters(1), counters(1)];
        cpus[0].add(CpuCounter::PageFault, u64::MAX);
        cpus[1].add(CpuCounter::PageFault, 3);
        assert_eq!(CpuCounters::sum(&cpus, CpuCounter::PageFault), 2);
    }

    #[test]
    fn an_unknown_node_is_not_counted() {
        let counters = counters(1);
        counters.add_node(NodeId(7), NodeCounter::NumaHit, 1);
        counters.add_pages(NodeId(7), 0, 1);
        assert_eq!(counters.get_node(NodeId(7), NodeCounter::NumaHit), 0);
        assert_eq!(counters.get_node(NodeId(0), NodeCounter::NumaHit), 0);
        assert_eq!(counters.pages(NodeId(7), 0), 0);
        assert_eq!(counters.pages(NodeId(0), 0), 0);
    }

    #[test]
    fn counters_of_two_cpus_share_no_cache_line() {
        assert!(align_of::<CpuCounters>() >= 64 && align_of::<NodeCounters>() >= 64);
    }
}
