//! Simulated files of a file system, and the contents that the log promises.

use std::collections::BTreeSet;

use crate::memory::Random;

const BLOCK: usize = 32;

/// A file whose bytes before `origin` are a hole that nobody writes to.
#[derive(Clone)]
pub struct SimFile {
    pub origin: u64,
    pub cached: Vec<u8>,
    durable: Vec<u8>,
    dirty: BTreeSet<usize>,
}

impl SimFile {
    pub fn new(origin: u64, bytes: Vec<u8>) -> Self {
        Self { origin, durable: bytes.clone(), cached: bytes, dirty: BTreeSet::new() }
    }

    fn index(&self, offset: u64) -> Result<usize, String> {
        offset.checked_sub(self.origin).map(|at| at as usize).ok_or(format!("a write to {offset}"))
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let at = self.index(offset)?;
        self.grow(at + bytes.len());
        self.cached[at..at + bytes.len()].copy_from_slice(bytes);
        self.dirty.extend(at / BLOCK..=(at + bytes.len()).saturating_sub(1) / BLOCK);
        Ok(())
    }

    fn grow(&mut self, len: usize) {
        if self.cached.len() < len {
            self.dirty.extend(self.cached.len() / BLOCK..=(len - 1) / BLOCK);
            self.cached.resize(len, 0);
        }
    }

    pub fn resize(&mut self, size: u64) -> Result<(), String> {
        let len = self.index(size)?;
        self.cached.truncate(len);
        self.grow(len);
        Ok(())
    }

    fn write_back(&mut self, block: usize) {
        let end = (block * BLOCK + BLOCK).min(self.cached.len());
        if block * BLOCK < end {
            self.durable.resize(self.durable.len().max(end), 0);
            self.durable[block * BLOCK..end].copy_from_slice(&self.cached[block * BLOCK..end]);
        }
    }

    pub fn sync(&mut self) {
        self.durable.clone_from(&self.cached);
        self.dirty.clear();
    }

    /// Changes the file as another program does, which syncs it.
    pub fn set(&mut self, bytes: Vec<u8>) {
        self.cached = bytes;
        self.sync();
    }

    /// Returns the file after power loss: any dirty blocks were written back.
    pub fn after_power_loss(&self, random: &mut Random) -> Self {
        let mut after = self.clone();
        let chances = 1 + random.below(3);
        for block in std::mem::take(&mut after.dirty) {
            if random.one_in(chances) {
                after.write_back(block);
            }
        }
        if after.durable.len() > after.cached.len() && random.one_in(2) {
            after.durable.truncate(after.cached.len());
        }
        after.cached.clone_from(&after.durable);
        after
    }
}

#[derive(Clone, Debug)]
pub enum Operation {
    Write(usize, Vec<u8>),
    Resize(usize),
}

/// Contents that a file may have.
#[derive(Clone, Default)]
pub struct Promise {
    /// Content with everything that survives power loss.
    pub base: Vec<u8>,
    /// Further operations, in order; the last one may be in progress.
    pub operations: Vec<Operation>,
    /// Number of the operations that returned.
    pub returned: usize,
}

fn apply(bytes: &mut Vec<u8>, operation: &Operation) {
    match operation {
        Operation::Write(at, written) => {
            bytes.resize(bytes.len().max(at + written.len()), 0);
            bytes[*at..at + written.len()].copy_from_slice(written);
        }
        Operation::Resize(len) => bytes.resize(*len, 0),
    }
}

impl Promise {
    /// Returns the content after all operations that returned.
    pub fn content(&self) -> Vec<u8> {
        let mut bytes = self.base.clone();
        self.operations[..self.returned].iter().for_each(|operation| apply(&mut bytes, operation));
        bytes
    }

    /// Makes all operations that returned part of what survives.
    pub fn settle(&mut self) {
        for operation in self.operations.drain(..std::mem::take(&mut self.returned)) {
            apply(&mut self.base, &operation);
        }
    }

    /// Checks that a content is that of a prefix of the operations, with at least `required` of them.
    pub fn check(&self, found: &[u8], required: usize) -> Result<(), String> {
        let mut bytes = self.base.clone();
        for (done, operation) in self.operations.iter().map(Some).chain([None]).enumerate() {
            if done >= required && bytes == found {
                return Ok(());
            }
            if let Some(operation) = operation {
                apply(&mut bytes, operation);
            }
        }
        let content = self.content();
        let wrong = found.iter().zip(&content).position(|(found, wanted)| found != wanted);
        let counts = format!("{required} of {} operations required", self.operations.len());
        Err(format!("{} bytes, {} wanted, {wrong:?} differs; {counts}", found.len(), content.len()))
    }
}
