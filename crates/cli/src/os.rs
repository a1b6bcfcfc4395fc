//! Every system call that the standard library does not offer safely, each behind a small typed
//! function. The rest of the command is safe code.
//!
//! The userfaultfd constants are written out because distributions ship headers that are older
//! than the kernels they run on. They are those of `include/uapi/linux/userfaultfd.h` of Linux
//! 6.18, where `UFFD_FEATURE_MOVE` is bit 16 (since Linux 6.8).
#![allow(unsafe_code)]

pub mod child;

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The only page size that the library's page arithmetic is written for, bytes.
pub const PAGE_BYTES: usize = 4096;

/// `UFFD_FEATURE_THREAD_ID`: fault messages name the faulting thread.
pub const FEATURE_THREAD_ID: u64 = 1 << 8;
/// `UFFD_FEATURE_MOVE`: pages can be moved with `UFFDIO_MOVE`.
pub const FEATURE_MOVE: u64 = 1 << 16;

/// `_IO(0xAA, 0)`, on `/dev/userfaultfd`.
const USERFAULTFD_IOC_NEW: libc::c_ulong = 0x0000_AA00;
/// `_IOWR(0xAA, 0x3F, struct uffdio_api)`.
const UFFDIO_API: libc::c_ulong = 0xC018_AA3F;
/// `_IOWR(0xAA, 0x00, struct uffdio_register)`.
const UFFDIO_REGISTER: libc::c_ulong = 0xC020_AA00;
/// `_IOWR(0xAA, 0x05, struct uffdio_move)`.
const UFFDIO_MOVE: libc::c_ulong = 0xC028_AA05;
/// `UFFD_API`.
const UFFD_API_VERSION: u64 = 0xAA;
/// `UFFD_USER_MODE_ONLY`: faults from inside system calls are not served.
const UFFD_USER_MODE_ONLY: libc::c_int = 1;
/// `UFFDIO_REGISTER_MODE_MISSING`.
const REGISTER_MODE_MISSING: u64 = 1;
/// `_IOWR('f', 17, struct procmap_query)`, on `/proc/PID/maps`.
const PROCMAP_QUERY: libc::c_ulong = 0xC068_6611;

#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioRegister {
    start: u64,
    len_bytes: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioMove {
    destination: u64,
    source: u64,
    len_bytes: u64,
    mode: u64,
    moved_bytes: i64,
}

#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    flags: u64,
    address: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    device_major: u32,
    device_minor: u32,
    name_size: u32,
    build_id_size: u32,
    name_address: u64,
    build_id_address: u64,
}

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
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: path is a C string.
    let status = unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether the file carries capabilities (`setcap`).
pub fn has_file_capabilities(file: &File) -> bool {
    // SAFETY: the name is a C string; a null buffer of size 0 only asks for the value's size.
    unsafe { libc::fgetxattr(file.as_raw_fd(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// Real user id.
pub fn user_id() -> u32 {
    // SAFETY: getuid has no preconditions.
    unsafe { libc::getuid() }
}

/// Effective user id.
pub fn effective_user_id() -> u32 {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() }
}

/// Size of a page, bytes.
pub fn page_bytes() -> usize {
    // SAFETY: sysconf has no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0)
}

/// The soft limit of a resource; `None` if there is none.
fn soft_limit(limit: libc::rlimit) -> Option<u64> {
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The soft limits of address space, data and locked memory, in that order; `None`: unlimited.
pub fn memory_limits() -> [Option<u64>; 3] {
    [libc::RLIMIT_AS, libc::RLIMIT_DATA, libc::RLIMIT_MEMLOCK].map(|resource| {
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: limit is a writable rlimit for the time of the call.
        unsafe { libc::getrlimit(resource, &raw mut limit) };
        soft_limit(limit)
    })
}

/// Whether `len_bytes` of addresses can be reserved, as the library does before anything else.
pub fn can_reserve(len_bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a mapping at an address of the kernel's choice replaces nothing.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: exactly what has just been mapped, and nothing refers to it.
    unsafe { libc::munmap(start, len_bytes) };
    true
}

/// The kernel's release and machine, as `uname -r` and `uname -m` print them.
pub fn kernel() -> (String, String) {
    // SAFETY: utsname consists of character arrays, for which zero bytes are a value.
    let mut name: libc::utsname = unsafe { mem::zeroed() };
    // SAFETY: name is a writable utsname for the time of the call.
    unsafe { libc::uname(&raw mut name) };
    let text = |field: &[libc::c_char]| {
        // c_char is i8 or u8, depending on the machine; only the bits matter.
        #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss)]
        let bytes: Vec<u8> = field.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    (text(&name.release), text(&name.machine))
}

/// Opens a userfaultfd with the system call.
///
/// `user_mode_only` needs no privilege, but does not serve faults taken inside system calls: it
/// tells a lack of privilege from a seccomp filter.
pub fn userfaultfd_by_syscall(user_mode_only: bool) -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | if user_mode_only { UFFD_USER_MODE_ONLY } else { 0 };
    // SAFETY: userfaultfd takes one integer and returns a descriptor or -1.
    owned(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) })
}

/// Opens a userfaultfd through a descriptor of `/dev/userfaultfd` (Linux 6.1 and later).
pub fn userfaultfd_by_device(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: USERFAULTFD_IOC_NEW takes flags by value and returns a descriptor or -1.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, libc::O_CLOEXEC) };
    owned(libc::c_long::from(fd))
}

/// Takes the descriptor that a system call returned.
fn owned(returned: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(returned) {
        // SAFETY: the kernel has just returned this descriptor and nothing else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Agrees with the kernel on `features` and returns every feature that it has.
///
/// # Errors
/// `EINVAL` if the kernel lacks one of them.
pub fn enable_features(uffd: BorrowedFd<'_>, features: u64) -> io::Result<u64> {
    let mut api = UffdioApi { api: UFFD_API_VERSION, features, ioctls: 0 };
    // SAFETY: UFFDIO_API reads and writes one uffdio_api, which api is laid out as.
    let status = unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_API, &raw mut api) };
    if status == 0 { Ok(api.features) } else { Err(io::Error::last_os_error()) }
}

/// Duplicates a descriptor to a number of at least `lowest` that programs inherit, and gives it
/// up: it stays open for the rest of the process's life, also across execve.
pub fn leave_to_programs(fd: BorrowedFd<'_>, lowest: RawFd) -> io::Result<RawFd> {
    // SAFETY: F_DUPFD takes an integer; the new descriptor has no FD_CLOEXEC.
    let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD, lowest) };
    owned(libc::c_long::from(copy)).map(OwnedFd::into_raw_fd)
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

/// Anonymous private pages of this process, unmapped when dropped.
struct Pages {
    start: *mut u8,
    len_bytes: usize,
}

impl Pages {
    fn map(pages: usize) -> io::Result<Self> {
        let len_bytes = pages * PAGE_BYTES;
        // SAFETY: a mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), len_bytes })
    }

    fn address(&self) -> u64 {
        self.start as u64
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the range is exactly what map() mapped, and no reference into it outlives self.
        unsafe { libc::munmap(self.start.cast(), self.len_bytes) };
    }
}

/// Moves one page with `UFFDIO_MOVE` into a registered range and says whether its bytes arrived.
///
/// The descriptor must have been given [`FEATURE_MOVE`].
pub fn move_one_page(uffd: BorrowedFd<'_>) -> io::Result<bool> {
    let source = Pages::map(1)?;
    let destination = Pages::map(1)?;
    // SAFETY: the page is mapped for writing, PAGE_BYTES long, and nothing else refers to it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(source.start, PAGE_BYTES) };
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = pattern(index);
    }
    let len_bytes = PAGE_BYTES as u64;
    let mut register =
        UffdioRegister { start: destination.address(), len_bytes, mode: REGISTER_MODE_MISSING, ioctls: 0 };
    // SAFETY: UFFDIO_REGISTER reads and writes one uffdio_register, which register is laid out as;
    // the range is a mapping of ours whose pages nothing touches before the move.
    if unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_REGISTER, &raw mut register) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut request = UffdioMove {
        destination: destination.address(),
        source: source.address(),
        len_bytes,
        mode: 0,
        moved_bytes: 0,
    };
    // SAFETY: UFFDIO_MOVE reads and writes one uffdio_move, which request is laid out as; both
    // pages are mappings of ours, and `bytes` is not used after its page has moved away.
    if unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_MOVE, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Whoever read an absent page of the registered range would wait for ever.
    if request.moved_bytes != i64::try_from(PAGE_BYTES).unwrap_or(0) {
        return Ok(false);
    }
    // SAFETY: the kernel said that the whole page is there; nothing else refers to it.
    let moved = unsafe { std::slice::from_raw_parts(destination.start, PAGE_BYTES) };
    Ok(moved.iter().enumerate().all(|(index, byte)| *byte == pattern(index)))
}

/// The byte at `index` of the test page; its period, 251, is not a power of two.
fn pattern(index: usize) -> u8 {
    u8::try_from(index % 251).unwrap_or(0)
}

/// Asks the kernel which mapping a variable of ours lies in, with `PROCMAP_QUERY` (Linux 6.11).
pub fn query_own_mapping() -> io::Result<bool> {
    let maps = File::open("/proc/self/maps")?;
    let variable = 0u8;
    let address = &raw const variable as u64;
    let mut query =
        ProcmapQuery { size: mem::size_of::<ProcmapQuery>() as u64, address, ..ProcmapQuery::default() };
    // SAFETY: PROCMAP_QUERY reads and writes one procmap_query of the size that it names, and with
    // zero name and build-id sizes nothing else.
    if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((query.vma_start..query.vma_end).contains(&address))
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    Read,
    /// Writing only.
    Write,
}

/// Opens `name` below `directory`, following no symbolic link and waiting for nothing.
pub fn open_below(directory: BorrowedFd<'_>, name: &OsStr, access: Access) -> io::Result<File> {
    let name = CString::new(name.as_bytes())?;
    let access = match access {
        Access::Read => libc::O_RDONLY,
        Access::Write => libc::O_WRONLY,
    };
    let flags = access | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: name is a C string and directory is open for the time of the call.
    let fd = unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags) };
    owned(libc::c_long::from(fd)).map(File::from)
}

/// A file in memory of so many bytes, all of which there is room for, that only this user can open and nobody
/// can make shorter.
pub fn memory_file(name: &CStr, len_bytes: usize) -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string.
    let file = File::from(owned(libc::c_long::from(unsafe { libc::memfd_create(name.as_ptr(), flags) }))?);
    let fd = file.as_raw_fd();
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    let len = libc::off_t::try_from(len_bytes).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open; none of the calls takes a pointer.
    let done = unsafe {
        libc::fchmod(fd, 0o600) == 0
            && libc::fallocate(fd, 0, 0, len) == 0
            && libc::fcntl(fd, libc::F_ADD_SEALS, seals) == 0
    };
    if done { Ok(file) } else { Err(io::Error::last_os_error()) }
}

/// Signals that this process keeps from being delivered, to look at them when it wants to, and what `SIGCHLD`
/// did before.
pub struct Watch {
    before: libc::sigset_t,
    child_before: libc::sighandler_t,
}

/// How a child has ended, or that it was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With this exit status.
    Exited(u8),
    /// By this signal.
    Killed(i32),
}

impl Watch {
    /// Begins to keep signals back.
    pub fn begin() -> Self {
        // SAFETY: signal sets are plain data that sigfillset and sigprocmask write; SIG_DFL installs no handler.
        unsafe {
            let mut all: libc::sigset_t = mem::zeroed();
            let mut before: libc::sigset_t = mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
            // If it were ignored, nobody could tell how a child has ended.
            Self { before, child_before: libc::signal(libc::SIGCHLD, libc::SIG_DFL) }
        }
    }

    /// Puts everything back as it was.
    pub fn end(&self) {
        // SAFETY: the set and the disposition are those that `begin` found.
        unsafe {
            libc::signal(libc::SIGCHLD, self.child_before);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut());
        }
    }

    /// Runs `section` in a child process, which ends with the status that it returns; to be called while this
    /// process has one thread. Signals that somebody sends to this process go to the child.
    pub fn run(&self, section: impl FnOnce() -> u8) -> io::Result<Ending> {
        // SAFETY: this process has one thread, so the child can do whatever the parent could.
        let child = unsafe { libc::fork() };
        match child {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                self.end();
                std::process::exit(i32::from(section()))
            }
            _ => Ok(Self::wait(child)),
        }
    }

    fn wait(child: libc::pid_t) -> Ending {
        loop {
            let mut status = 0;
            // SAFETY: status is writable; the child is ours and not waited for by anybody else.
            let waited = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
            if waited == child {
                if libc::WIFEXITED(status) {
                    return Ending::Exited(u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(u8::MAX));
                } else if libc::WIFSIGNALED(status) {
                    return Ending::Killed(libc::WTERMSIG(status));
                }
                // The child was stopped: so is this process, for whoever waits for it.
                // SAFETY: raise takes a number.
                unsafe { libc::raise(libc::SIGSTOP) };
                continue;
            }
            // SAFETY: the set and the information are plain data; every signal is kept back.
            unsafe {
                let mut all: libc::sigset_t = mem::zeroed();
                let mut information: libc::siginfo_t = mem::zeroed();
                libc::sigfillset(&raw mut all);
                let signal = libc::sigwaitinfo(&raw const all, &raw mut information);
                // What the terminal sends reaches the child by itself.
                let is_sent = information.si_code <= 0 && information.si_pid() != child;
                if signal > 0 && signal != libc::SIGCHLD && (is_sent || signal == libc::SIGCONT) {
                    libc::kill(child, signal);
                }
            }
        }
    }
}

/// Ends this process as another one ended: without a core dump of its own.
pub fn end_like(ending: Ending) -> u8 {
    match ending {
        Ending::Exited(status) => status,
        Ending::Killed(signal) => {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: the limit and the set are plain data; SIG_DFL installs no handler.
            unsafe {
                libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
                libc::signal(signal, libc::SIG_DFL);
                let mut only: libc::sigset_t = mem::zeroed();
                libc::sigemptyset(&raw mut only);
                libc::sigaddset(&raw mut only, signal);
                libc::sigprocmask(libc::SIG_UNBLOCK, &raw const only, std::ptr::null_mut());
                libc::raise(signal);
            }
            u8::try_from(128 + signal).unwrap_or(u8::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_sizes() {
        assert_eq!(mem::size_of::<UffdioApi>(), 24);
        assert_eq!(mem::size_of::<UffdioRegister>(), 32);
        assert_eq!(mem::size_of::<UffdioMove>(), 40);
        assert_eq!(mem::size_of::<ProcmapQuery>(), 104);
    }

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
