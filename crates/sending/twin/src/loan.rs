//! Lends pages to the kernel: protects them, and tracks for how long.
//!
//! From [`lend`] until the loan ends, no page *that the kernel got* changes. Threads may write at any time;
//! the handler then replaces the page by a copy. If that happens between `lend` and the system call, the
//! kernel gets the copy, which is not protected. So the loan is confirmed after the system calls and before
//! the program's call returns: if the unit's generation has changed, the pages are protected again. Earlier
//! writes happen during the call, and whether they are sent is undefined, as for any call.
//!
//! Invariant: each page that the kernel may hold is `PROTECTED`, and either `LENT` or in a unit with a
//! pending loan, so a write replaces the page. `pending loans of a unit = its loans with Until::Completed
//! that were neither settled nor dropped` ([`crate::unit::LocalState`]), since the unit was last freed. Each
//! loan ends once: by [`settle`] if the kernel holds none of its pages any more, or by drop, after which its
//! pages are `LENT` until they are freed. [`crate::send::Loans`] makes that decision for a message.
//!
//! ```text
//! lend: generation g ──► system calls ──► confirm: still g? else protect again ──► call returns
//!                                                                       ──► completed: settle
//! ```

use crate::counters::{COUNTERS, count};
use crate::pages::{self, PAGE_BYTES, PAGES, page_of};
use crate::process::{self, process};
use crate::small;
use crate::status::InactiveReason;
use crate::unit::{Id, Kind, Unit, state};
use core::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst};
use uncopy_sys::errno::Errno;
use uncopy_sys::lock::Critical;
use uncopy_sys::uffd::Uffd;

/// When the kernel releases pages that are lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Unknown: the pages are dropped when they are freed, and never written to.
    Dropped,
    /// At a completion, upon which the caller calls [`settle`].
    Completed,
}

/// Pages that the kernel may be given by reference, and may hold forever once the loan is dropped.
#[derive(Debug)]
#[must_use]
pub struct Loan {
    id: Id,
    /// Life of the unit at the time of the loan.
    life: u32,
    generation: core::sync::atomic::AtomicU32,
    first: u32,
    pages: u32,
    until: Until,
}

/// Identifies the contents of lent bytes, see [`Loan::stamp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    id: Id,
    life: u32,
    generation: u32,
}

impl Stamp {
    /// Returns the stamp as two words.
    #[must_use]
    pub const fn words(self) -> [u64; 2] {
        [(self.id.0 as u64) << 32 | self.life as u64, self.generation as u64]
    }
}

impl Loan {
    /// Returns a stamp that detects changes: two loans of the same bytes have equal stamps only if nobody
    /// wrote to the bytes between the starts of the two loans. Stamps are never reused.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp { id: self.id, life: self.life, generation: self.generation.load(Relaxed) }
    }

    /// Reports that the bytes were copied after all, so that protecting them was of no use.
    pub fn note_copied(&self) {
        let earned = &PAGES.unit(self.id).earned;
        earned.store(earned.load(Relaxed).saturating_sub(self.pages), Relaxed);
    }

    /// Ensures that what was sent stays unchanged. A loan that is kept for a completion must be confirmed
    /// after the system calls and before the program's call returns. Dropping a loan confirms it, too.
    pub fn confirm(&self) {
        // The generation is atomic only so that `confirm_again` can update it through `&self`.
        if PAGES.local(self.id).generation.load(SeqCst) != self.generation.load(Relaxed) {
            self.confirm_again();
        }
    }

    #[cold]
    fn confirm_again(&self) {
        let Some(uffd) = process().uffd_if_started() else { return };
        let _critical = Critical::enter_briefly();
        let (unit, local) = (PAGES.unit(self.id), PAGES.local(self.id));
        let _guard = local.lock.guard();
        if local.tally().0 != self.life || !covers(unit, self.first, self.pages) {
            // The object was freed while being sent.
            return;
        }
        count(&COUNTERS.confirmed_again, 1);
        let _ = protect(uffd, unit, self.first, self.pages, self.until);
        self.generation.store(local.generation.load(SeqCst), Relaxed);
    }

    /// Returns the address and length in bytes of the pages.
    #[must_use]
    pub fn pages(&self) -> (usize, usize) {
        process::bytes_of(self.first, self.pages)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if self.until == Until::Completed {
            self.until = Until::Dropped;
            // Forces `confirm` to protect the pages again, now as `LENT`.
            self.generation.store(!PAGES.local(self.id).generation.load(SeqCst), Relaxed);
            self.confirm();
            PAGES.local(self.id).end_loan(self.life);
        } else {
            self.confirm();
        }
    }
}

/// Ends a loan whose pages the kernel does not hold, because they were released or never passed on.
pub fn settle(loan: Loan) {
    if loan.until == Until::Completed {
        PAGES.local(loan.id).end_loan(loan.life);
    }
    core::mem::forget(loan);
}

fn covers(unit: &Unit, first: u32, pages: u32) -> bool {
    let (start, end) = unit.span();
    matches!(unit.kind(), Kind::Small | Kind::Large) && first >= start && first + pages <= end
}

/// Protects `len` bytes at `address` against writes, so that they may be passed to the kernel by reference; a
/// write then replaces the page. Returns `None` if the bytes must be copied: because they are not within one
/// object (or one pageblock), the pageblock is not full, the object is written to too often, or pages cannot
/// be protected in this process.
pub fn lend(address: usize, len: usize, until: Until) -> Option<Loan> {
    if len == 0 || !pages::contains(address) {
        return None;
    }
    let last = address.checked_add(len - 1).filter(|last| pages::contains(*last))?;
    let first = page_of(address);
    let pages = page_of(last) - first + 1;
    let id = PAGES.unit_at(first)?;
    let (unit, local) = (PAGES.unit(id), PAGES.local(id));
    if !covers(unit, first, pages) {
        return None;
    }
    // Pages that are already protected need no lock. The checks are in the reverse order of the handler's
    // steps.
    let generation = local.generation.load(Acquire);
    let wanted = match until {
        Until::Dropped => state::PROTECTED | state::LENT,
        Until::Completed => state::PROTECTED,
    };
    let is_as_wanted = |page: u32| PAGES.state(page).load(Acquire) & wanted == wanted;
    let are_protected = (first..first + pages).all(is_as_wanted);
    if are_protected && process().uffd().is_some() {
        credit(unit, pages);
        let is_counted = until == Until::Completed;
        let life = if is_counted { local.begin_loan() } else { local.tally().0 };
        // The handler changes the generation before it looks for pending loans.
        if !is_counted || local.generation.load(SeqCst) == generation {
            return Some(Loan { id, life, generation: generation.into(), first, pages, until });
        }
        local.end_loan(life);
    }
    lend_slow(id, first, pages, until)
}

/// Returns the part of these bytes that is worth lending, as address and length. Of a range inside a large
/// object, only whole pages are: other data in the pages at its edges (such as an item's header in
/// memcached's slabs) may be written to at any time, each time causing a fault.
#[must_use]
pub fn worth_lending(address: usize, len: usize) -> (usize, usize) {
    if len == 0 || !pages::contains(address) {
        return (address, 0);
    }
    let is_inside = PAGES.unit_at(page_of(address)).is_some_and(|id| {
        let unit = PAGES.unit(id);
        unit.kind() == Kind::Large && pages::address_of(unit.span().0) != address
    });
    if !is_inside {
        return (address, len);
    }
    let first = address.next_multiple_of(PAGE_BYTES);
    let end = (address + len) / PAGE_BYTES * PAGE_BYTES;
    (first, end.saturating_sub(first))
}

fn credit(unit: &Unit, pages: u32) {
    process().record_lending_cpu();
    // No read-modify-write, which would make threads that send the same object contend for the cache line.
    unit.earned.store(unit.earned.load(Relaxed).saturating_add(pages), Relaxed);
}

#[cold]
fn lend_slow(id: Id, first: u32, pages: u32, until: Until) -> Option<Loan> {
    let (unit, local) = (PAGES.unit(id), PAGES.local(id));
    let refusals = unit.refusals.load(Relaxed);
    if refusals > 0 {
        unit.refusals.store(refusals - 1, Relaxed);
        count(&COUNTERS.backed_off, 1);
        return None;
    }
    if unit.kind() == Kind::Small && small::is_open(unit) {
        count(&COUNTERS.not_full, 1);
        return None;
    }
    let uffd = process().activate()?;
    let _critical = Critical::enter_briefly();
    let _guard = local.lock.guard();
    if !covers(unit, first, pages) || unit.is_unregistered.load(Relaxed) != 0 {
        return None;
    }
    // Counted before the pages are protected, so that the handler treats them as in flight.
    let life = if until == Until::Completed { local.begin_loan() } else { local.tally().0 };
    if let Err(errno) = protect(uffd, unit, first, pages, until) {
        if until == Until::Completed {
            local.end_loan(life);
        }
        process().stop(InactiveReason::NotProtected, errno.0);
        return None;
    }
    credit(unit, pages);
    let generation = local.generation.load(SeqCst).into();
    Some(Loan { id, life, generation, first, pages, until })
}

/// Protects pages of a unit; in a pageblock, all its pages at once. The caller must hold the unit's lock.
fn protect(uffd: Uffd, unit: &Unit, first: u32, pages: u32, until: Until) -> Result<(), Errno> {
    let (start, end) = unit.span();
    let (from, to) = if unit.kind() == Kind::Small { (start, end) } else { (first, first + pages) };
    let is_protected = |page| PAGES.state(page).load(SeqCst) & state::PROTECTED != 0;
    if !(from..to).all(is_protected) {
        let (address, len_bytes) = process::bytes_of(from, to - from);
        uffd.protect(address, len_bytes)?;
        count(&COUNTERS.protections, 1);
        count(&COUNTERS.protected_pages, len_bytes / PAGE_BYTES);
    }
    for page in from..to {
        let is_lent = until == Until::Dropped && (first..first + pages).contains(&page);
        let lent = if is_lent { state::LENT } else { 0 };
        PAGES.state(page).fetch_or(state::PROTECTED | lent, SeqCst);
    }
    Ok(())
}
