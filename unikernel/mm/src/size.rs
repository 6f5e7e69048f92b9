//! Sizes: of pages and frames, and of the buddy allocator's blocks.

use core::fmt;

use homenode_topology::Bytes;

/// The smallest page's size, in bytes, as a power of two.
pub(crate) const BASE_SHIFT: u32 = 12;

/// How many orders of blocks there are: 4 KiB (order 0) to 1 GiB (order 18).
pub const ORDERS: usize = Order::MAX.index() + 1;

/// The size of a block of frames, as a power of two of 4 KiB frames: 0 is 4 KiB, 9 is 2 MiB, 18 is 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order(u8);

impl Order {
    /// 4 KiB.
    pub const MIN: Self = Self(0);
    /// 1 GiB.
    pub const MAX: Self = Self(18);

    /// The order, or `None` if it is above 18.
    #[must_use]
    pub const fn new(order: u8) -> Option<Self> {
        if order <= Self::MAX.0 {
            Some(Self(order))
        } else {
            None
        }
    }

    /// All orders, from 4 KiB to 1 GiB.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> + Clone {
        (0..=Self::MAX.0).map(Self)
    }

    /// The next larger order, or `None` above the largest.
    #[must_use]
    pub const fn larger(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }

    /// The next smaller order, or `None` below the smallest.
    #[must_use]
    pub const fn smaller(self) -> Option<Self> {
        match self.0.checked_sub(1) {
            Some(order) => Some(Self(order)),
            None => None,
        }
    }

    /// The order as an index into an array of [`ORDERS`] items.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The number of 4 KiB frames in a block of this order.
    #[must_use]
    pub const fn frames(self) -> u32 {
        1 << self.0
    }

    /// A block's size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << (BASE_SHIFT + self.0 as u32)
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Bytes(self.bytes()).fmt(f)
    }
}

/// The size of a page, where it is known at run time only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageSize {
    /// 4 KiB, mapped by a page table's entry.
    Size4KiB,
    /// 2 MiB, mapped by a page directory's entry.
    Size2MiB,
    /// 1 GiB, mapped by a page-directory-pointer table's entry.
    Size1GiB,
}

impl PageSize {
    /// All sizes, the smallest first.
    pub const ALL: [Self; 3] = [Self::Size4KiB, Self::Size2MiB, Self::Size1GiB];

    /// The order of the block that a page of this size takes.
    #[must_use]
    pub const fn order(self) -> Order {
        match self {
            Self::Size4KiB => Order(0),
            Self::Size2MiB => Order(9),
            Self::Size1GiB => Order(18),
        }
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.order().bytes()
    }

    /// The size in bytes, as a power of two.
    pub(crate) const fn shift(self) -> u32 {
        BASE_SHIFT + self.order().index() as u32
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.order().fmt(f)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A page size as a type: [`Size4KiB`], [`Size2MiB`] or [`Size1GiB`].
pub trait FrameSize: sealed::Sealed + Copy + Eq + Ord + fmt::Debug + 'static {
    /// The size as a value.
    const PAGE: PageSize;
    /// The order of a frame of this size.
    const ORDER: Order = Self::PAGE.order();
    /// The size in bytes.
    const BYTES: u64 = Self::PAGE.bytes();
}

macro_rules! frame_size {
    ($name:ident, $text:literal) => {
        #[doc = $text]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {}

        impl sealed::Sealed for $name {}

        impl FrameSize for $name {
            const PAGE: PageSize = PageSize::$name;
        }
    };
}

frame_size!(Size4KiB, "4 KiB, the smallest frame.");
frame_size!(Size2MiB, "2 MiB, a huge frame.");
frame_size!(Size1GiB, "1 GiB, the largest frame.");
