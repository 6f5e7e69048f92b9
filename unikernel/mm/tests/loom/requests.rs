//! The TLB engine's requests: who has changed an entry returns when no CPU has what was in it, also when requests overtake the
//! ring.

use std::array;

use homenode_mm::{Machine, SafePoint, TlbEngine, VirtAddr, model};
use homenode_topology::{CpuId, NodeId, PhysAddr};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};

use crate::cores::{Cores, as_cpu, lend, on_cpu};

/// One more than the ring holds in loom's models.
const PAGES: usize = 2;

/// A page: its entry, 0 or where its frame begins, and the frame.
struct Page {
    entry: AtomicU64,
    frame: UnsafeCell<()>,
}

/// A machine with a few pages.
struct Pages {
    cores: Cores,
    engine: TlbEngine,
    pages: [Page; PAGES],
}

// SAFETY: the cells have nothing in them; loom reports accesses that nothing orders.
unsafe impl Sync for Pages {}

const fn address(page: usize) -> VirtAddr {
    VirtAddr::new_truncated((page as u64 + 1) << 12)
}

const fn frame(page: usize) -> u64 {
    (page as u64 + 0x10) << 12
}

/// The entry of a page that may only be read.
const fn read_only(page: usize) -> u64 {
    frame(page) | 1
}

/// Lends such a machine to `work`, with so many CPUs, of which those that are `active` have translations of all pages.
fn pages(cpus: usize, active: &[u32], work: impl FnOnce(&'static Pages)) {
    let pages = Pages {
        cores: Cores::new(cpus),
        engine: TlbEngine::new(&vec![NodeId(0); cpus], TlbEngine::RANGE_MAX_PAGES),
        pages: array::from_fn(|page| Page {
            entry: AtomicU64::new(frame(page)),
            frame: UnsafeCell::new(()),
        }),
    };
    lend(pages, |pages| {
        pages.cores.connect(&pages.engine);
        for cpu in active {
            as_cpu(*cpu, || {
                pages.engine.exit_idle(&pages.cores);
                for page in 0..PAGES {
                    pages.cores.cache(address(page), Some(PhysAddr(frame(page))));
                }
            });
        }
        pages.engine.watch_requests();
        work(pages);
    });
}

impl Pages {
    /// The running CPU accesses a page: by the translation that it has, or by one that its walker finds.
    fn access(&self, page: usize) {
        if self.cores.translation(address(page)).is_none() {
            let entry = self.pages[page].entry.load(Ordering::Relaxed);
            self.cores
                .cache(address(page), (entry != 0).then_some(PhysAddr(entry)));
        }
        if self.cores.translation(address(page)).is_some() {
            self.pages[page].frame.with(|_| ());
        }
    }

    /// The running CPU writes to a page, if it may: a translation that forbids it may be old, so that the fault looks at the entry.
    fn write(&self, page: usize) {
        let entry = || self.pages[page].entry.load(Ordering::Acquire);
        let walk = || {
            self.cores.cache(address(page), Some(PhysAddr(entry())));
        };
        if self.cores.translation(address(page)).is_none() {
            walk();
        }
        if self.cores.translation(address(page)) == Some(PhysAddr(read_only(page))) {
            if entry() == read_only(page) {
                return;
            }
            self.cores.invalidate_page(address(page));
            walk();
        }
        if self.cores.translation(address(page)) == Some(PhysAddr(frame(page))) {
            self.pages[page].frame.with_mut(|_| ());
        }
    }

    /// The running CPU makes a page read-only, relies on that, and lets it be written to again, of which it tells nobody.
    fn read_undisturbed(&self, page: usize) {
        self.pages[page].entry.store(read_only(page), Ordering::Release);
        self.engine.invalidate_page(&self.cores, address(page));
        self.pages[page].frame.with(|_| ());
        self.pages[page].entry.store(frame(page), Ordering::Release);
    }

    /// The running CPU takes a page away, and uses its frame for something else.
    fn take_away(&self, page: usize) {
        self.pages[page].entry.store(0, Ordering::Relaxed);
        self.engine.invalidate_page(&self.cores, address(page));
        self.pages[page].frame.with_mut(|_| ());
    }

    /// The running CPU takes a page away, and uses its frame for something else if CPU 2 has answered.
    fn take_away_if_answered(&self, page: usize) {
        self.pages[page].entry.store(0, Ordering::Relaxed);
        let request = self.engine.request(address(page));
        if self.engine.has_answered(CpuId(2), request) {
            self.pages[page].frame.with_mut(|_| ());
        }
    }
}

#[test]
fn a_page_is_changed_after_all_cpus_have_dropped_it() {
    model::check(4, || {
        pages(2, &[1], |pages| {
            let other = on_cpu(1, || {
                pages.access(0);
                pages.cores.relax();
                pages.access(0);
                pages.cores.compute_until_done(2);
            });
            pages.take_away(0);
            pages.cores.compute_until_done(1);
            other.join().unwrap();
        });
    });
}

/// Rights that are given without a flush come with a fault, those that are taken away are gone on return: in between nobody writes.
#[test]
fn a_page_is_written_to_only_before_and_after_it_is_read_only() {
    model::check(4, || {
        pages(2, &[1], |pages| {
            let writer = on_cpu(1, || {
                pages.write(0);
                pages.cores.relax();
                pages.write(0);
                pages.cores.compute_until_done(2);
            });
            pages.read_undisturbed(0);
            pages.cores.compute_until_done(1);
            writer.join().unwrap();
        });
    });
}

/// A CPU that comes late is not waited for, and finds the page gone; or it is waited for.
#[test]
fn who_leaves_idleness_answers_or_sees_the_change() {
    model::check(4, || {
        pages(2, &[], |pages| {
            let late = on_cpu(1, || {
                pages.engine.exit_idle(&pages.cores);
                pages.access(0);
                pages.cores.compute_until_done(2);
            });
            pages.take_away(0);
            pages.cores.compute_until_done(1);
            late.join().unwrap();
        });
    });
}

/// A CPU that becomes idle has ended what it did.
#[test]
fn who_becomes_idle_is_not_waited_for() {
    model::check(4, || {
        pages(2, &[1], |pages| {
            let other = on_cpu(1, || {
                pages.access(0);
                pages.engine.enter_idle(&pages.cores);
            });
            pages.take_away(0);
            other.join().unwrap();
        });
    });
}

/// Two CPUs ask at once, and take each other's place in the ring while a third one reads it.
#[test]
fn who_finds_a_request_overtaken_drops_everything() {
    model::check(3, || {
        pages(3, &[2], |pages| {
            let user = on_cpu(2, || {
                pages.engine.catch_up(&pages.cores, SafePoint::Kernel);
                (0..PAGES).for_each(|page| pages.access(page));
            });
            let other = on_cpu(1, || pages.take_away_if_answered(1));
            pages.take_away_if_answered(0);
            other.join().unwrap();
            user.join().unwrap();
        });
    });
}

/// One CPU's request may be answered by the interrupt that another one has sent.
#[test]
fn two_who_ask_at_once_are_both_answered() {
    model::check(1, || {
        pages(2, &[0, 1], |pages| {
            pages.engine.watch_asked();
            let other = on_cpu(1, || {
                pages.take_away(1);
                pages.cores.compute_until_done(2);
            });
            pages.take_away(0);
            pages.cores.compute_until_done(2);
            other.join().unwrap();
        });
    });
}
