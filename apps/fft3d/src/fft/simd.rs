//! Vectors of doubles, one lane for each of several neighbouring pencils.
//!
//! A kernel keeps real and imaginary parts in separate vectors, so that complex arithmetic needs no shuffles; the only
//! shuffles are those between the grid's interleaved `re, im` pairs and these vectors, on the way in and out.
//!
//! A value of a vector type proves that the CPU has the instructions that the type stands for: every function that makes
//! one out of nothing is `unsafe` and asks for it. Arithmetic on values is therefore safe.

use core::arch::x86_64::*;
use core::fmt;
use core::ops::{Add, Mul, Sub};
use core::str::FromStr;

/// A vector of `LANES` doubles.
///
/// # Safety
/// An implementation may only use instructions that the contract of its `unsafe` functions names.
pub(super) unsafe trait Vector:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self>
{
    /// Doubles in one vector.
    const LANES: usize;

    /// All lanes `x`.
    ///
    /// # Safety
    /// The CPU and the operating system must support the type's instructions.
    unsafe fn splat(x: f64) -> Self;

    /// Loads `LANES` doubles.
    ///
    /// # Safety
    /// As [`Vector::splat`], and `LANES` doubles at `p` must be readable.
    unsafe fn load(p: *const f64) -> Self;

    /// Stores `LANES` doubles.
    ///
    /// # Safety
    /// `LANES` doubles at `p` must be writable.
    unsafe fn store(self, p: *mut f64);

    /// `self * b + c`, in one rounding where the CPU can.
    fn mul_add(self, b: Self, c: Self) -> Self;

    /// `c - self * b`, in one rounding where the CPU can.
    fn neg_mul_add(self, b: Self, c: Self) -> Self;

    /// Loads `LANES` neighbouring complex numbers as real and imaginary parts. The order of the lanes is the type's own;
    /// [`Vector::store_columns`] undoes it.
    ///
    /// # Safety
    /// As [`Vector::splat`], and `2 * LANES` doubles at `p` must be readable.
    unsafe fn load_columns(p: *const f64) -> (Self, Self);

    /// Stores what [`Vector::load_columns`] loaded.
    ///
    /// # Safety
    /// `2 * LANES` doubles at `p` must be writable.
    unsafe fn store_columns(re: Self, im: Self, p: *mut f64);

    /// Loads one complex number from each of `LANES` rows that lie `row` doubles apart.
    ///
    /// # Safety
    /// As [`Vector::splat`], and two doubles at each `p + lane * row` must be readable.
    unsafe fn load_rows(p: *const f64, row: usize) -> (Self, Self);

    /// Stores what [`Vector::load_rows`] loaded.
    ///
    /// # Safety
    /// Two doubles at each `p + lane * row` must be writable.
    unsafe fn store_rows(re: Self, im: Self, p: *mut f64, row: usize);
}

macro_rules! operators {
    ($type:ident, $add:ident, $sub:ident, $mul:ident) => {
        impl Add for $type {
            type Output = Self;
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                // SAFETY: `self` exists, so the CPU has the instruction.
                Self(unsafe { $add(self.0, other.0) })
            }
        }
        impl Sub for $type {
            type Output = Self;
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                // SAFETY: `self` exists, so the CPU has the instruction.
                Self(unsafe { $sub(self.0, other.0) })
            }
        }
        impl Mul for $type {
            type Output = Self;
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                // SAFETY: `self` exists, so the CPU has the instruction.
                Self(unsafe { $mul(self.0, other.0) })
            }
        }
    };
}

/// Two lanes: every x86-64 CPU.
#[derive(Clone, Copy)]
pub(super) struct F64x2(__m128d);

/// Four lanes: AVX2 and FMA.
#[derive(Clone, Copy)]
pub(super) struct F64x4(__m256d);

/// Eight lanes: AVX-512F.
#[derive(Clone, Copy)]
pub(super) struct F64x8(__m512d);

operators!(F64x2, _mm_add_pd, _mm_sub_pd, _mm_mul_pd);
operators!(F64x4, _mm256_add_pd, _mm256_sub_pd, _mm256_mul_pd);
operators!(F64x8, _mm512_add_pd, _mm512_sub_pd, _mm512_mul_pd);

// SAFETY: SSE2 only, which is part of x86-64.
unsafe impl Vector for F64x2 {
    const LANES: usize = 2;

    #[inline(always)]
    unsafe fn splat(x: f64) -> Self {
        // SAFETY: SSE2 is part of x86-64.
        Self(unsafe { _mm_set1_pd(x) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f64) -> Self {
        // SAFETY: as the caller promises.
        Self(unsafe { _mm_loadu_pd(p) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f64) {
        // SAFETY: as the caller promises.
        unsafe { _mm_storeu_pd(p, self.0) }
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        self * b + c
    }
    #[inline(always)]
    fn neg_mul_add(self, b: Self, c: Self) -> Self {
        c - self * b
    }
    #[inline(always)]
    unsafe fn load_columns(p: *const f64) -> (Self, Self) {
        // SAFETY: two neighbouring columns are two rows of one number, two doubles apart.
        unsafe { Self::load_rows(p, 2) }
    }
    #[inline(always)]
    unsafe fn store_columns(re: Self, im: Self, p: *mut f64) {
        // SAFETY: as above.
        unsafe { Self::store_rows(re, im, p, 2) }
    }
    #[inline(always)]
    unsafe fn load_rows(p: *const f64, row: usize) -> (Self, Self) {
        // SAFETY: as the caller promises.
        unsafe {
            let (a, b) = (_mm_loadu_pd(p), _mm_loadu_pd(p.add(row)));
            (Self(_mm_unpacklo_pd(a, b)), Self(_mm_unpackhi_pd(a, b)))
        }
    }
    #[inline(always)]
    unsafe fn store_rows(re: Self, im: Self, p: *mut f64, row: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            _mm_storeu_pd(p, _mm_unpacklo_pd(re.0, im.0));
            _mm_storeu_pd(p.add(row), _mm_unpackhi_pd(re.0, im.0));
        }
    }
}

// SAFETY: AVX and FMA only.
unsafe impl Vector for F64x4 {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f64) -> Self {
        // SAFETY: as the caller promises.
        Self(unsafe { _mm256_set1_pd(x) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f64) -> Self {
        // SAFETY: as the caller promises.
        Self(unsafe { _mm256_loadu_pd(p) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f64) {
        // SAFETY: as the caller promises.
        unsafe { _mm256_storeu_pd(p, self.0) }
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: `self` exists, so the CPU has FMA.
        Self(unsafe { _mm256_fmadd_pd(self.0, b.0, c.0) })
    }
    #[inline(always)]
    fn neg_mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: `self` exists, so the CPU has FMA.
        Self(unsafe { _mm256_fnmadd_pd(self.0, b.0, c.0) })
    }
    #[inline(always)]
    unsafe fn load_columns(p: *const f64) -> (Self, Self) {
        // SAFETY: as the caller promises.
        unsafe {
            let (a, b) = (_mm256_loadu_pd(p), _mm256_loadu_pd(p.add(4)));
            (Self(_mm256_unpacklo_pd(a, b)), Self(_mm256_unpackhi_pd(a, b)))
        }
    }
    #[inline(always)]
    unsafe fn store_columns(re: Self, im: Self, p: *mut f64) {
        // SAFETY: as the caller promises.
        unsafe {
            _mm256_storeu_pd(p, _mm256_unpacklo_pd(re.0, im.0));
            _mm256_storeu_pd(p.add(4), _mm256_unpackhi_pd(re.0, im.0));
        }
    }
    #[inline(always)]
    unsafe fn load_rows(p: *const f64, row: usize) -> (Self, Self) {
        // SAFETY: as the caller promises.
        unsafe {
            // Rows 0 and 2, rows 1 and 3: the unpacking then leaves the lanes in the order of the rows.
            let a = _mm256_loadu2_m128d(p.add(2 * row), p);
            let b = _mm256_loadu2_m128d(p.add(3 * row), p.add(row));
            (Self(_mm256_unpacklo_pd(a, b)), Self(_mm256_unpackhi_pd(a, b)))
        }
    }
    #[inline(always)]
    unsafe fn store_rows(re: Self, im: Self, p: *mut f64, row: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            _mm256_storeu2_m128d(p.add(2 * row), p, _mm256_unpacklo_pd(re.0, im.0));
            _mm256_storeu2_m128d(p.add(3 * row), p.add(row), _mm256_unpackhi_pd(re.0, im.0));
        }
    }
}

// SAFETY: AVX-512F only.
unsafe impl Vector for F64x8 {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f64) -> Self {
        // SAFETY: as the caller promises.
        Self(unsafe { _mm512_set1_pd(x) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f64) -> Self {
        // SAFETY: as the caller promises.
        Self(unsafe { _mm512_loadu_pd(p) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f64) {
        // SAFETY: as the caller promises.
        unsafe { _mm512_storeu_pd(p, self.0) }
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: `self` exists, so the CPU has AVX-512F.
        Self(unsafe { _mm512_fmadd_pd(self.0, b.0, c.0) })
    }
    #[inline(always)]
    fn neg_mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: `self` exists, so the CPU has AVX-512F.
        Self(unsafe { _mm512_fnmadd_pd(self.0, b.0, c.0) })
    }
    #[inline(always)]
    unsafe fn load_columns(p: *const f64) -> (Self, Self) {
        // SAFETY: as the caller promises.
        unsafe {
            let (a, b) = (_mm512_loadu_pd(p), _mm512_loadu_pd(p.add(8)));
            (Self(_mm512_unpacklo_pd(a, b)), Self(_mm512_unpackhi_pd(a, b)))
        }
    }
    #[inline(always)]
    unsafe fn store_columns(re: Self, im: Self, p: *mut f64) {
        // SAFETY: as the caller promises.
        unsafe {
            _mm512_storeu_pd(p, _mm512_unpacklo_pd(re.0, im.0));
            _mm512_storeu_pd(p.add(8), _mm512_unpackhi_pd(re.0, im.0));
        }
    }
    #[inline(always)]
    unsafe fn load_rows(p: *const f64, row: usize) -> (Self, Self) {
        // SAFETY: as the caller promises.
        unsafe {
            // A masked broadcast loads 16 bytes into one quarter without a trip through the shuffle port.
            let quarter = |lane: usize| _mm_castpd_ps(_mm_loadu_pd(p.add(lane * row)));
            let gather = |first: usize| {
                let v = _mm512_castps128_ps512(quarter(first));
                let v = _mm512_mask_broadcast_f32x4(v, 0x00f0, quarter(first + 2));
                let v = _mm512_mask_broadcast_f32x4(v, 0x0f00, quarter(first + 4));
                _mm512_castps_pd(_mm512_mask_broadcast_f32x4(v, 0xf000, quarter(first + 6)))
            };
            let (even, odd) = (gather(0), gather(1));
            (
                Self(_mm512_unpacklo_pd(even, odd)),
                Self(_mm512_unpackhi_pd(even, odd)),
            )
        }
    }
    #[inline(always)]
    unsafe fn store_rows(re: Self, im: Self, p: *mut f64, row: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            let scatter = |first: usize, v: __m512d| {
                let v = _mm512_castpd_ps(v);
                let put = |lane: usize, v| _mm_storeu_pd(p.add(lane * row), _mm_castps_pd(v));
                put(first, _mm512_castps512_ps128(v));
                put(first + 2, _mm512_extractf32x4_ps::<1>(v));
                put(first + 4, _mm512_extractf32x4_ps::<2>(v));
                put(first + 6, _mm512_extractf32x4_ps::<3>(v));
            };
            scatter(0, _mm512_unpacklo_pd(re.0, im.0));
            scatter(1, _mm512_unpackhi_pd(re.0, im.0));
        }
    }
}

/// A set of vector instructions that this CPU and the system it runs under support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Simd(Width);

/// The sets of vector instructions that kernels exist for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Width {
    /// 128 bits, two lanes: every x86-64 CPU.
    Sse2,
    /// 256 bits, four lanes, with fused multiply-add.
    Avx2,
    /// 512 bits, eight lanes.
    Avx512,
}

impl Width {
    /// Pencils that are transformed at once.
    pub fn lanes(self) -> usize {
        match self {
            Self::Sse2 => F64x2::LANES,
            Self::Avx2 => F64x4::LANES,
            Self::Avx512 => F64x8::LANES,
        }
    }
}

impl fmt::Display for Width {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sse2 => "sse2",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        })
    }
}

/// The text names no [`Width`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownWidth;

impl FromStr for Width {
    type Err = UnknownWidth;

    fn from_str(s: &str) -> Result<Self, UnknownWidth> {
        match s {
            "sse2" => Ok(Self::Sse2),
            "avx2" => Ok(Self::Avx2),
            "avx512" => Ok(Self::Avx512),
            _ => Err(UnknownWidth),
        }
    }
}

impl Simd {
    /// The widest set that this CPU has.
    pub fn widest() -> Self {
        let [_, avx2, avx512] = [Width::Sse2, Width::Avx2, Width::Avx512].map(Self::new);
        avx512.or(avx2).unwrap_or(Self(Width::Sse2))
    }

    /// The set `width`, or `None` where the CPU or the system lacks it.
    pub fn new(width: Width) -> Option<Self> {
        (width <= detect()).then_some(Self(width))
    }

    /// Which set it is.
    pub fn width(self) -> Width {
        self.0
    }
}

/// The widest set by CPUID and by the register states that the system saves (XCR0; Intel SDM vol. 1, 14.3 and 15.2).
fn detect() -> Width {
    /// XCR0: SSE and AVX state.
    const YMM: u64 = 0b110;
    /// XCR0: SSE, AVX, and the three parts of AVX-512's state.
    const ZMM: u64 = 0b1110_0110;

    let cpuid = raw_cpuid::CpuId::new();
    let Some(basic) = cpuid.get_feature_info() else {
        return Width::Sse2;
    };
    let Some(extended) = cpuid.get_extended_feature_info() else {
        return Width::Sse2;
    };
    if !basic.has_oxsave() {
        return Width::Sse2;
    }
    // SAFETY: CPUID's OSXSAVE says that the system has enabled XGETBV.
    let enabled = unsafe { xcr0() };
    if enabled & ZMM == ZMM && extended.has_avx512f() && extended.has_avx2() && basic.has_fma() {
        Width::Avx512
    } else if enabled & YMM == YMM && extended.has_avx2() && basic.has_fma() {
        Width::Avx2
    } else {
        Width::Sse2
    }
}

/// Which register states the system has enabled.
///
/// # Safety
/// CPUID must report OSXSAVE.
#[target_feature(enable = "xsave")]
unsafe fn xcr0() -> u64 {
    // SAFETY: as the caller promises.
    unsafe { _xgetbv(0) }
}
