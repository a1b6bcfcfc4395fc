//! What a file descriptor is.

use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};
use core::ffi::CStr;

/// The kinds that matter to an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FdKind {
    /// A regular file.
    File,
    /// A socket of any family and type.
    Socket,
    /// A pipe or FIFO.
    Pipe,
    /// Something else: a terminal, a device, or no open descriptor.
    Other,
}

/// The kind of `fd`. Leaves `errno` changed.
#[must_use]
pub fn kind(fd: i32) -> FdKind {
    // SAFETY: an all-zero stat is a valid buffer for fstat to fill.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the buffer is valid.
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

/// What the bytes of a descriptor come from, or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A stream socket.
    Stream,
    /// A socket of datagrams or sequenced packets.
    Packets,
    /// A regular file.
    File,
    /// A pipe or FIFO.
    Pipe,
    /// A terminal.
    Terminal,
    /// Something else, or no open descriptor.
    Other,
}

/// What is at the other end of `fd`. Leaves `errno` changed.
#[must_use]
pub fn peer(fd: i32) -> Peer {
    /// The teletypes of the console, and the two ends of pseudo terminals (Documentation/admin-guide/devices.txt).
    const TERMINALS: [u32; 3] = [4, 5, 204];
    const PSEUDO: core::ops::RangeInclusive<u32> = 128..=143;
    // SAFETY: an all-zero stat is a valid buffer for fstat to fill.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the buffer is valid.
    if unsafe { kernel!(Stat, syscall!(libc::SYS_fstat, fd, &raw mut found)) } != 0 {
        return Peer::Other;
    }
    match found.st_mode & libc::S_IFMT {
        libc::S_IFREG if found.st_size == 0 && is_pseudo_file(fd) => Peer::Other,
        libc::S_IFREG => Peer::File,
        libc::S_IFIFO => Peer::Pipe,
        libc::S_IFCHR => {
            let major = libc::major(found.st_rdev);
            if TERMINALS.contains(&major) || PSEUDO.contains(&major) { Peer::Terminal } else { Peer::Other }
        }
        libc::S_IFSOCK => {
            let (mut kind, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
            let (level, name) = (libc::SOL_SOCKET, libc::SO_TYPE);
            // SAFETY: both pointers are valid, and the length is the value's.
            let known = unsafe {
                kernel!(Stat, syscall!(libc::SYS_getsockopt, fd, level, name, &raw mut kind, &raw mut len))
            };
            if known == 0 && kind != libc::SOCK_STREAM { Peer::Packets } else { Peer::Stream }
        }
        _ => Peer::Other,
    }
}

/// A duplicate of `fd` under a high number, out of the way of the program's own, closed on exec.
#[must_use]
pub fn duplicate_high(fd: i32) -> Option<i32> {
    [900, 200, 60]
        .into_iter()
        // SAFETY: makes a new descriptor, touches no memory.
        .map(|least| unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, least)) }
            as i32)
        .find(|fd| *fd >= 0)
}

/// Whether exec closes a descriptor; `None`: it is not open.
#[must_use]
pub fn closes_on_exec(fd: i32) -> Option<bool> {
    // SAFETY: touches no memory.
    let flags = unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_GETFD)) };
    (flags >= 0).then_some(flags as i32 & libc::FD_CLOEXEC != 0)
}

/// Exec does not close a descriptor from here on.
pub fn keep_on_exec(fd: i32) {
    // SAFETY: touches no memory.
    unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_SETFD, 0)) };
}

/// Whether a descriptor is open; exec closes it from here on.
pub fn close_on_exec(fd: i32) -> bool {
    // SAFETY: touches no memory.
    unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_SETFD, libc::FD_CLOEXEC)) == 0 }
}

/// The head of a `struct linux_dirent64` (getdents(2)): the name follows.
const ENTRY_HEAD_BYTES: usize = 19;

/// Calls `each` with every name in an open directory but `.` and `..`, without allocating.
///
/// # Errors
/// What reading the directory says.
pub(crate) fn each_entry(directory: i32, each: &mut dyn FnMut(&CStr)) -> Result<(), Errno> {
    #[repr(align(8))]
    struct Entries([u8; 2048]);
    let mut entries = Entries([0; 2048]);
    loop {
        let (to, room) = (entries.0.as_mut_ptr(), entries.0.len());
        // SAFETY: room for as many bytes as is said.
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

/// Calls `each` with every descriptor of the calling thread's table, without allocating. It may close none and make none.
///
/// # Errors
/// What opening and reading `/proc/thread-self/fd` says.
pub fn each_open(mut each: impl FnMut(i32)) -> Result<(), Errno> {
    each_number(c"/proc/thread-self/fd", |number, directory| {
        if number != directory {
            each(number);
        }
    })
}

/// Calls `each` with every name in a directory that is a number, and the descriptor by which the directory is read, without
/// allocating.
///
/// # Errors
/// What opening and reading the directory says.
pub(crate) fn each_number(path: &core::ffi::CStr, mut each: impl FnMut(i32, i32)) -> Result<(), Errno> {
    let directory = crate::file::open(path, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let result = each_entry(directory, &mut |name| {
        let digits = name.to_bytes();
        if digits.iter().all(u8::is_ascii_digit) {
            let number = digits.iter().fold(0i32, |sum, digit| {
                sum.wrapping_mul(10).wrapping_add(i32::from(digit.wrapping_sub(b'0')))
            });
            each(number, directory);
        }
    });
    crate::file::close(directory);
    result
}

/// Reads the start of a file; how many bytes, 0 if there is no such file.
pub(crate) fn read_start(path: &core::ffi::CStr, bytes: &mut [u8]) -> usize {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a terminated path; the buffer is valid for its length; the descriptor is ours.
    unsafe {
        let opened = kernel!(Open, syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0));
        let Ok(fd) = check(opened) else { return 0 };
        let got = kernel!(Read, syscall!(libc::SYS_read, fd, bytes.as_mut_ptr(), bytes.len()));
        kernel!(Close, syscall!(libc::SYS_close, fd));
        usize::try_from(got).unwrap_or(0)
    }
}

/// Whether an empty regular file is one of a file system whose files are commands, where several parts
/// would be several commands: proc, sysfs and their like.
fn is_pseudo_file(fd: i32) -> bool {
    /// ext2 to ext4, tmpfs, xfs, btrfs, overlayfs, nfs, f2fs, zfs, fuse, vfat (linux/magic.h).
    const ORDINARY: [u32; 10] = [
        0xEF53,
        0x0102_1994,
        0x5846_5342,
        0x9123_683E,
        0x794C_7630,
        0x6969,
        0xF2F5_2010,
        0x2FC1_2FC1,
        0x6573_5546,
        0x4D44,
    ];
    // SAFETY: an all-zero statfs is a valid buffer for fstatfs to fill.
    let mut found: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: the buffer is valid.
    let known = unsafe { kernel!(Stat, libc::fstatfs(fd, &mut found)) } == 0;
    !known || !ORDINARY.contains(&(found.f_type as u32))
}
