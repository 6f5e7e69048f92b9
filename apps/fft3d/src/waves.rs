//! A sum of plane waves, whose spectrum is known.

use alloc::vec::Vec;
use core::ops::Range;

use crate::complex::Complex;
use crate::fft::root_of_unity;
use crate::grid::Size;

/// `a exp(2πi (kx x/nx + ky y/ny + kz z/nz))`
struct Wave {
    amplitude: Complex,
    /// kx, ky, kz
    frequencies: [usize; 3],
    /// The wave along each axis.
    axes: [Vec<Complex>; 3],
}

/// Three waves, in different directions and with different amplitudes, so that axes and signs can not be mistaken for each other.
pub(crate) struct Waves {
    size: Size,
    waves: [Wave; 3],
}

impl Waves {
    /// Waves that fit a grid of `size`.
    pub(crate) fn new(size: Size) -> Self {
        let lengths = [size.x, size.y, size.z];
        let wave = |amplitude, frequencies: [usize; 3]| {
            let frequencies = [0, 1, 2].map(|axis| frequencies[axis] % lengths[axis]);
            let axes = [0, 1, 2].map(|axis| {
                let (frequency, len) = (frequencies[axis], lengths[axis]);
                let root = |index| root_of_unity(frequency * index, len);
                (0..len).map(root).map(|(re, im)| Complex::new(re, -im)).collect()
            });
            Wave {
                amplitude,
                frequencies,
                axes,
            }
        };
        let waves = [
            wave(Complex::new(1.0, 0.0), [1, 2, 3]),
            wave(Complex::new(0.5, -0.25), [size.x - 1, size.y / 2, size.z / 3]),
            wave(Complex::new(-0.125, 0.75), [size.x / 3, size.y - 1, 0]),
        ];
        Self { size, waves }
    }

    /// Sets the rows `rows`; `points` holds just these.
    pub(crate) fn fill(&self, rows: Range<usize>, points: &mut [Complex]) {
        for (row, points) in rows.zip(points.chunks_exact_mut(self.size.x)) {
            let (y, z) = (row % self.size.y, row / self.size.y);
            points.fill(Complex::ZERO);
            for Wave { amplitude, axes, .. } in &self.waves {
                let factor = *amplitude * axes[1][y] * axes[2][z];
                for (point, &wave) in points.iter_mut().zip(&axes[0]) {
                    *point += wave * factor;
                }
            }
        }
    }

    /// The largest distance of a spectrum, divided by the number of points, from what it must be, in the rows `rows`.
    pub(crate) fn error(&self, rows: Range<usize>, spectrum: &[Complex]) -> f64 {
        let scale = 1.0 / self.size.points() as f64;
        let mut error = 0.0;
        for (row, spectrum) in rows.zip(spectrum.chunks_exact(self.size.x)) {
            let (y, z) = (row % self.size.y, row / self.size.y);
            for (x, &value) in spectrum.iter().enumerate() {
                let expected = self.amplitude([x, y, z]);
                error = larger(error, (value * scale - expected).abs());
            }
        }
        error
    }

    /// The sum of the amplitudes of the waves with these frequencies.
    fn amplitude(&self, frequencies: [usize; 3]) -> Complex {
        let waves = self.waves.iter().filter(|wave| wave.frequencies == frequencies);
        waves.fold(Complex::ZERO, |sum, wave| sum + wave.amplitude)
    }
}

/// The larger of two errors, of which one that is no number counts as the largest.
pub(crate) fn larger(a: f64, b: f64) -> f64 {
    if b.is_nan() || b > a { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fft::{Direction, Fft3, Simd};
    use alloc::vec;

    #[test]
    fn the_spectrum_is_what_the_transform_gives() {
        for [x, y, z] in [[1, 1, 1], [2, 1, 3], [16, 12, 20], [45, 8, 2]] {
            let size = Size { x, y, z };
            let waves = Waves::new(size);
            let mut grid = vec![Complex::ZERO; size.points()];
            waves.fill(0..y * z, &mut grid);
            let fft = Fft3::new(size, Simd::widest()).unwrap();
            fft.transform(&mut grid, Direction::Forward, &mut fft.workspace());
            assert!(waves.error(0..y * z, &grid) < 1e-14, "{size}");
        }
    }

    #[test]
    fn wrong_spectra_are_noticed() {
        let size = Size { x: 8, y: 8, z: 8 };
        let waves = Waves::new(size);
        let mut grid = vec![Complex::ZERO; size.points()];
        waves.fill(0..64, &mut grid);
        let fft = Fft3::new(size, Simd::widest()).unwrap();
        let mut wrong_direction = grid.clone();
        fft.transform(&mut wrong_direction, Direction::Inverse, &mut fft.workspace());
        wrong_direction
            .iter_mut()
            .for_each(|value| *value = *value * size.points() as f64);
        assert!(waves.error(0..64, &wrong_direction) > 0.1);
        fft.transform(&mut grid, Direction::Forward, &mut fft.workspace());
        for point in [0, 100, 511] {
            let right = grid[point];
            for wrong in [right + Complex::new(0.0, 1e-6), Complex::new(f64::NAN, 0.0)] {
                grid[point] = wrong;
                let error = waves.error(0..64, &grid);
                assert!(error.is_nan() || error > 1e-10);
            }
            grid[point] = right;
        }
    }

    #[test]
    fn an_error_that_is_no_number_stays() {
        assert!(larger(1.0, f64::NAN).is_nan());
        assert!(larger(f64::NAN, 1.0).is_nan());
        assert_eq!(larger(1.0, 2.0), 2.0);
    }
}
