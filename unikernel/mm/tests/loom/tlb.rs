//! The TLB engine: a frame is used otherwise only when no CPU has a translation of it any more.

use homenode_mm::{Machine, TlbEngine, model};
use homenode_topology::PhysAddr;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};

use crate::cores::{Cores, as_cpu, lend, on_cpu};

/// What the entry holds while it maps the frame.
const FRAME: u64 = 0x5000;

/// A machine with one page, whose entry is a word and whose frame is a cell that loom watches.
struct OnePage {
    cores: Cores,
    engine: TlbEngine,
    entry: AtomicU64,
    frame: UnsafeCell<u64>,
}

// SAFETY: the frame's cell is what the models are about: loom reports accesses that nothing orders.
unsafe impl Sync for OnePage {}

/// Lends such a machine to `work`, with CPUs of which those that are `online` have a translation of the page.
fn one_page(cpus: usize, online: &[u32], work: impl FnOnce(&'static OnePage)) {
    let page = OnePage {
        cores: Cores::new(cpus),
        engine: TlbEngine::new(cpus),
        entry: AtomicU64::new(FRAME),
        frame: UnsafeCell::new(0),
    };
    lend(page, |page| {
        page.cores.connect(&page.engine);
        for cpu in online {
            as_cpu(*cpu, || {
                page.engine.set_online(&page.cores);
                page.cores.cache(Some(PhysAddr(FRAME)));
            });
        }
        page.engine.watch();
        work(page);
    });
}

impl OnePage {
    /// The running CPU accesses the page: by the translation that it has, or by one that its walker finds.
    fn access(&self) {
        if self.cores.translation().is_none() {
            let entry = self.entry.load(Ordering::Relaxed);
            self.cores.cache((entry == FRAME).then_some(PhysAddr(entry)));
        }
        if self.cores.translation().is_some() {
            // SAFETY: only a shared access; see the type.
            self.frame.with(|frame| assert_eq!(unsafe { *frame }, 0));
        }
    }

    /// The running CPU takes the page away, and uses its frame for something else.
    fn take_away(&self) {
        self.entry.store(0, Ordering::Relaxed);
        let generation = self.engine.retire();
        self.engine.complete(&self.cores, generation);
        self.reuse();
    }

    /// The frame is used for something else.
    fn reuse(&self) {
        // SAFETY: what the models show.
        self.frame.with_mut(|frame| unsafe { *frame = 1 });
    }
}

#[test]
fn a_frame_is_reused_after_all_cpus_have_dropped_it() {
    model::check(4, || {
        one_page(2, &[1], |page| {
            let other = on_cpu(1, || {
                page.access();
                page.cores.relax();
                page.access();
                page.cores.compute_until_done(2);
            });
            page.take_away();
            page.cores.compute_until_done(1);
            other.join().unwrap();
        });
    });
}

/// One CPU takes the page away and looks whether its generation has passed, a second one completes another generation, and a
/// third one catches up by itself, in any order.
#[test]
fn who_catches_up_unasked_drops_what_was_retired_before() {
    model::check(4, || {
        one_page(3, &[1], |page| {
            let user = on_cpu(1, || {
                page.engine.catch_up(&page.cores);
                page.access();
                page.cores.compute_until_done(2);
            });
            let advancing = on_cpu(2, || {
                let generation = page.engine.retire();
                page.engine.complete(&page.cores, generation);
                page.cores.compute_until_done(1);
            });
            page.entry.store(0, Ordering::Relaxed);
            let generation = page.engine.retire();
            if page.engine.is_complete(generation) {
                page.reuse();
            }
            advancing.join().unwrap();
            user.join().unwrap();
        });
    });
}

/// A CPU that comes late is not waited for, and finds the page gone; or it is waited for.
#[test]
fn a_cpu_that_comes_online_is_waited_for_or_sees_what_was_unmapped() {
    model::check(4, || {
        one_page(2, &[], |page| {
            let late = on_cpu(1, || {
                // What its walker did before anybody waited for it.
                let entry = page.entry.load(Ordering::Relaxed);
                page.cores.cache((entry == FRAME).then_some(PhysAddr(entry)));
                page.engine.set_online(&page.cores);
                page.access();
                page.cores.compute_until_done(2);
            });
            page.take_away();
            page.cores.compute_until_done(1);
            late.join().unwrap();
        });
    });
}

#[test]
fn two_who_complete_at_once_both_return() {
    model::check(4, || {
        one_page(2, &[0, 1], |page| {
            let complete = || {
                let generation = page.engine.retire();
                page.engine.complete(&page.cores, generation);
                page.cores.compute_until_done(2);
            };
            let other = on_cpu(1, complete);
            complete();
            other.join().unwrap();
        });
    });
}
