//! TLB coherence: who takes a translation away, and when every CPU has dropped it.
//!
//! Whoever has cleared entries calls [`retire`](TlbEngine::retire), which only reads the epoch, and gets the [`Generation`] that must
//! pass before what the entries led to may be used otherwise: frames, virtual addresses, page-table pages. A CPU passes a
//! generation by *catching up*: it samples the epoch, drops its translations, and publishes the sample.
//! [`complete`](TlbEngine::complete) is the synchronous form: it advances the epoch, interrupts the CPUs that are behind, and
//! waits for them.
//!
//! Software walks the page table without locks, as the CPUs do, so a page-table page is in use as long as a walk may be in it:
//! between [`begin_walk`](TlbEngine::begin_walk) and the end of what that gives, a CPU that is asked to catch up drops its
//! translations at once, but publishes only when the walk is over.
//!
//! Two orders make this right. A retiring CPU clears entries before it reads the epoch, and a completing one advances the epoch
//! after that read; so a CPU that samples the advanced epoch finds the entries cleared, and what it drops after the sample does
//! not come back. And a CPU drops before it publishes, so who sees the publication may reuse what was retired.

use alloc::boxed::Box;
use core::sync::atomic::compiler_fence;

use crossbeam_utils::CachePadded;
use homenode_topology::CpuId;

use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::machine::{Event, Machine};

/// A point in the order of retirements: what was retired before it may be used otherwise once every CPU has published it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation(u64);

/// What a CPU says of itself. It writes its own only; others read.
struct CpuState {
    /// The generation that the CPU's translations have passed.
    published: AtomicU64,
    /// Whether the CPU may have translations of program memory at all.
    online: AtomicU32,
    /// Whether the CPU walks the page table. Only its own interrupts read this, so no ordering is needed.
    walking: AtomicU32,
    /// What to publish at the end of the walk. As above.
    postponed: AtomicU64,
}

/// The state of all CPUs' translations of program memory.
pub struct TlbEngine {
    /// The newest generation that somebody waits for.
    epoch: CachePadded<AtomicU64>,
    cpus: Box<[CachePadded<CpuState>]>,
}

impl TlbEngine {
    /// An engine for so many CPUs, all of them offline.
    #[must_use]
    pub fn new(cpus: usize) -> Self {
        Self {
            epoch: CachePadded::new(AtomicU64::new(0)),
            cpus: (0..cpus)
                .map(|_| {
                    CachePadded::new(CpuState {
                        published: AtomicU64::new(0),
                        online: AtomicU32::new(0),
                        walking: AtomicU32::new(0),
                        postponed: AtomicU64::new(0),
                    })
                })
                .collect(),
        }
    }

    /// The number of CPUs.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    fn state(&self, cpu: CpuId) -> &CpuState {
        &self.cpus[cpu.index()]
    }

    /// Called by a CPU before it touches program memory for the first time: from now on, others wait for it.
    pub fn set_online<M: Machine>(&self, machine: &M) {
        let state = self.state(machine.cpu());
        state.online.store(1, Ordering::Relaxed);
        // Either a completing CPU sees this one online, or this one samples an epoch that includes what the other waits for. What
        // it may have walked before, on its own, is dropped after the sample.
        fence(Ordering::SeqCst);
        let sample = self.epoch.load(Ordering::Relaxed);
        fence(Ordering::SeqCst);
        machine.invalidate_all();
        state.published.fetch_max(sample, Ordering::Release);
    }

    /// The generation that has to pass before what has been unmapped so far may be used otherwise.
    #[must_use]
    pub fn retire(&self) -> Generation {
        // The cleared entries are visible before the epoch is read.
        fence(Ordering::SeqCst);
        Generation(self.epoch.load(Ordering::Relaxed) + 1)
    }

    /// Returns when every CPU has dropped what was unmapped before `generation` was given out. Interrupts must be on, no lock held,
    /// and no walk going on.
    pub fn complete<M: Machine>(&self, machine: &M, generation: Generation) {
        let this = machine.cpu();
        self.epoch.fetch_max(generation.0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let behind = |state: &CpuState| {
            state.online.load(Ordering::Relaxed) != 0
                && state.published.load(Ordering::Acquire) < generation.0
        };
        let mut asked = false;
        for (cpu, state) in (0..).map(CpuId).zip(&self.cpus) {
            if cpu != this && behind(state) {
                machine.interrupt(cpu);
                asked = true;
            }
        }
        if asked {
            machine.count(Event::RemoteFlush, 1);
        }
        self.catch_up(machine);
        for (cpu, state) in (0..).map(CpuId).zip(&self.cpus) {
            while cpu != this && behind(state) {
                machine.relax();
            }
        }
    }

    /// Drops the running CPU's translations if anybody waits for that, and says so; else says `false`. For the interrupt that
    /// [`Machine::interrupt`] sends, among others.
    pub fn catch_up<M: Machine>(&self, machine: &M) -> bool {
        let state = self.state(machine.cpu());
        // Sampled before the flush: what is retired later is not promised.
        let sample = self.epoch.load(Ordering::Acquire);
        let done = state
            .published
            .load(Ordering::Relaxed)
            .max(state.postponed.load(Ordering::Relaxed));
        if done >= sample {
            return false;
        }
        fence(Ordering::SeqCst);
        machine.invalidate_all();
        machine.count(Event::FlushAll, 1);
        // An interrupt in between may have got further, so the numbers never fall.
        if state.walking.load(Ordering::Relaxed) == 0 {
            state.published.fetch_max(sample, Ordering::Release);
        } else {
            state.postponed.fetch_max(sample, Ordering::Relaxed);
        }
        true
    }

    /// Whether every CPU has passed `generation` already, in one of loom's models.
    #[cfg(loom)]
    pub fn is_complete(&self, generation: Generation) -> bool {
        self.cpus.iter().all(|state| {
            state.online.load(Ordering::Relaxed) == 0
                || state.published.load(Ordering::Acquire) >= generation.0
        })
    }

    /// Watches what CPUs tell each other, in one of loom's models.
    #[cfg(loom)]
    pub fn watch(&self) {
        self.epoch.watch();
        for state in &self.cpus {
            state.published.watch();
            state.online.watch();
        }
    }

    /// Begins a walk of the page table by software on the running CPU, which must not wait for other CPUs' generations or busy entries
    /// before it is over. Walks do not nest.
    #[inline]
    pub(crate) fn begin_walk<M: Machine>(&self, machine: &M) -> Walk<'_> {
        let state = self.state(machine.cpu());
        debug_assert_eq!(state.walking.load(Ordering::Relaxed), 0, "walks do not nest");
        // Only this CPU's interrupts care, and they see its stores in order.
        state.walking.store(1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Walk(state)
    }
}

/// A walk that goes on until this is dropped.
pub(crate) struct Walk<'a>(&'a CpuState);

impl Drop for Walk<'_> {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.0.walking.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let postponed = self.0.postponed.load(Ordering::Relaxed);
        if postponed > self.0.published.load(Ordering::Relaxed) {
            // Release: the walk's loads are over before anybody reuses what it may have seen.
            self.0.published.fetch_max(postponed, Ordering::Release);
        }
    }
}
