//! A machine whose physical memory is a sparse array, and which writes down what is asked of it.

use std::ptr::{self, NonNull};
use std::sync::Mutex;

use homenode_mm::{Machine, VirtAddr};
use homenode_topology::PhysRange;

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
}

impl FakeMachine {
    pub(crate) fn new(bytes: u64) -> Self {
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
        let memory = NonNull::new(memory.cast()).unwrap();
        Self {
            memory,
            bytes,
            asked: Mutex::default(),
            invalidated: Mutex::default(),
        }
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

    fn invalidate_page(&self, page: VirtAddr) {
        self.invalidated.lock().unwrap().push(Invalidation::Page(page));
    }

    fn invalidate_all(&self) {
        self.invalidated.lock().unwrap().push(Invalidation::All);
    }
}
