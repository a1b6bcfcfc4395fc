//! What the command asks of the operating system, each thing behind a small typed function: rustix where it has
//! it, `uncopy_sys` for userfaultfd and mappings, libc for the rest. Everything above is safe code.
#![allow(unsafe_code)]

pub mod child;
pub mod uffd;

use rustix::fs::{AtFlags, CWD, FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::FdFlags;
use rustix::process::{Resource, getrlimit};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, IntoRawFd as _, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use uncopy_sys::directory::{Kind, PrivateDirectory, Refused};
use uncopy_sys::mem::Reservation;

/// What the kernel does with a signal, as found at the program's start.
pub struct Disposition(libc::sighandler_t);

/// Ignores `SIGPIPE`, so that a closed pipe is an error to be looked at and not the end.
pub fn ignore_sigpipe() -> Disposition {
    // SAFETY: SIG_IGN installs no handler; signal() has no other requirement.
    Disposition(unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) })
}

/// Puts back what `SIGPIPE` did before [`ignore_sigpipe`].
pub fn restore_sigpipe(disposition: &Disposition) {
    if disposition.0 != libc::SIG_ERR {
        // SAFETY: the value came from signal() and nothing here installs handlers, so it is
        // SIG_DFL or SIG_IGN, inherited through execve.
        unsafe { libc::signal(libc::SIGPIPE, disposition.0) };
    }
}

/// Leaves the process, which goes on in a child that nobody waits for, in a session of its own. Whether this is the child.
///
/// # Panics
/// The process has other threads, which the child would not have.
pub fn detach() -> io::Result<bool> {
    assert!(!uncopy_sys::thread::others_live(), "a process with one thread");
    // SAFETY: there is no other thread whose locks the child would find held.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            rustix::process::setsid()?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// The calling thread, and those that it makes, can do no more than any process of its user.
pub fn drop_privileges() -> io::Result<()> {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};
    let (effective, permitted, inheritable) =
        (CapabilitySet::empty(), CapabilitySet::empty(), CapabilitySet::empty());
    set_no_new_privs(true)?;
    Ok(set_capabilities(None, CapabilitySets { effective, permitted, inheritable })?)
}

/// Lets this process have as many descriptors as it may.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = rustix::process::setrlimit(
        Resource::Nofile,
        rustix::process::Rlimit { current: limit.maximum, ..limit },
    );
}

/// Whether the calling thread may make and change network devices of its namespace.
pub fn may_administer_network() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN))
}

/// A file that came with a message; `None`: there was none (-1).
pub fn file_of(fd: RawFd) -> Option<File> {
    // SAFETY: whoever received it has it from the kernel, and gives it up here.
    (fd >= 0).then(|| unsafe { File::from_raw_fd(fd) })
}

/// Nobody reads standard output any more.
pub fn close_output() -> io::Result<()> {
    let nothing = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nothing)?;
    Ok(())
}

/// Closes all descriptors but the standard ones: those of whoever started this process.
pub fn close_others() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: nothing here has made a descriptor yet.
    unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, 0) };
}

/// The environment's entries as they are, also those without `=` and repeated ones.
pub fn environment() -> Vec<&'static CStr> {
    unsafe extern "C" {
        static mut environ: *const *const libc::c_char;
    }
    let mut entries = Vec::new();
    // SAFETY: environ is null or a null-terminated array of strings that the kernel put on the
    // stack; the command starts no thread before this and never changes its own environment, so
    // the array and the strings live and stay the same until execve or exit.
    unsafe {
        let mut next = environ;
        while !next.is_null() && !(*next).is_null() {
            entries.push(CStr::from_ptr(*next));
            next = next.add(1);
        }
    }
    entries
}

/// Replaces this process; returns only if that failed.
pub fn execve(path: &CStr, arguments: &[CString], environment: &[&CStr]) -> io::Error {
    let argv: Vec<_> = arguments.iter().map(|entry| entry.as_ptr()).chain([std::ptr::null()]).collect();
    let envp: Vec<_> = environment.iter().map(|entry| entry.as_ptr()).chain([std::ptr::null()]).collect();
    // SAFETY: path is a C string; both arrays end with a null pointer and point to C strings that
    // the borrowed arguments keep alive during the call.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}

/// Whether the effective user may execute `path`.
pub fn may_execute(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::accessat(CWD, path, rustix::fs::Access::EXEC_OK, AtFlags::EACCESS)?)
}

/// Whether the file carries capabilities (`setcap`).
pub fn has_file_capabilities(file: &File) -> bool {
    rustix::fs::fgetxattr_query(file, c"security.capability").is_ok_and(|len_bytes| len_bytes > 0)
}

/// Real user id.
pub fn user_id() -> u32 {
    rustix::process::getuid().as_raw()
}

/// Effective user id.
pub fn effective_user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The name of a user; `None`: it has none.
pub fn user_name(user: u32) -> Option<String> {
    const LEN_BYTES: usize = 16 << 10;
    let mut buffer = vec![0; LEN_BYTES];
    // SAFETY: all zero is a passwd that has nothing.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: the structure, the buffer with its length and the result outlive the call.
    let failed = unsafe { libc::getpwuid_r(user, &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut found) };
    if failed != 0 || found.is_null() {
        return None;
    }
    // SAFETY: it was found, so the name is a C string in the buffer.
    Some(unsafe { CStr::from_ptr(entry.pw_name) }.to_string_lossy().into_owned())
}

/// The number of a group; `None`: there is none of this name.
pub fn group_id(name: &CStr) -> Option<u32> {
    const LEN_BYTES: usize = 64 << 10;
    let mut buffer = vec![0; LEN_BYTES];
    // SAFETY: all zero is a group that has nothing.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: the name, the structure, the buffer with its length and the result outlive the call.
    let failed =
        unsafe { libc::getgrnam_r(name.as_ptr(), &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut found) };
    (failed == 0 && !found.is_null()).then_some(entry.gr_gid)
}

/// What times of processes are counted in.
pub fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

/// The soft limits of address space, data and locked memory, in that order; `None`: unlimited.
pub fn memory_limits() -> [Option<u64>; 3] {
    [Resource::As, Resource::Data, Resource::Memlock].map(|resource| getrlimit(resource).current)
}

/// Whether `len_bytes` of addresses can be reserved, as the library does before anything else.
pub fn can_reserve(len_bytes: usize) -> bool {
    // SAFETY: nothing refers to what has just been reserved.
    Reservation::new(len_bytes).map(|reserved| unsafe { reserved.shortened(0) }).is_ok()
}

/// The kernel's release and machine, as `uname -r` and `uname -m` print them.
pub fn kernel() -> (String, String) {
    let name = rustix::system::uname();
    let text = |field: &CStr| field.to_string_lossy().into_owned();
    (text(name.release()), text(name.machine()))
}

/// Duplicates a descriptor to a number of at least `lowest` that programs inherit, and gives it
/// up: it stays open for the rest of the process's life, also across execve.
pub fn leave_to_programs(fd: BorrowedFd<'_>, lowest: RawFd) -> io::Result<RawFd> {
    let copy = rustix::io::fcntl_dupfd_cloexec(fd, lowest)?;
    rustix::io::fcntl_setfd(&copy, FdFlags::empty())?;
    Ok(copy.into_raw_fd())
}

/// Keeps an inherited descriptor from the programs that this process becomes.
pub fn leave_to_nobody(fd: BorrowedFd<'_>) {
    // It is open, so that nothing can fail.
    let _ = rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC);
}

/// A descriptor that this process inherited, for as long as nothing closes it.
///
/// Returns `None` if `fd` is not open, or is one of the three standard streams.
pub fn inherited_descriptor(fd: RawFd) -> Option<BorrowedFd<'static>> {
    // SAFETY: F_GETFD takes no further argument and fails on a closed descriptor.
    if fd < 3 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return None;
    }
    // SAFETY: fd is open, and the command never closes a descriptor that it did not open.
    Some(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// A path as the kernel takes it.
///
/// # Errors
/// EINVAL: it has a zero byte.
pub fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Opens a regular file for reading. Waits for whoever has a lease on it (fcntl(2)), and for nobody where it is something else.
///
/// # Errors
/// EINVAL: it is no regular file; else what the kernel says.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let found = rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
    if !File::from(found.try_clone()?).metadata()?.is_file() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // What was looked at, whatever has its name by now.
    File::open(link)
}

/// Opens a file of a private directory; `access` is `O_RDONLY` or one of its like.
///
/// # Errors
/// Why it is not used.
pub fn open_in(directory: &PrivateDirectory, name: &CStr, kind: Kind, access: i32) -> Result<File, Refused> {
    let fd = directory.open_file(name, kind, access)?;
    // SAFETY: the kernel has just made this descriptor, and nothing else knows it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// The same for a recording, which may be root's too.
///
/// # Errors
/// Why it is not used.
pub fn open_recording_in(directory: &PrivateDirectory, name: &CStr) -> Result<File, Refused> {
    let owner = directory.owner();
    let fd = directory.open_file_of(name, Kind::File, libc::O_RDWR, |user| user == owner || user == 0)?;
    // SAFETY: the kernel has just made this descriptor, and nothing else knows it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Names in a private directory.
///
/// # Errors
/// What reading it says.
pub fn names_in(directory: &PrivateDirectory) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    directory.each_name(|name| names.push(name.to_owned()))?;
    Ok(names)
}

/// A file in memory of so many bytes, all of which there is room for, that only this user can open and nobody
/// can make shorter.
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
