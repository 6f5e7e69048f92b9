//! The table parsers: known answers, and tables that lie.

use acpi_tables::Aml;
use acpi_tables::hmat::{DataType, HMAT, LocalityType, MinTransferSize, SystemLocality};
use acpi_tables::madt::{EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic};
use acpi_tables::slit::SLIT;
use acpi_tables::srat::{MemoryAffinity as RawMemoryAffinity, SRAT};
use homenode_topology::acpi::{
    CpuAffinity, CpuState, Hmat, Madt, Skip, SkipReason, Slit, Srat, TableError, TableErrorKind,
};
use homenode_topology::{ApicId, Latency, PhysAddr};

use crate::machines::{cpu_affinity, qemu, range, sealed, slit, srat, table};

const OEM: [u8; 6] = *b"HNODE ";
const OEM_TABLE: [u8; 8] = *b"HOMENODE";

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

/// A MADT entry for a CPU with a 32-bit APIC id.
fn x2apic(apic_id: u32, uid: u32, flags: u32) -> Vec<u8> {
    let mut entry = vec![9, 16, 0, 0];
    entry.extend([apic_id, flags, uid].map(u32::to_le_bytes).as_flattened());
    entry
}

fn madt(entries: &[Vec<u8>]) -> Vec<u8> {
    table(
        b"APIC",
        5,
        &[&[0, 0, 0xe0, 0xfe, 1, 0, 0, 0], entries.concat().as_slice()].concat(),
    )
}

#[test]
fn madt_lists_cpus_in_its_order_and_steps_over_the_rest() {
    let mut raw = MADT::new(OEM, OEM_TABLE, 1, LocalInterruptController::Address(0xfee0_0000));
    raw.add_structure(ProcessorLocalApic::new(7, 2, EnabledStatus::Enabled));
    raw.add_structure(IoApic::new(0, 0xfec0_0000, 0));
    raw.add_structure(ProcessorLocalApic::new(8, 1, EnabledStatus::Disabled));
    raw.add_structure(ProcessorLocalApic::new(
        9,
        4,
        EnabledStatus::DisabledOnlineCapable,
    ));
    raw.add_structure(ProcessorLocalApic::new(10, 0, EnabledStatus::Enabled));
    let madt = Madt::parse(&bytes(&raw)).unwrap();
    assert_eq!(madt.local_apic_address, PhysAddr(0xfee0_0000));
    let cpus: Vec<_> = madt
        .cpus
        .iter()
        .map(|cpu| (cpu.apic_id.0, cpu.processor_uid, cpu.state))
        .collect();
    let expected = [
        (2, 7, CpuState::Enabled),
        (4, 9, CpuState::OnlineCapable),
        (0, 10, CpuState::Enabled),
    ];
    assert_eq!(cpus, expected);
    assert_eq!(madt.enabled().collect::<Vec<_>>(), [ApicId(2), ApicId(0)]);
    assert_eq!(madt.skipped, []);
}

#[test]
fn madt_with_x2apic_ids_an_address_override_and_nonsense() {
    let address = vec![5, 12, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    let cut = vec![9, 8, 0, 0, 0, 0, 0, 0];
    let table = madt(&[
        x2apic(300, 1, 1),
        address,
        cut,
        x2apic(300, 2, 1),
        x2apic(u32::MAX, 3, 1),
        vec![0, 8, 0, 0xff, 0, 0, 0, 0],
        x2apic(70_000, 4, 1),
    ]);
    let madt = Madt::parse(&table).unwrap();
    assert_eq!(madt.local_apic_address, PhysAddr(0x1_0000_0000));
    assert_eq!(madt.enabled().collect::<Vec<_>>(), [ApicId(300), ApicId(70_000)]);
    let skip = |offset, reason| Skip {
        table: "MADT",
        offset,
        reason,
    };
    let expected = [
        skip(72, SkipReason::TooShort { kind: 9, bytes: 8 }),
        skip(80, SkipReason::DuplicateApicId(300)),
        skip(96, SkipReason::BroadcastApicId),
    ];
    assert_eq!(madt.skipped, expected);
    assert_eq!(
        madt.skipped[0].to_string(),
        "MADT: the entry at byte 72 is left out: 8 bytes are too few for an entry of type 9"
    );
}

#[test]
fn madt_entries_of_no_length_or_too_great_a_length_are_errors() {
    for length in [0, 1, 17, 255] {
        let mut entry = x2apic(0, 0, 1);
        entry[1] = length;
        let kind = TableErrorKind::EntryLength {
            offset: 44,
            claimed: Some(length.into()),
            left: 16,
        };
        assert_eq!(
            Madt::parse(&madt(&[entry])),
            Err(TableError { table: "MADT", kind })
        );
    }
    let kind = TableErrorKind::EntryLength {
        offset: 60,
        claimed: None,
        left: 1,
    };
    let cut = madt(&[x2apic(0, 0, 1), vec![0]]);
    assert_eq!(Madt::parse(&cut), Err(TableError { table: "MADT", kind }));
}

#[test]
fn srat_lists_memory_and_cpus_that_are_enabled() {
    let mut raw = SRAT::new(OEM, OEM_TABLE, 1);
    raw.add_memory_affinity(RawMemoryAffinity::new(0x1_0203, 0, 0xa_0000).enabled());
    raw.add_memory_affinity(RawMemoryAffinity::new(5, 0x10_0000, 0x1000));
    raw.add_memory_affinity(RawMemoryAffinity::new(6, 0x20_0000, 0).enabled());
    raw.add_memory_affinity(RawMemoryAffinity::new(7, u64::MAX, 2).enabled());
    raw.add_memory_affinity(
        RawMemoryAffinity::new(8, 0x1000, 0x1000)
            .enabled()
            .hotpluggable()
            .nonvolatile(),
    );
    let mut raw = bytes(&raw);
    raw[8] = 3;
    let srat_of = |raw: Vec<u8>| Srat::parse(&sealed(raw)).unwrap();
    let srat = srat_of(raw.clone());
    let memory: Vec<_> = srat
        .memory
        .iter()
        .map(|entry| (entry.domain, entry.range))
        .collect();
    assert_eq!(
        memory,
        [(0x1_0203, range(0, 0xa_0000)), (8, range(0x1000, 0x2000))]
    );
    assert!(!srat.memory[0].hot_pluggable && !srat.memory[0].non_volatile);
    assert!(srat.memory[1].hot_pluggable && srat.memory[1].non_volatile);
    assert_eq!(srat.skipped.len(), 1);
    assert_eq!(
        srat.skipped[0].reason,
        SkipReason::AddressOverflow {
            base: u64::MAX,
            bytes: 2
        }
    );
    raw[8] = 1;
    assert_eq!(
        srat_of(raw).memory[0].domain,
        3,
        "revision 1 has domains of 8 bits"
    );
}

#[test]
fn srat_cpus_have_apic_ids_and_domains_of_either_width() {
    let short = vec![0, 16, 0x78, 9, 1, 0, 0, 0, 0, 0x56, 0x34, 0x12, 0, 0, 0, 0];
    let disabled = vec![0, 16, 1, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let table = srat(&[short, disabled, cpu_affinity(2, 100_000)]);
    let expected = [
        CpuAffinity {
            apic_id: ApicId(9),
            domain: 0x1234_5678,
        },
        CpuAffinity {
            apic_id: ApicId(100_000),
            domain: 2,
        },
    ];
    assert_eq!(Srat::parse(&table).unwrap().cpus, expected);
    let mut old = table;
    old[8] = 1;
    assert_eq!(Srat::parse(&sealed(old)).unwrap().cpus[0].domain, 0x78);
}

#[test]
fn slit_gives_distances_and_refuses_a_matrix_that_is_not_there() {
    let mut raw = SLIT::new(OEM, OEM_TABLE, 1, 3);
    raw.set_distance(0, 1, 21);
    raw.set_distance(2, 0, 30);
    let parsed = Slit::parse(&bytes(&raw)).unwrap();
    assert_eq!(parsed.localities(), 3);
    assert_eq!(parsed.distance(1, 0), Some(21));
    assert_eq!(parsed.distance(0, 2), Some(30));
    assert_eq!(parsed.distance(3, 0), None);
    for localities in [4, 1 << 16, 1 << 32, u64::MAX] {
        let mut lying = bytes(&raw);
        lying[36..44].copy_from_slice(&u64::to_le_bytes(localities));
        let kind = TableErrorKind::Matrix { localities, bytes: 9 };
        assert_eq!(
            Slit::parse(&sealed(lying)),
            Err(TableError { table: "SLIT", kind })
        );
    }
    let skewed = Slit::parse(&slit(&[&[10, 11], &[12, 10]])).unwrap();
    assert_eq!(
        (skewed.distance(0, 1), skewed.distance(1, 0)),
        (Some(11), Some(12)),
        "row: from, column: to"
    );
}

fn locality(hierarchy: LocalityType, data_type: DataType, unit: u64, values: [u16; 4]) -> SystemLocality {
    let size = MinTransferSize::SizeByteAligned;
    let mut locality = SystemLocality::new(hierarchy, data_type, size, unit, 2, 2);
    for (index, domain) in [0, 4].into_iter().enumerate() {
        locality.set_initiator_value(index, domain);
        locality.set_target_value(index, domain);
    }
    for (index, value) in values.into_iter().enumerate() {
        locality.set_entry_value(index / 2, index % 2, value);
    }
    locality
}

fn hmat(localities: impl IntoIterator<Item = SystemLocality>) -> Vec<u8> {
    let mut raw = HMAT::new(OEM, OEM_TABLE, 1);
    for locality in localities {
        raw.add_system_locality(locality);
    }
    let mut raw = bytes(&raw);
    raw[8] = 2;
    sealed(raw)
}

#[test]
fn hmat_takes_the_worst_of_memory_and_leaves_out_caches_and_blanks() {
    let table = hmat([
        locality(
            LocalityType::Memory,
            DataType::ReadLatency,
            1000,
            [80, 130, 0xffff, 80],
        ),
        locality(
            LocalityType::Memory,
            DataType::WriteLatency,
            1000,
            [90, 120, 0, 80],
        ),
        locality(
            LocalityType::FirstLevelCache,
            DataType::AccessLatency,
            1000,
            [1000; 4],
        ),
        locality(
            LocalityType::Memory,
            DataType::ReadBandwidth,
            1024,
            [100, 40, 0, 0],
        ),
        locality(
            LocalityType::Memory,
            DataType::WriteBandwidth,
            1024,
            [50, 80, 0xffff, 0],
        ),
    ]);
    let parsed = Hmat::parse(&table).unwrap();
    let figures: Vec<_> = parsed
        .accesses
        .iter()
        .map(|access| {
            let latency = access.attributes.latency.map(Latency::picoseconds);
            let bandwidth = access
                .attributes
                .bandwidth
                .map(|bandwidth| bandwidth.bytes_per_second() >> 30);
            (access.initiator, access.target, latency, bandwidth)
        })
        .collect();
    let expected = [
        (0, 0, Some(90_000), Some(50)),
        (0, 4, Some(130_000), Some(40)),
        (4, 4, Some(80_000), None),
    ];
    assert_eq!(figures, expected);
    assert_eq!(parsed.skipped, []);
}

#[test]
fn hmat_survives_values_and_lists_that_lie() {
    let huge = hmat([locality(
        LocalityType::Memory,
        DataType::AccessBandwidth,
        u64::MAX,
        [2; 4],
    )]);
    let parsed = Hmat::parse(&huge).unwrap();
    assert_eq!(parsed.accesses, []);
    assert_eq!(parsed.skipped[0].reason, SkipReason::ValueOverflow);
    let mut lists = hmat([locality(LocalityType::Memory, DataType::AccessLatency, 1, [1; 4])]);
    lists[52..60].copy_from_slice(&[0xff; 8]);
    let parsed = Hmat::parse(&sealed(lists.clone())).unwrap();
    assert_eq!(parsed.accesses, []);
    assert_eq!(
        parsed.skipped[0].reason,
        SkipReason::Lists {
            initiators: u32::MAX,
            targets: u32::MAX
        }
    );
    lists[44..48].copy_from_slice(&[0; 4]);
    let kind = TableErrorKind::EntryLength {
        offset: 40,
        claimed: Some(0),
        left: 56,
    };
    assert_eq!(
        Hmat::parse(&sealed(lists.clone())),
        Err(TableError { table: "HMAT", kind })
    );
    lists[8] = 1;
    let kind = TableErrorKind::Revision { found: 1, oldest: 2 };
    assert_eq!(
        Hmat::parse(&sealed(lists)),
        Err(TableError { table: "HMAT", kind })
    );
}

#[test]
fn a_table_that_is_not_whole_is_an_error() {
    let table = qemu::Q35_SLIT;
    let error = |bytes: &[u8]| Slit::parse(bytes).unwrap_err().to_string();
    assert_eq!(error(&[]), "SLIT: the table has 0 bytes, and needs 36 at least");
    assert_eq!(
        error(&table[..35]),
        "SLIT: the table has 35 bytes, and needs 36 at least"
    );
    assert_eq!(
        error(&table[..52]),
        "SLIT: the header says 53 bytes, but there are 52"
    );
    assert_eq!(error(qemu::Q35_SRAT), "SLIT: the signature is \"SRAT\"");
    let mut wrong = table.to_vec();
    wrong[45] += 1;
    assert_eq!(
        error(&wrong),
        "SLIT: the checksum is wrong: the bytes add up to 0x01, not to 0"
    );
    let mut short = table.to_vec();
    short[4] = 20;
    assert_eq!(
        error(&short),
        "SLIT: the table has 20 bytes, and needs 36 at least"
    );
    let empty = crate::machines::table(b"SLIT", 1, &[]);
    assert_eq!(
        error(&empty),
        "SLIT: the table has 36 bytes, and needs 44 at least"
    );
    let longer = [table, &[1, 2, 3]].concat();
    assert_eq!(
        Slit::parse(&longer),
        Slit::parse(table),
        "bytes behind the table do not count"
    );
}

#[test]
fn qemus_tables_say_what_qemu_was_told() {
    let madt = Madt::parse(qemu::Q35_MADT).unwrap();
    assert_eq!(madt.enabled().map(|id| id.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(madt.local_apic_address, PhysAddr(0xfee0_0000));
    let srat = Srat::parse(qemu::Q35_SRAT).unwrap();
    assert_eq!(
        srat.cpus.iter().map(|cpu| cpu.domain).collect::<Vec<_>>(),
        [0, 0, 1, 1, 1]
    );
    assert_eq!(srat.memory.len(), 5);
    let slit = Slit::parse(qemu::Q35_SLIT).unwrap();
    assert_eq!(slit.distance(1, 2), Some(40));
    let hmat = Hmat::parse(qemu::Q35_HMAT).unwrap();
    let slow = hmat
        .accesses
        .iter()
        .find(|access| (access.initiator, access.target) == (0, 2))
        .unwrap();
    assert_eq!(slow.attributes.latency.unwrap().to_string(), "250ns");
    assert_eq!(slow.attributes.bandwidth.unwrap().to_string(), "20 GiB/s");
    assert_eq!(hmat.accesses.len(), 4);

    let many = Srat::parse(qemu::MANY_SRAT).unwrap();
    assert_eq!(many.cpus.len(), 260);
    assert_eq!(
        many.cpus[259],
        CpuAffinity {
            apic_id: ApicId(259),
            domain: 1
        }
    );
    assert_eq!(Madt::parse(qemu::MANY_MADT).unwrap().enabled().count(), 2);
}
