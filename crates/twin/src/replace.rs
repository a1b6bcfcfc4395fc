//! Putting pages in place: fresh ones, and copies of pages that may be in flight.
//!
//! ```text
//! protected page, in flight ──► its bytes copied aside ──► dropped (the kernel keeps the old page for the reader)
//!                                                               │  whoever touches it now waits
//!                                                               ▼
//!                                                  a new page with these bytes, not protected
//! ```
//!
//! Where the kernel refuses a step there is another way to the same end; only if all are refused does the writer wait.

use crate::counters::{COUNTERS, count};
use crate::pages::{PAGE_BYTES, PAGES, address_of, range};
use crate::process::{BATCH_PAGES, bytes_of, zeroes};
use crate::unit::{Unit, state};
use core::sync::atomic::Ordering::Relaxed;
use uncopy_sys::errno::Errno;
use uncopy_sys::uffd::Uffd;
use uncopy_sys::{bytes, mem, thread};

/// What became of pages that were to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replaced {
    /// There are new pages with the same bytes.
    Done,
    /// The same, but userfaultfd does not know them any more.
    Plain,
    /// Nothing has changed.
    Refused,
}

/// Puts fresh pages of zeroes where no page is known to be, up to a batch at a time; whether all of them are fresh.
/// What the kernel refuses stays absent: the handler serves it.
pub(crate) fn fill(uffd: Uffd, first: u32, pages: u32) -> bool {
    let end = first + pages;
    let mut are_fresh = true;
    let mut page = first;
    while page < end {
        if PAGES.is_filled(page) {
            are_fresh = false;
            page += 1;
            continue;
        }
        let most = (end - page).min(BATCH_PAGES);
        let run = (1..most).find(|more| PAGES.is_filled(page + more)).unwrap_or(most);
        let (address, len_bytes) = bytes_of(page, run);
        // SAFETY: the zeroes are readable for a batch, without a fault of ours.
        let placed = unsafe { uffd.copy(address, zeroes(), len_bytes) };
        let done = (placed.done_bytes / PAGE_BYTES) as u32;
        (page..page + done).for_each(|page| _ = PAGES.state(page).fetch_or(state::FILLED, Relaxed));
        count(&COUNTERS.filled_pages, done as usize);
        page += done;
        match placed.error {
            None => {}
            Some(Errno::EEXIST) => {
                are_fresh = false;
                PAGES.state(page).fetch_or(state::FILLED, Relaxed);
                page += 1;
            }
            Some(_) => return false,
        }
    }
    are_fresh
}

/// Replaces pages by copies of themselves, so that what the kernel holds is never written.
///
/// # Safety
/// The caller holds the lock of the unit and the right to let pages vanish; `room` has as many pages and is nobody
/// else's; no thread can write to the pages.
pub(crate) unsafe fn replace(uffd: Uffd, unit: &Unit, first: u32, pages: u32, room: usize) -> Replaced {
    let (address, len_bytes) = bytes_of(first, pages);
    // SAFETY: the caller holds the unit's lock, so its pages are present; `room` is the caller's alone and as
    // long.
    unsafe { bytes::copy(room as *mut u8, address as *const u8, len_bytes) };
    // SAFETY: the bytes are kept in the room.
    let replaced = match unsafe { range().discard(address, len_bytes) } {
        Ok(()) => put_back(uffd, address, room, len_bytes),
        Err(_) if map_over(uffd, address, room, len_bytes).is_ok() => Replaced::Plain,
        Err(_) => Replaced::Refused,
    };
    settle_states(unit, first, pages, replaced);
    replaced
}

/// The same without a moment in which the pages are absent: at the price of a mapping of their own, for good.
///
/// # Safety
/// As for [`replace`], without the right to let pages vanish.
pub(crate) unsafe fn replace_at_once(uffd: Uffd, unit: &Unit, first: u32, pages: u32) -> Replaced {
    let (address, len_bytes) = bytes_of(first, pages);
    let replaced = match map_over(uffd, address, address, len_bytes) {
        Ok(()) => Replaced::Plain,
        Err(_) => Replaced::Refused,
    };
    settle_states(unit, first, pages, replaced);
    replaced
}

fn settle_states(unit: &Unit, first: u32, pages: u32, replaced: Replaced) {
    match replaced {
        Replaced::Done => count(&COUNTERS.replaced_pages, pages as usize),
        Replaced::Plain => {
            unit.is_plain.store(1, Relaxed);
            count(&COUNTERS.plain_pages, pages as usize);
            count(&COUNTERS.replaced_pages, pages as usize);
        }
        Replaced::Refused => return,
    }
    (first..first + pages).for_each(|page| PAGES.state(page).store(state::FILLED, Relaxed));
}

/// Puts bytes where their pages were just dropped. They are nowhere else, so this does not give up.
fn put_back(uffd: Uffd, address: usize, room: usize, len_bytes: usize) -> Replaced {
    let mut done = 0;
    loop {
        // SAFETY: the room is readable without a fault of ours.
        done += unsafe { uffd.copy(address + done, room + done, len_bytes - done) }.done_bytes;
        if done < len_bytes {
            // Takes no memory: the room's pages go there.
            // SAFETY: both are pages of ours that may be rearranged.
            done += unsafe { uffd.move_pages(address + done, room + done, len_bytes - done) }.done_bytes;
        }
        if done >= len_bytes {
            return Replaced::Done;
        }
        if map_over(uffd, address + done, room + done, len_bytes - done).is_ok() {
            return Replaced::Plain;
        }
        thread::pause();
    }
}

/// Puts a mapping with these bytes where a page is absent; false if that is refused too.
pub(crate) fn map_over_page(uffd: Uffd, page: u32, source: usize) -> bool {
    let is_done = map_over(uffd, address_of(page), source, PAGE_BYTES).is_ok();
    if is_done && let Some(id) = PAGES.unit_at(page) {
        settle_states(PAGES.unit(id), page, 1, Replaced::Plain);
    }
    is_done
}

/// Puts a new mapping with these bytes in the place of pages, at once.
fn map_over(uffd: Uffd, address: usize, source: usize, len_bytes: usize) -> Result<(), Errno> {
    // SAFETY: pages of ours; the new mapping is ours until it takes their place.
    unsafe {
        mem::replace(address, len_bytes, |made| {
            bytes::copy(made as *mut u8, source as *const u8, len_bytes);
        })?;
    }
    // Whoever waits does so for pages of the mapping that is gone.
    uffd.wake(address, len_bytes);
    Ok(())
}

/// Gives pages that may be in flight back to the kernel. False if it refuses.
///
/// # Safety
/// Nobody needs the bytes.
pub(crate) unsafe fn drop_pages(first: u32, pages: u32) -> bool {
    let (address, len_bytes) = (address_of(first), pages as usize * PAGE_BYTES);
    // SAFETY: pages of ours whose bytes nobody needs.
    let is_dropped = unsafe { range().discard(address, len_bytes) }.is_ok();
    if is_dropped {
        (first..first + pages).for_each(|page| PAGES.state(page).store(0, Relaxed));
        count(&COUNTERS.dropped_pages, pages as usize);
    }
    is_dropped
}
