//! What is known of each descriptor by its number: who receives plainly, and whether somebody else may.
//!
//! A plain receive would take a token for a byte. So it counts itself in, and a stream receives references only from a moment
//! on at which nobody is counted, and nobody else is known who could read it: another descriptor of the same socket, or the
//! parent that the process inherited it from.

use uncopy_sys::sync::atomic::{AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

/// Descriptors that are known; others never become lanes.
const DESCRIPTORS: usize = 1 << 16;
/// There is a lane that is attended.
const ATTENDED: u32 = 1 << 31;
/// It has a duplicate, by which somebody may receive whom nobody counts.
const DUPLICATED: u32 = 1 << 30;
/// The process, counted by forks, that was the first to receive or send.
const USERS: u32 = 0x3F00_0000;
const USER_SHIFT: u32 = 24;
/// That its stream is no lane was told.
const TOLD: u32 = 1 << 23;
/// Plain receives under way.
const RECEIVES: u32 = TOLD - 1;
/// Forks that this process stems from, as far as that is counted.
static USER: AtomicU32 = AtomicU32::new(1);

static ALL: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];

/// Above the number of every descriptor of which something is known.
static END: AtomicU32 = AtomicU32::new(0);

/// This process among [`USERS`]; `None`: it stems from too many forks to be counted.
fn own_user() -> Option<u32> {
    Some(USER.load(Relaxed) << USER_SHIFT).filter(|user| *user <= USERS)
}

/// What is known of one.
#[derive(Clone, Copy)]
pub struct Descriptor(&'static AtomicU32);

/// What is known of a descriptor; `None`: its number is too high.
#[inline]
#[must_use]
pub fn descriptor(fd: i32) -> Option<Descriptor> {
    ALL.get(usize::try_from(fd).ok()?).map(Descriptor)
}

/// The descriptors from `first` to `last` of which something is known.
pub fn known(first: u32, last: u32) -> impl Iterator<Item = i32> {
    let end = END.load(Acquire).min(last.saturating_add(1));
    (first..end).map(u32::cast_signed).filter(|fd| descriptor(*fd).is_some_and(|known| !known.is_unknown()))
}

/// In a forked child: what its parent used before the fork, it may go on using.
pub(crate) fn in_child() {
    USER.fetch_add(1, Relaxed);
}

/// A plain receive under way.
pub struct Plain(Descriptor);

impl Drop for Plain {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, AcqRel);
    }
}

impl Descriptor {
    /// Whether there is a lane that is attended.
    #[inline]
    #[must_use]
    pub fn is_attended(self) -> bool {
        self.0.load(Acquire) & ATTENDED != 0
    }

    /// Counts a plain receive in; `None`: there is a lane that is attended.
    #[inline]
    #[must_use]
    pub fn begin_plain(self) -> Option<Plain> {
        let seen = self.0.fetch_add(1, AcqRel);
        if seen & ATTENDED != 0 {
            self.0.fetch_sub(1, AcqRel);
            return None;
        }
        self.note_user_of(seen);
        Some(Plain(self))
    }

    /// Notes that this process uses it, if nobody has before.
    pub fn note_user(self) {
        self.note_user_of(self.0.load(Relaxed));
    }

    fn note_user_of(self, seen: u32) {
        if seen & USERS == 0
            && let Some(user) = own_user()
        {
            self.0.fetch_or(user, Relaxed);
            self.note_number();
        }
    }

    fn note_number(self) {
        let offset_bytes = core::ptr::from_ref(self.0) as usize - ALL.as_ptr() as usize;
        END.fetch_max((offset_bytes / size_of::<AtomicU32>()) as u32 + 1, AcqRel);
    }

    /// Marks it as attended, if nobody receives plainly and nobody else may: whether it did.
    pub(crate) fn attend(self) -> bool {
        own_user().is_some_and(|own| self.0.compare_exchange(own, own | ATTENDED, AcqRel, Relaxed).is_ok())
    }

    /// Whether this process, not one that it stems from, was the first to use it.
    pub(crate) fn is_own(self) -> bool {
        own_user().is_some_and(|own| self.0.load(Relaxed) & USERS == own)
    }

    /// Whether nothing is known of it.
    #[must_use]
    pub fn is_unknown(self) -> bool {
        self.0.load(Relaxed) == 0
    }

    /// It is told that its stream is no lane. Whether that is news.
    pub(crate) fn note_told(self) -> bool {
        if self.0.load(Relaxed) & TOLD != 0 {
            return false;
        }
        let is_news = self.0.fetch_or(TOLD, AcqRel) & TOLD == 0;
        self.note_number();
        is_news
    }

    /// It is plain from here on.
    pub(crate) fn leave(self) {
        self.0.fetch_and(!ATTENDED, AcqRel);
    }

    /// It never becomes a lane again.
    pub(crate) fn stay_plain(self) {
        self.0.fetch_or(DUPLICATED, AcqRel);
        self.note_number();
    }

    /// `to` is another descriptor of the same open file.
    pub(crate) fn duplicate(self, to: Self) {
        let seen = self.0.fetch_or(DUPLICATED, AcqRel);
        to.0.fetch_or(DUPLICATED | seen & (ATTENDED | USERS), AcqRel);
        to.note_number();
    }

    /// It is closed: what comes to have its number is another file.
    pub(crate) fn close(self) {
        if self.0.load(Relaxed) != 0 {
            self.0.fetch_and(RECEIVES, AcqRel);
        }
    }
}
