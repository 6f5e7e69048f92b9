//! The atomics that everything shared between CPUs is made of: core's, loom's in loom's models, and in a simulated machine core's
//! with a hook before each access, where the simulation switches to another core.

#[cfg(not(loom))]
pub(crate) use self::plain::{AtomicU32, AtomicU64, access, fence};
#[cfg(loom)]
pub(crate) use crate::model::{AtomicU32, AtomicU64, access, fence};

pub(crate) use core::sync::atomic::Ordering;

#[cfg(not(loom))]
mod plain {
    use core::sync::atomic::{self, Ordering};

    #[cfg(feature = "simulation")]
    use crate::simulation::step;
    #[cfg(not(feature = "simulation"))]
    #[inline(always)]
    fn step(_address: usize) {}

    #[inline(always)]
    pub(crate) fn fence(ordering: Ordering) {
        step(0);
        atomic::fence(ordering);
    }

    /// Does `work`, which accesses this value under its lock: loom's models check that.
    #[inline(always)]
    pub(crate) fn access<T, R>(_value: *const T, work: impl FnOnce() -> R) -> R {
        work()
    }

    macro_rules! atomic {
        ($name:ident, $integer:ty) => {
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub(crate) struct $name(atomic::$name);

            #[allow(dead_code)]
            impl $name {
                pub(crate) const fn new(value: $integer) -> Self {
                    Self(atomic::$name::new(value))
                }

                #[inline(always)]
                pub(crate) fn load(&self, ordering: Ordering) -> $integer {
                    step(core::ptr::from_ref(self).addr());
                    self.0.load(ordering)
                }

                #[inline(always)]
                pub(crate) fn store(&self, value: $integer, ordering: Ordering) {
                    step(core::ptr::from_ref(self).addr());
                    self.0.store(value, ordering);
                }

                #[inline(always)]
                pub(crate) fn swap(&self, value: $integer, ordering: Ordering) -> $integer {
                    step(core::ptr::from_ref(self).addr());
                    self.0.swap(value, ordering)
                }

                #[inline(always)]
                pub(crate) fn compare_exchange(
                    &self,
                    current: $integer,
                    new: $integer,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$integer, $integer> {
                    step(core::ptr::from_ref(self).addr());
                    self.0.compare_exchange(current, new, success, failure)
                }

                #[inline(always)]
                pub(crate) fn fetch_add(&self, value: $integer, ordering: Ordering) -> $integer {
                    step(core::ptr::from_ref(self).addr());
                    self.0.fetch_add(value, ordering)
                }

                #[inline(always)]
                pub(crate) fn fetch_sub(&self, value: $integer, ordering: Ordering) -> $integer {
                    step(core::ptr::from_ref(self).addr());
                    self.0.fetch_sub(value, ordering)
                }

                #[inline(always)]
                pub(crate) fn fetch_max(&self, value: $integer, ordering: Ordering) -> $integer {
                    step(core::ptr::from_ref(self).addr());
                    self.0.fetch_max(value, ordering)
                }

                #[inline(always)]
                pub(crate) fn fetch_or(&self, value: $integer, ordering: Ordering) -> $integer {
                    step(core::ptr::from_ref(self).addr());
                    self.0.fetch_or(value, ordering)
                }

                #[inline(always)]
                pub(crate) fn fetch_and(&self, value: $integer, ordering: Ordering) -> $integer {
                    step(core::ptr::from_ref(self).addr());
                    self.0.fetch_and(value, ordering)
                }
            }
        };
    }

    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);
}
