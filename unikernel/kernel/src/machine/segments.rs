//! Segment descriptors, the task state segment with its interrupt stacks, and the interrupt descriptor table.

use core::mem::size_of;

use x86_64::VirtAddr;
use x86_64::instructions::segmentation::{CS, Segment};
use x86_64::instructions::tables::{lgdt, lidt, load_tss};
use x86_64::structures::DescriptorTablePointer;
use x86_64::structures::gdt::SegmentSelector as Selector;

/// Selector of the 64-bit code segment.
pub(crate) const CODE_SELECTOR: u16 = 0x08;
const TSS_SELECTOR: u16 = 0x10;

/// The interrupt stacks, as numbered by the interrupt descriptor table (1 to 7).
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum InterruptStack {
    /// Of every vector but the three below: left at once.
    Landing = 1,
    /// Of non-maskable interrupts.
    Nmi = 2,
    /// Of double faults.
    DoubleFault = 3,
    /// Of machine checks.
    MachineCheck = 4,
}

impl InterruptStack {
    /// All of them, in order of their numbers.
    pub(crate) const ALL: [Self; 4] = [Self::Landing, Self::Nmi, Self::DoubleFault, Self::MachineCheck];
}

/// 64-bit task state segment (AMD64 manual volume 2, 12.2.5).
#[repr(C, packed(4))]
struct TaskState {
    reserved_0: u32,
    privilege_stacks: [u64; 3],
    reserved_1: u64,
    interrupt_stacks: [u64; 7],
    reserved_2: u64,
    reserved_3: u16,
    io_map_base: u16,
}

/// One CPU's global descriptor table and task state segment.
#[repr(C, align(16))]
pub(crate) struct Segments {
    descriptors: [u64; 4],
    task_state: TaskState,
}

impl Segments {
    /// Tables without interrupt stacks.
    pub(crate) const fn new() -> Self {
        Self {
            descriptors: [0, 0x00af_9b00_0000_ffff, 0, 0],
            task_state: TaskState {
                reserved_0: 0,
                privilege_stacks: [0; 3],
                reserved_1: 0,
                interrupt_stacks: [0; 7],
                reserved_2: 0,
                reserved_3: 0,
                io_map_base: size_of::<TaskState>() as u16,
            },
        }
    }

    /// Sets the top of one interrupt stack.
    pub(crate) fn set_stack(&mut self, stack: InterruptStack, top: u64) {
        self.task_state.interrupt_stacks[stack as usize - 1] = top;
    }

    /// Loads the tables at `this` on the running CPU.
    ///
    /// # Safety
    /// They are static and this CPU's own, nobody has a reference to them, and each interrupt stack is set to the top of mapped
    /// memory that nothing else uses, and stays so.
    pub(crate) unsafe fn load(this: *mut Self) {
        // SAFETY: by the caller; no reference is made, since the CPU writes to the descriptors as well.
        unsafe {
            let base = &raw const (*this).task_state as u64;
            let limit = size_of::<TaskState>() as u64 - 1;
            // An available 64-bit task state segment (Intel SDM volume 3, 8.2.3).
            (*this).descriptors[2] =
                limit | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24 & 0xff) << 56;
            (*this).descriptors[3] = base >> 32;
            let pointer = DescriptorTablePointer {
                limit: (size_of::<[u64; 4]>() - 1) as u16,
                base: VirtAddr::from_ptr(&raw const (*this).descriptors),
            };
            lgdt(&pointer);
            // The code selector is the one that the CPU runs with already.
            CS::set_reg(Selector(CODE_SELECTOR));
            load_tss(Selector(TSS_SELECTOR));
        }
    }
}

/// One entry of the interrupt descriptor table (Intel SDM volume 3, 6.14.1).
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Gate {
    offset_low: u16,
    selector: u16,
    stack: u8,
    kind: u8,
    offset_middle: u16,
    offset_high: u32,
    reserved: u32,
}

impl Gate {
    /// An entry that is not present.
    pub(crate) const EMPTY: Self = Self {
        offset_low: 0,
        selector: 0,
        stack: 0,
        kind: 0,
        offset_middle: 0,
        offset_high: 0,
        reserved: 0,
    };

    /// An interrupt gate (interrupts go off) to `handler` on `stack`.
    pub(crate) const fn new(handler: u64, stack: InterruptStack) -> Self {
        Self {
            offset_low: handler as u16,
            selector: CODE_SELECTOR,
            stack: stack as u8,
            kind: 0x8e,
            offset_middle: (handler >> 16) as u16,
            offset_high: (handler >> 32) as u32,
            reserved: 0,
        }
    }
}

/// Loads the interrupt descriptor table on the running CPU.
///
/// # Safety
/// Its entries lead to code that follows the entry protocol of `traps.s`, on stacks that this CPU has.
pub(crate) unsafe fn load_interrupt_table(table: &'static [Gate; 256]) {
    let pointer = DescriptorTablePointer {
        limit: (size_of::<[Gate; 256]>() - 1) as u16,
        base: VirtAddr::from_ptr(table.as_ptr()),
    };
    // SAFETY: by the caller; the table is static.
    unsafe { lidt(&pointer) };
}
