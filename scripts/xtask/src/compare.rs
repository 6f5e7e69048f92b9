//! `cargo xtask compare`: one application on Homenode and on Linux, on the same emulated machine and under the same referee.

mod proc;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use linux_init::Section;
use serde::Serialize;

use crate::bench;
use crate::command_line;
use crate::console::Sink;
use crate::machine::Machine;
use crate::measurement::{Phase, Skipped};
use crate::output;
use crate::trial::{Rig, System, Trial};
use crate::workspace;

/// The options of `cargo xtask compare`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A benchmark of apps/bench, as faults or grid, or another application under apps/ that announces its phases, as fft3d
    name: String,

    /// Words for Homenode's command line, as in "tlb.lazy=off"
    #[arg(long, value_name = "WORDS", default_value = "", hide_default_value = true)]
    cmdline: String,

    /// Further words for Linux's command line, as in "numa_balancing=disable"
    #[arg(long, value_name = "WORDS", default_value = "", hide_default_value = true)]
    linux_cmdline: String,

    /// Boot this Linux kernel (a bzImage) instead of Debian's
    #[arg(long, value_name = "FILE")]
    linux_kernel: Option<PathBuf>,

    /// Count accesses to each node's memory too. One thread emulates each CPU then, so that instructions contain waiting in
    /// loops, and differ from run to run
    #[arg(long)]
    numa: bool,

    /// Stop a guest that runs longer than this
    #[arg(long, value_name = "SECONDS", value_parser = crate::cli::parse_seconds)]
    timeout: Option<Duration>,

    /// Print one JSON document instead of tables
    #[arg(long)]
    json: bool,

    /// Further arguments for the application
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,

    // Last, since its heading would hold for what follows it.
    #[command(flatten)]
    machine: Machine,
}

/// What one kernel needed.
#[derive(Clone, Debug, Serialize)]
struct Side {
    /// The kernel's command line.
    command_line: String,
    /// How long the emulator ran; this says little about the guest.
    emulator_seconds: f64,
    phases: Vec<Phase>,
    skipped: Vec<Skipped>,
}

impl From<Trial> for Side {
    fn from(trial: Trial) -> Self {
        Self {
            command_line: trial.command_line,
            emulator_seconds: trial.duration.as_secs_f64(),
            phases: trial.measurement.phases,
            skipped: trial.measurement.skipped,
        }
    }
}

/// The result of a comparison, as it is printed with `--json`.
#[derive(Clone, Debug, Serialize)]
struct Comparison {
    app: String,
    arguments: Vec<String>,
    /// QEMU's arguments that describe the machine.
    machine: Vec<String>,
    qemu: String,
    homenode: Side,
    linux: Side,
    linux_version: String,
    vmstat: Vec<proc::Row>,
    interrupts: Vec<proc::Interrupt>,
}

/// Runs the application on both kernels and prints what each needed.
///
/// # Errors
/// If something can not be built or run, if the application fails on one of the kernels, or if the referee's counts do not fit it.
pub fn run(options: &Options) -> Result<()> {
    options.machine.validate()?;
    command_line::join(&options.cmdline, &[])?;
    let (app, arguments) = options.application(&workspace::packages()?);
    let (homenode, linux) = (
        System::homenode(&app)?,
        System::linux(&app, options.linux_kernel.as_deref())?,
    );
    let rig = Rig::new(options.numa, Sink::Stderr, options.timeout)?;
    let measure = |system: &System, words: &str| {
        eprintln!("== {}", system.name());
        rig.run(system, &options.machine, words, &arguments)
    };
    let (ours, theirs) = (
        measure(&homenode, &options.cmdline)?,
        measure(&linux, &options.linux_cmdline)?,
    );

    let section = |section: Section| {
        section.find(&theirs.console).with_context(|| {
            format!(
                "the Linux guest did not show {}; its console is above",
                section.file()
            )
        })
    };
    let comparison = Comparison {
        machine: rig.describe(&options.machine)?,
        qemu: rig.qemu.version.to_string(),
        linux_version: linux.linux_version().unwrap_or_default().to_owned(),
        vmstat: proc::vmstat(section(Section::VmstatBefore)?, section(Section::VmstatAfter)?),
        interrupts: proc::interrupts(
            section(Section::InterruptsBefore)?,
            section(Section::InterruptsAfter)?,
        ),
        homenode: ours.into(),
        linux: theirs.into(),
        app,
        arguments,
    };
    if options.json {
        output::line(&serde_json::to_string_pretty(&comparison)?)
    } else {
        output::text(&comparison.tables())
    }
}

impl Options {
    /// The application and its arguments: the name is a package's, or else a benchmark's of `bench`.
    fn application(&self, packages: &[workspace::Package]) -> (String, Vec<String>) {
        let is_application = packages
            .iter()
            .any(|package| package.is_application && package.name == self.name);
        if is_application {
            return (self.name.clone(), self.arguments.clone());
        }
        let mut arguments = vec![self.name.clone()];
        arguments.extend_from_slice(&self.arguments);
        (bench::APPLICATION.to_owned(), arguments)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn a_name_is_an_applications_or_a_benchmarks() {
        let packages = [("fft3d", true), ("xtask", false)].map(|(name, is_application)| workspace::Package {
            name: name.to_owned(),
            is_application,
            has_hosted: is_application,
        });
        let application = |line: &str| {
            let line = Line::try_parse_from(["compare"].into_iter().chain(line.split(' '))).unwrap();
            let (app, arguments) = line.options.application(&packages);
            format!("{app} {}", arguments.join(" "))
        };
        assert_eq!(application("fft3d -- --n 32"), "fft3d --n 32");
        assert_eq!(application("faults --cpus 4 -- --quick"), "bench faults --quick");
        // The name of a package that is no application.
        assert_eq!(application("xtask"), "bench xtask");
    }
}
