//! Evidence of what children read: a page that this process shares with them counts the pages of views that they put
//! in place although their parent had made the views. Whoever writes to it, also a child that has turned hostile,
//! causes no more than that views are put in place.

use core::sync::atomic::AtomicU64;
use uncopy_core::addr::PAGE_BYTES;
use uncopy_sys::mem;
use uncopy_sys::sync::atomic::{AtomicUsize, Ordering::Relaxed};

uncopy_sys::statics! {
    /// Address of the shared page; 0: none.
    static PAGE: AtomicUsize = AtomicUsize::new(0);
}

/// Makes the page before the first fork that leaves views to a child. Without it nothing is counted.
pub(crate) fn prepare() {
    if PAGE.load(Relaxed) == 0
        && let Ok(address) = mem::map_for_children(PAGE_BYTES)
    {
        PAGE.store(address, Relaxed);
    }
}

fn count() -> Option<&'static AtomicU64> {
    let address = PAGE.load(Relaxed);
    // SAFETY: a page at this address is mapped for as long as the process lives, aligned and initialised to zero; all
    // processes access its first word by atomic operations.
    (address != 0).then(|| unsafe { &*(address as *const AtomicU64) })
}

/// Records that this process, a child, has put pages of an inherited view in place.
pub(crate) fn record_read(pages: u32) {
    if let Some(count) = count() {
        count.fetch_add(u64::from(pages), Relaxed);
    }
}

/// Returns the number of pages that children, and other descendants, have put in place.
pub(crate) fn pages_read() -> u64 {
    count().map_or(0, |count| count.load(Relaxed))
}
