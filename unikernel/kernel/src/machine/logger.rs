//! Log lines on the console: seconds since boot, the level when it is not "info", and the text.

use core::fmt::Write;

use arrayvec::ArrayString;
use log::{Level, LevelFilter, Log, Metadata, Record};

use super::{clock, gate, serial};

struct Console;

/// Crates that log for those who work on them.
const DRIVERS: [&str; 2] = ["virtio_drivers", "smoltcp"];

/// Longer lines are cut.
const LINE_BYTES: usize = 512;

impl Log for Console {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let from_driver = DRIVERS.iter().any(|driver| metadata.target().starts_with(driver));
        // What a driver finds worth an "info" is a detail here.
        let level = if from_driver && metadata.level() == Level::Info {
            Level::Debug
        } else {
            metadata.level()
        };
        level <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let mut line = ArrayString::<LINE_BYTES>::new();
        let now = clock::now();
        // An error here means that the line is full: what fits is printed.
        let _cut = if now.is_zero() {
            // The clock has not been calibrated yet.
            write!(line, "[{:12}] ", "")
        } else {
            write!(line, "[{:5}.{:06}] ", now.as_secs(), now.subsec_micros())
        };
        let _cut = match record.level() {
            Level::Info => Ok(()),
            level @ (Level::Error | Level::Warn) => write!(line, "{}: ", level.as_str().to_ascii_lowercase()),
            level => write!(
                line,
                "{}: {}: ",
                level.as_str().to_ascii_lowercase(),
                record.target()
            ),
        };
        let _cut = write!(line, "{}", record.args());
        if line.try_push('\n').is_err() {
            line.pop();
            line.push('\n');
        }
        gate::enter(move || serial::write_bytes(line.as_bytes()));
    }

    fn flush(&self) {}
}

/// Sends log lines to the console, up to `level`.
pub(crate) fn init() {
    // Set once, before anything else logs.
    let _first = log::set_logger(&Console);
    log::set_max_level(LevelFilter::Info);
}
