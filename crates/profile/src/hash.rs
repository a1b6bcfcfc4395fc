//! A map for keys that nobody chooses to collide: numbers of descriptors, threads and sites.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map that hashes by one multiplication for each word.
pub type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<Multiply>>;

/// Multiplicative hashing (Knuth, The Art of Computer Programming, volume 3, 6.4).
#[derive(Clone, Copy, Debug, Default)]
pub struct Multiply(u64);

impl Multiply {
    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Hasher for Multiply {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_ne_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }

    fn write_i32(&mut self, value: i32) {
        self.mix(u64::from(value.cast_unsigned()));
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }

    fn finish(&self) -> u64 {
        // The table takes its buckets from the low bits, which a product mixes least.
        self.0 ^ self.0 >> 32
    }
}
