//! Queries, and how a topology is shown.

use homenode_topology::{AccessAttributes, CpuId, NodeId, PhysAddr, Source};
use serde_json::json;

use crate::machines::{GIB, by_words, range, small};

const THREE_NODES: [&str; 6] = [
    "numa=node,nodeid=0,cpus=0-1,cpus=3,mem=512M",
    "numa=node,nodeid=1,cpus=2",
    "numa=node,nodeid=2,mem=0x20000000-0x80000000",
    "numa=dist,src=0,dst=1,val=30",
    "numa=dist,src=1,dst=0,val=31",
    "numa=hmat,src=0,dst=2,latency=250ns,bandwidth=20G",
];

#[test]
fn queries_agree_with_the_words() {
    let topology = by_words(&small(), &THREE_NODES).unwrap();
    assert_eq!(topology.source(), Source::CommandLine);
    assert_eq!(topology.overlays(), [""; 0]);
    assert_eq!(topology.nodes().len(), 3);
    assert_eq!(topology.cpus_of(NodeId(0)), [CpuId(0), CpuId(1), CpuId(3)]);
    assert_eq!(topology.node_of_cpu(CpuId(2)), NodeId(1));
    assert!(topology.nodes()[1].has_cpus() && !topology.nodes()[1].has_memory());
    assert!(!topology.nodes()[2].has_cpus() && topology.nodes()[2].has_memory());
    assert_eq!(topology.nodes()[2].memory_bytes(), GIB + GIB / 2);
    assert_eq!(topology.node_of_address(PhysAddr(0)), Some(NodeId(0)));
    assert_eq!(topology.node_of_address(PhysAddr(0x1fff_ffff)), Some(NodeId(0)));
    assert_eq!(topology.node_of_address(PhysAddr(0x2000_0000)), Some(NodeId(2)));
    assert_eq!(topology.node_of_address(PhysAddr(0x8000_0000)), None);
    assert_eq!(
        topology.memory(),
        [
            (range(0, 0x2000_0000), NodeId(0)),
            (range(0x2000_0000, 0x8000_0000), NodeId(2))
        ]
    );
    assert_eq!(topology.distance(NodeId(0), NodeId(1)), 30);
    assert_eq!(topology.distance(NodeId(1), NodeId(0)), 31);
    assert_eq!(topology.distance(NodeId(1), NodeId(2)), 20);
    assert_eq!(topology.distance(NodeId(1), NodeId(1)), 10);
    assert_eq!(
        topology.nodes_by_distance(NodeId(0)),
        [NodeId(0), NodeId(2), NodeId(1)]
    );
    assert_eq!(
        topology.nodes_by_distance(NodeId(2)),
        [NodeId(2), NodeId(0), NodeId(1)]
    );
    let access = topology.access(NodeId(0), NodeId(2));
    assert_eq!(access.latency.unwrap().picoseconds(), 250_000);
    assert_eq!(access.bandwidth.unwrap().bytes_per_second(), 20 << 30);
    assert_eq!(topology.access(NodeId(2), NodeId(0)), AccessAttributes::default());
}

#[test]
fn the_node_itself_comes_first_even_if_others_are_as_near() {
    let words = ["numa=fake=3", "numa=dist,src=0,dst=2,val=10"];
    let topology = by_words(&small(), &words).unwrap();
    assert_eq!(
        topology.nodes_by_distance(NodeId(2)),
        [NodeId(2), NodeId(0), NodeId(1)]
    );
}

#[test]
fn the_boot_log_shows_all_of_it() {
    let topology = by_words(&small(), &THREE_NODES).unwrap();
    let expected = "\
nodes: 3, CPUs: 4, memory: 2 GiB, source: command line
node 0: CPUs 0-1,3, 512 MiB at 0x0-0x20000000
node 1: CPUs 2, no memory
node 2: no CPUs, 1.5 GiB at 0x20000000-0x80000000
distances:   0   1   2
        0:  10  30  20
        1:  31  10  20
        2:  20  20  10";
    assert_eq!(topology.to_string(), expected);
    let one = by_words(&small(), &[]).unwrap();
    assert_eq!(
        one.to_string(),
        "nodes: 1, CPUs: 4, memory: 2 GiB, source: none\nnode 0: CPUs 0-3, 2 GiB at 0x0-0x80000000"
    );
}

#[test]
fn json_holds_all_of_it() {
    let topology = by_words(&small(), &THREE_NODES).unwrap();
    let expected = json!({
        "source": "command line",
        "overlays": [],
        "nodes": [
            {"id": 0, "cpus": [0, 1, 3], "bytes": GIB / 2, "proximity_domain": null,
             "memory": [{"start": 0, "end": 0x2000_0000}]},
            {"id": 1, "cpus": [2], "bytes": 0, "proximity_domain": null, "memory": []},
            {"id": 2, "cpus": [], "bytes": GIB + GIB / 2, "proximity_domain": null,
             "memory": [{"start": 0x2000_0000, "end": 0x8000_0000_u32}]},
        ],
        "cpus": [
            {"id": 0, "apic_id": 0, "node": 0},
            {"id": 1, "apic_id": 1, "node": 0},
            {"id": 2, "apic_id": 2, "node": 1},
            {"id": 3, "apic_id": 3, "node": 0},
        ],
        "distances": [[10, 30, 20], [31, 10, 20], [20, 20, 10]],
        "hmat": [{"src": 0, "dst": 2, "latency_ps": 250_000, "bandwidth_bytes_per_second": 20 * GIB}],
    });
    assert_eq!(serde_json::to_value(&topology).unwrap(), expected);
}

#[test]
fn a_topology_can_be_written_as_words() {
    let topology = by_words(&small(), &THREE_NODES).unwrap();
    let expected = [
        "numa=node,nodeid=0,cpus=0-1,cpus=3,mem=0x0-0x20000000",
        "numa=node,nodeid=1,cpus=2",
        "numa=node,nodeid=2,mem=0x20000000-0x80000000",
        "numa=dist,src=0,dst=1,val=30",
        "numa=dist,src=1,dst=0,val=31",
        "numa=hmat,src=0,dst=2,latency=250ns,bandwidth=21474836480",
    ];
    assert_eq!(topology.to_words(), expected);
}
