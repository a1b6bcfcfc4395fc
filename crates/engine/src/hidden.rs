//! Hidden memory: where segments live, and the reservoir of warm pages.
//!
//! One reserved range, committed and registered with userfaultfd step by step. A page of it is in
//! use by a segment or an extent, or *warm* (free and present), or *cold* (free and absent), or *spent*: free, but
//! the kernel may still refer to what is there, so that it has to become cold before it is used again.
//! Registered, so that pages can be moved in; always present while in use, so that neither our own
//! copies nor the kernel's ever fault there.
//!
//! The reservoir is bounded, and shrinks by what nobody has needed for a while (`upkeep`).

use crate::engine::ENGINE;
use crate::{bounds, live, upkeep};
use uncopy_core::addr::{PAGE_BYTES, PageRange};
use uncopy_core::extents::Extents;
use uncopy_core::policy::costs::Cost;
use uncopy_core::stats::Counter;
use uncopy_sys::errno::Errno;
use uncopy_sys::lock::Lock;
use uncopy_sys::mem::{Advice, Reservation, map_zeroes};
use uncopy_sys::presence::is_outside;
use uncopy_sys::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use uncopy_sys::sync::{Apart, UnsafeCell};
use uncopy_sys::uffd::Uffd;

/// Addresses reserved where nothing limits them.
const RESERVED_BYTES: usize = 1 << 38;
/// Smallest useful reservation.
const MIN_BYTES: usize = 64 << 20;
/// Committed and registered at a time, pages.
const STEP_PAGES: u32 = 4096;
/// Bytes of zeroes that `UFFDIO_COPY` reads from.
const ZEROES_BYTES: usize = 256 << 10;
/// A warm extent this long is worth a move of its own when pages are gathered.
const GATHER_PAGES: u32 = 8;
/// Warm extents that are looked at for one that can grow where it lies.
const MAX_GROWING: usize = 8;
/// Fewer surplus pages than this are all given back at once.
const MIN_SURPLUS_PAGES: usize = 64;
/// Extents given back in one go, and their pages, at most.
const TRIM_EXTENTS: usize = 32;
/// Spent pages that wait to be given back together: neighbours are dropped with one call.
const MAX_SPENT_PAGES: usize = 256;

const EEXIST: Errno = Errno(17);

struct Inner {
    reservation: Option<Reservation>,
    /// Pages committed and registered, from the start.
    committed: u32,
    warm: Extents,
    cold: Extents,
    spent: Extents,
    /// Fewest warm pages there were since the last look.
    min_warm: usize,
}

impl Inner {
    /// Takes note of warm pages that were taken.
    fn took_warm(&mut self, pages: PageRange) {
        live::subtract(Counter::ReservoirBytes, pages.len_bytes());
        self.min_warm = self.min_warm.min(self.warm.pages());
    }

    fn put_warm(&mut self, pages: PageRange) {
        self.warm.insert(pages);
        live::add(Counter::ReservoirBytes, pages.len_bytes());
    }
}

/// Present pages that the caller alone has.
pub struct Warm {
    /// Which.
    pub pages: PageRange,
    /// What making them present has cost, ns.
    pub cost_ns: i64,
}

/// The hidden memory of a process.
pub struct Hidden {
    lock: Apart<Lock>,
    inner: Apart<UnsafeCell<Inner>>,
    base: AtomicUsize,
    len_bytes: AtomicUsize,
    zeroes: AtomicUsize,
}

// SAFETY: `inner` is only touched under `lock`.
unsafe impl Sync for Hidden {}

impl Default for Hidden {
    fn default() -> Self {
        Self::new()
    }
}

impl Hidden {
    uncopy_sys::constant! {
        /// Nothing reserved.
        #[must_use]
        pub const fn new() -> Self {
            let inner = Inner {
                reservation: None,
                committed: 0,
                warm: Extents::new(),
                cold: Extents::new(),
                spent: Extents::new(),
                min_warm: 0,
            };
            Self {
                lock: Apart(Lock::new()),
                inner: Apart(UnsafeCell::new(inner)),
                base: AtomicUsize::new(0),
                len_bytes: AtomicUsize::new(0),
                zeroes: AtomicUsize::new(0),
            }
        }
    }

    /// The lock, to be held across a fork.
    #[must_use]
    pub const fn lock(&self) -> &Lock {
        &self.lock.0
    }

    /// Reserves the range. `max_bytes` is what the address space still allows.
    ///
    /// # Errors
    /// ENOMEM where not even a small range is to be had.
    pub fn reserve(&self, max_bytes: usize) -> Result<(), Errno> {
        if self.base.load(Relaxed) != 0 {
            return Ok(());
        }
        let mut len_bytes = RESERVED_BYTES.min(max_bytes) / PAGE_BYTES * PAGE_BYTES;
        let reservation = loop {
            match Reservation::new(len_bytes) {
                Ok(reservation) => break reservation,
                Err(errno) if len_bytes / 4 < MIN_BYTES => return Err(errno),
                Err(_) => len_bytes = len_bytes / 4 / PAGE_BYTES * PAGE_BYTES,
            }
        };
        let zeroes = map_zeroes(ZEROES_BYTES).inspect_err(|_| {
            // SAFETY: just reserved; nobody knows it.
            let _ = unsafe { reservation.shortened(0) };
        })?;
        reservation.advise(reservation.base(), len_bytes, Advice::NotInCoreDumps);
        reservation.advise(reservation.base(), len_bytes, Advice::NoHugePages);
        let _guard = self.lock.guard();
        // SAFETY: under the lock.
        unsafe { (*self.inner.get()).reservation = Some(reservation) };
        self.zeroes.store(zeroes, Relaxed);
        self.len_bytes.store(len_bytes, Relaxed);
        self.base.store(reservation.base(), Relaxed);
        Ok(())
    }

    /// Gives the addresses that nothing has used back.
    pub fn give_back_addresses(&self) {
        let _guard = self.lock.guard();
        // SAFETY: under the lock.
        let inner = unsafe { &mut *self.inner.get() };
        if let Some(reservation) = inner.reservation {
            // SAFETY: nothing beyond was ever handed out.
            inner.reservation = Some(unsafe { reservation.shortened(inner.committed as usize * PAGE_BYTES) });
        }
    }

    /// Whether `address` is in the hidden memory.
    #[must_use]
    pub fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.base.load(Relaxed)) < self.len_bytes.load(Relaxed)
    }

    /// Address of a page.
    #[must_use]
    pub fn address(&self, page: u32) -> usize {
        self.base.load(Relaxed) + page as usize * PAGE_BYTES
    }

    /// The page with this address.
    #[must_use]
    pub fn page_of(&self, address: usize) -> PageRange {
        let page = ((address - self.base.load(Relaxed)) / PAGE_BYTES) as u32;
        PageRange::new(page, page + 1)
    }

    /// Registers what is committed with another userfaultfd: in a forked child.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn register_again(&self, uffd: Uffd) -> Result<(), Errno> {
        // SAFETY: the caller holds the lock (fork) and no other thread exists.
        let committed = unsafe { (*self.inner.get()).committed };
        if committed == 0 { Ok(()) } else { uffd.register(self.address(0), committed as usize * PAGE_BYTES) }
    }

    /// Puts zeroes into absent pages anywhere in registered memory, as far as it gets.
    pub fn fill_zeroes(&self, uffd: Uffd, address: usize, len_bytes: usize) -> Result<(), (usize, Errno)> {
        let mut done_bytes = 0;
        while done_bytes < len_bytes {
            let step_bytes = (len_bytes - done_bytes).min(ZEROES_BYTES);
            // SAFETY: the source is ZEROES_BYTES of zeroes, mapped privately and not registered.
            let placed = unsafe { uffd.copy(address + done_bytes, self.zeroes.load(Relaxed), step_bytes) };
            done_bytes += placed.done_bytes;
            if let Some(errno) = placed.error {
                return Err((done_bytes, errno));
            }
        }
        Ok(())
    }

    /// Takes `pages` adjacent cold pages.
    ///
    /// # Errors
    /// ENOMEM when the reservation is used up, or what committing says.
    pub fn take_cold(&self, uffd: Uffd, pages: u32) -> Result<PageRange, Errno> {
        let _guard = self.lock.guard();
        // SAFETY: under the lock.
        let inner = unsafe { &mut *self.inner.get() };
        self.cold(inner, uffd, pages)
    }

    fn cold(&self, inner: &mut Inner, uffd: Uffd, pages: u32) -> Result<PageRange, Errno> {
        if let Some(found) = inner.cold.take(pages) {
            return Ok(found);
        }
        let reservation = inner.reservation.ok_or(Errno(12))?;
        let total = (reservation.len_bytes() / PAGE_BYTES) as u32;
        let step = pages.max(STEP_PAGES).min(total - inner.committed);
        if step < pages {
            return Err(Errno(12));
        }
        let fresh = PageRange::new(inner.committed, inner.committed + step);
        reservation.commit(self.address(fresh.start), fresh.len_bytes())?;
        uffd.register(self.address(fresh.start), fresh.len_bytes())?;
        inner.committed = fresh.end;
        inner.cold.insert(fresh);
        inner.cold.take(pages).ok_or(Errno(12))
    }

    /// Takes a warm extent that is too short for `pages` pages and cold pages beside it: those that it takes, and which of
    /// them are cold. So most of what a segment gets need not be moved.
    fn grow_warm(inner: &mut Inner, pages: u32) -> Option<(PageRange, PageRange)> {
        let (warm, extent, missing) = inner.warm.longest_first().take(MAX_GROWING).find_map(|warm| {
            let missing = pages - warm.len();
            let behind = inner.cold.starting_at(warm.end).filter(|cold| cold.len() >= missing);
            let before = || inner.cold.ending_at(warm.start).filter(|cold| cold.len() >= missing);
            match behind {
                Some(cold) => Some((warm, cold, PageRange::new(warm.end, warm.end + missing))),
                None => before().map(|cold| (warm, cold, PageRange::new(warm.start - missing, warm.start))),
            }
        })?;
        inner.warm.take_part(warm, warm);
        inner.took_warm(warm);
        inner.cold.take_part(extent, missing);
        Some((PageRange::new(warm.start.min(missing.start), warm.end.max(missing.end)), missing))
    }

    /// Takes `pages` adjacent present pages. Their bytes are whatever this process left there.
    ///
    /// # Errors
    /// ENOMEM; nothing is taken then.
    pub fn take_warm(&self, uffd: Uffd, pages: u32) -> Result<Warm, Errno> {
        let mut pieces: [PageRange; 8] = [PageRange::new(0, 0); 8];
        let mut count = 0;
        let (range, hole) = {
            let _guard = self.lock.guard();
            // SAFETY: under the lock.
            let inner = unsafe { &mut *self.inner.get() };
            if let Some(found) = inner.warm.take(pages) {
                inner.took_warm(found);
                return Ok(Warm { pages: found, cost_ns: 0 });
            }
            let (range, hole) = match Self::grow_warm(inner, pages) {
                Some(grown) => grown,
                None => {
                    let range = self.cold(inner, uffd, pages)?;
                    (range, range)
                }
            };
            let mut missing = hole.len();
            while missing > 0 && count < pieces.len() && inner.warm.longest() >= GATHER_PAGES.min(missing) {
                let fits = inner.warm.take(missing);
                let Some(piece) = fits.or_else(|| inner.warm.take_longest(missing)) else { break };
                inner.took_warm(piece);
                missing -= piece.len();
                pieces[count] = piece;
                count += 1;
            }
            (range, hole)
        };
        let moved_pages: u32 = pieces[..count].iter().map(|piece| piece.len()).sum();
        let fill_ns = i64::from(hole.len() - moved_pages) * ENGINE.costs.get(Cost::FillPage);
        let cost_ns = ENGINE.costs.moves_ns(count, moved_pages as usize) + fill_ns;
        let mut filled = hole.start;
        for piece in &pieces[..count] {
            // SAFETY: both ranges were taken and belong to this call alone.
            let placed = unsafe {
                uffd.move_pages(self.address(filled), self.address(piece.start), piece.len_bytes())
            };
            let moved = (placed.done_bytes / PAGE_BYTES) as u32;
            live::add(Counter::MovedPages, moved as usize);
            filled += moved;
            self.give_cold(PageRange::new(piece.start, piece.start + moved));
            self.give_warm(PageRange::new(piece.start + moved, piece.end));
        }
        loop {
            let rest = PageRange::new(filled, hole.end);
            let (done_bytes, errno) = match self.fill_zeroes(uffd, self.address(rest.start), rest.len_bytes())
            {
                Ok(()) => return Ok(Warm { pages: range, cost_ns }),
                Err(stopped) => stopped,
            };
            let present = rest.start + (done_bytes / PAGE_BYTES) as u32;
            if errno == EEXIST {
                // Present already: locked memory is populated when it is committed.
                filled = present + 1;
                continue;
            }
            self.give_warm(PageRange::new(range.start, present));
            self.give_cold(PageRange::new(present, hole.end));
            self.give_warm(PageRange::new(hole.end, range.end));
            return Err(errno);
        }
    }

    /// Gives present pages back to the reservoir.
    pub fn give_warm(&self, pages: PageRange) {
        if pages.is_empty() || is_outside() {
            return;
        }
        let max_bytes = bounds::max_reservoir_bytes();
        {
            let _guard = self.lock.guard();
            // SAFETY: under the lock.
            let inner = unsafe { &mut *self.inner.get() };
            inner.put_warm(pages);
            // Trim to seven eighths at once, so that a full reservoir does not trim on every call.
            if inner.warm.pages() * PAGE_BYTES > max_bytes {
                while inner.warm.pages() * PAGE_BYTES > max_bytes / 8 * 7 {
                    let Some(extent) = inner.warm.take_longest(STEP_PAGES) else { break };
                    inner.took_warm(extent);
                    if !self.discard(inner.reservation, extent) {
                        // Cannot be given back: keep it, and keep it out of this loop.
                        inner.put_warm(extent);
                        break;
                    }
                    inner.cold.insert(extent);
                }
            }
        }
        upkeep::is_needed();
    }

    /// Gives present pages back that the kernel may still refer to.
    pub(crate) fn give_spent(&self, pages: PageRange) {
        if pages.is_empty() || is_outside() {
            return;
        }
        live::add(Counter::DroppedBytes, pages.len_bytes());
        let is_full = {
            let _guard = self.lock.guard();
            // SAFETY: under the lock.
            let inner = unsafe { &mut *self.inner.get() };
            inner.spent.insert(pages);
            inner.spent.pages() >= MAX_SPENT_PAGES
        };
        if is_full {
            while self.drop_spent() {}
        } else {
            upkeep::is_needed();
        }
    }

    /// Whether pages wait to be given back for good.
    pub(crate) fn has_spent(&self) -> bool {
        let _guard = self.lock.guard();
        // SAFETY: under the lock.
        unsafe { (*self.inner.get()).spent.pages() > 0 }
    }

    /// Makes some spent pages cold. Returns whether there are more of them. In a `Section`, or by the handler thread in
    /// a round of upkeep: a fork must not find pages on a stack.
    pub(crate) fn drop_spent(&self) -> bool {
        let (extent, reservation) = {
            let _guard = self.lock.guard();
            // SAFETY: under the lock.
            let inner = unsafe { &mut *self.inner.get() };
            let Some(extent) = inner.spent.take_longest(STEP_PAGES) else { return false };
            (extent, inner.reservation)
        };
        if self.discard(reservation, extent) {
            self.give_cold(extent);
        } else {
            // Locked memory: these pages are never used again.
            live::add(Counter::Fallbacks, 1);
        }
        true
    }

    /// Gives free pages of ours back to the kernel.
    fn discard(&self, reservation: Option<Reservation>, pages: PageRange) -> bool {
        // SAFETY: the caller has taken the pages; nobody needs them.
        let discarded = reservation
            .map(|reservation| unsafe { reservation.discard(self.address(pages.start), pages.len_bytes()) });
        matches!(discarded, Some(Ok(())))
    }

    /// Gives present pages back, those of long runs to the reservoir, the others to the kernel. For the handler
    /// thread in a round of upkeep, with no lock of a block held.
    pub(crate) fn give_back(&self, pages: PageRange) {
        let reservation = {
            let _guard = self.lock.guard();
            // SAFETY: under the lock.
            unsafe { (*self.inner.get()).reservation }
        };
        if pages.len() < GATHER_PAGES && self.discard(reservation, pages) {
            self.give_cold(pages);
        } else {
            self.give_warm(pages);
        }
    }

    /// The warm pages to be given back now: half of those that nobody has needed since the last time that this
    /// was asked.
    pub(crate) fn surplus_pages(&self) -> usize {
        let _guard = self.lock.guard();
        // SAFETY: under the lock.
        let inner = unsafe { &mut *self.inner.get() };
        let least = core::mem::replace(&mut inner.min_warm, inner.warm.pages());
        if least <= MIN_SURPLUS_PAGES { least } else { least.div_ceil(2) }
    }

    /// Gives some of `pages` warm pages back to the kernel: short runs, of which no segment can be made, first.
    /// Returns how many are left to be given back. For the handler thread in a round of upkeep.
    pub(crate) fn trim(&self, pages: usize) -> usize {
        let mut extents: [PageRange; TRIM_EXTENTS] = [PageRange::new(0, 0); TRIM_EXTENTS];
        let mut count = 0;
        let mut missing = pages.min(STEP_PAGES as usize);
        let mut left = pages - missing;
        let reservation = {
            let _guard = self.lock.guard();
            // SAFETY: under the lock.
            let inner = unsafe { &mut *self.inner.get() };
            while missing > 0 && count < extents.len() {
                let longest = |warm: &mut Extents| warm.take_longest(missing as u32);
                let Some(extent) =
                    inner.warm.take_shortest(GATHER_PAGES).or_else(|| longest(&mut inner.warm))
                else {
                    missing = 0;
                    break;
                };
                inner.took_warm(extent);
                missing -= missing.min(extent.len() as usize);
                extents[count] = extent;
                count += 1;
            }
            inner.reservation
        };
        left += missing;
        for extent in &extents[..count] {
            let is_cold = self.discard(reservation, *extent);
            let _guard = self.lock.guard();
            // SAFETY: under the lock.
            let inner = unsafe { &mut *self.inner.get() };
            if is_cold {
                live::add(Counter::TrimmedBytes, extent.len_bytes());
                inner.cold.insert(*extent);
            } else {
                // Locked: as long as it is, there is nothing to be had here.
                inner.put_warm(*extent);
                left = 0;
            }
        }
        left
    }

    /// Makes a page absent again that [`Hidden::take_cold`] gave. False where that is refused.
    pub(crate) fn make_absent(&self, page: PageRange) -> bool {
        let reservation = {
            let _guard = self.lock.guard();
            // SAFETY: under the lock.
            unsafe { (*self.inner.get()).reservation }
        };
        self.discard(reservation, page)
    }

    /// Gives absent pages back.
    pub fn give_cold(&self, pages: PageRange) {
        if !pages.is_empty() && !is_outside() {
            let _guard = self.lock.guard();
            // SAFETY: under the lock.
            unsafe { (*self.inner.get()).cold.insert(pages) };
        }
    }
}
