//! The store: items by key, in stripes with a lock each, so that threads meet only where they use the same stripe.
//!
//! What is over its budget is evicted least recently used first: exactly within a stripe, and across stripes by
//! comparing what each has published about its oldest entry. Values are dropped outside the locks.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cached::budget::{Budget, ITEM_OVERHEAD_BYTES};
use crate::cached::expiry::{Expiry, Seconds};
use crate::cached::stripe::{Entry, Item, Place, Stripe};
use crate::cached::value::{Draft, Value};
use crate::clock;

/// Number of stripes, a power of two: far more than threads.
const STRIPES: usize = 64;
/// Items that responses still need, met before eviction gives up.
const PINNED_LIMIT: usize = 64;
/// The longest key, bytes (memcached's protocol.txt).
pub const KEY_LIMIT_BYTES: usize = 250;
/// No entry: what an empty stripe publishes.
const NO_ENTRY: u64 = u64::MAX;

/// A stripe in cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    stripe: Mutex<Stripe>,
    /// When its oldest entry was used, for comparison with those of other stripes.
    oldest_used_ms: AtomicU64,
}

/// All items.
#[derive(Debug)]
pub struct Store {
    shards: Vec<Shard>,
    hasher: RandomState,
    budget: Arc<Budget>,
    item_limit_bytes: usize,
    last_cas: AtomicU64,
    /// From this moment on, items that were stored before it are gone; 0 for none.
    flush: AtomicU32,
    evictions: AtomicU64,
    stored: AtomicU64,
}

/// How to store a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In any case.
    Set,
    /// Only if there is none.
    Add,
    /// Only if there is one.
    Replace,
    /// Behind the one that is there.
    Append,
    /// In front of the one that is there.
    Prepend,
}

/// What comes of storing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Stored, as this version.
    Stored(u64),
    /// The mode forbids it.
    NotStored,
    /// It has another version.
    Exists,
    /// A version was asked for and there is no item.
    NotFound,
    /// No memory.
    NoMemory,
}

/// A value to be stored, with what belongs to it.
#[derive(Debug)]
pub struct Offer {
    /// How.
    pub mode: Mode,
    /// Only over this version.
    pub cas: Option<u64>,
    /// An older version than the present one is accepted, but marked as stale (`ms` with `I`).
    pub may_be_stale: bool,
    /// Opaque to the server.
    pub flags: u32,
    /// When the item expires.
    pub expiry: Expiry,
    /// Whether the key came in base 64.
    pub is_key_binary: bool,
    /// Where a value is to be made of what is appended to nothing: when that expires.
    pub otherwise: Option<Expiry>,
}

impl Store {
    /// An empty store for items of at most `item_limit_bytes` with their keys.
    pub fn new(budget: Arc<Budget>, item_limit_bytes: usize) -> Self {
        let shard = || Shard { stripe: Mutex::default(), oldest_used_ms: AtomicU64::new(NO_ENTRY) };
        Self {
            shards: std::iter::repeat_with(shard).take(STRIPES).collect(),
            hasher: RandomState::new(),
            budget,
            item_limit_bytes,
            last_cas: AtomicU64::new(0),
            flush: AtomicU32::new(0),
            evictions: AtomicU64::new(0),
            stored: AtomicU64::new(0),
        }
    }

    /// What it may use.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Whether an item of this size may be stored at all.
    pub fn may_hold(&self, key_bytes: usize, value_bytes: usize) -> bool {
        value_bytes.saturating_add(key_bytes).saturating_add(ITEM_OVERHEAD_BYTES) <= self.item_limit_bytes
    }

    /// Longest item, bytes.
    pub fn item_limit_bytes(&self) -> usize {
        self.item_limit_bytes
    }

    /// How many items were evicted for want of memory.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Relaxed)
    }

    /// How many items were stored ever.
    pub fn stored(&self) -> u64 {
        self.stored.load(Relaxed)
    }

    /// How many items there are, expired ones that nobody asked for included.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| locked(&shard.stripe).len()).sum()
    }

    /// A version that no item had.
    pub fn next_cas(&self) -> u64 {
        self.last_cas.fetch_add(1, Relaxed) + 1
    }

    /// The place of `key`, locked: nobody else reaches it meanwhile.
    pub fn slot<'a>(&'a self, key: &'a [u8]) -> Slot<'a> {
        let hash = self.hasher.hash_one(key);
        let shard = &self.shards[usize::try_from(hash >> 32).unwrap_or(0) % STRIPES];
        let now_ms = clock::now_ms();
        let stripe = locked(&shard.stripe);
        let place = stripe.find(key, hash);
        let mut slot = Slot { store: self, shard, stripe, key, hash, place, now_ms, garbage: None };
        if let Some(item) = slot.item()
            && (item.expiry.is_over(slot.now()) || self.is_flushed(item, slot.now()))
        {
            slot.remove();
        }
        slot
    }

    fn is_flushed(&self, item: &Item, now: Seconds) -> bool {
        let flush = self.flush.load(Relaxed);
        flush != 0 && flush <= now.0 && item.stored.0 < flush
    }

    /// Makes room for an item of this size, evicting what was used least recently: whether there is room then.
    #[must_use]
    pub fn make_room(&self, key_bytes: usize, value_bytes: usize) -> bool {
        let bytes = key_bytes + value_bytes + ITEM_OVERHEAD_BYTES;
        let mut pinned = 0;
        while self.budget.is_exceeded_by(bytes) {
            let Some(shard) = self.oldest_shard() else { break };
            let mut stripe = locked(&shard.stripe);
            let evicted = stripe.oldest().map(|place| {
                if stripe.entry(place).item.value.is_shared() {
                    // Its memory would not come back: a response refers to it. It was just used, then.
                    stripe.item_mut(place).used_ms = clock::now_ms();
                    stripe.make_newest(place);
                    pinned += 1;
                    None
                } else {
                    Some(stripe.remove(place))
                }
            });
            shard.publish(&stripe);
            drop(stripe);
            if let Some(Some(entry)) = evicted {
                self.budget.release(overhead_bytes(&entry));
                self.evictions.fetch_add(1, Relaxed);
            }
            if pinned >= PINNED_LIMIT {
                break;
            }
        }
        let fits = !self.budget.is_exceeded_by(bytes);
        if !fits {
            self.budget.refuse();
        }
        fits
    }

    /// The stripe with the oldest entry.
    fn oldest_shard(&self) -> Option<&Shard> {
        let used = |shard: &&Shard| shard.oldest_used_ms.load(Relaxed);
        self.shards.iter().min_by_key(used).filter(|shard| used(shard) != NO_ENTRY)
    }

    /// Stores what `offer` says, the bytes of `value`.
    pub fn put(&self, key: &[u8], offer: &Offer, value: Value) -> Outcome {
        if !self.make_room(key.len(), 0) {
            // What the client meant to overwrite must not be found any more.
            if offer.mode == Mode::Set {
                self.slot(key).remove();
            }
            return Outcome::NoMemory;
        }
        self.slot(key).put(offer, value)
    }

    /// Makes every item go: at once, or what is stored before `at` from then on.
    pub fn flush(&self, at: Option<Seconds>) {
        self.flush.store(at.map_or(0, |at| at.0), Relaxed);
        if at.is_some() {
            return;
        }
        for shard in &self.shards {
            let mut stripe = locked(&shard.stripe);
            let garbage = std::mem::take(&mut *stripe);
            shard.publish(&stripe);
            drop(stripe);
            let mut garbage = garbage;
            while let Some(place) = garbage.oldest() {
                self.budget.release(overhead_bytes(&garbage.remove(place)));
            }
        }
    }
}

/// What an entry costs besides its value.
fn overhead_bytes(entry: &Entry) -> usize {
    entry.key.len() + ITEM_OVERHEAD_BYTES
}

/// Nothing that is done under these locks leaves a stripe half changed, should it panic.
fn locked(stripe: &Mutex<Stripe>) -> MutexGuard<'_, Stripe> {
    stripe.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shard {
    fn publish(&self, stripe: &Stripe) {
        let used = stripe.oldest().map_or(NO_ENTRY, |place| stripe.entry(place).item.used_ms);
        self.oldest_used_ms.store(used, Relaxed);
    }
}

/// The place of one key, locked.
#[derive(Debug)]
pub struct Slot<'a> {
    store: &'a Store,
    shard: &'a Shard,
    // Dropped before the garbage: fields are dropped in order.
    stripe: MutexGuard<'a, Stripe>,
    key: &'a [u8],
    hash: u64,
    place: Option<Place>,
    now_ms: u64,
    garbage: Option<(Option<Entry>, Option<Value>)>,
}

impl Slot<'_> {
    /// The time at which it was locked.
    pub fn now(&self) -> Seconds {
        Seconds(u32::try_from(self.now_ms / 1000).unwrap_or(u32::MAX))
    }

    /// The item, if there is one that is not over.
    pub fn item(&self) -> Option<&Item> {
        self.place.map(|place| &self.stripe.entry(place).item)
    }

    /// The item, to be changed.
    pub fn item_mut(&mut self) -> Option<&mut Item> {
        self.place.map(|place| self.stripe.item_mut(place))
    }

    /// Notes that the item was fetched just now.
    pub fn mark_fetched(&mut self) {
        self.bump();
        if let Some(item) = self.item_mut() {
            item.is_fetched = true;
        }
    }

    /// Makes the item the one that was used last.
    pub fn bump(&mut self) {
        let now_ms = self.now_ms;
        let Some(place) = self.place else { return };
        let was_oldest = self.stripe.oldest() == Some(place);
        self.stripe.item_mut(place).used_ms = now_ms;
        self.stripe.make_newest(place);
        if was_oldest {
            self.shard.publish(&self.stripe);
        }
    }

    /// Takes the item away: whether there was one.
    pub fn remove(&mut self) -> bool {
        let Some(place) = self.place.take() else { return false };
        let entry = self.stripe.remove(place);
        self.store.budget.release(overhead_bytes(&entry));
        self.shard.publish(&self.stripe);
        self.garbage.get_or_insert_default().0 = Some(entry);
        true
    }

    /// Puts `value` there instead of what is there, as a new version; `is_new` says that it is a new item as well, as
    /// memcached sees it: neither fetched nor stale.
    pub fn replace_value(&mut self, value: Value, is_new: bool) -> u64 {
        let cas = self.store.next_cas();
        if let Some(item) = self.item_mut() {
            if is_new {
                (item.is_fetched, item.is_stale, item.has_winner) = (false, false, false);
            }
            let old = std::mem::replace(&mut item.value, value);
            (item.cas, item.answers) = (cas, 0);
            self.garbage.get_or_insert_default().1 = Some(old);
        }
        cas
    }

    /// Stores a new item in place of any that is there: its version.
    pub fn store(&mut self, value: Value, flags: u32, expiry: Expiry, is_key_binary: bool) -> u64 {
        let cas = self.store.next_cas();
        let (stored, used_ms) = (self.now(), self.now_ms);
        let item = Item {
            value,
            flags,
            cas,
            expiry,
            stored,
            used_ms,
            is_fetched: false,
            answers: 0,
            is_stale: false,
            has_winner: false,
            is_key_binary,
        };
        self.store.stored.fetch_add(1, Relaxed);
        if let Some(place) = self.place {
            let old = std::mem::replace(self.stripe.item_mut(place), item);
            self.garbage.get_or_insert_default().1 = Some(old.value);
            self.stripe.make_newest(place);
        } else {
            self.place = Some(self.stripe.insert(self.key, self.hash, item));
            self.store.budget.charge(self.key.len() + ITEM_OVERHEAD_BYTES);
        }
        self.shard.publish(&self.stripe);
        cas
    }

    /// As [`Store::put`], without making room.
    pub fn put(&mut self, offer: &Offer, value: Value) -> Outcome {
        let (flags, expiry) = (offer.flags, offer.expiry);
        let Some(old) = self.item() else {
            return match (offer.mode, offer.otherwise) {
                (Mode::Append | Mode::Prepend, Some(expiry)) => {
                    Outcome::Stored(self.store(value, flags, expiry, offer.is_key_binary))
                }
                (Mode::Set | Mode::Replace, _) if offer.cas.is_some() => Outcome::NotFound,
                (Mode::Set | Mode::Add, _) => {
                    Outcome::Stored(self.store(value, flags, expiry, offer.is_key_binary))
                }
                _ => Outcome::NotStored,
            };
        };
        if offer.mode == Mode::Add {
            self.bump();
            return Outcome::NotStored;
        }
        let mut is_stale = false;
        if let Some(cas) = offer.cas
            && cas != old.cas
        {
            is_stale = offer.may_be_stale && cas < old.cas;
            if !is_stale {
                return Outcome::Exists;
            }
        }
        match offer.mode {
            Mode::Append | Mode::Prepend => {
                let parts = match offer.mode {
                    Mode::Append => [old.value.bytes(), value.bytes()],
                    _ => [value.bytes(), old.value.bytes()],
                };
                if !self.store.may_hold(self.key.len(), parts[0].len() + parts[1].len()) {
                    return Outcome::NoMemory;
                }
                let Some(joined) = Draft::of(&parts, &self.store.budget) else { return Outcome::NoMemory };
                Outcome::Stored(self.replace_value(joined, true))
            }
            _ => {
                let cas = self.store(value, flags, expiry, offer.is_key_binary);
                if let Some(item) = self.item_mut()
                    && is_stale
                {
                    item.is_stale = true;
                }
                Outcome::Stored(cas)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: Offer = Offer {
        mode: Mode::Set,
        cas: None,
        may_be_stale: false,
        flags: 0,
        expiry: Expiry::NEVER,
        is_key_binary: false,
        otherwise: None,
    };

    fn store(limit_bytes: usize) -> Store {
        Store::new(Arc::new(Budget::new(limit_bytes)), limit_bytes)
    }

    fn set(store: &Store, key: &[u8], bytes: &[u8]) -> Outcome {
        let value = Draft::of(&[bytes], store.budget()).expect("room");
        store.put(key, &SET, value)
    }

    fn get(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
        let mut slot = store.slot(key);
        slot.mark_fetched();
        slot.item().map(|item| item.value.bytes().to_vec())
    }

    #[test]
    fn what_is_removed_or_overwritten_costs_nothing_any_more() {
        let store = store(1 << 20);
        for round in 0..3 {
            assert!(matches!(set(&store, b"a", b"first"), Outcome::Stored(_)));
            assert!(matches!(set(&store, b"a", b"second"), Outcome::Stored(cas) if cas == 2 * round + 2));
            assert_eq!(get(&store, b"a").as_deref(), Some(&b"second"[..]));
            assert_eq!(store.budget().used_bytes(), 8 + 1 + ITEM_OVERHEAD_BYTES);
            assert!(store.slot(b"a").remove() && !store.slot(b"a").remove());
            assert_eq!((store.budget().used_bytes(), store.len()), (0, 0));
        }
    }

    #[test]
    fn a_fetched_value_outlives_its_item() {
        let store = store(1 << 20);
        set(&store, b"a", b"old");
        let old = store.slot(b"a").item().expect("stored").value.clone();
        set(&store, b"a", b"new");
        store.flush(None);
        assert_eq!((old.bytes(), get(&store, b"a")), (&b"old"[..], None));
        assert_eq!(store.budget().used_bytes(), 5);
    }

    #[test]
    fn what_was_used_least_recently_goes_first_and_what_is_in_use_stays() {
        let store = store(100 * (1000 + 2 + 4 + ITEM_OVERHEAD_BYTES));
        let key = |number: u32| format!("{number:04}").into_bytes();
        for number in 0..1000 {
            assert!(matches!(set(&store, &key(number), &[7; 1000]), Outcome::Stored(_)));
            assert!(get(&store, &key(0)).is_some(), "{number}: always the last one used");
            if number % 10 == 9 {
                // The clock is coarse: what is used within one tick is used at the same time.
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
        assert!(!store.budget().is_exceeded_by(0) && store.len() >= 98, "{}", store.len());
        assert!(get(&store, &key(1)).is_none() && get(&store, &key(970)).is_some());
        assert_eq!(store.evictions(), 1000 - store.len() as u64);
    }

    #[test]
    fn values_that_responses_need_are_neither_lost_nor_counted_as_free() {
        let store = store(10_000);
        set(&store, b"a", &[1; 5000]);
        let pinned = store.slot(b"a").item().expect("stored").value.clone();
        let value = Draft::of(&[&[2; 4900]], store.budget()).expect("as much may arrive");
        assert_eq!(store.put(b"b", &SET, value), Outcome::NoMemory);
        assert_eq!(get(&store, b"a").as_deref(), Some(&[1; 5000][..]));
        drop(pinned);
        assert!(matches!(set(&store, b"b", &[2; 4900]), Outcome::Stored(_)));
        assert_eq!((get(&store, b"a"), store.len()), (None, 1));
    }

    #[test]
    fn modes_and_versions_decide_what_is_stored() {
        let store = store(1 << 20);
        let put = |mode, cas| {
            let value = Draft::of(&[b"x"], store.budget()).expect("room");
            store.put(b"k", &Offer { mode, cas, ..SET }, value)
        };
        assert_eq!(put(Mode::Replace, None), Outcome::NotStored);
        assert_eq!(put(Mode::Append, None), Outcome::NotStored);
        assert_eq!(put(Mode::Set, Some(1)), Outcome::NotFound);
        assert_eq!(put(Mode::Add, None), Outcome::Stored(1));
        assert_eq!(put(Mode::Add, None), Outcome::NotStored);
        assert_eq!(put(Mode::Set, Some(9)), Outcome::Exists);
        assert_eq!(put(Mode::Set, Some(1)), Outcome::Stored(2));
        assert_eq!(put(Mode::Append, None), Outcome::Stored(3));
        assert_eq!(put(Mode::Prepend, Some(3)), Outcome::Stored(4));
        assert_eq!(get(&store, b"k").as_deref(), Some(&b"xxx"[..]));
        let count = store.len();
        store.flush(Some(Seconds(crate::cached::expiry::now().0 + 100)));
        assert_eq!(store.len(), count);
        assert!(get(&store, b"k").is_some());
        store.flush(None);
        assert!(get(&store, b"k").is_none());
    }

    #[test]
    fn threads_at_once_lose_no_version() {
        let store = store(1 << 20);
        set(&store, b"n", b"");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let value = Draft::of(&[b"x"], store.budget()).expect("room");
                        let outcome = store.put(b"n", &Offer { mode: Mode::Append, ..SET }, value);
                        assert!(matches!(outcome, Outcome::Stored(_)));
                    }
                });
            }
        });
        assert_eq!(get(&store, b"n").map(|bytes| bytes.len()), Some(2000));
    }
}
