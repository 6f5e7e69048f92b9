//! Runs the memory manager on a simulated machine: `cargo run --release -p simulation -- --help`.

use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use homenode_mm::LockScheme;
use simulation::Config;

/// Runs the memory manager on a simulated machine whose cores take turns by chance, and checks it against a simple model. The same
/// arguments give the same run. Exit status: 0 if nothing was wrong, 1 otherwise.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Where chance begins
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many runs to do, each with the next seed
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// How many operations a run consists of
    #[arg(long, default_value_t = 100_000)]
    steps: u64,
    /// The number of cores
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    cores: u32,
    /// The number of nodes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    nodes: u32,
    /// Each node's memory, at least 16M
    #[arg(long, default_value = "32M", value_parser = memory, value_name = "SIZE")]
    node_memory: u64,
    /// How page-table pages are locked
    #[arg(long, value_enum, default_value_t)]
    locks: Locks,
    /// Let nothing that is given back wait for cores' safe points
    #[arg(long)]
    eager: bool,
    /// How many operations there are between two checks of all state, after each of which another kind of program runs
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    audit_every: u64,
    /// Print what all cores do
    #[arg(long)]
    trace: bool,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum Locks {
    /// Each by a lock of its own
    #[default]
    Split,
    /// All by one lock
    Coarse,
}

/// A size in bytes that is enough for a node.
fn memory(text: &str) -> Result<u64, String> {
    let bytes = parse_size::Config::new()
        .with_binary()
        .parse_size(text)
        .map_err(|error| format!("{error}: a size is written as 32M or 2G"))?;
    match bytes {
        ..0x100_0000 => Err("a node needs at least 16M".into()),
        0x100_0000..=0x100_0000_0000 => Ok(bytes & !0xfff),
        _ => Err("a node has at most 1024G".into()),
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    for run in 0..options.runs {
        let config = Config {
            seed: options.seed.wrapping_add(run),
            steps: options.steps,
            cores: options.cores as usize,
            nodes: options.nodes as usize,
            node_bytes: options.node_memory,
            locks: match options.locks {
                Locks::Split => LockScheme::Split,
                Locks::Coarse => LockScheme::Coarse,
            },
            lazy: !options.eager,
            audit_every: options.audit_every,
            trace: options.trace,
        };
        let began = Instant::now();
        match simulation::run(&config) {
            Ok(summary) => {
                let seconds = began.elapsed().as_secs_f64();
                println!("seed {}, {seconds:.1} s: {summary}", config.seed);
            }
            Err(failure) => {
                eprintln!("{failure}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
