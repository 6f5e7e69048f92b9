//! Physical frames and blocks of them, as aligned addresses.

use core::fmt;
use core::marker::PhantomData;

use homenode_topology::{PhysAddr, PhysRange};

use crate::size::{FrameSize, Order};

/// A physical frame of the size `S`: an address that is a multiple of that size.
///
/// A value says where a frame lies, not that its holder owns it: it may be copied.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame<S: FrameSize> {
    start: PhysAddr,
    size: PhantomData<S>,
}

impl<S: FrameSize> Frame<S> {
    /// The frame that starts at `start`, or `None` if that is not a multiple of the size.
    #[must_use]
    pub const fn new(start: PhysAddr) -> Option<Self> {
        if start.is_aligned(S::BYTES) {
            Some(Self {
                start,
                size: PhantomData,
            })
        } else {
            None
        }
    }

    /// The frame that `address` lies in.
    #[must_use]
    pub const fn containing(address: PhysAddr) -> Self {
        Self {
            start: address.align_down(S::BYTES),
            size: PhantomData,
        }
    }

    /// The first address.
    #[must_use]
    pub const fn start(self) -> PhysAddr {
        self.start
    }

    /// The addresses of the frame.
    #[must_use]
    pub fn range(self) -> PhysRange {
        PhysRange::new(self.start, self.start + S::BYTES)
    }
}

impl<S: FrameSize> fmt::Debug for Frame<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Block::from(*self).fmt(f)
    }
}

/// A block of frames: an address that is a multiple of the size of the block's order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    start: PhysAddr,
    order: Order,
}

impl Block {
    /// The block of this order that starts at `start`, or `None` if that is not a multiple of its size.
    #[must_use]
    pub const fn new(start: PhysAddr, order: Order) -> Option<Self> {
        if start.is_aligned(order.bytes()) {
            Some(Self { start, order })
        } else {
            None
        }
    }

    /// The first address.
    #[must_use]
    pub const fn start(self) -> PhysAddr {
        self.start
    }

    /// The order.
    #[must_use]
    pub const fn order(self) -> Order {
        self.order
    }

    /// The addresses of the block.
    #[must_use]
    pub fn range(self) -> PhysRange {
        PhysRange::new(self.start, self.start + self.order.bytes())
    }
}

impl<S: FrameSize> From<Frame<S>> for Block {
    fn from(frame: Frame<S>) -> Self {
        Self {
            start: frame.start,
            order: S::ORDER,
        }
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.order, self.start)
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
