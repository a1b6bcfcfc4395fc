//! Operating system interface of the command: small typed functions over rustix, `uncopy_sys`
//! (userfaultfd and mappings) and libc. Everything above is safe code.
#![allow(unsafe_code)]

pub mod child;
pub mod uffd;

use rustix::fs::{AtFlags, CWD, FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::FdFlags;
use rustix::process::{Resource, getrlimit};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, IntoRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use uncopy_sys::mem::Reservation;
use uncopy_sys::private_directory::{DirectoryError, FileKind, PrivateDirectory};

/// Disposition of a signal at the program's start.
pub struct Disposition(libc::sighandler_t);

/// Ignores `SIGPIPE`, so that writing to a closed pipe is an error instead of the end.
pub fn ignore_sigpipe() -> Disposition {
    // SAFETY: signal(2) needs a valid handler or constant; SIG_IGN is a constant.
    Disposition(unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) })
}

/// Restores the disposition that `SIGPIPE` had before [`ignore_sigpipe`].
pub fn restore_sigpipe(disposition: &Disposition) {
    if disposition.0 != libc::SIG_ERR {
        // SAFETY: signal(2) needs a valid handler or constant. The value came from signal(2) at the
        // start, when no handler was installed, so it is SIG_DFL or SIG_IGN, inherited through
        // execve.
        unsafe { libc::signal(libc::SIGPIPE, disposition.0) };
    }
}

/// Forks a child in a session of its own. Returns true in the child, and false in the parent, which
/// does not wait.
///
/// # Panics
/// If the process has other threads, which the child would not have.
pub fn fork_detached() -> io::Result<bool> {
    assert!(!uncopy_sys::thread::has_other_threads(), "a process with one thread");
    // SAFETY: fork(2) copies only the calling thread; there is no other whose locks the child would
    // find held.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            rustix::process::setsid()?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Drops all capabilities of the calling thread and of threads that it creates, for good.
pub fn drop_privileges() -> io::Result<()> {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};
    let (effective, permitted, inheritable) =
        (CapabilitySet::empty(), CapabilitySet::empty(), CapabilitySet::empty());
    set_no_new_privs(true)?;
    Ok(set_capabilities(None, CapabilitySets { effective, permitted, inheritable })?)
}

/// Raises the limit on open descriptors to the maximum.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = rustix::process::setrlimit(
        Resource::Nofile,
        rustix::process::Rlimit { current: limit.maximum, ..limit },
    );
}

/// Whether the calling thread may create and change network devices of its namespace
/// (CAP_NET_ADMIN).
pub fn may_administer_network() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN))
}

/// Redirects standard output to `/dev/null`.
pub fn close_stdout() -> io::Result<()> {
    let nothing = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nothing)?;
    Ok(())
}

/// Closes all inherited descriptors but the standard ones.
pub fn close_inherited() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: close_range(2) takes numbers. No object here owns a descriptor from 3 on yet.
    unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, 0) };
}

/// Returns the environment's entries unchanged, including repeated ones and those without `=`.
pub fn environment() -> Vec<&'static CStr> {
    unsafe extern "C" {
        static mut environ: *const *const libc::c_char;
    }
    let mut entries = Vec::new();
    // SAFETY: `environ` is null or a null-terminated array of C strings that the kernel put on the
    // stack. The command starts no thread before this and never changes its own environment, so
    // array and strings stay unchanged until execve or exit.
    unsafe {
        let mut next = environ;
        while !next.is_null() && !(*next).is_null() {
            entries.push(CStr::from_ptr(*next));
            next = next.add(1);
        }
    }
    entries
}

/// Replaces this process; returns only on failure.
pub fn execve(path: &CStr, arguments: &[CString], environment: &[&CStr]) -> io::Error {
    let argv: Vec<_> = arguments.iter().map(|entry| entry.as_ptr()).chain([std::ptr::null()]).collect();
    let envp: Vec<_> = environment.iter().map(|entry| entry.as_ptr()).chain([std::ptr::null()]).collect();
    // SAFETY: `path` is a C string. Both arrays end with a null pointer and point to C strings that
    // the borrowed arguments keep alive during the call.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}

/// Checks that the effective user may execute `path`.
pub fn check_executable(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::accessat(CWD, path, rustix::fs::Access::EXEC_OK, AtFlags::EACCESS)?)
}

/// Whether the file carries capabilities (`setcap`).
pub fn has_file_capabilities(file: &File) -> bool {
    rustix::fs::fgetxattr_query(file, c"security.capability").is_ok_and(|len_bytes| len_bytes > 0)
}

/// Returns the real user id.
pub fn user_id() -> u32 {
    rustix::process::getuid().as_raw()
}

/// Returns the effective user id.
pub fn effective_user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the name of a user; `None` if there is none.
pub fn user_name(user: u32) -> Option<String> {
    const LEN_BYTES: usize = 16 << 10;
    let mut buffer = vec![0; LEN_BYTES];
    // SAFETY: `passwd` consists of numbers and pointers, for which zero bytes are valid.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: getpwuid_r(3) writes the structure, `buffer.len()` bytes of the buffer and the
    // result, all of which are writable and outlive the call.
    let failed = unsafe { libc::getpwuid_r(user, &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut found) };
    if failed != 0 || found.is_null() {
        return None;
    }
    // SAFETY: the user was found, so `pw_name` is a C string in `buffer`, which still lives.
    Some(unsafe { CStr::from_ptr(entry.pw_name) }.to_string_lossy().into_owned())
}

/// Returns the id of a group; `None` if there is no group of this name.
pub fn group_id(name: &CStr) -> Option<u32> {
    const LEN_BYTES: usize = 64 << 10;
    let mut buffer = vec![0; LEN_BYTES];
    // SAFETY: `group` consists of numbers and pointers, for which zero bytes are valid.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: `name` is a C string. getgrnam_r(3) writes the structure, `buffer.len()` bytes of the
    // buffer and the result, all of which are writable and outlive the call.
    let failed =
        unsafe { libc::getgrnam_r(name.as_ptr(), &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut found) };
    (failed == 0 && !found.is_null()).then_some(entry.gr_gid)
}

/// Returns the unit of processes' times, in ticks per second.
pub fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

/// Returns the soft limits of address space, data and locked memory, in that order; `None` is
/// unlimited.
pub fn memory_limits() -> [Option<u64>; 3] {
    [Resource::As, Resource::Data, Resource::Memlock].map(|resource| getrlimit(resource).current)
}

/// Whether `len_bytes` of addresses can be reserved, as the library does at first.
pub fn can_reserve(len_bytes: usize) -> bool {
    // SAFETY: `shortened` needs pages that nothing refers to. No address in this reservation was
    // taken.
    Reservation::new(len_bytes).map(|reserved| unsafe { reserved.shortened(0) }).is_ok()
}

/// Returns the kernel's release and machine, as `uname -r` and `uname -m` print them.
pub fn kernel() -> (String, String) {
    let name = rustix::system::uname();
    let text = |field: &CStr| field.to_string_lossy().into_owned();
    (text(name.release()), text(name.machine()))
}

/// Duplicates a descriptor to a number of at least `lowest` that programs inherit. The duplicate is
/// never closed, also not by execve.
pub fn dup_inheritable(fd: BorrowedFd<'_>, lowest: RawFd) -> io::Result<RawFd> {
    let copy = rustix::io::fcntl_dupfd_cloexec(fd, lowest)?;
    rustix::io::fcntl_setfd(&copy, FdFlags::empty())?;
    Ok(copy.into_raw_fd())
}

/// Keeps an inherited descriptor from the program that this process becomes.
pub fn set_close_on_exec(fd: BorrowedFd<'_>) {
    // The descriptor is open, so that this cannot fail.
    let _ = rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC);
}

/// Borrows a descriptor that this process inherited.
///
/// Returns `None` if `fd` is not open, or is one of the three standard streams.
pub fn inherited_descriptor(fd: RawFd) -> Option<BorrowedFd<'static>> {
    // SAFETY: fcntl(2) with F_GETFD takes no further argument, and fails on a closed descriptor.
    if fd < 3 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return None;
    }
    // SAFETY: `borrow_raw` needs a descriptor that stays open. `fd` is open, and the command closes
    // no descriptor that it did not open, except in the keeper (`close_inherited`), which borrows
    // none.
    Some(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Converts a path to a C string.
///
/// # Errors
/// EINVAL if the path has a zero byte.
pub fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Opens a regular file for reading. Waits for the holder of a lease on it (fcntl(2)), but never on
/// a file of another kind.
///
/// # Errors
/// EINVAL if it is not a regular file, else the kernel's error.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let found = rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
    if !File::from(found.try_clone()?).metadata()?.is_file() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // Opens the file that was checked, even if another file has its name by now.
    File::open(link)
}

/// Opens a file of a private directory; `access` is `O_RDONLY` or another access mode.
pub fn open_in(
    directory: &PrivateDirectory,
    name: &CStr,
    kind: FileKind,
    access: i32,
) -> Result<File, DirectoryError> {
    Ok(OwnedFd::from(directory.open_file(name, kind, access)?).into())
}

/// Opens a recording of a private directory, which may also belong to root.
pub fn open_recording_in(directory: &PrivateDirectory, name: &CStr) -> Result<File, DirectoryError> {
    let owner = directory.owner();
    let fd = directory.open_file_of(name, FileKind::File, libc::O_RDWR, |user| user == owner || user == 0)?;
    Ok(OwnedFd::from(fd).into())
}

/// Returns the names in a private directory.
pub fn names_in(directory: &PrivateDirectory) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    directory.each_name(|name| names.push(name.to_owned()))?;
    Ok(names)
}

/// Creates a file in memory with `len_bytes` allocated and its size sealed, which only this user
/// can open.
pub fn memory_file(name: &CStr, len_bytes: usize) -> io::Result<File> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len_bytes as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn closed_descriptors_and_standard_streams_are_not_inherited() {
        assert!(inherited_descriptor(1).is_none());
        assert!(inherited_descriptor(-1).is_none());
        assert!(inherited_descriptor(1_000_000).is_none());
    }

    #[test]
    fn the_environment_is_the_one_the_standard_library_sees() {
        let path = environment()
            .iter()
            .find_map(|entry| entry.to_bytes().strip_prefix(b"PATH=").map(<[u8]>::to_vec));
        assert_eq!(path.as_deref(), std::env::var_os("PATH").as_deref().map(OsStr::as_bytes));
    }
}
