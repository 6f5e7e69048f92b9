//! The program.

use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::time::Duration;

use command_line::{UsageError, options_or_status};
use homenode::mem::{Policy, Region, RegionError, Reservation};
use homenode::thread::{self, SpawnError};
use homenode::time::Instant;
use homenode::{Args, ExitCode, eprintln, println};
use homenode_topology::Bytes;

use crate::complex::Complex;
use crate::fft::{Direction, Fft3, Simd};
use crate::grid::{SharedGrid, Size};
use crate::member::{Figures, Member};
use crate::npb::{self, Evolution, Problem as NpbProblem};
use crate::options::{FirstTouch, Options, Problem, USAGE};
use crate::report::{Report, Stage};
use crate::team::{Shares, Team};
use crate::waves::{Waves, larger};

const ALLOCATE: Stage<2> = Stage::new("allocate");
const FREE: Stage<4> = Stage::new("free");
const FILL: Stage<6> = Stage::new("fill");
const FORWARD: Stage<8> = Stage::new("forward");
const INVERSE: Stage<10> = Stage::new("inverse");
const VERIFY: Stage<12> = Stage::new("verify");
const EVOLVE: Stage<14> = Stage::new("evolve");
const CHECKSUM: Stage<16> = Stage::new("checksum");

/// The status when there is not enough memory.
const NO_MEMORY: u8 = 3;

/// How often long work says how far it is.
const PROGRESS: Duration = Duration::from_secs(2);

/// Why a run ended without a result.
#[derive(Debug)]
enum Failure {
    Usage(UsageError),
    NoMemory { bytes: usize, error: RegionError },
}

impl From<UsageError> for Failure {
    fn from(error: UsageError) -> Self {
        Self::Usage(error)
    }
}

/// Runs the program with its arguments, and says how it ended.
pub fn run(args: Args) -> ExitCode {
    let options = match options_or_status("fft3d", USAGE, Options::parse(args)) {
        Ok(options) => options,
        Err(status) => return status,
    };
    match Program::new(options).and_then(Program::run) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Failure::Usage(error)) => error.print("fft3d", USAGE),
        Err(Failure::NoMemory { bytes, error }) => {
            let grid = Bytes(bytes as u64);
            eprintln!("fft3d: not enough memory for a grid of {grid}: {error}");
            ExitCode::from(NO_MEMORY)
        }
    }
}

/// One run.
struct Program {
    options: Options,
    fft: Fft3,
    team: Team,
    report: Report,
}

impl Program {
    fn new(options: Options) -> Result<Self, Failure> {
        let size = options.problem.size();
        let simd = match options.simd {
            None => Simd::widest(),
            Some(width) => Simd::new(width).ok_or_else(|| {
                UsageError::new(
                    &format!("--simd {width}"),
                    "this CPU or system has no such instructions",
                )
            })?,
        };
        let nodes = homenode::topology().nodes().len();
        if let Policy::Bind(node) | Policy::Preferred(node) = options.policy
            && node.index() >= nodes
        {
            let problem = format!("this machine has nodes 0 to {}", nodes - 1);
            return Err(UsageError::new(&format!("--policy {}", options.policy), problem).into());
        }
        let fft = Fft3::new(size, simd).map_err(|error| UsageError::new("--n", error))?;
        let cpus = thread::available_parallelism();
        let team = Team {
            threads: options.threads.unwrap_or(cpus).get(),
        };
        let problem = match options.problem {
            Problem::Transform(_) => "plane waves and random numbers".to_string(),
            Problem::Npb(NpbProblem {
                class: Some(class), ..
            }) => format!("NAS FT class {class}"),
            Problem::Npb(_) => "NAS FT".to_string(),
        };
        let report = Report {
            problem,
            size: [size.x, size.y, size.z],
            threads: team.threads,
            cpus: cpus.get(),
            nodes,
            simd: simd.width().to_string(),
            policy: options.policy.to_string(),
            first_touch: options.first_touch.to_string(),
            ..Report::default()
        };
        Ok(Self {
            options,
            fft,
            team,
            report,
        })
    }

    /// Whether the result is right.
    fn run(mut self) -> Result<bool, Failure> {
        self.report.print_problem();
        match self.options.problem {
            Problem::Transform(size) => self.transform(size)?,
            Problem::Npb(problem) => self.npb(problem)?,
        }
        let seconds = self.report.axes.sum();
        if seconds > 0.0 {
            self.report.gflops = self.fft.size().operations() * self.report.transforms as f64 / seconds / 1e9;
        }
        Ok(self.report.finish(self.options.json))
    }

    /// A sum of plane waves forward, then random numbers forward and back.
    fn transform(&mut self, size: Size) -> Result<(), Failure> {
        let mut grid = self.allocate("grid")?;
        self.waves(size, &mut grid);
        let repeat = self.options.repeat.get();
        if self.options.realloc {
            self.free("grid", grid);
            let mut progress = Progress::new("round trip", repeat);
            for round in 0..repeat {
                let mut grid = self.allocate("grid")?;
                self.round_trips(&mut grid, 1);
                self.free("grid", grid);
                progress.done(round + 1);
            }
        } else {
            self.round_trips(&mut grid, repeat);
            self.free("grid", grid);
        }
        Ok(())
    }

    /// The forward transform of plane waves against their spectrum.
    fn waves(&mut self, size: Size, grid: &mut [Complex]) {
        let waves = Waves::new(size);
        let (fft, grid) = (&self.fft, SharedGrid::new(grid));
        let results = self.team.run(give_up, |worker| {
            let mut member = Member::new(worker, fft);
            let rows = member.shares.x.clone();
            member.stage(FILL, size.points(), |member| {
                // SAFETY: in this stage each worker accesses its slab only.
                waves.fill(rows.clone(), unsafe { member.slab_mut(&grid) });
            });
            // SAFETY: stages begin and end with a meeting.
            member.stage(FORWARD, 1, |member| unsafe {
                member.transform(&grid, Direction::Forward);
            });
            let error = member.stage(VERIFY, size.points(), |member| {
                // SAFETY: in this stage all workers only read.
                waves.error(rows.clone(), unsafe { member.slab(&grid) })
            });
            (member.into_figures(), error)
        });
        let error = self.collect(results);
        self.report.check("spectrum of plane waves", error, limit(size));
    }

    /// Random numbers, forward and back `rounds` times, against themselves.
    fn round_trips(&mut self, grid: &mut [Complex], rounds: usize) {
        let (fft, grid) = (&self.fft, SharedGrid::new(grid));
        let size = fft.size();
        let results = self.team.run(give_up, |worker| {
            let mut member = Member::new(worker, fft);
            let first = member.shares.points(fft).start;
            member.stage(FILL, size.points(), |member| {
                // SAFETY: in this stage each worker accesses its slab only.
                npb::fill(unsafe { member.slab_mut(&grid) }, first);
            });
            let mut progress = Progress::new("round trip", rounds);
            for round in 0..rounds {
                // SAFETY: stages begin and end with a meeting.
                member.stage(FORWARD, 1, |member| unsafe {
                    member.transform(&grid, Direction::Forward);
                });
                // SAFETY: as above.
                member.stage(INVERSE, 1, |member| unsafe {
                    member.transform(&grid, Direction::Inverse);
                });
                if member.is_leader() {
                    progress.done(round + 1);
                }
            }
            let error = member.stage(VERIFY, size.points(), |member| {
                // SAFETY: in this stage all workers only read.
                npb::distance(unsafe { member.slab(&grid) }, first)
            });
            (member.into_figures(), error)
        });
        let error = self.collect(results);
        self.report.check("inverse of forward", error, limit(size));
    }

    /// The NAS benchmark's problem.
    fn npb(&mut self, problem: NpbProblem) -> Result<(), Failure> {
        let size = problem.size;
        let (mut spectrum, mut solution) = (self.allocate("spectrum")?, self.allocate("solution")?);
        let fft = &self.fft;
        let shared = (SharedGrid::new(&mut spectrum), SharedGrid::new(&mut solution));
        let (spectrum_grid, solution_grid) = (&shared.0, &shared.1);
        let results = self.team.run(give_up, |worker| {
            let mut member = Member::new(worker, fft);
            let rows = member.shares.x.clone();
            let first = member.shares.points(fft).start;
            member.stage(FILL, size.points(), |member| {
                // SAFETY: in this stage each worker accesses its slab only.
                npb::fill(unsafe { member.slab_mut(spectrum_grid) }, first);
            });
            // SAFETY: stages begin and end with a meeting.
            member.stage(FORWARD, 1, |member| unsafe {
                member.transform(spectrum_grid, Direction::Forward);
            });
            let mut checksums = Vec::new();
            for t in 1..=npb::ITERATIONS {
                member.stage(EVOLVE, size.points(), |member| {
                    // SAFETY: in this stage each worker accesses its slabs only, that of the spectrum to read.
                    let (from, to) = unsafe { (member.slab(spectrum_grid), member.slab_mut(solution_grid)) };
                    Evolution::new(size, t).apply(rows.clone(), from, to);
                });
                member.stage(INVERSE, 1, |member| {
                    // SAFETY: stages begin and end with a meeting.
                    unsafe { member.transform(solution_grid, Direction::Inverse) }
                });
                member.stage(CHECKSUM, 1, |member| {
                    if member.is_leader() {
                        // SAFETY: in this stage all workers only read.
                        let sum = npb::checksum(size, unsafe { solution_grid.points(0..size.points()) });
                        println!("t = {t}: checksum {:.10} {:.10}", sum.re, sum.im);
                        checksums.push(sum);
                    }
                });
            }
            (member.into_figures(), checksums)
        });
        let mut checksums = Vec::new();
        for (figures, sums) in results {
            self.add(figures);
            checksums.extend(sums);
        }
        checksums
            .iter()
            .for_each(|sum| self.report.checksum(sum.re, sum.im));
        match problem.published() {
            Some(published) => {
                let errors = checksums
                    .iter()
                    .zip(published)
                    .map(|(&sum, &published)| npb::relative_error(sum, published));
                self.report
                    .check("published checksums", errors.fold(0.0, larger), npb::TOLERANCE);
            }
            None => println!("no checksums are published for this size: nothing to compare with"),
        }
        self.free("spectrum", spectrum);
        self.free("solution", solution);
        Ok(())
    }

    /// Adds up what the workers measured; the largest of their errors.
    fn collect(&mut self, results: Vec<(Figures, f64)>) -> f64 {
        results.into_iter().fold(0.0, |error, (figures, worker_error)| {
            self.add(figures);
            larger(error, worker_error)
        })
    }

    /// Takes over what one worker measured: of the passes, the leader's times, which comes first.
    fn add(&mut self, figures: Figures) {
        if figures.stages.is_empty() {
            return;
        }
        self.report.stages.append(figures.stages);
        self.report.axes += figures.axes;
        self.report.transforms += figures.transforms;
    }

    /// A grid whose pages are where the options say. The first one of a name is reported.
    fn allocate(&mut self, name: &'static str) -> Result<Region<Complex>, Failure> {
        let points = self.fft.size().points();
        let bytes = points * size_of::<Complex>();
        let start = Instant::now();
        let grid = ALLOCATE.marker().run(|| self.reserve_and_populate(points));
        let grid = grid.map_err(|error| Failure::NoMemory { bytes, error })?;
        self.report.stages.add(ALLOCATE, start.elapsed(), bytes as u64);
        self.report.placed(name, &grid);
        Ok(grid)
    }

    fn reserve_and_populate(&self, points: usize) -> Result<Region<Complex>, RegionError> {
        let Options {
            first_touch, policy, ..
        } = self.options;
        match first_touch {
            FirstTouch::Demand => Region::new(points, policy),
            FirstTouch::Master => Region::populated(points, policy),
            FirstTouch::Worker => {
                let (fft, reservation) = (&self.fft, Reservation::new(points)?);
                let results = self.team.run(give_up, |worker| {
                    reservation.populate(Shares::new(&worker, fft).points(fft), policy)
                });
                results.into_iter().collect::<Result<(), _>>()?;
                Ok(reservation.finish())
            }
        }
    }

    /// Gives a grid back, and reports it if it had no pages when it was allocated.
    fn free(&mut self, name: &'static str, grid: Region<Complex>) {
        self.report.placed(name, &grid);
        let bytes = size_of_val(&grid[..]);
        let start = Instant::now();
        FREE.marker().run(|| drop(grid));
        self.report.stages.add(FREE, start.elapsed(), bytes as u64);
    }
}

/// The largest error of a result of 2ᵏ points around 1: k 10⁻¹².
fn limit(size: Size) -> f64 {
    1e-12 * size.log2_points().max(1.0)
}

/// Ends the program: after `started` workers, the next could not be started.
fn give_up(started: usize, error: SpawnError) -> ! {
    match error {
        // A stack lies on any node that has room for it, if the worker's own has not.
        SpawnError::OutOfMemory { stack_bytes } => {
            let nodes = match homenode::topology().nodes().len() - 1 {
                0 => "node 0".to_string(),
                last => format!("any of nodes 0 to {last}"),
            };
            eprintln!(
                "fft3d: not enough memory for the stack of a worker, {}, on {nodes}: {started} workers have started; \
                 try fewer --threads, or more memory",
                Bytes(stack_bytes as u64)
            );
        }
        _ => eprintln!("fft3d: {started} workers have started, but no more: {error}"),
    }
    homenode::exit(ExitCode::from(NO_MEMORY))
}

/// Says from time to time how far long work is.
struct Progress {
    what: &'static str,
    total: usize,
    start: Instant,
    last: Instant,
}

impl Progress {
    fn new(what: &'static str, total: usize) -> Self {
        let now = Instant::now();
        Self {
            what,
            total,
            start: now,
            last: now,
        }
    }

    fn done(&mut self, count: usize) {
        if self.last.elapsed() >= PROGRESS && count < self.total {
            println!(
                "{} {count} of {}, {:.1} s",
                self.what,
                self.total,
                self.start.elapsed().as_secs_f64()
            );
            self.last = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use command_line::Request;

    use super::*;

    #[test]
    fn every_round_is_verified_and_placed() {
        for first_touch in ["worker", "master", "demand"] {
            for (line, verified) in [("--realloc", 5), ("", 1)] {
                let line = format!("--n 16x12x10 --threads 7 --repeat 5 --first-touch {first_touch} {line}");
                let Ok(Request::Run(options)) = Options::parse(line.split_whitespace()) else {
                    panic!("{line}");
                };
                let mut program = Program::new(options).expect("the options can be obeyed");
                program
                    .transform(options.problem.size())
                    .expect("there is memory");
                let report = serde_json::to_value(&program.report).expect("it has a form");
                assert_eq!(report["checks"][1]["count"], verified, "{line}: {report}");
                assert_eq!(report["checks"][1]["passed"], true, "{line}: {report}");
                assert_eq!(report["transforms"], 11, "{line}: {report}");
                let pages = report["pages"].as_array().expect("a list");
                let grid_bytes = 16 * 12 * 10 * size_of::<Complex>() as u64;
                let placed = pages.iter().map(|pages| {
                    pages["count"].as_u64().expect("a number")
                        * pages["page_bytes"].as_u64().expect("a number")
                });
                assert!(placed.sum::<u64>() >= grid_bytes, "{line}: {report}");
            }
        }
    }
}
