//! Simulated files of a file system, and the contents promised for them.

use std::collections::BTreeSet;

use crate::disk::Random;

pub const PAGE: usize = 4096;

#[derive(Clone, Default)]
pub struct Inode {
    pub cached: Vec<u8>,
    pub durable: Vec<u8>,
    pub dirty: BTreeSet<usize>,
    pub is_marked: bool,
    pub is_marked_durably: bool,
}

impl Inode {
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        // Filling a hole makes its pages dirty, too: their zeroes are part of the file.
        let first = offset.min(self.cached.len());
        if self.cached.len() < end {
            self.cached.resize(end, 0);
        }
        self.cached[offset..end].copy_from_slice(bytes);
        self.dirty.extend(first / PAGE..=(end - 1) / PAGE);
    }

    pub fn write_back(&mut self, page: usize) {
        self.dirty.remove(&page);
        let end = (page * PAGE + PAGE).min(self.cached.len());
        if page * PAGE >= end {
            return;
        }
        if self.durable.len() < end {
            self.durable.resize(end, 0);
        }
        self.durable[page * PAGE..end].copy_from_slice(&self.cached[page * PAGE..end]);
    }

    pub fn sync(&mut self) {
        for page in std::mem::take(&mut self.dirty) {
            self.write_back(page);
        }
        self.durable.resize(self.cached.len(), 0);
        self.durable.truncate(self.cached.len());
        self.is_marked_durably = self.is_marked;
    }

    pub fn crashed(&self, random: &mut Random) -> Self {
        let mut after = self.clone();
        for page in after.dirty.clone() {
            if random.one_in(2) {
                after.write_back(page);
            }
        }
        // A truncation becomes durable at any time, as changes of marks do.
        if after.durable.len() > after.cached.len() && random.one_in(2) {
            after.durable.truncate(after.cached.len());
        }
        if random.one_in(2) {
            after.is_marked_durably = after.is_marked;
        }
        after.dirty.clear();
        after.cached.clone_from(&after.durable);
        after.is_marked = after.is_marked_durably;
        after
    }
}

/// Allowed contents of a file after power loss.
#[derive(Clone, Default)]
pub struct Promise {
    /// Allowed values of each byte.
    pub bytes: Vec<Vec<u8>>,
    /// Minimum and maximum length, bytes.
    pub len: (usize, usize),
}

impl Promise {
    pub fn written(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, vec![0]);
        }
        for (allowed, byte) in self.bytes[offset..end].iter_mut().zip(bytes) {
            allowed.push(*byte);
        }
        self.len.1 = self.len.1.max(end);
    }

    pub fn truncated(&mut self, len: usize) {
        self.len.0 = self.len.0.min(len);
        // Later writes beyond the new end leave zeroes before them.
        self.bytes[len..].iter_mut().for_each(|allowed| allowed.push(0));
    }

    pub fn synced(&mut self, bytes: &[u8]) {
        self.bytes = bytes.iter().map(|byte| vec![*byte]).collect();
        self.len = (bytes.len(), bytes.len());
    }

    pub fn check(&self, found: &[u8]) -> Result<(), String> {
        if !(self.len.0..=self.len.1).contains(&found.len()) {
            return Err(format!("{} bytes long, may be {:?}", found.len(), self.len));
        }
        let wrong = found.iter().zip(&self.bytes).position(|(byte, allowed)| !allowed.contains(byte));
        wrong.map_or(Ok(()), |at| Err(format!("byte {at} is {}, may be {:?}", found[at], self.bytes[at])))
    }
}
