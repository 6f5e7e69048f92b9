//! What the applications' command lines have in common: the words are read with [`getargs`], and what is wrong with them is said
//! in the same way by all.
#![cfg_attr(not(feature = "hosted"), no_std)]

extern crate alloc;

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use core::ops::{Bound, RangeBounds};
use core::str::FromStr;

use getargs::Arg;
use homenode::{ExitCode, eprintln, println};

/// The status after wrong arguments.
pub const WRONG_ARGUMENTS: u8 = 2;

/// What a program is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Request<O> {
    /// Run with these options.
    Run(O),
    /// Print a text, as that of `--help`, and end.
    Print(Cow<'static, str>),
}

impl<O> Request<O> {
    /// Print `usage`, which says how to call the program.
    pub const fn help(usage: &'static str) -> Self {
        Self::Print(Cow::Borrowed(usage))
    }
}

/// The options to run `program` with.
///
/// # Errors
/// The status to end with at once: a text was asked for, which is printed; or the command line can not be obeyed, and what is wrong
/// with it is printed below `usage`.
pub fn options_or_status<O>(
    program: &str,
    usage: &str,
    request: Result<Request<O>, UsageError>,
) -> Result<O, ExitCode> {
    match request {
        Ok(Request::Run(options)) => Ok(options),
        Ok(Request::Print(text)) => {
            println!("{text}");
            Err(ExitCode::SUCCESS)
        }
        Err(error) => Err(error.print(program, usage)),
    }
}

/// A command line that can not be obeyed: names the words and says what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError(String);

impl UsageError {
    /// `words` of the command line, and what is wrong with them.
    pub fn new(words: &str, problem: impl fmt::Display) -> Self {
        Self(format!("`{words}`: {problem}"))
    }

    /// Something is missing.
    pub fn missing(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// A word that the program does not know.
    pub fn unknown(word: Arg<&str>) -> Self {
        match word {
            Arg::Long(name) => Self::new(&format!("--{name}"), "no such option"),
            Arg::Short(name) => Self::new(&format!("-{name}"), "no such option"),
            Arg::Positional(word) => Self::new(word, "expected an option"),
        }
    }

    /// Prints `usage` and, behind it so that this is what is seen last, the error. Returns the status to end `program` with.
    pub fn print(&self, program: &str, usage: &str) -> ExitCode {
        eprintln!("{usage}\n\n{program}: {self}");
        ExitCode::from(WRONG_ARGUMENTS)
    }
}

/// An option with a value that it does not take, or without one that it needs.
impl From<getargs::Error<&str>> for UsageError {
    fn from(error: getargs::Error<&str>) -> Self {
        match error {
            getargs::Error::RequiresValue(option) => Self::new(&option.to_string(), "needs a value"),
            getargs::Error::DoesNotRequireValue(option) => Self::new(&option.to_string(), "takes no value"),
            _ => Self(error.to_string()),
        }
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for UsageError {}

/// The number that an option's value says.
///
/// # Errors
/// If `value` is not a number within `bounds`: says which numbers are.
pub fn number<N>(value: &str, bounds: impl RangeBounds<N>) -> Result<N, String>
where
    N: FromStr + PartialOrd + fmt::Display,
{
    let number = value.parse().ok().filter(|number| bounds.contains(number));
    number.ok_or_else(|| match (bounds.start_bound(), bounds.end_bound()) {
        (Bound::Included(least), Bound::Included(most)) => {
            format!("expected a number from {least} to {most}")
        }
        (Bound::Included(least), _) => format!("expected a number, at least {least}"),
        _ => String::from("expected a number"),
    })
}

#[cfg(test)]
mod tests {
    use core::num::NonZeroUsize;

    use super::*;

    #[test]
    fn numbers_lie_within_bounds() {
        assert_eq!(number("0", 0..=u64::MAX), Ok(0));
        assert_eq!(number("18446744073709551615", 0..=u64::MAX), Ok(u64::MAX));
        assert_eq!(
            number("7", NonZeroUsize::MIN..),
            Ok(NonZeroUsize::new(7).unwrap())
        );
        for (value, problem) in [
            ("0", "expected a number from 1 to 9"),
            ("10", "expected a number from 1 to 9"),
            ("-1", "expected a number from 1 to 9"),
            ("", "expected a number from 1 to 9"),
            ("two", "expected a number from 1 to 9"),
        ] {
            assert_eq!(number::<u64>(value, 1..=9), Err(problem.to_string()), "{value}");
        }
        assert_eq!(
            number("0", NonZeroUsize::MIN..),
            Err("expected a number, at least 1".to_string())
        );
        assert_eq!(number::<u8>("256", ..), Err("expected a number".to_string()));
    }

    #[test]
    fn errors_name_the_words() {
        let error = |line: &'static str| -> UsageError {
            let mut words = getargs::Options::new(line.split(' '));
            let mut next = || -> Result<UsageError, UsageError> {
                match words.next_arg()?.expect("there is a word") {
                    Arg::Long("value") => panic!("a value: {}", words.value()?),
                    Arg::Long("flag") => Ok(UsageError::unknown(words.next_arg()?.expect("another word"))),
                    word => Ok(UsageError::unknown(word)),
                }
            };
            next().unwrap_or_else(|error| error)
        };
        for (line, message) in [
            ("--fast", "`--fast`: no such option"),
            ("-x", "`-x`: no such option"),
            ("100", "`100`: expected an option"),
            ("--value", "`--value`: needs a value"),
            ("--flag=yes", "`--flag`: takes no value"),
            ("--flag yes", "`yes`: expected an option"),
        ] {
            assert_eq!(error(line).to_string(), message);
        }
        assert_eq!(UsageError::missing("name a group").to_string(), "name a group");
    }

    #[test]
    fn only_a_request_to_run_runs() {
        let start = |request| options_or_status("program", "usage: program", request);
        assert_eq!(start(Ok(Request::Run(3))), Ok(3));
        assert_eq!(start(Ok(Request::help("usage: program"))), Err(ExitCode::SUCCESS));
        assert_eq!(
            start(Err(UsageError::new("--fast", "no such option"))),
            Err(ExitCode::from(WRONG_ARGUMENTS))
        );
    }
}
