//! Tables of the allocator's own data, beside the pages that they describe: no object shares a page with them.
//!
//! A table is a reserved range of addresses that is committed as it grows. Entries are made of atomics, and zero
//! bytes are an entry. The entries of a *wiped* table read as zeroes in every forked child, however it was forked
//! (`MADV_WIPEONFORK`, Linux 4.14): what is only true of the process that protects pages lives there.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Release};
use uncopy_sys::errno::Errno;
use uncopy_sys::mem::Reservation;

/// Smallest step by which a table is committed, bytes.
const STEP_BYTES: usize = 256 << 10;

/// What can be an entry.
///
/// # Safety
/// Zero bytes are a value, and shared references allow every change.
pub(crate) unsafe trait Entry: Sync + 'static {}

// SAFETY: atomics of any value.
unsafe impl Entry for AtomicU8 {}
// SAFETY: an atomic of any value.
unsafe impl Entry for AtomicU32 {}
// SAFETY: an atomic of any value.
unsafe impl Entry for AtomicU64 {}

/// A table.
pub(crate) struct Table<T> {
    base: AtomicUsize,
    reserved_bytes: AtomicUsize,
    committed_bytes: AtomicUsize,
    entries: PhantomData<T>,
}

impl<T: Entry> Table<T> {
    pub(crate) const fn new() -> Self {
        Self {
            base: AtomicUsize::new(0),
            reserved_bytes: AtomicUsize::new(0),
            committed_bytes: AtomicUsize::new(0),
            entries: PhantomData,
        }
    }

    /// Reserves room for `entries`. Whether the table is wiped in children if that was asked for.
    pub(crate) fn create(&self, entries: usize, wiped: bool) -> Result<bool, Errno> {
        let len_bytes = (entries * size_of::<T>()).next_multiple_of(STEP_BYTES);
        let range = Reservation::new(len_bytes)?;
        let is_wiped = wiped && range.wipe_on_fork().is_ok();
        self.reserved_bytes.store(len_bytes, Release);
        self.base.store(range.base(), Release);
        Ok(is_wiped)
    }

    /// Makes sure that the first `entries` are there; false where the kernel refuses. By one thread at a time.
    pub(crate) fn reach(&self, entries: usize) -> bool {
        let wanted = entries * size_of::<T>();
        let committed = self.committed_bytes.load(Acquire);
        if wanted <= committed {
            return true;
        }
        let reserved = self.reserved_bytes.load(Acquire);
        if wanted > reserved {
            return false;
        }
        let next = wanted.next_multiple_of(STEP_BYTES).min(reserved);
        let base = self.base.load(Acquire);
        // Already inside what `create` reserved.
        let range = Reservation::part_of_ours(base, reserved);
        let done = range.commit(base + committed, next - committed).is_ok();
        if done {
            self.committed_bytes.store(next, Release);
        }
        done
    }

    /// An entry that was reached.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> &'static T {
        debug_assert!((index + 1) * size_of::<T>() <= self.committed_bytes.load(Acquire));
        // SAFETY: committed memory that is never given back, zero at first, which is a `T`; aligned, because the
        // range begins at a page and sizes are multiples of alignments.
        unsafe { &*(self.base.load(core::sync::atomic::Ordering::Relaxed) as *const T).add(index) }
    }
}
