//! Files that a program syncs, and what becomes of them by calls that no record of its log tells of. Without `--log` each hook is a
//! load and a jump.
//!
//! Not seen is what libc writes by itself: `fopen`'s files are never opened by a hook here, `fdopen` and `dprintf` say goodbye to the
//! log. Nor are system calls that a program makes by its own instructions, which it then makes for its syncs as well.

use crate::exit;
use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use libc::{iovec, mode_t, off_t, ssize_t};
use std::ffi::CString;
use uncopy_core::stats::Counter;
use uncopy_engine::call::output::{Output, is_candidate};
use uncopy_engine::service::activation;
use uncopy_engine::state::counters;
use uncopy_interpose::{alias, entry, slots, variadic};
use uncopy_store::program::{self as store, At, Writing};
use uncopy_sys::errno;
use uncopy_sys::iovec::Part;
use uncopy_sys::lock::Critical;

type Path = *const c_char;
/// A function with arguments that only libc counts.
type Variadic = unsafe extern "C" fn();

slots! {
    OPEN = c"open": unsafe extern "C" fn(Path, c_int, mode_t) -> c_int;
    OPENAT = c"openat": unsafe extern "C" fn(c_int, Path, c_int, mode_t) -> c_int;
    CREAT = c"creat": unsafe extern "C" fn(Path, mode_t) -> c_int;
    OPEN_2 = c"__open_2": unsafe extern "C" fn(Path, c_int) -> c_int;
    OPENAT_2 = c"__openat_2": unsafe extern "C" fn(c_int, Path, c_int) -> c_int;
    FSYNC = c"fsync": unsafe extern "C" fn(c_int) -> c_int;
    FDATASYNC = c"fdatasync": unsafe extern "C" fn(c_int) -> c_int;
    SYNC = c"sync": unsafe extern "C" fn();
    SYNCFS = c"syncfs": unsafe extern "C" fn(c_int) -> c_int;
    FTRUNCATE = c"ftruncate": unsafe extern "C" fn(c_int, off_t) -> c_int;
    FALLOCATE = c"fallocate": unsafe extern "C" fn(c_int, c_int, off_t, off_t) -> c_int;
    POSIX_FALLOCATE = c"posix_fallocate": unsafe extern "C" fn(c_int, off_t, off_t) -> c_int;
    RENAME = c"rename": unsafe extern "C" fn(Path, Path) -> c_int;
    RENAMEAT = c"renameat": unsafe extern "C" fn(c_int, Path, c_int, Path) -> c_int;
    RENAMEAT2 = c"renameat2": unsafe extern "C" fn(c_int, Path, c_int, Path, c_uint) -> c_int;
    UNLINK = c"unlink": unsafe extern "C" fn(Path) -> c_int;
    UNLINKAT = c"unlinkat": unsafe extern "C" fn(c_int, Path, c_int) -> c_int;
    REMOVE = c"remove": unsafe extern "C" fn(Path) -> c_int;
    FDOPEN = c"fdopen": unsafe extern "C" fn(c_int, Path) -> *mut c_void;
    DPRINTF = c"dprintf": Variadic;
    DPRINTF_CHK = c"__dprintf_chk": Variadic;
    VDPRINTF = c"vdprintf": Variadic;
    VDPRINTF_CHK = c"__vdprintf_chk": Variadic;
    AIO_WRITE = c"aio_write": unsafe extern "C" fn(*mut c_void) -> c_int;
    AIO_FSYNC = c"aio_fsync": unsafe extern "C" fn(c_int, *mut c_void) -> c_int;
    LIO_LISTIO = c"lio_listio": unsafe extern "C" fn(c_int, *const c_void, c_int, *mut c_void) -> c_int;
}

/// Whether files may take part in a log.
#[inline(always)]
pub fn is_on() -> bool {
    store::is_on()
}

/// Whether something is to be done about a descriptor.
#[inline(always)]
pub fn is_known(fd: c_int) -> bool {
    store::is_known(fd)
}

/// Files may take part from here on, in logs of who waits under this name: those that `globs` name, if there are any; `always`: also
/// where that has not paid.
pub fn switch_on(socket: &[u8], globs: Option<&[u8]>, always: bool) {
    let globs = globs.into_iter().flat_map(|globs| globs.split(|byte| *byte == b':'));
    let globs = globs.filter_map(|glob| CString::new(glob).ok()).collect();
    if let Ok(socket) = CString::new(socket) {
        store::switch_on(socket, globs, always);
    }
}

/// Runs what is to be done beside a call of the program's, with `errno` kept, and none of its handlers.
fn aside(work: impl FnOnce()) {
    let _errno = errno::Keep::new();
    let _critical = Critical::enter();
    work();
}

/// How often somebody who opens a file without waiting waits for a keeper that leaves it, 10 ms each.
const MAX_DOZES: usize = 200;

/// Opens a file.
#[cold]
fn open_by(flags: c_int, open: impl Fn() -> c_int) -> c_int {
    // The descriptors of a child of vfork are its own.
    let is_owner = exit::is_owner();
    if is_owner {
        aside(store::before_open);
    }
    let forks = store::forks_before_open();
    let mut fd = open();
    // With O_NONBLOCK the kernel has told the keeper, but does not wait for the end of its lease.
    let is_leased = || errno::get() == libc::EWOULDBLOCK && flags & libc::O_NONBLOCK != 0;
    for _ in 0..MAX_DOZES {
        if fd >= 0 || !is_leased() || !store::has_begun() {
            break;
        }
        uncopy_sys::clock::doze();
        fd = open();
    }
    if fd >= 0 && is_owner && may_write(flags) {
        aside(|| store::opened(fd, flags, forks));
    }
    fd
}

const fn may_write(flags: c_int) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

fn matters(flags: c_int) -> bool {
    is_on() && (may_write(flags) || flags & libc::O_NONBLOCK != 0 || store::number() > 0)
}

// The last argument is only looked at with O_CREAT and O_TMPFILE; taking it in any case is what every libc does.
entry!(open OPEN (path: Path, flags: c_int, mode: mode_t) -> c_int, matters(flags), {
    open_by(flags, || OPEN.call()(path, flags, mode))
});

entry!(openat OPENAT (directory: c_int, path: Path, flags: c_int, mode: mode_t) -> c_int, matters(flags), {
    open_by(flags, || OPENAT.call()(directory, path, flags, mode))
});

entry!(creat CREAT (path: Path, mode: mode_t) -> c_int, is_on(), {
    open_by(libc::O_WRONLY, || CREAT.call()(path, mode))
});

entry!(__open_2 OPEN_2 (path: Path, flags: c_int) -> c_int, matters(flags), {
    open_by(flags, || OPEN_2.call()(path, flags))
});

entry!(__openat_2 OPENAT_2 (directory: c_int, path: Path, flags: c_int) -> c_int, matters(flags), {
    open_by(flags, || OPENAT_2.call()(directory, path, flags))
});

alias!(open64 = open (path: Path, flags: c_int, mode: mode_t) -> c_int);
alias!(openat64 = openat (directory: c_int, path: Path, flags: c_int, mode: mode_t) -> c_int);
alias!(creat64 = creat (path: Path, mode: mode_t) -> c_int);
alias!(__open64_2 = __open_2 (path: Path, flags: c_int) -> c_int);
alias!(__openat64_2 = __openat_2 (directory: c_int, path: Path, flags: c_int) -> c_int);

/// A sync, by `real` unless the log answers it.
fn synced(fd: c_int, real: impl Fn() -> c_int) -> c_int {
    static ARE_PUBLISHED: AtomicBool = AtomicBool::new(false);
    let kept = errno::get();
    // A critical section ends with the errno that it began with.
    let (synced, said) = {
        let _critical = Critical::enter();
        (store::sync(fd, real), errno::get())
    };
    if let Some(bytes) = synced.logged_bytes {
        if !ARE_PUBLISHED.swap(true, Relaxed) {
            activation::begin_without_engine();
        }
        counters::add(Counter::LogSyncs, 1);
        counters::add(Counter::LogBytes, bytes);
    }
    errno::set(if synced.result == 0 { kept } else { said });
    synced.result
}

entry!(fsync FSYNC (fd: c_int) -> c_int, store::is_known(fd), {
    synced(fd, || FSYNC.call()(fd))
});

entry!(fdatasync FDATASYNC (fd: c_int) -> c_int, store::is_known(fd), {
    synced(fd, || FDATASYNC.call()(fd))
});

/// All files are about to be synced by another way.
fn before_sync_of_all() {
    aside(|| store::change_all(true));
}

entry!(sync SYNC () -> (), is_on(), {
    before_sync_of_all();
    SYNC.call()();
});

entry!(syncfs SYNCFS (fd: c_int) -> c_int, is_on(), {
    before_sync_of_all();
    SYNCFS.call()(fd)
});

/// Before the process becomes another user's, or is allowed less: nothing is shared with the log's keeper any more.
pub fn before_change() {
    if is_on() {
        aside(store::part);
    }
}

/// The same, and no call of a file is looked at from here on.
pub fn leave() {
    before_change();
    store::leave();
}

/// Something is about to happen to a file that no record tells of; it may take part again.
pub fn change(fd: c_int) {
    if store::is_known(fd) {
        aside(|| store::change(fd, true));
    }
}

/// The same, and it does not take part again.
pub fn refuse(fd: c_int) {
    if store::is_known(fd) {
        aside(|| store::change(fd, false));
    }
}

/// No file takes part from here on.
pub fn end_all() {
    if is_on() {
        aside(|| store::change_all(false));
    }
}

entry!(ftruncate FTRUNCATE (fd: c_int, len: off_t) -> c_int, store::is_known(fd), {
    change(fd);
    FTRUNCATE.call()(fd, len)
});

entry!(fallocate FALLOCATE (fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int, store::is_known(fd), {
    change(fd);
    FALLOCATE.call()(fd, mode, offset, len)
});

entry!(posix_fallocate POSIX_FALLOCATE (fd: c_int, offset: off_t, len: off_t) -> c_int, store::is_known(fd), {
    change(fd);
    POSIX_FALLOCATE.call()(fd, offset, len)
});

alias!(ftruncate64 = ftruncate (fd: c_int, len: off_t) -> c_int);
alias!(fallocate64 = fallocate (fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int);
alias!(posix_fallocate64 = posix_fallocate (fd: c_int, offset: off_t, len: off_t) -> c_int);

/// What a path names is about to have another one, or none: its records have the old one.
#[cold]
fn before_rename(directory: c_int, path: Path) {
    if store::has_begun() {
        // SAFETY: the program's own path; the kernel refuses one that cannot be read.
        aside(|| unsafe { store::renamed(directory, path) });
    }
}

entry!(rename RENAME (from: Path, to: Path) -> c_int, is_on(), {
    before_rename(libc::AT_FDCWD, from);
    before_rename(libc::AT_FDCWD, to);
    RENAME.call()(from, to)
});

entry!(renameat RENAMEAT (from_directory: c_int, from: Path, to_directory: c_int, to: Path) -> c_int, is_on(), {
    before_rename(from_directory, from);
    before_rename(to_directory, to);
    RENAMEAT.call()(from_directory, from, to_directory, to)
});

entry!(renameat2 RENAMEAT2
(from_directory: c_int, from: Path, to_directory: c_int, to: Path, flags: c_uint) -> c_int, is_on(), {
    before_rename(from_directory, from);
    before_rename(to_directory, to);
    RENAMEAT2.call()(from_directory, from, to_directory, to, flags)
});

entry!(unlink UNLINK (path: Path) -> c_int, is_on(), {
    before_rename(libc::AT_FDCWD, path);
    UNLINK.call()(path)
});

entry!(unlinkat UNLINKAT (directory: c_int, path: Path, flags: c_int) -> c_int, is_on(), {
    before_rename(directory, path);
    UNLINKAT.call()(directory, path, flags)
});

entry!(remove REMOVE (path: Path) -> c_int, is_on(), {
    before_rename(libc::AT_FDCWD, path);
    REMOVE.call()(path)
});

entry!(fdopen FDOPEN (fd: c_int, mode: Path) -> *mut c_void, store::is_known(fd), {
    refuse(fd);
    FDOPEN.call()(fd, mode)
});

// Functions of libc's that write to their first argument, a descriptor.
variadic! {
    dprintf DPRINTF prepare_dprintf (fd: c_int) { refuse(fd) }
    __dprintf_chk DPRINTF_CHK prepare_dprintf_chk (fd: c_int) { refuse(fd) }
    vdprintf VDPRINTF prepare_vdprintf (fd: c_int) { refuse(fd) }
    __vdprintf_chk VDPRINTF_CHK prepare_vdprintf_chk (fd: c_int) { refuse(fd) }
}

/// The file of a request of aio(7): its first member.
///
/// # Safety
/// A request of the program's.
unsafe fn refuse_file_of(request: *mut c_void) {
    // SAFETY: the program passes the request to be read.
    refuse(unsafe { request.cast::<c_int>().read() });
}

entry!(aio_write AIO_WRITE (request: *mut c_void) -> c_int, is_on(), {
    refuse_file_of(request);
    AIO_WRITE.call()(request)
});

entry!(aio_fsync AIO_FSYNC (how: c_int, request: *mut c_void) -> c_int, is_on(), {
    refuse_file_of(request);
    AIO_FSYNC.call()(how, request)
});

entry!(lio_listio LIO_LISTIO (mode: c_int, list: *const c_void, count: c_int, event: *mut c_void) -> c_int, is_on(), {
    end_all();
    LIO_LISTIO.call()(mode, list, count, event)
});

/// Of libaio, which may be a plugin's own, where nothing that is looked up finds it. Its function is the system call with its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_setup(count: c_int, context: *mut c_void) -> c_int {
    if is_on() {
        end_all();
    }
    // SAFETY: the program's own arguments.
    unsafe {
        uncopy_sys::raw::call(libc::SYS_io_setup as usize, [count as usize, context as usize, 0, 0, 0, 0])
            as c_int
    }
}

alias!(aio_write64 = aio_write (request: *mut c_void) -> c_int);
alias!(aio_fsync64 = aio_fsync (how: c_int, request: *mut c_void) -> c_int);
alias!(lio_listio64 = lio_listio (mode: c_int, list: *const c_void, count: c_int, event: *mut c_void) -> c_int);

/// Looks at a system call that the program makes through libc's `syscall`, before it is made.
pub fn before_call(number: c_long, a: usize, c: usize) {
    match number {
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_pwrite64
        | libc::SYS_pwritev
        | libc::SYS_pwritev2
        | libc::SYS_ftruncate
        | libc::SYS_fallocate
        | libc::SYS_sendfile
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_close
        | libc::SYS_dup
        | libc::SYS_dup2
        | libc::SYS_dup3 => refuse(a as c_int),
        libc::SYS_splice | libc::SYS_copy_file_range => refuse(c as c_int),
        libc::SYS_sync
        | libc::SYS_syncfs
        | libc::SYS_io_uring_setup
        | libc::SYS_io_setup
        | libc::SYS_rename
        | libc::SYS_renameat
        | libc::SYS_renameat2
        | libc::SYS_unlink
        | libc::SYS_unlinkat
        | libc::SYS_close_range => end_all(),
        _ => {}
    }
}

/// Whether a mapping shows what is written to it to a file.
pub fn is_shared_mapping(flags: c_int, fd: c_int) -> bool {
    flags & libc::MAP_TYPE != libc::MAP_PRIVATE && flags & libc::MAP_ANONYMOUS == 0 && store::is_known(fd)
}

/// Before the program sets what its descriptor does (`F_SETFL`), or takes a lease.
pub fn before_fcntl(fd: c_int, command: c_int, argument: usize) {
    const SYNCED: c_int = libc::O_DIRECT | libc::O_DSYNC;
    /// linux/fcntl.h.
    const F_SETSIG: c_int = 10;
    const F_SETOWN_EX: c_int = 15;
    match command {
        libc::F_SETFL if argument as c_int & SYNCED != 0 => refuse(fd),
        // Whoever writes to it may write elsewhere from here on.
        libc::F_SETFL => change(fd),
        libc::F_SETLEASE | libc::F_SETOWN | F_SETSIG | F_SETOWN_EX => refuse(fd),
        _ => {}
    }
}

/// What the program hears of its descriptor: a lease of the keeper's, and `O_ASYNC` that comes with it, are none of its own.
pub fn after_fcntl(fd: c_int, command: c_int, result: c_int) -> c_int {
    match command {
        libc::F_GETFL if result >= 0 && store::takes_part(fd) => result & !libc::O_ASYNC,
        libc::F_GETLEASE if result >= 0 && store::takes_part(fd) => libc::F_UNLCK,
        _ => result,
    }
}

/// Before a request to a file: some change what it holds, or how it lies.
pub fn before_ioctl(fd: c_int, request: c_ulong) {
    if request != libc::FIONREAD
        && request != libc::FIOCLEX
        && request != libc::FIONCLEX
        && request != libc::TCGETS
    {
        change(fd);
    }
}

/// Before `fd` is closed.
pub fn closed(fd: c_int) {
    if store::is_known(fd) && exit::is_owner() {
        aside(|| store::closed(fd));
    }
}

/// Before descriptors are closed.
pub fn closed_range(first: c_uint, last: c_uint) {
    if is_on() && exit::is_owner() {
        aside(|| store::closed_range(first, last));
    }
}

/// After a descriptor was duplicated, if `to` is one.
pub fn duplicated(from: c_int, to: c_int) {
    if is_on() && to >= 0 && (store::is_known(from) || store::is_known(to)) && exit::is_owner() {
        aside(|| store::duplicated(from, to));
    }
}

/// Before a fork.
pub fn before_fork() {
    if is_on() {
        aside(store::before_fork);
    }
}

/// After it, in the parent.
pub fn after_fork() {
    if is_on() {
        aside(store::after_fork);
    }
}

/// Between those, if the child shares this process's table of descriptors.
pub fn share_descriptors() {
    if is_on() {
        aside(store::share_descriptors);
    }
}

/// In a forked child.
pub fn in_child() {
    if is_on() {
        aside(store::in_child);
    }
}

/// Before the calling process, or a child of vfork, executes another program.
pub fn before_exec() {
    if is_on() {
        aside(|| store::before_exec(exit::is_owner()));
    }
}

/// Before another program is started by a function that has its own way to do so.
pub fn before_spawn() {
    if is_on() {
        aside(store::before_spawn);
    }
}

/// How a write is made, once its parts are gathered.
type Real<'a> = &'a dyn Fn(*const iovec, usize) -> ssize_t;

/// Makes a write: by `plainly` to what takes part in no log, else by `real`, and what was written is kept for the next sync.
#[inline(always)]
pub fn write(
    fd: c_int,
    at: Option<At>,
    parts: &[Part],
    real: Real<'_>,
    plainly: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let Some(at) = at.filter(|_| store::is_known(fd)) else { return plainly() };
    match begin(fd) {
        Writing::Plain => plainly(),
        Writing::Counted(counted) => {
            let written = plainly();
            if let Ok(len_bytes) = usize::try_from(written) {
                counted.note_written(len_bytes);
            }
            written
        }
        Writing::Logged(write) => write_logged(fd, at, parts, real, write),
    }
}

fn begin(fd: c_int) -> Writing {
    let _errno = errno::Keep::new();
    store::begin_write(fd)
}

#[cold]
fn write_logged(fd: c_int, at: At, parts: &[Part], real: Real<'_>, write: store::Write) -> ssize_t {
    // A critical section ends with the errno that it began with.
    let (written, said) = {
        let _critical = Critical::enter();
        (write_under(fd, at, parts, real, write), errno::get())
    };
    errno::set(said);
    written
}

/// The same in a critical section.
fn write_under(fd: c_int, at: At, parts: &[Part], real: Real<'_>, write: store::Write) -> ssize_t {
    let call = |parts: &[Part]| {
        let written = real(parts.as_ptr().cast(), parts.len());
        if let Ok(len_bytes) = usize::try_from(written) {
            let _errno = errno::Keep::new();
            // SAFETY: the kernel has just read so many bytes of them; they are the program's, or the output holds them.
            unsafe { write.done(at, parts, len_bytes) };
        }
        written
    };
    if !is_candidate(parts) {
        return call(parts);
    }
    let Some(output) = Output::begin(fd, parts) else { return call(parts) };
    let written = output.call(call);
    match usize::try_from(written) {
        Ok(len_bytes) => output.finish(len_bytes),
        Err(_) => drop(output),
    }
    written
}
