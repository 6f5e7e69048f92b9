//! What a correct program never does. The kernel has to say what happened, and stop.

use core::arch::asm;
use core::hint::{black_box, spin_loop};
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use homenode::mem::{Options, Pages, Policy, Protection, Region};
use homenode::{Args, ExitCode, NodeId, println, thread, topology};

pub(crate) fn panic(_: &mut Args) -> ExitCode {
    let culprit = thread::Builder::new()
        .name("culprit")
        .spawn(|| panic!("this is a test of panics"));
    culprit.expect("a thread starts").join();
    ExitCode::SUCCESS
}

#[inline(never)]
pub(crate) fn null_write(_: &mut Args) -> ExitCode {
    let nowhere: *mut u64 = black_box(ptr::null_mut());
    // SAFETY: none: this is the crime. The kernel stops the program here.
    unsafe { asm!("mov qword ptr [{}], 1", in(reg) nowhere) };
    ExitCode::SUCCESS
}

pub(crate) fn text_write(_: &mut Args) -> ExitCode {
    // SAFETY: none: this is the crime. The kernel stops the program here.
    unsafe { asm!("mov byte ptr [{}], 0xc3", in(reg) text_write as *const () as u64) };
    ExitCode::SUCCESS
}

pub(crate) fn read_only_write(_: &mut Args) -> ExitCode {
    let pages = Pages::reserve(2 << 20, Options::default()).expect("there are addresses");
    let word = pages.start().cast::<u64>();
    // SAFETY: the word lies in the reservation.
    unsafe { word.write_volatile(17) };
    pages
        .protect(0..pages.bytes(), Protection::Read)
        .expect("it is noted");
    // SAFETY: as above, and reading is allowed.
    println!("read {} at {word:p}", unsafe { word.read_volatile() });
    // SAFETY: none: this is the crime. The kernel stops the program here.
    unsafe { word.write_volatile(18) };
    ExitCode::SUCCESS
}

pub(crate) fn revoked_read(_: &mut Args) -> ExitCode {
    static STAGE: AtomicUsize = AtomicUsize::new(0);
    let pages = Pages::reserve(4096, Options::default()).expect("there are addresses");
    let address = pages.start().as_ptr() as usize;
    println!("revoked at {address:#x}");
    let reader = thread::spawn(move || {
        let byte = address as *const u8;
        // SAFETY: the page is not revoked before the stage is 1.
        unsafe { byte.read_volatile() };
        STAGE.store(1, Ordering::SeqCst);
        while STAGE.load(Ordering::SeqCst) != 2 {
            spin_loop();
        }
        // SAFETY: none: this is the crime. The kernel stops the program here, though this CPU has a translation.
        unsafe { byte.read_volatile() };
    });
    while STAGE.load(Ordering::SeqCst) != 1 {
        thread::yield_now();
    }
    pages.revoke();
    STAGE.store(2, Ordering::SeqCst);
    reader.join();
    ExitCode::SUCCESS
}

pub(crate) fn beyond_the_end(_: &mut Args) -> ExitCode {
    let pages = Pages::reserve(3 << 20, Options::default()).expect("there are addresses");
    println!("reserved {} bytes at {:p}", pages.bytes(), pages.start());
    let beyond = pages.start().as_ptr().wrapping_add(pages.bytes() + (64 << 10));
    // SAFETY: none: this is the crime. The kernel stops the program here.
    unsafe { beyond.write_volatile(1) };
    ExitCode::SUCCESS
}

pub(crate) fn touch_without_memory(_: &mut Args) -> ExitCode {
    let last = NodeId::from(topology().nodes().len() - 1);
    let bytes = topology().nodes()[last.index()].memory_bytes() as usize;
    let mut region = Region::<u8>::new(bytes, Policy::Bind(last)).expect("there are addresses");
    println!("touching");
    region.fill(1);
    black_box(&region);
    ExitCode::SUCCESS
}

pub(crate) fn stack_execute(_: &mut Args) -> ExitCode {
    let code = [0xc3u8; 16];
    // SAFETY: none: this is the crime. The kernel stops the program here.
    unsafe { asm!("call {}", in(reg) black_box(&raw const code)) };
    ExitCode::SUCCESS
}

pub(crate) fn stack_overflow(_: &mut Args) -> ExitCode {
    let culprit = thread::Builder::new().name("deep").spawn(|| {
        black_box(recurse(1));
    });
    culprit.expect("a thread starts").join();
    ExitCode::SUCCESS
}

#[inline(never)]
#[expect(unconditional_recursion, reason = "this is the crime")]
fn recurse(depth: u64) -> u64 {
    let ballast = black_box([depth; 64]);
    recurse(depth + 1) + black_box(ballast)[7]
}

pub(crate) fn kernel_stack_overflow(_: &mut Args) -> ExitCode {
    #[cfg(not(feature = "hosted"))]
    // SAFETY: none: this is the crime. The second word of the per-CPU data is the bottom of the thread's kernel stack: from
    // there on nothing is left but the guard.
    unsafe {
        asm!(
            "mov rsp, gs:[8]",
            "add rsp, 512",
            "2:",
            "push rax",
            "jmp 2b",
            options(noreturn)
        )
    }
    #[cfg(feature = "hosted")]
    ExitCode::FAILURE
}

pub(crate) fn wild_stack(_: &mut Args) -> ExitCode {
    // SAFETY: none: this is the crime. The kernel stops the program here.
    unsafe { asm!("mov rsp, 0x123456789000", "push rax", "ud2", options(noreturn)) }
}

pub(crate) fn undefined(_: &mut Args) -> ExitCode {
    // SAFETY: none: this is the crime. The kernel stops the program here.
    unsafe { asm!("ud2", options(noreturn)) }
}

pub(crate) fn triple_fault(_: &mut Args) -> ExitCode {
    #[repr(C, packed)]
    struct TableRegister {
        limit: u16,
        base: u64,
    }
    let none = TableRegister { limit: 0, base: 0 };
    // SAFETY: none: this is the crime. Without an interrupt table the CPU resets.
    unsafe { asm!("cli", "lidt [{}]", "ud2", in(reg) &raw const none, options(noreturn)) }
}
