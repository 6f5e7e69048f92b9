//! What a PVH boot loader hands over (Xen, `xen/include/public/arch-x86/hvm/start_info.h`).

use core::ffi::CStr;
use core::mem::size_of;
use core::slice;

use homenode_topology::{MemoryKind, MemoryMapEntry, PhysAddr, PhysRange};

use super::{BootError, BootInfo};
use crate::machine::memory::direct_map;

const MAGIC: u32 = 0x336e_c578;
/// The first version that has a memory map.
const VERSION_WITH_MEMORY_MAP: u32 = 1;

#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

#[repr(C)]
struct MapEntry {
    start: u64,
    bytes: u64,
    kind: u32,
    reserved: u32,
}

/// More entries than any firmware makes.
const MOST_MAP_ENTRIES: u32 = 4096;
/// Longer command lines are refused.
const COMMAND_LINE_BYTES: u64 = 64 << 10;

/// What lies below this address is reachable before the kernel has page tables of its own.
const REACHABLE: u64 = 4 << 30;

/// Reads the start information at `address`.
///
/// # Errors
/// When it is not what PVH says it should be.
///
/// # Safety
/// The first 4 GiB of the direct map are mapped, and `address` is what the boot loader left in EBX.
pub(crate) unsafe fn read(address: PhysAddr) -> Result<BootInfo, BootError> {
    let reachable =
        |start: u64, bytes: u64| start != 0 && start.checked_add(bytes).is_some_and(|end| end <= REACHABLE);
    if !reachable(address.0, size_of::<StartInfo>() as u64) || !address.is_aligned(8) {
        return Err(BootError::StartInfo("its address is not usable"));
    }
    // SAFETY: by the caller, and within what is mapped.
    let info = unsafe { &*direct_map(address).cast::<StartInfo>() };
    if info.magic != MAGIC {
        return Err(BootError::StartInfo("its magic number is wrong"));
    }
    if info.version < VERSION_WITH_MEMORY_MAP || info.memory_map_entries == 0 {
        return Err(BootError::StartInfo("it has no memory map"));
    }
    if info.memory_map_entries > MOST_MAP_ENTRIES {
        return Err(BootError::StartInfo("its memory map has too many entries"));
    }
    let map_bytes = u64::from(info.memory_map_entries) * size_of::<MapEntry>() as u64;
    if !reachable(info.memory_map, map_bytes) || !PhysAddr(info.memory_map).is_aligned(8) {
        return Err(BootError::StartInfo("its memory map lies out of reach"));
    }
    // SAFETY: within what is mapped; the boot loader put that many entries there.
    let entries = unsafe {
        slice::from_raw_parts(
            direct_map(PhysAddr(info.memory_map)).cast::<MapEntry>(),
            info.memory_map_entries as usize,
        )
    };
    let memory_map = entries
        .iter()
        .map(|entry| MemoryMapEntry {
            range: PhysRange::new(
                PhysAddr(entry.start),
                PhysAddr(entry.start.saturating_add(entry.bytes)),
            ),
            kind: memory_kind(entry.kind),
        })
        .collect();
    let command_line: &[u8] = if reachable(info.command_line, COMMAND_LINE_BYTES) {
        // SAFETY: within what is mapped; the boot loader's memory is not used before the line has been read.
        let bytes = unsafe {
            slice::from_raw_parts(
                direct_map(PhysAddr(info.command_line)),
                COMMAND_LINE_BYTES as usize,
            )
        };
        CStr::from_bytes_until_nul(bytes)
            .map_err(|_| BootError::StartInfo("its command line does not end within 64 KiB"))?
            .to_bytes()
    } else {
        &[]
    };
    Ok(BootInfo {
        memory_map,
        command_line,
        rsdp: (info.rsdp != 0).then_some(PhysAddr(info.rsdp)),
    })
}

/// Kinds of memory as the E820 map numbers them (ACPI 6.5, table 15.4).
fn memory_kind(kind: u32) -> MemoryKind {
    match kind {
        1 => MemoryKind::Usable,
        2 => MemoryKind::Reserved,
        3 => MemoryKind::AcpiReclaimable,
        4 => MemoryKind::AcpiNvs,
        _ => MemoryKind::Other,
    }
}
