//! Homenode's memory manager, with no hardware in it: physical frames per NUMA node, and x86-64 page tables.
//!
//! Everything that touches the machine goes through the [`Machine`] trait, so that the kernel and the host tests run
//! the same code. Nothing here turns interrupts off: whoever may be interrupted by a caller of this crate has to see to
//! that before the call.
//!
//! - [`FrameAllocator`] hands out 4 KiB to 1 GiB of physical memory by node and [`Policy`].
//! - [`PageTable`] maps virtual pages to frames.
#![no_std]

extern crate alloc;

mod addr;
mod frame;
mod frames;
mod machine;
mod policy;
mod size;
mod table;

pub use addr::{VirtAddr, VirtRange};
pub use frame::{Block, Frame};
pub use frames::{BuildError, FrameAllocator, LocalTables, NodeMemory, NodeStats, OutOfMemory};
pub use machine::Machine;
pub use policy::{Allocation, NumaEvent, Placement, Policy};
pub use size::{FrameSize, ORDERS, Order, PageSize, Size1GiB, Size2MiB, Size4KiB};
pub use table::{Flags, MapError, Mapping, PageTable, TableFrames, UnmapError};
