//! State of each descriptor, by number: receives in progress past the lanes, and whether others may receive.
//!
//! A receive that goes directly to the kernel would take a token for a byte. So these receives are counted, and a
//! stream accepts references only from a moment when none is in progress and nobody else is known to read it,
//! through another descriptor of the same socket or in the parent that it was inherited from.

use uncopy_fdtable::{self as fdtable, Feature, MAX_TRACKED_FDS};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::sync::atomic::{AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

/// Set while the descriptor is a lane that accepts references.
const ATTENDED: u32 = 1 << 31;
/// Set if the descriptor has a duplicate, through which receives are not counted.
const DUPLICATED: u32 = 1 << 30;
/// Fork depth of the process that first received or sent; 0: none has.
const USERS: u32 = 0x3F00_0000;
const USER_SHIFT: u32 = 24;
/// Set once the reason why the stream is no lane was reported.
const TOLD: u32 = 1 << 23;
/// Number of plain receives in progress.
const RECEIVES: u32 = TOLD - 1;
/// Fork depth of this process, from 1; saturates.
static USER: AtomicU32 = AtomicU32::new(1);

/// State of each descriptor below [`MAX_TRACKED_FDS`]; higher ones never become lanes.
static ALL: [AtomicU32; MAX_TRACKED_FDS] = [const { AtomicU32::new(0) }; MAX_TRACKED_FDS];

/// Returns this process's fork depth as [`USERS`] holds it; `None` if it is too large to be counted.
fn own_user() -> Option<u32> {
    Some(USER.load(Relaxed) << USER_SHIFT).filter(|user| *user <= USERS)
}

/// State of one descriptor.
#[derive(Clone, Copy)]
pub struct Descriptor(&'static AtomicU32, ProgramFd);

/// Returns the state of a descriptor; `None` if its number is too high.
#[inline]
#[must_use]
pub fn descriptor(fd: ProgramFd) -> Option<Descriptor> {
    ALL.get(fd.index()?).map(|word| Descriptor(word, fd))
}

/// Updates the fork depth in a forked child: the parent may go on using what it used before.
pub(crate) fn in_child() {
    USER.fetch_add(1, Relaxed);
}

/// A plain receive in progress.
pub struct PlainReceive(Descriptor);

impl Drop for PlainReceive {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, AcqRel);
    }
}

impl Descriptor {
    /// True if the descriptor is a lane that accepts references.
    #[inline]
    #[must_use]
    pub fn accepts_refs(self) -> bool {
        self.0.load(Acquire) & ATTENDED != 0
    }

    /// Counts a plain receive in; `None` if the descriptor is a lane that accepts references.
    #[inline]
    #[must_use]
    pub fn begin_plain_receive(self) -> Option<PlainReceive> {
        let seen = self.0.fetch_add(1, AcqRel);
        if seen & ATTENDED != 0 {
            self.0.fetch_sub(1, AcqRel);
            return None;
        }
        self.note_user_of(seen);
        Some(PlainReceive(self))
    }

    /// Notes this process as the first user, unless there is one.
    pub fn note_user(self) {
        self.note_user_of(self.0.load(Relaxed));
    }

    fn note_user_of(self, seen: u32) {
        if seen & USERS == 0
            && let Some(user) = own_user()
        {
            self.0.fetch_or(user, Relaxed);
            self.note_known();
        }
    }

    /// Has the descriptor's closing reported to the lanes.
    fn note_known(self) {
        fdtable::track(Feature::Lanes, self.1);
    }

    /// Marks the descriptor as a lane that accepts references, unless receives may pass it by. Returns whether it
    /// did.
    pub(crate) fn accept_refs(self) -> bool {
        own_user().is_some_and(|own| self.0.compare_exchange(own, own | ATTENDED, AcqRel, Relaxed).is_ok())
    }

    /// True if this process, not an ancestor, was the first to use the descriptor.
    pub(crate) fn is_own(self) -> bool {
        own_user().is_some_and(|own| self.0.load(Relaxed) & USERS == own)
    }

    /// Notes that the reason why the stream is no lane was reported. Returns true the first time.
    pub(crate) fn mark_reported(self) -> bool {
        if self.0.load(Relaxed) & TOLD != 0 {
            return false;
        }
        let is_news = self.0.fetch_or(TOLD, AcqRel) & TOLD == 0;
        self.note_known();
        is_news
    }

    /// Lets plain receives through again.
    pub(crate) fn stop_accepting_refs(self) {
        self.0.fetch_and(!ATTENDED, AcqRel);
    }

    /// Excludes the descriptor from becoming a lane until it is closed.
    pub(crate) fn exclude(self) {
        self.0.fetch_or(DUPLICATED, AcqRel);
        self.note_known();
    }

    /// Notes that `to` is a duplicate of this descriptor.
    pub(crate) fn duplicate(self, to: Self) {
        let seen = self.0.fetch_or(DUPLICATED, AcqRel);
        to.0.fetch_or(DUPLICATED | seen & (ATTENDED | USERS), AcqRel);
        to.note_known();
    }

    /// Resets the state of a closed descriptor, since its number is reused.
    pub(crate) fn close(self) {
        if self.0.load(Relaxed) != 0 {
            self.0.fetch_and(RECEIVES, AcqRel);
        }
        fdtable::untrack(Feature::Lanes, self.1);
    }
}
