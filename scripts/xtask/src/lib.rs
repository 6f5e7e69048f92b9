//! `cargo xtask`: builds bootable images, runs them in QEMU, runs every test, and installs what these need.
//!
//! [`cli`] is the command line. The boot tests use the other modules as a library: [`build`] makes an image, [`emulator`] boots it
//! on a [`machine`] and says how it ended.

pub mod apt;
pub mod bench;
pub mod build;
pub mod checks;
pub mod cli;
pub mod command_line;
pub mod compare;
pub mod console;
pub mod emulator;
pub mod image;
pub mod interrupt;
pub mod linux;
pub mod machine;
pub mod measurement;
pub mod mutants;
pub mod output;
pub mod qemu;
pub mod record;
pub mod referee;
pub mod setup;
pub mod trial;
pub mod workspace;

// The kernel reads the table that this crate writes: one file defines it for both.
#[path = "../../../unikernel/kernel/src/symbols.rs"]
mod symbols;
