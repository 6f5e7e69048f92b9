//! Quantities with their units: times, rates, and byte counts for people.

use core::fmt;
use core::str::FromStr;

use serde::Serialize;

use crate::text::{self, Problem};

/// How long one memory access takes, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Latency(u64);

impl Latency {
    /// A latency of so many picoseconds.
    #[must_use]
    pub const fn from_picoseconds(picoseconds: u64) -> Self {
        Self(picoseconds)
    }

    /// The latency in picoseconds.
    #[must_use]
    pub const fn picoseconds(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Latency {
    /// Exact, in nanoseconds where they are whole, else in picoseconds; the command line reads it back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1000) {
            write!(f, "{}ns", self.0 / 1000)
        } else {
            write!(f, "{}ps", self.0)
        }
    }
}

/// How much memory can be read or written per time, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Bandwidth(u64);

impl Bandwidth {
    /// A bandwidth of so many bytes per second.
    #[must_use]
    pub const fn from_bytes_per_second(bytes_per_second: u64) -> Self {
        Self(bytes_per_second)
    }

    /// The bandwidth in bytes per second.
    #[must_use]
    pub const fn bytes_per_second(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", Bytes(self.0))
    }
}

/// A number of bytes, shown in binary units (`512 MiB`, `1.5 GiB`), with at most one decimal, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 6] = [
            (60, "EiB"),
            (50, "PiB"),
            (40, "TiB"),
            (30, "GiB"),
            (20, "MiB"),
            (10, "KiB"),
        ];
        let Some((shift, unit)) = UNITS.into_iter().find(|(shift, _)| self.0 >> shift != 0) else {
            return write!(f, "{} B", self.0);
        };
        let whole = self.0 >> shift;
        // The fraction's ten highest bits are enough for one decimal and can not overflow.
        let tenths = ((self.0 >> (shift - 10)) & 1023) * 10 / 1024;
        if tenths == 0 {
            write!(f, "{whole} {unit}")
        } else {
            write!(f, "{whole}.{tenths} {unit}")
        }
    }
}

impl FromStr for Bytes {
    type Err = Problem;

    /// Reads a size as the topology's words have it: with binary suffixes (`64M`), or hexadecimal.
    fn from_str(text: &str) -> Result<Self, Problem> {
        text::size(text).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn quantities_are_shown_in_the_unit_that_fits() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1 << 10, "1 KiB"),
            (3 << 29, "1.5 GiB"),
            ((1 << 30) - 1, "1023.9 MiB"),
            (1 << 40, "1 TiB"),
            (u64::MAX, "15.9 EiB"),
        ];
        for (bytes, shown) in cases {
            assert_eq!(Bytes(bytes).to_string(), shown);
        }
        assert_eq!("64M".parse(), Ok(Bytes(64 << 20)));
        assert_eq!("much".parse::<Bytes>(), Err(Problem::NotASize));
        assert_eq!(Latency::from_picoseconds(250_000).to_string(), "250ns");
        assert_eq!(Latency::from_picoseconds(250_500).to_string(), "250500ps");
        assert_eq!(Bandwidth::from_bytes_per_second(20 << 30).to_string(), "20 GiB/s");
    }
}
