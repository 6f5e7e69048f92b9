//! Which node a CPU and a physical address belong to.

use std::ops::Range;

use serde::Deserialize;

/// A node's number: its position in the description.
pub type Node = usize;

/// What the plugin is told of the machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    nodes: Vec<DescribedNode>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DescribedNode {
    /// The numbers that QEMU gives to its CPUs.
    cpus: Vec<usize>,
    /// How many bytes of memory it has.
    memory: u64,
}

/// Where a q35 machine's memory continues after its hole.
const ABOVE_HOLE: u64 = 4 << 30;
/// From this much memory on, a q35 machine has [`LARGE_BELOW_HOLE`] below the hole.
const LARGE: u64 = 0xb000_0000;
/// What a q35 machine with much memory has below the hole; one with less has all of it there.
const LARGE_BELOW_HOLE: u64 = 2 << 30;

/// The nodes of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    nodes: usize,
    /// The node of each CPU.
    cpus: Vec<Node>,
    /// Sorted, without overlap.
    memory: Vec<(Range<u64>, Node)>,
}

impl Topology {
    /// Parses `{"nodes":[{"cpus":[0,1],"memory":1073741824},…]}`. Nodes have their memory, in bytes, in the order of address, as
    /// QEMU's `-numa` deals it out on the machine q35: below 4 GiB there is a hole.
    ///
    /// Source: `pc_q35_init` in QEMU's `hw/i386/pc_q35.c`.
    ///
    /// # Errors
    /// If the text is not of that form, or a CPU belongs to two nodes or to none.
    pub fn parse(json: &str) -> Result<Self, String> {
        let description: Description = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let nodes = description.nodes;
        let total = nodes
            .iter()
            .try_fold(0_u64, |sum, node| sum.checked_add(node.memory))
            .ok_or("the nodes have more memory than addresses reach")?;
        let mut cpus: Vec<(usize, Node)> = nodes
            .iter()
            .enumerate()
            .flat_map(|(id, node)| node.cpus.iter().map(move |&cpu| (cpu, id)))
            .collect();
        cpus.sort_unstable();
        if let Some((expected, _)) = cpus.iter().enumerate().find(|&(number, &(cpu, _))| number != cpu) {
            return Err(format!(
                "CPU {expected} or one before it does not belong to exactly one node"
            ));
        }
        Ok(Self {
            nodes: nodes.len(),
            cpus: cpus.into_iter().map(|(_, node)| node).collect(),
            memory: lay_out(nodes.iter().map(|node| node.memory), below_hole(total)),
        })
    }

    /// How many nodes there are.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// How many CPUs there are.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// The node of a CPU.
    #[must_use]
    pub fn node_of_cpu(&self, cpu: usize) -> Option<Node> {
        self.cpus.get(cpu).copied()
    }

    /// The node whose memory holds a physical address; `None` for devices and holes.
    #[must_use]
    pub fn node_of_address(&self, address: u64) -> Option<Node> {
        let next = self.memory.partition_point(|(range, _)| range.start <= address);
        let (range, node) = self.memory.get(next.checked_sub(1)?)?;
        range.contains(&address).then_some(*node)
    }

    /// The end of the highest memory.
    #[must_use]
    pub fn end_of_memory(&self) -> u64 {
        self.memory.last().map_or(0, |(range, _)| range.end)
    }
}

/// How much of `total` bytes lies below the hole.
fn below_hole(total: u64) -> u64 {
    if total < LARGE { total } else { LARGE_BELOW_HOLE }
}

/// Deals out addresses to nodes that have `sizes` bytes, the first `below_hole` from 0 on and the rest above the hole.
fn lay_out(sizes: impl Iterator<Item = u64>, below_hole: u64) -> Vec<(Range<u64>, Node)> {
    let mut ranges = Vec::new();
    let mut start = 0_u64;
    for (node, size) in sizes.enumerate() {
        let end = start + size;
        let low = start..end.min(below_hole);
        let high = start.max(below_hole)..end;
        if !low.is_empty() {
            ranges.push((low, node));
        }
        if !high.is_empty() {
            let move_up = ABOVE_HOLE - below_hole;
            ranges.push((high.start + move_up..high.end + move_up, node));
        }
        start = end;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn four_nodes(each: u64) -> Topology {
        let node = |n: usize| format!(r#"{{"cpus":[{},{}],"memory":{each}}}"#, 2 * n, 2 * n + 1);
        let nodes: Vec<String> = (0..4).map(node).collect();
        Topology::parse(&format!(r#"{{"nodes":[{}]}}"#, nodes.join(","))).unwrap()
    }

    #[test]
    fn small_machines_have_no_memory_above_the_hole() {
        let topology = four_nodes(GIB / 4);
        assert_eq!(topology.end_of_memory(), GIB);
        assert_eq!(topology.node_of_address(GIB / 4 - 1), Some(0));
        assert_eq!(topology.node_of_address(GIB / 4), Some(1));
        assert_eq!(topology.node_of_address(GIB - 1), Some(3));
        assert_eq!(topology.node_of_address(GIB), None);
    }

    /// Known from the firmware's table (SRAT) of such a machine: 2 GiB lie below the hole, the rest from 4 GiB on.
    #[test]
    fn the_third_of_four_gibibytes_lies_above_the_hole() {
        let topology = four_nodes(GIB);
        assert_eq!(topology.node_of_address(2 * GIB - 1), Some(1));
        assert_eq!(topology.node_of_address(2 * GIB), None);
        assert_eq!(topology.node_of_address(0xfee0_0000), None);
        assert_eq!(topology.node_of_address(4 * GIB), Some(2));
        assert_eq!(topology.node_of_address(5 * GIB), Some(3));
        assert_eq!(topology.end_of_memory(), 6 * GIB);
    }

    #[test]
    fn a_node_may_lie_on_both_sides_of_the_hole() {
        let topology = Topology::parse(r#"{"nodes":[{"cpus":[0],"memory":3221225472}]}"#).unwrap();
        assert_eq!(topology.node_of_address(0), Some(0));
        assert_eq!(topology.node_of_address(2 * GIB), None);
        assert_eq!(topology.node_of_address(5 * GIB - 1), Some(0));
        assert_eq!(topology.node_of_address(5 * GIB), None);
    }

    #[test]
    fn nodes_without_cpus_or_memory_are_ordinary() {
        let topology = Topology::parse(
            r#"{"nodes":[{"cpus":[1],"memory":4096},{"cpus":[0],"memory":0},{"cpus":[],"memory":4096}]}"#,
        )
        .unwrap();
        assert_eq!((topology.nodes(), topology.cpus()), (3, 2));
        assert_eq!(topology.node_of_cpu(0), Some(1));
        assert_eq!(topology.node_of_cpu(1), Some(0));
        assert_eq!(topology.node_of_cpu(2), None);
        assert_eq!(topology.node_of_address(4096), Some(2));
    }

    #[test]
    fn descriptions_that_fit_no_machine_are_refused() {
        for wrong in [
            "",
            "{}",
            r#"{"nodes":[{"cpus":[0]}]}"#,
            r#"{"nodes":[{"cpus":[1],"memory":1}]}"#,
            r#"{"nodes":[{"cpus":[0],"memory":1},{"cpus":[0],"memory":1}]}"#,
            r#"{"nodes":[{"cpus":[0],"memory":18446744073709551615},{"cpus":[1],"memory":1}]}"#,
        ] {
            assert!(Topology::parse(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn every_byte_of_every_node_has_one_address(sizes in prop::collection::vec(0..6 * GIB, 1..9)) {
            let total = sizes.iter().sum();
            let ranges = lay_out(sizes.iter().copied(), below_hole(total));
            prop_assert!(ranges.is_sorted_by(|(a, _), (b, _)| a.end <= b.start));
            for (node, &size) in sizes.iter().enumerate() {
                let dealt: u64 = ranges.iter().filter(|(_, n)| *n == node).map(|(r, _)| r.end - r.start).sum();
                prop_assert_eq!(dealt, size);
            }
            let hole = below_hole(total)..ABOVE_HOLE;
            let in_hole = |range: &Range<u64>| range.start.max(hole.start) < range.end.min(hole.end);
            prop_assert!(ranges.iter().all(|(range, _)| !in_hole(range)));
        }
    }
}
