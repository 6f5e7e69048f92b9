//! The topology as JSON, for `GET /topology`.

use alloc::vec::Vec;

use serde::ser::{Serialize, SerializeStruct, Serializer};

use super::{Node, Topology};
use crate::{Bandwidth, Latency, NodeId};

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut node = serializer.serialize_struct("Node", 5)?;
        node.serialize_field("id", &self.id)?;
        node.serialize_field("cpus", &self.cpus)?;
        node.serialize_field("bytes", &self.memory_bytes())?;
        node.serialize_field("memory", &self.memory)?;
        node.serialize_field("proximity_domain", &self.proximity_domain)?;
        node.end()
    }
}

/// Access attributes with the nodes that they are about.
#[derive(serde::Serialize)]
struct Access {
    src: NodeId,
    dst: NodeId,
    latency_ps: Option<Latency>,
    bandwidth_bytes_per_second: Option<Bandwidth>,
}

impl Serialize for Topology {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let distances: Vec<&[u8]> = self.distance_rows().collect();
        let accesses: Vec<Access> = self
            .accesses
            .iter()
            .map(|(&(src, dst), access)| Access {
                src,
                dst,
                latency_ps: access.latency,
                bandwidth_bytes_per_second: access.bandwidth,
            })
            .collect();
        let mut topology = serializer.serialize_struct("Topology", 6)?;
        topology.serialize_field("source", &self.source)?;
        topology.serialize_field("overlays", &self.overlays)?;
        topology.serialize_field("nodes", &self.nodes)?;
        topology.serialize_field("cpus", &self.cpus)?;
        topology.serialize_field("distances", &distances)?;
        topology.serialize_field("hmat", &accesses)?;
        topology.end()
    }
}
