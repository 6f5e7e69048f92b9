//! The TLB engine's generations: a frame is used otherwise only when no CPU has a translation of it any more.

use homenode_mm::{Cause, Machine, SafePoint, TlbEngine, VirtAddr, model};
use homenode_topology::{NodeId, PhysAddr};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};

use crate::cores::{Cores, as_cpu, lend, on_cpu};

/// The page.
const PAGE: VirtAddr = VirtAddr::new_truncated(0x1000);
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

/// Lends such a machine to `work`, with CPUs on these nodes, of which those that are `active` have a translation of the page.
fn one_page(nodes: &[u32], active: &[u32], work: impl FnOnce(&'static OnePage)) {
    let nodes: Vec<_> = nodes.iter().copied().map(NodeId).collect();
    let page = OnePage {
        cores: Cores::new(nodes.len()),
        engine: TlbEngine::new(&nodes, TlbEngine::RANGE_MAX_PAGES),
        entry: AtomicU64::new(FRAME),
        frame: UnsafeCell::new(0),
    };
    lend(page, |page| {
        page.cores.connect(&page.engine);
        for cpu in active {
            as_cpu(*cpu, || {
                page.engine.exit_idle(&page.cores);
                page.cores.cache(PAGE, Some(PhysAddr(FRAME)));
            });
        }
        page.engine.watch();
        work(page);
    });
}

impl OnePage {
    /// The running CPU accesses the page: by the translation that it has, or by one that its walker finds.
    fn access(&self) {
        if self.cores.translation(PAGE).is_none() {
            let entry = self.entry.load(Ordering::Relaxed);
            self.cores
                .cache(PAGE, (entry == FRAME).then_some(PhysAddr(entry)));
        }
        if self.cores.translation(PAGE).is_some() {
            // SAFETY: only a shared access; see the type.
            self.frame.with(|frame| assert_eq!(unsafe { *frame }, 0));
        }
    }

    /// The running CPU comes to a safe point.
    fn catch_up(&self) {
        self.engine.catch_up(&self.cores, SafePoint::Kernel);
    }

    /// The running CPU makes all CPUs pass what has been unmapped so far.
    fn complete(&self) {
        let generation = self.engine.retire();
        self.engine.complete(&self.cores, generation, Cause::Drain);
    }

    /// The running CPU takes the page away, and uses its frame for something else.
    fn take_away(&self) {
        self.entry.store(0, Ordering::Relaxed);
        self.complete();
        self.reuse();
    }

    /// The running CPU takes the page away, lets others know, and uses its frame for something else if they have all passed.
    fn take_away_lazily(&self) {
        self.take_away_between(|| {});
    }

    /// As [`take_away_lazily`](Self::take_away_lazily), by a CPU that is active.
    fn take_away_and_catch_up(&self) {
        self.take_away_between(|| self.catch_up());
    }

    fn take_away_between(&self, meanwhile: impl FnOnce()) {
        self.entry.store(0, Ordering::Relaxed);
        let generation = self.engine.retire();
        self.engine.advance(generation);
        meanwhile();
        if self.engine.has_passed(generation) {
            self.reuse();
        }
    }

    /// The running CPU lets others pass what has been unmapped so far, which is nothing, and looks whether they have.
    fn look(&self) {
        let generation = self.engine.retire();
        self.engine.advance(generation);
        let _ = self.engine.has_passed(generation);
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
        one_page(&[0, 0], &[1], |page| {
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

/// Nobody is interrupted.
#[test]
fn a_frame_is_reused_after_all_cpus_have_been_at_a_safe_point() {
    model::check(4, || {
        one_page(&[0, 1], &[0, 1], |page| {
            let other = on_cpu(1, || {
                page.access();
                page.catch_up();
                page.access();
            });
            page.take_away_and_catch_up();
            other.join().unwrap();
        });
    });
}

/// One CPU takes the page away and looks whether its generation has passed, a second one completes another generation, and a
/// third one catches up by itself, in any order.
#[test]
fn who_catches_up_unasked_drops_what_was_retired_before() {
    model::check(4, || {
        one_page(&[0, 0, 0], &[1], |page| {
            let user = on_cpu(1, || {
                page.catch_up();
                page.access();
                page.cores.compute_until_done(2);
            });
            let advancing = on_cpu(2, || {
                page.complete();
                page.cores.compute_until_done(1);
            });
            page.entry.store(0, Ordering::Relaxed);
            let generation = page.engine.retire();
            if page.engine.has_passed(generation) {
                page.reuse();
            }
            advancing.join().unwrap();
            user.join().unwrap();
        });
    });
}

/// Two CPUs look at a third one's node, and one of them may rely on what the other has found.
#[test]
fn what_one_has_found_of_a_node_serves_the_others() {
    model::check(5, || {
        one_page(&[0, 1, 0], &[1], |page| {
            let user = on_cpu(1, || {
                page.access();
                page.catch_up();
            });
            let looking = on_cpu(2, || page.look());
            page.take_away_lazily();
            looking.join().unwrap();
            user.join().unwrap();
        });
    });
}

/// As before, but the third CPU comes back from idleness, and the one that takes the page away is on the same node.
#[test]
fn who_was_seen_idle_has_come_no_further_than_the_epoch_was() {
    model::check(3, || {
        one_page(&[0, 0, 1], &[1], |page| {
            let user = on_cpu(0, || {
                page.engine.exit_idle(&page.cores);
                page.access();
            });
            let looking = on_cpu(2, || page.look());
            as_cpu(1, || page.take_away_and_catch_up());
            looking.join().unwrap();
            user.join().unwrap();
        });
    });
}

/// As before, but nobody else is on the third CPU's node.
#[test]
fn a_node_whose_cpus_were_seen_idle_has_come_no_further_than_the_epoch_was() {
    model::check(3, || {
        one_page(&[0, 1, 0], &[], |page| {
            let user = on_cpu(1, || {
                page.engine.exit_idle(&page.cores);
                page.access();
            });
            let looking = on_cpu(2, || page.look());
            page.take_away_lazily();
            looking.join().unwrap();
            user.join().unwrap();
        });
    });
}

/// A CPU that comes late is not waited for, and finds the page gone; or it is waited for.
#[test]
fn a_cpu_that_leaves_idleness_is_waited_for_or_sees_what_was_unmapped() {
    model::check(4, || {
        one_page(&[0, 0], &[], |page| {
            let late = on_cpu(1, || {
                page.access();
                page.engine.exit_idle(&page.cores);
                page.access();
                page.cores.compute_until_done(2);
            });
            page.take_away();
            page.cores.compute_until_done(1);
            late.join().unwrap();
        });
    });
}

/// A CPU that becomes idle has ended what it did, and comes back with nothing from before.
#[test]
fn a_cpu_that_was_idle_reaches_nothing_of_what_was_retired_meanwhile() {
    model::check(4, || {
        one_page(&[0, 0], &[0, 1], |page| {
            let other = on_cpu(1, || {
                page.access();
                page.engine.enter_idle(&page.cores);
                page.access();
                page.engine.exit_idle(&page.cores);
                page.access();
            });
            page.take_away_and_catch_up();
            other.join().unwrap();
        });
    });
}

#[test]
fn two_who_complete_at_once_both_return() {
    model::check(4, || {
        one_page(&[0, 0], &[0, 1], |page| {
            let complete = || {
                page.complete();
                page.cores.compute_until_done(2);
            };
            let other = on_cpu(1, complete);
            complete();
            other.join().unwrap();
        });
    });
}

/// Two CPUs force generations at a third one, which may find one interrupt for both, early or late.
#[test]
fn two_who_force_at_once_are_both_answered() {
    model::check(3, || {
        one_page(&[0, 0, 0], &[2], |page| {
            page.engine.watch_asked();
            let laggard = on_cpu(2, || page.cores.take_interrupts());
            let force = || page.engine.force_without_waiting(&page.cores);
            let other = on_cpu(1, force);
            let generations = [force(), other.join().unwrap()];
            laggard.join().unwrap();
            as_cpu(2, || page.cores.take_interrupts());
            assert!(
                generations
                    .into_iter()
                    .all(|generation| page.engine.has_passed(generation))
            );
        });
    });
}

/// What a walk has found stays as it is until the walk is over, even if an interrupt comes in between.
#[test]
fn a_table_is_reused_after_all_walks_have_ended() {
    model::check(4, || {
        one_page(&[0, 0], &[1], |page| {
            let walking = on_cpu(1, || {
                page.engine.walk(&page.cores, || {
                    if page.entry.load(Ordering::Relaxed) == FRAME {
                        page.cores.take_interrupts();
                        // SAFETY: only a shared access; see the type.
                        page.frame.with(|table| assert_eq!(unsafe { *table }, 0));
                    }
                });
                page.cores.compute_until_done(2);
            });
            page.take_away();
            page.cores.compute_until_done(1);
            walking.join().unwrap();
        });
    });
}
