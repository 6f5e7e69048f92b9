//! Chains of 4 KiB frames, and a node's depot of them: what its CPUs' caches have too much of, and take from when they are empty.
//!
//! A chain is linked through its frames' metadata. To put one into the depot or to take one out writes the depot's own cache line
//! and those of the chain's first and last frame, however long it is.

use super::Node;
use super::metadata::{FrameMetadata, MetadataArray};
use crate::atomic::Ordering;
use crate::machine::Machine;

/// 4 KiB frames of one node that were given back and are in nobody's hands, each of which names the next by its index.
#[derive(Debug)]
#[must_use = "the frames are lost unless they are put somewhere"]
pub(super) struct Chain {
    first: u32,
    last: u32,
    count: u32,
}

impl Chain {
    pub(super) const EMPTY: Self = Self {
        first: FrameMetadata::NONE,
        last: FrameMetadata::NONE,
        count: 0,
    };

    #[inline]
    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) const fn take(&mut self) -> Self {
        core::mem::replace(self, Self::EMPTY)
    }

    /// Puts the frame with this index and metadata before the first.
    #[inline]
    pub(super) fn push(&mut self, index: u32, metadata: &FrameMetadata) {
        metadata.set_next(self.first);
        if self.count == 0 {
            self.last = index;
        }
        self.first = index;
        self.count += 1;
    }

    /// Takes the first frame out: its index and metadata.
    #[inline]
    pub(super) fn pop<'a>(&mut self, metadata: &'a MetadataArray) -> Option<(u32, &'a FrameMetadata)> {
        self.count = self.count.checked_sub(1)?;
        let index = self.first;
        let metadata = metadata.get(index);
        self.first = metadata.next();
        Some((index, metadata))
    }

    /// Adds `other`, if both together are at most `most` frames. Otherwise the longer of both is left over.
    pub(super) fn join(&mut self, metadata: &MetadataArray, mut other: Self, most: u32) -> Option<Self> {
        if self.is_empty() || other.is_empty() || self.count + other.count > most {
            if other.count < self.count || self.is_empty() {
                core::mem::swap(self, &mut other);
            }
            return (!other.is_empty()).then_some(other);
        }
        metadata.get(other.last).set_next(self.first);
        self.first = other.first;
        self.count += other.count;
        None
    }
}

/// A node's chains.
pub(super) struct Depot {
    /// The first frame of the chain that was put in last, which names its last frame, which names the chain below.
    top: u32,
    /// The frames in all chains.
    frames: u64,
    /// How many there may be.
    most_frames: u64,
    /// How long chains become.
    chain_frames: u32,
    /// Short chains become one here.
    open: Chain,
}

impl Depot {
    /// A depot of at most so many frames, in chains of at most `chain_frames` frames.
    pub(super) const fn new(most_frames: u64, chain_frames: u32) -> Self {
        Self {
            top: FrameMetadata::NONE,
            frames: 0,
            most_frames,
            chain_frames,
            open: Chain::EMPTY,
        }
    }

    pub(super) const fn frames(&self) -> u64 {
        self.frames
    }

    /// Puts a chain in.
    ///
    /// # Errors
    /// The chain, if there is no room for it.
    fn put(&mut self, metadata: &MetadataArray, chain: Chain) -> Result<(), Chain> {
        let frames = self.frames + u64::from(chain.count);
        if frames > self.most_frames {
            return Err(chain);
        }
        self.frames = frames;
        if let Some(longer) = self.open.join(metadata, chain, self.chain_frames) {
            debug_assert!(
                longer.first != longer.last,
                "a chain that is not joined is longer than one frame"
            );
            metadata.get(longer.first).set_chain(longer.count, longer.last);
            metadata.get(longer.last).set_previous(self.top);
            self.top = longer.first;
        }
        Ok(())
    }

    /// Takes a chain out, a long one if there is any.
    fn take(&mut self, metadata: &MetadataArray) -> Option<Chain> {
        let chain = match self.top {
            FrameMetadata::NONE => self.open.take(),
            first => {
                let (count, last) = metadata.get(first).chain();
                self.top = metadata.get(last).previous();
                Chain { first, last, count }
            }
        };
        self.frames -= u64::from(chain.count);
        (!chain.is_empty()).then_some(chain)
    }
}

impl Node {
    /// Puts a chain of the node's frames into its depot. They go to the free lists if there is no room, while memory is scarce, and
    /// while another CPU empties the depot and the caches, which could miss what is put behind its back.
    pub(super) fn put_chain(&self, machine: &impl Machine, chain: Chain) {
        let mut left = Some(chain);
        if self.has_depot && self.buddy.free_frames() >= self.plenty_frames {
            left = self.depot.with(machine, |depot| {
                if self.drains.load(Ordering::Acquire) != 0 {
                    return left;
                }
                self.note_cached();
                left.and_then(|chain| depot.put(self.buddy.metadata(), chain).err())
            });
        }
        if let Some(chain) = left {
            self.buddy.free_chain(machine, chain);
        }
    }

    /// Takes a chain out of the depot, unless the node has no more than what is kept for the kernel.
    pub(super) fn take_chain(&self, machine: &impl Machine) -> Option<Chain> {
        if !self.has_depot || self.buddy.free_frames() < self.kept_frames {
            return None;
        }
        self.depot
            .with(machine, |depot| depot.take(self.buddy.metadata()))
    }

    /// Gives a chain of the depot to the free lists; `false` if there is none. Under the depot's lock, so that whoever finds the
    /// depot empty finds all of its frames there.
    pub(super) fn drain_chain(&self, machine: &impl Machine) -> bool {
        let drain = |depot: &mut Depot| {
            let chain = depot.take(self.buddy.metadata())?;
            self.buddy.free_chain(machine, chain);
            Some(())
        };
        self.has_depot && self.depot.with(machine, drain).is_some()
    }
}
