//! Fills absent pages, and replaces pages that may be in flight by copies.
//!
//! ```text
//! protected page, in flight ──► bytes copied to a buffer ──► page dropped (the kernel keeps the old one for the peer)
//!                                                               │  threads that touch it now wait
//!                                                               ▼
//!                                                  a new page with the same bytes, not protected
//! ```
//!
//! If the kernel refuses a step, another way to the same result is tried; only if all fail does the writer
//! wait.

use crate::counters::{COUNTERS, count};
use crate::pages::{PAGE_BYTES, PAGES, address_of, range};
use crate::process::{BATCH_PAGES, bytes_of, zeroes};
use crate::unit::{Unit, state};
use core::sync::atomic::Ordering::Relaxed;
use uncopy_sys::errno::Errno;
use uncopy_sys::uffd::Uffd;
use uncopy_sys::{bytes, mem, thread};

/// Result of replacing pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replaced {
    /// Replaced by new pages with the same bytes.
    Done,
    /// Replaced by a mapping with the same bytes that is not registered with userfaultfd.
    Unregistered,
    /// Unchanged, because the kernel refused.
    Refused,
}

/// Makes pages that are not known to be present appear as zeroes, in batches. Returns true if all of them are
/// new. Pages for which this fails stay absent, and are served by the handler.
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
        let max_pages = (end - page).min(BATCH_PAGES);
        let run = (1..max_pages).find(|more| PAGES.is_filled(page + more)).unwrap_or(max_pages);
        let (address, len_bytes) = bytes_of(page, run);
        // SAFETY: `zeroes()` is readable for BATCH_PAGES pages and never written to; `run` is at most that,
        // and the destination is the allocator's own.
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

/// Replaces pages by copies, so that the pages the kernel holds are never written to.
///
/// # Safety
/// The caller must hold the unit's lock and `Process::replacing`. No thread may be able to write to the pages,
/// and in the handler thread they must be present. `scratch` must have `pages` pages that nothing else uses.
pub(crate) unsafe fn replace(uffd: Uffd, unit: &Unit, first: u32, pages: u32, scratch: usize) -> Replaced {
    let (address, len_bytes) = bytes_of(first, pages);
    // SAFETY: the source belongs to the allocator and the handler fills absent pages. The caller guarantees
    // that it cannot change, and that `scratch` is writable, as long, and otherwise unused.
    unsafe { bytes::copy(scratch as *mut u8, address as *const u8, len_bytes) };
    // SAFETY: discarding loses the pages' bytes, which `scratch` holds a copy of.
    let replaced = match unsafe { range().discard(address, len_bytes) } {
        Ok(()) => restore(uffd, address, scratch, len_bytes),
        Err(_) if replace_mapping(uffd, address, scratch, len_bytes).is_ok() => Replaced::Unregistered,
        Err(_) => Replaced::Refused,
    };
    update_states(unit, first, pages, replaced);
    replaced
}

/// Replaces pages like [`replace`], but without an absence in between. Permanently uses another mapping.
///
/// # Safety
/// The same as for [`replace`], except that `Process::replacing` is not needed.
pub(crate) unsafe fn replace_at_once(uffd: Uffd, unit: &Unit, first: u32, pages: u32) -> Replaced {
    let (address, len_bytes) = bytes_of(first, pages);
    let replaced = match replace_mapping(uffd, address, address, len_bytes) {
        Ok(()) => Replaced::Unregistered,
        Err(_) => Replaced::Refused,
    };
    update_states(unit, first, pages, replaced);
    replaced
}

fn update_states(unit: &Unit, first: u32, pages: u32, replaced: Replaced) {
    match replaced {
        Replaced::Done => count(&COUNTERS.replaced_pages, pages as usize),
        Replaced::Unregistered => {
            unit.is_unregistered.store(1, Relaxed);
            count(&COUNTERS.plain_pages, pages as usize);
            count(&COUNTERS.replaced_pages, pages as usize);
        }
        Replaced::Refused => return,
    }
    (first..first + pages).for_each(|page| PAGES.state(page).store(state::FILLED, Relaxed));
}

/// Restores bytes whose pages were just dropped. Retries forever, because the buffer has the only copy.
fn restore(uffd: Uffd, address: usize, scratch: usize, len_bytes: usize) -> Replaced {
    let mut done = 0;
    loop {
        // SAFETY: the buffer is readable for `len_bytes` and not written to meanwhile; the destination is the
        // allocator's own and absent.
        done += unsafe { uffd.copy(address + done, scratch + done, len_bytes - done) }.done_bytes;
        if done < len_bytes {
            // SAFETY: both ranges are private memory of the allocator that may be moved; nothing else uses
            // the buffer. Moving its pages needs no new memory.
            done += unsafe { uffd.move_pages(address + done, scratch + done, len_bytes - done) }.done_bytes;
        }
        if done >= len_bytes {
            return Replaced::Done;
        }
        if replace_mapping(uffd, address + done, scratch + done, len_bytes - done).is_ok() {
            return Replaced::Unregistered;
        }
        thread::pause();
    }
}

/// Replaces an absent page by a mapping with the bytes at `source`. Returns false if the kernel refuses.
pub(crate) fn replace_mapping_of_page(uffd: Uffd, page: u32, source: usize) -> bool {
    let is_done = replace_mapping(uffd, address_of(page), source, PAGE_BYTES).is_ok();
    if is_done && let Some(id) = PAGES.unit_at(page) {
        update_states(PAGES.unit(id), page, 1, Replaced::Unregistered);
    }
    is_done
}

/// Atomically replaces pages by a new mapping with the bytes at `source`.
fn replace_mapping(uffd: Uffd, address: usize, source: usize, len_bytes: usize) -> Result<(), Errno> {
    // SAFETY: the range belongs to the allocator, and nothing else uses the new mapping of `len_bytes` until
    // it takes the range's place. The caller guarantees `len_bytes` readable bytes at `source`.
    unsafe {
        mem::replace(address, len_bytes, |made| {
            bytes::copy(made as *mut u8, source as *const u8, len_bytes);
        })?;
    }
    // Wakes threads that wait for a page of the old mapping.
    uffd.wake(address, len_bytes);
    Ok(())
}

/// Drops pages that may be in flight. Returns false if the kernel refuses.
///
/// # Safety
/// The pages' bytes must not be needed any more.
pub(crate) unsafe fn drop_pages(first: u32, pages: u32) -> bool {
    let (address, len_bytes) = (address_of(first), pages as usize * PAGE_BYTES);
    // SAFETY: the pages belong to the allocator, and the caller guarantees that their bytes are not needed.
    let is_dropped = unsafe { range().discard(address, len_bytes) }.is_ok();
    if is_dropped {
        (first..first + pages).for_each(|page| PAGES.state(page).store(0, Relaxed));
        count(&COUNTERS.dropped_pages, pages as usize);
    }
    is_dropped
}
