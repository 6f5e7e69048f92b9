//! The problem FT of the NAS Parallel Benchmarks (Bailey et al., "The NAS Parallel Benchmarks", RNR-94-007, 3.2.4): a heat equation,
//! solved in spectral space.

use alloc::vec::Vec;
use core::f64::consts::PI;
use core::fmt;
use core::ops::Range;
use core::str::FromStr;

use crate::complex::Complex;
use crate::grid::Size;
use crate::random::Random;
use crate::waves::larger;

/// Time steps of every problem here.
pub(crate) const ITERATIONS: usize = 6;

/// Heat conductivity.
const ALPHA: f64 = 1e-6;

/// The largest relative error of a checksum.
pub(crate) const TOLERANCE: f64 = 1e-12;

/// A size for which checksums are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// 64×64×64
    S,
    /// 128×128×32
    W,
    /// 256×256×128
    A,
}

/// The text names no [`Class`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnknownClass;

impl FromStr for Class {
    type Err = UnknownClass;

    fn from_str(s: &str) -> Result<Self, UnknownClass> {
        match s {
            "S" => Ok(Self::S),
            "W" => Ok(Self::W),
            "A" => Ok(Self::A),
            _ => Err(UnknownClass),
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A grid to solve the problem on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Problem {
    /// The grid.
    pub(crate) size: Size,
    /// The class, if the size belongs to one.
    pub(crate) class: Option<Class>,
}

impl Problem {
    /// The problem of a class.
    pub(crate) fn of_class(class: Class) -> Self {
        let (x, y, z) = match class {
            Class::S => (64, 64, 64),
            Class::W => (128, 128, 32),
            Class::A => (256, 256, 128),
        };
        Self {
            size: Size { x, y, z },
            class: Some(class),
        }
    }

    /// The problem of a size, which may be that of a class.
    pub(crate) fn of_size(size: Size) -> Self {
        let class = [Class::S, Class::W, Class::A]
            .into_iter()
            .find(|&class| Self::of_class(class).size == size);
        Self { size, class }
    }

    /// The published checksum of each time step.
    pub(crate) fn published(self) -> Option<&'static [Complex; ITERATIONS]> {
        const S: [Complex; ITERATIONS] = [
            Complex::new(554.608_700_496_4, 484.536_333_197_8),
            Complex::new(554.638_540_919_0, 486.530_426_951_1),
            Complex::new(554.614_840_617_1, 488.391_072_233_7),
            Complex::new(554.542_360_741_5, 490.127_316_904_6),
            Complex::new(554.425_503_962_4, 491.747_585_799_3),
            Complex::new(554.268_341_190_3, 493.259_724_494_1),
        ];
        const W: [Complex; ITERATIONS] = [
            Complex::new(567.361_217_894_4, 529.324_684_917_5),
            Complex::new(563.143_688_527_1, 528.214_998_662_9),
            Complex::new(559.402_408_997_0, 527.099_655_803_7),
            Complex::new(556.069_804_702_0, 526.002_790_492_5),
            Complex::new(553.089_899_125_0, 524.940_084_563_3),
            Complex::new(550.415_973_453_8, 523.921_224_708_6),
        ];
        const A: [Complex; ITERATIONS] = [
            Complex::new(504.673_500_819_3, 511.404_790_551_0),
            Complex::new(505.941_231_973_4, 509.880_966_643_3),
            Complex::new(506.937_689_628_7, 509.814_404_221_3),
            Complex::new(507.789_286_847_4, 510.133_613_075_9),
            Complex::new(508.523_309_539_1, 510.491_465_519_4),
            Complex::new(509.148_709_995_9, 510.791_784_280_3),
        ];
        self.class.map(|class| match class {
            Class::S => &S,
            Class::W => &W,
            Class::A => &A,
        })
    }
}

/// Fills the points that follow point number `first` with the benchmark's random numbers.
pub(crate) fn fill(points: &mut [Complex], first: usize) {
    let mut random = Random::FT.after(2 * first as u64);
    for point in points {
        *point = Complex::new(random.next_f64(), random.next_f64());
    }
}

/// The largest distance of points from those that [`fill`] makes.
pub(crate) fn distance(points: &[Complex], first: usize) -> f64 {
    let mut random = Random::FT.after(2 * first as u64);
    points.iter().fold(0.0, |error, &point| {
        let expected = Complex::new(random.next_f64(), random.next_f64());
        larger(error, (point - expected).abs())
    })
}

/// By what the spectrum is multiplied until one moment: a factor for each axis.
#[derive(Clone, Debug)]
pub(crate) struct Evolution {
    size: Size,
    x: Vec<f64>,
    y: Vec<f64>,
    z: Vec<f64>,
}

impl Evolution {
    /// From the start to the time `t`.
    pub(crate) fn new(size: Size, t: usize) -> Self {
        let axis = |len: usize| (0..len).map(|index| decay(index, len, t)).collect();
        Self {
            size,
            x: axis(size.x),
            y: axis(size.y),
            z: axis(size.z),
        }
    }

    /// Sets the rows `rows` of `to` to those of the initial spectrum `from`, evolved; both slices hold just these rows.
    pub(crate) fn apply(&self, rows: Range<usize>, from: &[Complex], to: &mut [Complex]) {
        let width = self.size.x;
        let rows = rows.zip(from.chunks_exact(width)).zip(to.chunks_exact_mut(width));
        for ((row, from), to) in rows {
            let factor = self.y[row % self.size.y] * self.z[row / self.size.y];
            for ((to, from), x) in to.iter_mut().zip(from).zip(&self.x) {
                *to = *from * (x * factor);
            }
        }
    }
}

/// `exp(-4 α π² k² t)` for the frequency `k` that belongs to `index`: those past the middle are negative.
fn decay(index: usize, len: usize, t: usize) -> f64 {
    let frequency = if index < len.div_ceil(2) {
        index as f64
    } else {
        index as f64 - len as f64
    };
    libm::exp(-4.0 * ALPHA * PI * PI * frequency * frequency * t as f64)
}

/// The sum of 1,024 points of the solution.
pub(crate) fn checksum(size: Size, points: &[Complex]) -> Complex {
    let mut sum = Complex::ZERO;
    for j in 1..=1024 {
        let (x, y, z) = (j % size.x, 3 * j % size.y, 5 * j % size.z);
        sum += points[x + size.x * (y + size.y * z)];
    }
    sum
}

/// The larger relative error of the two parts.
pub(crate) fn relative_error(value: Complex, published: Complex) -> f64 {
    let re = ((value.re - published.re) / published.re).abs();
    let im = ((value.im - published.im) / published.im).abs();
    larger(re, im)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fft::{Direction, Fft3, Simd};
    use alloc::vec;

    fn solve(problem: Problem) {
        let size = problem.size;
        let published = problem.published().expect("the problem is of a class");
        let fft = Fft3::new(size, Simd::widest()).unwrap();
        let mut workspace = fft.workspace();
        let mut spectrum = vec![Complex::ZERO; size.points()];
        fill(&mut spectrum, 0);
        fft.transform(&mut spectrum, Direction::Forward, &mut workspace);
        let mut solution = spectrum.clone();
        for (t, &published) in (1..).zip(published) {
            Evolution::new(size, t).apply(0..size.y * size.z, &spectrum, &mut solution);
            fft.transform(&mut solution, Direction::Inverse, &mut workspace);
            let error = relative_error(checksum(size, &solution), published);
            assert!(error <= TOLERANCE, "{size}, t = {t}: {error:e}");
        }
    }

    #[test]
    fn class_s_gives_the_published_checksums() {
        solve(Problem::of_class(Class::S));
    }

    #[test]
    fn class_w_gives_the_published_checksums() {
        solve(Problem::of_class(Class::W));
    }

    #[test]
    fn parts_are_filled_like_the_whole() {
        let mut whole = vec![Complex::ZERO; 1000];
        fill(&mut whole, 0);
        let mut parts = vec![Complex::ZERO; 1000];
        let (a, rest) = parts.split_at_mut(123);
        let (b, c) = rest.split_at_mut(600);
        fill(c, 723);
        fill(a, 0);
        fill(b, 123);
        assert_eq!(parts, whole);
    }

    #[test]
    fn sizes_of_classes_are_recognised() {
        for class in [Class::S, Class::W, Class::A] {
            assert_eq!(
                Problem::of_size(Problem::of_class(class).size),
                Problem::of_class(class)
            );
        }
        assert_eq!(Problem::of_size(Size { x: 64, y: 64, z: 32 }).class, None);
    }

    #[test]
    fn the_error_of_no_number_is_no_number() {
        for value in [Complex::new(f64::NAN, 1.0), Complex::new(1.0, f64::NAN)] {
            assert!(relative_error(value, Complex::new(1.0, 1.0)).is_nan());
        }
    }
}
