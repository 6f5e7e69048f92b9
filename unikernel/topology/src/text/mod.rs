//! The command line's words for a topology, each beginning with `numa=`.
//!
//! ```text
//! numa=off                                    one node
//! numa=fake=N                                 memory and CPUs split evenly into N nodes
//! numa=node,nodeid=N[,cpus=A[-B]]…[,mem=SIZE|,mem=START-END…]
//! numa=dist,src=N,dst=N,val=V                 a distance, both ways unless the reverse is given
//! numa=hmat,src=N,dst=N[,latency=T][,bandwidth=SIZE]
//! ```
//!
//! - `cpus=` can be repeated, as in QEMU: `cpus=0-1,cpus=4`.
//! - `mem=` is either one size, taken from the lowest RAM that no range names and no lower node took, or any number
//!   of ranges. A range starts and ends in RAM and may span holes; `END` is the first address behind it.
//! - `SIZE` is a number with an optional binary suffix (`1G` is 2³⁰), or hexadecimal with `0x`; so are `START` and
//!   `END`. Memory is given in whole pages of 4 KiB.
//! - `V` is 10 to 255, 255 being out of reach; `T` is a whole number with `ps`, `ns`, `us` or `ms`.
//! - `N`, `A` and `B` are decimal. Nodes are numbered densely from 0; each has CPUs or memory or both.
//! - Every CPU and all RAM is given to exactly one node.

mod error;
mod parse;
mod value;

pub use error::{Problem, TopologyError};
pub(crate) use parse::{CpuOption, Layout, MemoryOption, NodeWord, RangeOption, Request};
pub(crate) use value::size;
