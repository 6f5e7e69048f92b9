//! What other CPUs notice of memory that is given back, protected and revoked.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;

use homenode::mem::{Options, PageSize, Pages, Protection};
use homenode::metrics::{self, TlbCounts};
use homenode::time::Instant;
use homenode::{Args, CpuId, ExitCode, thread, tlb};

use crate::checks::passed;

const PAGE_BYTES: usize = PageSize::Size4KiB.bytes() as usize;

/// A page of 4 KiB with this byte in it.
fn page_with(byte: u8) -> Pages {
    let options = Options {
        page_size: PageSize::Size4KiB,
        ..Options::default()
    };
    let pages = Pages::reserve(PAGE_BYTES, options).expect("there is memory");
    // SAFETY: the byte lies in the reservation, and nobody else knows of it.
    unsafe { pages.start().write_volatile(byte) };
    pages
}

/// What was counted while `work` ran: flush interrupts taken, and the rest.
fn counted(work: impl FnOnce()) -> (u64, TlbCounts) {
    let now = || {
        let interrupts = metrics::interrupts().expect("the bare machine counts");
        (interrupts.flush, metrics::tlb().expect("the bare machine counts"))
    };
    let (flush_before, before) = now();
    work();
    let (flush, after) = now();
    (flush - flush_before, after - before)
}

/// Calls `work` on this CPU while `beside` runs again and again on each of the others, which make no other call.
fn while_others(beside: impl Fn() + Sync, work: impl FnOnce(u64)) {
    let here = thread::current_cpu();
    let cpus = thread::available_parallelism().get();
    let others: Vec<CpuId> = (0..cpus).map(CpuId::from).filter(|cpu| *cpu != here).collect();
    let (stop, started) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for &cpu in &others {
            let run = || {
                started.fetch_add(1, Ordering::Relaxed);
                while !stop.load(Ordering::Relaxed) {
                    beside();
                }
            };
            thread::Builder::new()
                .cpu(cpu)
                .spawn_scoped(scope, run)
                .expect("a thread starts");
        }
        while started.load(Ordering::Relaxed) < others.len() {
            core::hint::spin_loop();
        }
        work(others.len() as u64);
        stop.store(true, Ordering::Relaxed);
    });
}

/// Computes for so long, without a call into the kernel.
fn compute(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        core::hint::spin_loop();
    }
}

/// To be run with a deadline that no computing CPU reaches by itself, and where 64 MiB may wait.
pub(crate) fn tlb(_: &mut Args) -> ExitCode {
    const UNMAPS: u64 = 50;
    let give_back = || (0..UNMAPS).for_each(|_| drop(page_with(1)));
    let lazy = tlb::mode() == "lazy";

    while_others(core::hint::spin_loop, |others| {
        // Rights that are taken away hold on return: each CPU is interrupted once, and drops one page.
        let pages = page_with(1);
        let (taken, counts) = counted(|| {
            let range = 0..pages.bytes();
            pages.protect(range, Protection::Read).expect("it is noted");
        });
        assert_eq!((taken, counts.interrupts_sent), (others, others), "{counts:?}");
        assert_eq!(
            (counts.flush_one, counts.flush_all),
            (others + 1, 0),
            "{counts:?}"
        );
        // And so is revoking.
        let (taken, counts) = counted(|| pages.revoke());
        assert_eq!((taken, counts.interrupts_sent), (others, others), "{counts:?}");

        tlb::drain();
        let (taken, counts) = counted(give_back);
        if lazy {
            // What is given back interrupts nobody.
            assert_eq!(
                (taken, counts.interrupts_sent, counts.retired),
                (0, 0, UNMAPS),
                "{counts:?}"
            );
            // Until somebody wants it: then each CPU once for the pages, and once for tables that they leave empty.
            let (taken, counts) = counted(tlb::drain);
            assert_eq!(taken, counts.interrupts_sent, "{counts:?}");
            assert!(taken == others || taken == 2 * others, "{taken}: {counts:?}");
        } else {
            assert_eq!(
                (taken, counts.interrupts_sent, counts.retired),
                (UNMAPS * others, UNMAPS * others, 0),
                "{counts:?}"
            );
        }
        tlb::drain();
        let (taken, counts) = counted(tlb::drain);
        assert_eq!((taken, counts.interrupts_sent), (0, 0), "{counts:?}");
    });

    if lazy {
        // CPUs that come to safe points are not interrupted at all, and memory comes back.
        while_others(tlb::quiesce, |_| {
            tlb::drain();
            let (taken, counts) = counted(|| {
                // For longer than it takes until the epoch is advanced again, 1/64 of the deadline; and for less than may wait in all.
                for _ in 0..40 {
                    give_back();
                    compute(Duration::from_millis(25));
                }
            });
            assert_eq!((taken, counts.interrupts_sent), (0, 0), "{counts:?}");
            assert!(counts.catch_ups > 0, "{counts:?}");
        });
    }

    // The threads have ended: all other CPUs are idle, and nobody waits for them or interrupts them.
    compute(Duration::from_secs(1));
    let (taken, counts) = counted(|| {
        let pages = page_with(1);
        let range = 0..pages.bytes();
        pages.protect(range, Protection::Read).expect("it is noted");
        pages.revoke();
        give_back();
        tlb::drain();
    });
    assert_eq!((taken, counts.interrupts_sent), (0, 0), "{counts:?}");
    passed("tlb")
}

/// To be run with a short deadline, and where 64 MiB may wait: a CPU that computes is interrupted once per deadline at most, and not
/// at all when nobody gives back anything.
pub(crate) fn tlb_deadline(_: &mut Args) -> ExitCode {
    const DEADLINE: Duration = Duration::from_millis(50);
    while_others(core::hint::spin_loop, |others| {
        tlb::drain();
        let start = Instant::now();
        let (taken, counts) = counted(|| {
            while start.elapsed() < 10 * DEADLINE {
                drop(page_with(1));
                // Else a fast machine gives back more than may wait, which is another cause to interrupt.
                compute(Duration::from_micros(100));
            }
        });
        let deadlines = (start.elapsed().as_nanos() / DEADLINE.as_nanos()) as u64;
        assert!(
            taken <= others * (deadlines + 1),
            "{taken} in {deadlines}: {counts:?}"
        );
        assert!(taken >= others, "in {deadlines} deadlines: {counts:?}");
        tlb::drain();
        let (taken, counts) = counted(|| compute(4 * DEADLINE));
        assert_eq!((taken, counts.forced), (0, 0), "{counts:?}");
    });
    passed("tlb-deadline")
}
