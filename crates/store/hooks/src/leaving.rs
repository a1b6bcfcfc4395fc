//! Files that leave the log before a call that no record can describe.

use crate::counts::count_departures;
use core::ffi::c_char;
use uncopy_store::program::descriptors::{self, CountedWrite, Kind};
use uncopy_store::program::{self as store};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno;
use uncopy_sys::lock::Critical;

/// Path that the program passes: NUL-terminated, or refused by the kernel.
pub type Path = *const c_char;

/// Returns whether files may be logged.
#[inline(always)]
pub fn is_on() -> bool {
    store::is_on()
}

/// Runs `work`, which may take files out of the log, in a critical section and preserves `errno`.
pub fn with_errno_saved(work: impl FnOnce()) {
    let _errno = errno::SavedErrno::new();
    let _critical = Critical::enter();
    work();
    count_departures();
}

/// Waits until the parent's keeper has written a file to which this process has an inherited descriptor. Called
/// before every use of such a descriptor, whose file offset and flags are right only then.
#[inline(always)]
pub fn settle(fd: ProgramFd) {
    if store::has_mapped_files() && store::is_inherited(fd) {
        with_errno_saved(|| store::settle_inherited(fd));
    }
}

/// Calls [`settle`] for all descriptors, before they go to another process.
pub fn settle_all() {
    if store::has_mapped_files() {
        descriptors::known().for_each(settle);
    }
}

/// Takes a file out of the log before a change that no record can describe; it may be logged again.
pub fn stop_logging(fd: ProgramFd) {
    if store::is_tracked(fd) {
        settle(fd);
        with_errno_saved(|| store::stop_logging(fd, true));
    }
}

/// Takes a file out of the log as [`stop_logging`] does. No other thread's call makes it return there before the
/// result is dropped.
#[must_use]
pub fn stop_logging_for(fd: ProgramFd) -> Option<CountedWrite> {
    while store::is_tracked(fd) {
        stop_logging(fd);
        let outside = descriptors::begin_write(fd);
        if outside.is_some() || !matches!(descriptors::kind(fd), Kind::Candidate | Kind::Logged(_)) {
            return outside;
        }
    }
    None
}

/// Takes a file out of a mapped log before the kernel reads it for a call that does not go through
/// [`read`](crate::reads::read). No other thread's call makes it return there before the result is dropped.
pub fn before_read_by_kernel(fd: ProgramFd) -> Option<CountedWrite> {
    if store::has_mapped_files() { stop_logging_for(fd) } else { None }
}

/// Takes a file out of the log for good.
pub fn exclude(fd: ProgramFd) {
    if store::is_tracked(fd) {
        settle(fd);
        with_errno_saved(|| store::stop_logging(fd, false));
    }
}

/// Takes all files out of a mapped log; they may be logged again.
pub fn stop_logging_mapped() {
    if store::has_mapped_files() {
        with_errno_saved(|| store::stop_logging_all(true));
    }
}

/// Takes all files out of the log for good.
pub fn exclude_all() {
    if is_on() {
        with_errno_saved(|| store::stop_logging_all(false));
    }
}
