//! Threads: `std`'s, pinned.

use alloc::string::String;
use alloc::sync::Arc;
use core::cell::OnceCell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use homenode_topology::{CpuId, NodeId};

use super::cpus::{cpu_of_os, os_cpu, topology};
use super::memory::set_thread_policy;
use super::{PANIC_STATUS, exit};
use crate::contract::{Entry, SpawnError, ThreadId, ThreadSpec};

/// What a thread knows about itself.
struct Identity {
    id: ThreadId,
    name: Option<Arc<str>>,
    /// The CPU that it is pinned to. A thread that this module did not start is not.
    cpu: Option<CpuId>,
}

std::thread_local! {
    static IDENTITY: OnceCell<Identity> = const { OnceCell::new() };
}

/// The number of the next thread; 0 is the main thread's.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

fn next_id() -> ThreadId {
    ThreadId::new(NEXT_ID.fetch_add(1, Ordering::Relaxed))
}

fn with_identity<R>(f: impl FnOnce(&Identity) -> R) -> R {
    IDENTITY.with(|identity| {
        f(identity.get_or_init(|| Identity {
            id: next_id(),
            name: thread::current().name().map(Arc::from),
            cpu: None,
        }))
    })
}

/// Makes the calling thread the one with this identity.
fn become_thread(identity: Identity) {
    if let Some(cpu) = identity.cpu {
        pin(cpu);
    }
    IDENTITY.with(|cell| assert!(cell.set(identity).is_ok(), "a thread's identity is set first"));
}

/// Makes the calling thread the program's main thread.
pub(super) fn adopt_main() {
    // Before pinning: the CPUs of this process are those of its main thread.
    let cpu = topology().cpus()[0].id;
    become_thread(Identity {
        id: ThreadId::MAIN,
        name: Some("main".into()),
        cpu: Some(cpu),
    });
}

/// Pins the calling thread, if Linux allows it.
fn pin(cpu: CpuId) {
    // SAFETY: a set of CPUs is a plain array of bits, for which zero is a value; the macro-like function checks the index.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(os_cpu(cpu), &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

pub(crate) fn spawn(spec: ThreadSpec, entry: Entry) -> Result<ThreadId, SpawnError> {
    let ThreadSpec {
        name,
        cpu,
        stack_bytes,
        policy,
    } = spec;
    if cpu.index() >= topology().cpus().len() {
        return Err(SpawnError::NoSuchCpu(cpu));
    }
    let id = next_id();
    let mut builder = thread::Builder::new().stack_size(stack_bytes);
    // Linux can not show every name; this module keeps it whole.
    if let Some(name) = name.as_deref().filter(|name| !name.contains('\0')) {
        builder = builder.name(String::from(name));
    }
    let body = move || {
        become_thread(Identity {
            id,
            name,
            cpu: Some(cpu),
        });
        set_thread_policy(policy);
        // The panic has been reported by the time that it is caught here.
        if catch_unwind(AssertUnwindSafe(entry)).is_err() {
            exit(PANIC_STATUS);
        }
    };
    builder
        .spawn(body)
        .map(|_| id)
        .map_err(|_| SpawnError::OutOfMemory { stack_bytes })
}

pub(crate) fn current_thread() -> ThreadId {
    with_identity(|identity| identity.id)
}

pub(crate) fn thread_name() -> Option<Arc<str>> {
    with_identity(|identity| identity.name.clone())
}

pub(crate) fn current_cpu() -> CpuId {
    with_identity(|identity| identity.cpu).unwrap_or_else(|| {
        // SAFETY: the call has no arguments and no effect.
        let number = unsafe { libc::sched_getcpu() };
        usize::try_from(number)
            .ok()
            .and_then(cpu_of_os)
            .unwrap_or_default()
    })
}

pub(crate) fn current_node() -> NodeId {
    topology().node_of_cpu(current_cpu())
}

pub(crate) fn yield_now() {
    thread::yield_now();
}
