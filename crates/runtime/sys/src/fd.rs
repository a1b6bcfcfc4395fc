//! File descriptors: kinds, flags, duplication, and enumeration of `/proc` directories.

use crate::call::{kernel, syscall};
use crate::descriptor::{Descriptor, OwnFd, ProgramFd};
use crate::errno::{Errno, check};
use core::ffi::CStr;

/// Kinds of descriptors that matter to an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FdKind {
    /// A regular file (S_IFREG).
    File,
    /// A socket of any family and type.
    Socket,
    /// A pipe or FIFO.
    Pipe,
    /// Another file, such as a terminal or a device, or no open descriptor.
    Other,
}

/// Returns the kind of `fd`. `errno` is changed.
#[must_use]
pub fn kind(fd: impl Descriptor) -> FdKind {
    // SAFETY: `stat` consists of integers, for which all-zero bytes are valid.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: fstat(2) writes one `stat` to `found`, which lives through the call.
    if unsafe { kernel!(Stat, syscall!(libc::SYS_fstat, fd, &raw mut found)) } != 0 {
        return FdKind::Other;
    }
    match found.st_mode & libc::S_IFMT {
        libc::S_IFREG if found.st_size == 0 && is_pseudo_file(fd) => FdKind::Other,
        libc::S_IFREG => FdKind::File,
        libc::S_IFSOCK => FdKind::Socket,
        libc::S_IFIFO => FdKind::Pipe,
        _ => FdKind::Other,
    }
}

/// Kinds of files that bytes come from or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// A socket of type SOCK_STREAM.
    Stream,
    /// A socket of datagrams or sequenced packets.
    Packets,
    /// A regular file (S_IFREG).
    File,
    /// A pipe or FIFO.
    Pipe,
    /// A terminal or pseudo terminal.
    Terminal,
    /// Another file, or no open descriptor.
    Other,
}

/// Returns the kind of file behind `fd`. `errno` is changed.
#[must_use]
pub fn peer_kind(fd: impl Descriptor) -> PeerKind {
    /// Major numbers of the console's terminals and of pseudo terminals
    /// (Documentation/admin-guide/devices.txt).
    const TERMINALS: [u32; 3] = [4, 5, 204];
    const PSEUDO: core::ops::RangeInclusive<u32> = 128..=143;
    // SAFETY: `stat` consists of integers, for which all-zero bytes are valid.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: fstat(2) writes one `stat` to `found`, which lives through the call.
    if unsafe { kernel!(Stat, syscall!(libc::SYS_fstat, fd, &raw mut found)) } != 0 {
        return PeerKind::Other;
    }
    match found.st_mode & libc::S_IFMT {
        libc::S_IFREG if found.st_size == 0 && is_pseudo_file(fd) => PeerKind::Other,
        libc::S_IFREG => PeerKind::File,
        libc::S_IFIFO => PeerKind::Pipe,
        libc::S_IFCHR => {
            let major = libc::major(found.st_rdev);
            if TERMINALS.contains(&major) || PSEUDO.contains(&major) {
                PeerKind::Terminal
            } else {
                PeerKind::Other
            }
        }
        libc::S_IFSOCK => {
            let (mut kind, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
            let (level, name) = (libc::SOL_SOCKET, libc::SO_TYPE);
            // SAFETY: getsockopt(2) writes at most `len` bytes, the size of `kind`.
            let known = unsafe {
                kernel!(Stat, syscall!(libc::SYS_getsockopt, fd, level, name, &raw mut kind, &raw mut len))
            };
            if known == 0 && kind != libc::SOCK_STREAM { PeerKind::Packets } else { PeerKind::Stream }
        }
        _ => PeerKind::Other,
    }
}

/// Waits for events of a descriptor, up to `timeout_ms` (-1: without limit). Returns 0 after a timeout.
pub(crate) fn poll(fd: impl Descriptor, events: i16, timeout_ms: i32) -> Result<i16, Errno> {
    let mut watched = libc::pollfd { fd: fd.number(), events, revents: 0 };
    // SAFETY: `watched` is the one pollfd that is announced, and lives through the call.
    check(unsafe { kernel!(Poll, syscall!(libc::SYS_poll, &raw mut watched, 1, timeout_ms)) })?;
    Ok(watched.revents)
}

/// Duplicates `fd` under a high number, which the program does not use, closed on exec.
#[must_use]
pub fn duplicate_high(fd: impl Descriptor) -> Option<OwnFd> {
    [900, 200, 60].into_iter().find_map(|least| {
        // SAFETY: F_DUPFD_CLOEXEC takes only integers and returns a new descriptor.
        OwnFd::from_result(unsafe {
            kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, least))
        })
        .ok()
    })
}

/// Duplicates a descriptor of the process's first thread into the calling thread's own table (`pidfd_getfd`, Linux 5.6).
///
/// # Errors
/// Errors of `pidfd_open` and `pidfd_getfd`.
pub fn duplicate_from_first(number: i32) -> Result<OwnFd, Errno> {
    let process = std::process::id();
    // SAFETY: pidfd_open(2) takes only integers and returns a new descriptor.
    let process = OwnFd::from_result(unsafe { kernel!(Open, syscall!(libc::SYS_pidfd_open, process, 0)) })?;
    // SAFETY: pidfd_getfd(2) takes only integers and returns a new descriptor.
    OwnFd::from_result(unsafe { kernel!(Open, syscall!(libc::SYS_pidfd_getfd, &process, number, 0)) })
}

/// Whether a descriptor is closed on exec; `None` if it is not open.
#[must_use]
pub fn closes_on_exec(fd: impl Descriptor) -> Option<bool> {
    // SAFETY: fcntl(2) takes only integers here, and accesses no memory of the process.
    let flags = unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_GETFD)) };
    (flags >= 0).then_some(flags as i32 & libc::FD_CLOEXEC != 0)
}

/// Clears the close-on-exec flag of a descriptor.
pub fn keep_on_exec(fd: impl Descriptor) {
    // SAFETY: fcntl(2) takes only integers here, and accesses no memory of the process.
    unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_SETFD, 0)) };
}

/// Sets the close-on-exec flag of a descriptor. Returns false if it is not open.
pub fn close_on_exec(fd: impl Descriptor) -> bool {
    // SAFETY: fcntl(2) takes only integers here, and accesses no memory of the process.
    unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_SETFD, libc::FD_CLOEXEC)) == 0 }
}

/// Size of the members of `struct linux_dirent64` before the name (getdents(2)).
const ENTRY_HEAD_BYTES: usize = 19;

/// Calls `each` with every name in an open directory except `.` and `..`, without allocating.
///
/// # Errors
/// Errors of getdents(2).
pub(crate) fn each_entry(directory: impl Descriptor, each: &mut dyn FnMut(&CStr)) -> Result<(), Errno> {
    #[repr(align(8))]
    struct Entries([u8; 2048]);
    let mut entries = Entries([0; 2048]);
    loop {
        let (to, room) = (entries.0.as_mut_ptr(), entries.0.len());
        // SAFETY: getdents64(2) writes at most the length passed, into a buffer of that length.
        let got = check(unsafe { kernel!(Read, syscall!(libc::SYS_getdents64, directory, to, room)) })?;
        if got == 0 {
            return Ok(());
        }
        let mut rest = &entries.0[..got as usize];
        while let Some(len_bytes) = rest.get(16..18).map(|len| u16::from_ne_bytes([len[0], len[1]]) as usize)
        {
            let Some((entry, behind)) = rest.split_at_checked(len_bytes.max(ENTRY_HEAD_BYTES)) else { break };
            if let Ok(name) = CStr::from_bytes_until_nul(&entry[ENTRY_HEAD_BYTES..])
                && name != c"."
                && name != c".."
            {
                each(name);
            }
            rest = behind;
        }
    }
}

/// Calls `each` with every descriptor of the calling thread's table, without allocating. `each` may
/// neither open nor close descriptors.
///
/// # Errors
/// Errors of opening and reading `/proc/thread-self/fd`.
pub fn each_open(mut each: impl FnMut(ProgramFd)) -> Result<(), Errno> {
    each_number(c"/proc/thread-self/fd", |number, directory| {
        if number != directory.number() {
            each(ProgramFd::new(number));
        }
    })
}

/// Calls `each` with every number among the names in a directory, and with the descriptor by which
/// the directory is read, without allocating.
///
/// # Errors
/// Errors of opening and reading the directory.
pub(crate) fn each_number(path: &core::ffi::CStr, mut each: impl FnMut(i32, &OwnFd)) -> Result<(), Errno> {
    let directory = crate::file::open(path, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    each_entry(&directory, &mut |name| {
        let digits = name.to_bytes();
        if digits.iter().all(u8::is_ascii_digit) {
            let number = digits.iter().fold(0i32, |sum, digit| {
                sum.wrapping_mul(10).wrapping_add(i32::from(digit.wrapping_sub(b'0')))
            });
            each(number, &directory);
        }
    })
}

/// Whether an empty regular file is on a file system such as proc or sysfs, where each write is a
/// command, so that several parts would be several commands.
fn is_pseudo_file(fd: impl Descriptor) -> bool {
    /// Magic numbers of ext2 to ext4, tmpfs, xfs, btrfs, overlayfs, nfs, f2fs, zfs, fuse and vfat
    /// (linux/magic.h).
    const ORDINARY: [u32; 10] = [
        0xEF53,
        crate::file::TMPFS,
        0x5846_5342,
        0x9123_683E,
        0x794C_7630,
        0x6969,
        0xF2F5_2010,
        0x2FC1_2FC1,
        0x6573_5546,
        0x4D44,
    ];
    // SAFETY: `statfs` consists of integers, for which all-zero bytes are valid.
    let mut found: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: fstatfs(2) writes one `statfs` to `found`, which lives through the call.
    let known = unsafe { kernel!(Stat, libc::fstatfs(fd.number(), &mut found)) } == 0;
    !known || !ORDINARY.contains(&(found.f_type as u32))
}
