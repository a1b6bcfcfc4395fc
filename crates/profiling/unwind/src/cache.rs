//! Fixed-size cache of unwind rules by return address. Any number of threads and signal handlers read and
//! write the cache without a lock.
//!
//! An entry has two words: a rule, and `key ^ mixed(rule)`. A reader that races with a writer finds that the
//! words do not match, and treats that as a miss (the lockless hash table of chess programs, Hyatt and Mann
//! 2002). The rule is mixed because keys of neighbouring addresses differ in as few bits as rules do.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

const WAYS: usize = 4;
const SETS_LOG2: u32 = 11;
const SETS: usize = 1 << SETS_LOG2;
/// 2^64 divided by the golden ratio, for multiplicative (Fibonacci) hashing.
const MIXER: u64 = 0x9E37_79B9_7F4A_7C15;

struct Entry {
    check: AtomicU64,
    rule: AtomicU64,
}

#[repr(align(64))]
struct Set([Entry; WAYS]);

/// Set-associative cache of rules by key.
pub struct Cache {
    sets: [Set; SETS],
}

const fn mixed(word: u64) -> u64 {
    word.wrapping_mul(MIXER).rotate_left(29)
}

impl Cache {
    /// Returns an empty cache of 128 KiB.
    pub const fn new() -> Self {
        Self {
            sets: [const { Set([const { Entry { check: AtomicU64::new(0), rule: AtomicU64::new(0) } }; WAYS]) };
                SETS],
        }
    }

    #[inline]
    fn set(&self, key: u64) -> &[Entry; WAYS] {
        let index = key.wrapping_mul(MIXER) >> (u64::BITS - SETS_LOG2);
        &self.sets[usize::try_from(index).unwrap_or(0) % SETS].0
    }

    /// Returns the rule cached for `key`, which must not be 0.
    #[inline]
    pub fn get(&self, key: u64) -> Option<u64> {
        for entry in self.set(key) {
            let rule = entry.rule.load(Relaxed);
            if entry.check.load(Relaxed) ^ mixed(rule) == key {
                return Some(rule);
            }
        }
        None
    }

    /// Caches the rule of a key, evicting another entry if the set is full. `key` and `rule` must not be 0.
    pub fn put(&self, key: u64, rule: u64) {
        let set = self.set(key);
        let is_free = |entry: &&Entry| entry.rule.load(Relaxed) == 0;
        // Random eviction: these bits of the hash did not choose the set.
        let way = usize::try_from(mixed(key) % WAYS as u64).unwrap_or(0);
        let entry = set.iter().find(is_free).unwrap_or(&set[way]);
        entry.check.store(key ^ mixed(rule), Relaxed);
        entry.rule.store(rule, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn racing_entries_are_found_or_missed_but_never_mixed() {
        static CACHE: Cache = Cache::new();
        let rule_of = |key: u64| key.wrapping_mul(77) | 1;
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                std::thread::spawn(move || {
                    let mut found = 0;
                    for round in 0..200_000u64 {
                        // More keys than the cache holds, most of them close to each other.
                        let key = 1 + (round * 31 + thread * 17) % 20_000;
                        match CACHE.get(key) {
                            Some(rule) => {
                                assert_eq!(rule, rule_of(key));
                                found += 1;
                            }
                            None => CACHE.put(key, rule_of(key)),
                        }
                    }
                    found
                })
            })
            .collect();
        let found: u64 = threads.into_iter().map(|thread| thread.join().expect("thread ends")).sum();
        assert!(found > 0);
        CACHE.put(5, rule_of(5));
        assert_eq!(CACHE.get(5), Some(rule_of(5)));
    }
}
