//! The Linux guest: Debian's kernel, and an application built for Linux from the same source, in an initramfs that is made on the
//! fly.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail, ensure};
use cpio::newc;

use crate::build::{FLAG_SEPARATOR, TARGET, check_name};
use crate::setup::{self, Need};
use crate::workspace;

/// The package of the guest's first process.
const INIT: &str = "linux-init";

/// What Linux is told: to be heard on the serial port, and little; to end the emulator when it panics; to give large pages to all
/// programs, as high-performance computing has it; to wait for interrupts by HLT, since an emulator executes MWAIT as a spin; and not
/// to panic when its clock's interrupts are late, as they are in an emulator on a busy host.
pub const COMMAND_LINE: &str =
    "console=ttyS0 quiet panic=-1 transparent_hugepage=always idle=halt no_timer_check";

/// A kernel in Linux's boot format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The file.
    pub path: PathBuf,
    /// Its release, and the version of Debian's package where it is Debian's: `6.1.0-57-cloud-amd64 (Debian 6.1.192-3)`.
    pub version: String,
}

impl Kernel {
    /// The kernel at `path`, or Debian's, which is downloaded if it is not there.
    ///
    /// # Errors
    /// If there is no such file, or it is no Linux kernel; if Debian's can not be downloaded.
    pub fn find(path: Option<&Path>) -> Result<Self> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => {
                setup::ensure_met(&[Need::Linux])?;
                setup::linux().context("Linux was downloaded, but is not found")?
            }
        };
        let bytes =
            fs::read(&path).with_context(|| format!("cannot read the Linux kernel {}", path.display()))?;
        let version = version(&bytes).with_context(|| {
            format!(
                "{} is no Linux kernel for x86 in the boot format (bzImage)",
                path.display()
            )
        })?;
        Ok(Self {
            path,
            version: short(version),
        })
    }
}

/// The version in a kernel's setup header (Linux's `Documentation/arch/x86/boot.rst`: the fields `header` and `kernel_version`).
fn version(kernel: &[u8]) -> Option<&str> {
    if kernel.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let offset = u16::from_le_bytes([*kernel.get(0x20e)?, *kernel.get(0x20f)?]);
    let text = kernel.get(0x200 + usize::from(offset)..)?;
    let end = text.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&text[..end]).ok()
}

/// What tells kernels apart in a version's text, `6.1.0-57-cloud-amd64 (builder@host) #1 SMP PREEMPT_DYNAMIC Debian 6.1.192-3 (date)`:
/// not who built it, and where.
fn short(version: &str) -> String {
    let mut words = version.split(' ');
    let release = words.next().unwrap_or_default();
    let package = words.skip_while(|word| *word != "Debian").nth(1);
    package.map_or_else(
        || release.to_owned(),
        |package| format!("{release} (Debian {package})"),
    )
}

/// Programs that were built for Linux, linked statically.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The guest's first process.
    init: PathBuf,
    /// The application.
    application: PathBuf,
}

impl Programs {
    /// Builds `app` with its feature `hosted`, and the first process. Cargo's output goes to standard error.
    ///
    /// # Errors
    /// If `app` is no application that builds for Linux, or does not compile.
    pub fn build(app: &str) -> Result<Self> {
        let packages = workspace::packages()?;
        let hosted = packages
            .into_iter()
            .filter(|package| package.is_application && package.has_hosted);
        check_name(app, &hosted.map(|package| package.name).collect::<Vec<_>>())
            .context("only an application with the feature `hosted` builds for Linux")?;
        let flags = ["-C", "target-feature=+crt-static", "-C", "strip=debuginfo"];
        let directory = workspace::target_dir().join("hosted");
        let status = workspace::cargo()
            .args(["build", "--release", "--target", TARGET, "--target-dir"])
            .arg(&directory)
            .args(["--package", INIT, "--package", app])
            .arg(format!("--features={app}/hosted"))
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join(FLAG_SEPARATOR))
            .stdout(Stdio::null())
            .status()
            .context("cannot start cargo")?;
        if !status.success() {
            bail!("`{app}` did not build for Linux (cargo: {status})");
        }
        let folder = directory.join(TARGET).join("release");
        Ok(Self {
            init: folder.join(INIT),
            application: folder.join(app),
        })
    }

    /// An initramfs with these programs; the first process runs the application with `arguments`.
    ///
    /// # Errors
    /// If a program can not be read, or an argument contains a NUL byte, which Linux could not pass on.
    pub fn initramfs(&self, arguments: &[String]) -> Result<Vec<u8>> {
        ensure!(
            !arguments.iter().any(|argument| argument.contains('\0')),
            "an argument contains a NUL byte"
        );
        let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let (program, data) = (0o755, 0o644);
        let mut archive = Vec::new();
        add(&mut archive, "init", program, &read(&self.init)?)?;
        add(
            &mut archive,
            linux_init::PROGRAM,
            program,
            &read(&self.application)?,
        )?;
        add(
            &mut archive,
            linux_init::ARGUMENTS,
            data,
            &linux_init::encode_arguments(arguments),
        )?;
        newc::trailer(&mut archive).context("cannot end the initramfs")?;
        Ok(archive)
    }
}

/// Appends an ordinary file to an archive in the format `newc`, the one that Linux takes (its `buffer-format.rst`).
fn add(archive: &mut Vec<u8>, name: &str, permissions: u32, content: &[u8]) -> Result<()> {
    let write = || -> io::Result<()> {
        let size = u32::try_from(content.len()).map_err(io::Error::other)?;
        let mut entry = newc::Builder::new(name)
            .mode(permissions)
            .set_mode_file_type(newc::ModeFileType::Regular)
            .write(archive, size);
        entry.write_all(content)?;
        entry.finish().map(drop)
    };
    write().with_context(|| format!("cannot put {name} into the initramfs"))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn the_version_is_read_from_the_setup_header() {
        let mut kernel = vec![0; 0x400];
        kernel[0x202..0x206].copy_from_slice(b"HdrS");
        kernel[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        kernel[0x300..0x30c].copy_from_slice(b"6.1.0-57 (x)");
        assert_eq!(version(&kernel), Some("6.1.0-57 (x)"));
        // A version that lies outside of the file, or a file of another kind.
        kernel[0x20f] = 0xff;
        assert_eq!(version(&kernel), None);
        assert_eq!(version(b"\x7fELF"), None);
    }

    #[test]
    fn a_version_says_what_was_built_and_not_by_whom() {
        let debian = "6.1.0-57-cloud-amd64 (builder@host.example) #1 SMP PREEMPT_DYNAMIC Debian 6.1.192-3 (2026-11-26)";
        assert_eq!(short(debian), "6.1.0-57-cloud-amd64 (Debian 6.1.192-3)");
        assert_eq!(short("6.12.0 (me@here) #1 SMP today"), "6.12.0");
    }

    #[test]
    fn a_file_that_is_no_kernel_is_refused_by_name() {
        let message = format!(
            "{:#}",
            Kernel::find(Some(&workspace::root().join("Cargo.toml"))).unwrap_err()
        );
        assert!(message.contains("Cargo.toml is no Linux kernel"), "{message}");
        let message = format!("{:#}", Kernel::find(Some(Path::new("/no/kernel"))).unwrap_err());
        assert!(
            message.contains("cannot read the Linux kernel /no/kernel"),
            "{message}"
        );
    }

    #[test]
    fn an_application_that_does_not_build_for_linux_is_refused() {
        let message = format!("{:#}", Programs::build("xtask").unwrap_err());
        assert!(
            message.contains("feature `hosted`") && message.contains("fft3d"),
            "{message}"
        );
    }

    #[test]
    fn the_initramfs_has_the_programs_and_their_arguments() {
        let folder = tempfile::tempdir().unwrap();
        let programs = Programs {
            init: folder.path().join("linux-init"),
            application: folder.path().join("bench"),
        };
        fs::write(&programs.init, "the first process").unwrap();
        fs::write(&programs.application, "the application").unwrap();
        let archive = programs
            .initramfs(&["faults".to_owned(), "--n 3".to_owned()])
            .unwrap();

        let mut entries = Vec::new();
        let mut rest = archive.as_slice();
        loop {
            let mut entry = newc::Reader::new(rest).unwrap();
            if entry.entry().is_trailer() {
                break;
            }
            let (name, mode) = (entry.entry().name().to_owned(), entry.entry().mode());
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            entries.push((name, mode, content));
            rest = entry.finish().unwrap();
        }
        let entry = |name: &str, mode, content: &str| (name.to_owned(), mode, content.to_owned());
        assert_eq!(
            entries,
            [
                entry("init", 0o100_755, "the first process"),
                entry("program", 0o100_755, "the application"),
                entry("arguments", 0o100_644, "faults\0--n 3\0"),
            ]
        );
        assert!(programs.initramfs(&["a\0b".to_owned()]).is_err());
    }
}
