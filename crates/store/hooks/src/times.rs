//! Hooks of calls that set a file's times. The file leaves a mapped log first: a later digest would change the times.

use crate::leaving::{Path, stop_logging, with_errno_saved};
use core::ffi::{c_int, c_void};
use uncopy_interpose::{entry, slots};
use uncopy_store::program as store;
use uncopy_sys::descriptor::ProgramFd;

/// Times of the program's, which the hooks only pass on.
type Times = *const c_void;

slots! {
    FUTIMENS = c"futimens": unsafe extern "C" fn(ProgramFd, Times) -> c_int;
    FUTIMES = c"futimes": unsafe extern "C" fn(ProgramFd, Times) -> c_int;
    UTIMENSAT = c"utimensat": unsafe extern "C" fn(ProgramFd, Path, Times, c_int) -> c_int;
    FUTIMESAT = c"futimesat": unsafe extern "C" fn(ProgramFd, Path, Times) -> c_int;
    UTIME = c"utime": unsafe extern "C" fn(Path, Times) -> c_int;
    UTIMES = c"utimes": unsafe extern "C" fn(Path, Times) -> c_int;
    LUTIMES = c"lutimes": unsafe extern "C" fn(Path, Times) -> c_int;
}

/// Takes the file at a path out of a mapped log. `flags` are those of utimensat(2).
fn before_change(directory: ProgramFd, path: Path, flags: c_int) {
    if path.is_null() {
        // futimesat(3): the file is that of the descriptor.
        return stop_logging(directory);
    }
    let flags = flags & (libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH);
    // SAFETY: `path` is NUL-terminated, as utimensat(2) requires, or the kernel refuses to read it.
    with_errno_saved(|| unsafe { store::stop_logging_at(directory, path, flags) });
}

entry!(futimens FUTIMENS (fd: ProgramFd, times: Times) -> c_int, store::has_mapped_files(), {
    stop_logging(fd);
    FUTIMENS.call()(fd, times)
});

entry!(futimes FUTIMES (fd: ProgramFd, times: Times) -> c_int, store::has_mapped_files(), {
    stop_logging(fd);
    FUTIMES.call()(fd, times)
});

entry!(utimensat UTIMENSAT (directory: ProgramFd, path: Path, times: Times, flags: c_int) -> c_int, store::has_mapped_files(), {
    before_change(directory, path, flags);
    UTIMENSAT.call()(directory, path, times, flags)
});

entry!(futimesat FUTIMESAT (directory: ProgramFd, path: Path, times: Times) -> c_int, store::has_mapped_files(), {
    before_change(directory, path, 0);
    FUTIMESAT.call()(directory, path, times)
});

entry!(utime UTIME (path: Path, times: Times) -> c_int, store::has_mapped_files(), {
    before_change(ProgramFd::CURRENT_DIRECTORY, path, 0);
    UTIME.call()(path, times)
});

entry!(utimes UTIMES (path: Path, times: Times) -> c_int, store::has_mapped_files(), {
    before_change(ProgramFd::CURRENT_DIRECTORY, path, 0);
    UTIMES.call()(path, times)
});

entry!(lutimes LUTIMES (path: Path, times: Times) -> c_int, store::has_mapped_files(), {
    before_change(ProgramFd::CURRENT_DIRECTORY, path, libc::AT_SYMLINK_NOFOLLOW);
    LUTIMES.call()(path, times)
});
