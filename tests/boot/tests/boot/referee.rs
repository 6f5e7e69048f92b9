//! The referee's counts, shown with a guest of known instructions and accesses: its two CPUs have a node each, and there is no kernel.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use boot_tests::{AcceleratorChoice, Boot, End, Machine, Mebibytes, Network, qemu};
use serde_json::{Value, json};
use xtask::referee::{self, Cache, Counts, Kernel, Referee};

/// A 32-bit guest with a PVH entry. Without paging, its addresses are physical ones.
const GUEST: &str = r#"
    .code32
    .section .note.pvh, "a", @note
    .long 4, 4, 18
    .asciz "Xen"
    .long start

    .macro marker number
    .byte 0x0f, 0x1f, 0x84, 0x00, \number, 0x00, 0xed, 0x5e
    .endm

    .equ NODE0, 0x01000000
    .equ NODE1, 0x03000000
    .equ TRAMPOLINE, 0x8000
    .equ APIC_ICR, 0xfee00300

    .text
    .globl start
start:
    mov $stack, %esp

    # Before the first marker: nothing of this counts.
    mov $77, %ecx
0:  mov NODE1, %eax
    dec %ecx
    jnz 0b

    # Loads: 1000 from one word of node 1.
    marker 2
    mov $1000, %ecx
0:  mov NODE1, %eax
    dec %ecx
    jnz 0b
    marker 3

    # Stores: 1 to each of 500 lines of node 0.
    marker 4
    call store_lines
    marker 5

    # String instructions: 300, 200, 100 and 50 iterations, and none.
    marker 6
    mov $NODE0, %esi
    mov $NODE1, %edi
    mov $300, %ecx
    rep stosl
    mov $200, %ecx
    rep movsb
    mov $NODE0, %edi
    mov $NODE0, %esi
    mov $100, %ecx
    repe cmpsb
    mov $50, %ecx
    rep lodsl
    xor %ecx, %ecx
    rep stosb
    marker 7

    # Kernel: 20 instructions and 10 of bulk with 64 iterations.
    marker 8
    call kernel
    marker 9

    # Read-modify-write: 10 locked additions.
    marker 10
    mov $10, %ecx
0:  lock addl $1, NODE1
    dec %ecx
    jnz 0b
    marker 11

    # Long: 200000 iterations.
    marker 12
    mov $NODE0, %edi
    mov $200000, %ecx
    rep stosb
    marker 13

    # The other CPU.
    mov $trampoline, %esi
    mov $TRAMPOLINE, %edi
    mov $trampoline_end - trampoline, %ecx
    rep movsb
    movl $0x000c4500, APIC_ICR
    movl $0x000c4608, APIC_ICR
0:  cli
    hlt
    jmp 0b

store_lines:
    mov $500, %ecx
    mov $NODE0, %edx
0:  mov %eax, (%edx)
    add $64, %edx
    dec %ecx
    jnz 0b
    ret

    .code16
trampoline:
    cli
    lgdtl %cs:gdt_pointer - trampoline
    mov $1, %eax
    mov %eax, %cr0
    ljmpl $8, $second
gdt_pointer:
    .word 23
    .long gdt
trampoline_end:

    .code32
second:
    mov $16, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    mov $second_stack, %esp
    marker 14
    call store_lines
    mov $70, %ecx
0:  mov NODE1 + 64, %eax
    dec %ecx
    jnz 0b
    marker 15
    mov $record, %esi
    mov $0xe9, %dx
0:  lodsb
    testb %al, %al
    jz 1f
    outb %al, %dx
    jmp 0b
1:  mov $0xf4, %dx
    xor %eax, %eax
    outl %eax, %dx
    hlt

    .section .text.kernel, "ax"
    .globl __kernel_text_start, __kernel_text_end, __bulk_text_start, __bulk_text_end
__kernel_text_start:
kernel:
    .rept 18
    inc %eax
    .endr
    call bulk
    ret
__bulk_text_start:
bulk:
    .rept 6
    inc %eax
    .endr
    mov $64, %ecx
    mov $NODE0, %edi
    rep stosb
    ret
__bulk_text_end:
__kernel_text_end:

    .section .rodata
    .balign 8
gdt: .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff
record: .asciz "exit status=0 cause=program\n"

    .bss
    .skip 4096
stack:
    .skip 4096
second_stack:
"#;

/// The assembled guest.
static IMAGE: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, image) = (folder.join("counted.s"), folder.join("counted"));
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

/// The plugin.
static PLUGIN: LazyLock<PathBuf> = LazyLock::new(|| referee::build().unwrap());

/// Runs the guest under the referee and returns what was counted; `None` if QEMU is too old for the referee.
fn count(counts: Counts, accelerator: AcceleratorChoice) -> Option<Value> {
    if let Err(error) = referee::check(qemu()) {
        eprintln!("left out: {error}");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("referee.json");
    let referee = Referee {
        counts,
        kernel: Kernel::Image(IMAGE.clone()),
        // 16 KiB: half as much as the lines that the guest stores to.
        cache: Some(Cache {
            bytes: 16 << 10,
            ways: 4,
        }),
    };
    let machine = Machine {
        nodes: 2,
        cpus: 2,
        memory: Mebibytes(64),
        ..Machine::default()
    };
    let arguments = referee.arguments(&PLUGIN, &machine, folder.path(), &out).unwrap();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = Boot::file(&IMAGE)
        .machine(machine.nodes, machine.cpus, "64M")
        .network(Network::None)
        .accelerator(accelerator)
        .qemu_arguments(&arguments)
        .run();
    outcome.assert_end(End::Program(0));
    assert_eq!(outcome.complaints, "");
    Some(serde_json::from_slice(&std::fs::read(out).unwrap()).unwrap())
}

/// The phase of this number.
fn phase(counts: &Value, number: u64) -> &Value {
    let phases = counts["phases"].as_array().unwrap();
    phases.iter().find(|phase| phase["nn"] == number).unwrap()
}

/// Checks the instructions and iterations of each phase of the guest.
fn assert_instructions(counts: &Value) {
    assert_eq!(counts["unmatched_ends"], 0);
    assert_eq!(counts["phases"].as_array().unwrap().len(), 7);
    let totals = |number| &phase(counts, number)["total"];
    let check = |number, kernel: u64, app: u64, bulk: u64| {
        let total = totals(number);
        let found = ["kernel", "app", "bulk"].map(|code| total[code].as_u64().unwrap());
        assert_eq!(found, [kernel, app, bulk], "phase {number}");
        assert_eq!(phase(counts, number)["entries"], 1);
        assert_eq!(phase(counts, number)["open_at_exit"], false);
    };
    // 1 instruction, then 3 for each load.
    check(2, 0, 1 + 3 * 1000, 0);
    // CALL, 2 instructions, 4 for each store, RET.
    check(4, 0, 1 + 2 + 4 * 500 + 1, 0);
    // 9 ordinary instructions and 5 string instructions, each counted once.
    check(6, 0, 9 + 5, 0);
    assert_eq!(
        totals(6)["string_iterations"],
        json!({"kernel": 0, "app": 300 + 200 + 100 + 50, "bulk": 0})
    );
    // The application's CALL; 18 instructions, CALL and RET; 6 instructions, 2, a string instruction and RET.
    check(8, 20, 1, 10);
    assert_eq!(
        totals(8)["string_iterations"],
        json!({"kernel": 0, "app": 0, "bulk": 64})
    );
    check(10, 0, 1 + 3 * 10, 0);
    // QEMU leaves a string instruction after 65,536 iterations and enters it again, which counts again.
    let iterations: u64 = 200_000;
    check(12, 0, 2 + iterations.div_ceil(1 << 16), 0);
    assert_eq!(totals(12)["string_iterations"]["app"], iterations);
    // The other CPU's: as phase 4, then 1 instruction and 3 for each load. The first CPU may be just about to halt.
    let app = totals(14)["app"].as_u64().unwrap();
    let expected = 2004 + 1 + 3 * 70;
    assert!((expected..=expected + 3).contains(&app), "{app}");
}

#[test]
fn one_thread_for_all_cpus_gives_exact_totals_and_no_figures_of_cpus() {
    let Some(counts) = count(Counts::Totals, AcceleratorChoice::TcgSingle) else {
        return;
    };
    assert_eq!(
        (&counts["mode"], &counts["threads"]),
        (&json!("totals"), &json!("single"))
    );
    assert_instructions(&counts);
    assert_eq!(phase(&counts, 14)["cpus"], json!([]));
    assert_eq!(phase(&counts, 2)["total"].get("loads"), None);
}

#[test]
fn accesses_are_counted_by_node_and_cpu() {
    let Some(counts) = count(Counts::Numa, AcceleratorChoice::Tcg) else {
        return;
    };
    assert_eq!(
        (&counts["mode"], &counts["threads"]),
        (&json!("numa"), &json!("multi"))
    );
    assert_eq!(counts["cache"], json!({"bytes": 16384, "ways": 4, "line": 64}));
    assert_instructions(&counts);
    let none = json!({"local": 0, "remote": {}});
    let cpu = |number, cpu: usize| &phase(&counts, number)["cpus"][cpu];

    // All loads go to one line of the other node.
    assert_eq!(cpu(2, 0)["loads"], json!({"local": 0, "remote": {"1": 1000}}));
    assert_eq!(
        cpu(2, 0)["misses"]["loads"],
        json!({"local": 0, "remote": {"1": 1}})
    );
    assert_eq!(cpu(2, 0)["stores"], none);
    assert_eq!(cpu(2, 1)["app"], 0);

    // Each store goes to another line, and all miss; CALL and RET store and load the return address.
    assert_eq!(cpu(4, 0)["stores"], json!({"local": 501, "remote": {}}));
    assert_eq!(cpu(4, 0)["misses"]["stores"], json!({"local": 501, "remote": {}}));
    assert_eq!(cpu(4, 0)["loads"], json!({"local": 1, "remote": {}}));
    assert_eq!(cpu(4, 0)["shared_line_writes"], 0);

    // STOS and MOVS store 300 + 200 times to the other node; MOVS, CMPS and LODS load 200 + 2 x 100 + 50 times from their own.
    assert_eq!(cpu(6, 0)["stores"], json!({"local": 0, "remote": {"1": 500}}));
    assert_eq!(cpu(6, 0)["loads"], json!({"local": 450, "remote": {}}));

    // What kernel and bulk code do is told apart.
    let by_code = &cpu(8, 0)["by_code"];
    assert_eq!(by_code["app"]["stores"]["local"], 1);
    assert_eq!(by_code["kernel"]["stores"]["local"], 1);
    assert_eq!(by_code["bulk"]["stores"]["local"], 64);
    assert_eq!(cpu(8, 0)["stores"]["local"], 66);

    // A locked addition is a load and a store.
    assert_eq!(cpu(10, 0)["loads"], json!({"local": 0, "remote": {"1": 10}}));
    assert_eq!(cpu(10, 0)["stores"], json!({"local": 0, "remote": {"1": 10}}));

    // The other CPU stores to the lines that the first one wrote last, and its node is the second.
    assert_eq!(cpu(14, 1)["shared_line_writes"], 500);
    assert_eq!(cpu(14, 1)["stores"], json!({"local": 0, "remote": {"0": 501}}));
    assert_eq!(cpu(14, 1)["loads"], json!({"local": 70, "remote": {"0": 1}}));
    assert_eq!(cpu(14, 1)["misses"]["loads"]["local"], 1);
    let elsewhere: u64 = (0..7)
        .map(|i| counts["phases"][i]["total"]["elsewhere"].as_u64().unwrap())
        .sum();
    assert_eq!(elsewhere, 0);
}

#[test]
#[should_panic(expected = "counts=numa needs `-accel tcg,thread=multi`")]
fn accesses_are_refused_where_the_cpu_is_unknown() {
    if count(Counts::Numa, AcceleratorChoice::TcgSingle).is_none() {
        panic!("counts=numa needs `-accel tcg,thread=multi`, and a newer QEMU");
    }
}
