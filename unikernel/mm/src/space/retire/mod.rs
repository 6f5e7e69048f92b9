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

mod queue;

use alloc::vec::Vec;
use core::mem;

use crossbeam_utils::CachePadded;
use homenode_topology::{CpuId, NodeId};

use self::queue::{BATCH_AGE, BATCH_RANGES, Batch, CpuQueue, NodeQueue, Queue, Told};
pub(super) use self::queue::{RetireQueues, Retired};
use super::AddressSpace;
use crate::atomic::Ordering;
use crate::frames::RetiredFrames;
use crate::machine::{Event, Machine};
use crate::tlb::{Cause, Generation, SafePoint};

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

/// How often the epoch is advanced per deadline by those who are not short of room.
const ADVANCES: u64 = 64;
/// If CPUs that were interrupted have not answered after this part of the deadline, they are looked at again.
const ANSWER_TIME: u64 = 8;
/// How often an interrupted CPU's answer is looked for before the alarm is set for later.
const ANSWER_POLLS: u32 = 1000;

/// What came of an item that was put into the queue.
enum Put {
    /// It is in the open batch.
    Open,
    /// It is in a batch, and one has just been sealed.
    Sealed,
    /// There is no memory for the record of it, and nobody may use it before this generation has passed.
    NoRoom(Generation),
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
        let add = |batch: &mut Batch| {
            batch.ranges.push(retired);
            bytes
        };
        match self.put(add) {
            Put::Open => {}
            Put::Sealed => self.turn_over(self.own_queue()),
            Put::NoRoom(generation) => {
                self.tlb.complete(self.machine(), generation, Cause::Memory);
                self.reclaim(&[retired]);
            }
        }
    }

    /// Puts tables aside that have been taken out of the tree.
    pub(super) fn retire_tables(&self, mut tables: RetiredFrames) {
        if tables.is_empty() {
            return;
        }
        let (generation, cause) = if self.retired.lazy {
            match self.put(|batch| self.frames.append_tables(&mut batch.tables, &mut tables)) {
                // Sealed batches are looked at when the next range is given back: what is reclaimed meanwhile may have led here.
                Put::Open | Put::Sealed => return,
                Put::NoRoom(generation) => (generation, Cause::Memory),
            }
        } else {
            (self.tlb.retire(), Cause::Off)
        };
        self.tlb.complete(self.machine(), generation, cause);
        self.frames.free_retired(tables);
    }

    /// Puts something into this CPU's queue by `add`, which says how many bytes it has.
    fn put(&self, add: impl FnOnce(&mut Batch) -> u64) -> Put {
        let machine = self.machine();
        let own = self.own_queue();
        let node = self.node_queue(own);
        let deadline_ns = self.retired.deadline_ns;
        let generation = self.tlb.retire();
        own.queue.with(machine, |queue| {
            let Some(batch) = queue.batch(machine, node, generation, deadline_ns) else {
                return Put::NoRoom(generation);
            };
            let bytes = add(batch);
            batch.bytes += bytes;
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
                let batch = queue.take(self.node_queue(of), passed)?;
                of.reclaiming.fetch_add(1, Ordering::Relaxed);
                Some(batch)
            })
        };
        while let Some(mut batch) = take() {
            self.reclaim(&batch.ranges);
            self.frames.free_retired(mem::take(&mut batch.tables));
            batch.ranges.clear();
            of.queue.with(machine, |queue| {
                of.add_pending(-(batch.bytes as i64));
                let sealed = &self.node_queue(of).sealed_bytes;
                sealed.fetch_sub(batch.bytes, Ordering::Relaxed);
                // Without memory to keep it, the next batch has to get some of its own.
                if queue.spare.try_reserve(1).is_ok() {
                    queue.spare.push(batch.ranges);
                }
            });
            // Release: who sees this finds all of the batch free.
            of.reclaiming.fetch_sub(1, Ordering::Release);
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
