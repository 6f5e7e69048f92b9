//! TLB coherence: who takes translations away, and when every CPU has dropped them.
//!
//! **Generations.** Whoever has cleared entries calls [`retire`](TlbEngine::retire), which only reads the epoch, and gets the
//! [`Generation`] that must pass before what the entries led to may be used otherwise: frames, virtual addresses, page-table pages. A
//! CPU passes generations by [catching up](TlbEngine::catch_up) at a *safe point*: it samples the epoch, drops all of its
//! translations, and publishes the sample. Nobody waits for that, and nobody is interrupted, as long as the epoch is only
//! [advanced](TlbEngine::advance). Who can not wait [forces](TlbEngine::complete) a generation: it interrupts the CPUs that are behind, each
//! once however many ask, and waits for them.
//!
//! **Requests.** Who changes a few pages that stay in use, and must be sure on return, [invalidates](TlbEngine::invalidate) just these: the
//! pages go into a ring that the interrupted CPUs read. Requests and generations are counted apart, because dropping the pages of a
//! request passes no generation; dropping everything answers all requests.
//!
//! **Idle CPUs** are neither waited for nor interrupted. They have loaded a root without program memory, so that not even a speculative
//! walk finds any, and drop everything once more when they come back.
//!
//! **Walks.** Software walks the page table without locks, as the CPUs do, so a page-table page is in use as long as a walk may be in
//! it: between [`begin_walk`](TlbEngine::begin_walk) and the end of what that gives, a CPU that is asked to catch up drops its
//! translations at once, but publishes only when the walk is over.
//!
//! Three orders make this right. A retiring CPU clears entries before it reads the epoch, and whoever advances it does so
//! after that read; so a CPU that samples the advanced epoch finds the entries cleared, and what it drops after the sample does
//! not come back. A CPU drops before it publishes, so who sees the publication may reuse what was retired. And a CPU that leaves idleness
//! says so before it samples the epoch, while others advance the epoch before they look who is idle.

mod requests;
#[cfg(loom)]
mod watch;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::compiler_fence;

use crossbeam_utils::CachePadded;
use homenode_topology::{CpuId, NodeId};

use self::requests::Requests;
pub(crate) use self::requests::StalePages;
use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::machine::{Event, Machine};

/// A point in the order of retirements: what was retired before it may be used otherwise once every CPU has published it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation(u64);

/// Why CPUs are made to drop translations now, instead of at their next safe points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Something has been waiting for as long as it may.
    Deadline,
    /// More bytes are waiting than may.
    Pending,
    /// A node is out of memory.
    Memory,
    /// Somebody wants all that waits to be given back.
    Drain,
    /// A range is given back, and nobody may reach it on return.
    Revoke,
    /// Pages that stay in use are protected, discarded, divided or moved.
    Change,
    /// Nothing is left for later: the way of `tlb.lazy=off`.
    Off,
}

/// Where a CPU catches up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SafePoint {
    /// In the interrupt by which another CPU asks for it.
    Interrupt,
    /// Where it enters or leaves the kernel.
    Kernel,
    /// Where the program says that it may.
    Quiesce,
    /// Where it leaves idleness.
    Idle,
    /// Where it waits for others itself.
    Own,
}

/// What a CPU says of itself. It writes its own only, but for `asked`; others read.
struct Shown {
    /// The generation that the CPU's translations have passed.
    published: AtomicU64,
    /// The number of the last request that the CPU has answered.
    answered: AtomicU64,
    /// Whether the CPU may have translations of program memory at all.
    active: AtomicU32,
    /// Whether an interrupt is on its way to it, or about to be.
    asked: AtomicU32,
}

/// What a CPU keeps for itself. Only its own interrupts look at it, so that no ordering is needed.
struct Own {
    /// Whether the CPU walks the page table.
    walking: AtomicU32,
    /// What to publish at the end of the walk.
    postponed: AtomicU64,
}

struct CpuState {
    shown: CachePadded<Shown>,
    own: CachePadded<Own>,
}

/// The CPUs of a node, and what is known of them together.
struct NodeState {
    node: NodeId,
    cpus: Vec<CpuId>,
    /// A generation that all of them have passed.
    passed: AtomicU64,
}

/// The state of all CPUs' translations of program memory.
pub struct TlbEngine {
    /// The newest generation that CPUs are to pass.
    epoch: CachePadded<AtomicU64>,
    cpus: Box<[CpuState]>,
    nodes: Box<[CachePadded<NodeState>]>,
    requests: Requests,
    /// The most pages that are dropped one by one.
    range_max_pages: u32,
}

impl TlbEngine {
    /// The most pages that are dropped one by one unless another number is given: with more, one flush of everything costs less (Linux's
    /// `tlb_single_page_flush_ceiling`).
    pub const RANGE_MAX_PAGES: u32 = 33;

    /// An engine for CPUs on these nodes, which are the CPUs 0, 1, … in this order, all of them idle. Up to `range_max_pages` pages that
    /// stay in use are dropped one by one.
    #[must_use]
    pub fn new(nodes_of_cpus: &[NodeId], range_max_pages: u32) -> Self {
        let nodes = nodes_of_cpus.iter().map(|node| node.index() + 1).max();
        let node = |node: usize| NodeState {
            node: NodeId::from(node),
            cpus: (0..nodes_of_cpus.len())
                .filter(|&cpu| nodes_of_cpus[cpu].index() == node)
                .map(CpuId::from)
                .collect(),
            passed: AtomicU64::new(0),
        };
        Self {
            epoch: CachePadded::new(AtomicU64::new(0)),
            cpus: nodes_of_cpus
                .iter()
                .map(|_| CpuState {
                    shown: CachePadded::new(Shown {
                        published: AtomicU64::new(0),
                        answered: AtomicU64::new(0),
                        active: AtomicU32::new(0),
                        asked: AtomicU32::new(0),
                    }),
                    own: CachePadded::new(Own {
                        walking: AtomicU32::new(0),
                        postponed: AtomicU64::new(0),
                    }),
                })
                .collect(),
            nodes: (0..nodes.unwrap_or(0))
                .map(node)
                .filter(|node| !node.cpus.is_empty())
                .map(CachePadded::new)
                .collect(),
            requests: Requests::new(),
            range_max_pages,
        }
    }

    /// The number of CPUs.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// The nodes that have CPUs, with these.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (NodeId, &[CpuId])> {
        self.nodes.iter().map(|node| (node.node, &node.cpus[..]))
    }

    /// The most pages that are dropped one by one.
    #[must_use]
    pub const fn range_max_pages(&self) -> u32 {
        self.range_max_pages
    }

    /// The number of the newest generation that CPUs are to pass.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// How many generations `cpu` has yet to pass: 0 while it is idle.
    #[must_use]
    pub fn lag(&self, cpu: CpuId) -> u64 {
        let shown = self.shown(cpu);
        match shown.active.load(Ordering::Relaxed) {
            0 => 0,
            _ => self
                .epoch()
                .saturating_sub(shown.published.load(Ordering::Relaxed)),
        }
    }

    fn shown(&self, cpu: CpuId) -> &Shown {
        &self.cpus[cpu.index()].shown
    }

    /// Called by a CPU before it touches program memory for the first time, and after [`enter_idle`](Self::enter_idle) before it does so
    /// again: others wait for it from now on.
    pub fn exit_idle<M: Machine>(&self, machine: &M) {
        let shown = self.shown(machine.cpu());
        shown.active.store(1, Ordering::Relaxed);
        // Either a completing CPU sees this one active, or this one samples an epoch that includes what the other waits for.
        fence(Ordering::SeqCst);
        let epoch = self.epoch.load(Ordering::Relaxed);
        let requests = self.requests.newest();
        fence(Ordering::SeqCst);
        machine.load_program_root();
        machine.count(Event::CaughtUp(SafePoint::Idle), 1);
        shown.published.fetch_max(epoch, Ordering::Release);
        shown.answered.fetch_max(requests, Ordering::Release);
    }

    /// Called by a CPU that touches no program memory before [`exit_idle`](Self::exit_idle), and does not walk its page table: nobody waits for it or interrupts it from
    /// now on.
    pub fn enter_idle<M: Machine>(&self, machine: &M) {
        let CpuState { shown, own } = &self.cpus[machine.cpu().index()];
        debug_assert_eq!(own.walking.load(Ordering::Relaxed), 0, "an idle CPU walks");
        machine.load_idle_root();
        // Release: whatever this CPU did with program memory is over.
        shown.active.store(0, Ordering::Release);
    }

    /// The generation that has to pass before what has been unmapped so far may be used otherwise.
    #[must_use]
    #[inline]
    pub fn retire(&self) -> Generation {
        // The cleared entries are visible before the epoch is read.
        fence(Ordering::SeqCst);
        Generation(self.epoch.load(Ordering::Relaxed) + 1)
    }

    /// Makes CPUs pass `generation` at their next safe points.
    pub fn advance(&self, generation: Generation) {
        if self.epoch.load(Ordering::Relaxed) < generation.0 {
            self.epoch.fetch_max(generation.0, Ordering::SeqCst);
        }
    }

    /// Whether the epoch has come to `generation`, so that CPUs pass it at their safe points.
    #[must_use]
    pub(crate) fn is_advanced_to(&self, generation: Generation) -> bool {
        self.epoch.load(Ordering::Relaxed) >= generation.0
    }

    /// Whether every CPU has passed `generation`: what was retired before it may be used otherwise.
    #[must_use]
    pub fn has_passed(&self, generation: Generation) -> bool {
        let epoch = self.epoch.load(Ordering::Acquire);
        if epoch < generation.0 {
            return false;
        }
        // Whoever leaves idleness after this has been seen idle samples at least this epoch.
        fence(Ordering::SeqCst);
        self.nodes
            .iter()
            .all(|node| self.node_has_passed(node, generation, epoch))
    }

    fn node_has_passed(&self, node: &NodeState, generation: Generation, epoch: u64) -> bool {
        if node.passed.load(Ordering::Acquire) >= generation.0 {
            return true;
        }
        let passed = node
            .cpus
            .iter()
            .map(|cpu| self.shown(*cpu))
            .filter(|shown| shown.active.load(Ordering::Acquire) != 0)
            .map(|shown| shown.published.load(Ordering::Acquire))
            .min();
        // No further than the epoch before the scan: one who was seen idle may have come back since, with no more than that.
        let passed = passed.map_or(epoch, |passed| passed.min(epoch));
        if passed < generation.0 {
            return false;
        }
        // Release: who reads this relies on what was read here.
        node.passed.fetch_max(passed, Ordering::AcqRel);
        true
    }

    /// Returns when every CPU has dropped what was unmapped before `generation` was given out. Interrupts must be on, no lock held,
    /// and no walk going on.
    pub fn complete<M: Machine>(&self, machine: &M, generation: Generation, cause: Cause) {
        self.force(machine, generation, generation, cause);
        while !self.has_passed(generation) {
            machine.relax();
        }
    }

    /// Interrupts the CPUs that have not passed `behind`, so that they pass `newest`, which is not older, and catches up meanwhile. As for
    /// [`complete`](Self::complete).
    pub(crate) fn force<M: Machine>(
        &self,
        machine: &M,
        behind: Generation,
        newest: Generation,
        cause: Cause,
    ) {
        let this = machine.cpu();
        self.epoch.fetch_max(newest.0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        machine.count(Event::Forced(cause), 1);
        self.interrupt(machine, cause, |cpu, shown| {
            cpu != this && shown.published.load(Ordering::Acquire) < behind.0
        });
        self.catch_up(machine, SafePoint::Own);
    }

    /// Interrupts the CPUs that are active, that are behind by `is_behind`, and to which no interrupt is on its way already: what that one
    /// will sample is what the caller waits for, or newer. Counts them.
    fn interrupt<M: Machine>(&self, machine: &M, cause: Cause, is_behind: impl Fn(CpuId, &Shown) -> bool) {
        let mut sent = 0;
        let targets = (0..)
            .map(CpuId)
            .zip(&self.cpus)
            .filter(|(cpu, CpuState { shown, .. })| {
                let is_target = shown.active.load(Ordering::Relaxed) != 0
                    && is_behind(*cpu, shown)
                    // Release: whoever takes this back samples what was advanced before.
                    && shown.asked.swap(1, Ordering::AcqRel) == 0;
                sent += u64::from(is_target);
                is_target
            });
        machine.interrupt(targets.map(|(cpu, _)| cpu));
        if sent > 0 {
            machine.count(Event::RemoteFlush, 1);
            machine.count(Event::InterruptsSent(cause), sent);
        }
    }

    /// Returns when every CPU has dropped its translations of these pages, whose entries have been changed before. As for
    /// [`complete`](Self::complete).
    pub(crate) fn invalidate<M: Machine>(&self, machine: &M, stale: &StalePages, cause: Cause) {
        let Some(pages) = stale.within(self.range_max_pages) else {
            return self.complete(machine, self.retire(), cause);
        };
        let this = machine.cpu();
        // The changed entries are visible before the request is.
        fence(Ordering::SeqCst);
        let request = self.requests.add(pages);
        // Whoever leaves idleness after this has been seen idle sees the request.
        fence(Ordering::SeqCst);
        machine.count(Event::Forced(cause), 1);
        self.interrupt(machine, cause, |cpu, shown| {
            cpu != this && shown.answered.load(Ordering::Acquire) < request
        });
        self.catch_up(machine, SafePoint::Own);
        for CpuState { shown, .. } in &self.cpus {
            while shown.active.load(Ordering::Acquire) != 0
                && shown.answered.load(Ordering::Acquire) < request
            {
                machine.relax();
            }
        }
    }

    /// What `cpu` needs to know whether it has generations to pass.
    #[inline]
    #[must_use]
    pub(crate) fn progress_of(&self, cpu: CpuId) -> Progress<'_> {
        Progress {
            epoch: &self.epoch,
            published: &self.shown(cpu).published,
        }
    }

    /// Drops the running CPU's translations as far as anybody waits for that, and says so; else says `false`. For safe points, and for the
    /// interrupt that [`Machine::interrupt`] sends.
    pub fn catch_up<M: Machine>(&self, machine: &M, at: SafePoint) -> bool {
        let CpuState { shown, own } = &self.cpus[machine.cpu().index()];
        if at == SafePoint::Interrupt {
            // Before the sample: who still finds it set has advanced what is sampled, and who does not sends another interrupt.
            shown.asked.swap(0, Ordering::AcqRel);
        }
        // Sampled before the flush: what is retired later is not promised.
        let epoch = self.epoch.load(Ordering::Acquire);
        let newest = self.requests.newest();
        let passed = shown
            .published
            .load(Ordering::Relaxed)
            .max(own.postponed.load(Ordering::Relaxed));
        let answered = shown.answered.load(Ordering::Relaxed);
        if epoch <= passed && newest <= answered {
            return false;
        }
        fence(Ordering::SeqCst);
        if epoch > passed
            || !self
                .requests
                .answer(machine, answered, newest, self.range_max_pages)
        {
            machine.invalidate_all();
            machine.count(Event::FlushAll, 1);
        }
        machine.count(Event::CaughtUp(at), 1);
        // An interrupt in between may have got further, so the numbers never fall. A request never takes a table away, so that walks
        // do not matter to it.
        shown.answered.fetch_max(newest, Ordering::Release);
        if epoch > passed {
            if own.walking.load(Ordering::Relaxed) == 0 {
                shown.published.fetch_max(epoch, Ordering::Release);
            } else {
                own.postponed.fetch_max(epoch, Ordering::Relaxed);
            }
        }
        true
    }

    /// Begins a walk of the page table by software on the running CPU, which must not wait for other CPUs' generations or busy entries
    /// before it is over. Walks do not nest.
    #[inline]
    pub(crate) fn begin_walk<M: Machine>(&self, machine: &M) -> Walk<'_> {
        let state = &self.cpus[machine.cpu().index()];
        debug_assert_eq!(state.own.walking.load(Ordering::Relaxed), 0, "walks do not nest");
        // Only this CPU's interrupts care, and they see its stores in order.
        state.own.walking.store(1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Walk(state)
    }
}

/// How far a CPU has come: for the few instructions at each safe point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress<'a> {
    epoch: &'a AtomicU64,
    published: &'a AtomicU64,
}

impl Progress<'_> {
    /// Whether the CPU has generations to pass.
    #[inline(always)]
    pub(crate) fn is_behind(&self) -> bool {
        self.epoch.load(Ordering::Relaxed) > self.published()
    }

    /// The generation that the CPU has published.
    #[inline(always)]
    pub(crate) fn published(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }
}

/// A walk that goes on until this is dropped.
pub(crate) struct Walk<'a>(&'a CpuState);

impl Drop for Walk<'_> {
    #[inline]
    fn drop(&mut self) {
        let CpuState { shown, own } = self.0;
        compiler_fence(Ordering::SeqCst);
        own.walking.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let postponed = own.postponed.load(Ordering::Relaxed);
        if postponed > shown.published.load(Ordering::Relaxed) {
            // Release: the walk's loads are over before anybody reuses what it may have seen.
            shown.published.fetch_max(postponed, Ordering::Release);
        }
    }
}
