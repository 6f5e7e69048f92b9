//! Huge pages under the page-table locks: `hugelock --help` says how to call it.
#![cfg_attr(not(feature = "hosted"), no_std, no_main)]

use homenode::{Args, ExitCode};

#[homenode::main]
fn main(args: Args) -> ExitCode {
    hugelock::run(args)
}
