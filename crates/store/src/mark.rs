//! What tells a log's files: an extended attribute that names the log. Without it nothing of a log is put into a file.

use crate::layout::{Identity, MAX_PATH_BYTES};
use core::ffi::CStr;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use uncopy_sys::errno::Errno;
use uncopy_sys::file::{self, Status};

/// The attribute's name.
pub const NAME: &CStr = c"user.uncopy.log";
/// Hexadecimal digits of a log's name.
const LOG_DIGITS: usize = 16;
/// ext2 to ext4, XFS, btrfs, f2fs (linux/magic.h): they keep what they have said to have synced, and attributes with it.
const FILE_SYSTEMS: [u32; 4] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010];

/// Whether a file, or a log, can lie on the file system of an open file.
#[must_use]
pub fn is_fit(fd: i32) -> bool {
    file::file_system(fd).is_ok_and(|magic| FILE_SYSTEMS.contains(&magic))
}

/// A log that a file belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// By what the log is known.
    pub log: u64,
    /// Where it lies.
    pub path: PathBuf,
}

/// The log that an open file belongs to, if any.
///
/// # Errors
/// What the kernel says; EINVAL if the mark is none of ours.
pub fn of(fd: i32) -> Result<Option<Owner>, Errno> {
    let mut text = vec![0; LOG_DIGITS + 1 + MAX_PATH_BYTES];
    let len = match file::attribute(fd, NAME, &mut text) {
        Ok(len) => len,
        Err(Errno(libc::ENODATA | libc::EOPNOTSUPP)) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let (digits, path) = text[..len].split_at_checked(LOG_DIGITS).ok_or(Errno::EINVAL)?;
    let digits = core::str::from_utf8(digits).map_err(|_| Errno::EINVAL)?;
    let log = u64::from_str_radix(digits, 16).map_err(|_| Errno::EINVAL)?;
    let path = path.strip_prefix(b" ").ok_or(Errno::EINVAL)?;
    Ok(Some(Owner { log, path: PathBuf::from(OsStr::from_bytes(path)) }))
}

/// A file that is synced belongs to this log from here on. Also that survives.
///
/// # Errors
/// What the kernel says.
pub fn put(fd: i32, owner: &Owner) -> Result<(), Errno> {
    let mut text = format!("{:016x} ", owner.log).into_bytes();
    text.extend_from_slice(owner.path.as_os_str().as_bytes());
    file::set_attribute(fd, NAME, &text)?;
    file::sync(fd)
}

/// Syncs a file, which belongs to no log from here on. Also that survives: first what was written, then that nothing of the log is
/// to be put over it.
///
/// # Errors
/// What the sync said: the mark stays, for the log has what the file has not.
pub fn take(fd: i32) -> Result<(), Errno> {
    file::sync(fd)?;
    remove(fd)
}

/// A file that has all that its log has for it belongs to no log from here on. Also that survives.
///
/// # Errors
/// What the kernel says.
pub fn remove(fd: i32) -> Result<(), Errno> {
    file::remove_attribute(fd, NAME)?;
    file::sync(fd)
}

/// Where an open file lies now, as far as that is no longer than a record's path by more than a byte.
#[must_use]
pub fn path_of(fd: i32) -> Option<Vec<u8>> {
    let mut path = vec![0; MAX_PATH_BYTES + 1];
    let len = file::path_of(fd, &mut path).ok()?;
    path.truncate(len);
    Some(path)
}

/// An open file's identity, as records have it, where it has a path.
#[must_use]
pub fn identity(fd: i32, status: &Status) -> Option<Identity> {
    let path = path_of(fd).filter(|path| path.len() <= MAX_PATH_BYTES)?;
    let is_there = path.starts_with(b"/") && status.links > 0;
    is_there.then(|| Identity {
        device: status.device,
        inode: status.inode,
        generation: file::generation(fd),
        path,
    })
}
