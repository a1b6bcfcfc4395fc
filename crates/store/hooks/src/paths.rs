//! Hooks of calls that rename, link or remove files.

use crate::leaving::{Path, is_on, with_errno_saved};
use core::ffi::{c_int, c_uint};
use uncopy_interpose::{entry, slots};
use uncopy_store::program as store;
use uncopy_sys::descriptor::ProgramFd;

slots! {
    RENAME = c"rename": unsafe extern "C" fn(Path, Path) -> c_int;
    RENAMEAT = c"renameat": unsafe extern "C" fn(ProgramFd, Path, ProgramFd, Path) -> c_int;
    RENAMEAT2 = c"renameat2": unsafe extern "C" fn(ProgramFd, Path, ProgramFd, Path, c_uint) -> c_int;
    UNLINK = c"unlink": unsafe extern "C" fn(Path) -> c_int;
    UNLINKAT = c"unlinkat": unsafe extern "C" fn(ProgramFd, Path, c_int) -> c_int;
    REMOVE = c"remove": unsafe extern "C" fn(Path) -> c_int;
    LINK = c"link": unsafe extern "C" fn(Path, Path) -> c_int;
    LINKAT = c"linkat": unsafe extern "C" fn(ProgramFd, Path, ProgramFd, Path, c_int) -> c_int;
}

/// Takes a file out of the log before its path changes or is removed: its records have the old path.
#[cold]
fn before_rename(directory: ProgramFd, path: Path) {
    if store::has_begun() {
        // SAFETY: `path` is NUL-terminated, as rename(2) requires, or the kernel refuses to read it.
        with_errno_saved(|| unsafe { store::renamed(directory, path) });
    }
}

/// Prepares for the removal of a file, or for its replacement by a rename.
#[cold]
fn before_removal(directory: ProgramFd, path: Path) {
    if store::has_begun() {
        // SAFETY: `path` is NUL-terminated, as unlink(2) requires, or the kernel refuses to read it.
        with_errno_saved(|| unsafe { store::removed(directory, path) });
    }
}

entry!(rename RENAME (from: Path, to: Path) -> c_int, is_on(), {
    before_rename(ProgramFd::CURRENT_DIRECTORY, from);
    before_removal(ProgramFd::CURRENT_DIRECTORY, to);
    RENAME.call()(from, to)
});

entry!(renameat RENAMEAT (from_directory: ProgramFd, from: Path, to_directory: ProgramFd, to: Path) -> c_int, is_on(), {
    before_rename(from_directory, from);
    before_removal(to_directory, to);
    RENAMEAT.call()(from_directory, from, to_directory, to)
});

entry!(renameat2 RENAMEAT2
(from_directory: ProgramFd, from: Path, to_directory: ProgramFd, to: Path, flags: c_uint) -> c_int, is_on(), {
    before_rename(from_directory, from);
    // RENAME_EXCHANGE gives the other file a new path as well.
    if flags & libc::RENAME_EXCHANGE == 0 {
        before_removal(to_directory, to);
    } else {
        before_rename(to_directory, to);
    }
    RENAMEAT2.call()(from_directory, from, to_directory, to, flags)
});

entry!(unlink UNLINK (path: Path) -> c_int, is_on(), {
    before_removal(ProgramFd::CURRENT_DIRECTORY, path);
    UNLINK.call()(path)
});

entry!(unlinkat UNLINKAT (directory: ProgramFd, path: Path, flags: c_int) -> c_int, is_on(), {
    before_removal(directory, path);
    UNLINKAT.call()(directory, path, flags)
});

entry!(remove REMOVE (path: Path) -> c_int, is_on(), {
    before_removal(ProgramFd::CURRENT_DIRECTORY, path);
    REMOVE.call()(path)
});

/// Takes a file out of a mapped log before it gets a second link: files with several links are not logged.
fn before_link(directory: ProgramFd, path: Path, flags: c_int) {
    let no_follow = if flags & libc::AT_SYMLINK_FOLLOW == 0 { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
    let flags = flags & libc::AT_EMPTY_PATH | no_follow;
    // SAFETY: `path` is NUL-terminated, as linkat(2) requires, or the kernel refuses to read it.
    with_errno_saved(|| unsafe { store::stop_logging_at(directory, path, flags) });
}

entry!(link LINK (from: Path, to: Path) -> c_int, store::has_mapped_files(), {
    before_link(ProgramFd::CURRENT_DIRECTORY, from, 0);
    LINK.call()(from, to)
});

entry!(linkat LINKAT (from_directory: ProgramFd, from: Path, to_directory: ProgramFd, to: Path, flags: c_int) -> c_int, store::has_mapped_files(), {
    before_link(from_directory, from, flags);
    LINKAT.call()(from_directory, from, to_directory, to, flags)
});
