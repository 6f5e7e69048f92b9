//! What loom's models watch of the TLB engine, and how they reach what is the crate's own.

use homenode_topology::CpuId;

use super::requests::PageRun;
use super::{Cause, CpuState, Generation, StalePages, TlbEngine};
use crate::addr::VirtAddr;
use crate::atomic::Ordering;
use crate::machine::Machine;
use crate::size::BASE_SHIFT;

impl TlbEngine {
    /// Watches what CPUs tell each other about generations.
    pub fn watch(&self) {
        self.epoch.watch();
        for CpuState { shown, .. } in &self.cpus {
            shown.published.watch();
            shown.active.watch();
        }
        for node in &self.nodes {
            node.passed.watch();
        }
    }

    /// Watches the requests, who has answered them, and who is active.
    pub fn watch_requests(&self) {
        self.requests.watch();
        for CpuState { shown, .. } in &self.cpus {
            shown.answered.watch();
            shown.active.watch();
        }
    }

    /// Watches what CPUs have been interrupted for.
    pub fn watch_asked(&self) {
        for CpuState { shown, .. } in &self.cpus {
            shown.asked.watch();
        }
    }

    /// Returns when every CPU has dropped its translation of a page of 4 KiB, whose entry has been changed before.
    pub fn invalidate_page<M: Machine>(&self, machine: &M, page: VirtAddr) {
        let mut stale = StalePages::None;
        stale.add(page, BASE_SHIFT);
        self.invalidate(machine, &stale, Cause::Change);
    }

    /// Adds a request for a page of 4 KiB, whose entry has been changed before, and interrupts nobody; its number.
    pub fn request(&self, page: VirtAddr) -> u64 {
        self.requests.add(PageRun {
            start: page,
            shift: BASE_SHIFT,
            pages: 1,
        })
    }

    /// Whether `cpu` has answered the request with this number.
    pub fn has_answered(&self, cpu: CpuId, request: u64) -> bool {
        self.shown(cpu).answered.load(Ordering::Acquire) >= request
    }

    /// Interrupts the CPUs that have not passed what has been unmapped so far, and does not wait for them; which generation that
    /// is.
    pub fn force_without_waiting<M: Machine>(&self, machine: &M) -> Generation {
        let generation = self.retire();
        self.force(machine, generation, generation, Cause::Drain);
        generation
    }

    /// Does `work` as a walk of the page table by the running CPU.
    pub fn walk<M: Machine>(&self, machine: &M, work: impl FnOnce()) {
        let _walk = self.begin_walk(machine);
        work();
    }
}
