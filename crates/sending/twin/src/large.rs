//! Large objects, with pages of their own (ZCopy §3.2.1).

use crate::counters::{COUNTERS, count};
use crate::pages::{PAGE_BYTES, PAGES, address_of};
use crate::process::{self, process};
use crate::replace;
use crate::unit::{Id, Kind, state};
use core::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};
use uncopy_sys::bytes;
use uncopy_sys::lock::Critical;

/// Maximum pages made present before an object is handed out. The rest appears when touched, because so large
/// an object may be used only in part.
const FILL_PAGES: u32 = 512;
/// Maximum pages of a freed run that stays resident. Longer ones, and pages in flight, are dropped.
const KEEP_PAGES: u32 = 4096;

/// Returns an object of `size` bytes, zeroed if `is_zeroed`, at a multiple of `align`; null without memory.
pub(crate) fn allocate(size: usize, align: usize, is_zeroed: bool) -> *mut u8 {
    let pages = size.div_ceil(PAGE_BYTES).max(1);
    let align_pages = (align / PAGE_BYTES).max(1);
    let (Ok(pages), Ok(align_pages)) = (u32::try_from(pages), u32::try_from(align_pages)) else {
        return core::ptr::null_mut();
    };
    let critical = Critical::enter_briefly();
    let run = {
        let _guard = process::pool();
        // SAFETY: `take_run` requires the pool's lock, which the guard holds.
        unsafe { PAGES.take_run(pages, align_pages) }
    };
    let Some(run) = run else { return core::ptr::null_mut() };
    let unit = PAGES.unit(run.id);
    let start = unit.start.load(Relaxed);
    unit.set_kind(Kind::Large);
    let mut are_zeroes = run.is_absent;
    if let Some(uffd) = process().uffd_if_started() {
        let most = pages.min(FILL_PAGES);
        let are_fresh = replace::fill(uffd, start, most);
        are_zeroes |= are_fresh && most == pages;
    }
    drop(critical);
    let object = address_of(start) as *mut u8;
    if is_zeroed && !are_zeroes {
        // SAFETY: the run was just taken and has at least `size` bytes, and the object is not shared yet.
        unsafe { bytes::zero(object, size) };
    }
    object
}

/// Frees a large object.
///
/// # Safety
/// The object must belong to the caller, and must no longer be in use.
pub(crate) unsafe fn deallocate(id: Id) {
    let _critical = Critical::enter_briefly();
    PAGES.unit(id).set_kind(Kind::Vacant);
    release(id);
}

/// Frees the pages of an unused unit. Pages that may be in flight are dropped; others lose their protection.
pub(crate) fn release(id: Id) {
    let (unit, local) = (PAGES.unit(id), PAGES.local(id));
    let (start, end) = unit.span();
    let pages = end - start;
    let guard = local.lock.guard();
    // Pending loans no longer matter, since the pages are dropped if the kernel may hold them.
    let loans = local.tally().1;
    local.end_life();
    local.generation.fetch_add(1, SeqCst);
    let found = (start..end).fold(0, |found, page| found | PAGES.state(page).load(SeqCst));
    let is_in_flight = found & state::LENT != 0 || (loans > 0 && found & state::PROTECTED != 0);
    let is_protected = found & state::PROTECTED != 0;
    let mut resident = pages;
    let mut is_lost = unit.is_unregistered.load(Relaxed) != 0;
    if !is_lost && (is_in_flight || pages > KEEP_PAGES) {
        // SAFETY: the unit has been freed, so the pages' bytes are not needed.
        let is_dropped = unsafe { replace::drop_pages(start, pages) };
        is_lost = !is_dropped && is_in_flight;
        resident = if is_dropped { 0 } else { pages };
    }
    if !is_lost && resident > 0 && is_protected {
        let lifted = process().uffd_if_started().map(|uffd| {
            let (address, len_bytes) = process::bytes_of(start, pages);
            uffd.unprotect(address, len_bytes)
        });
        if lifted.is_some_and(|lifted| lifted.is_ok()) {
            (start..end).for_each(|page| _ = PAGES.state(page).fetch_and(!state::PROTECTED, SeqCst));
            count(&COUNTERS.lifted_pages, pages as usize);
        } else {
            // SAFETY: the unit has been freed, so the pages' bytes are not needed.
            is_lost = !unsafe { replace::drop_pages(start, pages) };
            resident = 0;
        }
    }
    drop(guard);
    if is_lost {
        PAGES.mark_lost(id);
        count(&COUNTERS.lost_pages, pages as usize);
        return;
    }
    let _guard = process::pool();
    // SAFETY: the guard holds the pool's lock. The unit was freed, and its pages are neither in flight nor
    // protected, as ensured above.
    unsafe { PAGES.free_run(id, resident) };
}

/// Shrinks a large object in place. Returns false if it was left unchanged.
///
/// # Safety
/// The object must belong to the caller, and bytes from `size` on must no longer be in use.
pub(crate) unsafe fn shrink(id: Id, size: usize) -> bool {
    let pages = size.div_ceil(PAGE_BYTES).max(1) as u32;
    let unit = PAGES.unit(id);
    if pages >= unit.pages.load(Relaxed) || unit.is_unregistered.load(Relaxed) != 0 {
        return false;
    }
    let _critical = Critical::enter_briefly();
    let rest = {
        // Keeps other threads from using the unit's pages while it shrinks.
        let _unit = PAGES.local(id).lock.guard();
        if PAGES.local(id).tally().1 > 0 {
            // Pending loans are counted per unit, so the unit cannot be split.
            return false;
        }
        PAGES.local(id).generation.fetch_add(1, SeqCst);
        let _guard = process::pool();
        // SAFETY: the guard holds the pool's lock. The caller owns the unit, which is longer than `pages`.
        unsafe { PAGES.split(id, pages) }
    };
    let Some(rest) = rest else { return false };
    PAGES.unit(rest).set_kind(Kind::Vacant);
    release(rest);
    true
}
