//! `cargo xtask compare`: one application on Homenode and on Linux, on the same emulated machine and under the same referee.

mod proc;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use linux_init::Section;
use serde::Serialize;
use tempfile::TempDir;

use crate::bench::results::{ResultFile, Run};
use crate::bench::versions;
use crate::build;
use crate::command_line;
use crate::console::Sink;
use crate::emulator::{Launch, Network};
use crate::linux::{self, Programs};
use crate::machine::Machine;
use crate::measurement::{Measurement, Phase, Report, Skipped};
use crate::qemu::{AcceleratorChoice, Qemu};
use crate::record::End;
use crate::referee::{self, Counts, Kernel, Referee};
use crate::setup;
use crate::workspace;

/// The application that has the benchmarks.
const BENCH: &str = "bench";

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

    /// Keep what Linux needed in docs/results, in place of what is kept there for a machine of this size
    #[arg(long)]
    save: bool,

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
    #[serde(skip)]
    console: String,
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
    let homenode_words = command_line::join(&options.cmdline, &[])?;
    let qemu = setup::qemu()?;
    let linux_kernel = linux::Kernel::find(options.linux_kernel.as_deref())?;
    let (app, arguments) = options.application(&workspace::packages()?);
    ensure!(
        !options.save || app == BENCH,
        "--save: only benchmarks of apps/{BENCH} are kept, and {app} is an application of its own"
    );
    let image = build::build(&app)?;
    let programs = Programs::build(&app)?;
    let plugin = referee::build()?;

    let bench = Bench {
        options,
        qemu: &qemu,
        plugin: &plugin,
        folder: tempfile::tempdir().context("no temporary folder")?,
    };
    let homenode = bench.measure(
        "Homenode",
        &image.path,
        command_line::join(&homenode_words, &arguments)?,
        Kernel::Image(image.path.clone()),
        Vec::new(),
    )?;
    let initramfs = bench.folder.path().join("initramfs");
    fs::write(&initramfs, programs.initramfs(&arguments)?)
        .with_context(|| format!("cannot write {}", initramfs.display()))?;
    let linux = bench.measure(
        "Linux",
        &linux_kernel.path,
        format!("{} {}", linux::COMMAND_LINE, options.linux_cmdline)
            .trim_end()
            .to_owned(),
        Kernel::Linux,
        vec!["-initrd".to_owned(), initramfs.display().to_string()],
    )?;

    let section = |section: Section| {
        section.find(&linux.console).with_context(|| {
            format!(
                "the Linux guest did not show {}; its console is above",
                section.file()
            )
        })
    };
    let comparison = Comparison {
        app,
        arguments,
        machine: options
            .machine
            .arguments(qemu.accelerator(bench.accelerator())?)?,
        qemu: qemu.version.to_string(),
        linux_version: linux_kernel.version,
        vmstat: proc::vmstat(section(Section::VmstatBefore)?, section(Section::VmstatAfter)?),
        interrupts: proc::interrupts(
            section(Section::InterruptsBefore)?,
            section(Section::InterruptsAfter)?,
        ),
        homenode,
        linux,
    };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&comparison)?);
    } else {
        print!("{}", comparison.tables());
    }
    if options.save {
        let mut versions = versions(&qemu)?;
        versions.insert("linux".to_owned(), comparison.linux_version.clone());
        let result = comparison.linux_result(options, versions);
        let kept = result.kept()?;
        let result = replaced(kept, result);
        result.save()?;
        eprintln!(
            "{}: `cargo xtask results` makes the page anew",
            result.path().display()
        );
    }
    Ok(())
}

impl Comparison {
    /// What Linux needed, in the form of the results that are kept.
    fn linux_result(&self, options: &Options, versions: BTreeMap<String, String>) -> ResultFile {
        let machine = &options.machine;
        let numa = if options.numa {
            ("-numa", " --numa")
        } else {
            ("", "")
        };
        ResultFile {
            benchmark: format!("{}{}", options.name, numa.0),
            system: "linux".to_owned(),
            command: format!(
                "cargo xtask compare {} --cpus N --nodes M{} --save (for each run)",
                options.name, numa.1
            ),
            versions,
            runs: vec![Run {
                cpus: machine.cpus,
                nodes: machine.nodes,
                machine: self.machine.join(" "),
                command_line: self.linux.command_line.clone(),
                phases: self.linux.phases.clone(),
                skipped: self.linux.skipped.clone(),
            }],
        }
    }
}

/// The new result, and what was kept of machines of other sizes.
fn replaced(kept: Option<ResultFile>, mut new: ResultFile) -> ResultFile {
    let size = |run: &Run| (run.cpus, run.nodes);
    let sizes: Vec<(u32, u32)> = new.runs.iter().map(size).collect();
    let others = kept.into_iter().flat_map(|kept| kept.runs);
    new.runs.extend(others.filter(|run| !sizes.contains(&size(run))));
    new.runs.sort_by_key(size);
    new
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
        (BENCH.to_owned(), arguments)
    }
}

/// What both runs share.
struct Bench<'a> {
    options: &'a Options,
    qemu: &'a Qemu,
    plugin: &'a Path,
    folder: TempDir,
}

impl Bench<'_> {
    fn accelerator(&self) -> AcceleratorChoice {
        if self.options.numa {
            AcceleratorChoice::Tcg
        } else {
            AcceleratorChoice::TcgSingle
        }
    }

    /// Boots `file`, which is called `name` in messages, under the referee. The console goes to standard error.
    fn measure(
        &self,
        name: &str,
        file: &Path,
        command_line: String,
        kernel: Kernel,
        mut qemu_arguments: Vec<String>,
    ) -> Result<Side> {
        let referee = Referee {
            counts: if self.options.numa {
                Counts::Numa
            } else {
                Counts::Totals
            },
            kernel,
            cache: None,
        };
        let counts = self.folder.path().join(format!("{name}.json"));
        let machine = &self.options.machine;
        qemu_arguments.extend(referee.arguments(self.plugin, machine, self.folder.path(), &counts)?);
        let launch = Launch {
            machine: machine.clone(),
            accelerator: self.accelerator(),
            network: Network::None,
            command_line,
            qemu_arguments,
        };
        eprintln!("== {name}");
        let running = launch.start(self.qemu, file, Sink::Stderr, || ())?;
        let outcome = running.finish(self.options.timeout)?;
        if !outcome.complaints.is_empty() {
            eprintln!("{}", outcome.complaints);
        }
        match outcome.end {
            End::Program(0) => {}
            End::Program(status) => {
                bail!("the application failed on {name} with status {status}; its console is above")
            }
            end => bail!("{name}: {}", end.message().unwrap_or(end.cause())),
        }
        let report = fs::read_to_string(&counts)
            .with_context(|| format!("the referee left no counts of {name} in {}", counts.display()))?;
        let measurement = Measurement::new(&outcome.console, &Report::parse(&report)?)
            .with_context(|| format!("the run on {name}"))?;
        Ok(Side {
            command_line: launch.command_line,
            emulator_seconds: outcome.duration.as_secs_f64(),
            phases: measurement.phases,
            skipped: measurement.skipped,
            console: outcome.console,
        })
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
    fn a_result_replaces_that_of_a_machine_of_its_size() {
        let file = |runs: &[(u32, &str)]| ResultFile {
            benchmark: "faults".to_owned(),
            system: "linux".to_owned(),
            command: String::new(),
            versions: BTreeMap::new(),
            runs: runs
                .iter()
                .map(|&(cpus, command_line)| Run {
                    cpus,
                    nodes: 1,
                    machine: String::new(),
                    command_line: command_line.to_owned(),
                    phases: Vec::new(),
                    skipped: Vec::new(),
                })
                .collect(),
        };
        let kept = file(&[(1, "old"), (4, "old"), (8, "old")]);
        assert_eq!(
            replaced(Some(kept), file(&[(4, "new")])),
            file(&[(1, "old"), (4, "new"), (8, "old")])
        );
        assert_eq!(replaced(None, file(&[(4, "new")])), file(&[(4, "new")]));
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
