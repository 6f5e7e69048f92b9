//! A simulated machine that runs the memory manager on many cores and checks it against a simple model.
//!
//! [`run`] builds a machine of some cores and nodes, starts the memory manager of `homenode-mm` on it, unchanged, and lets all
//! cores do what a program may do: reserve, touch, populate, protect, discard, move and release memory. One thread of the
//! host runs it all, and which core runs when is chosen by chance between any two accesses of the memory manager to what CPUs
//! share, so that a run can be repeated exactly by its seed.
//!
//! The machine is stricter than an emulator. Each core has translation lookaside buffers and paging-structure caches that it fills
//! speculatively, whatever it is doing, and from which it evicts by chance. Interrupts between cores take their time. The
//! machine knows of each frame whether it is free, and notices every access, of a program, of a CPU's walk or of the memory
//! manager itself, to a frame that is not what it was. So a flush that is missing, or comes too early or too late, is
//! noticed at the first access that it lets through, whatever the access would have led to.
//!
//! What is checked:
//! - each access of a program: its value, what its page's protection allows, its node where the policy leaves no choice;
//! - that no frame is freed which a core's caches still name, and none copied from which can still be written to;
//! - each error: an address that is said not to be reserved is not, and memory that has run out has;
//! - from time to time, with all cores at rest: that all caches agree with the page table, the page table with the model, the
//!   counters with the page table, and that pages, tables and free frames are all frames that there are;
//! - at the end, all being released, that all frames are free again.

mod audit;
mod hardware;
mod model;
mod profile;
mod program;
mod random;
mod report;
mod scheduler;

use std::cell::{Cell, RefCell};

use homenode_mm::{
    AddressSpace, FrameAllocator, LockScheme, NodeMemory, Purpose, Retirement, SafePoint, Size4KiB,
    TlbEngine, VirtAddr, VirtRange,
};
use homenode_mm::{Machine, Policy};
use homenode_topology::NodeId;

use crate::hardware::Hardware;
use crate::hardware::memory::Owner;
use crate::model::Model;
use crate::profile::Profile;
use crate::program::{PROGRAM_BYTES, PROGRAM_START, Phase, Program};
use crate::report::Log;

pub use crate::hardware::Counts;
pub use crate::report::{Failure, Summary};

/// What is to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where chance begins.
    pub seed: u64,
    /// The number of operations.
    pub steps: u64,
    /// The number of cores, spread evenly over the nodes.
    pub cores: usize,
    /// The number of nodes, each with memory.
    pub nodes: usize,
    /// Each node's memory in bytes, a multiple of 4 KiB.
    pub node_bytes: u64,
    /// How page-table pages are locked.
    pub locks: LockScheme,
    /// Whether what is given back may wait for cores' safe points.
    pub lazy: bool,
    /// How many operations there are between two checks of all state.
    pub audit_every: u64,
    /// Print what all cores do.
    pub trace: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 1,
            steps: 100_000,
            cores: 4,
            nodes: 4,
            node_bytes: 32 << 20,
            locks: LockScheme::Split,
            lazy: true,
            audit_every: 2000,
            trace: false,
        }
    }
}

impl Config {
    /// The command that runs this.
    #[must_use]
    pub fn command(&self) -> String {
        let Self {
            seed,
            steps,
            cores,
            nodes,
            node_bytes,
            locks,
            lazy,
            audit_every,
            trace: _,
        } = self;
        format!(
            "cargo run --release -p simulation -- --seed {seed} --steps {steps} --cores {cores} --nodes {nodes} --node-memory {}K \
             --locks {locks}{} --audit-every {audit_every}",
            node_bytes >> 10,
            if *lazy { "" } else { " --eager" }
        )
    }
}

/// Runs it.
///
/// # Errors
/// If something happened that must not.
///
/// # Panics
/// If there are no cores or nodes, or too little memory for the frame allocator to begin with.
pub fn run(config: &Config) -> Result<Summary, Box<Failure>> {
    let hardware = &Hardware::new(config.seed, config.cores, config.nodes, config.node_bytes);
    let cpus: Vec<NodeId> = (0..config.cores)
        .map(|core| hardware.node_of_core(core))
        .collect();
    let range_max_pages = hardware.random.pick(&[0, 1, 4, TlbEngine::RANGE_MAX_PAGES, 512]);
    let tlb = &TlbEngine::new(&cpus, range_max_pages);
    let handler = || {
        tlb.catch_up(hardware, SafePoint::Interrupt);
    };
    hardware.enter(&handler, || run_on(hardware, tlb, config))
}

fn run_on(hardware: &Hardware, tlb: &TlbEngine, config: &Config) -> Result<Summary, Box<Failure>> {
    let cpus: Vec<NodeId> = (0..config.cores)
        .map(|core| hardware.node_of_core(core))
        .collect();
    let memory = |node: usize| NodeMemory {
        usable: hardware.memory.nodes()[node].clone(),
        fallback: (1..config.nodes)
            .map(|step| NodeId::from((node + step) % config.nodes))
            .collect(),
    };
    // SAFETY: the memory of the machine, which nothing else uses.
    let frames = unsafe { FrameAllocator::new(hardware, (0..config.nodes).map(memory).collect(), &cpus) };
    let frames = &frames.expect("the simulated nodes can be right");
    hardware.memory.finish_building();
    let root = frames
        .allocate::<Size4KiB>(Policy::Local, NodeId(0), 0, Purpose::Kernel)
        .expect("there is memory for the root")
        .memory;
    // SAFETY: the frame has just been handed out.
    unsafe { hardware.zero(root.range()) };
    hardware.set_root(root.start());
    let whole = VirtRange::new(VirtAddr::new_truncated(PROGRAM_START), PROGRAM_BYTES);
    let whole = whole.expect("the addresses are canonical");
    let retirement = Retirement {
        lazy: config.lazy,
        deadline_ns: hardware.random.pick(&[10_000, 200_000, 5_000_000]),
        pending_max_bytes: vec![
            hardware
                .random
                .pick(&[0, 64 << 10, 1 << 20, config.node_bytes / 2]);
            config.nodes
        ],
    };
    // SAFETY: the root is an empty page table that nobody else writes to.
    let space = &unsafe { AddressSpace::new(root, whole, frames, tlb, config.locks, &retirement) };
    let program = Program {
        hardware,
        frames,
        tlb,
        space,
        model: Model::default(),
        profile: Cell::new(Profile::choose(&hardware.random)),
        phase: Cell::new(Phase::Run),
        rest: Cell::new(0),
        resting: Cell::new(0),
        arrived: Cell::new(0),
        is_last_rest: Cell::new(false),
        began: vec![Cell::new(0); config.cores],
        log: RefCell::new(Log::new(config.trace)),
        done: Cell::new(0),
        kinds: std::array::from_fn(|_| Cell::new(0)),
        out_of_memory: Cell::new(0),
        refused: Cell::new(0),
    };
    let fail = |what: String| {
        let log = program.log.borrow();
        Box::new(Failure::new(
            config,
            program.done.get(),
            hardware.points(),
            hardware.current(),
            what,
            &log,
        ))
    };
    let audits = scheduler::run(&program, config).map_err(fail)?;
    match hardware.memory.count(Owner::Allocated) {
        // The root.
        1 => {}
        more => return Err(fail(format!("all is released, but {more} frames are not free"))),
    }
    let kinds = program.kinds.iter().map(Cell::get);
    Ok(Summary {
        config: config.clone(),
        operations: report::KINDS.into_iter().zip(kinds).collect(),
        out_of_memory: program.out_of_memory.get(),
        refused: program.refused.get(),
        audits,
        points: hardware.points(),
        counts: hardware.counts(),
    })
}
