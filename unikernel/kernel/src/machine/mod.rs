//! The bare machine: everything that touches hardware.
//!
//! Boot goes from `boot` down this list; a running program enters through `gate` (calls) and `traps` (interrupts).

mod apic;
mod backtrace;
mod boot;
mod bytes;
mod clock;
mod cpu;
mod crash;
mod gate;
mod heap;
mod housekeeping;
mod image;
mod logger;
mod memory;
mod net;
mod percpu;
mod power;
mod program;
mod program_memory;
mod rtc;
mod sched;
mod segments;
mod serial;
mod smp;
mod stacks;
mod status;
pub(crate) mod sys;
mod tlb;
mod traps;

use core::panic::PanicInfo;

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    crash::panic(info)
}
