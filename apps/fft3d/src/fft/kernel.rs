//! Transforms of a group of neighbouring pencils, one pencil per vector lane.

use core::ops::Range;

use super::butterfly::{Complexes, Constants, butterfly};
use super::plan::{Pass, Plan};
use super::simd::{F64x2, F64x4, F64x8, Vector, Width};

/// Which way a transform goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// `X[k] = Σ x[j] exp(-2πi jk/n)`
    Forward,
    /// `x[j] = 1/n Σ X[k] exp(+2πi jk/n)`
    Inverse,
}

/// Groups of pencils in memory, all distances in doubles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pencils {
    /// The first point of the first pencil.
    pub(super) base: *mut f64,
    /// Distance of neighbouring points of one pencil.
    pub(super) point: usize,
    /// Distance of neighbouring pencils.
    pub(super) pencil: usize,
    /// Number of groups of as many pencils as the vector has lanes.
    pub(super) groups: usize,
}

/// Where the points of a batch of groups are.
trait Points<V>: Copy {
    /// # Safety
    /// Point `index` of every pencil of the group must be readable.
    unsafe fn load(self, group: usize, index: usize) -> Complexes<V>;

    /// # Safety
    /// Point `index` of every pencil of the group must be writable.
    unsafe fn store(self, group: usize, index: usize, value: Complexes<V>);
}

/// Pencils whose points of one index are neighbours in memory.
#[derive(Clone, Copy)]
struct Columns {
    base: *mut f64,
    point: usize,
}

impl<V: Vector> Points<V> for Columns {
    #[inline(always)]
    unsafe fn load(self, group: usize, index: usize) -> Complexes<V> {
        // SAFETY: as the caller promises.
        let (re, im) = unsafe { V::load_columns(self.base.add(2 * V::LANES * group + index * self.point)) };
        Complexes { re, im }
    }
    #[inline(always)]
    unsafe fn store(self, group: usize, index: usize, value: Complexes<V>) {
        // SAFETY: as the caller promises.
        unsafe {
            V::store_columns(
                value.re,
                value.im,
                self.base.add(2 * V::LANES * group + index * self.point),
            );
        }
    }
}

/// Pencils whose own points are neighbours in memory.
#[derive(Clone, Copy)]
struct Rows {
    base: *mut f64,
    pencil: usize,
}

impl<V: Vector> Points<V> for Rows {
    #[inline(always)]
    unsafe fn load(self, group: usize, index: usize) -> Complexes<V> {
        // SAFETY: as the caller promises.
        unsafe {
            let (re, im) = V::load_rows(
                self.base.add(V::LANES * self.pencil * group + 2 * index),
                self.pencil,
            );
            Complexes { re, im }
        }
    }
    #[inline(always)]
    unsafe fn store(self, group: usize, index: usize, value: Complexes<V>) {
        // SAFETY: as the caller promises.
        unsafe {
            let p = self.base.add(V::LANES * self.pencil * group + 2 * index);
            V::store_rows(value.re, value.im, p, self.pencil);
        }
    }
}

/// The buffer between the passes: for each group and each index a vector of real parts, then one of imaginary parts.
#[derive(Clone, Copy)]
struct Scratch {
    base: *mut f64,
    len: usize,
}

impl<V: Vector> Points<V> for Scratch {
    #[inline(always)]
    unsafe fn load(self, group: usize, index: usize) -> Complexes<V> {
        // SAFETY: as the caller promises.
        unsafe {
            let p = self.base.add(2 * V::LANES * (group * self.len + index));
            Complexes {
                re: V::load(p),
                im: V::load(p.add(V::LANES)),
            }
        }
    }
    #[inline(always)]
    unsafe fn store(self, group: usize, index: usize, value: Complexes<V>) {
        // SAFETY: as the caller promises.
        unsafe {
            let p = self.base.add(2 * V::LANES * (group * self.len + index));
            value.re.store(p);
            value.im.store(p.add(V::LANES));
        }
    }
}

/// The grid as an inverse transform sees it: real and imaginary parts change places on the way in and out, which turns the
/// forward transform into the inverse one, and what is stored is scaled.
#[derive(Clone, Copy)]
struct Swapped<P, V> {
    points: P,
    scale: V,
}

impl<V: Vector, P: Points<V>> Points<V> for Swapped<P, V> {
    #[inline(always)]
    unsafe fn load(self, group: usize, index: usize) -> Complexes<V> {
        // SAFETY: as the caller promises.
        let Complexes { re, im } = unsafe { self.points.load(group, index) };
        Complexes { re: im, im: re }
    }
    #[inline(always)]
    unsafe fn store(self, group: usize, index: usize, value: Complexes<V>) {
        let Complexes { re, im } = value.scale(self.scale);
        // SAFETY: as the caller promises.
        unsafe { self.points.store(group, index, Complexes { re: im, im: re }) }
    }
}

/// Butterflies of radix `R` over one block, multiplied by the twiddle factors, from `from` into the same places of `to`,
/// for all `groups`.
///
/// # Safety
/// The points of the block, which begins at index `start`, must be readable in `from` and writable in `to`, the twiddle
/// factors of the pass readable at `twiddles`, and the CPU must support `V`.
#[inline(always)]
unsafe fn twiddled<const R: usize, V: Vector>(
    (from, to): (impl Points<V>, impl Points<V>),
    groups: Range<usize>,
    start: usize,
    pass: Pass,
    twiddles: *const f64,
) {
    // SAFETY: `index + j * stride` runs over one block, and the reads of twiddle factors over `stride * (R - 1)` pairs.
    unsafe {
        let constants = Constants::new();
        let mut twiddle = twiddles.add(pass.twiddles);
        for index in start..start + pass.stride {
            for group in groups.clone() {
                let x = core::array::from_fn(|j| from.load(group, index + j * pass.stride));
                let y = butterfly::<R, V>(x, &constants);
                to.store(group, index, y[0]);
                for (k, value) in y.iter().enumerate().skip(1) {
                    let factor = twiddle.add(2 * (k - 1));
                    let (re, im) = (V::splat(*factor), V::splat(*factor.add(1)));
                    to.store(group, index + k * pass.stride, value.rotate(re, im));
                }
            }
            twiddle = twiddle.add(2 * (R - 1));
        }
    }
}

/// The last pass: butterflies of radix `R` from the buffer to where their outputs belong.
///
/// # Safety
/// All points must be readable in the buffer and writable in `to`, and the CPU must support `V`.
#[inline(always)]
unsafe fn ordered<const R: usize, V: Vector>(
    (scratch, to): (Scratch, impl Points<V>),
    groups: Range<usize>,
    order: &[u32],
) {
    // SAFETY: the buffer's indices run over all points, and so do the outputs.
    unsafe {
        let constants = Constants::new();
        for (number, &output) in order.iter().enumerate() {
            for group in groups.clone() {
                let x = core::array::from_fn(|j| scratch.load(group, number * R + j));
                let y = butterfly::<R, V>(x, &constants);
                for (k, value) in y.iter().enumerate() {
                    to.store(group, output as usize + k * order.len(), *value);
                }
            }
        }
    }
}

/// Calls `$function::<R, …>` for the `R` that equals `$radix`.
macro_rules! with_radix {
    ($radix:expr, $function:ident::<_, $vector:ident>($($argument:expr),*)) => {
        match $radix {
            1 => $function::<1, $vector>($($argument),*),
            2 => $function::<2, $vector>($($argument),*),
            3 => $function::<3, $vector>($($argument),*),
            4 => $function::<4, $vector>($($argument),*),
            5 => $function::<5, $vector>($($argument),*),
            8 => $function::<8, $vector>($($argument),*),
            _ => unreachable!("a plan has radices 1, 2, 3, 4, 5 and 8 only"),
        }
    };
}

/// One batch of groups. The first and the last pass go through the batch at each index, so that the memory system sees
/// runs of several cache lines even where the points of a pencil are far apart; the passes between stay with one group,
/// which fits the first-level cache.
///
/// # Safety
/// As [`transform`], for one batch.
#[inline(always)]
unsafe fn batch<V: Vector>(plan: &Plan, grid: impl Points<V>, scratch: Scratch, groups: usize) {
    let twiddles = plan.twiddles.as_ptr();
    // SAFETY: as the caller promises; a plan's passes stay within its length, its twiddle factors within their vector.
    unsafe {
        let ends = (grid, scratch);
        with_radix!(
            plan.first.radix,
            twiddled::<_, V>(ends, 0..groups, 0, plan.first, twiddles)
        );
        for group in 0..groups {
            let ends = (scratch, scratch);
            for pass in &plan.middle {
                for start in (0..plan.len()).step_by(pass.radix * pass.stride) {
                    let group = group..group + 1;
                    with_radix!(pass.radix, twiddled::<_, V>(ends, group, start, *pass, twiddles));
                }
            }
        }
        with_radix!(
            plan.last,
            ordered::<_, V>((scratch, grid), 0..groups, &plan.order)
        );
    }
}

/// All groups.
///
/// # Safety
/// As [`transform`].
#[inline(always)]
unsafe fn groups<V: Vector>(plan: &Plan, direction: Direction, pencils: Pencils, scratch: *mut f64) {
    let Pencils {
        base,
        point,
        pencil,
        groups,
    } = pencils;
    let scratch = Scratch {
        base: scratch,
        len: plan.len(),
    };
    let columns = pencil == 2;
    let batch_len = if columns {
        column_batch(plan.len(), V::LANES)
    } else {
        1
    };
    for first in (0..groups).step_by(batch_len) {
        let groups = batch_len.min(groups - first);
        // SAFETY: as the caller promises.
        unsafe {
            let scale = V::splat(1.0 / plan.len() as f64);
            let base = base.add(first * V::LANES * pencil);
            let (column, row) = (Columns { base, point }, Rows { base, pencil });
            match (direction, columns) {
                (Direction::Forward, true) => batch::<V>(plan, column, scratch, groups),
                (Direction::Forward, false) => batch::<V>(plan, row, scratch, groups),
                (Direction::Inverse, true) => {
                    batch::<V>(
                        plan,
                        Swapped {
                            points: column,
                            scale,
                        },
                        scratch,
                        groups,
                    );
                }
                (Direction::Inverse, false) => {
                    batch::<V>(plan, Swapped { points: row, scale }, scratch, groups);
                }
            }
        }
    }
}

/// Groups of columns that are transformed together: runs of 1 KiB at each index, as long as the buffer leaves room for
/// other things in a second-level cache of 512 KiB.
fn column_batch(len: usize, lanes: usize) -> usize {
    const RUN_BYTES: usize = 1024;
    const SCRATCH_BYTES: usize = 128 << 10;
    let group_bytes = lanes * size_of::<[f64; 2]>();
    (RUN_BYTES / group_bytes)
        .min(SCRATCH_BYTES / (len * group_bytes))
        .max(1)
}

/// Doubles of scratch space that transforms of `len` points need with any width.
pub(super) fn scratch_len(len: usize) -> usize {
    [Width::Sse2, Width::Avx2, Width::Avx512]
        .map(|width| 2 * width.lanes() * len * column_batch(len, width.lanes()))
        .into_iter()
        .fold(0, usize::max)
}

/// Makes the compiler align the stack of the function that this stands in. It aligns the stack for locals, but not for registers that
/// it spills later, so that, depending on the caller, half of the spilled vectors would lie across cache lines: measured, a third of
/// the speed.
macro_rules! align_stack {
    () => {
        #[repr(align(64))]
        struct Anchor([u8; 64]);
        let anchor = Anchor([0; 64]);
        core::hint::black_box(&anchor.0);
    };
}

/// Transforms groups of pencils in place.
///
/// # Safety
/// - The CPU must support `width`.
/// - Either neighbouring pencils (`pencils.pencil == 2`) or neighbouring points (`pencils.point == 2`) must be two doubles
///   apart.
/// - All points of `pencils.groups * width.lanes()` pencils of `plan.len()` points must be valid for reads and writes, and
///   no other thread may touch them meanwhile.
/// - `scratch_len(plan.len())` doubles at `scratch` must be valid for reads and writes, and overlap nothing else.
pub(super) unsafe fn transform(
    width: Width,
    plan: &Plan,
    direction: Direction,
    pencils: Pencils,
    scratch: *mut f64,
) {
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2(plan: &Plan, direction: Direction, pencils: Pencils, scratch: *mut f64) {
        align_stack!();
        // SAFETY: as the caller promises.
        unsafe { groups::<F64x4>(plan, direction, pencils, scratch) }
    }
    #[target_feature(enable = "avx512f")]
    unsafe fn avx512(plan: &Plan, direction: Direction, pencils: Pencils, scratch: *mut f64) {
        align_stack!();
        // SAFETY: as the caller promises.
        unsafe { groups::<F64x8>(plan, direction, pencils, scratch) }
    }
    debug_assert!(
        pencils.pencil == 2 || pencils.point == 2,
        "neither pencils nor points are neighbours"
    );
    // SAFETY: as the caller promises.
    unsafe {
        match width {
            Width::Sse2 => groups::<F64x2>(plan, direction, pencils, scratch),
            Width::Avx2 => avx2(plan, direction, pencils, scratch),
            Width::Avx512 => avx512(plan, direction, pencils, scratch),
        }
    }
}
