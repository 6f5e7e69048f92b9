//! The program that all cores run: operations by chance on reservations that they share, each checked against the model.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use homenode_mm::{
    Access, AddressSpace, Attributes, Cause, FaultError, FrameAllocator, Machine, OutOfMemory, PageSize,
    Policy, Protection, RangeError, ReserveError, SafePoint, TlbEngine, VirtAddr, VirtRange,
};
use homenode_topology::{CpuId, NodeId, PhysAddr};

use crate::hardware::memory::{FRAME, Violation};
use crate::hardware::{Hardware, PageFault};
use crate::model::{Model, RELEASED, Region, Subject};
use crate::profile::{Choice, Profile};
use crate::report::{KINDS, Log, Operation, Outcome};

/// The offsets of the words in a page that programs write to. Others stay zero.
const WORDS: [u64; 4] = [0, 1032, 2048, 4088];

/// How often an access may fault before something is wrong.
const MOST_FAULTS: u32 = 100_000;

/// How often a core waits for another one before something is wrong.
const MOST_RELAXES: u32 = 20_000;

/// The most bytes of tables that a range leaves behind.
const TABLES: u64 = 8 << 20;

/// The addresses that reservations come from, a multiple of 512 GiB.
pub(crate) const PROGRAM_START: u64 = 1 << 39;
pub(crate) const PROGRAM_BYTES: u64 = 8 << 39;

/// What the cores are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Operations.
    Run,
    /// Nothing, until all have come to rest and the state has been checked.
    Rest,
    /// Release what is left.
    Release,
    /// Return.
    End,
}

/// All that the cores share.
pub(crate) struct Program<'a> {
    pub(crate) hardware: &'a Hardware,
    pub(crate) frames: &'a FrameAllocator<&'a Hardware>,
    pub(crate) tlb: &'a TlbEngine,
    pub(crate) space: &'a AddressSpace<'a, &'a Hardware>,
    pub(crate) model: Model,
    pub(crate) profile: Cell<Profile>,
    pub(crate) phase: Cell<Phase>,
    /// How many rests there have been with the current one, and how many cores have come to it.
    pub(crate) rest: Cell<u64>,
    pub(crate) resting: Cell<usize>,
    /// How many cores have come to the current rest, but may still give back what waits.
    pub(crate) arrived: Cell<usize>,
    /// Whether everything has been released.
    pub(crate) is_last_rest: Cell<bool>,
    /// When each core's operation began, in the time of memory.
    pub(crate) began: Vec<Cell<u32>>,
    pub(crate) log: RefCell<Log>,
    pub(crate) done: Cell<u64>,
    pub(crate) kinds: [Cell<u64>; KINDS.len()],
    pub(crate) out_of_memory: Cell<u64>,
    pub(crate) refused: Cell<u64>,
}

impl<'a> Program<'a> {
    /// What each core does.
    pub(crate) fn run_core(&self) {
        self.hardware
            .without_interrupts(|| self.tlb.exit_idle(self.hardware));
        let mut short = false;
        let mut rest = 0;
        loop {
            match self.phase.get() {
                Phase::Run => {
                    short = self.operate(short);
                    self.enter_kernel();
                }
                Phase::Rest => {
                    // A core that was not chosen for long may meet the next rest before it has noticed that this one is over.
                    if rest != self.rest.get() {
                        rest = self.rest.get();
                        // The last to come gives back what waits.
                        self.arrived.set(self.arrived.get() + 1);
                        if self.arrived.get() == self.began.len() {
                            self.arrived.set(0);
                            self.drain();
                            self.check_nothing_waits();
                        }
                        self.resting.set(self.resting.get() + 1);
                    }
                    self.hardware.relax();
                }
                Phase::Release => match self.model.regions().into_iter().find(|region| region.is_idle()) {
                    Some(region) => {
                        self.release(&region, false);
                        self.enter_kernel();
                    }
                    None => self.hardware.relax(),
                },
                Phase::End => return,
            }
        }
    }

    /// What a core does behind each operation: its alarm if that has gone off and, more or less often, a safe point.
    fn enter_kernel(&self) {
        let hardware = self.hardware;
        if hardware.take_alarm() {
            self.space.alarm();
        }
        let often = self.profile.get().safe_points;
        if hardware.random.once_in(often[hardware.current() % often.len()]) {
            let at = hardware.random.pick(&[SafePoint::Kernel, SafePoint::Quiesce]);
            if self.space.of_cpu(hardware.cpu()).is_behind() {
                self.tlb.catch_up(hardware, at);
            }
        }
        self.check_pending();
    }

    /// On the CPUs of the current core's node, no more waits than may, but for one batch and the tables that a range has left.
    fn check_pending(&self) {
        let (hardware, node) = (self.hardware, self.hardware.node());
        let of_node = |core: &usize| hardware.node_of_core(*core) == node;
        let pending = || {
            let cores = (0..hardware.cores.len()).filter(of_node);
            let bytes = cores.map(|core| self.space.pending_bytes(CpuId::from(core)));
            bytes.sum::<u64>()
        };
        let most = self.space.pending_max_bytes(node) + PageSize::Size2MiB.bytes() + TABLES;
        // What another core is giving back right now counts until that is done.
        let mut patience = MOST_RELAXES;
        while pending() > most && patience > 0 && !hardware.is_violated() {
            hardware.relax();
            patience -= 1;
        }
        if patience == 0 {
            self.violate(format!(
                "{:#x} bytes wait on node {node}, and no more than {most:#x} may",
                pending()
            ));
        }
    }

    /// Does something; whether memory was short.
    fn operate(&self, short: bool) -> bool {
        let random = &self.hardware.random;
        let profile = self.profile.get();
        let before = self.out_of_memory.get();
        let mut choice = random.weighted(&profile.choices);
        if short && random.once_in(profile.patience) {
            choice = random.pick(&[Choice::Release, Choice::Discard]);
        }
        match (choice, self.model.count()) {
            (Choice::Stray, _) => return self.stray(),
            (Choice::Drain, _) => self.drain(),
            (Choice::Idle, _) => self.idle(),
            (Choice::Reserve, count) if count < profile.regions => self.reserve(),
            (_, 0) => self.reserve(),
            (Choice::Reserve, _) => self.on_region(Choice::Release),
            (choice, _) => self.on_region(choice),
        }
        let gave_back = matches!(choice, Choice::Release | Choice::Discard);
        self.out_of_memory.get() > before || (short && !gave_back)
    }

    fn on_region(&self, choice: Choice) {
        let random = &self.hardware.random;
        let count = match choice {
            // So that those go that are more than the profile wants.
            Choice::Release | Choice::Revoke => self.model.count(),
            _ => self.model.count().min(self.profile.get().regions),
        };
        let Some(region) = self.model.nth(random.index(count)) else {
            return;
        };
        match choice {
            Choice::Access => return self.accesses(&region),
            Choice::Query => return self.query(self.address_in(&region)),
            _ if region.is_releasing() => return,
            _ => {}
        }
        match choice {
            Choice::Compute => self.compute(&region),
            Choice::Loop => self.long_loop(&region),
            Choice::Release if region.is_idle() => self.release(&region, false),
            Choice::Revoke if region.is_idle() => self.release(&region, true),
            Choice::Populate => self.populate(&region),
            Choice::Discard => self.discard(&region),
            Choice::Protect => self.protect(&region),
            Choice::SetPolicy => self.set_policy(&region),
            Choice::Move => self.move_pages(&region),
            Choice::Visit => self.visit(&region),
            Choice::Access
            | Choice::Query
            | Choice::Release
            | Choice::Revoke
            | Choice::Stray
            | Choice::Reserve
            | Choice::Drain
            | Choice::Idle => {}
        }
    }

    fn begin(&self, operation: Operation) -> u64 {
        let hardware = self.hardware;
        let mut log = self.log.borrow_mut();
        log.push(hardware.points(), hardware.current(), operation, None);
        self.began[hardware.current()].set(hardware.memory.time());
        self.model.tick()
    }

    fn end(&self, operation: Operation, outcome: Outcome) {
        let hardware = self.hardware;
        let mut log = self.log.borrow_mut();
        log.push(hardware.points(), hardware.current(), operation, Some(outcome));
        self.done.set(self.done.get() + 1);
        let kind = &self.kinds[operation.kind()];
        kind.set(kind.get() + 1);
        let count = match outcome {
            Outcome::OutOfMemory(_) => &self.out_of_memory,
            Outcome::Refused => &self.refused,
            _ => return,
        };
        count.set(count.get() + 1);
    }

    fn check(&self, result: Result<(), Violation>) {
        if let Err(violation) = result {
            self.violate(violation.0);
        }
    }

    fn violate(&self, text: String) {
        self.hardware.violate(Violation(text));
        self.hardware.point();
    }

    // What is chosen.

    fn policy(&self) -> Policy {
        let random = &self.hardware.random;
        let node = NodeId::from(random.index(self.hardware.memory.nodes().len()));
        random.weighted(&[
            (Policy::Local, 3),
            (Policy::Bind(node), 3),
            (Policy::Preferred(node), 1),
            (Policy::Interleave, 1),
        ])
    }

    fn optional_policy(&self) -> Option<Policy> {
        let policy = self.policy();
        self.hardware.random.weighted(&[(None, 1), (Some(policy), 1)])
    }

    fn thread_policy(&self) -> Policy {
        let policy = self.policy();
        self.hardware.random.weighted(&[(Policy::Local, 3), (policy, 1)])
    }

    fn protection(&self) -> Protection {
        let choices = [
            (Protection::None, 1),
            (Protection::Read, 2),
            (Protection::ReadWrite, 3),
        ];
        self.hardware.random.weighted(&choices)
    }

    fn page_in(&self, region: &Region) -> u64 {
        const LARGE: u64 = PageSize::Size2MiB.bytes() / FRAME;
        let random = &self.hardware.random;
        let pages = region.range.bytes() / FRAME;
        let hot_pages = self.profile.get().hot_pages;
        let page = match random.below(8) {
            0 => random.skewed(pages) - 1,
            1 => random.below(pages),
            2 => (random.below(pages / LARGE + 1) * LARGE + random.below(3)).saturating_sub(1),
            // The same few pages again and again, as programs do.
            _ => {
                (region.range.start().as_u64() / FRAME + random.below(hot_pages))
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    >> 20
            }
        };
        page % pages
    }

    fn address_in(&self, region: &Region) -> u64 {
        let page = self.page_in(region);
        region.range.start().as_u64() + page * FRAME + self.hardware.random.pick(&WORDS)
    }

    fn part_of(&self, region: &Region, most_bytes: u64) -> VirtRange {
        let random = &self.hardware.random;
        let (start, bytes) = (region.range.start().as_u64(), region.range.bytes());
        let address = start + self.page_in(region) * FRAME;
        let rest = start + bytes - address;
        let large = random
            .pick(&[PageSize::Size2MiB, PageSize::Size2MiB, PageSize::Size1GiB])
            .bytes();
        let (from, length) = match random.below(8) {
            0 => (start, bytes),
            1 | 2 => (address, FRAME),
            3 => (address, FRAME * random.skewed(16)),
            4 => (address / large * large, large),
            5 => (address / large * large, large * random.skewed(4)),
            6 => (address, large - address % large),
            _ => (address, FRAME * random.skewed(rest / FRAME)),
        };
        let from = from.max(start);
        let length = length.min(start + bytes - from).min(most_bytes);
        VirtRange::new(VirtAddr::new_truncated(from), length).expect("a part of a range is one")
    }

    // Accesses.

    fn accesses(&self, region: &Rc<Region>) {
        let random = &self.hardware.random;
        let mut address = self.address_in(region);
        let policy = self.thread_policy();
        let writing = random.once_in(2);
        for _ in 0..random.skewed(16) {
            if self.phase.get() != Phase::Run {
                return;
            }
            let writes = writing && !random.once_in(3);
            if !writes && random.once_in(16) {
                address = (address & !(FRAME - 1)) + random.below(FRAME / 8) * 8;
            }
            let outcome = self.access(address, writes && WORDS.contains(&(address % FRAME)), policy);
            if !matches!(outcome, Outcome::Value(_)) && random.once_in(2) {
                return;
            }
            let page = address & !(FRAME - 1);
            address = match random.below(4) {
                0 => page,
                1 => (page + FRAME).min(region.range.start().as_u64() + region.range.bytes() - FRAME),
                _ => self.address_in(region),
            } & !(FRAME - 1)
                | random.pick(&WORDS);
        }
    }

    /// An access, with the faults that it takes.
    fn access(&self, address: u64, writes: bool, policy: Policy) -> Outcome {
        let operation = match writes {
            true => Operation::Write(address),
            false => Operation::Read(address),
        };
        let since = self.begin(operation);
        let outcome = self.access_or_fault(address, writes, policy, since);
        self.end(operation, outcome);
        outcome
    }

    fn access_or_fault(&self, address: u64, writes: bool, policy: Policy, since: u64) -> Outcome {
        let kind = if writes { Access::Write } else { Access::Read };
        for _ in 0..MOST_FAULTS {
            let fault = match self.try_access(address, writes) {
                Ok(value) => return Outcome::Value(value),
                Err(PageFault::Violation) => break,
                Err(fault) => fault,
            };
            self.hardware.point();
            let at = VirtAddr::new_truncated(address);
            // As the kernel's page-fault handler does: interrupts go on for what the shortest path can not do.
            let may_be_short = fault == PageFault::NotPresent && policy == Policy::Local;
            let short = || may_be_short && self.space.of_cpu(self.hardware.cpu()).fault_at_once(at);
            if self.hardware.without_interrupts(short) {
                continue;
            }
            match self.space.fault(at, kind, policy) {
                Ok(()) => {}
                Err(FaultError::NotReserved(_)) => {
                    self.check(self.model.not_reserved(address, since));
                    return Outcome::Refused;
                }
                Err(FaultError::NotAllowed { protection, .. }) => {
                    self.check(self.model.not_allowed(address, writes, protection, since));
                    return Outcome::Refused;
                }
                Err(FaultError::OutOfMemory(error)) => return self.out_of_memory(error),
            }
        }
        if !self.hardware.is_violated() {
            self.violate(format!(
                "{MOST_FAULTS} faults at {address:#x} did not bring the page"
            ));
        }
        Outcome::Refused
    }

    fn try_access(&self, address: u64, writes: bool) -> Result<u64, PageFault> {
        let node_of = |physical: PhysAddr| self.hardware.memory.node_of(physical);
        let checked = self
            .hardware
            .access(address, writes, |word: &AtomicU64, physical| {
                self.model.access(
                    address,
                    writes,
                    node_of(physical),
                    || word.load(Ordering::Relaxed),
                    |value| word.store(value, Ordering::Relaxed),
                )
            })?;
        match checked {
            Ok(value) => Ok(value),
            Err(violation) => {
                self.violate(violation.0);
                Err(PageFault::Violation)
            }
        }
    }

    /// Accesses to a few pages while no interrupt comes through.
    fn compute(&self, region: &Rc<Region>) {
        let random = &self.hardware.random;
        let operation = Operation::Compute(region.range);
        self.begin(operation);
        let addresses: [u64; 4] = std::array::from_fn(|_| self.address_in(region));
        let length = random.skewed(if random.once_in(16) { 4000 } else { 200 });
        self.hardware.without_interrupts(|| {
            for _ in 0..length {
                if self
                    .try_access(random.pick(&addresses), random.once_in(2))
                    .is_err()
                {
                    break;
                }
                self.hardware.point();
            }
        });
        self.end(operation, Outcome::Done);
    }

    /// Accesses for long, with interrupts but without a page fault or another call.
    fn long_loop(&self, region: &Rc<Region>) {
        let random = &self.hardware.random;
        let operation = Operation::Loop(region.range);
        self.begin(operation);
        let addresses: [u64; 8] = std::array::from_fn(|_| self.address_in(region));
        for _ in 0..random.skewed(4000) {
            if self.phase.get() != Phase::Run || self.hardware.is_violated() {
                break;
            }
            // What can not be accessed is left out.
            _ = self.try_access(random.pick(&addresses), random.once_in(2));
            self.hardware.point();
        }
        self.end(operation, Outcome::Done);
    }

    /// Nothing for a while, as a CPU without a thread does, but for what its alarm is about.
    fn idle(&self) {
        let (hardware, random) = (self.hardware, &self.hardware.random);
        self.begin(Operation::Idle);
        for _ in 0..random.skewed(8) {
            hardware.without_interrupts(|| self.tlb.enter_idle(hardware));
            hardware.set_idle(true);
            for _ in 0..random.skewed(2000) {
                if hardware.is_alarm_due() || self.phase.get() != Phase::Run {
                    break;
                }
                hardware.relax();
            }
            hardware.set_idle(false);
            hardware.without_interrupts(|| self.tlb.exit_idle(hardware));
            if hardware.take_alarm() {
                self.space.alarm();
            }
        }
        self.end(Operation::Idle, Outcome::Done);
    }

    /// A read that the program should not do.
    fn stray(&self) -> bool {
        let random = &self.hardware.random;
        let behind = |range: VirtRange| range.start().as_u64() + range.bytes() + FRAME * random.below(4);
        let within = |range: VirtRange| range.start().as_u64() + FRAME * random.below(range.bytes() / FRAME);
        let region = self.model.nth(random.index(self.model.count().max(1)));
        let address = match (self.model.released(random.index(RELEASED)), region) {
            (_, Some(region)) if random.once_in(4) => behind(region.range),
            (Some(range), _) => within(range),
            _ => PROGRAM_START + FRAME * random.skewed(PROGRAM_BYTES / FRAME - 1),
        };
        if self.model.find(address).is_some() {
            return false;
        }
        let operation = Operation::Stray(address);
        let since = self.begin(operation);
        let outcome = self.access_or_fault(address, false, Policy::Local, since);
        self.end(operation, outcome);
        false
    }

    // Calls.

    fn reserve(&self) {
        let random = &self.hardware.random;
        let bytes = self.profile.get().bytes(random);
        let attributes = Attributes {
            protection: random.weighted(&[
                (Protection::ReadWrite, 8),
                (Protection::Read, 1),
                (Protection::None, 1),
            ]),
            policy: self.optional_policy(),
            page_size: random.weighted(&[
                (PageSize::Size4KiB, 2),
                (PageSize::Size2MiB, 4),
                (PageSize::Size1GiB, 1),
            ]),
        };
        let operation = Operation::Reserve(bytes, attributes);
        self.begin(operation);
        self.model.begin_reserve();
        let before = self.hardware.memory.advance();
        let result = self.space.reserve(bytes, attributes);
        let reserved = result.ok().map(|range| (range, attributes));
        self.check(self.model.end_reserve(bytes, reserved));
        if let Ok(range) = result {
            let addresses = AddressSpace::<&Hardware>::addresses_of(range);
            self.check_not_cached(addresses, before, "were handed out");
        }
        let outcome = match result {
            Ok(range) => Outcome::Reserved(range),
            Err(ReserveError::Range(RangeError::OutOfMemory(error))) => self.out_of_memory(error),
            Err(error) => self.unexpected(&error),
        };
        self.end(operation, outcome);
    }

    /// Gives a region back, and so that nobody can reach it on return if it is to be `revoked`.
    fn release(&self, region: &Region, revoked: bool) {
        let range = region.range;
        let operation = match revoked {
            true => Operation::Revoke(range),
            false => Operation::Release(range),
        };
        self.begin(operation);
        self.model.begin_release(region);
        let before = self.hardware.memory.advance();
        match revoked {
            true => self.space.revoke(range),
            false => self.space.release(range),
        }
        let lazy = self.space.is_lazy() && !revoked;
        if !lazy {
            self.check_not_cached(range, before, "were revoked");
        }
        self.model.end_release(region, lazy);
        self.end(operation, Outcome::Done);
    }

    fn drain(&self) {
        self.begin(Operation::Drain);
        let retired = self.model.retired();
        let quiet = !self.model.is_reserving();
        let before = self.hardware.memory.advance();
        self.space.drain(Cause::Drain);
        // Else it may be new translations that are seen.
        let checked = if quiet { &retired[..] } else { &[] };
        for region in checked {
            self.check_not_cached(region.range, before, "were drained");
        }
        self.model.end_retired(&retired);
        self.end(Operation::Drain, Outcome::Done);
    }

    /// After a drain, all other cores being at rest.
    fn check_nothing_waits(&self) {
        let cpus = (0..self.hardware.cores.len()).map(CpuId::from);
        let bytes: u64 = cpus.map(|cpu| self.space.pending_bytes(cpu)).sum();
        if bytes > 0 {
            self.violate(format!("{bytes:#x} bytes wait after a drain"));
        }
    }

    /// No core has a translation of these addresses from before that time of memory.
    fn check_not_cached(&self, addresses: VirtRange, before: u32, what: &str) {
        if let Some((core, cached)) = self.hardware.cached_before(addresses, before) {
            self.violate(format!(
                "the addresses {addresses} {what} while core {core} has {cached:x?}"
            ));
        }
    }

    fn populate(&self, region: &Region) {
        let most = self.hardware.random.skewed(PageSize::Size2MiB.bytes() * 8) & !(FRAME - 1);
        let range = self.part_of(region, most.max(FRAME));
        let by = self.optional_policy();
        let operation = Operation::Populate(range, by);
        let since = self.begin(operation);
        let subject = by.map_or(Subject::Nothing, |_| Subject::Placement);
        let call = self.model.begin(region, range, subject);
        let result = self.space.populate(range, by, self.thread_policy());
        let alone = self.model.end(region, call, subject, true);
        let outcome = match result {
            Ok(()) => {
                if alone {
                    let is_there = |seen: &Option<PhysAddr>| seen.is_some();
                    self.check_pages(region, range, "was populated", is_there);
                }
                Outcome::Done
            }
            Err(FaultError::NotAllowed {
                address, protection, ..
            }) => {
                let address = address.as_u64();
                self.check(self.model.not_allowed(address, false, protection, since));
                Outcome::Refused
            }
            Err(FaultError::OutOfMemory(error)) => self.out_of_memory(error),
            Err(error) => self.unexpected(&error),
        };
        self.end(operation, outcome);
    }

    /// In the instant in which a call returns during which no other was about the region: checks the physical address of some
    /// pages.
    fn check_pages(
        &self,
        region: &Region,
        range: VirtRange,
        what: &str,
        holds: impl Fn(&Option<PhysAddr>) -> bool,
    ) {
        let random = &self.hardware.random;
        let (start, pages) = (range.start().as_u64(), range.bytes() / FRAME);
        for page in [0, random.below(pages), pages - 1] {
            let address = start + page * FRAME;
            let frame = match self.hardware.inspect(address) {
                Ok(found) => found.map(|found| found.frame),
                Err(violation) => return self.violate(violation.0),
            };
            let hidden = frame.is_none() && region.may_be_hidden(address);
            if !hidden && !holds(&frame) {
                let whole = region.range;
                self.violate(format!(
                    "{range} of {whole} {what}, but {address:#x} has {frame:?}"
                ));
            }
        }
    }

    fn discard(&self, region: &Region) {
        let range = self.part_of(region, u64::MAX);
        let operation = Operation::Discard(range);
        self.begin(operation);
        let call = self.model.begin(region, range, Subject::Discard);
        let result = self.space.discard(range);
        self.model.end(region, call, Subject::Discard, result.is_ok());
        self.end_change(operation, result);
    }

    fn protect(&self, region: &Region) {
        let range = self.part_of(region, u64::MAX);
        let protection = self.protection();
        let operation = Operation::Protect(range, protection);
        self.begin(operation);
        let subject = Subject::Protection(protection);
        let call = self.model.begin(region, range, subject);
        let result = self.space.protect(range, protection);
        let alone = self.model.end(region, call, subject, result.is_ok());
        if alone && result.is_ok() && protection == Protection::None {
            self.check_pages(region, range, "allows no access", Option::is_none);
        }
        self.end_change(operation, result);
    }

    fn set_policy(&self, region: &Region) {
        let range = self.part_of(region, u64::MAX);
        let policy = self.optional_policy();
        let operation = Operation::SetPolicy(range, policy);
        self.begin(operation);
        let subject = Subject::Policy(policy);
        let call = self.model.begin(region, range, subject);
        let result = self.space.set_policy(range, policy);
        self.model.end(region, call, subject, result.is_ok());
        self.end_change(operation, result);
    }

    fn move_pages(&self, region: &Region) {
        let range = self.part_of(region, u64::MAX);
        let node = NodeId::from(self.hardware.random.index(self.hardware.memory.nodes().len()));
        let operation = Operation::Move(range, node);
        self.begin(operation);
        let there = region.words_with_pages(range, 4);
        let call = self.model.begin(region, range, Subject::Placement);
        let result = self.space.move_pages(range, node);
        let alone = self.model.end(region, call, Subject::Placement, true);
        if alone && result.is_ok() {
            for address in there {
                let found = self.hardware.inspect(address).ok().flatten();
                let on = found.and_then(|found| self.hardware.memory.node_of(found.frame));
                // Pages that nobody may access are not seen in this way.
                if on.is_some_and(|on| on != node) {
                    self.violate(format!(
                        "{range} was moved to node {node}, but {address:#x} is on {on:?}"
                    ));
                }
            }
        }
        self.end_change(operation, result.map(|_| ()));
    }

    fn end_change(&self, operation: Operation, result: Result<(), RangeError>) {
        let outcome = match result {
            Ok(()) => Outcome::Done,
            Err(RangeError::OutOfMemory(error)) => self.out_of_memory(error),
            Err(error) => self.unexpected(&error),
        };
        self.end(operation, outcome);
    }

    fn query(&self, address: u64) {
        let operation = Operation::Query(address);
        let since = self.begin(operation);
        let state = self.space.query(VirtAddr::new_truncated(address));
        let node = match state {
            homenode_mm::PageState::Page { frame, .. } => self.hardware.memory.node_of(frame),
            _ => None,
        };
        self.check(self.model.queried(address, state, node, since));
        self.end(operation, Outcome::Done);
    }

    fn visit(&self, region: &Region) {
        let range = self.part_of(region, PageSize::Size2MiB.bytes() * 4);
        let operation = Operation::Visit(range);
        let since = self.begin(operation);
        // Keeps the region from being released meanwhile.
        let call = self.model.begin(region, range, Subject::Nothing);
        self.space.visit_while(range, |state| {
            if let homenode_mm::PageState::Page { page, frame, .. } = state {
                let node = self.hardware.memory.node_of(frame);
                let address = page.max(range.start()).as_u64();
                self.check(self.model.queried(address, state, node, since));
            }
            !self.hardware.is_violated()
        });
        self.model.end(region, call, Subject::Nothing, true);
        self.end(operation, Outcome::Done);
    }

    /// Out of memory is an answer, but only if memory was scarce at some time since the operation began.
    fn out_of_memory(&self, error: OutOfMemory) -> Outcome {
        let memory = &self.hardware.memory;
        let since = self.began[self.hardware.current()].get();
        let mut nodes = match error.policy {
            Policy::Bind(node) => node.index()..node.index() + 1,
            _ => 0..memory.nodes().len(),
        };
        if let Some(node) = nodes.find(|node| !memory.was_scarce_since(*node, since)) {
            self.violate(format!(
                "{error}, but half of the frames of node {node} have been free all the time"
            ));
        }
        Outcome::OutOfMemory(error)
    }

    fn unexpected(&self, error: &dyn std::error::Error) -> Outcome {
        self.violate(format!("it failed: {error}"));
        Outcome::Refused
    }
}
