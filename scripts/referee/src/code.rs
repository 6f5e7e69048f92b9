//! Whose code an instruction is: the kernel's, the application's, or that which zeroes and copies pages.

use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::Path;

use object::{Object as _, ObjectSymbol as _};
use serde::Serialize;

/// Whose code an instruction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Code {
    /// The kernel's, that of [`Code::Bulk`] apart.
    Kernel,
    /// The application's, and all else that is not the kernel's.
    App,
    /// The kernel's code that zeroes and copies pages.
    Bulk,
}

impl Code {
    /// Every kind, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Kernel, Self::App, Self::Bulk];

    /// Its number, below `ALL.len()`.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Which virtual addresses hold whose code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeMap {
    kernel: Range<u64>,
    bulk: Vec<Range<u64>>,
}

impl CodeMap {
    /// That of Linux: the upper half of the address space is the kernel's.
    #[must_use]
    pub fn linux() -> Self {
        Self {
            // The last address is left out; no instruction starts there.
            kernel: 1 << 63..u64::MAX,
            bulk: Vec::new(),
        }
    }

    /// That of an image of ours, from the symbols `__kernel_text_start`, `__kernel_text_end`, `__bulk_text_start` and
    /// `__bulk_text_end` of its symbol table.
    ///
    /// # Errors
    /// If the file can not be read, is no ELF file, or lacks a symbol; the message names it.
    pub fn of_image(path: &Path) -> Result<Self, String> {
        let fail = |error: &dyn fmt::Display| format!("{}: {error}", path.display());
        let bytes = fs::read(path).map_err(|error| fail(&error))?;
        let file = object::File::parse(&*bytes).map_err(|error| fail(&error))?;
        let address = |name: &str| {
            let symbol = file.symbol_by_name(name);
            symbol
                .map(|symbol| symbol.address())
                .ok_or_else(|| fail(&format_args!("there is no symbol {name}")))
        };
        let mut map = Self {
            kernel: address("__kernel_text_start")?..address("__kernel_text_end")?,
            bulk: Vec::new(),
        };
        map.add_bulk(address("__bulk_text_start")?..address("__bulk_text_end")?);
        Ok(map)
    }

    /// Adds a range of code that zeroes or copies pages.
    pub fn add_bulk(&mut self, range: Range<u64>) {
        self.bulk.push(range);
    }

    /// Whose code the instruction at `address` is.
    #[must_use]
    pub fn classify(&self, address: u64) -> Code {
        if self.bulk.iter().any(|range| range.contains(&address)) {
            Code::Bulk
        } else if self.kernel.contains(&address) {
            Code::Kernel
        } else {
            Code::App
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_code_lies_within_the_kernels() {
        let mut map = CodeMap {
            kernel: 0x1000..0x9000,
            bulk: Vec::new(),
        };
        map.add_bulk(0x2000..0x3000);
        assert_eq!(map.classify(0x0fff), Code::App);
        assert_eq!(map.classify(0x1000), Code::Kernel);
        assert_eq!(map.classify(0x2000), Code::Bulk);
        assert_eq!(map.classify(0x3000), Code::Kernel);
        assert_eq!(map.classify(0x9000), Code::App);
        map.add_bulk(0x8000..0x8001);
        assert_eq!(map.classify(0x8000), Code::Bulk);
    }

    #[test]
    fn linux_has_the_upper_half() {
        let map = CodeMap::linux();
        assert_eq!(map.classify(0x0000_7fff_ffff_ffff), Code::App);
        assert_eq!(map.classify(0xffff_8000_0000_0000), Code::Kernel);
        assert_eq!(map.classify(0xffff_ffff_8100_0000), Code::Kernel);
    }

    #[test]
    fn an_image_without_the_symbols_is_refused() {
        let error = CodeMap::of_image(&std::env::current_exe().unwrap()).unwrap_err();
        assert!(error.contains("no symbol __kernel_text_start"), "{error}");
        let error = CodeMap::of_image(Path::new("/nonexistent.elf")).unwrap_err();
        assert!(error.starts_with("/nonexistent.elf: "), "{error}");
    }

    #[test]
    fn kinds_are_numbered_in_order() {
        assert_eq!(Code::ALL.map(Code::index), [0, 1, 2]);
    }
}
