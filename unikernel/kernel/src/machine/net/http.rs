//! The metrics server's sockets: between smoltcp and the protocol in `homenode-metrics`.

use core::time::Duration;

use alloc::vec;
use alloc::vec::Vec;
use homenode_metrics::{Action, Server};
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp;

use super::super::status::Kernel;

/// Connections at a time: a crowd of scrapers, since whoever finds none free asks again a second or more later.
const SLOTS: usize = 128;

/// The window of a connection. A request is a few hundred bytes; a longer one comes in pieces.
const RECEIVE_BYTES: usize = 1024;

/// Bytes on their way to a peer. A longer response goes out in pieces.
const SEND_BYTES: usize = 8192;

/// The metrics server.
pub(super) struct Http {
    port: u16,
    server: Server,
    /// One socket for each slot of the server.
    sockets: Vec<SocketHandle>,
    /// The slot that is served first, so that each has its turn at the one response that is made per poll.
    first: usize,
}

/// What [`Http::serve`] leaves to do, the most urgent last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Left {
    /// Nothing to do before a frame arrives.
    Nothing,
    /// Open connections, which have deadlines.
    Open,
    /// A request that waits for its response.
    Request,
}

impl Http {
    /// A server that listens on `port`, with its sockets in `set`.
    pub(super) fn new(port: u16, set: &mut SocketSet<'static>) -> Self {
        let sockets = (0..SLOTS)
            .map(|_| {
                let buffer = |bytes| tcp::SocketBuffer::new(vec![0; bytes]);
                let mut socket = tcp::Socket::new(buffer(RECEIVE_BYTES), buffer(SEND_BYTES));
                // Whatever is sent is all that there is to send.
                socket.set_nagle_enabled(false);
                set.add(socket)
            })
            .collect();
        let mut http = Self {
            port,
            server: Server::new(SLOTS),
            sockets,
            first: 0,
        };
        http.listen(set);
        http
    }

    /// The port that it listens on.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Lets the sockets of closed connections listen again. To be called after what they had to send last, a reset, has gone.
    pub(super) fn listen(&mut self, set: &mut SocketSet<'static>) {
        for (slot, &handle) in self.sockets.iter().enumerate() {
            let socket = set.get_mut::<tcp::Socket<'_>>(handle);
            if !socket.is_open() {
                self.server.release(slot);
                socket
                    .listen(self.port)
                    .expect("a closed socket listens on any port but 0");
            }
        }
    }

    /// How many connections can begin now.
    pub(super) fn listening(&self, set: &SocketSet<'static>) -> usize {
        self.sockets
            .iter()
            .filter(|&&handle| set.get::<tcp::Socket<'_>>(handle).is_listening())
            .count()
    }

    /// Does what the connections need: takes what has arrived, makes at most one response, sends what fits, and enforces the
    /// deadlines.
    pub(super) fn serve(&mut self, set: &mut SocketSet<'static>, now: Duration) -> Left {
        let mut left = Left::Nothing;
        let mut may_respond = true;
        for slot in (self.first..SLOTS).chain(0..self.first) {
            let socket = set.get_mut::<tcp::Socket<'_>>(self.sockets[slot]);
            if !socket.is_open() || socket.is_listening() {
                continue;
            }
            left = left.max(Left::Open);
            self.server.accept(slot, now);
            let responding = !self.server.pending(slot).is_empty();
            if !responding && !may_respond && socket.can_recv() {
                left = Left::Request;
                continue;
            }
            while socket.can_recv() {
                let taken = socket.recv(|bytes| {
                    self.server.receive(slot, bytes, now, &Kernel);
                    (bytes.len(), ())
                });
                taken.expect("a socket that can receive has bytes");
            }
            if !responding && !self.server.pending(slot).is_empty() {
                may_respond = false;
                self.first = (slot + 1) % SLOTS;
            }
            if socket.state() == tcp::State::CloseWait {
                self.server.peer_closed(slot, now);
            }
            if socket.can_send() {
                let sent = socket
                    .send_slice(self.server.pending(slot))
                    .expect("a socket that can send has room");
                self.server.sent(slot, sent, now);
            }
            match self.server.poll(slot, now) {
                Action::Keep => {}
                Action::Close => socket.close(),
                Action::Abort => socket.abort(),
            }
        }
        // A request that waits for its response does not stall by its peer's fault.
        if left != Left::Request
            && let Some(slot) = self.server.evict(now)
        {
            set.get_mut::<tcp::Socket<'_>>(self.sockets[slot]).abort();
        }
        left
    }
}
