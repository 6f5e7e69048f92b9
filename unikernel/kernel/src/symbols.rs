//! The compact symbol table in a bootable image, from which backtraces take function names.
//!
//! The linker script reserves a section `.homenode_symbols`, the last thing of the image in memory; `cargo xtask build` replaces
//! its eight zero bytes by this table. All numbers are little-endian:
//!
//! | offset | size | meaning |
//! |---|---|---|
//! | 0 | 8 | magic `HNSYMS1\0` |
//! | 8 | 8 | length of the whole table in bytes, this header included |
//! | 16 | 8 | base: the virtual address that the entries count from (the lowest address of the image) |
//! | 24 | 4 | number of entries |
//! | 28 | 4 | offset of the names from the start of the table |
//! | 32 | 12 each | entries: function's offset from the base, its size in bytes, its name's offset in the names |
//!
//! Entries are sorted by offset and describe functions only; no two have the same offset. A size of 0 (an assembly label without
//! `.size`) means "up to the next entry". Names are mangled as in the ELF file and each ends with a zero byte.
//!
//! This file has no dependency and is compiled twice: by the kernel, which reads the table, and by `xtask`, which writes it.

/// The first eight bytes of a table; a placeholder that was never filled has zeros there.
pub(crate) const MAGIC: [u8; 8] = *b"HNSYMS1\0";
/// Bytes before the first entry.
pub(crate) const HEADER_LEN: usize = 32;
/// Bytes of one entry.
pub(crate) const ENTRY_LEN: usize = 12;

/// A symbol table in memory. Reading never panics, whatever the bytes are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SymbolTable<'a> {
    base: u64,
    entries: &'a [u8],
    names: &'a [u8],
}

/// One function of the table.
struct Entry {
    offset: u32,
    size: u32,
    name: u32,
}

impl<'a> SymbolTable<'a> {
    /// The length in bytes of the table that starts with `header`, or `None` if no table starts there.
    ///
    /// The kernel knows only where the table starts, and asks this before it takes the bytes for [`SymbolTable::parse`].
    pub(crate) fn length(header: &[u8; HEADER_LEN]) -> Option<usize> {
        if header[..8] != MAGIC {
            return None;
        }
        usize::try_from(u64_at(header, 8)?)
            .ok()
            .filter(|&length| length >= HEADER_LEN)
    }

    /// Reads the table at the start of `bytes`, or returns `None` if there is none or if it does not fit into `bytes`.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let length = Self::length(bytes.first_chunk()?)?;
        let table = bytes.get(..length)?;
        let count = usize::try_from(u32_at(table, 24)?).ok()?;
        let names_start = usize::try_from(u32_at(table, 28)?).ok()?;
        let entries_end = count.checked_mul(ENTRY_LEN)?.checked_add(HEADER_LEN)?;
        Some(Self {
            base: u64_at(table, 16)?,
            entries: table.get(HEADER_LEN..entries_end)?,
            names: table.get(names_start..)?,
        })
    }

    /// The mangled name of the function that contains `address`, and the distance in bytes from the function's start.
    ///
    /// A return address points behind its call, and behind the whole function when a call that never returns ends it: look up
    /// the return address minus one.
    pub(crate) fn lookup(&self, address: u64) -> Option<(&'a str, u64)> {
        let target = u32::try_from(address.checked_sub(self.base)?).ok()?;
        let (mut low, mut high) = (0, self.entries.len() / ENTRY_LEN);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.entry(middle)?.offset <= target {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let entry = self.entry(low.checked_sub(1)?)?;
        let distance = target.checked_sub(entry.offset)?;
        if entry.size != 0 && distance >= entry.size {
            return None;
        }
        let name = self.names.get(usize::try_from(entry.name).ok()?..)?;
        let end = name.iter().position(|&byte| byte == 0)?;
        Some((core::str::from_utf8(&name[..end]).ok()?, u64::from(distance)))
    }

    fn entry(&self, index: usize) -> Option<Entry> {
        let bytes = self.entries.get(index.checked_mul(ENTRY_LEN)?..)?;
        Some(Entry {
            offset: u32_at(bytes, 0)?,
            size: u32_at(bytes, 4)?,
            name: u32_at(bytes, 8)?,
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}
