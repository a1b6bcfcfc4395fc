//! Choice of the allocation sites that get blocks: those whose buffers were seen to carry data.
//!
//! A program must not notice the library until it moves large data: its own allocator serves all
//! allocations of a site until a buffer of that site has
//!
//! - received large input from a socket, or
//! - received large input from anything, and was then sent or copied from, or
//! - been copied to from such a buffer.
//!
//! Input from a file alone does not count: a compiler, a sort or an interpreter reads its files and looks
//! at every byte. Output alone does not either: data that the program has produced itself is never elided.
//!
//! The hooks see addresses, so recent large allocations are kept with their sites, in a table of fixed
//! size. Freeing memory does not remove its entry; a later allocation at the same address replaces it. So a
//! site may be judged by a buffer that it gave back, which costs a needless block at worst.
//!
//! Memory of no known allocation (static buffers, the program's own mappings) becomes a foreign range by the same
//! rule, applied to the call site of the input: its input must have come from a socket, or have been sent or copied.

use crate::range::foreign::FOREIGN;
use crate::state::gate::is_in_heap;
use crate::state::policy::POLICY;
use crate::state::warmup;
use uncopy_core::policy::SiteKey;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::fd::{FdKind, kind};
use uncopy_sys::features;
use uncopy_sys::iovec::Part;
use uncopy_sys::sync::CachePadded;
use uncopy_sys::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Buckets of recent allocations, each of `WAYS` entries.
const BUCKETS: usize = if cfg!(loom) { 1 } else { 256 };
const WAYS: usize = 2;
/// Addresses that share a bucket, as a power of two.
const GRANULE_SHIFT: u32 = 16;
/// Distance from the start of an allocation at which an address is still found, in granules: calls name the
/// starts of buffers.
const GRANULES_BACK: usize = 4;
/// Arrivals in one buffer after which it counts as long-lived: later blocks of its site will not replace
/// it, so it may hold views in place, as a foreign range.
const ARRIVALS_OF_LONG_LIFE: u32 = 16;

/// Number of recent inputs that are kept.
const INPUTS: usize = if cfg!(loom) { 1 } else { 16 };
/// Calls that are examined in full; of later ones one in [`SAMPLED`] is: most is learned early.
const LOOKS: u32 = 4096;
const SAMPLED: u32 = 16;

/// A recent allocation. Written without a lock: a torn entry causes one wrong decision.
struct Entry {
    start: AtomicUsize,
    len_bytes: AtomicUsize,
    key: AtomicU64,
    /// Number of large inputs and copies that the memory has received.
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

/// A large input that has arrived outside the block heap, in a known allocation or not.
struct Arrival {
    start: AtomicUsize,
    len_bytes: AtomicUsize,
    /// Key of the call site.
    key: AtomicU64,
}

impl Arrival {
    uncopy_sys::constant! {
        const fn new() -> Self {
            Self { start: AtomicUsize::new(0), len_bytes: AtomicUsize::new(0), key: AtomicU64::new(0) }
        }
    }
}

/// Ring of the last arrivals.
struct Arrivals {
    all: [Arrival; INPUTS],
    next: AtomicUsize,
}

/// Large allocations that the program's own allocator has served lately.
struct Recent {
    buckets: [[Entry; WAYS]; BUCKETS],
}

uncopy_sys::statics! {
    static RECENT: CachePadded<Recent> = CachePadded(Recent::new());
    static ARRIVALS: CachePadded<Arrivals> = CachePadded(Arrivals::new());
    static LOOKED: AtomicU32 = AtomicU32::new(0);
    /// Whether every site gets blocks (`--heap on`).
    static SERVES_ALL: AtomicBool = AtomicBool::new(false);
    /// Whether a large input has arrived outside the block heap: outputs and copies are examined from then on.
    static HAS_ARRIVALS: AtomicBool = AtomicBool::new(false);
}

impl Arrivals {
    uncopy_sys::constant! {
        const fn new() -> Self {
            Self {
                #[cfg(not(loom))]
                all: [const { Arrival::new() }; INPUTS],
                #[cfg(loom)]
                all: core::array::from_fn(|_| Arrival::new()),
                next: AtomicUsize::new(0),
            }
        }
    }

    fn insert(&self, start: usize, len_bytes: usize, key: SiteKey) {
        let next = self.next.load(Relaxed);
        self.next.store(next.wrapping_add(1), Relaxed);
        let arrival = &self.all[next % INPUTS];
        arrival.len_bytes.store(0, Relaxed);
        arrival.key.store(key.to_bits(), Relaxed);
        arrival.start.store(start, Relaxed);
        arrival.len_bytes.store(len_bytes, Relaxed);
    }

    /// Call site of the input that brought the byte at `address`.
    fn find(&self, address: usize) -> Option<SiteKey> {
        let holds = |arrival: &&Arrival| {
            address.wrapping_sub(arrival.start.load(Relaxed)) < arrival.len_bytes.load(Relaxed)
        };
        self.all.iter().find(holds).map(|arrival| SiteKey::from_bits(arrival.key.load(Relaxed)))
    }
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
        // The newest entry comes first; a start is never in the bucket twice.
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

pub(crate) fn serve_all() {
    SERVES_ALL.store(true, Relaxed);
}

/// Whether the block heap serves an allocation of `len_bytes` whose return address is `caller`.
#[inline]
#[must_use]
pub fn is_served(caller: usize, len_bytes: usize) -> bool {
    if SERVES_ALL.load(Relaxed) {
        return true;
    }
    // Blocks are of no use before eliding begins.
    HAS_ARRIVALS.load(Relaxed)
        && !warmup::is_warming_up()
        && POLICY.carriers.contains(SiteKey::new(caller, len_bytes))
}

/// Records an allocation that the program's own allocator has served.
#[inline]
pub fn record_allocation(start: usize, len_bytes: usize, caller: usize) {
    if !SERVES_ALL.load(Relaxed) {
        RECENT.insert(start, len_bytes, SiteKey::new(caller, len_bytes));
    }
}

const fn call_site(caller: usize) -> SiteKey {
    SiteKey::new(caller, 0)
}

fn is_due() -> bool {
    let looked = LOOKED.load(Relaxed);
    LOOKED.store(looked.wrapping_add(1), Relaxed);
    looked < LOOKS || looked.is_multiple_of(SAMPLED)
}

/// Records a large input: `len_bytes` have arrived at `address` from `fd`. `is_socket`: known to be a
/// socket. May change `errno`.
pub fn record_input(fd: ProgramFd, is_socket: bool, address: usize, len_bytes: usize, caller: usize) {
    if SERVES_ALL.load(Relaxed) || is_in_heap(address) || !is_due() {
        return;
    }
    features::set_active();
    HAS_ARRIVALS.store(true, Relaxed);
    let entry = RECENT.find(address);
    if let Some(entry) = entry {
        entry.count_arrival();
    }
    ARRIVALS.insert(address, len_bytes, call_site(caller));
    let site = entry.map_or(call_site(caller), Entry::key);
    if !POLICY.carriers.contains(site) && (is_socket || kind(fd) == FdKind::Socket) {
        POLICY.carriers.record_carried(call_site(caller));
        POLICY.carriers.record_carried(site);
    }
}

/// Whether outputs and copies are examined.
#[inline]
#[must_use]
pub fn examines_outputs() -> bool {
    HAS_ARRIVALS.load(Relaxed) && !SERVES_ALL.load(Relaxed)
}

/// Whether the memory at `address` holds bytes of an input; if so, marks its sites as carrying data.
fn passes_on(address: usize) -> bool {
    // Such memory exists only because its site carries data.
    if is_in_heap(address) || FOREIGN.find(address).is_some() {
        return true;
    }
    let entry = RECENT.find(address).filter(|entry| entry.arrivals.load(Relaxed) > 0);
    let sites = [entry.map(Entry::key), ARRIVALS.find(address)];
    sites.iter().flatten().for_each(|site| POLICY.carriers.record_carried(*site));
    sites.iter().any(Option::is_some)
}

/// Records that the program sends these parts, or writes them to a file.
pub fn record_output(parts: &[Part], min_bytes: usize) {
    if !examines_outputs() || !is_due() {
        return;
    }
    for part in parts.iter().filter(|part| part.len_bytes >= min_bytes) {
        passes_on(part.address);
    }
}

/// Records a large copy.
#[inline]
pub fn record_copy(destination: usize, source: usize, len_bytes: usize) {
    if examines_outputs() && is_due() && source.abs_diff(destination) >= len_bytes {
        copied_now(destination, source);
    }
}

fn copied_now(destination: usize, source: usize) {
    if passes_on(source)
        && !is_in_heap(destination)
        && let Some(entry) = RECENT.find(destination)
    {
        entry.count_arrival();
        POLICY.carriers.record_carried(entry.key());
    }
}

/// Whether an input by this caller may make memory outside the block heap a foreign range.
#[must_use]
pub(crate) fn may_claim(caller: usize) -> bool {
    SERVES_ALL.load(Relaxed) || POLICY.carriers.contains(call_site(caller))
}

/// Whether the memory was allocated lately, so that the site's next buffer will be a block. If so, a
/// foreign range is not needed yet.
#[must_use]
pub(crate) fn will_be_replaced(address: usize) -> bool {
    !SERVES_ALL.load(Relaxed)
        && RECENT.find(address).is_some_and(|entry| entry.arrivals.load(Relaxed) < ARRIVALS_OF_LONG_LIFE)
}

/// Records that many blocks of this size, allocated for `caller`, held no views.
pub(crate) fn record_viewless_blocks(caller: usize, len_bytes: usize) {
    if !SERVES_ALL.load(Relaxed) {
        POLICY.carriers.remove(SiteKey::new(caller, len_bytes));
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
