//! Addresses, ranges and sizes.

use homenode_mm::{Order, PageSize, VirtAddr, VirtRange};
use proptest::prelude::*;

proptest! {
    #[test]
    fn an_address_is_canonical_if_its_17_top_bits_are_equal(address: u64, shift in 0u32..64) {
        let address = address >> shift;
        let top = address >> 47;
        prop_assert_eq!(VirtAddr::new(address).is_some(), top == 0 || top == 0x1_ffff);
        let truncated = VirtAddr::new_truncated(address).as_u64();
        prop_assert_eq!(truncated << 16, address << 16);
        prop_assert!(VirtAddr::new(truncated).is_some());
    }

    #[test]
    fn a_range_holds_canonical_addresses_of_one_half(start: u64, bytes: u64, shift in 0u32..64) {
        let start = VirtAddr::new_truncated(start);
        let bytes = bytes >> shift;
        let half_end = if start.as_u64() >> 63 == 0 { 1 << 47 } else { 1u128 << 64 };
        let fits = u128::from(start.as_u64()) + u128::from(bytes) <= half_end;
        let range = VirtRange::new(start, bytes);
        prop_assert_eq!(range.is_some(), fits);
        if let Some(range) = range {
            prop_assert_eq!(range.contains(start), bytes > 0);
            prop_assert!(!start.checked_add(bytes).is_some_and(|end| range.contains(end)));
        }
    }
}

#[test]
fn sizes_read_as_people_write_them() {
    let text = |order| Order::new(order).unwrap().to_string();
    assert_eq!(
        [text(0), text(1), text(8), text(9), text(18)],
        ["4 KiB", "8 KiB", "1 MiB", "2 MiB", "1 GiB"]
    );
    assert_eq!(
        PageSize::ALL.map(|size| size.to_string()),
        ["4 KiB", "2 MiB", "1 GiB"]
    );
    assert_eq!(PageSize::ALL.map(PageSize::bytes), [4096, 2 << 20, 1 << 30]);
    assert_eq!(Order::new(19), None);
}

#[test]
fn the_highest_range_ends_where_addresses_end() {
    let top = VirtAddr::new(0xffff_ffff_ffff_f000).unwrap();
    assert_eq!(
        VirtRange::new(top, 4096).unwrap().to_string(),
        "0xfffffffffffff000-0x10000000000000000"
    );
    assert_eq!(VirtRange::new(top, 4097), None);
    assert_eq!(top.checked_add(4096), None);
}
