use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

/// All widths that this CPU has.
fn widths() -> impl Iterator<Item = Simd> {
    [Width::Sse2, Width::Avx2, Width::Avx512]
        .into_iter()
        .filter_map(Simd::new)
}

/// All lengths that there are transforms for.
fn lengths() -> impl Iterator<Item = usize> {
    (1..=MAX_LEN).filter(|&len| Plan::supports(len))
}

/// Some numbers in [-1/2, 1/2), different for each seed.
fn numbers(count: usize, seed: u64) -> Vec<Complex> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
    };
    (0..count).map(|_| Complex::new(next(), next())).collect()
}

/// A number as an unevaluated sum of two doubles (Dekker, "A floating-point technique for extending the available precision",
/// Numerische Mathematik 1971), with which the definition is summed.
#[derive(Clone, Copy)]
struct Double {
    high: f64,
    low: f64,
}

impl Double {
    const ZERO: Self = Self { high: 0.0, low: 0.0 };

    /// `self + a * b`
    fn add_product(self, a: f64, b: f64) -> Self {
        let product = a * b;
        let error = a.mul_add(b, -product);
        let sum = self.high + product;
        let part = sum - self.high;
        let lost = (self.high - (sum - part)) + (product - part);
        Self {
            high: sum,
            low: self.low + lost + error,
        }
    }

    fn to_f64(self) -> f64 {
        self.high + self.low
    }
}

/// The transform by its definition, its sums in twice the precision.
fn definition(x: &[Complex], direction: Direction) -> Vec<Complex> {
    let n = x.len();
    let roots: Vec<_> = (0..n).map(|k| root_of_unity(k, n)).collect();
    (0..n)
        .map(|k| {
            let (mut re, mut im) = (Double::ZERO, Double::ZERO);
            for (j, value) in x.iter().enumerate() {
                let (cos, sin) = roots[j * k % n];
                let sin = if direction == Direction::Forward {
                    sin
                } else {
                    -sin
                };
                re = re.add_product(value.re, cos).add_product(-value.im, sin);
                im = im.add_product(value.re, sin).add_product(value.im, cos);
            }
            let scale = if direction == Direction::Forward {
                1.0
            } else {
                n as f64
            };
            Complex::new(re.to_f64() / scale, im.to_f64() / scale)
        })
        .collect()
}

fn norm(x: &[Complex]) -> f64 {
    x.iter().map(|value| value.abs().powi(2)).sum::<f64>().sqrt()
}

/// Distance of two vectors relative to the length of the second.
fn distance(a: &[Complex], b: &[Complex]) -> f64 {
    let difference: Vec<_> = a.iter().zip(b).map(|(&a, &b)| a - b).collect();
    norm(&difference) / norm(b)
}

fn transformed(fft: &Fft3, x: &[Complex], direction: Direction) -> Vec<Complex> {
    let mut result = x.to_vec();
    fft.transform(&mut result, direction, &mut fft.workspace());
    result
}

/// Transforms `pencils` pencils along `axis`, of which the others do not exist.
fn lines(
    axis: Axis,
    len: usize,
    pencils: usize,
    simd: Simd,
    direction: Direction,
    x: &[Vec<Complex>],
) -> Vec<Vec<Complex>> {
    let (size, at): (Size, &dyn Fn(usize, usize) -> usize) = match axis {
        Axis::X => (
            Size {
                x: len,
                y: pencils,
                z: 1,
            },
            &|pencil, point| pencil * len + point,
        ),
        Axis::Y => (
            Size {
                x: pencils,
                y: len,
                z: 1,
            },
            &|pencil, point| point * pencils + pencil,
        ),
        Axis::Z => (
            Size {
                x: 1,
                y: pencils,
                z: len,
            },
            &|pencil, point| point * pencils + pencil,
        ),
    };
    // The number of pencils need not be one that there is a plan for.
    let plan = Plan::new(len).unwrap();
    let fft = Fft3 {
        size,
        simd,
        plans: [plan.clone(), plan.clone(), plan],
    };
    let mut grid = vec![Complex::ZERO; len * pencils];
    for (pencil, values) in x.iter().enumerate() {
        for (point, &value) in values.iter().enumerate() {
            grid[at(pencil, point)] = value;
        }
    }
    // SAFETY: there is one thread.
    unsafe {
        fft.pencils(
            axis,
            0..pencils,
            direction,
            &SharedGrid::new(&mut grid),
            &mut Workspace::new(len),
        );
    };
    (0..pencils)
        .map(|pencil| (0..len).map(|point| grid[at(pencil, point)]).collect())
        .collect()
}

#[test]
fn every_length_and_width_agrees_with_the_definition() {
    for len in lengths().filter(|&len| len <= 150 || [512, 625, 729, 900, 960, 1000, 1024].contains(&len)) {
        // One pencil more than the widest vector, so that every width has whole groups and a rest.
        let x: Vec<_> = (0..9).map(|pencil| numbers(len, pencil)).collect();
        for direction in [Direction::Forward, Direction::Inverse] {
            let expected: Vec<_> = x.iter().map(|x| definition(x, direction)).collect();
            for simd in widths() {
                for axis in [Axis::X, Axis::Y, Axis::Z] {
                    let result = lines(axis, len, 9, simd, direction, &x);
                    for (result, expected) in result.iter().zip(&expected) {
                        let error = distance(result, expected);
                        assert!(
                            error < 1e-15,
                            "{len} {direction:?} {} {axis:?}: {error:e}",
                            simd.width()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn every_length_keeps_the_energy_and_comes_back() {
    for len in lengths() {
        let x = vec![numbers(len, 7)];
        for simd in widths() {
            let spectrum = lines(Axis::X, len, 1, simd, Direction::Forward, &x);
            let energy = norm(&spectrum[0]) / (len as f64).sqrt() / norm(&x[0]);
            assert!((energy - 1.0).abs() < 1e-14, "{len}: {energy}");
            let back = lines(Axis::X, len, 1, simd, Direction::Inverse, &spectrum);
            assert!(distance(&back[0], &x[0]) < 1e-14, "{len}");
        }
    }
}

/// The three-dimensional transform by three sets of one-dimensional ones.
fn definition_3d(size: Size, x: &[Complex]) -> Vec<Complex> {
    let mut grid = x.to_vec();
    let Size { x: nx, y: ny, z: nz } = size;
    let mut along = |len: usize, point: usize, firsts: &mut dyn Iterator<Item = usize>| {
        for first in firsts {
            let line: Vec<_> = (0..len).map(|index| grid[first + index * point]).collect();
            for (index, value) in definition(&line, Direction::Forward).into_iter().enumerate() {
                grid[first + index * point] = value;
            }
        }
    };
    along(nx, 1, &mut (0..ny * nz).map(|row| row * nx));
    along(
        ny,
        nx,
        &mut (0..nx * nz).map(|pencil| pencil / nx * nx * ny + pencil % nx),
    );
    along(nz, nx * ny, &mut (0..nx * ny));
    grid
}

#[test]
fn grids_agree_with_the_definition() {
    let sizes = [
        [1, 1, 1],
        [2, 3, 5],
        [8, 8, 8],
        [5, 9, 4],
        [16, 6, 10],
        [1, 27, 12],
        [40, 1, 3],
        [32, 15, 1],
        [18, 20, 25],
    ];
    for [x, y, z] in sizes {
        let size = Size { x, y, z };
        let grid = numbers(size.points(), 3);
        let expected = definition_3d(size, &grid);
        for simd in widths() {
            let fft = Fft3::new(size, simd).unwrap();
            let spectrum = transformed(&fft, &grid, Direction::Forward);
            let error = distance(&spectrum, &expected);
            assert!(error < 2e-15, "{size} {}: {error:e}", simd.width());
            assert!(
                distance(&transformed(&fft, &spectrum, Direction::Inverse), &grid) < 2e-15,
                "{size}"
            );
        }
    }
}

#[test]
fn parts_of_the_pencils_make_up_the_whole() {
    let size = Size { x: 12, y: 10, z: 9 };
    let x = numbers(size.points(), 5);
    for simd in widths() {
        let fft = Fft3::new(size, simd).unwrap();
        let whole = transformed(&fft, &x, Direction::Forward);
        let mut grid = x.clone();
        let shared = SharedGrid::new(&mut grid);
        let mut workspace = fft.workspace();
        for axis in [Axis::X, Axis::Y, Axis::Z] {
            let count = fft.pencil_count(axis);
            let mut start = 0;
            for step in 1.. {
                let end = (start + step % 17).min(count);
                // SAFETY: there is one thread.
                unsafe { fft.pencils(axis, start..end, Direction::Forward, &shared, &mut workspace) };
                start = end;
                if start == count {
                    break;
                }
            }
        }
        assert!(distance(&grid, &whole) < 1e-15);
    }
}

#[test]
fn lengths_without_a_plan_are_refused() {
    for len in [0, 7, 11, 1025, 2048] {
        assert_eq!(Plan::new(len).err(), Some(UnsupportedLen(len)));
    }
    assert_eq!(lengths().count(), 87);
}

#[test]
fn roots_of_unity_are_exact_where_they_can_be() {
    for (k, root) in [
        (0, (1.0, 0.0)),
        (3, (0.0, -1.0)),
        (6, (-1.0, 0.0)),
        (9, (0.0, 1.0)),
        (12, (1.0, 0.0)),
    ] {
        assert_eq!(root_of_unity(k, 12), root);
    }
    let half = core::f64::consts::FRAC_1_SQRT_2;
    for (k, n, (re, im)) in [
        (1, 8, (half, -half)),
        (5, 8, (-half, half)),
        (2, 24, (0.75_f64.sqrt(), -0.5)),
    ] {
        let root = root_of_unity(k, n);
        assert!(
            (root.0 - re).abs() <= f64::EPSILON / 2.0 && (root.1 - im).abs() <= f64::EPSILON / 2.0,
            "{root:?}"
        );
    }
}

#[test]
fn roots_of_unity_agree_with_the_library() {
    for n in lengths() {
        for k in 0..2 * n {
            let (re, im) = root_of_unity(k, n);
            let (sin, cos) = (core::f64::consts::TAU * (k % n) as f64 / n as f64).sin_cos();
            assert!((re - cos).abs() < 2e-15 && (im + sin).abs() < 2e-15, "{k}/{n}");
            assert!((re.mul_add(re, im * im) - 1.0).abs() < 4e-16, "{k}/{n}");
        }
    }
}

proptest! {
    #[test]
    fn the_transform_is_linear(size_index in 0_usize..6, seed: u64, re in -2.0..2.0, im in -2.0..2.0) {
        let [x, y, z] = [[4, 4, 4], [9, 2, 5], [16, 3, 6], [1, 64, 2], [30, 1, 8], [8, 25, 3]][size_index];
        let size = Size { x, y, z };
        let (a, b) = (numbers(size.points(), seed), numbers(size.points(), !seed));
        let factor = Complex::new(re, im);
        let mixed: Vec<_> = a.iter().zip(&b).map(|(&a, &b)| a * factor + b).collect();
        for simd in widths() {
            let fft = Fft3::new(size, simd).unwrap();
            let [a, b, mixed] = [&a, &b, &mixed].map(|x| transformed(&fft, x, Direction::Forward));
            let expected: Vec<_> = a.iter().zip(&b).map(|(&a, &b)| a * factor + b).collect();
            prop_assert!(distance(&mixed, &expected) < 1e-14);
        }
    }
}
