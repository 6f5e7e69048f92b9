//! From the boot loader to the application's main thread, one logged step after the other.

mod pvh;

use core::fmt;
use core::slice;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use homenode_topology::acpi::Madt;
use homenode_topology::{
    ApicId, Firmware, Inventory, MemoryMapEntry, PhysAddr, PhysRange, Topology, ram_blocks, resolve,
};

use super::housekeeping::{self, Keeper};
use super::traps::vector;
use super::{
    apic, clock, cpu, crash, heap, logger, memory, net, percpu, power, program, program_memory, rtc, sched,
    serial, smp, sys,
};
use crate::cmdline::{self, CommandLine};
use crate::firmware::Tables;

core::arch::global_asm!(
    include_str!("start.s"),
    ".text",
    boot_processor_main = sym boot_processor_main,
    application_processor_main = sym smp::application_processor_main,
    options(att_syntax)
);

/// What every boot loader hands over, whatever its protocol.
pub(crate) struct BootInfo {
    /// The firmware's memory map.
    pub(crate) memory_map: Vec<MemoryMapEntry>,
    /// The command line.
    pub(crate) command_line: &'static [u8],
    /// Where ACPI begins.
    pub(crate) rsdp: Option<PhysAddr>,
}

/// Why the boot loader's information cannot be used.
#[derive(Debug)]
pub(crate) enum BootError {
    /// The PVH start information is not usable.
    StartInfo(&'static str),
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StartInfo(why) => {
                write!(f, "the boot loader's PVH start information cannot be used: {why}")
            }
        }
    }
}

/// Unwraps, or stops the boot with the error's text.
trait OrStop<T> {
    fn or_stop(self) -> T;
}

impl<T, E: fmt::Display> OrStop<T> for Result<T, E> {
    fn or_stop(self) -> T {
        self.unwrap_or_else(|error| crash::stop_boot(format_args!("{error}")))
    }
}

/// The first Rust code: on the boot processor, on the boot stack and page tables, interrupts off.
extern "C" fn boot_processor_main(start_info: u32) -> ! {
    clock::start();
    // SAFETY: called once, first of all, on the boot processor.
    unsafe { smp::install_boot_cpu() };
    cpu::enable_features();
    serial::init();
    logger::init();

    // SAFETY: called once; `start_info` is what EBX held.
    let boot = unsafe { pvh::read(PhysAddr(start_info.into())) }.or_stop();
    let command_line = cmdline::parse(boot.command_line).or_stop();
    log::set_max_level(command_line.log);
    log::info!(
        "Homenode {}, running {}",
        env!("CARGO_PKG_VERSION"),
        program::name()
    );
    for entry in &boot.memory_map {
        log::debug!("memory map: {} {:?}", entry.range, entry.kind);
    }

    let memory_map = memory::reachable(boot.memory_map);
    let usable = memory::usable(&memory_map);
    let ram = ram_blocks(&memory_map);
    let ram_bytes: u64 = ram.iter().map(PhysRange::bytes).sum();
    // SAFETY: called once, on the boot tables.
    let early = unsafe { memory::init_tables(&memory_map, &ram, &usable) }.or_stop();
    log::info!("page tables: {} MiB of RAM in the direct map", ram_bytes >> 20);

    let tables = Tables::read(boot.rsdp, &|range| firmware_memory(range, &usable));
    if let Some(sleep) = tables.s5 {
        power::set_sleep(sleep);
    }
    let topology = read_topology(&tables, ram, &command_line, apic::this_cpu_id());
    log::info!("topology: {topology}");
    // SAFETY: called once, with the early frames.
    unsafe { memory::init_frames(topology, &usable, early) }.or_stop();
    heap::init().or_stop();
    program_memory::init(topology, command_line.page_table_locks, &command_line.tlb).or_stop();

    let local_apic = apic::init().or_stop();
    local_apic.init_this_cpu(apic::Vectors {
        timer: vector::TIMER,
        error: Some(vector::APIC_ERROR),
    });
    let calibration = clock::calibrate(&tables).or_stop();
    log::info!("clock: {calibration}; interrupts: {}", local_apic.mode());
    rtc::init(&tables);

    // SAFETY: called once, on the boot processor.
    let boot_cpu = unsafe { smp::prepare(topology) }.or_stop();
    smp::start(boot_cpu, &usable).or_stop();
    log::info!("CPUs: {} of {} run", percpu::all().len(), topology.cpus().len());

    let keeper = Keeper::choose(percpu::all(), command_line.housekeeping).or_stop();
    sys::init(topology, keeper.program_cpus(percpu::all()));
    net::init(&command_line.network, command_line.metrics_port, &tables);
    program::start(command_line.arguments, command_line.metrics_linger);
    if net::is_up() {
        housekeeping::start(keeper);
    }
    sched::enter_idle(boot_cpu)
}

/// The first mebibyte, which the kernel leaves to the firmware.
const FIRMWARE_LOW: PhysRange = PhysRange::new(PhysAddr(0), PhysAddr(1 << 20));

/// The bytes of a physical range, for those who read the firmware's tables: RAM that the firmware has kept for itself.
fn firmware_memory(range: PhysRange, usable: &[PhysRange]) -> Option<&'static [u8]> {
    let is_low = range.intersection(&FIRMWARE_LOW) == Some(range);
    let is_kept = is_low || usable.iter().all(|usable| usable.intersection(&range).is_none());
    // SAFETY: covered by the direct map; the kernel never hands it out, and the firmware's tables do not change.
    (is_kept && memory::covers(range))
        .then(|| unsafe { slice::from_raw_parts(memory::direct_map(range.start), range.bytes() as usize) })
}

/// The machine's topology: the command line's, else the firmware's, else one node. A contradiction in the firmware's tables is
/// reported and survived; an impossible command line stops the boot.
fn read_topology(
    tables: &Tables<'static>,
    ram: Vec<PhysRange>,
    command_line: &CommandLine,
    running: ApicId,
) -> &'static Topology {
    let mut apic_ids: Vec<ApicId> = match tables.madt.map(Madt::parse) {
        Some(Ok(madt)) => {
            for skip in &madt.skipped {
                log::warn!("firmware: {skip}");
            }
            madt.enabled().collect()
        }
        Some(Err(error)) => {
            log::warn!("firmware: {error}: only the boot processor is used");
            alloc::vec![running]
        }
        None => {
            log::warn!("firmware: there is no MADT: only the boot processor is used");
            alloc::vec![running]
        }
    };
    let firmware = Firmware::from_tables(tables.srat, tables.slit, tables.hmat);
    if !apic_ids.contains(&running) {
        log::warn!(
            "firmware: the MADT does not list the boot processor, APIC id {running}; it is used as CPU 0"
        );
        apic_ids.insert(0, running);
    }
    let inventory = Inventory::new(apic_ids, ram);
    let words = command_line.numa.iter().map(String::as_str);
    let (topology, notices) = resolve(&inventory, Some(&firmware), words).or_stop();
    for notice in notices {
        log::warn!("topology: {notice}");
    }
    Box::leak(Box::new(topology))
}
