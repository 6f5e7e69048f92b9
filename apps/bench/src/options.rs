//! The command line.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use command_line::{Request, UsageError, number};
use getargs::{Arg, Options as Words};
use homenode::thread;

/// How to call the program.
pub(crate) const USAGE: &str = "\
usage: bench [OPTION]... GROUP...
Runs small benchmarks between phase markers, for an instruction counter outside of the machine.

GROUP is all, or one of
  faults    memory is taken: by first touch of 4 KiB pages (fault_4k) and of 2 MiB pages (fault_2m), those also by each thread
            in a GiB of addresses of its own (fault_2m_1g) and in a slice of one array (fault_2m_shared); by asking for it
            (populate_2m). Fewer pages where memory is short: a line says so
  unmap     memory is taken, touched and given back while the other threads compute: unmap_16 (16 pages of 4 KiB), unmap_2m
            (a page of 2 MiB); protect_16 takes the right to write from 16 pages of 4 KiB and gives it back. All threads at once:
            unmap_16_all; in fork_join_4 they work on 4 pages each, and meet after each round
  grid      grid_N_T: N pages of 2 MiB are touched, then T threads are started that read a word of each 10 times
  threads   thread_create_join: one thread for each CPU is started and joined, again and again
  exit      thread_exit_T: T blocked threads are woken, end and are joined
  barrier   all threads meet
  mutex     all threads want the same lock
  alloc     alloc_4k: the program's allocator gives and takes back blocks of 4 KiB
  message   a word goes from the first node to the last and back

      --threads N   threads that take part (default: one for each CPU); grid, exit and message have numbers of their own
      --list        the phases of each group
  -h, --help        this text
Exit status: 0 done, 2 wrong arguments, 3 not enough memory.";

/// The largest number of threads: what a barrier can count.
const MAX_THREADS: usize = 65_535;

/// Benchmarks that are run together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Taking memory.
    Faults,
    /// Giving memory back, and taking rights away.
    Unmap,
    /// Few pages, many threads.
    Grid,
    /// Starting threads.
    Threads,
    /// Ending threads.
    Exit,
    /// Meeting.
    Barrier,
    /// Excluding each other.
    Mutex,
    /// The program's allocator.
    Alloc,
    /// Waking each other.
    Message,
}

impl Group {
    /// All groups, in the order in which `all` runs them: the one that needs most memory last.
    pub(crate) const ALL: [Self; 9] = [
        Self::Faults,
        Self::Unmap,
        Self::Threads,
        Self::Barrier,
        Self::Mutex,
        Self::Alloc,
        Self::Message,
        Self::Exit,
        Self::Grid,
    ];

    /// The group's name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Faults => "faults",
            Self::Unmap => "unmap",
            Self::Grid => "grid",
            Self::Threads => "threads",
            Self::Exit => "exit",
            Self::Barrier => "barrier",
            Self::Mutex => "mutex",
            Self::Alloc => "alloc",
            Self::Message => "message",
        }
    }

    /// The names of the group's phases.
    pub(crate) const fn phases(self) -> &'static [&'static str] {
        match self {
            Self::Faults => &[
                "fault_4k",
                "fault_2m",
                "fault_2m_1g",
                "fault_2m_shared",
                "populate_2m",
            ],
            Self::Unmap => &[
                "unmap_16",
                "unmap_16_all",
                "protect_16",
                "unmap_2m",
                "fork_join_4",
            ],
            Self::Grid => &["grid_100_100", "grid_100_1000"],
            Self::Threads => &["thread_create_join"],
            Self::Exit => &["thread_exit_512", "thread_exit_1024"],
            Self::Barrier => &["barrier"],
            Self::Mutex => &["mutex"],
            Self::Alloc => &["alloc_4k"],
            Self::Message => &["message"],
        }
    }

    fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.name() == name)
    }
}

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// What to run.
    pub(crate) groups: Vec<Group>,
    /// How many threads take part.
    pub(crate) threads: usize,
}

impl Options {
    /// Reads the arguments after the program's name.
    ///
    /// # Errors
    /// When a word is not understood, or no group is named.
    pub(crate) fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Request<Self>, UsageError> {
        let mut words = Words::new(words);
        let mut groups = Vec::new();
        let mut threads = None;
        while let Some(word) = words.next_arg()? {
            match word {
                Arg::Long("help") | Arg::Short('h') => return Ok(Request::help(USAGE)),
                Arg::Long("list") => return Ok(Request::Print(list().into())),
                Arg::Long("threads") => {
                    let value = words.value()?;
                    let wrong = |problem| UsageError::new(&format!("--threads {value}"), problem);
                    threads = Some(number(value, 1..=MAX_THREADS).map_err(wrong)?);
                }
                Arg::Positional("all") => groups.extend(Group::ALL),
                Arg::Positional(name) => groups.push(Group::of_name(name).ok_or_else(|| no_group(name))?),
                word => return Err(UsageError::unknown(word)),
            }
        }
        if groups.is_empty() {
            return Err(UsageError::missing("name a group of benchmarks, or all"));
        }
        Ok(Request::Run(Self {
            groups,
            threads: threads.unwrap_or_else(|| thread::available_parallelism().get()),
        }))
    }
}

/// The phases of each group.
fn list() -> String {
    let line = |group: Group| format!("{}: {}", group.name(), group.phases().join(" "));
    Group::ALL.map(line).join("\n")
}

fn no_group(name: &str) -> UsageError {
    let groups = Group::ALL.map(Group::name).join(", ");
    UsageError::new(name, format!("no such group; there are all, {groups}"))
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn parse(line: &str) -> Result<Request<Options>, UsageError> {
        Options::parse(line.split_whitespace())
    }

    #[test]
    fn groups_and_threads_are_read() {
        let run = |groups: &[Group], threads| {
            Ok(Request::Run(Options {
                groups: groups.to_vec(),
                threads,
            }))
        };
        let all_cpus = thread::available_parallelism().get();
        assert_eq!(parse("faults"), run(&[Group::Faults], all_cpus));
        assert_eq!(
            parse("mutex --threads 3 unmap"),
            run(&[Group::Mutex, Group::Unmap], 3)
        );
        assert_eq!(parse("--threads=1 all"), run(&Group::ALL, 1));
        assert_eq!(parse("--list"), Ok(Request::Print(list().into())));
        assert!(list().lines().any(|line| line == "threads: thread_create_join"));
        assert_eq!(parse("faults -h"), Ok(Request::help(USAGE)));
    }

    #[test]
    fn errors_name_the_words() {
        for (line, words) in [
            ("", "name a group"),
            ("--threads 2", "name a group"),
            ("fault", "`fault`"),
            ("faults --threads", "`--threads`"),
            ("faults --threads 0", "`--threads 0`"),
            ("faults --threads 65536", "`--threads 65536`"),
            ("faults --fast", "`--fast`"),
            ("-x", "`-x`"),
        ] {
            let message = parse(line).expect_err(line).to_string();
            assert!(message.starts_with(words), "{line:?}: {message}");
        }
    }

    #[test]
    fn every_name_is_told_once() {
        let mut names: Vec<_> = Group::ALL.iter().flat_map(|group| group.phases()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(Group::ALL.iter().all(|group| USAGE.contains(group.name())));
    }
}
