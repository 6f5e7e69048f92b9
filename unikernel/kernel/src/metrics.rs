//! An application's own counters, shown under `/metrics` beside the kernel's; and the kernel's interrupts, locks and flushes, for
//! programs that measure.

use homenode_metrics::AppCounter;

pub use crate::contract::{Interrupts, TableLocks, TlbCounts};
use crate::sys;

/// How many interrupts all CPUs have taken since boot; `None` where Linux does not say.
#[must_use]
pub fn interrupts() -> Option<Interrupts> {
    sys::interrupts()
}

/// How many locks of page tables all CPUs have taken since boot; `None` on Linux, which does not say.
#[must_use]
pub fn table_locks() -> Option<TableLocks> {
    sys::table_locks()
}

/// What all CPUs have done about each other's translations since boot; `None` on Linux, which does not say.
#[must_use]
pub fn tlb() -> Option<TlbCounts> {
    sys::tlb_counts()
}

/// A number that only goes up. Made by [`counter!`](crate::metrics::counter).
pub struct Counter(AppCounter);

impl Counter {
    /// The counter behind [`counter!`](crate::metrics::counter).
    #[doc(hidden)]
    #[must_use]
    pub const fn __new(name: &'static str, help: &'static str) -> Self {
        Self(AppCounter::new(name, help))
    }

    /// Adds `amount`. Threads of different CPUs do not disturb each other.
    pub fn add(&'static self, amount: u64) {
        self.0.add(sys::current_cpu(), amount);
    }

    /// The sum of all that was added.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

/// A counter of this program, as a `&'static Counter`: `counter!(NAME, HELP)`.
///
/// The name is of letters, digits and underscores, ends in `_total`, and is shown as `homenode_app_NAME`. A wrong one does not
/// compile.
///
/// ```
/// use homenode::metrics::counter;
///
/// let steps = counter!("steps_total", "Time steps computed.");
/// steps.add(3);
/// assert_eq!(steps.get(), 3);
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! __counter {
    ($name:literal, $help:literal) => {{
        static COUNTER: $crate::metrics::Counter = $crate::metrics::Counter::__new($name, $help);
        &COUNTER
    }};
}

#[doc(inline)]
pub use crate::__counter as counter;
