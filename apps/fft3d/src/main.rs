//! A parallel 3-D FFT that verifies itself: `fft3d --help` says how to call it.
#![cfg_attr(not(feature = "hosted"), no_std, no_main)]

use homenode::{Args, ExitCode};

#[homenode::main]
fn main(args: Args) -> ExitCode {
    fft3d::run(args)
}
