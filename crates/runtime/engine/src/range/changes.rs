//! Changes that the program makes to the mappings of foreign ranges, and how far the handler has followed them.
//!
//! The program's thread continues as soon as a change is *read*; until then the kernel reports that changes are
//! pending ([`Uffd::is_changing`]). Before reading, the handler raises a flag; after marking the ranges that the
//! changes touch, it lowers the flag. A thread that makes a range plain puts back bytes that a change may be taking
//! away, so no change is read meanwhile ([`SettledGuard`]): the changing thread waits, and the kernel refuses placements.
//!
//! Faults are reported through the same descriptor, so they are not read meanwhile either, and a thread may fault in
//! a range while it holds that range's lock. [`SettledGuard`] is therefore the innermost of the locks of foreign ranges:
//! its owner already has every lock that it needs, and waits neither for a lock nor for the handler.

use crate::arena::descriptor::UffdDescriptor;
use uncopy_sys::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use uncopy_sys::uffd::Uffd;

/// Number of retries, with a pause before each, until the handler has followed changes of mappings.
pub(crate) const SETTLE_TRIES: u32 = 50_000;

/// The userfaultfd of the foreign ranges, and the changes that it reports.
pub struct Changes {
    descriptor: UffdDescriptor,
    is_changing: AtomicBool,
    /// Changes that the handler has read and not followed yet.
    pending: AtomicU32,
    /// Number of threads that are making ranges plain: no changes are read meanwhile.
    guards: AtomicU32,
}

uncopy_sys::statics! {
    /// The changes of this process.
    pub static CHANGES: Changes = Changes {
        descriptor: UffdDescriptor::new(),
        is_changing: AtomicBool::new(false),
        pending: AtomicU32::new(0),
        guards: AtomicU32::new(0),
    };
}

/// Guard: while it lives, no change is read, and all that were read have been followed.
pub(crate) struct SettledGuard<'a>(&'a AtomicU32);

impl Drop for SettledGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Changes {
    /// The userfaultfd of the foreign ranges; `None`: nothing can be claimed.
    #[must_use]
    pub fn open(&self) -> Option<Uffd> {
        self.descriptor.open()
    }

    /// The userfaultfd of the foreign ranges; if it was closed, requests to it fail.
    #[must_use]
    pub fn uffd(&self) -> Uffd {
        self.descriptor.uffd()
    }

    pub(crate) const fn descriptor(&self) -> &UffdDescriptor {
        &self.descriptor
    }

    /// Whether there may be changes that were not read, or whose ranges are not marked yet.
    #[must_use]
    pub fn may_be_changing(&self) -> bool {
        // The order matters: if the kernel reports no change, pending ones were read, with the flag raised before.
        self.open().is_some_and(Uffd::is_changing) || self.is_changing.load(SeqCst)
    }

    /// Whether every change has been read and followed.
    pub(crate) fn is_settled(&self) -> bool {
        !self.may_be_changing() && self.pending.load(SeqCst) == 0
    }

    /// Keeps changes from being read, if all made so far have been read and followed. `None`: the caller must release
    /// every lock, so that the handler can follow them, and retry. While the guard lives, its owner must not wait.
    pub(crate) fn try_hold_settled(&self) -> Option<SettledGuard<'_>> {
        self.guards.fetch_add(1, SeqCst);
        let guard = SettledGuard(&self.guards);
        // Checked after counting: either the handler sees the count, or its flag shows here.
        self.is_settled().then_some(guard)
    }

    /// Clears the state in a forked child; the parent's handler had nothing pending.
    pub(crate) fn settle_in_child(&self) {
        self.is_changing.store(false, SeqCst);
        self.pending.store(0, SeqCst);
        self.guards.store(0, SeqCst);
    }

    /// Raises the flag before the handler reads changes. False: it must not read yet, but no thread begins
    /// to make ranges plain until it has.
    pub(crate) fn begin_read(&self) -> bool {
        self.is_changing.store(true, SeqCst);
        self.guards.load(SeqCst) == 0
    }

    /// Lowers the flag where the handler finds nothing to read.
    pub(crate) fn cancel_read(&self) {
        self.is_changing.store(false, SeqCst);
    }

    /// Lowers the flag after the handler has marked the ranges that changes touch. `pending`: changes not
    /// followed yet. Hooks treat marked ranges as ordinary memory.
    pub(crate) fn finish_read(&self, pending: u32) {
        self.pending.store(pending, SeqCst);
        self.is_changing.store(false, SeqCst);
    }
}
