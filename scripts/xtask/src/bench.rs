//! `cargo xtask bench`: boots the application `bench` under the referee, on machines of several sizes, and says what operations cost.

pub mod page;
mod plot;
pub mod results;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use self::results::{ResultFile, Run};
use crate::console::Sink;
use crate::emulator::{Launch, Network};
use crate::machine::{Machine, Mebibytes};
use crate::measurement::{Measurement, Report};
use crate::qemu::{Accelerator, AcceleratorChoice, Qemu};
use crate::record::End;
use crate::referee::{self, Counts, Kernel, Referee};
use crate::{build, command_line, setup};

/// The application that is measured.
const APPLICATION: &str = "bench";

/// What `cargo xtask bench` is to do.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// A group of benchmarks; `cargo xtask run bench -- --help` lists them
    pub name: String,

    /// Numbers of CPUs, a machine for each
    #[arg(long, value_name = "CPUS", value_delimiter = ',', default_value = "1,2,4,8")]
    pub cpus_list: Vec<u32>,

    /// Number of nodes; a machine with fewer CPUs has as many as it has CPUs
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub nodes: u32,

    /// Memory of each machine
    #[arg(long, value_name = "TOTAL", default_value = "4G")]
    pub memory: Mebibytes,

    /// Count accesses to local and remote memory too, with a thread for each CPU: slow, and the instructions contain spinning
    #[arg(long)]
    pub numa: bool,

    /// Print the result as JSON, and nothing else, to standard output
    #[arg(long)]
    pub json: bool,

    /// Keep the result in docs/results, whose page `cargo xtask results` then makes anew
    #[arg(long)]
    pub save: bool,

    /// Give up when a machine runs longer than this
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    pub timeout: u64,
}

impl Options {
    fn referee_counts(&self) -> Counts {
        if self.numa { Counts::Numa } else { Counts::Totals }
    }

    /// One thread for all CPUs makes totals repeatable; whose memory is accessed is known only with a thread for each CPU.
    fn accelerator(&self) -> (AcceleratorChoice, Accelerator) {
        if self.numa {
            (AcceleratorChoice::Tcg, Accelerator::TcgMulti)
        } else {
            (AcceleratorChoice::TcgSingle, Accelerator::TcgSingle)
        }
    }

    /// The command that these options stand for, without what only says where the result goes.
    fn command(&self) -> String {
        let cpus: Vec<String> = self.cpus_list.iter().map(ToString::to_string).collect();
        let numa = if self.numa { " --numa" } else { "" };
        format!(
            "cargo xtask bench {} --cpus-list {} --nodes {} --memory {}M{numa}",
            self.name,
            cpus.join(","),
            self.nodes,
            self.memory.0
        )
    }
}

/// Measures, prints, and compares with the result that is kept.
///
/// # Errors
/// If something does not build or boot, the application fails, or a file can not be read or written.
pub fn run(options: &Options) -> Result<()> {
    ensure!(!options.cpus_list.is_empty(), "--cpus-list is empty");
    for &cpus in &options.cpus_list {
        machine(options, cpus).validate()?;
    }
    let result = measure(options)?;
    if options.json {
        println!("{}", serde_json::to_string(&result)?);
    } else {
        println!("{}", result.table());
    }
    if let Some(kept) = result.kept()? {
        for change in result.changes(&kept) {
            eprintln!("warning: {change}");
        }
    }
    if options.save {
        result.save()?;
        eprintln!(
            "{}: `cargo xtask results` makes the page anew",
            result.path().display()
        );
    }
    Ok(())
}

/// Boots each machine and puts the measurements together.
///
/// # Errors
/// As those of [`run`].
pub fn measure(options: &Options) -> Result<ResultFile> {
    let qemu = setup::qemu()?;
    let plugin = referee::build()?;
    let image = build::build(APPLICATION)?.path;
    let mut runs = Vec::new();
    for &cpus in &options.cpus_list {
        eprintln!("{} on {cpus} CPUs", options.name);
        let folder = tempfile::Builder::new().prefix("homenode-").tempdir()?;
        let (out, machine) = (folder.path().join("counts.json"), machine(options, cpus));
        let (choice, accelerator) = options.accelerator();
        let referee = Referee {
            counts: options.referee_counts(),
            kernel: Kernel::Image(image.clone()),
            cache: None,
        };
        let launch = Launch {
            command_line: command_line::join("", std::slice::from_ref(&options.name))?,
            accelerator: choice,
            // A network card would interrupt now and then.
            network: Network::None,
            qemu_arguments: referee.arguments(&plugin, &machine, folder.path(), &out)?,
            machine,
        };
        let console = boot(&launch, &qemu, &image, Duration::from_secs(options.timeout))?;
        let counts = std::fs::read_to_string(&out).context("the referee left no counts")?;
        let Measurement { phases, skipped } = Measurement::new(&console, &Report::parse(&counts)?)?;
        runs.push(Run {
            cpus,
            nodes: launch.machine.nodes,
            machine: launch.machine.arguments(accelerator)?.join(" "),
            command_line: launch.command_line.trim().to_owned(),
            phases,
            skipped,
        });
    }
    Ok(ResultFile {
        benchmark: format!("{}{}", options.name, if options.numa { "-numa" } else { "" }),
        system: "homenode".to_owned(),
        command: options.command(),
        versions: versions(&qemu)?,
        runs,
    })
}

fn machine(options: &Options, cpus: u32) -> Machine {
    Machine {
        nodes: options.nodes.min(cpus),
        cpus,
        memory: options.memory,
        ..Machine::default()
    }
}

/// Runs the application to its end, which must be a good one, and returns what it wrote.
fn boot(launch: &Launch, qemu: &Qemu, image: &std::path::Path, timeout: Duration) -> Result<String> {
    let running = launch.start(qemu, image, Sink::Nowhere, || ())?;
    let outcome = running.finish(Some(timeout))?;
    if outcome.end == End::Program(0) {
        return Ok(outcome.console);
    }
    let reason = outcome.end.message().unwrap_or("the application failed");
    bail!(
        "{reason}; the console:\n{}\n{}",
        outcome.console.trim_end(),
        outcome.complaints
    )
}

/// What takes part in a measurement, by name.
///
/// # Errors
/// If the compiler does not say its version.
pub fn versions(qemu: &Qemu) -> Result<BTreeMap<String, String>> {
    let output = Command::new("rustc")
        .arg("--version")
        .output()
        .context("cannot run rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rustc = text
        .split(' ')
        .nth(1)
        .context("`rustc --version` says no version")?;
    let versions = [
        ("homenode", env!("CARGO_PKG_VERSION").to_owned()),
        ("qemu", qemu.version.to_string()),
        ("rustc", rustc.to_owned()),
    ];
    Ok(versions.map(|(name, version)| (name.to_owned(), version)).into())
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

    fn options(line: &str) -> Options {
        Line::try_parse_from(line.split(' ')).unwrap().options
    }

    #[test]
    fn the_command_of_a_result_makes_the_same_result() {
        let options = |line: &str| options(line.strip_prefix("cargo xtask ").unwrap());
        let asked =
            options("cargo xtask bench faults --cpus-list 1,64 --nodes 8 --memory 16G --json --save --numa");
        assert_eq!(
            asked.command(),
            "cargo xtask bench faults --cpus-list 1,64 --nodes 8 --memory 16384M --numa"
        );
        assert_eq!(options(&asked.command()).command(), asked.command());
    }

    #[test]
    fn a_small_machine_has_a_node_for_each_cpu() {
        let options = options("bench faults");
        let shape = |cpus| {
            let machine = machine(&options, cpus);
            machine.validate().unwrap();
            (machine.nodes, machine.cpus)
        };
        assert_eq!(options.cpus_list, [1, 2, 4, 8]);
        assert_eq!([1, 2, 8].map(shape), [(1, 1), (2, 2), (4, 8)]);
    }
}
