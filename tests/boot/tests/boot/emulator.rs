//! How runs end, shown with guests of a few instructions and no kernel: `cargo xtask run` reports what the guest did.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use boot_tests::{Boot, End, Network};

/// A 32-bit guest with a PVH entry. The first letter of its command line chooses what it does.
const GUEST: &str = r#"
    .code32
    .section .note.pvh, "a", @note
    .long 4, 4, 18
    .asciz "Xen"
    .long start

    .text
    .globl start
start:
    mov $stack, %esp
    mov $hello, %esi
    mov $0x3f8, %dx
    call print
    mov 24(%ebx), %esi      # the address of the command line, in hvm_start_info
    movb (%esi), %al
    mov $0xe9, %dx
    cmpb $'p', %al
    je program
    cmpb $'k', %al
    je boot
    cmpb $'m', %al
    je malformed
    cmpb $'t', %al
    je triple_fault
hang:
    hlt
    jmp hang
program:
    mov $program_record, %esi
    jmp finish
boot:
    mov $boot_record, %esi
    jmp finish
malformed:
    mov $malformed_record, %esi
finish:
    call print
    mov $0xf4, %dx
    xor %eax, %eax
    outl %eax, %dx
triple_fault:
    lidt no_idt
    ud2
print:
    lodsb
    testb %al, %al
    jz done
    outb %al, %dx
    jmp print
done:
    ret

    .section .rodata
hello: .asciz "hello from the guest\r\n{\"answer\": 42}\r\n"
program_record: .asciz "first line\nexit status=7 cause=program\n"
boot_record: .asciz "exit status=103 cause=boot\n"
malformed_record: .asciz "exit status=many cause=program\n"
no_idt: .fill 6, 1, 0

    .bss
    .skip 4096
stack:
"#;

/// The assembled guest.
static IMAGE: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, image) = (folder.join("guest.s"), folder.join("guest"));
    std::fs::write(&source, GUEST).unwrap();
    let status = Command::new("cc")
        .args(["-m32", "-nostdlib", "-static", "-no-pie"])
        .args(["-Wl,-Ttext-segment=0x200000,-estart,--build-id=none", "-o"])
        .args([&image, &source])
        .status()
        .unwrap();
    assert!(status.success());
    image
});

fn boot(command_line: &str) -> Boot {
    Boot::file(&IMAGE)
        .machine(1, 1, "64M")
        .network(Network::None)
        .cmdline(command_line)
}

#[test]
fn a_programs_status_is_passed_on() {
    let outcome = boot("program").run();
    outcome.assert_end(End::Program(7));
    assert_eq!(outcome.line("hello"), "hello from the guest");
    assert_eq!(outcome.json()["answer"], 42);
}

#[test]
fn a_failed_boot_is_told_from_a_program() {
    boot("kernel").run().assert_end(End::Boot);
}

#[test]
fn a_triple_fault_is_no_success() {
    boot("triple").run().assert_end(End::Reset);
}

#[test]
fn a_hang_is_stopped_by_the_timeout() {
    let outcome = boot("hang").timeout(Duration::from_secs(3)).run();
    outcome.assert_end(End::Timeout);
    assert!(outcome.duration < Duration::from_secs(30));
    assert_eq!(outcome.line("hello"), "hello from the guest");
}

#[test]
fn a_running_guest_can_be_watched() {
    let guest = boot("hang").start();
    assert_eq!(guest.wait_for("hello"), "hello from the guest");
}

#[test]
#[should_panic(expected = "malformed record: `exit status=many cause=program`")]
fn a_malformed_record_is_quoted() {
    let _ = boot("malformed").run();
}

#[test]
#[should_panic(expected = "QEMU failed")]
fn a_failure_of_qemu_is_none_of_the_guests() {
    let _ = boot("program")
        .qemu_arguments(&["-device", "no-such-device"])
        .run();
}
