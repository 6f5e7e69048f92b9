//! The network card: virtio-net over PCI, polled, as a device of smoltcp's.

use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use alloc::boxed::Box;
use arrayvec::ArrayVec;
use homenode_metrics::NetworkStatus;
use homenode_mm::{Block, Machine, Order};
use homenode_topology::PhysAddr;
use log::error;
use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::time::Instant;
use smoltcp::wire::EthernetAddress;
use virtio_drivers::device::net::VirtIONetRaw;
use virtio_drivers::transport::pci::bus::{DeviceFunction, PciRoot};
use virtio_drivers::transport::pci::{PciTransport, VirtioPciError};
use virtio_drivers::{BufferDirection, Hal, PAGE_SIZE};

use super::super::memory::{self, DirectMap};
use super::admission::Admission;
use super::pci::Access;

/// Buffers for each direction. A burst beyond that is dropped by the card.
const QUEUE_LENGTH: usize = 64;

/// The largest Ethernet frame, without its checksum.
const FRAME_BYTES: usize = 1514;

/// Room for a frame and for virtio's header before it.
const BUFFER_BYTES: usize = 2048;

static RECEIVED: AtomicU64 = AtomicU64::new(0);
static TRANSMITTED: AtomicU64 = AtomicU64::new(0);

/// The frames that have come and gone.
pub(super) fn status() -> NetworkStatus {
    NetworkStatus {
        received_packets: RECEIVED.load(Ordering::Relaxed),
        transmitted_packets: TRANSMITTED.load(Ordering::Relaxed),
    }
}

/// What the driver needs of the kernel.
struct Kernel;

// SAFETY: DMA memory is whole frames that nothing else uses, zeroed, at their direct-map address; registers are mapped anew; and a
// buffer's address is its physical one, since the kernel's heap and image are contiguous in physical memory.
unsafe impl Hal for Kernel {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (u64, NonNull<u8>) {
        let order = Order::all().find(|order| order.bytes() >= (pages * PAGE_SIZE) as u64);
        let node = memory::local_node();
        let block = order.map(|order| memory::allocate_block(node, order));
        // The driver takes address 0 for a refusal.
        let Some(Ok(block)) = block else {
            return (0, NonNull::dangling());
        };
        let range = block.range();
        // SAFETY: the block has just been allocated.
        unsafe { DirectMap.zero(range) };
        (range.start.0, DirectMap.memory(range))
    }

    unsafe fn dma_dealloc(address: u64, _: NonNull<u8>, pages: usize) -> i32 {
        let order = Order::all().find(|order| order.bytes() >= (pages * PAGE_SIZE) as u64);
        let block = order.and_then(|order| Block::new(PhysAddr(address), order));
        memory::frames().free_block(block.expect("what was allocated is a block"));
        0
    }

    unsafe fn mmio_phys_to_virt(address: u64, bytes: usize) -> NonNull<u8> {
        match memory::map_device(PhysAddr(address), bytes) {
            Ok(registers) => registers,
            Err(error) => panic!("cannot map the network card's registers at {address:#x}: {error}"),
        }
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> u64 {
        memory::physical_address(buffer.as_ptr().cast()).0
    }

    unsafe fn unshare(_: u64, _: NonNull<[u8]>, _: BufferDirection) {}
}

#[repr(C, align(64))]
struct Buffer([u8; BUFFER_BYTES]);

fn buffers() -> Box<[Buffer]> {
    (0..QUEUE_LENGTH).map(|_| Buffer([0; BUFFER_BYTES])).collect()
}

/// A network card. All its buffers are here, for good: nothing is allocated when frames come or go.
pub(super) struct Card {
    sender: Sender,
    /// The card writes to all of them but the spent one. A buffer's index is the token that the driver has for it.
    buffers: Box<[Buffer]>,
    /// The buffer of the frame that was received last; the card gets it back before the next one is received.
    spent: Option<u16>,
    /// Decides which received frames are looked at.
    pub(super) admission: Admission,
}

/// The card's driver, and the half that sends.
struct Sender {
    driver: VirtIONetRaw<Kernel, PciTransport, QUEUE_LENGTH>,
    /// Each begins with virtio's header, which says nothing but "an ordinary frame follows".
    buffers: Box<[Buffer]>,
    /// Bytes of that header.
    header_bytes: usize,
    /// Indices of buffers that hold nothing.
    free: ArrayVec<usize, QUEUE_LENGTH>,
    /// For each of the driver's tokens, the index of the buffer that the card sends, and the frame's bytes.
    in_flight: [Option<(usize, usize)>; QUEUE_LENGTH],
    /// Set when the card broke virtio's rules: it is left alone then.
    broken: bool,
}

/// Why the card cannot be used.
#[derive(Debug)]
pub(super) enum CardError {
    Transport(VirtioPciError),
    Driver(virtio_drivers::Error),
    Address(EthernetAddress),
}

impl fmt::Display for CardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transport(error) => error.fmt(f),
            Self::Driver(error) => error.fmt(f),
            Self::Address(address) => write!(f, "its address {address} is not that of one card"),
        }
    }
}

impl From<virtio_drivers::Error> for CardError {
    fn from(error: virtio_drivers::Error) -> Self {
        Self::Driver(error)
    }
}

impl Card {
    /// Starts the card at `function`.
    ///
    /// # Errors
    /// If it has no modern interface, or does not do what it must.
    pub(super) fn start(
        root: &mut PciRoot<Access>,
        function: DeviceFunction,
        admission: Admission,
    ) -> Result<Self, CardError> {
        let transport = PciTransport::new::<Kernel, _>(root, function).map_err(CardError::Transport)?;
        let mut driver = VirtIONetRaw::new(transport)?;
        driver.disable_interrupts();

        let mut send_buffers = buffers();
        let mut header_bytes = 0;
        for Buffer(bytes) in &mut send_buffers {
            header_bytes = driver.fill_buffer_header(bytes)?;
        }
        let sender = Sender {
            driver,
            buffers: send_buffers,
            header_bytes,
            free: (0..QUEUE_LENGTH).collect(),
            in_flight: [None; QUEUE_LENGTH],
            broken: false,
        };
        let mut card = Self {
            sender,
            buffers: buffers(),
            spent: None,
            admission,
        };
        if !card.address().is_unicast() {
            return Err(CardError::Address(card.address()));
        }
        for index in 0..QUEUE_LENGTH as u16 {
            card.spent = Some(index);
            card.give_back()?;
        }
        Ok(card)
    }

    /// Its own address.
    pub(super) fn address(&self) -> EthernetAddress {
        EthernetAddress(self.sender.driver.mac_address())
    }

    /// Whether a frame has arrived.
    pub(super) fn has_received(&self) -> bool {
        !self.sender.broken && self.sender.driver.poll_receive().is_some()
    }

    /// Lets the card write to the spent buffer again.
    fn give_back(&mut self) -> virtio_drivers::Result {
        let Some(index) = self.spent.take() else {
            return Ok(());
        };
        let Buffer(bytes) = &mut self.buffers[usize::from(index)];
        // SAFETY: the buffer stays where it is, and is touched again only after the driver has given this token back.
        let token = unsafe { self.sender.driver.receive_begin(bytes) }?;
        // Tokens are reused last out, first in, and one buffer at a time is out.
        if token == index {
            Ok(())
        } else {
            Err(virtio_drivers::Error::WrongToken)
        }
    }

    /// Takes the next frame: its buffer's index, and where in the buffer it is.
    fn take(&mut self) -> virtio_drivers::Result<Option<(usize, Range<usize>)>> {
        self.give_back()?;
        let Some(token) = self.sender.driver.poll_receive() else {
            return Ok(None);
        };
        let index = usize::from(token);
        let Buffer(bytes) = self
            .buffers
            .get_mut(index)
            .ok_or(virtio_drivers::Error::WrongToken)?;
        // SAFETY: the buffer that this token was given for.
        let (header_bytes, frame_bytes) = unsafe { self.sender.driver.receive_complete(token, bytes) }?;
        self.spent = Some(token);
        RECEIVED.fetch_add(1, Ordering::Relaxed);
        Ok(Some((index, header_bytes..header_bytes + frame_bytes)))
    }
}

impl Sender {
    /// Takes back the buffers of frames that have been sent.
    fn reclaim(&mut self) -> virtio_drivers::Result {
        while let Some(token) = self.driver.poll_transmit() {
            let in_flight = self.in_flight.get_mut(usize::from(token)).and_then(Option::take);
            let (index, frame_bytes) = in_flight.ok_or(virtio_drivers::Error::WrongToken)?;
            let Buffer(bytes) = &self.buffers[index];
            // SAFETY: the bytes that this token was given for.
            unsafe {
                self.driver
                    .transmit_complete(token, &bytes[..self.header_bytes + frame_bytes])
            }?;
            self.free.push(index);
        }
        Ok(())
    }

    /// Sends the frame of `frame_bytes` bytes that lies in a buffer.
    fn send(&mut self, index: usize, frame_bytes: usize) -> virtio_drivers::Result {
        let Buffer(bytes) = &self.buffers[index];
        // SAFETY: the buffer stays where it is, and is touched again only after the driver has given this token back.
        let token = unsafe {
            self.driver
                .transmit_begin(&bytes[..self.header_bytes + frame_bytes])
        }?;
        let in_flight = self
            .in_flight
            .get_mut(usize::from(token))
            .ok_or(virtio_drivers::Error::WrongToken)?;
        *in_flight = Some((index, frame_bytes));
        TRANSMITTED.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A place for a frame to send, if there is one.
    fn place(&mut self) -> Option<Place<'_>> {
        if self.broken {
            return None;
        }
        if let Err(error) = self.reclaim() {
            self.give_up(error);
            return None;
        }
        let index = *self.free.last()?;
        Some(Place { sender: self, index })
    }

    fn give_up(&mut self, error: virtio_drivers::Error) {
        error!("network: the card is left alone from now on: {error}");
        self.broken = true;
    }
}

/// A received frame.
pub(super) struct Frame<'a>(&'a [u8]);

impl phy::RxToken for Frame<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

/// A place for a frame to send.
pub(super) struct Place<'a> {
    sender: &'a mut Sender,
    /// Of the last free buffer.
    index: usize,
}

impl phy::TxToken for Place<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, frame_bytes: usize, f: F) -> R {
        let Self { sender, index } = self;
        sender.free.pop();
        let Buffer(bytes) = &mut sender.buffers[index];
        let result = f(&mut bytes[sender.header_bytes..][..frame_bytes]);
        if let Err(error) = sender.send(index, frame_bytes) {
            sender.give_up(error);
        }
        result
    }
}

impl phy::Device for Card {
    type RxToken<'a> = Frame<'a>;
    type TxToken<'a> = Place<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Frame<'_>, Place<'_>)> {
        while self.admission.frames > 0 && self.sender.place().is_some() {
            let taken = self.take();
            let (index, place) = match taken {
                Ok(taken) => taken?,
                Err(error) => {
                    self.sender.give_up(error);
                    return None;
                }
            };
            self.admission.frames -= 1;
            let fits = place.len() <= FRAME_BYTES;
            if fits
                && let Some(frame) = self.buffers[index].0.get(place.clone())
                && self.admission.admits(frame)
            {
                return Some((Frame(&self.buffers[index].0[place]), self.sender.place()?));
            }
        }
        None
    }

    fn transmit(&mut self, _: Instant) -> Option<Place<'_>> {
        self.sender.place()
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_BYTES;
        capabilities
    }
}
