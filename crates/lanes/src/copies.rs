//! Copies of the program's memory that stay in shared memory for as long as the program does not write there: what is sent
//! again and again is copied once. Whether somebody has written is told by a stamp, whose meaning is the caller's.

extern crate alloc;
use crate::message::Kept;
use alloc::collections::BTreeMap;
use uncopy_sys::iovec::Part;

/// What tells whether bytes have changed: they have not where it is the same. One from before a change never comes again.
pub type Stamp = [u64; 2];

/// Copies that are kept, at most.
const MAX_COPIES: usize = 1024;

struct Copy {
    len_bytes: usize,
    stamp: Stamp,
    kept: Kept,
}

/// The copies, by the address of what they are copies of.
pub struct Copies {
    by_address: BTreeMap<usize, Copy>,
    /// The last one that was dropped for lack of room.
    last: usize,
}

impl Copies {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self { by_address: BTreeMap::new(), last: 0 }
    }

    /// The copy of these bytes, and perhaps of some behind them, if they have not changed since it was made.
    #[must_use]
    pub fn find(&self, part: Part, stamp: Stamp) -> Option<Kept> {
        let copy = self.by_address.get(&part.address)?;
        (copy.len_bytes >= part.len_bytes && copy.stamp == stamp).then(|| copy.kept.again())
    }

    /// Keeps a copy in place of the one that there was of what begins at the same address.
    pub fn put(&mut self, part: Part, stamp: Stamp, kept: Kept) {
        if self.by_address.len() >= MAX_COPIES && !self.by_address.contains_key(&part.address) {
            self.drop_one();
        }
        self.by_address.insert(part.address, Copy { len_bytes: part.len_bytes, stamp, kept });
    }

    /// Drops one for lack of room, each in turn.
    pub fn drop_one(&mut self) {
        let next = self.by_address.range(self.last.saturating_add(1)..).chain(self.by_address.iter()).next();
        if let Some(address) = next.map(|(address, _)| *address) {
            self.last = address;
            self.by_address.remove(&address);
        }
    }

    /// Drops all.
    pub fn clear(&mut self) {
        self.by_address.clear();
    }
}

impl Default for Copies {
    fn default() -> Self {
        Self::new()
    }
}
