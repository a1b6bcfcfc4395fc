//! Hooks for calls that sync, write or change files. Without `--log` each hook is a load and a jump.
//!
//! Writes inside libc are not intercepted: `fopen` bypasses these hooks, so its files are never logged, and
//! `fdopen` and `dprintf` stop logging the file. Nor are system calls that a program makes without libc; such a
//! program makes its syncs in the same way.
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "each hook has the contract of the libc function of the same name"
)]
#![allow(missing_docs, reason = "as above")]

use core::ffi::{c_int, c_long, c_ulong, c_void};
use libc::{mode_t, off_t};
use std::ffi::CString;
use uncopy_engine::state::phase::handle_all_stream_io;
use uncopy_fdtable::{self as fdtable, FdCallbacks, Feature};
use uncopy_interpose::{alias, entry, slots, variadic};
use uncopy_store::program::descriptors::CountedWrite;
use uncopy_store::program::{self as store, LogMemory};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::lock::Critical;
use uncopy_sys::owner::is_owner;
use uncopy_sys::{clock, errno};

mod aio;
mod cancellation;
mod counts;
mod leaving;
mod optimistic;
mod paths;
mod reads;
mod status;
mod times;
mod writes;

use counts::{count_departures, count_sync};
use leaving::{Path, settle, settle_all, with_errno_saved};
pub use leaving::{
    before_read_by_kernel, exclude, exclude_all, is_on, stop_logging, stop_logging_for, stop_logging_mapped,
};
pub use reads::{may_be_in_log, read};
pub use status::{fstat_by, has_mapped_files};
pub use writes::write;

/// A variadic function, or one with a `va_list`.
type Variadic = unsafe extern "C" fn();

slots! {
    OPEN = c"open": unsafe extern "C" fn(Path, c_int, mode_t) -> ProgramFd;
    OPENAT = c"openat": unsafe extern "C" fn(ProgramFd, Path, c_int, mode_t) -> ProgramFd;
    CREAT = c"creat": unsafe extern "C" fn(Path, mode_t) -> ProgramFd;
    OPEN_2 = c"__open_2": unsafe extern "C" fn(Path, c_int) -> ProgramFd;
    OPENAT_2 = c"__openat_2": unsafe extern "C" fn(ProgramFd, Path, c_int) -> ProgramFd;
    FSYNC = c"fsync": unsafe extern "C" fn(ProgramFd) -> c_int;
    FDATASYNC = c"fdatasync": unsafe extern "C" fn(ProgramFd) -> c_int;
    SYNC = c"sync": unsafe extern "C" fn();
    SYNCFS = c"syncfs": unsafe extern "C" fn(ProgramFd) -> c_int;
    FTRUNCATE = c"ftruncate": unsafe extern "C" fn(ProgramFd, off_t) -> c_int;
    FALLOCATE = c"fallocate": unsafe extern "C" fn(ProgramFd, c_int, off_t, off_t) -> c_int;
    POSIX_FALLOCATE = c"posix_fallocate": unsafe extern "C" fn(ProgramFd, off_t, off_t) -> c_int;
    FDOPEN = c"fdopen": unsafe extern "C" fn(ProgramFd, Path) -> *mut c_void;
    DPRINTF = c"dprintf": Variadic;
    DPRINTF_CHK = c"__dprintf_chk": Variadic;
    VDPRINTF = c"vdprintf": Variadic;
    VDPRINTF_CHK = c"__vdprintf_chk": Variadic;
}

/// Fills the slots of the other modules.
pub fn fill_others() {
    aio::fill();
    cancellation::fill();
    paths::fill();
    status::fill();
    times::fill();
}

/// Returns whether a descriptor needs any handling.
#[inline(always)]
pub fn is_tracked(fd: ProgramFd) -> bool {
    store::is_tracked(fd)
}

/// Switches logging on, with the keeper's socket and the colon-separated patterns of files to log (`None`:
/// all). `always` logs files even where that has not paid. With `memory` the log is mapped and has the only copy.
pub fn switch_on(socket: &[u8], globs: Option<&[u8]>, always: bool, memory: Option<LogMemory>) {
    let globs = globs.into_iter().flat_map(|globs| globs.split(|byte| *byte == b':'));
    let globs = globs.filter_map(|glob| CString::new(glob).ok()).collect();
    if let Ok(socket) = CString::new(socket) {
        fdtable::register(Feature::Log, &FD_CALLBACKS);
        if memory.is_some() {
            // The kernel knows neither the offset nor the last bytes of a file in such a log.
            handle_all_stream_io();
        }
        if memory.is_some_and(|memory| memory.refers) {
            optimistic::release_regularly();
        }
        if memory.is_some_and(|memory| memory.receives && memory.refers) {
            optimistic::switch_on();
        }
        store::switch_on(socket, globs, always, memory);
    }
}

#[cold]
fn open_by(directory: ProgramFd, path: Path, flags: c_int, open: impl Fn() -> ProgramFd) -> ProgramFd {
    // A child of vfork has descriptors of its own.
    let is_owner = is_owner();
    if is_owner {
        with_errno_saved(store::before_open);
    }
    let forks = store::forks_before_open();
    let mut fd = open();
    if !fd.is_valid() && errno::get() == libc::EWOULDBLOCK && flags & libc::O_NONBLOCK != 0 {
        fd = open_after_lease(directory, path, open);
    }
    if fd.is_valid() && is_owner && may_write(flags) {
        with_errno_saved(|| store::opened(fd, flags, forks));
    }
    fd
}

/// Retries an open while a keeper holds the file. With O_NONBLOCK the kernel notifies the keeper, but does not
/// wait for the end of the lease.
fn open_after_lease(directory: ProgramFd, path: Path, open: impl Fn() -> ProgramFd) -> ProgramFd {
    let max_ms = || {
        let mut max_ms = 0;
        // SAFETY: `path` is the argument of the program's open(2), which the kernel has just read or refused;
        // the kernel reads it again.
        with_errno_saved(|| max_ms = unsafe { store::max_hold_ms(directory, path) });
        max_ms
    };
    let begun_ms = clock::now_ms();
    let mut until_ms = begun_ms + max_ms();
    loop {
        // A keeper that was about to take the file has taken it by then.
        if clock::now_ms() >= until_ms {
            until_ms = begun_ms + max_ms();
        }
        if clock::now_ms() >= until_ms {
            errno::set(libc::EWOULDBLOCK);
            return ProgramFd::NONE;
        }
        clock::sleep_10_ms();
        let fd = open();
        if fd.is_valid() || errno::get() != libc::EWOULDBLOCK {
            return fd;
        }
    }
}

const fn may_write(flags: c_int) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

fn needs_handling(flags: c_int) -> bool {
    is_on() && (may_write(flags) || flags & libc::O_NONBLOCK != 0 || store::logged_files() > 0)
}

// The mode is only used with O_CREAT and O_TMPFILE; passing it in any case is what every libc does.
entry!(open OPEN (path: Path, flags: c_int, mode: mode_t) -> ProgramFd, needs_handling(flags), {
    open_by(ProgramFd::CURRENT_DIRECTORY, path, flags, || OPEN.call()(path, flags, mode))
});

entry!(openat OPENAT (directory: ProgramFd, path: Path, flags: c_int, mode: mode_t) -> ProgramFd, needs_handling(flags), {
    open_by(directory, path, flags, || OPENAT.call()(directory, path, flags, mode))
});

entry!(creat CREAT (path: Path, mode: mode_t) -> ProgramFd, is_on(), {
    open_by(ProgramFd::CURRENT_DIRECTORY, path, libc::O_WRONLY, || CREAT.call()(path, mode))
});

entry!(__open_2 OPEN_2 (path: Path, flags: c_int) -> ProgramFd, needs_handling(flags), {
    open_by(ProgramFd::CURRENT_DIRECTORY, path, flags, || OPEN_2.call()(path, flags))
});

entry!(__openat_2 OPENAT_2 (directory: ProgramFd, path: Path, flags: c_int) -> ProgramFd, needs_handling(flags), {
    open_by(directory, path, flags, || OPENAT_2.call()(directory, path, flags))
});

alias!(open64 = open (path: Path, flags: c_int, mode: mode_t) -> ProgramFd);
alias!(openat64 = openat (directory: ProgramFd, path: Path, flags: c_int, mode: mode_t) -> ProgramFd);
alias!(creat64 = creat (path: Path, mode: mode_t) -> ProgramFd);
alias!(__open64_2 = __open_2 (path: Path, flags: c_int) -> ProgramFd);
alias!(__openat64_2 = __openat_2 (directory: ProgramFd, path: Path, flags: c_int) -> ProgramFd);

/// Syncs a file: by the log, or by calling `real`.
fn sync_file(fd: ProgramFd, real: impl Fn() -> c_int) -> c_int {
    cancellation::test();
    settle(fd);
    let errno_before = errno::get();
    let quick = {
        let _critical = Critical::enter_briefly();
        store::sync_mapped(fd)
    };
    // A critical section restores the errno that it began with.
    let (synced, errno_after) = quick.map_or_else(
        || {
            let _critical = Critical::enter();
            (cancellation::deferred(|| store::sync(fd, real)), errno::get())
        },
        |synced| (synced, errno_before),
    );
    count_departures();
    if let Some(bytes) = synced.logged_bytes {
        count_sync(bytes);
    }
    errno::set(if synced.result == 0 { errno_before } else { errno_after });
    synced.result
}

entry!(fsync FSYNC (fd: ProgramFd) -> c_int, store::is_tracked(fd), {
    sync_file(fd, || FSYNC.call()(fd))
});

entry!(fdatasync FDATASYNC (fd: ProgramFd) -> c_int, store::is_tracked(fd), {
    sync_file(fd, || FDATASYNC.call()(fd))
});

fn before_sync_of_all() {
    with_errno_saved(|| store::stop_logging_all(true));
}

entry!(sync SYNC () -> (), is_on(), {
    before_sync_of_all();
    SYNC.call()();
});

entry!(syncfs SYNCFS (fd: ProgramFd) -> c_int, is_on(), {
    before_sync_of_all();
    SYNCFS.call()(fd)
});

/// Detaches from the log's keeper before the process changes its user or loses privileges.
pub fn before_privilege_change() {
    if is_on() {
        with_errno_saved(store::detach);
    }
}

/// Calls [`before_privilege_change`] and disables the hooks.
pub fn disable() {
    before_privilege_change();
    store::disable();
}

entry!(ftruncate FTRUNCATE (fd: ProgramFd, len: off_t) -> c_int, store::is_tracked(fd), {
    let _outside = stop_logging_for(fd);
    FTRUNCATE.call()(fd, len)
});

entry!(fallocate FALLOCATE (fd: ProgramFd, mode: c_int, offset: off_t, len: off_t) -> c_int, store::is_tracked(fd), {
    let _outside = stop_logging_for(fd);
    FALLOCATE.call()(fd, mode, offset, len)
});

entry!(posix_fallocate POSIX_FALLOCATE (fd: ProgramFd, offset: off_t, len: off_t) -> c_int, store::is_tracked(fd), {
    let _outside = stop_logging_for(fd);
    POSIX_FALLOCATE.call()(fd, offset, len)
});

alias!(ftruncate64 = ftruncate (fd: ProgramFd, len: off_t) -> c_int);
alias!(fallocate64 = fallocate (fd: ProgramFd, mode: c_int, offset: off_t, len: off_t) -> c_int);
alias!(posix_fallocate64 = posix_fallocate (fd: ProgramFd, offset: off_t, len: off_t) -> c_int);

entry!(fdopen FDOPEN (fd: ProgramFd, mode: Path) -> *mut c_void, store::is_tracked(fd), {
    exclude(fd);
    FDOPEN.call()(fd, mode)
});

// These functions of libc write to their first argument, a descriptor.
variadic! {
    dprintf DPRINTF prepare_dprintf (fd: ProgramFd) { exclude(fd) }
    __dprintf_chk DPRINTF_CHK prepare_dprintf_chk (fd: ProgramFd) { exclude(fd) }
    vdprintf VDPRINTF prepare_vdprintf (fd: ProgramFd) { exclude(fd) }
    __vdprintf_chk VDPRINTF_CHK prepare_vdprintf_chk (fd: ProgramFd) { exclude(fd) }
}

/// Handles a system call before the program makes it through libc's `syscall`.
pub fn before_call(number: c_long, a: usize, c: usize) {
    match number {
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_pwrite64
        | libc::SYS_pwritev
        | libc::SYS_pwritev2
        | libc::SYS_ftruncate
        | libc::SYS_fallocate
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_close
        | libc::SYS_dup
        | libc::SYS_dup2
        | libc::SYS_dup3 => exclude(ProgramFd::of_argument(a)),
        libc::SYS_splice | libc::SYS_copy_file_range => {
            exclude(ProgramFd::of_argument(c));
            drop(before_read_by_kernel(ProgramFd::of_argument(a)));
        }
        libc::SYS_sync
        | libc::SYS_syncfs
        | libc::SYS_io_uring_setup
        | libc::SYS_io_setup
        | libc::SYS_rename
        | libc::SYS_renameat
        | libc::SYS_renameat2
        | libc::SYS_unlink
        | libc::SYS_unlinkat
        | libc::SYS_close_range => exclude_all(),
        libc::SYS_fstat
        | libc::SYS_lseek
        | libc::SYS_fcntl
        | libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_pread64
        | libc::SYS_preadv
        | libc::SYS_preadv2 => drop(before_read_by_kernel(ProgramFd::of_argument(a))),
        libc::SYS_sendfile => {
            exclude(ProgramFd::of_argument(a));
            stop_logging_mapped();
        }
        libc::SYS_stat
        | libc::SYS_lstat
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_link
        | libc::SYS_linkat
        | libc::SYS_utime
        | libc::SYS_utimes
        | libc::SYS_futimesat
        | libc::SYS_utimensat => stop_logging_mapped(),
        _ => {}
    }
}

/// Returns whether a mapping keeps a file out of the log: writes to it would change the file, or it would lack bytes
/// that only a mapped log has.
pub fn excludes_mapped(flags: c_int, fd: ProgramFd) -> bool {
    flags & libc::MAP_ANONYMOUS == 0
        && (flags & libc::MAP_TYPE != libc::MAP_PRIVATE || store::is_only_copy())
        && store::is_tracked(fd)
}

/// Handles a call of fcntl(2) that sets file status flags, a lease or a signal's owner before it is made. The result
/// is dropped after the call.
#[must_use]
pub fn before_fcntl(fd: ProgramFd, command: c_int, argument: usize) -> Option<CountedWrite> {
    const SYNCED: c_int = libc::O_DIRECT | libc::O_DSYNC;
    /// Command of linux/fcntl.h that libc lacks.
    const F_SETSIG: c_int = 10;
    const F_SETOWN_EX: c_int = 15;
    settle(fd);
    match command {
        libc::F_SETFL if argument as c_int & SYNCED != 0 => exclude(fd),
        // O_APPEND may change, and with it the offsets of writes.
        libc::F_SETFL => return stop_logging_for(fd),
        libc::F_SETLEASE | libc::F_SETOWN | F_SETSIG | F_SETOWN_EX => exclude(fd),
        _ => {}
    }
    None
}

/// Hides the keeper's lease, and the flags that it sets and clears, from the result of fcntl(2).
pub fn after_fcntl(fd: ProgramFd, command: c_int, result: c_int) -> c_int {
    match command {
        libc::F_GETFL if result >= 0 && store::is_in_log(fd) => {
            let hidden = if store::hides_append(fd) { libc::O_APPEND } else { 0 };
            result & !libc::O_ASYNC | hidden
        }
        libc::F_GETLEASE if result >= 0 && store::is_in_log(fd) => libc::F_UNLCK,
        _ => result,
    }
}

/// Handles an ioctl(2) before it is made: some requests change a file's content or layout, or read another file's.
pub fn before_ioctl(fd: ProgramFd, request: c_ulong) {
    /// Request of linux/fs.h that libc lacks: `_IOWR(0x94, 54, struct file_dedupe_range)`.
    const FIDEDUPERANGE: c_ulong = 0xC018_9436;
    if matches!(request, libc::FICLONE | libc::FICLONERANGE | FIDEDUPERANGE) {
        stop_logging_mapped();
    }
    // FIONREAD is the distance from the file offset to the end.
    if (request != libc::FIONREAD || store::has_mapped_files())
        && request != libc::FIOCLEX
        && request != libc::FIONCLEX
        && request != libc::TCGETS
    {
        stop_logging(fd);
    }
}

static FD_CALLBACKS: FdCallbacks = FdCallbacks {
    on_close: |fd| {
        if store::is_tracked(fd) && is_owner() {
            with_errno_saved(|| store::closed(fd));
        }
    },
    on_dup: |from, to| {
        if (store::is_tracked(from) || store::is_tracked(to)) && is_owner() {
            with_errno_saved(|| store::duplicated(from, to));
        }
    },
    on_pass: exclude,
};

/// Prepares for a fork.
pub fn before_fork() {
    if is_on() {
        settle_all();
        with_errno_saved(store::before_fork);
    }
}

/// Ends a fork in the parent.
pub fn after_fork() {
    if is_on() {
        with_errno_saved(store::after_fork);
    }
}

/// Notes between these two that the child shares this process's table of descriptors.
pub fn share_descriptors() {
    if is_on() {
        with_errno_saved(store::share_descriptors);
    }
}

/// Begins a forked child.
pub fn in_child() {
    if is_on() {
        with_errno_saved(store::in_child);
    }
}

/// Prepares for execve(2), in this process or a child of vfork(2).
pub fn before_exec() {
    if is_on() {
        settle_all();
        with_errno_saved(|| store::before_exec(is_owner()));
    }
}

/// Prepares for posix_spawn(3) and similar functions.
pub fn before_spawn() {
    if is_on() {
        settle_all();
        with_errno_saved(store::before_spawn);
    }
}
