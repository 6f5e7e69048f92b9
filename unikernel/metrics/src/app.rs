//! An application's counters: statics that appear under `/metrics` once they have been added to.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use homenode_topology::CpuId;
use spin::Once;

use crate::exposition::Family;

/// The cells that a counter's additions are spread over; CPUs whose numbers agree modulo this share one.
const STRIPES: usize = 64;

/// A link of the list of registered counters. It is set once, so that readers never wait and no code is unsafe.
type Link = Once<&'static AppCounter>;

static FIRST: Link = Link::new();

/// A number in a cache line of its own.
#[repr(align(64))]
struct Stripe(AtomicU64);

/// A counter of the application, shown as `homenode_app_NAME`.
///
/// Counters with the same name are shown as one, with their sum and the help of the one that was registered first.
pub struct AppCounter {
    family: Family,
    registered: AtomicBool,
    next: Link,
    stripes: [Stripe; STRIPES],
}

impl AppCounter {
    /// A counter at zero, for a static.
    ///
    /// ```
    /// use homenode_metrics::AppCounter;
    /// static TRANSFORMS: AppCounter = AppCounter::new("fft3d_transforms_total", "Transforms done.");
    /// ```
    /// A name that Prometheus would not take does not compile:
    /// ```compile_fail,E0080
    /// use homenode_metrics::AppCounter;
    /// static TRANSFORMS: AppCounter = AppCounter::new("fft3d_transforms", "Transforms done.");
    /// ```
    ///
    /// # Panics
    /// (In a static: does not compile) if `name` does not match `[a-zA-Z_][a-zA-Z0-9_]*` or does not end in `_total`, or if
    /// `help` is empty.
    #[must_use]
    pub const fn new(name: &'static str, help: &'static str) -> Self {
        Self {
            family: Family::app_counter(name, help),
            registered: AtomicBool::new(false),
            next: Link::new(),
            stripes: [const { Stripe(AtomicU64::new(0)) }; STRIPES],
        }
    }

    /// Adds `n`, on the CPU `cpu`. A wrong `cpu` costs speed only.
    pub fn add(&'static self, cpu: CpuId, n: u64) {
        if !self.registered.load(Ordering::Relaxed) {
            self.register();
        }
        self.stripes[cpu.index() % STRIPES]
            .0
            .fetch_add(n, Ordering::Relaxed);
    }

    /// The sum of all additions.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.stripes.iter().fold(0, |sum, stripe| {
            sum.wrapping_add(stripe.0.load(Ordering::Relaxed))
        })
    }

    /// Makes the counter appear under `/metrics` before its first addition. Registering again does nothing.
    pub fn register(&'static self) {
        let mut link = &FIRST;
        loop {
            let counter = *link.call_once(|| self);
            if ptr::eq(counter, self) {
                break;
            }
            link = &counter.next;
        }
        self.registered.store(true, Ordering::Relaxed);
    }

    pub(crate) const fn family(&self) -> &Family {
        &self.family
    }
}

/// All registered counters, in the order of their registration. Never waits for a counter that is being registered.
fn registered() -> impl Iterator<Item = &'static AppCounter> {
    core::iter::successors(FIRST.get().copied(), |counter| counter.next.get().copied())
}

/// For each name, the counter that was registered first and the sum over all counters of this name.
pub(crate) fn sums() -> impl Iterator<Item = (&'static AppCounter, u64)> {
    let same_name = |a: &AppCounter, b: &AppCounter| a.family.name() == b.family.name();
    registered()
        .enumerate()
        .filter(move |(i, counter)| !registered().take(*i).any(|earlier| same_name(earlier, counter)))
        .map(move |(_, counter)| {
            let sum = registered()
                .filter(|other| same_name(counter, other))
                .fold(0, |sum: u64, other| sum.wrapping_add(other.get()));
            (counter, sum)
        })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use alloc::vec::Vec;

    use super::*;

    // The list is common to the process, so each test looks only at names of its own.
    fn shown(name: &str) -> Vec<u64> {
        sums()
            .filter(|(counter, _)| counter.family.name() == name)
            .map(|(_, sum)| sum)
            .collect()
    }

    #[test]
    fn appears_with_the_first_addition() {
        static COUNTER: AppCounter = AppCounter::new("lazy_total", "Test.");
        assert!(shown("lazy_total").is_empty());
        COUNTER.add(CpuId(3), 0);
        assert_eq!(shown("lazy_total"), [0]);
    }

    #[test]
    fn same_names_are_summed() {
        static A: AppCounter = AppCounter::new("twice_total", "First.");
        static B: AppCounter = AppCounter::new("twice_total", "Second.");
        A.add(CpuId(0), 2);
        B.add(CpuId(1), 3);
        assert_eq!(shown("twice_total"), [5]);
    }

    #[test]
    fn nothing_is_lost_when_many_threads_register_and_add() {
        static COUNTERS: [AppCounter; 3] = [
            AppCounter::new("race_0_total", "Test."),
            AppCounter::new("race_1_total", "Test."),
            AppCounter::new("race_2_total", "Test."),
        ];
        std::thread::scope(|scope| {
            for thread in 0..8_u32 {
                scope.spawn(move || {
                    for i in 0..3_000_usize {
                        // CPUs 0 and 64 share a stripe.
                        COUNTERS[(i + thread as usize) % 3].add(CpuId(thread % 2 * 64), 1);
                    }
                });
            }
        });
        for name in ["race_0_total", "race_1_total", "race_2_total"] {
            assert_eq!(shown(name), [8_000]);
        }
    }
}
