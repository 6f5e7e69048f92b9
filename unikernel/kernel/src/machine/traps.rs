//! Exceptions and interrupts: the table, the entry from `traps.s`, and what each vector does.

use core::sync::atomic::{AtomicBool, Ordering};
use hermit_sync::OnceCell;

use homenode_metrics::CpuCounter;
use homenode_mm::Access;
use x86_64::instructions::interrupts;
use x86_64::registers::control::Cr2;

use super::percpu::{Due, PerCpu, offset, this_cpu};
use super::segments::{Gate, InterruptStack, load_interrupt_table};
use super::stacks::KERNEL_STACK_GUARD_BYTES;
use super::{apic, crash, housekeeping, program_memory, sched, tlb};

core::arch::global_asm!(
    include_str!("traps.s"),
    ".text",
    kernel_stack_bottom = const offset::KERNEL_STACK_BOTTOM,
    kernel_stack_top = const offset::KERNEL_STACK_TOP,
    trap_stacks_bottom = const offset::TRAP_STACKS_BOTTOM,
    trap_stacks_top = const offset::TRAP_STACKS_TOP,
    emergency_stack_top = const offset::EMERGENCY_STACK_TOP,
    guard_bytes = const KERNEL_STACK_GUARD_BYTES,
    trap_entry = sym trap_entry,
    options(att_syntax)
);

unsafe extern "C" {
    static trap_stubs: u8;
}

/// Distance between two stubs in `traps.s`.
const STUB_BYTES: u64 = 16;

/// Vectors that this kernel uses beside the exceptions.
pub(crate) mod vector {
    /// Non-maskable interrupt: another CPU crashed, stop.
    pub(crate) const NMI: u8 = 2;
    /// Double fault.
    pub(crate) const DOUBLE_FAULT: u8 = 8;
    /// Page fault.
    pub(crate) const PAGE_FAULT: u8 = 14;
    /// Machine check.
    pub(crate) const MACHINE_CHECK: u8 = 18;
    /// The first vector that is no exception.
    pub(crate) const FIRST_INTERRUPT: u8 = 32;
    /// The local APIC's timer.
    pub(crate) const TIMER: u8 = 0x40;
    /// A thread was made ready on this CPU while it was idle.
    pub(crate) const WAKE: u8 = 0x41;
    /// Another CPU asks for a TLB flush.
    pub(crate) const FLUSH: u8 = 0x42;
    /// The local APIC found an error.
    pub(crate) const APIC_ERROR: u8 = 0xfe;
}

/// The interrupted code's registers, as `traps.s` lays them out.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct TrapFrame {
    pub(crate) r15: u64,
    pub(crate) r14: u64,
    pub(crate) r13: u64,
    pub(crate) r12: u64,
    pub(crate) r11: u64,
    pub(crate) r10: u64,
    pub(crate) r9: u64,
    pub(crate) r8: u64,
    pub(crate) rbp: u64,
    pub(crate) rdi: u64,
    pub(crate) rsi: u64,
    pub(crate) rdx: u64,
    pub(crate) rcx: u64,
    pub(crate) rbx: u64,
    pub(crate) rax: u64,
    pub(crate) vector: u64,
    pub(crate) error_code: u64,
    pub(crate) rip: u64,
    pub(crate) cs: u64,
    pub(crate) rflags: u64,
    pub(crate) rsp: u64,
    pub(crate) ss: u64,
}

static TABLE: OnceCell<[Gate; 256]> = OnceCell::new();

/// RFLAGS.IF (Intel SDM volume 1, 3.4.3).
const INTERRUPT_FLAG: u64 = 1 << 9;

/// Which unexpected vectors have been reported.
static SEEN: [AtomicBool; 256] = [const { AtomicBool::new(false) }; 256];

/// Loads the interrupt table on the running CPU.
///
/// # Safety
/// This CPU's per-CPU data, segments and interrupt stacks are installed.
pub(crate) unsafe fn install() {
    let table = TABLE.get_or_init(|| {
        let mut table = [Gate::EMPTY; 256];
        for (vector, gate) in (0u8..).zip(&mut table) {
            let stack = match vector {
                vector::NMI => InterruptStack::Nmi,
                vector::DOUBLE_FAULT => InterruptStack::DoubleFault,
                vector::MACHINE_CHECK => InterruptStack::MachineCheck,
                _ => InterruptStack::Landing,
            };
            *gate = Gate::new(
                &raw const trap_stubs as u64 + u64::from(vector) * STUB_BYTES,
                stack,
            );
        }
        table
    });
    // SAFETY: the stubs follow the protocol; the stacks are there by the caller.
    unsafe { load_interrupt_table(table) };
}

/// Called by `traps.s` with interrupts off, on the thread's kernel stack (or on an interrupt stack for NMI, double fault and
/// machine check).
extern "C" fn trap_entry(frame: &TrapFrame) {
    let cpu = this_cpu();
    // The handler is on the kernel stack: no call from here may switch to its top again.
    let depth = cpu.gate_depth.replace(1);
    if frame.vector == u64::from(vector::PAGE_FAULT) {
        page_fault(cpu, frame, depth != 0);
    } else {
        handle(cpu, frame, depth != 0);
    }
    if depth == 0 {
        // On top of interrupted program code; had kernel code been interrupted, the gate's exit would do it.
        if cpu.due.get() != Due::empty() {
            interrupts::enable();
            housekeeping::run_if_due();
            interrupts::disable();
        }
        tlb::safe_point();
    }
    cpu.gate_depth.set(depth);
}

/// Everything but page faults, out of their way.
#[inline(never)]
fn handle(cpu: &'static PerCpu, frame: &TrapFrame, in_kernel: bool) {
    match frame.vector as u8 {
        vector::TIMER => {
            cpu.count(CpuCounter::TimerInterrupt);
            apic::local().eoi();
            housekeeping::note_tick(cpu);
            tlb::note_alarm(cpu);
            sched::expire_timers(cpu);
        }
        vector::WAKE => {
            cpu.count(CpuCounter::WakeInterrupt);
            apic::local().eoi();
            housekeeping::begin_ticking_if_asked(cpu);
        }
        vector::FLUSH => {
            cpu.count(CpuCounter::FlushInterrupt);
            tlb::answer_flush(cpu);
            apic::local().eoi();
        }
        apic::SPURIOUS_VECTOR => cpu.count(CpuCounter::SpuriousInterrupt),
        vector::APIC_ERROR => {
            let apic = apic::local();
            log::error!(
                "local APIC of CPU {}: error status {:#x}",
                cpu.cpu.get(),
                apic.take_errors()
            );
            apic.eoi();
        }
        vector::NMI if crash::in_progress() => crash::stop_this_cpu(),
        exception if exception < vector::FIRST_INTERRUPT => crash::exception(frame, in_kernel),
        unexpected => {
            if !SEEN[usize::from(unexpected)].swap(true, Ordering::Relaxed) {
                log::warn!(
                    "interrupt {unexpected:#x} on CPU {} came from no known source; said once",
                    cpu.cpu.get()
                );
            }
            apic::local().eoi();
        }
    }
}

/// What a page fault's error code says (Intel SDM volume 3, 4.7).
pub(crate) mod page_fault_code {
    /// The page is there, and does not allow the access.
    pub(crate) const PRESENT: u64 = 1 << 0;
    /// The access is a write.
    pub(crate) const WRITE: u64 = 1 << 1;
    /// A reserved bit is set in a page-table entry.
    pub(crate) const RESERVED_BIT: u64 = 1 << 3;
    /// The access is an instruction fetch.
    pub(crate) const FETCH: u64 = 1 << 4;
}

/// Brings the page that is missing, or reports the program's error.
#[inline(always)]
fn page_fault(cpu: &PerCpu, frame: &TrapFrame, in_kernel: bool) {
    use page_fault_code::{FETCH, PRESENT, RESERVED_BIT};
    // Read while interrupts are off: their handlers may fault.
    let address = Cr2::read_raw();
    // With interrupts off, kernel code may hold a lock, and what a fault waits for may wait for that.
    let may_wait = frame.rflags & INTERRUPT_FLAG != 0;
    let first_touch = frame.error_code & (PRESENT | RESERVED_BIT | FETCH) == 0;
    if !may_wait || !first_touch || !program_memory::fault_at_once(cpu, address) {
        any_page_fault(frame, address, may_wait, in_kernel);
    }
}

/// The page faults that [`page_fault`] does not handle at once.
#[inline(never)]
fn any_page_fault(frame: &TrapFrame, address: u64, may_wait: bool, in_kernel: bool) {
    if !may_wait || frame.error_code & page_fault_code::RESERVED_BIT != 0 {
        crash::page_fault(frame, address, None, in_kernel);
    }
    let access = match frame.error_code {
        code if code & page_fault_code::FETCH != 0 => Access::Execute,
        code if code & page_fault_code::WRITE != 0 => Access::Write,
        _ => Access::Read,
    };
    interrupts::enable();
    let result = program_memory::fault(address, access);
    interrupts::disable();
    if let Err(error) = result {
        crash::page_fault(frame, address, Some(error), in_kernel);
    }
}
