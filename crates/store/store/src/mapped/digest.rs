//! Digesting: from records of a mapped log to their files.
//!
//! ```text
//! records ─ plan ─► truncate, pwritev from the mapping, truncate ─► fdatasync ─► forgotten or retired
//! ```
//!
//! Every step can be repeated from the beginning, also after an interruption: until its records are forgotten or
//! retired, a file gets the same bytes again.

use crate::mark;
use crate::state::{FileSlot, GIVEN_UP};
use core::sync::atomic::Ordering::Acquire;
use uncopy_mapped::digest::{Digester, Limits};
use uncopy_mapped::layout::Lsn;
use uncopy_mapped::mapping::Mapping;
use uncopy_mapped::memory::Persistent;
use uncopy_mapped::plan::{FilePlan, FileWrite};
use uncopy_mapped::reader::Damage;
use uncopy_mapped::table::FileId;
use uncopy_sys::descriptor::Descriptor;
use uncopy_sys::errno::Errno;
use uncopy_sys::file;
use uncopy_sys::iovec::Part;

use super::file::LogMemory;

/// Length of a unit of [`Status::blocks`](file::Status::blocks), bytes.
const BLOCK_BYTES: u64 = 512;

/// Reason why a file did not get the bytes of its records, which stay in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestError {
    /// An operation on the file has failed.
    File(Errno),
    /// The log is damaged.
    Log(Damage),
    /// The log's file has become shorter.
    Truncated,
}

impl DigestError {
    /// Whether the log has failed, and not only a file.
    #[must_use]
    pub const fn is_of_log(self) -> bool {
        !matches!(self, Self::File(_))
    }

    /// Returns the error number; EUCLEAN for a damaged log.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::File(errno) => errno,
            Self::Log(_) => Errno(libc::EUCLEAN),
            Self::Truncated => Errno(libc::EIO),
        }
    }
}

impl From<Errno> for DigestError {
    fn from(errno: Errno) -> Self {
        Self::File(errno)
    }
}

impl From<Damage> for DigestError {
    fn from(damage: Damage) -> Self {
        Self::Log(damage)
    }
}

/// Clears O_APPEND of an open file: Linux appends in pwrite(2) otherwise ("Bugs").
///
/// # Errors
/// Errors of fcntl(2): EPERM if the file is append-only.
pub fn clear_append(fd: impl Descriptor) -> Result<(), Errno> {
    let flags = file::flags(fd)?;
    if flags & libc::O_APPEND == 0 { Ok(()) } else { file::set_flags(fd, flags & !libc::O_APPEND) }
}

/// Whether a plan has nothing to do.
fn is_empty(plan: &FilePlan) -> bool {
    plan.writes.is_empty() && plan.shrink_to.is_none() && plan.grow_to.is_none()
}

fn write(
    fd: impl Descriptor,
    write: &FileWrite,
    memory: &LogMemory<'_>,
    parts: &mut Vec<Part>,
) -> Result<(), Errno> {
    parts.clear();
    for extent in &write.sources {
        let address = memory.address(extent.source, extent.len_bytes).ok_or(Errno(libc::EUCLEAN))?;
        parts.push(Part { address: address as usize, len_bytes: extent.len_bytes });
    }
    file::write_parts_at(fd, write.offset, parts)
}

/// Carries out the plan of an open file, which is not synced.
///
/// # Errors
/// The error of the first operation that fails. EUCLEAN if bytes are not in the log. EFAULT if the log's file has
/// become shorter.
pub fn carry_out(fd: impl Descriptor, plan: &FilePlan, memory: &LogMemory<'_>) -> Result<(), Errno> {
    if is_empty(plan) {
        return Ok(());
    }
    clear_append(fd)?;
    if let Some(size) = plan.shrink_to {
        file::truncate(fd, size)?;
    }
    let mut parts = Vec::new();
    plan.writes.iter().try_for_each(|next| write(fd, next, memory, &mut parts))?;
    plan.grow_to.map_or(Ok(()), |size| file::truncate(fd, size))
}

/// Writes the committed records of one file to it, durably. `through`: the end of the records that are known to be
/// committed, or 0; if the log has fewer, it is damaged.
fn write_all<M: Persistent>(
    fd: impl Descriptor,
    digester: &mut Digester<M>,
    memory: &LogMemory<'_>,
    file: FileId,
    through: Lsn,
) -> Result<(), DigestError> {
    let (mut from, mut has_written) = (None, false);
    loop {
        let batch = digester.plan_file(memory, file, from, Limits::default())?;
        if let Some(plan) = batch.plan.filter(|plan| !is_empty(plan)) {
            carry_out(fd, &plan, memory)?;
            has_written = true;
        }
        from = Some(batch.through);
        if batch.is_last {
            check_end(batch.through, through)?;
            break;
        }
    }
    if has_written {
        file::sync_data(fd)?;
    }
    Ok(())
}

/// Checks that the readable records end at `found`, not before `through`.
///
/// # Errors
/// The damage of the record behind `found`.
pub fn check_end(found: Lsn, through: Lsn) -> Result<(), Damage> {
    if found >= through { Ok(()) } else { Err(Damage::Record(found)) }
}

/// Makes the entries of all files void, whose records are retired: a later user of the log finds only its own.
pub fn forget_all(memory: &Mapping) {
    let Ok(mut digester) = Digester::open(memory) else { return };
    let files: Vec<FileId> = digester.reader().files().map(|(file, _)| file).collect();
    for file in files {
        digester.forget(file);
    }
}

/// Gives a file whose records were written to it the time of the program's last write.
pub fn restore_time(fd: impl Descriptor, slot: &FileSlot) {
    let time_ns = slot.modified_ns.load(Acquire);
    if time_ns != 0 {
        // It has the time of the digest otherwise.
        let _ = file::set_modified_ns(fd, time_ns);
    }
}

/// Frees blocks that were allocated behind the end of a file, whose time of modification stays. They do no harm if that
/// fails.
pub fn trim(fd: impl Descriptor) {
    let Ok(status) = file::status(fd) else { return };
    // A block may also be that of the mark.
    if status.blocks * BLOCK_BYTES <= status.len_bytes.next_multiple_of(uncopy_sys::PAGE_BYTES as u64) {
        return;
    }
    let modified_ns = file::modified_ns(fd);
    if file::truncate(fd, status.len_bytes).is_ok()
        && let Ok(modified_ns) = modified_ns
    {
        let _ = file::set_modified_ns(fd, modified_ns);
    }
}

/// Takes a file out of the log: writes its records to it, gives it the program's offset and O_APPEND, makes the records
/// void, and removes the mark. The program appends no more for the file. The caller releases the lease and clears the slot
/// afterwards. `through`: the end of the records that are known to be committed, or 0; if the log has fewer, it is
/// damaged.
///
/// The keeper calls this, and the program after the keeper's death.
///
/// # Errors
/// See [`DigestError`]. The records stay, and this may be called again. Once they are void, nothing fails: a mark that
/// remains names a log without records for the file. A file that the keeper has given up is refused with its error.
pub fn settle<M: Persistent>(
    fd: impl Descriptor,
    slot: &FileSlot,
    digester: &mut Digester<M>,
    memory: &LogMemory<'_>,
    file: FileId,
    through: Lsn,
) -> Result<(), DigestError> {
    if slot.flags.load(Acquire) & GIVEN_UP != 0 {
        return Err(DigestError::File(Errno(slot.error.load(Acquire).cast_signed())));
    }
    write_all(fd, digester, memory, file, through)?;
    file::set_position(fd, slot.position.load(Acquire))?;
    if slot.is_append.load(Acquire) != 0 {
        file::set_flags(fd, file::flags(fd)? | libc::O_APPEND)?;
    }
    // Rule 10 of the log: before the mark goes and others may change the file.
    digester.forget(file);
    restore_time(fd, slot);
    trim(fd);
    let _ = mark::remove(fd);
    Ok(())
}
