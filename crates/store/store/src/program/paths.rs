//! Changes of files by path: the file at the path leaves the log first.

use super::descriptors::{self, Kind};
use super::logged::mapped::settle_closed;
use super::session::Session;
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

/// Prepares for renaming `path`, or for linking it elsewhere: the file there leaves the log, and its records, which have
/// the old path, are retired.
///
/// # Safety
/// `path` points to a NUL-terminated string, or to memory that the kernel refuses to read (EFAULT).
pub unsafe fn renamed(directory: ProgramFd, path: *const c_char) {
    // SAFETY: the caller passes a path that is NUL-terminated or that the kernel refuses to read.
    let Ok(inode) = (unsafe { file::inode_at(directory, path, libc::AT_SYMLINK_NOFOLLOW) }) else { return };
    stop_logging_inode(inode);
    match session() {
        Some(session) if session.is_mapped() => settle_closed(session, inode),
        Some(session) => session.wait_until_retired(inode),
        None => {}
    }
}

/// Prepares for removing `path`. A closed file in a mapped log stays there: if this was its last link, its records need
/// not be written anywhere.
///
/// # Safety
/// As for [`renamed`].
pub unsafe fn removed(directory: ProgramFd, path: *const c_char) {
    // SAFETY: the caller passes a path that is NUL-terminated or that the kernel refuses to read.
    unsafe {
        if session().is_some_and(Session::is_mapped) {
            stop_logging_at(directory, path, libc::AT_SYMLINK_NOFOLLOW);
        } else {
            renamed(directory, path);
        }
    }
}
