//! The arena: where segments live, and the reservoir of resident pages.
//!
//! The arena is one reserved range, committed and registered with userfaultfd step by step. A page is in
//! use by a segment or an extent, or *resident* (free and present), *nonresident* (free and absent) or
//! *quarantined*: free, but the kernel may still refer to it, so that it must become nonresident before it
//! is used again. Pages are registered so that pages can be moved in, and present while in use, so that
//! neither uncopy's own copies nor the kernel's ever fault there.
//!
//! The reservoir is bounded, and shrinks by the pages that have not been needed for a while (`upkeep`).

use crate::arena::descriptor::UffdDescriptor;
use crate::state::policy::POLICY;
use crate::state::{bell, counters, limits};
use uncopy_core::addr::{ArenaPages, PAGE_BYTES};
use uncopy_core::extents::Extents;
use uncopy_core::policy::costs::Cost;
use uncopy_core::stats::Counter;
use uncopy_sys::errno::Errno;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::lock::Lock;
use uncopy_sys::mem::{Advice, Reservation, map_zeroes};
use uncopy_sys::presence::is_outside;
use uncopy_sys::sync::CachePadded;
use uncopy_sys::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use uncopy_sys::uffd::{self, Uffd};

/// Addresses reserved where no limit applies, bytes.
const RESERVED_BYTES: usize = 1 << 38;
/// Smallest useful reservation, bytes.
const MIN_RESERVATION_BYTES: usize = 64 << 20;
/// Pages committed and registered at a time.
const STEP_PAGES: u32 = 4096;
/// Length of the zeroes that `UFFDIO_COPY` reads from, bytes.
const ZEROES_BYTES: usize = 256 << 10;
/// Shortest resident extent that is worth a move of its own when pages are gathered.
const GATHER_PAGES: u32 = 8;
/// Resident extents examined for one that can grow in place.
const MAX_GROWING: usize = 8;
/// Up to this many surplus pages are given back in one round.
const MIN_SURPLUS_PAGES: usize = 64;
/// Most extents given back by one call of `trim`.
const TRIM_EXTENTS: usize = 32;
/// Quarantined pages that are collected before being given back, so that neighbours go in one call.
const MAX_QUARANTINED_PAGES: usize = 256;

struct Inner {
    reservation: Option<Reservation>,
    /// Pages committed and registered, from the start.
    committed: u32,
    resident: Extents,
    nonresident: Extents,
    quarantined: Extents,
    /// Smallest number of resident pages since `surplus_pages` was last called.
    min_resident: usize,
}

impl Inner {
    /// Updates counts after resident pages were taken.
    fn took_resident(&mut self, pages: ArenaPages) {
        counters::subtract(Counter::ReservoirBytes, pages.len_bytes());
        self.min_resident = self.min_resident.min(self.resident.pages());
    }

    fn put_resident(&mut self, pages: ArenaPages) {
        self.resident.insert(pages);
        counters::add(Counter::ReservoirBytes, pages.len_bytes());
    }
}

/// Present pages that only the caller uses.
pub struct ResidentPages {
    /// Pages, by arena index.
    pub pages: ArenaPages,
    /// Cost of making the pages present, ns.
    pub cost_ns: i64,
}

/// The arena of a process.
pub struct Arena {
    inner: CachePadded<Guarded<Inner>>,
    base: AtomicUsize,
    len_bytes: AtomicUsize,
    zeroes: AtomicUsize,
    descriptor: UffdDescriptor,
}

uncopy_sys::statics! {
    /// The arena of this process.
    pub static ARENA: CachePadded<Arena> = CachePadded(Arena::new());
}

impl Default for Arena {
    fn default() -> Self {
        Self::new()
    }
}

impl Arena {
    uncopy_sys::constant! {
        /// An arena without a reservation.
        #[must_use]
        pub const fn new() -> Self {
            let inner = Inner {
                reservation: None,
                committed: 0,
                resident: Extents::new(),
                nonresident: Extents::new(),
                quarantined: Extents::new(),
                min_resident: 0,
            };
            Self {
                inner: CachePadded(Guarded::new(inner)),
                base: AtomicUsize::new(0),
                len_bytes: AtomicUsize::new(0),
                zeroes: AtomicUsize::new(0),
                descriptor: UffdDescriptor::new(),
            }
        }
    }

    /// The main userfaultfd, with which the arena and the heap's blocks are registered. If there is none,
    /// or it was closed, the kernel answers every request with an error.
    #[inline]
    #[must_use]
    pub fn uffd(&self) -> Uffd {
        self.descriptor.uffd()
    }

    /// The descriptor of the main userfaultfd.
    pub const fn descriptor(&self) -> &UffdDescriptor {
        &self.descriptor
    }

    /// The arena's lock, to be held across a fork.
    #[must_use]
    pub const fn lock(&self) -> &Lock {
        self.inner.0.raw()
    }

    /// Reserves the range. `max_bytes`: the rest of the limit on the address space.
    ///
    /// # Errors
    /// ENOMEM where even a small range cannot be reserved.
    pub fn reserve(&self, max_bytes: usize) -> Result<(), Errno> {
        if self.base.load(Relaxed) != 0 {
            return Ok(());
        }
        let mut len_bytes = RESERVED_BYTES.min(max_bytes) / PAGE_BYTES * PAGE_BYTES;
        let reservation = loop {
            match Reservation::new(len_bytes) {
                Ok(reservation) => break reservation,
                Err(errno) if len_bytes / 4 < MIN_RESERVATION_BYTES => return Err(errno),
                Err(_) => len_bytes = len_bytes / 4 / PAGE_BYTES * PAGE_BYTES,
            }
        };
        let zeroes = map_zeroes(ZEROES_BYTES).inspect_err(|_| {
            // SAFETY: the range was reserved by this call and its address is not published: nothing refers to it.
            let _ = unsafe { reservation.shortened(0) };
        })?;
        reservation.advise(reservation.base(), len_bytes, Advice::NotInCoreDumps);
        reservation.advise(reservation.base(), len_bytes, Advice::NoHugePages);
        self.inner.lock().reservation = Some(reservation);
        self.zeroes.store(zeroes, Relaxed);
        self.len_bytes.store(len_bytes, Relaxed);
        self.base.store(reservation.base(), Relaxed);
        Ok(())
    }

    /// Gives the addresses back that were never committed.
    pub fn give_back_addresses(&self) {
        let inner = &mut *self.inner.lock();
        if let Some(reservation) = inner.reservation {
            // SAFETY: pages from `committed` on were never handed out, so nothing refers to them.
            inner.reservation = Some(unsafe { reservation.shortened(inner.committed as usize * PAGE_BYTES) });
        }
    }

    /// Whether `address` is in the arena.
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
    pub fn page_of(&self, address: usize) -> ArenaPages {
        let page = ((address - self.base.load(Relaxed)) / PAGE_BYTES) as u32;
        ArenaPages::new(page, page + 1)
    }

    #[cfg(all(test, not(loom), feature = "inject"))]
    pub(crate) fn committed_pages(&self) -> u32 {
        self.inner.lock().committed
    }

    /// Takes every free page for good, so that the next take must commit more.
    #[cfg(all(test, not(loom), feature = "inject"))]
    pub(crate) fn exhaust(&self) {
        let inner = &mut *self.inner.lock();
        while inner
            .resident
            .take_longest(u32::MAX)
            .or_else(|| inner.nonresident.take_longest(u32::MAX))
            .is_some()
        {}
    }

    /// Registers the committed pages with the userfaultfd of a forked child.
    ///
    /// # Errors
    /// The errors of `UFFDIO_REGISTER`.
    pub fn register_again(&self) -> Result<(), Errno> {
        let committed = self.inner.lock().committed;
        if committed == 0 {
            Ok(())
        } else {
            self.uffd().register(self.address(0), committed as usize * PAGE_BYTES)
        }
    }

    /// Unregisters the committed pages: the kernel fills absent ones with zeroes from then on.
    pub(crate) fn unregister(&self) {
        let committed = self.inner.lock().committed;
        if committed > 0 {
            // A refusal is harmless: closing the descriptor ends the registration.
            let _ = self.uffd().unregister(self.address(0), committed as usize * PAGE_BYTES);
        }
    }

    /// Fills absent pages of registered memory with zeroes. On failure returns the length filled, bytes,
    /// and the error.
    pub fn fill_zeroes(&self, uffd: Uffd, address: usize, len_bytes: usize) -> Result<(), (usize, Errno)> {
        let mut done_bytes = 0;
        while done_bytes < len_bytes {
            let step_bytes = (len_bytes - done_bytes).min(ZEROES_BYTES);
            // SAFETY: the source is `ZEROES_BYTES` long, mapped for good, private and not registered;
            // `copy` fills absent pages only.
            let placed = unsafe { uffd.copy(address + done_bytes, self.zeroes.load(Relaxed), step_bytes) };
            done_bytes += placed.done_bytes;
            if let Some(errno) = placed.error {
                return Err((done_bytes, errno));
            }
        }
        Ok(())
    }

    /// Takes `pages` adjacent nonresident pages.
    ///
    /// # Errors
    /// ENOMEM when the reservation is used up; the errors of mprotect(2) and `UFFDIO_REGISTER`.
    pub fn take_nonresident(&self, pages: u32) -> Result<ArenaPages, Errno> {
        let inner = &mut *self.inner.lock();
        self.nonresident(inner, pages)
    }

    fn nonresident(&self, inner: &mut Inner, pages: u32) -> Result<ArenaPages, Errno> {
        if let Some(found) = inner.nonresident.take(pages) {
            return Ok(found);
        }
        let reservation = inner.reservation.ok_or(Errno::ENOMEM)?;
        let total = (reservation.len_bytes() / PAGE_BYTES) as u32;
        let step = pages.max(STEP_PAGES).min(total - inner.committed);
        if step < pages {
            return Err(Errno::ENOMEM);
        }
        let fresh = ArenaPages::new(inner.committed, inner.committed + step);
        reservation.commit(self.address(fresh.start), fresh.len_bytes())?;
        self.uffd().register(self.address(fresh.start), fresh.len_bytes())?;
        inner.committed = fresh.end;
        inner.nonresident.insert(fresh);
        inner.nonresident.take(pages).ok_or(Errno::ENOMEM)
    }

    /// Takes a resident extent shorter than `pages` and adjacent nonresident pages. Returns all pages
    /// taken, and those that are nonresident. Most pages of a segment then need no move.
    fn grow_resident(inner: &mut Inner, pages: u32) -> Option<(ArenaPages, ArenaPages)> {
        let (resident, extent, missing) =
            inner.resident.longest_first().take(MAX_GROWING).find_map(|resident| {
                let missing = pages - resident.len();
                let behind = inner
                    .nonresident
                    .starting_at(resident.end)
                    .filter(|nonresident| nonresident.len() >= missing);
                let before = || {
                    inner
                        .nonresident
                        .ending_at(resident.start)
                        .filter(|nonresident| nonresident.len() >= missing)
                };
                match behind {
                    Some(nonresident) => {
                        Some((resident, nonresident, ArenaPages::new(resident.end, resident.end + missing)))
                    }
                    None => before().map(|nonresident| {
                        (resident, nonresident, ArenaPages::new(resident.start - missing, resident.start))
                    }),
                }
            })?;
        inner.resident.take_part(resident, resident);
        inner.took_resident(resident);
        inner.nonresident.take_part(extent, missing);
        Some((ArenaPages::new(resident.start.min(missing.start), resident.end.max(missing.end)), missing))
    }

    /// Takes `pages` adjacent present pages. Their bytes are left over from earlier uses by this process.
    ///
    /// # Errors
    /// ENOMEM; no page is taken then.
    pub fn take_resident(&self, pages: u32) -> Result<ResidentPages, Errno> {
        let mut pieces: [ArenaPages; 8] = [ArenaPages::new(0, 0); 8];
        let mut count = 0;
        let (range, hole) = {
            let inner = &mut *self.inner.lock();
            if let Some(found) = inner.resident.take(pages) {
                inner.took_resident(found);
                return Ok(ResidentPages { pages: found, cost_ns: 0 });
            }
            let (range, hole) = match Self::grow_resident(inner, pages) {
                Some(grown) => grown,
                None => {
                    let range = self.nonresident(inner, pages)?;
                    (range, range)
                }
            };
            let mut missing = hole.len();
            while missing > 0
                && uffd::can_move_pages()
                && count < pieces.len()
                && inner.resident.longest() >= GATHER_PAGES.min(missing)
            {
                let fits = inner.resident.take(missing);
                let Some(piece) = fits.or_else(|| inner.resident.take_longest(missing)) else { break };
                inner.took_resident(piece);
                missing -= piece.len();
                pieces[count] = piece;
                count += 1;
            }
            (range, hole)
        };
        let moved_pages: u32 = pieces[..count].iter().map(|piece| piece.len()).sum();
        let fill_ns = i64::from(hole.len() - moved_pages) * POLICY.costs.get(Cost::FillPage);
        let cost_ns = POLICY.costs.moves_ns(count, moved_pages as usize) + fill_ns;
        let mut filled = hole.start;
        for piece in &pieces[..count] {
            // SAFETY: both ranges were taken from the free lists above and are used by this call alone.
            let placed = unsafe {
                self.uffd().move_pages(self.address(filled), self.address(piece.start), piece.len_bytes())
            };
            let moved = (placed.done_bytes / PAGE_BYTES) as u32;
            counters::add(Counter::MovedPages, moved as usize);
            filled += moved;
            self.give_nonresident(ArenaPages::new(piece.start, piece.start + moved));
            self.give_resident(ArenaPages::new(piece.start + moved, piece.end));
        }
        loop {
            let rest = ArenaPages::new(filled, hole.end);
            let (done_bytes, errno) =
                match self.fill_zeroes(self.uffd(), self.address(rest.start), rest.len_bytes()) {
                    Ok(()) => return Ok(ResidentPages { pages: range, cost_ns }),
                    Err(stopped) => stopped,
                };
            let present = rest.start + (done_bytes / PAGE_BYTES) as u32;
            if errno == Errno::EEXIST {
                // Present already: locked memory is populated when it is committed.
                filled = present + 1;
                continue;
            }
            self.give_resident(ArenaPages::new(range.start, present));
            self.give_nonresident(ArenaPages::new(present, hole.end));
            self.give_resident(ArenaPages::new(hole.end, range.end));
            return Err(errno);
        }
    }

    /// Gives present pages back to the reservoir.
    pub fn give_resident(&self, pages: ArenaPages) {
        if pages.is_empty() || is_outside() {
            return;
        }
        let max_bytes = limits::max_reservoir_bytes();
        {
            let inner = &mut *self.inner.lock();
            inner.put_resident(pages);
            // Trim to seven eighths at once, so that a full reservoir does not trim on every call.
            if inner.resident.pages() * PAGE_BYTES > max_bytes {
                while inner.resident.pages() * PAGE_BYTES > max_bytes / 8 * 7 {
                    let Some(extent) = inner.resident.take_longest(STEP_PAGES) else { break };
                    inner.took_resident(extent);
                    if !self.discard(inner.reservation, extent) {
                        // Locked memory: keep the extent, and end the loop, which would find it again.
                        inner.put_resident(extent);
                        break;
                    }
                    inner.nonresident.insert(extent);
                }
            }
        }
        bell::request_upkeep();
    }

    /// Quarantines present pages that the kernel may still refer to.
    pub(crate) fn quarantine(&self, pages: ArenaPages) {
        if pages.is_empty() || is_outside() {
            return;
        }
        counters::add(Counter::DroppedBytes, pages.len_bytes());
        let is_full = {
            let inner = &mut *self.inner.lock();
            inner.quarantined.insert(pages);
            inner.quarantined.pages() >= MAX_QUARANTINED_PAGES
        };
        if is_full {
            while self.drop_quarantined() {}
        } else {
            bell::request_upkeep();
        }
    }

    /// Whether quarantined pages wait to be given back to the kernel.
    pub(crate) fn has_quarantined(&self) -> bool {
        self.inner.lock().quarantined.pages() > 0
    }

    /// Makes some quarantined pages nonresident; returns whether more are left. To be called in a `Section`, or by
    /// the handler thread in a round of upkeep: a fork must not find pages held by a stack frame.
    pub(crate) fn drop_quarantined(&self) -> bool {
        let (extent, reservation) = {
            let inner = &mut *self.inner.lock();
            let Some(extent) = inner.quarantined.take_longest(STEP_PAGES) else { return false };
            (extent, inner.reservation)
        };
        if self.discard(reservation, extent) {
            self.give_nonresident(extent);
        } else {
            // Locked memory: these pages are never used again.
            counters::add_fallback("locked memory cannot be given back");
        }
        true
    }

    /// Gives free pages back to the kernel; false: the kernel refused.
    fn discard(&self, reservation: Option<Reservation>, pages: ArenaPages) -> bool {
        // SAFETY: the caller has taken the pages out of the free lists, and no segment uses them.
        let discarded = reservation
            .map(|reservation| unsafe { reservation.discard(self.address(pages.start), pages.len_bytes()) });
        matches!(discarded, Some(Ok(())))
    }

    /// Gives present pages back: long runs to the reservoir, others to the kernel. For the handler thread
    /// in a round of upkeep, with no block's lock held.
    pub(crate) fn give_back(&self, pages: ArenaPages) {
        let reservation = { self.inner.lock().reservation };
        if pages.len() < GATHER_PAGES && self.discard(reservation, pages) {
            self.give_nonresident(pages);
        } else {
            self.give_resident(pages);
        }
    }

    /// Number of resident pages to give back now: half of those that were not needed since the last call.
    pub(crate) fn surplus_pages(&self) -> usize {
        let inner = &mut *self.inner.lock();
        let least = core::mem::replace(&mut inner.min_resident, inner.resident.pages());
        if least <= MIN_SURPLUS_PAGES { least } else { least.div_ceil(2) }
    }

    /// Gives some of `pages` resident pages back to the kernel, short runs, which are of no use to segments, first.
    /// Returns the number of pages left to give back. For the handler thread in a round of upkeep.
    pub(crate) fn trim(&self, pages: usize) -> usize {
        let mut extents: [ArenaPages; TRIM_EXTENTS] = [ArenaPages::new(0, 0); TRIM_EXTENTS];
        let mut count = 0;
        let mut missing = pages.min(STEP_PAGES as usize);
        let mut left = pages - missing;
        let reservation = {
            let inner = &mut *self.inner.lock();
            while missing > 0 && count < extents.len() {
                let longest = |resident: &mut Extents| resident.take_longest(missing as u32);
                let Some(extent) =
                    inner.resident.take_shortest(GATHER_PAGES).or_else(|| longest(&mut inner.resident))
                else {
                    missing = 0;
                    break;
                };
                inner.took_resident(extent);
                missing -= missing.min(extent.len() as usize);
                extents[count] = extent;
                count += 1;
            }
            inner.reservation
        };
        left += missing;
        for extent in &extents[..count] {
            let is_nonresident = self.discard(reservation, *extent);
            let inner = &mut *self.inner.lock();
            if is_nonresident {
                counters::add(Counter::TrimmedBytes, extent.len_bytes());
                inner.nonresident.insert(*extent);
            } else {
                // Locked memory: trimming is of no use while it is.
                inner.put_resident(*extent);
                left = 0;
            }
        }
        left
    }

    /// Makes pages from [`Arena::take_nonresident`] absent again. False if the kernel refuses.
    pub(crate) fn make_absent(&self, pages: ArenaPages) -> bool {
        let reservation = { self.inner.lock().reservation };
        self.discard(reservation, pages)
    }

    /// Gives absent pages back to the arena.
    pub fn give_nonresident(&self, pages: ArenaPages) {
        if !pages.is_empty() && !is_outside() {
            self.inner.lock().nonresident.insert(pages);
        }
    }
}
