//! Why there are no frames.

use core::error::Error;
use core::fmt;

use homenode_topology::{Bytes, NodeId, PhysRange};

use crate::policy::Policy;
use crate::size::Order;

/// No block of the wanted size is free where the policy allows one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The node that was asked first.
    pub node: NodeId,
    /// The size that was asked for.
    pub order: Order,
    /// The policy that was asked by.
    pub policy: Policy,
    /// The bytes that are free, on the nodes that the policy allows: in smaller blocks, or kept for the kernel.
    pub free_bytes: u64,
    /// The bytes that the allocator manages on those nodes, free or not.
    pub total_bytes: u64,
    /// The bytes that are kept for the kernel on those nodes, if that is why; else 0.
    pub kept_bytes: u64,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            node,
            order,
            policy,
            free_bytes,
            total_bytes,
            kept_bytes,
        } = *self;
        f.write_str("out of memory: ")?;
        match policy {
            Policy::Bind(_) if total_bytes == 0 => {
                return write!(f, "node {node} has no memory (policy {policy})");
            }
            Policy::Bind(_) => write!(f, "no free {order} page on node {node}")?,
            Policy::Local | Policy::Preferred(_) | Policy::Interleave => {
                write!(
                    f,
                    "no free {order} page on any node, from node {node} on by distance"
                )?;
            }
        }
        let (free, total) = (Bytes(free_bytes), Bytes(total_bytes));
        write!(f, " (policy {policy}); {free} of {total} free there")?;
        match kept_bytes {
            0 if order == Order::MIN => Ok(()),
            0 => f.write_str(" in smaller blocks"),
            kept => write!(f, ", and {} are kept for the kernel", Bytes(kept)),
        }
    }
}

impl Error for OutOfMemory {}

/// The description of the nodes' memory can not be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// Two ranges share memory.
    Overlap(PhysRange, PhysRange),
    /// A node has 2³² frames (16 TiB) or more.
    TooLarge {
        /// The node.
        node: NodeId,
        /// Its memory in bytes.
        bytes: u64,
    },
    /// A fallback list names a node that is not described.
    NoSuchNode {
        /// The node whose list it is.
        node: NodeId,
        /// The node that the list names.
        fallback: NodeId,
    },
    /// Memory is so little, and spread over so many addresses, that no piece of it holds the directory of all.
    NoRoom(PhysRange),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlap(one, other) => write!(f, "usable memory at {one} and at {other} overlaps"),
            Self::TooLarge { node, bytes } => {
                write!(
                    f,
                    "node {node} has {}, but a node may have less than 16 TiB only",
                    Bytes(*bytes)
                )
            }
            Self::NoSuchNode { node, fallback } => {
                write!(
                    f,
                    "node {node} falls back to node {fallback}, which does not exist"
                )
            }
            Self::NoRoom(span) => {
                write!(
                    f,
                    "no piece of the usable memory at {span} has room for the directory of all of it"
                )
            }
        }
    }
}

impl Error for BuildError {}
