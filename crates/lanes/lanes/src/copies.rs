//! Cache of copies of the program's memory in shared memory, so that bytes sent repeatedly are copied once. A copy
//! is valid as long as a stamp is unchanged; the caller defines the stamp.

extern crate alloc;
use crate::message::SharedBuf;
use alloc::collections::BTreeMap;
use uncopy_sys::iovec::Part;

/// Version of some bytes: equal stamps mean equal bytes. A stamp from before a write never recurs.
pub type Stamp = [u64; 2];

const MAX_COPIES: usize = 1024;

struct Copy {
    len_bytes: usize,
    stamp: Stamp,
    kept: SharedBuf,
}

/// Copies, by the address of their source.
pub struct Copies {
    by_address: BTreeMap<usize, Copy>,
    /// Address of the copy evicted last, from which [`Copies::drop_one`] continues.
    last: usize,
}

impl Copies {
    /// Returns an empty cache.
    #[must_use]
    pub const fn new() -> Self {
        Self { by_address: BTreeMap::new(), last: 0 }
    }

    /// Returns the copy of a part with this stamp, if there is one. The copy may be longer than the part.
    #[must_use]
    pub fn find(&self, part: Part, stamp: Stamp) -> Option<SharedBuf> {
        let copy = self.by_address.get(&part.address)?;
        (copy.len_bytes >= part.len_bytes && copy.stamp == stamp).then(|| copy.kept.clone_handle())
    }

    /// Stores a copy, replacing the one whose source begins at the same address.
    pub fn put(&mut self, part: Part, stamp: Stamp, kept: SharedBuf) {
        if self.by_address.len() >= MAX_COPIES && !self.by_address.contains_key(&part.address) {
            self.drop_one();
        }
        self.by_address.insert(part.address, Copy { len_bytes: part.len_bytes, stamp, kept });
    }

    /// Evicts one copy, round robin by address.
    pub fn drop_one(&mut self) {
        let next = self.by_address.range(self.last.saturating_add(1)..).chain(self.by_address.iter()).next();
        if let Some(address) = next.map(|(address, _)| *address) {
            self.last = address;
            self.by_address.remove(&address);
        }
    }

    /// Removes all copies from the cache.
    pub fn clear(&mut self) {
        self.by_address.clear();
    }
}

impl Default for Copies {
    fn default() -> Self {
        Self::new()
    }
}
