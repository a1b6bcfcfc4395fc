//! Large objects: pages of their own (ZCopy §3.2.1).

use crate::counters::{COUNTERS, count};
use crate::pages::{PAGE_BYTES, PAGES, address_of};
use crate::process::{self, process};
use crate::replace;
use crate::unit::{Id, Kind, state};
use core::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};
use uncopy_sys::bytes;
use uncopy_sys::lock::Critical;

/// Pages of an object that are put in place before it is handed out; the rest appear when they are touched, because
/// so large an object may be there to be used in part.
const FILL_PAGES: u32 = 512;
/// Freed pages that may be in flight are dropped; others stay for the next object up to here, longer runs do not.
const KEEP_PAGES: u32 = 4096;

/// An object of `size` bytes at a multiple of `align`; null without memory. `is_zeroed`: its bytes are zeroes.
pub(crate) fn allocate(size: usize, align: usize, is_zeroed: bool) -> *mut u8 {
    let pages = size.div_ceil(PAGE_BYTES).max(1);
    let align_pages = (align / PAGE_BYTES).max(1);
    let (Ok(pages), Ok(align_pages)) = (u32::try_from(pages), u32::try_from(align_pages)) else {
        return core::ptr::null_mut();
    };
    let critical = Critical::enter_briefly();
    let run = {
        let _guard = process::pool();
        // SAFETY: under the lock of the pool.
        unsafe { PAGES.take(pages, align_pages) }
    };
    let Some(run) = run else { return core::ptr::null_mut() };
    let unit = PAGES.unit(run.id);
    let start = unit.start.load(Relaxed);
    unit.set_kind(Kind::Large);
    let mut are_zeroes = run.is_absent;
    if let Some(uffd) = process().uffd_so_far() {
        let most = pages.min(FILL_PAGES);
        let are_fresh = replace::fill(uffd, start, most);
        are_zeroes |= are_fresh && most == pages;
    }
    drop(critical);
    let object = address_of(start) as *mut u8;
    if is_zeroed && !are_zeroes {
        // SAFETY: a fresh object of at least so many bytes.
        unsafe { bytes::zero(object, size) };
    }
    object
}

/// Gives a large object back.
///
/// # Safety
/// It is the caller's, and nobody uses it any more.
pub(crate) unsafe fn deallocate(id: Id) {
    let _critical = Critical::enter_briefly();
    PAGES.unit(id).set_kind(Kind::Vacant);
    release(id);
}

/// Gives the pages of a unit back that nobody uses: those that may be in flight are dropped, the protection of others
/// is lifted.
pub(crate) fn release(id: Id) {
    let (unit, live) = (PAGES.unit(id), PAGES.live(id));
    let (start, end) = unit.span();
    let pages = end - start;
    let guard = live.lock.guard();
    // Nobody has a say in these pages any more, whatever becomes of its loan.
    let loans = live.tally().1;
    live.end_life();
    live.generation.fetch_add(1, SeqCst);
    let found = (start..end).fold(0, |found, page| found | PAGES.state(page).load(SeqCst));
    let is_in_flight = found & state::LENT != 0 || (loans > 0 && found & state::PROTECTED != 0);
    let is_protected = found & state::PROTECTED != 0;
    let mut resident = pages;
    let mut is_lost = unit.is_plain.load(Relaxed) != 0;
    if !is_lost && (is_in_flight || pages > KEEP_PAGES) {
        // SAFETY: nobody needs the bytes.
        let is_dropped = unsafe { replace::drop_pages(start, pages) };
        is_lost = !is_dropped && is_in_flight;
        resident = if is_dropped { 0 } else { pages };
    }
    if !is_lost && resident > 0 && is_protected {
        let lifted = process().uffd_so_far().map(|uffd| {
            let (address, len_bytes) = process::bytes_of(start, pages);
            uffd.unprotect(address, len_bytes)
        });
        if lifted.is_some_and(|lifted| lifted.is_ok()) {
            (start..end).for_each(|page| _ = PAGES.state(page).fetch_and(!state::PROTECTED, SeqCst));
            count(&COUNTERS.lifted_pages, pages as usize);
        } else {
            // SAFETY: nobody needs the bytes.
            is_lost = !unsafe { replace::drop_pages(start, pages) };
            resident = 0;
        }
    }
    drop(guard);
    if is_lost {
        PAGES.lose(id);
        count(&COUNTERS.lost_pages, pages as usize);
        return;
    }
    let _guard = process::pool();
    // SAFETY: under the lock of the pool; nobody uses the pages, and none is in flight or protected.
    unsafe { PAGES.give(id, resident) };
}

/// Makes a large object shorter in place. False if it stays as it is.
///
/// # Safety
/// It is the caller's, and nobody uses the bytes behind `size` any more.
pub(crate) unsafe fn shorten(id: Id, size: usize) -> bool {
    let pages = size.div_ceil(PAGE_BYTES).max(1) as u32;
    let unit = PAGES.unit(id);
    if pages >= unit.pages.load(Relaxed) || unit.is_plain.load(Relaxed) != 0 {
        return false;
    }
    let _critical = Critical::enter_briefly();
    let rest = {
        // Whoever is at work on the unit's pages must not see it become shorter.
        let _unit = PAGES.live(id).lock.guard();
        if PAGES.live(id).tally().1 > 0 {
            // Loans that wait are counted with the unit.
            return false;
        }
        PAGES.live(id).generation.fetch_add(1, SeqCst);
        let _guard = process::pool();
        // SAFETY: under the lock of the pool; the caller's promise.
        unsafe { PAGES.split(id, pages) }
    };
    let Some(rest) = rest else { return false };
    PAGES.unit(rest).set_kind(Kind::Vacant);
    release(rest);
    true
}
