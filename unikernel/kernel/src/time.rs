//! Time: since boot, and of the day.

use core::ops::{Add, AddAssign, Sub, SubAssign};

pub use core::time::Duration;

use crate::sys;

/// A moment on the monotonic clock, which starts at boot and never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// This moment.
    #[must_use]
    pub fn now() -> Self {
        Self(sys::monotonic())
    }

    /// How long ago this moment was.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Self::now().duration_since(self)
    }

    /// The time from `earlier` to this moment; zero if `earlier` was later.
    #[must_use]
    pub fn duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The time from boot to this moment.
    #[must_use]
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// The moment `duration` later, or `None` if no clock reaches it.
    #[must_use]
    pub fn checked_add(self, duration: Duration) -> Option<Self> {
        self.0.checked_add(duration).map(Self)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// # Panics
    /// If no clock reaches the sum.
    fn add(self, duration: Duration) -> Self {
        Self(self.0 + duration)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    /// # Panics
    /// If the difference lies before boot.
    fn sub(self, duration: Duration) -> Self {
        Self(self.0 - duration)
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }
}

/// The time of day: what has passed since 1970-01-01 00:00:00 UTC, leap seconds not counted.
///
/// A machine without a real-time clock counts from its boot instead.
#[must_use]
pub fn unix_time() -> Duration {
    sys::wall_clock()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monotonic_clock_agrees_with_std() {
        let (ours, theirs) = (Instant::now(), std::time::Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        let (ours, theirs) = (ours.elapsed(), theirs.elapsed());
        assert!(ours >= Duration::from_millis(20));
        assert!(
            ours.abs_diff(theirs) < Duration::from_millis(20),
            "{ours:?} against {theirs:?}"
        );
    }

    #[test]
    fn the_time_of_day_agrees_with_std() {
        let theirs = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        assert!(unix_time().abs_diff(theirs) < Duration::from_secs(1));
    }

    #[test]
    fn earlier_moments_compare_and_subtract() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        assert!(later > now);
        assert_eq!(later - now, Duration::from_secs(1));
        assert_eq!(now - later, Duration::ZERO);
        assert_eq!(later - Duration::from_secs(1), now);
    }
}
