//! The command line.

use alloc::format;
use core::fmt;
use core::num::NonZeroUsize;
use core::str::FromStr;

use command_line::{Request, UsageError, number};
use getargs::{Arg, Options as Words};
use homenode::NodeId;
use homenode::mem::Policy;

use crate::fft::Width;
use crate::grid::Size;
use crate::npb::{Class, Problem as NpbProblem};

/// How to call the program.
pub(crate) const USAGE: &str = "\
usage: fft3d [OPTION]...
Transforms a 3-D grid of complex numbers with all CPUs, checks the result, and says where the grid's pages are.

      --n N | NXxNYxNZ   points of the grid, each of the form 2^a 3^b 5^c up to 1024 (default: 128)
      --npb S|W|A|NXxNYxNZ
                         the NAS Parallel Benchmarks' problem FT instead, of a class or of any size
      --threads N        worker threads (default: one for each CPU)
      --repeat N         forward and inverse transforms of the grid (default: 1)
      --realloc          new threads and a new grid for each of them
      --first-touch worker|master|demand
                         who takes the grid's memory: each worker its slab, the main thread all, or each page whoever
                         writes to it first (default: worker)
      --policy local|interleave|bind:NODE|preferred:NODE
                         where memory is taken (default: local, the node of who takes it)
      --simd auto|sse2|avx2|avx512
                         vector instructions (default: auto, the widest that there are)
      --json             all figures as a last line of JSON
  -h, --help             this text
Exit status: 0 verified, 1 not verified, 2 wrong arguments, 3 not enough memory.";

/// The largest number of workers: what a barrier can count.
const MAX_THREADS: NonZeroUsize = NonZeroUsize::new(65_535).unwrap();

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Problem {
    /// A sum of plane waves, then random numbers there and back.
    Transform(Size),
    /// The problem FT of the NAS Parallel Benchmarks.
    Npb(NpbProblem),
}

impl Problem {
    /// The grid.
    pub(crate) fn size(self) -> Size {
        match self {
            Self::Transform(size) => size,
            Self::Npb(problem) => problem.size,
        }
    }
}

/// Who takes the grid's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstTouch {
    /// Each worker the part that it transforms along x and y.
    Worker,
    /// The main thread everything.
    Master,
    /// Nobody in advance: a page comes when it is first written to.
    Demand,
}

impl fmt::Display for FirstTouch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Worker => "worker",
            Self::Master => "master",
            Self::Demand => "demand",
        })
    }
}

/// What the command line asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Options {
    /// What is computed.
    pub(crate) problem: Problem,
    /// Number of workers, or one for each CPU.
    pub(crate) threads: Option<NonZeroUsize>,
    /// How often the grid is transformed there and back.
    pub(crate) repeat: NonZeroUsize,
    /// Whether each of these has threads and memory of its own.
    pub(crate) realloc: bool,
    /// Who takes the memory.
    pub(crate) first_touch: FirstTouch,
    /// Where it is taken.
    pub(crate) policy: Policy,
    /// Vector instructions, or the widest.
    pub(crate) simd: Option<Width>,
    /// Whether to print a line of JSON.
    pub(crate) json: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            problem: Problem::Transform(Size {
                x: 128,
                y: 128,
                z: 128,
            }),
            threads: None,
            repeat: NonZeroUsize::MIN,
            realloc: false,
            first_touch: FirstTouch::Worker,
            policy: Policy::Local,
            simd: None,
            json: false,
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
        let (mut size, mut npb, mut repeat) = (None, None, None);
        while let Some(word) = words.next_arg()? {
            let name = match word {
                Arg::Long("help") | Arg::Short('h') => return Ok(Request::help(USAGE)),
                Arg::Long("json") => {
                    options.json = true;
                    continue;
                }
                Arg::Long("realloc") => {
                    options.realloc = true;
                    continue;
                }
                Arg::Long(
                    name @ ("n" | "npb" | "threads" | "repeat" | "first-touch" | "policy" | "simd"),
                ) => name,
                word => return Err(UsageError::unknown(word)),
            };
            let value = words.value()?;
            let wrong = |problem: &dyn fmt::Display| UsageError::new(&format!("--{name} {value}"), problem);
            match name {
                "n" => size = Some(value.parse().map_err(|error| wrong(&error))?),
                "npb" => npb = Some(npb_problem(value).map_err(|error| wrong(&error))?),
                "threads" => {
                    options.threads =
                        Some(number(value, NonZeroUsize::MIN..=MAX_THREADS).map_err(|error| wrong(&error))?);
                }
                "repeat" => repeat = Some(number(value, NonZeroUsize::MIN..).map_err(|error| wrong(&error))?),
                "first-touch" => {
                    options.first_touch = match value {
                        "worker" => FirstTouch::Worker,
                        "master" => FirstTouch::Master,
                        "demand" => FirstTouch::Demand,
                        _ => return Err(wrong(&"expected worker, master or demand")),
                    }
                }
                "policy" => options.policy = policy(value).map_err(|error| wrong(&error))?,
                _ => {
                    options.simd = match value {
                        "auto" => None,
                        _ => Some(
                            value
                                .parse()
                                .map_err(|_| wrong(&"expected auto, sse2, avx2 or avx512"))?,
                        ),
                    }
                }
            }
        }
        options.repeat = repeat.unwrap_or(options.repeat);
        options.problem = match (size, npb) {
            (Some(_), Some(_)) => {
                return Err(UsageError::new(
                    "--n",
                    "--npb says the size already; leave one of them out",
                ));
            }
            (_, Some(problem)) if repeat.is_none() && !options.realloc => Problem::Npb(problem),
            (_, Some(_)) => {
                let word = if options.realloc { "--realloc" } else { "--repeat" };
                return Err(UsageError::new(
                    word,
                    "--npb has a fixed number of transforms; leave it out",
                ));
            }
            (Some(size), None) => Problem::Transform(size),
            (None, None) => options.problem,
        };
        Ok(Request::Run(options))
    }
}

fn npb_problem(value: &str) -> Result<NpbProblem, &'static str> {
    match Class::from_str(value) {
        Ok(class) => Ok(NpbProblem::of_class(class)),
        Err(_) => value
            .parse()
            .map(NpbProblem::of_size)
            .map_err(|_| "expected S, W, A or NXxNYxNZ, each of the form 2^a 3^b 5^c from 1 to 1024"),
    }
}

fn policy(value: &str) -> Result<Policy, &'static str> {
    let of_node: fn(NodeId) -> Policy = match value.split_once(':') {
        None if value == "local" => return Ok(Policy::Local),
        None if value == "interleave" => return Ok(Policy::Interleave),
        Some(("bind", _)) => Policy::Bind,
        Some(("preferred", _)) => Policy::Preferred,
        _ => return Err("expected local, interleave, bind:NODE or preferred:NODE"),
    };
    let node = value.split_once(':').and_then(|(_, node)| node.parse().ok());
    node.map(|node| of_node(NodeId(node)))
        .ok_or("expected a node's number after the colon")
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

    #[test]
    fn no_words_mean_the_defaults() {
        assert_eq!(run(""), Options::default());
    }

    #[test]
    fn every_option_is_read() {
        let options = run(
            "--n 64x32x16 --threads 3 --repeat 5 --realloc --first-touch master --policy bind:2 --simd sse2 --json",
        );
        let expected = Options {
            problem: Problem::Transform(Size { x: 64, y: 32, z: 16 }),
            threads: NonZeroUsize::new(3),
            repeat: NonZeroUsize::new(5).unwrap(),
            realloc: true,
            first_touch: FirstTouch::Master,
            policy: Policy::Bind(NodeId(2)),
            simd: Some(Width::Sse2),
            json: true,
        };
        assert_eq!(options, expected);
        assert_eq!(run("--n=60").problem.size(), Size { x: 60, y: 60, z: 60 });
        assert_eq!(run("--policy interleave").policy, Policy::Interleave);
        assert_eq!(run("--policy preferred:3").policy, Policy::Preferred(NodeId(3)));
        assert_eq!(run("--first-touch demand").first_touch, FirstTouch::Demand);
        assert_eq!(run("--simd auto").simd, None);
        assert_eq!(parse("--json -h"), Ok(Request::help(USAGE)));
    }

    #[test]
    fn npb_takes_a_class_or_a_size() {
        assert_eq!(
            run("--npb W").problem,
            Problem::Npb(NpbProblem::of_class(Class::W))
        );
        let size = Size { x: 30, y: 20, z: 10 };
        assert_eq!(
            run("--npb 30x20x10").problem,
            Problem::Npb(NpbProblem::of_size(size))
        );
    }

    #[test]
    fn errors_name_the_words() {
        for (line, words) in [
            ("--n 7", "`--n 7`"),
            ("--n=64x64", "`--n 64x64`"),
            ("--n", "`--n`"),
            ("--npb B", "`--npb B`"),
            ("--threads 65536", "`--threads 65536`"),
            ("--threads many", "`--threads many`"),
            ("--threads 0", "`--threads 0`: expected a number from 1 to 65535"),
            ("--repeat -1", "`--repeat -1`"),
            ("--repeat 0", "`--repeat 0`: expected a number, at least 1"),
            ("--first-touch nobody", "`--first-touch nobody`"),
            ("--policy bind:", "`--policy bind:`"),
            ("--policy bind:x", "`--policy bind:x`"),
            (
                "--policy preferred:-1",
                "`--policy preferred:-1`: expected a node's number",
            ),
            ("--policy local:1", "`--policy local:1`"),
            ("--simd avx3", "`--simd avx3`"),
            ("--json=yes", "`--json`"),
            ("--fast", "`--fast`"),
            ("-x", "`-x`"),
            ("64", "`64`"),
            ("--n 64 --npb S", "`--n`"),
            ("--npb S --repeat 2", "`--repeat`"),
            ("--npb S --realloc", "`--realloc`"),
        ] {
            let message = parse(line).expect_err(line).to_string();
            assert!(message.starts_with(words), "{line:?}: {message}");
        }
    }
}
