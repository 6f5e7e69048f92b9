//! Text output: `print!`, `println!`, `eprint!`, `eprintln!`.
//!
//! Text is formatted on the caller's stack before the console is entered, so that a value that is slow to format, or that faults,
//! holds no lock of the kernel.

use core::fmt::{self, Write};

use crate::contract::Stream;
use crate::sys;

/// Longer lines are written in pieces of this many bytes, between which another thread's text may appear.
const LINE_BYTES: usize = 1024;

/// Collects formatted text and writes it to the console when it is full, and once at the end.
struct LineBuffer {
    stream: Stream,
    bytes: [u8; LINE_BYTES],
    len: usize,
}

impl LineBuffer {
    fn flush(&mut self) {
        if self.len > 0 {
            sys::write_console(self.stream, &self.bytes[..self.len]);
            self.len = 0;
        }
    }
}

impl Write for LineBuffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            if self.len == LINE_BYTES {
                self.flush();
            }
            let (now, later) = rest.split_at(rest.len().min(LINE_BYTES - self.len));
            self.bytes[self.len..self.len + now.len()].copy_from_slice(now);
            self.len += now.len();
            rest = later;
        }
        Ok(())
    }
}

fn print(stream: Stream, text: fmt::Arguments<'_>) {
    let mut buffer = LineBuffer {
        stream,
        bytes: [0; LINE_BYTES],
        len: 0,
    };
    // An error can only come from a value's own `fmt`; what it wrote until then is shown.
    let _ = buffer.write_fmt(text);
    buffer.flush();
}

/// The function behind [`print!`](crate::print).
#[doc(hidden)]
pub fn __print(text: fmt::Arguments<'_>) {
    print(Stream::Output, text);
}

/// The function behind [`eprint!`](crate::eprint).
#[doc(hidden)]
pub fn __eprint(text: fmt::Arguments<'_>) {
    print(Stream::Error, text);
}

/// Writes formatted text to the console.
#[macro_export]
macro_rules! print {
    ($($text:tt)*) => { $crate::__print(::core::format_args!($($text)*)) };
}

/// Writes formatted text and a line end to the console, together.
#[macro_export]
macro_rules! println {
    () => { $crate::print!("\n") };
    ($($text:tt)*) => { $crate::print!("{}\n", ::core::format_args!($($text)*)) };
}

/// Writes formatted text to the console; on a development machine to standard error.
#[macro_export]
macro_rules! eprint {
    ($($text:tt)*) => { $crate::__eprint(::core::format_args!($($text)*)) };
}

/// Writes formatted text and a line end to the console, together; on a development machine to standard error.
#[macro_export]
macro_rules! eprintln {
    () => { $crate::eprint!("\n") };
    ($($text:tt)*) => { $crate::eprint!("{}\n", ::core::format_args!($($text)*)) };
}
