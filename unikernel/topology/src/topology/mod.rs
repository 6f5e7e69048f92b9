//! The machine as the rest of the kernel sees it: nodes, CPUs, memory, distances.

mod json;
mod show;

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::Serialize;

use crate::{ApicId, Bandwidth, CpuId, Inventory, Latency, NodeId, PhysAddr, PhysRange, ranges};

pub(crate) use show::RangeList;

/// A node's distance to itself (ACPI specification 6.5, 5.2.17).
pub const LOCAL_DISTANCE: u8 = 10;

/// The distance between two nodes of which nothing is known, as in Linux.
pub const DEFAULT_REMOTE_DISTANCE: u8 = 20;

/// The most nodes that a topology can have; the distances are a square of them.
pub const MAX_NODES: usize = 1024;

/// Where the nodes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Source {
    /// The command line: `numa=off`, `numa=fake` or `numa=node`.
    #[serde(rename = "command line")]
    CommandLine,
    /// The firmware's SRAT.
    #[serde(rename = "acpi")]
    Acpi,
    /// Nobody said anything: one node.
    #[serde(rename = "none")]
    None,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CommandLine => "command line",
            Self::Acpi => "acpi",
            Self::None => "none",
        })
    }
}

/// A NUMA node. It has CPUs or memory or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub(crate) id: NodeId,
    pub(crate) memory: Vec<PhysRange>,
    pub(crate) cpus: Vec<CpuId>,
    pub(crate) proximity_domain: Option<u32>,
}

impl Node {
    /// The node's number.
    #[must_use]
    pub const fn id(&self) -> NodeId {
        self.id
    }

    /// The node's RAM, in order of address, page-aligned; empty for a memory-less node.
    #[must_use]
    pub fn memory(&self) -> &[PhysRange] {
        &self.memory
    }

    /// How much RAM the node has, in bytes, including what the firmware keeps of it.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        ranges::bytes(&self.memory)
    }

    /// The node's CPUs, in order of number; empty for a CPU-less node.
    #[must_use]
    pub fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }

    /// Whether the node has a CPU.
    #[must_use]
    pub fn has_cpus(&self) -> bool {
        !self.cpus.is_empty()
    }

    /// Whether the node has RAM.
    #[must_use]
    pub fn has_memory(&self) -> bool {
        !self.memory.is_empty()
    }

    /// The firmware's number for this node, if the node comes from the firmware.
    #[must_use]
    pub const fn proximity_domain(&self) -> Option<u32> {
        self.proximity_domain
    }
}

/// A CPU and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// The CPU's number, in MADT order.
    pub id: CpuId,
    /// The number by which interrupts reach it.
    pub apic_id: ApicId,
    /// Its node.
    pub node: NodeId,
}

/// What is known about accesses from the CPUs of one node to the memory of another (ACPI's HMAT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessAttributes {
    /// The time of one access.
    pub latency: Option<Latency>,
    /// The highest rate.
    pub bandwidth: Option<Bandwidth>,
}

/// The nodes, CPUs, memory ranges and distances of a machine. Made by [`resolve`](crate::resolve).
///
/// Every CPU and every byte of RAM belongs to exactly one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<Node>,
    cpus: Vec<Cpu>,
    /// Every node's memory, in order of address.
    memory: Vec<(PhysRange, NodeId)>,
    /// Row by row; `distances[from * nodes + to]`.
    distances: Vec<u8>,
    accesses: BTreeMap<(NodeId, NodeId), AccessAttributes>,
    source: Source,
    overlays: Vec<String>,
}

impl Topology {
    /// A topology with default distances. `node_of_cpu` names each CPU's node, `nodes` hold memory ranges that
    /// together are the machine's RAM; the nodes' lists of CPUs are filled in here.
    pub(crate) fn new(
        machine: &Inventory,
        source: Source,
        mut nodes: Vec<Node>,
        node_of_cpu: &[NodeId],
    ) -> Self {
        let mut cpus = Vec::with_capacity(node_of_cpu.len());
        for (number, (&apic_id, &node)) in machine.apic_ids().iter().zip(node_of_cpu).enumerate() {
            let id = CpuId::from(number);
            cpus.push(Cpu { id, apic_id, node });
            nodes[node.index()].cpus.push(id);
        }
        let mut memory: Vec<(PhysRange, NodeId)> = nodes
            .iter()
            .flat_map(|node| node.memory.iter().map(|range| (*range, node.id)))
            .collect();
        memory.sort_unstable();
        let count = nodes.len();
        let mut distances = alloc::vec![DEFAULT_REMOTE_DISTANCE; count * count];
        for node in 0..count {
            distances[node * count + node] = LOCAL_DISTANCE;
        }
        Self {
            nodes,
            cpus,
            memory,
            distances,
            accesses: BTreeMap::new(),
            source,
            overlays: Vec::new(),
        }
    }

    /// All nodes, in order of number: `nodes()[n.index()]` is node `n`.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// All CPUs, in order of number: `cpus()[c.index()]` is CPU `c`.
    #[must_use]
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// The node of a CPU.
    ///
    /// # Panics
    /// If there is no such CPU.
    #[must_use]
    pub fn node_of_cpu(&self, cpu: CpuId) -> NodeId {
        self.cpus[cpu.index()].node
    }

    /// The node whose RAM is at `address`, or `None` if there is no RAM.
    #[must_use]
    pub fn node_of_address(&self, address: PhysAddr) -> Option<NodeId> {
        let behind = self.memory.partition_point(|(range, _)| range.start <= address);
        let (range, node) = self.memory.get(behind.checked_sub(1)?)?;
        range.contains(address).then_some(*node)
    }

    /// All RAM in order of address, each range with its node. Ranges of different nodes may touch.
    #[must_use]
    pub fn memory(&self) -> &[(PhysRange, NodeId)] {
        &self.memory
    }

    /// The CPUs of a node, in order of number.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn cpus_of(&self, node: NodeId) -> &[CpuId] {
        self.nodes[node.index()].cpus()
    }

    /// The distance from one node to another, in ACPI's unit: 10 is local, 20 is twice as far, 255 is out of reach.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn distance(&self, from: NodeId, to: NodeId) -> u8 {
        self.distances[self.pair(from, to)]
    }

    /// All nodes, the nearest to `from` first: `from` itself, then by distance, then by number.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn nodes_by_distance(&self, from: NodeId) -> Vec<NodeId> {
        let mut order: Vec<NodeId> = self.nodes.iter().map(Node::id).collect();
        order.sort_by_key(|&to| (to != from, self.distance(from, to), to));
        order
    }

    /// What is known about accesses from the CPUs of `from` to the memory of `to`; nothing, if no one said.
    #[must_use]
    pub fn access(&self, from: NodeId, to: NodeId) -> AccessAttributes {
        self.accesses.get(&(from, to)).copied().unwrap_or_default()
    }

    /// Where the nodes come from.
    #[must_use]
    pub const fn source(&self) -> Source {
        self.source
    }

    /// The command line's words that changed distances or access attributes of nodes from elsewhere.
    #[must_use]
    pub fn overlays(&self) -> &[String] {
        &self.overlays
    }

    pub(crate) fn set_distance(&mut self, from: NodeId, to: NodeId, distance: u8) {
        let pair = self.pair(from, to);
        self.distances[pair] = distance;
    }

    /// Sets what `attributes` says and keeps the rest.
    pub(crate) fn set_access(&mut self, from: NodeId, to: NodeId, attributes: AccessAttributes) {
        let known = self.accesses.entry((from, to)).or_default();
        known.latency = attributes.latency.or(known.latency);
        known.bandwidth = attributes.bandwidth.or(known.bandwidth);
    }

    pub(crate) fn add_overlay(&mut self, word: &str) {
        self.overlays.push(word.into());
    }

    fn pair(&self, from: NodeId, to: NodeId) -> usize {
        let count = self.nodes.len();
        assert!(
            from.index() < count && to.index() < count,
            "no node {from} or {to}: there are {count}"
        );
        from.index() * count + to.index()
    }

    fn distance_rows(&self) -> impl Iterator<Item = &[u8]> {
        self.distances.chunks(self.nodes.len())
    }
}
