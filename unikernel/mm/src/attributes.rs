//! What a range of addresses is: its protection, its policy and the largest page that may back it.
//!
//! Every entry of the page table over program memory, present or not, carries the number of its attributes in bits that the CPU
//! ignores, so that no other structure says what a range is. Few different attributes exist at a time, so a number of eleven
//! bits is enough; numbers are never given back.

use core::fmt;

use homenode_topology::NodeId;

use crate::atomic::{AtomicU32, Ordering};
use crate::policy::Policy;
use crate::size::PageSize;

/// What may be done with a range. Nothing there is ever executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protection {
    /// Nothing: every access is an error.
    None,
    /// Reading.
    Read,
    /// Reading and writing.
    #[default]
    ReadWrite,
}

impl Protection {
    /// Whether this allows something that `other` forbids.
    pub(crate) const fn allows_more_than(self, other: Self) -> bool {
        self as u8 > other as u8
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "no access",
            Self::Read => "read only",
            Self::ReadWrite => "read and write",
        })
    }
}

/// What a range of addresses is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// What may be done there.
    pub protection: Protection,
    /// Where its pages come from; `None` is the policy of the thread that touches a page first.
    pub policy: Option<Policy>,
    /// The largest page that may back it.
    pub page_size: PageSize,
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            protection: Protection::default(),
            policy: None,
            page_size: PageSize::Size2MiB,
        }
    }
}

/// Attributes as one word, which the page-fault path reads without unpacking it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedAttributes(u32);

impl PackedAttributes {
    /// The nodes' numbers stand in the lowest bits.
    const NODE: u32 = 0xffff;
    const POLICY_SHIFT: u32 = 16;
    const POLICY: u32 = 7 << Self::POLICY_SHIFT;
    const PAGE_SIZE_SHIFT: u32 = 20;
    /// The range may be read.
    pub(crate) const READ: u32 = 1 << 24;
    /// The range may be written to.
    pub(crate) const WRITE: u32 = 1 << 25;
    /// Set in all, so that none is 0.
    const IN_USE: u32 = 1 << 31;

    /// `None` if the policy names a node beyond all numbers.
    const fn new(attributes: Attributes) -> Option<Self> {
        let (policy, node) = match attributes.policy {
            None => (0, 0),
            Some(Policy::Local) => (1, 0),
            Some(Policy::Bind(node)) => (2, node.0),
            Some(Policy::Preferred(node)) => (3, node.0),
            Some(Policy::Interleave) => (4, 0),
        };
        if node > Self::NODE {
            return None;
        }
        let protection = match attributes.protection {
            Protection::None => 0,
            Protection::Read => Self::READ,
            Protection::ReadWrite => Self::READ | Self::WRITE,
        };
        Some(Self(
            Self::IN_USE
                | protection
                | (attributes.page_size as u32) << Self::PAGE_SIZE_SHIFT
                | policy << Self::POLICY_SHIFT
                | node,
        ))
    }

    pub(crate) const fn unpack(self) -> Attributes {
        Attributes {
            protection: self.protection(),
            policy: self.policy(),
            page_size: self.page_size(),
        }
    }

    /// Whether one of these rights, [`READ`](Self::READ) or [`WRITE`](Self::WRITE), is given.
    #[inline]
    pub(crate) const fn allows(self, rights: u32) -> bool {
        self.0 & rights != 0
    }

    /// Whether the range may be read and written to, and its pages come from the node of the CPU that touches them if that is the policy
    /// of its thread.
    #[inline]
    pub(crate) const fn is_usual(self) -> bool {
        // Of the policies, none and local have neither of the upper bits.
        self.0 & (Self::WRITE | 6 << Self::POLICY_SHIFT) == Self::WRITE
    }

    #[inline]
    pub(crate) const fn protection(self) -> Protection {
        if self.allows(Self::WRITE) {
            Protection::ReadWrite
        } else if self.allows(Self::READ) {
            Protection::Read
        } else {
            Protection::None
        }
    }

    #[inline]
    pub(crate) const fn policy(self) -> Option<Policy> {
        let node = NodeId(self.0 & Self::NODE);
        match (self.0 & Self::POLICY) >> Self::POLICY_SHIFT {
            0 => None,
            1 => Some(Policy::Local),
            2 => Some(Policy::Bind(node)),
            3 => Some(Policy::Preferred(node)),
            _ => Some(Policy::Interleave),
        }
    }

    #[inline]
    pub(crate) const fn page_size(self) -> PageSize {
        match self.0 >> Self::PAGE_SIZE_SHIFT & 3 {
            0 => PageSize::Size4KiB,
            1 => PageSize::Size2MiB,
            _ => PageSize::Size1GiB,
        }
    }
}

/// The number of interned attributes: what an entry of the page table carries. 0 stands for a range that is not reserved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttributesId(u16);

impl AttributesId {
    /// The bits of a number.
    pub(crate) const BITS: u32 = 11;
    /// Of what is not reserved.
    pub(crate) const NONE: Self = Self(0);

    /// The number as it stands in an entry.
    pub(crate) const fn as_u64(self) -> u64 {
        self.0 as u64
    }

    /// The number that stands in an entry: of `bits`, the lowest [`BITS`](Self::BITS) count.
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits as u16 & ((1 << Self::BITS) - 1))
    }
}

/// The attributes in use, by number.
pub(crate) struct AttributesTable([AtomicU32; 1 << AttributesId::BITS]);

impl AttributesTable {
    pub(crate) fn new() -> Self {
        Self(core::array::from_fn(|_| AtomicU32::new(0)))
    }

    /// The number of `attributes`, or `None` if all numbers are taken or the policy's node is beyond all numbers.
    pub(crate) fn intern(&self, attributes: Attributes) -> Option<AttributesId> {
        let word = PackedAttributes::new(attributes)?.0;
        let (id, _) = (0..).zip(&self.0).skip(1).find(|(_, slot)| {
            let found = match slot.load(Ordering::Acquire) {
                0 => slot
                    .compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire)
                    .err(),
                found => Some(found),
            };
            // Taken just now, or by somebody who wanted the same.
            found.is_none_or(|found| found == word)
        })?;
        Some(AttributesId(id))
    }

    /// The attributes with this number.
    #[inline]
    pub(crate) fn get(&self, id: AttributesId) -> PackedAttributes {
        // Acquire, though whoever read the number from an entry has seen the slot filled already.
        PackedAttributes(self.0[usize::from(id.0) % self.0.len()].load(Ordering::Acquire))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn equal_attributes_have_equal_numbers_and_no_others() {
        let table = AttributesTable::new();
        let policies = [
            None,
            Some(Policy::Local),
            Some(Policy::Bind(NodeId(3))),
            Some(Policy::Preferred(NodeId(0xffff))),
            Some(Policy::Interleave),
        ];
        let mut numbers = alloc::vec::Vec::new();
        for _ in 0..2 {
            for protection in [Protection::None, Protection::Read, Protection::ReadWrite] {
                for policy in policies {
                    for page_size in PageSize::ALL {
                        let attributes = Attributes {
                            protection,
                            policy,
                            page_size,
                        };
                        let id = table.intern(attributes).expect("there are numbers left");
                        assert!(id != AttributesId::NONE);
                        assert_eq!(table.get(id).unpack(), attributes);
                        numbers.push(id.0);
                    }
                }
            }
        }
        let (first, second) = numbers.split_at(numbers.len() / 2);
        assert_eq!(first, second);
        assert!(first.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn there_are_only_so_many() {
        let table = AttributesTable::new();
        let with_node = |node| Attributes {
            policy: Some(Policy::Bind(NodeId(node))),
            ..Attributes::default()
        };
        let last = (1 << AttributesId::BITS) - 1;
        assert!((0..last).all(|node| table.intern(with_node(node)).is_some()));
        assert!(table.intern(with_node(last)).is_none());
        assert!(table.intern(with_node(0)).is_some());
    }
}
