//! The pages of the allocator: one reserved range, handed out in runs.
//!
//! ```text
//! base        frontier           committed                              base + reserved
//!  | units of all kinds | never used | accessible: next to be used … | addresses without access |
//! ```
//!
//! Free runs are units too; neighbours are joined. They wait in bins: one for each length up to 64 pages, then four
//! for each doubling. Equations (`is_valid`): free and used units cover `0..frontier` without gap or overlap; no
//! two free ones are neighbours.

use crate::table::Table;
use crate::unit::{Id, Kind, Live, Unit, state};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
pub(crate) use uncopy_sys::PAGE_BYTES;
use uncopy_sys::errno::Errno;
use uncopy_sys::mem::{Advice, Reservation};

use Ordering::{Acquire, Relaxed, Release};

/// Largest reservation, bytes.
const MAX_RANGE_BYTES: usize = 1 << 40;
/// Smallest useful reservation, bytes.
const MIN_RANGE_BYTES: usize = 64 << 20;
/// Share of the addresses that RLIMIT_AS leaves: one part in eight is reserved.
const LIMIT_SHARE: u64 = 8;
/// Smallest step by which the range is made accessible, pages.
const COMMIT_PAGES: u32 = 1024;
const EXACT_BINS: usize = 64;
const BINS: usize = EXACT_BINS + 4 * 24;
/// Runs of a bin that are tried for one that is long enough.
const MAX_TRIED: usize = 16;
/// 64 bit words of a page's part of the bitmap: a bit for 16 bytes.
pub(crate) const BITMAP_WORDS: usize = PAGE_BYTES / 16 / 64;
/// Free pages that stay resident: this number, and one part in eight of those in use.
const MAX_RESIDENT_PAGES: u32 = 4096;
const RESIDENT_SHARE: u32 = 8;

static BASE: AtomicUsize = AtomicUsize::new(0);
static LEN_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The allocator's pages.
pub(crate) struct Pages {
    /// Unit of each page; of free runs only the first and the last page's are true.
    unit_of: Table<AtomicU32>,
    states: Table<AtomicU8>,
    bitmap: Table<AtomicU64>,
    units: Table<Unit>,
    live: Table<Live>,
    frontier: AtomicU32,
    committed: AtomicU32,
    pool: UnsafeCell<Pool>,
}

struct Pool {
    bins: [u32; BINS],
    has_runs: [u64; BINS.div_ceil(64)],
    /// First vacant unit.
    vacant: u32,
    /// Units that there are.
    units: u32,
    cap: u32,
    used: u32,
    /// Sum of what free runs have.
    resident: u32,
}

// SAFETY: the pool is only touched under the lock of the pool, which every function that does so asks for.
unsafe impl Sync for Pages {}

/// The pages of this process.
pub(crate) static PAGES: Pages = Pages {
    unit_of: Table::new(),
    states: Table::new(),
    bitmap: Table::new(),
    units: Table::new(),
    live: Table::new(),
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

/// Whether an address lies in twin memory.
#[inline]
pub(crate) fn contains(address: usize) -> bool {
    let len_bytes = LEN_BYTES.load(Acquire);
    address.wrapping_sub(BASE.load(Relaxed)) < len_bytes
}

/// Whether any of these bytes lies in twin memory.
pub(crate) fn overlaps(address: usize, len: usize) -> bool {
    let len_bytes = LEN_BYTES.load(Acquire);
    let base = BASE.load(Relaxed);
    len > 0 && address < base.saturating_add(len_bytes) && base < address.saturating_add(len)
}

/// Whether there are any addresses of ours.
#[inline]
pub(crate) fn is_used() -> bool {
    LEN_BYTES.load(Relaxed) != 0
}

/// Address of a page.
#[inline]
pub(crate) fn address_of(page: u32) -> usize {
    BASE.load(Relaxed) + page as usize * PAGE_BYTES
}

/// Page of an address that [`contains`] knows.
#[inline]
pub(crate) fn page_of(address: usize) -> u32 {
    ((address - BASE.load(Relaxed)) / PAGE_BYTES) as u32
}

/// The whole range.
pub(crate) fn range() -> Reservation {
    Reservation::part_of_ours(BASE.load(Relaxed), LEN_BYTES.load(Acquire))
}

/// Bin of a run by its length, pages.
fn bin_of(pages: u32) -> usize {
    if pages as usize <= EXACT_BINS {
        return pages as usize - 1;
    }
    let top = pages.ilog2();
    let quarter = (pages >> (top - 2)) & 3;
    EXACT_BINS + (top as usize - 6) * 4 + quarter as usize
}

/// A run that was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub id: Id,
    /// None of its pages is present: they read as zeroes.
    pub is_absent: bool,
}

impl Pages {
    /// Reserves the addresses and the tables. Whether what must be wiped in children is.
    ///
    /// Once, under the lock of the start.
    pub(crate) fn create(&self, cap_pages: u32) -> Result<bool, Errno> {
        let limit = uncopy_sys::mem::address_space_limit()
            .map_or(usize::MAX, |limit| usize::try_from(limit / LIMIT_SHARE).unwrap_or(usize::MAX));
        // Runs of pages break up: a cap needs more addresses than memory.
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
        uncopy_sys::procmap::keep_out(range.base(), len_bytes);
        self.unit_of.create(pages, false)?;
        self.bitmap.create(pages * BITMAP_WORDS, false)?;
        self.units.create(pages, false)?;
        let are_wiped = self.states.create(pages, true)? & self.live.create(pages, true)?;
        // SAFETY: nobody else knows of the pool yet.
        unsafe { (*self.pool.get()).cap = cap_pages };
        BASE.store(range.base(), Release);
        LEN_BYTES.store(len_bytes, Release);
        Ok(are_wiped)
    }

    /// State of a page below the frontier.
    #[inline]
    pub(crate) fn state(&self, page: u32) -> &'static AtomicU8 {
        self.states.get(page as usize)
    }

    /// A word of a pageblock's bitmap of free slots.
    #[inline]
    pub(crate) fn bits(&self, start: u32, word: usize) -> &'static AtomicU64 {
        self.bitmap.get(start as usize * BITMAP_WORDS + word)
    }

    /// A unit.
    #[inline]
    pub(crate) fn unit(&self, id: Id) -> &'static Unit {
        self.units.get(id.0 as usize)
    }

    /// What of it is only true of this process.
    #[inline]
    pub(crate) fn live(&self, id: Id) -> &'static Live {
        self.live.get(id.0 as usize)
    }

    /// The unit that a page belongs to. The answer may be old where the caller owns nothing there.
    #[inline]
    pub(crate) fn unit_at(&self, page: u32) -> Option<Id> {
        if page >= self.frontier.load(Acquire) {
            return None;
        }
        let id = Id::from_link(self.unit_of.get(page as usize).load(Relaxed))?;
        let (start, end) = self.unit(id).span();
        (start..end).contains(&page).then_some(id)
    }

    /// First page that was never handed out.
    pub(crate) fn frontier(&self) -> u32 {
        self.frontier.load(Acquire)
    }

    /// Whether a page's bytes are there: known, not guessed.
    pub(crate) fn is_filled(&self, page: u32) -> bool {
        self.state(page).load(Relaxed) & state::FILLED != 0
    }

    #[allow(clippy::mut_from_ref, reason = "the lock of the pool makes it the only reference")]
    unsafe fn pool(&self) -> &mut Pool {
        // SAFETY: the caller holds the lock of the pool.
        unsafe { &mut *self.pool.get() }
    }

    /// Takes `pages` pages that begin at a multiple of `align_pages`, as a unit whose kind the caller sets once all
    /// else about it is true; `None` without memory.
    ///
    /// # Safety
    /// Under the lock of the pool.
    pub(crate) unsafe fn take(&self, pages: u32, align_pages: u32) -> Option<Run> {
        // SAFETY: the caller holds the lock of the pool.
        let pool = unsafe { self.pool() };
        if pages == 0 || pool.used.checked_add(pages).is_none_or(|used| used > pool.cap) {
            return None;
        }
        let spare = pool.cap - pool.used - pages;
        if pool.resident > spare {
            self.give_back(pool, spare);
        }
        let (id, is_absent) = match self.find(pool, pages.checked_add(align_pages - 1)?) {
            Some(id) => {
                self.unlink(pool, id);
                self.trim(pool, id, pages, align_pages)
            }
            None => (self.carve(pool, pages, align_pages)?, true),
        };
        pool.used += pages;
        let unit = self.unit(id);
        unit.renew();
        let (start, end) = unit.span();
        for page in start..end {
            self.unit_of.get(page as usize).store(Id::link(Some(id)), Relaxed);
        }
        Some(Run { id, is_absent })
    }

    /// Gives a unit's pages back; `resident`: the number that may be present, at most.
    ///
    /// # Safety
    /// Under the lock of the pool; nobody uses the pages or the unit any more, and none is in flight or protected.
    pub(crate) unsafe fn give(&self, id: Id, resident: u32) {
        // SAFETY: the caller holds the lock of the pool.
        let pool = unsafe { self.pool() };
        pool.used -= self.unit(id).pages.load(Relaxed);
        self.free(pool, id, resident);
        let most = MAX_RESIDENT_PAGES + pool.used / RESIDENT_SHARE;
        if pool.resident > most {
            // Well below, so that what comes and goes at the bound is not dropped each time.
            self.give_back(pool, most / 2);
        }
    }

    /// Splits the pages behind the first `pages` off as a unit of the same kind.
    ///
    /// # Safety
    /// Under the lock of the pool; the unit is the caller's and longer than that.
    pub(crate) unsafe fn split(&self, id: Id, pages: u32) -> Option<Id> {
        // SAFETY: the caller holds the lock of the pool.
        let pool = unsafe { self.pool() };
        let (start, end) = self.unit(id).span();
        let rest = self.new_unit(pool, start + pages, end - start - pages)?;
        self.unit(id).pages.store(pages, Relaxed);
        self.unit(rest).renew();
        for page in start + pages..end {
            self.unit_of.get(page as usize).store(Id::link(Some(rest)), Relaxed);
        }
        Some(rest)
    }

    /// The unit's pages are lost: they count as in use for ever.
    pub(crate) fn lose(&self, id: Id) {
        self.unit(id).set_kind(Kind::Lost);
    }

    /// Bytes of pages that objects have, and of free pages that may be present.
    ///
    /// # Safety
    /// Under the lock of the pool.
    pub(crate) unsafe fn usage(&self) -> (usize, usize) {
        // SAFETY: the caller holds the lock of the pool.
        let pool = unsafe { self.pool() };
        (pool.used as usize * PAGE_BYTES, pool.resident as usize * PAGE_BYTES)
    }

    /// A free run of at least `pages`.
    fn find(&self, pool: &Pool, pages: u32) -> Option<Id> {
        let bin = bin_of(pages);
        if bin >= BINS {
            return None;
        }
        let mut link = pool.bins[bin];
        for _ in 0..MAX_TRIED {
            let Some(id) = Id::from_link(link) else { break };
            if self.unit(id).pages.load(Relaxed) >= pages {
                return Some(id);
            }
            link = self.unit(id).next.load(Relaxed);
        }
        // Any run of a higher bin is long enough.
        let mut word = (bin + 1) / 64;
        let mut runs = pool.has_runs.get(word)? & (u64::MAX << ((bin + 1) % 64));
        while runs == 0 {
            word += 1;
            runs = *pool.has_runs.get(word)?;
        }
        Id::from_link(pool.bins[word * 64 + runs.trailing_zeros() as usize])
    }

    /// Cuts a run that is not linked to `pages` at a multiple of `align_pages`; whether none of its pages is resident.
    fn trim(&self, pool: &mut Pool, id: Id, pages: u32, align_pages: u32) -> (Id, bool) {
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
                Some(rest) => self.link(pool, rest, resident.min(to - from)),
                // No memory for the table: these pages are nobody's from here on, and no run is joined with them.
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
        if !self.reach(end) {
            return None;
        }
        let id = self.new_unit(pool, start, pages)?;
        // Before anybody looks at what lies below.
        let gap = if start > frontier { self.new_unit(pool, frontier, start - frontier) } else { None };
        self.frontier.store(if gap.is_some() || start == frontier { end } else { frontier }, Release);
        if let Some(gap) = gap {
            self.free(pool, gap, 0);
        } else if start > frontier {
            self.vacate(pool, id);
            return None;
        }
        Some(id)
    }

    /// Makes the pages below `end`, and what describes them, accessible.
    fn reach(&self, end: u32) -> bool {
        let committed = self.committed.load(Relaxed);
        let whole = LEN_BYTES.load(Relaxed) / PAGE_BYTES;
        let pages = end as usize;
        if pages > whole
            || !self.unit_of.reach(pages)
            || !self.states.reach(pages)
            || !self.bitmap.reach(pages * BITMAP_WORDS)
        {
            return false;
        }
        if end <= committed {
            return true;
        }
        let step = COMMIT_PAGES.max(committed / 8);
        for next in [end.saturating_add(step).min(whole as u32), end] {
            let len_bytes = (next - committed) as usize * PAGE_BYTES;
            if range().commit(address_of(committed), len_bytes).is_ok() {
                self.committed.store(next, Relaxed);
                return true;
            }
        }
        false
    }

    fn new_unit(&self, pool: &mut Pool, start: u32, pages: u32) -> Option<Id> {
        let id = match Id::from_link(pool.vacant) {
            Some(id) => {
                pool.vacant = self.unit(id).next.load(Relaxed);
                id
            }
            None => {
                let count = pool.units as usize + 1;
                if !self.units.reach(count) || !self.live.reach(count) {
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
        pool.vacant = Id::link(Some(id));
    }

    /// Joins the unit with its free neighbours and links the whole.
    fn free(&self, pool: &mut Pool, id: Id, resident: u32) {
        let (mut start, mut end) = self.unit(id).span();
        let mut resident = resident;
        let left = start.checked_sub(1).and_then(|page| self.free_at(page));
        let right = if end < self.frontier() { self.free_at(end) } else { None };
        for neighbour in [left, right].into_iter().flatten() {
            self.unlink(pool, neighbour);
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
        self.link(pool, id, resident);
    }

    /// The free run that begins or ends at this page.
    fn free_at(&self, page: u32) -> Option<Id> {
        let id = Id::from_link(self.unit_of.get(page as usize).load(Relaxed))?;
        let unit = self.unit(id);
        let (start, end) = unit.span();
        (unit.kind() == Kind::Free && (start == page || end == page + 1)).then_some(id)
    }

    fn link(&self, pool: &mut Pool, id: Id, resident: u32) {
        let unit = self.unit(id);
        let (start, end) = unit.span();
        let link = Id::link(Some(id));
        self.unit_of.get(start as usize).store(link, Relaxed);
        self.unit_of.get(end as usize - 1).store(link, Relaxed);
        unit.resident.store(resident, Relaxed);
        pool.resident += resident;
        let bin = bin_of(end - start);
        let first = pool.bins[bin];
        unit.next.store(first, Relaxed);
        unit.prev.store(0, Relaxed);
        if let Some(first) = Id::from_link(first) {
            self.unit(first).prev.store(link, Relaxed);
        }
        pool.bins[bin] = link;
        pool.has_runs[bin / 64] |= 1 << (bin % 64);
        unit.set_kind(Kind::Free);
    }

    fn unlink(&self, pool: &mut Pool, id: Id) {
        let unit = self.unit(id);
        let bin = bin_of(unit.pages.load(Relaxed));
        let (next, prev) = (unit.next.load(Relaxed), unit.prev.load(Relaxed));
        match Id::from_link(prev) {
            Some(prev) => self.unit(prev).next.store(next, Relaxed),
            None => pool.bins[bin] = next,
        }
        if let Some(next) = Id::from_link(next) {
            self.unit(next).prev.store(prev, Relaxed);
        }
        if pool.bins[bin] == 0 {
            pool.has_runs[bin / 64] &= !(1 << (bin % 64));
        }
    }

    /// Gives free pages back to the kernel until at most `most` may be resident.
    fn give_back(&self, pool: &mut Pool, most: u32) {
        for bin in (0..BINS).rev() {
            let mut link = pool.bins[bin];
            while let Some(id) = Id::from_link(link) {
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
        // SAFETY: free pages, of which nobody needs the bytes.
        if unsafe { range().discard(address_of(start), len_bytes) }.is_ok() {
            (start..end).for_each(|page| self.state(page).store(0, Relaxed));
            pool.resident -= unit.resident.swap(0, Relaxed);
        }
    }

    /// Whether the units cover everything below the frontier. For tests, while nobody else is at work.
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
