//! What is known of return addresses: a table of fixed size that any number of threads, and signal handlers on top of
//! them, read and write without a lock.
//!
//! An entry is two words: a rule, and `key ^ mixed(rule)`. Whoever reads them while another writes finds that they do not
//! belong together, and has a miss (the lockless table of chess programs, Hyatt and Mann 2002; mixed, because keys of
//! neighbouring addresses differ in as few bits as rules do).

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

const WAYS: usize = 4;
const SETS_LOG2: u32 = 11;
const SETS: usize = 1 << SETS_LOG2;
/// An odd number whose bits look random (2^64 divided by the golden ratio).
const MIXER: u64 = 0x9E37_79B9_7F4A_7C15;

struct Entry {
    check: AtomicU64,
    rule: AtomicU64,
}

/// Entries of one cache line.
#[repr(align(64))]
struct Set([Entry; WAYS]);

/// A table of rules by key.
pub struct Cache {
    sets: [Set; SETS],
}

const fn mixed(word: u64) -> u64 {
    word.wrapping_mul(MIXER).rotate_left(29)
}

impl Cache {
    /// Nothing is known. 128 KiB of zeroes.
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

    /// The rule of a key that is not 0; `None` if it is not known.
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

    /// Notes the rule of a key, in the place of another if need be. Neither is 0.
    pub fn put(&self, key: u64, rule: u64) {
        let set = self.set(key);
        let is_free = |entry: &&Entry| entry.rule.load(Relaxed) == 0;
        // The victim is as good as random: the bits that did not choose the set.
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
    fn what_was_put_in_is_found_or_lost_but_never_another() {
        static CACHE: Cache = Cache::new();
        let rule_of = |key: u64| key.wrapping_mul(77) | 1;
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                std::thread::spawn(move || {
                    let mut found = 0;
                    for round in 0..200_000u64 {
                        // More keys than there is room for, most of them near each other.
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
