//! The program's arguments and the status that it ends with.

use alloc::vec::{self, Vec};
use core::fmt;

/// The arguments that the program was started with: an iterator that does not contain the program's name.
///
/// On the bare machine they are the words after ` -- ` on the kernel's command line.
#[derive(Clone, Debug)]
pub struct Args {
    program: &'static str,
    words: vec::IntoIter<&'static str>,
}

impl Args {
    /// The arguments `words` of the program `program`.
    pub(crate) fn new(program: &'static str, words: Vec<&'static str>) -> Self {
        Self {
            program,
            words: words.into_iter(),
        }
    }

    /// The program's name.
    #[must_use]
    pub fn program(&self) -> &'static str {
        self.program
    }
}

impl Iterator for Args {
    type Item = &'static str;

    fn next(&mut self) -> Option<&'static str> {
        self.words.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.words.size_hint()
    }
}

impl ExactSizeIterator for Args {}

/// The status that a program ends with; 0 means success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExitCode(u8);

impl ExitCode {
    /// All went well: 0.
    pub const SUCCESS: Self = Self(0);
    /// Something went wrong: 1.
    pub const FAILURE: Self = Self(1);

    /// The status as a number.
    #[must_use]
    pub const fn to_u8(self) -> u8 {
        self.0
    }
}

impl From<u8> for ExitCode {
    fn from(status: u8) -> Self {
        Self(status)
    }
}

/// What a program's `main` may return.
pub trait Termination {
    /// The status that the result stands for. An error is written to the console.
    fn report(self) -> ExitCode;
}

impl Termination for () {
    fn report(self) -> ExitCode {
        ExitCode::SUCCESS
    }
}

impl Termination for ExitCode {
    fn report(self) -> ExitCode {
        self
    }
}

impl<T: Termination, E: fmt::Display> Termination for Result<T, E> {
    fn report(self) -> ExitCode {
        match self {
            Ok(value) => value.report(),
            Err(error) => {
                crate::eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        }
    }
}

/// Ends the program, with all of its threads, at once. Nothing is dropped.
pub fn exit(code: ExitCode) -> ! {
    crate::sys::exit(code.to_u8())
}

/// Turns the function that `#[homenode::main]` stands on into the program's entry.
#[cfg(not(feature = "hosted"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __entry {
    ($main:expr) => {
        #[unsafe(no_mangle)]
        static __homenode_program: &str = ::core::env!("CARGO_PKG_NAME");

        #[unsafe(no_mangle)]
        extern "Rust" fn __homenode_main(args: $crate::Args) -> $crate::ExitCode {
            $crate::Termination::report($main(args))
        }
    };
}

/// Turns the function that `#[homenode::main]` stands on into the program's entry.
#[cfg(feature = "hosted")]
#[doc(hidden)]
#[macro_export]
macro_rules! __entry {
    ($main:expr) => {
        fn main() -> ::std::process::ExitCode {
            $crate::__run(|args| $crate::Termination::report($main(args)))
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_become_statuses() {
        assert_eq!(().report(), ExitCode::SUCCESS);
        assert_eq!(ExitCode::from(7).report().to_u8(), 7);
        assert_eq!(Ok::<_, &str>(ExitCode::from(3)).report().to_u8(), 3);
        assert_eq!(Err::<(), _>("no such file").report(), ExitCode::FAILURE);
    }

    #[test]
    fn arguments_are_iterated_in_order() {
        let mut args = Args::new("fft3d", alloc::vec!["--n", "128"]);
        assert_eq!(args.program(), "fft3d");
        assert_eq!(args.len(), 2);
        assert_eq!(args.next(), Some("--n"));
        assert_eq!(args.collect::<Vec<_>>(), ["128"]);
    }
}
