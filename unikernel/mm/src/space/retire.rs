//! What has been given back and waits until no CPU can reach it.
//!
//! Each CPU has a queue of its own: what it gives back goes into its open batch, and a batch is *sealed* when it is large or old. A
//! batch has one generation, that of the newest of what is in it. When a batch is sealed the epoch is advanced to its generation,
//! though not more often than [`ADVANCES`] times per deadline, so that CPUs do not flush all the time; from then on CPUs pass it at
//! their safe points, and the batches that all have passed are reclaimed when the next one is sealed. So giving back interrupts
//! nobody, waits for nobody, and but for the epoch writes nothing that other CPUs write.
//!
//! A batch that CPUs have known of for the time of the deadline makes this CPU interrupt those that are still behind. That passes
//! all that any CPU has given back until then, so that a CPU that never comes to a safe point is interrupted once per deadline at
//! most, however many CPUs give back however much. The alarm for this is set on the CPU that gave back, only while its queue is not
//! empty.
//!
//! What waits is bounded by node: half of it in sealed batches, which the node's CPUs count together, and half in open ones.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;

use arrayvec::ArrayVec;
use crossbeam_utils::CachePadded;
use homenode_topology::{CpuId, NodeId, PhysAddr};

use super::AddressSpace;
use crate::addr::{VirtAddr, VirtRange};
use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::frames::RetiredFrames;
use crate::frames::lock::Lock;
use crate::machine::{Event, Machine};
use crate::size::{FrameSize, Size2MiB, Size4KiB};
use crate::table::level::Level;
use crate::tlb::{Cause, Generation, SafePoint, TlbEngine};

/// How what is given back waits for CPUs to drop their translations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retirement {
    /// Whether it waits at all: else CPUs are interrupted each time.
    pub lazy: bool,
    /// How long CPUs have to drop their translations by themselves, in nanoseconds.
    pub deadline_ns: u64,
    /// By node: how many bytes its CPUs may have waiting. Nodes that are not named have none. Page tables that ranges leave empty
    /// may come on top until something else is given back.
    pub pending_max_bytes: Vec<u64>,
}

/// The most ranges in a batch.
const BATCH_RANGES: usize = 128;
/// A batch is sealed when it has so many bytes, or the CPU's share of what may wait in open ones, …
const BATCH_BYTES: u64 = Size2MiB::BYTES;
/// … or when this part of the deadline is over since it was opened.
const BATCH_AGE: u64 = 4;
/// How often the epoch is advanced per deadline by those who are not short of room.
const ADVANCES: u64 = 64;
/// If CPUs that were interrupted have not answered after this part of the deadline, they are looked at again.
const ANSWER_TIME: u64 = 8;
/// How often an interrupted CPU's answer is looked for before the alarm is set for later.
const ANSWER_POLLS: u32 = 1000;

/// How many empty tables a CPU leaves in the tree.
const EMPTY_TABLES: usize = 64;

/// A range that was given back, and the addresses that it was reserved from, which are free with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retired {
    pub(super) range: VirtRange,
    pub(super) addresses: VirtRange,
}

/// A table that was seen to have empty entries only, by an address that it translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EmptyTable {
    pub(super) address: VirtAddr,
    pub(super) level: Level,
}

/// What a batch is made of.
enum Item {
    Range(Retired),
    Table(PhysAddr),
}

/// What CPUs know of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// Nothing.
    Nothing,
    /// They are to pass its generation at a safe point, and are interrupted at this time if they have not.
    Due { at_ns: u64 },
    /// They have been interrupted for it.
    Forced,
}

/// What waits for the same generation.
struct Batch {
    generation: Generation,
    opened_ns: u64,
    told: Told,
    /// Whether its bytes are counted among those of its node's sealed batches.
    is_sealed: bool,
    bytes: u64,
    ranges: Vec<Retired>,
    tables: RetiredFrames,
}

/// What a CPU has given back. Others lock it when memory is short.
struct Queue {
    open: Option<Batch>,
    /// In order of generation.
    sealed: VecDeque<Batch>,
    /// Memory for the ranges of batches to come.
    spare: Vec<Vec<Retired>>,
    /// Whether the CPU's alarm is set.
    alarm: bool,
    /// Empty tables that ranges to come may need again: the oldest first.
    empty_tables: ArrayVec<EmptyTable, EMPTY_TABLES>,
}

/// What came of an item that was put into the queue.
enum Put {
    /// It is in the open batch.
    Open,
    /// It is in a batch, and one has just been sealed.
    Sealed,
    /// There is no memory for the record of it, and nobody may use it before this generation has passed.
    NoRoom(Generation),
}

/// All CPUs' queues.
pub(super) struct RetireQueues {
    lazy: bool,
    deadline_ns: u64,
    queues: Box<[CachePadded<CpuQueue>]>,
    /// By number, as far as there are nodes with CPUs.
    nodes: Box<[CachePadded<NodeQueue>]>,
    /// When the epoch was last advanced.
    advanced_ns: CachePadded<AtomicU64>,
}

struct CpuQueue {
    node: NodeId,
    /// The bytes with which a batch is sealed.
    batch_bytes: u64,
    /// How many bytes wait, those included that are being reclaimed. Changed under the lock of the queue, and read without.
    pending_bytes: AtomicU64,
    /// How many batches are being reclaimed, by whatever CPU.
    reclaiming: AtomicU32,
    queue: Lock<Queue>,
}

/// What the CPUs of a node have in common. Written once per batch.
struct NodeQueue {
    /// How many bytes may wait.
    max_bytes: u64,
    /// How many wait in sealed batches.
    sealed_bytes: AtomicU64,
}

impl NodeQueue {
    /// How many bytes may wait in sealed batches.
    const fn sealed_max_bytes(&self) -> u64 {
        self.max_bytes / 2
    }
}

impl RetireQueues {
    pub(super) fn new(tlb: &TlbEngine, retirement: &Retirement) -> Self {
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
                    empty_tables: ArrayVec::new(),
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
    pub(super) fn watch(&self) {
        for of in &self.queues {
            of.queue.watch();
        }
    }
}

impl CpuQueue {
    fn pending_bytes(&self) -> u64 {
        self.pending_bytes.load(Ordering::Relaxed)
    }

    /// Adds to the bytes that wait. Under the lock of the queue.
    fn add_pending(&self, bytes: i64) {
        let pending = self.pending_bytes().wrapping_add_signed(bytes);
        self.pending_bytes.store(pending, Ordering::Relaxed);
    }
}

impl Batch {
    fn add<M: Machine>(&mut self, space: &AddressSpace<'_, M>, item: Item, bytes: u64) {
        self.bytes += bytes;
        match item {
            Item::Range(range) => self.ranges.push(range),
            Item::Table(table) => space.frames.retire(&mut self.tables, table),
        }
    }
}

impl Queue {
    /// Seals the open batch, if there is one. `false` if there is no memory for the record of it.
    fn seal(&mut self, node: &NodeQueue) -> bool {
        let room = self.sealed.try_reserve(1).is_ok();
        if room && let Some(batch) = self.open.take() {
            node.sealed_bytes.fetch_add(batch.bytes, Ordering::Relaxed);
            self.sealed.push_back(Batch {
                is_sealed: true,
                ..batch
            });
        }
        room
    }

    /// A batch to put something of this generation into, which has room.
    fn batch(
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
                is_sealed: false,
                bytes: 0,
                ranges,
                tables: RetiredFrames::new(),
            });
        }
        self.open.as_mut()
    }

    /// When there is next something to do about what waits; a time that is over for soon.
    fn next_alarm_ns(&self, deadline_ns: u64) -> Option<u64> {
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

    /// Takes a batch of this generation or an older one, which all CPUs have passed.
    fn take(&mut self, passed: Generation) -> Option<Batch> {
        match self.sealed.front() {
            Some(batch) => {
                if batch.generation <= passed {
                    self.sealed.pop_front()
                } else {
                    None
                }
            }
            None => self.open.take_if(|batch| batch.generation <= passed),
        }
    }

    /// The generation of the last sealed batch.
    fn newest(&self) -> Option<Generation> {
        self.sealed.back().map(|batch| batch.generation)
    }
}

impl<M: Machine> AddressSpace<'_, M> {
    /// Whether what is given back waits.
    #[must_use]
    pub fn is_lazy(&self) -> bool {
        self.retired.lazy
    }

    /// How long what is given back waits before CPUs are interrupted, in nanoseconds.
    #[must_use]
    pub fn deadline_ns(&self) -> u64 {
        self.retired.deadline_ns
    }

    /// The bytes that wait in the queue of `cpu`, page-table pages included.
    #[must_use]
    pub fn pending_bytes(&self, cpu: CpuId) -> u64 {
        self.retired.queues[cpu.index()].pending_bytes()
    }

    /// The bytes that may wait in the queues of `node`'s CPUs.
    #[must_use]
    pub fn pending_max_bytes(&self, node: NodeId) -> u64 {
        let queue = self.retired.nodes.get(node.index());
        queue.map_or(0, |queue| queue.max_bytes)
    }

    fn own_queue(&self) -> &CpuQueue {
        &self.retired.queues[self.machine().cpu().index()]
    }

    fn node_queue(&self, of: &CpuQueue) -> &NodeQueue {
        &self.retired.nodes[of.node.index()]
    }

    /// Puts a range aside whose entries are retiring, with `bytes` bytes of frames.
    pub(super) fn retire(&self, retired: Retired, bytes: u64) {
        self.machine().count(Event::Retired, 1);
        match self.put(Item::Range(retired), bytes) {
            Put::Open => {}
            Put::Sealed => self.turn_over(self.own_queue()),
            Put::NoRoom(generation) => {
                self.tlb.complete(self.machine(), generation, Cause::Memory);
                self.reclaim(&retired, &mut self.frames.freeing());
            }
        }
    }

    /// Puts a table aside that has been taken out of the tree.
    pub(super) fn retire_table(&self, table: PhysAddr) {
        let (generation, cause) = if self.retired.lazy {
            match self.put(Item::Table(table), Size4KiB::BYTES) {
                // Sealed batches are looked at when the next range is given back: what is reclaimed meanwhile may have led here.
                Put::Open | Put::Sealed => return,
                Put::NoRoom(generation) => (generation, Cause::Memory),
            }
        } else {
            (self.tlb.retire(), Cause::Off)
        };
        self.tlb.complete(self.machine(), generation, cause);
        let mut list = RetiredFrames::new();
        self.frames.retire(&mut list, table);
        self.frames.free_retired(list);
    }

    /// Puts something into this CPU's queue.
    fn put(&self, item: Item, bytes: u64) -> Put {
        let machine = self.machine();
        let own = self.own_queue();
        let node = self.node_queue(own);
        let deadline_ns = self.retired.deadline_ns;
        let generation = self.tlb.retire();
        own.queue.with(machine, |queue| {
            let Some(batch) = queue.batch(machine, node, generation, deadline_ns) else {
                return Put::NoRoom(generation);
            };
            batch.add(self, item, bytes);
            let full = batch.bytes >= own.batch_bytes || batch.ranges.len() == BATCH_RANGES;
            let opened_ns = batch.opened_ns;
            own.add_pending(bytes as i64);
            if !queue.alarm {
                queue.alarm = true;
                machine.set_alarm(opened_ns + deadline_ns / BATCH_AGE);
            }
            if full && queue.seal(node) {
                Put::Sealed
            } else {
                Put::Open
            }
        })
    }

    /// What is done when a batch has been sealed: CPUs are told, and what they have passed is reclaimed.
    #[cold]
    fn turn_over(&self, own: &CpuQueue) {
        let machine = self.machine();
        let node = self.node_queue(own);
        let now_ns = machine.now_ns();
        let sealed_bytes = node.sealed_bytes.load(Ordering::Relaxed);
        own.queue.with(machine, |queue| {
            let since_ns = now_ns.saturating_sub(self.retired.advanced_ns.load(Ordering::Relaxed));
            let is_time = since_ns >= self.retired.deadline_ns / ADVANCES;
            if let Some(newest) = queue.newest()
                && (is_time || sealed_bytes > node.sealed_max_bytes() / 2)
            {
                self.tell(queue, newest);
            }
        });
        self.tlb.catch_up(machine, SafePoint::Own);
        self.reclaim_passed(own);
        if node.sealed_bytes.load(Ordering::Relaxed) > node.sealed_max_bytes()
            && let Some(newest) = own.queue.with(machine, |queue| queue.newest())
        {
            self.tlb.complete(machine, newest, Cause::Pending);
            // So are the other CPUs' batches of the time, which these may not come to look at soon.
            let of_node = self.retired.queues.iter().filter(|of| of.node == own.node);
            of_node.for_each(|of| self.reclaim_batches(of, newest));
        }
    }

    /// Lets CPUs know of all sealed batches, of which `newest` is the newest generation.
    fn tell(&self, queue: &mut Queue, newest: Generation) {
        let is_new = !self.tlb.is_advanced_to(newest);
        self.tlb.advance(newest);
        // Read after the epoch is advanced: CPUs have all of the deadline from then on.
        let now_ns = self.machine().now_ns();
        if is_new {
            self.retired.advanced_ns.store(now_ns, Ordering::Relaxed);
        }
        for batch in queue.sealed.iter_mut().rev() {
            if batch.told != Told::Nothing {
                break;
            }
            batch.told = Told::Due {
                at_ns: now_ns + self.retired.deadline_ns,
            };
        }
    }

    /// Reclaims the batches of a queue that all CPUs have passed.
    fn reclaim_passed(&self, of: &CpuQueue) {
        let machine = self.machine();
        let oldest = || {
            of.queue.with(machine, |queue| {
                let batch = queue.sealed.front().or(queue.open.as_ref());
                batch.map(|batch| batch.generation)
            })
        };
        while let Some(generation) = oldest().filter(|generation| self.tlb.has_passed(*generation)) {
            self.reclaim_batches(of, generation);
        }
    }

    /// Reclaims the batches of a queue up to this generation, which all CPUs have passed.
    fn reclaim_batches(&self, of: &CpuQueue, passed: Generation) {
        let machine = self.machine();
        let take = || {
            of.queue.with(machine, |queue| {
                let batch = queue.take(passed)?;
                of.reclaiming.fetch_add(1, Ordering::Relaxed);
                Some(batch)
            })
        };
        while let Some(mut batch) = take() {
            let mut freeing = self.frames.freeing();
            for retired in &batch.ranges {
                self.reclaim(retired, &mut freeing);
            }
            drop(freeing);
            self.frames.free_retired(mem::take(&mut batch.tables));
            batch.ranges.clear();
            of.queue.with(machine, |queue| {
                of.add_pending(-(batch.bytes as i64));
                if batch.is_sealed {
                    let sealed = &self.node_queue(of).sealed_bytes;
                    sealed.fetch_sub(batch.bytes, Ordering::Relaxed);
                }
                // Without memory to keep it, the next batch has to get some of its own.
                if queue.spare.try_reserve(1).is_ok() {
                    queue.spare.push(batch.ranges);
                }
            });
            // Release: who sees this finds all of the batch free.
            of.reclaiming.fetch_sub(1, Ordering::Release);
        }
    }

    /// Leaves an empty table in the tree, since ranges that are reserved soon may need it: the same addresses serve the same sizes
    /// of ranges again. Which one is to be taken out for it, if any.
    pub(super) fn keep_empty(&self, table: EmptyTable) -> Option<EmptyTable> {
        let bytes = table.level.table_bytes();
        let is_same = |other: &EmptyTable| {
            other.level == table.level && other.address.align_down(bytes) == table.address.align_down(bytes)
        };
        self.own_queue().queue.with(self.machine(), |queue| {
            if queue.empty_tables.last().is_some_and(is_same) {
                return None;
            }
            let oldest = queue.empty_tables.is_full().then(|| queue.empty_tables.remove(0));
            queue.empty_tables.push(table);
            oldest
        })
    }

    /// Takes all empty tables that are left out of the tree.
    fn detach_empty_tables(&self) {
        for of in &self.retired.queues {
            let empty = of
                .queue
                .with(self.machine(), |queue| mem::take(&mut queue.empty_tables));
            empty.into_iter().for_each(|table| self.detach_unused(table));
        }
    }

    /// What [`Machine::set_alarm`] calls on the CPU that has set the alarm. Interrupts must be on, no lock held, and no walk going
    /// on.
    pub fn alarm(&self) {
        let machine = self.machine();
        let own = self.own_queue();
        let deadline_ns = self.retired.deadline_ns;
        let now_ns = machine.now_ns();
        own.queue.with(machine, |queue| {
            queue.alarm = false;
            let old = |batch: &Batch| now_ns.saturating_sub(batch.opened_ns) >= deadline_ns / BATCH_AGE;
            if queue.open.as_ref().is_some_and(old) {
                queue.seal(self.node_queue(own));
            }
            if let Some(newest) = queue.newest() {
                self.tell(queue, newest);
            }
        });
        self.tlb.catch_up(machine, SafePoint::Own);
        self.reclaim_passed(own);
        let due = own.queue.with(machine, |queue| {
            let is_due = |batch: &&mut Batch| matches!(batch.told, Told::Due { at_ns } if at_ns <= now_ns);
            let due = queue.sealed.iter_mut().take_while(is_due);
            due.map(|batch| {
                batch.told = Told::Forced;
                batch.generation
            })
            .last()
        });
        if let Some(due) = due {
            // Those that are interrupted pass all that anybody has given back until now, so that nobody else has to interrupt them
            // for that.
            self.tlb.force(machine, due, self.tlb.retire(), Cause::Deadline);
            for _ in 0..ANSWER_POLLS {
                if self.tlb.has_passed(due) {
                    break;
                }
                machine.relax();
            }
            self.reclaim_passed(own);
        }
        own.queue.with(machine, |queue| {
            if let Some(at_ns) = queue.next_alarm_ns(deadline_ns).filter(|_| !queue.alarm) {
                queue.alarm = true;
                machine.set_alarm(at_ns.max(now_ns + deadline_ns / ANSWER_TIME));
            }
        });
    }

    /// Returns when all that has been given back until now, by any CPU, is free; whether there was anything. Interrupts must be on,
    /// no lock held, and no walk going on.
    pub fn drain(&self, cause: Cause) -> bool {
        let mut any = false;
        // Ranges leave tables behind, and these leave nothing.
        for round in 0..2 {
            any |= self.drain_queues(cause);
            if round == 0 {
                self.detach_empty_tables();
            }
        }
        any
    }

    /// As [`drain`](Self::drain), because a node is out of memory.
    #[cold]
    pub(super) fn free_retired(&self) -> bool {
        let any = self.retired.queues.iter().any(|of| of.pending_bytes() > 0);
        any && self.drain(Cause::Memory)
    }

    /// Returns when what is in all queues is free; whether there was anything.
    fn drain_queues(&self, cause: Cause) -> bool {
        let machine = self.machine();
        let newest = |of: &CachePadded<CpuQueue>| {
            of.queue.with(machine, |queue| {
                // Else what is put aside meanwhile, such as tables, could take the open batch to a newer generation.
                queue.seal(self.node_queue(of));
                let open = queue.open.as_ref().map(|batch| batch.generation);
                open.or(queue.newest())
            })
        };
        let newest = self.retired.queues.iter().filter_map(newest).max();
        if let Some(newest) = newest {
            if !self.tlb.has_passed(newest) {
                self.tlb.complete(machine, newest, cause);
            }
            for of in &self.retired.queues {
                self.reclaim_batches(of, newest);
            }
        }
        // What other CPUs are at is no longer in their queues.
        let mut any = newest.is_some();
        for of in &self.retired.queues {
            while of.reclaiming.load(Ordering::Acquire) != 0 {
                any = true;
                machine.relax();
            }
        }
        any
    }
}
