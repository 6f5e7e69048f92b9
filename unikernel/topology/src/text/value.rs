//! Numbers, sizes and latencies.

use parse_size::Config;

use super::Problem;
use crate::{Bandwidth, Latency};

/// A decimal number without a sign.
pub(super) fn number(text: &str) -> Result<u32, Problem> {
    // `parse` alone would take a plus sign.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits
        .then(|| text.parse().ok())
        .flatten()
        .ok_or(Problem::NotANumber)
}

/// A size or an address in bytes: with binary suffixes, or hexadecimal.
pub(crate) fn size(text: &str) -> Result<u64, Problem> {
    let bytes = match text.strip_prefix("0x") {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u64::from_str_radix(digits, 16).ok()
        }
        Some(_) => None,
        None => Config::new().with_binary().parse_size(text).ok(),
    };
    bytes.ok_or(Problem::NotASize)
}

/// A rate in bytes per second, written as a size.
pub(super) fn bandwidth(text: &str) -> Result<Bandwidth, Problem> {
    size(text).map(Bandwidth::from_bytes_per_second)
}

/// A time with its unit.
pub(super) fn latency(text: &str) -> Result<Latency, Problem> {
    const UNITS: [(&str, u64); 4] = [("ps", 1), ("ns", 1_000), ("us", 1_000_000), ("ms", 1_000_000_000)];
    UNITS
        .into_iter()
        .find_map(|(unit, picoseconds)| {
            let count = number(text.strip_suffix(unit)?).ok()?;
            u64::from(count).checked_mul(picoseconds)
        })
        .map(Latency::from_picoseconds)
        .ok_or(Problem::NotALatency)
}
