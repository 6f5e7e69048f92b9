//! Which received frames are looked at: so many per poll, and no new connection that no socket is free for.

use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, TcpPacket};

/// What the card may pass on until the next poll.
pub(super) struct Admission {
    /// How many more frames may be taken from the card; the rest waits in its queue.
    pub(super) frames: usize,
    /// How many more connections to `port` may be begun. A request for another is dropped, not refused, so that the peer asks
    /// again in a second or so; TCP in other kernels does the same when its backlog is full.
    pub(super) connections: usize,
    /// The port that connections are counted of.
    pub(super) port: u16,
}

impl Admission {
    /// Whether `frame` is looked at.
    pub(super) fn admits(&mut self, frame: &[u8]) -> bool {
        if !begins_connection(frame, self.port).unwrap_or(false) {
            return true;
        }
        let free = self.connections > 0;
        self.connections = self.connections.saturating_sub(1);
        free
    }
}

/// Whether a frame asks for a TCP connection to `port`; `None` if it is no sound TCP segment.
fn begins_connection(frame: &[u8], port: u16) -> Option<bool> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    if frame.ethertype() != EthernetProtocol::Ipv4 {
        return None;
    }
    let packet = Ipv4Packet::new_checked(frame.payload()).ok()?;
    if packet.next_header() != IpProtocol::Tcp {
        return None;
    }
    let segment = TcpPacket::new_checked(packet.payload()).ok()?;
    Some(segment.dst_port() == port && segment.syn() && !segment.ack())
}
