//! What a run found out, for people and as JSON.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use homenode::mem::Region;
use homenode::phase::Phase;
use homenode::println;
use homenode_topology::Bytes;
use serde::Serialize;

use crate::complex::Complex;

/// A number that is shown with three significant digits, or without a fraction if it is large.
#[derive(Clone, Copy, Debug)]
struct Significant(f64);

impl fmt::Display for Significant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = libm::floor(libm::log10(self.0.abs()));
        // Of 0 there is no magnitude, and no time is shorter than a nanosecond.
        let decimals = if magnitude.is_finite() {
            (2.0 - magnitude).clamp(0.0, 11.0)
        } else {
            0.0
        };
        write!(f, "{:.*}", decimals as usize, self.0)
    }
}

/// A part of the program that is marked and timed.
#[derive(Clone, Copy)]
pub(crate) struct Stage<const NUMBER: u8> {
    name: &'static str,
    marker: Phase<NUMBER>,
}

impl<const NUMBER: u8> Stage<NUMBER> {
    /// The stage `NUMBER`, called `name`.
    pub(crate) const fn new(name: &'static str) -> Self {
        Self {
            name,
            marker: Phase::new(name),
        }
    }

    /// The marker that an instruction counter sees.
    pub(crate) fn marker(self) -> Phase<NUMBER> {
        self.marker
    }
}

/// One stage's time, summed over all its rounds.
#[derive(Serialize)]
struct StageTime {
    number: u8,
    name: &'static str,
    seconds: f64,
    operations: u64,
    #[serde(skip)]
    announce: Box<dyn Fn(u64, usize) + Send>,
}

/// The times of all stages, in the order in which they first came.
#[derive(Default, Serialize)]
#[serde(transparent)]
pub(crate) struct StageTimes(Vec<StageTime>);

/// A round of a stage that takes longer is reported at once.
const LONG: Duration = Duration::from_secs(2);

impl StageTimes {
    /// Adds a round of `stage` with its number of operations.
    pub(crate) fn add<const NUMBER: u8>(&mut self, stage: Stage<NUMBER>, time: Duration, operations: u64) {
        if time >= LONG {
            println!("{}: {:.1} s", stage.name, time.as_secs_f64());
        }
        self.insert(StageTime {
            number: NUMBER,
            name: stage.name,
            seconds: time.as_secs_f64(),
            operations,
            announce: Box::new(move |operations, cpus| stage.marker.announce(operations, cpus)),
        });
    }

    /// Whether there was no stage.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds all of `other`.
    pub(crate) fn append(&mut self, other: Self) {
        other.0.into_iter().for_each(|time| self.insert(time));
    }

    fn insert(&mut self, time: StageTime) {
        match self.0.iter_mut().find(|known| known.number == time.number) {
            Some(known) => {
                known.seconds += time.seconds;
                known.operations += time.operations;
            }
            None => self.0.push(time),
        }
    }

    /// Prints the line of each stage's marker.
    fn announce(&self, cpus: usize) {
        for time in &self.0 {
            (time.announce)(time.operations, cpus);
        }
    }
}

/// The first worker's time in the passes along each axis, in seconds; that along z includes the waiting before and after it.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct AxisSeconds {
    /// Along x.
    pub(crate) x: f64,
    /// Along y.
    pub(crate) y: f64,
    /// Along z.
    pub(crate) z: f64,
}

impl AxisSeconds {
    /// All three.
    pub(crate) fn sum(self) -> f64 {
        self.x + self.y + self.z
    }
}

impl core::ops::AddAssign for AxisSeconds {
    fn add_assign(&mut self, other: Self) {
        self.x += other.x;
        self.y += other.y;
        self.z += other.z;
    }
}

/// Pages of one size on one node.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Pages {
    grid: &'static str,
    node: u32,
    page_bytes: u64,
    count: usize,
}

/// A comparison of a result with what it must be.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    name: &'static str,
    /// The largest error, or that of the last failure.
    error: f64,
    limit: f64,
    passed: bool,
    /// How often it was made.
    count: usize,
}

/// Everything that a run found out.
#[derive(Default, Serialize)]
pub(crate) struct Report {
    /// What was computed.
    pub(crate) problem: String,
    /// Points along x, y and z.
    pub(crate) size: [usize; 3],
    /// Number of workers.
    pub(crate) threads: usize,
    /// Number of CPUs.
    pub(crate) cpus: usize,
    /// Number of nodes.
    pub(crate) nodes: usize,
    /// Vector instructions.
    pub(crate) simd: String,
    /// Where memory was taken.
    pub(crate) policy: String,
    /// Who took it.
    pub(crate) first_touch: String,
    /// Times of all stages.
    pub(crate) stages: StageTimes,
    /// Times of the passes along each axis, in all transforms together.
    pub(crate) axes: AxisSeconds,
    /// Transforms of the whole grid.
    pub(crate) transforms: u64,
    /// 5 N log₂ N per transform and second, in 10⁹.
    pub(crate) gflops: f64,
    /// Where the pages of each grid are.
    pub(crate) pages: Vec<Pages>,
    /// What was verified.
    pub(crate) checks: Vec<Check>,
    /// Real and imaginary part of each checksum.
    pub(crate) checksums: Vec<[f64; 2]>,
    /// Whether all checks passed.
    pub(crate) verified: bool,
}

impl Report {
    /// Prints what is about to be computed, and how.
    pub(crate) fn print_problem(&self) {
        let Self {
            problem,
            threads,
            cpus,
            nodes,
            simd,
            policy,
            first_touch,
            ..
        } = self;
        let [x, y, z] = self.size;
        let bytes = Bytes((x * y * z * size_of::<Complex>()) as u64);
        println!("fft3d: {problem} on {x}x{y}x{z} points, {bytes} of complex doubles");
        println!(
            "threads {threads}, CPUs {cpus}, nodes {nodes}, SIMD {simd}, first touch by {first_touch}, policy {policy}"
        );
    }

    /// Remembers where the pages of a grid are, and prints it. Only the first grid of a name that has pages counts.
    pub(crate) fn placed(&mut self, name: &'static str, grid: &Region<Complex>) {
        if self.pages.iter().any(|pages| pages.grid == name) {
            return;
        }
        let placement = grid.placement();
        for pages in &placement {
            println!("{name}: node {}: {} x {}", pages.node, pages.count, pages.size);
        }
        self.pages.extend(placement.iter().map(|pages| Pages {
            grid: name,
            node: pages.node.0,
            page_bytes: pages.size.bytes(),
            count: pages.count,
        }));
    }

    /// Compares an error with its limit. Only failures and the first pass of a check are printed, and remembered.
    pub(crate) fn check(&mut self, name: &'static str, error: f64, limit: f64) {
        // An error that is no number has not passed.
        let passed = error <= limit;
        match self.checks.iter_mut().find(|known| known.name == name) {
            Some(known) => {
                known.count += 1;
                if passed {
                    known.error = known.error.max(error);
                    return;
                }
                (known.error, known.passed) = (error, false);
            }
            None => self.checks.push(Check {
                name,
                error,
                limit,
                passed,
                count: 1,
            }),
        }
        let verdict = if passed { "passed" } else { "FAILED" };
        println!("check: {name}: error {error:.1e}, limit {limit:.1e}: {verdict}");
    }

    /// Remembers a checksum.
    pub(crate) fn checksum(&mut self, re: f64, im: f64) {
        self.checksums.push([re, im]);
    }

    /// Prints all figures and the verdict, which it returns.
    pub(crate) fn finish(mut self, json: bool) -> bool {
        for time in &self.stages.0 {
            println!("{:>10}: {:.3} s", time.name, time.seconds);
        }
        self.stages.announce(self.cpus.min(self.threads));
        if self.transforms > 0 {
            let AxisSeconds { x, y, z } = self.axes;
            let each = |seconds: f64| Significant(seconds / self.transforms as f64);
            println!(
                "{} transforms, {} s each: along x {} s, y {} s, z {} s",
                self.transforms,
                each(self.axes.sum()),
                each(x),
                each(y),
                each(z)
            );
            println!("{} GFLOP/s (5 N log2 N)", Significant(self.gflops));
        }
        for check in self.checks.iter().filter(|check| check.passed && check.count > 1) {
            let Check {
                name, error, count, ..
            } = check;
            println!("check: {name}: passed {count} times, largest error {error:.1e}");
        }
        let failed: Vec<_> = self
            .checks
            .iter()
            .filter(|check| !check.passed)
            .map(|check| check.name)
            .collect();
        self.verified = failed.is_empty();
        match failed[..] {
            [] => println!("verification: passed"),
            _ => println!("verification: FAILED: {}", failed.join(", ")),
        }
        if json {
            match serde_json::to_string(&self) {
                Ok(line) => println!("{line}"),
                Err(error) => println!("fft3d: no JSON: {error}"),
            }
        }
        self.verified
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn numbers_have_three_significant_digits() {
        for (number, text) in [
            (0.0, "0"),
            (0.001_234_5, "0.00123"),
            (0.1, "0.100"),
            (2.5246, "2.52"),
            (20.07, "20.1"),
            (123.4, "123"),
            (12_345.6, "12346"),
        ] {
            assert_eq!(Significant(number).to_string(), text);
        }
    }
}
