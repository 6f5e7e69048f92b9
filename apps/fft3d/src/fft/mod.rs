//! The fast Fourier transform of a three-dimensional grid, one set of pencils at a time.
//!
//! A *pencil* is a line of grid points along one axis. Vector lanes go across neighbouring pencils, so that the passes along
//! y and z, whose pencils are neighbours in memory, need no transpose; those along x are turned in registers. Which part of the
//! grid is transformed when and by whom is the caller's business: see [`Fft3::pencils`].

mod butterfly;
mod kernel;
mod plan;
mod simd;

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

pub use kernel::Direction;
pub use plan::{MAX_LEN, Plan, UnsupportedLen};
pub use simd::{Simd, UnknownWidth, Width};

pub(crate) use plan::root_of_unity;

use crate::complex::Complex;
use crate::grid::{SharedGrid, Size};
use kernel::Pencils;

/// An axis of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Neighbours are neighbours in memory.
    X,
    /// Neighbours are a row apart.
    Y,
    /// Neighbours are a plane apart.
    Z,
}

/// What is needed to transform grids of one size.
#[derive(Clone, Debug)]
pub struct Fft3 {
    size: Size,
    simd: Simd,
    plans: [Plan; 3],
}

/// One cache line, or one of the widest vectors.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f64; 8]);

/// Memory that a thread needs while it transforms pencils.
pub struct Workspace {
    /// For the passes of a batch.
    scratch: Vec<Line>,
    /// For pencils that do not fill a vector.
    edge: Vec<Line>,
}

impl Workspace {
    fn new(longest: usize) -> Self {
        let lines = |doubles: usize| vec![Line([0.0; 8]); doubles.div_ceil(8)];
        Self {
            scratch: lines(kernel::scratch_len(longest)),
            edge: lines(2 * Width::Avx512.lanes() * longest),
        }
    }
}

impl Fft3 {
    /// Plans transforms of grids of `size` with the instructions `simd`.
    ///
    /// # Errors
    /// When a length is not of the form 2ᵃ3ᵇ5ᶜ or longer than [`MAX_LEN`].
    pub fn new(size: Size, simd: Simd) -> Result<Self, UnsupportedLen> {
        let plans = [Plan::new(size.x)?, Plan::new(size.y)?, Plan::new(size.z)?];
        Ok(Self { size, simd, plans })
    }

    /// The size of the grids.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Memory for one thread.
    pub fn workspace(&self) -> Workspace {
        Workspace::new(self.size.x.max(self.size.y).max(self.size.z))
    }

    /// Number of pencils along `axis`. They are numbered in the order in which their first points lie in memory.
    pub fn pencil_count(&self, axis: Axis) -> usize {
        self.size.points() / self.plan(axis).len()
    }

    /// Transforms a whole grid on the calling thread.
    ///
    /// # Panics
    /// If `grid` is not of the planned size.
    pub fn transform(&self, grid: &mut [Complex], direction: Direction, workspace: &mut Workspace) {
        let grid = SharedGrid::new(grid);
        let Size { x, y, z } = self.size;
        for plane in 0..z {
            // While a plane is in the cache, both of its axes.
            // SAFETY: the grid is borrowed exclusively, and only this thread uses it.
            unsafe {
                self.pencils(Axis::X, plane * y..(plane + 1) * y, direction, &grid, workspace);
                self.pencils(Axis::Y, plane * x..(plane + 1) * x, direction, &grid, workspace);
            }
        }
        // SAFETY: as above.
        unsafe { self.pencils(Axis::Z, 0..x * y, direction, &grid, workspace) }
    }

    /// Transforms the pencils `range` along `axis` in place. A grid is transformed when all pencils along all axes have
    /// been, one axis after the other; the inverse of an axis is scaled by the reciprocal of its length.
    ///
    /// # Safety
    /// No other thread may access points of these pencils meanwhile.
    ///
    /// # Panics
    /// If `grid` is not of the planned size, or `range` reaches beyond [`Fft3::pencil_count`].
    pub unsafe fn pencils(
        &self,
        axis: Axis,
        range: Range<usize>,
        direction: Direction,
        grid: &SharedGrid<'_>,
        workspace: &mut Workspace,
    ) {
        assert_eq!(
            grid.len(),
            self.size.points(),
            "the grid is of another size than its plan"
        );
        assert!(
            range.end <= self.pencil_count(axis),
            "there are not that many pencils"
        );
        let Size { x, y, .. } = self.size;
        // Runs of pencils with equal distances: all of them, except along y, where each plane has its own.
        let (run, run_distance, pencil, point) = match axis {
            Axis::X => (usize::MAX, 0, x, 1),
            Axis::Y => (x, x * y, 1, x),
            Axis::Z => (usize::MAX, 0, 1, x * y),
        };
        let mut next = range.start;
        while next < range.end {
            let (number, offset) = (next / run, next % run);
            let count = (run - offset).min(range.end - next);
            let strip = Strip {
                first: number * run_distance + offset * pencil,
                pencil,
                point,
                count,
            };
            // SAFETY: `strip` is a part of `range`, whose pencils are this thread's.
            unsafe { self.strip(self.plan(axis), strip, direction, grid, workspace) }
            next += count;
        }
    }

    fn plan(&self, axis: Axis) -> &Plan {
        &self.plans[axis as usize]
    }

    /// Transforms pencils at equal distances: as many as possible in whole vectors, the rest in a padded copy.
    ///
    /// # Safety
    /// As [`Fft3::pencils`].
    unsafe fn strip(
        &self,
        plan: &Plan,
        strip: Strip,
        direction: Direction,
        grid: &SharedGrid<'_>,
        workspace: &mut Workspace,
    ) {
        let width = self.simd.width();
        let lanes = width.lanes();
        let (groups, rest) = (strip.count / lanes, strip.count % lanes);
        let scratch = workspace.scratch.as_mut_ptr().cast::<f64>();
        let whole = Pencils {
            base: grid.as_ptr().wrapping_add(strip.first).cast(),
            point: 2 * strip.point,
            pencil: 2 * strip.pencil,
            groups,
        };
        // SAFETY: a `Simd` exists only for what the CPU supports; the pencils lie in the grid and are this thread's;
        // the workspace was made for the longest axis.
        unsafe { kernel::transform(width, plan, direction, whole, scratch) }
        if rest == 0 {
            return;
        }
        let at = |lane: usize, index: usize| {
            let pencil = strip.first + (groups * lanes + lane) * strip.pencil;
            grid.as_ptr().wrapping_add(pencil + index * strip.point)
        };
        let edge = workspace.edge.as_mut_ptr().cast::<Complex>();
        let points = || (0..plan.len()).flat_map(|index| (0..rest).map(move |lane| (lane, index)));
        let padded = Pencils {
            base: edge.cast(),
            point: 2 * lanes,
            pencil: 2,
            groups: 1,
        };
        // SAFETY: as above; `edge` holds the longest axis in the widest vectors.
        unsafe {
            for (lane, index) in points() {
                *edge.add(index * lanes + lane) = *at(lane, index);
            }
            kernel::transform(width, plan, direction, padded, scratch);
            for (lane, index) in points() {
                *at(lane, index) = *edge.add(index * lanes + lane);
            }
        }
    }
}

/// Pencils at equal distances; all distances in points.
#[derive(Clone, Copy)]
struct Strip {
    first: usize,
    pencil: usize,
    point: usize,
    count: usize,
}

#[cfg(test)]
mod tests;
