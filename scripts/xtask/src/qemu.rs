//! The QEMU that is installed: its version, and whether KVM really works with it.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

/// A version of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
}

impl Version {
    /// The oldest QEMU that images run on.
    pub const OLDEST: Self = Self { major: 7, minor: 2 };
    /// The oldest QEMU that everything works on, the largest machines apart.
    pub const RECOMMENDED: Self = Self { major: 8, minor: 2 };
    /// The first QEMU whose own emulation has x2APIC, which more than 255 CPUs need.
    pub const EMULATES_X2APIC: Self = Self { major: 9, minor: 0 };

    /// Finds the version in what `qemu-system-x86_64 --version` prints, or in the version of a Debian package.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text
            .strip_prefix("QEMU emulator version ")
            .unwrap_or(text)
            .trim_start();
        // A Debian version may start with an epoch, as in `1:7.2+dfsg-7`.
        let text = text.split_once(':').map_or(text, |(_, version)| version);
        let mut numbers = text.split(|c: char| !c.is_ascii_digit());
        Some(Self {
            major: numbers.next()?.parse().ok()?,
            minor: numbers.next()?.parse().ok()?,
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What executes the guest's instructions, as the user asks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum AcceleratorChoice {
    /// KVM if a virtual machine can really be made with it, else tcg
    #[default]
    Auto,
    /// QEMU's emulation, one host thread for each CPU
    Tcg,
    /// QEMU's emulation, one host thread for all CPUs in turn: slow, but instruction counts mean something
    TcgSingle,
    /// The host's CPUs
    Kvm,
}

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// Emulation, one host thread for each CPU.
    TcgMulti,
    /// Emulation, one host thread for all CPUs.
    TcgSingle,
    /// The host's CPUs.
    Kvm,
}

impl Accelerator {
    /// The value of QEMU's option `-accel`.
    pub fn argument(self) -> &'static str {
        match self {
            Self::TcgMulti => "tcg,thread=multi",
            Self::TcgSingle => "tcg,thread=single",
            Self::Kvm => "kvm",
        }
    }
}

/// An installed QEMU.
#[derive(Clone, Debug)]
pub struct Qemu {
    program: OsString,
    /// Its version.
    pub version: Version,
}

impl Qemu {
    /// Finds QEMU: the program that the environment variable `QEMU` names, else `qemu-system-x86_64`. `None` if there is none.
    ///
    /// # Errors
    /// If the program can not be run, or does not say its version; if `QEMU` names no program.
    pub fn find() -> Result<Option<Self>> {
        let chosen = std::env::var_os("QEMU").filter(|name| !name.is_empty());
        let is_chosen = chosen.is_some();
        let program = chosen.unwrap_or_else(|| "qemu-system-x86_64".into());
        let name = program.display();
        let output = match Command::new(&program)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
        {
            Ok(output) => output,
            Err(error) if error.kind() == ErrorKind::NotFound && !is_chosen => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| {
                    let source = if is_chosen {
                        ", which the variable QEMU names"
                    } else {
                        ""
                    };
                    format!("cannot run {name}{source}")
                });
            }
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let version = Version::parse(&text)
            .with_context(|| format!("`{name} --version` says no version, but: {}", text.trim()))?;
        Ok(Some(Self { program, version }))
    }

    /// A command that runs this QEMU.
    pub fn command(&self) -> Command {
        Command::new(&self.program)
    }

    /// Decides what executes the guest's instructions.
    ///
    /// # Errors
    /// If KVM is demanded and does not work.
    pub fn accelerator(&self, choice: AcceleratorChoice) -> Result<Accelerator> {
        match choice {
            AcceleratorChoice::Tcg => Ok(Accelerator::TcgMulti),
            AcceleratorChoice::TcgSingle => Ok(Accelerator::TcgSingle),
            AcceleratorChoice::Auto => Ok(if self.probe_kvm().is_ok() {
                Accelerator::Kvm
            } else {
                Accelerator::TcgMulti
            }),
            AcceleratorChoice::Kvm => {
                self.probe_kvm()
                    .context("--accel kvm: KVM does not work here; take tcg")?;
                Ok(Accelerator::Kvm)
            }
        }
    }

    /// Makes a virtual machine with KVM and ends it. That `/dev/kvm` exists, or can be opened, proves nothing: without the CPU's
    /// virtualisation extension it may be a software implementation that can not run a kernel.
    fn probe_kvm(&self) -> Result<()> {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").context("cannot read /proc/cpuinfo")?;
        ensure!(has_virtualisation(&cpuinfo), "the CPU offers neither vmx nor svm");
        let mut child = self
            .command()
            .args([
                "-machine", "q35", "-accel", "kvm", "-cpu", "max", "-m", "16M", "-S",
            ])
            .args([
                "-nodefaults",
                "-no-user-config",
                "-display",
                "none",
                "-monitor",
                "stdio",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start QEMU")?;
        if let Some(mut monitor) = child.stdin.take() {
            // A QEMU that has already failed does not read; its status and message tell why.
            let _ = monitor.write_all(b"quit\n");
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }
}

/// Whether the CPU that `/proc/cpuinfo` describes has Intel's or AMD's virtualisation extension.
fn has_virtualisation(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|line| {
        line.split_ascii_whitespace()
            .any(|flag| flag == "vmx" || flag == "svm")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found() {
        let version = |major, minor| Some(Version { major, minor });
        assert_eq!(
            Version::parse("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright (c) 2003-2025"),
            version(10, 0)
        );
        assert_eq!(Version::parse("QEMU emulator version 7.2.17"), version(7, 2));
        assert_eq!(Version::parse("1:7.2+dfsg-7+deb12u18"), version(7, 2));
        assert_eq!(Version::parse("1:8.2.2+ds-0ubuntu1"), version(8, 2));
        assert_eq!(Version::parse("(none)"), None);
        assert!(Version::parse("10.0") > Version::parse("9.2"));
    }

    #[test]
    fn virtualisation_is_a_flag_of_its_own() {
        assert!(has_virtualisation(
            "processor\t: 0\nflags\t\t: fpu vme vmx sse2\n"
        ));
        assert!(has_virtualisation("flags\t\t: svm\n"));
        assert!(!has_virtualisation(
            "flags\t\t: fpu vme svm_lock\nvmx flags\t: vnmi\n"
        ));
        assert!(!has_virtualisation(""));
    }
}
