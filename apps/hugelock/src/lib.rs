//! Huge pages under the page-table locks: N pages of 2 MiB are touched once, then T threads read a word of each, again and again.
//!
//! The program by which the patches that split Linux's page-table lock were judged ("split page table lock for PMD tables", 2013).
//! [`run`] is the program; its parts are the options, the array of pages, and the runs. Phase markers enclose touching and reading.
#![cfg_attr(not(feature = "hosted"), no_std)]

extern crate alloc;

mod array;
mod options;
mod run;

pub use run::run;
