//! Messages between nodes.

use homenode::phase::Phase;
use homenode::sync::{Condvar, Mutex};
use homenode::thread::{self, Builder};
use homenode::{NodeId, topology};

use crate::Failure;
use crate::meter::Meter;

/// How many messages go there and back.
const ROUND_TRIPS: usize = 2000;

/// A place for one message.
#[derive(Default)]
struct Mailbox {
    message: Mutex<Option<usize>>,
    changed: Condvar,
}

impl Mailbox {
    fn send(&self, message: usize) {
        *self.message.lock() = Some(message);
        self.changed.notify_one();
    }

    /// Sleeps until there is a message, and takes it.
    fn receive(&self) -> usize {
        loop {
            let mut place = self
                .changed
                .wait_while(self.message.lock(), |message| message.is_none());
            if let Some(message) = place.take() {
                return message;
            }
        }
    }
}

/// A thread of the first node that has CPUs sends a word to one of the last, which sends it back. An operation is a round trip.
pub(crate) fn round_trips() -> Result<(), Failure> {
    const PHASE: Phase<0x70> = Phase::new("message");
    const WARM_UP: usize = ROUND_TRIPS / 8;
    let (there, back) = (Mailbox::default(), Mailbox::default());
    let [first, last] = outermost_nodes();
    let exchange = |count| {
        for message in 0..count {
            there.send(message);
            assert_eq!(back.receive(), message, "what was sent comes back");
        }
    };
    thread::scope(|scope| -> Result<(), Failure> {
        Builder::new().node(last).spawn_scoped(scope, || {
            for _ in 0..WARM_UP + ROUND_TRIPS {
                back.send(there.receive());
            }
        })?;
        let exchange = &exchange;
        let spawned = Builder::new().node(first).spawn_scoped(scope, move || {
            exchange(WARM_UP);
            let meter = Meter::begin(PHASE);
            exchange(ROUND_TRIPS);
            meter.end().announce(ROUND_TRIPS, 2);
        });
        if spawned.is_err() {
            // The other thread waits for all its messages.
            exchange(WARM_UP + ROUND_TRIPS);
        }
        spawned.map(drop).map_err(Failure::from)
    })
}

/// The first and the last node that have CPUs.
fn outermost_nodes() -> [NodeId; 2] {
    let nodes = || topology().nodes().iter().map(homenode::Node::id);
    let has_cpus = |node: &NodeId| !topology().cpus_of(*node).is_empty();
    let first = nodes().find(has_cpus).unwrap_or_default();
    [first, nodes().rfind(has_cpus).unwrap_or(first)]
}
