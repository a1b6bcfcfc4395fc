//! Statistics of the allocator in this process and its parents.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[doc = $text:literal])* $name:ident,)*) => {
        /// Statistics of the allocator, see [`crate::statistics`]. A forked child continues its parent's.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Statistics {
            $($(#[doc = $text])* pub $name: u64,)*
            /// Bytes of pages that objects occupy.
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
    /// Number of calls that protected pages.
    protections,
    /// Pages protected by these calls.
    protected_pages,
    /// Writes to protected pages that the handler served.
    write_faults,
    /// Pages replaced by a copy because they may have been in flight.
    replaced_pages,
    /// Pages whose protection was lifted in place.
    lifted_pages,
    /// Faults on absent pages that the handler served.
    missing_faults,
    /// Pages made present before an object was handed out.
    filled_pages,
    /// Pages dropped with their object because they may have been in flight.
    dropped_pages,
    /// Loans refused because the object is written to too often.
    backed_off,
    /// Loans refused because the pageblock is not full.
    not_full,
    /// Loans whose pages were written to during the call, and protected again.
    confirmed_again,
    /// Pages that permanently became ordinary memory, because the kernel refused to replace them.
    plain_pages,
    /// Pages that cannot be reused, because the kernel refused to drop them.
    lost_pages,
}

#[inline]
pub(crate) fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Relaxed);
}
