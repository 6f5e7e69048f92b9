//! The network: one card, polled, that answers pings and serves the metrics.
//!
//! A poll does a bounded amount of work, so that no flood of frames can take the CPU away from the program: at most
//! [`FRAMES_PER_POLL`] received frames, one HTTP response, and [`SEND_ROUNDS`] frames sent for each connection; and after it,
//! the network rests for [`REST`] times as long as it took. A poll with nothing to do reads one word of memory and the clock.

mod admission;
mod card;
mod http;
mod pci;

use core::net::Ipv4Addr;
use core::time::Duration;

use hermit_sync::{OnceCell, SpinMutex};
use homenode_metrics::NetworkStatus;
use log::{info, warn};
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::dhcpv4;
use smoltcp::time::Instant;
use smoltcp::wire::{IpCidr, Ipv4Cidr};
use x86_64::instructions::random::RdRand;

use self::admission::Admission;
use self::card::Card;
use self::http::{Http, Left};
use super::{clock, rtc};
use crate::cmdline::Network;
use crate::firmware::Tables;

/// Received frames that are looked at in one poll.
const FRAMES_PER_POLL: usize = 32;

/// Frames that each connection may send in one poll.
const SEND_ROUNDS: usize = 4;

/// After a poll that did something, nothing is done for this many times as long as it took: a quarter of one CPU at most.
const REST: u32 = 3;

/// How often open connections are looked at without a frame, for their deadlines.
const DEADLINE_PERIOD: Duration = Duration::from_millis(50);

static STACK: OnceCell<SpinMutex<Stack>> = OnceCell::new();

/// Sets the network up, and starts to ask for an address where none is given. Without a network card, or with `ip=off`, says so
/// and leaves it. Called once, while the machine boots, inside the gate.
pub(crate) fn init(network: &Network, metrics_port: u16, tables: &Tables<'_>) {
    if *network == Network::Off {
        info!("network: off, as the command line says");
        return;
    }
    let Some((mut root, function)) = pci::find_network_card(tables.ecam) else {
        info!("network: no virtio card on PCI; going on without metrics");
        return;
    };
    let admission = Admission {
        frames: 0,
        connections: 0,
        port: metrics_port,
    };
    let card = match Card::start(&mut root, function, admission) {
        Ok(card) => card,
        Err(error) => {
            warn!(
                "network: going on without metrics, since the virtio card at {function} cannot be used: {error}"
            );
            return;
        }
    };
    info!(
        "network: virtio card at {function}, MAC address {}",
        card.address()
    );
    let stack = Stack::new(card, network, metrics_port);
    assert!(
        STACK.set(SpinMutex::new(stack)).is_ok(),
        "the network is set up once"
    );
}

/// Whether there is anything to [`poll`].
pub(crate) fn is_up() -> bool {
    STACK.get().is_some()
}

/// Does the network's work that has come up, a bounded amount of it. Inside the gate. Returns at once if another CPU is at it.
pub(crate) fn poll() {
    if let Some(mut stack) = STACK.get().and_then(SpinMutex::try_lock) {
        stack.poll();
    }
}

/// What has come and gone.
pub(crate) fn status() -> NetworkStatus {
    card::status()
}

/// The card, and what is above it.
struct Stack {
    card: Card,
    interface: Interface,
    sockets: SocketSet<'static>,
    dhcp: Option<SocketHandle>,
    http: Http,
    /// When there is something to do even if no frame arrives, on the monotonic clock.
    wake_at: Duration,
    /// Until when there is nothing done in any case.
    rest_until: Duration,
}

impl Stack {
    fn new(mut card: Card, network: &Network, metrics_port: u16) -> Self {
        let mut config = Config::new(card.address().into());
        config.random_seed = random_seed();
        let interface = Interface::new(config, &mut card, timestamp(clock::now()));
        let mut sockets = SocketSet::new(alloc::vec::Vec::new());
        let http = Http::new(metrics_port, &mut sockets);
        let dhcp = (*network == Network::Dhcp).then(|| sockets.add(dhcpv4::Socket::new()));
        let (wake_at, rest_until) = (Duration::ZERO, Duration::ZERO);
        let mut stack = Self {
            card,
            interface,
            sockets,
            dhcp,
            http,
            wake_at,
            rest_until,
        };
        if let Network::Static {
            address,
            prefix_len,
            gateway,
        } = *network
        {
            stack.configure(Ipv4Cidr::new(address, prefix_len), gateway);
        }
        stack
    }

    /// Takes on an address and, if there is one, a gateway.
    fn configure(&mut self, address: Ipv4Cidr, gateway: Option<Ipv4Addr>) {
        self.set_address(Some(address), gateway);
        match gateway {
            Some(gateway) => info!("network: address {address}, gateway {gateway}"),
            None => info!("network: address {address}, no gateway"),
        }
        let port = self.http.port();
        info!("network: metrics at http://{}:{port}/metrics", address.address());
    }

    /// Drops the address, if there is one.
    fn deconfigure(&mut self) {
        if self.interface.ipv4_addr().is_some() {
            warn!("network: the address is no longer leased; asking for another");
        }
        self.set_address(None, None);
    }

    fn set_address(&mut self, address: Option<Ipv4Cidr>, gateway: Option<Ipv4Addr>) {
        self.interface.update_ip_addrs(|addresses| {
            addresses.clear();
            addresses.extend(address.map(IpCidr::Ipv4));
        });
        let routes = self.interface.routes_mut();
        routes.remove_default_ipv4_route();
        if let Some(gateway) = gateway {
            routes
                .add_default_ipv4_route(gateway)
                .expect("there is room for one route");
        }
    }

    /// Follows what DHCP has found.
    fn follow_dhcp(&mut self) {
        let Some(handle) = self.dhcp else { return };
        match self.sockets.get_mut::<dhcpv4::Socket<'_>>(handle).poll() {
            None => {}
            Some(dhcpv4::Event::Deconfigured) => self.deconfigure(),
            Some(dhcpv4::Event::Configured(config)) => {
                let (address, router) = (config.address, config.router);
                self.configure(address, router);
            }
        }
    }

    fn poll(&mut self) {
        let now = clock::now();
        if now < self.rest_until || now < self.wake_at && !self.card.has_received() {
            return;
        }
        let timestamp = timestamp(now);
        self.card.admission.frames = FRAMES_PER_POLL;
        self.card.admission.connections = self.http.listening(&self.sockets);
        self.interface.poll_maintenance(timestamp);
        while self
            .interface
            .poll_ingress_single(timestamp, &mut self.card, &mut self.sockets)
            != PollIngressSingleResult::None
        {}
        self.follow_dhcp();
        let left = self.http.serve(&mut self.sockets, now);
        for _ in 0..SEND_ROUNDS {
            if self
                .interface
                .poll_egress(timestamp, &mut self.card, &mut self.sockets)
                == PollResult::None
            {
                break;
            }
        }
        self.http.listen(&mut self.sockets);

        let delay = self
            .interface
            .poll_delay(timestamp, &self.sockets)
            .map_or(Duration::MAX, Duration::from);
        self.wake_at = now.saturating_add(match left {
            Left::Nothing => delay,
            Left::Open => delay.min(DEADLINE_PERIOD),
            Left::Request => Duration::ZERO,
        });
        let end = clock::now();
        self.rest_until = end + end.saturating_sub(now) * REST;
    }
}

/// smoltcp's notion of a time since boot.
fn timestamp(now: Duration) -> Instant {
    Instant::from_micros(i64::try_from(now.as_micros()).unwrap_or(i64::MAX))
}

/// A number that peers cannot guess, for TCP's sequence numbers, where the CPU makes one; else one that differs between boots.
fn random_seed() -> u64 {
    let hardware = RdRand::new().and_then(RdRand::get_u64);
    hardware.unwrap_or_else(|| (rtc::unix_time() + clock::now()).as_nanos() as u64)
}
