//! Units: runs of pages used as a pageblock of small objects, as a large object, or free.
//!
//! Units are described in two tables apart from the pages: [`Unit`], which forked children inherit, and
//! [`LocalState`], which holds state of this process only and reads as zero in every child.

use crate::table::Entry;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use uncopy_sys::lock::Lock;

/// Purpose of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// No unit: an unused table entry.
    Vacant = 0,
    Free = 1,
    /// A pageblock of small objects.
    Small = 2,
    Large = 3,
    /// Pages that cannot be reused, because they may be in flight and the kernel refused to drop them.
    Lost = 4,
}

/// Where a pageblock stands in the allocation of new objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Availability {
    /// Full or nearly so: not available.
    Closed = 0,
    /// Allocated from by one thread.
    Attached = 1,
    /// In its class's list of pageblocks with free slots.
    Listed = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(pub(crate) u32);

impl Id {
    /// Encodes an optional index for storage: 0 is `None`.
    pub(crate) const fn encode(this: Option<Self>) -> u32 {
        match this {
            Some(Self(number)) => number + 1,
            None => 0,
        }
    }

    /// Decodes a stored index.
    pub(crate) const fn decode(encoded: u32) -> Option<Self> {
        if encoded == 0 { None } else { Some(Self(encoded - 1)) }
    }
}

/// One unit. All threads may read all fields; each field says who may change it, if not everyone.
#[repr(C, align(64))]
pub(crate) struct Unit {
    kind: AtomicU8,
    pub class: AtomicU8,
    availability: AtomicU8,
    /// Nonzero if some pages are in a mapping unknown to userfaultfd; such a unit is never lent.
    pub is_unregistered: AtomicU8,
    pub start: AtomicU32,
    pub pages: AtomicU32,
    /// Links of the list that contains the unit: of free runs (pool's lock), or of a class (class's lock).
    pub next: AtomicU32,
    pub prev: AtomicU32,
    /// Free: upper bound of the resident pages (pool's lock).
    pub resident: AtomicU32,
    /// Small: object size in bytes.
    pub size_bytes: AtomicU32,
    /// Small: number of objects.
    pub slots: AtomicU32,
    /// Small: objects freed since the pageblock was closed or listed, approximately.
    pub freed: AtomicU32,
    /// Small: index of the bitmap word in which a free slot was last found (attached thread).
    pub hint: AtomicU32,
    /// Pages lent since the last write to a protected page, approximately: the benefit of protection.
    pub earned: AtomicU32,
    /// Number of further loans to refuse, because the object is written to too often.
    pub refusals: AtomicU32,
    /// Base-2 logarithm of the next such number.
    pub back_off: AtomicU8,
}

const _: () = assert!(size_of::<Unit>() == 64);

// SAFETY: all fields are atomic integers: all-zero bytes are valid, and shared references allow every change.
unsafe impl Entry for Unit {}

impl Unit {
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
    pub(crate) fn availability(&self) -> Availability {
        match self.availability.load(SeqCst) {
            1 => Availability::Attached,
            2 => Availability::Listed,
            _ => Availability::Closed,
        }
    }

    pub(crate) fn set_availability(&self, availability: Availability) {
        self.availability.store(availability as u8, SeqCst);
    }

    /// Returns the first page and the page after the last.
    #[inline]
    pub(crate) fn span(&self) -> (u32, u32) {
        let start = self.start.load(Relaxed);
        (start, start + self.pages.load(Relaxed))
    }

    /// Resets the state left by the entry's last use.
    pub(crate) fn renew(&self) {
        for word in [&self.freed, &self.hint, &self.earned, &self.refusals] {
            word.store(0, Relaxed);
        }
        self.back_off.store(0, Relaxed);
        self.is_unregistered.store(0, Relaxed);
        self.set_availability(Availability::Closed);
    }
}

/// State of a unit that is valid in this process only.
#[repr(C, align(16))]
pub(crate) struct LocalState {
    /// Guards the states of the unit's pages. Never held while touching memory that may be absent.
    pub lock: Lock,
    /// Changes before a page loses its protection; a loan with another generation cannot rely on its pages.
    pub generation: AtomicU32,
    /// Upper 32 bits: number of lives so far. Lower 32 bits: pending loans of this life.
    tally: AtomicU64,
}

const _: () = assert!(size_of::<LocalState>() == 16);

// SAFETY: all fields are atomic integers or a lock, for which all-zero bytes are valid (an unlocked lock);
// shared references allow every change.
unsafe impl Entry for LocalState {}

impl LocalState {
    /// Returns the life and the number of pending loans.
    #[inline]
    pub(crate) fn tally(&self) -> (u32, u32) {
        let tally = self.tally.load(SeqCst);
        ((tally >> 32) as u32, tally as u32)
    }

    /// Adds a pending loan and returns the life it belongs to.
    pub(crate) fn begin_loan(&self) -> u32 {
        (self.tally.fetch_add(1, SeqCst) >> 32) as u32
    }

    /// Removes a pending loan, unless it belongs to an earlier life.
    pub(crate) fn end_loan(&self, life: u32) {
        let _ = self.tally.fetch_update(SeqCst, SeqCst, |tally| {
            ((tally >> 32) as u32 == life && tally as u32 > 0).then(|| tally - 1)
        });
    }

    /// Starts the next life, which disregards all pending loans.
    pub(crate) fn end_life(&self) {
        let _ = self.tally.fetch_update(SeqCst, SeqCst, |tally| {
            Some(u64::from(((tally >> 32) as u32).wrapping_add(1)) << 32)
        });
    }
}

/// Bits of a page's state. In a child all are zero: nothing is protected there, and pages that may be in
/// flight are replaced by the kernel's own copy-on-write, because no page of a child is exclusive.
pub(crate) mod state {
    pub(crate) const PROTECTED: u8 = 1;
    /// The kernel may hold the page, with no completion to come.
    pub(crate) const LENT: u8 = 2;
    /// Known to be present.
    pub(crate) const FILLED: u8 = 4;
}
