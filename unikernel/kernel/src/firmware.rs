//! What the kernel takes from the ACPI tables: where they are, and the few registers that it uses.
//!
//! The walk is our own since nothing in these tables may be trusted: each address, length and checksum is tested before use,
//! and what is wrong costs one warning and one table. (The crate `acpi` believes lengths and tests no checksum on its way.)
//! Offsets are those of the ACPI specification 6.5, chapter 5.2. The bodies of MADT, SRAT, SLIT and HMAT are left to
//! `homenode-topology`.

use core::fmt;

use homenode_topology::{PhysAddr, PhysRange};
use log::warn;

/// The largest table that is believed, in bytes. A MADT or SRAT for 65,536 CPUs and most DSDTs fit.
const TABLE_BYTES_MAX: u32 = 4 << 20;

/// The length of the header that all tables but the RSDP begin with, in bytes (5.2.6).
const HEADER_BYTES: u32 = 36;

/// The frequency of the ACPI power management timer in Hz (4.8.3.3).
#[cfg(not(feature = "hosted"))]
pub(crate) const PM_TIMER_HZ: u64 = 3_579_545;

/// The tables and registers that were found. The default is a machine without ACPI.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tables<'m> {
    /// Multiple APIC Description Table, whole.
    pub(crate) madt: Option<&'m [u8]>,
    /// System Resource Affinity Table, whole.
    pub(crate) srat: Option<&'m [u8]>,
    /// System Locality Information Table, whole.
    pub(crate) slit: Option<&'m [u8]>,
    /// Heterogeneous Memory Attribute Table, whole.
    pub(crate) hmat: Option<&'m [u8]>,
    /// The registers of the first High Precision Event Timer.
    pub(crate) hpet: Option<PhysAddr>,
    /// The power management timer.
    pub(crate) pm_timer: Option<PmTimer>,
    /// The PCI configuration space of segment 0 in memory.
    pub(crate) ecam: Option<Ecam>,
    /// How to enter the sleeping state S5, which is off.
    pub(crate) s5: Option<SleepType>,
    /// The index of the century in the CMOS clock.
    pub(crate) century_register: Option<u8>,
    /// Whether firmware says that there is no CMOS clock.
    pub(crate) no_cmos_rtc: bool,
}

/// A register's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    /// In the I/O space.
    Port(u16),
    /// In memory.
    Memory(PhysAddr),
}

/// The ACPI power management timer, which counts up at [`PM_TIMER_HZ`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PmTimer {
    /// Its counter, read as 32 bits.
    pub(crate) register: Register,
    /// How many of those bits count: 24 or 32.
    pub(crate) bits: u32,
}

/// PCI Express' enhanced configuration access mechanism: 1 MiB of registers for each bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ecam {
    /// Where bus 0 is, or would be if `first_bus` is above 0.
    pub(crate) base: PhysAddr,
    /// The first bus that is decoded.
    pub(crate) first_bus: u8,
    /// The last bus that is decoded.
    pub(crate) last_bus: u8,
}

/// What to write where to enter a sleeping state (4.8.3.2.1, 7.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SleepType {
    /// SLP_TYPa, 3 bits.
    pub(crate) a: u8,
    /// SLP_TYPb, 3 bits.
    pub(crate) b: u8,
    /// The port of the PM1a control register.
    pub(crate) pm1a_control: u16,
    /// The port of the PM1b control register, where there is one.
    pub(crate) pm1b_control: Option<u16>,
    /// What makes firmware hand over the PM1 registers, where it has not done so.
    pub(crate) enable: Option<AcpiEnable>,
}

/// The command by which firmware leaves legacy mode (16.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AcpiEnable {
    /// The SMI command port.
    pub(crate) port: u16,
    /// The byte to write to it.
    pub(crate) value: u8,
}

/// Physical memory as the walk sees it: the bytes of a range, or `None` if they can not all be read.
pub(crate) trait Memory<'m>: Fn(PhysRange) -> Option<&'m [u8]> {
    /// `bytes` bytes from `start` on, or `None` if they can not all be read.
    fn bytes(&self, start: PhysAddr, bytes: u32) -> Option<&'m [u8]> {
        let end = PhysAddr(start.0.checked_add(u64::from(bytes))?);
        self(PhysRange::new(start, end)).filter(|found| found.len() == bytes as usize)
    }
}

impl<'m, F: Fn(PhysRange) -> Option<&'m [u8]>> Memory<'m> for F {}

impl<'m> Tables<'m> {
    /// Reads the tables that the root pointer at `rsdp` leads to; without one, looks for it where a BIOS leaves it.
    ///
    /// Whatever is missing or wrong is logged and left out.
    pub(crate) fn read(rsdp: Option<PhysAddr>, memory: &impl Memory<'m>) -> Self {
        let mut tables = Self::default();
        let Some(rsdp) = rsdp.or_else(|| find_rsdp(memory)) else {
            warn!("ACPI: no root pointer (RSDP) was given or found; going on without ACPI");
            return tables;
        };
        let Some((root, entry_bytes)) = root_table(rsdp, memory) else {
            warn!("ACPI: no usable XSDT or RSDT; going on without ACPI");
            return tables;
        };
        let (mut fadt, mut hpet, mut mcfg) = (None, None, None);
        for entry in root[HEADER_BYTES as usize..].chunks_exact(entry_bytes) {
            let address = PhysAddr(
                entry
                    .iter()
                    .rev()
                    .fold(0, |sum, &byte| sum << 8 | u64::from(byte)),
            );
            let Some(signature) = memory.bytes(address, 4) else {
                warn!("ACPI: the root table points to {address}, which is no memory; skipped");
                continue;
            };
            let slot = match signature {
                b"APIC" => &mut tables.madt,
                b"SRAT" => &mut tables.srat,
                b"SLIT" => &mut tables.slit,
                b"HMAT" => &mut tables.hmat,
                b"FACP" => &mut fadt,
                b"HPET" => &mut hpet,
                b"MCFG" => &mut mcfg,
                _ => continue,
            };
            if slot.is_some() {
                warn!("ACPI: another {} at {address}; skipped", signature.escape_ascii());
            } else {
                *slot = checked_table(signature, address, memory);
            }
        }
        tables.hpet = hpet.and_then(hpet_registers);
        tables.ecam = mcfg.and_then(ecam);
        if let Some(fadt) = fadt {
            tables.read_fadt(fadt, memory);
        }
        tables
    }

    /// Takes what is needed from the Fixed ACPI Description Table (5.2.9) and, through it, from the DSDT.
    fn read_fadt(&mut self, fadt: &[u8], memory: &impl Memory<'m>) {
        const DSDT: usize = 40;
        const SMI_COMMAND: usize = 48;
        const ACPI_ENABLE: usize = 52;
        const PM1A_CONTROL: usize = 64;
        const PM1B_CONTROL: usize = 68;
        const PM_TIMER: usize = 76;
        const PM_TIMER_LENGTH: usize = 91;
        const CENTURY: usize = 108;
        const BOOT_ARCHITECTURE: usize = 109;
        const FLAGS: usize = 112;
        const X_DSDT: usize = 140;
        const X_PM1A_CONTROL: usize = 172;
        const X_PM1B_CONTROL: usize = 184;
        const X_PM_TIMER: usize = 208;
        /// In the boot architecture flags: CMOS RTC not present.
        const NO_CMOS_RTC: u16 = 1 << 5;
        /// In the flags: the power management timer has 32 bits.
        const TIMER_32_BIT: u32 = 1 << 8;
        /// In the flags: there are no PM1 registers and no timer.
        const HARDWARE_REDUCED: u32 = 1 << 20;

        self.no_cmos_rtc = u16_at(fadt, BOOT_ARCHITECTURE) & NO_CMOS_RTC != 0;
        self.century_register = Some(u8_at(fadt, CENTURY)).filter(|&index| index != 0);
        let flags = u32_at(fadt, FLAGS);
        if flags & HARDWARE_REDUCED != 0 {
            return;
        }
        if u8_at(fadt, PM_TIMER_LENGTH) == 4 {
            self.pm_timer = register(fadt, X_PM_TIMER, PM_TIMER).map(|register| PmTimer {
                register,
                bits: if flags & TIMER_32_BIT != 0 { 32 } else { 24 },
            });
        }

        let dsdt = match u64_at(fadt, X_DSDT) {
            0 => u64::from(u32_at(fadt, DSDT)),
            address => address,
        };
        let Some(dsdt) = checked_table(b"DSDT", PhysAddr(dsdt), memory) else {
            return;
        };
        let Some((a, b)) = s5_values(&dsdt[HEADER_BYTES as usize..]) else {
            warn!("ACPI: no usable _S5_ in the DSDT; the machine can not be switched off through ACPI");
            return;
        };
        let Some(Register::Port(pm1a_control)) = register(fadt, X_PM1A_CONTROL, PM1A_CONTROL) else {
            warn!("ACPI: no PM1a control port in the FADT; the machine can not be switched off through ACPI");
            return;
        };
        let pm1b_control = match register(fadt, X_PM1B_CONTROL, PM1B_CONTROL) {
            Some(Register::Port(port)) => Some(port),
            _ => None,
        };
        let enable = match (u16::try_from(u32_at(fadt, SMI_COMMAND)), u8_at(fadt, ACPI_ENABLE)) {
            (Ok(port), value) if port != 0 && value != 0 => Some(AcpiEnable { port, value }),
            _ => None,
        };
        self.s5 = Some(SleepType {
            a,
            b,
            pm1a_control,
            pm1b_control,
            enable,
        });
    }
}

/// Why a table is not used.
enum Fault {
    /// It does not lie in memory.
    NotMemory,
    /// It begins with something else.
    Signature,
    /// Its length field is too small or too large.
    Length(u32),
    /// Its bytes do not sum up to 0.
    Checksum,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMemory => f.write_str("does not lie in memory"),
            Self::Signature => f.write_str("has another signature"),
            Self::Length(bytes) => write!(f, "claims a length of {bytes} bytes"),
            Self::Checksum => f.write_str("has a wrong checksum"),
        }
    }
}

/// The whole table at `address`, or `None` and a warning if it is not sound.
fn checked_table<'m>(signature: &[u8], address: PhysAddr, memory: &impl Memory<'m>) -> Option<&'m [u8]> {
    match table(signature, address, memory) {
        Ok(table) => Some(table),
        Err(fault) => {
            warn!(
                "ACPI: table {} at {address} {fault}; skipped",
                signature.escape_ascii()
            );
            None
        }
    }
}

/// The whole table at `address`, at least its header long.
fn table<'m>(signature: &[u8], address: PhysAddr, memory: &impl Memory<'m>) -> Result<&'m [u8], Fault> {
    let header = memory.bytes(address, HEADER_BYTES).ok_or(Fault::NotMemory)?;
    if !header.starts_with(signature) {
        return Err(Fault::Signature);
    }
    let length = u32_at(header, 4);
    if !(HEADER_BYTES..=TABLE_BYTES_MAX).contains(&length) {
        return Err(Fault::Length(length));
    }
    let table = memory.bytes(address, length).ok_or(Fault::Length(length))?;
    if sum(table) != 0 {
        return Err(Fault::Checksum);
    }
    Ok(table)
}

/// The XSDT, or the RSDT where there is none, and how many bytes its entries have (5.2.5.3, 5.2.7, 5.2.8).
fn root_table<'m>(rsdp: PhysAddr, memory: &impl Memory<'m>) -> Option<(&'m [u8], usize)> {
    let Some(pointer) = root_pointer(rsdp, memory) else {
        warn!("ACPI: no valid root pointer (RSDP) at {rsdp}");
        return None;
    };
    let xsdt = match u64_at(pointer, 24) {
        0 => None,
        address => checked_table(b"XSDT", PhysAddr(address), memory),
    };
    xsdt.map(|xsdt| (xsdt, 8)).or_else(|| {
        let rsdt = checked_table(b"RSDT", PhysAddr(u64::from(u32_at(pointer, 16))), memory)?;
        Some((rsdt, 4))
    })
}

/// The root pointer at `address`, 20 bytes long, or 36 from revision 2 on; `None` if there is none or its checksum is wrong.
fn root_pointer<'m>(address: PhysAddr, memory: &impl Memory<'m>) -> Option<&'m [u8]> {
    let first = memory.bytes(address, 20)?;
    if !first.starts_with(b"RSD PTR ") || sum(first) != 0 {
        return None;
    }
    if u8_at(first, 15) < 2 {
        return Some(first);
    }
    memory.bytes(address, 36).filter(|whole| sum(whole) == 0)
}

/// Looks for the root pointer where a BIOS leaves it: in the first KiB of the extended BIOS data area and below 1 MiB, on
/// a 16-byte boundary (5.2.5.1).
fn find_rsdp<'m>(memory: &impl Memory<'m>) -> Option<PhysAddr> {
    /// Where the BIOS data area holds the segment of the extended one.
    const EBDA_SEGMENT: PhysAddr = PhysAddr(0x40e);
    let ebda = memory
        .bytes(EBDA_SEGMENT, 2)
        .map(|word| u64::from(u16_at(word, 0)) << 4);
    let ebda = ebda.filter(|start| (0x8_0000..=0xa_0000 - 1024).contains(start));
    let areas = [
        ebda.map(|start| (start, start + 1024)),
        Some((0xe_0000, 0x10_0000)),
    ];
    areas.into_iter().flatten().find_map(|(start, end)| {
        (start..end)
            .step_by(16)
            .map(PhysAddr)
            .find(|&address| root_pointer(address, memory).is_some())
    })
}

/// The registers of an HPET (IA-PC HPET specification 1.0a, 3.2.4).
fn hpet_registers(table: &[u8]) -> Option<PhysAddr> {
    match (u8_at(table, 40), u64_at(table, 44)) {
        (0, address) if address != 0 => Some(PhysAddr(address)),
        (space, address) => {
            warn!(
                "ACPI: the HPET's registers at {address:#x} are not in memory (address space {space}); skipped"
            );
            None
        }
    }
}

/// The first sound entry for segment 0 of an MCFG (PCI Firmware specification 3.3, 4.1.2).
fn ecam(table: &[u8]) -> Option<Ecam> {
    let entries = table.get(44..).unwrap_or_default().chunks_exact(16);
    let found = entries.filter(|entry| u16_at(entry, 8) == 0).find_map(|entry| {
        let (base, first_bus, last_bus) = (u64_at(entry, 0), u8_at(entry, 10), u8_at(entry, 11));
        let sound = base != 0
            && base.is_multiple_of(1 << 20)
            && base.checked_add(256 << 20).is_some()
            && first_bus <= last_bus;
        sound.then_some(Ecam {
            base: PhysAddr(base),
            first_bus,
            last_bus,
        })
    });
    if found.is_none() {
        warn!("ACPI: the MCFG has no usable entry for PCI segment 0; skipped");
    }
    found
}

/// SLP_TYPa and SLP_TYPb of the package `_S5_` in a DSDT's AML code (7.4.2, and 20.2 for the encoding).
///
/// Firmware names this package as constant data, so looking for its bytes is enough; there is no AML interpreter here.
fn s5_values(aml: &[u8]) -> Option<(u8, u8)> {
    const NAME_OP: u8 = 0x08;
    const PACKAGE_OP: u8 = 0x12;
    const NAME: &[u8] = b"_S5_";

    aml.windows(NAME.len())
        .enumerate()
        .filter(|(_, window)| *window == NAME)
        .find_map(|(at, _)| {
            let before = &aml[..at];
            if !before.strip_suffix(b"\\").unwrap_or(before).ends_with(&[NAME_OP]) {
                return None;
            }
            let (&op, rest) = aml[at + NAME.len()..].split_first()?;
            let (&length, rest) = rest.split_first()?;
            // The two highest bits of a package's length say how many more bytes it has.
            let (&elements, rest) = rest.get(usize::from(length >> 6)..)?.split_first()?;
            if op != PACKAGE_OP || elements < 2 {
                return None;
            }
            let (a, rest) = sleep_value(rest)?;
            let (b, _) = sleep_value(rest)?;
            Some((a, b))
        })
}

/// The integer constant at the start of `aml` if it fits into 3 bits, and what follows it.
fn sleep_value(aml: &[u8]) -> Option<(u8, &[u8])> {
    let (&prefix, rest) = aml.split_first()?;
    let bytes = match prefix {
        0x00 | 0x01 => return Some((prefix, rest)),
        0x0a => 1,
        0x0b => 2,
        0x0c => 4,
        0x0e => 8,
        _ => return None,
    };
    let (number, rest) = rest.split_at_checked(bytes)?;
    let (&value, high) = number.split_first()?;
    (value <= 7 && high.iter().all(|&byte| byte == 0)).then_some((value, rest))
}

/// A register of the FADT: the generic address structure (5.2.3.2) at `extended`, or else the port at `port`.
fn register(fadt: &[u8], extended: usize, port: usize) -> Option<Register> {
    let as_port = |address: u64| {
        u16::try_from(address)
            .ok()
            .filter(|&port| port != 0)
            .map(Register::Port)
    };
    match (u8_at(fadt, extended), u64_at(fadt, extended + 4)) {
        (0, address) if address != 0 => Some(Register::Memory(PhysAddr(address))),
        (1, address) if address != 0 => as_port(address),
        _ => as_port(u64::from(u32_at(fadt, port))),
    }
}

/// The sum by which ACPI tests its tables: 0 if all is well.
fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum: u8, &byte| sum.wrapping_add(byte))
}

/// The `N` bytes at `offset`; zeros where the table ends before, as in an older revision.
fn bytes_at<const N: usize>(table: &[u8], offset: usize) -> [u8; N] {
    table
        .get(offset..)
        .and_then(<[u8]>::first_chunk)
        .copied()
        .unwrap_or([0; N])
}

fn u8_at(table: &[u8], offset: usize) -> u8 {
    u8::from_le_bytes(bytes_at(table, offset))
}

fn u16_at(table: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(bytes_at(table, offset))
}

fn u32_at(table: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes_at(table, offset))
}

fn u64_at(table: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes_at(table, offset))
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use acpi_tables::Aml;
    use acpi_tables::aml::{Name, Package};
    use acpi_tables::fadt::{FADTBuilder, Flags};
    use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
    use acpi_tables::mcfg::MCFG;
    use acpi_tables::rsdp::Rsdp;
    use acpi_tables::sdt::Sdt;
    use acpi_tables::xsdt::XSDT;
    use proptest::prelude::*;

    use super::*;

    const OEM: [u8; 6] = *b"HOMEND";
    const OEM_TABLE: [u8; 8] = *b"HOMENODE";
    const ROOT: u64 = 0xf_5a00;
    const TABLES: u64 = 0x10_0000;

    /// Physical memory with tables in it.
    struct Machine {
        memory: Vec<u8>,
        next: u64,
    }

    impl Machine {
        fn new() -> Self {
            Self {
                memory: vec![0; 0x11_0000],
                next: TABLES,
            }
        }

        fn put(&mut self, address: u64, bytes: &[u8]) {
            self.memory[address as usize..][..bytes.len()].copy_from_slice(bytes);
        }

        /// Puts a table at the next free address and returns that.
        fn add(&mut self, table: &dyn Aml) -> u64 {
            let mut bytes = Vec::new();
            table.to_aml_bytes(&mut bytes);
            let address = self.next;
            self.put(address, &bytes);
            self.next += bytes.len() as u64;
            address
        }

        /// Puts the root table with these entries, and the root pointer at `ROOT`.
        fn root(&mut self, entries: &[u64]) {
            let mut xsdt = XSDT::new(OEM, OEM_TABLE, 1);
            entries.iter().for_each(|&entry| xsdt.add_entry(entry));
            let xsdt = self.add(&xsdt);
            let mut rsdp = Vec::new();
            Rsdp::new(OEM, xsdt).to_aml_bytes(&mut rsdp);
            self.put(ROOT, &rsdp);
        }

        fn memory<'m>(&'m self) -> impl Fn(PhysRange) -> Option<&'m [u8]> {
            |range| self.memory.get(range.start.0 as usize..range.end.0 as usize)
        }

        fn read(&self) -> Tables<'_> {
            Tables::read(Some(PhysAddr(ROOT)), &self.memory())
        }
    }

    fn fadt(dsdt: u64) -> FADTBuilder {
        let mut fadt = FADTBuilder::new(OEM, OEM_TABLE, 1)
            .dsdt_64(dsdt)
            .flag(Flags::TmrValExt);
        fadt.smi_cmd = 0xb2.into();
        fadt.acpi_enable = 2;
        fadt.pm1a_cnt_blk = 0x604.into();
        fadt.pm_tmr_blk = 0x608.into();
        fadt.pm_tmr_len = 4;
        fadt.century = 0x32;
        fadt
    }

    fn dsdt(aml: &dyn Aml) -> Sdt {
        let mut bytes = Vec::new();
        aml.to_aml_bytes(&mut bytes);
        let mut dsdt = Sdt::new(*b"DSDT", 36, 6, OEM, OEM_TABLE, 1);
        dsdt.append_slice(&bytes);
        dsdt
    }

    fn hpet(address: u64) -> Sdt {
        let mut hpet = Sdt::new(*b"HPET", 56, 1, OEM, OEM_TABLE, 1);
        hpet.write_u64(44, address);
        hpet
    }

    /// A machine with all that is read.
    fn full() -> Machine {
        let mut machine = Machine::new();
        let dsdt = machine.add(&dsdt(&Name::new(
            "_S5_".into(),
            &Package::new(vec![&5u8, &0u8, &0u8, &0u8]),
        )));
        let mut mcfg = MCFG::new(OEM, OEM_TABLE, 1);
        mcfg.add_ecam(0xe000_0000, 1, 0, 255);
        mcfg.add_ecam(0xb000_0000, 0, 0, 255);
        let mut entries = vec![
            machine.add(&fadt(dsdt).finalize()),
            machine.add(&mcfg),
            machine.add(&hpet(0xfed0_0000)),
        ];
        for signature in [*b"APIC", *b"SRAT", *b"SLIT", *b"HMAT", *b"BGRT"] {
            entries.push(machine.add(&Sdt::new(signature, 64, 1, OEM, OEM_TABLE, 1)));
        }
        machine.root(&entries);
        machine
    }

    #[test]
    fn all_tables_are_found() {
        let machine = full();
        let tables = machine.read();
        for (table, signature) in [
            (tables.madt, b"APIC"),
            (tables.srat, b"SRAT"),
            (tables.slit, b"SLIT"),
            (tables.hmat, b"HMAT"),
        ] {
            assert_eq!(table.unwrap().len(), 64);
            assert!(table.unwrap().starts_with(signature));
        }
        assert_eq!(tables.hpet, Some(PhysAddr(0xfed0_0000)));
        assert_eq!(
            tables.ecam,
            Some(Ecam {
                base: PhysAddr(0xb000_0000),
                first_bus: 0,
                last_bus: 255
            })
        );
        assert_eq!(
            tables.pm_timer,
            Some(PmTimer {
                register: Register::Port(0x608),
                bits: 32
            })
        );
        assert_eq!(tables.century_register, Some(0x32));
        let enable = Some(AcpiEnable { port: 0xb2, value: 2 });
        assert_eq!(
            tables.s5,
            Some(SleepType {
                a: 5,
                b: 0,
                pm1a_control: 0x604,
                pm1b_control: None,
                enable
            })
        );
    }

    #[test]
    fn the_root_pointer_is_found_without_help() {
        let machine = full();
        assert!(Tables::read(None, &machine.memory()).madt.is_some());

        let mut machine = full();
        let pointer = machine.memory[ROOT as usize..][..36].to_vec();
        machine.put(ROOT, &[0; 36]);
        assert!(Tables::read(None, &machine.memory()).madt.is_none());
        machine.put(0x40e, &0x9fc0u16.to_le_bytes());
        machine.put(0x9_fc10, &pointer);
        assert!(Tables::read(None, &machine.memory()).madt.is_some());
    }

    #[test]
    fn an_rsdt_serves_where_there_is_no_xsdt() {
        let mut machine = full();
        let madt = (TABLES..machine.next)
            .find(|&at| machine.memory[at as usize..].starts_with(b"APIC"))
            .unwrap();
        let mut rsdt = Sdt::new(*b"RSDT", 36, 1, OEM, OEM_TABLE, 1);
        rsdt.append_slice(&(madt as u32).to_le_bytes());
        let rsdt = machine.add(&rsdt);
        let mut pointer = *b"RSD PTR \0HOMEND\0\0\0\0\0";
        pointer[16..].copy_from_slice(&(rsdt as u32).to_le_bytes());
        pointer[8] = sum(&pointer).wrapping_neg();
        machine.put(ROOT, &pointer);
        let tables = machine.read();
        assert!(tables.madt.is_some());
        assert!(tables.srat.is_none());
    }

    #[test]
    fn a_wrong_checksum_costs_that_table_only() {
        let mut machine = full();
        let srat = (TABLES..machine.next)
            .find(|&at| machine.memory[at as usize..].starts_with(b"SRAT"))
            .unwrap();
        machine.memory[srat as usize + 50] ^= 1;
        let tables = machine.read();
        assert!(tables.srat.is_none());
        assert!(tables.madt.is_some() && tables.slit.is_some() && tables.s5.is_some());
    }

    #[test]
    fn a_lying_length_costs_that_table_only() {
        for length in [0, 35, 0x10_0000, TABLE_BYTES_MAX + 1, u32::MAX] {
            let mut machine = full();
            let srat = (TABLES..machine.next)
                .find(|&at| machine.memory[at as usize..].starts_with(b"SRAT"))
                .unwrap();
            machine.put(srat + 4, &length.to_le_bytes());
            let tables = machine.read();
            assert!(tables.srat.is_none(), "{length}");
            assert!(tables.madt.is_some() && tables.slit.is_some());
        }
    }

    #[test]
    fn wild_pointers_are_survived() {
        let mut machine = Machine::new();
        let fadt = machine.add(&fadt(u64::MAX - 40).finalize());
        machine.root(&[0, u64::MAX, u64::MAX - 3, 0x11_0000 - 2, fadt]);
        let tables = machine.read();
        assert!(tables.s5.is_none());
        assert!(tables.pm_timer.is_some());
        assert!(
            Tables::read(Some(PhysAddr(u64::MAX)), &machine.memory())
                .pm_timer
                .is_none()
        );
    }

    #[test]
    fn extended_addresses_win_and_reduced_hardware_has_none() {
        let mut machine = Machine::new();
        let mut table = fadt(0);
        table.x_pm_tmr_blk = GAS::new(
            AddressSpace::SystemMemory,
            32,
            0,
            AccessSize::DwordAccess,
            0xfed8_0808,
        );
        let table = machine.add(&table.finalize());
        machine.root(&[table]);
        let register = Register::Memory(PhysAddr(0xfed8_0808));
        assert_eq!(machine.read().pm_timer, Some(PmTimer { register, bits: 32 }));

        let mut machine = Machine::new();
        let table = machine.add(&fadt(0).flag(Flags::HwReducedAcpi).finalize());
        machine.root(&[table]);
        assert_eq!(machine.read().pm_timer, None);
    }

    #[test]
    fn sleep_values_in_every_encoding() {
        let package = |body: &[u8]| [b"\x08_S5_\x12".as_slice(), body].concat();
        assert_eq!(s5_values(&package(&[6, 4, 0x0a, 7, 0x0a, 5, 0, 0])), Some((7, 5)));
        assert_eq!(s5_values(&package(&[6, 2, 0, 1])), Some((0, 1)));
        assert_eq!(
            s5_values(&package(&[0x46, 0, 2, 0x0b, 3, 0, 0x0c, 4, 0, 0, 0])),
            Some((3, 4))
        );
        assert_eq!(s5_values(b"\x5b\x08\\_S5_\x12\x06\x02\x01\x01"), Some((1, 1)));
        // Behind a mention that is no definition.
        assert_eq!(
            s5_values(&[b"_S5_".to_vec(), package(&[6, 2, 1, 0])].concat()),
            Some((1, 0))
        );
        for wrong in [
            &[6, 1, 5][..],
            &[6, 2, 0x0a, 8, 0],
            &[6, 2, 0x0a],
            &[0xff],
            &[6, 2, b'A', 0],
            &[],
        ] {
            assert_eq!(s5_values(&package(wrong)), None, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_can_panic_the_walk(
            changes in prop::collection::vec((0usize..1024, any::<u8>()), 1..32),
            fix_checksums: bool,
        ) {
            let mut machine = full();
            for (offset, byte) in changes {
                machine.memory[TABLES as usize + offset] = byte;
            }
            if fix_checksums {
                for at in TABLES as usize..machine.next as usize - 36 {
                    let known: [&[u8]; 9] =
                        [b"APIC", b"SRAT", b"SLIT", b"HMAT", b"FACP", b"HPET", b"MCFG", b"DSDT", b"XSDT"];
                    let length = u32_at(&machine.memory, at + 4) as usize;
                    if known.contains(&&machine.memory[at..at + 4]) && length >= 36 && at + length < 0x11_0000 {
                        machine.memory[at + 9] = 0;
                        machine.memory[at + 9] = sum(&machine.memory[at..at + length]).wrapping_neg();
                    }
                }
            }
            let tables = machine.read();
            for table in [tables.madt, tables.srat, tables.slit, tables.hmat].into_iter().flatten() {
                prop_assert_eq!(sum(table), 0);
                prop_assert_eq!(u32_at(table, 4) as usize, table.len());
            }
            if let Some(s5) = tables.s5 {
                prop_assert!(s5.a <= 7 && s5.b <= 7);
            }
        }

        #[test]
        fn random_code_never_panics(aml in prop::collection::vec(any::<u8>(), 0..64), at in 0usize..64) {
            let mut aml = aml;
            let at = at.min(aml.len());
            aml.splice(at..at, *b"\x08_S5_\x12");
            let _ = s5_values(&aml);
        }
    }
}
