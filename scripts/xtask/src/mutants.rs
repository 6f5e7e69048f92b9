//! `cargo xtask mutants`: breaks a copy of the sources, one rule at a time, and checks that the tests notice.
//!
//! A mutant is a patch under `tests/mutants/`, whose first lines say what it breaks and who has to notice:
//! ```text
//! # Breaks: what no longer holds.
//! # Killed by: loom stray
//! ```
//! The killer is `unit`, `loom` or `simulation`; what follows the first two is a filter for the names of tests. A killer is built
//! and run in a copy of the sources under Cargo's target directory, which is kept, so that each build is an incremental one.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::interrupt;
use crate::output;
use crate::workspace;

/// Where the patches are, from the root of the source tree.
const FOLDER: &str = "tests/mutants";

/// The package whose tests are the killers `unit` and `loom`.
const PACKAGE: &str = "homenode-mm";

/// What the simulated machine does to find a mutant.
const SIMULATION: [&str; 4] = ["--steps", "200000", "--seed", "1"];

/// How much longer than without a mutant a killer may take before it counts as hanging.
const PATIENCE: (u32, Duration) = (5, Duration::from_secs(60));

/// What `cargo xtask mutants` is to do.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Mutants, by the names of their files without `.patch` [default: all]
    pub names: Vec<String>,

    /// Only say which mutants there are, what each breaks, and who has to kill it
    #[arg(long)]
    pub list: bool,
}

/// Who has to notice a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Killer {
    Unit,
    Loom,
    Simulation,
}

impl Killer {
    const ALL: [Self; 3] = [Self::Unit, Self::Loom, Self::Simulation];

    const fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Loom => "loom",
            Self::Simulation => "simulation",
        }
    }

    /// The call of cargo that builds the programs to run.
    fn build(self, copy: &Copy) -> Command {
        let mut cargo = workspace::cargo();
        match self {
            Self::Unit => cargo.args(["test", "--no-run", "--tests", "--package", PACKAGE]),
            Self::Loom => cargo
                .args([
                    "test",
                    "--no-run",
                    "--release",
                    "--test=loom",
                    "--package",
                    PACKAGE,
                ])
                .env("RUSTFLAGS", "--cfg loom"),
            Self::Simulation => cargo.args(["build", "--release", "--package", "simulation"]),
        };
        // Loom's flags would have everything built anew each time, in a common directory.
        let target = copy.base.join(format!("target-{}", self.name()));
        cargo
            .args(["--message-format=json-render-diagnostics", "--target-dir"])
            .arg(target)
            // A mutant changes a line or two. Now and then what is built incrementally and optimised across parts does not link.
            .env("CARGO_INCREMENTAL", "1")
            .envs(["CARGO_PROFILE_DEV_LTO", "CARGO_PROFILE_RELEASE_LTO"].map(|profile| (profile, "off")))
            .current_dir(&copy.source);
        cargo
    }

    /// The arguments for the programs.
    fn arguments(self, filter: &[String]) -> Vec<String> {
        match self {
            Self::Unit | Self::Loom => filter.to_vec(),
            Self::Simulation => SIMULATION.map(str::to_owned).to_vec(),
        }
    }
}

/// A patch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mutant {
    name: String,
    path: PathBuf,
    breaks: String,
    killer: Killer,
    filter: Vec<String>,
}

impl Mutant {
    fn parse(path: &Path, text: &str) -> Result<Self> {
        let value = |key: &str| {
            let mut comments = text.lines().map_while(|line| line.strip_prefix("# "));
            comments
                .find_map(|line| line.strip_prefix(key))
                .map(str::trim)
                .filter(|value| !value.is_empty())
                .with_context(|| format!("{}: no first line says `# {key} …`", path.display()))
        };
        let name = path.file_stem().and_then(|stem| stem.to_str());
        let mut killer = value("Killed by:")?.split_whitespace();
        let word = killer.next().unwrap_or_default();
        Ok(Self {
            name: name.context("a patch has no readable name")?.to_owned(),
            path: path.to_owned(),
            breaks: value("Breaks:")?.to_owned(),
            killer: Killer::ALL
                .into_iter()
                .find(|killer| killer.name() == word)
                .with_context(|| {
                    format!(
                        "{}: `{word}` is no killer (unit, loom, simulation)",
                        path.display()
                    )
                })?,
            filter: killer.map(str::to_owned).collect(),
        })
    }
}

/// All mutants, sorted by name.
fn all(root: &Path) -> Result<Vec<Mutant>> {
    let folder = root.join(FOLDER);
    let cannot_read = || format!("cannot read {}", folder.display());
    let mut mutants = Vec::new();
    for entry in fs::read_dir(&folder).with_context(cannot_read)? {
        let path = entry.with_context(cannot_read)?.path();
        if path.extension().is_some_and(|extension| extension == "patch") {
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            mutants.push(Mutant::parse(&path, &text)?);
        }
    }
    mutants.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(mutants)
}

/// The mutants of these names; all, if there are no names.
fn select(mutants: Vec<Mutant>, names: &[String]) -> Result<Vec<Mutant>> {
    for name in names {
        ensure!(
            mutants.iter().any(|mutant| mutant.name == *name),
            "no mutant is called `{name}`; `cargo xtask mutants --list` lists them"
        );
    }
    let selected = |mutant: &Mutant| names.is_empty() || names.contains(&mutant.name);
    Ok(mutants.into_iter().filter(selected).collect())
}

/// How it ended with a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// This program failed.
    Killed(String),
    /// This program did not end.
    Hung(String),
    Survived,
    DoesNotApply,
    DoesNotBuild,
}

impl Verdict {
    fn is_kill(&self) -> bool {
        matches!(self, Self::Killed(_) | Self::Hung(_))
    }

    fn describe(&self) -> String {
        match self {
            Self::Killed(program) => format!("killed by {program}"),
            Self::Hung(program) => format!("killed by {program}, which did not end"),
            Self::Survived => "SURVIVED".to_owned(),
            Self::DoesNotApply => "DOES NOT APPLY".to_owned(),
            Self::DoesNotBuild => "DOES NOT BUILD".to_owned(),
        }
    }
}

/// Lists or tries the mutants; `true` if none survived.
///
/// # Errors
/// If a patch is malformed or has no such name, or the sources fail without one.
pub fn run(options: &Options) -> Result<bool> {
    let mutants = select(all(workspace::root())?, &options.names)?;
    if options.list {
        let lines = mutants.iter().map(|mutant| {
            let Mutant { name, breaks, .. } = mutant;
            format!("{name} ({}): {breaks}\n", mutant.killer.name())
        });
        return output::text(&lines.collect::<String>()).map(|()| true);
    }
    let copy = Copy::new(&workspace::target_dir().join("mutants"))?;
    copy.refresh()?;
    let killers: BTreeSet<Killer> = mutants.iter().map(|mutant| mutant.killer).collect();
    let mut limits = Vec::new();
    for killer in killers {
        eprintln!("{}, without a mutant", killer.name());
        let limit = copy.baseline(killer)?;
        limits.push((killer, limit));
    }
    let mut tried = Vec::new();
    for (index, mutant) in mutants.iter().enumerate() {
        eprintln!("{}/{}: {}", index + 1, mutants.len(), mutant.name);
        let limit = limits.iter().find(|(killer, _)| *killer == mutant.killer);
        let (_, limit) = limit.context("each killer has run without a mutant")?;
        let started = Instant::now();
        let verdict = copy.try_mutant(mutant, *limit)?;
        if !verdict.is_kill() {
            eprintln!("{}: see {}", verdict.describe(), copy.log(&mutant.name).display());
        }
        tried.push((mutant.name.as_str(), verdict, started.elapsed()));
    }
    output::text(&table(&tried))?;
    Ok(tried.iter().all(|(_, verdict, _)| verdict.is_kill()))
}

/// One line for each mutant, and one for all.
fn table(tried: &[(&str, Verdict, Duration)]) -> String {
    let width = tried.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, verdict, time) in tried {
        text += &format!(
            "{name:<width$} {:>7.1} s  {}\n",
            time.as_secs_f64(),
            verdict.describe()
        );
    }
    let killed = tried.iter().filter(|(_, verdict, _)| verdict.is_kill()).count();
    text + &format!("{killed} of {} mutants killed\n", tried.len())
}

/// The copy of the sources that mutants are made in.
struct Copy {
    /// Its folder, and those of what is built of it.
    base: PathBuf,
    source: PathBuf,
}

impl Copy {
    fn new(base: &Path) -> Result<Self> {
        let source = base.join("source");
        fs::create_dir_all(&source).with_context(|| format!("cannot make {}", source.display()))?;
        Ok(Self {
            base: base
                .canonicalize()
                .with_context(|| format!("cannot find {}", base.display()))?,
            source,
        })
    }

    /// Where a mutant's builds and runs write.
    fn log(&self, name: &str) -> PathBuf {
        self.base.join(format!("{name}.log"))
    }

    /// Makes the copy equal to the sources. Files that are equal stay untouched, so that cargo does not build them again.
    fn refresh(&self) -> Result<()> {
        let wanted = files(workspace::root())?;
        remove_others(&self.source, Path::new(""), &wanted)?;
        for file in &wanted {
            let from = workspace::root().join(file);
            let to = self.source.join(file);
            let bytes = fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
            if fs::read(&to).is_ok_and(|old| old == bytes) {
                continue;
            }
            let folder = to.parent().context("a file is in a folder")?;
            fs::create_dir_all(folder)
                .and_then(|()| fs::write(&to, bytes))
                .with_context(|| format!("cannot write {}", to.display()))?;
        }
        Ok(())
    }

    /// Runs a killer on the sources as they are, and says how long it may take with a mutant.
    fn baseline(&self, killer: Killer) -> Result<Duration> {
        let name = format!("no-mutant-{}", killer.name());
        let log = self.log(&name);
        let see = || format!("without a mutant; see {}", log.display());
        let mut file = create(&log)?;
        let programs =
            build(killer.build(self), &mut file)?.with_context(|| format!("no build {}", see()))?;
        let started = Instant::now();
        for program in &programs {
            let end = program.run(&killer.arguments(&[]), &file, Duration::MAX)?;
            ensure!(
                end.is_some_and(|status| status.success()),
                "{} fails {}",
                program.name,
                see()
            );
        }
        let (times, more) = PATIENCE;
        Ok(started.elapsed() * times + more)
    }

    /// Makes the mutant, looks whether its killer notices, and unmakes it.
    fn try_mutant(&self, mutant: &Mutant, limit: Duration) -> Result<Verdict> {
        let mut log = create(&self.log(&mutant.name))?;
        if !self.apply(&[], &mutant.path, &log)? {
            return Ok(Verdict::DoesNotApply);
        }
        let verdict = self.verdict(mutant, &mut log, limit);
        // Not from the sources, which somebody may be working on.
        let undone = self.apply(&["--reverse"], &mutant.path, &log)?;
        ensure!(undone, "{} does not come off again", mutant.name);
        verdict
    }

    fn verdict(&self, mutant: &Mutant, log: &mut File, limit: Duration) -> Result<Verdict> {
        let Some(programs) = build(mutant.killer.build(self), log)? else {
            return Ok(Verdict::DoesNotBuild);
        };
        for program in programs {
            match program.run(&mutant.killer.arguments(&mutant.filter), log, limit)? {
                None => return Ok(Verdict::Hung(program.name)),
                Some(status) if !status.success() => return Ok(Verdict::Killed(program.name)),
                Some(_) => {}
            }
        }
        Ok(Verdict::Survived)
    }

    /// Whether the patch could be applied, or be undone with `--reverse`.
    fn apply(&self, options: &[&str], patch: &Path, log: &File) -> Result<bool> {
        let status = git_apply(&self.source)
            .args(options)
            .arg(patch)
            .stderr(log.try_clone().context("cannot share the log")?)
            .status()
            .context("cannot start git")?;
        Ok(status.success())
    }
}

/// `git apply`, to be given a patch for the files in `folder`, which need not be a repository: if it lies in one, git is kept from
/// seeing that.
fn git_apply(folder: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("apply").current_dir(folder).stdin(Stdio::null());
    if let Some(above) = folder.canonicalize().ok().as_deref().and_then(Path::parent) {
        git.env("GIT_CEILING_DIRECTORIES", above);
    }
    git
}

/// The files that git knows, or would if they were added, as paths from `root`.
fn files(root: &Path) -> Result<BTreeSet<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start git")?;
    ensure!(
        output.status.success(),
        "git lists no files of {}",
        root.display()
    );
    let names = String::from_utf8(output.stdout).context("a file's name is not UTF-8")?;
    let there = |file: &PathBuf| root.join(file).is_file();
    Ok(names
        .split_terminator('\0')
        .map(PathBuf::from)
        .filter(there)
        .collect())
}

/// Removes the files below `root` that are not `wanted`.
fn remove_others(root: &Path, folder: &Path, wanted: &BTreeSet<PathBuf>) -> Result<()> {
    let path = root.join(folder);
    let cannot_read = || format!("cannot read {}", path.display());
    for entry in fs::read_dir(&path).with_context(cannot_read)? {
        let entry = entry.with_context(cannot_read)?;
        let inside = folder.join(entry.file_name());
        if entry.file_type().with_context(cannot_read)?.is_dir() {
            remove_others(root, &inside, wanted)?;
        } else if !wanted.contains(&inside) {
            fs::remove_file(entry.path())
                .with_context(|| format!("cannot remove {}", entry.path().display()))?;
        }
    }
    Ok(())
}

fn create(log: &Path) -> Result<File> {
    File::create(log).with_context(|| format!("cannot write {}", log.display()))
}

/// A program that cargo has built.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    name: String,
    path: PathBuf,
    /// The folder of its package, which cargo would run it in.
    folder: PathBuf,
}

impl Program {
    /// The program that one of cargo's messages is about, if it is about one.
    fn of(message: &str) -> Option<Self> {
        let message: serde_json::Value = serde_json::from_str(message).ok()?;
        Some(Self {
            path: PathBuf::from(message["executable"].as_str()?),
            name: message["target"]["name"].as_str()?.to_owned(),
            folder: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
        })
    }

    /// Runs it; `None` if it takes longer than `limit`.
    fn run(&self, arguments: &[String], log: &File, limit: Duration) -> Result<Option<ExitStatus>> {
        let child = Command::new(&self.path)
            .args(arguments)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            // Counterexamples to a mutant are no regressions to keep.
            .env("PROPTEST_FAILURE_PERSISTENCE", "off")
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot share the log")?)
            .stderr(log.try_clone().context("cannot share the log")?)
            .spawn();
        let child = child.with_context(|| format!("cannot start {}", self.path.display()))?;
        wait(child, limit)
    }
}

/// Waits for the end of `child`, or stops it: after `limit` or when the user wants that.
fn wait(mut child: Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let stop = interrupt::requested();
        if stop || started.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            if stop {
                bail!("interrupted");
            }
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Builds; the programs, or `None` if it does not compile.
fn build(mut cargo: Command, log: &mut File) -> Result<Option<Vec<Program>>> {
    let output = cargo
        .stderr(log.try_clone().context("cannot share the log")?)
        .output()
        .context("cannot start cargo")?;
    ensure!(!interrupt::requested(), "interrupted");
    if !output.status.success() {
        return Ok(None);
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let programs: Vec<Program> = messages.lines().filter_map(Program::of).collect();
    ensure!(!programs.is_empty(), "cargo has built no program");
    Ok(Some(programs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_patch_applies_to_the_sources() {
        let mutants = all(workspace::root()).unwrap();
        assert!(!mutants.is_empty());
        for mutant in mutants {
            let status = git_apply(workspace::root())
                .arg("--check")
                .arg(&mutant.path)
                .status();
            assert!(status.unwrap().success(), "{}", mutant.name);
        }
    }

    #[test]
    fn a_patch_says_what_it_breaks_and_who_has_to_notice() {
        let path = Path::new("some/where/no-lock.patch");
        let text = "# Breaks: the lock is not taken.\n# Killed by: loom stray\n--- a/x\n+++ b/x\n";
        let mutant = Mutant::parse(path, text).unwrap();
        assert_eq!(
            (mutant.name.as_str(), mutant.breaks.as_str(), mutant.killer),
            ("no-lock", "the lock is not taken.", Killer::Loom)
        );
        assert_eq!(mutant.killer.arguments(&mutant.filter), ["stray"]);
        for wrong in [
            "# Breaks: all.\n",
            "# Killed by: unit\n",
            "# Breaks:\n# Killed by: unit\n",
            "# Breaks: all.\n# Killed by: luck\n",
            "--- a/x\n# Breaks: all.\n# Killed by: unit\n",
        ] {
            let message = Mutant::parse(path, wrong).unwrap_err().to_string();
            assert!(message.contains("no-lock.patch"), "{message}");
        }
    }

    #[test]
    fn names_select_and_wrong_ones_are_refused() {
        let mutant = |name: &str| Mutant {
            name: name.to_owned(),
            path: PathBuf::new(),
            breaks: String::new(),
            killer: Killer::Unit,
            filter: Vec::new(),
        };
        let mutants = || vec![mutant("a"), mutant("b")];
        assert_eq!(select(mutants(), &[]).unwrap(), mutants());
        assert_eq!(select(mutants(), &["b".to_owned()]).unwrap(), [mutant("b")]);
        let message = select(mutants(), &["c".to_owned()]).unwrap_err().to_string();
        assert!(message.contains("`c`"), "{message}");
    }

    #[test]
    fn the_table_counts_kills_alone() {
        let second = Duration::from_secs(1);
        let tried = [
            ("long-name", Verdict::Killed("loom".to_owned()), second),
            ("b", Verdict::Hung("mm".to_owned()), second),
            ("c", Verdict::Survived, second),
            ("d", Verdict::DoesNotApply, second),
            ("e", Verdict::DoesNotBuild, second),
        ];
        assert_eq!(
            table(&tried),
            "long-name     1.0 s  killed by loom\n\
             b             1.0 s  killed by mm, which did not end\n\
             c             1.0 s  SURVIVED\n\
             d             1.0 s  DOES NOT APPLY\n\
             e             1.0 s  DOES NOT BUILD\n\
             2 of 5 mutants killed\n"
        );
    }

    #[test]
    fn cargos_messages_name_programs() {
        let message = r#"{"reason":"compiler-artifact","manifest_path":"/a/b/Cargo.toml","target":{"name":"loom"},
            "executable":"/t/loom-1"}"#;
        let program = Program::of(message).unwrap();
        assert_eq!(
            (program.name.as_str(), program.folder.as_path()),
            ("loom", Path::new("/a/b"))
        );
        assert_eq!(Program::of(r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn a_program_that_does_not_end_is_stopped() {
        let child = |seconds: &str| Command::new("sleep").arg(seconds).spawn().unwrap();
        assert_eq!(wait(child("60"), Duration::from_millis(100)).unwrap(), None);
        assert!(wait(child("0"), Duration::MAX).unwrap().unwrap().success());
    }

    #[test]
    fn a_copy_follows_its_files_and_drops_others() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = BTreeSet::from([PathBuf::from("a/b")]);
        for file in ["a/b", "a/c", "d"] {
            fs::create_dir_all(folder.path().join(file).parent().unwrap()).unwrap();
            fs::write(folder.path().join(file), file).unwrap();
        }
        remove_others(folder.path(), Path::new(""), &wanted).unwrap();
        assert!(folder.path().join("a/b").is_file());
        assert!(!folder.path().join("a/c").exists() && !folder.path().join("d").exists());
    }
}
