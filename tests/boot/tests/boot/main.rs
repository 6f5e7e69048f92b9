//! Tests that boot images in an emulator.

mod applications;
mod command;
mod crash;
mod emulator;
mod metrics;
mod runtime;
mod topology;
