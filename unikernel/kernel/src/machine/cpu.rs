//! What a CPU can do, and turning it on.

use core::sync::atomic::{AtomicBool, Ordering};

use raw_cpuid::{CpuId as Cpuid, Hypervisor};
use x86_64::VirtAddr;
use x86_64::instructions::segmentation::{FS, Segment64};
use x86_64::registers::control::{Cr0, Cr0Flags, Cr4, Cr4Flags};
use x86_64::registers::model_specific::{FsBase, Msr};
use x86_64::registers::xcontrol::{XCr0, XCr0Flags};

/// Whether WRFSBASE may be used.
static FS_BASE_INSTRUCTIONS: AtomicBool = AtomicBool::new(false);

/// Whether 1 GiB pages exist.
pub(crate) fn has_1gib_pages() -> bool {
    Cpuid::new()
        .get_extended_processor_and_feature_identifiers()
        .is_some_and(|features| features.has_1gib_pages())
}

/// Whether QEMU translates this CPU's instructions, as opposed to running them on a real one.
pub(crate) fn is_emulated_by_qemu() -> bool {
    Cpuid::new()
        .get_hypervisor_info()
        .is_some_and(|hypervisor| hypervisor.identify() == Hypervisor::QEMU)
}

/// Turns on, on the running CPU, what programs and kernel use: SSE, and AVX and AVX-512 where found.
pub(crate) fn enable_features() {
    let cpuid = Cpuid::new();
    set_memory_types();
    // SAFETY: bits that the CPU says it has; none of them changes what running code means.
    unsafe {
        Cr0::update(|cr0| {
            cr0.remove(Cr0Flags::EMULATE_COPROCESSOR | Cr0Flags::TASK_SWITCHED);
            cr0.insert(Cr0Flags::MONITOR_COPROCESSOR | Cr0Flags::NUMERIC_ERROR | Cr0Flags::WRITE_PROTECT);
        });
        Cr4::update(|cr4| {
            cr4.insert(Cr4Flags::OSFXSR | Cr4Flags::OSXMMEXCPT_ENABLE | Cr4Flags::PAGE_GLOBAL);
            if cpuid
                .get_feature_info()
                .is_some_and(|features| features.has_xsave())
            {
                cr4.insert(Cr4Flags::OSXSAVE);
            }
            if cpuid
                .get_extended_feature_info()
                .is_some_and(|features| features.has_fsgsbase())
            {
                cr4.insert(Cr4Flags::FSGSBASE);
                FS_BASE_INSTRUCTIONS.store(true, Ordering::Relaxed);
            }
        });
        if let Some(state) = cpuid
            .get_extended_state_info()
            .filter(|_| Cr4::read().contains(Cr4Flags::OSXSAVE))
        {
            let mut enabled = XCr0Flags::X87 | XCr0Flags::SSE;
            if state.xcr0_supports_avx_256() {
                enabled |= XCr0Flags::AVX;
            }
            let avx512 = XCr0Flags::OPMASK | XCr0Flags::ZMM_HI256 | XCr0Flags::HI16_ZMM;
            if state.xcr0_supports_avx512_opmask()
                && state.xcr0_supports_avx512_zmm_hi256()
                && state.xcr0_supports_avx512_zmm_hi16()
                && enabled.contains(XCr0Flags::AVX)
            {
                enabled |= avx512;
            }
            XCr0::write(enabled);
        }
    }
}

/// Lets machine checks be reported, where the CPU has them. The interrupt table is loaded.
pub(crate) fn enable_machine_checks() {
    if Cpuid::new()
        .get_feature_info()
        .is_some_and(|features| features.has_mce())
    {
        // SAFETY: the vector leads to a handler with a stack of its own.
        unsafe { Cr4::update(|cr4| cr4.insert(Cr4Flags::MACHINE_CHECK_EXCEPTION)) };
    }
}

/// The memory types that the page tables' bits choose from, as at reset (Intel SDM volume 3, table 12-12): write-back,
/// write-through, uncached-minus, uncached, twice.
const MEMORY_TYPES: u64 = 0x0007_0406_0007_0406;
const IA32_PAT: u32 = 0x277;

/// Sets this CPU's memory types, whatever the firmware made of them.
fn set_memory_types() {
    if Cpuid::new()
        .get_feature_info()
        .is_some_and(|features| features.has_pat())
    {
        // SAFETY: the types at reset, by which the kernel maps RAM (entry 0) and device registers (entry 3).
        unsafe { Msr::new(IA32_PAT).write(MEMORY_TYPES) };
    }
}

/// Physical addresses have this many bits.
pub(crate) fn physical_address_bits() -> u32 {
    /// Of CPUs that do not say.
    const LEAST: u32 = 36;
    Cpuid::new()
        .get_processor_capacity_feature_info()
        .map_or(LEAST, |capacity| u32::from(capacity.physical_address_bits()))
}

/// Sets the FS base.
///
/// # Safety
/// `base` is the address of the control block of the thread that runs next.
pub(crate) unsafe fn set_fs_base(base: u64) {
    let base = VirtAddr::new(base);
    if FS_BASE_INSTRUCTIONS.load(Ordering::Relaxed) {
        // SAFETY: CR4.FSGSBASE is set on all CPUs alike; the rest is the caller's promise.
        unsafe { FS::write_base(base) };
    } else {
        FsBase::write(base);
    }
}
