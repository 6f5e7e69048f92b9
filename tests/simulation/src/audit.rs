//! What must hold when all cores are at rest.

use homenode_mm::{PageSize, VirtAddr};
use homenode_topology::{NodeId, PhysAddr, PhysRange};

use crate::hardware::memory::{FRAME, Owner, Violation};
use crate::hardware::tlb::{Level, ROOT, SIZES, shift};
use crate::hardware::walk::{Meaning, bits, meaning};
use crate::model::Seen;
use crate::program::Program;

/// What the page table holds.
struct Tree {
    /// Pages by node and size.
    pages: Vec<[i64; ROOT]>,
    /// Frames of pages and of tables.
    frames: u64,
    /// Which frames have been met.
    met: Vec<bool>,
}

impl Program<'_> {
    /// Checks everything that can be checked while nothing is going on.
    pub(crate) fn audit(&self) -> Result<(), Violation> {
        let tree = self.audit_tree()?;
        let memory = &self.hardware.memory;
        let mapped = self.hardware.mapped();
        if mapped != tree.pages {
            let pages = tree.pages;
            return Err(Violation(format!(
                "by node and size, pages are counted as {mapped:?}, but mapped as {pages:?}"
            )));
        }
        let allocated = memory.count(Owner::Allocated);
        if allocated != tree.frames {
            let used = tree.frames;
            return Err(Violation(format!(
                "{allocated} frames are handed out, but {used} are pages or tables"
            )));
        }
        self.audit_allocator()?;
        self.audit_caches()?;
        self.model.audit(|address| {
            let Some(found) = self.hardware.inspect(address)? else {
                return Ok(None);
            };
            let physical = found.frame + (address - found.page);
            Ok(Some(Seen {
                writable: found.writable,
                node: memory.node_of(physical),
                word: memory.peek(physical).unwrap_or(u64::MAX),
            }))
        })
    }

    /// The frame allocator says that what is not handed out is free.
    fn audit_allocator(&self) -> Result<(), Violation> {
        for index in 0..self.frames.nodes() {
            let free = self.hardware.memory.free_frames(index);
            let said = self
                .frames
                .stats(index.into())
                .map_or(0, |stats| stats.free_bytes());
            if said != free * FRAME {
                return Err(Violation(format!(
                    "node {index} has {free} free frames, but the allocator says {said} bytes"
                )));
            }
        }
        Ok(())
    }

    /// Nothing that a core has cached is stale.
    fn audit_caches(&self) -> Result<(), Violation> {
        for (index, core) in self.hardware.cores.iter().enumerate() {
            let tlb = core.tlb.borrow();
            for cached in tlb.translations() {
                let holds = self.hardware.inspect(cached.page)?.is_some_and(|now| {
                    (now.frame, now.size) == (cached.frame, cached.size)
                        && now.writable >= cached.writable
                        && now.dirty >= cached.dirty
                });
                if !holds {
                    return Err(Violation(format!("core {index} still has {cached:x?}")));
                }
            }
            for (address, level, cached) in tlb.tables() {
                if self.table_of(address, level)? != Some(cached.table) {
                    return Err(Violation(format!(
                        "core {index} still has, for {address:#x}, {cached:x?}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// The table of this level that translates an address.
    fn table_of(&self, address: u64, level: Level) -> Result<Option<PhysAddr>, Violation> {
        let mut table = self.hardware.root();
        for level in (level + 1..=ROOT).rev() {
            let entry = self.entry(table, address >> shift(level) & 511)?;
            match meaning(&self.hardware.memory, entry, level)? {
                Meaning::Table(next) => table = next,
                _ => return Ok(None),
            }
        }
        Ok(Some(table))
    }

    fn entry(&self, table: PhysAddr, index: u64) -> Result<u64, Violation> {
        let entry = self.hardware.memory.peek(table + index * 8);
        entry.ok_or_else(|| Violation(format!("the table at {table} is not allocated")))
    }

    fn audit_tree(&self) -> Result<Tree, Violation> {
        let memory = &self.hardware.memory;
        let mut tree = Tree {
            pages: vec![[0; ROOT]; memory.nodes().len()],
            frames: 0,
            met: vec![false; memory.frames()],
        };
        self.audit_table(self.hardware.root(), ROOT, 0, &mut tree)?;
        Ok(tree)
    }

    fn audit_table(
        &self,
        table: PhysAddr,
        level: Level,
        address: u64,
        tree: &mut Tree,
    ) -> Result<(), Violation> {
        let memory = &self.hardware.memory;
        tree.meet(PhysRange::new(table, table + FRAME))?;
        let mut empty = true;
        for index in 0..512 {
            let entry = self.entry(table, index)?;
            empty &= entry == 0;
            let address = address | index << shift(level);
            match meaning(memory, entry, level)? {
                Meaning::Table(next) => self.audit_table(next, level - 1, address, tree)?,
                Meaning::Page(frame, size) => self.audit_page(frame, size, address, tree)?,
                Meaning::NotPresent if entry & bits::ADDRESS == 0 => {}
                Meaning::NotPresent => {
                    // A page that nobody may access is not present for CPUs.
                    let size = SIZES.get(level).copied().unwrap_or(PageSize::Size4KiB);
                    if let Some(frame) = self.hidden_page(address, size) {
                        self.audit_page(frame, size, address, tree)?;
                    }
                }
            }
        }
        match empty && level < ROOT {
            true => Err(Violation(format!(
                "the level {level} table over {address:#x} is empty"
            ))),
            false => Ok(()),
        }
    }

    /// The frame of a page of this size that is kept at an address where there is no access.
    fn hidden_page(&self, address: u64, size: PageSize) -> Option<PhysAddr> {
        match self.space.query(VirtAddr::new_truncated(address)) {
            homenode_mm::PageState::Page {
                frame, size: there, ..
            } if there == size => Some(frame),
            _ => None,
        }
    }

    fn audit_page(
        &self,
        frame: PhysAddr,
        size: PageSize,
        address: u64,
        tree: &mut Tree,
    ) -> Result<(), Violation> {
        let memory = &self.hardware.memory;
        if self.model.find(address).is_none() {
            return Err(Violation(format!("{address:#x} is not reserved and has a page")));
        }
        let range = PhysRange::new(frame, frame + size.bytes());
        if memory.owner(frame) != Some(Owner::Allocated) {
            return Err(Violation(format!(
                "the page at {address:#x} is in {range}, which is not allocated"
            )));
        }
        tree.meet(range)?;
        let node = memory.node_of(frame).map_or(0, NodeId::index);
        let level = SIZES.iter().position(|other| *other == size).unwrap_or(0);
        tree.pages[node][level] += 1;
        Ok(())
    }
}

impl Tree {
    fn meet(&mut self, range: PhysRange) -> Result<(), Violation> {
        let frames = (range.start.0 / FRAME) as usize..(range.end.0 / FRAME) as usize;
        self.frames += frames.len() as u64;
        for frame in &mut self.met[frames] {
            if std::mem::replace(frame, true) {
                return Err(Violation(format!("{range} is used twice")));
            }
        }
        Ok(())
    }
}
