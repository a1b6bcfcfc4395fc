//! Tables for the allocator's own data, which thus shares no page with objects.
//!
//! A table is a reserved range of addresses that is committed as it grows. Entries consist of atomics and
//! start as zero bytes. The entries of a *wiped* table read as zero in every forked child (`MADV_WIPEONFORK`,
//! Linux 4.14): they hold state that is valid only in the process that protects pages.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Release};
use uncopy_sys::errno::Errno;
use uncopy_sys::mem::Reservation;

/// Minimum step by which a table is committed, in bytes.
const STEP_BYTES: usize = 256 << 10;

/// A type that can be a table's entry.
///
/// # Safety
/// All-zero bytes must be a valid value, and all changes must be allowed through shared references.
pub(crate) unsafe trait Entry: Sync + 'static {}

// SAFETY: every bit pattern of an atomic integer is valid, and it changes through shared references.
unsafe impl Entry for AtomicU8 {}
// SAFETY: every bit pattern of an atomic integer is valid, and it changes through shared references.
unsafe impl Entry for AtomicU32 {}
// SAFETY: every bit pattern of an atomic integer is valid, and it changes through shared references.
unsafe impl Entry for AtomicU64 {}

/// A growing array with stable addresses.
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

    /// Reserves addresses for `entries` entries. Returns true if the table is `wiped` in children.
    pub(crate) fn create(&self, entries: usize, wiped: bool) -> Result<bool, Errno> {
        let len_bytes = (entries * size_of::<T>()).next_multiple_of(STEP_BYTES);
        let range = Reservation::new(len_bytes)?;
        let is_wiped = wiped && range.wipe_on_fork().is_ok();
        self.reserved_bytes.store(len_bytes, Release);
        self.base.store(range.base(), Release);
        Ok(is_wiped)
    }

    /// Commits the first `entries` entries, by one thread at a time. Returns false if the kernel refuses.
    pub(crate) fn ensure_committed(&self, entries: usize) -> bool {
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
        // The range was reserved by `create`.
        let range = Reservation::from_existing(base, reserved);
        let done = range.commit(base + committed, next - committed).is_ok();
        if done {
            self.committed_bytes.store(next, Release);
        }
        done
    }

    /// Returns an entry, which must have been committed by [`Table::ensure_committed`].
    #[inline]
    pub(crate) fn get(&self, index: usize) -> &'static T {
        debug_assert!((index + 1) * size_of::<T>() <= self.committed_bytes.load(Acquire));
        // SAFETY: the caller guarantees a committed index. Committed memory is never unmapped and starts as
        // zeroes, a valid `T`; the base is page-aligned and sizes are multiples of alignments.
        unsafe { &*(self.base.load(core::sync::atomic::Ordering::Relaxed) as *const T).add(index) }
    }
}
