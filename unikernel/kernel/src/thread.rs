//! Threads: pinned to a CPU each, started one by one or in a scope.
//!
//! A thread that panics is reported and ends the whole program with a failure status, so joining never fails and locks are never
//! poisoned.
//!
//! Where nothing else is said, the threads that a scope starts go round the machine's CPUs, beginning after the CPU of the first call:
//! a scope with as many threads as there are CPUs has one on each. So do the threads started outside of scopes.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::num::NonZeroUsize;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicUsize};
use core::time::Duration;

use homenode_topology::{CpuId, NodeId};

use crate::contract::{Entry, ThreadSpec};
pub use crate::contract::{SpawnError, ThreadId};
use crate::mem::{self, Policy};
use crate::sys;
use crate::time::Instant;

/// The size of a thread's stack where nothing else is said, in bytes.
pub const DEFAULT_STACK_BYTES: usize = (2 << 20) - (64 << 10);

/// A thread's number and name.
#[derive(Clone, Debug)]
pub struct Thread {
    id: ThreadId,
    name: Option<Arc<str>>,
}

impl Thread {
    /// The thread's number.
    #[must_use]
    pub fn id(&self) -> ThreadId {
        self.id
    }

    /// The thread's name, if it was given one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// The calling thread.
#[must_use]
pub fn current() -> Thread {
    Thread {
        id: sys::current_thread(),
        name: sys::thread_name(),
    }
}

/// The CPU that the calling thread runs on.
#[must_use]
pub fn current_cpu() -> CpuId {
    sys::current_cpu()
}

/// The node that the calling thread runs on.
#[must_use]
pub fn current_node() -> NodeId {
    sys::current_node()
}

/// Says where memory comes from that the calling thread is the first to touch, in ranges that have no policy of their own. Threads that
/// it starts from now on begin with the same policy; the program's first thread begins with [`Policy::Local`].
///
/// As Linux's `set_mempolicy(2)`. Memory that is there already stays where it is.
///
/// ```
/// use homenode::mem::{Policy, Region, RegionError, Options};
/// use homenode::thread;
///
/// # fn main() -> Result<(), RegionError> {
/// // Read by all: spread over the nodes, though one thread fills it.
/// thread::set_policy(Policy::Interleave);
/// let mut table = Region::<u64>::with_options(1 << 20, Options::default())?;
/// table.fill(1);
/// thread::set_policy(Policy::Local);
/// # Ok(())
/// # }
/// ```
///
/// # Panics
/// If the policy names a node that the machine does not have.
#[track_caller]
pub fn set_policy(policy: Policy) {
    if let Err(error) = mem::check(policy) {
        panic!("{error}");
    }
    sys::set_thread_policy(policy);
}

/// Where memory comes from that the calling thread is the first to touch, in ranges that have no policy of their own.
#[must_use]
pub fn policy() -> Policy {
    sys::thread_policy()
}

/// The number of CPUs that threads are placed on by default.
#[must_use]
pub fn available_parallelism() -> NonZeroUsize {
    NonZeroUsize::new(sys::cpus().len()).expect("the calling thread has a CPU")
}

/// Lets another thread that is ready to run on this CPU go first.
pub fn yield_now() {
    sys::yield_now();
}

/// Sleeps for `duration` or a little longer.
pub fn sleep(duration: Duration) {
    let nobody_wakes = AtomicU32::new(0);
    let start = Instant::now();
    while let Some(left) = duration
        .checked_sub(start.elapsed())
        .filter(|left| !left.is_zero())
    {
        sys::wait(&nobody_wakes, 0, Some(left));
    }
}

/// Starts a thread that runs `entry`, placed and sized by default.
///
/// # Panics
/// If the thread can not be started; [`Builder::spawn`] returns that as an error.
pub fn spawn<F, T>(entry: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    Builder::new()
        .spawn(entry)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Where a thread is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Placement {
    /// On the next CPU of a round.
    #[default]
    Auto,
    Cpu(CpuId),
    /// On the next CPU of this node.
    Node(NodeId),
}

/// Gives CPUs out in turn.
#[derive(Default)]
struct Round {
    given: AtomicUsize,
}

impl Round {
    /// The CPU for the next thread, which is to be placed by `placement`.
    fn place(&self, placement: Placement) -> Result<CpuId, SpawnError> {
        let topology = sys::topology();
        let cpus = sys::cpus();
        match placement {
            Placement::Cpu(cpu) if cpu.index() < topology.cpus().len() => Ok(cpu),
            Placement::Cpu(cpu) => Err(SpawnError::NoSuchCpu(cpu)),
            Placement::Node(node) if node.index() >= topology.nodes().len() => {
                Err(SpawnError::NoSuchNode(node))
            }
            Placement::Node(node) => {
                let on_node = || cpus.iter().filter(|&&cpu| topology.node_of_cpu(cpu) == node);
                let count = on_node().count();
                let turn = self.given.fetch_add(1, Relaxed).checked_rem(count);
                let cpu = turn.and_then(|turn| on_node().nth(turn));
                cpu.copied().ok_or(SpawnError::NodeWithoutCpus(node))
            }
            Placement::Auto => {
                let current = sys::current_cpu();
                // Not all CPUs need be program CPUs: the next one is the first with a higher number.
                let next = cpus.partition_point(|&cpu| cpu <= current);
                Ok(cpus[(next + self.given.fetch_add(1, Relaxed)) % cpus.len()])
            }
        }
    }
}

/// The round of all threads that are started outside of scopes.
static PROGRAM_ROUND: Round = Round {
    given: AtomicUsize::new(0),
};

/// What a new thread is to be like.
#[derive(Clone, Debug)]
#[must_use = "a builder starts nothing before `spawn` is called"]
pub struct Builder {
    name: Option<Arc<str>>,
    placement: Placement,
    stack_bytes: usize,
    /// `None` is the policy of the thread that starts it.
    policy: Option<Policy>,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// A thread without a name, on the next CPU, with a stack of [`DEFAULT_STACK_BYTES`] and the policy of the thread that starts it.
    pub fn new() -> Self {
        Self {
            name: None,
            placement: Placement::Auto,
            stack_bytes: DEFAULT_STACK_BYTES,
            policy: None,
        }
    }

    /// Gives the thread a name, by which reports call it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into().into());
        self
    }

    /// Pins the thread to `cpu`.
    pub fn cpu(mut self, cpu: CpuId) -> Self {
        self.placement = Placement::Cpu(cpu);
        self
    }

    /// Pins the thread to a CPU of `node`, each in turn.
    pub fn node(mut self, node: NodeId) -> Self {
        self.placement = Placement::Node(node);
        self
    }

    /// Gives the thread a stack of at least `bytes`.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_bytes = bytes;
        self
    }

    /// Lets the thread begin with `policy`, as if it called [`set_policy`] itself.
    ///
    /// # Panics
    /// If the policy names a node that the machine does not have.
    #[track_caller]
    pub fn policy(mut self, policy: Policy) -> Self {
        if let Err(error) = mem::check(policy) {
            panic!("{error}");
        }
        self.policy = Some(policy);
        self
    }

    /// Starts a thread that runs `entry`.
    ///
    /// # Errors
    /// If there is no such CPU or node, or no memory.
    pub fn spawn<F, T>(self, entry: F) -> Result<JoinHandle<T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        // SAFETY: entry and result are borrowed from nobody.
        unsafe { self.start(&PROGRAM_ROUND, entry, || ()) }.map(JoinHandle)
    }

    /// Starts a thread of `scope` that runs `entry`.
    ///
    /// # Errors
    /// If there is no such CPU or node, or no memory.
    pub fn spawn_scoped<'scope, F, T>(
        self,
        scope: &'scope Scope<'scope, '_>,
        entry: F,
    ) -> Result<ScopedJoinHandle<'scope, T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let running = scope.running.clone();
        running.enter();
        // SAFETY: the scope does not end before `leave` is called, which is the last that the thread does with anything of 'scope.
        let started = unsafe { self.start(&scope.round, entry, move || running.leave()) };
        match started {
            Ok(thread) => Ok(ScopedJoinHandle {
                thread,
                scope: PhantomData,
            }),
            Err(error) => {
                scope.running.leave();
                Err(error)
            }
        }
    }

    /// Starts a thread that runs `entry`, stores its result and calls `finish`.
    ///
    /// # Safety
    /// What `entry` and its result borrow must outlive the call of `finish`, or the return of this function if that is an error. The
    /// handle must be dropped within the lifetime of the result.
    unsafe fn start<F, T, E>(self, round: &Round, entry: F, finish: E) -> Result<Running<T>, SpawnError>
    where
        F: FnOnce() -> T + Send,
        T: Send,
        E: FnOnce() + Send + 'static,
    {
        let spec = ThreadSpec {
            name: self.name.clone(),
            cpu: round.place(self.placement)?,
            stack_bytes: self.stack_bytes,
            policy: self.policy.unwrap_or_else(sys::thread_policy),
        };
        let ours = Arc::new(Outcome::new());
        let theirs = ours.clone();
        let body: Box<dyn FnOnce() + Send> = Box::new(move || {
            theirs.set(entry());
            // If the handle is gone, this drops the result, which may use what it borrows.
            drop(theirs);
            finish();
        });
        // SAFETY: the lifetime that is forgotten here is the caller's promise; behind `finish`, only the memory of the box is left.
        let body: Entry = unsafe { core::mem::transmute(body) };
        let id = sys::spawn(spec, body)?;
        Ok(Running {
            outcome: ours,
            thread: Thread { id, name: self.name },
        })
    }
}

/// Where a thread leaves its result.
struct Outcome<T> {
    /// 1 when the result is there.
    ready: AtomicU32,
    result: UnsafeCell<Option<T>>,
}

// SAFETY: the thread writes the result before it sets `ready`, and the one handle takes it afterwards: it is sent, never shared.
unsafe impl<T: Send> Sync for Outcome<T> {}

impl<T> Outcome<T> {
    const fn new() -> Self {
        Self {
            ready: AtomicU32::new(0),
            result: UnsafeCell::new(None),
        }
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Acquire) == 1
    }

    fn set(&self, result: T) {
        // SAFETY: called once, by the thread, and nobody reads before `ready` is set.
        unsafe { *self.result.get() = Some(result) };
        self.ready.store(1, Release);
        sys::wake(&self.ready, u32::MAX);
    }

    fn take(&self) -> T {
        while !self.is_ready() {
            sys::wait(&self.ready, 0, None);
        }
        // SAFETY: `ready` is set, so the thread has written the result and touches it no more; the only handle calls this once.
        unsafe { (*self.result.get()).take() }.expect("a thread leaves one result")
    }
}

/// A thread that was started and has not been joined.
struct Running<T> {
    outcome: Arc<Outcome<T>>,
    thread: Thread,
}

impl<T> Running<T> {
    fn join(self) -> T {
        self.outcome.take()
    }
}

/// A started thread. When this is dropped, the thread goes on.
pub struct JoinHandle<T>(Running<T>);

impl<T> JoinHandle<T> {
    /// Waits for the thread's end and returns its result.
    pub fn join(self) -> T {
        self.0.join()
    }

    /// Whether [`join`](Self::join) would return at once.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.outcome.is_ready()
    }

    /// The thread.
    #[must_use]
    pub fn thread(&self) -> &Thread {
        &self.0.thread
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("JoinHandle").field(&self.0.thread).finish()
    }
}

/// A started thread of a [`Scope`].
pub struct ScopedJoinHandle<'scope, T> {
    thread: Running<T>,
    scope: PhantomData<&'scope ()>,
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits for the thread's end and returns its result.
    pub fn join(self) -> T {
        self.thread.join()
    }

    /// Whether [`join`](Self::join) would return at once.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.outcome.is_ready()
    }

    /// The thread.
    #[must_use]
    pub fn thread(&self) -> &Thread {
        &self.thread.thread
    }
}

impl<T> fmt::Debug for ScopedJoinHandle<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScopedJoinHandle")
            .field(&self.thread.thread)
            .finish()
    }
}

/// Starts threads that may borrow from outside of the scope: see [`scope`].
pub struct Scope<'scope, 'env: 'scope> {
    running: Arc<RunningThreads>,
    round: Round,
    /// Neither lifetime may be shortened or lengthened.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// How many threads of a scope have not ended.
#[derive(Default)]
struct RunningThreads {
    count: AtomicU32,
}

impl RunningThreads {
    fn enter(&self) {
        self.count.fetch_add(1, Relaxed);
    }

    fn leave(&self) {
        if self.count.fetch_sub(1, Release) == 1 {
            sys::wake(&self.count, u32::MAX);
        }
    }

    fn wait_for_all(&self) {
        loop {
            match self.count.load(Acquire) {
                0 => return,
                count => {
                    sys::wait(&self.count, count, None);
                }
            }
        }
    }
}

/// Waits for a scope's threads, also when its function unwinds.
struct WaitForAll<'a>(&'a RunningThreads);

impl Drop for WaitForAll<'_> {
    fn drop(&mut self) {
        self.0.wait_for_all();
    }
}

/// Runs `f`, which may start threads that borrow from the caller, and waits for all of them.
///
/// ```
/// use homenode::thread;
///
/// let mut halves = [0_u64; 2];
/// thread::scope(|scope| {
///     for (number, half) in halves.iter_mut().enumerate() {
///         scope.spawn(move || *half = number as u64 + 1);
///     }
/// });
/// assert_eq!(halves, [1, 2]);
/// ```
pub fn scope<'env, F, T>(f: F) -> T
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
{
    let scope = Scope {
        running: Arc::default(),
        round: Round::default(),
        scope: PhantomData,
        env: PhantomData,
    };
    let _wait = WaitForAll(&scope.running);
    f(&scope)
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread of this scope that runs `entry`, placed and sized by default.
    ///
    /// # Panics
    /// If the thread can not be started; [`Builder::spawn_scoped`] returns that as an error.
    pub fn spawn<F, T>(&'scope self, entry: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        Builder::new()
            .spawn_scoped(self, entry)
            .unwrap_or_else(|error| panic!("{error}"))
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("running", &self.running.count.load(Relaxed))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::sync::Mutex;

    #[test]
    fn a_thread_gives_its_result_name_and_number() {
        let handle = Builder::new()
            .name("worker")
            .spawn(|| (current().id(), current().name().map(String::from)))
            .expect("the thread starts");
        let id = handle.thread().id();
        assert_eq!(handle.thread().name(), Some("worker"));
        assert_eq!(handle.join(), (id, Some(String::from("worker"))));
        assert_ne!(spawn(|| current().id()).join(), id);
        assert_eq!(spawn(|| current().name().map(String::from)).join(), None);
    }

    #[test]
    fn a_scope_waits_for_threads_that_nobody_joins() {
        let ended = AtomicUsize::new(0);
        scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    sleep(Duration::from_millis(10));
                    ended.fetch_add(1, Relaxed);
                });
            }
        });
        assert_eq!(ended.into_inner(), 8);
    }

    #[test]
    fn scoped_threads_start_others_and_give_results() {
        let numbers = [1, 2, 3];
        let sum = scope(|scope| {
            let outer = scope.spawn(|| {
                let inner = scope.spawn(|| numbers.iter().sum::<i32>());
                inner.join() * 10
            });
            outer.join()
        });
        assert_eq!(sum, 60);
    }

    #[test]
    fn a_result_that_nobody_takes_is_dropped_within_the_scope() {
        struct Note<'a>(&'a AtomicUsize);
        impl Drop for Note<'_> {
            fn drop(&mut self) {
                sleep(Duration::from_millis(5));
                self.0.fetch_add(1, Relaxed);
            }
        }
        let dropped = AtomicUsize::new(0);
        scope(|scope| {
            // One handle is dropped before its thread ends, one after, one is forgotten with its result.
            drop(scope.spawn(|| {
                sleep(Duration::from_millis(20));
                Note(&dropped)
            }));
            let later = scope.spawn(|| Note(&dropped));
            while !later.is_finished() {
                yield_now();
            }
            drop(later);
            core::mem::forget(scope.spawn(|| Note(&dropped)));
        });
        assert_eq!(dropped.into_inner(), 2);
    }

    #[test]
    fn a_scope_of_as_many_threads_as_cpus_has_one_on_each() {
        let seen = Mutex::new(BTreeSet::new());
        let work = || {
            scope(|scope| {
                for _ in 0..available_parallelism().get() {
                    scope.spawn(|| seen.lock().insert(current_cpu()));
                }
            });
        };
        // From a thread that is pinned, as a program's threads are.
        scope(|scope| scope.spawn(work).join());
        assert!(seen.into_inner().iter().eq(sys::cpus()));
    }

    #[test]
    fn threads_go_where_they_are_told() {
        for &cpu in sys::cpus() {
            let thread = Builder::new().cpu(cpu).spawn(|| (current_cpu(), current_node()));
            assert_eq!(
                thread.expect("the CPU exists").join(),
                (cpu, sys::topology().node_of_cpu(cpu))
            );
        }
        let node = sys::topology().node_of_cpu(sys::cpus()[0]);
        let thread = Builder::new().node(node).spawn(current_node);
        assert_eq!(thread.expect("the node has a CPU").join(), node);
    }

    #[test]
    fn places_that_do_not_exist_are_named() {
        let error = Builder::new()
            .cpu(CpuId(1 << 20))
            .spawn(|| ())
            .expect_err("there is no such CPU");
        assert!(error.to_string().contains("no CPU 1048576"), "{error}");
        let error = Builder::new()
            .node(NodeId(1 << 20))
            .spawn(|| ())
            .expect_err("there is no such node");
        assert!(error.to_string().contains("no node 1048576"), "{error}");
    }

    #[test]
    fn threads_begin_with_the_policy_of_who_starts_them() {
        let bound = Policy::Bind(NodeId(0));
        spawn(move || {
            assert_eq!(policy(), Policy::Local);
            set_policy(bound);
            let child = spawn(move || {
                let inherited = policy();
                set_policy(Policy::Interleave);
                (inherited, spawn(policy).join())
            });
            assert_eq!(child.join(), (bound, Policy::Interleave));
            assert_eq!(policy(), bound, "a thread changes its own policy only");
            let told = Builder::new().policy(Policy::Preferred(NodeId(0))).spawn(policy);
            assert_eq!(told.expect("it starts").join(), Policy::Preferred(NodeId(0)));
        })
        .join();
    }

    #[test]
    #[should_panic(expected = "there is no node 4000")]
    fn a_policy_names_a_node_that_is_there() {
        set_policy(Policy::Bind(NodeId(4000)));
    }

    #[test]
    fn sleep_is_long_enough() {
        let start = Instant::now();
        sleep(Duration::from_millis(15));
        assert!(start.elapsed() >= Duration::from_millis(15));
        sleep(Duration::ZERO);
    }
}
