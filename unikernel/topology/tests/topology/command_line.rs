//! The command line's grammar, and each way to get it wrong.

use homenode_topology::{CpuId, NodeId, Source};

use crate::machines::{GIB, MIB, by_words, large, machine, range, small};

#[test]
fn two_nodes_as_words_give_two_nodes() {
    let words = [
        "numa=node,nodeid=0,cpus=0-1,mem=1G",
        "numa=node,nodeid=1,cpus=2-3,mem=1G",
        "numa=dist,src=0,dst=1,val=25",
    ];
    let topology = by_words(&small(), &words).unwrap();
    assert_eq!(topology.source(), Source::CommandLine);
    assert_eq!(topology.nodes()[0].memory(), [range(0, GIB)]);
    assert_eq!(topology.nodes()[1].memory(), [range(GIB, 2 * GIB)]);
    assert_eq!(topology.cpus_of(NodeId(0)), [CpuId(0), CpuId(1)]);
    assert_eq!(topology.cpus_of(NodeId(1)), [CpuId(2), CpuId(3)]);
    assert_eq!(topology.distance(NodeId(0), NodeId(1)), 25);
    assert_eq!(topology.distance(NodeId(1), NodeId(0)), 25);
}

#[test]
fn sizes_are_taken_in_order_of_node_and_address_across_holes_and_ranges() {
    let words = [
        "numa=node,nodeid=1,mem=3G",
        "numa=node,nodeid=2,mem=0x40000000-0x60000000,mem=6G-7G",
        "numa=node,nodeid=0,cpus=0-3,mem=512M",
    ];
    let topology = by_words(&large(), &words).unwrap();
    assert_eq!(topology.nodes()[0].memory(), [range(0, 512 * MIB)]);
    let one = [
        range(512 * MIB, GIB),
        range(1536 * MIB, 2 * GIB),
        range(4 * GIB, 6 * GIB),
    ];
    assert_eq!(topology.nodes()[1].memory(), one);
    assert_eq!(
        topology.nodes()[2].memory(),
        [range(GIB, 1536 * MIB), range(6 * GIB, 7 * GIB)]
    );
}

#[test]
fn a_range_can_span_a_hole() {
    let topology = by_words(&large(), &["numa=node,nodeid=0,cpus=0-3,mem=0-7G"]).unwrap();
    assert_eq!(
        topology.nodes()[0].memory(),
        [range(0, 2 * GIB), range(4 * GIB, 7 * GIB)]
    );
}

#[test]
fn off_is_one_node() {
    let topology = by_words(&large(), &["numa=off"]).unwrap();
    assert_eq!(topology.nodes().len(), 1);
    assert_eq!(topology.cpus_of(NodeId(0)).len(), 4);
    assert_eq!(topology.nodes()[0].memory_bytes(), 5 * GIB);
}

#[test]
fn fake_splits_memory_and_cpus_evenly_at_2_mib_across_the_hole() {
    let topology = by_words(&large(), &["numa=fake=4"]).unwrap();
    let quarter = 5 * GIB / 4;
    let expected = [
        vec![range(0, quarter)],
        vec![
            range(quarter, 2 * GIB),
            range(4 * GIB, 4 * GIB + 2 * quarter - 2 * GIB),
        ],
        vec![range(
            4 * GIB + 2 * quarter - 2 * GIB,
            4 * GIB + 3 * quarter - 2 * GIB,
        )],
        vec![range(4 * GIB + 3 * quarter - 2 * GIB, 7 * GIB)],
    ];
    for (node, memory) in topology.nodes().iter().zip(&expected) {
        assert_eq!(node.memory(), memory);
        assert_eq!(node.cpus(), [CpuId(node.id().0)]);
    }
    let three = by_words(&small(), &["numa=fake=3", "numa=dist,src=0,dst=2,val=40"]).unwrap();
    let chunks: Vec<u64> = three
        .nodes()
        .iter()
        .map(|node| node.memory_bytes() / (2 * MIB))
        .collect();
    assert_eq!(chunks, [341, 341, 342]);
    assert_eq!(three.distance(NodeId(2), NodeId(0)), 40);
    let five = by_words(&small(), &["numa=fake=5"]).unwrap();
    assert_eq!(five.nodes().iter().filter(|node| node.has_cpus()).count(), 4);
}

#[test]
fn units_are_exact() {
    let hmat = |attributes: &str| {
        let word = format!("numa=hmat,src=0,dst=0,{attributes}");
        by_words(&small(), &[&word]).unwrap().access(NodeId(0), NodeId(0))
    };
    for (text, picoseconds) in [
        ("7ps", 7),
        ("250ns", 250_000),
        ("3us", 3_000_000),
        ("1ms", 1_000_000_000),
    ] {
        assert_eq!(
            hmat(&format!("latency={text}")).latency.unwrap().picoseconds(),
            picoseconds
        );
    }
    for (text, bytes) in [
        ("20G", 20 << 30),
        ("512M", 512 << 20),
        ("0x1000", 4096),
        ("1.5K", 1536),
    ] {
        assert_eq!(
            hmat(&format!("bandwidth={text}"))
                .bandwidth
                .unwrap()
                .bytes_per_second(),
            bytes
        );
    }
}

/// Each of these on 4 CPUs and 2 GiB, with the message.
const WRONG: &[(&[&str], &str)] = &[
    (
        &[
            "numa=node,nodeid=0,cpus=0-1,mem=1G",
            "numa=node,nodeid=1,cpus=2-9,mem=1G",
        ],
        "numa=node,nodeid=1,cpus=2-9,mem=1G: cpus=2-9: the machine has CPUs 0-3 only",
    ),
    (
        &["numa=node,nodeid=0,cpus=0-4294967295,mem=2G"],
        "numa=node,nodeid=0,cpus=0-4294967295,mem=2G: cpus=0-4294967295: the machine has CPUs 0-3 only",
    ),
    (
        &["numa=node,nodeid=0,cpus=0-2,cpus=2-3,mem=2G"],
        "numa=node,nodeid=0,cpus=0-2,cpus=2-3,mem=2G: cpus=2-3: CPU 2 is in node 0 already; give it to one node, \
         once",
    ),
    (
        &["numa=node,nodeid=0,cpus=1,cpus=3,mem=2G"],
        "numa=node: CPUs 0,2 are in no node; add cpus= to one of the nodes for each of them",
    ),
    (
        &["numa=node,nodeid=0,cpus=3-0,mem=2G"],
        "numa=node,nodeid=0,cpus=3-0,mem=2G: cpus=3-0: the range is empty or ends before it starts",
    ),
    (
        &["numa=node,nodeid=0,cpus=a,mem=2G"],
        "numa=node,nodeid=0,cpus=a,mem=2G: cpus=a: not a decimal number below 4294967296",
    ),
    (
        &["numa=node,nodeid=0,cpus=0-3,mem=2G", "numa=node,nodeid=1,mem=1M"],
        "numa=node,nodeid=1,mem=1M: mem=1M: the machine has 2 GiB (0x80000000 bytes), of which 0 B (0x0 bytes) are \
         left for this node",
    ),
    (
        &["numa=node,nodeid=0,cpus=0-3,mem=1536M"],
        "numa=node: 512 MiB of RAM (0x20000000 bytes) are in no node: 0x60000000-0x80000000; raise or add mem= until \
         all RAM is in a node",
    ),
    (
        &[
            "numa=node,nodeid=0,cpus=0-3,mem=0-1G",
            "numa=node,nodeid=1,mem=512M-2G",
        ],
        "numa=node,nodeid=1,mem=512M-2G: mem=512M-2G: 0x20000000-0x40000000 is in node 0 already; give each range to \
         one node",
    ),
    (
        &["numa=node,nodeid=0,cpus=0-3,mem=0x0-0x80001000"],
        "numa=node,nodeid=0,cpus=0-3,mem=0x0-0x80001000: mem=0x0-0x80001000: the range does not start and end in \
         RAM, which is at 0x0-0x80000000",
    ),
    (
        &["numa=node,nodeid=0,cpus=0-3,mem=1G-1G"],
        "numa=node,nodeid=0,cpus=0-3,mem=1G-1G: mem=1G-1G: the range is empty or ends before it starts",
    ),
    (
        &["numa=node,nodeid=0,cpus=0-3,mem=1000"],
        "numa=node,nodeid=0,cpus=0-3,mem=1000: mem=1000: 0x3e8 is not a multiple of 4096 bytes; memory is given in \
         whole pages",
    ),
    (
        &["numa=node,nodeid=0,cpus=0-3,mem=lots"],
        "numa=node,nodeid=0,cpus=0-3,mem=lots: mem=lots: not a size such as 1G, 512M or 0x40000000",
    ),
    (
        &["numa=node,nodeid=0,cpus=0-3,mem=0-1G,mem=1G"],
        "numa=node,nodeid=0,cpus=0-3,mem=0-1G,mem=1G: mem=1G: mem= is either one size or ranges; give ranges only, or \
         one size",
    ),
    (
        &["numa=node,nodeid=0,cpus=0-3,mem=1G,mem=1G"],
        "numa=node,nodeid=0,cpus=0-3,mem=1G,mem=1G: mem=1G: mem= is either one size or ranges; give ranges only, or \
         one size",
    ),
    (
        &["numa=node,nodeid=0,cpus=0-3,memory=2G"],
        "numa=node,nodeid=0,cpus=0-3,memory=2G: memory=2G: unknown option; there are nodeid=, cpus=, mem=",
    ),
    (
        &["numa=node,nodeid=0,cpus=0-3,"],
        "numa=node,nodeid=0,cpus=0-3,: unknown option; there are nodeid=, cpus=, mem=",
    ),
    (
        &["numa=node,cpus=0-3,mem=2G"],
        "numa=node,cpus=0-3,mem=2G: the option nodeid= is missing",
    ),
    (
        &["numa=node,nodeid=0,nodeid=1,mem=2G"],
        "numa=node,nodeid=0,nodeid=1,mem=2G: nodeid=1: the option is given twice; give it once",
    ),
    (
        &[
            "numa=node,nodeid=0,cpus=0-3,mem=1G",
            "numa=node,nodeid=0,mem=512M",
        ],
        "numa=node,nodeid=0,mem=512M: nodeid=0: node 0 is given twice; put all of a node into one word",
    ),
    (
        &["numa=node,nodeid=0,cpus=0-3,mem=1G", "numa=node,nodeid=2,mem=1G"],
        "numa=node,nodeid=2,mem=1G: nodeid=2: node 1 is missing; nodes are numbered from 0 without a gap",
    ),
    (
        &["numa=node,nodeid=1024,mem=2G"],
        "numa=node,nodeid=1024,mem=2G: nodeid=1024: there can be nodes 0-1023 only",
    ),
    (
        &["numa=node,nodeid=0,cpus=0-3,mem=2G", "numa=node,nodeid=1"],
        "numa=node,nodeid=1: the node has neither cpus= nor mem=; give it one, or leave it out",
    ),
    (
        &["numa=dist,src=0,dst=1,val=20"],
        "numa=dist,src=0,dst=1,val=20: dst=1: there is node 0 only",
    ),
    (
        &["numa=fake=2", "numa=dist,src=7,dst=1,val=20"],
        "numa=dist,src=7,dst=1,val=20: src=7: there are nodes 0-1 only",
    ),
    (
        &["numa=fake=2", "numa=dist,src=0,dst=1,val=9"],
        "numa=dist,src=0,dst=1,val=9: val=9: a distance is 10 (local) to 255 (out of reach)",
    ),
    (
        &["numa=fake=2", "numa=dist,src=0,dst=1,val=256"],
        "numa=dist,src=0,dst=1,val=256: val=256: a distance is 10 (local) to 255 (out of reach)",
    ),
    (
        &["numa=fake=2", "numa=dist,src=1,dst=1,val=11"],
        "numa=dist,src=1,dst=1,val=11: val=11: the distance of a node to itself is 10",
    ),
    (
        &[
            "numa=fake=2",
            "numa=dist,src=0,dst=1,val=20",
            "numa=dist,src=0,dst=1,val=21",
        ],
        "numa=dist,src=0,dst=1,val=21: the same src= and dst= were given before; give them once",
    ),
    (
        &["numa=dist,src=0,dst=1"],
        "numa=dist,src=0,dst=1: the option val= is missing",
    ),
    (
        &["numa=hmat,src=0,dst=0"],
        "numa=hmat,src=0,dst=0: neither latency= nor bandwidth= is given; give at least one",
    ),
    (
        &["numa=hmat,src=0,dst=0,latency=250"],
        "numa=hmat,src=0,dst=0,latency=250: latency=250: not a whole number of ps, ns, us or ms, such as 250ns",
    ),
    (
        &["numa=hmat,src=0,dst=0,bandwidth=fast"],
        "numa=hmat,src=0,dst=0,bandwidth=fast: bandwidth=fast: not a size such as 1G, 512M or 0x40000000",
    ),
    (
        &["numa=hmat,src=0,dst=3,latency=1ns"],
        "numa=hmat,src=0,dst=3,latency=1ns: dst=3: there is node 0 only",
    ),
    (
        &[
            "numa=node,nodeid=0,cpus=0-3,mem=1G",
            "numa=node,nodeid=1,mem=1G",
            "numa=hmat,src=1,dst=0,latency=1ns",
        ],
        "numa=hmat,src=1,dst=0,latency=1ns: src=1: node 1 has no CPU that could access memory; src= is a node with \
         CPUs",
    ),
    (
        &["numa=fake=0"],
        "numa=fake=0: this machine can be split into 1 to 1024 nodes: one for each 2 MiB of RAM, and 1024 at most",
    ),
    (
        &["numa=fake=1025"],
        "numa=fake=1025: this machine can be split into 1 to 1024 nodes: one for each 2 MiB of RAM, and 1024 at most",
    ),
    (
        &["numa=fake=-1"],
        "numa=fake=-1: not a decimal number below 4294967296",
    ),
    (
        &["numa=fake=2", "numa=fake=2"],
        "numa=fake=2: numa=fake is given twice; give it once",
    ),
    (
        &["numa=fake=2", "numa=node,nodeid=0,cpus=0-3,mem=2G"],
        "numa=node,nodeid=0,cpus=0-3,mem=2G: numa=fake and numa=node exclude each other; leave out one of them",
    ),
    (
        &["numa=node,nodeid=0,cpus=0-3,mem=2G", "numa=fake=2"],
        "numa=fake=2: numa=fake and numa=node exclude each other; leave out one of them",
    ),
    (
        &["numa=off", "numa=dist,src=0,dst=0,val=10"],
        "numa=off: numa=off stands alone; leave it out, or leave out every other numa= word",
    ),
    (
        &["numa=fake=2", "numa=off"],
        "numa=off: numa=off stands alone; leave it out, or leave out every other numa= word",
    ),
    (
        &["numa=on"],
        "numa=on: not a form of numa=; there are numa=off, numa=fake=N, numa=node,…, numa=dist,… and numa=hmat,…",
    ),
];

#[test]
fn what_is_wrong_is_quoted_and_explained() {
    for (words, message) in WRONG {
        let error = by_words(&small(), words).expect_err(message);
        assert_eq!(error.to_string(), *message);
        assert!(error.token().is_none_or(|token| error.word().contains(token)));
    }
}

#[test]
fn every_form_but_the_known_ones_is_refused() {
    for word in [
        "numa=",
        "numa",
        "",
        "numa=off,",
        "numa=off=1",
        "numa=node=0",
        "numa=fake",
        "numa=fake=2,mem=1G",
    ] {
        let error = by_words(&small(), &[word]).unwrap_err().to_string();
        assert!(error.contains("not a form of numa="), "{word}: {error}");
    }
}

#[test]
fn fake_nodes_are_limited_by_ram() {
    let three_chunks = machine(1, &[range(MIB, 2 * MIB), range(8 * MIB, 11 * MIB)]);
    assert_eq!(
        by_words(&three_chunks, &["numa=fake=3"]).unwrap().nodes().len(),
        3
    );
    let error = by_words(&three_chunks, &["numa=fake=4"]).unwrap_err().to_string();
    assert!(
        error.starts_with("numa=fake=4: this machine can be split into 1 to 3 nodes"),
        "{error}"
    );
}
