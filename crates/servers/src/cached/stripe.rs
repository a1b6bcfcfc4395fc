//! One stripe of the store: a hash table whose entries also form a list from the one used last to the one used
//! least recently. Entries live in one vector and refer to one another by index.
//!
//! ```text
//! buckets:  [ 3 ][ - ][ 0 ] …          hash & mask → first entry of a chain (`chain` leads on)
//! places:   [ e0 ][ free ][ e2 ][ e3 ] …
//! newest → e3 ⇄ e0 ⇄ e2 ← oldest       `newer`, `older`
//! ```
//!
//! Every entry is in exactly one chain and once in the list; every other place is in the list of free ones.

use crate::cached::expiry::{Expiry, Seconds};
use crate::cached::value::Value;

/// No entry.
const NONE: u32 = u32::MAX;
/// Buckets of an empty stripe; a power of two.
const FIRST_BUCKETS: usize = 64;

/// An item, all of it but its key.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its bytes.
    pub value: Value,
    /// What the client stored beside them.
    pub flags: u32,
    /// Its version: another one after each change.
    pub cas: u64,
    /// When it expires.
    pub expiry: Expiry,
    /// When it was stored.
    pub stored: Seconds,
    /// When it was used last, milliseconds of [`crate::clock::now_ms`].
    pub used_ms: u64,
    /// Whether it was fetched since it was stored.
    pub is_fetched: bool,
    /// Answers with its value since that was stored or changed.
    pub answers: u32,
    /// Whether it was invalidated (`md` with `I`).
    pub is_stale: bool,
    /// Whether a client was told to store it anew.
    pub has_winner: bool,
    /// Whether its key came in base 64.
    pub is_key_binary: bool,
}

/// An item with its key.
#[derive(Debug)]
pub struct Entry {
    /// Its key.
    pub key: Box<[u8]>,
    /// The item.
    pub item: Item,
    hash: u64,
    chain: u32,
    newer: u32,
    older: u32,
}

/// Where an entry is in its stripe, until the stripe is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

/// A part of the store.
#[derive(Debug)]
pub struct Stripe {
    buckets: Vec<u32>,
    places: Vec<Option<Entry>>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
}

impl Default for Stripe {
    fn default() -> Self {
        let buckets = vec![NONE; FIRST_BUCKETS];
        Self { buckets, places: Vec::new(), free: Vec::new(), newest: NONE, oldest: NONE }
    }
}

impl Stripe {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Where the entry of `key` is.
    pub fn find(&self, key: &[u8], hash: u64) -> Option<Place> {
        let mut at = self.buckets[self.bucket(hash)];
        while at != NONE {
            let entry = self.at(at);
            if entry.hash == hash && *entry.key == *key {
                return Some(Place(at));
            }
            at = entry.chain;
        }
        None
    }

    /// The entry at `place`.
    pub fn entry(&self, place: Place) -> &Entry {
        self.at(place.0)
    }

    /// The item at `place`, to be changed.
    pub fn item_mut(&mut self, place: Place) -> &mut Item {
        &mut self.at_mut(place.0).item
    }

    /// Puts an item there whose key is not there yet; it is the newest.
    pub fn insert(&mut self, key: &[u8], hash: u64, item: Item) -> Place {
        if self.len() >= self.buckets.len() {
            self.grow();
        }
        let bucket = self.bucket(hash);
        let entry =
            Entry { key: key.into(), item, hash, chain: self.buckets[bucket], newer: NONE, older: NONE };
        let at = if let Some(at) = self.free.pop() {
            self.places[at as usize] = Some(entry);
            at
        } else {
            self.places.push(Some(entry));
            u32::try_from(self.places.len() - 1).expect("fewer than 2^32 entries in a stripe")
        };
        self.buckets[bucket] = at;
        self.link_newest(at);
        Place(at)
    }

    /// Takes the entry at `place` away.
    pub fn remove(&mut self, place: Place) -> Entry {
        let at = place.0;
        self.unlink(at);
        let (hash, chain) = (self.at(at).hash, self.at(at).chain);
        let bucket = self.bucket(hash);
        let mut before = self.buckets[bucket];
        if before == at {
            self.buckets[bucket] = chain;
        } else {
            while self.at(before).chain != at {
                before = self.at(before).chain;
            }
            self.at_mut(before).chain = chain;
        }
        self.free.push(at);
        self.places[at as usize].take().expect("a place that was found")
    }

    /// Makes the entry at `place` the one that was used last.
    pub fn make_newest(&mut self, place: Place) {
        if self.newest != place.0 {
            self.unlink(place.0);
            self.link_newest(place.0);
        }
    }

    /// The entry that was used least recently.
    pub fn oldest(&self) -> Option<Place> {
        (self.oldest != NONE).then_some(Place(self.oldest))
    }

    fn at(&self, at: u32) -> &Entry {
        self.places[at as usize].as_ref().expect("only entries are linked")
    }

    fn at_mut(&mut self, at: u32) -> &mut Entry {
        self.places[at as usize].as_mut().expect("only entries are linked")
    }

    #[expect(clippy::cast_possible_truncation, reason = "masked")]
    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    fn grow(&mut self) {
        self.buckets = vec![NONE; self.buckets.len() * 2];
        let mut at = self.newest;
        while at != NONE {
            let bucket = self.bucket(self.at(at).hash);
            let first = std::mem::replace(&mut self.buckets[bucket], at);
            let entry = self.at_mut(at);
            entry.chain = first;
            at = entry.older;
        }
    }

    fn link_newest(&mut self, at: u32) {
        let older = std::mem::replace(&mut self.newest, at);
        let entry = self.at_mut(at);
        (entry.newer, entry.older) = (NONE, older);
        if older == NONE {
            self.oldest = at;
        } else {
            self.at_mut(older).newer = at;
        }
    }

    fn unlink(&mut self, at: u32) {
        let (newer, older) = (self.at(at).newer, self.at(at).older);
        if newer == NONE {
            self.newest = older;
        } else {
            self.at_mut(newer).older = older;
        }
        if older == NONE {
            self.oldest = newer;
        } else {
            self.at_mut(older).newer = newer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cached::budget::Budget;
    use crate::cached::value::Draft;
    use std::sync::Arc;

    fn item(flags: u32) -> Item {
        let value = Draft::of(&[b"v"], &Arc::new(Budget::new(1 << 20))).expect("room");
        Item {
            value,
            flags,
            cas: 0,
            expiry: Expiry::NEVER,
            stored: Seconds(0),
            used_ms: 0,
            is_fetched: false,
            answers: 0,
            is_stale: false,
            has_winner: false,
            is_key_binary: false,
        }
    }

    /// The keys from newest to oldest.
    fn order(stripe: &Stripe) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let mut at = stripe.newest;
        while at != NONE {
            keys.push(stripe.at(at).key.to_vec());
            at = stripe.at(at).older;
        }
        keys
    }

    /// Next to a vector that is obviously right: operations in no order, also with all hashes alike.
    #[test]
    fn it_does_what_a_list_of_keys_in_order_of_use_does() {
        for hashes in [1_u64, 7, 1 << 40] {
            let mut stripe = Stripe::default();
            let mut model: Vec<Vec<u8>> = Vec::new();
            let mut state = 12345_u64;
            for step in 0..20_000_u32 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let number = (state >> 33) % 300;
                let key = number.to_string().into_bytes();
                let hash = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % hashes;
                let known = model.iter().position(|other| *other == key);
                let place = stripe.find(&key, hash);
                assert_eq!(place.is_some(), known.is_some());
                match (place, (state >> 20) % 3) {
                    (Some(place), 0) => {
                        let entry = stripe.remove(place);
                        assert_eq!(*entry.key, *key);
                        model.remove(known.expect("both"));
                    }
                    (Some(place), _) => {
                        stripe.make_newest(place);
                        let key = model.remove(known.expect("both"));
                        model.insert(0, key);
                    }
                    (None, _) => {
                        let place = stripe.insert(&key, hash, item(step));
                        assert_eq!(stripe.entry(place).item.flags, step);
                        model.insert(0, key);
                    }
                }
                assert_eq!(stripe.len(), model.len());
                let oldest = stripe.oldest().map(|place| stripe.entry(place).key.to_vec());
                assert_eq!(oldest.as_ref(), model.last());
                if step % 100 == 0 {
                    assert_eq!(order(&stripe), model);
                }
            }
        }
    }
}
