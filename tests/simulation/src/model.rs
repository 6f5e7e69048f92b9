//! The reference model: what program memory must look like to a program, in the simplest terms.
//!
//! An access of a program happens in one instant, in which the model is asked or told, so what a word holds is known exactly, but
//! for what a discard takes: from its beginning on, the word may be zero too, and once it has returned, it is zero or what has
//! been written since its beginning. What a call of the memory manager sets, such as a protection, may have been set from the
//! call's beginning on, and is set once it has returned. When calls for the same page overlap in time, then any of them may
//! have been the last one.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use homenode_mm::{Attributes, PageSize, PageState, Policy, Protection, VirtAddr, VirtRange};
use homenode_topology::NodeId;

use crate::hardware::memory::{FRAME, Violation};

/// A value out of a small set, as a bit.
trait Bit {
    fn bit(self) -> u64;
}

impl Bit for Protection {
    fn bit(self) -> u64 {
        1 << match self {
            Self::None => 0,
            Self::Read => 1,
            Self::ReadWrite => 2,
        }
    }
}

impl Bit for Option<Policy> {
    fn bit(self) -> u64 {
        1 << match self {
            None => 0,
            Some(Policy::Local) => 1,
            Some(Policy::Interleave) => 2,
            Some(Policy::Bind(node)) => 3 + 2 * node.0,
            Some(Policy::Preferred(node)) => 4 + 2 * node.0,
        }
    }
}

/// What something may be that calls set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Possible {
    /// The values that it may have, as bits.
    now: u64,
    /// What the calls set that have been going on since the last moment without any.
    set: u64,
    in_flight: u16,
    /// When the last call ended.
    changed_at: u64,
}

impl Possible {
    const fn new(value: u64, now: u64) -> Self {
        Self {
            now: value,
            set: 0,
            in_flight: 0,
            changed_at: now,
        }
    }

    fn begin(&mut self, value: u64) {
        if self.in_flight == 0 {
            self.set = 0;
        }
        self.in_flight += 1;
        self.set |= value;
        self.now |= value;
    }

    /// A call ends; if it was not `complete`, then what was there before may have stayed.
    fn end(&mut self, complete: bool, now: u64) {
        self.in_flight -= 1;
        self.changed_at = now;
        if !complete {
            self.set |= self.now;
        }
        if self.in_flight == 0 {
            self.now = self.set;
        }
    }

    /// Whether nothing has changed since `time`.
    const fn is_quiet_since(&self, time: u64) -> bool {
        self.in_flight == 0 && self.changed_at < time
    }

    /// Both as one, if they do not differ and no call is about them.
    fn joined(self, other: Self) -> Option<Self> {
        let same = self.in_flight == 0 && other.in_flight == 0 && self.now == other.now;
        same.then(|| Self::new(self.now, self.changed_at.max(other.changed_at)))
    }

    /// Whether the value may be one of these.
    const fn may_be(&self, values: u64) -> bool {
        self.now & values != 0
    }
}

/// What a part of a reservation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    protection: Possible,
    policy: Possible,
    /// The node that all pages lie on.
    bound: Option<NodeId>,
}

impl Segment {
    /// Both as one, if they do not differ and no call is about them.
    fn joined(self, other: Self) -> Option<Self> {
        Some(Self {
            protection: self.protection.joined(other.protection)?,
            policy: self.policy.joined(other.policy)?,
            bound: Some(self.bound).filter(|bound| *bound == other.bound)?,
        })
    }
}

/// A value that a word may have, and when it may have come there.
#[derive(Clone, Copy, Debug)]
struct Value {
    value: u64,
    since: u64,
}

/// A word that has been written to.
#[derive(Clone, Debug)]
struct Word {
    last: Value,
    others: Vec<Value>,
}

impl Word {
    fn values(&self) -> impl Iterator<Item = Value> {
        std::iter::once(self.last).chain(self.others.iter().copied())
    }

    /// The value, if there is but one.
    fn known(&self) -> Option<u64> {
        self.others.is_empty().then_some(self.last.value)
    }
}

/// Hashes addresses by a multiplication, the same in each run.
#[derive(Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }
}

/// A reservation.
pub(crate) struct Region {
    /// Distinguishes reservations at the same addresses.
    id: u64,
    pub(crate) range: VirtRange,
    pub(crate) page_size: PageSize,
    /// By their first address. They cover the range.
    segments: RefCell<BTreeMap<u64, Segment>>,
    /// What is in words that have been written to; others are zero.
    words: RefCell<HashMap<u64, Word, BuildHasherDefault<AddressHasher>>>,
    discards: RefCell<Vec<(u64, VirtRange)>>,
    /// How many calls about the region are going on, and how many have begun.
    calls: Cell<u32>,
    calls_begun: Cell<u64>,
    /// It is being released.
    releasing: Cell<bool>,
}

/// A call about a part of a region that goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    range: VirtRange,
    /// When it began.
    since: u64,
    /// The number of calls that had begun with it, if no other was going on.
    alone: Option<u64>,
}

/// What a call is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject {
    Protection(Protection),
    Policy(Option<Policy>),
    /// Where pages lie: a move, or a population by some policy.
    Placement,
    Discard,
    /// A population by the range's policy.
    Nothing,
}

impl Region {
    /// Whether the whole of it is being released.
    pub(crate) fn is_releasing(&self) -> bool {
        self.releasing.get()
    }

    /// Whether no call about it is going on.
    pub(crate) fn is_idle(&self) -> bool {
        self.calls.get() == 0 && !self.releasing.get()
    }

    fn is_discarding(&self, address: u64) -> bool {
        let address = VirtAddr::new_truncated(address);
        self.discards
            .borrow()
            .iter()
            .any(|(_, range)| range.contains(address))
    }

    fn segment<R>(&self, address: u64, use_it: impl FnOnce(&mut Segment) -> R) -> R {
        let mut segments = self.segments.borrow_mut();
        let (_, segment) = segments
            .range_mut(..=address)
            .next_back()
            .expect("segments cover the region");
        use_it(segment)
    }

    /// Whether the address may have a page that nobody may access, so that the CPU's tables do not show it.
    pub(crate) fn may_be_hidden(&self, address: u64) -> bool {
        self.segment(address, |segment| {
            segment.protection.now & Protection::None.bit() != 0
        })
    }

    /// Divides segments so that one begins at `address`.
    fn divide(segments: &mut BTreeMap<u64, Segment>, address: u64) {
        let below = segments
            .range(..=address)
            .next_back()
            .map(|(_, segment)| *segment);
        if let Some(below) = below {
            segments.entry(address).or_insert(below);
        }
    }

    /// The protection of the page at an address was seen to be one of these; whether that can be.
    fn see_protection(&self, address: u64, seen: u64) -> bool {
        let protection = self.segment(address, |segment| segment.protection);
        if protection.in_flight == 0 && protection.may_be(seen) && protection.may_be(!seen) {
            // What calls have left that overlapped may differ from page to page.
            let page = VirtAddr::new_truncated(address).align_down(FRAME);
            let page = VirtRange::new(page, FRAME).expect("a page is a range");
            self.for_segments(page, |segment| segment.protection.now &= seen);
        }
        protection.may_be(seen)
    }

    fn for_segments(&self, range: VirtRange, mut change: impl FnMut(&mut Segment)) {
        let (start, end) = (range.start().as_u64(), range.start().as_u64() + range.bytes());
        let mut segments = self.segments.borrow_mut();
        Self::divide(&mut segments, start);
        if end < self.range.start().as_u64() + self.range.bytes() {
            Self::divide(&mut segments, end);
        }
        segments
            .range_mut(start..end)
            .for_each(|(_, segment)| change(segment));
    }

    /// The range and what else lies in the largest pages that lie in it partly.
    fn widened(&self, range: VirtRange) -> VirtRange {
        let size = self.page_size.bytes();
        let start = range.start().align_down(size).max(self.range.start());
        let end = (range.start().as_u64() + range.bytes()).next_multiple_of(size);
        let bytes = end.min(self.range.start().as_u64() + self.range.bytes()) - start.as_u64();
        VirtRange::new(start, bytes).expect("a part of the region is a range")
    }

    /// Joins neighbouring segments that are equal but for the time of their last change.
    fn join_segments(&self) {
        let mut segments = self.segments.borrow_mut();
        let Some((mut kept, mut last)) = segments.first_key_value().map(|(start, first)| (*start, *first))
        else {
            return;
        };
        let starts: Vec<u64> = segments.keys().skip(1).copied().collect();
        for start in starts {
            let next = segments[&start];
            match last.joined(next) {
                Some(joined) => {
                    segments.remove(&start);
                    segments.insert(kept, joined);
                    last = joined;
                }
                None => (kept, last) = (start, next),
            }
        }
    }

    /// Up to `most` addresses of words in the range that are certainly in a page.
    pub(crate) fn words_with_pages(&self, range: VirtRange, most: usize) -> Vec<u64> {
        let words = self.words.borrow();
        let known = words.iter().filter(|(address, word)| {
            range.contains(VirtAddr::new_truncated(**address)) && word.known().is_some_and(|value| value != 0)
        });
        known.map(|(address, _)| *address).take(most).collect()
    }
}

/// How many released ranges are remembered.
pub(crate) const RELEASED: usize = 4;

/// The model.
#[derive(Default)]
pub(crate) struct Model {
    regions: RefCell<BTreeMap<u64, Rc<Region>>>,
    /// Goes up with everything that happens.
    time: Cell<u64>,
    /// How many reservations are under way, whose addresses are not known yet.
    reserving: Cell<u32>,
    /// Addresses that were reserved a short time ago.
    released: RefCell<VecDeque<VirtRange>>,
    /// What has been given back and may still be reached, as nobody has asked that it may not.
    retired: RefCell<BTreeMap<u64, Rc<Region>>>,
    /// What was accessed while it can only have been part of such a reservation.
    early: RefCell<Vec<u64>>,
}

type Checked = Result<(), Violation>;

fn check(holds: bool, otherwise: impl FnOnce() -> String) -> Checked {
    match holds {
        true => Ok(()),
        false => Err(Violation(otherwise())),
    }
}

impl Model {
    /// A new moment, after all others.
    pub(crate) fn tick(&self) -> u64 {
        self.time.set(self.time.get() + 1);
        self.time.get()
    }

    /// All reservations.
    pub(crate) fn regions(&self) -> Vec<Rc<Region>> {
        self.regions.borrow().values().cloned().collect()
    }

    /// How many reservations there are.
    pub(crate) fn count(&self) -> usize {
        self.regions.borrow().len()
    }

    /// A reservation by an index below [`count`](Self::count).
    pub(crate) fn nth(&self, index: usize) -> Option<Rc<Region>> {
        self.regions.borrow().values().nth(index).cloned()
    }

    /// The reservation that the address lies in.
    pub(crate) fn find(&self, address: u64) -> Option<Rc<Region>> {
        let regions = self.regions.borrow();
        let (_, region) = regions.range(..=address).next_back()?;
        region
            .range
            .contains(VirtAddr::new_truncated(address))
            .then(|| region.clone())
    }

    /// Whether a reservation is under way.
    pub(crate) fn is_reserving(&self) -> bool {
        self.reserving.get() > 0
    }

    /// A reservation begins.
    pub(crate) fn begin_reserve(&self) {
        self.reserving.set(self.reserving.get() + 1);
    }

    /// A reservation ends, with these addresses if it was successful.
    pub(crate) fn end_reserve(&self, bytes: u64, reserved: Option<(VirtRange, Attributes)>) -> Checked {
        self.reserving.set(self.reserving.get() - 1);
        let Some((range, attributes)) = reserved else {
            return Ok(());
        };
        check(range.bytes() == bytes.next_multiple_of(FRAME), || {
            format!("{bytes:#x} bytes were reserved as {range}")
        })?;
        self.early
            .borrow_mut()
            .retain(|address| !range.contains(VirtAddr::new_truncated(*address)));
        let (start, end) = (range.start().as_u64(), range.start().as_u64() + range.bytes());
        let mut regions = self.regions.borrow_mut();
        while let Some((_, other)) = regions.range(..end).next_back() {
            if other.range.start().as_u64() + other.range.bytes() <= start {
                break;
            }
            // A release that has not returned yet may have given the addresses back.
            check(other.releasing.get(), || {
                format!("{range} was reserved while {} is", other.range)
            })?;
            let other = other.range.start().as_u64();
            regions.remove(&other);
        }
        let mut retired = self.retired.borrow_mut();
        while let Some((&other, region)) = retired.range(..end).next_back() {
            if other + region.range.bytes() <= start {
                break;
            }
            // Its addresses have come back.
            retired.remove(&other);
        }
        drop(retired);
        let now = self.tick();
        let segment = Segment {
            protection: Possible::new(attributes.protection.bit(), now),
            policy: Possible::new(attributes.policy.bit(), now),
            bound: match attributes.policy {
                Some(Policy::Bind(node)) => Some(node),
                _ => None,
            },
        };
        let region = Region {
            id: now,
            range,
            page_size: attributes.page_size,
            segments: RefCell::new([(start, segment)].into()),
            words: RefCell::default(),
            discards: RefCell::default(),
            calls: Cell::new(0),
            calls_begun: Cell::new(0),
            releasing: Cell::new(false),
        };
        regions.insert(start, Rc::new(region));
        Ok(())
    }

    /// The release of a region begins, which must be idle.
    pub(crate) fn begin_release(&self, region: &Region) {
        region.releasing.set(true);
    }

    /// An address range that was reserved a short time ago, if there is one with this index.
    pub(crate) fn released(&self, index: usize) -> Option<VirtRange> {
        self.released.borrow().get(index).copied()
    }

    /// What has been given back until now and may still be reached.
    pub(crate) fn retired(&self) -> Vec<Rc<Region>> {
        self.retired.borrow().values().cloned().collect()
    }

    /// Nobody may reach these any more, which were [`retired`](Self::retired) before.
    pub(crate) fn end_retired(&self, regions: &[Rc<Region>]) {
        let mut retired = self.retired.borrow_mut();
        for region in regions {
            let start = region.range.start().as_u64();
            if retired.get(&start).is_some_and(|there| there.id == region.id) {
                retired.remove(&start);
            }
        }
    }

    fn find_retired(&self, address: u64) -> Option<Rc<Region>> {
        let retired = self.retired.borrow();
        let (_, region) = retired.range(..=address).next_back()?;
        let contains = region.range.contains(VirtAddr::new_truncated(address));
        contains.then(|| region.clone())
    }

    /// The release of a region ends, which may still be reached if it is `lazy`.
    pub(crate) fn end_release(&self, region: &Region, lazy: bool) {
        let mut released = self.released.borrow_mut();
        released.push_front(region.range);
        released.truncate(RELEASED);
        let start = region.range.start().as_u64();
        let mut regions = self.regions.borrow_mut();
        if regions.get(&start).is_some_and(|there| there.id == region.id)
            && let Some(region) = regions.remove(&start)
            && lazy
        {
            self.retired.borrow_mut().insert(start, region);
        }
        self.tick();
    }

    /// A call about a part of a region begins.
    pub(crate) fn begin(&self, region: &Region, range: VirtRange, subject: Subject) -> Call {
        let since = self.tick();
        region.calls_begun.set(region.calls_begun.get() + 1);
        let alone = (region.calls.get() == 0).then(|| region.calls_begun.get());
        region.calls.set(region.calls.get() + 1);
        match subject {
            Subject::Protection(protection) => {
                region.for_segments(range, |segment| segment.protection.begin(protection.bit()));
            }
            Subject::Policy(policy) => region.for_segments(range, |segment| {
                segment.policy.begin(policy.bit());
                segment.bound = None;
            }),
            Subject::Placement => {
                // A page that is populated may reach beyond the range.
                region.for_segments(region.widened(range), |segment| segment.bound = None);
            }
            Subject::Discard => {
                region.discards.borrow_mut().push((since, range));
                for (address, word) in region.words.borrow_mut().iter_mut() {
                    if range.contains(VirtAddr::new_truncated(*address)) {
                        word.others.push(Value { value: 0, since });
                    }
                }
            }
            Subject::Nothing => {}
        }
        Call { range, since, alone }
    }

    /// A call ends; whether no other call about the region was going on at any time since it began.
    pub(crate) fn end(&self, region: &Region, call: Call, subject: Subject, complete: bool) -> bool {
        let now = self.tick();
        region.calls.set(region.calls.get() - 1);
        match subject {
            Subject::Protection(_) => {
                region.for_segments(call.range, |segment| segment.protection.end(complete, now));
            }
            Subject::Policy(_) => {
                region.for_segments(call.range, |segment| segment.policy.end(complete, now));
            }
            Subject::Placement | Subject::Nothing => {}
            Subject::Discard => {
                let mut discards = region.discards.borrow_mut();
                discards.retain(|(since, _)| *since != call.since);
                for (address, word) in region.words.borrow_mut().iter_mut() {
                    if complete && call.range.contains(VirtAddr::new_truncated(*address)) {
                        let mut values: Vec<Value> =
                            word.values().filter(|value| value.since >= call.since).collect();
                        word.last = values.pop().unwrap_or(Value { value: 0, since: now });
                        word.others = values;
                    }
                }
            }
        }
        region.join_segments();
        call.alone == Some(region.calls_begun.get())
    }

    /// In the instant of a read or write that the CPU allowed: what a program does with the word, if the model agrees.
    ///
    /// Returns the word's value, the new one after a write.
    pub(crate) fn access(
        &self,
        address: u64,
        writes: bool,
        node: Option<NodeId>,
        load: impl FnOnce() -> u64,
        store: impl FnOnce(u64),
    ) -> Result<u64, Violation> {
        let Some(region) = self.find(address).or_else(|| self.find_retired(address)) else {
            let found = load();
            self.early.borrow_mut().push(address);
            check(self.reserving.get() > 0 && found == 0, || {
                format!("{address:#x} is not reserved and could be accessed")
            })?;
            return Ok(found);
        };
        let allowed = match writes {
            true => Protection::ReadWrite.bit(),
            false => Protection::ReadWrite.bit() | Protection::Read.bit(),
        };
        let now = self.tick();
        if !region.is_releasing() {
            let bound = region.segment(address, |segment| segment.bound);
            check(region.see_protection(address, allowed), || {
                let verb = if writes { "written" } else { "read" };
                format!("{address:#x} could be {verb}, which its protection forbids")
            })?;
            check(bound.is_none() || bound == node, || {
                format!("{address:#x} is bound to {bound:?} and lies on {node:?}")
            })?;
            if writes {
                store(now);
                region.write(address, now);
                return Ok(now);
            }
        }
        let found = load();
        region.read(address, found, self.reserving.get() > 0)?;
        Ok(found)
    }

    /// An access that began at `since` was an error of the program: the address is not reserved.
    pub(crate) fn not_reserved(&self, address: u64, since: u64) -> Checked {
        let right = match self.find(address) {
            None => true,
            Some(region) => region.is_releasing() || region.id > since,
        };
        check(right, || format!("{address:#x} is reserved, but said not to be"))
    }

    /// An access that began at `since` was an error of the program: the protection forbids it.
    pub(crate) fn not_allowed(
        &self,
        address: u64,
        writes: bool,
        protection: Protection,
        since: u64,
    ) -> Checked {
        let Some(region) = self.find(address) else {
            return Ok(());
        };
        if region.is_releasing() || region.id > since {
            return Ok(());
        }
        let forbids = match protection {
            Protection::None => true,
            Protection::Read => writes,
            Protection::ReadWrite => false,
        };
        let quiet = region.segment(address, |segment| segment.protection.is_quiet_since(since));
        check(
            forbids && (!quiet || region.see_protection(address, protection.bit())),
            || {
                format!(
                    "{address:#x} is not allowed to be accessed: said to be {protection}, which it is not"
                )
            },
        )
    }

    /// What a query that began at `since` said.
    pub(crate) fn queried(
        &self,
        address: u64,
        state: PageState,
        node: Option<NodeId>,
        since: u64,
    ) -> Checked {
        let wrong = |what: &str| Violation(format!("{address:#x} is {what}, but said to be {state:?}"));
        let attributes = match state {
            PageState::Unreserved => return self.not_reserved(address, since),
            PageState::Reserved(attributes) => attributes,
            PageState::Page {
                page,
                size,
                node: said,
                attributes,
                ..
            } => {
                let covers = address & !(size.bytes() - 1) == page.as_u64();
                check(covers && Some(said) == node, || wrong("elsewhere").0)?;
                attributes
            }
        };
        let Some(region) = self.find(address) else {
            // A reservation that has not returned yet, or that was released meanwhile.
            return Ok(());
        };
        if region.is_releasing() || region.id > since {
            return Ok(());
        }
        let Segment {
            protection, policy, ..
        } = region.segment(address, |segment| *segment);
        let protection =
            !protection.is_quiet_since(since) || region.see_protection(address, attributes.protection.bit());
        check(protection, || wrong("protected otherwise").0)?;
        let policy = !policy.is_quiet_since(since) || policy.may_be(attributes.policy.bit());
        check(policy, || wrong("placed by another policy").0)?;
        let page_size = match state {
            PageState::Page { size, .. } => size <= region.page_size,
            _ => true,
        };
        check(page_size && attributes.page_size == region.page_size, || {
            wrong("of another page size").0
        })
    }

    /// All cores are at rest: checks what is in memory, by `look`, which says whether an address has a page, whether it is
    /// writable, its node, and the word there.
    pub(crate) fn audit(&self, look: impl Fn(u64) -> Result<Option<Seen>, Violation>) -> Checked {
        let early = self.early.borrow().first().copied();
        check(early.is_none(), || {
            format!("{early:x?} was accessed and is not reserved")
        })?;
        for region in self.regions() {
            let addresses: Vec<u64> = region.words.borrow().keys().copied().collect();
            for address in addresses {
                match look(address)? {
                    Some(seen) => self.agrees(&region, address, seen)?,
                    None => {
                        let gone = region.words.borrow()[&address]
                            .values()
                            .any(|value| value.value == 0);
                        check(gone || region.may_be_hidden(address), || {
                            format!("the page at {address:#x} has been lost")
                        })?;
                    }
                }
            }
        }
        Ok(())
    }

    fn agrees(&self, region: &Region, address: u64, seen: Seen) -> Checked {
        let (protection, bound) = region.segment(address, |segment| (segment.protection.now, segment.bound));
        let accessible = protection & (Protection::Read.bit() | Protection::ReadWrite.bit()) != 0;
        check(accessible, || {
            format!("{address:#x} is mapped, which its protection forbids")
        })?;
        check(
            !seen.writable || protection & Protection::ReadWrite.bit() != 0,
            || format!("{address:#x} is writable, which its protection forbids"),
        )?;
        check(bound.is_none() || bound == seen.node, || {
            format!("{address:#x} is bound to {bound:?} and lies on {:?}", seen.node)
        })?;
        region.read(address, seen.word, false)
    }
}

/// What is seen at an address in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) writable: bool,
    pub(crate) node: Option<NodeId>,
    pub(crate) word: u64,
}

impl Region {
    fn write(&self, address: u64, value: u64) {
        let discarding = self.is_discarding(address);
        let new = Value { value, since: value };
        let mut words = self.words.borrow_mut();
        match words.get_mut(&address) {
            Some(word) if discarding => {
                // The old frame may be what was written to, or what others still see.
                let old = std::mem::replace(&mut word.last, new);
                word.others.push(old);
            }
            _ => {
                let others = match discarding {
                    true => vec![Value {
                        value: 0,
                        since: value,
                    }],
                    false => Vec::new(),
                };
                words.insert(address, Word { last: new, others });
            }
        }
    }

    fn read(&self, address: u64, found: u64, or_zero: bool) -> Checked {
        let quiet = !self.is_discarding(address) && !self.is_releasing();
        let mut words = self.words.borrow_mut();
        let Some(word) = words.get_mut(&address) else {
            return check(found == 0, || {
                format!("{address:#x} was never written to and holds {found:#x}")
            });
        };
        let value = word.values().find(|value| value.value == found);
        check(
            value.is_some() || (or_zero && self.is_releasing() && found == 0),
            || {
                let possible: Vec<u64> = word.values().map(|value| value.value).collect();
                format!("{address:#x} holds {found:#x}, but must hold one of {possible:x?}")
            },
        )?;
        if let Some(value) = value.filter(|_| quiet) {
            word.last = value;
            word.others.clear();
        }
        Ok(())
    }
}
