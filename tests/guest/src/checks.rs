//! Checks of the API from inside a guest. Each prints `NAME: passed`, or panics.

use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use homenode::mem::{PageSize, Policy, Region, RegionError, Reservation};
use homenode::sync::{Barrier, Condvar, Mutex};
use homenode::thread::{JoinHandle, ScopedJoinHandle};
use homenode::time::Instant;
use homenode::{Args, CpuId, ExitCode, Node, NodeId, println, thread};

fn passed(name: &str) -> ExitCode {
    println!("{name}: passed");
    ExitCode::SUCCESS
}

/// Threads that the machine has no memory for are refused, and what was taken for them is given back.
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
    let mut most = Vec::new();
    for round in 0..3 {
        let mut running = Vec::new();
        while let Ok(handle) = start(STACK_BYTES, round) {
            running.push(handle);
        }
        assert!(
            start(STACK_BYTES, round).is_err(),
            "what was refused once is refused again"
        );
        most.push(running.len());
        ROUND.store(round + 1, Ordering::Relaxed);
        running.into_iter().for_each(JoinHandle::join);
        // A thread's stack is free a moment after its end is known.
        thread::sleep(Duration::from_millis(50));
    }
    assert!(
        most[0] > 0 && most.iter().all(|count| *count == most[0]),
        "each time as many threads: {most:?}"
    );
    for bytes in [usize::MAX, usize::MAX - 4096, usize::MAX / 2] {
        assert!(
            start(bytes, 3).is_err(),
            "no machine has a stack of {bytes} bytes"
        );
    }
    passed("many-stacks")
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

/// Elements of a region of 4 MiB.
const LEN: usize = (4 << 20) / 8;

pub(crate) fn memory(_: &mut Args) -> ExitCode {
    for node in homenode::topology()
        .nodes()
        .iter()
        .filter(|node| node.has_memory())
    {
        let region = Region::<u64>::new(LEN, Policy::Bind(node.id())).expect("4 MiB fit on each node");
        assert!(
            region.placement().iter().all(|pages| pages.node == node.id()),
            "bound pages stay on their node"
        );
        assert!(region.iter().all(|&word| word == 0), "fresh memory is zero");
    }
    interleaved_pages_are_even();
    first_touch_is_local();
    released_memory_comes_back();
    stale_translations_are_gone();
    heap_is_shared();
    passed("memory")
}

fn interleaved_pages_are_even() {
    let with_memory = homenode::topology()
        .nodes()
        .iter()
        .filter(|node| node.has_memory())
        .count();
    let region = Region::<u64>::new(with_memory * LEN, Policy::Interleave).expect("4 MiB per node fit");
    let placement = region.placement();
    assert_eq!(placement.len(), with_memory);
    for pages in placement {
        assert_eq!(
            (pages.size, pages.count),
            (PageSize::Size2MiB, 2),
            "node {}",
            pages.node
        );
    }
}

fn first_touch_is_local() {
    let cpus = thread::available_parallelism().get();
    let reservation = Reservation::<u64>::new(cpus * LEN).expect("there are addresses");
    let wanted: Vec<(NodeId, usize)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..cpus)
            .map(|index| {
                let reservation = &reservation;
                scope.spawn(move || {
                    reservation
                        .populate(index * LEN..(index + 1) * LEN, Policy::Local)
                        .expect("4 MiB per CPU fit");
                    (thread::current_node(), 2)
                })
            })
            .collect();
        workers.into_iter().map(ScopedJoinHandle::join).collect()
    });
    let region = reservation.finish().expect("all is backed");
    let nodes = homenode::topology().nodes();
    if nodes.iter().any(|node| node.has_cpus() && !node.has_memory()) {
        // Their CPUs' pages are on neighbours.
        return;
    }
    for pages in region.placement() {
        let expected: usize = wanted
            .iter()
            .filter(|(node, _)| *node == pages.node)
            .map(|(_, count)| count)
            .sum();
        assert_eq!(pages.count, expected, "node {}", pages.node);
    }
}

fn released_memory_comes_back() {
    // More in all than the machine has.
    let machine_bytes: u64 = homenode::topology().nodes().iter().map(Node::memory_bytes).sum();
    let rounds = 1 + machine_bytes / (8 * LEN as u64 * 8);
    for _ in 0..rounds {
        let mut region = Region::<u64>::new(8 * LEN, Policy::Local).expect("what was released is free again");
        assert_eq!(region[8 * LEN - 1], 0, "reused memory is zero again");
        region[8 * LEN - 1] = 1;
    }
}

/// A CPU that has used an address must find the new memory there after the old was released.
fn stale_translations_are_gone() {
    let Some(other) = homenode::topology()
        .cpus()
        .iter()
        .find(|cpu| cpu.id != thread::current_cpu())
    else {
        return;
    };
    let read_there = |region: &Region<u64>| {
        thread::scope(|scope| {
            let reader = thread::Builder::new()
                .cpu(other.id)
                .spawn_scoped(scope, || region[0]);
            reader.expect("the CPU exists").join()
        })
    };
    for tag in 1..=20 {
        let mut old = Region::<u64>::new(LEN, Policy::Local).expect("4 MiB fit");
        old[0] = 1000 + tag;
        assert_eq!(read_there(&old), 1000 + tag);
        let address = old.as_ptr();
        drop(old);
        // Takes the frames that have just become free, at another address.
        let mut filler = Region::<u64>::new(2 * LEN, Policy::Local).expect("8 MiB fit");
        filler.fill(7);
        let mut new = Region::<u64>::new(LEN, Policy::Local).expect("4 MiB fit");
        assert_eq!(new.as_ptr(), address, "the addresses are used again");
        new[0] = tag;
        assert_eq!(read_there(&new), tag, "CPU {} has a stale translation", other.id);
    }
}

fn heap_is_shared() {
    // Each thread frees what another one allocated.
    let vectors: Vec<Vec<u8>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..thread::available_parallelism().get())
            .map(|index| scope.spawn(move || alloc::vec![index as u8; 100_000]))
            .collect();
        workers.into_iter().map(ScopedJoinHandle::join).collect()
    });
    thread::scope(|scope| {
        for (index, vector) in vectors.into_iter().enumerate() {
            scope.spawn(move || assert!(vector.iter().all(|&byte| byte == index as u8)));
        }
    });
}

pub(crate) fn out_of_memory(_: &mut Args) -> ExitCode {
    let bytes: u64 = homenode::topology().nodes().iter().map(Node::memory_bytes).sum();
    match Region::<u8>::new(bytes as usize, Policy::Bind(NodeId(0))) {
        Err(error @ RegionError::OutOfMemory(_)) => {
            println!("{error}");
            passed("out-of-memory")
        }
        Err(error) => panic!("another error was expected: {error}"),
        Ok(_) => panic!("more memory was given than there is"),
    }
}
