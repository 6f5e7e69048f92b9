//! Checks of the API from inside a guest. Each prints `NAME: passed`, or panics.

use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use homenode::mem::{Policy, Region};
use homenode::sync::{Barrier, Condvar, Mutex};
use homenode::time::Instant;
use homenode::{Args, CpuId, ExitCode, Node, println, thread};

pub(crate) fn passed(name: &str) -> ExitCode {
    println!("{name}: passed");
    ExitCode::SUCCESS
}

/// Stacks take memory as they are used, and give it back.
pub(crate) fn many_stacks(_: &mut Args) -> ExitCode {
    const STACK_BYTES: usize = 64 << 20;
    static ROUND: AtomicUsize = AtomicUsize::new(0);
    let start = |bytes, round| {
        thread::Builder::new().stack_size(bytes).spawn(move || {
            while ROUND.load(Ordering::Relaxed) == round {
                thread::sleep(Duration::from_millis(5));
            }
        })
    };
    let before = all_memory().len();
    // More than there is memory, of which little is used.
    let machine_bytes: u64 = homenode::topology().nodes().iter().map(Node::memory_bytes).sum();
    let count = 1 + machine_bytes as usize / STACK_BYTES;
    for round in 0..3 {
        let running: Vec<_> = (0..count).map(|_| start(STACK_BYTES, round)).collect();
        ROUND.store(round + 1, Ordering::Relaxed);
        for handle in running {
            handle.expect("a stack that is not used takes no memory").join();
        }
    }
    for bytes in [usize::MAX, usize::MAX - 4096, usize::MAX / 2] {
        assert!(
            start(bytes, 3).is_err(),
            "no machine has a stack of {bytes} bytes"
        );
    }
    // A thread's stack is free a moment after its end is known.
    thread::sleep(Duration::from_millis(50));
    let after = all_memory().len();
    assert!(
        after + 4 >= before,
        "of {before} times 2 MiB only {after} are left after {count} threads have ended"
    );
    passed("many-stacks")
}

/// All memory that a program can have, in regions of 2 MiB.
fn all_memory() -> Vec<Region<u8>> {
    let mut regions = Vec::with_capacity(1 << 16);
    while let Ok(region) = Region::populated(2 << 20, Policy::Local) {
        regions.push(region);
    }
    regions
}

pub(crate) fn threads(_: &mut Args) -> ExitCode {
    let cpus = thread::available_parallelism().get();
    each_cpu_gets_one(cpus);
    placement_is_obeyed();
    mutex_excludes(2 * cpus);
    condvar_wakes(2 * cpus);
    barrier_separates(2 * cpus);
    sleeping_takes_time();
    churn(cpus);
    passed("threads")
}

fn each_cpu_gets_one(cpus: usize) {
    let seen: Vec<AtomicUsize> = homenode::topology()
        .cpus()
        .iter()
        .map(|_| AtomicUsize::new(0))
        .collect();
    thread::scope(|scope| {
        for _ in 0..cpus {
            scope.spawn(|| seen[thread::current_cpu().index()].fetch_add(1, Ordering::Relaxed));
        }
    });
    let used = seen
        .iter()
        .filter(|count| count.load(Ordering::Relaxed) == 1)
        .count();
    assert_eq!(used, cpus, "a scope of one thread per CPU uses each CPU once");
}

fn placement_is_obeyed() {
    for cpu in homenode::topology().cpus() {
        let handle = thread::Builder::new()
            .cpu(cpu.id)
            .spawn(|| (thread::current_cpu(), thread::current_node()));
        assert_eq!(handle.expect("the CPU exists").join(), (cpu.id, cpu.node));
    }
    let beyond = CpuId::from(homenode::topology().cpus().len());
    assert!(
        thread::Builder::new().cpu(beyond).spawn(|| ()).is_err(),
        "there is no such CPU"
    );
}

fn mutex_excludes(threads: usize) {
    const ROUNDS: usize = 500;
    let total = Mutex::new(0usize);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    *total.lock() += 1;
                }
            });
        }
    });
    assert_eq!(total.into_inner(), threads * ROUNDS, "no increment is lost");
}

fn condvar_wakes(threads: usize) {
    let (arrived, changed) = (Mutex::new(0), Condvar::new());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                *arrived.lock() += 1;
                changed.notify_all();
            });
        }
        let all = changed.wait_while(arrived.lock(), |arrived| *arrived < threads);
        assert_eq!(*all, threads);
    });
}

fn barrier_separates(threads: usize) {
    const ROUNDS: usize = 50;
    let barrier = Barrier::new(threads);
    let arrivals = AtomicUsize::new(0);
    let leaders = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    arrivals.fetch_add(1, Ordering::Relaxed);
                    if barrier.wait().is_leader() {
                        leaders.fetch_add(1, Ordering::Relaxed);
                    }
                    assert_eq!(
                        arrivals.load(Ordering::Relaxed),
                        round * threads,
                        "nobody passes early"
                    );
                    barrier.wait();
                }
            });
        }
    });
    assert_eq!(leaders.load(Ordering::Relaxed), ROUNDS, "one leader per episode");
}

fn sleeping_takes_time() {
    let start = Instant::now();
    thread::sleep(Duration::from_millis(20));
    assert!(start.elapsed() >= Duration::from_millis(20));
}

fn churn(cpus: usize) {
    for _ in 0..20 {
        thread::scope(|scope| {
            for index in 0..2 * cpus {
                scope.spawn(move || {
                    let squares: Vec<usize> = (0..index).map(|number| number * number).collect();
                    assert_eq!(squares.len(), index);
                });
            }
        });
    }
}

homenode::thread_local! {
    static VALUE: Cell<u64> = const { Cell::new(17) };
}

pub(crate) fn thread_locals(_: &mut Args) -> ExitCode {
    thread::scope(|scope| {
        for number in 0..4 * thread::available_parallelism().get() as u64 {
            scope.spawn(move || {
                assert_eq!(VALUE.with(Cell::get), 17, "a thread begins with the first value");
                VALUE.with(|value| value.set(number));
                thread::yield_now();
                assert_eq!(VALUE.with(Cell::get), number, "nobody else has changed it");
            });
        }
    });
    assert_eq!(VALUE.with(Cell::get), 17);
    passed("tls")
}
