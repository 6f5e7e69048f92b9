//! A stress test of TLB coherence: regions go from CPU to CPU, and a CPU that keeps a translation too long finds wrong tags.
//!
//! Each thread maps small regions, writes tags into their pages and hands them on. Who gets a region checks the tags, changes
//! something about its pages, writes tags of its own, and hands it on or gives it back. Addresses and frames are so used again on
//! other CPUs all the time: with a stale translation, a CPU reads or writes another region's frame, and a check fails. [`run`] is
//! the program; its parts are the options, regions with their tags, the mailboxes, the threads' work, and the summary.
//!
//! Nothing that runs between the start and the end of the threads' work uses the heap, whose 2 MiB pages would make an emulator
//! drop more translations than it is asked to.
#![cfg_attr(not(feature = "hosted"), no_std)]

extern crate alloc;

mod mailbox;
mod options;
mod parcel;
mod random;
mod run;
mod stage;
mod tag;
mod worker;

pub use run::run;
