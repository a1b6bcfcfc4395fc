//! Changes of files by path: the file at the path leaves the log first.

use super::descriptors::{self, Kind};
use super::{session, stop_logging};
use core::ffi::{c_char, c_int};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::file;

/// Prepares for a change of the file at `path` that no record can describe: the file leaves the log, and may be
/// logged again. `flags` are those of fstatat(2).
///
/// # Safety
/// `path` points to a NUL-terminated string, or to memory that the kernel refuses to read (EFAULT).
pub unsafe fn stop_logging_at(directory: ProgramFd, path: *const c_char, flags: c_int) {
    // SAFETY: the caller passes a path that is NUL-terminated or that the kernel refuses to read.
    if let Ok(inode) = unsafe { file::inode_at(directory, path, flags) } {
        stop_logging_inode(inode);
    }
}

fn stop_logging_inode(inode: (u64, u64)) {
    for fd in descriptors::known() {
        let is_it = || file::status(fd).is_ok_and(|status| (status.device, status.inode) == inode);
        if matches!(descriptors::kind(fd), Kind::Logged(_)) && is_it() {
            stop_logging(fd, true);
        }
    }
}

/// Prepares for renaming or unlinking `path`: the file there leaves the log, and its records, which have the
/// old path, are retired.
///
/// # Safety
/// `path` points to a NUL-terminated string, or to memory that the kernel refuses to read (EFAULT).
pub unsafe fn renamed(directory: ProgramFd, path: *const c_char) {
    // SAFETY: the caller passes a path that is NUL-terminated or that the kernel refuses to read.
    let Ok(inode) = (unsafe { file::inode_at(directory, path, libc::AT_SYMLINK_NOFOLLOW) }) else { return };
    stop_logging_inode(inode);
    if let Some(session) = session() {
        session.wait_until_retired(inode);
    }
}
