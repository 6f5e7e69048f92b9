//! The queues of what has been given back: who waits for which generation, and how much that is.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crossbeam_utils::CachePadded;
use homenode_topology::NodeId;

use super::Retirement;
use crate::addr::VirtRange;
use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::frames::RetiredFrames;
use crate::frames::lock::Lock;
use crate::machine::Machine;
use crate::size::{FrameSize, Size2MiB};
use crate::tlb::{Generation, TlbEngine};

/// The most ranges in a batch.
pub(super) const BATCH_RANGES: usize = 128;
/// A batch is sealed when it has so many bytes, or the CPU's share of what may wait in open ones, …
const BATCH_BYTES: u64 = Size2MiB::BYTES;
/// … or when this part of the deadline is over since it was opened.
pub(super) const BATCH_AGE: u64 = 4;

/// A range that was given back, and the addresses that it was reserved from, which are free with it.
#[derive(Clone, Copy, Debug)]
pub(in crate::space) struct Retired {
    pub(in crate::space) range: VirtRange,
    pub(in crate::space) addresses: VirtRange,
}

/// What CPUs know of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Nothing.
    Nothing,
    /// They are to pass its generation at a safe point, and are interrupted at this time if they have not.
    Due { at_ns: u64 },
    /// They have been interrupted for it.
    Forced,
}

/// What waits for the same generation.
pub(super) struct Batch {
    pub(super) generation: Generation,
    pub(super) opened_ns: u64,
    pub(super) told: Told,
    pub(super) bytes: u64,
    pub(super) ranges: Vec<Retired>,
    pub(super) tables: RetiredFrames,
}

/// What a CPU has given back. Others lock it when memory is short.
pub(super) struct Queue {
    pub(super) open: Option<Batch>,
    /// In order of generation.
    pub(super) sealed: VecDeque<Batch>,
    /// Memory for the ranges of batches to come.
    pub(super) spare: Vec<Vec<Retired>>,
    /// Whether the CPU's alarm is set.
    pub(super) alarm: bool,
}

/// All CPUs' queues.
pub(in crate::space) struct RetireQueues {
    pub(super) lazy: bool,
    pub(super) deadline_ns: u64,
    pub(super) queues: Box<[CachePadded<CpuQueue>]>,
    /// By number, as far as there are nodes with CPUs.
    pub(super) nodes: Box<[CachePadded<NodeQueue>]>,
    /// When the epoch was last advanced.
    pub(super) advanced_ns: CachePadded<AtomicU64>,
}

pub(super) struct CpuQueue {
    pub(super) node: NodeId,
    /// The bytes with which a batch is sealed.
    pub(super) batch_bytes: u64,
    /// How many bytes wait, those included that are being reclaimed. Changed under the lock of the queue, and read without.
    pending_bytes: AtomicU64,
    /// How many batches are being reclaimed, by whatever CPU.
    pub(super) reclaiming: AtomicU32,
    pub(super) queue: Lock<Queue>,
}

/// What the CPUs of a node have in common. Written once per batch.
pub(super) struct NodeQueue {
    /// How many bytes may wait.
    pub(super) max_bytes: u64,
    /// How many wait in sealed batches.
    pub(super) sealed_bytes: AtomicU64,
}

impl NodeQueue {
    /// How many bytes may wait in sealed batches.
    pub(super) const fn sealed_max_bytes(&self) -> u64 {
        self.max_bytes / 2
    }
}

impl RetireQueues {
    pub(in crate::space) fn new(tlb: &TlbEngine, retirement: &Retirement) -> Self {
        let nodes = tlb.nodes().map(|(node, _)| node.index() + 1).max().unwrap_or(0);
        let of_node = |node: usize| retirement.pending_max_bytes.get(node).copied().unwrap_or(0);
        let mut queues = Vec::new();
        for (node, cpus) in tlb.nodes() {
            let share = of_node(node.index()) / 2 / cpus.len() as u64;
            let queue = |_| CpuQueue {
                node,
                batch_bytes: BATCH_BYTES.min(share),
                pending_bytes: AtomicU64::new(0),
                reclaiming: AtomicU32::new(0),
                queue: Lock::new(Queue {
                    open: None,
                    sealed: VecDeque::new(),
                    spare: Vec::new(),
                    alarm: false,
                }),
            };
            queues.extend(cpus.iter().map(|cpu| (*cpu, queue(cpu))));
        }
        queues.sort_by_key(|(cpu, _)| *cpu);
        let node_queue = |node| NodeQueue {
            max_bytes: of_node(node),
            sealed_bytes: AtomicU64::new(0),
        };
        Self {
            lazy: retirement.lazy,
            deadline_ns: retirement.deadline_ns,
            queues: queues
                .into_iter()
                .map(|(_, queue)| CachePadded::new(queue))
                .collect(),
            nodes: (0..nodes).map(node_queue).map(CachePadded::new).collect(),
            advanced_ns: CachePadded::new(AtomicU64::new(0)),
        }
    }
}

#[cfg(loom)]
impl RetireQueues {
    /// Watches the queues, and what protects them.
    pub(in crate::space) fn watch(&self) {
        for of in &self.queues {
            of.queue.watch();
        }
    }
}

impl CpuQueue {
    pub(super) fn pending_bytes(&self) -> u64 {
        self.pending_bytes.load(Ordering::Relaxed)
    }

    /// Adds to the bytes that wait. Under the lock of the queue.
    pub(super) fn add_pending(&self, bytes: i64) {
        let pending = self.pending_bytes().wrapping_add_signed(bytes);
        self.pending_bytes.store(pending, Ordering::Relaxed);
    }
}

impl Queue {
    /// Seals the open batch, if there is one. `false` if there is no memory for the record of it.
    pub(super) fn seal(&mut self, node: &NodeQueue) -> bool {
        let room = self.sealed.try_reserve(1).is_ok();
        if room && let Some(batch) = self.open.take() {
            node.sealed_bytes.fetch_add(batch.bytes, Ordering::Relaxed);
            self.sealed.push_back(batch);
        }
        room
    }

    /// A batch to put something of this generation into, which has room.
    pub(super) fn batch(
        &mut self,
        machine: &impl Machine,
        node: &NodeQueue,
        generation: Generation,
        deadline_ns: u64,
    ) -> Option<&mut Batch> {
        if let Some(batch) = self.open.as_mut().filter(|batch| batch.generation != generation) {
            if machine.now_ns().saturating_sub(batch.opened_ns) <= deadline_ns / BATCH_AGE {
                // What is in it waits a little longer than it must.
                batch.generation = generation;
                batch.told = Told::Nothing;
            } else if !self.seal(node) {
                return None;
            }
        }
        if self.open.is_none() {
            let mut ranges = self.spare.pop().unwrap_or_default();
            ranges.try_reserve_exact(BATCH_RANGES).ok()?;
            self.open = Some(Batch {
                generation,
                opened_ns: machine.now_ns(),
                told: Told::Nothing,
                bytes: 0,
                ranges,
                tables: RetiredFrames::new(),
            });
        }
        self.open.as_mut()
    }

    /// When there is next something to do about what waits; a time that is over for soon.
    pub(super) fn next_alarm_ns(&self, deadline_ns: u64) -> Option<u64> {
        let untold_ns = |batch: &Batch| batch.opened_ns + deadline_ns / BATCH_AGE;
        let oldest_ns = self
            .sealed
            .front()
            .or(self.open.as_ref())
            .map(|batch| match batch.told {
                Told::Nothing => untold_ns(batch),
                Told::Due { at_ns } => at_ns,
                Told::Forced => 0,
            });
        let mut all = self.sealed.iter().chain(&self.open);
        let untold = all.find(|batch| batch.told == Told::Nothing);
        oldest_ns.into_iter().chain(untold.map(untold_ns)).min()
    }

    /// Takes a batch of this generation or an older one, which all CPUs have passed. It counts as sealed until it is reclaimed.
    pub(super) fn take(&mut self, node: &NodeQueue, passed: Generation) -> Option<Batch> {
        match self.sealed.front() {
            Some(batch) => {
                if batch.generation <= passed {
                    self.sealed.pop_front()
                } else {
                    None
                }
            }
            None => {
                let batch = self.open.take_if(|batch| batch.generation <= passed)?;
                node.sealed_bytes.fetch_add(batch.bytes, Ordering::Relaxed);
                Some(batch)
            }
        }
    }

    /// The generation of the last sealed batch.
    pub(super) fn newest(&self) -> Option<Generation> {
        self.sealed.back().map(|batch| batch.generation)
    }
}
