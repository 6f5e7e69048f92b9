//! What each thread does.

use core::hint;

use homenode::time::{Duration, Instant};
use homenode::{NodeId, thread};

use crate::parcel::Parcel;
use crate::random::Random;
use crate::stage::{Operation, Stage, Stop};
use crate::tag::Stamp;

/// How long a thread computes at most without entering the kernel: longer than the default `tlb.deadline`, so that it is
/// interrupted.
const LONGEST_COMPUTATION_US: usize = 15_000;
/// How long a courier stays out of the kernel at most.
const LONGEST_ERRAND_US: usize = 60_000;
/// One thread of so many is a courier.
const COURIERS: usize = 4;
/// How long a thread sleeps at most, and its CPU idles.
const LONGEST_SLEEP_US: usize = 2_000;
/// How many numbers are computed between two looks at the clock and the tags.
const STEPS: u64 = 1_000;
/// How long spells of all operations and quiet ones are, by turns. In a quiet one nobody does what interrupts other CPUs at once,
/// so that they keep translations for as long as the deadline lets them.
const SPELL_MS: u128 = 200;
/// After so many threads a region is given back at last.
const MOST_HOPS: u32 = 5;

/// What all threads do alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) threads: usize,
    /// The most pages of a region.
    pub(crate) pages: usize,
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    pub(crate) duration: Duration,
}

/// A thread's own.
pub(crate) struct Worker<'a> {
    stage: &'a Stage,
    plan: Plan,
    thread: usize,
    random: Random,
    rounds: u64,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(stage: &'a Stage, plan: Plan, thread: usize) -> Self {
        Self {
            stage,
            plan,
            thread,
            random: Random::new(plan.seed, thread),
            rounds: 0,
        }
    }

    /// Works until the run is over.
    pub(crate) fn work(&mut self) {
        let is_courier = self.thread % COURIERS == COURIERS - 1;
        while !self.stage.is_over() {
            let done = if is_courier { self.errand() } else { self.turn() };
            if let Err(stop) = done {
                self.stage.end(Some(stop));
            }
        }
    }

    /// Checks, tags and passes on what comes, for long and without ever entering the kernel; then sleeps. A CPU that does no more
    /// than this has given nothing back, and so drops no translations before others interrupt it.
    fn errand(&mut self) -> Result<(), Stop> {
        let time = Duration::from_micros(self.random.below(LONGEST_ERRAND_US) as u64);
        let start = Instant::now();
        let mut kept = None;
        while start.elapsed() < time && !self.stage.is_over() {
            compute();
            kept = match kept {
                None => self.pass_on(u32::MAX)?,
                Some(parcel) => self.post(parcel).err(),
            };
        }
        self.stage.count(Operation::Compute);
        if let Some(parcel) = kept {
            self.check(&parcel)?;
            self.give_back(parcel);
        }
        self.sleep();
        Ok(())
    }

    /// Looks after what others have sent, sends a new region, and sometimes does something else for a while.
    fn turn(&mut self) -> Result<(), Stop> {
        self.open_all()?;
        let pages = 1 + self.random.below(self.plan.pages);
        let stamp = self.stamp();
        let parcel = Parcel::new(pages, stamp).map_err(Stop::NoRegion)?;
        self.stage.count(Operation::Map);
        if self.random.once_in(8) {
            self.compute_beside(&parcel)?;
        }
        let to = self.anybody();
        self.send(parcel, to);
        if self.random.once_in(16) {
            self.sleep();
        }
        // Where there are more threads than CPUs, the others have their turn.
        thread::yield_now();
        Ok(())
    }

    fn sleep(&mut self) {
        let time = self.random.below(LONGEST_SLEEP_US);
        thread::sleep(Duration::from_micros(time as u64));
        self.stage.count(Operation::Sleep);
    }

    /// The stamp of this thread's next tags.
    fn stamp(&mut self) -> Stamp {
        self.rounds += 1;
        Stamp {
            thread: self.thread as u16,
            round: self.rounds,
        }
    }

    /// Another thread, or this one if it is alone.
    fn anybody(&mut self) -> usize {
        let others = self.plan.threads - 1;
        if others == 0 {
            return self.thread;
        }
        (self.thread + 1 + self.random.below(others)) % self.plan.threads
    }

    /// Opens what is in this thread's mailbox.
    fn open_all(&mut self) -> Result<(), Stop> {
        let stage = self.stage;
        while let Some(parcel) = stage.mailbox(self.thread).take() {
            self.open(parcel)?;
            if stage.is_over() {
                break;
            }
        }
        Ok(())
    }

    /// Checks a region, and changes it and sends it on or gives it back.
    fn open(&mut self, mut parcel: Parcel) -> Result<(), Stop> {
        self.check(&parcel)?;
        if parcel.hops() >= MOST_HOPS || self.random.once_in(4) {
            self.give_back(parcel);
            return Ok(());
        }
        // Who had the region before may still have translations of what is changed now.
        let mut to = usize::from(parcel.stamp().thread);
        let operation = match self.random.below(8) {
            _ if is_quiet() => {
                to = self.anybody();
                Operation::Pass
            }
            0 => {
                let first = self.random.below(parcel.pages());
                parcel.discard(first..parcel.pages()).map_err(Stop::Mismatch)?;
                Operation::Discard
            }
            1 => {
                parcel.protect().map_err(Stop::Mismatch)?;
                Operation::Protect
            }
            2 if self.plan.nodes > 1 => {
                let node = NodeId::from(self.random.below(self.plan.nodes));
                parcel.move_to(node).map_err(Stop::Mismatch)?;
                Operation::Move
            }
            _ => {
                to = self.anybody();
                Operation::Pass
            }
        };
        self.stage.count(operation);
        let stamp = self.stamp();
        parcel.rewrite(stamp);
        self.send(parcel, to);
        Ok(())
    }

    fn check(&self, parcel: &Parcel) -> Result<(), Stop> {
        self.stage.count_tags(parcel.tags());
        parcel.check("handing over").map_err(Stop::Mismatch)
    }

    /// Sends a region, or gives it back if there is no room for it.
    fn send(&mut self, parcel: Parcel, to: usize) {
        if let Err(parcel) = self.stage.mailbox(to).post(parcel) {
            self.give_back(parcel);
        }
    }

    fn give_back(&mut self, parcel: Parcel) {
        if self.random.once_in(8) && !is_quiet() {
            parcel.revoke();
            self.stage.count(Operation::Revoke);
        } else {
            drop(parcel);
            self.stage.count(Operation::Drop);
        }
    }

    /// Computes for a while without entering the kernel, and meanwhile looks at a region's tags and passes on what comes.
    fn compute_beside(&mut self, parcel: &Parcel) -> Result<(), Stop> {
        let time = Duration::from_micros(self.random.below(LONGEST_COMPUTATION_US) as u64);
        let start = Instant::now();
        let mut kept = None;
        while start.elapsed() < time {
            compute();
            self.stage.count_tags(parcel.tags());
            parcel.check("computing").map_err(Stop::Mismatch)?;
            if kept.is_none() {
                kept = self.pass_on(MOST_HOPS)?;
            }
        }
        self.stage.count(Operation::Compute);
        kept.map_or(Ok(()), |parcel| self.open(parcel))
    }

    /// Checks a region that has come, tags it and passes it on, without entering the kernel. Returns it if nobody has room for it,
    /// or if it has been tagged anew this often.
    fn pass_on(&mut self, most_hops: u32) -> Result<Option<Parcel>, Stop> {
        let Some(mut parcel) = self.stage.mailbox(self.thread).take() else {
            return Ok(None);
        };
        self.check(&parcel)?;
        if parcel.hops() >= most_hops {
            return Ok(Some(parcel));
        }
        let stamp = self.stamp();
        parcel.rewrite(stamp);
        self.stage.count(Operation::Pass);
        Ok(self.post(parcel).err())
    }

    /// Leaves a region with anybody, without entering the kernel; returns it if there is no room.
    fn post(&mut self, parcel: Parcel) -> Result<(), Parcel> {
        let to = self.anybody();
        self.stage.mailbox(to).post(parcel)
    }
}

/// Computes for a few microseconds.
fn compute() {
    hint::black_box((0..STEPS).fold(0, |sum: u64, step| sum.rotate_left(7) ^ hint::black_box(step)));
}

/// Whether this is a quiet spell.
fn is_quiet() -> bool {
    Instant::now().since_boot().as_millis() / SPELL_MS % 2 == 1
}
