//! The program.

use alloc::format;
use alloc::string::String;
use core::{fmt, hint};

use command_line::options_or_status;
use homenode::mem::{PageSize, RegionError};
use homenode::metrics::{self, TlbCounts};
use homenode::thread::{self, Builder, SpawnError};
use homenode::time::{Duration, Instant};
use homenode::{Args, CpuId, ExitCode, eprintln, println, tlb};

use crate::options::{Options, USAGE};
use crate::parcel::Parcel;
use crate::stage::{Operation, Stage, Stop};
use crate::tag::Stamp;
use crate::worker::{Plan, Worker};

/// The status when a tag was wrong.
const WRONG_TAG: u8 = 1;
/// The status when there is not enough memory.
const NO_MEMORY: u8 = 3;

/// A thread's stack, in bytes: it needs little, and there may be many.
const STACK_BYTES: usize = 64 << 10;

/// How long to sleep before looking again whether all threads have started, or whether the time is over.
const PAUSE: Duration = Duration::from_millis(2);
/// How often the run says how far it is.
const PROGRESS: Duration = Duration::from_secs(3);

static STAGE: Stage = Stage::new();

/// Runs the program with its arguments, and says how it ended.
pub fn run(args: Args) -> ExitCode {
    let options = match options_or_status("tlbstress", USAGE, Options::parse(args)) {
        Ok(options) => options,
        Err(status) => return status,
    };
    match run_on(&STAGE, options) {
        Ok(Verdict::Passed) => {
            println!("verification: passed");
            ExitCode::SUCCESS
        }
        Ok(Verdict::Failed) => {
            println!("verification: failed");
            ExitCode::from(WRONG_TAG)
        }
        Err(failure) => {
            eprintln!("tlbstress: {failure}");
            ExitCode::from(NO_MEMORY)
        }
    }
}

/// Whether all tags were right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
}

/// Why there is no verdict.
#[derive(Debug)]
enum Failure {
    NoThread { started: usize, error: SpawnError },
    NoRegion(RegionError),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoThread { started, error } => write!(
                f,
                "{started} threads have started, but no more: {error}; try fewer --threads, or more memory"
            ),
            Self::NoRegion(error) => write!(f, "no region: {error}; try fewer --pages, or more memory"),
        }
    }
}

/// Runs all threads, and prints what came of it.
fn run_on(stage: &Stage, options: Options) -> Result<Verdict, Failure> {
    let cpus = thread::available_parallelism();
    let plan = Plan {
        threads: options.threads.unwrap_or(cpus.get()),
        pages: options.pages,
        seed: options.seed,
        nodes: homenode::topology().nodes().len(),
        duration: options.duration,
    };
    println!(
        "tlbstress: {} threads on {cpus} CPUs of {} nodes hand regions of up to {} pages to each other for {} s, seed {}",
        plan.threads,
        plan.nodes,
        plan.pages,
        plan.duration.as_secs(),
        plan.seed
    );
    println!("TLB {}, {}", tlb::mode(), page_sizes(plan.pages)?);
    let before = metrics::tlb();
    let time = run_threads(stage, plan)?;
    for parcel in stage.left() {
        stage.count_tags(parcel.tags());
        if let Err(mismatch) = parcel.check("the end") {
            stage.end(Some(Stop::Mismatch(mismatch)));
        }
    }
    tlb::drain();
    println!("{}", summary(stage, time));
    if let (Some(before), Some(now)) = (before, metrics::tlb()) {
        println!("TLB: {}", described(now - before));
    }
    match stage.stopped_by() {
        None => Ok(Verdict::Passed),
        Some(Stop::Mismatch(_)) => Ok(Verdict::Failed),
        Some(Stop::NoRegion(error)) => Err(Failure::NoRegion(error)),
    }
}

/// Says how large the pages are that regions get, with a warning if an emulator would drop too much because of them.
fn page_sizes(pages: usize) -> Result<String, Failure> {
    let stamp = Stamp { thread: 0, round: 0 };
    let probe = Parcel::new(pages, stamp).map_err(Failure::NoRegion)?;
    let [small, large] = [PageSize::Size4KiB, PageSize::Size2MiB].map(|size| probe.pages_of(size));
    let mut text = format!("a region of {pages} pages has {small} of 4 KiB, {large} of 2 MiB");
    if large > 0 {
        text += "\nwarning: with pages of 2 MiB, QEMU drops all translations where it is asked to drop one, which hides errors";
    }
    Ok(text)
}

/// Runs the threads until the time is over or a tag is wrong; how long they ran.
fn run_threads(stage: &Stage, plan: Plan) -> Result<Duration, Failure> {
    let cpus = thread::available_parallelism().get();
    thread::scope(|scope| {
        for number in 0..plan.threads {
            let spawned = Builder::new()
                .cpu(CpuId::from(number % cpus))
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, move || work(stage, plan, number));
            if let Err(error) = spawned {
                stage.end(None);
                return Err(Failure::NoThread {
                    started: number,
                    error,
                });
            }
        }
        Ok(watch(stage, plan))
    })
}

/// What a thread does.
fn work(stage: &Stage, plan: Plan, number: usize) {
    // On the stack, rather than where the heap keeps the thread's closure.
    let plan = hint::black_box(plan);
    stage.arrive();
    wait_for_all(stage, plan);
    Worker::new(stage, plan, number).work();
}

/// Sleeps until all threads have started. An idle CPU drops its translations, also those of the heap's 2 MiB pages from the start
/// of the thread, so that none of them are left when the threads begin.
fn wait_for_all(stage: &Stage, plan: Plan) {
    loop {
        thread::sleep(PAUSE);
        if stage.arrived() >= plan.threads || stage.is_over() {
            return;
        }
    }
}

/// Says how far the threads are until the time is over or one has found a wrong tag; how long they had.
fn watch(stage: &Stage, plan: Plan) -> Duration {
    wait_for_all(stage, plan);
    let start = Instant::now();
    let mut next = PROGRESS;
    loop {
        thread::sleep(PAUSE);
        let time = start.elapsed();
        if stage.is_over() || time >= plan.duration {
            stage.end(None);
            return time;
        }
        if time >= next {
            next += PROGRESS;
            println!(
                "{:.0} s: {} operations, {} tags checked",
                time.as_secs_f64(),
                stage.operations(),
                stage.tags()
            );
        }
    }
}

/// What has been done to regions, and how many tags were right.
fn summary(stage: &Stage, time: Duration) -> String {
    let counts = Operation::ALL.map(|(operation, name)| format!("{name} {}", stage.count_of(operation)));
    let wrong = usize::from(matches!(stage.stopped_by(), Some(Stop::Mismatch(_))));
    format!(
        "{} operations in {:.1} s: {}\n{} tags checked, wrong: {wrong}",
        stage.operations(),
        time.as_secs_f64(),
        counts.join(", "),
        stage.tags()
    )
}

fn described(counts: TlbCounts) -> String {
    let TlbCounts {
        forced,
        interrupts_sent,
        catch_ups,
        retired,
        flush_all,
        flush_one,
    } = counts;
    format!(
        "{retired} ranges retired, {catch_ups} catch-ups, {forced} times forced with {interrupts_sent} interrupts, \
         {flush_all} flushes of everything and {flush_one} of one page"
    )
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use super::*;

    fn options() -> Options {
        Options {
            duration: Duration::from_secs(1),
            threads: Some(5),
            ..Options::default()
        }
    }

    #[test]
    fn all_kinds_of_operations_leave_right_tags() {
        let stage = Box::new(Stage::new());
        assert_eq!(
            run_on(&stage, options()).expect("there is memory"),
            Verdict::Passed
        );
        let nodes = homenode::topology().nodes().len();
        for (operation, name) in Operation::ALL {
            assert!(
                stage.count_of(operation) > 0 || operation == Operation::Move && nodes == 1,
                "{name}"
            );
        }
        assert!(stage.left().next().is_none());
        let given_back = stage.count_of(Operation::Drop) + stage.count_of(Operation::Revoke);
        assert!(given_back <= stage.count_of(Operation::Map));
        assert!(stage.tags() > 0);
    }

    #[test]
    fn one_wrong_tag_ends_the_run() {
        let stage = Box::new(Stage::new());
        let stamp = Stamp { thread: 0, round: 77 };
        let parcel = Parcel::new(2, stamp).expect("there are addresses");
        parcel.spoil(1);
        assert!(stage.mailbox(3).post(parcel).is_ok());
        let start = Instant::now();
        let long = Options {
            duration: Duration::from_secs(1000),
            ..options()
        };
        assert_eq!(run_on(&stage, long).expect("there is memory"), Verdict::Failed);
        assert!(start.elapsed() < Duration::from_secs(100));
        let Some(Stop::Mismatch(mismatch)) = stage.stopped_by() else {
            panic!("no wrong tag: {:?}", stage.stopped_by());
        };
        assert!(
            mismatch
                .to_string()
                .contains("by thread 0 in round 77 for page 1"),
            "{mismatch}"
        );
    }
}
