//! A stress of the program's allocator on all CPUs.

use alloc::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error, realloc};
use alloc::vec::Vec;
use core::ptr::NonNull;

use homenode::sync::{Barrier, Mutex};
use homenode::{Args, ExitCode, Node, println, thread};

/// How often each thread allocates.
const ROUNDS: usize = 2000;
/// How many blocks each thread keeps.
const KEPT: usize = 40;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Blocks are as aligned as asked for, keep their contents wherever they are freed, and zeroed ones are zero; all CPUs at once.
pub(crate) fn heap(_: &mut Args) -> ExitCode {
    let threads = thread::available_parallelism().get();
    let mailboxes: Vec<Mutex<Vec<Block>>> = (0..threads).map(|_| Mutex::new(Vec::new())).collect();
    let barrier = Barrier::new(threads);
    thread::scope(|scope| {
        for index in 0..threads {
            let (mailboxes, barrier) = (&mailboxes, &barrier);
            scope.spawn(move || {
                let mut random = Random(index as u64 + 1);
                work(&mut random, index, mailboxes);
                barrier.wait();
                take(&mailboxes[index]).into_iter().for_each(Block::free);
            });
        }
    });
    freed_memory_comes_round_again();
    println!("heap: passed");
    ExitCode::SUCCESS
}

fn take(mailbox: &Mutex<Vec<Block>>) -> Vec<Block> {
    core::mem::take(&mut *mailbox.lock())
}

fn work(random: &mut Random, index: usize, mailboxes: &[Mutex<Vec<Block>>]) {
    let mut kept = Vec::new();
    for _ in 0..ROUNDS {
        kept.push(Block::new(random));
        if random.one_of(4) {
            let block = kept.swap_remove(random.below(kept.len()));
            kept.push(block.resize(random));
        }
        if kept.len() > KEPT {
            kept.swap_remove(random.below(kept.len())).free();
            let other = (index + random.below(mailboxes.len())) % mailboxes.len();
            let block = kept.swap_remove(random.below(kept.len()));
            mailboxes[other].lock().push(block);
        }
        if random.one_of(8) {
            take(&mailboxes[index]).into_iter().for_each(Block::free);
        }
    }
    kept.into_iter().for_each(Block::free);
}

/// A block that is filled with a pattern: all of it if it is small, and a byte here and there if not.
struct Block {
    start: NonNull<u8>,
    layout: Layout,
    tag: u8,
}

// SAFETY: whoever has it uses its memory alone.
unsafe impl Send for Block {}

/// Some offsets into so many bytes, the first and the last among them.
fn offsets(bytes: usize) -> impl Iterator<Item = usize> {
    (0..bytes.min(128))
        .chain((128..bytes).step_by(5000))
        .chain(bytes.saturating_sub(32)..bytes)
}

impl Block {
    fn new(random: &mut Random) -> Self {
        let layout = random.layout();
        let zeroed = random.one_of(3);
        // SAFETY: the layout has a size.
        let start = NonNull::new(unsafe {
            if zeroed {
                alloc_zeroed(layout)
            } else {
                alloc(layout)
            }
        });
        let start = start.unwrap_or_else(|| handle_alloc_error(layout));
        let tag = random.next() as u8;
        let block = Self { start, layout, tag };
        if zeroed {
            // SAFETY: the block's own memory.
            let is_zero = offsets(layout.size()).all(|offset| unsafe { start.add(offset).read() } == 0);
            assert!(is_zero, "{layout:?} at {start:?} is not zero");
        }
        block.fill();
        block
    }

    fn fill(&self) {
        let address = self.start.as_ptr().addr();
        assert!(
            address.is_multiple_of(self.layout.align()),
            "{address:#x} for {:?}",
            self.layout
        );
        for offset in offsets(self.layout.size()) {
            // SAFETY: the block's own memory.
            unsafe { self.start.add(offset).write(self.byte_at(offset)) };
        }
    }

    fn byte_at(&self, offset: usize) -> u8 {
        self.tag ^ (offset as u8).wrapping_mul(37)
    }

    /// Checks the first bytes, as far as they are filled.
    fn check(&self, bytes: usize) {
        for offset in offsets(self.layout.size()).filter(|&offset| offset < bytes) {
            // SAFETY: the block's own memory.
            let byte = unsafe { self.start.add(offset).read() };
            assert_eq!(
                byte,
                self.byte_at(offset),
                "at {offset} of {:?} at {:?}",
                self.layout,
                self.start
            );
        }
    }

    fn resize(self, random: &mut Random) -> Self {
        self.check(self.layout.size());
        let Self { start, layout, tag } = self;
        let bytes = random.size();
        // SAFETY: the block is this function's own, with this layout, and its new size fits in a layout.
        let new = NonNull::new(unsafe { realloc(start.as_ptr(), layout, bytes) });
        let new_layout = Layout::from_size_align(bytes, layout.align()).expect("sizes are small");
        let start = new.unwrap_or_else(|| handle_alloc_error(new_layout));
        // Its old layout tells where the old bytes are.
        Self { start, layout, tag }.check(bytes);
        let resized = Self {
            start,
            layout: new_layout,
            tag,
        };
        resized.fill();
        resized
    }

    fn free(self) {
        self.check(self.layout.size());
        // SAFETY: the block is this function's own, with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// More is allocated in all than the machine has: large blocks, then as many bytes in small ones.
fn freed_memory_comes_round_again() {
    const LARGE_BYTES: usize = 32 * MIB;
    let machine_bytes: u64 = homenode::topology().nodes().iter().map(Node::memory_bytes).sum();
    for _ in 0..=machine_bytes / LARGE_BYTES as u64 {
        let mut bytes = alloc::vec![0u8; LARGE_BYTES];
        for byte in bytes.iter_mut().step_by(256 * KIB) {
            assert_eq!(*byte, 0, "reused memory is zero again");
            *byte = 1;
        }
    }
    for size in [48, 1000, 4096, 20_000] {
        let blocks: Vec<Vec<u8>> = (0..8 * MIB / size).map(|_| alloc::vec![1; size]).collect();
        drop(blocks);
    }
}

/// Numbers that look random: xorshift (Marsaglia, "Xorshift RNGs", 2003).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 8
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn one_of(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn size(&mut self) -> usize {
        let largest = match self.below(100) {
            0..60 => 600,
            60..85 => 32 * KIB,
            85..97 => 900 * KIB,
            _ => 5 * MIB,
        };
        1 + self.below(largest)
    }

    fn layout(&mut self) -> Layout {
        let shift = match self.below(100) {
            0..80 => self.below(5),
            80..97 => self.below(13),
            _ => self.below(22),
        };
        Layout::from_size_align(self.size(), 1 << shift).expect("sizes are small")
    }
}
