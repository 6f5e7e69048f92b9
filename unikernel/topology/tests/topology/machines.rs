//! Machines and tables that several tests use.

use homenode_topology::acpi::Madt;
use homenode_topology::{ApicId, Firmware, Inventory, PhysAddr, PhysRange, Topology, TopologyError, resolve};

pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn range(start: u64, end: u64) -> PhysRange {
    PhysRange::new(PhysAddr(start), PhysAddr(end))
}

/// CPUs with APIC ids 0, 1, 2 and so on, and RAM.
pub(crate) fn machine(cpus: u32, ram: &[PhysRange]) -> Inventory {
    Inventory::new((0..cpus).map(ApicId).collect(), ram.to_vec())
}

/// 4 CPUs and 2 GiB in one piece, as the q35 machine of QEMU has them.
pub(crate) fn small() -> Inventory {
    machine(4, &[range(0, 2 * GIB)])
}

/// The q35 machine whose tables are [`qemu`]: 4 CPUs, 2 GiB below and 3 GiB above the hole.
pub(crate) fn large() -> Inventory {
    let madt = Madt::parse(qemu::Q35_MADT).unwrap();
    Inventory::new(
        madt.enabled().collect(),
        vec![range(0, 2 * GIB), range(4 * GIB, 7 * GIB)],
    )
}

/// The topology that only the words tell.
pub(crate) fn by_words(machine: &Inventory, words: &[&str]) -> Result<Topology, TopologyError> {
    resolve(machine, None, words.iter().copied()).map(|(topology, notices)| {
        assert_eq!(notices, [], "without firmware there is nothing to notice");
        topology
    })
}

/// The topology that the firmware tells, and its notices as text.
pub(crate) fn by_firmware(machine: &Inventory, firmware: &Firmware) -> (Topology, Vec<String>) {
    let (topology, notices) = resolve(machine, Some(firmware), []).unwrap();
    (topology, notices.iter().map(ToString::to_string).collect())
}

/// Tables captured from QEMU; `tables/README.md` says of which machines.
pub(crate) mod qemu {
    pub(crate) const Q35_MADT: &[u8] = include_bytes!("tables/q35-apic.bin");
    pub(crate) const Q35_SRAT: &[u8] = include_bytes!("tables/q35-srat.bin");
    pub(crate) const Q35_SLIT: &[u8] = include_bytes!("tables/q35-slit.bin");
    pub(crate) const Q35_HMAT: &[u8] = include_bytes!("tables/q35-hmat.bin");
    pub(crate) const MANY_MADT: &[u8] = include_bytes!("tables/many-apic.bin");
    pub(crate) const MANY_SRAT: &[u8] = include_bytes!("tables/many-srat.bin");
}

/// A table with this body, whose length and checksum are right.
pub(crate) fn table(signature: &[u8; 4], revision: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = signature.to_vec();
    bytes.extend(u32::try_from(36 + body.len()).unwrap().to_le_bytes());
    bytes.extend([revision, 0]);
    bytes.extend(*b"HNODE HOMENODE");
    bytes.extend([0; 12]);
    bytes.extend(body);
    sealed(bytes)
}

/// The table with a right checksum.
pub(crate) fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[9] = 0;
    bytes[9] = bytes.iter().fold(0, |sum: u8, byte| sum.wrapping_sub(*byte));
    bytes
}

/// An SRAT made of entries.
pub(crate) fn srat(entries: &[Vec<u8>]) -> Vec<u8> {
    table(b"SRAT", 3, &[&[0; 12], entries.concat().as_slice()].concat())
}

/// An SRAT entry for a CPU, with a 32-bit APIC id.
pub(crate) fn cpu_affinity(domain: u32, apic_id: u32) -> Vec<u8> {
    let mut entry = vec![2, 24, 0, 0];
    entry.extend([domain, apic_id, 1, 0, 0].map(u32::to_le_bytes).as_flattened());
    entry
}

/// An SRAT entry for memory.
pub(crate) fn memory_affinity(domain: u32, range: PhysRange) -> Vec<u8> {
    let mut entry = vec![1, 40];
    entry.extend(domain.to_le_bytes());
    entry.extend([0; 2]);
    entry.extend(
        [range.start.0, range.bytes()]
            .map(u64::to_le_bytes)
            .as_flattened(),
    );
    entry.extend([0, 1, 0, 0].map(u32::to_le_bytes).as_flattened());
    entry
}

/// A SLIT with these rows.
pub(crate) fn slit(rows: &[&[u8]]) -> Vec<u8> {
    table(
        b"SLIT",
        1,
        &[(rows.len() as u64).to_le_bytes().as_slice(), &rows.concat()].concat(),
    )
}
