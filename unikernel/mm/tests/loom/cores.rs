//! CPUs that are loom's threads, each with a TLB for a few pages.

use std::alloc::{self, Layout};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, OnceLock};

use homenode_mm::{Event, Machine, NodeEvent, SafePoint, TlbEngine, VirtAddr, model};
use homenode_topology::{CpuId, NodeId, PhysAddr, PhysRange};
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread::{self, JoinHandle};

loom::thread_local! {
    static CPU: Cell<u32> = Cell::new(0);
}

/// Memory from address 0 on, aligned so that its largest page is 2 MiB.
pub(crate) const MEMORY: u64 = 16 << 20;

const PAGE: u64 = 4 << 10;

/// A CPU. Only its own thread looks at its TLB, at moments when loom does not switch.
struct Core {
    interrupted: AtomicBool,
    translations: Mutex<Translations>,
}

/// What a CPU has cached.
#[derive(Default)]
struct Translations {
    /// Whether the loaded root leads to program memory: else there are none.
    has_root: bool,
    pages: BTreeMap<VirtAddr, PhysAddr>,
}

thread_local! {
    // All executions of a model run on one thread, and memory that the host has to provide anew would take most of their time.
    static SPARE: Cell<Option<Memory>> = const { Cell::new(None) };
}

/// Memory, zeros but for the pages that somebody has asked for.
struct Memory {
    first: NonNull<u8>,
    asked: Mutex<BTreeSet<u64>>,
}

impl Memory {
    fn layout() -> Layout {
        Layout::from_size_align(MEMORY as usize, 2 << 20).unwrap()
    }

    fn new() -> Self {
        SPARE.take().unwrap_or_else(|| {
            // SAFETY: the layout has a size.
            let first = unsafe { alloc::alloc_zeroed(Self::layout()) };
            Self {
                first: NonNull::new(first).unwrap(),
                asked: Mutex::default(),
            }
        })
    }

    fn at(&self, address: u64) -> NonNull<u8> {
        // SAFETY: the callers give addresses below `MEMORY`.
        unsafe { self.first.add(address as usize) }
    }

    /// Makes it new again, for the next execution.
    fn give_back(self) {
        for page in std::mem::take(&mut *self.asked.lock().unwrap()) {
            // SAFETY: whoever has used the page has gone.
            unsafe { self.at(page * PAGE).write_bytes(0, PAGE as usize) };
        }
        SPARE.set(Some(self));
    }
}

/// A machine of a few CPUs.
pub(crate) struct Cores {
    /// `None` when it has been given back.
    memory: Option<Memory>,
    cores: Vec<Core>,
    tlb: OnceLock<&'static TlbEngine>,
    /// How many have done their work.
    done: AtomicUsize,
}

// SAFETY: memory is reached through raw pointers only, by those who may.
unsafe impl Send for Cores {}
// SAFETY: as above.
unsafe impl Sync for Cores {}

impl Cores {
    pub(crate) fn new(cpus: usize) -> Self {
        let core = || Core {
            interrupted: AtomicBool::new(false),
            translations: Mutex::default(),
        };
        Self {
            memory: Some(Memory::new()),
            cores: std::iter::repeat_with(core).take(cpus).collect(),
            tlb: OnceLock::new(),
            done: AtomicUsize::new(0),
        }
    }

    /// What interrupts ask to catch up.
    pub(crate) fn connect(&self, tlb: &'static TlbEngine) {
        assert!(self.tlb.set(tlb).is_ok());
    }

    fn core(&self) -> &Core {
        &self.cores[self.cpu().index()]
    }

    fn translations(&self) -> MutexGuard<'_, Translations> {
        self.core().translations.lock().unwrap()
    }

    /// The running CPU's cached translation of a page.
    pub(crate) fn translation(&self, page: VirtAddr) -> Option<PhysAddr> {
        self.translations().pages.get(&page).copied()
    }

    /// What the running CPU's page walker has found, if its root leads there.
    pub(crate) fn cache(&self, page: VirtAddr, translation: Option<PhysAddr>) {
        let mut translations = self.translations();
        if let Some(frame) = translation.filter(|_| translations.has_root) {
            translations.pages.insert(page, frame);
        }
    }

    fn drop_all(&self, has_root: bool) {
        *self.translations() = Translations {
            has_root,
            pages: BTreeMap::new(),
        };
    }

    /// A moment at which interrupts arrive.
    pub(crate) fn take_interrupts(&self) {
        if self.core().interrupted.load(Ordering::Acquire) {
            self.core().interrupted.swap(false, Ordering::Acquire);
            self.tlb
                .get()
                .expect("interrupts come from the engine")
                .catch_up(self, SafePoint::Interrupt);
        }
    }

    /// Says that the running CPU has done its work, and goes on taking interrupts, as a CPU does that computes, until `cpus` CPUs
    /// have said so.
    pub(crate) fn compute_until_done(&self, cpus: usize) {
        self.done.fetch_add(1, Ordering::AcqRel);
        while self.done.load(Ordering::Acquire) < cpus {
            self.relax();
        }
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        self.memory.take().into_iter().for_each(Memory::give_back);
    }
}

/// Runs `work` as this CPU.
pub(crate) fn on_cpu<T: Send + 'static>(
    cpu: u32,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    model::spawn(move || {
        CPU.with(|this| this.set(cpu));
        work()
    })
}

/// Does `work` on this thread as if it was this CPU.
pub(crate) fn as_cpu<R>(cpu: u32, work: impl FnOnce() -> R) -> R {
    let this = CPU.with(|this| this.replace(cpu));
    let result = work();
    CPU.with(|cpu| cpu.set(this));
    result
}

/// Lends `value` to threads that all end before `work` does.
pub(crate) fn lend<T: 'static, R>(value: T, work: impl FnOnce(&'static T) -> R) -> R {
    let value = Box::into_raw(Box::new(value));
    // SAFETY: a box has just been made of it, and is taken down only after the last use.
    let result = work(unsafe { &*value });
    // SAFETY: `work` and all who could have been given the reference have ended.
    drop(unsafe { Box::from_raw(value) });
    result
}

// SAFETY: memory lives as long as the value, each physical address is one of its bytes, and each thread that runs at the same time
// has been given a number of its own.
unsafe impl Machine for Cores {
    fn memory(&self, range: PhysRange) -> NonNull<u8> {
        assert!(!range.is_empty() && range.end.0 <= MEMORY, "{range}");
        let memory = self.memory.as_ref().expect("it is given back last");
        let pages = range.start.0 / PAGE..range.end.0.div_ceil(PAGE);
        memory.asked.lock().unwrap().extend(pages);
        memory.at(range.start.0)
    }

    fn cpu(&self) -> CpuId {
        CpuId(CPU.with(Cell::get))
    }

    fn node(&self) -> NodeId {
        NodeId(0)
    }

    fn invalidate_page(&self, page: VirtAddr) {
        self.translations().pages.remove(&page);
    }

    fn invalidate_all(&self) {
        self.translations().pages.clear();
    }

    fn load_idle_root(&self) {
        self.drop_all(false);
    }

    fn load_program_root(&self) {
        self.drop_all(true);
    }

    fn interrupt(&self, cpus: impl Iterator<Item = CpuId>) {
        for cpu in cpus {
            // An exchange, since loom does not order stores of threads that know nothing of each other.
            self.cores[cpu.index()].interrupted.swap(true, Ordering::AcqRel);
        }
    }

    fn now_ns(&self) -> u64 {
        0
    }

    fn set_alarm(&self, _at_ns: u64) {}

    fn relax(&self) {
        self.take_interrupts();
        thread::yield_now();
    }

    fn count(&self, event: Event, _n: u64) {
        // Where a lock is taken, a walk goes on, and an interrupt there has to leave it in peace.
        if event == Event::TableLock {
            self.take_interrupts();
        }
    }

    fn count_on(&self, _node: NodeId, _event: NodeEvent, _n: i64) {}
}
