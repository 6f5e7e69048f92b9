//! What the application's API asks of the bare machine: see `contract`.

use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;
use core::time::Duration;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use hermit_sync::OnceCell;
use homenode_metrics::{CpuCounter, CpuCounters};
use homenode_mm::{
    Attributes, Cause, OutOfMemory, PageSize, PageState, Policy, Protection, RangeError, ReserveError,
};
use homenode_topology::{CpuId, NodeId, Topology};

use super::percpu::{self, this_cpu};
use super::{clock, gate, program, program_memory, rtc, sched, serial, stacks, tlb};
use crate::contract::{
    Interrupts, SpawnError, Stream, TableLocks, ThreadId, ThreadSpec, TlbCounts, WaitOutcome,
};
use crate::mem::{Options, Page, RegionError};

static MACHINE: OnceCell<(&'static Topology, Vec<CpuId>)> = OnceCell::new();

/// Sets what [`topology`] and [`cpus`] give. Once, before the program starts.
pub(super) fn init(topology: &'static Topology, program_cpus: Vec<CpuId>) {
    assert!(
        MACHINE.set((topology, program_cpus)).is_ok(),
        "the machine is described once"
    );
}

fn machine() -> &'static (&'static Topology, Vec<CpuId>) {
    MACHINE
        .get()
        .expect("the machine is described before the program starts")
}

pub(crate) fn topology() -> &'static Topology {
    machine().0
}

pub(crate) fn cpus() -> &'static [CpuId] {
    &machine().1
}

pub(crate) fn current_cpu() -> CpuId {
    this_cpu().cpu.get()
}

pub(crate) fn current_node() -> NodeId {
    this_cpu().node.get()
}

pub(crate) fn spawn(
    spec: ThreadSpec,
    entry: Box<dyn FnOnce() + Send + 'static>,
) -> Result<ThreadId, SpawnError> {
    let ThreadSpec {
        name,
        cpu,
        stack_bytes,
        policy,
    } = spec;
    let target = *percpu::all().get(cpu.index()).ok_or(SpawnError::NoSuchCpu(cpu))?;
    // On failure the entry is dropped here: it is program code.
    let mut entry = Some(entry);
    let spawned = gate::enter(|| {
        // A copy in the kernel's memory: the last owner may be the kernel, and that must not touch program memory.
        let name = name.as_deref().map(Arc::from);
        sched::spawn(name, target, stack_bytes, policy, false, &mut entry)
    });
    spawned.map_err(|_| SpawnError::OutOfMemory { stack_bytes })
}

pub(crate) fn current_thread() -> ThreadId {
    this_cpu().current().map_or(ThreadId::MAIN, |thread| thread.id())
}

pub(crate) fn thread_name() -> Option<Arc<str>> {
    this_cpu().current().and_then(|thread| thread.name().cloned())
}

pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> WaitOutcome {
    sched::wait(word, expected, timeout)
}

pub(crate) fn wake(word: &AtomicU32, count: u32) {
    sched::wake(word, count);
}

pub(crate) fn yield_now() {
    sched::yield_now();
}

pub(crate) fn monotonic() -> Duration {
    clock::now()
}

pub(crate) fn wall_clock() -> Duration {
    rtc::unix_time()
}

fn counters() -> impl Iterator<Item = &'static CpuCounters> + Clone {
    percpu::all().iter().map(|cpu| cpu.counters.get())
}

/// The sum of a counter over all CPUs.
fn sum(counter: CpuCounter) -> u64 {
    CpuCounters::sum(counters(), counter)
}

/// The sum of a counter and all others of its family over all CPUs.
fn sum_of_family(counter: CpuCounter) -> u64 {
    CpuCounters::sum_of_family(counters(), counter)
}

pub(crate) fn interrupts() -> Option<Interrupts> {
    Some(Interrupts {
        timer: sum(CpuCounter::TimerInterrupt),
        wake: sum(CpuCounter::WakeInterrupt),
        flush: sum(CpuCounter::FlushInterrupt),
    })
}

pub(crate) fn table_locks() -> Option<TableLocks> {
    Some(TableLocks {
        taken: sum(CpuCounter::TableLock),
        contended: sum(CpuCounter::TableLockContended),
    })
}

pub(crate) fn tlb_counts() -> Option<TlbCounts> {
    Some(TlbCounts {
        forced: sum_of_family(CpuCounter::TlbForcedOff),
        interrupts_sent: sum_of_family(CpuCounter::TlbSentOff),
        catch_ups: sum_of_family(CpuCounter::TlbCaughtUpOwn),
        retired: sum(CpuCounter::TlbRetired),
        flush_all: sum(CpuCounter::TlbLocalFlushAll),
        flush_one: sum(CpuCounter::TlbLocalFlushOne),
    })
}

#[inline]
pub(crate) fn quiesce() {
    tlb::quiesce();
}

pub(crate) fn drain() {
    gate::enter(|| {
        tlb::drain(Cause::Drain);
    });
}

pub(crate) fn tlb_mode() -> &'static str {
    tlb::mode()
}

pub(crate) fn exit(status: u8) -> ! {
    program::end(status)
}

/// Bytes that are copied to the kernel's stack at a time, so that program memory is not read under the console's lock.
const CONSOLE_CHUNK_BYTES: usize = 1024;

pub(crate) fn write_console(_: Stream, bytes: &[u8]) {
    for chunk in bytes.chunks(CONSOLE_CHUNK_BYTES) {
        let mut copy = [0; CONSOLE_CHUNK_BYTES];
        copy[..chunk.len()].copy_from_slice(chunk);
        let length = chunk.len();
        gate::enter(move || serial::write_bytes(&copy[..length]));
    }
}

pub(crate) fn set_thread_policy(policy: Policy) {
    if let Some(thread) = this_cpu().current() {
        thread.set_policy(policy);
    }
}

pub(crate) fn thread_policy() -> Policy {
    this_cpu()
        .current()
        .map_or(Policy::Local, |thread| thread.policy())
}

pub(crate) fn page_table_locks() -> &'static str {
    program_memory::lock_scheme()
}

pub(crate) fn reserve(bytes: usize, options: Options) -> Result<NonNull<u8>, RegionError> {
    let attributes = Attributes {
        protection: Protection::ReadWrite,
        policy: options.policy,
        page_size: options.page_size,
    };
    program_memory::reserve(bytes, attributes).map_err(|error| match error {
        ReserveError::NoAddresses { .. } => RegionError::TooLarge {
            len: bytes,
            element_bytes: 1,
        },
        ReserveError::Range(RangeError::OutOfMemory(error)) => RegionError::OutOfMemory(error),
        ReserveError::Range(error) => panic!("{error}"),
    })
}

/// # Safety
/// The range lies in one reservation.
pub(crate) unsafe fn populate(
    start: NonNull<u8>,
    bytes: usize,
    policy: Option<Policy>,
) -> Result<(), OutOfMemory> {
    program_memory::populate(start.as_ptr() as u64, bytes as u64, policy)
}

/// # Safety
/// The range lies in one reservation, and nobody relies on what is stored there.
pub(crate) unsafe fn discard(start: NonNull<u8>, bytes: usize) -> Result<(), OutOfMemory> {
    program_memory::discard(start.as_ptr() as u64, bytes as u64)
}

/// # Safety
/// The range lies in one reservation, and nobody accesses it in a way that becomes forbidden.
pub(crate) unsafe fn protect(
    start: NonNull<u8>,
    bytes: usize,
    protection: Protection,
) -> Result<(), OutOfMemory> {
    program_memory::protect(start.as_ptr() as u64, bytes as u64, protection)
}

/// # Safety
/// The range lies in one reservation.
pub(crate) unsafe fn set_policy(
    start: NonNull<u8>,
    bytes: usize,
    policy: Option<Policy>,
) -> Result<(), OutOfMemory> {
    program_memory::set_policy(start.as_ptr() as u64, bytes as u64, policy)
}

/// # Safety
/// The range lies in one reservation.
pub(crate) unsafe fn move_pages(
    start: NonNull<u8>,
    bytes: usize,
    node: NodeId,
) -> Result<usize, OutOfMemory> {
    program_memory::move_pages(start.as_ptr() as u64, bytes as u64, node)
}

/// # Safety
/// The address lies in a reservation.
pub(crate) unsafe fn query(address: NonNull<u8>) -> Option<Page> {
    match program_memory::query(address.as_ptr() as u64) {
        PageState::Page {
            node,
            size,
            attributes,
            ..
        } => Some(Page {
            node,
            size,
            protection: attributes.protection,
        }),
        PageState::Reserved(_) | PageState::Unreserved => None,
    }
}

/// # Safety
/// The range is what [`reserve`] gave, and nothing uses it any more.
pub(crate) unsafe fn release(start: NonNull<u8>, bytes: usize) {
    program_memory::release(start.as_ptr() as u64, bytes as u64);
}

/// # Safety
/// The range is what [`reserve`] gave, and nothing uses it any more.
pub(crate) unsafe fn revoke(start: NonNull<u8>, bytes: usize) {
    program_memory::revoke(start.as_ptr() as u64, bytes as u64);
}

/// # Safety
/// The range lies in one reservation.
pub(crate) unsafe fn placement(
    start: NonNull<u8>,
    bytes: usize,
    report: &mut dyn FnMut(NodeId, PageSize, usize),
) {
    program_memory::placement(start.as_ptr() as u64, bytes as u64, report);
}

pub(crate) fn thread_local_base() -> *mut u8 {
    stacks::thread_local_base()
}
