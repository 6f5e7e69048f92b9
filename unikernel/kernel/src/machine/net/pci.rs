//! The PCI bus, as far as it takes to find the network card.

use core::ptr::{self, NonNull};

use alloc::vec::Vec;
use log::warn;
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::{
    Command, ConfigurationAccess, DeviceFunction, HeaderType, PciRoot,
};
use virtio_drivers::transport::pci::virtio_device_type;
use x86_64::instructions::port::Port;

use super::super::memory;
use crate::firmware::Ecam;

/// Bytes of configuration space that each bus has in memory (PCI Express Base Specification 5.0, 7.2.2).
const ECAM_BUS_BYTES: usize = 1 << 20;

/// The register of a bridge that holds the numbers of its primary, secondary and subordinate bus (PCI-to-PCI Bridge
/// Architecture Specification 1.2, 3.2.5).
const BRIDGE_BUSES: u8 = 0x18;

/// Ports of configuration mechanism 1 (PCI Local Bus Specification 3.0, 3.2.2.3.2).
const ADDRESS_PORT: u16 = 0xcf8;
const DATA_PORT: u16 = 0xcfc;
/// In the address: it is one.
const ADDRESS_ENABLE: u32 = 1 << 31;

/// The way to the configuration registers of one bus.
#[derive(Clone, Copy, Debug)]
pub(super) enum Access {
    /// In memory, mapped here.
    Memory(NonNull<u8>),
    /// Through two ports. The boot processor alone uses them, while it boots.
    Ports,
}

impl Access {
    /// The way to `bus`: in memory where firmware says so, else through the ports.
    fn to(bus: u8, ecam: Option<Ecam>) -> Self {
        let Some(ecam) = ecam.filter(|ecam| (ecam.first_bus..=ecam.last_bus).contains(&bus)) else {
            return Self::Ports;
        };
        match memory::map_device(ecam.base + (u64::from(bus) << 20), ECAM_BUS_BYTES) {
            Ok(registers) => Self::Memory(registers),
            Err(error) => {
                warn!("PCI: cannot map the registers of bus {bus:#04x}: {error}; using ports");
                Self::Ports
            }
        }
    }

    /// Points the data port at a register.
    fn select(function: DeviceFunction, register: u8) {
        let address = ADDRESS_ENABLE
            | u32::from(function.bus) << 16
            | u32::from(function.device) << 11
            | u32::from(function.function) << 8
            | u32::from(register & !3);
        // SAFETY: selects a register and changes nothing else.
        unsafe { Port::new(ADDRESS_PORT).write(address) };
    }

    /// Where a register is in the bus' memory.
    fn register(registers: NonNull<u8>, function: DeviceFunction, register: u8) -> *mut u32 {
        assert!(function.valid(), "32 devices of 8 functions");
        let offset = usize::from(function.device) << 15
            | usize::from(function.function) << 12
            | usize::from(register & !3);
        registers.as_ptr().wrapping_add(offset).cast()
    }
}

impl ConfigurationAccess for Access {
    fn read_word(&self, function: DeviceFunction, register: u8) -> u32 {
        match *self {
            // SAFETY: within the bus' 1 MiB, aligned, and reading a configuration register has no effect but the read.
            Self::Memory(registers) => unsafe {
                ptr::read_volatile(Self::register(registers, function, register))
            },
            Self::Ports => {
                Self::select(function, register);
                // SAFETY: as above.
                unsafe { Port::new(DATA_PORT).read() }
            }
        }
    }

    fn write_word(&mut self, function: DeviceFunction, register: u8, data: u32) {
        match *self {
            // SAFETY: within the bus' 1 MiB and aligned; only the driver of the network card writes, to that card's registers.
            Self::Memory(registers) => unsafe {
                ptr::write_volatile(Self::register(registers, function, register), data);
            },
            Self::Ports => {
                Self::select(function, register);
                // SAFETY: as above.
                unsafe { Port::new(DATA_PORT).write(data) };
            }
        }
    }

    unsafe fn unsafe_clone(&self) -> Self {
        *self
    }
}

/// Finds the first virtio network card on bus 0 and behind its bridges, and lets it answer in memory and use memory.
pub(super) fn find_network_card(ecam: Option<Ecam>) -> Option<(PciRoot<Access>, DeviceFunction)> {
    let mut buses: Vec<u8> = [0].into();
    let mut visited = 0;
    while let Some(&bus) = buses.get(visited) {
        visited += 1;
        let access = Access::to(bus, ecam);
        let mut root = PciRoot::new(access);
        for (function, info) in root.enumerate_bus(bus) {
            if virtio_device_type(&info) == Some(DeviceType::Network) {
                enable(&mut root, function);
                return Some((root, function));
            }
            if info.header_type == HeaderType::PciPciBridge {
                let [_, secondary, _, _] = access.read_word(function, BRIDGE_BUSES).to_le_bytes();
                // A bridge that firmware has not set up leads to bus 0.
                if !buses.contains(&secondary) {
                    buses.push(secondary);
                }
            }
        }
    }
    None
}

/// Makes the card answer in memory and lets it read and write memory, but not interrupt: it is polled.
fn enable(root: &mut PciRoot<Access>, function: DeviceFunction) {
    let (_, command) = root.get_status_command(function);
    root.set_command(
        function,
        command | Command::MEMORY_SPACE | Command::BUS_MASTER | Command::INTERRUPT_DISABLE,
    );
}
