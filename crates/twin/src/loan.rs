//! Lending pages to the kernel: protecting them, and knowing for how long.
//!
//! What a loan promises: from [`lend`] until its end, no byte of its pages *that the kernel got* changes. A thread may
//! write to them at any time; the handler then puts a copy in the place of the page. If that happens between `lend`
//! and the system call, the kernel gets the copy, which is not protected. So the loan is confirmed after the system
//! calls and before the program's call returns: where the unit's generation has changed, the pages are protected
//! once more. Until then a write is one that happens during the call, and may be seen or not, as ever.
//!
//! Invariant, of every page that the kernel may hold: it is `PROTECTED`, and it is `LENT` or a loan of its unit waits for a
//! completion; so a write replaces it. `waiting loans of a unit = loans of its life that are Until::Completed and neither
//! settled nor dropped` ([`crate::unit::Live`]). Each loan ends once: [`settle`] where the kernel has no page of it any more,
//! or drop, after which its pages are `LENT` until they are released. Whoever sends a message has that decided by
//! [`crate::send::Loans`].
//!
//! ```text
//! lend: generation g ──► system calls ──► confirm: still g? else protect again ──► program goes on
//!                                                                       ──► completed: settle
//! ```

use crate::counters::{COUNTERS, count};
use crate::pages::{self, PAGE_BYTES, PAGES, page_of};
use crate::process::{self, process};
use crate::small;
use crate::status::Why;
use crate::unit::{Id, Kind, Unit, state};
use core::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst};
use uncopy_sys::errno::Errno;
use uncopy_sys::lock::Critical;
use uncopy_sys::uffd::Uffd;

/// When the kernel is done with pages that are lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Nobody says when: the pages are dropped when they are released, and never written.
    Dropped,
    /// A completion tells: [`settle`] is called then.
    Completed,
}

/// Pages that the kernel may be given by reference, see [`lend`]. Dropping it says that the kernel may hold them for
/// good.
#[derive(Debug)]
#[must_use]
pub struct Loan {
    id: Id,
    /// Life of the unit that the loan belongs to.
    life: u32,
    generation: core::sync::atomic::AtomicU32,
    first: u32,
    pages: u32,
    until: Until,
}

/// See [`Loan::stamp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    id: Id,
    life: u32,
    generation: u32,
}

impl Stamp {
    /// As words.
    #[must_use]
    pub const fn words(self) -> [u64; 2] {
        [(self.id.0 as u64) << 32 | self.life as u64, self.generation as u64]
    }
}

impl Loan {
    /// What tells whether bytes have changed: if two loans of the same bytes have the same stamp, nobody has written there from the
    /// first one's beginning to the second one's. A stamp from before a write never comes again.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp { id: self.id, life: self.life, generation: self.generation.load(Relaxed) }
    }

    /// The bytes had to be copied all the same: protecting them has earned nothing.
    pub fn forfeit(&self) {
        let earned = &PAGES.unit(self.id).earned;
        earned.store(earned.load(Relaxed).saturating_sub(self.pages), Relaxed);
    }

    /// Whether what was sent stays as it was: to be called after the system calls and before the program's call
    /// returns, if the loan is kept for a completion. Dropping a loan does it too.
    pub fn confirm(&self) {
        // Written once, by whoever makes the loan; the atomic is for `&self`.
        if PAGES.live(self.id).generation.load(SeqCst) != self.generation.load(Relaxed) {
            self.confirm_again();
        }
    }

    #[cold]
    fn confirm_again(&self) {
        let Some(uffd) = process().uffd_so_far() else { return };
        let _critical = Critical::enter_briefly();
        let (unit, live) = (PAGES.unit(self.id), PAGES.live(self.id));
        let _guard = live.lock.guard();
        if live.tally().0 != self.life || !covers(unit, self.first, self.pages) {
            // The object was freed while it was being sent.
            return;
        }
        count(&COUNTERS.confirmed_again, 1);
        let _ = protect(uffd, unit, self.first, self.pages, self.until);
        self.generation.store(live.generation.load(SeqCst), Relaxed);
    }

    /// Address and length of the pages, bytes.
    #[must_use]
    pub fn pages(&self) -> (usize, usize) {
        process::bytes_of(self.first, self.pages)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if self.until == Until::Completed {
            self.until = Until::Dropped;
            // Pages that nobody will say are free: as if they had been lent that way.
            self.generation.store(!PAGES.live(self.id).generation.load(SeqCst), Relaxed);
            self.confirm();
            PAGES.live(self.id).end_loan(self.life);
        } else {
            self.confirm();
        }
    }
}

/// The kernel does not hold the pages of this loan: it has completed, or never got them.
pub fn settle(loan: Loan) {
    if loan.until == Until::Completed {
        PAGES.live(loan.id).end_loan(loan.life);
    }
    core::mem::forget(loan);
}

fn covers(unit: &Unit, first: u32, pages: u32) -> bool {
    let (start, end) = unit.span();
    matches!(unit.kind(), Kind::Small | Kind::Large) && first >= start && first + pages <= end
}

/// Whether `len` bytes at `address` may be handed to the kernel by reference now; then they are protected against
/// writes, and a write replaces the page. `None`: copy them, because they are not within one object (or one
/// pageblock), the pageblock is not full, the object is written too often, or pages are not protected in this process.
pub fn lend(address: usize, len: usize, until: Until) -> Option<Loan> {
    if len == 0 || !pages::contains(address) {
        return None;
    }
    let last = address.checked_add(len - 1).filter(|last| pages::contains(*last))?;
    let first = page_of(address);
    let pages = page_of(last) - first + 1;
    let id = PAGES.unit_at(first)?;
    let (unit, live) = (PAGES.unit(id), PAGES.live(id));
    if !covers(unit, first, pages) {
        return None;
    }
    // What an earlier call protected needs no lock: in the order of the handler, reversed.
    let generation = live.generation.load(Acquire);
    let wanted = match until {
        Until::Dropped => state::PROTECTED | state::LENT,
        Until::Completed => state::PROTECTED,
    };
    let is_as_wanted = |page: u32| PAGES.state(page).load(Acquire) & wanted == wanted;
    let are_protected = (first..first + pages).all(is_as_wanted);
    if are_protected && process().uffd().is_some() {
        earn(unit, pages);
        let is_counted = until == Until::Completed;
        let life = if is_counted { live.begin_loan() } else { live.tally().0 };
        // The handler changes the generation before it asks for loans that wait.
        if !is_counted || live.generation.load(SeqCst) == generation {
            return Some(Loan { id, life, generation: generation.into(), first, pages, until });
        }
        live.end_loan(life);
    }
    lend_anew(id, first, pages, until)
}

/// The bytes of these that are worth lending, as address and length: of the inside of a large object, which begins
/// elsewhere than the object does, its whole pages only. What else lies in the pages at the edges (an item's header in
/// memcached's slabs) may be written at any time, and would be written to protected pages.
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

fn earn(unit: &Unit, pages: u32) {
    process().note_lender();
    // Without a read-modify-write: threads that send the same object would share the line for nothing else.
    unit.earned.store(unit.earned.load(Relaxed).saturating_add(pages), Relaxed);
}

#[cold]
fn lend_anew(id: Id, first: u32, pages: u32, until: Until) -> Option<Loan> {
    let (unit, live) = (PAGES.unit(id), PAGES.live(id));
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
    let _guard = live.lock.guard();
    if !covers(unit, first, pages) || unit.is_plain.load(Relaxed) != 0 {
        return None;
    }
    // Before the pages are protected: it makes the handler take them for pages in flight.
    let life = if until == Until::Completed { live.begin_loan() } else { live.tally().0 };
    if let Err(errno) = protect(uffd, unit, first, pages, until) {
        if until == Until::Completed {
            live.end_loan(life);
        }
        process().stop(Why::NotProtected, errno.0);
        return None;
    }
    earn(unit, pages);
    let generation = live.generation.load(SeqCst).into();
    Some(Loan { id, life, generation, first, pages, until })
}

/// Protects pages of a unit, and of a pageblock all of them in one go. Under the unit's lock.
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
