//! Speed of the transform against FFTW's, on one core, in one run: `cargo bench -p fft3d --features hosted --bench fftw [-- N...]`.
//!
//! For each size N³ the two transform the same numbers in the same memory, in turn, as often as fits a few seconds. FFTW plans with
//! `FFTW_MEASURE`, in place as ours does, and from one grid to another. Times are the least ones, ratios the medians over all rounds.

use std::ffi::{c_int, c_uint, c_void};
use std::process::ExitCode;
use std::time::Instant;

use fft3d::Complex;
use fft3d::fft::{Direction, Fft3, MAX_LEN, Simd};
use fft3d::grid::Size;
use homenode::mem::{Policy, Region};
use homenode::thread;
use libloading::{Library, Symbol};

/// Debian's library with FFTW's transforms of doubles.
const LIBRARY: &str = "libfftw3.so.3";

type PlanDft3d =
    unsafe extern "C" fn(c_int, c_int, c_int, *mut Complex, *mut Complex, c_int, c_uint) -> *mut c_void;

/// The part of FFTW's interface that is needed.
struct Fftw<'a> {
    plan_dft_3d: Symbol<'a, PlanDft3d>,
    execute: Symbol<'a, unsafe extern "C" fn(*mut c_void)>,
    destroy_plan: Symbol<'a, unsafe extern "C" fn(*mut c_void)>,
}

const FFTW_FORWARD: c_int = -1;
const FFTW_MEASURE: c_uint = 0;

impl<'a> Fftw<'a> {
    fn new(library: &'a Library) -> Result<Self, libloading::Error> {
        // SAFETY: the types are those of fftw3.h.
        unsafe {
            Ok(Self {
                plan_dft_3d: library.get(b"fftw_plan_dft_3d\0")?,
                execute: library.get(b"fftw_execute\0")?,
                destroy_plan: library.get(b"fftw_destroy_plan\0")?,
            })
        }
    }

    /// Times forward transforms between two grids, or in one.
    fn plan(&self, n: usize, from: &mut [Complex], to: Option<&mut [Complex]>) -> Plan<'_> {
        assert!(from.len() == n.pow(3) && to.as_ref().is_none_or(|to| to.len() == n.pow(3)));
        let from = from.as_mut_ptr();
        let to = to.map_or(from, <[Complex]>::as_mut_ptr);
        let n = n as c_int;
        // SAFETY: both grids have n³ points of two doubles each.
        let plan = unsafe { (self.plan_dft_3d)(n, n, n, from, to, FFTW_FORWARD, FFTW_MEASURE) };
        assert!(!plan.is_null(), "FFTW has no plan for {n}");
        Plan { fftw: self, plan }
    }
}

struct Plan<'a> {
    fftw: &'a Fftw<'a>,
    plan: *mut c_void,
}

impl Plan<'_> {
    /// Transforms the grids that it was made for, which must still exist.
    unsafe fn execute(&self) {
        // SAFETY: as the caller promises.
        unsafe { (self.fftw.execute)(self.plan) }
    }
}

impl Drop for Plan<'_> {
    fn drop(&mut self) {
        // SAFETY: the plan is destroyed once.
        unsafe { (self.fftw.destroy_plan)(self.plan) }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The median of `theirs / ours`, round by round: what else the machine does slows down both of a round.
fn ratio(theirs: &[f64], ours: &[f64]) -> f64 {
    median(
        theirs
            .iter()
            .zip(ours)
            .map(|(theirs, ours)| theirs / ours)
            .collect(),
    )
}

/// Measures one size and prints a line of the table.
fn measure(fftw: &Fftw<'_>, n: usize) {
    let size = Size { x: n, y: n, z: n };
    let region = || Region::<Complex>::populated(size.points(), Policy::Local).expect("there is memory");
    let (mut start, mut grid, mut other) = (region(), region(), region());
    let mut state = 1_u64;
    let mut number = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
    };
    start
        .iter_mut()
        .for_each(|point| *point = Complex::new(number(), number()));

    let fft = Fft3::new(size, Simd::widest()).expect("the size was checked");
    let mut workspace = fft.workspace();
    let in_place = fftw.plan(n, &mut grid, None);
    let apart = fftw.plan(n, &mut grid, Some(&mut other));
    let repeat = (60_000_000 / size.points()).clamp(7, 100);
    let (mut ours, mut theirs, mut theirs_apart) = (Vec::new(), Vec::new(), Vec::new());
    let mut difference = 0.0_f64;
    for _ in 0..repeat {
        let timed =
            |grid: &mut Region<Complex>, seconds: &mut Vec<f64>, work: &mut dyn FnMut(&mut [Complex])| {
                grid.copy_from_slice(&start);
                let start = Instant::now();
                work(grid);
                seconds.push(start.elapsed().as_secs_f64());
            };
        // SAFETY: the plan's grids exist and are borrowed for this.
        timed(&mut grid, &mut theirs_apart, &mut |_| unsafe { apart.execute() });
        // SAFETY: as above.
        timed(&mut grid, &mut theirs, &mut |_| unsafe { in_place.execute() });
        timed(&mut grid, &mut ours, &mut |grid| {
            fft.transform(grid, Direction::Forward, &mut workspace);
        });
        let largest = other
            .iter()
            .fold(0.0, |largest: f64, value| largest.max(value.abs()));
        let distance = grid
            .iter()
            .zip(&other[..])
            .fold(0.0, |most: f64, (&a, &b)| most.max((a - b).abs()));
        difference = difference.max(distance / largest);
    }
    let least = |seconds: &[f64]| seconds.iter().copied().fold(f64::INFINITY, f64::min);
    println!(
        "| {n}³ | {:.2} | {:.2} | {:.1} | **{:.2}** | {:.2} | {:.2} | {difference:.0e} |",
        least(&theirs) * 1e3,
        least(&ours) * 1e3,
        size.operations() / least(&ours) / 1e9,
        ratio(&theirs, &ours),
        least(&theirs) / least(&ours),
        ratio(&theirs_apart, &ours),
    );
}

fn run(sizes: &[usize]) -> Result<(), String> {
    // SAFETY: FFTW's library does nothing when it is loaded or unloaded.
    let library = unsafe { Library::new(LIBRARY) }
        .map_err(|error| format!("{LIBRARY}: {error}; `apt-get install libfftw3-double3` installs it"))?;
    let fftw = Fftw::new(&library).map_err(|error| format!("{LIBRARY} is not FFTW 3: {error}"))?;
    println!(
        "one core, {}, forward; ratio: FFTW's time / ours\n",
        Simd::widest().width()
    );
    println!(
        "| grid | FFTW, ms | ours, ms | ours, GFLOP/s | ratio | ratio of least times | ratio, FFTW with two grids | difference |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    sizes.iter().for_each(|&n| measure(&fftw, n));
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    let sizes: Result<Vec<usize>, _> = words.iter().map(|word| word.parse().map_err(|_| word)).collect();
    let sizes = match sizes {
        Ok(sizes) if sizes.is_empty() => vec![64, 96, 128, 160, 192, 256],
        Ok(sizes) => sizes,
        Err(word) => {
            eprintln!("`{word}`: expected numbers N, for grids of N³ points");
            return ExitCode::from(2);
        }
    };
    if let Some(n) = sizes.iter().find(|&&n| !fft3d::fft::Plan::supports(n)) {
        eprintln!("`{n}`: expected a number of the form 2^a 3^b 5^c from 1 to {MAX_LEN}");
        return ExitCode::from(2);
    }
    // A thread of its own is pinned to a CPU.
    match thread::spawn(move || run(&sizes)).join() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
