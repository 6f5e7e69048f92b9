//! What a transform of one length needs: its passes, twiddle factors and output order.

use alloc::vec::Vec;
use core::f64::consts::TAU;
use core::fmt;

/// The longest transform.
pub const MAX_LEN: usize = 1024;

/// One pass over the data: every block of `radix * stride` points becomes `radix` blocks of `stride` points.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    pub(super) radix: usize,
    /// Distance of a butterfly's points, and length of the blocks that it leaves.
    pub(super) stride: usize,
    /// Where its twiddle factors begin: for each of `stride` positions, `radix - 1` pairs.
    pub(super) twiddles: usize,
}

/// Everything about transforms of one length that does not depend on the data.
///
/// The transform is by decimation in frequency, in place in a scratch buffer. The first pass reads the grid and the last
/// one writes it, in the order that undoes the digit reversal, so that neither a bit-reversal nor a transpose is needed.
#[derive(Clone, Debug)]
pub struct Plan {
    len: usize,
    /// First pass, from the grid to the buffer; its radix may be 1.
    pub(super) first: Pass,
    /// Passes in the buffer.
    pub(super) middle: Vec<Pass>,
    /// Radix of the last pass, from the buffer to the grid.
    pub(super) last: usize,
    /// `exp(-2πi k/len)` for each pass in the order in which it is read: real part, imaginary part.
    pub(super) twiddles: Vec<f64>,
    /// For each butterfly of the last pass, the index of its first output.
    pub(super) order: Vec<u32>,
}

/// The length is not of the form 2ᵃ3ᵇ5ᶜ, or not from 1 to [`MAX_LEN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsupportedLen(pub usize);

impl fmt::Display for UnsupportedLen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not of the form 2^a 3^b 5^c from 1 to {MAX_LEN}", self.0)
    }
}

impl core::error::Error for UnsupportedLen {}

impl Plan {
    /// Plans transforms of `len` points.
    ///
    /// # Errors
    /// When `len` has a prime factor other than 2, 3 and 5, or is not from 1 to [`MAX_LEN`].
    pub fn new(len: usize) -> Result<Self, UnsupportedLen> {
        let mut radices = radices(len)?;
        let last = radices.pop().unwrap_or(1);
        let mut twiddles = Vec::new();
        let mut block = len;
        let mut plan_pass = |radix: usize| {
            let pass = Pass {
                radix,
                stride: block / radix,
                twiddles: twiddles.len(),
            };
            for position in 0..pass.stride {
                for output in 1..radix {
                    let (re, im) = root_of_unity(position * output, block);
                    twiddles.extend([re, im]);
                }
            }
            block = pass.stride;
            pass
        };
        let first = plan_pass(radices.first().copied().unwrap_or(1));
        let middle: Vec<Pass> = radices.iter().skip(1).map(|&radix| plan_pass(radix)).collect();
        let order = output_order(first, &middle, len / last);
        Ok(Self {
            len,
            first,
            middle,
            last,
            twiddles,
            order,
        })
    }

    /// Whether there is a plan for `len` points.
    pub fn supports(len: usize) -> bool {
        radices(len).is_ok()
    }

    /// Points of a transform, never 0.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a transform of no points does not exist"
    )]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// The radices of the passes for `len` points, first to last.
fn radices(len: usize) -> Result<Vec<usize>, UnsupportedLen> {
    if len == 0 || len > MAX_LEN {
        return Err(UnsupportedLen(len));
    }
    let mut rest = len;
    let mut radices = Vec::new();
    for radix in [5, 3] {
        while rest.is_multiple_of(radix) {
            radices.push(radix);
            rest /= radix;
        }
    }
    if !rest.is_power_of_two() {
        return Err(UnsupportedLen(len));
    }
    let twos = rest.trailing_zeros();
    // Radix 8 does the most work per load and store; what is left over is 4 or 4·4 rather than 2 or 8·2.
    match twos % 3 {
        0 => {}
        1 if twos == 1 => radices.push(2),
        1 => radices.extend([4, 4]),
        _ => radices.push(4),
    }
    let eights = if twos % 3 == 1 && twos > 1 {
        twos / 3 - 1
    } else {
        twos / 3
    };
    radices.extend((0..eights).map(|_| 8));
    Ok(radices)
}

/// For each butterfly of the last pass the index of its first output: the digits of its number, reversed.
fn output_order(first: Pass, middle: &[Pass], butterflies: usize) -> Vec<u32> {
    let radices = || core::iter::once(first.radix).chain(middle.iter().map(|pass| pass.radix));
    (0..butterflies)
        .map(|butterfly| {
            let (mut rest, mut weight, mut index) = (butterfly, 1, 0);
            let mut blocks = butterflies;
            for radix in radices() {
                blocks /= radix;
                index += weight * (rest / blocks);
                rest %= blocks;
                weight *= radix;
            }
            u32::try_from(index).expect("an index is below MAX_LEN")
        })
        .collect()
}

/// `exp(-2πi k/n)`, each part correctly rounded or next to it: the argument is first brought into the first octant, where
/// sine and cosine lose nothing.
pub(crate) fn root_of_unity(k: usize, n: usize) -> (f64, f64) {
    // In units of an eighth of a turn divided by n.
    let eighths = 8 * (k % n);
    let (octant, rest) = (eighths / n, eighths % n);
    // Odd octants are measured backwards from their end.
    let part = if octant.is_multiple_of(2) { rest } else { n - rest };
    let angle = TAU * (part as f64) / (8.0 * n as f64);
    let (sin, cos) = libm::sincos(angle);
    let (re, im) = match octant {
        0 => (cos, sin),
        1 => (sin, cos),
        2 => (-sin, cos),
        3 => (-cos, sin),
        4 => (-cos, -sin),
        5 => (-sin, -cos),
        6 => (sin, -cos),
        _ => (cos, -sin),
    };
    (re, -im)
}
