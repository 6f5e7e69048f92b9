//! Memory whose pages lie on chosen nodes.
//!
//! A [`Region`] is a slice of numbers (or of anything else for which zero is a value), zero at first. Addresses cost nothing: each
//! page gets its memory when it is first touched, from the node that the region's [`Policy`] says, the toucher's own unless it says
//! otherwise. So the thread that will work on a part had best be the first to write to it.
//!
//! When there is no memory for a page that is touched, the program ends with a report that names node, size and policy. A program
//! that would rather decide itself asks for the memory before: [`Region::populated`], [`Region::populate`], or, with threads that
//! each place their own part, [`Reservation::populate`].
//!
//! [`Pages`] are a reservation without a type: bytes, of which the program also says what may be done with them, and which it can
//! give back in part.
//!
//! Memory that is dropped is free once no CPU has translations of it, which may be a little later ([`tlb`](crate::tlb)). Whoever
//! has to be sure at once that no pointer reaches it calls [`Region::revoke`] or [`Pages::revoke`].
//!
//! ```
//! use homenode::mem::{Policy, Region, Reservation};
//!
//! # fn main() -> Result<(), homenode::mem::RegionError> {
//! // A page comes with the first touch, pages on all nodes in turn.
//! let mut table = Region::<u64>::new(1000, Policy::Interleave)?;
//! table[7] = 49;
//!
//! // Each thread its half, or an error.
//! let reservation = Reservation::<u64>::new(1000)?;
//! homenode::thread::scope(|scope| {
//!     for half in [0..500, 500..1000] {
//!         let reservation = &reservation;
//!         scope.spawn(move || reservation.populate(half, Policy::Local));
//!     }
//! });
//! let halves: Region<u64> = reservation.finish();
//! assert_eq!(halves[999], 0);
//! # Ok(())
//! # }
//! ```

mod pages;
mod region;

use core::fmt;

pub use homenode_mm::{OutOfMemory, PageSize, Policy, Protection};
use homenode_topology::NodeId;
pub use zerocopy::FromZeros;

pub use self::pages::Pages;
pub use self::region::{Region, Reservation};
use crate::sys;

/// What a reservation is to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where pages come from; `None` is the policy of the thread that touches them first
    /// ([`thread::policy`](crate::thread::policy)).
    pub policy: Option<Policy>,
    /// The largest page to use. Smaller ones are used where the reservation is too small, where parts of a page are treated
    /// differently, and where no block of memory is as large. Linux gives no pages of 1 GiB to an ordinary program, and so 2 MiB.
    pub page_size: PageSize,
}

impl Default for Options {
    /// The thread's policy, and pages of 2 MiB.
    fn default() -> Self {
        Self {
            policy: None,
            page_size: PageSize::Size2MiB,
        }
    }
}

impl From<Policy> for Options {
    /// This policy, and pages of 2 MiB.
    fn from(policy: Policy) -> Self {
        Self {
            policy: Some(policy),
            ..Self::default()
        }
    }
}

/// A page of memory behind an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The node that it lies on.
    pub node: NodeId,
    /// Its size. Linux does not tell, and every page counts as one of 4 KiB there.
    pub size: PageSize,
    /// What may be done with it.
    pub protection: Protection,
}

/// How many pages of one size lie on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagesOn {
    /// The node.
    pub node: NodeId,
    /// The size of each page.
    pub size: PageSize,
    /// How many there are.
    pub count: usize,
}

/// Why there is no reservation, or no memory for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionError {
    /// There is no memory where the policy allows it.
    OutOfMemory(OutOfMemory),
    /// No range of addresses is as large as this.
    TooLarge {
        /// The number of elements that were asked for.
        len: usize,
        /// The size of one, in bytes.
        element_bytes: usize,
    },
    /// The policy names a node that the machine does not have.
    NoSuchNode(NodeId),
}

impl RegionError {
    /// Too large, by bytes.
    const fn too_many_bytes(bytes: usize) -> Self {
        Self::TooLarge {
            len: bytes,
            element_bytes: 1,
        }
    }
}

impl From<OutOfMemory> for RegionError {
    fn from(error: OutOfMemory) -> Self {
        Self::OutOfMemory(error)
    }
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory(error) => error.fmt(f),
            Self::TooLarge {
                len,
                element_bytes: 1,
            } => write!(f, "{len} bytes are more than the address space holds"),
            Self::TooLarge { len, element_bytes } => {
                write!(
                    f,
                    "{len} elements of {element_bytes} bytes are more than the address space holds"
                )
            }
            Self::NoSuchNode(node) => {
                let last = sys::topology().nodes().len() - 1;
                write!(f, "there is no node {node}: the last one is node {last}")
            }
        }
    }
}

impl core::error::Error for RegionError {}

/// `node`, if the machine has it.
///
/// # Errors
/// [`RegionError::NoSuchNode`].
fn existing_node(node: NodeId) -> Result<NodeId, RegionError> {
    if node.index() < sys::topology().nodes().len() {
        Ok(node)
    } else {
        Err(RegionError::NoSuchNode(node))
    }
}

/// How the kernel locks page-table pages: `split`, each by a lock of its own, or `coarse`, all by one (`ptlock=coarse` on the
/// kernel's command line). On Linux: `linux`.
#[must_use]
pub fn page_table_locks() -> &'static str {
    sys::page_table_locks()
}

/// Fails if `policy` names a node that the machine does not have.
///
/// # Errors
/// [`RegionError::NoSuchNode`].
pub(crate) fn check(policy: Policy) -> Result<(), RegionError> {
    match policy {
        Policy::Bind(node) | Policy::Preferred(node) => existing_node(node).map(drop),
        Policy::Local | Policy::Interleave => Ok(()),
    }
}
