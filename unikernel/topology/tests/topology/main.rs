//! Tests of the whole crate through its public interface.

mod command_line;
mod firmware;
mod machines;
mod properties;
mod ram;
mod tables;
mod topology;
