//! Virtual addresses and ranges of them.

use core::fmt;

/// The bits of a virtual address that four levels of page tables translate (Intel SDM volume 3, 4.5).
const TRANSLATED_BITS: u32 = 48;

/// A canonical virtual address, in bytes: bits 48 to 63 repeat bit 47 (Intel SDM volume 1, 3.3.7.1).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct VirtAddr(u64);

impl VirtAddr {
    /// The address, or `None` if it is not canonical.
    #[must_use]
    pub const fn new(address: u64) -> Option<Self> {
        let canonical = Self::new_truncated(address);
        if canonical.0 == address {
            Some(canonical)
        } else {
            None
        }
    }

    /// The address whose low 48 bits are those of `address`, made canonical by repeating bit 47.
    #[must_use]
    pub const fn new_truncated(address: u64) -> Self {
        let unused = u64::BITS - TRANSLATED_BITS;
        Self((((address << unused) as i64) >> unused) as u64)
    }

    /// The address that `pointer` holds.
    ///
    /// # Panics
    /// Never on a CPU with four-level paging, where a pointer that can be used is canonical; else if it is not.
    #[must_use]
    pub fn from_ptr<T: ?Sized>(pointer: *const T) -> Self {
        Self::new(pointer.cast::<u8>() as u64).expect("a usable pointer is canonical")
    }

    /// The address as a number.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The address as a pointer. Nothing is said about what is mapped there.
    #[must_use]
    pub const fn as_mut_ptr<T>(self) -> *mut T {
        self.0 as *mut T
    }

    /// Whether the address is a multiple of `align` (a power of two).
    #[must_use]
    pub const fn is_aligned(self, align: u64) -> bool {
        self.0 & (align - 1) == 0
    }

    /// The highest multiple of `align` (a power of two, at most 2⁴⁷) that is not above this address.
    #[must_use]
    pub const fn align_down(self, align: u64) -> Self {
        Self(self.0 & !(align - 1))
    }

    /// The address `bytes` higher, or `None` if that is not canonical or passes the end of the address space.
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Self::new(sum),
            None => None,
        }
    }
}

impl fmt::Display for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A range of virtual addresses, wholly in the lower or wholly in the upper half of the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VirtRange {
    start: VirtAddr,
    bytes: u64,
}

impl VirtRange {
    /// The `bytes` from `start` on, or `None` if they leave the half of the address space that `start` lies in.
    #[must_use]
    pub const fn new(start: VirtAddr, bytes: u64) -> Option<Self> {
        let last = match bytes {
            0 => start,
            _ => match start.checked_add(bytes - 1) {
                Some(last) => last,
                None => return None,
            },
        };
        // The halves differ in the top bit, and a lower address plus a huge length can be canonical in the upper half.
        if (start.0 ^ last.0) >> 63 == 0 {
            Some(Self { start, bytes })
        } else {
            None
        }
    }

    /// The first address.
    #[must_use]
    pub const fn start(&self) -> VirtAddr {
        self.start
    }

    /// The length in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The last address of the range; its first, if it is empty.
    #[must_use]
    pub const fn last(&self) -> VirtAddr {
        VirtAddr(self.start.0 + self.bytes.saturating_sub(1))
    }

    /// The part of the range from `start` on, or `None` if `start` does not lie in it.
    #[must_use]
    pub const fn from(&self, start: VirtAddr) -> Option<Self> {
        if self.contains(start) {
            Some(Self {
                start,
                bytes: self.bytes - (start.0 - self.start.0),
            })
        } else {
            None
        }
    }

    /// Whether the `bytes` (a power of two) around `address`, aligned to their size, lie in the range.
    #[must_use]
    pub(crate) const fn contains_aligned(&self, address: VirtAddr, bytes: u64) -> bool {
        let first = address.align_down(bytes);
        self.contains(first) && self.contains(VirtAddr(first.0 + (bytes - 1)))
    }

    /// Whether `address` lies in the range.
    #[must_use]
    pub const fn contains(&self, address: VirtAddr) -> bool {
        self.start.0 <= address.0 && address.0 - self.start.0 < self.bytes
    }
}

impl fmt::Display for VirtRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The end may be 2⁶⁴.
        write!(
            f,
            "{:#x}-{:#x}",
            self.start.0,
            u128::from(self.start.0) + u128::from(self.bytes)
        )
    }
}
