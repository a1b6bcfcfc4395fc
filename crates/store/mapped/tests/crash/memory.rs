//! A simulated persistent memory, which may lose what was not flushed and fenced.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;
use std::rc::Rc;

use uncopy_core::random::{STEP, splitmix64};
use uncopy_mapped::memory::{LINE_BYTES, Persistent};

const WORD: usize = 8;

#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(splitmix64(seed))
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        splitmix64(self.0)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.word() % limit as u64) as usize
    }

    pub fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }
}

/// A call of the memory in the code under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    pub call: Call,
    pub place: &'static Location<'static>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    Store,
    Stream,
    StoreWord,
    Flush,
    Fence,
    /// A fence whose next call is a store of a word.
    FenceBeforeWord,
    /// A store or stream before a store of a word.
    StoreBeforeWord,
}

/// A violation of the ordering rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A flush, stream or fence has no effect.
    Omit(Site),
    /// A fence comes after the word whose store follows it.
    FenceAfterWord(Site),
    /// A store is visible at the next fence only, after the word that is stored next.
    StoreAfterWord(Site),
    /// Chunks are reused before the records that refer to them are retired.
    ReuseChunks,
}

/// A stored value of a word that is not persistent for certain.
#[derive(Clone, Copy)]
struct Pending {
    value: [u8; WORD],
    /// Threads whose next fence makes it persistent, one bit each.
    flushed_by: u8,
    is_atomic: bool,
}

/// Contents of the memory.
#[derive(Clone)]
pub struct Cells {
    visible: Vec<u8>,
    persistent: Vec<u8>,
    /// Values by the position of their word, the oldest first.
    pending: BTreeMap<usize, Vec<Pending>>,
}

/// Selection of the pending lines that power loss keeps.
pub enum Kept {
    /// Line `n` of the pending ones, if bit `n` is set: its latest values.
    Lines(u64),
    /// Each line with its latest values, or not at all.
    AnyLines,
    /// The first word of each line, or all others.
    FirstWords(bool),
    /// Each word with any of its values; words that were not stored as one may be torn.
    AnyWords,
}

impl Cells {
    pub fn new(len: usize) -> Self {
        Self { visible: vec![0; len], persistent: vec![0; len], pending: BTreeMap::new() }
    }

    fn put(&mut self, at: usize, bytes: &[u8], flushed_by: u8, is_atomic: bool) {
        self.visible[at..at + bytes.len()].copy_from_slice(bytes);
        for word in (at / WORD * WORD..at + bytes.len()).step_by(WORD) {
            let value = self.visible[word..word + WORD].try_into().expect("a word");
            self.pending.entry(word).or_default().push(Pending { value, flushed_by, is_atomic });
        }
    }

    fn flush(&mut self, at: usize, len: usize, thread: u8) {
        let lines = at / LINE_BYTES * LINE_BYTES..(at + len).next_multiple_of(LINE_BYTES);
        for (_, values) in self.pending.range_mut(lines) {
            values.iter_mut().for_each(|pending| pending.flushed_by |= 1 << thread);
        }
    }

    fn fence(&mut self, thread: u8) {
        self.pending.retain(|at, values| {
            if let Some(last) = values.iter().rposition(|pending| pending.flushed_by >> thread & 1 == 1) {
                self.persistent[*at..at + WORD].copy_from_slice(&values[last].value);
                values.drain(..=last);
            }
            !values.is_empty()
        });
    }

    /// Returns the pending lines.
    pub fn pending_lines(&self) -> Vec<usize> {
        let mut lines: Vec<usize> = self.pending.keys().map(|at| at / LINE_BYTES).collect();
        lines.dedup();
        lines
    }

    /// Returns the memory after a kill of all processes: nobody's fence waits for what they flushed.
    pub fn after_kill(&self) -> Self {
        let mut after = self.clone();
        after.pending.values_mut().flatten().for_each(|pending| pending.flushed_by = 0);
        after
    }

    /// Returns the memory after power loss.
    pub fn after_power_loss(&self, kept: &Kept, random: &mut Random) -> Self {
        let mut persistent = self.persistent.clone();
        let lines = self.pending_lines();
        let bits = match kept {
            Kept::Lines(bits) => *bits,
            _ => 0,
        };
        let mut keeps: Vec<bool> = (0..lines.len()).map(|index| bits >> (index % 64) & 1 == 1).collect();
        if matches!(kept, Kept::AnyLines) {
            let chances = 1 + random.below(4);
            let flips = random.one_in(2);
            keeps.iter_mut().for_each(|keeps| *keeps = random.one_in(chances) != flips);
        }
        for (at, values) in &self.pending {
            let value = if matches!(kept, Kept::AnyWords) {
                let Some(chosen) = random.below(values.len() + 1).checked_sub(1) else { continue };
                let mut value = values[chosen].value;
                if !values[chosen].is_atomic && random.one_in(4) {
                    let torn = random.below(WORD);
                    value[torn..].copy_from_slice(&persistent[at + torn..at + WORD]);
                }
                value
            } else {
                let line = lines.binary_search(&(at / LINE_BYTES)).expect("a pending line");
                let keeps = match kept {
                    // The first word of a record is its commit word.
                    Kept::FirstWords(keeps) => at.is_multiple_of(LINE_BYTES) == *keeps,
                    _ => keeps[line],
                };
                let Some(last) = values.last().filter(|_| keeps) else { continue };
                last.value
            };
            persistent[*at..at + WORD].copy_from_slice(&value);
        }
        Self { visible: persistent.clone(), persistent, pending: BTreeMap::new() }
    }

    /// Stores bytes as the kernel does for a receive: through the cache.
    pub fn receive(&mut self, at: usize, bytes: &[u8]) {
        self.put(at, bytes, 0, false);
    }

    /// Changes visible and persistent bytes at once.
    pub fn damage(&mut self, at: usize, value: u8) {
        self.visible[at] = value;
        self.persistent[at] = value;
    }

    pub fn bytes(&self) -> &[u8] {
        &self.visible
    }
}

/// Shared part of all regions of a simulated machine.
pub struct Sim {
    pub cells: RefCell<Cells>,
    mutation: Option<Mutation>,
    sites: Rc<RefCell<BTreeSet<Site>>>,
    /// Called after each step.
    hook: RefCell<Option<Rc<dyn Fn()>>>,
    /// Stores that a mutation delays until the next fence, and a fence that it delays until a word is stored.
    delayed: RefCell<Vec<(usize, Vec<u8>, u8)>>,
    has_delayed_fence: Cell<bool>,
    /// Whether the current step stored a word.
    pub is_after_word: Cell<bool>,
    /// Latest fence, and stores since the latest word.
    last_fence: Cell<Option<Site>>,
    last_stores: RefCell<Vec<Site>>,
    pub fences: Cell<usize>,
    pub flushed_lines: Cell<usize>,
}

impl Sim {
    pub fn new(cells: Cells, mutation: Option<Mutation>, sites: Rc<RefCell<BTreeSet<Site>>>) -> Rc<Self> {
        Rc::new(Self {
            cells: RefCell::new(cells),
            mutation,
            sites,
            hook: RefCell::new(None),
            delayed: RefCell::new(Vec::new()),
            has_delayed_fence: Cell::new(false),
            is_after_word: Cell::new(false),
            last_fence: Cell::new(None),
            last_stores: RefCell::new(Vec::new()),
            fences: Cell::new(0),
            flushed_lines: Cell::new(0),
        })
    }

    pub fn set_hook(&self, hook: Option<Rc<dyn Fn()>>) {
        *self.hook.borrow_mut() = hook;
    }

    /// Ends a step: power may be lost, or the program killed.
    pub fn step(&self) {
        let hook = self.hook.borrow().clone();
        if let Some(hook) = hook {
            hook();
        }
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn put(&self, at: usize, bytes: &[u8], site: Site, thread: u8) {
        let is_stream = site.call == Call::Stream;
        self.sites.borrow_mut().insert(site);
        self.last_stores.borrow_mut().push(site);
        self.last_fence.set(None);
        let flushed_by = u8::from(is_stream && !self.is(Mutation::Omit(site))) << thread;
        let before = Site { call: Call::StoreBeforeWord, ..site };
        if self.is(Mutation::StoreAfterWord(before)) {
            self.delayed.borrow_mut().push((at, bytes.to_vec(), flushed_by));
            return;
        }
        // A long store can be interrupted.
        let half = if bytes.len() > LINE_BYTES { bytes.len() / 2 } else { bytes.len() };
        for (at, bytes) in [(at, &bytes[..half]), (at + half, &bytes[half..])] {
            if !bytes.is_empty() {
                self.cells.borrow_mut().put(at, bytes, flushed_by, false);
                self.step();
            }
        }
    }

    fn put_word(&self, at: usize, value: u64, place: &'static Location<'static>, thread: u8) {
        let mut sites = self.sites.borrow_mut();
        sites.insert(Site { call: Call::StoreWord, place });
        if let Some(fence) = self.last_fence.take() {
            sites.insert(Site { call: Call::FenceBeforeWord, ..fence });
        }
        for store in self.last_stores.borrow_mut().drain(..) {
            sites.insert(Site { call: Call::StoreBeforeWord, ..store });
        }
        drop(sites);
        self.cells.borrow_mut().put(at, &value.to_ne_bytes(), 0, true);
        self.is_after_word.set(true);
        self.step();
        if self.has_delayed_fence.take() {
            self.cells.borrow_mut().fence(thread);
        }
    }

    fn flush(&self, at: usize, len: usize, place: &'static Location<'static>, thread: u8) {
        if len == 0 {
            return;
        }
        let site = Site { call: Call::Flush, place };
        self.sites.borrow_mut().insert(site);
        self.last_fence.set(None);
        let lines = (at + len).div_ceil(LINE_BYTES) - at / LINE_BYTES;
        self.flushed_lines.set(self.flushed_lines.get() + lines);
        if !self.is(Mutation::Omit(site)) {
            self.cells.borrow_mut().flush(at, len, thread);
            self.step();
        }
    }

    fn fence(&self, place: &'static Location<'static>, thread: u8) {
        let site = Site { call: Call::Fence, place };
        let delayed = std::mem::take(&mut *self.delayed.borrow_mut());
        for (at, bytes, flushed_by) in delayed {
            self.cells.borrow_mut().put(at, &bytes, flushed_by, false);
        }
        self.sites.borrow_mut().insert(site);
        self.last_fence.set(Some(site));
        self.fences.set(self.fences.get() + 1);
        if self.is(Mutation::FenceAfterWord(Site { call: Call::FenceBeforeWord, ..site })) {
            self.has_delayed_fence.set(true);
            return;
        }
        if !self.is(Mutation::Omit(site)) {
            self.cells.borrow_mut().fence(thread);
            self.step();
        }
    }
}

/// The memory of a log, or of a chunk.
#[derive(Clone)]
pub struct Region {
    pub sim: Rc<Sim>,
    pub base: usize,
    pub len: usize,
    /// Thread that uses the region; a fence concerns its own flushes.
    pub thread: u8,
}

impl Region {
    fn at(&self, at: usize, len: usize) -> usize {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "{at} + {len} of {}", self.len);
        self.base + at
    }
}

impl Persistent for Region {
    fn len_bytes(&self) -> usize {
        self.len
    }

    fn load(&self, at: usize, into: &mut [u8]) {
        let at = self.at(at, into.len());
        into.copy_from_slice(&self.sim.cells.borrow().visible[at..at + into.len()]);
    }

    fn load_word(&self, at: usize) -> u64 {
        let mut bytes = [0; WORD];
        assert!(at.is_multiple_of(WORD));
        self.load(at, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        let site = Site { call: Call::Store, place: Location::caller() };
        self.sim.put(self.at(at, bytes.len()), bytes, site, self.thread);
    }

    fn store_word(&self, at: usize, value: u64) {
        assert!(at.is_multiple_of(WORD));
        self.sim.put_word(self.at(at, WORD), value, Location::caller(), self.thread);
    }

    fn stream(&self, at: usize, bytes: &[u8]) {
        let site = Site { call: Call::Stream, place: Location::caller() };
        self.sim.put(self.at(at, bytes.len()), bytes, site, self.thread);
    }

    fn flush(&self, at: usize, len_bytes: usize) {
        self.sim.flush(self.at(at, len_bytes), len_bytes, Location::caller(), self.thread);
    }

    fn fence(&self) {
        self.sim.fence(Location::caller(), self.thread);
    }
}
