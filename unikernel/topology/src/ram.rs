//! RAM blocks out of a firmware's memory map.

use alloc::vec::Vec;

use crate::{PhysAddr, PhysRange, ranges};

/// What a firmware says about a range of addresses (ACPI specification 6.5, table 15.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// RAM that is free to use.
    Usable,
    /// Not to be touched: the firmware's own RAM, device registers, or nothing at all.
    Reserved,
    /// RAM that holds ACPI tables.
    AcpiReclaimable,
    /// RAM that the firmware keeps across sleep.
    AcpiNvs,
    /// Anything else: persistent or broken memory, types of the future.
    Other,
}

/// One entry of a firmware's memory map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryMapEntry {
    /// The addresses.
    pub range: PhysRange,
    /// What is there.
    pub kind: MemoryKind,
}

/// The first mebibyte. Its upper part is RAM behind ROMs and a video window, and is sold as RAM.
pub(crate) const FIRST_MEBIBYTE: PhysRange = PhysRange::new(PhysAddr(0), PhysAddr(1 << 20));

/// How much of the reserved memory that follows RAM can be RAM which the firmware kept for itself, in bytes.
const FIRMWARE_BYTES: u64 = 16 << 20;

/// The machine's RAM, in order of address: what is usable, and what the firmware took for itself.
///
/// The rule, since a memory map does not say which reserved ranges are RAM:
/// - usable and ACPI (reclaimable, NVS) ranges are RAM;
/// - if any RAM lies below 1 MiB, everything below 1 MiB is RAM;
/// - reserved memory that begins where RAM ends is the firmware's part of this RAM, as long as there are at most
///   16 MiB of it. So the top of low RAM and system-management memory (8 or 16 MiB) count; the PCI configuration
///   window (ECAM, 64 to 256 MiB), should it follow RAM directly, and flash and registers, which follow no RAM,
///   do not.
///
/// Blocks begin and end at pages; less than a page is dropped. Entries may come unsorted and may overlap; what is
/// RAM by one entry is RAM. Which of these bytes are free to use is a different question: ask the map.
#[must_use]
pub fn ram_blocks(map: &[MemoryMapEntry]) -> Vec<PhysRange> {
    let is_ram = |kind| {
        matches!(
            kind,
            MemoryKind::Usable | MemoryKind::AcpiReclaimable | MemoryKind::AcpiNvs
        )
    };
    let mut entries: Vec<(PhysRange, bool)> = map
        .iter()
        .filter(|entry| !entry.range.is_empty() && entry.kind != MemoryKind::Other)
        .map(|entry| (entry.range, is_ram(entry.kind)))
        .collect();
    if entries
        .iter()
        .any(|(range, ram)| *ram && range.intersection(&FIRST_MEBIBYTE).is_some())
    {
        entries.push((FIRST_MEBIBYTE, true));
    }
    // RAM before reserved memory that begins at the same address.
    entries.sort_unstable_by_key(|(range, ram)| (range.start, !ram));

    let mut blocks: Vec<PhysRange> = Vec::new();
    let mut firmware_bytes = 0;
    for (range, ram) in entries {
        match blocks.last_mut() {
            Some(block) if range.start <= block.end => {
                let further = range.end.0.saturating_sub(block.end.0);
                if ram && further > 0 {
                    firmware_bytes = 0;
                    block.end = range.end;
                } else if !ram && firmware_bytes + further <= FIRMWARE_BYTES {
                    firmware_bytes += further;
                    block.end = block.end.max(range.end);
                }
            }
            _ if ram => {
                firmware_bytes = 0;
                blocks.push(range);
            }
            _ => {}
        }
    }
    ranges::whole_pages(blocks)
}
