//! Ctrl-C and SIGTERM: a flag that running emulators look at, so that they are stopped and not left behind.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Takes over SIGINT, SIGTERM and SIGHUP for this process.
pub fn install() -> Result<()> {
    ctrlc::set_handler(|| REQUESTED.store(true, Ordering::Relaxed)).context("cannot handle ctrl-C")
}

/// Whether the user has asked to stop.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}
