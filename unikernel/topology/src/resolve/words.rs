//! The command line's nodes and overlays, held against the machine.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::{Inventory, Nodes, node};
use crate::text::{CpuOption, MemoryOption, NodeWord, RangeOption, Request};
use crate::{CpuId, Node, NodeId, PhysAddr, PhysRange, Problem, Source, Topology, TopologyError, ranges};

/// Gives every CPU and all RAM to the nodes that the words name.
pub(super) fn assign(machine: &Inventory, words: &[NodeWord<'_>]) -> Result<Nodes, TopologyError> {
    let node_of_cpu = assign_cpus(machine, words)?;
    let memory = assign_memory(machine, words)?;
    let nodes = memory
        .into_iter()
        .enumerate()
        .map(|(number, memory)| node(number, memory))
        .collect();
    Ok(Nodes { nodes, node_of_cpu })
}

/// What is missing in all nodes together is reported with this instead of one word.
const ALL_NODES: &str = "numa=node";

fn assign_cpus(machine: &Inventory, words: &[NodeWord<'_>]) -> Result<Vec<NodeId>, TopologyError> {
    let cpus = machine.apic_ids().len();
    let mut nodes: Vec<Option<NodeId>> = alloc::vec![None; cpus];
    for word in words {
        for CpuOption { token, first, last } in &word.cpus {
            let wrong = |problem| TopologyError::in_token(word.word, token, problem);
            let range = *first as usize..=*last as usize;
            let named = nodes
                .get_mut(range.clone())
                .ok_or_else(|| wrong(Problem::NoSuchCpu { cpus }))?;
            for (cpu, slot) in range.zip(named) {
                if let Some(node) = slot.replace(word.id) {
                    return Err(wrong(Problem::CpuTwice {
                        cpu: CpuId::from(cpu),
                        node,
                    }));
                }
            }
        }
    }
    let without: Vec<CpuId> = nodes
        .iter()
        .enumerate()
        .filter(|(_, node)| node.is_none())
        .map(|(cpu, _)| CpuId::from(cpu))
        .collect();
    if !without.is_empty() {
        return Err(TopologyError::in_word(
            ALL_NODES,
            Problem::CpusWithoutNode { cpus: without },
        ));
    }
    Ok(nodes.into_iter().flatten().collect())
}

/// Each node's memory: first the ranges, then the sizes, in order of node, from the lowest RAM that is left.
fn assign_memory(machine: &Inventory, words: &[NodeWord<'_>]) -> Result<Vec<Vec<PhysRange>>, TopologyError> {
    let mut free = machine.ram().to_vec();
    let mut memory: Vec<Vec<PhysRange>> = alloc::vec![Vec::new(); words.len()];
    for word in words {
        let MemoryOption::Ranges(options) = &word.memory else {
            continue;
        };
        for RangeOption { token, range } in options {
            let wrong = |problem| TopologyError::in_token(word.word, token, problem);
            let last = PhysAddr(range.end.0 - 1);
            if !ranges::contains(machine.ram(), range.start) || !ranges::contains(machine.ram(), last) {
                return Err(wrong(Problem::NotRam {
                    ram: machine.ram().to_vec(),
                }));
            }
            let before = memory.iter().enumerate().find_map(|(number, taken)| {
                let range = taken.iter().find_map(|taken| taken.intersection(range))?;
                Some(Problem::MemoryTwice {
                    range,
                    node: NodeId::from(number),
                })
            });
            if let Some(problem) = before {
                return Err(wrong(problem));
            }
            memory[word.id.index()].extend(ranges::within(&free, range));
            free = ranges::without(&free, range);
        }
    }
    for word in words {
        let MemoryOption::Size { token, bytes } = &word.memory else {
            continue;
        };
        let left = ranges::bytes(&free);
        if *bytes > left {
            let problem = Problem::TooMuchMemory {
                machine: machine.ram_bytes(),
                left,
            };
            return Err(TopologyError::in_token(word.word, token, problem));
        }
        memory[word.id.index()] = ranges::take_lowest(&mut free, *bytes);
    }
    if !free.is_empty() {
        return Err(TopologyError::in_word(
            ALL_NODES,
            Problem::MemoryWithoutNode { ranges: free },
        ));
    }
    Ok(memory.into_iter().map(ranges::union).collect())
}

/// Sets the distances and attributes that the words name.
pub(super) fn overlay(topology: &mut Topology, request: &Request<'_>) -> Result<(), TopologyError> {
    let nodes = topology.nodes().len();
    let check = |word: &str, options: [(&str, NodeId); 2]| match options
        .into_iter()
        .find(|(_, node)| node.index() >= nodes)
    {
        Some((token, _)) => Err(TopologyError::in_token(
            word,
            token,
            Problem::NoSuchNode { nodes },
        )),
        None => Ok(()),
    };
    let given: BTreeSet<(NodeId, NodeId)> = request
        .distances
        .iter()
        .map(|word| (word.src.node, word.dst.node))
        .collect();
    for word in &request.distances {
        let (src, dst) = (word.src.node, word.dst.node);
        check(word.word, [(word.src.token, src), (word.dst.token, dst)])?;
        topology.set_distance(src, dst, word.distance);
        if !given.contains(&(dst, src)) {
            topology.set_distance(dst, src, word.distance);
        }
    }
    for word in &request.accesses {
        let (src, dst) = (word.src.node, word.dst.node);
        check(word.word, [(word.src.token, src), (word.dst.token, dst)])?;
        if !topology.nodes().get(src.index()).is_some_and(Node::has_cpus) {
            let problem = Problem::InitiatorWithoutCpus { node: src };
            return Err(TopologyError::in_token(word.word, word.src.token, problem));
        }
        topology.set_access(src, dst, word.attributes);
    }
    if topology.source() != Source::CommandLine {
        let distances = request.distances.iter().map(|word| word.word);
        let accesses = request.accesses.iter().map(|word| word.word);
        distances
            .chain(accesses)
            .for_each(|word| topology.add_overlay(word));
    }
    Ok(())
}
