//! QEMU's plugin interface, as much of it as is used. QEMU itself defines these functions.
//!
//! Source: QEMU's documentation, "Writing TCG plugins", and the declarations that it installs.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The oldest interface that has all this: that of QEMU 9.1.
pub(crate) const OLDEST_API: c_int = 3;
/// The newest interface known to have all this unchanged. Version 7 takes other callbacks.
pub(crate) const NEWEST_API: c_int = 6;

/// Names this plugin in calls.
pub(crate) type PluginId = u64;

/// Describes QEMU and its guest.
#[repr(C)]
pub(crate) struct Info {
    pub(crate) target_name: *const c_char,
    pub(crate) oldest_api: c_int,
    pub(crate) current_api: c_int,
    pub(crate) system_emulation: bool,
    pub(crate) vcpus: c_int,
    pub(crate) max_vcpus: c_int,
}

/// Declares a type that only QEMU looks into.
macro_rules! opaque {
    ($($name:ident),*) => { $(
        #[repr(C)]
        pub(crate) struct $name {
            _opaque: [u8; 0],
        }
    )* };
}

opaque!(TranslationBlock, Instruction, HardwareAddress);

/// Describes an access to memory.
pub(crate) type MemoryInfo = u32;

/// `QEMU_PLUGIN_CB_NO_REGS`: a callback that does not look at registers.
pub(crate) const NO_REGISTERS: c_int = 0;
/// `QEMU_PLUGIN_MEM_R`.
pub(crate) const LOADS: c_int = 1;
/// `QEMU_PLUGIN_MEM_W`.
pub(crate) const STORES: c_int = 2;
/// `QEMU_PLUGIN_MEM_RW`.
pub(crate) const LOADS_AND_STORES: c_int = 3;

pub(crate) type VcpuCallback = unsafe extern "C" fn(PluginId, c_uint);
pub(crate) type TranslationCallback = unsafe extern "C" fn(PluginId, *mut TranslationBlock);
pub(crate) type ExecutionCallback = unsafe extern "C" fn(c_uint, *mut c_void);
pub(crate) type MemoryCallback = unsafe extern "C" fn(c_uint, MemoryInfo, u64, *mut c_void);
pub(crate) type ExitCallback = unsafe extern "C" fn(PluginId, *mut c_void);

unsafe extern "C" {
    pub(crate) fn qemu_plugin_register_vcpu_init_cb(id: PluginId, callback: VcpuCallback);
    pub(crate) fn qemu_plugin_register_vcpu_tb_trans_cb(id: PluginId, callback: TranslationCallback);
    pub(crate) fn qemu_plugin_register_atexit_cb(id: PluginId, callback: ExitCallback, data: *mut c_void);

    pub(crate) fn qemu_plugin_tb_n_insns(block: *const TranslationBlock) -> usize;
    pub(crate) fn qemu_plugin_tb_get_insn(block: *const TranslationBlock, index: usize) -> *mut Instruction;
    pub(crate) fn qemu_plugin_insn_data(
        instruction: *const Instruction,
        destination: *mut c_void,
        length: usize,
    ) -> usize;
    pub(crate) fn qemu_plugin_insn_vaddr(instruction: *const Instruction) -> u64;

    pub(crate) fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut Instruction,
        callback: ExecutionCallback,
        flags: c_int,
        data: *mut c_void,
    );
    pub(crate) fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut Instruction,
        callback: MemoryCallback,
        flags: c_int,
        accesses: c_int,
        data: *mut c_void,
    );

    pub(crate) fn qemu_plugin_mem_is_store(info: MemoryInfo) -> bool;
    pub(crate) fn qemu_plugin_get_hwaddr(info: MemoryInfo, address: u64) -> *mut HardwareAddress;
    pub(crate) fn qemu_plugin_hwaddr_is_io(address: *const HardwareAddress) -> bool;
    pub(crate) fn qemu_plugin_hwaddr_phys_addr(address: *const HardwareAddress) -> u64;
}
