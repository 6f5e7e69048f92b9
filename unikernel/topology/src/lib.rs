//! Nodes, CPUs, memory ranges and distances of a NUMA machine, from ACPI tables or from text.
//!
//! This crate knows no hardware: it reads bytes and words, and is tested on the host.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod ids;

pub use ids::{ApicId, CpuId, NodeId, PhysAddr, PhysRange};
