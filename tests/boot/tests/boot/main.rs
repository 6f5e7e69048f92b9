//! Tests that boot images in an emulator.

mod emulator;
