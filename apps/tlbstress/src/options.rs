//! The command line.

use alloc::format;
use core::ops::RangeInclusive;
use core::time::Duration;

use command_line::{Request, UsageError};
use getargs::{Arg, Options as Words};

use crate::tag::MAX_PAGES;

/// How to call the program.
pub(crate) const USAGE: &str = "\
usage: tlbstress [OPTION]...
Threads map regions of a few pages of 4 KiB, tag the pages and hand them to each other, who check the tags, discard, protect or move
the pages, tag them again, and at last give them back. A CPU that keeps a translation too long finds or leaves a wrong tag.

      --seconds N   how long (default: 10)
      --threads T   how many threads (default: one for each CPU); there may be more than CPUs
      --pages N     the most pages of a region (default: 4, at most 256)
      --seed S      where the threads' random choices begin (default: 1); when they meet is chance all the same
  -h, --help        this text
Exit status: 0 every tag was right, 1 one was wrong, 2 wrong arguments, 3 not enough memory.";

/// The largest number of threads.
pub(crate) const MAX_THREADS: usize = 1024;

/// What the command line asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// How long to run.
    pub(crate) duration: Duration,
    /// How many threads, or one for each CPU.
    pub(crate) threads: Option<usize>,
    /// The most pages of a region.
    pub(crate) pages: usize,
    /// The seed of the random choices.
    pub(crate) seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(10),
            threads: None,
            pages: 4,
            seed: 1,
        }
    }
}

impl Options {
    /// Reads the arguments after the program's name.
    ///
    /// # Errors
    /// When a word is not understood.
    pub(crate) fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Request<Self>, UsageError> {
        let mut words = Words::new(words);
        let mut options = Self::default();
        while let Some(word) = words.next_arg()? {
            let name = match word {
                Arg::Long("help") | Arg::Short('h') => return Ok(Request::help(USAGE)),
                Arg::Long(name @ ("seconds" | "threads" | "pages" | "seed")) => name,
                word => return Err(UsageError::unknown(word)),
            };
            let value = words.value()?;
            let number = |bounds: RangeInclusive<u64>| {
                command_line::number(value, bounds)
                    .map_err(|problem| UsageError::new(&format!("--{name} {value}"), problem))
            };
            match name {
                "seconds" => options.duration = Duration::from_secs(number(1..=u32::MAX.into())?),
                "threads" => options.threads = Some(number(1..=MAX_THREADS as u64)? as usize),
                "pages" => options.pages = number(1..=MAX_PAGES as u64)? as usize,
                _ => options.seed = number(0..=u64::MAX)?,
            }
        }
        Ok(Request::Run(options))
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn parse(line: &str) -> Result<Request<Options>, UsageError> {
        Options::parse(line.split_whitespace())
    }

    #[test]
    fn every_option_is_read() {
        assert_eq!(parse(""), Ok(Request::Run(Options::default())));
        let expected = Options {
            duration: Duration::from_secs(60),
            threads: Some(1024),
            pages: 256,
            seed: u64::MAX,
        };
        assert_eq!(
            parse("--seconds 60 --threads=1024 --pages 256 --seed 18446744073709551615"),
            Ok(Request::Run(expected))
        );
        assert_eq!(parse("--seconds 5 -h --nonsense"), Ok(Request::help(USAGE)));
    }

    #[test]
    fn errors_name_the_words() {
        for (line, words) in [
            ("--seconds", "`--seconds`: needs a value"),
            ("--seconds 0", "`--seconds 0`: expected a number from 1 to "),
            (
                "--threads 1025",
                "`--threads 1025`: expected a number from 1 to 1024",
            ),
            ("--pages 257", "`--pages 257`: expected a number from 1 to 256"),
            ("--pages four", "`--pages four`"),
            ("--seed -1", "`--seed -1`"),
            ("--fast", "`--fast`: no such option"),
            ("-x", "`-x`"),
            ("100", "`100`: expected an option"),
        ] {
            let message = parse(line).expect_err(line).to_string();
            assert!(message.starts_with(words), "{line:?}: {message}");
        }
    }

    #[test]
    fn the_usage_tells_every_option() {
        for option in ["--seconds", "--threads", "--pages", "--seed", "--help"] {
            assert!(USAGE.contains(option), "{option}");
        }
    }
}
