//! Status of files, and the time of their last modification.

use crate::call::{kernel, syscall};
use crate::clock;
use crate::descriptor::Descriptor;
use crate::errno::{Errno, check};

/// Status of a file, as in `struct stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Number of the device.
    pub device: u64,
    /// Number of the inode.
    pub inode: u64,
    /// File type and permissions, `st_mode`.
    pub mode: u32,
    /// User id of the owner.
    pub user: u32,
    /// Group id of the owner.
    pub group: u32,
    /// Number of hard links.
    pub links: u64,
    /// Length, bytes.
    pub len_bytes: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
}

impl Status {
    /// Whether the file is a regular one.
    #[must_use]
    pub const fn is_regular(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// Returns the members of `struct statx` that `mask` names.
pub(super) fn statx(fd: impl Descriptor, mask: u32) -> Result<libc::statx, Errno> {
    // SAFETY: an all-zero statx is valid, statx(2) fills it, and the path is an empty NUL-terminated string.
    unsafe {
        let mut found: libc::statx = core::mem::zeroed();
        let path = c"".as_ptr();
        check(kernel!(Stat, syscall!(libc::SYS_statx, fd, path, libc::AT_EMPTY_PATH, mask, &raw mut found)))?;
        Ok(found)
    }
}

/// Returns a file's status, without its times. A query of the modification time makes kernels from 6.13 on
/// give each later change of the file a time of its own, so that every sync has to write the inode.
///
/// # Errors
/// Errors of statx(2).
pub fn status(fd: impl Descriptor) -> Result<Status, Errno> {
    let found = statx(
        fd,
        libc::STATX_TYPE
            | libc::STATX_MODE
            | libc::STATX_NLINK
            | libc::STATX_UID
            | libc::STATX_GID
            | libc::STATX_INO
            | libc::STATX_SIZE
            | libc::STATX_BLOCKS,
    )?;
    Ok(Status {
        device: libc::makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        mode: u32::from(found.stx_mode),
        user: found.stx_uid,
        group: found.stx_gid,
        links: u64::from(found.stx_nlink),
        len_bytes: found.stx_size,
        blocks: found.stx_blocks,
    })
}

/// Returns the time of a file's last modification, nanoseconds since 1970.
///
/// # Errors
/// Errors of statx(2).
pub fn modified_ns(fd: impl Descriptor) -> Result<u64, Errno> {
    let time = statx(fd, libc::STATX_MTIME)?.stx_mtime;
    Ok((time.tv_sec as u64).wrapping_mul(clock::NS_PER_S).wrapping_add(u64::from(time.tv_nsec)))
}

/// Sets the time of a file's last modification, nanoseconds since 1970.
///
/// # Errors
/// Errors of utimensat(2).
pub fn set_modified_ns(fd: impl Descriptor, time_ns: u64) -> Result<(), Errno> {
    let (tv_sec, ns) = clock::split_ns(time_ns);
    let time = libc::timespec { tv_sec, tv_nsec: i64::from(ns) };
    let times = [libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT }, time];
    let path = core::ptr::null::<core::ffi::c_char>();
    // SAFETY: the kernel reads two times, which live through the call.
    check(unsafe { kernel!(Name, syscall!(libc::SYS_utimensat, fd, path, times.as_ptr(), 0)) }).map(drop)
}
