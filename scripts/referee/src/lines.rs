//! Which vCPU wrote a line of memory last, and how often the line was written.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many bytes a line has.
pub const LINE_BYTES: u64 = 64;

/// How many lines share an allocation, which is made when the first of them is used: 2 MiB of guest memory.
const CHUNK_LINES: usize = 1 << 15;

/// How far the version of a line stands above its writer.
const VERSION_SHIFT: u32 = 16;
/// The bits of a line's writer.
const WRITER: u64 = (1 << VERSION_SHIFT) - 1;

/// How often a line was written. Copies of a line that have its version are fresh, others stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u64);

impl Version {
    /// The version as a number.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// What a store found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// The line's version before.
    pub before: Version,
    /// The line's version from now on.
    pub after: Version,
    /// Whether another vCPU wrote the line last.
    pub shared: bool,
}

/// The lines of a guest's memory, each a writer and a version. All are unwritten at first.
#[derive(Debug)]
pub struct Lines {
    chunks: Box<[OnceLock<Box<[AtomicU64]>>]>,
}

impl Lines {
    /// The lines of the physical addresses from 0 to `end`.
    #[must_use]
    pub fn new(end: u64) -> Self {
        let chunks = end.div_ceil(LINE_BYTES * CHUNK_LINES as u64);
        Self {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
        }
    }

    /// The state of the line that holds `address`.
    ///
    /// # Panics
    /// If the address lies past the end.
    fn line(&self, address: u64) -> &AtomicU64 {
        // A guest's memory, in lines, fits into the memory of a 64-bit host.
        let line = (address / LINE_BYTES) as usize;
        let chunk = self.chunks[line / CHUNK_LINES]
            .get_or_init(|| (0..CHUNK_LINES).map(|_| AtomicU64::new(0)).collect());
        &chunk[line % CHUNK_LINES]
    }

    /// The version of the line that holds `address`.
    ///
    /// # Panics
    /// If the address lies past the end.
    #[must_use]
    pub fn version(&self, address: u64) -> Version {
        Version(self.line(address).load(Relaxed) >> VERSION_SHIFT)
    }

    /// Notes that `vcpu` stores to the line that holds `address`.
    ///
    /// # Panics
    /// If the address lies past the end.
    pub fn store(&self, address: u64, vcpu: u16) -> Store {
        let line = self.line(address);
        let writer = u64::from(vcpu) + 1;
        let next = |state: u64| (((state >> VERSION_SHIFT) + 1) << VERSION_SHIFT) | writer;
        let before = line.fetch_update(Relaxed, Relaxed, |state| Some(next(state)));
        let before = before.unwrap_or_else(|state| state);
        let last_writer = before & WRITER;
        Store {
            before: Version(before >> VERSION_SHIFT),
            after: Version((before >> VERSION_SHIFT) + 1),
            shared: last_writer != 0 && last_writer != writer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_shared_when_the_writer_changes() {
        let lines = Lines::new(1 << 20);
        let shared = |address, vcpu| lines.store(address, vcpu).shared;
        assert!(!shared(0x1000, 0), "nobody wrote it before");
        assert!(!shared(0x1008, 0), "the same CPU, the same line");
        assert!(shared(0x103f, 1), "another CPU, the same line");
        assert!(!shared(0x1040, 1), "the next line");
        assert!(shared(0x1000, 0), "and back");
    }

    #[test]
    fn each_store_makes_a_new_version() {
        let lines = Lines::new(1 << 32);
        let address = (1 << 32) - 1;
        let first = lines.version(address);
        let store = lines.store(address, u16::MAX - 1);
        assert_eq!(store.before, first);
        assert!(store.after > first);
        assert_eq!(lines.version(address & !63), store.after);
        assert_eq!(lines.version(0), first, "other lines keep theirs");
    }

    #[test]
    fn stores_of_several_threads_are_all_seen() {
        let lines = Lines::new(64);
        let shared: usize = std::thread::scope(|scope| {
            let threads = [0_u16, 1].map(|vcpu| {
                let lines = &lines;
                scope.spawn(move || (0..10_000).filter(|_| lines.store(0, vcpu).shared).count())
            });
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(lines.version(0), Version(20_000));
        assert!((1..20_000).contains(&shared));
    }
}
