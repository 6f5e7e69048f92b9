//! The last words: panics and CPU exceptions print what was running, where, and how it got there; then the machine stops.

use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use homenode_mm::{FaultError, VirtAddr};
use x86_64::instructions::{hlt, interrupts};
use x86_64::registers::control::{Cr3, Cr4};

use super::percpu::{self, PerCpu, this_cpu};
use super::power::{Cause, power_off};
use super::serial::Emergency;
use super::traps::{TrapFrame, page_fault_code, vector};
use super::{apic, backtrace, gate, memory, program_memory, stacks};

/// The status that an exception leaves, when the emulator asks for one.
const EXCEPTION_STATUS: u8 = 102;
/// The status that a panic leaves.
const PANIC_STATUS: u8 = 101;

/// The status that a boot which cannot go on leaves.
const BOOT_STATUS: u8 = 103;

/// No CPU: nobody has crashed.
const NOBODY: u32 = u32::MAX;

/// The CPU that reports a crash.
static REPORTER: AtomicU32 = AtomicU32::new(NOBODY);
/// Whether the report is being written, so that a crash within it is not reported at length.
static REPORTING: AtomicBool = AtomicBool::new(false);

/// Whether some CPU reports a crash, and all others have to stop.
pub(crate) fn in_progress() -> bool {
    REPORTER.load(Ordering::Acquire) != NOBODY
}

/// Halts the running CPU for good.
pub(crate) fn stop_this_cpu() -> ! {
    loop {
        interrupts::disable();
        hlt();
    }
}

/// Makes the running CPU the only one that goes on. A second CPU that crashes stops here; a crash within the report ends it.
fn take_over(cause: Cause, status: u8) {
    interrupts::disable();
    let this = if percpu::installed() {
        this_cpu().cpu.get().0
    } else {
        0
    };
    match REPORTER.compare_exchange(NOBODY, this, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            stop_other_cpus(this);
            REPORTING.store(true, Ordering::Release);
        }
        Err(reporter) if reporter == this && REPORTING.load(Ordering::Acquire) => {
            let _cannot_fail = writeln!(
                Emergency,
                "\nhomenode: a second fault while the crash was being reported"
            );
            power_off(status, cause);
        }
        Err(_) => stop_this_cpu(),
    }
}

/// Stops the CPUs that run. Those that have not been started know no NMI yet: they would reset the machine.
fn stop_other_cpus(this: u32) {
    let Some(apic) = apic::try_local() else { return };
    let running = percpu::all()
        .iter()
        .filter(|cpu| cpu.online.load(Ordering::Acquire));
    for cpu in running.filter(|cpu| cpu.cpu.get().0 != this) {
        // A CPU that cannot be reached goes on; the report is worth more.
        let _unreachable = apic.send_nmi(cpu.apic_id.get());
    }
}

/// Reports a CPU exception other than a page fault and stops the machine.
pub(crate) fn exception(frame: &TrapFrame, in_kernel: bool) -> ! {
    take_over(Cause::Exception, EXCEPTION_STATUS);
    let _cannot_fail = report_exception(&mut Emergency, frame, None, in_kernel);
    power_off(EXCEPTION_STATUS, Cause::Exception)
}

/// Reports a page fault and stops the machine. `error` is why program memory could not help, if it was asked.
pub(crate) fn page_fault(frame: &TrapFrame, address: u64, error: Option<FaultError>, in_kernel: bool) -> ! {
    take_over(Cause::Exception, EXCEPTION_STATUS);
    let _cannot_fail = report_exception(&mut Emergency, frame, Some((address, error)), in_kernel);
    power_off(EXCEPTION_STATUS, Cause::Exception)
}

/// Reports a panic and stops the machine.
pub(crate) fn panic(info: &PanicInfo<'_>) -> ! {
    take_over(Cause::Panic, PANIC_STATUS);
    let out = &mut Emergency;
    let _cannot_fail = report_panic(out, info);
    power_off(PANIC_STATUS, Cause::Panic)
}

/// Prints why the boot cannot go on, and stops the machine.
pub(crate) fn stop_boot(reason: fmt::Arguments<'_>) -> ! {
    take_over(Cause::Boot, BOOT_STATUS);
    let _cannot_fail = writeln!(Emergency, "homenode: boot stopped: {reason}");
    power_off(BOOT_STATUS, Cause::Boot)
}

fn report_panic(out: &mut impl Write, info: &PanicInfo<'_>) -> fmt::Result {
    write!(out, "\n{Context} panicked")?;
    if let Some(location) = info.location() {
        write!(out, " at {location}")?;
    }
    writeln!(out, ":\n{}", info.message())?;
    write_place(out, gate::inside())?;
    backtrace::write_here(out)
}

fn report_exception(
    out: &mut impl Write,
    frame: &TrapFrame,
    page_fault: Option<(u64, Option<FaultError>)>,
    in_kernel: bool,
) -> fmt::Result {
    let name = exception_name(frame.vector as u8);
    writeln!(
        out,
        "\n{Context}: {name} (exception {}), error code {:#x}",
        frame.vector, frame.error_code
    )?;
    if let Some((address, error)) = page_fault {
        use page_fault_code::{FETCH, PRESENT, RESERVED_BIT, WRITE};
        let access = match frame.error_code {
            code if code & FETCH != 0 => "instruction fetch from",
            code if code & WRITE != 0 => "write to",
            _ => "read of",
        };
        let why = match frame.error_code {
            code if code & RESERVED_BIT != 0 => "a reserved bit is set in the page table",
            code if code & PRESENT != 0 => "the page does not allow it",
            _ => match error {
                Some(FaultError::NotAllowed { .. }) => "the page does not allow it",
                Some(FaultError::OutOfMemory(_)) => "there is no memory for the page",
                Some(FaultError::NotReserved(_)) | None => "no page is mapped there",
            },
        };
        writeln!(out, "{access} {address:#018x}: {why}")?;
        match error {
            Some(FaultError::OutOfMemory(error)) => writeln!(out, "{error}")?,
            Some(error @ FaultError::NotAllowed { .. }) => writeln!(out, "{error}")?,
            Some(FaultError::NotReserved(_)) => explain(out, address)?,
            None if program_memory::contains(address) => writeln!(
                out,
                "program memory was touched with interrupts off, where a page can not be brought"
            )?,
            None => explain(out, address)?,
        }
    }
    write_place(out, in_kernel)?;
    writeln!(
        out,
        "rip {:#018x}  rsp {:#018x}  rflags {:#010x}  cs {:#x} ss {:#x}",
        frame.rip, frame.rsp, frame.rflags, frame.cs, frame.ss
    )?;
    for row in [
        [
            ("rax", frame.rax),
            ("rbx", frame.rbx),
            ("rcx", frame.rcx),
            ("rdx", frame.rdx),
        ],
        [
            ("rsi", frame.rsi),
            ("rdi", frame.rdi),
            ("rbp", frame.rbp),
            ("r8 ", frame.r8),
        ],
        [
            ("r9 ", frame.r9),
            ("r10", frame.r10),
            ("r11", frame.r11),
            ("r12", frame.r12),
        ],
        [
            ("r13", frame.r13),
            ("r14", frame.r14),
            ("r15", frame.r15),
            ("cr3", Cr3::read_raw().0.start_address().as_u64()),
        ],
    ] {
        for (register, value) in row {
            write!(out, "{register} {value:#018x}  ")?;
        }
        writeln!(out)?;
    }
    writeln!(out, "cr4 {:#x}", Cr4::read_raw())?;
    backtrace::write_from(out, frame.rip, frame.rbp)
}

/// A sentence on an address where nothing is reserved, if there is something to say about it.
fn explain(out: &mut impl Write, address: u64) -> fmt::Result {
    if address < 4096 {
        return writeln!(out, "this is an access through a null pointer");
    }
    let Some(thread) = percpu::installed().then(|| this_cpu().current()).flatten() else {
        return Ok(());
    };
    if thread
        .program_stack()
        .is_some_and(|stack| stack.guard_contains(address))
    {
        return writeln!(
            out,
            "stack overflow: the address lies in the guard below the thread's stack of {} KiB; \
             thread::Builder::stack_size gives more",
            thread.program_stack().map_or(0, |stack| stack.bytes() / 1024)
        );
    }
    if stacks::is_kernel_stack_guard(address) {
        return writeln!(
            out,
            "kernel stack overflow: the address lies in the guard below a kernel stack"
        );
    }
    program_memory::write_nearest(out, address)
}

/// What runs: a thread or the kernel.
struct Context;

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let thread = percpu::installed().then(|| this_cpu().current()).flatten();
        match thread {
            Some(thread) if thread.program_stack().is_some() => match thread.name() {
                Some(name) => write!(f, "thread {} '{name}'", thread.id()),
                None => write!(f, "thread {}", thread.id()),
            },
            Some(_) => write!(f, "idle thread"),
            None => write!(f, "boot"),
        }
    }
}

fn write_place(out: &mut impl Write, in_kernel: bool) -> fmt::Result {
    if !percpu::installed() {
        return Ok(());
    }
    let cpu: &PerCpu = this_cpu();
    let code = if in_kernel { "kernel" } else { "program" };
    writeln!(
        out,
        "on CPU {} (APIC id {}), node {}, in {code} code",
        cpu.cpu.get(),
        cpu.apic_id.get(),
        cpu.node.get()
    )
}

/// The names of the exceptions (Intel SDM volume 3, table 6-1).
fn exception_name(exception: u8) -> &'static str {
    match exception {
        0 => "divide error",
        1 => "debug exception",
        vector::NMI => "non-maskable interrupt",
        3 => "breakpoint",
        4 => "overflow",
        5 => "bound range exceeded",
        6 => "invalid opcode",
        7 => "device not available",
        vector::DOUBLE_FAULT => "double fault",
        10 => "invalid task state segment",
        11 => "segment not present",
        12 => "stack-segment fault",
        13 => "general protection fault",
        vector::PAGE_FAULT => "page fault",
        16 => "x87 floating-point error",
        17 => "alignment check",
        vector::MACHINE_CHECK => "machine check",
        19 => "SIMD floating-point exception",
        20 => "virtualization exception",
        21 => "control protection exception",
        _ => "reserved exception",
    }
}

/// Whether `bytes` bytes at `address` can be read without a fault.
pub(crate) fn readable(address: u64, bytes: u64) -> bool {
    [address, address.saturating_add(bytes - 1)]
        .into_iter()
        .all(|address| VirtAddr::new(address).is_some_and(memory::is_mapped))
}
