//! Tests that boot images in an emulator.

mod applications;
mod crash;
mod emulator;
mod metrics;
mod runtime;
mod topology;
