//! Hooks of the stat family and of lseek(2): sizes, times and offsets that a mapped log knows, and the kernel does not yet.
//!
//! While no file is in a mapped log, each hook is a load and a jump. glibc exports `stat` and the like from 2.33 on;
//! programs that were linked against an earlier one call `__xstat` and the like.

use crate::leaving::{Path, settle, stop_logging_for, with_errno_saved};
use core::ffi::{c_int, c_uint};
use libc::off_t;
use uncopy_interpose::{alias, entry, slots};
use uncopy_store::program::{self as store, MappedStatus};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::{clock, errno};

/// Buffer of the program's for a file's status.
type Found = *mut libc::stat;

/// Unit of `st_blocks`, bytes (stat(3type)).
const BLOCK_BYTES: u64 = 512;

slots! {
    STAT = c"stat" if defined: unsafe extern "C" fn(Path, Found) -> c_int;
    LSTAT = c"lstat" if defined: unsafe extern "C" fn(Path, Found) -> c_int;
    FSTATAT = c"fstatat" if defined: unsafe extern "C" fn(ProgramFd, Path, Found, c_int) -> c_int;
    STATX = c"statx" if defined: unsafe extern "C" fn(ProgramFd, Path, c_int, c_uint, *mut libc::statx) -> c_int;
    XSTAT = c"__xstat" if defined: unsafe extern "C" fn(c_int, Path, Found) -> c_int;
    FXSTAT = c"__fxstat" if defined: unsafe extern "C" fn(c_int, ProgramFd, Found) -> c_int;
    LXSTAT = c"__lxstat" if defined: unsafe extern "C" fn(c_int, Path, Found) -> c_int;
    FXSTATAT = c"__fxstatat" if defined: unsafe extern "C" fn(c_int, ProgramFd, Path, Found, c_int) -> c_int;
    LSEEK = c"lseek": unsafe extern "C" fn(ProgramFd, off_t, c_int) -> off_t;
}

/// Returns whether a mapped log may have a file of the process.
#[inline(always)]
pub fn has_mapped_files() -> bool {
    store::has_mapped_files()
}

/// Corrects the status of a regular file in a mapped log by `apply`, which gets the size in bytes and the time of the last
/// write in seconds and nanoseconds, if the log has one. Returns false if the kernel has to be asked again.
///
/// Blocks beyond the end that the kernel knows count as allocated: zero blocks would tell archivers that the file is
/// one hole.
fn correct(device: u64, inode: u64, apply: impl FnOnce(u64, Option<(i64, u32)>)) -> bool {
    let mut mapped = MappedStatus::Unknown;
    with_errno_saved(|| mapped = store::mapped_status(device, inode));
    if let MappedStatus::Is { len_bytes, modified_ns } = mapped {
        apply(len_bytes, (modified_ns != 0).then(|| clock::split_ns(modified_ns)));
    }
    mapped != MappedStatus::AskAgain
}

/// Makes a call that returns the status of a file, and corrects the status by `correct`. If the file has left the log,
/// the kernel may have answered before that and is asked again.
fn call_and_correct(call: impl Fn() -> c_int, correct: impl Fn() -> bool) -> c_int {
    let mut result = call();
    if result == 0 && !correct() {
        result = call();
        if result == 0 {
            correct();
        }
    }
    result
}

/// Makes a call that fills `found`, and corrects what it returned.
///
/// # Safety
/// If `call` returns 0, it has filled `found`.
unsafe fn filled(found: Found, call: impl Fn() -> c_int) -> c_int {
    call_and_correct(call, || {
        // SAFETY: called after a successful call, which filled `found`; the program passes a buffer that this thread
        // alone uses until the call returns.
        let found = unsafe { &mut *found };
        if found.st_mode & libc::S_IFMT != libc::S_IFREG {
            return true;
        }
        correct(found.st_dev, found.st_ino, |len_bytes, modified| {
            let more_bytes = len_bytes.saturating_sub(found.st_size as u64);
            found.st_size += more_bytes as off_t;
            found.st_blocks += more_bytes.div_ceil(BLOCK_BYTES) as libc::blkcnt_t;
            if let Some((seconds, ns)) = modified {
                (found.st_mtime, found.st_mtime_nsec) = (seconds, i64::from(ns));
                let changed = (found.st_ctime, found.st_ctime_nsec).max((seconds, i64::from(ns)));
                (found.st_ctime, found.st_ctime_nsec) = changed;
            }
        })
    })
}

/// Calls fstat(2) as `call` does. The library's hook of that name is elsewhere, because it also hides descriptors.
///
/// # Safety
/// If `call` returns 0, it has filled `found`.
#[inline(always)]
pub unsafe fn fstat_by(fd: ProgramFd, found: Found, call: impl Fn() -> c_int) -> c_int {
    if !has_mapped_files() {
        return call();
    }
    settle(fd);
    // SAFETY: this function's caller promises that a successful `call` fills `found`.
    unsafe { filled(found, call) }
}

entry!(stat STAT (path: Path, found: Found) -> c_int, has_mapped_files(), {
    filled(found, || STAT.call()(path, found))
});

entry!(lstat LSTAT (path: Path, found: Found) -> c_int, has_mapped_files(), {
    filled(found, || LSTAT.call()(path, found))
});

// With AT_EMPTY_PATH the directory is the file.
entry!(fstatat FSTATAT (directory: ProgramFd, path: Path, found: Found, flags: c_int) -> c_int, has_mapped_files(), {
    settle(directory);
    filled(found, || FSTATAT.call()(directory, path, found, flags))
});

entry!(__xstat XSTAT (version: c_int, path: Path, found: Found) -> c_int, has_mapped_files(), {
    filled(found, || XSTAT.call()(version, path, found))
});

entry!(__fxstat FXSTAT (version: c_int, fd: ProgramFd, found: Found) -> c_int, has_mapped_files(), {
    settle(fd);
    filled(found, || FXSTAT.call()(version, fd, found))
});

entry!(__lxstat LXSTAT (version: c_int, path: Path, found: Found) -> c_int, has_mapped_files(), {
    filled(found, || LXSTAT.call()(version, path, found))
});

entry!(__fxstatat FXSTATAT
(version: c_int, directory: ProgramFd, path: Path, found: Found, flags: c_int) -> c_int, has_mapped_files(), {
    settle(directory);
    filled(found, || FXSTATAT.call()(version, directory, path, found, flags))
});

alias!(stat64 = stat (path: Path, found: Found) -> c_int);
alias!(lstat64 = lstat (path: Path, found: Found) -> c_int);
alias!(fstatat64 = fstatat (directory: ProgramFd, path: Path, found: Found, flags: c_int) -> c_int);
alias!(__xstat64 = __xstat (version: c_int, path: Path, found: Found) -> c_int);
alias!(__fxstat64 = __fxstat (version: c_int, fd: ProgramFd, found: Found) -> c_int);
alias!(__lxstat64 = __lxstat (version: c_int, path: Path, found: Found) -> c_int);
alias!(__fxstatat64 = __fxstatat
(version: c_int, directory: ProgramFd, path: Path, found: Found, flags: c_int) -> c_int);

/// Corrects the result of statx(2) as [`filled`] does. Members that the file system does not know stay unknown.
///
/// # Safety
/// statx(2) has filled `found`.
unsafe fn correct_statx(found: *mut libc::statx) -> bool {
    const IDENTITY: c_uint = libc::STATX_TYPE | libc::STATX_INO | libc::STATX_SIZE;
    // SAFETY: the caller promises that `found` is filled; this thread alone uses it until the call returns.
    let found = unsafe { &mut *found };
    if found.stx_mask & IDENTITY != IDENTITY || u32::from(found.stx_mode) & libc::S_IFMT != libc::S_IFREG {
        return true;
    }
    let device = libc::makedev(found.stx_dev_major, found.stx_dev_minor);
    correct(device, found.stx_ino, |len_bytes, modified| {
        let more_bytes = len_bytes.saturating_sub(found.stx_size);
        found.stx_size += more_bytes;
        found.stx_blocks += more_bytes.div_ceil(BLOCK_BYTES);
        if let Some((seconds, ns)) = modified {
            (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec) = (seconds, ns);
            let changed = (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec).max((seconds, ns));
            (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec) = changed;
        }
    })
}

entry!(statx STATX
(directory: ProgramFd, path: Path, flags: c_int, mask: c_uint, found: *mut libc::statx) -> c_int, has_mapped_files(), {
    settle(directory);
    call_and_correct(|| STATX.call()(directory, path, flags, mask, found), || correct_statx(found))
});

entry!(lseek LSEEK (fd: ProgramFd, offset: off_t, whence: c_int) -> off_t, has_mapped_files() && store::is_tracked(fd), {
    settle(fd);
    let mut sought = None;
    with_errno_saved(|| sought = store::seek(fd, offset, whence));
    match sought {
        Some(Ok(offset)) => offset as off_t,
        Some(Err(error)) => {
            errno::set(error.0);
            -1
        }
        None => {
            let _outside = stop_logging_for(fd);
            LSEEK.call()(fd, offset, whence)
        }
    }
});

alias!(lseek64 = lseek (fd: ProgramFd, offset: off_t, whence: c_int) -> off_t);
alias!(__lseek = lseek (fd: ProgramFd, offset: off_t, whence: c_int) -> off_t);
