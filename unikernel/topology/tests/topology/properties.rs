//! What must hold for any input: no panic, an end, and each CPU and each byte of RAM in exactly one node.

use homenode_topology::acpi::{Hmat, Madt, Slit, Srat};
use homenode_topology::{
    ApicId, CpuId, Firmware, Inventory, LOCAL_DISTANCE, Node, NodeId, PAGE_BYTES, PhysRange, Topology,
    resolve,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::machines::{by_words, cpu_affinity, memory_affinity, qemu, range, sealed, slit, srat, table};

/// Fails unless the topology has all of the machine exactly once, and distances as they must be.
fn check(machine: &Inventory, topology: &Topology) -> Result<(), TestCaseError> {
    let count = topology.nodes().len();
    for (index, node) in topology.nodes().iter().enumerate() {
        prop_assert_eq!(node.id(), NodeId::from(index));
        prop_assert!(node.has_cpus() || node.has_memory() || count == 1);
        for range in node.memory() {
            prop_assert!(range.start.is_aligned(PAGE_BYTES) && range.end.is_aligned(PAGE_BYTES));
            prop_assert_eq!(topology.node_of_address(range.start), Some(node.id()));
            prop_assert_eq!(
                topology.node_of_address(range.start + (range.bytes() - 1)),
                Some(node.id())
            );
        }
        let near = topology.nodes_by_distance(node.id());
        prop_assert_eq!(near[0], node.id());
        prop_assert!(near[1..].is_sorted_by_key(|&to| (topology.distance(node.id(), to), to)));
        prop_assert_eq!(topology.distance(node.id(), node.id()), LOCAL_DISTANCE);
        prop_assert!(
            near.iter()
                .all(|&to| topology.distance(node.id(), to) >= LOCAL_DISTANCE)
        );
    }

    let mut cpus: Vec<CpuId> = topology
        .nodes()
        .iter()
        .flat_map(|node| node.cpus().to_vec())
        .collect();
    cpus.sort_unstable();
    prop_assert_eq!(
        cpus,
        (0..machine.apic_ids().len()).map(CpuId::from).collect::<Vec<_>>()
    );
    for (cpu, apic_id) in topology.cpus().iter().zip(machine.apic_ids()) {
        prop_assert_eq!(cpu.apic_id, *apic_id);
        prop_assert!(topology.cpus_of(cpu.node).contains(&cpu.id));
    }

    let mut memory: Vec<PhysRange> = topology
        .nodes()
        .iter()
        .flat_map(|node| node.memory().to_vec())
        .collect();
    memory.sort_unstable();
    prop_assert!(memory.is_sorted_by(|one, next| one.end <= next.start));
    let as_one = Inventory::new(Vec::new(), memory);
    prop_assert_eq!(as_one.ram(), machine.ram());
    Ok(())
}

/// A machine with up to 12 CPUs, and RAM in up to 4 blocks of 1 to 15 pages with holes between them.
fn any_machine() -> impl Strategy<Value = Inventory> {
    (1..=12_u32, vec((0..5_u64, 1..16_u64), 1..5)).prop_map(|(cpus, blocks)| {
        let mut end = 0;
        let ram = blocks
            .into_iter()
            .map(|(hole, pages)| {
                let start = end + hole * PAGE_BYTES;
                end = start + pages * PAGE_BYTES;
                range(start, end)
            })
            .collect();
        Inventory::new((0..cpus).map(|cpu| ApicId(cpu * 3)).collect(), ram)
    })
}

/// How a machine is shared out: each CPU's and each page's node, and distances.
#[derive(Clone, Debug)]
struct Plan {
    machine: Inventory,
    node_of_cpu: Vec<usize>,
    /// By the page's place among all pages of RAM.
    node_of_page: Vec<usize>,
    distances: Vec<(usize, usize, u8)>,
    latencies: Vec<(usize, usize, u32)>,
}

fn any_plan() -> impl Strategy<Value = Plan> {
    (any_machine(), 1..6_usize).prop_flat_map(|(machine, nodes)| {
        let pages = usize::try_from(machine.ram_bytes() / PAGE_BYTES).unwrap();
        let cpus = machine.apic_ids().len();
        let pairs = vec((0..nodes, 0..nodes, 11..=255_u8), 0..4);
        let latencies = vec((0..nodes, 0..nodes, 1..1_000_000_u32), 0..4);
        (
            Just(machine),
            vec(0..nodes, cpus),
            vec(0..nodes, pages),
            pairs,
            latencies,
        )
            .prop_map(|(machine, node_of_cpu, node_of_page, distances, latencies)| {
                Plan {
                    machine,
                    node_of_cpu,
                    node_of_page,
                    distances,
                    latencies,
                }
                .dense()
            })
    })
}

impl Plan {
    /// Renumbers the nodes that have something, without gaps, and drops what is said about others or said twice.
    fn dense(mut self) -> Self {
        let mut used: Vec<usize> = [&self.node_of_cpu[..], &self.node_of_page].concat();
        used.sort_unstable();
        used.dedup();
        let renumber = |node: usize| used.binary_search(&node).ok();
        self.node_of_cpu
            .iter_mut()
            .chain(&mut self.node_of_page)
            .for_each(|node| *node = renumber(*node).unwrap());
        self.distances = self
            .distances
            .into_iter()
            .filter_map(|(src, dst, distance)| Some((renumber(src)?, renumber(dst)?, distance)))
            .filter(|(src, dst, _)| src != dst)
            .collect();
        self.distances.sort_unstable();
        self.distances.dedup_by_key(|(src, dst, _)| (*src, *dst));
        let with_cpus = self.node_of_cpu.clone();
        self.latencies = self
            .latencies
            .into_iter()
            .filter_map(|(src, dst, latency)| Some((renumber(src)?, renumber(dst)?, latency)))
            .filter(|(src, _, _)| with_cpus.contains(src))
            .collect();
        self.latencies.sort_unstable();
        self.latencies.dedup_by_key(|(src, dst, _)| (*src, *dst));
        self
    }

    fn nodes(&self) -> usize {
        self.node_of_cpu.iter().chain(&self.node_of_page).max().unwrap() + 1
    }

    /// The addresses of RAM's pages, in order.
    fn pages(&self) -> Vec<u64> {
        let ram = self.machine.ram().iter();
        ram.flat_map(|block| (block.start.0..block.end.0).step_by(PAGE_BYTES as usize))
            .collect()
    }

    /// The plan as words: one option for each CPU and each page.
    fn words(&self) -> Vec<String> {
        let mut words: Vec<String> = (0..self.nodes())
            .map(|node| format!("numa=node,nodeid={node}"))
            .collect();
        for (cpu, node) in self.node_of_cpu.iter().enumerate() {
            words[*node] += &format!(",cpus={cpu}");
        }
        for (page, node) in self.pages().into_iter().zip(&self.node_of_page) {
            words[*node] += &format!(",mem={page:#x}-{:#x}", page + PAGE_BYTES);
        }
        words.extend(
            self.distances
                .iter()
                .map(|(src, dst, val)| format!("numa=dist,src={src},dst={dst},val={val}")),
        );
        words.extend(
            self.latencies
                .iter()
                .map(|(src, dst, ps)| format!("numa=hmat,src={src},dst={dst},latency={ps}ps")),
        );
        words
    }

    /// The plan as an SRAT and a SLIT, with domains that leave gaps.
    fn firmware(&self) -> Firmware {
        let domain = |node: &usize| u32::try_from(node * 2 + 1).unwrap();
        let cpus = self.machine.apic_ids().iter().zip(&self.node_of_cpu);
        let mut entries: Vec<Vec<u8>> = cpus.map(|(id, node)| cpu_affinity(domain(node), id.0)).collect();
        for (page, node) in self.pages().into_iter().zip(&self.node_of_page) {
            entries.push(memory_affinity(domain(node), range(page, page + PAGE_BYTES)));
        }
        let mut rows = vec![vec![20; self.nodes() * 2]; self.nodes() * 2];
        (0..rows.len()).for_each(|domain| rows[domain][domain] = 10);
        for (src, dst, distance) in &self.distances {
            rows[src * 2 + 1][dst * 2 + 1] = *distance;
            if !self
                .distances
                .iter()
                .any(|(from, to, _)| (from, to) == (dst, src))
            {
                rows[dst * 2 + 1][src * 2 + 1] = *distance;
            }
        }
        let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
        Firmware::from_tables(Some(&srat(&entries)), Some(&slit(&rows)), None)
    }

    /// Fails unless the topology is the plan, its latencies apart.
    fn check(&self, topology: &Topology) -> Result<(), TestCaseError> {
        check(&self.machine, topology)?;
        prop_assert_eq!(topology.nodes().len(), self.nodes());
        let node_of_cpu: Vec<usize> = topology.cpus().iter().map(|cpu| cpu.node.index()).collect();
        prop_assert_eq!(&node_of_cpu, &self.node_of_cpu);
        for (page, node) in self.pages().into_iter().zip(&self.node_of_page) {
            let found = topology.node_of_address(range(page, page).start);
            prop_assert_eq!(found, Some(NodeId::from(*node)));
        }
        for (src, dst, distance) in &self.distances {
            prop_assert_eq!(
                topology.distance(NodeId::from(*src), NodeId::from(*dst)),
                *distance
            );
        }
        Ok(())
    }
}

fn strings(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// Pieces of which words are made, right and wrong.
fn any_word() -> impl Strategy<Value = String> {
    let pieces = [
        "numa=",
        "node",
        "dist",
        "hmat",
        "fake=",
        "off",
        ",",
        "=",
        "-",
        "nodeid=",
        "cpus=",
        "mem=",
        "src=",
        "dst=",
        "val=",
        "latency=",
        "bandwidth=",
        "0",
        "1",
        "2",
        "3",
        "9",
        "10",
        "255",
        "0x",
        "1000",
        "4K",
        "1G",
        "16E",
        "ns",
        "18446744073709551615",
        "é",
        " ",
    ];
    prop_oneof![
        vec(select(pieces.to_vec()), 0..12).prop_map(|pieces| pieces.concat()),
        any::<String>()
    ]
}

/// Words of the right form with numbers that may be wrong.
fn plausible_word() -> impl Strategy<Value = String> {
    let node = (0..4_u32, 0..6_u32, 0..6_u32, 0..40_u64).prop_map(|(node, first, last, pages)| {
        format!(
            "numa=node,nodeid={node},cpus={first}-{last},mem={}",
            pages * PAGE_BYTES
        )
    });
    let ranges = (0..4_u32, 0..40_u64, 0..40_u64).prop_map(|(node, start, end)| {
        format!(
            "numa=node,nodeid={node},mem={:#x}-{:#x}",
            start * PAGE_BYTES,
            end * PAGE_BYTES
        )
    });
    let dist = (0..4_u32, 0..4_u32, 0..300_u32)
        .prop_map(|(src, dst, val)| format!("numa=dist,src={src},dst={dst},val={val}"));
    let fake = (0..8_u32).prop_map(|count| format!("numa=fake={count}"));
    prop_oneof![node, ranges, dist, fake, Just("numa=off".to_owned())]
}

const QEMU_TABLES: [&[u8]; 6] = [
    qemu::Q35_MADT,
    qemu::Q35_SRAT,
    qemu::Q35_SLIT,
    qemu::Q35_HMAT,
    qemu::MANY_MADT,
    qemu::MANY_SRAT,
];

/// Reads the bytes as each kind of table; whatever comes out is resolved, and must be all of the machine.
fn read_as_everything(machine: &Inventory, bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(madt) = Madt::parse(bytes) {
        let mut ids: Vec<ApicId> = madt.enabled().collect();
        let found = ids.len();
        ids.sort_unstable();
        ids.dedup();
        prop_assert_eq!(ids.len(), found, "no two CPUs have one APIC id");
    }
    let all = Firmware {
        srat: Some(Srat::parse(bytes)),
        slit: Some(Slit::parse(bytes)),
        hmat: Some(Hmat::parse(bytes)),
    };
    let with_srat = Firmware {
        srat: Some(Srat::parse(qemu::Q35_SRAT)),
        ..all.clone()
    };
    for firmware in [all, with_srat] {
        let (topology, notices) = resolve(machine, Some(&firmware), []).unwrap();
        prop_assert!(notices.iter().all(|notice| !notice.to_string().contains('\n')));
        check(machine, &topology)?;
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_plan_in_words_is_that_topology_and_writes_itself_back(plan in any_plan()) {
        let topology = by_words(&plan.machine, &strings(&plan.words())).unwrap();
        plan.check(&topology)?;
        for (src, dst, picoseconds) in &plan.latencies {
            let latency = topology.access(NodeId::from(*src), NodeId::from(*dst)).latency.unwrap();
            prop_assert_eq!(latency.picoseconds(), u64::from(*picoseconds));
        }
        let again = by_words(&plan.machine, &strings(&topology.to_words())).unwrap();
        prop_assert_eq!(&again, &topology);
    }

    #[test]
    fn a_plan_in_tables_is_the_same_as_in_words(plan in any_plan()) {
        let (topology, notices) = resolve(&plan.machine, Some(&plan.firmware()), []).unwrap();
        prop_assert_eq!(notices, []);
        plan.check(&topology)?;
        let words: Vec<String> =
            plan.words().into_iter().filter(|word| !word.starts_with("numa=hmat")).collect();
        let by_words = by_words(&plan.machine, &strings(&words)).unwrap();
        prop_assert_eq!(topology.to_words(), by_words.to_words());
    }

    #[test]
    fn sizes_give_each_node_what_it_asked_for(plan in any_plan()) {
        let sizes: Vec<u64> = (0..plan.nodes())
            .map(|node| plan.node_of_page.iter().filter(|owner| **owner == node).count() as u64 * PAGE_BYTES)
            .collect();
        let mut words: Vec<String> = plan
            .words()
            .iter()
            .filter(|word| word.starts_with("numa=node"))
            .zip(&sizes)
            .map(|(word, size)| format!("{},mem={size}", word.split(",mem=").next().unwrap()))
            .collect();
        words.reverse();
        let topology = by_words(&plan.machine, &strings(&words)).unwrap();
        check(&plan.machine, &topology)?;
        for (node, size) in topology.nodes().iter().zip(&sizes) {
            prop_assert_eq!(node.memory_bytes(), *size);
        }
        let order: Vec<NodeId> = topology.memory().iter().map(|(_, node)| *node).collect();
        prop_assert!(order.is_sorted(), "sizes are taken in order of address");
    }

    #[test]
    fn fake_nodes_are_even(machine in any_machine(), scale in 1..2000_u64, count in 1..40_u32) {
        let ram = machine.ram().iter().map(|block| range(block.start.0 * scale, block.end.0 * scale)).collect();
        let machine = Inventory::new(machine.apic_ids().to_vec(), ram);
        let word = format!("numa=fake={count}");
        if let Ok(topology) = by_words(&machine, &[&word]) {
            check(&machine, &topology)?;
            prop_assert_eq!(topology.nodes().len(), count as usize);
            let sizes = || topology.nodes().iter().map(Node::memory_bytes);
            let edges = 2 * machine.ram().len() as u64 + 1;
            prop_assert!(sizes().max().unwrap() - sizes().min().unwrap() <= edges * (2 << 20));
            let cpus = || topology.nodes().iter().map(|node| node.cpus().len());
            prop_assert!(cpus().max().unwrap() - cpus().min().unwrap() <= 1);
        } else {
            prop_assert!(u64::from(count) > machine.ram_bytes() / (2 << 20), "only for lack of RAM");
        }
    }

    #[test]
    fn any_words_end_in_a_whole_topology_or_in_an_error_that_quotes_them(
        machine in any_machine(),
        words in prop_oneof![
            vec(any_word(), 0..5).boxed(),
            vec(plausible_word(), 0..6).boxed(),
        ],
    ) {
        match by_words(&machine, &strings(&words)) {
            Ok(topology) => check(&machine, &topology)?,
            Err(error) => {
                prop_assert!(words.iter().any(|word| word.starts_with(error.word())), "{}", error);
                prop_assert!(error.to_string().starts_with(error.word()));
            }
        }
    }

    #[test]
    fn random_bytes_as_tables_do_no_harm(machine in any_machine(), bytes in vec(any::<u8>(), 0..200)) {
        read_as_everything(&machine, &bytes)?;
        for signature in [b"APIC", b"SRAT", b"SLIT", b"HMAT"] {
            read_as_everything(&machine, &table(signature, 2, &bytes))?;
        }
    }

    #[test]
    fn truncated_tables_are_errors(table in select(&QEMU_TABLES[..]), length in any::<Index>()) {
        let cut = &table[..length.index(table.len())];
        prop_assert!(Madt::parse(cut).is_err() && Srat::parse(cut).is_err());
        prop_assert!(Slit::parse(cut).is_err() && Hmat::parse(cut).is_err());
    }

    #[test]
    fn a_wrong_checksum_is_an_error(table in select(&QEMU_TABLES[..]), at in any::<Index>(), add in 1..=255_u8) {
        let mut wrong = table.to_vec();
        let at = at.index(wrong.len());
        wrong[at] = wrong[at].wrapping_add(add);
        prop_assert!(Madt::parse(&wrong).is_err() && Srat::parse(&wrong).is_err());
        prop_assert!(Slit::parse(&wrong).is_err() && Hmat::parse(&wrong).is_err());
    }

    #[test]
    fn tables_that_lie_under_a_right_checksum_do_no_harm(
        machine in any_machine(),
        table in select(&QEMU_TABLES[..4]),
        lies in vec((any::<Index>(), prop_oneof![any::<u8>(), Just(0), Just(255)]), 1..6),
    ) {
        let mut lying = table.to_vec();
        for (at, value) in lies {
            let at = at.index(lying.len());
            lying[at] = value;
        }
        read_as_everything(&machine, &sealed(lying))?;
    }
}
