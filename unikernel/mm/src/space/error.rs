//! Why something can not be done with program memory.

use core::error::Error;
use core::fmt;

use homenode_topology::Bytes;

use super::Access;
use crate::addr::VirtAddr;
use crate::attributes::Protection;
use crate::frames::OutOfMemory;

/// Why an access can not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultError {
    /// The address is not reserved.
    NotReserved(VirtAddr),
    /// The range's protection does not allow the access.
    NotAllowed {
        /// The address.
        address: VirtAddr,
        /// The access.
        access: Access,
        /// The protection.
        protection: Protection,
    },
    /// There is no memory for the page.
    OutOfMemory(OutOfMemory),
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReserved(address) => write!(f, "{address} is not reserved"),
            Self::NotAllowed {
                address, protection, ..
            } => write!(f, "the memory at {address} is protected: {protection}"),
            Self::OutOfMemory(error) => error.fmt(f),
        }
    }
}

impl Error for FaultError {}

impl From<OutOfMemory> for FaultError {
    fn from(error: OutOfMemory) -> Self {
        Self::OutOfMemory(error)
    }
}

/// Why a range of program memory could not be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeError {
    /// An address of the range is not reserved.
    NotReserved(VirtAddr),
    /// There is no memory for a page or a page table, or the policy names a node that has none.
    OutOfMemory(OutOfMemory),
    /// More different attributes are in use than entries can tell apart.
    TooManyAttributes,
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReserved(address) => write!(f, "{address} is not reserved"),
            Self::OutOfMemory(error) => error.fmt(f),
            Self::TooManyAttributes => f.write_str(
                "too many different combinations of protection, policy and page size: use fewer different ones",
            ),
        }
    }
}

impl Error for RangeError {}

impl From<OutOfMemory> for RangeError {
    fn from(error: OutOfMemory) -> Self {
        Self::OutOfMemory(error)
    }
}

/// Why nothing could be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveError {
    /// There is no free range of addresses as large as this.
    NoAddresses {
        /// The size that was asked for.
        bytes: u64,
    },
    /// The range was found and could not be marked as reserved.
    Range(RangeError),
}

impl fmt::Display for ReserveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddresses { bytes } => {
                write!(f, "there is no free range of addresses of {}", Bytes(*bytes))
            }
            Self::Range(error) => error.fmt(f),
        }
    }
}

impl Error for ReserveError {}

impl From<RangeError> for ReserveError {
    fn from(error: RangeError) -> Self {
        Self::Range(error)
    }
}
