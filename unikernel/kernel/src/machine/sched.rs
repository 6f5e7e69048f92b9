//! Threads: pinned, one queue per CPU, blocking on a word. A thread gives its CPU up only by blocking, yielding or ending.

use core::cell::Cell;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use core::time::Duration;

use alloc::boxed::Box;
use alloc::sync::Arc;
use hermit_sync::InterruptSpinMutex;
use homenode_metrics::{CpuCounter, Threads};
use homenode_mm::{OutOfMemory, Policy};
use homenode_topology::CpuId;
use intrusive_collections::{
    KeyAdapter, LinkedList, LinkedListAtomicLink, RBTree, RBTreeAtomicLink, intrusive_adapter,
};
use x86_64::instructions::interrupts;

use super::percpu::{self, Due, PerCpu, offset, this_cpu};
use super::stacks::{KernelStack, ProgramStack};
use super::traps::vector;
use super::{apic, clock, cpu as processor, gate, housekeeping, net, tlb};
use crate::contract::{ThreadId, WaitOutcome};

/// What a thread runs: program code, called outside the gate.
pub(crate) type Entry = Box<dyn FnOnce() + Send>;

/// A thread of the program, or a CPU's idle thread.
pub(crate) struct Thread {
    id: ThreadId,
    name: Option<Arc<str>>,
    cpu: CpuId,
    kernel_stack: KernelStack,
    program_stack: Option<ProgramStack>,
    /// The kernel stack's pointer while the thread does not run.
    saved_stack: Cell<u64>,
    /// Where memory comes from that it touches first, in ranges without a policy.
    policy: Cell<Policy>,
    entry: Cell<Option<Entry>>,
    /// The address of the word that it waits on.
    wait_word: AtomicUsize,
    timed_out: AtomicBool,
    deadline_ns: AtomicU64,
    run_link: LinkedListAtomicLink,
    wait_link: LinkedListAtomicLink,
    timer_link: RBTreeAtomicLink,
}

// SAFETY: the `Cell`s are touched only by the CPU that the thread is pinned to (or before the thread is published).
unsafe impl Sync for Thread {}
// SAFETY: the entry is `Send`, and nothing else in it is bound to a CPU before it runs.
unsafe impl Send for Thread {}

intrusive_adapter!(pub(crate) RunAdapter = Arc<Thread>: Thread { run_link => LinkedListAtomicLink });
intrusive_adapter!(pub(crate) WaitAdapter = Arc<Thread>: Thread { wait_link => LinkedListAtomicLink });
intrusive_adapter!(pub(crate) TimerAdapter = Arc<Thread>: Thread { timer_link => RBTreeAtomicLink });

impl<'a> KeyAdapter<'a> for TimerAdapter {
    type Key = u64;
    fn get_key(&self, thread: &'a Thread) -> u64 {
        thread.deadline_ns.load(Ordering::Relaxed)
    }
}

/// Threads ready to run on one CPU, first come, first served.
pub(crate) struct RunQueue {
    ready: LinkedList<RunAdapter>,
    /// How many there are.
    length: u64,
    /// Whether the CPU runs one, rather than its idle thread.
    running: bool,
}

impl RunQueue {
    pub(crate) const fn new() -> Self {
        Self {
            ready: LinkedList::new(RunAdapter::NEW),
            length: 0,
            running: false,
        }
    }

    fn push(&mut self, thread: Arc<Thread>) {
        self.ready.push_back(thread);
        self.length += 1;
    }

    /// The thread to run next; `None` is the idle thread.
    fn pop(&mut self) -> Option<Arc<Thread>> {
        let next = self.ready.pop_front();
        self.running = next.is_some();
        self.length -= u64::from(self.running);
        next
    }
}

/// Threads of one CPU that are blocked with a deadline, by deadline.
pub(crate) struct TimerQueue {
    waiting: RBTree<TimerAdapter>,
}

impl TimerQueue {
    pub(crate) const fn new() -> Self {
        Self {
            waiting: RBTree::new(TimerAdapter::NEW),
        }
    }
}

/// Blocked threads whose words' addresses share a hash.
struct WaitQueue {
    waiting: InterruptSpinMutex<LinkedList<WaitAdapter>>,
}

const WAIT_QUEUES: usize = 256;
static WAIT_QUEUE: [WaitQueue; WAIT_QUEUES] = [const {
    WaitQueue {
        waiting: InterruptSpinMutex::new(LinkedList::new(WaitAdapter::NEW)),
    }
}; WAIT_QUEUES];

fn wait_queue(word: usize) -> &'static WaitQueue {
    // Fibonacci hashing: the top bits of a product with 2^64 divided by the golden ratio.
    let hash = (word as u64 >> 2).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    &WAIT_QUEUE[hash as usize % WAIT_QUEUES]
}

static NEXT_ID: AtomicU64 = AtomicU64::new(ThreadId::MAIN.as_u64() + 1);
static STARTED: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

/// How many of the program's threads are in each state.
pub(crate) fn thread_counts() -> Threads {
    let alive = STARTED
        .load(Ordering::Relaxed)
        .saturating_sub(ENDED.load(Ordering::Relaxed));
    let mut threads = Threads::default();
    for cpu in percpu::all() {
        let queue = cpu.run_queue.lock();
        threads.running += u64::from(queue.running);
        threads.ready += queue.length;
    }
    threads.blocked = alive.saturating_sub(threads.running + threads.ready);
    threads
}

core::arch::global_asm!(
    ".section .kernel_entry, \"ax\", @progbits",
    ".balign 16",
    // switch_stacks(save RSP at RDI, load it from RSI): the callee-saved state goes onto the old stack and comes from the new.
    ".type switch_stacks, @function",
    "switch_stacks:",
    "push %rbx",
    "push %rbp",
    "push %r12",
    "push %r13",
    "push %r14",
    "push %r15",
    "sub $8, %rsp",
    "stmxcsr (%rsp)",
    "fnstcw 4(%rsp)",
    "mov %rsp, (%rdi)",
    "mov %rsi, %rsp",
    "ldmxcsr (%rsp)",
    "fldcw 4(%rsp)",
    "add $8, %rsp",
    "pop %r15",
    "pop %r14",
    "pop %r13",
    "pop %r12",
    "pop %rbp",
    "pop %rbx",
    "ret",
    ".size switch_stacks, . - switch_stacks",
    // The first switch to a thread returns here, on its kernel stack: leave the gate for its program stack.
    ".type thread_start, @function",
    "thread_start:",
    "call {thread_started}",
    "mov %rax, %rsp",
    "xor %ebp, %ebp",
    "movl $0, %gs:{gate_depth}",
    "sti",
    "push %rbp",
    "push %rbp",
    "call {thread_main}",
    "ud2",
    ".size thread_start, . - thread_start",
    ".text",
    gate_depth = const offset::GATE_DEPTH,
    thread_started = sym thread_started,
    thread_main = sym thread_main,
    options(att_syntax)
);

// The whole frame is taken off, so that `thread_start` begins at the stack's top, aligned as before a call.
const _: () = assert!(size_of::<FirstSwitch>() == 64);

unsafe extern "C" {
    fn switch_stacks(save: *mut u64, load: u64);
    fn thread_start();
}

/// The words at the top of a new thread's kernel stack, in the order in which `switch_stacks` takes them.
#[repr(C, align(16))]
struct FirstSwitch {
    mxcsr: u32,
    x87_control: u32,
    callee_saved: [u64; 6],
    return_to: u64,
}

impl Thread {
    fn new(
        id: ThreadId,
        name: Option<Arc<str>>,
        cpu: CpuId,
        kernel_stack: KernelStack,
        program_stack: Option<ProgramStack>,
        policy: Policy,
        entry: Option<Entry>,
    ) -> Self {
        Self {
            id,
            name,
            cpu,
            kernel_stack,
            program_stack,
            saved_stack: Cell::new(0),
            policy: Cell::new(policy),
            entry: Cell::new(entry),
            wait_word: AtomicUsize::new(0),
            timed_out: AtomicBool::new(false),
            deadline_ns: AtomicU64::new(0),
            run_link: LinkedListAtomicLink::new(),
            wait_link: LinkedListAtomicLink::new(),
            timer_link: RBTreeAtomicLink::new(),
        }
    }

    /// This thread's number.
    pub(crate) fn id(&self) -> ThreadId {
        self.id
    }

    /// Its name, if it has one.
    pub(crate) fn name(&self) -> Option<&Arc<str>> {
        self.name.as_ref()
    }

    /// Where memory comes from that it touches first, in ranges without a policy.
    pub(crate) fn policy(&self) -> Policy {
        self.policy.get()
    }

    /// Changes its policy. The thread itself only.
    pub(crate) fn set_policy(&self, policy: Policy) {
        self.policy.set(policy);
    }

    /// The stack that its program code runs on; idle threads have none.
    pub(crate) fn program_stack(&self) -> Option<&ProgramStack> {
        self.program_stack.as_ref()
    }
}

/// Makes the running context of this CPU its idle thread. Interrupts are off.
pub(crate) fn adopt_idle(cpu: &'static PerCpu, kernel_stack: KernelStack) {
    let idle = Arc::new(Thread::new(
        ThreadId::MAIN,
        None,
        cpu.cpu.get(),
        kernel_stack,
        None,
        Policy::Local,
        None,
    ));
    // SAFETY: this CPU's own data, before it schedules.
    unsafe {
        *cpu.idle_thread.get() = Some(Arc::clone(&idle));
        *cpu.current.get() = Some(idle);
    }
}

/// Makes a thread ready on `cpu` that runs `entry`, which is taken if all goes well.
///
/// # Errors
/// When the node of `cpu` and its neighbours have no memory for the stacks.
pub(crate) fn spawn(
    name: Option<Arc<str>>,
    cpu: &'static PerCpu,
    stack_bytes: usize,
    policy: Policy,
    main: bool,
    entry: &mut Option<Entry>,
) -> Result<ThreadId, OutOfMemory> {
    let id = if main {
        ThreadId::MAIN
    } else {
        ThreadId::new(NEXT_ID.fetch_add(1, Ordering::Relaxed))
    };
    let node = cpu.node.get();
    let kernel_stack = KernelStack::new(node)?;
    let program_stack = ProgramStack::new(node, stack_bytes)?;
    let top = kernel_stack.top();
    let thread = Thread::new(
        id,
        name,
        cpu.cpu.get(),
        kernel_stack,
        Some(program_stack),
        policy,
        entry.take(),
    );
    let first = (top as usize - size_of::<FirstSwitch>()) as *mut FirstSwitch;
    // SAFETY: the top of a kernel stack that nothing else uses yet.
    unsafe {
        first.write(FirstSwitch {
            mxcsr: 0x1f80,
            x87_control: 0x37f,
            callee_saved: [0; 6],
            return_to: thread_start as *const () as u64,
        });
    }
    thread.saved_stack.set(first as u64);
    STARTED.fetch_add(1, Ordering::Relaxed);
    make_ready(Arc::new(thread));
    Ok(id)
}

/// Puts a thread on its CPU's queue and interrupts that CPU if it halts.
fn make_ready(thread: Arc<Thread>) {
    let cpu = percpu::all()[thread.cpu.index()];
    cpu.run_queue.lock().push(thread);
    // Pairs with the fence in `idle`: either it sees the thread or this sees it idle.
    fence(Ordering::SeqCst);
    if cpu.idle.load(Ordering::Relaxed) && !core::ptr::eq(cpu, this_cpu()) {
        let sent = apic::local().send_ipi(cpu.apic_id.get(), vector::WAKE);
        debug_assert!(sent.is_ok(), "an online CPU can be interrupted");
    }
}

/// Runs the next ready thread, or the idle thread. Interrupts are off, and the running thread has been put where it will be
/// found again.
fn switch_to_next(cpu: &'static PerCpu) {
    let next = cpu.run_queue.lock().pop();
    // SAFETY: this CPU's own data, with interrupts off.
    let (current, idle) = unsafe { (&mut *cpu.current.get(), (*cpu.idle_thread.get()).as_ref()) };
    let next = next.unwrap_or_else(|| Arc::clone(idle.expect("each CPU has an idle thread")));
    if current
        .as_ref()
        .is_some_and(|current| Arc::ptr_eq(current, &next))
    {
        return;
    }
    cpu.count(CpuCounter::ContextSwitch);
    cpu.kernel_stack_bottom.set(next.kernel_stack.bottom());
    cpu.kernel_stack_top.set(next.kernel_stack.top());
    if let Some(stack) = &next.program_stack {
        // SAFETY: the block belongs to the thread that is about to run.
        unsafe { processor::set_fs_base(stack.thread_pointer()) };
    }
    let load = next.saved_stack.get();
    let previous = current.replace(next);
    let save = previous.as_ref().map_or(core::ptr::null(), |thread| {
        thread.saved_stack.as_ptr().cast_const()
    });
    // SAFETY: `previous` keeps the old thread, and with it `save`, alive until `after_switch`; `load` is what the last switch
    // away from the next thread, or `spawn`, left.
    unsafe {
        *cpu.previous.get() = previous;
        switch_stacks(save.cast_mut(), load);
    }
    after_switch(cpu);
}

/// The first thing that a thread does when it runs again.
fn after_switch(cpu: &'static PerCpu) {
    // SAFETY: this CPU's own data, with interrupts off.
    drop(unsafe { (*cpu.previous.get()).take() });
}

/// Called on a new thread's kernel stack; gives the top of its program stack.
extern "C" fn thread_started() -> u64 {
    let cpu = this_cpu();
    after_switch(cpu);
    let thread = cpu.current().expect("a thread runs");
    thread
        .program_stack
        .as_ref()
        .expect("a program thread has a program stack")
        .top()
}

/// A thread's program code, on its program stack, outside the gate.
extern "C" fn thread_main() -> ! {
    let entry = this_cpu().current().and_then(|thread| thread.entry.take());
    if let Some(entry) = entry {
        entry();
    }
    gate::enter(|| -> ! { end_current() })
}

/// Ends the running thread.
fn end_current() -> ! {
    interrupts::disable();
    let cpu = this_cpu();
    ENDED.fetch_add(1, Ordering::Relaxed);
    switch_to_next(cpu);
    unreachable!("an ended thread does not run again")
}

/// Blocks the running thread while `word` holds `expected`, until a wake or the timeout.
pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> WaitOutcome {
    if word.load(Ordering::SeqCst) != expected {
        return WaitOutcome::Changed;
    }
    let word: *const AtomicU32 = word;
    let deadline_ns = timeout
        .map(|timeout| clock::now_ns().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)));
    gate::enter(move || {
        let cpu = this_cpu();
        let thread = cpu.current().expect("a thread runs");
        interrupts::without_interrupts(|| announce_wait(cpu, thread, word as usize, deadline_ns));
        // Read again now that wakers can find the thread: whoever changed the word before did not. It may fault, so no lock is
        // held.
        // SAFETY: the caller's reference lives until this returns.
        let changed = unsafe { (*word).load(Ordering::SeqCst) } != expected;
        interrupts::without_interrupts(|| {
            let withdrawn = changed && withdraw_wait(thread, word as usize);
            if !withdrawn {
                // If it has been woken by now, it is ready, and comes back in its turn.
                switch_to_next(cpu);
            }
            if thread.timer_link.is_linked() {
                let mut timers = cpu.timers.lock();
                // SAFETY: linked, and only this CPU's timer queue takes its threads.
                let mut cursor = unsafe { timers.waiting.cursor_mut_from_ptr(&raw const **thread) };
                cursor.remove();
            }
            if withdrawn {
                WaitOutcome::Changed
            } else if thread.timed_out.load(Ordering::Relaxed) {
                WaitOutcome::TimedOut
            } else {
                WaitOutcome::Woken
            }
        })
    })
}

/// Lets wakers and the timer find the running thread. Interrupts are off.
fn announce_wait(cpu: &'static PerCpu, thread: &Arc<Thread>, word: usize, deadline_ns: Option<u64>) {
    thread.wait_word.store(word, Ordering::Relaxed);
    thread.timed_out.store(false, Ordering::Relaxed);
    wait_queue(word).waiting.lock().push_back(Arc::clone(thread));
    if let Some(deadline_ns) = deadline_ns {
        thread.deadline_ns.store(deadline_ns, Ordering::Relaxed);
        cpu.timers.lock().waiting.insert(Arc::clone(thread));
        arm_timer(cpu);
    }
}

/// Takes the running thread out of the queue again, unless it has been woken. Interrupts are off.
fn withdraw_wait(thread: &Arc<Thread>, word: usize) -> bool {
    let mut waiting = wait_queue(word).waiting.lock();
    thread.wait_link.is_linked() && {
        // SAFETY: linked, and in the queue of the word that it waits on, whose lock is held.
        let mut cursor = unsafe { waiting.cursor_mut_from_ptr(&raw const **thread) };
        cursor.remove().is_some()
    }
}

/// Makes up to `count` threads ready that wait on `word`. The word is only a key: it is not read.
pub(crate) fn wake(word: &AtomicU32, count: u32) {
    let word = core::ptr::from_ref(word) as usize;
    gate::enter(move || {
        let mut woken = LinkedList::new(RunAdapter::NEW);
        let mut number = 0;
        {
            let mut waiting = wait_queue(word).waiting.lock();
            let mut cursor = waiting.front_mut();
            while number < count
                && let Some(thread) = cursor.get()
            {
                if thread.wait_word.load(Ordering::Relaxed) != word {
                    cursor.move_next();
                } else if let Some(thread) = cursor.remove() {
                    woken.push_back(thread);
                    number += 1;
                }
            }
        }
        while let Some(thread) = woken.pop_front() {
            make_ready(thread);
        }
    });
}

/// Lets the other ready threads of this CPU run first.
pub(crate) fn yield_now() {
    gate::enter(|| {
        interrupts::without_interrupts(|| {
            let cpu = this_cpu();
            {
                let mut queue = cpu.run_queue.lock();
                if queue.ready.is_empty() {
                    return;
                }
                queue.push(Arc::clone(cpu.current().expect("a thread runs")));
            }
            switch_to_next(cpu);
        });
    });
}

/// Makes ready whoever's deadline has passed on this CPU, and arms the timer for the next. Interrupts are off.
pub(crate) fn expire_timers(cpu: &'static PerCpu) {
    let now = clock::now_ns();
    loop {
        let thread = {
            let mut timers = cpu.timers.lock();
            let mut cursor = timers.waiting.front_mut();
            match cursor.get() {
                Some(thread) if thread.deadline_ns.load(Ordering::Relaxed) <= now => cursor.remove(),
                _ => None,
            }
        };
        let Some(thread) = thread else { break };
        let expired = {
            let mut waiting = wait_queue(thread.wait_word.load(Ordering::Relaxed))
                .waiting
                .lock();
            // Unlinked: another CPU has just woken it.
            thread.wait_link.is_linked().then(|| {
                thread.timed_out.store(true, Ordering::Relaxed);
                // SAFETY: linked, and in the queue of the word that it waits on, whose lock is held.
                unsafe { waiting.cursor_mut_from_ptr(&raw const *thread) }.remove()
            })
        };
        if let Some(Some(expired)) = expired {
            make_ready(expired);
        }
    }
    arm_timer(cpu);
}

/// Arms this CPU's timer for the earliest deadline, the housekeeping tick and the memory manager's alarm included; without one it
/// stays off.
pub(crate) fn arm_timer(cpu: &'static PerCpu) {
    let first = cpu
        .timers
        .lock()
        .waiting
        .front()
        .get()
        .map(|thread| thread.deadline_ns.load(Ordering::Relaxed));
    let next_ns = first
        .unwrap_or(u64::MAX)
        .min(cpu.housekeeping_at_ns.get())
        .min(cpu.alarm_at_ns.get());
    if next_ns == u64::MAX {
        apic::local().disarm();
    } else {
        let delay_ns = next_ns.saturating_sub(clock::now_ns());
        apic::local().arm_oneshot(clock::ns_to_apic_ticks(delay_ns));
    }
}

/// Leaves the boot stack for the running CPU's idle stack and idles. Interrupts are off.
pub(crate) fn enter_idle(cpu: &'static PerCpu) -> ! {
    // SAFETY: nothing is on the idle stack, and nothing on the boot stack is used again.
    unsafe {
        core::arch::asm!(
            "mov rsp, {stack}", "xor ebp, ebp", "push rbp", "push rbp", "call {idle}", "ud2",
            stack = in(reg) cpu.kernel_stack_top.get(),
            idle = sym idle,
            options(noreturn)
        )
    }
}

/// What a CPU does when nothing else is ready: halt until an interrupt. Called once per CPU, on its idle thread, interrupts off.
pub(crate) extern "C" fn idle() -> ! {
    let cpu = this_cpu();
    loop {
        if housekeeping::is_dedicated(cpu) {
            interrupts::enable();
            net::poll();
            housekeeping::run_if_due();
            tlb::safe_point();
            spin_loop();
            interrupts::disable();
            if !cpu.run_queue.lock().ready.is_empty() {
                switch_to_next(cpu);
            }
            continue;
        }
        interrupts::disable();
        cpu.idle.store(true, Ordering::Relaxed);
        // Pairs with the fence in `make_ready`.
        fence(Ordering::SeqCst);
        if cpu.run_queue.lock().ready.is_empty() && cpu.due.get() == Due::empty() {
            tlb::enter_idle();
            interrupts::enable_and_hlt();
            interrupts::disable();
            tlb::exit_idle();
        }
        cpu.idle.store(false, Ordering::Relaxed);
        interrupts::enable();
        housekeeping::run_if_due();
        interrupts::disable();
        if !cpu.run_queue.lock().ready.is_empty() {
            switch_to_next(cpu);
        }
    }
}
