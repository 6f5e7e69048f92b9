//! A QEMU plugin that counts, from outside a guest, what the phases of a program cost: instructions of kernel and application,
//! iterations of string instructions, accesses to local and remote memory, and writes to lines that another CPU wrote last.
//!
//! `docs/measuring.md` says how to use it and what the figures mean. The modules [`x86`], [`code`], [`topology`], [`cache`],
//! [`lines`], [`counters`], [`phases`] and [`report`] know nothing of QEMU; `plugin` joins them to its callbacks.
//!
//! The crate `qemu-plugin` is not used: it is licensed under the GPL, and this needs a dozen functions.

pub mod cache;
pub mod code;
pub mod counters;
pub mod lines;
pub mod options;
pub mod phases;
pub mod report;
pub mod topology;
pub mod x86;

// What these call is found in QEMU when it loads the plugin, and so is missing in a test's executable.
#[cfg(not(test))]
mod ffi;
#[cfg(not(test))]
mod plugin;
