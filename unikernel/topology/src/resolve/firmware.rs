//! The firmware's tables, held against the machine and against each other.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::{Inventory, Nodes, Notice, node};
use crate::acpi::{Hmat, Slit, Srat, TableError};
use crate::ram::FIRST_MEBIBYTE;
use crate::{
    ApicId, CpuId, LOCAL_DISTANCE, MAX_NODES, NodeId, PAGE_BYTES, PhysAddr, PhysRange, Source, Topology,
    ranges,
};

/// The firmware's tables about nodes: `None` if there is no such table, else what reading it gave.
#[derive(Clone, Debug, Default)]
pub struct Firmware {
    /// Which CPUs and which memory belong together.
    pub srat: Option<Result<Srat, TableError>>,
    /// Distances.
    pub slit: Option<Result<Slit, TableError>>,
    /// Latency and bandwidth.
    pub hmat: Option<Result<Hmat, TableError>>,
}

impl Firmware {
    /// Reads the tables from their bytes.
    #[must_use]
    pub fn from_tables(srat: Option<&[u8]>, slit: Option<&[u8]>, hmat: Option<&[u8]>) -> Self {
        Self {
            srat: srat.map(Srat::parse),
            slit: slit.map(Slit::parse),
            hmat: hmat.map(Hmat::parse),
        }
    }
}

/// The topology that the tables tell, or `None` if there is no usable SRAT.
///
/// Nodes are the proximity domains that have a CPU or RAM of this machine, in order of domain.
pub(super) fn topology(
    machine: &Inventory,
    firmware: &Firmware,
    notices: &mut Vec<Notice>,
) -> Option<Topology> {
    let srat = usable(firmware.srat.as_ref(), notices);
    let slit = usable(firmware.slit.as_ref(), notices);
    let hmat = usable(firmware.hmat.as_ref(), notices);
    let mut skipped = |skips: &[_]| notices.extend(skips.iter().cloned().map(Notice::Skipped));
    srat.iter().for_each(|srat| skipped(&srat.skipped));
    hmat.iter().for_each(|hmat| skipped(&hmat.skipped));

    let placed = srat.and_then(|srat| Domains::place(machine, srat, notices));
    let Some((nodes, domains)) = placed else {
        notices.extend(slit.map(|_| Notice::WithoutSrat("SLIT")));
        notices.extend(hmat.map(|_| Notice::WithoutSrat("HMAT")));
        return None;
    };
    let mut topology = nodes.into_topology(machine, Source::Acpi);
    if let Some(slit) = slit {
        match domains.distances(slit) {
            Ok(distances) => {
                distances
                    .into_iter()
                    .for_each(|(from, to, distance)| topology.set_distance(from, to, distance));
            }
            Err(notice) => notices.push(notice),
        }
    }
    if let Some(hmat) = hmat {
        domains.add_accesses(&mut topology, hmat, notices);
    }
    Some(topology)
}

fn usable<'a, T>(table: Option<&'a Result<T, TableError>>, notices: &mut Vec<Notice>) -> Option<&'a T> {
    match table? {
        Ok(table) => Some(table),
        Err(error) => {
            notices.push(Notice::BrokenTable(error.clone()));
            None
        }
    }
}

/// The proximity domains of the nodes, in order: the index is the node's number.
struct Domains(Vec<u32>);

impl Domains {
    /// Gives every CPU and all RAM to a node.
    fn place(machine: &Inventory, srat: &Srat, notices: &mut Vec<Notice>) -> Option<(Nodes, Self)> {
        let domain_of_cpu = domains_of_cpus(machine, srat, notices);
        let (mut memory, left) = memory_of_domains(machine, srat, notices);
        let used: BTreeSet<u32> = domain_of_cpu
            .iter()
            .flatten()
            .chain(memory.keys())
            .copied()
            .collect();
        if used.is_empty() || used.len() > MAX_NODES {
            notices.push(match used.len() {
                0 => Notice::UselessSrat,
                domains => Notice::TooManyDomains(domains),
            });
            return None;
        }
        let domains = Self(used.into_iter().collect());

        let mut nodes: Vec<_> = domains
            .0
            .iter()
            .enumerate()
            .map(|(number, domain)| {
                let mut node = node(number, memory.remove(domain).unwrap_or_default());
                node.proximity_domain = Some(*domain);
                node
            })
            .collect();
        // No firmware puts the hole below 1 MiB into its SRAT: it goes with the memory below it, unmentioned.
        let (hole, left): (Vec<_>, Vec<_>) = left
            .into_iter()
            .partition(|range| range.end <= FIRST_MEBIBYTE.end && range.start > FIRST_MEBIBYTE.start);
        for range in hole {
            let below = PhysAddr(range.start.0 - 1);
            let owner = nodes
                .iter()
                .position(|node| ranges::contains(&node.memory, below))
                .unwrap_or(0);
            nodes[owner].memory.push(range);
        }
        nodes[0].memory.extend(&left);
        for node in &mut nodes {
            node.memory = ranges::union(core::mem::take(&mut node.memory));
        }

        let without: Vec<CpuId> = (0..domain_of_cpu.len())
            .filter(|&cpu| domain_of_cpu[cpu].is_none())
            .map(CpuId::from)
            .collect();
        let node_of_cpu = domain_of_cpu
            .into_iter()
            .map(|domain| domain.and_then(|domain| domains.node(domain)).unwrap_or_default())
            .collect();
        if !without.is_empty() {
            notices.push(Notice::CpusWithoutDomain(without));
        }
        if !left.is_empty() {
            notices.push(Notice::MemoryWithoutDomain(left));
        }
        Some((Nodes { nodes, node_of_cpu }, domains))
    }

    fn node(&self, domain: u32) -> Option<NodeId> {
        self.0.binary_search(&domain).ok().map(NodeId::from)
    }

    /// The distances of all pairs of nodes, if the whole table can be believed.
    fn distances(&self, slit: &Slit) -> Result<Vec<(NodeId, NodeId, u8)>, Notice> {
        let impossible = slit.elements().find(|&(from, to, distance)| {
            if from == to {
                distance != LOCAL_DISTANCE
            } else {
                distance < LOCAL_DISTANCE
            }
        });
        if let Some((from, to, distance)) = impossible {
            return Err(Notice::SlitDistance { from, to, distance });
        }
        let mut distances = Vec::with_capacity(self.0.len() * self.0.len());
        for (from, &from_domain) in self.0.iter().enumerate() {
            for (to, &to_domain) in self.0.iter().enumerate() {
                let distance = slit
                    .distance(from_domain, to_domain)
                    .ok_or(Notice::SlitTooSmall {
                        localities: slit.localities(),
                        domain: from_domain.max(to_domain),
                    })?;
                distances.push((NodeId::from(from), NodeId::from(to), distance));
            }
        }
        Ok(distances)
    }

    fn add_accesses(&self, topology: &mut Topology, hmat: &Hmat, notices: &mut Vec<Notice>) {
        let mut unknown = BTreeSet::new();
        for access in &hmat.accesses {
            match (self.node(access.initiator), self.node(access.target)) {
                (Some(from), Some(to)) => topology.set_access(from, to, access.attributes),
                (from, to) => {
                    unknown.extend(from.is_none().then_some(access.initiator));
                    unknown.extend(to.is_none().then_some(access.target));
                }
            }
        }
        if !unknown.is_empty() {
            notices.push(Notice::UnknownHmatDomains(unknown.into_iter().collect()));
        }
    }
}

/// Each CPU's domain, by the CPU's number.
fn domains_of_cpus(machine: &Inventory, srat: &Srat, notices: &mut Vec<Notice>) -> Vec<Option<u32>> {
    let mut domains = BTreeMap::new();
    for entry in &srat.cpus {
        let kept = *domains.entry(entry.apic_id).or_insert(entry.domain);
        if kept != entry.domain {
            notices.push(Notice::CpuTwice {
                apic_id: entry.apic_id,
                kept,
                ignored: entry.domain,
            });
        }
    }
    let domain_of_cpu = machine
        .apic_ids()
        .iter()
        .map(|apic_id| domains.get(apic_id).copied())
        .collect();
    for apic_id in machine.apic_ids() {
        domains.remove(apic_id);
    }
    if !domains.is_empty() {
        let unknown: Vec<ApicId> = domains.into_keys().collect();
        notices.push(Notice::UnknownCpus(unknown));
    }
    domain_of_cpu
}

/// Each domain's RAM, and the RAM that is in none.
fn memory_of_domains(
    machine: &Inventory,
    srat: &Srat,
    notices: &mut Vec<Notice>,
) -> (BTreeMap<u32, Vec<PhysRange>>, Vec<PhysRange>) {
    let mut memory: BTreeMap<u32, Vec<PhysRange>> = BTreeMap::new();
    let mut free = machine.ram().to_vec();
    for entry in &srat.memory {
        let range = pages_that_begin_in(entry.range);
        for (&kept, taken) in memory.iter().filter(|(domain, _)| **domain != entry.domain) {
            let twice = taken.iter().filter_map(|taken| taken.intersection(&range));
            notices.extend(twice.map(|range| Notice::MemoryTwice {
                range,
                kept,
                ignored: entry.domain,
            }));
        }
        let found = ranges::within(&free, &range);
        if !found.is_empty() {
            memory.entry(entry.domain).or_default().extend(found);
            free = ranges::without(&free, &range);
        }
    }
    (memory, free)
}

/// A page in two ranges counts as where its first byte is.
fn pages_that_begin_in(range: PhysRange) -> PhysRange {
    let up = |address: PhysAddr| {
        address
            .align_up(PAGE_BYTES)
            .unwrap_or(PhysAddr(u64::MAX).align_down(PAGE_BYTES))
    };
    PhysRange::new(up(range.start), up(range.end))
}
