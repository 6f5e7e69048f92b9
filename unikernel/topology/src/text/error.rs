//! What can be wrong with the command line's words.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::topology::RangeList;
use crate::{Bytes, CpuId, MAX_NODES, NodeId, PAGE_BYTES, PhysRange};

/// A topology that can not be: shown as the word of the command line, the part of it, what is wrong, and the remedy
/// (`numa=node,nodeid=1,cpus=2-9,mem=1G: cpus=2-9: the machine has CPUs 0-3 only`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyError {
    pub(crate) word: String,
    pub(crate) token: Option<String>,
    pub(crate) problem: Problem,
}

impl TopologyError {
    /// An error about a whole word.
    pub(crate) fn in_word(word: &str, problem: Problem) -> Self {
        Self {
            word: word.into(),
            token: None,
            problem,
        }
    }

    /// An error about one option of a word.
    pub(crate) fn in_token(word: &str, token: &str, problem: Problem) -> Self {
        Self {
            word: word.into(),
            token: Some(token.into()),
            problem,
        }
    }

    /// The word of the command line.
    #[must_use]
    pub fn word(&self) -> &str {
        &self.word
    }

    /// The option in the word, if it is about one.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// What is wrong.
    #[must_use]
    pub const fn problem(&self) -> &Problem {
        &self.problem
    }
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.word)?;
        if let Some(token) = &self.token {
            write!(f, "{token}: ")?;
        }
        self.problem.fmt(f)
    }
}

impl core::error::Error for TopologyError {}

/// What is wrong with a word, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The word is none of `numa=off`, `numa=fake=N`, `numa=node,…`, `numa=dist,…` and `numa=hmat,…`.
    UnknownForm,
    /// The word has no such option.
    UnknownOption {
        /// The options that it has.
        known: &'static [&'static str],
    },
    /// An option that can be given once is given twice.
    OptionTwice,
    /// An option that has to be given is not.
    OptionMissing {
        /// Its name.
        option: &'static str,
    },
    /// The value has to be a decimal number of 32 bits.
    NotANumber,
    /// The value has to be a size.
    NotASize,
    /// The value has to be a time.
    NotALatency,
    /// A range's end is before its start.
    Backwards,
    /// Memory is not given in whole pages.
    NotWholePages {
        /// The size or the address, in bytes.
        bytes: u64,
    },
    /// A node's `mem=` is a size and something else.
    SizeAndMore,
    /// There are other words beside `numa=off`.
    OffWithOthers,
    /// `numa=fake` is given twice.
    FakeTwice,
    /// Both `numa=fake` and `numa=node` are given.
    FakeWithNodes,
    /// `numa=fake` asks for no nodes, or for too many.
    FakeCount {
        /// As many as this machine can be split into.
        most: usize,
    },
    /// Two words are about one node.
    NodeTwice {
        /// The node.
        node: NodeId,
    },
    /// A node's number is too high for any machine.
    TooManyNodes,
    /// The nodes' numbers have a gap.
    NodeMissing {
        /// The first number in the gap.
        node: NodeId,
    },
    /// A node has neither CPUs nor memory.
    NodeEmpty,
    /// A CPU's number is too high for this machine.
    NoSuchCpu {
        /// How many CPUs the machine has.
        cpus: usize,
    },
    /// A CPU is given twice.
    CpuTwice {
        /// The CPU.
        cpu: CpuId,
        /// The node that it was given to first.
        node: NodeId,
    },
    /// CPUs are not given to any node.
    CpusWithoutNode {
        /// The CPUs.
        cpus: Vec<CpuId>,
    },
    /// A node's size is more than what is left.
    TooMuchMemory {
        /// The machine's RAM, in bytes.
        machine: u64,
        /// What other nodes leave of it, in bytes.
        left: u64,
    },
    /// A range's first or last byte is no RAM.
    NotRam {
        /// The machine's RAM.
        ram: Vec<PhysRange>,
    },
    /// Memory is given twice.
    MemoryTwice {
        /// The memory.
        range: PhysRange,
        /// The node that it was given to first.
        node: NodeId,
    },
    /// RAM is not given to any node.
    MemoryWithoutNode {
        /// The RAM.
        ranges: Vec<PhysRange>,
    },
    /// A distance or an attribute is about a node that is not there.
    NoSuchNode {
        /// How many nodes there are.
        nodes: usize,
    },
    /// A distance is below 10 or above 255.
    DistanceRange,
    /// A node's distance to itself is not 10.
    LocalDistance,
    /// Two words are about one pair of nodes.
    PairTwice,
    /// `numa=hmat` gives no attribute.
    NoAttribute,
    /// `numa=hmat` is about accesses by a node that has no CPUs.
    InitiatorWithoutCpus {
        /// The node.
        node: NodeId,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownForm => f.write_str(
                "not a form of numa=; there are numa=off, numa=fake=N, numa=node,…, numa=dist,… and numa=hmat,…",
            ),
            Self::UnknownOption { known } => {
                f.write_str("unknown option; there are ")?;
                for (index, option) in known.iter().enumerate() {
                    write!(f, "{}{option}=", if index == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
            Self::OptionTwice => f.write_str("the option is given twice; give it once"),
            Self::OptionMissing { option } => write!(f, "the option {option}= is missing"),
            Self::NotANumber => f.write_str("not a decimal number below 4294967296"),
            Self::NotASize => f.write_str("not a size such as 1G, 512M or 0x40000000"),
            Self::NotALatency => f.write_str("not a whole number of ps, ns, us or ms, such as 250ns"),
            Self::Backwards => f.write_str("the range is empty or ends before it starts"),
            Self::NotWholePages { bytes } => {
                write!(f, "{bytes:#x} is not a multiple of {PAGE_BYTES} bytes; memory is given in whole pages")
            }
            Self::SizeAndMore => f.write_str("mem= is either one size or ranges; give ranges only, or one size"),
            Self::OffWithOthers => {
                f.write_str("numa=off stands alone; leave it out, or leave out every other numa= word")
            }
            Self::FakeTwice => f.write_str("numa=fake is given twice; give it once"),
            Self::FakeWithNodes => f.write_str("numa=fake and numa=node exclude each other; leave out one of them"),
            Self::FakeCount { most } => {
                write!(f, "this machine can be split into 1 to {most} nodes: ")?;
                write!(f, "one for each 2 MiB of RAM, and {MAX_NODES} at most")
            }
            Self::NodeTwice { node } => write!(f, "node {node} is given twice; put all of a node into one word"),
            Self::TooManyNodes => write!(f, "there can be nodes 0-{} only", MAX_NODES - 1),
            Self::NodeMissing { node } => {
                write!(f, "node {node} is missing; nodes are numbered from 0 without a gap")
            }
            Self::NodeEmpty => f.write_str("the node has neither cpus= nor mem=; give it one, or leave it out"),
            Self::NoSuchCpu { cpus: 0 } => f.write_str("the machine has no CPUs"),
            Self::NoSuchCpu { cpus: 1 } => f.write_str("the machine has CPU 0 only"),
            Self::NoSuchCpu { cpus } => write!(f, "the machine has CPUs 0-{} only", cpus - 1),
            Self::CpuTwice { cpu, node } => {
                write!(f, "CPU {cpu} is in node {node} already; give it to one node, once")
            }
            Self::CpusWithoutNode { cpus } => {
                let list = RangeList(cpus.iter().map(|cpu| cpu.0));
                write!(f, "CPUs {list} are in no node; add cpus= to one of the nodes for each of them")
            }
            Self::TooMuchMemory { machine, left } => write!(
                f,
                "the machine has {} ({machine:#x} bytes), of which {} ({left:#x} bytes) are left for this node",
                Bytes(*machine),
                Bytes(*left)
            ),
            Self::NotRam { ram } => {
                f.write_str("the range does not start and end in RAM, which is at ")?;
                write_ranges(f, ram)
            }
            Self::MemoryTwice { range, node } => {
                write!(f, "{range} is in node {node} already; give each range to one node")
            }
            Self::MemoryWithoutNode { ranges } => {
                let bytes = ranges.iter().map(PhysRange::bytes).sum();
                write!(f, "{} of RAM ({bytes:#x} bytes) are in no node: ", Bytes(bytes))?;
                write_ranges(f, ranges)?;
                f.write_str("; raise or add mem= until all RAM is in a node")
            }
            Self::NoSuchNode { nodes: 1 } => f.write_str("there is node 0 only"),
            Self::NoSuchNode { nodes } => write!(f, "there are nodes 0-{} only", nodes - 1),
            Self::DistanceRange => f.write_str("a distance is 10 (local) to 255 (out of reach)"),
            Self::LocalDistance => f.write_str("the distance of a node to itself is 10"),
            Self::PairTwice => f.write_str("the same src= and dst= were given before; give them once"),
            Self::NoAttribute => f.write_str("neither latency= nor bandwidth= is given; give at least one"),
            Self::InitiatorWithoutCpus { node } => {
                write!(f, "node {node} has no CPU that could access memory; src= is a node with CPUs")
            }
        }
    }
}

fn write_ranges(f: &mut fmt::Formatter<'_>, ranges: &[PhysRange]) -> fmt::Result {
    for (index, range) in ranges.iter().enumerate() {
        write!(f, "{}{range}", if index == 0 { "" } else { ", " })?;
    }
    Ok(())
}
