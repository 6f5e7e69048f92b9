//! The gate between program and kernel.
//!
//! A program calls the kernel by plain calls, on stacks that may fault. [`enter`] moves such a call to the thread's pinned
//! kernel stack and marks the CPU as inside the kernel, so that kernel locks are never held on a stack that faults, and so that
//! housekeeping waits until they are free.

use core::mem::{ManuallyDrop, MaybeUninit};

use super::percpu::{self, offset, this_cpu};
use super::{housekeeping, tlb};

core::arch::global_asm!(
    ".section .kernel_entry, \"ax\", @progbits",
    ".balign 16",
    // gate_switch(data in RDI, function in RSI): calls function(data) on the thread's kernel stack.
    ".type gate_switch, @function",
    "gate_switch:",
    "push %rbp",
    "mov %rsp, %rbp",
    "movl $1, %gs:{gate_depth}",
    "mov %gs:{kernel_stack_top}, %rsp",
    "call *%rsi",
    "movl $0, %gs:{gate_depth}",
    "mov %rbp, %rsp",
    "pop %rbp",
    "ret",
    ".size gate_switch, . - gate_switch",
    ".text",
    gate_depth = const offset::GATE_DEPTH,
    kernel_stack_top = const offset::KERNEL_STACK_TOP,
    options(att_syntax)
);

unsafe extern "C" {
    fn gate_switch(data: *mut u8, function: unsafe extern "C" fn(*mut u8));
}

/// Whether the running code is kernel code: inside the gate, or before the first thread.
#[inline]
pub(crate) fn inside() -> bool {
    !percpu::installed() || this_cpu().gate_depth.get() != 0
}

union Call<F, R> {
    function: ManuallyDrop<F>,
    result: ManuallyDrop<MaybeUninit<R>>,
}

/// Runs `function` inside the gate: on the thread's kernel stack, unless it is on one already.
///
/// `function` is moved to the kernel stack before it runs, so that what it owns cannot fault; it must not take a lock and then
/// touch program memory through a reference.
#[inline]
pub(crate) fn enter<F: FnOnce() -> R, R>(function: F) -> R {
    if inside() {
        return function();
    }
    let mut call = Call {
        function: ManuallyDrop::new(function),
    };
    // SAFETY: `run` takes the function out of `call` once and leaves the result in its place; `call` outlives the switch, and
    // outside the gate nothing is on the thread's kernel stack.
    unsafe {
        gate_switch((&raw mut call).cast(), run::<F, R>);
        ManuallyDrop::into_inner(call.result).assume_init()
    }
}

/// # Safety
/// `data` points at a [`Call`] that holds a function.
unsafe extern "C" fn run<F: FnOnce() -> R, R>(data: *mut u8) {
    let call = data.cast::<Call<F, R>>();
    // SAFETY: by the caller.
    let function = unsafe { ManuallyDrop::take(&mut (*call).function) };
    let result = function();
    housekeeping::run_if_due();
    tlb::safe_point();
    // SAFETY: the function was taken out, so the place is free for the result.
    unsafe { (*call).result = ManuallyDrop::new(MaybeUninit::new(result)) };
}
