//! The CPUs and nodes that Linux lets this process use, as a topology.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::str::FromStr;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use homenode_topology::{
    ApicId, CpuId, Inventory, NodeId, PAGE_BYTES, PhysAddr, PhysRange, Topology, resolve,
};

/// Where Linux describes nodes (its `Documentation/ABI/stable/sysfs-devices-node`).
const NODE_DIRECTORY: &str = "/sys/devices/system/node";

/// The topology, and Linux's numbers for what is in it.
struct Host {
    topology: Topology,
    cpus: Vec<CpuId>,
    /// By our number.
    os_cpus: Vec<usize>,
    /// By our number.
    os_nodes: Vec<usize>,
}

/// Read once, before the first thread is pinned.
static HOST: LazyLock<Host> = LazyLock::new(Host::read);

pub(crate) fn topology() -> &'static Topology {
    &HOST.topology
}

pub(crate) fn cpus() -> &'static [CpuId] {
    &HOST.cpus
}

/// Linux's number of a CPU.
pub(super) fn os_cpu(cpu: CpuId) -> usize {
    HOST.os_cpus[cpu.index()]
}

/// The CPU with this number of Linux's.
pub(super) fn cpu_of_os(number: usize) -> Option<CpuId> {
    HOST.os_cpus
        .iter()
        .position(|&cpu| cpu == number)
        .map(CpuId::from)
}

/// Linux's number of a node.
pub(super) fn os_node(node: NodeId) -> Option<usize> {
    HOST.os_nodes.get(node.index()).copied()
}

/// The node with this number of Linux's.
pub(super) fn node_of_os(number: usize) -> Option<NodeId> {
    HOST.os_nodes
        .iter()
        .position(|&node| node == number)
        .map(NodeId::from)
}

/// One of Linux's nodes.
struct OsNode {
    number: usize,
    /// Linux's numbers of those CPUs that this process may use.
    cpus: Vec<usize>,
    bytes: u64,
    /// To all nodes, in their order.
    distances: Vec<u8>,
}

impl Host {
    fn read() -> Self {
        let os_cpus = allowed_cpus();
        let nodes = read_nodes(&os_cpus);
        let several = nodes.as_deref().and_then(|nodes| topology_of(&os_cpus, nodes));
        let os_nodes = match (&several, &nodes) {
            (Some(_), Some(nodes)) => nodes.iter().map(|node| node.number).collect(),
            _ => alloc::vec![0],
        };
        let topology = several.unwrap_or_else(|| {
            let machine = inventory(&os_cpus, memory_bytes());
            resolve(&machine, None, [])
                .expect("a machine with one node is a topology")
                .0
        });
        let cpus = topology.cpus().iter().map(|cpu| cpu.id).collect();
        Self {
            topology,
            cpus,
            os_cpus,
            os_nodes,
        }
    }
}

/// Linux's numbers of the CPUs that this process may use, in order.
fn allowed_cpus() -> Vec<usize> {
    // SAFETY: a set of CPUs is a plain array of bits, for which zero is a value, and Linux fills as much as it is told.
    let set = unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &raw mut set);
        set
    };
    let all = 0..libc::CPU_SETSIZE.cast_unsigned() as usize;
    // SAFETY: the numbers are below the size of a set.
    let cpus: Vec<usize> = all.filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect();
    if cpus.is_empty() { alloc::vec![0] } else { cpus }
}

/// The machine's RAM in bytes.
fn memory_bytes() -> u64 {
    // SAFETY: the call reads a number.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(pages).unwrap_or(0).max(1) * PAGE_BYTES
}

/// Linux's nodes with CPUs of this process or with memory, or `None` if it does not describe them.
fn read_nodes(allowed: &[usize]) -> Option<Vec<OsNode>> {
    let directory = Path::new(NODE_DIRECTORY);
    let numbers = parse_list(&fs::read_to_string(directory.join("online")).ok()?)?;
    let mut nodes = Vec::new();
    for number in numbers {
        let node = directory.join(format!("node{number}"));
        let mut cpus = parse_list(&fs::read_to_string(node.join("cpulist")).ok()?)?;
        cpus.retain(|cpu| allowed.contains(cpu));
        let bytes = parse_total(&fs::read_to_string(node.join("meminfo")).ok()?)?;
        let distances = fs::read_to_string(node.join("distance")).ok()?;
        let distances = distances
            .split_ascii_whitespace()
            .map(u8::from_str)
            .collect::<Result<_, _>>()
            .ok()?;
        nodes.push(OsNode {
            number,
            cpus,
            bytes,
            distances,
        });
    }
    // A node that is left out takes its column of distances with it.
    let kept: Vec<bool> = nodes
        .iter()
        .map(|node| !node.cpus.is_empty() || node.bytes > 0)
        .collect();
    for node in &mut nodes {
        let mut column = kept.iter();
        node.distances.retain(|_| column.next().copied().unwrap_or(false));
    }
    nodes.retain(|node| !node.cpus.is_empty() || node.bytes > 0);
    Some(nodes)
}

/// The topology with these nodes, or `None` if they are none (a CPU that is on no node, for example).
fn topology_of(os_cpus: &[usize], nodes: &[OsNode]) -> Option<Topology> {
    let machine = inventory(os_cpus, nodes.iter().map(|node| node.bytes).sum());
    // In the words that describe a topology on the kernel's command line.
    let mut words = Vec::new();
    for (id, node) in nodes.iter().enumerate() {
        let mut word = format!("numa=node,nodeid={id}");
        for cpu in &node.cpus {
            let id = os_cpus.iter().position(|allowed| allowed == cpu)?;
            word += &format!(",cpus={id}");
        }
        if node.bytes > 0 {
            word += &format!(",mem={:#x}", node.bytes);
        }
        words.push(word);
        let others = node
            .distances
            .iter()
            .enumerate()
            .filter(|&(other, _)| other != id);
        words
            .extend(others.map(|(other, distance)| format!("numa=dist,src={id},dst={other},val={distance}")));
    }
    let (topology, _) = resolve(&machine, None, words.iter().map(String::as_str)).ok()?;
    Some(topology)
}

/// CPUs with Linux's numbers for APIC ids, and RAM in one piece from address 0 on: Linux shows neither to a process.
fn inventory(os_cpus: &[usize], memory_bytes: u64) -> Inventory {
    let apic_ids = os_cpus.iter().map(|&cpu| ApicId::from(cpu)).collect();
    Inventory::new(
        apic_ids,
        alloc::vec![PhysRange::new(PhysAddr(0), PhysAddr(memory_bytes))],
    )
}

/// The numbers in a list such as `0-3,8`, which may be empty.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(numbers)
}

/// The bytes in the line `Node 0 MemTotal: 4023740 kB`.
fn parse_total(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("MemTotal:"))?;
    let kibibytes: u64 = line.split_ascii_whitespace().rev().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: usize, cpus: &[usize], bytes: u64, distances: &[u8]) -> OsNode {
        OsNode {
            number,
            cpus: cpus.into(),
            bytes,
            distances: distances.into(),
        }
    }

    #[test]
    fn lists_are_read_as_linux_writes_them() {
        assert_eq!(parse_list("0-3,8\n"), Some(alloc::vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("\n"), Some(Vec::new()));
        assert_eq!(parse_list("0-"), None);
        assert_eq!(
            parse_total("Node 1 MemTotal:    4 kB\nNode 1 MemFree: 2 kB\n"),
            Some(4096)
        );
    }

    #[test]
    fn nodes_of_any_number_become_dense() {
        let nodes = [
            node(0, &[2, 5], 8 << 20, &[10, 21, 31]),
            node(3, &[], 4 << 20, &[21, 10, 41]),
            node(7, &[9], 0, &[31, 41, 10]),
        ];
        let topology = topology_of(&[2, 5, 9], &nodes).expect("the nodes are a topology");
        let cpus: Vec<NodeId> = topology.cpus().iter().map(|cpu| cpu.node).collect();
        assert_eq!(cpus, [NodeId(0), NodeId(0), NodeId(2)]);
        assert_eq!(topology.nodes()[1].memory_bytes(), 4 << 20);
        assert_eq!(topology.distance(NodeId(1), NodeId(2)), 41);
        assert_eq!(topology.distance(NodeId(0), NodeId(1)), 21);
    }

    #[test]
    fn nodes_that_contradict_each_other_are_none() {
        assert!(topology_of(&[0, 1], &[node(0, &[0], 1 << 20, &[10])]).is_none());
        assert!(topology_of(&[0], &[node(0, &[0], 1 << 20, &[10, 20])]).is_none());
    }

    #[test]
    fn this_machine_is_described() {
        assert_eq!(cpus().len(), topology().cpus().len());
        assert_eq!(HOST.os_nodes.len(), topology().nodes().len());
        assert!(cpus().iter().all(|&cpu| cpu_of_os(os_cpu(cpu)) == Some(cpu)));
        assert!(topology().memory().iter().any(|(range, _)| !range.is_empty()));
    }
}
