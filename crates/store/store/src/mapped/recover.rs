//! Mapped logs that no process uses: recovery after a crash, inspection, removal.

use super::file::{MappedLog, Unreadable};
use crate::mark::Owner;
use uncopy_mapped::reader::Reader;
use uncopy_sys::errno::Errno;

/// Returns whether a log may have records for a file that it marked: it exists and is not empty.
#[must_use]
pub fn may_have(owner: &Owner) -> bool {
    let log = match MappedLog::open(&owner.path) {
        Ok(log) => log,
        Err(why) => return why != Unreadable::File(Errno::ENOENT),
    };
    Reader::open(log.memory())
        .map_or(true, |reader| reader.superblock().log == owner.log && reader.checkpoint().process != 0)
}
