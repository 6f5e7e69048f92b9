//! The worker threads: who works on what, and how they wait for each other.

use alloc::format;
use alloc::vec::Vec;
use core::ops::Range;

use homenode::sync::Barrier;
use homenode::thread::{self, Builder, SpawnError};

use crate::fft::{Axis, Fft3};

/// A number of threads that start, work and end together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Team {
    /// How many.
    pub(crate) threads: usize,
}

/// One thread of a team.
#[derive(Clone, Copy)]
pub(crate) struct Worker<'a> {
    /// Its number, from 0.
    pub(crate) index: usize,
    /// How many there are.
    pub(crate) threads: usize,
    barrier: &'a Barrier,
}

impl Worker<'_> {
    /// Waits for all workers of the team.
    pub(crate) fn meet(&self) {
        self.barrier.wait();
    }

    /// Whether this is the worker that speaks for the team.
    pub(crate) fn is_leader(&self) -> bool {
        self.index == 0
    }

    /// This worker's part of `count` things, in units of `unit` where there are enough of them for all.
    fn share(&self, count: usize, unit: usize) -> Range<usize> {
        let unit = if count / unit >= self.threads { unit } else { 1 };
        let units = count.div_ceil(unit);
        let boundary = |index: usize| (units * index / self.threads * unit).min(count);
        boundary(self.index)..boundary(self.index + 1)
    }
}

impl Team {
    /// Starts the threads, lets each do `work`, and returns their results in order.
    ///
    /// If a thread can not be started, `give_up` is called with the number of those that have been: they may wait for it already, so
    /// nobody can wait for them.
    pub(crate) fn run<T: Send>(
        self,
        give_up: fn(usize, SpawnError) -> !,
        work: impl Fn(Worker<'_>) -> T + Sync,
    ) -> Vec<T> {
        let barrier = Barrier::new(self.threads);
        let (barrier, work) = (&barrier, &work);
        thread::scope(|scope| {
            let running: Vec<_> = (0..self.threads)
                .map(|index| {
                    let worker = Worker {
                        index,
                        threads: self.threads,
                        barrier,
                    };
                    Builder::new()
                        .name(format!("worker {index}"))
                        .spawn_scoped(scope, move || work(worker))
                        .unwrap_or_else(|error| give_up(index, error))
                })
                .collect();
            running.into_iter().map(thread::ScopedJoinHandle::join).collect()
        })
    }
}

/// What one worker transforms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Its planes, if no plane is divided between workers.
    pub(crate) planes: Option<Range<usize>>,
    /// Its pencils along x: a slab of the grid, without a gap in memory.
    pub(crate) x: Range<usize>,
    /// Its pencils along y.
    pub(crate) y: Range<usize>,
    /// Its pencils along z.
    pub(crate) z: Range<usize>,
}

/// A multiple of all vectors' lanes, and of the points of a cache line.
const UNIT: usize = 8;

impl Shares {
    /// The shares of `worker`.
    pub(crate) fn new(worker: &Worker<'_>, fft: &Fft3) -> Self {
        let size = fft.size();
        let z = worker.share(fft.pencil_count(Axis::Z), UNIT);
        if size.z >= worker.threads {
            let planes = worker.share(size.z, 1);
            let of = |per_plane: usize| planes.start * per_plane..planes.end * per_plane;
            Self {
                x: of(size.y),
                y: of(size.x),
                z,
                planes: Some(planes),
            }
        } else {
            let x = worker.share(fft.pencil_count(Axis::X), UNIT);
            let y = worker.share(fft.pencil_count(Axis::Y), UNIT);
            Self {
                x,
                y,
                z,
                planes: None,
            }
        }
    }

    /// The points of its slab.
    pub(crate) fn points(&self, fft: &Fft3) -> Range<usize> {
        let width = fft.size().x;
        self.x.start * width..self.x.end * width
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fft::Simd;
    use crate::grid::Size;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_cover_everything_once(threads in 1_usize..200, size_index in 0_usize..6) {
            let [x, y, z] = [[1, 1, 1], [64, 64, 64], [5, 3, 2], [128, 1, 4], [1, 9, 100], [30, 20, 10]][size_index];
            let fft = Fft3::new(Size { x, y, z }, Simd::widest()).unwrap();
            let barrier = Barrier::new(1);
            let shares: Vec<_> = (0..threads)
                .map(|index| Shares::new(&Worker { index, threads, barrier: &barrier }, &fft))
                .collect();
            for (axis, of) in [
                (Axis::X, (|shares| &shares.x) as fn(&Shares) -> &Range<usize>),
                (Axis::Y, |shares| &shares.y),
                (Axis::Z, |shares| &shares.z),
            ] {
                let mut next = 0;
                for shares in &shares {
                    prop_assert_eq!(of(shares).start, next);
                    prop_assert!(of(shares).end >= next);
                    next = of(shares).end;
                }
                prop_assert_eq!(next, fft.pencil_count(axis));
                // Nobody has more than twice what is fair, in units.
                let fair = next.div_ceil(threads).next_multiple_of(UNIT).max(1);
                prop_assert!(shares.iter().all(|shares| axis == Axis::X || axis == Axis::Y || of(shares).len() <= 2 * fair));
            }
        }
    }
}
