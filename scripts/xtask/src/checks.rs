//! `cargo xtask test`: runs every check of the source tree, in steps that are named and timed.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::build;
use crate::setup::{self, Need};
use crate::workspace::{self, Package};

/// The package whose tests boot images.
const BOOT_TESTS: &str = "boot-tests";

/// The package of the simulated machine: too slow without optimisation.
const SIMULATION: &str = "simulation";

/// How many operations the simulated machine does.
const SIMULATION_STEPS: &str = "1000000";

/// Which checks to run.
#[derive(Clone, Debug, clap::Args)]
pub struct Selection {
    /// Run what needs no emulator: format, clippy and the host tests
    #[arg(long, conflicts_with = "boot_only")]
    pub host_only: bool,

    /// Run the boot tests alone
    #[arg(long)]
    pub boot_only: bool,

    /// Go on after a step that failed
    #[arg(long)]
    pub keep_going: bool,

    /// Run only the tests whose names contain this text; format and clippy are then left out
    pub filter: Option<String>,
}

/// A step: a call of cargo.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    name: &'static str,
    arguments: Vec<String>,
    /// What to compile for.
    target: Target,
}

/// What a step's packages are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Host,
    /// The bare machine.
    Bare,
    /// Loom's models: the host, with `--cfg loom`, in a target directory of its own.
    Loom,
}

impl Step {
    fn new(name: &'static str, subcommand: &str, packages: &[String], options: &[&str]) -> Self {
        let mut arguments = vec![subcommand.to_owned()];
        arguments.extend(packages.iter().map(|package| format!("--package={package}")));
        arguments.extend(options.iter().map(ToString::to_string));
        Self {
            name,
            arguments,
            target: Target::Host,
        }
    }

    /// Appends what cargo passes on to the tool that it calls.
    fn passing_on(mut self, options: &[&str]) -> Self {
        if !options.is_empty() {
            self.arguments.push("--".to_owned());
            self.arguments.extend(options.iter().map(ToString::to_string));
        }
        self
    }

    fn succeeds(&self) -> Result<bool> {
        let mut cargo = workspace::cargo();
        let (subcommand, rest) = self
            .arguments
            .split_first()
            .context("a step calls a subcommand of cargo")?;
        cargo.arg(subcommand);
        match self.target {
            Target::Host => {}
            Target::Bare => build::set_image_flags(&mut cargo),
            Target::Loom => {
                cargo
                    .env("CARGO_TARGET_DIR", workspace::target_dir().join("loom"))
                    .env("CARGO_ENCODED_RUSTFLAGS", "--cfg\u{1f}loom");
            }
        }
        let status = cargo.args(rest).status().context("cannot start cargo")?;
        Ok(status.success())
    }
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Passed(Duration),
    Failed(Duration),
    Skipped,
}

/// Runs the selected checks; `true` if all passed.
///
/// # Errors
/// If a check can not be started, or something that it needs is missing and can not be installed.
pub fn run(selection: &Selection) -> Result<bool> {
    let mut needs = vec![Need::Linker];
    if !selection.host_only {
        needs.extend([Need::Qemu, Need::Promtool]);
    }
    setup::ensure_met(&needs)?;

    let steps = steps(selection, &workspace::packages()?);
    let count = steps.len();
    let mut verdicts = Vec::new();
    let mut stopped = false;
    for (index, step) in steps.into_iter().enumerate() {
        if stopped {
            verdicts.push((step.name, Verdict::Skipped));
            continue;
        }
        eprintln!("\n== {}/{count}: {}", index + 1, step.name);
        let started = Instant::now();
        let passed = step.succeeds()?;
        let time = started.elapsed();
        verdicts.push((
            step.name,
            if passed {
                Verdict::Passed(time)
            } else {
                Verdict::Failed(time)
            },
        ));
        stopped = !passed && !selection.keep_going;
    }
    eprintln!("\n{}", summary(&verdicts));
    Ok(verdicts
        .iter()
        .all(|(_, verdict)| matches!(verdict, Verdict::Passed(_))))
}

/// The steps of `selection`. A package that has the feature `hosted` is checked twice, for the host and for the bare machine.
fn steps(selection: &Selection, packages: &[Package]) -> Vec<Step> {
    let names = |wanted: &dyn Fn(&Package) -> bool| -> Vec<String> {
        packages
            .iter()
            .filter(|package| wanted(package))
            .map(|package| package.name.clone())
            .collect()
    };
    let host = names(&|package| !package.has_hosted);
    let host_tested =
        names(&|package| !package.has_hosted && ![BOOT_TESTS, SIMULATION].contains(&package.name.as_str()));
    let hosted = names(&|package| package.has_hosted);
    let boot_tests = [BOOT_TESTS.to_owned()];
    let deny = ["-D", "warnings"];
    let filter: Vec<&str> = selection.filter.as_deref().into_iter().collect();

    let mut steps = Vec::new();
    if !selection.boot_only && filter.is_empty() {
        let on_host = ["--all-targets", "--features=hosted"];
        let mut bare = Step::new(
            "clippy, kernel and applications, bare machine",
            "clippy",
            &hosted,
            &[],
        );
        bare.target = Target::Bare;
        steps.extend([
            Step::new("format", "fmt", &[], &["--all", "--check"]),
            Step::new("clippy, host crates", "clippy", &host, &["--all-targets"]).passing_on(&deny),
            Step::new(
                "clippy, kernel and applications, hosted",
                "clippy",
                &hosted,
                &on_host,
            )
            .passing_on(&deny),
            bare.passing_on(&deny),
        ]);
    }
    if !selection.boot_only {
        let features = ["--features=hosted"];
        steps.extend([
            Step::new("tests, host crates", "test", &host_tested, &[]).passing_on(&filter),
            Step::new(
                "tests, kernel and applications, hosted",
                "test",
                &hosted,
                &features,
            )
            .passing_on(&filter),
        ]);
        let simulation = [SIMULATION.to_owned()];
        let mut loom = Step::new(
            "loom's models of the memory manager",
            "test",
            &["homenode-mm".to_owned()],
            &["--release", "--test=loom"],
        );
        loom.target = Target::Loom;
        steps.extend([
            Step::new("tests, simulated machine", "test", &simulation, &["--release"]).passing_on(&filter),
            loom.passing_on(&filter),
        ]);
        if filter.is_empty() {
            let run = Step::new(
                "a million steps of the simulated machine",
                "run",
                &simulation,
                &["--release"],
            );
            steps.push(run.passing_on(&["--steps", SIMULATION_STEPS]));
        }
    }
    if !selection.host_only {
        steps.push(Step::new("boot tests", "test", &boot_tests, &[]).passing_on(&filter));
    }
    steps
}

/// One line for each step, and one for all.
fn summary(verdicts: &[(&str, Verdict)]) -> String {
    let mut text = String::new();
    let mut total = Duration::ZERO;
    let mut failed = 0;
    for (name, verdict) in verdicts {
        let (word, time) = match verdict {
            Verdict::Passed(time) => ("ok", *time),
            Verdict::Failed(time) => ("FAILED", *time),
            Verdict::Skipped => ("skipped", Duration::ZERO),
        };
        failed += usize::from(matches!(verdict, Verdict::Failed(_)));
        total += time;
        text += &format!("{word:<8}{:>7.1} s  {name}\n", time.as_secs_f64());
    }
    let result = if failed == 0 {
        "all passed".to_owned()
    } else {
        format!("{failed} failed")
    };
    text + &format!("cargo xtask test: {result}, {:.1} s", total.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(host_only: bool, boot_only: bool, filter: Option<&str>) -> Selection {
        Selection {
            host_only,
            boot_only,
            keep_going: false,
            filter: filter.map(str::to_owned),
        }
    }

    fn lines(selection: &Selection) -> Vec<String> {
        let package = |name: &str, is_application, has_hosted| Package {
            name: name.to_owned(),
            is_application,
            has_hosted,
        };
        let packages = [
            package("boot-tests", false, false),
            package("hello", true, true),
            package("homenode", false, true),
            package("homenode-mm", false, false),
        ];
        let line = |step: &Step| {
            let target = match step.target {
                Target::Host => "",
                Target::Bare => "bare ",
                Target::Loom => "loom ",
            };
            format!("{target}{}", step.arguments.join(" "))
        };
        steps(selection, &packages).iter().map(line).collect()
    }

    #[test]
    fn everything_is_checked_where_it_belongs() {
        assert_eq!(
            lines(&selection(false, false, None)),
            [
                "fmt --all --check",
                "clippy --package=boot-tests --package=homenode-mm --all-targets -- -D warnings",
                "clippy --package=hello --package=homenode --all-targets --features=hosted -- -D warnings",
                "bare clippy --package=hello --package=homenode -- -D warnings",
                "test --package=homenode-mm",
                "test --package=hello --package=homenode --features=hosted",
                "test --package=simulation --release",
                "loom test --package=homenode-mm --release --test=loom",
                "run --package=simulation --release -- --steps 1000000",
                "test --package=boot-tests",
            ]
        );
    }

    #[test]
    fn a_part_can_be_selected() {
        assert_eq!(
            lines(&selection(false, true, None)),
            ["test --package=boot-tests"]
        );
        assert_eq!(lines(&selection(true, false, None)).len(), 9);
        assert_eq!(
            lines(&selection(true, false, Some("buddy"))),
            [
                "test --package=homenode-mm -- buddy",
                "test --package=hello --package=homenode --features=hosted -- buddy",
                "test --package=simulation --release -- buddy",
                "loom test --package=homenode-mm --release --test=loom -- buddy",
            ]
        );
    }

    #[test]
    fn the_summary_counts_and_adds() {
        let second = Duration::from_secs(1);
        let verdicts = [
            ("a", Verdict::Passed(second)),
            ("b", Verdict::Failed(second)),
            ("c", Verdict::Skipped),
        ];
        assert_eq!(
            summary(&verdicts),
            "ok          1.0 s  a\nFAILED      1.0 s  b\nskipped     0.0 s  c\ncargo xtask test: 1 failed, 2.0 s"
        );
        assert!(summary(&verdicts[..1]).ends_with("all passed, 1.0 s"));
    }
}
