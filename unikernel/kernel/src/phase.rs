//! Phase markers, by which an instruction counter outside of the machine cuts a run into phases.
//!
//! A marker is the 8-byte no-operation `0f 1f 84 00 NN 00 ed 5e`: `nopl disp32(%rax,%rax,1)` whose displacement holds the marker's
//! number `NN` between fixed bytes (Intel SDM volume 2B, "NOP", table of recommended multi-byte sequences). It costs nothing and is
//! harmless on every x86-64 machine. `NN` is even at a phase's start and the next odd number at its end, and the program prints
//! one line per phase, `phase NN NAME ops=K cpus=C`, so that anyone's counter can divide.

use core::arch::asm;

/// A phase of a program: an even number below 256 that a counter sees, and a name that a person reads.
///
/// ```
/// use homenode::phase::Phase;
///
/// const TOUCH: Phase<2> = Phase::new("touch");
///
/// TOUCH.begin();
/// // What is to be measured.
/// TOUCH.end();
/// TOUCH.announce(1024, 4);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Phase<const NUMBER: u8> {
    name: &'static str,
}

impl<const NUMBER: u8> Phase<NUMBER> {
    /// The phase `NUMBER`, called `name` in the printed line.
    ///
    /// # Panics
    /// If `name` is empty or contains a space or a control character, which would tear the printed line apart. For a constant, the
    /// compiler reports that. An odd `NUMBER` does not compile.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        const { assert!(NUMBER.is_multiple_of(2), "a phase's number is even") };
        let bytes = name.as_bytes();
        assert!(!bytes.is_empty(), "a phase has a name");
        let mut at = 0;
        while at < bytes.len() {
            assert!(
                bytes[at] > b' ' && bytes[at] != 0x7f,
                "a phase's name is one word"
            );
            at += 1;
        }
        Self { name }
    }

    /// Marks the start of the phase. The compiler moves no access to memory across the marker.
    #[inline(always)]
    pub fn begin(self) {
        // SAFETY: the bytes are one instruction without any effect. That `nomem` is not given keeps memory accesses in their place.
        unsafe {
            asm!(
                ".byte 0x0f, 0x1f, 0x84, 0x00, {number}, 0x00, 0xed, 0x5e",
                number = const NUMBER,
                options(nostack, preserves_flags)
            );
        }
    }

    /// Marks the end of the phase. The compiler moves no access to memory across the marker.
    #[inline(always)]
    pub fn end(self) {
        // SAFETY: as in `begin`.
        unsafe {
            asm!(
                ".byte 0x0f, 0x1f, 0x84, 0x00, {number}, 0x00, 0xed, 0x5e",
                number = const NUMBER + 1,
                options(nostack, preserves_flags)
            );
        }
    }

    /// Runs `work` between the two markers.
    #[inline(always)]
    pub fn run<R>(self, work: impl FnOnce() -> R) -> R {
        self.begin();
        let result = work();
        self.end();
        result
    }

    /// Prints the line that says what the phase was: it did `operations` on `cpus` CPUs.
    pub fn announce(self, operations: u64, cpus: usize) {
        crate::println!("phase {NUMBER} {} ops={operations} cpus={cpus}", self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn marked() {
        Phase::<0x2a>::new("marked").run(|| ());
    }

    #[test]
    fn the_markers_are_the_documented_bytes() {
        // SAFETY: a function's code is readable, and the test program's code goes on for more than 256 bytes after it.
        let code = unsafe { core::slice::from_raw_parts(marked as *const () as *const u8, 256) };
        let position = |number| {
            code.windows(8)
                .position(|bytes| bytes == [0x0f, 0x1f, 0x84, 0x00, number, 0x00, 0xed, 0x5e])
                .expect("the marker is in the code")
        };
        assert!(position(0x2a) < position(0x2b));
        marked();
    }
}
