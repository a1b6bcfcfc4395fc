//! Sizes, times, offsets and flags of files in the mapped log, which the kernel does not know yet.

use super::super::FILES;
use super::begin_write;
use super::inherited::settle_inherited;
use crate::program::descriptors::{self, Kind};
use crate::program::session;
use crate::state::{HELD, SETTLED};
use core::ffi::c_int;
use core::sync::atomic::{Ordering::Acquire, Ordering::Release};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::Errno;

/// Status of a file as the log has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappedStatus {
    /// The file is not in this process's mapped log.
    Unknown,
    /// The log has it.
    Is {
        /// Size with the records in the log, bytes.
        len_bytes: u64,
        /// Time of the last record, ns since 1970; 0: none.
        modified_ns: u64,
    },
    /// The file was in the log, and the kernel's answer may be older: the kernel has to be asked again.
    AskAgain,
}

/// Returns the status of a file that a stat by path has found.
#[must_use]
pub fn mapped_status(device: u64, inode: u64) -> MappedStatus {
    let Some(session) = session().filter(|session| session.mapped().is_some()) else {
        return MappedStatus::Unknown;
    };
    let mut found = MappedStatus::Unknown;
    // A file that has been closed and opened again may have had another slot before.
    for file in FILES.iter().filter(|file| file.has_had((device, inode))) {
        let slot = session.slot(file.slot());
        let (len_bytes, modified_ns) = (slot.size.load(Acquire), slot.modified_ns.load(Acquire));
        let is_in_log = slot.flags.load(Acquire) & (HELD | SETTLED) == HELD;
        // Another file may have got the slot meanwhile.
        if is_in_log && file.has_had((device, inode)) {
            return MappedStatus::Is { len_bytes, modified_ns };
        }
        found = MappedStatus::AskAgain;
    }
    found
}

/// Moves the file offset of a file in the mapped log. `None`: the kernel does it, after the file has left the log.
#[must_use]
pub fn seek(fd: ProgramFd, offset: i64, whence: c_int) -> Option<Result<u64, Errno>> {
    let slot = match descriptors::kind(fd) {
        Kind::Inherited(_) => {
            settle_inherited(fd);
            return None;
        }
        Kind::Logged(slot) => slot,
        _ => return None,
    };
    let session = session().filter(|session| session.mapped().is_some())?;
    let state = session.slot(slot);
    let is_simple = matches!(whence, libc::SEEK_SET | libc::SEEK_CUR | libc::SEEK_END);
    if !is_simple {
        return None;
    }
    let _mapped = begin_write(fd, slot)?;
    let from = match whence {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => state.position.load(Acquire),
        _ => state.size.load(Acquire),
    };
    let to = i64::try_from(from).ok().and_then(|from| from.checked_add(offset));
    let Some(to) = to.filter(|to| *to >= 0) else {
        // The kernel returns EINVAL also where the sum does not fit (fs/read_write.c, vfs_setpos).
        return Some(Err(Errno::EINVAL));
    };
    // The keeper reads the offset after the end of all appends. The kernel knows whether its file system allows an
    // offset behind the end.
    match state.begin_append() {
        Some(_append) if to as u64 <= state.size.load(Acquire) => {
            state.position.store(to as u64, Release);
            Some(Ok(to as u64))
        }
        _ => None,
    }
}

/// Whether the keeper has cleared O_APPEND of the descriptor's open file description.
#[must_use]
pub fn hides_append(fd: ProgramFd) -> bool {
    let Kind::Logged(slot) = descriptors::kind(fd) else { return false };
    session().is_some_and(|session| session.is_mapped() && session.slot(slot).is_append.load(Acquire) != 0)
}
