//! The guest's serial console: kept for later, and passed on as it comes.

use std::io::{self, IsTerminal as _, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How much of a console is kept: of a longer one, the end.
const KEPT_BYTES: usize = 16 << 20;

/// Where a console is passed on to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// Nowhere: it is only kept.
    Nowhere,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What has been read so far.
#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    /// Bytes ever read, of which `bytes` holds the last.
    total: usize,
    /// The guest's side is closed: the emulator has ended.
    ended: bool,
    /// Why the sink could not be written to.
    sink_error: Option<String>,
}

/// A console that a thread reads in the background.
pub struct Console {
    shared: Arc<(Mutex<State>, Condvar)>,
    reader: Option<JoinHandle<()>>,
}

impl Console {
    /// Starts to read `source` and to pass it on to `sink`; `on_first_byte` is called before anything is passed on, or at the end.
    pub fn start(
        source: impl Read + Send + 'static,
        sink: Sink,
        on_first_byte: impl FnOnce() + Send + 'static,
    ) -> Self {
        let shared = Arc::new((Mutex::new(State::default()), Condvar::new()));
        let reader = thread::spawn({
            let shared = Arc::clone(&shared);
            move || read(source, sink, &shared, on_first_byte)
        });
        Self {
            shared,
            reader: Some(reader),
        }
    }

    /// The console's text so far, carriage returns left out.
    pub fn text(&self) -> String {
        text(&lock(&self.shared.0).bytes)
    }

    /// Why the sink could not be written to, if so.
    pub fn sink_error(&self) -> Option<String> {
        lock(&self.shared.0).sink_error.clone()
    }

    /// Waits for at most `timeout` until the guest's side is closed; says whether it is.
    pub fn wait_for_end(&self, timeout: Duration) -> bool {
        let (state, changed) = &*self.shared;
        let guard = lock(state);
        let waited =
            changed.wait_timeout_while(guard, timeout, |state| !state.ended && state.sink_error.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    /// Waits until a whole line satisfies `wanted`, and returns it. `None` if the guest's side is closed, or the deadline passes,
    /// before there is one.
    pub fn wait_for_line(&self, deadline: Instant, wanted: impl Fn(&str) -> bool) -> Option<String> {
        let (state, changed) = &*self.shared;
        let mut guard = lock(state);
        let mut seen = guard.total - guard.bytes.len();
        loop {
            // Lines that were looked at are not looked at again.
            let start = seen.saturating_sub(guard.total - guard.bytes.len());
            let news = &guard.bytes[start..];
            let whole = news
                .iter()
                .rposition(|&byte| byte == b'\n')
                .map_or(0, |at| at + 1);
            if let Some(line) = text(&news[..whole]).lines().find(|line| wanted(line)) {
                return Some(line.to_owned());
            }
            seen = guard.total - guard.bytes.len() + start + whole;
            let left = deadline.saturating_duration_since(Instant::now());
            if guard.ended || left.is_zero() {
                return None;
            }
            guard = changed
                .wait_timeout(guard, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Waits until everything has been read and passed on. The guest's side must be closed, or about to be.
    pub fn finish(&mut self) {
        if let Some(reader) = self.reader.take() {
            // A panic of the reader has been reported on standard error.
            let _ = reader.join();
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\r', "")
}

fn read(
    mut source: impl Read,
    sink: Sink,
    (state, changed): &(Mutex<State>, Condvar),
    on_first_byte: impl FnOnce(),
) {
    let mut on_first_byte = Some(on_first_byte);
    let mut buffer = [0; 8192];
    loop {
        let count = match source.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(count) => count,
            Err(_) => 0,
        };
        if let Some(on_first_byte) = on_first_byte.take() {
            on_first_byte();
        }
        let chunk = &buffer[..count];
        let passed_on = match sink {
            Sink::Nowhere => Ok(()),
            Sink::Stdout => pass_on(chunk, io::stdout().lock(), io::stdout().is_terminal()),
            Sink::Stderr => pass_on(chunk, io::stderr().lock(), io::stderr().is_terminal()),
        };
        let mut state = lock(state);
        state.bytes.extend_from_slice(chunk);
        state.total += count;
        if state.bytes.len() > KEPT_BYTES {
            let surplus = state.bytes.len() - KEPT_BYTES / 2;
            state.bytes.drain(..surplus);
        }
        if let Err(error) = passed_on {
            state.sink_error.get_or_insert_with(|| error.to_string());
        }
        state.ended = count == 0;
        changed.notify_all();
        if state.ended {
            return;
        }
    }
}

/// Passes bytes on: to a terminal without control sequences, to a file or another program without carriage returns.
fn pass_on(bytes: &[u8], mut sink: impl Write, is_terminal: bool) -> io::Result<()> {
    let shown: Vec<u8> = if is_terminal {
        harmless(bytes)
    } else {
        bytes.iter().copied().filter(|&byte| byte != b'\r').collect()
    };
    sink.write_all(&shown)?;
    sink.flush()
}

/// Writes control characters other than line ends and tabs in caret notation (`^[` for escape).
fn harmless(bytes: &[u8]) -> Vec<u8> {
    let mut shown = Vec::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\n' | b'\r' | b'\t' => shown.push(byte),
            0..0x20 | 0x7f => shown.extend([b'^', byte ^ 0x40]),
            _ => shown.push(byte),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn lines_are_found_while_they_come_and_after() {
        let (source, mut guest) = io::pipe().unwrap();
        let mut console = Console::start(source, Sink::Nowhere, || ());
        assert!(console.text().is_empty());
        guest.write_all(b"one\r\ntwo\r\nthr").unwrap();
        assert_eq!(
            console
                .wait_for_line(soon(), |line| line.starts_with("tw"))
                .unwrap(),
            "two"
        );
        assert_eq!(
            console
                .wait_for_line(soon(), |line| line.starts_with("on"))
                .unwrap(),
            "one"
        );
        assert_eq!(
            console.wait_for_line(Instant::now(), |line| line == "thr"),
            None,
            "that line is not whole"
        );
        assert!(!console.wait_for_end(Duration::ZERO));
        let late = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            guest.write_all(b"ee\n").unwrap();
        });
        assert_eq!(
            console.wait_for_line(soon(), |line| line == "three").unwrap(),
            "three"
        );
        late.join().unwrap();
        assert!(console.wait_for_end(Duration::from_secs(20)));
        assert_eq!(console.wait_for_line(soon(), |line| line == "four"), None);
        console.finish();
        assert_eq!(console.text(), "one\ntwo\nthree\n");
    }

    #[test]
    fn of_a_long_console_the_end_is_kept() {
        let line = [b'.'; 1023].into_iter().chain([b'\n']).collect::<Vec<_>>();
        let long = line.repeat(KEPT_BYTES / line.len() + 100);
        let mut console = Console::start(
            io::Cursor::new([long, b"last\n".to_vec()].concat()),
            Sink::Nowhere,
            || (),
        );
        console.finish();
        let text = console.text();
        assert!(text.len() <= KEPT_BYTES && text.len() >= KEPT_BYTES / 2);
        assert!(text.ends_with("\nlast\n"));
        assert_eq!(
            console.wait_for_line(soon(), |line| line == "last").unwrap(),
            "last"
        );
    }

    #[test]
    fn a_terminal_gets_no_control_sequences() {
        assert_eq!(
            harmless("a\x1b[2J\x07\x7f\tü\r\n".as_bytes()),
            "a^[[2J^G^?\tü\r\n".as_bytes()
        );
    }
}
