//! The program.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroUsize;
use core::time::Duration;

use command_line::options_or_status;
use homenode::mem::{RegionError, page_table_locks};
use homenode::phase::Phase;
use homenode::sync::Barrier;
use homenode::thread::{self, Builder, ScopedJoinHandle, SpawnError};
use homenode::time::Instant;
use homenode::{Args, ExitCode, eprintln, println};
use homenode_topology::{Bytes, Node};

use crate::array::{Array, PAGE_BYTES, PageCounts};
use crate::options::{Options, Touch, USAGE};

const TOUCH: Phase<0x70> = Phase::new("hugelock_touch");
const ACCESS: Phase<0x72> = Phase::new("hugelock_access");

/// The status when pages did not hold what was written to them.
const WRONG_CONTENTS: u8 = 1;
/// The status when there is not enough memory.
const NO_MEMORY: u8 = 3;

/// How often each thread reads every page.
const ROUNDS: usize = 10;

/// A thread's stack, in bytes: it needs little, and there may be thousands.
const STACK_BYTES: usize = 32 << 10;

/// Why a run ended without a result.
#[derive(Debug)]
enum Failure {
    NoAddresses { pages: usize, error: RegionError },
    NoThread { started: usize, error: SpawnError },
    WrongContents { pages: usize, threads: usize },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddresses { pages, error } => write!(
                f,
                "no addresses for {pages} pages: {error}; try fewer --pages, or fewer --threads with --own"
            ),
            Self::NoThread { started, error } => write!(
                f,
                "{started} threads have started, but no more: {error}; try fewer --threads or --pages, or more memory"
            ),
            Self::WrongContents { pages, threads } => write!(
                f,
                "some of {threads} threads did not read what was written to {pages} pages"
            ),
        }
    }
}

impl Failure {
    fn status(&self) -> u8 {
        match self {
            Self::NoAddresses { .. } | Self::NoThread { .. } => NO_MEMORY,
            Self::WrongContents { .. } => WRONG_CONTENTS,
        }
    }
}

/// Runs the program with its arguments, and says how it ended.
pub fn run(args: Args) -> ExitCode {
    let options = match options_or_status("hugelock", USAGE, Options::parse(args)) {
        Ok(options) => options,
        Err(status) => return status,
    };
    match run_all(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("hugelock: {failure}");
            ExitCode::from(failure.status())
        }
    }
}

/// Runs each number of pages with each number of threads.
fn run_all(options: &Options) -> Result<(), Failure> {
    let topology = homenode::topology();
    let cpus = thread::available_parallelism();
    let memory_bytes: u64 = topology.nodes().iter().map(Node::memory_bytes).sum();
    let every_cpu = Vec::from([cpus]);
    let threads = options.threads.as_ref().unwrap_or(&every_cpu);
    println!(
        "hugelock: N pages of 2 MiB are touched {}, then T threads read a word of each, in order, {ROUNDS} times",
        options.touch
    );
    println!(
        "CPUs {cpus}, nodes {}, memory {}, page-table locks {}, runs of each N and T {}",
        topology.nodes().len(),
        Bytes(memory_bytes),
        page_table_locks(),
        options.repeat
    );
    let most = most_pages(memory_bytes);
    for wanted in options.pages.iter().filter(|wanted| wanted.get() > most) {
        println!("N={wanted} is scaled to N={most}: as many pages as three quarters of the memory hold");
    }
    let mut phases = Phases::default();
    for pages in scaled(&options.pages, most) {
        for &threads in threads {
            let plan = Plan {
                pages,
                threads: threads.get(),
                touch: options.touch,
            };
            let times = plan.run_repeatedly(options.repeat)?;
            println!("N={pages} T={threads}: {}", times / options.repeat);
            phases.add(plan, options.repeat);
        }
    }
    phases.announce(options.touch, cpus);
    Ok(())
}

/// How many pages may be touched: what three quarters of the memory hold. The rest is for the kernel and the threads' stacks.
fn most_pages(memory_bytes: u64) -> usize {
    (memory_bytes / 4 * 3 / PAGE_BYTES as u64).max(1) as usize
}

/// The numbers of pages with `most` in place of those that are larger, and none twice in a row.
fn scaled(wanted: &[NonZeroUsize], most: usize) -> Vec<usize> {
    let mut pages: Vec<_> = wanted.iter().map(|wanted| wanted.get().min(most)).collect();
    pages.dedup();
    pages
}

/// One run.
#[derive(Clone, Copy, Debug)]
struct Plan {
    pages: usize,
    threads: usize,
    touch: Touch,
}

impl Plan {
    /// Runs `repeat` times, prints where the first run's pages lie, and returns the sum of all times.
    fn run_repeatedly(self, repeat: NonZeroUsize) -> Result<Times, Failure> {
        let mut sum = Times::default();
        for round in 0..repeat.get() {
            let (times, counts) = self.run()?;
            sum += times;
            if round == 0 {
                println!("N={} T={}: {}", self.pages, self.threads, listed(&counts));
            }
        }
        Ok(sum)
    }

    /// Touches and reads pages that are new.
    fn run(self) -> Result<(Times, PageCounts), Failure> {
        let start = Instant::now();
        let array = match self.touch {
            Touch::Main => Array::in_a_row(self.pages, 1),
            Touch::Slices => Array::in_a_row(self.pages, self.threads),
            Touch::Own => Array::in_own_ranges(self.pages, self.threads),
        };
        let array = array.map_err(|error| Failure::NoAddresses {
            pages: self.pages,
            error,
        })?;
        let touch = match self.touch {
            Touch::Main => timed(TOUCH, || array.touch(0)).0,
            Touch::Slices | Touch::Own => touch_together(&array, self.threads),
        };
        let (access, sums) = timed(ACCESS, || read_together(&array, self.threads));
        let total = start.elapsed();
        let expected = array.sum() * ROUNDS as u64;
        if sums?.iter().any(|&sum| sum != expected) {
            return Err(Failure::WrongContents {
                pages: self.pages,
                threads: self.threads,
            });
        }
        let times = Times { total, touch, access };
        Ok((times, array.page_counts()))
    }
}

/// Does `work` as `phase`, and says how long it took.
fn timed<const NUMBER: u8, R>(phase: Phase<NUMBER>, work: impl FnOnce() -> R) -> (Duration, R) {
    let start = Instant::now();
    let result = phase.run(work);
    (start.elapsed(), result)
}

/// `threads` threads, which have met, each touch their part of the array. How long that took until all were done.
fn touch_together(array: &Array, threads: usize) -> Duration {
    let meeting = &Barrier::new(threads);
    let member = move |index: usize| {
        let is_leader = index == 0;
        meeting.wait();
        let start = is_leader.then(|| {
            TOUCH.begin();
            Instant::now()
        });
        meeting.wait();
        array.touch(index);
        meeting.wait();
        let time = start.map(|start| {
            TOUCH.end();
            start.elapsed()
        });
        // The others' ends must not fall into the phase of a leader who is late.
        meeting.wait();
        time
    };
    thread::scope(|scope| {
        let members: Vec<_> = (0..threads)
            .map(|index| {
                let spawned = small_thread().spawn_scoped(scope, move || member(index));
                spawned.unwrap_or_else(|error| give_up(index, error))
            })
            .collect();
        members.into_iter().filter_map(ScopedJoinHandle::join).sum()
    })
}

/// `threads` threads are started, and each reads every page again and again. The sum of what each read.
fn read_together(array: &Array, threads: usize) -> Result<Vec<u64>, Failure> {
    thread::scope(|scope| {
        let readers: Vec<_> = (0..threads)
            .map(|index| {
                let read = || (0..ROUNDS).map(|_| array.read()).sum::<u64>();
                let spawned = small_thread().spawn_scoped(scope, read);
                spawned.map_err(|error| Failure::NoThread {
                    started: index,
                    error,
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(readers.into_iter().map(ScopedJoinHandle::join).collect())
    })
}

fn small_thread() -> Builder {
    Builder::new().stack_size(STACK_BYTES)
}

/// Ends the program: `started` threads wait for the next one at a barrier, so nobody can wait for them.
fn give_up(started: usize, error: SpawnError) -> ! {
    let failure = Failure::NoThread { started, error };
    eprintln!("hugelock: {failure}");
    homenode::exit(ExitCode::from(failure.status()))
}

/// How long parts of a run took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    /// From the reservation of the addresses to the end of the last thread.
    total: Duration,
    /// From the first touch to the last.
    touch: Duration,
    /// From the start of the first reading thread to the end of the last.
    access: Duration,
}

impl core::ops::AddAssign for Times {
    fn add_assign(&mut self, other: Self) {
        self.total += other.total;
        self.touch += other.touch;
        self.access += other.access;
    }
}

impl core::ops::Div<NonZeroUsize> for Times {
    type Output = Self;

    fn div(self, count: NonZeroUsize) -> Self {
        let mean = |time: Duration| time.div_f64(count.get() as f64);
        Self {
            total: mean(self.total),
            touch: mean(self.touch),
            access: mean(self.access),
        }
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [total, touch, access] = [self.total, self.touch, self.access].map(|time| time.as_secs_f64());
        write!(f, "total {total:.6} s, touch {touch:.6} s, access {access:.6} s")
    }
}

/// `node 0: 100 x 2 MiB, node 1: …`
fn listed(counts: &PageCounts) -> String {
    let pages = counts.iter();
    let texts: Vec<_> = pages
        .map(|((node, size), count)| format!("node {node}: {count} x {size}"))
        .collect();
    texts.join(", ")
}

/// What the phases of all runs did together.
#[derive(Default)]
struct Phases {
    touches: u64,
    reads: u64,
    most_threads: usize,
}

impl Phases {
    /// Adds `repeat` runs of `plan`.
    fn add(&mut self, plan: Plan, repeat: NonZeroUsize) {
        let touches = (plan.pages * repeat.get()) as u64;
        self.touches += touches;
        self.reads += touches * (plan.threads * ROUNDS) as u64;
        self.most_threads = self.most_threads.max(plan.threads);
    }

    /// Prints a line for each phase. An operation is a touch of one page, or a read of one page's word by one thread.
    fn announce(&self, touch: Touch, cpus: NonZeroUsize) {
        let all = self.most_threads.min(cpus.get());
        TOUCH.announce(self.touches, if touch == Touch::Main { 1 } else { all });
        ACCESS.announce(self.reads, all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(numbers: &[usize]) -> Vec<NonZeroUsize> {
        let positive = |&number| NonZeroUsize::new(number).expect("not zero");
        numbers.iter().map(positive).collect()
    }

    #[test]
    fn pages_are_scaled_to_the_memory() {
        assert_eq!(most_pages(4 << 30), 1536);
        assert_eq!(most_pages(0), 1);
        assert_eq!(scaled(&pages(&[100, 1536]), 1536), [100, 1536]);
        assert_eq!(scaled(&pages(&[1, 1537, 6000, 2]), 1536), [1, 1536, 2]);
        assert_eq!(scaled(&pages(&[100, 6000]), 48), [48]);
    }

    #[test]
    fn every_way_to_touch_reads_what_was_written() {
        let most = 2 * thread::available_parallelism().get() + 1;
        for touch in [Touch::Main, Touch::Own, Touch::Slices] {
            for threads in [1, most] {
                let plan = Plan {
                    pages: 9,
                    threads,
                    touch,
                };
                let (times, counts) = plan.run().expect("contents are right");
                assert_eq!(counts.into_values().sum::<usize>(), 9, "{plan:?}");
                assert!(times.total >= times.touch + times.access, "{plan:?}: {times:?}");
                assert!(
                    times.touch > Duration::ZERO && times.access > Duration::ZERO,
                    "{plan:?}"
                );
            }
        }
    }

    #[test]
    fn times_are_means() {
        let [total, touch, access] = [9, 4, 2].map(Duration::from_secs);
        let mut sum = Times { total, touch, access };
        sum += sum;
        assert_eq!(
            (sum / NonZeroUsize::new(4).unwrap()).to_string(),
            "total 4.500000 s, touch 2.000000 s, access 1.000000 s"
        );
    }
}
