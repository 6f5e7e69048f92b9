# From the boot loader (32-bit protected mode, paging off, EBX = start information) to 64-bit Rust in the top 2 GiB.
# Xen's "x86/HVM direct boot ABI" says what holds at entry.

.set IMAGE_OFFSET, 0xffffffff80000000
.set PRESENT_WRITABLE, 0x3
.set LARGE_PAGE, 0x80
.set EFER, 0xc0000080

# Sets PAE, SSE, long mode and no-execute, then paging with write protection. CR3 is loaded; clobbers EAX, ECX, EDX.
.macro enter_long_mode
    mov $0x620, %eax                # PAE, OSFXSR, OSXMMEXCPT, and nothing that a boot loader left
    mov %eax, %cr4
    mov $EFER, %ecx
    rdmsr
    or $0x900, %eax                 # LME, NXE
    wrmsr
    mov %cr0, %eax
    and $0x9ffffff3, %eax           # caches on, no x87 emulation, no task switch
    or $0x80010022, %eax            # PG, WP, NE, MP
    mov %eax, %cr0
.endm

.section .note.pvh, "a", @note
    .long 4, 8, 18                  # name size, descriptor size, XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .quad homenode_start32 - IMAGE_OFFSET

.section .boot, "ax", @progbits
.code32
.global homenode_start32
homenode_start32:
    cli
    cld
    mov $(boot_stack_top - IMAGE_OFFSET), %esp
    mov %ebx, %ebp                  # start information

    mov $0x80000000, %eax
    cpuid
    cmp $0x80000001, %eax
    jb no_long_mode
    mov $0x80000001, %eax
    cpuid
    bt $29, %edx                    # long mode
    jnc no_long_mode
    bt $20, %edx                    # no-execute
    jnc no_long_mode

    # 4 GiB in 2 MiB pages: four page directories in a row.
    mov $(boot_page_directories - IMAGE_OFFSET), %edi
    mov $(LARGE_PAGE | PRESENT_WRITABLE), %eax
    mov $2048, %ecx
1:  mov %eax, (%edi)
    add $0x200000, %eax
    add $8, %edi
    dec %ecx
    jnz 1b

    # The same directories at 0, in the direct map, and (the first two) in the top 2 GiB.
    mov $(boot_page_directories - IMAGE_OFFSET + PRESENT_WRITABLE), %eax
    mov $(boot_low_pointers - IMAGE_OFFSET), %edi
    mov $(boot_high_pointers - IMAGE_OFFSET), %esi
    mov %eax, (%edi)
    mov %eax, 510*8(%esi)
    add $0x1000, %eax
    mov %eax, 8(%edi)
    mov %eax, 511*8(%esi)
    add $0x1000, %eax
    mov %eax, 16(%edi)
    add $0x1000, %eax
    mov %eax, 24(%edi)
    mov $(boot_root - IMAGE_OFFSET), %ecx
    add $PRESENT_WRITABLE, %edi
    add $PRESENT_WRITABLE, %esi
    mov %edi, (%ecx)
    mov %edi, 256*8(%ecx)
    mov %esi, 511*8(%ecx)

    mov %ecx, %cr3
    enter_long_mode
    lgdt boot_gdt_pointer - IMAGE_OFFSET
    ljmp $0x08, $(start64_low - IMAGE_OFFSET)

# A CPU without long mode: say so on the first serial port and stop.
no_long_mode:
    mov $(no_long_mode_text - IMAGE_OFFSET), %esi
2:  lodsb
    test %al, %al
    jz 4f
    mov %al, %bl
    mov $0x3fd, %dx
    mov $100000, %ecx
3:  in %dx, %al
    test $0x20, %al
    jnz 5f
    dec %ecx
    jnz 3b
5:  mov $0x3f8, %dx
    mov %bl, %al
    out %al, %dx
    jmp 2b
4:  hlt
    jmp 4b
no_long_mode_text:
    .asciz "homenode: this CPU has no 64-bit mode or no no-execute bit; an x86-64 CPU is needed\r\n"

.code64
start64_low:
    movabs $start64_high, %rax
    jmp *%rax
start64_high:
    xor %eax, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    mov %eax, %fs
    mov %eax, %gs
    movabs $boot_gdt_pointer_high, %rax
    lgdt (%rax)
    movabs $boot_stack_top, %rsp
    mov %ebp, %edi
    xor %ebp, %ebp
    push %rbp
    push %rbp
    call {boot_processor_main}
    ud2

# An application processor starts here, in real mode, at the start of a page below 1 MiB to which this code was copied.
# The words at its end are filled in before the copy is started.
.balign 16
.global trampoline_start
.code16
trampoline_start:
    cli
    cld
    mov %cs, %ax
    mov %ax, %ds
    lgdtl trampoline_gdt_pointer - trampoline_start
    mov %cr0, %eax
    or $1, %eax
    mov %eax, %cr0
    ljmpl *(trampoline_protected_pointer - trampoline_start)
.code32
trampoline_protected:
    mov $0x18, %ax
    mov %ax, %ds
    mov %ax, %es
    mov %ax, %ss
    mov $(boot_root - IMAGE_OFFSET), %eax
    mov %eax, %cr3
    enter_long_mode
    ljmp $0x08, $(ap_start64_low - IMAGE_OFFSET)
.balign 8
trampoline_gdt_pointer:
    .word boot_gdt_end - boot_gdt - 1
    .long boot_gdt - IMAGE_OFFSET
    .balign 8
.global trampoline_protected_pointer
trampoline_protected_pointer:
    .long 0                         # address of trampoline_protected in the copy
    .word 0x10
.global trampoline_end
trampoline_end:
.global trampoline_protected

.code64
ap_start64_low:
    movabs $ap_start64_high, %rax
    jmp *%rax
ap_start64_high:
    xor %eax, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    mov %eax, %fs
    mov %eax, %gs
    # This CPU's APIC id: 32 bits from leaf 0xb where there is one, else 8 bits from leaf 1.
    xor %eax, %eax
    cpuid
    cmp $0xb, %eax
    jb 6f
    mov $0xb, %eax
    xor %ecx, %ecx
    cpuid
    test %ebx, %ebx
    jnz 7f
6:  mov $1, %eax
    cpuid
    mov %ebx, %edx
    shr $24, %edx
7:  # Find the entry of that id: (u32 id, u32 unused, u64 stack, u64 per-CPU data).
    movabs ap_table, %rax
    mov %rax, %rsi
    movabs ap_table_entries, %rax
    mov %rax, %rcx
8:  test %rcx, %rcx
    jz 10f
    cmp %edx, (%rsi)
    je 9f
    add $24, %rsi
    dec %rcx
    jmp 8b
9:  movabs ap_root, %rax             # the kernel's tables, which map the stack
    mov %rax, %cr3
    mov 8(%rsi), %rsp
    mov 16(%rsi), %rdi
    xor %ebp, %ebp
    push %rbp
    push %rbp
    call {application_processor_main}
    ud2
10: cli                             # not a CPU that was asked for
    hlt
    jmp 10b

.balign 16
.global boot_gdt
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff        # 0x08: 64-bit code
    .quad 0x00cf9b000000ffff        # 0x10: 32-bit code
    .quad 0x00cf93000000ffff        # 0x18: data
boot_gdt_end:
boot_gdt_pointer:
    .word boot_gdt_end - boot_gdt - 1
    .long boot_gdt - IMAGE_OFFSET
    .balign 8
boot_gdt_pointer_high:
    .word boot_gdt_end - boot_gdt - 1
    .quad boot_gdt

.section .bss.boot, "aw", @nobits
.balign 4096
.global boot_root
boot_root:
    .skip 4096
boot_low_pointers:
    .skip 4096
boot_high_pointers:
    .skip 4096
boot_page_directories:
    .skip 4 * 4096
.global boot_stack
boot_stack:
    .skip 65536
.global boot_stack_top
boot_stack_top:
.balign 16
.global ap_table
ap_table:
    .skip 8
.global ap_table_entries
ap_table_entries:
    .skip 8
.global ap_root
ap_root:
    .skip 8
