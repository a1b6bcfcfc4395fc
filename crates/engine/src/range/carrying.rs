//! Which allocation sites get blocks: those whose buffers were seen to carry data.
//!
//! A program cannot tell that the library is loaded until it moves large data: its own allocator serves every allocation of a
//! site until a buffer of that site has
//!
//! - received large input from a socket, or
//! - received large input from anything, and was then sent or copied from, or
//! - been copied to from such a buffer.
//!
//! Input from a file alone does not count: a compiler, a sort or an interpreter reads its files and looks at every byte.
//! Output alone does not either: what the program has made itself is never elided.
//!
//! The hooks see addresses, so recent large allocations are remembered with their sites, in a table of fixed size. Entries are
//! not removed when memory is freed; a later allocation at the same address replaces its entry. So a site may be judged by a
//! buffer that it gave back, which costs a needless block at worst.

use crate::state::early;
use crate::state::gate::is_in_heap;
use crate::state::policy::POLICY;
use uncopy_core::policy::SiteKey;
use uncopy_sys::fd::{FdKind, kind};
use uncopy_sys::iovec::Part;
use uncopy_sys::sync::Apart;
use uncopy_sys::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Buckets of remembered allocations, each of two.
const BUCKETS: usize = if cfg!(loom) { 1 } else { 256 };
const WAYS: usize = 2;
/// Addresses that share a bucket, as a power of two.
const GRANULE_SHIFT: u32 = 16;
/// An address is found up to this many granules behind the begin of its allocation: calls name the begins of buffers.
const GRANULES_BACK: usize = 4;
/// Arrivals in one buffer that show it to be long-lived: its site's later blocks will not replace it, so it may hold views where
/// it is, as a foreign range.
const ARRIVALS_OF_LONG_LIFE: u32 = 16;

/// A remembered allocation. Written without a lock: a torn entry is judged wrongly once.
struct Entry {
    start: AtomicUsize,
    len_bytes: AtomicUsize,
    key: AtomicU64,
    /// Large inputs and copies that its memory has received.
    arrivals: AtomicU32,
}

impl Entry {
    uncopy_sys::constant! {
        const fn new() -> Self {
            Self {
                start: AtomicUsize::new(0),
                len_bytes: AtomicUsize::new(0),
                key: AtomicU64::new(0),
                arrivals: AtomicU32::new(0),
            }
        }
    }

    fn holds(&self, address: usize) -> bool {
        address.wrapping_sub(self.start.load(Relaxed)) < self.len_bytes.load(Relaxed)
    }

    fn key(&self) -> SiteKey {
        SiteKey::from_bits(self.key.load(Relaxed))
    }

    fn count_arrival(&self) {
        let arrivals = self.arrivals.load(Relaxed);
        self.arrivals.store(arrivals.saturating_add(1), Relaxed);
    }
}

/// Large allocations that the program's own allocator has served lately.
struct Recent {
    buckets: [[Entry; WAYS]; BUCKETS],
}

uncopy_sys::statics! {
    static RECENT: Apart<Recent> = Apart(Recent::new());
    /// Every site gets blocks (`--heap on`).
    static SERVES_ALL: AtomicBool = AtomicBool::new(false);
    /// A large input has arrived in a remembered allocation: from then on outputs and copies are looked at.
    static HAS_ARRIVALS: AtomicBool = AtomicBool::new(false);
}

impl Recent {
    uncopy_sys::constant! {
        const fn new() -> Self {
            Self {
                #[cfg(not(loom))]
                buckets: [const { [const { Entry::new() }; WAYS] }; BUCKETS],
                #[cfg(loom)]
                buckets: core::array::from_fn(|_| core::array::from_fn(|_| Entry::new())),
            }
        }
    }

    fn bucket(&self, granule: usize) -> &[Entry; WAYS] {
        &self.buckets[(granule.wrapping_mul(0x9E37_79B9) >> 8) % BUCKETS]
    }

    fn insert(&self, start: usize, len_bytes: usize, key: SiteKey) {
        let bucket = self.bucket(start >> GRANULE_SHIFT);
        // The newest comes first; the same begin is never there twice.
        let [first, second] = bucket;
        if first.start.load(Relaxed) != start {
            second.start.store(first.start.load(Relaxed), Relaxed);
            second.len_bytes.store(first.len_bytes.load(Relaxed), Relaxed);
            second.key.store(first.key.load(Relaxed), Relaxed);
            second.arrivals.store(first.arrivals.load(Relaxed), Relaxed);
        }
        first.len_bytes.store(0, Relaxed);
        first.key.store(key.to_bits(), Relaxed);
        first.arrivals.store(0, Relaxed);
        first.start.store(start, Relaxed);
        first.len_bytes.store(len_bytes, Relaxed);
    }

    fn find(&self, address: usize) -> Option<&Entry> {
        let granule = address >> GRANULE_SHIFT;
        (granule.saturating_sub(GRANULES_BACK)..=granule)
            .rev()
            .find_map(|granule| self.bucket(granule).iter().find(|entry| entry.holds(address)))
    }
}

/// Lets every site have blocks.
pub(crate) fn serve_all() {
    SERVES_ALL.store(true, Relaxed);
}

/// Whether the block heap serves an allocation of `len_bytes` that returns to `caller`.
#[inline]
#[must_use]
pub fn is_served(caller: usize, len_bytes: usize) -> bool {
    if SERVES_ALL.load(Relaxed) {
        return true;
    }
    // Before eliding begins blocks would be for nothing.
    HAS_ARRIVALS.load(Relaxed)
        && !early::is_early()
        && POLICY.carriers.contains(SiteKey::new(caller, len_bytes))
}

/// Remembers an allocation that the program's own allocator has served.
#[inline]
pub fn allocated(start: usize, len_bytes: usize, caller: usize) {
    if !SERVES_ALL.load(Relaxed) {
        RECENT.insert(start, len_bytes, SiteKey::new(caller, len_bytes));
    }
}

/// Notes that a large input has arrived in the program's memory at `address`, from `fd`, which may be known to be a socket. May change
/// `errno`.
pub fn received(fd: i32, is_socket: bool, address: usize) {
    if SERVES_ALL.load(Relaxed) || is_in_heap(address) {
        return;
    }
    let Some(entry) = RECENT.find(address) else { return };
    HAS_ARRIVALS.store(true, Relaxed);
    entry.count_arrival();
    if !POLICY.carriers.contains(entry.key()) && (is_socket || kind(fd) == FdKind::Socket) {
        POLICY.carriers.carried(entry.key());
    }
}

/// Whether outputs can say anything about sites.
#[inline]
#[must_use]
pub fn looks_at_outputs() -> bool {
    HAS_ARRIVALS.load(Relaxed) && !SERVES_ALL.load(Relaxed)
}

/// Notes that the program sends these parts, or writes them to a file.
pub fn sent(parts: &[Part], min_bytes: usize) {
    if !looks_at_outputs() {
        return;
    }
    for part in parts.iter().filter(|part| part.len_bytes >= min_bytes && !is_in_heap(part.address)) {
        if let Some(entry) = RECENT.find(part.address).filter(|entry| entry.arrivals.load(Relaxed) > 0) {
            POLICY.carriers.carried(entry.key());
        }
    }
}

/// Notes a large copy.
#[inline]
pub fn copied(destination: usize, source: usize) {
    if looks_at_outputs() {
        copied_now(destination, source);
    }
}

fn copied_now(destination: usize, source: usize) {
    // A block is there only because its site carries data.
    let carries = is_in_heap(source)
        || RECENT.find(source).is_some_and(|entry| {
            let carries = entry.arrivals.load(Relaxed) > 0;
            if carries {
                POLICY.carriers.carried(entry.key());
            }
            carries
        });
    if carries && !is_in_heap(destination) {
        if let Some(entry) = RECENT.find(destination) {
            entry.count_arrival();
            POLICY.carriers.carried(entry.key());
        }
    }
}

/// Whether memory outside the block heap is not to become a foreign range yet: it was allocated lately, and the next such buffer will
/// be a block.
#[must_use]
pub(crate) fn will_be_replaced(address: usize) -> bool {
    !SERVES_ALL.load(Relaxed)
        && RECENT.find(address).is_some_and(|entry| entry.arrivals.load(Relaxed) < ARRIVALS_OF_LONG_LIFE)
}

/// Notes that many blocks of this size that were allocated for `caller` held no views.
pub(crate) fn leave(caller: usize, len_bytes: usize) {
    if !SERVES_ALL.load(Relaxed) {
        POLICY.carriers.leave(SiteKey::new(caller, len_bytes));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    static TABLE: Recent = Recent::new();

    #[test]
    fn an_address_is_found_near_the_begin_of_its_allocation_and_the_newest_wins() {
        let (old, new) = (SiteKey::new(0x1000, 1 << 20), SiteKey::new(0x2000, 1 << 20));
        let start = 0x7f12_3456_0010;
        TABLE.insert(start, 1 << 20, old);
        let found = |address| TABLE.find(address).map(Entry::key);
        assert_eq!(found(start), Some(old));
        assert_eq!(found(start + (GRANULES_BACK << GRANULE_SHIFT)), Some(old));
        assert_eq!(found(start - 1), None);
        assert_eq!(found(start + (1 << 20)), None);
        TABLE.insert(start, 50_000, new);
        assert_eq!(found(start), Some(new));
        assert_eq!(found(start + 50_000), None, "what the memory belonged to before is forgotten");
    }
}
