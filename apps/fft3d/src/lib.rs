//! A parallel three-dimensional FFT that verifies itself, measures itself, and reports where its pages are.
//!
//! [`fft`] transforms pencils with vector instructions and [`grid`] is what threads share; both are used by the benchmark too. The
//! rest is the program, [`run`]: its options, its team of workers and what each of them does, its problems (plane waves, and the NAS
//! benchmark's) and its report.
#![cfg_attr(not(feature = "hosted"), no_std)]

extern crate alloc;

mod complex;
pub mod fft;
pub mod grid;
mod member;
mod npb;
mod options;
mod random;
mod report;
mod run;
mod team;
mod waves;

pub use complex::Complex;
pub use run::run;
