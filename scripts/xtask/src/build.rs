//! `cargo xtask build`: compiles an application with the kernel and writes the bootable image.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::image::{self, ImageSizes};
use crate::workspace;

/// The target that images are compiled for: a hard-float one, whose prebuilt `core` and `alloc` come with the toolchain.
pub const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Separates the flags in `CARGO_ENCODED_RUSTFLAGS`.
pub(crate) const FLAG_SEPARATOR: &str = "\x1f";

/// A bootable image.
#[derive(Clone, Debug)]
pub struct Image {
    /// The bootable ELF file, without debug information.
    pub path: PathBuf,
    /// The linked ELF file with line tables, for `addr2line` and debuggers.
    pub linked: PathBuf,
    /// How large the image is.
    pub sizes: ImageSizes,
}

/// The compiler and linker flags of a bootable image.
pub fn image_flags() -> Vec<String> {
    let script = workspace::root().join("linker/homenode.ld");
    let codegen = [
        "panic=abort",
        "no-redzone=yes",
        "relocation-model=static",
        "code-model=kernel",
        "force-frame-pointers=yes",
        "force-unwind-tables=no",
        "target-cpu=x86-64",
        "relro-level=off",
        "link-arg=-nostdlib",
        "link-arg=-nostartfiles",
        "link-arg=-static",
        "link-arg=-no-pie",
        "link-arg=-Wl,--build-id=none,--gc-sections,--no-eh-frame-hdr,-z,max-page-size=4096,-z,noexecstack",
    ];
    let script = format!("link-arg=-Wl,-T,{}", script.display());
    codegen
        .iter()
        .map(|&flag| flag.to_owned())
        .chain([script])
        .flat_map(|flag| ["-C".to_owned(), flag])
        .collect()
}

/// Makes `command`, a call of cargo, compile for the bare machine, in a target directory of its own.
pub fn set_image_flags(command: &mut Command) {
    command
        .args(["--profile", "image", "--target", TARGET, "--target-dir"])
        .arg(workspace::image_target_dir())
        .env("CARGO_ENCODED_RUSTFLAGS", image_flags().join(FLAG_SEPARATOR));
}

/// Builds the bootable image of `app`. Cargo's output goes to standard error.
///
/// # Errors
/// If `app` is no application of the workspace, if it does not compile, or if the linked file is no bootable image.
pub fn build(app: &str) -> Result<Image> {
    let packages = workspace::packages()?;
    let applications = packages
        .into_iter()
        .filter(|package| package.is_application)
        .map(|package| package.name);
    check_name(app, &applications.collect::<Vec<_>>())?;
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--package", app]);
    set_image_flags(&mut cargo);
    let status = cargo
        .stdout(Stdio::null())
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        bail!("`{app}` did not build (cargo: {status})");
    }
    let directory = workspace::image_target_dir();
    let linked = directory.join(TARGET).join("image").join(app);
    let path = directory.join(format!("{app}.elf"));
    let sizes = write_image(&linked, &path)?;
    Ok(Image { path, linked, sizes })
}

fn write_image(linked: &Path, path: &Path) -> Result<ImageSizes> {
    let bytes = std::fs::read(linked).with_context(|| format!("cannot read {}", linked.display()))?;
    let (image, sizes) = image::bootable(&bytes)
        .with_context(|| format!("cannot make a bootable image of {}", linked.display()))?;
    // Written beside and renamed, so that an emulator that has the old image open is not disturbed.
    let temporary = path.with_extension(format!("elf.{}", std::process::id()));
    std::fs::write(&temporary, image)
        .and_then(|()| std::fs::rename(&temporary, path))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(sizes)
}

/// Refuses a name that is none of `applications`, with the nearest that is.
pub(crate) fn check_name(app: &str, applications: &[String]) -> Result<()> {
    if applications.iter().any(|name| name == app) {
        return Ok(());
    }
    let nearest = applications
        .iter()
        .map(|name| (strsim::damerau_levenshtein(app, name), name))
        .min()
        .filter(|&(distance, name)| distance * 2 <= name.len());
    let hint = nearest
        .map(|(_, name)| format!("; did you mean `{name}`?"))
        .unwrap_or_default();
    bail!(
        "no application is called `{app}`{hint} (there are: {})",
        applications.join(", ")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        ["fft3d", "guest", "hello"].map(str::to_owned).to_vec()
    }

    #[test]
    fn a_wrong_name_is_answered_with_the_nearest_and_the_whole_list() {
        let message = check_name("ftf3d", &names()).unwrap_err().to_string();
        assert!(
            message.contains("`ftf3d`") && message.contains("did you mean `fft3d`?"),
            "{message}"
        );
        let message = check_name("quicksort", &names()).unwrap_err().to_string();
        assert!(
            !message.contains("did you mean") && message.contains("fft3d, guest, hello"),
            "{message}"
        );
        check_name("hello", &names()).unwrap();
    }

    #[test]
    fn no_flag_contains_the_separator() {
        assert!(image_flags().iter().all(|flag| !flag.contains(FLAG_SEPARATOR)));
    }
}
