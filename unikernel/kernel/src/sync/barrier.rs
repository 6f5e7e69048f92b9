//! A hierarchical barrier: threads of one node meet in a word of that node, and nodes meet in one word of the machine.
//!
//! Which threads come from which node is not told but learnt. Each node holds back its arrivals until as many have come as in the
//! last round, and then reports them together, so that in the steady state a round writes the machine's word once per node. The
//! expectation is only a hint: a thread that is about to sleep reports what its node still holds back, so every arrival is reported
//! in the end, however threads move between nodes. A round is released, per node that took part, by a change of a word that only
//! that node's threads watch (the sense-reversing of Mellor-Crummey and Scott, "Algorithms for scalable synchronization on
//! shared-memory multiprocessors", ACM TOCS 1991, with a round's number as the sense).

use alloc::boxed::Box;
use core::fmt;
use core::hint;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64, fence};

use super::CachePadded;
use crate::sys;

/// How often a thread looks for the end of a round before it sleeps: some ten microseconds, the cost of sleeping and waking.
const SPINS: u32 = 1000;

/// A point that a number of threads pass together, again and again.
pub struct Barrier {
    participants: u32,
    /// Zero where there are more participants than CPUs, since a thread that spins then keeps another from arriving.
    spins: u32,
    /// Arrivals of this round that nodes have reported.
    reported: CachePadded<AtomicU32>,
    nodes: Box<[CachePadded<Node>]>,
}

/// What one node's threads share.
#[derive(Default)]
struct Node {
    /// [`Arrivals`] to the round that is open.
    arrivals: AtomicU64,
    /// How many threads of this node came to the last round.
    expected: AtomicU32,
    /// How many rounds threads of this node have been released from; what they sleep on.
    released: AtomicU32,
    /// Threads that sleep until the round ends, or are about to.
    sleepers: AtomicU32,
}

/// A node's word: from bit 32 the number of the open round, from bit 16 the node's arrivals to it, from bit 0 those arrivals that
/// are not reported yet.
#[derive(Clone, Copy)]
struct Arrivals(u64);

impl Arrivals {
    const MOST: usize = 0xffff;
    /// What one arrival, not reported, adds.
    const ONE: u64 = (1 << 16) | 1;
    /// What is left when all arrivals are reported.
    const REPORTED_MASK: u64 = !0xffff;

    fn open(round: u32) -> Self {
        Self(u64::from(round) << 32)
    }

    fn round(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn total(self) -> u32 {
        u32::from((self.0 >> 16) as u16)
    }

    fn unreported(self) -> u32 {
        u32::from(self.0 as u16)
    }
}

/// What [`Barrier::wait`] returns.
#[derive(Clone, Copy, Debug)]
pub struct BarrierWaitResult(bool);

impl BarrierWaitResult {
    /// Whether this thread is the one that was chosen in its round; there is exactly one.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.0
    }
}

impl Barrier {
    /// A barrier for `participants` threads; with 0 or 1, nobody waits.
    ///
    /// The same threads need not come each time, but never may more than `participants` be in [`wait`](Self::wait) at once.
    ///
    /// # Panics
    /// If there are more than 65,535 participants.
    #[must_use]
    pub fn new(participants: usize) -> Self {
        let spins = if participants > sys::cpus().len() {
            0
        } else {
            SPINS
        };
        Self::with(participants, sys::topology().nodes().len(), spins)
    }

    fn with(participants: usize, nodes: usize, spins: u32) -> Self {
        assert!(
            participants <= Arrivals::MOST,
            "a barrier has {} participants at most",
            Arrivals::MOST
        );
        Self {
            participants: participants.max(1) as u32,
            spins,
            reported: CachePadded(AtomicU32::new(0)),
            nodes: (0..nodes).map(|_| CachePadded(Node::default())).collect(),
        }
    }

    /// Waits until all participants have come. What each did before is then visible to all. This is a safe point, as
    /// [`tlb::quiesce`](crate::tlb::quiesce) is.
    ///
    /// # Panics
    /// If more threads come at once than the barrier was created for.
    pub fn wait(&self) -> BarrierWaitResult {
        sys::quiesce();
        self.wait_on(&self.nodes[sys::current_node().index()].0)
    }

    fn wait_on(&self, node: &Node) -> BarrierWaitResult {
        let before = Arrivals(node.arrivals.fetch_add(Arrivals::ONE, AcqRel));
        if before.total() + 1 >= node.expected.load(Relaxed) && self.report(node) {
            return self.release();
        }
        for _ in 0..self.spins {
            if node.has_released(before.round()).is_ok() {
                return BarrierWaitResult(false);
            }
            hint::spin_loop();
        }
        if self.report(node) {
            return self.release();
        }
        node.sleep(before.round());
        BarrierWaitResult(false)
    }

    /// Reports what the node holds back; whether that completes the round.
    fn report(&self, node: &Node) -> bool {
        if Arrivals(node.arrivals.load(Relaxed)).unreported() == 0 {
            return false;
        }
        let arrivals = Arrivals(node.arrivals.fetch_and(Arrivals::REPORTED_MASK, AcqRel)).unreported();
        if arrivals == 0 {
            return false;
        }
        let reported = self.reported.0.fetch_add(arrivals, AcqRel) + arrivals;
        assert!(
            reported <= self.participants,
            "more than a barrier's {} participants came",
            self.participants
        );
        reported == self.participants
    }

    /// Ends the round: first opens the next one on every node, then lets the first thread go, which may arrive there at once.
    #[cold]
    fn release(&self) -> BarrierWaitResult {
        self.reported.0.store(0, Relaxed);
        for CachePadded(node) in &self.nodes {
            let arrivals = Arrivals(node.arrivals.load(Relaxed));
            node.expected.store(arrivals.total(), Relaxed);
            if arrivals.total() > 0 {
                node.arrivals
                    .store(Arrivals::open(arrivals.round().wrapping_add(1)).0, Relaxed);
            }
        }
        for CachePadded(node) in &self.nodes {
            if node.expected.load(Relaxed) > 0 {
                node.release();
            }
        }
        BarrierWaitResult(true)
    }
}

impl Node {
    /// Whether threads that arrived to `round` may go; else the number of rounds released so far.
    ///
    /// A thread can arrive to a round while the one before is being released.
    fn has_released(&self, round: u32) -> Result<(), u32> {
        let released = self.released.load(Acquire);
        if released.wrapping_sub(round).cast_signed() > 0 {
            Ok(())
        } else {
            Err(released)
        }
    }

    /// Sleeps until threads that arrived to `round` may go.
    #[cold]
    fn sleep(&self, round: u32) {
        self.sleepers.fetch_add(1, SeqCst);
        // Either the releaser sees this sleeper, or the sleeper sees the release.
        fence(SeqCst);
        while let Err(released) = self.has_released(round) {
            sys::wait(&self.released, released, None);
        }
        self.sleepers.fetch_sub(1, Relaxed);
    }

    /// Lets go the threads that arrived to the round before the open one.
    fn release(&self) {
        self.released.fetch_add(1, SeqCst);
        fence(SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            sys::wake(&self.released, u32::MAX);
        }
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Barrier")
            .field("participants", &self.participants)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread;

    /// Lets threads meet `rounds` times, thread `t` in round `r` on node `node_of(t, r)`, and checks that nobody runs ahead and
    /// that each round has one leader.
    fn meet(
        threads: usize,
        nodes: usize,
        spins: u32,
        rounds: usize,
        node_of: impl Fn(usize, usize) -> usize + Sync,
    ) {
        let barrier = Barrier::with(threads, nodes, spins);
        let arrived: Vec<AtomicU32> = (0..rounds).map(|_| AtomicU32::new(0)).collect();
        let leaders = AtomicU32::new(0);
        thread::scope(|scope| {
            for thread in 0..threads {
                let (barrier, arrived, leaders, node_of) = (&barrier, &arrived, &leaders, &node_of);
                scope.spawn(move || {
                    for (round, arrived) in arrived.iter().enumerate() {
                        arrived.fetch_add(1, Relaxed);
                        let node = &barrier.nodes[node_of(thread, round)].0;
                        if barrier.wait_on(node).is_leader() {
                            leaders.fetch_add(1, Relaxed);
                        }
                        assert_eq!(
                            arrived.load(Relaxed) as usize,
                            threads,
                            "round {round} ended early"
                        );
                    }
                });
            }
        });
        assert_eq!(leaders.into_inner() as usize, rounds);
    }

    #[test]
    fn uneven_nodes_meet() {
        // Four threads on node 0, one on node 1, two on node 3, none on node 2.
        for spins in [0, 20, SPINS] {
            meet(7, 4, spins, 300, |thread, _| [0, 0, 1, 0, 3, 0, 3][thread]);
        }
    }

    #[test]
    fn threads_that_move_between_nodes_meet() {
        for spins in [0, 20] {
            meet(5, 3, spins, 300, |thread, round| (thread * 7 + round * round) % 3);
        }
    }

    #[test]
    fn threads_of_the_machine_meet() {
        let threads = sys::cpus().len() + 1;
        let barrier = Barrier::new(threads);
        let passed = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for round in 0..100 {
                        assert!(passed.load(Relaxed) as usize >= round * threads);
                        barrier.wait();
                        passed.fetch_add(1, Relaxed);
                        barrier.wait();
                    }
                });
            }
        });
        assert_eq!(passed.into_inner() as usize, 100 * threads);
    }

    #[test]
    fn different_threads_can_take_part_each_time() {
        let barrier = Barrier::with(2, 2, 20);
        thread::scope(|scope| {
            for index in 0..200 {
                let barrier = &barrier;
                let first = scope.spawn(move || barrier.wait_on(&barrier.nodes[index % 2].0).is_leader());
                let second = barrier.wait_on(&barrier.nodes[(index / 3) % 2].0).is_leader();
                assert!(first.join() ^ second);
            }
        });
    }

    #[test]
    fn one_participant_never_waits() {
        for participants in [0, 1] {
            let barrier = Barrier::new(participants);
            assert!((0..10).all(|_| barrier.wait().is_leader()));
        }
    }

    #[test]
    fn nodes_report_together_once_they_know_each_other() {
        let barrier = Barrier::with(4, 2, 0);
        let expected = |node: usize| barrier.nodes[node].0.expected.load(Relaxed);
        thread::scope(|scope| {
            for thread in 0..4 {
                let barrier = &barrier;
                scope.spawn(move || barrier.wait_on(&barrier.nodes[thread / 3].0));
            }
        });
        assert_eq!((expected(0), expected(1)), (3, 1));
        // The first two of node 0's three hold back, as long as they do not sleep.
        let node = &barrier.nodes[0].0;
        for _ in 0..2 {
            let arrivals = Arrivals(node.arrivals.fetch_add(Arrivals::ONE, Relaxed));
            assert!(arrivals.total() + 1 < node.expected.load(Relaxed));
        }
        assert!(!barrier.report(node));
        assert_eq!(barrier.reported.0.load(Relaxed), 2);
    }
}
