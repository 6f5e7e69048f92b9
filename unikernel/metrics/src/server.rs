//! A fixed number of connections, and who must go when a new one wants in.

use alloc::boxed::Box;
use core::time::Duration;

use crate::http::{Action, Connection, StatusCode};
use crate::routes;
use crate::status::Source;

/// How long a connection must have stalled before a newer one may take its place.
pub const EVICTION_AGE: Duration = Duration::from_millis(500);

/// What the server counts about itself.
#[derive(Clone, Debug, Default)]
pub struct HttpStatistics {
    responses: [u64; StatusCode::ALL.len()],
    accepted: u64,
    timed_out: u64,
    evicted: u64,
    open: u64,
}

impl HttpStatistics {
    /// The responses begun, for each status code.
    pub fn responses(&self) -> impl Iterator<Item = (StatusCode, u64)> {
        StatusCode::ALL
            .iter()
            .map(|&code| (code, self.responses[code as usize]))
    }

    /// Connections accepted.
    #[must_use]
    pub const fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Connections that were cut off past a deadline.
    #[must_use]
    pub const fn timed_out(&self) -> u64 {
        self.timed_out
    }

    /// Connections that were cut off to make room.
    #[must_use]
    pub const fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Connections open now.
    #[must_use]
    pub const fn open(&self) -> u64 {
        self.open
    }
}

/// The HTTP server's protocol side: one slot for each of the kernel's listening TCP sockets.
///
/// For each socket, in each poll of the network, the kernel
/// - calls [`release`](Self::release) and listens again if the socket is closed;
/// - calls [`accept`](Self::accept) if a peer has begun to connect, so that a half-open connection has a deadline too, then
///   [`receive`](Self::receive) with what has arrived, and [`peer_closed`](Self::peer_closed) if the peer has closed its side;
/// - sends [`pending`](Self::pending) and reports [`sent`](Self::sent);
/// - does to the socket what [`poll`](Self::poll) says.
///
/// After all sockets, it resets the one that [`evict`](Self::evict) names, so that a socket is listening again.
#[derive(Debug)]
pub struct Server {
    slots: Box<[Option<Connection>]>,
    statistics: HttpStatistics,
}

impl Server {
    /// A server of `slots` connections.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self {
            slots: (0..slots).map(|_| None).collect(),
            statistics: HttpStatistics::default(),
        }
    }

    /// What the server counts about itself.
    #[must_use]
    pub const fn statistics(&self) -> &HttpStatistics {
        &self.statistics
    }

    /// A peer has begun to connect to the socket of `slot`. Does nothing if that is known.
    ///
    /// # Panics
    /// As all methods do: if there is no such slot.
    pub fn accept(&mut self, slot: usize, now: Duration) {
        if self.slots[slot].is_none() {
            self.slots[slot] = Some(Connection::new(now));
            self.statistics.accepted += 1;
            self.statistics.open += 1;
        }
    }

    /// The socket of `slot` is closed. Does nothing if that is known.
    pub fn release(&mut self, slot: usize) {
        if self.slots[slot].take().is_some() {
            self.statistics.open -= 1;
        }
    }

    /// Takes all bytes that have arrived.
    pub fn receive(&mut self, slot: usize, bytes: &[u8], now: Duration, source: &dyn Source) {
        let Self { slots, statistics } = self;
        if let Some(connection) = &mut slots[slot]
            && let Some(code) =
                connection.receive(bytes, now, |request| routes::respond(request, source, statistics))
        {
            statistics.responses[code as usize] += 1;
        }
    }

    /// The peer will send nothing more.
    pub fn peer_closed(&mut self, slot: usize, now: Duration) {
        if let Some(connection) = &mut self.slots[slot] {
            connection.peer_closed(now);
        }
    }

    /// The bytes to send next.
    #[must_use]
    pub fn pending(&self, slot: usize) -> &[u8] {
        self.slots[slot].as_ref().map_or(&[], Connection::pending)
    }

    /// The first `count` bytes of [`pending`](Self::pending) have been given to the socket.
    ///
    /// # Panics
    /// If fewer are pending.
    pub fn sent(&mut self, slot: usize, count: usize, now: Duration) {
        if let Some(connection) = &mut self.slots[slot] {
            connection.sent(count, now);
        }
    }

    /// What to do with the socket of `slot`. [`Action::Abort`] also releases the slot.
    pub fn poll(&mut self, slot: usize, now: Duration) -> Action {
        let action = self.slots[slot]
            .as_ref()
            .map_or(Action::Keep, |connection| connection.poll(now));
        if action == Action::Abort {
            self.statistics.timed_out += 1;
            self.release(slot);
        }
        action
    }

    /// The slot to free for a newcomer: if all are taken, that of the connection which has stalled for longest, if that is
    /// at least [`EVICTION_AGE`]. The slot is released; the kernel resets its socket.
    pub fn evict(&mut self, now: Duration) -> Option<usize> {
        let stalled = |slot: &Option<Connection>| slot.as_ref().map(|connection| connection.stalled_for(now));
        if self.slots.iter().any(Option::is_none) {
            return None;
        }
        let (slot, age) = self
            .slots
            .iter()
            .map(stalled)
            .enumerate()
            .max_by_key(|&(slot, age)| (age, usize::MAX - slot))?;
        if age? < EVICTION_AGE {
            return None;
        }
        self.statistics.evicted += 1;
        self.release(slot);
        Some(slot)
    }
}
