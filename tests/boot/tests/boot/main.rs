//! Tests that boot images in an emulator.

mod applications;
mod bench;
mod command;
mod crash;
mod emulator;
mod hugelock;
mod metrics;
mod referee;
mod runtime;
mod tlbstress;
mod topology;
