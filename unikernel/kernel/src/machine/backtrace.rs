//! Call chains by frame pointers, with function names from the image's symbol table.

use core::fmt::{self, Write};

use super::{crash, image};

/// Longer chains are cut.
const MOST_FRAMES: usize = 64;

/// Writes the chain of the caller.
#[inline(never)]
pub(crate) fn write_here(out: &mut impl Write) -> fmt::Result {
    let frame_pointer: u64;
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mov {}, rbp", out(reg) frame_pointer, options(nomem, nostack, preserves_flags));
    };
    writeln!(out, "backtrace:")?;
    write_frames(out, 0, frame_pointer)
}

/// Writes the chain that begins at `instruction` with the frame at `frame_pointer`.
pub(crate) fn write_from(out: &mut impl Write, instruction: u64, frame_pointer: u64) -> fmt::Result {
    writeln!(out, "backtrace:")?;
    write_frame(out, 0, instruction, instruction)?;
    write_frames(out, 1, frame_pointer)
}

fn write_frames(out: &mut impl Write, first: usize, mut frame_pointer: u64) -> fmt::Result {
    let mut last = 0;
    let mut repeated = 0;
    let mut number = first;
    while number < MOST_FRAMES && frame_pointer.is_multiple_of(8) && crash::readable(frame_pointer, 16) {
        // SAFETY: mapped and aligned; nothing else runs that could unmap it.
        let [next, return_address] = unsafe { *(frame_pointer as *const [u64; 2]) };
        if return_address == 0 {
            break;
        }
        if return_address == last {
            repeated += 1;
        } else {
            write_repeated(out, &mut repeated)?;
            // The call lies before the address that it returns to.
            write_frame(out, number, return_address, return_address - 1)?;
            number += 1;
        }
        last = return_address;
        // Stacks grow down: a chain that does not go up is broken, unless it leaves the kernel's stack for the program's.
        if next <= frame_pointer && next >> 63 == frame_pointer >> 63 {
            break;
        }
        frame_pointer = next;
    }
    write_repeated(out, &mut repeated)?;
    if number == MOST_FRAMES {
        writeln!(out, "  … more than {MOST_FRAMES} frames")
    } else {
        Ok(())
    }
}

/// Recursion is one line.
fn write_repeated(out: &mut impl Write, repeated: &mut u64) -> fmt::Result {
    match core::mem::take(repeated) {
        0 => Ok(()),
        times => writeln!(out, "      … and {times} more times"),
    }
}

fn write_frame(out: &mut impl Write, number: usize, address: u64, look_up: u64) -> fmt::Result {
    write!(out, "  {number:2}: {address:#018x}")?;
    if !image::is_code(look_up) {
        return writeln!(out, " (not in the image)");
    }
    match image::symbols().and_then(|symbols| symbols.lookup(look_up)) {
        Some((name, offset)) => writeln!(out, " {:#} +{offset:#x}", rustc_demangle::demangle(name)),
        None => writeln!(out, " (no symbol)"),
    }
}
