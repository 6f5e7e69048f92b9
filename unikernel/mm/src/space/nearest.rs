//! Which reservations lie nearest to an address: for reports of accesses that miss them.

use super::{AddressSpace, Found};
use crate::addr::{VirtAddr, VirtRange};
use crate::machine::Machine;
use crate::table::entry::EntryValue;

impl<M: Machine> AddressSpace<'_, M> {
    /// The nearest reserved ranges that end at or below `address` and that begin above it. Reservations that touch each other count as
    /// one.
    ///
    /// No walk is begun, so that a crash report may ask at any time: what other CPUs change meanwhile may be seen wrongly.
    #[must_use]
    pub fn nearest(&self, address: VirtAddr) -> (Option<VirtRange>, Option<VirtRange>) {
        (self.nearest_below(address), self.nearest_above(address))
    }

    fn nearest_above(&self, address: VirtAddr) -> Option<VirtRange> {
        let start = self.skip_up(address, false)?;
        let end = self
            .skip_up(start, true)
            .unwrap_or_else(|| self.whole.last())
            .as_u64();
        VirtRange::new(start, end - start.as_u64())
    }

    fn nearest_below(&self, address: VirtAddr) -> Option<VirtRange> {
        let last = self.skip_down(address, false)?;
        let start = self
            .skip_down(last, true)
            .map_or(self.whole.start().as_u64(), |below| below.as_u64() + 1);
        VirtRange::new(VirtAddr::new_truncated(start), last.as_u64() + 1 - start)
    }

    /// The first address from `address` on that is not `reserved`.
    fn skip_up(&self, address: VirtAddr, reserved: bool) -> Option<VirtAddr> {
        let mut at = address;
        loop {
            let Found { level, value, .. } = self.descend(at)?;
            if (value != EntryValue::EMPTY) != reserved {
                return Some(at);
            }
            at = super::next_entry(at, level)?;
        }
    }

    /// The last address up to `address` that is not `reserved`.
    fn skip_down(&self, address: VirtAddr, reserved: bool) -> Option<VirtAddr> {
        let mut at = address;
        loop {
            let Found { level, value, .. } = self.descend(at)?;
            if (value != EntryValue::EMPTY) != reserved {
                return Some(at);
            }
            let first = at.align_down(level.entry_bytes());
            at = VirtAddr::new(first.as_u64().checked_sub(1)?)?;
        }
    }
}
