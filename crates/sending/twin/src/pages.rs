//! The allocator's pages: one reserved range of addresses, handed out in runs.
//!
//! ```text
//! base        frontier           committed                              base + reserved
//!  | units of all kinds | never used | accessible: used next …        | addresses without access |
//! ```
//!
//! Free runs are units, too; adjacent ones are merged. Free runs are kept in bins: one for each length up to
//! 64 pages, then four per power of two. Equations (`is_valid`): free and used units cover `0..frontier`
//! without gaps or overlap; no two free units are adjacent.

use crate::table::Table;
use crate::unit::{Id, Kind, LocalState, Unit, state};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
pub(crate) use uncopy_sys::PAGE_BYTES;
use uncopy_sys::errno::Errno;
use uncopy_sys::features;
use uncopy_sys::mem::{Advice, Reservation};

use Ordering::{Acquire, Relaxed, Release};

const MAX_RANGE_BYTES: usize = 1 << 40;
const MIN_RANGE_BYTES: usize = 64 << 20;
/// Fraction of the address space left by RLIMIT_AS that is reserved: one eighth.
const LIMIT_SHARE: u64 = 8;
/// Minimum step by which the range is made accessible, in pages.
const COMMIT_PAGES: u32 = 1024;
const EXACT_BINS: usize = 64;
const BINS: usize = EXACT_BINS + 4 * 24;
/// Maximum runs of a bin that are tried.
const MAX_RUNS_TRIED: usize = 16;
/// 64-bit words of the bitmap per page: one bit for 16 bytes.
pub(crate) const BITMAP_WORDS: usize = PAGE_BYTES / 16 / 64;
/// Maximum free pages that stay resident: this number, plus an eighth of the pages in use.
const MAX_RESIDENT_PAGES: u32 = 4096;
const RESIDENT_SHARE: u32 = 8;

static BASE: AtomicUsize = AtomicUsize::new(0);
static LEN_BYTES: AtomicUsize = AtomicUsize::new(0);

pub(crate) struct Pages {
    /// Unit of each page; within a free run valid only for the first and the last page.
    unit_of: Table<AtomicU32>,
    states: Table<AtomicU8>,
    bitmap: Table<AtomicU64>,
    units: Table<Unit>,
    local: Table<LocalState>,
    frontier: AtomicU32,
    committed: AtomicU32,
    pool: UnsafeCell<Pool>,
}

struct Pool {
    bins: [u32; BINS],
    has_runs: [u64; BINS.div_ceil(64)],
    /// First vacant unit, as an encoded index.
    vacant: u32,
    /// Number of units ever created.
    units: u32,
    cap: u32,
    used: u32,
    /// Sum of the free runs' resident pages.
    resident: u32,
}

// SAFETY: every function that accesses the pool requires its caller to hold the pool's lock.
unsafe impl Sync for Pages {}

pub(crate) static PAGES: Pages = Pages {
    unit_of: Table::new(),
    states: Table::new(),
    bitmap: Table::new(),
    units: Table::new(),
    local: Table::new(),
    frontier: AtomicU32::new(0),
    committed: AtomicU32::new(0),
    pool: UnsafeCell::new(Pool {
        bins: [0; BINS],
        has_runs: [0; BINS.div_ceil(64)],
        vacant: 0,
        units: 0,
        cap: u32::MAX,
        used: 0,
        resident: 0,
    }),
};

#[inline]
pub(crate) fn contains(address: usize) -> bool {
    let len_bytes = LEN_BYTES.load(Acquire);
    address.wrapping_sub(BASE.load(Relaxed)) < len_bytes
}

pub(crate) fn overlaps(address: usize, len: usize) -> bool {
    let len_bytes = LEN_BYTES.load(Acquire);
    let base = BASE.load(Relaxed);
    len > 0 && address < base.saturating_add(len_bytes) && base < address.saturating_add(len)
}

/// True if addresses have been reserved.
#[inline]
pub(crate) fn is_used() -> bool {
    LEN_BYTES.load(Relaxed) != 0
}

#[inline]
pub(crate) fn address_of(page: u32) -> usize {
    BASE.load(Relaxed) + page as usize * PAGE_BYTES
}

/// Returns the page of an address for which [`contains`] is true.
#[inline]
pub(crate) fn page_of(address: usize) -> u32 {
    ((address - BASE.load(Relaxed)) / PAGE_BYTES) as u32
}

pub(crate) fn range() -> Reservation {
    Reservation::from_existing(BASE.load(Relaxed), LEN_BYTES.load(Acquire))
}

fn bin_of(pages: u32) -> usize {
    if pages as usize <= EXACT_BINS {
        return pages as usize - 1;
    }
    let top = pages.ilog2();
    let quarter = (pages >> (top - 2)) & 3;
    EXACT_BINS + (top as usize - 6) * 4 + quarter as usize
}

/// A run of pages taken from the pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub id: Id,
    /// True if no page is present, so that all read as zeroes.
    pub is_absent: bool,
}

impl Pages {
    /// Reserves the addresses and the tables. Returns true if the kernel can wipe the process's own tables in
    /// children. Must be called once, under the lock `START`.
    pub(crate) fn create(&self, cap_pages: u32) -> Result<bool, Errno> {
        let limit = uncopy_sys::mem::address_space_limit()
            .map_or(usize::MAX, |limit| usize::try_from(limit / LIMIT_SHARE).unwrap_or(usize::MAX));
        // Because of fragmentation, a capped allocator needs more addresses than memory.
        let wanted = (cap_pages as usize).saturating_mul(4 * PAGE_BYTES).saturating_add(MIN_RANGE_BYTES);
        let mut len_bytes = wanted.min(limit).min(MAX_RANGE_BYTES) / PAGE_BYTES * PAGE_BYTES;
        let range = loop {
            match Reservation::new(len_bytes) {
                Ok(range) => break range,
                Err(errno) if len_bytes / 2 < MIN_RANGE_BYTES => return Err(errno),
                Err(_) => len_bytes = len_bytes / 2 / PAGE_BYTES * PAGE_BYTES,
            }
        };
        let pages = len_bytes / PAGE_BYTES;
        range.advise(range.base(), len_bytes, Advice::NoHugePages);
        uncopy_sys::procmap::exclude_range(range.base(), len_bytes);
        self.unit_of.create(pages, false)?;
        self.bitmap.create(pages * BITMAP_WORDS, false)?;
        self.units.create(pages, false)?;
        let are_wiped = self.states.create(pages, true)? & self.local.create(pages, true)?;
        // SAFETY: called once, before any other thread can reach the pool.
        unsafe { (*self.pool.get()).cap = cap_pages };
        BASE.store(range.base(), Release);
        features::set_active();
        LEN_BYTES.store(len_bytes, Release);
        Ok(are_wiped)
    }

    /// Returns the state of a page below the frontier.
    #[inline]
    pub(crate) fn state(&self, page: u32) -> &'static AtomicU8 {
        self.states.get(page as usize)
    }

    /// Returns a word of a pageblock's bitmap of free slots.
    #[inline]
    pub(crate) fn bits(&self, start: u32, word: usize) -> &'static AtomicU64 {
        self.bitmap.get(start as usize * BITMAP_WORDS + word)
    }

    #[inline]
    pub(crate) fn unit(&self, id: Id) -> &'static Unit {
        self.units.get(id.0 as usize)
    }

    /// Returns the part of a unit's state that is valid in this process only.
    #[inline]
    pub(crate) fn local(&self, id: Id) -> &'static LocalState {
        self.local.get(id.0 as usize)
    }

    /// Returns the unit that contains a page. The answer may be stale unless the caller owns the page.
    #[inline]
    pub(crate) fn unit_at(&self, page: u32) -> Option<Id> {
        if page >= self.frontier.load(Acquire) {
            return None;
        }
        let id = Id::decode(self.unit_of.get(page as usize).load(Relaxed))?;
        let (start, end) = self.unit(id).span();
        (start..end).contains(&page).then_some(id)
    }

    /// Returns the first page that was never handed out.
    pub(crate) fn frontier(&self) -> u32 {
        self.frontier.load(Acquire)
    }

    /// True if a page is known to be present.
    pub(crate) fn is_filled(&self, page: u32) -> bool {
        self.state(page).load(Relaxed) & state::FILLED != 0
    }

    #[allow(clippy::mut_from_ref, reason = "the lock of the pool makes it the only reference")]
    unsafe fn pool(&self) -> &mut Pool {
        // SAFETY: the caller guarantees that it holds the pool's lock, so no other reference exists.
        unsafe { &mut *self.pool.get() }
    }

    /// Takes `pages` pages at a multiple of `align_pages`. Returns them as a unit whose kind the caller sets
    /// after everything else; `None` if there is no memory.
    ///
    /// # Safety
    /// The caller must hold the pool's lock.
    pub(crate) unsafe fn take_run(&self, pages: u32, align_pages: u32) -> Option<Run> {
        // SAFETY: the caller holds the pool's lock.
        let pool = unsafe { self.pool() };
        if pages == 0 || pool.used.checked_add(pages).is_none_or(|used| used > pool.cap) {
            return None;
        }
        let spare = pool.cap - pool.used - pages;
        if pool.resident > spare {
            self.trim_resident(pool, spare);
        }
        let (id, is_absent) = match self.find_free(pool, pages.checked_add(align_pages - 1)?) {
            Some(id) => {
                self.remove_free(pool, id);
                self.trim_run(pool, id, pages, align_pages)
            }
            None => (self.carve(pool, pages, align_pages)?, true),
        };
        pool.used += pages;
        let unit = self.unit(id);
        unit.renew();
        let (start, end) = unit.span();
        for page in start..end {
            self.unit_of.get(page as usize).store(Id::encode(Some(id)), Relaxed);
        }
        Some(Run { id, is_absent })
    }

    /// Frees a unit's pages. `resident` is an upper bound of those present.
    ///
    /// # Safety
    /// The caller must hold the pool's lock. The unit and its pages must no longer be in use, and no page may
    /// be in flight or protected.
    pub(crate) unsafe fn free_run(&self, id: Id, resident: u32) {
        // SAFETY: the caller holds the pool's lock.
        let pool = unsafe { self.pool() };
        pool.used -= self.unit(id).pages.load(Relaxed);
        self.free_unit(pool, id, resident);
        let most = MAX_RESIDENT_PAGES + pool.used / RESIDENT_SHARE;
        if pool.resident > most {
            // Well below the maximum, so that a load around it does not cause drops all the time.
            self.trim_resident(pool, most / 2);
        }
    }

    /// Splits off the pages after the first `pages` as a unit of the same kind.
    ///
    /// # Safety
    /// The caller must hold the pool's lock, and own the unit, which must have more than `pages` pages.
    pub(crate) unsafe fn split(&self, id: Id, pages: u32) -> Option<Id> {
        // SAFETY: the caller holds the pool's lock.
        let pool = unsafe { self.pool() };
        let (start, end) = self.unit(id).span();
        let rest = self.new_unit(pool, start + pages, end - start - pages)?;
        self.unit(id).pages.store(pages, Relaxed);
        self.unit(rest).renew();
        for page in start + pages..end {
            self.unit_of.get(page as usize).store(Id::encode(Some(rest)), Relaxed);
        }
        Some(rest)
    }

    /// Marks a unit's pages as lost: they count as in use forever.
    pub(crate) fn mark_lost(&self, id: Id) {
        self.unit(id).set_kind(Kind::Lost);
    }

    /// Returns the bytes of pages that objects occupy, and of free pages that may be present.
    ///
    /// # Safety
    /// The caller must hold the pool's lock.
    pub(crate) unsafe fn usage(&self) -> (usize, usize) {
        // SAFETY: the caller holds the pool's lock.
        let pool = unsafe { self.pool() };
        (pool.used as usize * PAGE_BYTES, pool.resident as usize * PAGE_BYTES)
    }

    /// Returns a free run of at least `pages` pages.
    fn find_free(&self, pool: &Pool, pages: u32) -> Option<Id> {
        let bin = bin_of(pages);
        if bin >= BINS {
            return None;
        }
        let mut link = pool.bins[bin];
        for _ in 0..MAX_RUNS_TRIED {
            let Some(id) = Id::decode(link) else { break };
            if self.unit(id).pages.load(Relaxed) >= pages {
                return Some(id);
            }
            link = self.unit(id).next.load(Relaxed);
        }
        // Any run in a higher bin is long enough.
        let mut word = (bin + 1) / 64;
        let mut runs = pool.has_runs.get(word)? & (u64::MAX << ((bin + 1) % 64));
        while runs == 0 {
            word += 1;
            runs = *pool.has_runs.get(word)?;
        }
        Id::decode(pool.bins[word * 64 + runs.trailing_zeros() as usize])
    }

    /// Trims an unlinked run to `pages` aligned pages. Returns true if none of its pages is resident.
    fn trim_run(&self, pool: &mut Pool, id: Id, pages: u32, align_pages: u32) -> (Id, bool) {
        let unit = self.unit(id);
        let resident = unit.resident.swap(0, Relaxed);
        pool.resident -= resident;
        let (start, end) = unit.span();
        let aligned = start.next_multiple_of(align_pages);
        unit.set_kind(Kind::Vacant);
        for (from, to) in [(start, aligned), (aligned + pages, end)] {
            if from == to {
                continue;
            }
            match self.new_unit(pool, from, to - from) {
                Some(rest) => self.insert_free(pool, rest, resident.min(to - from)),
                // No memory for the table: these pages are lost, and no run is merged with them.
                None => pool.used += to - from,
            }
        }
        unit.start.store(aligned, Relaxed);
        unit.pages.store(pages, Relaxed);
        (id, resident == 0)
    }

    /// Takes pages that were never used.
    fn carve(&self, pool: &mut Pool, pages: u32, align_pages: u32) -> Option<Id> {
        let frontier = self.frontier.load(Relaxed);
        let start = frontier.checked_next_multiple_of(align_pages)?;
        let end = start.checked_add(pages)?;
        if !self.ensure_committed(end) {
            return None;
        }
        let id = self.new_unit(pool, start, pages)?;
        // Created before the frontier makes these pages visible.
        let gap = if start > frontier { self.new_unit(pool, frontier, start - frontier) } else { None };
        self.frontier.store(if gap.is_some() || start == frontier { end } else { frontier }, Release);
        if let Some(gap) = gap {
            self.free_unit(pool, gap, 0);
        } else if start > frontier {
            self.vacate(pool, id);
            return None;
        }
        Some(id)
    }

    /// Makes the pages below `end` and their tables accessible.
    fn ensure_committed(&self, end: u32) -> bool {
        let committed = self.committed.load(Relaxed);
        let total_pages = LEN_BYTES.load(Relaxed) / PAGE_BYTES;
        let pages = end as usize;
        if pages > total_pages
            || !self.unit_of.ensure_committed(pages)
            || !self.states.ensure_committed(pages)
            || !self.bitmap.ensure_committed(pages * BITMAP_WORDS)
        {
            return false;
        }
        if end <= committed {
            return true;
        }
        let step = COMMIT_PAGES.max(committed / 8);
        for next in [end.saturating_add(step).min(total_pages as u32), end] {
            let len_bytes = (next - committed) as usize * PAGE_BYTES;
            if range().commit(address_of(committed), len_bytes).is_ok() {
                self.committed.store(next, Relaxed);
                return true;
            }
        }
        false
    }

    fn new_unit(&self, pool: &mut Pool, start: u32, pages: u32) -> Option<Id> {
        let id = match Id::decode(pool.vacant) {
            Some(id) => {
                pool.vacant = self.unit(id).next.load(Relaxed);
                id
            }
            None => {
                let count = pool.units as usize + 1;
                if !self.units.ensure_committed(count) || !self.local.ensure_committed(count) {
                    return None;
                }
                pool.units += 1;
                Id(pool.units - 1)
            }
        };
        let unit = self.unit(id);
        unit.start.store(start, Relaxed);
        unit.pages.store(pages, Relaxed);
        unit.resident.store(0, Relaxed);
        Some(id)
    }

    fn vacate(&self, pool: &mut Pool, id: Id) {
        let unit = self.unit(id);
        unit.set_kind(Kind::Vacant);
        unit.pages.store(0, Relaxed);
        unit.next.store(pool.vacant, Relaxed);
        pool.vacant = Id::encode(Some(id));
    }

    /// Merges the unit with adjacent free runs and links the result.
    fn free_unit(&self, pool: &mut Pool, id: Id, resident: u32) {
        let (mut start, mut end) = self.unit(id).span();
        let mut resident = resident;
        let left = start.checked_sub(1).and_then(|page| self.free_at(page));
        let right = if end < self.frontier() { self.free_at(end) } else { None };
        for neighbour in [left, right].into_iter().flatten() {
            self.remove_free(pool, neighbour);
            let unit = self.unit(neighbour);
            let taken = unit.resident.swap(0, Relaxed);
            pool.resident -= taken;
            resident += taken;
            let (first, last) = unit.span();
            start = start.min(first);
            end = end.max(last);
            self.vacate(pool, neighbour);
        }
        let unit = self.unit(id);
        unit.start.store(start, Relaxed);
        unit.pages.store(end - start, Relaxed);
        self.insert_free(pool, id, resident);
    }

    /// Returns the free run that begins or ends at this page.
    fn free_at(&self, page: u32) -> Option<Id> {
        let id = Id::decode(self.unit_of.get(page as usize).load(Relaxed))?;
        let unit = self.unit(id);
        let (start, end) = unit.span();
        (unit.kind() == Kind::Free && (start == page || end == page + 1)).then_some(id)
    }

    fn insert_free(&self, pool: &mut Pool, id: Id, resident: u32) {
        let unit = self.unit(id);
        let (start, end) = unit.span();
        let link = Id::encode(Some(id));
        self.unit_of.get(start as usize).store(link, Relaxed);
        self.unit_of.get(end as usize - 1).store(link, Relaxed);
        unit.resident.store(resident, Relaxed);
        pool.resident += resident;
        let bin = bin_of(end - start);
        let first = pool.bins[bin];
        unit.next.store(first, Relaxed);
        unit.prev.store(0, Relaxed);
        if let Some(first) = Id::decode(first) {
            self.unit(first).prev.store(link, Relaxed);
        }
        pool.bins[bin] = link;
        pool.has_runs[bin / 64] |= 1 << (bin % 64);
        unit.set_kind(Kind::Free);
    }

    fn remove_free(&self, pool: &mut Pool, id: Id) {
        let unit = self.unit(id);
        let bin = bin_of(unit.pages.load(Relaxed));
        let (next, prev) = (unit.next.load(Relaxed), unit.prev.load(Relaxed));
        match Id::decode(prev) {
            Some(prev) => self.unit(prev).next.store(next, Relaxed),
            None => pool.bins[bin] = next,
        }
        if let Some(next) = Id::decode(next) {
            self.unit(next).prev.store(prev, Relaxed);
        }
        if pool.bins[bin] == 0 {
            pool.has_runs[bin / 64] &= !(1 << (bin % 64));
        }
    }

    /// Returns free pages to the kernel until at most `most` may be resident.
    fn trim_resident(&self, pool: &mut Pool, most: u32) {
        for bin in (0..BINS).rev() {
            let mut link = pool.bins[bin];
            while let Some(id) = Id::decode(link) {
                if pool.resident <= most {
                    return;
                }
                link = self.unit(id).next.load(Relaxed);
                self.drop_pages(pool, id);
            }
        }
    }

    fn drop_pages(&self, pool: &mut Pool, id: Id) {
        let unit = self.unit(id);
        if unit.resident.load(Relaxed) == 0 {
            return;
        }
        let (start, end) = unit.span();
        let len_bytes = (end - start) as usize * PAGE_BYTES;
        // SAFETY: the unit is free, so its pages' bytes are not needed.
        if unsafe { range().discard(address_of(start), len_bytes) }.is_ok() {
            (start..end).for_each(|page| self.state(page).store(0, Relaxed));
            pool.resident -= unit.resident.swap(0, Relaxed);
        }
    }

    /// True if the units cover everything below the frontier. For tests, while no other thread allocates.
    pub(crate) fn is_valid(&self) -> bool {
        let mut page = 0;
        let mut was_free = false;
        while page < self.frontier() {
            let Some(id) = self.unit_at(page) else { return false };
            let unit = self.unit(id);
            let is_free = unit.kind() == Kind::Free;
            if unit.start.load(Relaxed) != page || unit.kind() == Kind::Vacant || (is_free && was_free) {
                return false;
            }
            was_free = is_free;
            page += unit.pages.load(Relaxed);
        }
        page == self.frontier()
    }
}
