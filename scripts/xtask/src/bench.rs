//! `cargo xtask bench`: boots the application `bench` under the referee, on machines of several sizes, and says what operations cost.

pub mod page;
mod plot;
pub mod results;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use self::results::{ResultFile, Run};
use crate::console::Sink;
use crate::machine::{Machine, Mebibytes};
use crate::output;
use crate::qemu::Qemu;
use crate::trial::{Rig, System, Trial};

/// The application that is measured.
pub(crate) const APPLICATION: &str = "bench";

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

    /// Words for the kernel's command line, as in "ptlock=coarse". A result with words is kept beside the one without
    #[arg(long, value_name = "WORDS", default_value = "", hide_default_value = true)]
    pub cmdline: String,

    /// Measure Linux instead of Homenode; --cmdline then adds to Linux's command line
    #[arg(long)]
    pub linux: bool,

    /// Boot this Linux kernel (a bzImage) instead of Debian's
    #[arg(long, value_name = "FILE", requires = "linux")]
    pub linux_kernel: Option<PathBuf>,

    /// Count accesses to local and remote memory, and writes to shared lines, with a thread for each CPU: slow, and the
    /// instructions contain spinning
    #[arg(long)]
    pub numa: bool,

    /// Print the result as JSON, and nothing else, to standard output
    #[arg(long)]
    pub json: bool,

    /// Keep the result in docs/results, whose page `cargo xtask results` then makes anew. Runs that were kept of machines of other
    /// sizes stay, if the same command and versions made them
    #[arg(long)]
    pub save: bool,

    /// Give up when a machine runs longer than this
    #[arg(long, value_name = "SECONDS", value_parser = crate::cli::parse_seconds, default_value = "1800")]
    pub timeout: Duration,
}

impl Options {
    /// The command that these options stand for, on machines of these numbers of CPUs, without what only says where the result goes.
    fn command(&self, cpus_list: &[u32]) -> String {
        let cpus: Vec<String> = cpus_list.iter().map(ToString::to_string).collect();
        let mut command = format!(
            "cargo xtask bench {} --cpus-list {} --nodes {} --memory {}M",
            self.name,
            cpus.join(","),
            self.nodes,
            self.memory.0
        );
        if self.linux {
            command += " --linux";
        }
        if self.numa {
            command += " --numa";
        }
        if !self.cmdline.trim().is_empty() {
            command += &format!(" --cmdline \"{}\"", self.cmdline.trim());
        }
        command
    }

    /// What the result calls the system.
    fn system(&self) -> String {
        let name = if self.linux { "linux" } else { results::HOMENODE };
        format!("{name} {}", self.cmdline.trim()).trim_end().to_owned()
    }

    fn machine(&self, cpus: u32) -> Machine {
        Machine {
            nodes: self.nodes.min(cpus),
            cpus,
            memory: self.memory,
            ..Machine::default()
        }
    }

    /// The runs of `kept`, which the same command made, and those of `new`, which replace them where machines are of the same size.
    fn merged(&self, mut new: ResultFile, kept: Option<&ResultFile>) -> ResultFile {
        let is_same =
            |kept: &&ResultFile| kept.command == self.command(&kept.cpus()) && kept.versions == new.versions;
        let old = kept
            .filter(is_same)
            .map(|kept| kept.runs.as_slice())
            .unwrap_or_default();
        let measured = new.cpus();
        new.runs
            .extend(old.iter().filter(|run| !measured.contains(&run.cpus)).cloned());
        new.runs.sort_by_key(|run| run.cpus);
        new.command = self.command(&new.cpus());
        new
    }
}

/// Measures, prints, and compares with the result that is kept.
///
/// # Errors
/// If something does not build or boot, the application fails, or a file can not be read or written.
pub fn run(options: &Options) -> Result<()> {
    ensure!(!options.cpus_list.is_empty(), "--cpus-list is empty");
    for &cpus in &options.cpus_list {
        options.machine(cpus).validate()?;
    }
    let result = measure(options)?;
    if options.json {
        output::line(&serde_json::to_string(&result)?)?;
    } else {
        output::line(&result.table())?;
    }
    let kept = result.kept()?;
    if let Some(kept) = &kept {
        for change in result.changes(kept) {
            eprintln!("warning: {change}");
        }
    }
    if options.save {
        let result = options.merged(result, kept.as_ref());
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
    let system = if options.linux {
        System::linux(APPLICATION, options.linux_kernel.as_deref())?
    } else {
        System::homenode(APPLICATION)?
    };
    let rig = Rig::new(options.numa, Sink::Nowhere, Some(options.timeout))?;
    let mut runs = Vec::new();
    for &cpus in &options.cpus_list {
        eprintln!("{} on {cpus} CPUs", options.name);
        let machine = options.machine(cpus);
        let Trial {
            command_line,
            measurement,
            ..
        } = rig.run(
            &system,
            &machine,
            &options.cmdline,
            std::slice::from_ref(&options.name),
        )?;
        runs.push(Run {
            cpus,
            nodes: machine.nodes,
            machine: rig.describe(&machine)?.join(" "),
            command_line,
            phases: measurement.phases,
            skipped: measurement.skipped,
        });
    }
    let mut versions = versions(&rig.qemu)?;
    if let Some(version) = system.linux_version() {
        versions.insert("linux".to_owned(), version.to_owned());
    }
    Ok(ResultFile {
        benchmark: format!("{}{}", options.name, if options.numa { "-numa" } else { "" }),
        system: options.system(),
        command: options.command(&options.cpus_list),
        versions,
        runs,
    })
}

/// What takes part in a measurement, by name.
///
/// # Errors
/// If the compiler does not say its version.
fn versions(qemu: &Qemu) -> Result<BTreeMap<String, String>> {
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

    use super::results::tests::result;
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
        let asked = options(
            "cargo xtask bench faults --cpus-list 1,64 --nodes 8 --memory 16G --json --save --numa --linux",
        );
        let command = asked.command(&asked.cpus_list);
        assert_eq!(
            command,
            "cargo xtask bench faults --cpus-list 1,64 --nodes 8 --memory 16384M --linux --numa"
        );
        let again = options(&command);
        assert_eq!(again.command(&again.cpus_list), command);
        let words = options("cargo xtask bench faults --cmdline ptlock=coarse");
        assert!(words.command(&[1]).ends_with(" --cmdline \"ptlock=coarse\""));
    }

    #[test]
    fn words_make_another_system() {
        assert_eq!(options("bench faults").system(), "homenode");
        assert_eq!(
            options("bench faults --cmdline ptlock=coarse").system(),
            "homenode ptlock=coarse"
        );
        assert_eq!(options("bench faults --linux").system(), "linux");
    }

    #[test]
    fn a_small_machine_has_a_node_for_each_cpu() {
        let options = options("bench faults");
        let shape = |cpus| {
            let machine = options.machine(cpus);
            machine.validate().unwrap();
            (machine.nodes, machine.cpus)
        };
        assert_eq!(options.cpus_list, [1, 2, 4, 8]);
        assert_eq!([1, 2, 8].map(shape), [(1, 1), (2, 2), (4, 8)]);
    }

    #[test]
    fn runs_of_other_sizes_stay_if_the_same_command_made_them() {
        let options = options("bench unmap");
        let with = |cpus: &[u32], kernel: u64| {
            let mut file = result("homenode", [kernel, kernel]);
            file.runs.retain(|run| cpus.contains(&run.cpus));
            file.command = options.command(&file.cpus());
            file
        };
        let (kept, new) = (with(&[1, 2], 10), with(&[2], 20));
        let costs = |file: &ResultFile| -> Vec<(u32, u64)> {
            let cost = |run: &Run| (run.cpus, run.phases[0].instructions.kernel);
            file.runs.iter().map(cost).collect()
        };
        let merged = options.merged(new.clone(), Some(&kept));
        assert_eq!(costs(&merged), [(1, 10), (2, 20)]);
        assert_eq!(merged.command, options.command(&[1, 2]));

        let mut other = kept.clone();
        other.command += " --numa";
        assert_eq!(costs(&options.merged(new.clone(), Some(&other))), [(2, 20)]);
        let mut older = kept;
        older.versions.insert("qemu".to_owned(), "9.2".to_owned());
        assert_eq!(costs(&options.merged(new.clone(), Some(&older))), [(2, 20)]);
        assert_eq!(costs(&options.merged(new, None)), [(2, 20)]);
    }
}
