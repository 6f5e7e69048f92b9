//! Homenode: a unikernel for NUMA-heavy high-performance computing, and the API that an application links.
//!
//! ```no_run
//! #![cfg_attr(not(feature = "hosted"), no_std, no_main)]
//!
//! use homenode::{println, thread};
//!
//! #[homenode::main]
//! fn main() {
//!     thread::scope(|scope| {
//!         for _ in 0..thread::available_parallelism().get() {
//!             scope.spawn(|| {
//!                 let (cpu, node) = (thread::current_cpu(), thread::current_node());
//!                 println!("hello from CPU {cpu} on node {node}");
//!             });
//!         }
//!     });
//! }
//! ```
//!
//! The API is written once, on top of one of two lower halves with the same functions (`contract.rs` says which): the bare machine,
//! or, with the feature `hosted`, Linux, so that the same program can be developed and compared there.
#![cfg_attr(not(feature = "hosted"), no_std)]

extern crate alloc;

mod args;
mod console;
mod contract;
pub mod mem;
pub mod metrics;
pub mod phase;
pub mod sync;
pub mod thread;
pub mod time;
pub mod tlb;
pub mod tls;

// The bare machine's, but free of hardware, and so tested on the host.
#[cfg(any(test, not(feature = "hosted")))]
mod civil;
#[cfg(any(test, not(feature = "hosted")))]
mod cmdline;
#[cfg(any(test, not(feature = "hosted")))]
mod destination;
#[cfg(any(test, not(feature = "hosted")))]
mod firmware;
#[cfg(any(test, not(feature = "hosted")))]
mod ratio;
#[cfg(not(feature = "hosted"))]
mod symbols;

#[cfg(feature = "hosted")]
mod hosted;
#[cfg(feature = "hosted")]
use hosted as sys;

#[cfg(not(feature = "hosted"))]
mod machine;
#[cfg(not(feature = "hosted"))]
use machine::sys;

pub use args::{Args, ExitCode, Termination, exit};
#[doc(hidden)]
pub use console::{__eprint, __print};
/// A program's `main` may take its arguments, and return what implements [`Termination`]:
///
/// ```no_run
/// #[homenode::main]
/// fn main(args: homenode::Args) -> Result<(), String> {
///     match args.into_iter().next() {
///         Some(name) => homenode::println!("hello, {name}"),
///         None => return Err(String::from("a name is missing")),
///     }
///     Ok(())
/// }
/// ```
pub use homenode_macros::main;
pub use homenode_topology::{CpuId, Node, NodeId, Topology};
#[cfg(feature = "hosted")]
#[doc(hidden)]
pub use hosted::__run;
pub use log;

/// The machine's nodes, CPUs, memory and distances.
#[must_use]
pub fn topology() -> &'static Topology {
    sys::topology()
}
