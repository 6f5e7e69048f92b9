//! Standard output: results go there, and it may be full, or closed.

use std::io::{self, Write as _};

use anyhow::{Context as _, Result};

/// Writes `text` to standard output.
///
/// # Errors
/// If it can not be written, as to a full disk or a pipe that nobody reads any more.
pub fn text(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

/// Writes `line` and a line end to standard output.
///
/// # Errors
/// As those of [`text`].
pub fn line(line: &str) -> Result<()> {
    text(&format!("{line}\n"))
}
