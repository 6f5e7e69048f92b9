//! Where memory is taken from, and how that is counted.

use core::fmt;

use homenode_topology::NodeId;

/// Which node memory comes from. Names and meanings as in Linux's `set_mempolicy(2)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The node of the CPU that asks, else the other nodes in order of their distance from it.
    #[default]
    Local,
    /// This node and no other.
    Bind(NodeId),
    /// This node, else the other nodes in order of their distance from it.
    Preferred(NodeId),
    /// Each node that has memory in turn, by the page's index in its range; a full node's turn goes to the others in
    /// order of their distance from it.
    Interleave,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Bind(node) => write!(f, "bind:{node}"),
            Self::Preferred(node) => write!(f, "preferred:{node}"),
            Self::Interleave => f.write_str("interleave"),
        }
    }
}

/// Memory that was handed out, and the node that it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation<T> {
    /// The frame or block.
    pub memory: T,
    /// Where it was meant to come from and where it came from.
    pub placement: Placement,
}

/// Where an allocation was meant to come from, and where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The node that the memory lies on.
    pub node: NodeId,
    /// The node that the policy asks for first, among those that have memory at all.
    pub intended: NodeId,
    /// The node of the CPU that asked.
    pub local: NodeId,
    /// Whether the policy was [`Policy::Interleave`].
    pub interleaved: bool,
}

impl Placement {
    /// The counters that go up by one for this allocation, each with the node it goes up for, as in Linux's
    /// `zone_statistics()`: one per allocation, whatever its size.
    pub fn events(self) -> impl Iterator<Item = (NodeId, NumaEvent)> {
        let Self {
            node,
            intended,
            local,
            interleaved,
        } = self;
        let hit = node == intended;
        [
            Some((node, if hit { NumaEvent::Hit } else { NumaEvent::Miss })),
            (!hit).then_some((intended, NumaEvent::Foreign)),
            (hit && interleaved).then_some((node, NumaEvent::Interleave)),
            Some((
                node,
                if node == local {
                    NumaEvent::Local
                } else {
                    NumaEvent::Other
                },
            )),
        ]
        .into_iter()
        .flatten()
    }
}

/// What is counted per node about allocations. Names and meanings as in Linux's `numastat(8)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NumaEvent {
    /// Memory came from this node, as intended.
    Hit,
    /// Memory came from this node although another was intended.
    Miss,
    /// Memory was intended for this node but came from another.
    Foreign,
    /// Interleaved memory came from this node, as intended.
    Interleave,
    /// Memory came from this node while the CPU that asked was on it.
    Local,
    /// Memory came from this node while the CPU that asked was on another.
    Other,
}
