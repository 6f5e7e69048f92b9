//! The image's own parts: where they lie, what may be done with them, and the table of its functions.

use core::slice;

use homenode_mm::{FrameSize, Size4KiB};
use homenode_topology::{PhysAddr, PhysRange};

use crate::symbols::{HEADER_LEN, SymbolTable};

/// Distance from the image's physical to its virtual addresses, as in the linker script.
pub(crate) const OFFSET: u64 = 0xffff_ffff_8000_0000;

unsafe extern "C" {
    static __text_start: u8;
    static __text_end: u8;
    static __rodata_start: u8;
    static __rodata_end: u8;
    static __data_start: u8;
    static __data_end: u8;
    static __symbols_start: u8;
}

/// A part of the image, in whole pages.
pub(crate) struct Part {
    /// Where it is loaded.
    pub(crate) frames: PhysRange,
    /// Whether it may be written to.
    pub(crate) writable: bool,
    /// Whether it holds code.
    pub(crate) executable: bool,
}

impl Part {
    fn new(start: u64, end: u64, writable: bool, executable: bool) -> Self {
        let page = Size4KiB::BYTES;
        let frames = PhysRange::new(
            PhysAddr(start - OFFSET).align_down(page),
            PhysAddr((end - OFFSET).next_multiple_of(page)),
        );
        Self {
            frames,
            writable,
            executable,
        }
    }
}

/// The image's parts, in order of address.
pub(crate) fn parts() -> [Part; 4] {
    let symbols = &raw const __symbols_start as u64;
    [
        Part::new(
            &raw const __text_start as u64,
            &raw const __text_end as u64,
            false,
            true,
        ),
        Part::new(
            &raw const __rodata_start as u64,
            &raw const __rodata_end as u64,
            false,
            false,
        ),
        Part::new(
            &raw const __data_start as u64,
            &raw const __data_end as u64,
            true,
            false,
        ),
        Part::new(symbols, symbols + symbol_table_bytes() as u64, false, false),
    ]
}

/// The frames of the whole image.
pub(crate) fn frames() -> PhysRange {
    let [first, .., last] = parts();
    PhysRange::new(first.frames.start, last.frames.end)
}

/// Whether `address` lies in the image's code.
pub(crate) fn is_code(address: u64) -> bool {
    (&raw const __text_start as u64..&raw const __text_end as u64).contains(&address)
}

/// The table of the image's functions, if the image writer put one in.
pub(crate) fn symbols() -> Option<SymbolTable<'static>> {
    // SAFETY: the image writer put that many bytes there, and they were loaded with the image.
    SymbolTable::parse(unsafe { slice::from_raw_parts(&raw const __symbols_start, symbol_table_bytes()) })
}

/// The length of the table, or of its placeholder.
fn symbol_table_bytes() -> usize {
    // SAFETY: the linker script reserves at least the placeholder's eight bytes, and the page that they lie in is loaded.
    let header = unsafe { &*(&raw const __symbols_start).cast::<[u8; HEADER_LEN]>() };
    SymbolTable::length(header).unwrap_or(HEADER_LEN)
}
