//! The simulated machine: memory, and cores that take turns on one thread of the host.
//!
//! A core is a coroutine. It runs until it has passed a given number of *points*, which are the moments before each access of the
//! memory manager to what CPUs share and the moments within a program's accesses; then another core is chosen. So a core can be
//! stopped between any two such accesses, for as long as chance wants.

pub(crate) mod memory;
#[cfg(test)]
mod tests;
pub(crate) mod tlb;
pub(crate) mod walk;

use std::cell::{Cell, RefCell};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use corosensei::Yielder;
use homenode_mm::simulation::{self, FrameEvent};
use homenode_mm::{Cause, Event, Machine, NodeEvent, PageSize, SafePoint, VirtAddr, VirtRange};
use homenode_topology::{CpuId, NodeId, PhysAddr, PhysRange};

use self::memory::{Memory, Violation};
use self::tlb::{Dropped, ROOT, Tlb, Translation, shift};
pub(crate) use self::walk::PageFault;
use self::walk::{Meaning, Step, Walk, bits, meaning};
use crate::random::Random;

thread_local! {
    /// The machine that runs on this thread, while a core of it runs.
    static RUNNING: Cell<*const Hardware> = const { Cell::new(ptr::null()) };
}

/// The most points that an interrupt takes to arrive.
const MOST_DELAY: u64 = 2000;

/// The simulated time between two points in nanoseconds.
const POINT_NS: u64 = 100;

/// How many addresses are remembered for speculative walks near them.
const RECENT: usize = 64;

/// A core.
pub(crate) struct Core {
    node: NodeId,
    pub(crate) tlb: RefCell<Tlb>,
    /// A walk that the core does ahead of the program, at an address that it may never use.
    speculation: Cell<Option<Walk>>,
    /// An interrupt has been sent and not yet handled; how many points it still takes to arrive.
    interrupted: Cell<bool>,
    delay: Cell<u64>,
    /// Interrupts are off, or an instruction or a handler has not ended yet.
    interrupts_off: Cell<bool>,
    /// The core is handling an interrupt.
    handles: Cell<bool>,
    /// The core has loaded the root of the page table; else one without program memory.
    translates: Cell<bool>,
    /// Since when nobody may interrupt the core.
    idle_since_ns: Cell<u64>,
    /// When the core's alarm goes off.
    alarm_ns: Cell<Option<u64>>,
    /// When the core has last made others drop translations.
    forces_ns: Cell<u64>,
    /// The coroutine's way back to the scheduler.
    yielder: Cell<*const Yielder<(), ()>>,
    /// Whether the core has been waiting for others since it was last chosen.
    waits: Cell<bool>,
}

/// What was counted.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Page faults that the memory manager handled.
    pub faults: u64,
    /// Page-table locks that were taken.
    pub locks: u64,
    /// Page-table locks that another core held.
    pub contended: u64,
    /// Pages that were divided.
    pub splits: u64,
    /// Pages that were moved.
    pub moves: u64,
    /// Pages that were to be moved and stayed.
    pub not_moved: u64,
    /// Translations that cores dropped one by one.
    pub flushes_of_pages: u64,
    /// Times that a core dropped all its translations.
    pub flushes: u64,
    /// Interrupts that were sent, in the order of `CAUSES`.
    pub interrupts: [u64; CAUSES.len()],
    /// Times that a core did not wait for others' safe points, likewise.
    pub forced: [u64; CAUSES.len()],
    /// Times that a core caught up, in the order of `SAFE_POINTS`.
    pub caught_up: [u64; SAFE_POINTS.len()],
    /// Times that a core was too late for a request.
    pub ring_overruns: u64,
    /// Ranges that were put aside.
    pub retired: u64,
    /// Alarms that went off.
    pub alarms: u64,
    /// Speculative steps of walks.
    pub speculations: u64,
    /// Times that another core was chosen.
    pub switches: u64,
}

/// Why cores are interrupted, by name.
pub(crate) const CAUSES: [(Cause, &str); 7] = [
    (Cause::Deadline, "deadline"),
    (Cause::Pending, "pending"),
    (Cause::Memory, "memory"),
    (Cause::Drain, "drain"),
    (Cause::Revoke, "revoke"),
    (Cause::Change, "change"),
    (Cause::Off, "off"),
];

/// Where cores catch up, by name.
pub(crate) const SAFE_POINTS: [(SafePoint, &str); 5] = [
    (SafePoint::Interrupt, "interrupt"),
    (SafePoint::Kernel, "kernel"),
    (SafePoint::Quiesce, "quiesce"),
    (SafePoint::Idle, "idle"),
    (SafePoint::Own, "own"),
];

fn index_of<T: PartialEq, const N: usize>(all: &[(T, &str); N], item: T) -> usize {
    all.iter()
        .position(|(other, _)| *other == item)
        .expect("all are listed")
}

/// The machine.
pub(crate) struct Hardware {
    pub(crate) memory: Memory,
    pub(crate) cores: Vec<Core>,
    pub(crate) random: Random,
    root: Cell<PhysAddr>,
    /// The core that runs, and how many points it may still pass.
    current: Cell<usize>,
    left: Cell<u32>,
    /// Points that all cores have passed, or will have passed at the current turn's end.
    points: Cell<u64>,
    in_core: Cell<bool>,
    /// What the interrupt does.
    handler: Cell<Option<NonNull<dyn Fn()>>>,
    violation: RefCell<Option<Violation>>,
    recent: RefCell<[u64; RECENT]>,
    counts: RefCell<Counts>,
    /// Pages of each size that the memory manager says are mapped, by node.
    mapped: RefCell<Vec<[i64; ROOT]>>,
}

impl Hardware {
    /// A machine with so many cores and nodes, and so many bytes of memory on each.
    pub(crate) fn new(seed: u64, cores: usize, nodes: usize, node_bytes: u64) -> Self {
        let core = |index: usize| Core {
            node: NodeId::from(index * nodes / cores),
            tlb: RefCell::new(Tlb::new()),
            speculation: Cell::new(None),
            interrupted: Cell::new(false),
            delay: Cell::new(0),
            interrupts_off: Cell::new(false),
            handles: Cell::new(false),
            translates: Cell::new(false),
            idle_since_ns: Cell::new(u64::MAX),
            alarm_ns: Cell::new(None),
            forces_ns: Cell::new(0),
            yielder: Cell::new(ptr::null()),
            waits: Cell::new(false),
        };
        simulation::set_hook(Some(hook));
        simulation::set_frame_hook(Some(frame_hook));
        Self {
            memory: Memory::new(nodes, node_bytes),
            cores: (0..cores).map(core).collect(),
            random: Random::new(seed),
            root: Cell::new(PhysAddr(0)),
            current: Cell::new(0),
            left: Cell::new(0),
            points: Cell::new(0),
            in_core: Cell::new(false),
            handler: Cell::new(None),
            violation: RefCell::new(None),
            recent: RefCell::new([0; RECENT]),
            counts: RefCell::default(),
            mapped: RefCell::new(vec![[0; ROOT]; nodes]),
        }
    }

    /// Calls `f` while this is the machine that the memory manager's hooks on this thread are about, and `handler` is what
    /// interrupts do.
    pub(crate) fn enter<R>(&self, handler: &dyn Fn(), f: impl FnOnce() -> R) -> R {
        struct Leave<'a>(&'a Hardware, *const Hardware);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                RUNNING.set(self.1);
                self.0.handler.set(None);
            }
        }
        let pointer = NonNull::from(handler);
        // SAFETY: only the lifetime changes, and the pointer goes before this function returns.
        let pointer = unsafe { std::mem::transmute::<NonNull<dyn Fn() + '_>, NonNull<dyn Fn()>>(pointer) };
        let _leave = Leave(self, RUNNING.replace(self));
        self.handler.set(Some(pointer));
        f()
    }

    /// Says where the root of the page table is.
    pub(crate) fn set_root(&self, root: PhysAddr) {
        self.root.set(root);
    }

    /// The current core is idle, and nobody may interrupt it from now on, or it may be interrupted again.
    pub(crate) fn set_idle(&self, is_idle: bool) {
        let since_ns = if is_idle { self.now_ns() } else { u64::MAX };
        self.cores[self.current()].idle_since_ns.set(since_ns);
    }

    /// Whether the alarm of the current core is due.
    pub(crate) fn is_alarm_due(&self) -> bool {
        let alarm = self.cores[self.current()].alarm_ns.get();
        alarm.is_some_and(|at_ns| at_ns <= self.now_ns())
    }

    /// Whether the alarm of the current core has gone off, which happens once.
    pub(crate) fn take_alarm(&self) -> bool {
        let alarm = &self.cores[self.current()].alarm_ns;
        let is_due = alarm.get().is_some_and(|at_ns| at_ns <= self.now_ns());
        if is_due {
            alarm.set(None);
            self.counts.borrow_mut().alarms += 1;
        }
        is_due
    }

    /// A translation that a core has cached of an address in `range` since before this time of memory, and the core.
    pub(crate) fn cached_before(&self, range: VirtRange, time: u32) -> Option<(usize, Translation)> {
        let (start, end) = (range.start().as_u64(), range.start().as_u64() + range.bytes());
        let is_old = |cached: &Translation| {
            cached.since < time && cached.page < end && cached.page + cached.size.bytes() > start
        };
        let cores = self.cores.iter().enumerate();
        cores
            .filter_map(|(index, core)| Some((index, core.tlb.borrow().translations().find(is_old)?)))
            .next()
    }

    /// What a CPU must not have in its hands while these frames are given back: the table that its walk looks at next.
    fn check_walks(&self, range: PhysRange) -> Result<(), Violation> {
        let walks = self.cores.iter().filter_map(|core| core.speculation.get());
        let mut tables = walks.map(|walk| walk.table());
        match tables.find(|table| range.contains(*table)) {
            Some(table) => Err(Violation(format!("{range} was freed while a walk is at {table}"))),
            None => Ok(()),
        }
    }

    /// The root of the page table.
    pub(crate) fn root(&self) -> PhysAddr {
        self.root.get()
    }

    /// The core that runs.
    pub(crate) fn current(&self) -> usize {
        self.current.get()
    }

    /// The node of a core.
    pub(crate) fn node_of_core(&self, core: usize) -> NodeId {
        self.cores[core].node
    }

    /// Says where the coroutine of the current core can be suspended.
    pub(crate) fn set_yielder(&self, yielder: &Yielder<(), ()>) {
        self.cores[self.current()].yielder.set(yielder);
    }

    /// Points passed so far.
    pub(crate) fn points(&self) -> u64 {
        self.points.get()
    }

    /// The pages that the memory manager says are mapped, by node and size.
    pub(crate) fn mapped(&self) -> Vec<[i64; ROOT]> {
        self.mapped.borrow().clone()
    }

    /// What was counted.
    pub(crate) fn counts(&self) -> Counts {
        self.counts.borrow().clone()
    }

    /// Records that something happened that must not; the first thing counts. The core that runs stops at its next point.
    pub(crate) fn violate(&self, violation: Violation) {
        self.violation.borrow_mut().get_or_insert(violation);
        self.shorten_turn(1);
    }

    /// What happened that must not.
    pub(crate) fn take_violation(&self) -> Option<Violation> {
        self.violation.borrow_mut().take()
    }

    /// Whether something happened that must not.
    pub(crate) fn is_violated(&self) -> bool {
        self.violation.borrow().is_some()
    }

    /// Lets a core run for so many points: `resume` resumes its coroutine. Whether the core waits for others when it stops.
    pub(crate) fn turn(&self, core: usize, points: u32, resume: impl FnOnce()) -> bool {
        self.current.set(core);
        self.left.set(points);
        self.cores[core].waits.set(false);
        self.counts.borrow_mut().switches += 1;
        self.points.set(self.points.get() + u64::from(points));
        self.in_core.set(true);
        resume();
        self.in_core.set(false);
        self.points.set(self.points.get() - u64::from(self.left.take()));
        self.cores[core].waits.get()
    }

    /// A moment at which another core may be chosen, or an interrupt may arrive.
    #[inline]
    pub(crate) fn point(&self) {
        if self.in_core.get() {
            match self.left.get() {
                0 | 1 => {
                    self.left.set(0);
                    self.suspend();
                }
                left => self.left.set(left - 1),
            }
            self.poll_interrupts(1);
        }
    }

    fn suspend(&self) {
        let yielder = self.cores[self.current()].yielder.get();
        // SAFETY: a core sets it to its coroutine's before its first point, and runs nowhere else.
        unsafe { (*yielder).suspend(()) };
    }

    /// Handles an interrupt that has been sent to the current core, if it arrives within so many points.
    #[inline]
    fn poll_interrupts(&self, points: u64) {
        let core = &self.cores[self.current()];
        if core.interrupted.get() && !core.interrupts_off.get() {
            match core.delay.get().checked_sub(points) {
                Some(delay) => core.delay.set(delay),
                None => self.handle_interrupt(core),
            }
        }
    }

    #[cold]
    fn handle_interrupt(&self, core: &Core) {
        core.interrupted.set(false);
        if self.random.once_in(2) {
            // So that the core is often stopped while it handles the interrupt, or right behind that.
            self.shorten_turn(1 + self.random.below(16) as u32);
        }
        core.handles.set(true);
        if let Some(handler) = self.handler.get() {
            // SAFETY: `enter` keeps it alive while it is set.
            self.without_interrupts(|| unsafe { handler.as_ref()() });
        }
        if self.in_core.get() && self.random.once_in(2) {
            // What was interrupted goes on a good while later.
            self.suspend();
        }
        core.handles.set(false);
    }

    /// Whether a core is handling an interrupt.
    pub(crate) fn is_handling(&self, core: usize) -> bool {
        self.cores[core].handles.get()
    }

    fn send_interrupt(&self, cpu: CpuId) {
        let Some(core) = self.cores.get(cpu.index()) else {
            return self.violate(Violation(format!(
                "CPU {cpu} was interrupted, which there is not"
            )));
        };
        let since_ns = self.cores[self.current()].forces_ns.get();
        if core.idle_since_ns.get() < since_ns {
            self.violate(Violation(format!(
                "CPU {cpu} was interrupted and has been idle for long"
            )));
        }
        if !core.interrupted.replace(true) {
            core.delay.set(self.random.skewed(MOST_DELAY) - 1);
        }
    }

    /// The time after so many choices of a core: it goes on while all wait.
    fn now_ns_of(&self, switches: u64) -> u64 {
        let points = self.points.get() - u64::from(self.left.get());
        (points + switches) * POINT_NS
    }

    fn shorten_turn(&self, most: u32) {
        let left = self.left.get();
        let less = left.min(most);
        self.left.set(less);
        self.points.set(self.points.get() - u64::from(left - less));
    }

    /// Calls `f` while no interrupt comes through to the current core.
    pub(crate) fn without_interrupts<R>(&self, f: impl FnOnce() -> R) -> R {
        let off = &self.cores[self.current()].interrupts_off;
        let before = off.replace(true);
        let result = f();
        off.set(before);
        result
    }

    /// A program's access at `address` by the current core: `access` is called with the word that contains it and its physical
    /// address, in the middle of an instruction.
    pub(crate) fn access<R>(
        &self,
        address: u64,
        writes: bool,
        access: impl FnOnce(&AtomicU64, PhysAddr) -> R,
    ) -> Result<R, PageFault> {
        self.point();
        self.without_interrupts(|| self.instruction(address, writes, access))
    }

    fn instruction<R>(
        &self,
        address: u64,
        writes: bool,
        access: impl FnOnce(&AtomicU64, PhysAddr) -> R,
    ) -> Result<R, PageFault> {
        let core = &self.cores[self.current()];
        if !core.translates.get() {
            self.violate(Violation(format!("{address:#x} is accessed by an idle core")));
            return Err(PageFault::Violation);
        }
        self.recent.borrow_mut()[self.random.index(RECENT)] = address;
        let found = core.tlb.borrow().lookup(address, &self.random);
        let translation = match found {
            Some(found) if !writes || (found.writable && found.dirty) => found,
            Some(found) if !found.writable => return Err(self.fault(address, PageFault::NotWritable)),
            _ => self.walk(address, writes)?,
        };
        if self.random.once_in(4) {
            // The instruction takes its time.
            self.point();
        }
        let physical = translation.frame + (address - translation.page);
        match self.memory.word(physical, translation.since, writes) {
            Ok(word) => Ok(access(word, physical)),
            Err(Violation(text)) => {
                self.violate(Violation(format!(
                    "access to {address:#x} by {translation:?}: {text}"
                )));
                Err(PageFault::Violation)
            }
        }
    }

    fn walk(&self, address: u64, writes: bool) -> Result<Translation, PageFault> {
        let core = &self.cores[self.current()];
        let from_root = self.random.once_in(8);
        let now = self.memory.time();
        let mut walk = Walk::new(&core.tlb.borrow(), self.root(), now, address, writes, from_root);
        loop {
            self.point();
            let step = walk.step(&self.memory, &mut core.tlb.borrow_mut(), |old| self.dropped(old));
            match step {
                Ok(Step::Table) => {}
                Ok(Step::Page(translation)) => return Ok(translation),
                Ok(Step::Fault(fault)) => return Err(self.fault(address, fault)),
                Err(violation) => {
                    self.violate(Violation(format!("walk for {address:#x}: {}", violation.0)));
                    return Err(PageFault::Violation);
                }
            }
        }
    }

    /// A page fault drops what the CPU knows about the address (Intel SDM volume 3, 4.10.4.1).
    fn fault(&self, address: u64, fault: PageFault) -> PageFault {
        self.invalidate(self.current(), address);
        fault
    }

    /// Drops a core's translations of an address and what it knows of tables.
    fn invalidate(&self, core: usize, address: u64) {
        let core = &self.cores[core];
        let mut tlb = core.tlb.borrow_mut();
        tlb.drop_translations(address, |old| self.dropped(old));
        tlb.drop_tables(|old| self.dropped(old));
        core.speculation.set(None);
    }

    /// Drops what a core has cached but global translations, as when CR3 is loaded.
    fn flush(&self, core: usize) {
        let core = &self.cores[core];
        let mut tlb = core.tlb.borrow_mut();
        tlb.drop_all_translations(|old| self.dropped(old));
        tlb.drop_tables(|old| self.dropped(old));
        core.speculation.set(None);
    }

    fn dropped(&self, (frame, size): Dropped) {
        self.memory.count_cached(frame, size, -1);
    }

    /// Something that a core does on its own: a step of a speculative walk, an eviction from its caches, or a
    /// load of CR3.
    pub(crate) fn speculate(&self) {
        let index = self.random.index(self.cores.len());
        let core = &self.cores[index];
        if !core.translates.get() {
            return;
        }
        if self.random.once_in(1000) {
            return self.flush(index);
        }
        let mut tlb = core.tlb.borrow_mut();
        if self.random.once_in(16) {
            if let Some(old) = tlb.evict(&self.random) {
                self.dropped(old);
            }
            return;
        }
        let mut walk = core.speculation.take().unwrap_or_else(|| {
            let address = self.near_recent();
            let from_root = self.random.once_in(8);
            Walk::new(&tlb, self.root(), self.memory.time(), address, false, from_root)
        });
        self.counts.borrow_mut().speculations += 1;
        match walk.step(&self.memory, &mut tlb, |old| self.dropped(old)) {
            Ok(Step::Table) => core.speculation.set(Some(walk)),
            Ok(Step::Page(_) | Step::Fault(_)) => {}
            Err(Violation(text)) => self.violate(Violation(format!("speculative walk {walk:x?}: {text}"))),
        }
    }

    fn near_recent(&self) -> u64 {
        let address = self.recent.borrow()[self.random.index(RECENT)];
        let step = self
            .random
            .pick(&[0, 0, 1 << shift(0), 1 << shift(1), 1 << shift(2)]);
        let near = match self.random.once_in(2) {
            true => address.saturating_add(step),
            false => address.saturating_sub(step),
        };
        VirtAddr::new_truncated(near).as_u64()
    }

    /// What the tables say about an address now, as a check would want to know it: not cached, nothing marked.
    pub(crate) fn inspect(&self, address: u64) -> Result<Option<Translation>, Violation> {
        let mut table = self.root();
        let mut writable = true;
        for level in (0..=ROOT).rev() {
            let index = address >> shift(level) & 511;
            let entry = self.memory.peek(table + index * 8);
            let entry = entry.ok_or_else(|| Violation(format!("the table at {table} is not allocated")))?;
            writable &= entry & bits::WRITABLE != 0;
            match meaning(&self.memory, entry, level)? {
                Meaning::NotPresent => return Ok(None),
                Meaning::Table(next) => table = next,
                Meaning::Page(frame, size) => {
                    return Ok(Some(Translation {
                        page: address & !(size.bytes() - 1),
                        size,
                        frame,
                        writable,
                        dirty: entry & bits::DIRTY != 0,
                        global: entry & bits::GLOBAL != 0,
                        since: self.memory.time(),
                    }));
                }
            }
        }
        unreachable!("every entry of a level 0 table that is present maps a page")
    }
}

/// Called before each access of the memory manager to what CPUs share.
fn hook(address: usize) {
    let running = RUNNING.get();
    if running.is_null() {
        return;
    }
    // SAFETY: it is set only while the machine is borrowed by `Hardware::enter`.
    let hardware = unsafe { &*running };
    hardware.point();
    if let Err(violation) = hardware.memory.check_host_access(address) {
        hardware.violate(violation);
        hardware.point();
    }
}

/// Called when the frame allocator hands out frames or gets them back.
fn frame_hook(range: PhysRange, event: FrameEvent) {
    let running = RUNNING.get();
    if running.is_null() {
        return;
    }
    // SAFETY: as in `hook`.
    let hardware = unsafe { &*running };
    let result = match event {
        FrameEvent::Allocated => hardware.memory.allocated(range),
        FrameEvent::Freed => hardware
            .memory
            .freed(range)
            .and_then(|()| hardware.check_walks(range)),
    };
    if let Err(violation) = result {
        hardware.violate(violation);
        hardware.point();
    }
}

// SAFETY: a machine is created, used and dropped within one call of `run`, in one thread, and never handed to another: nothing
// public contains one.
unsafe impl Sync for Hardware {}
// SAFETY: as above.
unsafe impl Send for Hardware {}

// SAFETY: `memory` gives pointers into one mapping that lives as long as the machine; the caches are only caches; and the cores
// have different numbers and are all that runs.
unsafe impl Machine for Hardware {
    fn memory(&self, range: PhysRange) -> NonNull<u8> {
        match self.memory.reach(range) {
            Ok(pointer) => pointer,
            Err(violation) => {
                self.violate(violation);
                self.point();
                panic!("{range} is not the kernel's to reach");
            }
        }
    }

    unsafe fn zero(&self, range: PhysRange) {
        if let Err(violation) = self.memory.zero(range, || self.point()) {
            self.violate(violation);
        }
    }

    unsafe fn copy(&self, from: PhysRange, to: PhysAddr) {
        let reaches = |translation: Translation| {
            let frame = PhysRange::new(translation.frame, translation.frame + translation.size.bytes());
            translation.writable && frame.intersection(&from).is_some()
        };
        let writer = self
            .cores
            .iter()
            .position(|core| core.tlb.borrow().translations().any(reaches));
        if let Some(core) = writer {
            self.violate(Violation(format!(
                "{from} is copied while core {core} can write to it"
            )));
        }
        if let Err(violation) = self.memory.copy(from, to, || self.point()) {
            self.violate(violation);
        }
    }

    fn cpu(&self) -> CpuId {
        CpuId::from(self.current())
    }

    fn node(&self) -> NodeId {
        self.cores[self.current()].node
    }

    fn invalidate_page(&self, page: VirtAddr) {
        self.point();
        self.invalidate(self.current(), page.as_u64());
    }

    fn invalidate_all(&self) {
        self.point();
        self.flush(self.current());
    }

    fn load_idle_root(&self) {
        self.point();
        let core = &self.cores[self.current()];
        self.flush(self.current());
        core.translates.set(false);
        if let Some(cached) = core.tlb.borrow().translations().next() {
            self.violate(Violation(format!("an idle core still has {cached:x?}")));
        }
    }

    fn load_program_root(&self) {
        self.point();
        self.flush(self.current());
        self.cores[self.current()].translates.set(true);
    }

    fn now_ns(&self) -> u64 {
        self.now_ns_of(self.counts.borrow().switches)
    }

    fn set_alarm(&self, at_ns: u64) {
        self.cores[self.current()].alarm_ns.set(Some(at_ns));
    }

    fn interrupt(&self, cpus: impl Iterator<Item = CpuId>) {
        self.point();
        if self.random.once_in(2) {
            return cpus.for_each(|cpu| self.send_interrupt(cpu));
        }
        // All at once, when all are known.
        let cpus: Vec<CpuId> = cpus.collect();
        self.point();
        cpus.into_iter().for_each(|cpu| self.send_interrupt(cpu));
    }

    fn relax(&self) {
        self.poll_interrupts(1 + self.random.below(MOST_DELAY / 8));
        self.cores[self.current()].waits.set(true);
        if self.in_core.get() {
            self.suspend();
        }
    }

    fn count(&self, event: Event, n: u64) {
        let counts = &mut *self.counts.borrow_mut();
        *match event {
            Event::Fault => &mut counts.faults,
            Event::TableLock => &mut counts.locks,
            Event::TableLockContended => &mut counts.contended,
            Event::Split => &mut counts.splits,
            Event::Moved => &mut counts.moves,
            Event::NotMoved => &mut counts.not_moved,
            Event::FlushOne => &mut counts.flushes_of_pages,
            Event::FlushAll => &mut counts.flushes,
            Event::RemoteFlush => return,
            Event::Forced(cause) => {
                let core = &self.cores[self.current()];
                core.forces_ns.set(self.now_ns_of(counts.switches));
                &mut counts.forced[index_of(&CAUSES, cause)]
            }
            Event::InterruptsSent(cause) => &mut counts.interrupts[index_of(&CAUSES, cause)],
            Event::CaughtUp(at) => &mut counts.caught_up[index_of(&SAFE_POINTS, at)],
            Event::RingOverrun => &mut counts.ring_overruns,
            Event::Retired => &mut counts.retired,
        } += n;
    }

    fn count_on(&self, node: NodeId, event: NodeEvent, n: i64) {
        if let NodeEvent::Mapped(size) | NodeEvent::MappedAtHome(size) = event {
            let level = PageSize::ALL.iter().position(|other| *other == size).unwrap_or(0);
            self.mapped.borrow_mut()[node.index()][level] += n;
        }
    }
}
