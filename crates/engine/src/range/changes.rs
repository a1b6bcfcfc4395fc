//! What the program does to mappings that foreign ranges lie in, as far as it has been reported, read and followed.
//!
//! The program's thread goes on as soon as a change is *read*. Until then the kernel says so to whoever asks
//! ([`Uffd::is_changing`]). Before it reads, the handler raises a flag of ours; when it has marked the ranges that the
//! changes touch, it lowers it again. Whoever makes a range plain puts back bytes that a change may be taking away, so
//! no change is read meanwhile ([`Undoing`]): its thread has to wait, and until then the kernel refuses to place anything.
//!
//! Faults come by the same descriptor, so they are not read meanwhile either. A thread may fault in a range while it holds
//! that range's lock. So [`Undoing`] is the innermost of the locks of foreign ranges: whoever holds it has every lock that
//! it needs already, and waits neither for one nor for the handler.

use crate::arena::descriptor::Descriptor;
use uncopy_sys::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use uncopy_sys::uffd::Uffd;

/// Times that somebody tries again, a moment apart, until the handler has followed changes of mappings.
pub(crate) const SETTLE_TRIES: u32 = 50_000;

/// The userfaultfd of the foreign ranges, and the changes that it reports.
pub struct Changes {
    descriptor: Descriptor,
    is_changing: AtomicBool,
    /// Changes that the handler has read and not yet dealt with.
    pending: AtomicU32,
    /// Hooks that are making ranges plain: no changes are read meanwhile.
    undoing: AtomicU32,
}

uncopy_sys::statics! {
    /// The process's.
    pub static CHANGES: Changes = Changes {
        descriptor: Descriptor::new(),
        is_changing: AtomicBool::new(false),
        pending: AtomicU32::new(0),
        undoing: AtomicU32::new(0),
    };
}

/// While it lives, no change is read, and all that were read have been followed.
pub(crate) struct Undoing<'a>(&'a AtomicU32);

impl Drop for Undoing<'_> {
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

    /// The same where there are ranges; should it be gone, what is asked of it fails.
    #[must_use]
    pub fn uffd(&self) -> Uffd {
        self.descriptor.uffd()
    }

    /// Its numbers.
    pub(crate) const fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Whether the program may have changed mappings that nobody has looked at yet.
    #[must_use]
    pub fn may_be_changing(&self) -> bool {
        // In this order: who is not changing any more was read, and the flag was up before that.
        self.open().is_some_and(Uffd::is_changing) || self.is_changing.load(SeqCst)
    }

    /// Whether every change has been read and followed.
    pub(crate) fn is_settled(&self) -> bool {
        !self.may_be_changing() && self.pending.load(SeqCst) == 0
    }

    /// Keeps changes from being read, if all that were made have been read and followed. `None`: give every lock back, so
    /// that the handler can follow them, and try again. Until it is dropped, the caller waits for nobody.
    pub(crate) fn try_undo(&self) -> Option<Undoing<'_>> {
        self.undoing.fetch_add(1, SeqCst);
        let undoing = Undoing(&self.undoing);
        // Once it is counted: the handler either sees that, or its flag shows here.
        self.is_settled().then_some(undoing)
    }

    /// In a forked child, whose parent's handler had nothing pending.
    pub(crate) fn settle_in_child(&self) {
        self.is_changing.store(false, SeqCst);
        self.pending.store(0, SeqCst);
        self.undoing.store(0, SeqCst);
    }

    /// Before the handler reads changes; false: not yet, but nobody begins to make ranges plain until it has.
    pub(crate) fn begin_change(&self) -> bool {
        self.is_changing.store(true, SeqCst);
        self.undoing.load(SeqCst) == 0
    }

    /// The handler finds nothing to read.
    pub(crate) fn end_change(&self) {
        self.is_changing.store(false, SeqCst);
    }

    /// The handler has marked the ranges that changes touch, `pending` of which are not dealt with: from here on no hook
    /// believes what is known of those ranges.
    pub(crate) fn have_read(&self, pending: u32) {
        self.pending.store(pending, SeqCst);
        self.is_changing.store(false, SeqCst);
    }
}
