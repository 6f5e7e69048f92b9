//! Topologies from the firmware's tables, and from tables that contradict each other.

use homenode_topology::{CpuId, Firmware, Node, NodeId, PhysAddr, Source, resolve};

use crate::machines::{
    GIB, MIB, by_firmware, cpu_affinity, large, machine, memory_affinity, qemu, range, slit, small, srat,
};

fn qemu_firmware() -> Firmware {
    Firmware::from_tables(Some(qemu::Q35_SRAT), Some(qemu::Q35_SLIT), Some(qemu::Q35_HMAT))
}

/// Two domains on [`small`]: 0 and 3.
fn entries() -> Vec<Vec<u8>> {
    let cpus = [(3, 0), (3, 1), (0, 2), (0, 3)].map(|(domain, apic_id)| cpu_affinity(domain, apic_id));
    let memory = [
        memory_affinity(3, range(0, 0xa_0000)),
        memory_affinity(3, range(MIB, GIB)),
        memory_affinity(0, range(GIB, 2 * GIB)),
    ];
    [&cpus[..], &memory].concat()
}

fn only_srat(entries: &[Vec<u8>]) -> Firmware {
    Firmware::from_tables(Some(&srat(entries)), None, None)
}

#[test]
fn qemus_tables_give_the_nodes_that_qemu_was_told() {
    let (topology, notices) = by_firmware(&large(), &qemu_firmware());
    assert_eq!(
        notices,
        ["SRAT: the MADT enables no CPUs with APIC ids 4; their entries are ignored"]
    );
    let expected = "\
nodes: 3, CPUs: 4, memory: 5 GiB, source: acpi
node 0: CPUs 0-1, 1 GiB at 0x0-0x40000000
node 1: CPUs 2-3, 2.5 GiB at 0x40000000-0x80000000,0x100000000-0x160000000
node 2: no CPUs, 1.5 GiB at 0x160000000-0x1c0000000
distances:   0   1   2
        0:  10  21  30
        1:  21  10  40
        2:  30  40  10";
    assert_eq!(topology.to_string(), expected);
    assert_eq!(topology.nodes()[2].proximity_domain(), Some(2));
    assert_eq!(
        topology.access(NodeId(0), NodeId(1)).latency.unwrap().to_string(),
        "130ns"
    );
    assert_eq!(topology.access(NodeId(1), NodeId(0)).latency, None);
}

#[test]
fn domains_become_nodes_in_order_of_their_number_and_the_slit_follows() {
    let rows: [&[u8]; 4] = [
        &[10, 99, 99, 35],
        &[99, 10, 99, 99],
        &[99, 99, 10, 99],
        &[36, 99, 99, 10],
    ];
    let tables = Firmware::from_tables(Some(&srat(&entries())), Some(&slit(&rows)), None);
    let (topology, notices) = by_firmware(&small(), &tables);
    assert_eq!(notices, [""; 0]);
    assert_eq!(topology.source(), Source::Acpi);
    let domains: Vec<_> = topology.nodes().iter().map(Node::proximity_domain).collect();
    assert_eq!(domains, [Some(0), Some(3)]);
    assert_eq!(topology.cpus_of(NodeId(0)), [CpuId(2), CpuId(3)]);
    assert_eq!(
        topology.nodes()[1].memory(),
        [range(0, GIB)],
        "with the hole below 1 MiB"
    );
    assert_eq!(topology.distance(NodeId(0), NodeId(1)), 35);
    assert_eq!(topology.distance(NodeId(1), NodeId(0)), 36);
}

#[test]
fn the_command_line_is_trusted_more_than_the_firmware() {
    let words = ["numa=node,nodeid=0,cpus=0-3,mem=5G"];
    let (topology, notices) = resolve(&large(), Some(&qemu_firmware()), words).unwrap();
    assert_eq!((topology.nodes().len(), notices.len()), (1, 0));
    assert_eq!(topology.source(), Source::CommandLine);
    let (off, _) = resolve(&large(), Some(&qemu_firmware()), ["numa=off"]).unwrap();
    assert_eq!(off.nodes().len(), 1);
    let (fake, _) = resolve(&large(), Some(&qemu_firmware()), ["numa=fake=2"]).unwrap();
    assert_eq!(
        fake.distance(NodeId(0), NodeId(1)),
        20,
        "the firmware's distances are about other nodes"
    );
}

#[test]
fn distances_and_attributes_overlay_the_firmwares() {
    let words = [
        "numa=dist,src=0,dst=1,val=50",
        "numa=hmat,src=0,dst=2,latency=1us",
    ];
    let (topology, _) = resolve(&large(), Some(&qemu_firmware()), words).unwrap();
    assert_eq!(topology.source(), Source::Acpi);
    assert_eq!(topology.overlays(), words);
    assert!(topology.to_string().contains("source: acpi and command line\n"));
    assert_eq!(
        serde_json::to_value(&topology).unwrap()["overlays"],
        serde_json::json!(words)
    );
    assert_eq!(topology.distance(NodeId(1), NodeId(0)), 50);
    assert_eq!(topology.distance(NodeId(1), NodeId(2)), 40);
    let access = topology.access(NodeId(0), NodeId(2));
    assert_eq!(access.latency.unwrap().to_string(), "1000ns");
    assert_eq!(access.bandwidth.unwrap().to_string(), "20 GiB/s");
    let error = resolve(&large(), Some(&qemu_firmware()), ["numa=dist,src=0,dst=3,val=50"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "numa=dist,src=0,dst=3,val=50: dst=3: there are nodes 0-2 only"
    );
}

#[test]
fn without_tables_there_is_one_node() {
    let (topology, notices) = by_firmware(&small(), &Firmware::default());
    assert_eq!((topology.nodes().len(), notices.len()), (1, 0));
    assert_eq!(topology.source(), Source::None);
    assert_eq!(topology.nodes()[0].proximity_domain(), None);
}

#[test]
fn a_broken_srat_means_one_node_and_says_so() {
    let tables = Firmware::from_tables(Some(&[1, 2]), Some(qemu::Q35_SLIT), Some(qemu::Q35_HMAT));
    let (topology, notices) = by_firmware(&large(), &tables);
    assert_eq!(topology.source(), Source::None);
    let expected = [
        "SRAT: the table has 2 bytes, and needs 36 at least; the table is ignored",
        "SLIT: there is no usable SRAT; the table is ignored",
        "HMAT: there is no usable SRAT; the table is ignored",
    ];
    assert_eq!(notices, expected);
    let (topology, notices) = by_firmware(&small(), &only_srat(&[cpu_affinity(0, 77)]));
    assert_eq!(topology.source(), Source::None);
    let expected = [
        "SRAT: the MADT enables no CPUs with APIC ids 77; their entries are ignored",
        "SRAT: it names none of the machine's CPUs or RAM; the table is ignored",
    ];
    assert_eq!(notices, expected);
}

#[test]
fn what_the_srat_leaves_out_goes_to_node_0() {
    let mut entries = entries();
    entries.remove(5);
    entries.remove(0);
    let (topology, notices) = by_firmware(&small(), &only_srat(&entries));
    let expected = [
        "SRAT: CPUs 0 are in no domain; they go to node 0",
        "SRAT: 1023.3 MiB of RAM are in no domain and go to node 0: 0xa0000-0x40000000",
    ];
    assert_eq!(notices, expected);
    assert_eq!(topology.node_of_cpu(CpuId(0)), NodeId(0));
    assert_eq!(topology.nodes()[0].memory(), [range(0xa_0000, 2 * GIB)]);
    assert_eq!(topology.nodes()[1].memory(), [range(0, 0xa_0000)]);
}

#[test]
fn of_two_domains_for_one_thing_the_first_counts() {
    let mut entries = entries();
    entries.push(cpu_affinity(5, 0));
    entries.push(memory_affinity(5, range(GIB - MIB, GIB + MIB)));
    let (topology, notices) = by_firmware(&small(), &only_srat(&entries));
    let expected = [
        "SRAT: APIC id 0 is in domains 3 and 5; 3 counts",
        "SRAT: 0x40000000-0x40100000 is in domains 0 and 5; 0 counts",
        "SRAT: 0x3ff00000-0x40000000 is in domains 3 and 5; 3 counts",
    ];
    assert_eq!(notices, expected);
    assert_eq!(topology.nodes().len(), 2, "a domain without anything is no node");
    assert_eq!(topology.node_of_address(PhysAddr(GIB)), Some(NodeId(0)));
}

#[test]
fn a_slit_that_can_not_be_is_ignored_whole() {
    let with_slit = |rows: &[&[u8]]| {
        let tables = Firmware::from_tables(Some(&srat(&entries())), Some(&slit(rows)), None);
        let (topology, notices) = by_firmware(&small(), &tables);
        assert_eq!(topology.distance(NodeId(0), NodeId(1)), 20);
        assert_eq!(topology.distance(NodeId(1), NodeId(1)), 10);
        notices
    };
    let small: [&[u8]; 2] = [&[10, 30], &[30, 10]];
    assert_eq!(
        with_slit(&small),
        ["SLIT: 2 localities do not reach domain 3; the table is ignored"]
    );
    assert_eq!(
        with_slit(&[]),
        ["SLIT: 0 localities do not reach domain 0; the table is ignored"]
    );
    let near: [&[u8]; 4] = [
        &[10, 30, 30, 30],
        &[30, 10, 30, 30],
        &[30, 9, 10, 30],
        &[30, 30, 30, 10],
    ];
    assert_eq!(
        with_slit(&near),
        ["SLIT: 9 can not be the distance from 2 to 1; the table is ignored"]
    );
    let diagonal: [&[u8]; 4] = [
        &[10, 30, 30, 30],
        &[30, 10, 30, 30],
        &[30, 30, 20, 30],
        &[30, 30, 30, 10],
    ];
    assert_eq!(
        with_slit(&diagonal),
        ["SLIT: 20 can not be the distance from 2 to 2; the table is ignored"]
    );
}

#[test]
fn an_hmat_about_other_domains_is_read_as_far_as_it_goes() {
    let tables = Firmware::from_tables(Some(&srat(&entries())), None, Some(qemu::Q35_HMAT));
    let (topology, notices) = by_firmware(&small(), &tables);
    assert_eq!(
        notices,
        ["HMAT: the SRAT has no domains 1-2 with CPUs or RAM; their values are ignored"]
    );
    assert_eq!(
        topology.access(NodeId(0), NodeId(0)).latency.unwrap().to_string(),
        "80ns"
    );
}

#[test]
fn apic_ids_above_255_find_their_domain() {
    let tables = Firmware::from_tables(Some(qemu::MANY_SRAT), None, None);
    let (topology, notices) = by_firmware(&machine(260, &[range(0, GIB)]), &tables);
    assert_eq!(notices, [""; 0]);
    assert_eq!(topology.node_of_cpu(CpuId(129)), NodeId(0));
    assert_eq!(topology.node_of_cpu(CpuId(259)), NodeId(1));
    assert_eq!(topology.nodes()[1].memory(), [range(GIB / 2, GIB)]);
}
