//! The functions on bytes that compiled code calls by name. An image has no C library to bring them.

use core::arch::asm;
use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128};
use core::ffi::{c_char, c_int};

/// From this length on the CPU's string instructions are taken.
const LONG: usize = 256;

/// Copies `count` bytes.
///
/// # Safety
/// As C's `memcpy`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: by the caller.
    unsafe {
        if count >= LONG {
            copy_up(to, from, count);
        } else {
            copy_short(to, from, count);
        }
    }
    to
}

/// Copies `count` bytes between ranges that may overlap.
///
/// # Safety
/// As C's `memmove`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    let overlaps_above = (to as usize).wrapping_sub(from as usize) < count;
    // SAFETY: by the caller; copying in the direction that reads each byte before it is overwritten.
    unsafe {
        if overlaps_above {
            copy_down(to, from, count);
        } else if count >= LONG {
            copy_up(to, from, count);
        } else {
            copy_up_by_words(to, from, count);
        }
    }
    to
}

/// # Safety
/// Both ranges are valid; `to` does not lie within `from..from + count`, unless they are equal.
#[inline(always)]
unsafe fn copy_up(to: *mut u8, from: *const u8, count: usize) {
    // SAFETY: by the caller.
    unsafe {
        asm!("rep movsb", inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
}

/// # Safety
/// Both ranges are valid and do not overlap; `count` is below [`LONG`].
#[inline(always)]
unsafe fn copy_short(to: *mut u8, from: *const u8, count: usize) {
    // SAFETY: each access lies within the first or the last bytes of the ranges; they may be unaligned.
    unsafe {
        if count >= 16 {
            let last = _mm_loadu_si128(from.add(count - 16).cast());
            let mut done = 0;
            while done + 16 <= count {
                let part = _mm_loadu_si128(from.add(done).cast::<__m128i>());
                _mm_storeu_si128(to.add(done).cast(), part);
                done += 16;
            }
            _mm_storeu_si128(to.add(count - 16).cast(), last);
        } else if count >= 8 {
            let (first, last) = (
                from.cast::<u64>().read_unaligned(),
                from.add(count - 8).cast::<u64>().read_unaligned(),
            );
            to.cast::<u64>().write_unaligned(first);
            to.add(count - 8).cast::<u64>().write_unaligned(last);
        } else if count >= 4 {
            let (first, last) = (
                from.cast::<u32>().read_unaligned(),
                from.add(count - 4).cast::<u32>().read_unaligned(),
            );
            to.cast::<u32>().write_unaligned(first);
            to.add(count - 4).cast::<u32>().write_unaligned(last);
        } else if count > 0 {
            let (first, middle, last) = (*from, *from.add(count / 2), *from.add(count - 1));
            *to = first;
            *to.add(count / 2) = middle;
            *to.add(count - 1) = last;
        }
    }
}

/// # Safety
/// Both ranges are valid; `to` does not lie within `from..from + count`, unless they are equal.
#[inline(always)]
unsafe fn copy_up_by_words(to: *mut u8, from: *const u8, count: usize) {
    // SAFETY: by the caller; each word is read before a lower-addressed write could reach it.
    unsafe {
        asm!(
            "2: cmp {left}, 8", "jb 3f",
            "mov {word}, [{from}]", "mov [{to}], {word}",
            "add {from}, 8", "add {to}, 8", "sub {left}, 8", "jmp 2b",
            "3: test {left}, {left}", "jz 4f",
            "mov {word:l}, [{from}]", "mov [{to}], {word:l}",
            "inc {from}", "inc {to}", "dec {left}", "jmp 3b",
            "4:",
            left = inout(reg) count => _, from = inout(reg) from => _, to = inout(reg) to => _, word = out(reg_abcd) _,
            options(nostack)
        );
    }
}

/// # Safety
/// Both ranges are valid; `from` does not lie within `to..to + count`, unless they are equal.
#[inline(always)]
unsafe fn copy_down(to: *mut u8, from: *const u8, count: usize) {
    // SAFETY: by the caller; from the end, each word is read before a higher-addressed write could reach it.
    unsafe {
        asm!(
            "2: cmp {left}, 8", "jb 3f",
            "sub {left}, 8",
            "mov {word}, [{from} + {left}]", "mov [{to} + {left}], {word}", "jmp 2b",
            "3: test {left}, {left}", "jz 4f",
            "dec {left}",
            "mov {word:l}, [{from} + {left}]", "mov [{to} + {left}], {word:l}", "jmp 3b",
            "4:",
            left = inout(reg) count => _, from = in(reg) from, to = in(reg) to, word = out(reg_abcd) _,
            options(nostack)
        );
    }
}

/// Sets `count` bytes to the low byte of `value`.
///
/// # Safety
/// As C's `memset`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: c_int, count: usize) -> *mut u8 {
    // SAFETY: by the caller.
    unsafe {
        asm!("rep stosb", inout("rcx") count => _, inout("rdi") to => _, in("al") value as u8,
            options(nostack, preserves_flags));
    }
    to
}

/// Compares `count` bytes as unsigned numbers.
///
/// # Safety
/// As C's `memcmp`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, count: usize) -> c_int {
    let mut done = 0;
    // SAFETY: by the caller, `count` bytes can be read on both sides.
    unsafe {
        while done + 8 <= count {
            let (a, b) = (
                left.add(done).cast::<u64>().read_unaligned(),
                right.add(done).cast::<u64>().read_unaligned(),
            );
            if a != b {
                return if a.swap_bytes() < b.swap_bytes() { -1 } else { 1 };
            }
            done += 8;
        }
        while done < count {
            let (a, b) = (*left.add(done), *right.add(done));
            if a != b {
                return c_int::from(a) - c_int::from(b);
            }
            done += 1;
        }
    }
    0
}

/// Whether `count` bytes differ.
///
/// # Safety
/// As C's `bcmp`.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, count: usize) -> c_int {
    // SAFETY: by the caller.
    unsafe { memcmp(left, right, count) }
}

/// The number of bytes before the first zero byte.
///
/// # Safety
/// As C's `strlen`.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const c_char) -> usize {
    let mut length = 0;
    // SAFETY: by the caller, a zero byte comes before the end of what can be read.
    while unsafe { *text.add(length) } != 0 {
        length += 1;
    }
    length
}

/// Named by the prebuilt `core` and `alloc`, which can unwind. An image aborts on panic, so nobody calls it.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// As [`rust_eh_personality`].
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    unreachable!("an image aborts on panic");
}
