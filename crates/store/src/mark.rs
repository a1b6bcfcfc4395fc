//! What tells a log's files: an extended attribute that names the log. Without it nothing of a log is put into a file.

use crate::layout::Identity;
use core::ffi::CStr;
use uncopy_sys::errno::Errno;
use uncopy_sys::file::{self, Status};

/// The attribute's name.
pub const NAME: &CStr = c"user.uncopy.log";
/// ext2 to ext4, XFS, btrfs, f2fs (linux/magic.h): they keep what they have said to have synced, and attributes with it.
const FILE_SYSTEMS: [u32; 4] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010];

/// Whether a file, or a log, can lie on the file system of an open file.
#[must_use]
pub fn is_fit(fd: i32) -> bool {
    file::file_system(fd).is_ok_and(|magic| FILE_SYSTEMS.contains(&magic))
}

/// The log that an open file belongs to, if any.
///
/// # Errors
/// What the kernel says; EINVAL if the mark is none of ours.
pub fn of(fd: i32) -> Result<Option<u64>, Errno> {
    let mut text = [0; 17];
    match file::attribute(fd, NAME, &mut text) {
        Err(Errno(libc::ENODATA | libc::EOPNOTSUPP)) => Ok(None),
        Err(Errno(libc::ERANGE)) => Err(Errno::EINVAL),
        Err(errno) => Err(errno),
        Ok(len) => {
            let digits = core::str::from_utf8(&text[..len]).map_err(|_| Errno::EINVAL)?;
            u64::from_str_radix(digits, 16).map(Some).map_err(|_| Errno::EINVAL)
        }
    }
}

/// A file that is synced belongs to this log from here on. Also that survives.
///
/// # Errors
/// What the kernel says.
pub fn put(fd: i32, log: u64) -> Result<(), Errno> {
    file::set_attribute(fd, NAME, format!("{log:016x}").as_bytes())?;
    file::sync(fd)
}

/// Syncs a file, which belongs to no log from here on. Also that survives: first what was written, then that nothing of the log is
/// to be put over it.
///
/// # Errors
/// What the sync said; the mark is taken away all the same.
pub fn take(fd: i32) -> Result<(), Errno> {
    let synced = file::sync(fd);
    file::remove_attribute(fd, NAME)?;
    synced.and(file::sync(fd))
}

/// An open file's identity, as records have it, where it has a path.
#[must_use]
pub fn identity(fd: i32, status: &Status) -> Option<Identity> {
    let mut path = vec![0; crate::layout::MAX_PATH_BYTES + 1];
    let len = file::path_of(fd, &mut path).ok().filter(|len| *len < path.len())?;
    path.truncate(len);
    let is_there = path.starts_with(b"/") && status.links > 0;
    is_there.then(|| Identity {
        device: status.device,
        inode: status.inode,
        generation: file::generation(fd),
        path,
    })
}
