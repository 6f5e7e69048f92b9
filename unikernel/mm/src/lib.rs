//! Homenode's memory manager, with no hardware in it: physical frames per NUMA node, and x86-64 page tables.
//!
//! Everything that touches the machine goes through the [`Machine`] trait, so that the kernel and the host tests run
//! the same code. Nothing here turns interrupts off: whoever may be interrupted by a caller of this crate has to see to
//! that before the call.
//!
//! - [`FrameAllocator`] hands out 4 KiB to 1 GiB of physical memory by node and [`Policy`].
//! - [`heap`] has what allocators are made of.
//! - [`PageTable`] maps virtual pages to frames.
#![no_std]

extern crate alloc;

mod addr;
mod atomic;
mod attributes;
mod frame;
mod frames;
pub mod heap;
mod machine;
#[cfg(loom)]
pub mod model;
mod policy;
mod ranges;
#[cfg(feature = "simulation")]
pub mod simulation;
mod size;
mod space;
mod table;
mod tlb;

pub use addr::{VirtAddr, VirtRange};
pub use attributes::{Attributes, Protection};
pub use frame::{Block, Frame};
pub use frames::{
    BuildError, FrameAllocator, Freeing, LocalTables, NodeMemory, NodeStats, OutOfMemory, Purpose,
};
pub use machine::{Event, Machine, NodeEvent};
pub use policy::{Allocation, NumaEvent, Placement, Policy};
pub use ranges::VirtualRanges;
pub use size::{FrameSize, ORDERS, Order, PageSize, Size1GiB, Size2MiB, Size4KiB};
pub use space::{
    Access, AddressSpace, CpuSpace, FaultError, LockScheme, PageState, RangeError, ReserveError, Retirement,
};
pub use table::{Flags, MapError, Mapping, PageTable, TableFrames, UnmapError};
pub use tlb::{Cause, Generation, SafePoint, TlbEngine};
