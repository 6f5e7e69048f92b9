//! A stress test of TLB coherence: `tlbstress --help` says how to call it.
#![cfg_attr(not(feature = "hosted"), no_std, no_main)]

use homenode::{Args, ExitCode};

#[homenode::main]
fn main(args: Args) -> ExitCode {
    tlbstress::run(args)
}
