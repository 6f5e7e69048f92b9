//! A machine whose physical memory is a sparse array, whose CPUs are threads, and which writes down what is asked of it.

use std::cell::Cell;
use std::collections::HashMap;
use std::ptr::{self, NonNull};
use std::sync::Mutex;

use homenode_mm::{Event, Machine, NodeEvent, VirtAddr};
use homenode_topology::{CpuId, NodeId, PhysRange};

thread_local! {
    static CPU: Cell<CpuId> = const { Cell::new(CpuId(0)) };
}

/// What the memory manager asked to be invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invalidation {
    Page(VirtAddr),
    All,
}

/// Physical memory from address 0 on, taken from the host where it is touched.
pub(crate) struct FakeMachine {
    memory: NonNull<u8>,
    bytes: u64,
    /// The ranges that pointers were asked for.
    pub(crate) asked: Mutex<Vec<PhysRange>>,
    pub(crate) invalidated: Mutex<Vec<Invalidation>>,
    /// How often each node's events were counted.
    pub(crate) counted: Mutex<HashMap<(NodeId, NodeEvent), i64>>,
    /// The node of each CPU; 0 for those that are not named.
    cpus: Vec<NodeId>,
}

impl FakeMachine {
    pub(crate) fn new(bytes: u64) -> Self {
        Self::with_cpus(bytes, &[])
    }

    pub(crate) fn with_cpus(bytes: u64, cpus: &[NodeId]) -> Self {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping, of addresses that the host chooses.
        let memory = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes as usize,
                protection,
                flags | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert_ne!(memory, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        // So that what has been touched is known by the page. A host without huge pages refuses, which is as good.
        // SAFETY: the new mapping, and advice that changes no contents.
        unsafe { libc::madvise(memory, bytes as usize, libc::MADV_NOHUGEPAGE) };
        let memory = NonNull::new(memory.cast()).unwrap();
        Self {
            memory,
            bytes,
            asked: Mutex::default(),
            invalidated: Mutex::default(),
            counted: Mutex::default(),
            cpus: cpus.to_vec(),
        }
    }

    /// The nodes of the CPUs.
    pub(crate) fn cpus(&self) -> &[NodeId] {
        &self.cpus
    }

    /// Makes the calling thread this CPU from now on.
    pub(crate) fn run_on(cpu: CpuId) {
        CPU.set(cpu);
    }

    /// Makes each word of `range` this one, unseen by the counts.
    pub(crate) fn fill(&self, range: PhysRange, word: u32) {
        assert!(range.end.0 <= self.bytes && range.start.is_aligned(4));
        for offset in (range.start.0..range.end.0).step_by(4) {
            // SAFETY: in bounds, and only used by tests while nothing else uses the memory.
            unsafe { self.memory.add(offset as usize).cast::<u32>().write(word) };
        }
    }

    /// How many 4 KiB pages of `range` have ever been written or read.
    pub(crate) fn touched_pages(&self, range: PhysRange) -> usize {
        assert!(range.end.0 <= self.bytes && range.start.is_aligned(4096));
        let mut pages = vec![0u8; range.bytes().div_ceil(4096) as usize];
        // SAFETY: a part of the mapping, and a byte for each of its pages.
        let result = unsafe {
            libc::mincore(
                self.memory.add(range.start.0 as usize).as_ptr().cast(),
                range.bytes() as usize,
                pages.as_mut_ptr(),
            )
        };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        pages.iter().filter(|&&page| page & 1 != 0).count()
    }
}

impl Drop for FakeMachine {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; all pointers to it were good only while this value lived.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes as usize) };
    }
}

// SAFETY: the array is reached through raw pointers only, by those who may.
unsafe impl Send for FakeMachine {}
// SAFETY: as above.
unsafe impl Sync for FakeMachine {}

// SAFETY: the array lives as long as the value, and each physical address is one of its bytes.
unsafe impl Machine for FakeMachine {
    fn memory(&self, range: PhysRange) -> NonNull<u8> {
        assert!(
            !range.is_empty() && range.end.0 <= self.bytes,
            "{range} is not in the machine's {:#x}",
            self.bytes
        );
        self.asked.lock().unwrap().push(range);
        // SAFETY: in bounds, by the check above.
        unsafe { self.memory.add(range.start.0 as usize) }
    }

    fn cpu(&self) -> CpuId {
        CPU.get()
    }

    fn node(&self) -> NodeId {
        self.cpus.get(CPU.get().index()).copied().unwrap_or_default()
    }

    fn invalidate_page(&self, page: VirtAddr) {
        self.invalidated.lock().unwrap().push(Invalidation::Page(page));
    }

    fn invalidate_all(&self) {
        self.invalidated.lock().unwrap().push(Invalidation::All);
    }

    fn load_idle_root(&self) {
        self.invalidate_all();
    }

    fn load_program_root(&self) {
        self.invalidate_all();
    }

    fn interrupt(&self, cpus: impl Iterator<Item = CpuId>) {
        cpus.for_each(drop);
    }

    fn now_ns(&self) -> u64 {
        0
    }

    fn set_alarm(&self, _: u64) {}

    fn relax(&self) {
        std::thread::yield_now();
    }

    fn count(&self, _: Event, _: u64) {}

    fn count_on(&self, node: NodeId, event: NodeEvent, n: i64) {
        *self.counted.lock().unwrap().entry((node, event)).or_default() += n;
    }
}
