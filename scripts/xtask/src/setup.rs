//! `cargo xtask setup`: finds out which outside programs are missing, and installs them.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::apt::{self, SourceFile};
use crate::qemu::{Qemu, Version};
use crate::workspace;

/// An outside program or library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A C compiler, which Rust uses to call the linker.
    Linker,
    /// QEMU for x86-64.
    Qemu,
    /// Prometheus's checker of metrics.
    Promtool,
    /// The FFT library that `fft3d` is compared with.
    Fftw,
    /// Debian's Linux for virtual machines, which images are compared with.
    Linux,
}

/// Debian's package of QEMU.
const QEMU_PACKAGE: &str = "qemu-system-x86";

/// Debian's package that depends on the newest Linux for virtual machines.
const LINUX_PACKAGE: &str = "linux-image-cloud-amd64";

/// What the name of Linux's file in its package starts with; the release follows.
const LINUX_FILE: &str = "vmlinuz-";

impl Need {
    /// What it is and what it is needed for, as a sentence.
    fn reason(self) -> &'static str {
        match self {
            Self::Linker => "A C compiler: Rust calls the linker through it.",
            Self::Qemu => "QEMU 8.2 or newer (qemu-system-x86_64): images are booted and tested in it.",
            Self::Promtool => {
                "promtool: a boot test has it check the metrics. Only this program is unpacked from the package prometheus, into \
                 Cargo's target folder; nothing is installed in the system and no service is started."
            }
            Self::Fftw => "FFTW 3 with its header: the benchmark of fft3d compares itself with it.",
            Self::Linux => {
                "Debian's Linux for virtual machines: `cargo xtask compare` boots it. Only the kernel's file is unpacked from its \
                 package, into Cargo's target folder; nothing is installed in the system."
            }
        }
    }

    /// Whether it is there.
    ///
    /// # Errors
    /// If it is there, but broken.
    fn is_met(self) -> Result<bool> {
        Ok(match self {
            Self::Linker => find_program("cc").is_some(),
            Self::Qemu => Qemu::find()?.is_some_and(|qemu| qemu.version >= Version::RECOMMENDED),
            Self::Promtool => promtool().is_some(),
            Self::Fftw => Path::new("/usr/include/fftw3.h").exists(),
            Self::Linux => linux().is_some(),
        })
    }
}

/// One step of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Writes a file that only root may write.
    Write(SourceFile),
    /// Runs apt-get with these arguments.
    AptGet(Vec<String>),
}

impl Step {
    fn apt_get(arguments: &[&str]) -> Self {
        Self::AptGet(arguments.iter().map(ToString::to_string).collect())
    }

    /// The step as a shell command for a user who is not root.
    fn as_shell(&self) -> String {
        match self {
            Self::Write(file) => {
                format!("sudo tee {} <<'EOF'\n{}EOF", file.path.display(), file.text)
            }
            Self::AptGet(arguments) => format!("sudo apt-get {}", arguments.join(" ")),
        }
    }

    fn run(&self) -> Result<()> {
        match self {
            Self::Write(file) => {
                eprintln!("setup: writing {}", file.path.display());
                fs::write(&file.path, &file.text)
                    .with_context(|| format!("cannot write {}", file.path.display()))
            }
            Self::AptGet(arguments) => {
                eprintln!("setup: apt-get {}", arguments.join(" "));
                let mut command = Command::new("apt-get");
                command
                    .args(["--quiet", "--option=DPkg::Lock::Timeout=300"])
                    .args(arguments)
                    .env("DEBIAN_FRONTEND", "noninteractive");
                run(&mut command)
            }
        }
    }
}

/// Which needs are not met.
///
/// # Errors
/// If one is there, but broken.
pub fn missing(needs: &[Need]) -> Result<Vec<Need>> {
    let mut missing = Vec::new();
    for &need in needs {
        if !need.is_met()? {
            missing.push(need);
        }
    }
    Ok(missing)
}

/// Installs what is missing of `needs`, and says what and why.
///
/// # Errors
/// If something can not be installed; the message says what to do by hand.
pub fn ensure_met(needs: &[Need]) -> Result<()> {
    let missing = missing(needs)?;
    if missing.is_empty() {
        return Ok(());
    }
    for need in &missing {
        eprintln!("setup: missing: {}", need.reason());
    }
    install(&missing)?;
    for need in missing {
        ensure!(
            need.is_met()?,
            "it was installed, but is still not found: {}",
            need.reason()
        );
    }
    Ok(())
}

/// Says of each need whether it is met; `true` if all are.
pub fn report(needs: &[Need]) -> Result<bool> {
    let missing = missing(needs)?;
    for need in needs {
        let state = if missing.contains(need) {
            "missing"
        } else {
            "present"
        };
        eprintln!("{state}: {}", need.reason());
    }
    Ok(missing.is_empty())
}

/// Finds QEMU, and installs it if there is none that images run on.
///
/// # Errors
/// If there is none and it can not be installed.
pub fn qemu() -> Result<Qemu> {
    let usable = |qemu: &Qemu| qemu.version >= Version::OLDEST;
    if let Some(qemu) = Qemu::find()?.filter(usable) {
        return Ok(qemu);
    }
    ensure_met(&[Need::Qemu])?;
    Qemu::find()?.context("QEMU was installed, but is not found")
}

/// The installed promtool: the system's, or the one that [`ensure_met`] has unpacked.
pub fn promtool() -> Option<PathBuf> {
    let unpacked = tools().join("promtool");
    find_program("promtool").or_else(|| unpacked.is_file().then_some(unpacked))
}

/// The Linux kernel that [`ensure_met`] has unpacked; of several, the one with the last name.
pub fn linux() -> Option<PathBuf> {
    linux_file(&tools())
}

/// Where programs are kept that are unpacked, not installed.
fn tools() -> PathBuf {
    workspace::target_dir().join("tools")
}

fn linux_file(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder).ok()?.flatten();
    let is_linux = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(LINUX_FILE))
    };
    files.map(|entry| entry.path()).filter(is_linux).max()
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

fn install(needs: &[Need]) -> Result<()> {
    if find_program("apt-get").is_none() {
        bail!("this system has no apt-get, so install by hand what is listed as missing above");
    }
    let packages: BTreeSet<&str> = needs
        .iter()
        .flat_map(|need| match need {
            Need::Linker => ["gcc", "libc6-dev"].as_slice(),
            Need::Fftw => &["libfftw3-dev"],
            Need::Qemu | Need::Promtool | Need::Linux => &[],
        })
        .copied()
        .collect();
    let mut steps = Vec::new();
    if !packages.is_empty() {
        steps.push(install_step(&[], &packages.into_iter().collect::<Vec<_>>()));
    }
    let is_root = is_root();
    if is_root {
        Step::apt_get(&["update"]).run()?;
    }
    if needs.contains(&Need::Qemu) {
        let release = Release::parse(&fs::read_to_string("/etc/os-release").unwrap_or_default());
        steps.extend(qemu_steps(
            &release,
            &candidate(QEMU_PACKAGE)?,
            &SourceFile::all(),
        )?);
    }
    if !is_root && !steps.is_empty() {
        steps.insert(0, Step::apt_get(&["update"]));
        let commands: Vec<String> = steps.iter().map(Step::as_shell).collect();
        bail!(
            "installing packages needs root; run this:\n\n{}\n",
            commands.join("\n")
        );
    }
    for step in steps {
        step.run()?;
    }
    if needs.contains(&Need::Promtool) {
        unpack("prometheus", |contents| Some(contents.join("usr/bin/promtool")))?;
    }
    if needs.contains(&Need::Linux) {
        unpack(&linux_package()?, |contents| linux_file(&contents.join("boot")))?;
    }
    Ok(())
}

fn install_step(options: &[&str], packages: &[&str]) -> Step {
    Step::apt_get(
        &[
            &["install", "--yes", "--no-install-recommends"],
            options,
            packages,
        ]
        .concat(),
    )
}

/// The distribution's identity, from `os-release(5)`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Release {
    is_debian: bool,
    codename: String,
}

impl Release {
    fn parse(text: &str) -> Self {
        let value = |key: &str| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.unwrap_or_default().trim_matches('"').to_owned()
        };
        Self {
            is_debian: value("ID") == "debian",
            codename: value("VERSION_CODENAME"),
        }
    }
}

/// The steps that install a QEMU that is new enough: the release's own, or the one of its backports.
fn qemu_steps(release: &Release, candidate: &str, sources: &[SourceFile]) -> Result<Vec<Step>> {
    let offered = Version::parse(candidate);
    if offered.is_some_and(|version| version >= Version::RECOMMENDED) {
        return Ok(vec![install_step(&[], &[QEMU_PACKAGE])]);
    }
    let offered = offered.map_or("none".to_owned(), |version| version.to_string());
    if !release.is_debian || release.codename.is_empty() {
        bail!(
            "QEMU {} or newer is needed, and apt offers {offered}; install one by hand",
            Version::RECOMMENDED
        );
    }
    let suite = format!("{}-backports", release.codename);
    let mut steps = Vec::new();
    if !apt::has_suite(sources, &suite) {
        let file = apt::backports(sources, &release.codename).with_context(|| {
            format!(
                "QEMU {} or newer is needed, apt offers {offered}, and no package source of the release {} is known from which \
                 to derive that of its backports; install QEMU by hand",
                Version::RECOMMENDED,
                release.codename
            )
        })?;
        steps.push(Step::Write(file));
        steps.push(Step::apt_get(&["update"]));
    }
    steps.push(install_step(&["--target-release", &suite], &[QEMU_PACKAGE]));
    Ok(steps)
}

/// The version of `package` that apt would install, or an empty string.
fn candidate(package: &str) -> Result<String> {
    let output = Command::new("apt-cache")
        .args(["policy", package])
        .env("LC_ALL", "C")
        .output();
    let output = output.context("cannot run apt-cache")?;
    Ok(apt::candidate(&String::from_utf8_lossy(&output.stdout))
        .unwrap_or_default()
        .to_owned())
}

/// The package that has the newest Linux for virtual machines; its name contains the release.
fn linux_package() -> Result<String> {
    let output = Command::new("apt-cache")
        .args(["depends", "--important", LINUX_PACKAGE])
        .env("LC_ALL", "C")
        .output();
    let output = output.context("cannot run apt-cache")?;
    apt::dependency(&String::from_utf8_lossy(&output.stdout))
        .map(str::to_owned)
        .with_context(|| {
            format!(
                "apt knows no package {LINUX_PACKAGE}, which Debian has; run `apt-get update` as root, or name a kernel of your \
                 own with --linux-kernel"
            )
        })
}

/// Downloads one of Debian's packages and takes one file out of it, which `find` finds among its contents.
fn unpack(package: &str, find: impl FnOnce(&Path) -> Option<PathBuf>) -> Result<()> {
    let folder = tempfile::tempdir().context("no temporary folder")?;
    eprintln!("setup: downloading the package {package}");
    run(Command::new("apt-get")
        .args(["--quiet", "download", package])
        // apt downloads as a user of its own unless told otherwise, and that user may not write here.
        .arg("--option=APT::Sandbox::User=root")
        .current_dir(&folder))
    .with_context(|| {
        format!(
            "the package {package} could not be downloaded; if apt knows no such package, run `apt-get update` as root first"
        )
    })?;
    let archive = fs::read_dir(&folder)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .context("apt-get downloaded no package")?;
    run(Command::new("dpkg-deb")
        .arg("--extract")
        .arg(archive)
        .arg(folder.path()))?;
    let tools = tools();
    fs::create_dir_all(&tools).with_context(|| format!("cannot make {}", tools.display()))?;
    let file = find(folder.path()).filter(|path| path.is_file());
    let file =
        file.with_context(|| format!("the package {package} has not the file that is wanted of it"))?;
    let name = file.file_name().context("a file has a name")?;
    fs::copy(&file, tools.join(name)).with_context(|| format!("cannot copy {}", file.display()))?;
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_owned();
    let name = program.display();
    // Standard output belongs to this program's own results.
    let status = command.stdin(Stdio::null()).stdout(std::io::stderr()).status();
    let status = status.with_context(|| format!("cannot run {name}"))?;
    ensure!(status.success(), "{name} failed ({status})");
    Ok(())
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn debian() -> Release {
        Release::parse("PRETTY_NAME=\"Debian GNU/Linux 12\"\nVERSION_CODENAME=bookworm\nID=debian\n")
    }

    fn shell(steps: &[Step]) -> Vec<String> {
        steps.iter().map(Step::as_shell).collect()
    }

    #[test]
    fn releases_are_told_apart() {
        assert_eq!(
            debian(),
            Release {
                is_debian: true,
                codename: "bookworm".to_owned()
            }
        );
        assert!(!Release::parse("ID=\"ubuntu\"\nID_LIKE=debian\nVERSION_CODENAME=jammy\n").is_debian);
        assert_eq!(Release::parse(""), Release::default());
    }

    #[test]
    fn a_new_enough_qemu_is_simply_installed() {
        let steps = qemu_steps(&debian(), "1:10.0.2+ds-2", &[]).unwrap();
        assert_eq!(
            shell(&steps),
            ["sudo apt-get install --yes --no-install-recommends qemu-system-x86"]
        );
    }

    #[test]
    fn else_it_comes_from_the_backports() {
        let mut sources = vec![SourceFile {
            path: "/etc/apt/sources.list".into(),
            text: "deb http://mirror/debian bookworm main\n".to_owned(),
        }];
        let install = "sudo apt-get install --yes --no-install-recommends --target-release bookworm-backports qemu-system-x86";
        let steps = qemu_steps(&debian(), "1:7.2+dfsg-7", &sources).unwrap();
        assert_eq!(
            shell(&steps),
            [
                "sudo tee /etc/apt/sources.list.d/homenode-backports.list <<'EOF'\n\
                 deb http://mirror/debian bookworm-backports main\nEOF",
                "sudo apt-get update",
                install,
            ]
        );
        let Step::Write(file) = &steps[0] else {
            panic!("the first step writes the source")
        };
        sources.push(file.clone());
        assert_eq!(
            shell(&qemu_steps(&debian(), "1:7.2+dfsg-7", &sources).unwrap()),
            [install]
        );
    }

    #[test]
    fn without_backports_the_user_is_told_what_is_offered() {
        let ubuntu = Release {
            is_debian: false,
            codename: "jammy".to_owned(),
        };
        let message = qemu_steps(&ubuntu, "1:6.2+dfsg-2", &[]).unwrap_err().to_string();
        assert!(message.contains("apt offers 6.2"), "{message}");
        let message = qemu_steps(&debian(), "", &[]).unwrap_err().to_string();
        assert!(
            message.contains("apt offers none") && message.contains("bookworm"),
            "{message}"
        );
    }
}
