//! The small transforms (of 1, 2, 3, 4, 5 and 8 points) that all others are made of.

use core::ops::{Add, Sub};

use super::simd::Vector;

/// One complex number in each lane.
#[derive(Clone, Copy)]
pub(super) struct Complexes<V> {
    pub(super) re: V,
    pub(super) im: V,
}

impl<V: Vector> Add for Complexes<V> {
    type Output = Self;
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self {
            re: self.re + other.re,
            im: self.im + other.im,
        }
    }
}

impl<V: Vector> Sub for Complexes<V> {
    type Output = Self;
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self {
            re: self.re - other.re,
            im: self.im - other.im,
        }
    }
}

impl<V: Vector> Complexes<V> {
    /// `self + i * other`
    #[inline(always)]
    fn add_i(self, other: Self) -> Self {
        Self {
            re: self.re - other.im,
            im: self.im + other.re,
        }
    }

    /// `self - i * other`
    #[inline(always)]
    fn sub_i(self, other: Self) -> Self {
        Self {
            re: self.re + other.im,
            im: self.im - other.re,
        }
    }

    /// `self * factor + other`
    #[inline(always)]
    fn scale_add(self, factor: V, other: Self) -> Self {
        Self {
            re: self.re.mul_add(factor, other.re),
            im: self.im.mul_add(factor, other.im),
        }
    }

    /// `other - self * factor`
    #[inline(always)]
    fn scale_sub(self, factor: V, other: Self) -> Self {
        Self {
            re: self.re.neg_mul_add(factor, other.re),
            im: self.im.neg_mul_add(factor, other.im),
        }
    }

    /// `self * factor`
    #[inline(always)]
    pub(super) fn scale(self, factor: V) -> Self {
        Self {
            re: self.re * factor,
            im: self.im * factor,
        }
    }

    /// `self * (re + i im)`
    #[inline(always)]
    pub(super) fn rotate(self, re: V, im: V) -> Self {
        Self {
            re: self.im.neg_mul_add(im, self.re * re),
            im: self.re.mul_add(im, self.im * re),
        }
    }
}

/// The constants of the butterflies, in all lanes: made once per pass, and so kept out of the inner loops.
#[derive(Clone, Copy)]
pub(super) struct Constants<V> {
    half: V,
    sin_60: V,
    sqrt_half: V,
    quarter: V,
    sqrt_5_quarter: V,
    sin_72: V,
    sin_36: V,
}

impl<V: Vector> Constants<V> {
    /// # Safety
    /// As [`Vector::splat`].
    #[inline(always)]
    pub(super) unsafe fn new() -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            Self {
                half: V::splat(0.5),
                sin_60: V::splat(0.866_025_403_784_438_6),
                sqrt_half: V::splat(core::f64::consts::FRAC_1_SQRT_2),
                quarter: V::splat(0.25),
                sqrt_5_quarter: V::splat(0.559_016_994_374_947_4),
                sin_72: V::splat(0.951_056_516_295_153_5),
                sin_36: V::splat(0.587_785_252_292_473_1),
            }
        }
    }
}

/// The forward transform of `R` points: `y[k] = Σ x[j] exp(-2πi jk/R)`.
///
/// # Panics
/// When there is no butterfly for `R`; a plan never asks for one.
#[inline(always)]
pub(super) fn butterfly<const R: usize, V: Vector>(
    x: [Complexes<V>; R],
    c: &Constants<V>,
) -> [Complexes<V>; R] {
    let mut y = x;
    match R {
        1 => {}
        2 => {
            y[0] = x[0] + x[1];
            y[1] = x[0] - x[1];
        }
        3 => {
            let sum = x[1] + x[2];
            let difference = (x[1] - x[2]).scale(c.sin_60);
            let centre = sum.scale_sub(c.half, x[0]);
            y[0] = x[0] + sum;
            y[1] = centre.sub_i(difference);
            y[2] = centre.add_i(difference);
        }
        4 => {
            let even = (x[0] + x[2], x[0] - x[2]);
            let odd = (x[1] + x[3], x[1] - x[3]);
            y[0] = even.0 + odd.0;
            y[1] = even.1.sub_i(odd.1);
            y[2] = even.0 - odd.0;
            y[3] = even.1.add_i(odd.1);
        }
        5 => {
            // Both cosines come from the sum and the difference of the pairs: cos 72° + cos 144° = -1/2 and
            // cos 72° - cos 144° = √5/2.
            let (near, far) = (x[1] + x[4], x[2] + x[3]);
            let (near_diff, far_diff) = (x[1] - x[4], x[2] - x[3]);
            let sum = near + far;
            let centre = sum.scale_sub(c.quarter, x[0]);
            let spread = near - far;
            let first = spread.scale_add(c.sqrt_5_quarter, centre);
            let second = spread.scale_sub(c.sqrt_5_quarter, centre);
            let first_diff = far_diff.scale_add(c.sin_36, near_diff.scale(c.sin_72));
            let second_diff = far_diff.scale_sub(c.sin_72, near_diff.scale(c.sin_36));
            y[0] = x[0] + sum;
            y[1] = first.sub_i(first_diff);
            y[2] = second.sub_i(second_diff);
            y[3] = second.add_i(second_diff);
            y[4] = first.add_i(first_diff);
        }
        8 => {
            let sums = [x[0] + x[4], x[1] + x[5], x[2] + x[6], x[3] + x[7]];
            let [y0, y2, y4, y6] = butterfly::<4, V>(sums, c);
            let diffs = [x[0] - x[4], x[1] - x[5], x[2] - x[6], x[3] - x[7]];
            // The eighth roots of unity are √½ (±1 ± i): the factor √½ rides on the last additions.
            let even = (diffs[0].sub_i(diffs[2]), diffs[0].add_i(diffs[2]));
            let (first, third) = (diffs[1].sub_i(diffs[1]), diffs[3].add_i(diffs[3]));
            let (odd_sum, odd_diff) = (first - third, first + third);
            y[0] = y0;
            y[2] = y2;
            y[4] = y4;
            y[6] = y6;
            y[1] = odd_sum.scale_add(c.sqrt_half, even.0);
            y[5] = odd_sum.scale_sub(c.sqrt_half, even.0);
            // even.1 ∓ i √½ odd_diff
            y[3] = Complexes {
                re: odd_diff.im.mul_add(c.sqrt_half, even.1.re),
                im: odd_diff.re.neg_mul_add(c.sqrt_half, even.1.im),
            };
            y[7] = Complexes {
                re: odd_diff.im.neg_mul_add(c.sqrt_half, even.1.re),
                im: odd_diff.re.mul_add(c.sqrt_half, even.1.im),
            };
        }
        _ => unreachable!("no butterfly of this size"),
    }
    y
}
