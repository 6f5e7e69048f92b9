//! `numa=fake=N`: nodes where the machine has none.

use alloc::vec::Vec;

use super::{Inventory, Nodes, node};
use crate::{MAX_NODES, NodeId, PhysAddr, PhysRange, Problem, TopologyError};

/// Memory is cut at multiples of this, so that no large page lies in two nodes.
const CHUNK_BYTES: u64 = 2 << 20;

/// Splits memory and CPUs evenly, both in order: memory by counting the 2 MiB chunks of each block of RAM, so that
/// nodes meet at multiples of 2 MiB or at the edge of a hole, and are equal to within 2 MiB and what holes cut off.
/// With more nodes than CPUs, some nodes have none.
pub(super) fn split(machine: &Inventory, word: &str, count: u32) -> Result<Nodes, TopologyError> {
    let chunks: u64 = machine.ram().iter().map(chunks_of).sum();
    let most = usize::try_from(chunks).unwrap_or(usize::MAX).clamp(1, MAX_NODES);
    let count = count as usize;
    if count == 0 || count > most {
        return Err(TopologyError::in_word(word, Problem::FakeCount { most }));
    }
    let first_chunk = |number: usize| share(chunks, number, count);
    let nodes = (0..count)
        .map(|number| {
            node(
                number,
                memory_of_chunks(machine.ram(), first_chunk(number), first_chunk(number + 1)),
            )
        })
        .collect();
    let cpus = machine.apic_ids().len();
    let node_of_cpu = (0..cpus).map(|cpu| NodeId::from(cpu * count / cpus)).collect();
    Ok(Nodes { nodes, node_of_cpu })
}

/// The start of part `number` when `whole` is cut into `parts` parts.
fn share(whole: u64, number: usize, parts: usize) -> u64 {
    // At most 2⁴³ chunks times 1024 nodes.
    whole * number as u64 / parts as u64
}

/// How many chunks a block of RAM touches.
fn chunks_of(block: &PhysRange) -> u64 {
    block.end.0.div_ceil(CHUNK_BYTES) - block.start.0 / CHUNK_BYTES
}

/// The RAM in the chunks from `first` up to, not including, `end`, counted over all blocks.
fn memory_of_chunks(ram: &[PhysRange], first: u64, end: u64) -> Vec<PhysRange> {
    let mut before = 0;
    let mut memory = Vec::new();
    for block in ram {
        let chunks = chunks_of(block);
        let cut = |chunk: u64| match chunk.saturating_sub(before) {
            0 => block.start,
            inside if inside >= chunks => block.end,
            inside => PhysAddr((block.start.0 / CHUNK_BYTES + inside) * CHUNK_BYTES),
        };
        let part = PhysRange::new(cut(first), cut(end));
        if !part.is_empty() {
            memory.push(part);
        }
        before += chunks;
    }
    memory
}
