//! Nodes, CPUs, memory ranges and distances of a NUMA machine, from ACPI tables or from text.
//!
//! This crate knows no hardware: it reads bytes and words, and is tested on the host. The way through it:
//! [`ram_blocks`] makes RAM out of a firmware's memory map, [`acpi`] reads the firmware's tables, and [`resolve`]
//! makes one [`Topology`] of these and of the command line's `numa=` words (their grammar: [`text`]).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod acpi;
mod ids;
mod ram;
mod ranges;
mod resolve;
pub mod text;
mod topology;
mod units;

pub use ids::{ApicId, CpuId, NodeId, PhysAddr, PhysRange};
pub use ram::{MemoryKind, MemoryMapEntry, ram_blocks};
pub use resolve::{Firmware, Inventory, Notice, resolve};
pub use text::{Problem, TopologyError};
pub use topology::{
    AccessAttributes, Cpu, DEFAULT_REMOTE_DISTANCE, LOCAL_DISTANCE, MAX_NODES, Node, Source, Topology,
};
pub use units::{Bandwidth, Bytes, Latency};

/// The alignment of every range that this crate hands out: the smallest page, in bytes.
pub const PAGE_BYTES: u64 = 4096;
