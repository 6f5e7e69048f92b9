# Entry of exceptions and interrupts.
#
# Every vector enters on an interrupt-stack-table (IST) stack with interrupts off. Those of NMI (2), double fault (8) and
# machine check (18) stay there. All others use theirs as a landing pad only: they move to the thread's pinned kernel stack,
# or stay on it, below the red zone of what they interrupted. The landing pad is then free again, so that the handler may fault
# or be interrupted. Offsets into the per-CPU data are given by Rust.

.section .kernel_entry, "ax", @progbits

# 256 stubs of 16 bytes: an error code where the CPU pushes none, then the vector.
.balign 16
.global trap_stubs
trap_stubs:
.set vector, 0
.rept 256
    .balign 16
    .if vector != 8 && vector != 10 && vector != 11 && vector != 12 && vector != 13 && vector != 14 && vector != 17 && vector != 21 && vector != 29 && vector != 30
    pushq $0
    .endif
    pushq $vector
    .if vector == 2 || vector == 8 || vector == 18
    jmp stay
    .else
    jmp land
    .endif
    .set vector, vector + 1
.endr

.macro push_registers
    push %rax
    push %rbx
    push %rcx
    push %rdx
    push %rsi
    push %rdi
    push %rbp
    push %r8
    push %r9
    push %r10
    push %r11
    push %r12
    push %r13
    push %r14
    push %r15
    cld
.endm

.set FRAME_BYTES, 22 * 8            # 15 registers, vector, error code, RIP, CS, RFLAGS, RSP, SS
.set SAVED_RSP, 20 * 8
.set RED_ZONE, 128
.set NEEDED_BYTES, 8192             # what a handler may need; less room than this is an overflow

.type land, @function
land:
    push_registers
    mov %gs:{kernel_stack_top}, %rdx
    mov SAVED_RSP(%rsp), %rcx
    test %rcx, %rcx
    jns 3f                          # a program stack: all of them are in the lower half
    mov %gs:{kernel_stack_bottom}, %rax
    cmp %rdx, %rcx
    ja 1f
    cmp %rax, %rcx
    jb 2f
    # On the kernel stack already: below the interrupted code's red zone, if there is room.
    lea -RED_ZONE(%rcx), %rdx
    lea NEEDED_BYTES(%rax), %rsi
    cmp %rsi, %rdx
    jb 4f
    jmp 3f
1:  # On another stack: not on one of this CPU's own IST stacks?
    cmp %gs:{trap_stacks_bottom}, %rcx
    jb 3f
    cmp %gs:{trap_stacks_top}, %rcx
    jbe 4f
    jmp 3f
2:  # Below the kernel stack: in its guard?
    sub ${guard_bytes}, %rax
    cmp %rax, %rcx
    jb 1b
4:  mov %gs:{emergency_stack_top}, %rdx
3:  and $-16, %rdx
    sub $FRAME_BYTES, %rdx
    mov %rsp, %rsi
    mov %rdx, %rdi
    mov $(FRAME_BYTES / 8), %ecx
    rep movsq
    mov %rdx, %rsp
    jmp handle

.size land, . - land

.type stay, @function
stay:
    push_registers

handle:
    mov %rsp, %rdi
    xor %ebp, %ebp
    mov %rsp, %rbx
    sub $512, %rsp
    and $-16, %rsp
    fxsave64 (%rsp)
    ldmxcsr default_mxcsr(%rip)
    call {trap_entry}
    fxrstor64 (%rsp)
    mov %rbx, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %r11
    pop %r10
    pop %r9
    pop %r8
    pop %rbp
    pop %rdi
    pop %rsi
    pop %rdx
    pop %rcx
    pop %rbx
    pop %rax
    add $16, %rsp
    iretq
.size stay, . - stay

.section .rodata
.balign 4
default_mxcsr:
    .long 0x1f80
