//! Conversion between the ticks of two clocks, without a division.

/// The ratio of two frequencies as a fixed-point number with 60 fractional bits.
///
/// Multiplying by it turns a count of one clock's ticks into the other's. A ratio above 1/1000 is exact to 1 part in 2⁵⁰.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ratio(u64);

/// The number of fractional bits.
const SHIFT: u32 = 60;

impl Ratio {
    /// What turns ticks at `from_hz` into ticks at `to_hz`, or `None` if `from_hz` is 0 or the ratio is 16 or more.
    pub(crate) fn new(from_hz: u64, to_hz: u64) -> Option<Self> {
        // to_hz × 2⁶⁰ < 2¹²⁴
        let scaled = (u128::from(to_hz) << SHIFT).checked_div(u128::from(from_hz))?;
        u64::try_from(scaled).ok().map(Self)
    }

    /// `ticks` of the first clock in ticks of the second, rounded down; saturates at 2⁶⁴ − 1.
    pub(crate) fn apply(self, ticks: u64) -> u64 {
        u64::try_from((u128::from(ticks) * u128::from(self.0)) >> SHIFT).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NS: u64 = 1_000_000_000;

    #[test]
    fn impossible_ratios_are_refused() {
        assert_eq!(Ratio::new(0, NS), None);
        assert_eq!(Ratio::new(1, 16), None);
        assert_eq!(Ratio::new(1, u64::MAX), None);
        assert!(Ratio::new(1, 15).is_some());
    }

    #[test]
    fn one_day_at_3_ghz_is_one_day() {
        let day = 86_400;
        let ns = Ratio::new(3_000_000_000, NS).unwrap().apply(day * 3_000_000_000);
        assert!(day * NS - ns <= 1, "{ns}");
    }

    proptest! {
        #[test]
        fn agrees_with_the_division(from in 1_000_000u64..16_000_000_000, to in 1_000_000u64..16_000_000_000, ticks: u64) {
            prop_assume!(to / from < 16);
            let exact = (u128::from(ticks) * u128::from(to) / u128::from(from)).min(u128::from(u64::MAX));
            let got = u128::from(Ratio::new(from, to).unwrap().apply(ticks));
            prop_assert!(got <= exact);
            prop_assert!(exact - got <= 1 + (u128::from(ticks) >> SHIFT));
        }
    }
}
