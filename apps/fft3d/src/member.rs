//! What a worker does together with the others.

use homenode::metrics::counter;
use homenode::time::Instant;

use crate::complex::Complex;
use crate::fft::{Axis, Direction, Fft3, Workspace};
use crate::grid::SharedGrid;
use crate::report::{AxisSeconds, Stage, StageTimes};
use crate::team::{Shares, Worker};

/// A worker with its share of the grid and its memory. Its functions are collective: all workers of the team call the same ones in
/// the same order.
pub(crate) struct Member<'a> {
    worker: Worker<'a>,
    fft: &'a Fft3,
    /// What this worker transforms.
    pub(crate) shares: Shares,
    workspace: Workspace,
    figures: Figures,
}

/// What a worker has measured.
#[derive(Default)]
pub(crate) struct Figures {
    /// Stages, if it was the leader.
    pub(crate) stages: StageTimes,
    /// Its own time in the passes.
    pub(crate) axes: AxisSeconds,
    /// Transforms of the whole grid.
    pub(crate) transforms: u64,
}

impl<'a> Member<'a> {
    /// `worker` as a member of a team that uses `fft`.
    pub(crate) fn new(worker: Worker<'a>, fft: &'a Fft3) -> Self {
        let shares = Shares::new(&worker, fft);
        Self {
            worker,
            fft,
            shares,
            workspace: fft.workspace(),
            figures: Figures::default(),
        }
    }

    /// Ends the membership.
    pub(crate) fn into_figures(self) -> Figures {
        self.figures
    }

    /// Whether this member speaks for the team.
    pub(crate) fn is_leader(&self) -> bool {
        self.worker.is_leader()
    }

    /// Does `work` as a round of `stage` that all workers begin and end together.
    pub(crate) fn stage<const NUMBER: u8, T>(
        &mut self,
        stage: Stage<NUMBER>,
        operations: usize,
        work: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.worker.meet();
        let start = Instant::now();
        if self.is_leader() {
            stage.marker().begin();
        }
        self.worker.meet();
        let result = work(self);
        self.worker.meet();
        if self.is_leader() {
            stage.marker().end();
            self.figures.stages.add(stage, start.elapsed(), operations as u64);
        }
        result
    }

    /// This worker's slab of the grid, to change.
    ///
    /// # Safety
    /// While the result lives, all workers access slabs of their own only.
    #[expect(clippy::mut_from_ref, reason = "the caller keeps the slabs apart")]
    pub(crate) unsafe fn slab_mut<'g>(&self, grid: &'g SharedGrid<'_>) -> &'g mut [Complex] {
        // SAFETY: slabs do not overlap, and nobody accesses anything else.
        unsafe { grid.points_mut(self.shares.points(self.fft)) }
    }

    /// This worker's slab of the grid, to read.
    ///
    /// # Safety
    /// While the result lives, nobody changes this slab.
    pub(crate) unsafe fn slab<'g>(&self, grid: &'g SharedGrid<'_>) -> &'g [Complex] {
        // SAFETY: as the caller promises.
        unsafe { grid.points(self.shares.points(self.fft)) }
    }

    /// Transforms the grid, together with the other workers.
    ///
    /// # Safety
    /// All workers call this with the same grid, having met after other accesses to it, and meet before the next ones.
    pub(crate) unsafe fn transform(&mut self, grid: &SharedGrid<'_>, direction: Direction) {
        let mut seconds = AxisSeconds::default();
        // SAFETY: until they meet, workers transform pencils of their own along one axis only: a plane has one owner.
        let mut pass = |axis, range| unsafe {
            let start = Instant::now();
            self.fft
                .pencils(axis, range, direction, grid, &mut self.workspace);
            start.elapsed().as_secs_f64()
        };
        if let Some(planes) = self.shares.planes.clone() {
            // Both axes of a plane while it is in the cache.
            let size = self.fft.size();
            for plane in planes {
                seconds.x += pass(Axis::X, plane * size.y..(plane + 1) * size.y);
                seconds.y += pass(Axis::Y, plane * size.x..(plane + 1) * size.x);
            }
        } else {
            seconds.x += pass(Axis::X, self.shares.x.clone());
            self.worker.meet();
            seconds.y += pass(Axis::Y, self.shares.y.clone());
        }
        let start = Instant::now();
        self.worker.meet();
        pass(Axis::Z, self.shares.z.clone());
        self.worker.meet();
        seconds.z += start.elapsed().as_secs_f64();
        self.figures.axes += seconds;
        self.figures.transforms += 1;
        counter!("fft3d_pencils_total", "Pencils transformed, along all axes.")
            .add((self.shares.x.len() + self.shares.y.len() + self.shares.z.len()) as u64);
        if self.is_leader() {
            counter!("fft3d_transforms_total", "Transforms of a whole grid.").add(1);
        }
    }
}
