//! Changing what is there: protection, policy, and the pages themselves.

use homenode_topology::NodeId;

use super::held::{Held, Hold};
use super::{AddressSpace, Found, RangeError};
use crate::addr::{VirtAddr, VirtRange};
use crate::attributes::{Attributes, AttributesId, Protection};
use crate::frame::Block;
use crate::frames::{OutOfMemory, Purpose, RetiredFrames};
use crate::machine::{Event, Machine, NodeEvent};
use crate::policy::{Allocation, Policy};
use crate::table::entry::EntryValue;
use crate::table::level::Level;
use crate::tlb::{Cause, StalePages};

impl<M: Machine> AddressSpace<'_, M> {
    /// Allows in `range` what `protection` says, and nothing else: on return no CPU can do there what it forbids. A page that is
    /// only partly in the range is divided.
    ///
    /// # Errors
    /// If an address of the range is not reserved, or if there is no memory for a page table; what comes before is changed.
    pub fn protect(&self, range: VirtRange, protection: Protection) -> Result<(), RangeError> {
        self.change(range, |attributes| Attributes {
            protection,
            ..attributes
        })
    }

    /// Places pages of `range` that come from now on by `policy`, or by the touching thread's if that is `None`. Pages that are
    /// there stay; one that is only partly in the range is divided.
    ///
    /// # Errors
    /// As for [`protect`](Self::protect).
    pub fn set_policy(&self, range: VirtRange, policy: Option<Policy>) -> Result<(), RangeError> {
        self.change(range, |attributes| Attributes { policy, ..attributes })
    }

    /// Gives the attributes of `range` other values; if that takes rights away, translations are dropped everywhere.
    fn change(&self, range: VirtRange, new: impl Fn(Attributes) -> Attributes) -> Result<(), RangeError> {
        let mut stale = StalePages::None;
        let mut address = Some(range.start());
        let mut result = Ok(());
        while let Some(at) = address.filter(|at| range.contains(*at)) {
            match self.change_in_table(at, range, &new, &mut stale) {
                Ok(next) => address = next,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        if !stale.is_none() {
            self.tlb.invalidate(self.machine(), &stale, Cause::Change);
        }
        result
    }

    /// Changes what lies in one table, from `address` on; where to go on.
    fn change_in_table(
        &self,
        address: VirtAddr,
        range: VirtRange,
        new: &impl Fn(Attributes) -> Attributes,
        stale: &mut StalePages,
    ) -> Result<Option<VirtAddr>, RangeError> {
        let walk = self.tlb.begin_walk(self.machine());
        let Some(Found {
            table, level, value, ..
        }) = self.descend(address)
        else {
            return Err(RangeError::NotReserved(address));
        };
        let id = value.attributes();
        if id == AttributesId::NONE {
            return Err(RangeError::NotReserved(address));
        }
        if value.is_busy() {
            drop(walk);
            self.machine().relax();
            return Ok(Some(address));
        }
        if !range.contains_aligned(address, level.entry_bytes()) {
            drop(walk);
            self.divide(address, level, value)?;
            return Ok(Some(address));
        }
        // Entries with equal attributes are changed together.
        let old = self.attributes.get(id).unpack();
        let changed = new(old);
        let new_id = self.intern(changed)?;
        let takes_rights = old.protection.allows_more_than(changed.protection);
        let Some(locked) = self.lock(table) else {
            return Ok(Some(address));
        };
        let mut next = Some(address);
        for index in level.index(address)..Level::ENTRIES as usize {
            let Some(at) = next.filter(|at| range.contains_aligned(*at, level.entry_bytes())) else {
                break;
            };
            let value = locked.entry(index).load();
            if value.is_table(level) || value.is_busy() || value.attributes() != id {
                break;
            }
            let new_value = match level.page_size().filter(|_| value.holds_page(level)) {
                Some(size) => {
                    if takes_rights {
                        stale.add(at, size.shift());
                    }
                    EntryValue::page(value.frame(size), size, changed.protection, new_id)
                }
                None => EntryValue::reserved(new_id),
            };
            locked.replace(index, new_value);
            next = super::next_entry(at, level);
        }
        Ok(next)
    }

    /// Takes the memory of all pages in `range` away; the range stays reserved, and the next touch finds zeros. On return no CPU
    /// can reach the old pages. A page that is only partly in the range is divided.
    ///
    /// # Errors
    /// If there is no memory for a page table; what comes before is changed.
    pub fn discard(&self, range: VirtRange) -> Result<(), RangeError> {
        let mut retired = RetiredFrames::new();
        self.for_each_held(range, &mut retired, |page, retired| {
            page.entry.store(EntryValue::reserved(page.id()));
            if let Some(size) = page.level.page_size() {
                let frame = page.value.frame(size);
                self.count_unmapped(frame, size);
                self.frames.retire(retired, frame);
            }
            Ok(())
        })
    }

    /// Moves the pages of `range` to `node`, those that begin in it wholly; says how many moved. Their contents, addresses and
    /// protections stay. A large page for which the node has no frame is divided, and its parts move.
    ///
    /// # Errors
    /// If the node has no more memory; what could be moved until then has been.
    pub fn move_pages(&self, range: VirtRange, node: NodeId) -> Result<usize, RangeError> {
        let mut moved = 0;
        let mut failed = None;
        let mut start = range;
        loop {
            let mut retired = RetiredFrames::new();
            let result = self.for_each_held(start, &mut retired, |page, retired| {
                let Some(size) = page.level.page_size() else {
                    page.entry.store(page.value);
                    return Ok(());
                };
                let from = page.value.frame(size);
                if failed.is_some() || self.frames.node_of(from) == Some(node) {
                    page.entry.store(page.value);
                    return Ok(());
                }
                match self.frames.allocate_reclaiming(
                    size.order(),
                    Policy::Bind(node),
                    self.machine().node(),
                    0,
                    Purpose::Program,
                    &|| self.free_retired(),
                ) {
                    Ok(Allocation { memory: to, .. }) => {
                        let from = Block::new(from, size.order()).expect("a page's frame is aligned");
                        // SAFETY: the target has just been handed out; nobody can write to the source, since its entry is busy
                        // and no CPU has a translation of it any more.
                        unsafe { self.machine().copy(from.range(), to.start()) };
                        let protection = self.attributes.get(page.id()).protection();
                        page.entry
                            .store(EntryValue::page(to.start(), size, protection, page.id()));
                        self.count_unmapped(from.start(), size);
                        self.machine().count_on(node, NodeEvent::Mapped(size), 1);
                        self.machine().count(Event::Moved, 1);
                        self.frames.retire(retired, from.start());
                        moved += 1;
                    }
                    Err(error) => {
                        page.entry.store(page.value);
                        self.machine().count(Event::NotMoved, 1);
                        failed = Some((page.page, page.level, page.value, error));
                    }
                }
                Ok(())
            });
            result?;
            let Some((page, level, value, error)) = failed.take() else {
                return Ok(moved);
            };
            if level == Level::Pt {
                return Err(error.into());
            }
            // Smaller parts may find room.
            self.divide(page, level, value)?;
            match range.from(page) {
                Some(rest) => start = rest,
                None => return Ok(moved),
            }
        }
    }

    /// Holds the pages of `range`, those of one table at a time; calls `change` for each when no CPU has a translation of it any
    /// more; and gives back what that has retired. `change` sets the entry.
    fn for_each_held(
        &self,
        range: VirtRange,
        retired: &mut RetiredFrames,
        mut change: impl FnMut(super::held::HeldPage<'_>, &mut RetiredFrames) -> Result<(), RangeError>,
    ) -> Result<(), RangeError> {
        let mut held = Held::new();
        let mut address = Some(range.start());
        while let Some(at) = address.filter(|at| range.contains(*at)) {
            match self.hold(at, range, &mut held) {
                Hold::Pages(next) => {
                    self.tlb
                        .invalidate(self.machine(), &held.stale_pages(), Cause::Change);
                    for page in held.take() {
                        change(page, retired)?;
                    }
                    self.frames.free_retired(core::mem::take(retired));
                    address = next;
                }
                Hold::Nothing(next) => address = next,
                Hold::Larger(level, value) => self.divide(at, level, value)?,
                Hold::Wait => self.machine().relax(),
                Hold::Again => {}
            }
        }
        Ok(())
    }

    /// Puts a table in place of the entry of this level over `address`, which was `value`, a page or reserved: the same in smaller
    /// parts. If the entry is no longer that, nothing happens.
    ///
    /// # Errors
    /// If there is no frame for the table.
    fn divide(&self, address: VirtAddr, level: Level, value: EntryValue) -> Result<(), OutOfMemory> {
        if value.holds_page(level) {
            self.split(address, level)
        } else {
            self.divide_reserved(address, level, value)
        }
    }

    /// Divides the page of this level over `address` into 512 smaller ones over the same frame. If there is none any more, nothing
    /// happens.
    fn split(&self, address: VirtAddr, level: Level) -> Result<(), OutOfMemory> {
        let Some((below, size)) = level
            .below()
            .and_then(|below| Some((below.page_size()?, level.page_size()?)))
        else {
            return Ok(());
        };
        let new = self.new_table(EntryValue::EMPTY)?;
        let held = {
            let _walk = self.tlb.begin_walk(self.machine());
            self.descend_to(address, level)
                .filter(|found| found.level == level && found.value.holds_page(level))
                .and_then(|found| Some((self.lock(found.table)?, found.entry)))
                .and_then(|(locked, entry)| {
                    let value = entry.load();
                    value.holds_page(level).then(|| {
                        let busy = EntryValue::busy(value.attributes());
                        (entry, locked.replace(level.index(address), busy))
                    })
                })
        };
        let Some((entry, value)) = held else {
            self.free_unused_table(new);
            return Ok(());
        };
        // No CPU may have translations of both sizes.
        let mut stale = StalePages::None;
        stale.add(address.align_down(level.entry_bytes()), size.shift());
        self.tlb.invalidate(self.machine(), &stale, Cause::Change);

        let id = value.attributes();
        let protection = self.attributes.get(id).protection();
        let frame = value.frame(size);
        self.fill_table(new, |index| {
            EntryValue::page(frame + index * below.bytes(), below, protection, id)
        });
        let block = Block::new(frame, size.order()).expect("a page's frame is aligned");
        self.frames.split(block, below.order());
        self.count_unmapped(frame, size);
        if let Some(node) = self.frames.node_of(frame) {
            let parts = Level::ENTRIES as i64;
            self.machine().count_on(node, NodeEvent::Mapped(below), parts);
        }
        self.machine().count(Event::Split, 1);
        entry.store(EntryValue::table(new.start()));
        Ok(())
    }
}
