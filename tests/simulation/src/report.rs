//! What a run tells: what was done, and how it failed.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;

use homenode_mm::{Attributes, OutOfMemory, Policy, Protection, VirtRange};
use homenode_topology::NodeId;

use crate::Config;
use crate::hardware::{CAUSES, Counts, SAFE_POINTS};

/// How many of the last entries of the log a failure shows.
const LOG_ENTRIES: usize = 80;

/// Something that a core does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Read(u64),
    Write(u64),
    /// A loop of accesses with interrupts off.
    Compute(VirtRange),
    /// A read of what is not reserved, most likely.
    Stray(u64),
    Reserve(u64, Attributes),
    Release(VirtRange),
    Revoke(VirtRange),
    /// All that waits is given back.
    Drain,
    /// No program memory is used for a while.
    Idle,
    /// A loop of accesses that never enters the kernel.
    Loop(VirtRange),
    Populate(VirtRange, Option<Policy>),
    Discard(VirtRange),
    Protect(VirtRange, Protection),
    SetPolicy(VirtRange, Option<Policy>),
    Move(VirtRange, NodeId),
    Query(u64),
    Visit(VirtRange),
}

/// The kinds of operations, in the order of [`Summary::operations`].
pub(crate) const KINDS: [&str; 17] = [
    "read",
    "write",
    "compute",
    "stray",
    "reserve",
    "release",
    "populate",
    "discard",
    "protect",
    "set_policy",
    "move",
    "query",
    "visit",
    "revoke",
    "drain",
    "idle",
    "loop",
];

impl Operation {
    /// The index of its kind in [`KINDS`].
    pub(crate) const fn kind(self) -> usize {
        match self {
            Self::Read(_) => 0,
            Self::Write(_) => 1,
            Self::Compute(_) => 2,
            Self::Stray(_) => 3,
            Self::Reserve(..) => 4,
            Self::Release(_) => 5,
            Self::Populate(..) => 6,
            Self::Discard(_) => 7,
            Self::Protect(..) => 8,
            Self::SetPolicy(..) => 9,
            Self::Move(..) => 10,
            Self::Query(_) => 11,
            Self::Visit(_) => 12,
            Self::Revoke(_) => 13,
            Self::Drain => 14,
            Self::Idle => 15,
            Self::Loop(_) => 16,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = KINDS[self.kind()];
        let policy =
            |policy: &Option<Policy>| policy.map_or_else(|| "none".into(), |policy| policy.to_string());
        match self {
            Self::Read(address) | Self::Write(address) | Self::Stray(address) | Self::Query(address) => {
                write!(f, "{kind} {address:#x}")
            }
            Self::Compute(range)
            | Self::Loop(range)
            | Self::Release(range)
            | Self::Revoke(range)
            | Self::Discard(range)
            | Self::Visit(range) => write!(f, "{kind} {range}"),
            Self::Drain | Self::Idle => f.write_str(kind),
            Self::Reserve(bytes, attributes) => write!(f, "{kind} {bytes:#x} bytes, {attributes:?}"),
            Self::Populate(range, by) | Self::SetPolicy(range, by) => {
                write!(f, "{kind} {range}, {}", policy(by))
            }
            Self::Protect(range, protection) => write!(f, "{kind} {range}, {protection}"),
            Self::Move(range, node) => write!(f, "{kind} {range} to node {node}"),
        }
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    Done,
    Value(u64),
    Reserved(VirtRange),
    /// The access was not allowed, as it should be.
    Refused,
    OutOfMemory(OutOfMemory),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Value(value) => write!(f, "{value}"),
            Self::Reserved(range) => range.fmt(f),
            Self::Refused => f.write_str("refused"),
            Self::OutOfMemory(error) => error.fmt(f),
        }
    }
}

/// The log's tail.
pub(crate) struct Log {
    tail: VecDeque<Entry>,
    /// Print all of it as it comes.
    trace: bool,
}

/// A core begins an operation or, with an outcome, ends it.
struct Entry {
    /// How many points had been passed when the core was chosen last.
    point: u64,
    core: usize,
    operation: Operation,
    outcome: Option<Outcome>,
}

impl Log {
    pub(crate) const fn new(trace: bool) -> Self {
        let tail = VecDeque::new();
        Self { tail, trace }
    }

    /// Notes that a core begins an operation or, with an outcome, ends it, after so many points.
    pub(crate) fn push(&mut self, point: u64, core: usize, operation: Operation, outcome: Option<Outcome>) {
        let entry = Entry {
            point,
            core,
            operation,
            outcome,
        };
        if self.trace {
            println!("{entry}");
        }
        if self.tail.len() == LOG_ENTRIES {
            self.tail.pop_front();
        }
        self.tail.push_back(entry);
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            point,
            core,
            operation,
            outcome,
        } = self;
        match outcome {
            None => write!(f, "{point:>10}  core {core:>2}  begins {operation}"),
            Some(outcome) => write!(f, "{point:>10}  core {core:>2}  ends   {operation}: {outcome}"),
        }
    }
}

/// What a run that found nothing wrong did.
#[derive(Clone, Debug)]
pub struct Summary {
    /// What was run.
    pub config: Config,
    /// How many operations of each kind were done.
    pub operations: Vec<(&'static str, u64)>,
    /// How many operations found no memory.
    pub out_of_memory: u64,
    /// How many accesses were refused, as they had to be.
    pub refused: u64,
    /// How often all state was checked, all cores being at rest.
    pub audits: u64,
    /// How many moments there were at which another core could be chosen.
    pub points: u64,
    /// What the machine counted.
    pub counts: Counts,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: u64 = self.operations.iter().map(|(_, count)| count).sum();
        write!(f, "{total} operations (")?;
        for (index, (kind, count)) in self.operations.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{kind} {count}")?;
        }
        let Counts {
            faults,
            locks,
            contended,
            splits,
            moves,
            not_moved,
            flushes_of_pages,
            flushes,
            interrupts,
            forced,
            caught_up,
            ring_overruns,
            retired,
            alarms,
            speculations,
            switches,
        } = self.counts;
        write!(
            f,
            "), {} refused, {} out of memory; {faults} faults, {locks} locks ({contended} contended), {splits} splits, {moves} moves \
             ({not_moved} not moved), {flushes} flushes, {flushes_of_pages} flushes of one page; {switches} \
             switches at {} points, {speculations} speculative steps, {} audits",
            self.refused, self.out_of_memory, self.points, self.audits
        )?;
        write!(
            f,
            "; {retired} ranges retired, {ring_overruns} ring overruns, {alarms} alarms"
        )?;
        for ((_, name), (forced, sent)) in CAUSES.iter().zip(forced.iter().zip(interrupts)) {
            write!(f, ", {name}: {forced} forced by {sent} IPIs")?;
        }
        for ((_, name), count) in SAFE_POINTS.iter().zip(caught_up) {
            write!(f, ", {count} caught up at {name}")?;
        }
        Ok(())
    }
}

/// How a run failed, and how to see it again.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What was run.
    pub config: Config,
    /// The number of operations that had ended.
    pub operations: u64,
    /// The number of points that had been passed.
    pub points: u64,
    /// The core that ran.
    pub core: usize,
    /// What happened.
    pub what: String,
    /// The last operations.
    pub log: Vec<String>,
}

impl Failure {
    pub(crate) fn new(
        config: &Config,
        operations: u64,
        points: u64,
        core: usize,
        what: String,
        log: &Log,
    ) -> Self {
        Self {
            config: config.clone(),
            operations,
            points,
            core,
            what,
            log: log.tail.iter().map(Entry::to_string).collect(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.log {
            writeln!(f, "{line}")?;
        }
        writeln!(
            f,
            "core {} of {}, seed {}, after {} operations and {} points: {}",
            self.core, self.config.cores, self.config.seed, self.operations, self.points, self.what
        )?;
        write!(f, "again: {}", self.config.command())
    }
}

impl Error for Failure {}
