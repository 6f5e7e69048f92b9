//! RAM blocks out of memory maps.

use homenode_topology::MemoryKind::{AcpiNvs, AcpiReclaimable, Other, Reserved, Usable};
use homenode_topology::{MemoryKind, MemoryMapEntry, PAGE_BYTES, PhysRange, ram_blocks};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::machines::range;

type Entry = (u64, u64, MemoryKind);

fn blocks(entries: &[Entry]) -> Vec<PhysRange> {
    let map: Vec<MemoryMapEntry> = entries
        .iter()
        .map(|&(start, end, kind)| MemoryMapEntry {
            range: range(start, end),
            kind,
        })
        .collect();
    ram_blocks(&map)
}

/// What QEMU's q35 reserves on top of low RAM, for the configuration window, registers and flash.
const Q35_BELOW_1M: [Entry; 3] = [
    (0, 0x9_fc00, Usable),
    (0x9_fc00, 0xa_0000, Reserved),
    (0xf_0000, 0x10_0000, Reserved),
];
const Q35_DEVICES: [Entry; 4] = [
    (0xb000_0000, 0xc000_0000, Reserved),
    (0xfed1_c000, 0xfed2_0000, Reserved),
    (0xfeff_c000, 0xff00_0000, Reserved),
    (0xfffc_0000, 0x1_0000_0000, Reserved),
];

fn q35(low_end: u64, more: &[Entry]) -> Vec<PhysRange> {
    let low = [
        (0x10_0000, low_end - 0x2_1000, Usable),
        (low_end - 0x2_1000, low_end, Reserved),
    ];
    blocks(&[&Q35_BELOW_1M[..], &low, &Q35_DEVICES, more].concat())
}

#[test]
fn q35_has_the_ram_it_was_given() {
    assert_eq!(q35(0x8000_0000, &[]), [range(0, 0x8000_0000)]);
    let high = (0x1_0000_0000, 0x1_c000_0000, Usable);
    assert_eq!(
        q35(0x8000_0000, &[high]),
        [range(0, 0x8000_0000), range(0x1_0000_0000, 0x1_c000_0000)]
    );
}

#[test]
fn the_configuration_window_is_no_ram_even_if_it_follows_ram() {
    assert_eq!(q35(0xb000_0000, &[]), [range(0, 0xb000_0000)]);
}

#[test]
fn flash_below_4_gib_is_no_ram_even_if_ram_follows_it() {
    let map = [
        (0xfffc_0000, 0x1_0000_0000, Reserved),
        (0x1_0000_0000, 0x1_4000_0000, Usable),
    ];
    assert_eq!(blocks(&map), [range(0x1_0000_0000, 0x1_4000_0000)]);
}

#[test]
fn the_firmwares_part_of_ram_counts_up_to_16_mib() {
    let ram = (0x10_0000, 0x7000_0000, Usable);
    let acpi = [
        (0x7000_0000, 0x7010_0000, AcpiReclaimable),
        (0x7010_0000, 0x7800_0000, AcpiNvs),
    ];
    let smm = (0x7800_0000, 0x7880_0000, Reserved);
    let all = [ram, acpi[0], acpi[1], smm];
    assert_eq!(blocks(&all), [range(0x10_0000, 0x7880_0000)]);
    let another = (0x7880_0000, 0x7900_0000, Reserved);
    assert_eq!(
        blocks(&[&all[..], &[another]].concat()),
        [range(0x10_0000, 0x7900_0000)]
    );
    let too_much = (0x7900_0000, 0x7900_1000, Reserved);
    assert_eq!(
        blocks(&[&all[..], &[another, too_much]].concat()),
        [range(0x10_0000, 0x7900_0000)]
    );
}

#[test]
fn persistent_and_broken_memory_is_no_ram() {
    let map = [(0x10_0000, 0x20_0000, Usable), (0x20_0000, 0x21_0000, Other)];
    assert_eq!(blocks(&map), [range(0x10_0000, 0x20_0000)]);
}

#[test]
fn blocks_hold_whole_pages() {
    assert_eq!(
        blocks(&[(0x10_0001, 0x10_2fff, Usable)]),
        [range(0x10_1000, 0x10_2000)]
    );
    assert_eq!(blocks(&[(0x10_0001, 0x10_0fff, Usable)]), []);
    assert_eq!(blocks(&[]), []);
}

fn entry() -> impl Strategy<Value = MemoryMapEntry> {
    let address = prop_oneof![
        any::<u64>(),
        0..0x200_u64,
        (0..0x200_u64).prop_map(|page| page << 20)
    ];
    let kind = prop::sample::select(vec![Usable, Reserved, AcpiReclaimable, AcpiNvs, Other]);
    (address.clone(), address, kind).prop_map(|(start, end, kind)| MemoryMapEntry {
        range: range(start, end),
        kind,
    })
}

proptest! {
    #[test]
    fn any_map_gives_sorted_disjoint_pages_that_hold_all_usable_memory(map in vec(entry(), 0..12)) {
        let blocks = ram_blocks(&map);
        for block in &blocks {
            prop_assert!(!block.is_empty());
            prop_assert!(block.start.is_aligned(PAGE_BYTES) && block.end.is_aligned(PAGE_BYTES));
        }
        prop_assert!(blocks.is_sorted_by(|one, next| one.end < next.start || one.end <= next.start));
        for entry in map.iter().filter(|entry| entry.kind == Usable) {
            let Some(start) = entry.range.start.align_up(PAGE_BYTES) else { continue };
            let inner = PhysRange::new(start, entry.range.end.align_down(PAGE_BYTES));
            let inside = blocks.iter().any(|block| block.intersection(&inner) == Some(inner));
            prop_assert!(inner.is_empty() || inside, "{} is not in {:?}", inner, blocks);
        }
    }

    #[test]
    fn the_order_of_entries_does_not_matter(map in vec(entry(), 0..8), seed in any::<u64>()) {
        let mut shuffled = map.clone();
        for index in 1..shuffled.len() {
            let other = (seed.rotate_left(index as u32 * 7) % (index as u64 + 1)) as usize;
            shuffled.swap(index, other);
        }
        prop_assert_eq!(ram_blocks(&map), ram_blocks(&shuffled));
    }
}
