//! Joins the counting to QEMU's callbacks.
//!
//! Everything is counted by callbacks, and only while a phase is under way. QEMU's own counters (its scoreboards, to which translated
//! code adds inline) would be faster, but QEMU 10.0.2 crashes on two of them in a block, with one thread for all vCPUs: as if it multiplied
//! the vCPU's number, which it then holds for a constant, in place (not traced).
//!
//! Accesses are looked up within phases only, for another reason too: while devices are being mapped, as during boot, QEMU's look-up of
//! a hardware address may stop with a failed assertion.

use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

use crate::cache::{Cache, Geometry};
use crate::code::{Code, CodeMap};
use crate::counters::{Access, Counter, Layout, Level, Row};
use crate::ffi;
use crate::lines::Lines;
use crate::options::{Counts, Kernel, Options};
use crate::phases::Phases;
use crate::report::{Emulator, Numa, Report, Threads};
use crate::topology::Topology;
use crate::x86::{self, Marker, RepeatedString};

/// The longest x86 instruction has this many bytes.
const MAX_INSTRUCTION_BYTES: usize = 15;

/// The interface that this plugin was written for; QEMU looks for this symbol.
#[unsafe(no_mangle)]
#[used]
#[expect(unreachable_pub, reason = "QEMU looks for it")]
pub static qemu_plugin_version: c_int = ffi::OLDEST_API;

/// The one instance; QEMU's callbacks reach it here.
static REFEREE: OnceLock<Referee> = OnceLock::new();

/// What the plugin knows.
struct Referee {
    options: Options,
    emulator: Emulator,
    code: CodeMap,
    vcpus: Box<[Vcpu]>,
    accesses: Option<Accesses>,
    phases: Mutex<Phases>,
    /// Whether a phase is under way.
    counting: AtomicBool,
    /// The threads that started a vCPU, and how many vCPUs they started.
    starts: Mutex<(HashSet<ThreadId>, usize)>,
}

/// What is needed to count accesses.
struct Accesses {
    topology: Topology,
    geometry: Geometry,
    lines: Lines,
    /// The model cache of each vCPU.
    caches: Box<[Cache]>,
}

/// The counters of one vCPU. Only the thread that runs it writes them.
struct Vcpu {
    layout: Layout,
    row: Box<[AtomicU64]>,
}

impl Vcpu {
    fn new(layout: Layout) -> Self {
        Self {
            layout,
            row: (0..layout.len()).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn add(&self, counter: Counter, count: u64) {
        let counter = &self.row[self.layout.index(counter)];
        counter.store(counter.load(Relaxed) + count, Relaxed);
    }

    fn read(&self) -> Row {
        self.row.iter().map(|counter| counter.load(Relaxed)).collect()
    }
}

impl Accesses {
    fn new(topology: Topology, geometry: Geometry) -> Self {
        Self {
            geometry,
            lines: Lines::new(topology.end_of_memory()),
            caches: (0..topology.cpus()).map(|_| Cache::new(geometry)).collect(),
            topology,
        }
    }

    /// Counts an access of `vcpu`, whose number is `number`, to the physical address `address`, or to no memory.
    fn count(&self, number: usize, vcpu: &Vcpu, code: Code, access: Access, address: Option<u64>) {
        let located = address.and_then(|address| Some((address, self.topology.node_of_address(address)?)));
        let (Some((address, node)), Some(cache)) = (located, self.caches.get(number)) else {
            vcpu.add(Counter::Elsewhere(code), 1);
            return;
        };
        vcpu.add(Counter::Accesses(code, access, Level::Before, node), 1);
        let missed = match access {
            Access::Load => cache.load(address, &self.lines),
            Access::Store => {
                // QEMU's machines have at most 4,096 vCPUs.
                let (missed, store) = cache.store(address, number as u16, &self.lines);
                if store.shared {
                    vcpu.add(Counter::SharedLineWrites(code), 1);
                }
                missed
            }
        };
        if missed {
            vcpu.add(Counter::Accesses(code, access, Level::After, node), 1);
        }
    }
}

/// Instructions of a block that surely execute one after another, up to the last of them.
struct Run {
    first: *mut ffi::Instruction,
    code: Code,
    length: usize,
}

impl Run {
    /// Makes the run, if there is one, count itself when its first instruction executes.
    fn register(run: Option<Self>) {
        let Some(Self { first, code, length }) = run else {
            return;
        };
        // SAFETY: the instruction is one of the block that is being translated; the callback takes such data.
        unsafe {
            ffi::qemu_plugin_register_vcpu_insn_exec_cb(
                first,
                on_run,
                ffi::NO_REGISTERS,
                to_data(length * Code::ALL.len() + code.index()),
            );
        }
    }
}

impl Referee {
    fn new(arguments: &[&str], info: &ffi::Info, target: String) -> Result<Self, String> {
        if !(ffi::OLDEST_API..=ffi::NEWEST_API).contains(&info.current_api) {
            return Err(format!(
                "QEMU's plugin interface has version {}, but the referee knows versions {} to {}; take QEMU 9.1 or 10",
                info.current_api,
                ffi::OLDEST_API,
                ffi::NEWEST_API
            ));
        }
        if !info.system_emulation || target != "x86_64" {
            return Err("only qemu-system-x86_64 is understood".to_owned());
        }
        let options = Options::parse(arguments.iter().copied())?;
        let mut code = match &options.kernel {
            Kernel::Linux => CodeMap::linux(),
            Kernel::Image(path) => CodeMap::of_image(path).map_err(|error| format!("elf={error}"))?,
        };
        for range in &options.bulk {
            code.add_bulk(range.clone());
        }
        let vcpus = usize::try_from(info.vcpus).unwrap_or(0);
        let accesses = match &options.counts {
            Counts::Totals => None,
            Counts::Numa {
                topology: path,
                cache,
            } => {
                let fail = |error: String| format!("topology={}: {error}", path.display());
                let text = fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
                let topology = Topology::parse(&text).map_err(fail)?;
                if topology.cpus() != vcpus {
                    let described = topology.cpus();
                    return Err(fail(format!(
                        "describes {described} CPUs, the machine has {vcpus}"
                    )));
                }
                Some(Accesses::new(topology, *cache))
            }
        };
        let layout = accesses
            .as_ref()
            .map_or(Layout::TOTALS, |accesses| Layout::numa(accesses.topology.nodes()));
        Ok(Self {
            emulator: Emulator {
                target,
                plugin_api: info.current_api,
            },
            options,
            code,
            vcpus: (0..vcpus).map(|_| Vcpu::new(layout)).collect(),
            accesses,
            phases: Mutex::default(),
            counting: AtomicBool::new(false),
            starts: Mutex::default(),
        })
    }

    /// The rows of all vCPUs.
    fn rows(&self) -> Vec<Row> {
        self.vcpus.iter().map(Vcpu::read).collect()
    }

    /// The vCPU of this number if a phase is under way.
    fn counting(&self, vcpu: c_uint) -> Option<&Vcpu> {
        if self.counting.load(Relaxed) {
            self.vcpus.get(vcpu as usize)
        } else {
            None
        }
    }

    fn mark(&self, marker: Marker) {
        let mut phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner);
        phases.mark(marker, || self.rows());
        self.counting.store(phases.any_open(), Relaxed);
    }

    /// Notes that a vCPU starts, and on which thread.
    fn vcpu_starts(&self) {
        let mut starts = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
        starts.0.insert(thread::current().id());
        starts.1 += 1;
        drop(starts);
        if self.accesses.is_some() && self.threads() == Threads::Single {
            eprintln!(
                "referee: counts=numa needs `-accel tcg,thread=multi`: with one thread for several CPUs, QEMU names the wrong CPU"
            );
            // SAFETY: it does not return. `exit` would run QEMU's handlers while its other threads go on.
            unsafe { libc::_exit(1) }
        }
    }

    /// Whether one thread starts several vCPUs.
    fn threads(&self) -> Threads {
        let starts = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
        if starts.1 > 1 && starts.0.len() == 1 {
            Threads::Single
        } else {
            Threads::Multi
        }
    }

    /// Makes the instructions of a block count themselves.
    fn instrument(&self, instructions: impl Iterator<Item = *mut ffi::Instruction>) {
        let mut run: Option<Run> = None;
        for instruction in instructions {
            let mut bytes = [0; MAX_INSTRUCTION_BYTES];
            // SAFETY: the instruction is one of the block that is being translated, and the array has this length.
            let (length, address) = unsafe {
                (
                    ffi::qemu_plugin_insn_data(instruction, bytes.as_mut_ptr().cast(), bytes.len()),
                    ffi::qemu_plugin_insn_vaddr(instruction),
                )
            };
            let bytes = &bytes[..length.min(MAX_INSTRUCTION_BYTES)];
            if Marker::decode(bytes).is_some() {
                Run::register(run.take());
                // SAFETY: as above; the callback takes the marker's number for its data.
                unsafe {
                    ffi::qemu_plugin_register_vcpu_insn_exec_cb(
                        instruction,
                        on_marker,
                        ffi::NO_REGISTERS,
                        to_data(bytes[4].into()),
                    );
                }
                continue;
            }

            let code = self.code.classify(address);
            self.instrument_accesses(instruction, bytes, code);
            if run.as_ref().is_some_and(|run| run.code != code) {
                Run::register(run.take());
            }
            let current = run.get_or_insert(Run {
                first: instruction,
                code,
                length: 0,
            });
            current.length += 1;
            if !x86::surely_completes(bytes) {
                Run::register(run.take());
            }
        }
        Run::register(run);
    }

    /// Makes the accesses of an instruction count themselves: its iterations if it is a repeated string instruction, and all of them if
    /// accesses are wanted.
    fn instrument_accesses(&self, instruction: *mut ffi::Instruction, bytes: &[u8], code: Code) {
        let register = |callback: ffi::MemoryCallback, accesses, data| {
            // SAFETY: the instruction is one of the block that is being translated; the callback takes such data.
            unsafe {
                ffi::qemu_plugin_register_vcpu_mem_cb(
                    instruction,
                    callback,
                    ffi::NO_REGISTERS,
                    accesses,
                    to_data(data),
                );
            }
        };
        if let Some(string) = RepeatedString::decode(bytes) {
            let accesses = if string.is_seen_by_stores() {
                ffi::STORES
            } else {
                ffi::LOADS
            };
            let callback = match string.accesses_per_iteration() {
                1 => on_iteration,
                _ => on_paired_access,
            };
            register(callback, accesses, code.index());
        }
        if self.accesses.is_some() {
            register(on_access, ffi::LOADS_AND_STORES, code.index());
        }
    }

    /// Writes what was counted.
    fn finish(&self) -> Result<(), String> {
        let mut phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner);
        phases.finish(|| self.rows());
        let numa = self.accesses.as_ref().map(|accesses| Numa {
            topology: &accesses.topology,
            cache: accesses.geometry,
        });
        let report = Report::new(self.emulator.clone(), self.threads(), numa, &phases);
        if self.options.table {
            eprint!("{}", report.to_table());
        }
        let path = &self.options.out;
        fs::write(path, report.to_json() + "\n").map_err(|error| format!("out={}: {error}", path.display()))
    }
}

/// A number as a callback's data.
fn to_data(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}

unsafe extern "C" fn on_vcpu_start(_id: ffi::PluginId, _vcpu: c_uint) {
    if let Some(referee) = REFEREE.get() {
        referee.vcpu_starts();
    }
}

unsafe extern "C" fn on_translation(_id: ffi::PluginId, block: *mut ffi::TranslationBlock) {
    let Some(referee) = REFEREE.get() else { return };
    // SAFETY: QEMU passes the block that it is translating.
    let instructions = unsafe { ffi::qemu_plugin_tb_n_insns(block) };
    // SAFETY: as above; the block has an instruction of this index.
    referee.instrument((0..instructions).map(|index| unsafe { ffi::qemu_plugin_tb_get_insn(block, index) }));
}

unsafe extern "C" fn on_run(vcpu: c_uint, data: *mut c_void) {
    let (length, code) = (
        data.addr() / Code::ALL.len(),
        Code::ALL[data.addr() % Code::ALL.len()],
    );
    if let Some(vcpu) = REFEREE.get().and_then(|referee| referee.counting(vcpu)) {
        vcpu.add(Counter::Instructions(code), length as u64);
    }
}

/// Adds one to a counter of the code that `data` names.
fn add_one(vcpu: c_uint, data: *mut c_void, counter: impl Fn(Code) -> Counter) {
    let vcpu = REFEREE.get().and_then(|referee| referee.counting(vcpu));
    if let (Some(vcpu), Some(&code)) = (vcpu, Code::ALL.get(data.addr())) {
        vcpu.add(counter(code), 1);
    }
}

unsafe extern "C" fn on_iteration(vcpu: c_uint, _info: ffi::MemoryInfo, _address: u64, data: *mut c_void) {
    add_one(vcpu, data, Counter::Iterations);
}

unsafe extern "C" fn on_paired_access(
    vcpu: c_uint,
    _info: ffi::MemoryInfo,
    _address: u64,
    data: *mut c_void,
) {
    add_one(vcpu, data, Counter::PairedAccesses);
}

unsafe extern "C" fn on_marker(_vcpu: c_uint, data: *mut c_void) {
    let number = data.addr() as u8;
    let marker = Marker::decode(&[0x0f, 0x1f, 0x84, 0x00, number, 0x00, 0xed, 0x5e]);
    if let (Some(referee), Some(marker)) = (REFEREE.get(), marker) {
        referee.mark(marker);
    }
}

unsafe extern "C" fn on_access(number: c_uint, info: ffi::MemoryInfo, address: u64, data: *mut c_void) {
    let Some(referee) = REFEREE.get() else { return };
    let (Some(vcpu), Some(accesses), Some(&code)) = (
        referee.counting(number),
        &referee.accesses,
        Code::ALL.get(data.addr()),
    ) else {
        return;
    };
    // SAFETY: QEMU passes what describes the access, within whose callback these may be called; the handle is used at once, and null
    // only if QEMU does not know the address.
    let (is_store, physical) = unsafe {
        let handle = ffi::qemu_plugin_get_hwaddr(info, address);
        let is_memory = !handle.is_null() && !ffi::qemu_plugin_hwaddr_is_io(handle);
        let physical = is_memory.then(|| ffi::qemu_plugin_hwaddr_phys_addr(handle));
        (ffi::qemu_plugin_mem_is_store(info), physical)
    };
    let access = if is_store { Access::Store } else { Access::Load };
    accesses.count(number as usize, vcpu, code, access, physical);
}

unsafe extern "C" fn on_exit(_id: ffi::PluginId, _data: *mut c_void) {
    if let Some(referee) = REFEREE.get()
        && let Err(error) = referee.finish()
    {
        eprintln!("referee: {error}");
    }
}

/// QEMU calls this once, before the guest starts. Anything but 0 makes QEMU stop.
///
/// # Safety
/// `info` must describe QEMU, and `arguments` be an array of `count` strings, as the plugin interface promises.
#[unsafe(no_mangle)]
#[expect(unreachable_pub, reason = "QEMU looks for it")]
pub unsafe extern "C" fn qemu_plugin_install(
    id: ffi::PluginId,
    info: *const ffi::Info,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    // SAFETY: the caller promises that `info` is valid during the call.
    let info = unsafe { &*info };
    let string = |pointer: *const c_char| {
        // SAFETY: the caller promises a string.
        unsafe { CStr::from_ptr(pointer) }
            .to_str()
            .map_err(|error| error.to_string())
    };
    let referee = (0..count.unsigned_abs() as usize)
        // SAFETY: the caller promises that the array has `count` strings.
        .map(|index| string(unsafe { *arguments.add(index) }))
        .collect::<Result<Vec<_>, _>>()
        .and_then(|arguments| Referee::new(&arguments, info, string(info.target_name)?.to_owned()));
    match referee {
        Ok(referee) => {
            if REFEREE.set(referee).is_err() {
                eprintln!("referee: the plugin is loaded twice");
                return 1;
            }
        }
        Err(error) => {
            eprintln!("referee: {error}");
            return 1;
        }
    }
    // SAFETY: the callbacks have the types that QEMU calls them with, and this plugin is never unloaded.
    unsafe {
        ffi::qemu_plugin_register_vcpu_init_cb(id, on_vcpu_start);
        ffi::qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
        ffi::qemu_plugin_register_atexit_cb(id, on_exit, std::ptr::null_mut());
    }
    0
}
