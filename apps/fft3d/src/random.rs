//! The NAS Parallel Benchmarks' pseudo-random numbers (Bailey et al., "The NAS Parallel Benchmarks", RNR-94-007, 2.3).

/// 5¹³
const MULTIPLIER: u64 = 1_220_703_125;
/// States are taken modulo 2⁴⁶.
const MASK: u64 = (1 << 46) - 1;

/// The generator `x ← 5¹³ x mod 2⁴⁶`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Random(u64);

impl Random {
    /// The generator with which FT fills its grid.
    pub(crate) const FT: Self = Self(314_159_265);

    /// This generator after `steps` more numbers, in a number of operations that grows with the logarithm of `steps`.
    #[must_use]
    pub(crate) fn after(self, steps: u64) -> Self {
        let (mut state, mut factor, mut rest) = (self.0, MULTIPLIER, steps);
        while rest > 0 {
            if rest & 1 == 1 {
                state = state.wrapping_mul(factor) & MASK;
            }
            factor = factor.wrapping_mul(factor) & MASK;
            rest >>= 1;
        }
        Self(state)
    }

    /// The next number, in [0, 1).
    pub(crate) fn next_f64(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(MULTIPLIER) & MASK;
        self.0 as f64 * (1.0 / (1_u64 << 46) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn first_numbers_follow_from_the_definition() {
        let mut random = Random::FT;
        let mut state = 314_159_265_u128;
        for _ in 0..100 {
            state = state * 1_220_703_125 % (1 << 46);
            assert_eq!(random.next_f64(), state as f64 / (1_u64 << 46) as f64);
        }
    }

    proptest! {
        #[test]
        fn jumping_ahead_is_stepping(start in 0_u64..5000, steps in 0_u64..5000) {
            let mut stepped = Random::FT.after(start);
            (0..steps).for_each(|_| { stepped.next_f64(); });
            prop_assert_eq!(stepped, Random::FT.after(start + steps));
        }

        #[test]
        fn jumps_add_up(a in 0_u64..1 << 62, b in 0_u64..1 << 62) {
            prop_assert_eq!(Random::FT.after(a).after(b), Random::FT.after(a + b));
        }
    }
}
