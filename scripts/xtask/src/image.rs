//! The image writer: makes the bootable ELF file out of the linked one.
//!
//! The bootable file has the linked file's program headers and segments, but for the last one in memory: its section
//! `.homenode_symbols` is a placeholder that is replaced by the [symbol table](crate::symbols) for backtraces. Debug information
//! is left out; `.symtab` and `.strtab` are kept, for debuggers, profilers and `nm`.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use object::build::elf::{Builder, Section, SectionData};
use object::elf;

use crate::symbols::{ENTRY_LEN, HEADER_LEN, MAGIC, SymbolTable};

/// The section that the linker script reserves for the symbol table.
const PLACEHOLDER: &str = ".homenode_symbols";

/// How large a bootable image is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageSizes {
    /// The whole file.
    pub file: u64,
    /// What it occupies in memory, zeroed memory included.
    pub memory: u64,
    /// The symbol table for backtraces, a part of `memory`.
    pub symbols: u64,
}

/// The functions of an image: address → (size in bytes, mangled name).
type Functions = BTreeMap<u64, (u64, Vec<u8>)>;

/// Makes a bootable ELF file out of the bytes of a linked one.
///
/// # Errors
/// If `linked` is not a 64-bit little-endian ELF file whose last loadable segment holds only the section `.homenode_symbols`.
pub fn bootable(linked: &[u8]) -> Result<(Vec<u8>, ImageSizes)> {
    let mut elf = Builder::read(linked).context("it is no well-formed ELF file")?;
    ensure!(
        elf.is_64 && elf.endian == object::Endianness::Little,
        "it is no 64-bit little-endian ELF file"
    );

    let functions = functions(&elf);
    let load = |segment: &object::build::elf::Segment<'_>| segment.is_load() && segment.p_memsz != 0;
    let base = elf
        .segments
        .iter()
        .filter(|segment| load(segment))
        .map(|segment| segment.p_vaddr)
        .min();
    let base = base.context("it has no loadable segment")?;
    let table = encode(base, &functions)?;
    let table_len = table.len() as u64;

    let placeholder = elf
        .sections
        .iter_mut()
        .find(|section| section.name.as_slice() == PLACEHOLDER.as_bytes())
        .with_context(|| {
            format!("it has no section `{PLACEHOLDER}`, which linker/homenode.ld must define")
        })?;
    let (start, file_start) = (placeholder.sh_addr, placeholder.sh_offset);
    placeholder.data = SectionData::Data(table.into());
    placeholder.sh_size = table_len;

    for segment in elf.segments.iter_mut().filter(|segment| load(segment)) {
        if segment.p_vaddr == start {
            (segment.p_filesz, segment.p_memsz) = (table_len, table_len);
        } else if segment.p_vaddr + segment.p_memsz > start
            || segment.p_offset + segment.p_filesz > file_start
        {
            bail!(
                "the segment at {:#x} does not lie before `{PLACEHOLDER}` at {start:#x}",
                segment.p_vaddr
            );
        }
    }
    ensure!(
        elf.segments
            .iter()
            .any(|segment| load(segment) && segment.p_vaddr == start),
        "no loadable segment starts at `{PLACEHOLDER}`, which must have one of its own"
    );

    for section in elf.sections.iter_mut().filter(|section| !is_kept(section)) {
        section.delete = true;
    }
    let mut file = Vec::new();
    elf.write(&mut file).context("cannot lay out the bootable file")?;
    let sizes = ImageSizes {
        file: file.len() as u64,
        memory: start - base + table_len,
        symbols: table_len,
    };
    Ok((file, sizes))
}

/// Whether a section belongs in the bootable file: what is loaded, and the symbols for outside tools.
fn is_kept(section: &Section<'_>) -> bool {
    let for_tools = matches!(
        section.data,
        SectionData::Symbol | SectionData::String | SectionData::SectionString
    );
    section.is_alloc() || for_tools
}

fn functions(elf: &Builder<'_>) -> Functions {
    let mut functions = Functions::new();
    for symbol in &elf.symbols {
        let is_code = symbol
            .section
            .is_some_and(|section| elf.sections.get(section).sh_flags.contains(elf::SHF_EXECINSTR));
        if !is_code || symbol.st_type() != elf::STT_FUNC {
            continue;
        }
        let mut name = symbol.name.as_slice();
        // LLVM's link-time optimiser appends `.llvm.NUMBER` to names that it makes global.
        if let Some(at) = name.windows(6).position(|window| window == b".llvm.") {
            name = &name[..at];
        }
        // Of several names for one address, a global one is the more telling.
        if symbol.st_bind() != elf::STB_LOCAL || !functions.contains_key(&symbol.st_value) {
            functions.insert(symbol.st_value, (symbol.st_size, name.to_vec()));
        }
    }
    functions
}

/// Writes the symbol table, as [`crate::symbols`] defines it, and reads every function back from it.
fn encode(base: u64, functions: &Functions) -> Result<Vec<u8>> {
    let names_start = HEADER_LEN + functions.len() * ENTRY_LEN;
    let (mut entries, mut names) = (Vec::new(), Vec::new());
    for (&address, (size, name)) in functions {
        let offset = address
            .checked_sub(base)
            .and_then(|offset| u32::try_from(offset).ok());
        let offset = offset.with_context(|| format!("a function at {address:#x} lies outside the image"))?;
        let size = u32::try_from(*size).context("a function is larger than 4 GiB")?;
        let name_offset = u32::try_from(names.len())?;
        entries.extend([offset, size, name_offset].into_iter().flat_map(u32::to_le_bytes));
        names.extend_from_slice(name);
        names.push(0);
    }
    let mut table = MAGIC.to_vec();
    table.extend(((names_start + names.len()) as u64).to_le_bytes());
    table.extend(base.to_le_bytes());
    table.extend(u32::try_from(functions.len())?.to_le_bytes());
    table.extend(u32::try_from(names_start)?.to_le_bytes());
    table.extend(entries);
    table.extend(names);

    let read = SymbolTable::parse(&table).context("the symbol table can not be read back")?;
    for (&address, (_, name)) in functions {
        let found = read
            .lookup(address)
            .map(|(found, distance)| (found.as_bytes(), distance));
        ensure!(
            found == Some((name.as_slice(), 0)),
            "the symbol table has lost `{}`",
            String::from_utf8_lossy(name)
        );
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use object::read::elf::ElfFile64;
    use object::{Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _};
    use proptest::prelude::*;

    use super::*;
    use crate::workspace;

    /// Two functions, zeroed memory, a PVH note and debug information.
    const ASSEMBLY: &str = r#"
        .section .note.pvh, "a", @note
        .long 4, 4, 18
        .asciz "Xen"
        .long 0x200000
        .section .boot.text, "ax"
        .globl homenode_start32
        homenode_start32: hlt
        .text
        .globl first, second
        .type first, @function
        first: nop
        nop
        ret
        .size first, . - first
        .balign 64
        .type second, @function
        second: jmp second
        .size second, . - second
        not_typed: ret
        .data
        .globl counter
        counter: .quad 7
        .bss
        .skip 8192
    "#;

    /// Links [`ASSEMBLY`] with the linker script of images, by the C compiler that links host programs too.
    fn linked() -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let (source, output) = (directory.path().join("small.s"), directory.path().join("small"));
        std::fs::write(&source, ASSEMBLY).unwrap();
        let status = Command::new("cc")
            .args([
                "-g",
                "-nostdlib",
                "-static",
                "-no-pie",
                "-Wl,--build-id=none,-z,max-page-size=4096",
            ])
            .arg(format!(
                "-Wl,-T,{}",
                workspace::root().join("linker/homenode.ld").display()
            ))
            .arg("-o")
            .args([&output, &source])
            .status()
            .unwrap();
        assert!(status.success());
        std::fs::read(output).unwrap()
    }

    #[test]
    fn the_bootable_file_loads_the_same_bytes_and_a_symbol_table() {
        let linked = linked();
        let (bootable, sizes) = bootable(&linked).unwrap();
        let old = ElfFile64::<object::Endianness>::parse(&*linked).unwrap();
        let new = ElfFile64::<object::Endianness>::parse(&*bootable).unwrap();
        assert_eq!(old.entry(), new.entry());

        let placeholder = new.section_by_name(PLACEHOLDER).unwrap();
        let mut last = None;
        for (old, new) in old.segments().zip(new.segments()) {
            assert_eq!(old.address(), new.address());
            assert_eq!(old.elf_program_header().p_flags, new.elf_program_header().p_flags);
            assert_eq!(old.elf_program_header().p_paddr, new.elf_program_header().p_paddr);
            if new.address() == placeholder.address() {
                last = Some(new);
            } else {
                assert_eq!(old.size(), new.size());
                assert_eq!(old.data().unwrap(), new.data().unwrap());
            }
        }
        let last = last.unwrap();
        assert_eq!(last.size(), sizes.symbols);
        assert_eq!(last.address() + last.size() - 0xffff_ffff_8020_0000, sizes.memory);
        assert_eq!(bootable.len() as u64, sizes.file);

        let table = SymbolTable::parse(last.data().unwrap()).unwrap();
        let address = |name| {
            old.symbols()
                .find(|symbol| symbol.name() == Ok(name))
                .unwrap()
                .address()
        };
        assert_eq!(table.lookup(address("first") + 2), Some(("first", 2)));
        assert_eq!(
            table.lookup(address("first") + 3),
            None,
            "padding behind a function belongs to none"
        );
        assert_eq!(table.lookup(address("second")), Some(("second", 0)));
        assert_eq!(table.lookup(address("not_typed")), None);
        assert_eq!(table.lookup(address("counter")), None);
    }

    #[test]
    fn symbols_stay_for_tools_and_debug_information_goes() {
        let linked = linked();
        let (bootable, _) = bootable(&linked).unwrap();
        let old = ElfFile64::<object::Endianness>::parse(&*linked).unwrap();
        let new = ElfFile64::<object::Endianness>::parse(&*bootable).unwrap();
        assert!(
            old.section_by_name(".debug_line").is_some(),
            "else this test shows nothing"
        );
        assert!(
            new.sections()
                .all(|section| !section.name().unwrap().starts_with(".debug"))
        );
        for name in ["first", "second", "counter", "__symbols_start"] {
            let value =
                |file: &ElfFile64<'_>| file.symbols().find(|s| s.name() == Ok(name)).map(|s| s.address());
            assert!(value(&old).is_some());
            assert_eq!(value(&old), value(&new), "{name}");
        }
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let message = |bytes: &[u8]| format!("{:#}", bootable(bytes).unwrap_err());
        assert!(message(b"#!/bin/sh\n").contains("no well-formed ELF file"));
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(message(&own).contains(PLACEHOLDER));
    }

    fn arbitrary_functions() -> impl Strategy<Value = Functions> {
        let gap_size_name = (0_u64..100, 1_u64..5000, "[a-zA-Z_][a-zA-Z0-9_.$]{0,40}");
        proptest::collection::vec(gap_size_name, 0..60).prop_map(|list| {
            let mut address = BASE;
            let mut functions = Functions::new();
            for (gap, size, name) in list {
                functions.insert(address + gap, (size, name.into_bytes()));
                address += gap + size;
            }
            functions
        })
    }

    const BASE: u64 = 0xffff_ffff_8020_0000;

    proptest! {
        /// Looking up any address finds what a scan of the list finds.
        #[test]
        fn lookup_agrees_with_a_scan(functions in arbitrary_functions(), offset in 0_u64..200_000) {
            let table = encode(BASE, &functions).unwrap();
            let address = BASE + offset;
            let expected = functions
                .iter()
                .find(|&(&start, &(size, _))| start <= address && address < start + size)
                .map(|(&start, (_, name))| (std::str::from_utf8(name).unwrap(), address - start));
            prop_assert_eq!(SymbolTable::parse(&table).unwrap().lookup(address), expected);
        }

        /// A table that is damaged anywhere, or cut, may answer wrongly but never panics or reads outside itself.
        #[test]
        fn damage_does_not_panic(
            functions in arbitrary_functions(),
            damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..20),
            cut in any::<proptest::sample::Index>(),
            address in prop_oneof![BASE..BASE + 200_000, any::<u64>()],
        ) {
            let mut table = encode(BASE, &functions).unwrap();
            for (index, byte) in damage {
                let index = index.index(table.len());
                table[index] = byte;
            }
            table.truncate(cut.index(table.len()) + 1);
            if let Some(table) = SymbolTable::parse(&table)
                && let Some((name, _)) = table.lookup(address)
            {
                prop_assert!(name.len() < 200_000);
            }
        }
    }

    #[test]
    fn an_unfilled_placeholder_is_no_table() {
        assert!(SymbolTable::parse(&[0; 64]).is_none());
        assert_eq!(SymbolTable::length(&[0; HEADER_LEN]), None);
    }

    #[test]
    fn a_function_without_a_size_extends_to_the_next() {
        let functions = Functions::from([(BASE, (0, b"entry".to_vec())), (BASE + 64, (4, b"next".to_vec()))]);
        let table = encode(BASE, &functions).unwrap();
        let table = SymbolTable::parse(&table).unwrap();
        assert_eq!(table.lookup(BASE + 63), Some(("entry", 63)));
        assert_eq!(table.lookup(BASE + 64), Some(("next", 0)));
        assert_eq!(table.lookup(BASE + 68), None);
        assert_eq!(table.lookup(BASE - 1), None);
    }
}
