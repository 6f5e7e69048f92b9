//! The command line.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroUsize;
use core::ops::RangeBounds;

use command_line::{Request, UsageError, number};
use getargs::{Arg, Options as Words};

/// How to call the program.
pub(crate) const USAGE: &str = "\
usage: hugelock [OPTION]...
Touches N pages of 2 MiB once, then T threads each read a word of every page, in order, 10 times; for each N with each T.

      --pages N[,N]...    how many pages (default: 100,6000); if they are more than three quarters of the memory, so many
                          are taken as these hold
      --threads T[,T]...  how many threads (default: one for each CPU); there may be more than CPUs
      --own               the T threads touch the pages, all at once: each its share, in a range of its own that starts at a
                          multiple of 1 GiB
      --slices            the T threads touch the pages, all at once: each a slice of one array
      --repeat R          how often each N runs with each T (default: 1); the times are means
  -h, --help              this text
Without --own and --slices the main thread touches all pages.
Exit status: 0 done, 1 a page did not hold what was written to it, 2 wrong arguments, 3 not enough memory.";

/// The largest number of threads: what a barrier can count.
const MAX_THREADS: NonZeroUsize = NonZeroUsize::new(65_535).unwrap();

/// The numbers of pages of the program's first version.
const DEFAULT_PAGES: [NonZeroUsize; 2] = [NonZeroUsize::new(100).unwrap(), NonZeroUsize::new(6000).unwrap()];

/// Who touches the pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Touch {
    /// The main thread all of them.
    #[default]
    Main,
    /// Each thread those of a range of its own, all at once.
    Own,
    /// Each thread those of its slice of one array, all at once.
    Slices,
}

impl fmt::Display for Touch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Main => "by the main thread",
            Self::Own => "by T threads, each in a range of its own",
            Self::Slices => "by T threads, each in its slice of one array",
        })
    }
}

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// How many pages.
    pub(crate) pages: Vec<NonZeroUsize>,
    /// How many threads, or one for each CPU.
    pub(crate) threads: Option<Vec<NonZeroUsize>>,
    /// Who touches the pages.
    pub(crate) touch: Touch,
    /// How often each number of pages runs with each number of threads.
    pub(crate) repeat: NonZeroUsize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pages: DEFAULT_PAGES.to_vec(),
            threads: None,
            touch: Touch::Main,
            repeat: NonZeroUsize::MIN,
        }
    }
}

impl Options {
    /// Reads the arguments after the program's name.
    ///
    /// # Errors
    /// When a word is not understood, or words contradict each other.
    pub(crate) fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Request<Self>, UsageError> {
        let mut words = Words::new(words);
        let mut options = Self::default();
        while let Some(word) = words.next_arg()? {
            let name = match word {
                Arg::Long("help") | Arg::Short('h') => return Ok(Request::help(USAGE)),
                Arg::Long("own") => {
                    options.touch(Touch::Own)?;
                    continue;
                }
                Arg::Long("slices") => {
                    options.touch(Touch::Slices)?;
                    continue;
                }
                Arg::Long(name @ ("pages" | "threads" | "repeat")) => name,
                word => return Err(UsageError::unknown(word)),
            };
            let value = words.value()?;
            let wrong = |problem: String| UsageError::new(&format!("--{name} {value}"), problem);
            match name {
                "pages" => options.pages = numbers(value, NonZeroUsize::MIN..).map_err(wrong)?,
                "threads" => {
                    options.threads = Some(numbers(value, NonZeroUsize::MIN..=MAX_THREADS).map_err(wrong)?);
                }
                _ => options.repeat = number(value, NonZeroUsize::MIN..).map_err(wrong)?,
            }
        }
        Ok(Request::Run(options))
    }

    /// Takes over who touches, which may be said once.
    fn touch(&mut self, touch: Touch) -> Result<(), UsageError> {
        if self.touch != Touch::Main && self.touch != touch {
            return Err(UsageError::new(
                "--own --slices",
                "these exclude each other; leave one of them out",
            ));
        }
        self.touch = touch;
        Ok(())
    }
}

/// Numbers with commas between them, each within `bounds`.
fn numbers(value: &str, bounds: impl RangeBounds<NonZeroUsize> + Clone) -> Result<Vec<NonZeroUsize>, String> {
    let numbers = value.split(',').map(|text| number(text, bounds.clone()));
    numbers
        .collect::<Result<_, _>>()
        .map_err(|problem| format!("{problem}, or several with commas between them"))
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn parse(line: &str) -> Result<Request<Options>, UsageError> {
        Options::parse(line.split_whitespace())
    }

    fn run(line: &str) -> Options {
        match parse(line) {
            Ok(Request::Run(options)) => options,
            other => panic!("{line:?}: {other:?}"),
        }
    }

    fn counts(numbers: &[usize]) -> Vec<NonZeroUsize> {
        let positive = |&number| NonZeroUsize::new(number).expect("not zero");
        numbers.iter().map(positive).collect()
    }

    #[test]
    fn every_option_is_read() {
        assert_eq!(run(""), Options::default());
        assert_eq!(Options::default().pages, counts(&[100, 6000]));
        let expected = Options {
            pages: counts(&[10, 2, 10]),
            threads: Some(counts(&[65_535, 1])),
            touch: Touch::Slices,
            repeat: NonZeroUsize::new(20).unwrap(),
        };
        assert_eq!(
            run("--pages 10,2,10 --threads=65535,1 --repeat 20 --slices --slices"),
            expected
        );
        assert_eq!(run("--own").touch, Touch::Own);
        assert_eq!(parse("--own -h"), Ok(Request::help(USAGE)));
        assert_eq!(parse("--help --nonsense"), Ok(Request::help(USAGE)));
    }

    #[test]
    fn errors_name_the_words() {
        for (line, words) in [
            ("--pages", "`--pages`: needs a value"),
            ("--pages 0", "`--pages 0`: expected a number, at least 1"),
            ("--pages 100,", "`--pages 100,`"),
            ("--pages 100;200", "`--pages 100;200`"),
            ("--threads -1", "`--threads -1`"),
            (
                "--threads 65536",
                "`--threads 65536`: expected a number from 1 to 65535",
            ),
            ("--threads 1,many", "`--threads 1,many`"),
            ("--repeat 0", "`--repeat 0`: expected a number, at least 1"),
            ("--repeat 1,2", "`--repeat 1,2`"),
            ("--own=1", "`--own`: takes no value"),
            ("--own --slices", "`--own --slices`: these exclude each other"),
            ("--slices --own", "`--own --slices`"),
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
        for option in ["--pages", "--threads", "--own", "--slices", "--repeat", "--help"] {
            assert!(USAGE.contains(option), "{option}");
        }
    }
}
