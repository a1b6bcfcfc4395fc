//! Units: runs of pages with one purpose. A pageblock of small objects, a large object, or free pages.
//!
//! What belongs to a unit lies in two tables, apart from the pages: [`Unit`], which a forked child inherits, and
//! [`Live`], which is only true of this process and is zero in every child.

use crate::table::Entry;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use uncopy_sys::lock::Lock;

/// What a unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Nothing: the entry waits for a use.
    Vacant = 0,
    /// Free pages.
    Free = 1,
    /// A pageblock of small objects.
    Small = 2,
    /// One large object.
    Large = 3,
    /// Pages that cannot be used again, because the kernel refused to drop what may be in flight.
    Lost = 4,
}

/// Where a pageblock stands for new objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Place {
    /// Nowhere: full, or nearly so.
    Closed = 0,
    /// A thread allocates from it.
    Attached = 1,
    /// Its class knows it as one with free slots.
    Listed = 2,
}

/// The number of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(pub(crate) u32);

impl Id {
    /// As stored in links: 0 is none.
    pub(crate) const fn link(this: Option<Self>) -> u32 {
        match this {
            Some(Self(number)) => number + 1,
            None => 0,
        }
    }

    /// From a link.
    pub(crate) const fn from_link(link: u32) -> Option<Self> {
        if link == 0 { None } else { Some(Self(link - 1)) }
    }
}

/// One unit. All fields may be looked at by anyone; who changes them is said at each.
#[repr(C, align(64))]
pub(crate) struct Unit {
    kind: AtomicU8,
    /// Small: size class.
    pub class: AtomicU8,
    place: AtomicU8,
    /// Pages of it are of a mapping that userfaultfd does not know any more: nothing of it is ever lent.
    pub is_plain: AtomicU8,
    /// First page.
    pub start: AtomicU32,
    /// Pages.
    pub pages: AtomicU32,
    /// Links of the list that the unit is in: of free runs (pool's lock), or of a class (class's lock).
    pub next: AtomicU32,
    pub prev: AtomicU32,
    /// Free: upper bound of the pages that are resident (pool's lock).
    pub resident: AtomicU32,
    /// Small: bytes of an object.
    pub size_bytes: AtomicU32,
    /// Small: objects.
    pub slots: AtomicU32,
    /// Small: objects freed since the pageblock was closed or listed; may be a few off.
    pub freed: AtomicU32,
    /// Small: the word of the bitmap in which a free slot was last found (owner).
    pub hint: AtomicU32,
    /// Pages lent since the last write to a protected page: what protection has earned. A few may get lost.
    pub earned: AtomicU32,
    /// Loans that are refused from here on: the object is written too often.
    pub refusals: AtomicU32,
    /// Power of two of the next such number.
    pub back_off: AtomicU8,
}

const _: () = assert!(size_of::<Unit>() == 64);

// SAFETY: atomics of any value.
unsafe impl Entry for Unit {}

impl Unit {
    /// What it is.
    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        match self.kind.load(SeqCst) {
            1 => Kind::Free,
            2 => Kind::Small,
            3 => Kind::Large,
            4 => Kind::Lost,
            _ => Kind::Vacant,
        }
    }

    pub(crate) fn set_kind(&self, kind: Kind) {
        self.kind.store(kind as u8, SeqCst);
    }

    #[inline]
    pub(crate) fn place(&self) -> Place {
        match self.place.load(SeqCst) {
            1 => Place::Attached,
            2 => Place::Listed,
            _ => Place::Closed,
        }
    }

    pub(crate) fn set_place(&self, place: Place) {
        self.place.store(place as u8, SeqCst);
    }

    /// First page and the one after the last.
    #[inline]
    pub(crate) fn span(&self) -> (u32, u32) {
        let start = self.start.load(Relaxed);
        (start, start + self.pages.load(Relaxed))
    }

    /// Forgets what the last use left.
    pub(crate) fn renew(&self) {
        for word in [&self.freed, &self.hint, &self.earned, &self.refusals] {
            word.store(0, Relaxed);
        }
        self.back_off.store(0, Relaxed);
        self.is_plain.store(0, Relaxed);
        self.set_place(Place::Closed);
    }
}

/// What is only true of this process.
#[repr(C, align(16))]
pub(crate) struct Live {
    /// Guards the states of the unit's pages. Held briefly, never while memory is touched that may be absent.
    pub lock: Lock,
    /// Changes before a page of the unit loses its protection: a loan that sees another number than at its start
    /// cannot be sure of its pages.
    pub generation: AtomicU32,
    /// Lives of the unit so far, and loans of this life that wait for their completion: 32 bits each.
    tally: AtomicU64,
}

const _: () = assert!(size_of::<Live>() == 16);

// SAFETY: atomics; zero bytes are a free lock.
unsafe impl Entry for Live {}

impl Live {
    /// The life, and the loans that wait.
    #[inline]
    pub(crate) fn tally(&self) -> (u32, u32) {
        let tally = self.tally.load(SeqCst);
        ((tally >> 32) as u32, tally as u32)
    }

    /// One more loan that waits; the life it belongs to.
    pub(crate) fn begin_loan(&self) -> u32 {
        (self.tally.fetch_add(1, SeqCst) >> 32) as u32
    }

    /// One less, unless it belongs to an earlier life.
    pub(crate) fn end_loan(&self, life: u32) {
        let _ = self.tally.fetch_update(SeqCst, SeqCst, |tally| {
            ((tally >> 32) as u32 == life && tally as u32 > 0).then(|| tally - 1)
        });
    }

    /// The next life: loans of this one are nobody's business any more.
    pub(crate) fn end_life(&self) {
        let _ = self.tally.fetch_update(SeqCst, SeqCst, |tally| {
            Some(u64::from(((tally >> 32) as u32).wrapping_add(1)) << 32)
        });
    }
}

/// Bits of a page's state. All zero in a child: there nothing is protected, and what may be in flight is replaced by
/// the kernel's own copy-on-write, because no page of a child is exclusive.
pub(crate) mod state {
    /// Write-protected.
    pub(crate) const PROTECTED: u8 = 1;
    /// The kernel may hold it, and nobody will say that it does not.
    pub(crate) const LENT: u8 = 2;
    /// Known to be present.
    pub(crate) const FILLED: u8 = 4;
}
