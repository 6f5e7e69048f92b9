//! The command line of `cargo xtask`.

use std::io::Write as _;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Result;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use crate::bench;
use crate::build::{self, Image};
use crate::checks;
use crate::command_line;
use crate::compare;
use crate::console::Sink;
use crate::emulator::{Launch, Network, failure_json};
use crate::machine::Machine;
use crate::mutants;
use crate::output;
use crate::qemu::AcceleratorChoice;
use crate::record::End;
use crate::setup::{self, Need};

/// The exit status of `run` when xtask or QEMU fails, as distinct from the guest.
const OWN_FAILURE: u8 = 125;

/// Builds, runs and tests Homenode images.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    after_help = "\
Examples:
  cargo xtask run fft3d       build fft3d and boot it on 4 nodes, 8 CPUs and 4 GiB
  cargo xtask build hello     print the path of hello's bootable image
  cargo xtask test            run every check

`cargo xtask COMMAND --help` says more about each."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build an application's bootable image and print its path
    #[command(after_help = "\
The image is target/image/APP.elf, an ELF file with a PVH entry, which `qemu-system-x86_64 -kernel` boots. It contains the \
names of its functions, for backtraces, and no debug information. The same file with line numbers, for addr2line and debuggers, \
is target/image/x86_64-unknown-linux-gnu/image/APP. (CARGO_TARGET_DIR moves both.) There is one profile, an optimised one. The \
path is all that goes to standard output.

Examples:
  cargo xtask build hello
  qemu-system-x86_64 -machine q35 -cpu max -m 1G -smp 4 -nographic -kernel \"$(cargo xtask build hello)\"")]
    Build {
        /// A package under apps/, or `guest`, the boot tests' application
        app: String,
    },

    /// Build an application's image, boot it in QEMU, and exit with the application's status
    #[command(after_help = "\
Exit status:
  N    the application's own: it ended with status N
  101  the guest panicked
  102  a CPU exception stopped the guest
  103  the kernel did not boot, as with an impossible topology; its last lines say why
  104  the machine was reset and left no record: a triple fault
  124  the guest ran past --timeout
  125  nothing could be run: wrong options, a failed build, a port in use, or QEMU failed
  130  interrupted by ctrl-C
  A message on standard error tells these from an application's own status.

The guest's console goes to standard output, byte for byte (on a terminal, control characters are shown as ^X). All else goes \
to standard error. While the guest runs, its metrics are at http://127.0.0.1:9100/metrics (see --metrics-port). The environment \
variable QEMU names another QEMU program than qemu-system-x86_64; QEMU 7.2 is the oldest that works.

Examples:
  cargo xtask run hello
  cargo xtask run fft3d -- --n 128
  cargo xtask run fft3d --nodes 2 --cpus 4 --distance 0:1:25 -- --npb S
  cargo xtask run fft3d --nodes 2 --cpuless 1 --memory 3G --timeout 300
  cargo xtask run fft3d --no-acpi-numa --cpus 4 --memory 2G --cmdline \"numa=fake=2 log=debug\"
  cargo xtask run fft3d --json --metrics-port 0 -- --n 64 --json")]
    Run(Box<RunOptions>),

    /// Count what operations cost, on emulated machines of several sizes
    #[command(after_help = "\
The application apps/bench boots under the referee plugin, which counts its instructions phase by phase from outside, on one machine \
for each number of CPUs. Progress goes to standard error, the table or the JSON to standard output. When docs/results has a result \
of the same benchmark, a change of more than a tenth in kernel instructions per operation is told as a warning. With --numa, the \
table has accesses to local and remote memory, and writes to cache lines that another CPU wrote last. With --linux, the same \
benchmark runs on Linux; `cargo xtask compare` shows both kernels side by side.

Examples:
  cargo xtask bench faults --cpus-list 1,8
  cargo xtask bench faults --cmdline ptlock=coarse
  cargo xtask bench message --numa --cpus-list 8
  cargo xtask bench unmap --linux
  cargo xtask bench barrier --save && cargo xtask results")]
    Bench(Box<bench::Options>),

    /// Make the page docs/results/README.md and its plots anew from the result files beside it
    #[command(after_help = "\
A host test checks that the page is what the files say. `cargo xtask bench NAME --save` writes a file.

Examples:
  cargo xtask results")]
    Results,

    /// Run the same benchmark on Homenode and on Linux, and print what each needed, side by side
    #[command(after_help = "\
Both kernels boot on the same emulated machine, one after the other, under the referee plugin, which counts instructions phase by \
phase from outside. The application is built twice from one source: as an image, and statically for Linux, where an initramfs \
runs it. Linux is Debian's kernel for virtual machines, which is downloaded once and not installed. docs/measuring.md says how \
to read the figures. Consoles and progress go to standard error, the result to standard output.

Examples:
  cargo xtask compare faults
  cargo xtask compare unmap --cpus 4 --nodes 2
  cargo xtask compare fft3d --json -- --n 32
  cargo xtask compare grid --linux-cmdline numa_balancing=disable")]
    Compare(Box<compare::Options>),

    /// Run every check: format, clippy, host tests, boot tests
    #[command(after_help = "\
Steps run in order and stop at the first that fails, unless --keep-going is given; a summary with times comes last. The boot \
tests need QEMU and promtool, which `cargo xtask setup` installs when they are missing.

Examples:
  cargo xtask test
  cargo xtask test --host-only
  cargo xtask test --boot-only topology")]
    Test(checks::Selection),

    /// Break a copy of the sources, one rule at a time, and check that the tests notice
    #[command(after_help = "\
A mutant is a patch under tests/mutants, whose first lines say what it breaks and who has to notice: the memory manager's own \
tests (unit), its loom models, or the simulated machine. Each is applied in turn to a copy of the sources, the files that git \
knows or would add, under Cargo's target folder, where also the log of each is kept. First, the sources must pass as they are. \
Progress goes to standard error, the table to standard output. The exit status is 0 if every mutant was killed; it is 1 if one \
survived, or does not apply, or does not build.

Examples:
  cargo xtask mutants --list
  cargo xtask mutants
  cargo xtask mutants stray-check-fault")]
    Mutants(mutants::Options),

    /// Install the outside programs that building, running and testing need
    #[command(after_help = "\
On Debian and its relatives, packages are installed with apt-get, which needs root; without it, the commands to run are \
printed. Where the release's own QEMU is too old, the one of its backports is taken, from a package source that is derived from \
those of this machine. promtool, whose package would start a service, and Linux are unpacked into Cargo's target folder. On \
other systems, the list says what to install by hand.

Examples:
  cargo xtask setup --check
  cargo xtask setup --bench --compare")]
    Setup {
        /// Only say what is there and what is missing; the exit status is 1 if something is missing
        #[arg(long)]
        check: bool,

        /// Install FFTW too, which the benchmark of fft3d compares itself with
        #[arg(long)]
        bench: bool,

        /// Download the Linux kernel too, which `cargo xtask compare` boots and downloads by itself otherwise
        #[arg(long)]
        compare: bool,
    },
}

#[derive(Debug, Args)]
struct RunOptions {
    /// A package under apps/, or `guest`, the boot tests' application
    app: String,

    /// Words for the kernel's command line, as in "numa=fake=2 log=debug"
    #[arg(long, value_name = "WORDS", default_value = "", hide_default_value = true)]
    cmdline: String,

    /// What executes the guest's instructions
    #[arg(long, value_name = "ACCELERATOR", value_enum, default_value_t)]
    accel: AcceleratorChoice,

    /// Port of 127.0.0.1 that leads to the guest's metrics. 0: any free one; none: no network card at all [default: 9100]
    #[arg(long, value_name = "P")]
    metrics_port: Option<MetricsPort>,

    /// A further argument for QEMU, as in --qemu-arg=-d --qemu-arg=int [repeatable]
    #[arg(long = "qemu-arg", value_name = "X", allow_hyphen_values = true)]
    qemu_arguments: Vec<String>,

    /// Stop a guest that runs longer than this, with status 124
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, allow_negative_numbers = true)]
    timeout: Option<Duration>,

    /// Print one line of JSON and nothing else to standard output: {"status":…,"cause":…,"seconds":…,"app":…}, where app is the
    /// last line of JSON that the application printed, or null. With status 125 there is also "error", which says what failed.
    /// The console goes to standard error
    #[arg(long)]
    json: bool,

    /// Arguments for the application
    #[arg(last = true, value_name = "APP ARGS")]
    arguments: Vec<String>,

    // Last, since its heading would hold for what follows it.
    #[command(flatten)]
    machine: Machine,
}

/// The value of `--metrics-port`.
#[derive(Clone, Copy, Debug)]
struct MetricsPort(Network);

impl FromStr for MetricsPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(Network::None)),
            "0" => Ok(Self(Network::FreePort)),
            _ => match text.parse() {
                Ok(port) => Ok(Self(Network::Port(port))),
                Err(_) => Err("it is neither a port (1 to 65535), nor 0 (any free one), nor none".to_owned()),
            },
        }
    }
}

pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse::<f64>()
        .map_err(|_| "it is not a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("it must be a positive number of seconds".to_owned()),
    }
}

/// Parses the command line, does what it says, and returns the status to exit with.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(misused(error)),
    };
    let (failure, is_json) = match &cli.command {
        Command::Run(options) => (OWN_FAILURE, options.json),
        _ => (1, false),
    };
    match dispatch(cli.command) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("error: {error:#}");
            if is_json {
                tell_json(&format!("{error:#}"));
            }
            ExitCode::from(failure)
        }
    }
}

/// The line of JSON of a `run --json` that failed.
fn tell_json(error: &str) {
    // The error itself is on standard error, and may be that standard output can not be written to.
    let _ = output::line(&failure_json(OWN_FAILURE, error));
}

/// Prints the help that was asked for, or what is wrong with the command line, and returns the status.
fn misused(mut error: clap::Error) -> u8 {
    add_remedy(&mut error);
    if !error.use_stderr() {
        return match error.print().and_then(|()| std::io::stdout().flush()) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("error: cannot write to standard output: {error}");
                1
            }
        };
    }
    // Nothing is left to tell if the message itself can not be written.
    let _ = error.print();
    let words = || std::env::args().skip(1).take_while(|word| word != "--");
    if words().next().is_none_or(|command| command != "run") {
        return 2;
    }
    if words().any(|word| word == "--json") {
        tell_json(error.render().to_string().trim_end());
    }
    OWN_FAILURE
}

/// Says what to do instead where options contradict each other.
fn add_remedy(error: &mut clap::Error) {
    let names = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let is_about_firmware = [ContextKind::InvalidArg, ContextKind::PriorArg]
        .into_iter()
        .any(|kind| names(kind).contains("--no-acpi-numa"));
    if error.kind() == ErrorKind::ArgumentConflict && is_about_firmware {
        let tip = "where the firmware is silent, the kernel's command line says the nodes: --cmdline numa=fake=4, \
                   or numa=node,... and numa=dist,... (docs/command-line.md)";
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![StyledStr::from(tip)]),
        );
    }
}

fn dispatch(command: Command) -> Result<u8> {
    let passed = |passed: bool| u8::from(!passed);
    match command {
        Command::Build { app } => {
            let image = build(&app)?;
            output::line(&image.path.display().to_string())?;
            Ok(0)
        }
        Command::Run(options) => {
            crate::interrupt::install()?;
            run(*options)
        }
        Command::Compare(options) => {
            crate::interrupt::install()?;
            compare::run(&options).map(|()| 0)
        }
        Command::Bench(options) => {
            crate::interrupt::install()?;
            bench::run(&options).map(|()| 0)
        }
        Command::Results => bench::page::write().map(|()| 0),
        Command::Mutants(options) => {
            crate::interrupt::install()?;
            mutants::run(&options).map(passed)
        }
        Command::Test(selection) => checks::run(&selection).map(passed),
        Command::Setup {
            check,
            bench,
            compare,
        } => {
            let mut needs = vec![Need::Linker, Need::Qemu, Need::Promtool];
            needs.extend(bench.then_some(Need::Fftw));
            needs.extend(compare.then_some(Need::Linux));
            if check {
                return setup::report(&needs).map(passed);
            }
            setup::ensure_met(&needs)?;
            setup::report(&needs).map(passed)
        }
    }
}

/// Builds an image and says how large it is.
fn build(app: &str) -> Result<Image> {
    let image = build::build(app)?;
    let kib = |bytes: u64| bytes.div_ceil(1024);
    eprintln!(
        "image: {} KiB on disk, {} KiB in memory, of which {} KiB are function names",
        kib(image.sizes.file),
        kib(image.sizes.memory),
        kib(image.sizes.symbols)
    );
    Ok(image)
}

fn run(options: RunOptions) -> Result<u8> {
    let launch = Launch {
        command_line: command_line::join(&options.cmdline, &options.arguments)?,
        machine: options.machine,
        accelerator: options.accel,
        network: options.metrics_port.map_or(Network::DefaultPort, |port| port.0),
        qemu_arguments: options.qemu_arguments,
    };
    launch.machine.validate()?;
    let qemu = setup::qemu()?;
    let image = build(&options.app)?;

    let progress = ProgressBar::new_spinner().with_message("booting");
    progress.set_style(ProgressStyle::with_template("{spinner} {msg} ({elapsed})")?);
    progress.enable_steady_tick(Duration::from_millis(100));
    let sink = if options.json { Sink::Stderr } else { Sink::Stdout };
    let running = launch.start(&qemu, &image.path, sink, {
        let progress = progress.clone();
        move || progress.finish_and_clear()
    });
    let running = running.inspect_err(|_| progress.finish_and_clear())?;
    let network_is_off = options
        .cmdline
        .split_ascii_whitespace()
        .any(|word| word == "ip=off");
    if let Some(port) = running.metrics_port().filter(|_| !network_is_off) {
        progress.suspend(|| eprintln!("metrics: http://127.0.0.1:{port}/metrics"));
    }
    let outcome = running.finish(options.timeout)?;
    if !outcome.complaints.is_empty() {
        eprintln!("{}", outcome.complaints);
    }
    if options.json {
        output::line(&outcome.to_json())?;
    }
    if let Some(message) = outcome.end.message() {
        let limit = match (outcome.end, options.timeout) {
            (End::Timeout, Some(timeout)) => format!(" ({} s)", timeout.as_secs_f64()),
            _ => String::new(),
        };
        eprintln!("error: {message}{limit}");
    }
    Ok(outcome.end.status())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::machine::Mebibytes;

    fn run_options(line: &str) -> RunOptions {
        let words = ["xtask", "run"].into_iter().chain(line.split(' '));
        match Cli::try_parse_from(words).unwrap().command {
            Command::Run(options) => *options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_on_every_level_has_examples() {
        let mut command = Cli::command();
        command.build();
        assert!(command.render_long_help().to_string().contains("Examples:"));
        for name in [
            "bench", "build", "results", "run", "compare", "test", "mutants", "setup",
        ] {
            let help = command
                .find_subcommand_mut(name)
                .unwrap()
                .render_long_help()
                .to_string();
            assert!(
                help.contains(&format!("cargo xtask {name}")) && help.contains("Examples:"),
                "{name}: {help}"
            );
        }
    }

    #[test]
    fn the_defaults_are_four_nodes_eight_cpus_four_gibibytes() {
        let options = run_options("fft3d");
        let machine = Machine::default();
        assert_eq!((options.machine.nodes, options.machine.cpus), (4, 8));
        assert_eq!(options.machine.memory, Mebibytes(4096));
        assert_eq!(format!("{:?}", options.machine), format!("{machine:?}"));
        assert_eq!(options.timeout, None);
        assert!(options.metrics_port.is_none());
    }

    #[test]
    fn arguments_behind_two_dashes_are_the_applications() {
        let options =
            run_options("fft3d --nodes 2 --qemu-arg=-d --qemu-arg int --timeout 1.5 -- --npb S --json");
        assert_eq!(options.arguments, ["--npb", "S", "--json"]);
        assert_eq!(options.qemu_arguments, ["-d", "int"]);
        assert_eq!(options.timeout, Some(Duration::from_millis(1500)));
        assert!(!options.json);
    }

    #[test]
    fn the_metrics_port_has_two_special_values() {
        let network = |line| run_options(line).metrics_port.unwrap().0;
        assert_eq!(network("x --metrics-port 0"), Network::FreePort);
        assert_eq!(network("x --metrics-port none"), Network::None);
        assert_eq!(network("x --metrics-port 9101"), Network::Port(9101));
    }

    #[test]
    fn nodes_that_the_firmware_shall_not_tell_have_a_remedy() {
        let words = ["xtask", "run", "x", "--no-acpi-numa", "--nodes", "2"];
        let mut error = Cli::try_parse_from(words).unwrap_err();
        add_remedy(&mut error);
        let text = error.render().to_string();
        assert!(
            text.contains("--nodes") && text.contains("--cmdline numa=fake=4"),
            "{text}"
        );
    }

    #[test]
    fn contradicting_and_malformed_options_are_refused() {
        for line in [
            "x --no-acpi-numa --nodes 2",
            "x --no-acpi-numa --distance 0:1:20",
            "x --timeout 0",
            "x --timeout soon",
            "x --metrics-port 65536",
            "x --distance 0:1:5",
            "x --memory 3",
            "x --accel fast",
        ] {
            let words = ["xtask", "run"].into_iter().chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_err(), "{line}");
        }
    }
}
