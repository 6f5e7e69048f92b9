//! Stacks: pinned kernel stacks with guards, and the program's stacks with their thread-local block.
//!
//! A stack that its thread has left is kept for the next thread of that node, mapped: recycling costs no TLB flush.

use alloc::vec::Vec;
use core::mem::size_of;
use core::ptr;

use hermit_sync::SpinMutex;
use homenode_mm::{
    Attributes, Cause, Frame, FrameSize, OutOfMemory, PageSize, Policy, Protection, Size4KiB, VirtAddr,
    VirtRange,
};
use homenode_topology::NodeId;

use super::memory::{self, KERNEL_STACKS, KERNEL_STACKS_BYTES};
use super::{program_memory, tlb};

/// Mapped bytes of a kernel stack.
const KERNEL_STACK_BYTES: u64 = 64 << 10;
/// Unmapped bytes below each kernel stack.
pub(crate) const KERNEL_STACK_GUARD_BYTES: u64 = 64 << 10;
/// The address space of one kernel stack: its guard, then the stack.
const SLOT_BYTES: u64 = KERNEL_STACK_BYTES + KERNEL_STACK_GUARD_BYTES;

/// Slots of kernel stacks that no thread uses, by the node of their frames; and the first slot that was never used.
struct KernelStackPool {
    unused: Vec<(NodeId, u64)>,
    next: u64,
}

static KERNEL_STACK_POOL: SpinMutex<KernelStackPool> = SpinMutex::new(KernelStackPool {
    unused: Vec::new(),
    next: KERNEL_STACKS,
});

/// A pinned stack of the kernel's, on the node of its CPU.
pub(crate) struct KernelStack {
    node: NodeId,
    slot: u64,
}

impl KernelStack {
    /// A stack on `node`.
    ///
    /// # Errors
    /// When there is no frame left.
    pub(crate) fn new(node: NodeId) -> Result<Self, OutOfMemory> {
        {
            let mut pool = KERNEL_STACK_POOL.lock();
            if let Some(index) = pool.unused.iter().position(|(owner, _)| *owner == node) {
                return Ok(Self {
                    node,
                    slot: pool.unused.swap_remove(index).1,
                });
            }
        }
        let slot = reserve_slots(1);
        map_pages(slot + KERNEL_STACK_GUARD_BYTES, KERNEL_STACK_BYTES, node)?;
        Ok(Self { node, slot })
    }

    /// The lowest address.
    pub(crate) fn bottom(&self) -> u64 {
        self.slot + KERNEL_STACK_GUARD_BYTES
    }

    /// The address behind the highest.
    pub(crate) fn top(&self) -> u64 {
        self.slot + SLOT_BYTES
    }
}

impl Drop for KernelStack {
    fn drop(&mut self) {
        KERNEL_STACK_POOL.lock().unused.push((self.node, self.slot));
    }
}

/// The address space of `count` kernel stacks in a row.
fn reserve_slots(count: u64) -> u64 {
    let mut pool = KERNEL_STACK_POOL.lock();
    let slot = pool.next;
    pool.next += count * SLOT_BYTES;
    assert!(
        pool.next <= KERNEL_STACKS + KERNEL_STACKS_BYTES,
        "no address space left for kernel stacks"
    );
    slot
}

/// Backs kernel addresses that no CPU has used with 4 KiB frames of `node`: all of them or none.
fn map_pages(start: u64, bytes: u64, node: NodeId) -> Result<(), OutOfMemory> {
    try_map_pages(start, bytes, node).inspect_err(|_| {
        if let Some(range) = VirtAddr::new(start).and_then(|start| VirtRange::new(start, bytes)) {
            let unmapped = memory::tables().unmap_range(range, |mapping| {
                memory::frames().free(Frame::<Size4KiB>::containing(mapping.frame));
            });
            debug_assert!(unmapped.is_ok(), "only 4 KiB pages are mapped there");
        }
    })
}

fn try_map_pages(start: u64, bytes: u64, node: NodeId) -> Result<(), OutOfMemory> {
    for address in (start..start + bytes).step_by(Size4KiB::BYTES as usize) {
        let frame = memory::allocate_frame::<Size4KiB>(node)?;
        let page = VirtAddr::new_truncated(address);
        let mapped = memory::tables().map(
            page,
            frame.start(),
            PageSize::Size4KiB,
            memory::kernel_data_flags(),
            &mut memory::local_tables(node),
        );
        if mapped.is_err() {
            memory::frames().free(frame);
            return Err(memory::no_table_frame(node));
        }
    }
    Ok(())
}

/// Whether `address` lies in the guard below a kernel stack.
pub(crate) fn is_kernel_stack_guard(address: u64) -> bool {
    address
        .checked_sub(KERNEL_STACKS)
        .is_some_and(|offset| offset < KERNEL_STACKS_BYTES && offset % SLOT_BYTES < KERNEL_STACK_GUARD_BYTES)
}

/// The stacks that one CPU's exceptions and interrupts enter on, and the one of last resort; each with its guard.
pub(crate) struct TrapStacks {
    first_slot: u64,
}

impl TrapStacks {
    const COUNT: u64 = 5;
    const PAGES: [u64; Self::COUNT as usize] = [1, 8, 8, 8, 8];

    /// Stacks on `node`.
    ///
    /// # Errors
    /// When there is no frame left.
    pub(crate) fn new(node: NodeId) -> Result<Self, OutOfMemory> {
        let stacks = Self {
            first_slot: reserve_slots(Self::COUNT),
        };
        for (index, pages) in (0..).zip(Self::PAGES) {
            let bytes = pages * Size4KiB::BYTES;
            map_pages(stacks.top(index) - bytes, bytes, node)?;
        }
        Ok(stacks)
    }

    /// The lowest address of all of them.
    pub(crate) fn bottom(&self) -> u64 {
        self.first_slot
    }

    /// The address behind stack `index`: 0 to 3 are the interrupt stacks in order of their numbers, 4 is the emergency stack.
    pub(crate) fn top(&self, index: u64) -> u64 {
        self.first_slot + (index + 1) * SLOT_BYTES
    }

    /// The emergency stack's number.
    pub(crate) const EMERGENCY: u64 = 4;
}

unsafe extern "C" {
    static __tls_template_start: u8;
    static __tls_template_end: u8;
}

/// Alignment of a thread's block of thread-local values.
const THREAD_LOCAL_ALIGN: u64 = 64;

fn thread_local_bytes() -> u64 {
    (&raw const __tls_template_end as u64 - &raw const __tls_template_start as u64)
        .next_multiple_of(THREAD_LOCAL_ALIGN)
}

/// What FS points at: the address of the thread's block.
#[repr(C, align(64))]
struct ThreadControl {
    thread_locals: *mut u8,
}

/// A program thread's stack: a guard, the stack, the thread's block of thread-local values and its control block.
pub(crate) struct ProgramStack(StackMemory);

/// Unreserved bytes below a program stack.
const PROGRAM_STACK_GUARD_BYTES: u64 = 64 << 10;

/// How a program stack is backed: page by page, on the node of its thread's CPU, whatever the thread's policy.
const PROGRAM_STACK: Attributes = Attributes {
    protection: Protection::ReadWrite,
    policy: Some(Policy::Local),
    page_size: PageSize::Size4KiB,
};

/// More than any program needs, and less than what could overflow in a sum.
const LARGEST_PROGRAM_STACK_BYTES: u64 = 1 << 40;

/// A program stack's memory, whether a thread uses it or not.
#[derive(Clone, Copy)]
struct StackMemory {
    node: NodeId,
    /// Where the guard begins.
    start: u64,
    /// Of the stack, without its guard.
    bytes: u64,
}

static PROGRAM_STACK_POOL: SpinMutex<Vec<StackMemory>> = SpinMutex::new(Vec::new());

impl StackMemory {
    /// `bytes` bytes of stack on `node`, and the guard below it. The pages at the top that hold the thread's own block have memory,
    /// the others get it when they are touched.
    fn new(node: NodeId, bytes: u64) -> Result<Self, OutOfMemory> {
        let start = program_memory::reserve_above_guard(PROGRAM_STACK_GUARD_BYTES, bytes, PROGRAM_STACK);
        let start = start.map_err(|_| memory::no_table_frame(node))?;
        let memory = Self { node, start, bytes };
        let own = above_stack_bytes().next_multiple_of(Size4KiB::BYTES).min(bytes);
        let on_node = Some(Policy::Preferred(node));
        program_memory::populate(memory.end() - own, own, on_node).inspect_err(|_| memory.release())?;
        Ok(memory)
    }

    fn bottom(self) -> u64 {
        self.start + PROGRAM_STACK_GUARD_BYTES
    }

    fn end(self) -> u64 {
        self.bottom() + self.bytes
    }

    /// Gives it back to other uses.
    fn release(self) {
        program_memory::release_above_guard(self.start, PROGRAM_STACK_GUARD_BYTES, self.bytes);
    }
}

/// Frees the memory that is kept for future threads, and what waits for CPUs to drop translations; whether there was any. Inside
/// the gate.
pub(crate) fn free_unused() -> bool {
    let unused = core::mem::take(&mut *PROGRAM_STACK_POOL.lock());
    unused.into_iter().for_each(StackMemory::release);
    tlb::drain(Cause::Memory)
}

/// Takes memory by `take`; if there is none, gives back what is kept for future threads and what waits for CPUs to drop
/// translations, and tries again. Inside the gate.
///
/// # Errors
/// What `take` says the last time.
pub(crate) fn with_unused_released<T>(take: impl Fn() -> Result<T, OutOfMemory>) -> Result<T, OutOfMemory> {
    take().or_else(|error| if free_unused() { take() } else { Err(error) })
}

/// The bytes that a thread's own block takes above its stack.
fn above_stack_bytes() -> u64 {
    thread_local_bytes() + size_of::<ThreadControl>() as u64
}

impl ProgramStack {
    /// A stack on `node` with room for `bytes` bytes and the thread-local values.
    ///
    /// # Errors
    /// When there is no frame or no address space left.
    pub(crate) fn new(node: NodeId, bytes: usize) -> Result<Self, OutOfMemory> {
        let stack_bytes = (bytes as u64)
            .checked_add(above_stack_bytes())
            .and_then(|bytes| bytes.checked_next_multiple_of(Size4KiB::BYTES))
            .filter(|bytes| *bytes <= LARGEST_PROGRAM_STACK_BYTES)
            .ok_or_else(|| memory::no_table_frame(node))?;
        let unused = {
            let mut pool = PROGRAM_STACK_POOL.lock();
            let fitting = |stack: &StackMemory| stack.node == node && stack.bytes == stack_bytes;
            pool.iter().position(fitting).map(|index| pool.swap_remove(index))
        };
        let stack = match unused {
            Some(memory) => Self(memory),
            None => Self(with_unused_released(|| StackMemory::new(node, stack_bytes))?),
        };
        let control = stack.thread_pointer() as *mut ThreadControl;
        let thread_locals = (stack.thread_pointer() - thread_local_bytes()) as *mut u8;
        let template = &raw const __tls_template_start;
        // SAFETY: the top of a stack that no thread runs on; the template is as long as the linker script says.
        unsafe {
            ptr::copy_nonoverlapping(
                template,
                thread_locals,
                &raw const __tls_template_end as usize - template as usize,
            );
            control.write(ThreadControl { thread_locals });
        }
        Ok(stack)
    }

    fn bottom(&self) -> u64 {
        self.0.bottom()
    }

    /// The address behind the stack proper.
    pub(crate) fn top(&self) -> u64 {
        self.thread_pointer() - thread_local_bytes()
    }

    /// The stack's size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.top() - self.bottom()
    }

    /// What FS holds while the thread runs.
    pub(crate) fn thread_pointer(&self) -> u64 {
        self.0.end() - size_of::<ThreadControl>() as u64
    }

    /// Whether `address` lies in the guard below the stack.
    pub(crate) fn guard_contains(&self, address: u64) -> bool {
        address
            .checked_sub(self.0.start)
            .is_some_and(|offset| offset < PROGRAM_STACK_GUARD_BYTES)
    }
}

impl Drop for ProgramStack {
    fn drop(&mut self) {
        PROGRAM_STACK_POOL.lock().push(self.0);
    }
}

/// The block that FS leads to. Only program threads have one.
pub(crate) fn thread_local_base() -> *mut u8 {
    let base: *mut u8;
    // SAFETY: program code runs only on threads whose FS points at a control block.
    unsafe {
        core::arch::asm!("mov {}, fs:[0]", out(reg) base, options(nostack, pure, readonly, preserves_flags));
    };
    base
}
