//! Where things are in the source tree, and how to call cargo.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context as _, Result, bail};

/// The root of the source tree: that of the package which cargo runs, so that checkouts may share a target directory; outside of
/// cargo, the one that this program was built from.
pub fn root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
        let running = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let built_from = Some(PathBuf::from(env!("CARGO_MANIFEST_DIR")));
        [running, built_from]
            .iter()
            .flatten()
            .flat_map(|dir| dir.ancestors())
            .find(|dir| dir.join("linker/homenode.ld").is_file())
            .expect("xtask runs in the source tree that it was built from, or in a checkout of it")
            .to_owned()
    });
    &ROOT
}

/// Cargo's target directory: `CARGO_TARGET_DIR`, or `target` in the source tree.
pub fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Where images are built. Their flags differ from those of host builds, so they must not share a directory with them.
pub fn image_target_dir() -> PathBuf {
    target_dir().join("image")
}

/// The cargo that called this program, run in the root of the source tree.
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// A package of the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Whether `cargo xtask build` makes an image of it: it has a binary, and lies under `apps/` or is the boot
    /// tests' guest.
    pub is_application: bool,
    /// Whether it has the feature `hosted`: without that feature it builds for the bare machine only.
    pub has_hosted: bool,
}

/// The packages of the workspace, sorted by name.
///
/// # Errors
/// If `cargo metadata` fails, as it does if a manifest is malformed.
pub fn packages() -> Result<Vec<Package>> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version=1"])
        .output()
        .context("cannot start cargo to list the workspace's packages")?;
    if !output.status.success() {
        bail!(
            "`cargo metadata` failed:\n{}",
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("`cargo metadata` printed no JSON")?;
    let listed = metadata["packages"]
        .as_array()
        .context("`cargo metadata` listed no packages")?;
    let package = |value: &serde_json::Value| {
        Some(Package {
            name: value["name"].as_str()?.to_owned(),
            is_application: has_binary(value)
                && is_applications_place(Path::new(value["manifest_path"].as_str()?)),
            has_hosted: value["features"].get("hosted").is_some(),
        })
    };
    let mut packages: Vec<Package> = listed.iter().filter_map(package).collect();
    packages.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(packages)
}

/// Whether a package of `cargo metadata`'s list builds a program.
fn has_binary(package: &serde_json::Value) -> bool {
    let targets = package["targets"].as_array().into_iter().flatten();
    let mut kinds = targets.flat_map(|target| target["kind"].as_array().into_iter().flatten());
    kinds.any(|kind| kind == "bin")
}

fn is_applications_place(manifest: &Path) -> bool {
    let folder = manifest
        .parent()
        .and_then(|folder| folder.strip_prefix(root()).ok());
    folder.is_some_and(|folder| folder == "tests/guest" || folder.parent() == Some(Path::new("apps")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applications_lie_under_apps_except_for_the_guest() {
        assert!(is_applications_place(&root().join("apps/hello/Cargo.toml")));
        assert!(is_applications_place(&root().join("tests/guest/Cargo.toml")));
        assert!(!is_applications_place(&root().join("tests/boot/Cargo.toml")));
        assert!(!is_applications_place(
            &root().join("unikernel/kernel/Cargo.toml")
        ));
        assert!(!is_applications_place(&root().join("apps/Cargo.toml")));
        assert!(!is_applications_place(Path::new(
            "/elsewhere/apps/hello/Cargo.toml"
        )));
    }

    #[test]
    fn listing_finds_this_workspace() {
        let packages = packages().unwrap();
        let find = |name: &str| packages.iter().find(|package| package.name == name).unwrap();
        assert!(find("hello").is_application && find("hello").has_hosted);
        assert!(!find("command-line").is_application && find("command-line").has_hosted);
        assert!(!find("homenode").is_application && find("homenode").has_hosted);
        assert!(!find("xtask").is_application && !find("xtask").has_hosted);
    }
}
