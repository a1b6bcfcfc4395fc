//! What the allocator has done so far in this process and its parents.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[doc = $text:literal])* $name:ident,)*) => {
        /// What the allocator has done so far, see [`crate::statistics`]. A forked child goes on counting.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Statistics {
            $($(#[doc = $text])* pub $name: u64,)*
            /// Bytes of pages that objects have.
            pub used_bytes: u64,
            /// Bytes of free pages that may be resident.
            pub free_resident_bytes: u64,
        }

        #[derive(Debug)]
        pub(crate) struct Counters {
            $(pub $name: AtomicU64,)*
        }

        pub(crate) static COUNTERS: Counters = Counters { $($name: AtomicU64::new(0),)* };

        impl Counters {
            pub(crate) fn snapshot(&self) -> Statistics {
                Statistics { $($name: self.$name.load(Relaxed),)* used_bytes: 0, free_resident_bytes: 0 }
            }
        }
    };
}

counters! {
    /// Calls that protected pages.
    protections,
    /// Pages protected by them.
    protected_pages,
    /// Writes to a protected page that the handler served.
    write_faults,
    /// Pages that were replaced by a copy because they may have been in flight.
    replaced_pages,
    /// Pages whose protection was lifted in place.
    lifted_pages,
    /// Absent pages that the handler served.
    missing_faults,
    /// Fresh pages put in place before an object was handed out.
    filled_pages,
    /// Pages dropped with their object because they may have been in flight.
    dropped_pages,
    /// Loans refused because the object is written too often.
    backed_off,
    /// Loans refused because objects are still allocated from the pageblock.
    not_full,
    /// Loans whose pages were written before the call was over: protected once more.
    confirmed_again,
    /// Pages that are ordinary memory for good, because the kernel refused to place a copy.
    plain_pages,
    /// Pages that cannot be used again, because the kernel refused to drop them.
    lost_pages,
}

/// Adds to a counter.
#[inline]
pub(crate) fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Relaxed);
}
