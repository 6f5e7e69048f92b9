//! The emulated machine: its size and shape, and QEMU's arguments for it.

use std::str::FromStr;

use anyhow::{Context as _, Result, bail, ensure};

use crate::qemu::Accelerator;

/// The distance between different nodes where none is given, as in Linux and ACPI.
const REMOTE_DISTANCE: u8 = 20;
/// A node's distance to itself; ACPI defines all others relative to it.
const LOCAL_DISTANCE: u8 = 10;
/// The largest number of nodes that QEMU emulates.
const MAX_NODES: u32 = 128;
/// The largest APIC id that an interrupt can address without x2APIC (255 means all).
const MAX_XAPIC_ID: u32 = 254;

/// An amount of memory in MiB, the unit in which QEMU takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mebibytes(pub u64);

impl FromStr for Mebibytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = parse_size::Config::new()
            .with_binary()
            .parse_size(text)
            .map_err(|error| format!("{error}; write it as 4G or 512M"))?;
        if bytes == 0 {
            return Err("there must be some; write it as 4G or 512M".to_owned());
        }
        if bytes % (1 << 20) != 0 {
            return Err("it must be a multiple of 1M; write it as 4G or 512M".to_owned());
        }
        Ok(Self(bytes >> 20))
    }
}

/// A distance between two nodes, `SRC:DST:VAL` on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distance {
    /// The node that accesses memory.
    pub source: u32,
    /// The node whose memory is accessed.
    pub destination: u32,
    /// Relative latency; a node's own memory is at 10.
    pub value: u8,
}

impl FromStr for Distance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || "a distance is SRC:DST:VAL, as in 0:1:25".to_owned();
        let mut parts = text.split(':');
        let mut next = || parts.next().and_then(|part| part.parse::<u32>().ok());
        let (source, destination, value) = (|| Some((next()?, next()?, next()?)))().ok_or_else(malformed)?;
        if parts.next().is_some() {
            return Err(malformed());
        }
        let value = u8::try_from(value).map_err(|_| format!("VAL is {value}, but at most 255"))?;
        match (source == destination, value) {
            (true, LOCAL_DISTANCE) => {}
            (true, _) => return Err(format!("VAL is {value}, but a node's distance to itself is 10")),
            (false, ..=LOCAL_DISTANCE) => {
                return Err(format!("VAL is {value}, but another node is more than 10 away"));
            }
            (false, _) => {}
        }
        Ok(Self {
            source,
            destination,
            value,
        })
    }
}

/// The emulated machine.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "The machine")]
pub struct Machine {
    /// Number of NUMA nodes that have CPUs and memory
    #[arg(long, value_name = "N", default_value_t = 4, allow_negative_numbers = true)]
    pub nodes: u32,

    /// Number of CPUs of the whole machine. Nodes get equal shares in order; the first get one more where it does not divide
    #[arg(
        long,
        value_name = "TOTAL",
        default_value_t = 8,
        allow_negative_numbers = true
    )]
    pub cpus: u32,

    /// Memory of the whole machine, as in 4G or 1536M, shared out like the CPUs
    #[arg(long, value_name = "TOTAL", default_value = "4G")]
    pub memory: Mebibytes,

    /// N further nodes that have memory but no CPU, as slower tiers have. They come last, and share in --memory
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub cpuless: u32,

    /// N further nodes that have CPUs but no memory. They come behind the ordinary nodes, and share in --cpus
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub memoryless: u32,

    /// Distance between two nodes, as in 0:1:25; both ways unless the reverse is given too. Once there is one, those not given
    /// are 20 [repeatable]
    #[arg(long = "distance", value_name = "SRC:DST:VAL")]
    pub distances: Vec<Distance>,

    /// Let the firmware say nothing about nodes, so that only the kernel's command line knows them (see --cmdline)
    #[arg(long, conflicts_with_all = ["nodes", "cpuless", "memoryless", "distances"])]
    pub no_acpi_numa: bool,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            nodes: 4,
            cpus: 8,
            memory: Mebibytes(4096),
            cpuless: 0,
            memoryless: 0,
            distances: Vec::new(),
            no_acpi_numa: false,
        }
    }
}

/// What one node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    cpus: u32,
    memory: u64,
}

/// CPUs as QEMU's `-smp` takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packages {
    sockets: u32,
    cores: u32,
}

impl Packages {
    /// The largest APIC id: the core's number takes as many low bits as it needs, the socket's stands above.
    fn max_apic_id(self) -> u32 {
        (self.sockets - 1) * self.cores.next_power_of_two() + self.cores - 1
    }
}

impl Machine {
    /// QEMU's arguments for this machine: board, CPUs, memory and nodes.
    ///
    /// # Errors
    /// If the options contradict each other; the message names the option.
    pub fn arguments(&self, accelerator: Accelerator) -> Result<Vec<String>> {
        let nodes = self.node_list()?;
        let packages = self.packages(&nodes);

        let mut arguments = Arguments::default();
        // KVM emulates the APICs, and takes ids above 255 only if QEMU emulates the rest, interrupt remapping included.
        let remapped = accelerator == Accelerator::Kvm && self.needs_x2apic()?;
        arguments.add(
            "-machine",
            if remapped {
                "q35,kernel-irqchip=split"
            } else {
                "q35"
            },
        );
        arguments.add("-accel", accelerator.argument());
        arguments.add("-cpu", "max");
        if remapped {
            arguments.add("-device", "intel-iommu,intremap=on,eim=on");
        }
        arguments.add("-m", format!("{}M", self.memory.0));
        let Packages { sockets, cores } = packages;
        arguments.add(
            "-smp",
            format!("{},sockets={sockets},cores={cores},threads=1", self.cpus),
        );
        if self.no_acpi_numa {
            return Ok(arguments.0);
        }

        let mut first_cpu = 0;
        for (id, node) in nodes.iter().enumerate() {
            let mut numa = format!("node,nodeid={id}");
            if node.cpus > 0 {
                numa += &format!(",cpus={first_cpu}-{}", first_cpu + node.cpus - 1);
                first_cpu += node.cpus;
            }
            if node.memory > 0 {
                arguments.add(
                    "-object",
                    format!("memory-backend-ram,id=memory{id},size={}M", node.memory),
                );
                numa += &format!(",memdev=memory{id}");
            }
            arguments.add("-numa", numa);
        }
        for Distance {
            source,
            destination,
            value,
        } in self.distance_table(nodes.len())?
        {
            arguments.add(
                "-numa",
                format!("dist,src={source},dst={destination},val={value}"),
            );
        }
        Ok(arguments.0)
    }

    /// Checks that the options fit together, before anything expensive is done.
    ///
    /// # Errors
    /// As those of [`Machine::arguments`].
    pub fn validate(&self) -> Result<()> {
        self.arguments(Accelerator::TcgMulti).map(drop)
    }

    /// Whether an APIC id of this machine is too large for an xAPIC.
    ///
    /// # Errors
    /// As those of [`Machine::arguments`].
    pub fn needs_x2apic(&self) -> Result<bool> {
        Ok(self.packages(&self.node_list()?).max_apic_id() > MAX_XAPIC_ID)
    }

    /// Its nodes as JSON, in the form that the referee takes: the CPUs and the bytes of memory of each.
    ///
    /// # Errors
    /// As those of [`Machine::arguments`].
    pub fn description(&self) -> Result<String> {
        let mut first_cpu = 0;
        let nodes = self.node_list()?.into_iter().map(|Node { cpus, memory }| {
            let numbers: Vec<u32> = (first_cpu..first_cpu + cpus).collect();
            first_cpu += cpus;
            serde_json::json!({"cpus": numbers, "memory": memory << 20})
        });
        Ok(serde_json::json!({"nodes": nodes.collect::<Vec<_>>()}).to_string())
    }

    /// The nodes in order: ordinary ones, those without memory, those without CPUs.
    fn node_list(&self) -> Result<Vec<Node>> {
        ensure!(self.cpus > 0, "--cpus 0: a machine has at least one CPU");
        if self.no_acpi_numa {
            return Ok(vec![Node {
                cpus: self.cpus,
                memory: self.memory.0,
            }]);
        }
        ensure!(
            self.nodes > 0,
            "--nodes 0: a machine has at least one node with CPUs and memory"
        );
        let count = [self.nodes, self.cpuless, self.memoryless]
            .iter()
            .try_fold(0, |sum: u32, &n| sum.checked_add(n));
        ensure!(
            count.is_some_and(|count| count <= MAX_NODES),
            "QEMU emulates at most {MAX_NODES} nodes"
        );
        let (with_cpus, with_memory) = (self.nodes + self.memoryless, self.nodes + self.cpuless);
        ensure!(
            self.cpus >= with_cpus,
            "--cpus {}: {with_cpus} nodes need at least {with_cpus} CPUs; take more CPUs, fewer --nodes, or --cpuless nodes",
            self.cpus
        );
        ensure!(
            self.memory.0 >= u64::from(with_memory),
            "--memory {}M: {with_memory} nodes need at least {with_memory}M",
            self.memory.0
        );
        let mut cpus = even_shares(self.cpus.into(), with_cpus);
        let mut memory = even_shares(self.memory.0, with_memory);
        let mut nodes = Vec::new();
        for id in 0..with_cpus + self.cpuless {
            let has_cpus = id < with_cpus;
            let has_memory = id < self.nodes || id >= with_cpus;
            nodes.push(Node {
                cpus: u32::try_from(if has_cpus { cpus.next().unwrap_or(0) } else { 0 })?,
                memory: if has_memory { memory.next().unwrap_or(0) } else { 0 },
            });
        }
        Ok(nodes)
    }

    /// One socket for each node with CPUs, where all have as many; else one for each CPU.
    fn packages(&self, nodes: &[Node]) -> Packages {
        let mut with_cpus = nodes.iter().filter(|node| node.cpus > 0).map(|node| node.cpus);
        let cores = with_cpus.next().unwrap_or(1);
        if with_cpus.all(|cpus| cpus == cores) {
            Packages {
                sockets: self.cpus / cores,
                cores,
            }
        } else {
            Packages {
                sockets: self.cpus,
                cores: 1,
            }
        }
    }

    /// Every distance between different nodes if any is given (QEMU wants all or none), else none.
    fn distance_table(&self, nodes: usize) -> Result<Vec<Distance>> {
        for distance in &self.distances {
            let Distance {
                source,
                destination,
                value,
            } = distance;
            if let Some(node) = [*source, *destination]
                .into_iter()
                .find(|&node| node as usize >= nodes)
            {
                bail!(
                    "--distance {source}:{destination}:{value}: there is no node {node}, only 0 to {}",
                    nodes - 1
                );
            }
            let same = |other: &&Distance| (other.source, other.destination) == (*source, *destination);
            if self.distances.iter().filter(same).count() > 1 {
                bail!("--distance {source}:{destination}:{value}: this distance is given twice");
            }
        }
        if self.distances.is_empty() {
            return Ok(Vec::new());
        }
        let given = |source, destination| {
            let mut reversed = self.distances.iter().rev();
            reversed.find(|distance| (distance.source, distance.destination) == (source, destination))
        };
        let nodes = u32::try_from(nodes).context("too many nodes")?;
        let pairs = (0..nodes).flat_map(|source| (0..nodes).map(move |destination| (source, destination)));
        Ok(pairs
            .filter(|(source, destination)| source != destination)
            .map(|(source, destination)| {
                let known = given(source, destination).or_else(|| given(destination, source));
                let value = known.map_or(REMOTE_DISTANCE, |distance| distance.value);
                Distance {
                    source,
                    destination,
                    value,
                }
            })
            .collect())
    }
}

/// Arguments of a program that takes an option and its value apart.
#[derive(Default)]
struct Arguments(Vec<String>);

impl Arguments {
    fn add(&mut self, option: &str, value: impl Into<String>) {
        self.0.extend([option.to_owned(), value.into()]);
    }
}

/// Shares `total` out into `parts`, as evenly as whole numbers allow; the first ones get one more.
fn even_shares(total: u64, parts: u32) -> impl Iterator<Item = u64> {
    let parts = u64::from(parts);
    (0..parts).map(move |part| total / parts + u64::from(part < total % parts))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn arguments(machine: &Machine) -> String {
        machine.arguments(Accelerator::TcgMulti).unwrap().join(" ")
    }

    fn error(machine: &Machine) -> String {
        machine.arguments(Accelerator::TcgMulti).unwrap_err().to_string()
    }

    #[test]
    fn the_default_machine_has_four_sockets_and_nodes() {
        assert_eq!(
            arguments(&Machine::default()),
            "-machine q35 -accel tcg,thread=multi -cpu max -m 4096M -smp 8,sockets=4,cores=2,threads=1 \
             -object memory-backend-ram,id=memory0,size=1024M -numa node,nodeid=0,cpus=0-1,memdev=memory0 \
             -object memory-backend-ram,id=memory1,size=1024M -numa node,nodeid=1,cpus=2-3,memdev=memory1 \
             -object memory-backend-ram,id=memory2,size=1024M -numa node,nodeid=2,cpus=4-5,memdev=memory2 \
             -object memory-backend-ram,id=memory3,size=1024M -numa node,nodeid=3,cpus=6-7,memdev=memory3"
        );
    }

    #[test]
    fn what_does_not_divide_goes_to_the_first_nodes() {
        let machine = Machine {
            nodes: 3,
            cpus: 7,
            memory: Mebibytes(1000),
            ..Machine::default()
        };
        assert_eq!(
            arguments(&machine),
            "-machine q35 -accel tcg,thread=multi -cpu max -m 1000M -smp 7,sockets=7,cores=1,threads=1 \
             -object memory-backend-ram,id=memory0,size=334M -numa node,nodeid=0,cpus=0-2,memdev=memory0 \
             -object memory-backend-ram,id=memory1,size=333M -numa node,nodeid=1,cpus=3-4,memdev=memory1 \
             -object memory-backend-ram,id=memory2,size=333M -numa node,nodeid=2,cpus=5-6,memdev=memory2"
        );
    }

    #[test]
    fn nodes_without_memory_come_before_nodes_without_cpus() {
        let machine = Machine {
            nodes: 1,
            memoryless: 1,
            cpuless: 1,
            cpus: 4,
            memory: Mebibytes(512),
            distances: vec!["0:2:40".parse().unwrap(), "2:0:45".parse().unwrap()],
            ..Machine::default()
        };
        assert_eq!(
            arguments(&machine),
            "-machine q35 -accel tcg,thread=multi -cpu max -m 512M -smp 4,sockets=2,cores=2,threads=1 \
             -object memory-backend-ram,id=memory0,size=256M -numa node,nodeid=0,cpus=0-1,memdev=memory0 \
             -numa node,nodeid=1,cpus=2-3 \
             -object memory-backend-ram,id=memory2,size=256M -numa node,nodeid=2,memdev=memory2 \
             -numa dist,src=0,dst=1,val=20 -numa dist,src=0,dst=2,val=40 \
             -numa dist,src=1,dst=0,val=20 -numa dist,src=1,dst=2,val=20 \
             -numa dist,src=2,dst=0,val=45 -numa dist,src=2,dst=1,val=20"
        );
    }

    #[test]
    fn the_description_tells_cpus_and_bytes_of_each_node() {
        let machine = Machine {
            nodes: 1,
            memoryless: 1,
            cpuless: 1,
            cpus: 3,
            memory: Mebibytes(4),
            ..Machine::default()
        };
        assert_eq!(
            machine.description().unwrap(),
            r#"{"nodes":[{"cpus":[0,1],"memory":2097152},{"cpus":[2],"memory":0},{"cpus":[],"memory":2097152}]}"#
        );
    }

    #[test]
    fn a_distance_given_one_way_holds_both_ways() {
        let machine = Machine {
            nodes: 2,
            distances: vec!["1:0:25".parse().unwrap()],
            ..Machine::default()
        };
        assert!(arguments(&machine).ends_with("-numa dist,src=0,dst=1,val=25 -numa dist,src=1,dst=0,val=25"));
    }

    #[test]
    fn without_acpi_numa_the_firmware_knows_no_node() {
        let machine = Machine {
            no_acpi_numa: true,
            cpus: 4,
            memory: Mebibytes(2048),
            ..Machine::default()
        };
        assert_eq!(
            arguments(&machine),
            "-machine q35 -accel tcg,thread=multi -cpu max -m 2048M -smp 4,sockets=1,cores=4,threads=1"
        );
    }

    #[test]
    fn kvm_remaps_interrupts_once_apic_ids_need_more_than_eight_bits() {
        let machine = |nodes, cpus| Machine {
            nodes,
            cpus,
            ..Machine::default()
        };
        let kvm = |nodes, cpus| {
            machine(nodes, cpus)
                .arguments(Accelerator::Kvm)
                .unwrap()
                .join(" ")
        };
        assert!(kvm(4, 512).contains("-machine q35,kernel-irqchip=split "));
        assert!(kvm(4, 512).contains("-device intel-iommu,intremap=on,eim=on"));
        assert!(!kvm(1, 255).contains("iommu"));
        // Three cores take two bits of the APIC id: the last of 83 sockets has 330.
        assert!(kvm(83, 249).contains("iommu"));
        assert!(!arguments(&machine(4, 512)).contains("iommu"));
    }

    #[test]
    fn contradictions_name_the_option() {
        let machine = Machine {
            cpus: 3,
            ..Machine::default()
        };
        assert!(
            error(&machine).starts_with("--cpus 3: 4 nodes need"),
            "{}",
            error(&machine)
        );
        let machine = Machine {
            nodes: 0,
            ..Machine::default()
        };
        assert!(error(&machine).starts_with("--nodes 0"));
        let machine = Machine {
            nodes: u32::MAX,
            cpuless: 7,
            ..Machine::default()
        };
        assert!(error(&machine).contains("at most 128 nodes"));
        let machine = Machine {
            distances: vec!["0:4:30".parse().unwrap()],
            ..Machine::default()
        };
        assert_eq!(
            error(&machine),
            "--distance 0:4:30: there is no node 4, only 0 to 3"
        );
        let machine = Machine {
            distances: vec!["0:1:30".parse().unwrap(), "0:1:20".parse().unwrap()],
            ..Machine::default()
        };
        assert_eq!(error(&machine), "--distance 0:1:30: this distance is given twice");
        let machine = Machine {
            memory: Mebibytes(2),
            ..Machine::default()
        };
        assert!(error(&machine).starts_with("--memory 2M"));
    }

    #[test]
    fn distances_are_parsed() {
        assert_eq!(
            "0:1:25".parse(),
            Ok(Distance {
                source: 0,
                destination: 1,
                value: 25
            })
        );
        for wrong in [
            "", "0:1", "0:1:25:3", "a:1:25", "0:1:256", "0:1:10", "0:0:11", "-1:0:20",
        ] {
            assert!(wrong.parse::<Distance>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_binary_and_whole_mebibytes() {
        assert_eq!("4G".parse(), Ok(Mebibytes(4096)));
        assert_eq!("1536M".parse(), Ok(Mebibytes(1536)));
        for wrong in ["", "0", "4", "1025K", "much"] {
            assert!(wrong.parse::<Mebibytes>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn shares_add_up_and_differ_by_at_most_one(total in 0_u64..1 << 40, parts in 1_u32..200) {
            let shares: Vec<u64> = even_shares(total, parts).collect();
            prop_assert_eq!(shares.len(), parts as usize);
            prop_assert_eq!(shares.iter().sum::<u64>(), total);
            prop_assert!(shares.is_sorted_by(|a, b| a >= b));
            prop_assert!(shares[0] - shares[shares.len() - 1] <= 1);
        }
    }
}
