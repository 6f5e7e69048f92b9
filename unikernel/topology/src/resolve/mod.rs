//! One topology out of the command line, the firmware's tables and the machine.

mod fake;
mod firmware;
mod notice;
mod words;

use alloc::vec::Vec;

use crate::text::{Layout, Request};
use crate::{ApicId, Node, NodeId, PhysRange, Source, Topology, TopologyError, ranges};

pub use firmware::Firmware;
pub use notice::Notice;

/// What the machine has: the CPUs and RAM that a topology distributes over nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    apic_ids: Vec<ApicId>,
    ram: Vec<PhysRange>,
}

impl Inventory {
    /// A machine with these CPUs, in the order of their numbers ([`Madt::enabled`](crate::acpi::Madt::enabled), or
    /// the one CPU that runs if there is no MADT), and this RAM ([`ram_blocks`](crate::ram_blocks)), of which whole
    /// pages count.
    #[must_use]
    pub fn new(apic_ids: Vec<ApicId>, ram: Vec<PhysRange>) -> Self {
        Self {
            apic_ids,
            ram: ranges::whole_pages(ranges::union(ram)),
        }
    }

    /// The CPUs' APIC ids; the index is the CPU's number.
    #[must_use]
    pub fn apic_ids(&self) -> &[ApicId] {
        &self.apic_ids
    }

    /// The RAM, in order of address, page-aligned, in ranges that do not touch.
    #[must_use]
    pub fn ram(&self) -> &[PhysRange] {
        &self.ram
    }

    /// How much RAM there is, in bytes.
    #[must_use]
    pub fn ram_bytes(&self) -> u64 {
        ranges::bytes(&self.ram)
    }
}

/// Which nodes there are, and what is in them, before the distances.
struct Nodes {
    /// By number; their lists of CPUs are empty.
    nodes: Vec<Node>,
    /// By the CPU's number.
    node_of_cpu: Vec<NodeId>,
}

impl Nodes {
    /// The whole machine in one node.
    fn one(machine: &Inventory) -> Self {
        let node = node(0, machine.ram.clone());
        Self {
            nodes: alloc::vec![node],
            node_of_cpu: alloc::vec![NodeId(0); machine.apic_ids.len()],
        }
    }

    fn into_topology(self, machine: &Inventory, source: Source) -> Topology {
        Topology::new(machine, source, self.nodes, &self.node_of_cpu)
    }
}

fn node(number: usize, memory: Vec<PhysRange>) -> Node {
    Node {
        id: NodeId::from(number),
        memory,
        cpus: Vec::new(),
        proximity_domain: None,
    }
}

/// The topology of a machine, by order of trust: the command line's `words` (each beginning with `numa=`; their
/// grammar is in [`text`](crate::text)), then the firmware's tables, then one node.
///
/// Any of `numa=off`, `numa=fake` and `numa=node` replaces the firmware's nodes, distances and attributes; without
/// them, `numa=dist` and `numa=hmat` change those of the firmware. Firmware tables that are broken or contradict each
/// other or the machine are survived, each as its [`Notice`] says.
///
/// # Errors
/// If the words are not of the grammar, or ask for what the machine does not have or leave out what it has.
pub fn resolve<'a>(
    machine: &Inventory,
    firmware: Option<&Firmware>,
    words: impl IntoIterator<Item = &'a str>,
) -> Result<(Topology, Vec<Notice>), TopologyError> {
    let request = Request::parse(words)?;
    let mut notices = Vec::new();
    let mut topology = match &request.layout {
        Layout::Off => Nodes::one(machine).into_topology(machine, Source::CommandLine),
        Layout::Fake { word, count } => {
            fake::split(machine, word, *count)?.into_topology(machine, Source::CommandLine)
        }
        Layout::Nodes(nodes) => words::assign(machine, nodes)?.into_topology(machine, Source::CommandLine),
        Layout::Unsaid => firmware
            .and_then(|firmware| firmware::topology(machine, firmware, &mut notices))
            .unwrap_or_else(|| Nodes::one(machine).into_topology(machine, Source::None)),
    };
    words::overlay(&mut topology, &request)?;
    Ok((topology, notices))
}
