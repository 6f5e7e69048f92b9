//! A run under the referee: a system with an application boots, does its phases and ends well, and what they cost is put together.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::console::Sink;
use crate::emulator::{Launch, Network};
use crate::linux::{self, Programs};
use crate::machine::Machine;
use crate::measurement::{Measurement, Report};
use crate::qemu::{Accelerator, AcceleratorChoice, Qemu};
use crate::record::End;
use crate::referee::{self, Counts, Kernel, Referee};
use crate::{build, command_line, setup};

/// A system with an application, ready to boot.
#[derive(Clone, Debug)]
pub enum System {
    /// The application's image.
    Homenode {
        /// The bootable file.
        image: PathBuf,
    },
    /// Linux, which runs the application from its initramfs.
    Linux {
        /// The kernel.
        kernel: linux::Kernel,
        /// What the initramfs has.
        programs: Programs,
    },
}

impl System {
    /// Builds the image of `app`.
    ///
    /// # Errors
    /// As those of [`build::build`].
    pub fn homenode(app: &str) -> Result<Self> {
        Ok(Self::Homenode {
            image: build::build(app)?.path,
        })
    }

    /// Builds `app` for Linux, and finds the kernel `kernel`, or Debian's.
    ///
    /// # Errors
    /// As those of [`linux::Kernel::find`] and [`Programs::build`].
    pub fn linux(app: &str, kernel: Option<&Path>) -> Result<Self> {
        Ok(Self::Linux {
            kernel: linux::Kernel::find(kernel)?,
            programs: Programs::build(app)?,
        })
    }

    /// Its name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Homenode { .. } => "Homenode",
            Self::Linux { .. } => "Linux",
        }
    }

    /// The version of a Linux kernel; nothing for Homenode, which is built from this tree.
    pub fn linux_version(&self) -> Option<&str> {
        match self {
            Self::Homenode { .. } => None,
            Self::Linux { kernel, .. } => Some(&kernel.version),
        }
    }

    /// Makes what boots, in `folder`: the kernel's file, its command line, and QEMU's further arguments.
    fn prepare(
        &self,
        words: &str,
        arguments: &[String],
        folder: &Path,
    ) -> Result<(&Path, String, Vec<String>)> {
        match self {
            Self::Homenode { image } => Ok((image, command_line::join(words, arguments)?, Vec::new())),
            Self::Linux { kernel, programs } => {
                let initramfs = folder.join("initramfs");
                fs::write(&initramfs, programs.initramfs(arguments)?)
                    .with_context(|| format!("cannot write {}", initramfs.display()))?;
                let line = format!("{} {words}", linux::COMMAND_LINE);
                let qemu_arguments = vec!["-initrd".to_owned(), initramfs.display().to_string()];
                Ok((&kernel.path, line.trim_end().to_owned(), qemu_arguments))
            }
        }
    }

    /// How the referee tells kernel and application apart.
    fn kernel(&self) -> Kernel {
        match self {
            Self::Homenode { image } => Kernel::Image(image.clone()),
            Self::Linux { .. } => Kernel::Linux,
        }
    }
}

/// An emulator with the referee in it.
#[derive(Clone, Debug)]
pub struct Rig {
    /// The emulator.
    pub qemu: Qemu,
    plugin: PathBuf,
    counts: Counts,
    sink: Sink,
    timeout: Option<Duration>,
}

/// What a run was, and what it measured.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The system's command line.
    pub command_line: String,
    /// What was measured.
    pub measurement: Measurement,
    /// What the guest wrote.
    pub console: String,
    /// How long the emulator ran, which says little about the guest.
    pub duration: Duration,
}

impl Rig {
    /// Finds QEMU and builds the referee, which counts accesses to memory too if `numa`. Consoles are passed on to `sink`; a guest that
    /// runs longer than `timeout` is stopped.
    ///
    /// # Errors
    /// If there is no fitting QEMU, or the referee does not build.
    pub fn new(numa: bool, sink: Sink, timeout: Option<Duration>) -> Result<Self> {
        let qemu = setup::qemu()?;
        referee::check(&qemu)?;
        Ok(Self {
            qemu,
            plugin: referee::build()?,
            counts: if numa { Counts::Numa } else { Counts::Totals },
            sink,
            timeout,
        })
    }

    /// One thread for all CPUs makes totals repeatable; whose memory is accessed is known only with a thread for each CPU.
    fn choice(&self) -> AcceleratorChoice {
        match self.counts {
            Counts::Totals => AcceleratorChoice::TcgSingle,
            Counts::Numa => AcceleratorChoice::Tcg,
        }
    }

    /// QEMU's arguments that describe `machine`.
    ///
    /// # Errors
    /// If the machine's options contradict each other.
    pub fn describe(&self, machine: &Machine) -> Result<Vec<String>> {
        let accelerator: Accelerator = self.qemu.accelerator(self.choice())?;
        machine.arguments(accelerator)
    }

    /// Boots `system` on `machine` with `words` on its command line and `arguments` for the application, and measures it.
    ///
    /// # Errors
    /// If it does not boot, the application fails, or the referee's counts do not fit it.
    pub fn run(
        &self,
        system: &System,
        machine: &Machine,
        words: &str,
        arguments: &[String],
    ) -> Result<Trial> {
        let name = system.name();
        let folder = tempfile::Builder::new()
            .prefix("homenode-")
            .tempdir()
            .context("no temporary folder")?;
        let out = folder.path().join("counts.json");
        let (file, command_line, mut qemu_arguments) = system.prepare(words, arguments, folder.path())?;
        let referee = Referee {
            counts: self.counts,
            kernel: system.kernel(),
            cache: None,
        };
        qemu_arguments.extend(referee.arguments(&self.plugin, machine, folder.path(), &out)?);
        let launch = Launch {
            machine: machine.clone(),
            accelerator: self.choice(),
            // A network card would interrupt now and then.
            network: Network::None,
            command_line,
            qemu_arguments,
        };
        let running = launch.start(&self.qemu, file, self.sink, || ())?;
        let outcome = running.finish(self.timeout)?;
        if !outcome.complaints.is_empty() {
            eprintln!("{}", outcome.complaints);
        }
        if outcome.end != End::Program(0) {
            let reason = match outcome.end {
                End::Program(status) => format!("the application failed with status {status}"),
                end => end.message().unwrap_or(end.cause()).to_owned(),
            };
            match self.sink {
                Sink::Nowhere => bail!("{name}: {reason}; the console:\n{}", outcome.console.trim_end()),
                Sink::Stdout | Sink::Stderr => bail!("{name}: {reason}; the console is above"),
            }
        }
        let counts = fs::read_to_string(&out)
            .with_context(|| format!("the referee left no counts of {name} in {}", out.display()))?;
        let measurement = Measurement::new(&outcome.console, &Report::parse(&counts)?)
            .with_context(|| format!("the run on {name}"))?;
        Ok(Trial {
            command_line: launch.command_line.trim().to_owned(),
            measurement,
            console: outcome.console,
            duration: outcome.duration,
        })
    }
}
