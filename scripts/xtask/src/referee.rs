//! The referee: a plugin that counts, from outside of a guest, what its phases cost. `docs/measuring.md` describes it.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};

use crate::machine::Machine;
use crate::qemu::{Qemu, Version};
use crate::workspace;

/// The first QEMU whose plugin interface has all that the referee calls.
pub const OLDEST_QEMU: Version = Version { major: 9, minor: 1 };

/// Checks that `qemu` is new enough for the referee.
///
/// # Errors
/// If it is too old.
pub fn check(qemu: &Qemu) -> Result<()> {
    ensure!(
        qemu.version >= OLDEST_QEMU,
        "the referee needs QEMU {OLDEST_QEMU} or newer; this one is {} (the environment variable QEMU can name another)",
        qemu.version
    );
    Ok(())
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counts {
    /// Instructions only: fast, and repeatable with one thread for all CPUs.
    #[default]
    Totals,
    /// Accesses to memory too: slow, and possible only with a thread for each CPU.
    Numa,
}

/// How kernel and application are told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// By the symbols of this image of ours.
    Image(PathBuf),
    /// Linux: by the half of the address space.
    Linux,
}

/// The model cache of each CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// How many bytes it holds.
    pub bytes: u64,
    /// How many lines a set has.
    pub ways: u32,
}

/// A plugin to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referee {
    /// What is counted.
    pub counts: Counts,
    /// How kernel and application are told apart.
    pub kernel: Kernel,
    /// The model cache; the plugin's own choice (256 KiB in 8 ways) unless given.
    pub cache: Option<Cache>,
}

/// Builds the plugin and returns its file. Cargo's output goes to standard error.
///
/// # Errors
/// If it does not compile.
pub fn build() -> Result<PathBuf> {
    let status = workspace::cargo()
        .args(["build", "--release", "--package", "referee"])
        .stdout(Stdio::null())
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "the referee did not build (cargo: {status})");
    Ok(workspace::target_dir().join("release/libreferee.so"))
}

impl Referee {
    /// QEMU's arguments that load `plugin`, which writes its counts to `out` when QEMU exits. The description of the machine is written
    /// into `folder`, which must last as long as QEMU starts.
    ///
    /// # Errors
    /// If the machine's options contradict each other, or the description can not be written.
    pub fn arguments(
        &self,
        plugin: &Path,
        machine: &Machine,
        folder: &Path,
        out: &Path,
    ) -> Result<Vec<String>> {
        let mut options = vec![escape(plugin), format!("out={}", escape(out))];
        options.push(match &self.kernel {
            Kernel::Image(image) => format!("elf={}", escape(image)),
            Kernel::Linux => "kernel=linux".to_owned(),
        });
        if self.counts == Counts::Numa {
            let description = folder.join("topology.json");
            std::fs::write(&description, machine.description()?)
                .with_context(|| format!("cannot write {}", description.display()))?;
            options.push("counts=numa".to_owned());
            options.push(format!("topology={}", escape(&description)));
        }
        if let Some(Cache { bytes, ways }) = self.cache {
            options.push(format!("cache={bytes},ways={ways}"));
        }
        Ok(vec!["-plugin".to_owned(), options.join(",")])
    }
}

/// A path within an option of QEMU, which separates options by commas.
fn escape(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_need_no_description() {
        let referee = Referee {
            counts: Counts::Totals,
            kernel: Kernel::Image("/images/a,b.elf".into()),
            cache: None,
        };
        let arguments = referee.arguments(
            Path::new("/p.so"),
            &Machine::default(),
            Path::new("/nonexistent"),
            Path::new("/o.json"),
        );
        assert_eq!(
            arguments.unwrap(),
            ["-plugin", "/p.so,out=/o.json,elf=/images/a,,b.elf"]
        );
    }

    #[test]
    fn numa_comes_with_the_machines_description() {
        let folder = tempfile::tempdir().unwrap();
        let referee = Referee {
            counts: Counts::Numa,
            kernel: Kernel::Linux,
            cache: Some(Cache {
                bytes: 32768,
                ways: 4,
            }),
        };
        let arguments = referee.arguments(
            Path::new("/p.so"),
            &Machine::default(),
            folder.path(),
            Path::new("/o"),
        );
        let description = folder.path().join("topology.json");
        assert_eq!(
            arguments.unwrap()[1],
            format!(
                "/p.so,out=/o,kernel=linux,counts=numa,topology={},cache=32768,ways=4",
                description.display()
            )
        );
        let description: serde_json::Value =
            serde_json::from_slice(&std::fs::read(description).unwrap()).unwrap();
        assert_eq!(description["nodes"].as_array().unwrap().len(), 4);
    }
}
