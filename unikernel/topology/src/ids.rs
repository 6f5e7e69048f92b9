//! The numbers of a machine as types: CPUs, nodes, APIC ids, physical addresses.

use core::fmt;
use core::ops::{Add, Sub};

use serde::Serialize;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The number as an index into a per-item array.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl From<usize> for $name {
            /// # Panics
            /// If `index` does not fit into 32 bits.
            fn from(index: usize) -> Self {
                Self(u32::try_from(index).expect("an id fits into 32 bits"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A logical CPU, numbered densely from 0 in MADT order.
    CpuId
}
id! {
    /// A NUMA node, numbered densely from 0.
    NodeId
}
id! {
    /// A local APIC's id, 32 bits wide as in x2APIC mode (Intel SDM volume 3, 13.12.5.1).
    ApicId
}

/// A physical address, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct PhysAddr(pub u64);

impl PhysAddr {
    /// The highest multiple of `align` (a power of two) that is not above this address.
    #[must_use]
    pub const fn align_down(self, align: u64) -> Self {
        Self(self.0 & !(align - 1))
    }

    /// The lowest multiple of `align` (a power of two) that is not below this address, or `None` past 2⁶⁴.
    #[must_use]
    pub const fn align_up(self, align: u64) -> Option<Self> {
        match self.0.checked_add(align - 1) {
            Some(sum) => Some(Self(sum & !(align - 1))),
            None => None,
        }
    }

    /// Whether the address is a multiple of `align` (a power of two).
    #[must_use]
    pub const fn is_aligned(self, align: u64) -> bool {
        self.0 & (align - 1) == 0
    }
}

impl Add<u64> for PhysAddr {
    type Output = Self;
    fn add(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl Sub for PhysAddr {
    type Output = u64;
    fn sub(self, other: Self) -> u64 {
        self.0 - other.0
    }
}

impl fmt::Display for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The physical addresses from `start` up to, not including, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PhysRange {
    /// The first address.
    pub start: PhysAddr,
    /// The first address behind the range.
    pub end: PhysAddr,
}

impl PhysRange {
    /// The range from `start` to `end`; empty if `end` is not above `start`.
    #[must_use]
    pub const fn new(start: PhysAddr, end: PhysAddr) -> Self {
        Self { start, end }
    }

    /// The length in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Whether the range holds no address.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Whether `address` lies in the range.
    #[must_use]
    pub const fn contains(&self, address: PhysAddr) -> bool {
        self.start.0 <= address.0 && address.0 < self.end.0
    }

    /// The addresses that lie in both ranges, or `None` if there is none.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let both = Self::new(self.start.max(other.start), self.end.min(other.end));
        (!both.is_empty()).then_some(both)
    }
}

impl fmt::Display for PhysRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}
