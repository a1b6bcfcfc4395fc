//! Functions on files that a mapped log has, without such a log: no file is in one.

use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::Errno;

/// Returns whether a mapped log may have a file of this process, or of the one that it was forked from.
#[inline(always)]
#[must_use]
pub const fn has_mapped_files() -> bool {
    false
}

/// Returns how often a file of this process has left a mapped log. The number changes after the kernel's file has all
/// bytes, and before [`mapped_size`] does not know the file any more.
#[must_use]
pub const fn mapped_departures() -> u64 {
    0
}

/// Returns the size of a regular file with its records in a mapped log, bytes; `None`: no mapped log has it. A file
/// that was closed is known until the keeper has digested it.
#[must_use]
pub const fn mapped_size(_device: u64, _inode: u64) -> Option<u64> {
    None
}

/// Moves the file offset of a file in a mapped log. Returns the new offset or the error; `None`: the kernel must be
/// called, and no mapped log has the file.
#[must_use]
pub const fn seek(_fd: ProgramFd, _offset: i64, _whence: i32) -> Option<Result<u64, Errno>> {
    None
}

/// Returns whether the program opened a file with O_APPEND, which the keeper has cleared.
#[must_use]
pub const fn is_append_hidden(_fd: ProgramFd) -> bool {
    false
}

/// Waits until the keeper of the parent process has digested a file whose descriptor this process has inherited.
pub const fn settle_inherited(_fd: ProgramFd) {}
