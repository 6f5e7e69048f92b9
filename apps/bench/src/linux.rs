//! What only Linux has so far: memory that is taken when it is touched, in pages of a chosen size.

use core::ptr::{self, NonNull};

use homenode::mem::RegionError;

use crate::Failure;

/// The size of a mapping's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageSize {
    /// 4 KiB.
    Small,
    /// 2 MiB.
    Huge,
}

impl PageSize {
    const fn bytes(self) -> usize {
        match self {
            Self::Small => 4 << 10,
            Self::Huge => 2 << 20,
        }
    }
}

/// An anonymous mapping, `mmap(2)`. Dropping it is `munmap(2)`.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// What Linux gave; with huge pages it does not begin where a page does.
    whole: NonNull<u8>,
    whole_bytes: usize,
    start: NonNull<u8>,
    pages: usize,
    page_size: PageSize,
}

impl Mapping {
    /// `pages` pages, each written to.
    ///
    /// # Errors
    /// If Linux has no room for them.
    pub(crate) fn touched(pages: usize, page_size: PageSize) -> Result<Self, Failure> {
        let bytes = pages * page_size.bytes();
        let slack = if page_size == PageSize::Huge {
            page_size.bytes()
        } else {
            0
        };
        let whole_bytes = bytes + slack;
        // SAFETY: a new mapping where Linux finds room touches nothing that exists.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                whole_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(no_room(whole_bytes));
        }
        let whole = NonNull::new(address.cast::<u8>()).ok_or_else(|| no_room(whole_bytes))?;
        // SAFETY: within the mapping, since it has room for one page more where that matters.
        let start = unsafe { whole.add(whole.as_ptr().align_offset(page_size.bytes())) };
        // SAFETY: the range lies in the new mapping. A kernel that does not know the advice gives small pages.
        unsafe {
            let advice = match page_size {
                PageSize::Small => libc::MADV_NOHUGEPAGE,
                PageSize::Huge => libc::MADV_HUGEPAGE,
            };
            libc::madvise(start.as_ptr().cast(), bytes, advice);
        }
        let mapping = Self {
            whole,
            whole_bytes,
            start,
            pages,
            page_size,
        };
        mapping.touch();
        Ok(mapping)
    }

    /// Writes to each page.
    pub(crate) fn touch(&self) {
        for page in 0..self.pages {
            // SAFETY: the byte lies in the mapping, which is writable, and only its owner uses it.
            unsafe { self.start.add(page * self.page_size.bytes()).write_volatile(1) };
        }
    }

    /// Takes the right to write, and gives it back.
    pub(crate) fn protect_and_restore(&self) {
        let bytes = self.pages * self.page_size.bytes();
        for protection in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
            // SAFETY: the range lies in the mapping, and nobody writes to it meanwhile.
            let status = unsafe { libc::mprotect(self.start.as_ptr().cast(), bytes, protection) };
            assert_eq!(status, 0, "rights of a whole mapping can be changed");
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which nobody uses any more.
        unsafe { libc::munmap(self.whole.as_ptr().cast(), self.whole_bytes) };
    }
}

fn no_room(bytes: usize) -> Failure {
    Failure::Memory(RegionError::TooLarge {
        len: bytes,
        element_bytes: 1,
    })
}

/// Waits until Linux has passed a grace period, behind which it frees what ended threads leave: `membarrier(2)`, "the calling thread is
/// informed when all running threads have passed through a state where all memory accesses match program order".
pub(crate) fn wait_for_grace_period() {
    // A kernel that refuses has nothing to wait for that a program could know.
    // SAFETY: the call takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
}
