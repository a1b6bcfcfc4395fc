//! File descriptors. Those of the program and those of the library have different types, so that
//! confusing them does not compile.
//!
//! | type | meaning | closed by |
//! |---|---|---|
//! | [`ProgramFd`] | a number that the program passed to a call, or that a call returned to it | the program, through the hooks of `close` and so on |
//! | [`OwnFd`] | a descriptor that this crate has created or received | its drop |
//! | [`OwnSlot`] | a static that holds a descriptor of the library | the code that takes it out |
//!
//! ```compile_fail,E0308
//! # use uncopy_sys::descriptor::{OwnFd, ProgramFd};
//! fn give_up(ours: OwnFd) {}
//! give_up(ProgramFd::new(1));
//! ```
//!
//! ```compile_fail,E0308
//! # use uncopy_sys::descriptor::{OwnFd, ProgramFd};
//! fn close(of_program: ProgramFd) {}
//! fn pass(ours: OwnFd) {
//!     close(ours);
//! }
//! ```
//!
//! Calls that only query a descriptor, or act on the open file behind it, accept either type: a
//! [`Descriptor`].

use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};
use crate::raw::Argument;
use core::sync::atomic::{AtomicI32, Ordering::AcqRel, Ordering::Acquire};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};

/// A descriptor of either kind.
pub trait Descriptor: Argument + Copy {
    /// Number of the descriptor.
    #[inline(always)]
    fn number(self) -> i32 {
        self.word() as i32
    }
}

/// A descriptor of the program: a number that it passed to a call, open or not, or got from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ProgramFd(i32);

impl ProgramFd {
    /// No descriptor: the result of a call that failed.
    pub const NONE: Self = Self(-1);
    /// The current directory, for calls that take a directory.
    pub const CURRENT_DIRECTORY: Self = Self(libc::AT_FDCWD);

    /// Returns the descriptor with this number.
    #[inline(always)]
    #[must_use]
    pub const fn new(number: i32) -> Self {
        Self(number)
    }

    /// Returns the descriptor that an argument of a system call names.
    #[inline(always)]
    #[must_use]
    pub const fn of_argument(word: usize) -> Self {
        Self(word as i32)
    }

    /// Returns the descriptor of a file or socket of the calling program.
    #[inline]
    #[must_use]
    pub fn of(file: &impl AsRawFd) -> Self {
        Self(file.as_raw_fd())
    }

    /// Index in a table of `places` entries, which several descriptors may share.
    #[inline(always)]
    #[must_use]
    pub const fn slot(self, places: usize) -> usize {
        self.0.cast_unsigned() as usize % places
    }

    /// Index in a table of descriptors; `None` if the number is negative.
    #[inline(always)]
    #[must_use]
    pub fn index(self) -> Option<usize> {
        usize::try_from(self.0).ok()
    }

    /// Whether a descriptor can have this number.
    #[inline(always)]
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.0 >= 0
    }
}

/// A descriptor of the library, closed when dropped.
#[derive(Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct OwnFd(i32);

impl OwnFd {
    /// Returns the descriptor that a system call has created.
    ///
    /// # Errors
    /// The error of the call, if `result` is -1.
    pub(crate) fn from_result(result: i64) -> Result<Self, Errno> {
        check(result).map(|number| Self(number as i32))
    }

    /// Takes ownership of a descriptor: one that came with a message, or was inherited through exec.
    pub(crate) const fn new(number: i32) -> Self {
        Self(number)
    }

    /// Gives up ownership without closing: another process shares the table, or the number is kept
    /// elsewhere. Returns the number.
    pub fn leave_open(self) -> i32 {
        core::mem::ManuallyDrop::new(self).0
    }

    /// Closes the descriptor in a forked child, unless the parent still uses the same table.
    pub fn close_in_child(self, has_own_descriptors: bool) {
        if !has_own_descriptors {
            self.leave_open();
        }
    }

    /// Returns the descriptor for use by code that does not own it.
    #[must_use]
    pub const fn reference(&self) -> OwnRef {
        OwnRef(self.0)
    }

    /// The number as the program would name it; the hooks hide the descriptor from the program.
    #[must_use]
    pub const fn as_program(&self) -> ProgramFd {
        ProgramFd(self.0)
    }
}

impl OwnRef {
    /// The number as the program would name it.
    #[must_use]
    pub const fn as_program(self) -> ProgramFd {
        ProgramFd(self.0)
    }
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        // SAFETY: this value owns the descriptor and is being dropped, so nothing uses it any more.
        unsafe { kernel!(Close, syscall!(libc::SYS_close, self.0)) };
    }
}

impl From<OwnFd> for OwnedFd {
    fn from(fd: OwnFd) -> Self {
        // SAFETY: the descriptor is open, and `leave_open` gives up its ownership.
        unsafe { Self::from_raw_fd(fd.leave_open()) }
    }
}

/// A descriptor of the library whose owner keeps it open while this is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnRef(i32);

/// A static that holds a descriptor of the library.
#[derive(Debug)]
pub struct OwnSlot(AtomicI32);

impl OwnSlot {
    /// Returns a slot without a descriptor.
    #[must_use]
    pub const fn empty() -> Self {
        Self(AtomicI32::new(-1))
    }

    /// Returns the descriptor, which another thread may take out and close at any time.
    #[must_use]
    pub fn get(&self) -> Option<OwnRef> {
        Some(self.0.load(Acquire)).filter(|number| *number >= 0).map(OwnRef)
    }

    /// The number as the program would name it; the hooks hide the descriptor from the program.
    #[must_use]
    pub fn as_program(&self) -> Option<ProgramFd> {
        self.get().map(|fd| ProgramFd(fd.0))
    }

    /// Takes the descriptor out of the slot.
    pub fn take(&self) -> Option<OwnFd> {
        self.replace(None)
    }

    /// Stores a descriptor and returns the previous one.
    pub fn replace(&self, fd: Option<OwnFd>) -> Option<OwnFd> {
        let before = self.0.swap(fd.map_or(-1, OwnFd::leave_open), AcqRel);
        (before >= 0).then_some(OwnFd(before))
    }
}

macro_rules! descriptors {
    ($($type:ty: |$fd:ident| $number:expr;)*) => {
        $(impl Argument for $type {
            #[inline(always)]
            fn word(self) -> usize {
                let $fd = self;
                $number as usize
            }
        }

        impl Descriptor for $type {})*
    };
}

descriptors! {
    ProgramFd: |fd| fd.0;
    &OwnFd: |fd| fd.0;
    OwnRef: |fd| fd.0;
    BorrowedFd<'_>: |fd| fd.as_raw_fd();
}
