//! Loom's models of what CPUs do to each other without locks, or by locks of our own. Run by
//! `RUSTFLAGS="--cfg loom" cargo test --release -p homenode-mm --test loom`; without that flag there is nothing here.
#![cfg(loom)]

mod cores;
mod frames;
mod requests;
mod space;
mod tlb;
