//! The mark of a logged file: an extended attribute that names its log. A recovery writes to marked files only.

use crate::layout::{Identity, MAX_PATH_BYTES};
use core::ffi::CStr;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use uncopy_sys::descriptor::Descriptor;
use uncopy_sys::errno::Errno;
use uncopy_sys::file::{self, Status};

/// Name of the extended attribute.
pub const NAME: &CStr = c"user.uncopy.log";
const LOG_DIGITS: usize = 16;
/// ext2 to ext4, XFS, btrfs and f2fs (linux/magic.h), whose fsync(2) makes data and attributes durable.
const FILE_SYSTEMS: [u32; 4] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010];

/// Returns whether an open file's file system can hold logged files and logs.
#[must_use]
pub fn supports_logging(fd: impl Descriptor) -> bool {
    file::file_system(fd).is_ok_and(|magic| FILE_SYSTEMS.contains(&magic))
}

/// The log that a file belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Identifier of the log.
    pub log: u64,
    /// Path of the log.
    pub path: PathBuf,
}

/// Returns the log that an open file belongs to, if any.
///
/// # Errors
/// An error of the kernel; EINVAL if the mark is malformed.
pub fn owner_of(fd: impl Descriptor) -> Result<Option<Owner>, Errno> {
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

/// Returns whether a file is marked, also if it is open with `O_PATH`; `None`: the kernel refuses to tell.
#[must_use]
pub fn is_marked(fd: impl Descriptor) -> Option<bool> {
    file::has_attribute(fd, NAME).ok()
}

/// Marks a synced file as belonging to a log, durably.
///
/// # Errors
/// An error of the kernel.
pub fn set(fd: impl Descriptor, owner: &Owner) -> Result<(), Errno> {
    let mut text = format!("{:016x} ", owner.log).into_bytes();
    text.extend_from_slice(owner.path.as_os_str().as_bytes());
    file::set_attribute(fd, NAME, &text)?;
    file::sync(fd)
}

/// Syncs a file and then removes its mark durably: no recovery may write old records over it afterwards.
///
/// # Errors
/// An error of the kernel. The mark stays if the first sync fails: the log has bytes that the file lacks.
pub fn sync_and_remove(fd: impl Descriptor) -> Result<(), Errno> {
    file::sync(fd)?;
    remove(fd)
}

/// Removes the mark durably from a file that has all bytes of its records.
///
/// # Errors
/// An error of the kernel.
pub fn remove(fd: impl Descriptor) -> Result<(), Errno> {
    file::remove_attribute(fd, NAME)?;
    file::sync(fd)
}

/// Returns the current path of an open file, truncated to one byte more than a record can hold.
#[must_use]
pub fn path_of(fd: impl Descriptor) -> Option<Vec<u8>> {
    let mut path = vec![0; MAX_PATH_BYTES + 1];
    let len = file::path_of(fd, &mut path).ok()?;
    path.truncate(len);
    Some(path)
}

/// Returns the identity of an open file for records; `None` if it has no path that fits.
#[must_use]
pub fn identity(fd: impl Descriptor, status: &Status) -> Option<Identity> {
    let path = path_of(fd).filter(|path| path.len() <= MAX_PATH_BYTES)?;
    let is_there = path.starts_with(b"/") && status.links > 0;
    is_there.then(|| Identity {
        device: status.device,
        inode: status.inode,
        generation: file::generation(fd),
        path,
    })
}
