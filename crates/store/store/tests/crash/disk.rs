//! A simulated device that may lose unflushed writes.

use std::cell::{Cell, RefCell};

use uncopy_core::random::{STEP, splitmix64};
use uncopy_store::device::Device;
use uncopy_sys::errno::Errno;

pub const SECTOR: usize = 512;

#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
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

/// A device with a volatile cache.
#[derive(Clone, Default)]
pub struct Disk {
    pub durable: RefCell<Vec<u8>>,
    pub cached: RefCell<Vec<u8>>,
    pub unflushed: RefCell<Vec<(usize, Vec<u8>)>>,
    /// Number of further writes and flushes until all of them fail.
    pub fails_after: Cell<Option<u32>>,
    /// Number of further writes and flushes until the power is lost during one.
    pub lives_for: Cell<Option<u32>>,
    pub has_lost_power: Cell<bool>,
}

impl Disk {
    pub fn new(len: usize) -> Self {
        let bytes = RefCell::new(vec![0; len]);
        Self { durable: bytes.clone(), cached: bytes, ..Self::default() }
    }

    pub fn step(&self) -> Result<(), Errno> {
        let left = self.lives_for.get();
        self.has_lost_power.set(self.has_lost_power.get() || left == Some(0));
        self.lives_for.set(left.map(|left| left.saturating_sub(1)));
        if self.has_lost_power.get() {
            return Err(Errno(libc::EIO));
        }
        match self.fails_after.get() {
            Some(0) => Err(Errno(libc::EIO)),
            left => {
                self.fails_after.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }

    pub fn crashed(&self, random: &mut Random) -> Self {
        let mut durable = self.durable.borrow().clone();
        let chances = 1 + random.below(4);
        for (at, bytes) in &*self.unflushed.borrow() {
            for (sector, bytes) in bytes.chunks(SECTOR).enumerate() {
                let at = at + sector * SECTOR;
                match random.below(chances + 1) {
                    0 => {}
                    // A torn write of the sector.
                    1 if random.one_in(8) => {
                        let torn = random.below(SECTOR);
                        durable[at..at + torn].copy_from_slice(&bytes[..torn]);
                    }
                    _ => durable[at..at + SECTOR].copy_from_slice(bytes),
                }
            }
        }
        let durable = RefCell::new(durable);
        Self { cached: durable.clone(), durable, ..Self::default() }
    }
}

impl Device for Disk {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        let (offset, cached) = (offset as usize, self.cached.borrow());
        into.copy_from_slice(cached.get(offset..offset + into.len()).ok_or(Errno(libc::EIO))?);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        assert!(offset.is_multiple_of(SECTOR as u64) && bytes.len().is_multiple_of(SECTOR), "whole sectors");
        let offset = offset as usize;
        if !self.has_lost_power.get() {
            self.unflushed.borrow_mut().push((offset, bytes.to_vec()));
        }
        self.step()?;
        self.cached.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&self) -> Result<(), Errno> {
        self.step()?;
        let mut durable = self.durable.borrow_mut();
        for (at, bytes) in self.unflushed.borrow_mut().drain(..) {
            durable[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }
}
