//! The contract between the API and its two lower halves.
//!
//! Everything public in this crate is written once, on top of a module `sys` that exists twice: `hosted::sys`, on Linux's threads
//! and `mmap`, and `machine::sys`, on the bare machine. This page says what `sys` offers, and the checks at its end
//! make the compiler compare the module in use with it.
//!
//! | function | meaning |
//! |---|---|
//! | `topology()` | the machine's nodes, CPUs and distances; does not change while the program runs |
//! | `cpus()` | the CPUs on which program threads are placed by default, never empty |
//! | `current_cpu()`, `current_node()` | where the calling thread runs |
//! | `spawn(spec, entry)` | a new thread, pinned to `spec.cpu`, that runs `entry` and ends; a panic in it ends the program |
//! | `current_thread()`, `thread_name()` | who the calling thread is |
//! | `wait(word, expected, timeout)` | sleeps if `*word == expected`, until a `wake` of the same word; the check comes after all that the caller did before (a full fence) and can not miss a `wake` that follows a change of the word |
//! | `wake(word, count)` | ends the waiting of at most `count` threads; `word` is only a key and is not read |
//! | `yield_now()` | lets another runnable thread of this CPU go first |
//! | `monotonic()` | time since boot; never goes back |
//! | `wall_clock()` | time since the Unix epoch |
//! | `exit(status)` | ends the program and all of its threads |
//! | `write_console(stream, bytes)` | bytes to the console; one call's bytes stay together |
//! | `set_thread_policy(policy)`, `thread_policy()` | where the calling thread's first touches take memory from in ranges without a policy |
//! | `reserve(bytes, options)` | a reservation: addresses that get zeroed memory, for reading and writing, page by page as they are first touched. `bytes` is not 0; the start is a multiple of the largest page that the options allow and that is no larger than the reservation |
//! | `populate(start, bytes, policy)` | backs every page of the range that has no memory yet, whatever its protection; by the range's own policy if there is none here. From many threads at once |
//! | `discard(start, bytes)` | gives back the memory behind the range; the next touch finds zeros |
//! | `protect(start, bytes, protection)` | says what may be done with the range, on all CPUs when it returns |
//! | `set_policy(start, bytes, policy)` | the policy for pages of the range that come later |
//! | `move_pages(start, bytes, node)` | moves the pages of the range to `node`, and returns how many it moved; other threads may use them meanwhile |
//! | `query(address)` | the page behind the address, if there is one |
//! | `release(start, bytes)` | gives back a whole reservation with all memory behind it |
//! | `revoke(start, bytes)` | as `release`, and when it returns no CPU can reach the memory any more |
//! | `placement(start, bytes, report)` | calls `report(node, size, count)` for the pages behind the range, in any grouping |
//! | `page_table_locks()` | what a lock in the page table covers: `split`, one table, or `coarse`, all of it |
//! | `quiesce()` | the calling CPU is at a safe point: it drops its translations if memory waits for that; nothing on Linux |
//! | `drain()` | returns when all that was released before is free; nothing on Linux |
//! | `tlb_mode()` | what becomes of memory that is released: `lazy`, `off`, or `linux` |
//! | `interrupts()`, `table_locks()`, `tlb_counts()` | what all CPUs have counted since boot, where that is known |
//! | `thread_local_base()` | bare machine only: the calling thread's block of thread-local values |
//!
//! Ranges that a program gives are not empty, begin and end at multiples of 4 KiB and lie in one reservation. A node that is named
//! exists, except in the policy of `populate`. `discard`, `protect` and `set_policy` fail where a page or an entry has to be
//! divided and there is no memory to note that in.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;
use core::time::Duration;

use homenode_mm::{OutOfMemory, PageSize, Policy, Protection};
use homenode_topology::{CpuId, NodeId, Topology};

use crate::mem::{Options, Page, RegionError};
use crate::sys;

/// A thread's number: unique while the program runs, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(u64);

impl ThreadId {
    /// The thread that runs the program's `main`.
    pub const MAIN: Self = Self(0);

    /// The thread with this number.
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a lower half needs to know to start a thread.
pub(crate) struct ThreadSpec {
    /// What reports call the thread.
    pub(crate) name: Option<Arc<str>>,
    /// The CPU that the thread is pinned to.
    pub(crate) cpu: CpuId,
    /// The least size of the thread's stack.
    pub(crate) stack_bytes: usize,
    /// The policy that the thread begins with.
    pub(crate) policy: Policy,
}

/// What a new thread runs.
pub(crate) type Entry = Box<dyn FnOnce() + Send + 'static>;

/// Hears of pages: the node that they lie on, the size of each, and how many they are.
pub(crate) type PageReport<'a> = dyn FnMut(NodeId, PageSize, usize) + 'a;

/// Why a thread could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnError {
    /// There is no memory for the thread's stack and bookkeeping.
    OutOfMemory {
        /// The size of the stack that was asked for.
        stack_bytes: usize,
    },
    /// The machine has no CPU with this number.
    NoSuchCpu(CpuId),
    /// The machine has no node with this number.
    NoSuchNode(NodeId),
    /// No program thread can be placed on this node: it has no CPUs, or only one that does the housekeeping.
    NodeWithoutCpus(NodeId),
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory { stack_bytes } => write!(
                f,
                "no memory for a thread with a stack of {stack_bytes} bytes: ask for a smaller stack or for fewer threads"
            ),
            Self::NoSuchCpu(cpu) => {
                write!(
                    f,
                    "there is no CPU {cpu}: the last one is CPU {}",
                    sys::topology().cpus().len() - 1
                )
            }
            Self::NoSuchNode(node) => {
                write!(
                    f,
                    "there is no node {node}: the last one is node {}",
                    sys::topology().nodes().len() - 1
                )
            }
            Self::NodeWithoutCpus(node) => {
                write!(
                    f,
                    "node {node} has no CPU for a program's thread: name another node"
                )
            }
        }
    }
}

impl core::error::Error for SpawnError {}

/// How a `wait` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitOutcome {
    /// By a `wake`, or for no reason.
    Woken,
    /// At once: the word did not hold the expected value.
    Changed,
    /// The time is over.
    TimedOut,
}

/// Defines what all CPUs have counted since boot. The difference of two is what was counted in between.
macro_rules! counts {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($(#[$field_doc:meta])* $field:ident,)+ }
    )+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: u64,)+
        }

        impl core::ops::Sub for $name {
            type Output = Self;

            fn sub(self, before: Self) -> Self {
                Self {
                    $($field: self.$field - before.$field,)+
                }
            }
        }
    )+};
}

counts! {
    /// How many interrupts all CPUs have taken since boot, by kind.
    Interrupts {
        /// The CPUs' own timers.
        timer,
        /// Other CPUs' requests to look for a thread to run.
        wake,
        /// Other CPUs' requests to flush the TLB.
        flush,
    }

    /// How many locks of page tables all CPUs have taken since boot.
    TableLocks {
        /// All of them.
        taken,
        /// Those for which a CPU had to wait.
        contended,
    }

    /// What all CPUs have done about each other's translations since boot.
    TlbCounts {
        /// How often a CPU did not wait for the others' safe points.
        forced,
        /// CPUs that were interrupted for that.
        interrupts_sent,
        /// How often a CPU dropped translations for which others wait.
        catch_ups,
        /// Ranges that were given back and that wait, or have waited.
        retired,
        /// How often a CPU dropped all of its translations.
        flush_all,
        /// How often a CPU dropped the translation of one page.
        flush_one,
    }
}

/// Where console output goes when there is a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Results.
    Output,
    /// Complaints.
    Error,
}

// The checks: one line for each function of `sys`.
const _: () = {
    let _: fn() -> &'static Topology = sys::topology;
    let _: fn() -> &'static [CpuId] = sys::cpus;
    let _: fn() -> CpuId = sys::current_cpu;
    let _: fn() -> NodeId = sys::current_node;
    let _: fn(ThreadSpec, Entry) -> Result<ThreadId, SpawnError> = sys::spawn;
    let _: fn() -> ThreadId = sys::current_thread;
    let _: fn() -> Option<Arc<str>> = sys::thread_name;
    let _: fn(&AtomicU32, u32, Option<Duration>) -> WaitOutcome = sys::wait;
    let _: fn(&AtomicU32, u32) = sys::wake;
    let _: fn() = sys::yield_now;
    let _: fn() -> Duration = sys::monotonic;
    let _: fn() -> Duration = sys::wall_clock;
    let _: fn() -> Option<Interrupts> = sys::interrupts;
    let _: fn() -> Option<TableLocks> = sys::table_locks;
    let _: fn() -> Option<TlbCounts> = sys::tlb_counts;
    let _: fn() = sys::quiesce;
    let _: fn() = sys::drain;
    let _: fn() -> &'static str = sys::tlb_mode;
    let _: fn(u8) -> ! = sys::exit;
    let _: fn(Stream, &[u8]) = sys::write_console;
    let _: fn(Policy) = sys::set_thread_policy;
    let _: fn() -> Policy = sys::thread_policy;
    let _: fn() -> &'static str = sys::page_table_locks;
    let _: fn(usize, Options) -> Result<NonNull<u8>, RegionError> = sys::reserve;
    let _: unsafe fn(NonNull<u8>, usize, Option<Policy>) -> Result<(), OutOfMemory> = sys::populate;
    let _: unsafe fn(NonNull<u8>, usize) -> Result<(), OutOfMemory> = sys::discard;
    let _: unsafe fn(NonNull<u8>, usize, Protection) -> Result<(), OutOfMemory> = sys::protect;
    let _: unsafe fn(NonNull<u8>, usize, Option<Policy>) -> Result<(), OutOfMemory> = sys::set_policy;
    let _: unsafe fn(NonNull<u8>, usize, NodeId) -> Result<usize, OutOfMemory> = sys::move_pages;
    let _: unsafe fn(NonNull<u8>) -> Option<Page> = sys::query;
    let _: unsafe fn(NonNull<u8>, usize) = sys::release;
    let _: unsafe fn(NonNull<u8>, usize) = sys::revoke;
    let _: for<'a> unsafe fn(NonNull<u8>, usize, &'a mut PageReport<'a>) = sys::placement;
    #[cfg(not(feature = "hosted"))]
    let _: fn() -> *mut u8 = sys::thread_local_base;
};
