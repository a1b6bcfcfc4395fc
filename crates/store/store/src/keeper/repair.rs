//! Writing the bytes of a file's records again after a sync of the file has failed.
//!
//! A kernel that could not write pages drops them or marks them clean, and the next sync succeeds (fsync(2),
//! "EIO"; Linux 4.13). So a later success does not make up for a failure. The bytes must be written anew and
//! then synced (`store_failing::a_device_that_takes_it_again_gets_all_while_the_program_goes_on`).

use crate::device::Device;
use crate::layout::Record;
use crate::overlay::{Piece, final_pieces};
use crate::recovery::{Recovery, Unreadable};
use uncopy_sys::descriptor::OwnRef;
use uncopy_sys::errno::Errno;
use uncopy_sys::file;

/// An open file with the inode by which records name it.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Descriptor that is open for writing.
    pub fd: OwnRef,
    /// Device and inode numbers.
    pub inode: (u64, u64),
}

impl Target {
    fn owns(&self, record: &Record, generation: u64) -> bool {
        let file = &record.file;
        (file.device, file.inode) == self.inode && file.generation == generation
    }

    /// Writes the final content of all records of the file, and syncs it. Each byte is written once, with the
    /// value that was last promised: unless something newer was written, a concurrent reader sees the old or
    /// the right value.
    ///
    /// # Errors
    /// An error of the log or of the file; EIO if bytes are still missing afterwards.
    pub fn write_again(&self, log: impl Device) -> Result<(), Errno> {
        let recovery = Recovery::open(log).map_err(|unreadable| match unreadable {
            Unreadable::Device(errno) => errno,
            _ => Errno(libc::EIO),
        })?;
        let generation = file::generation(self.fd);
        let mut writes = Vec::new();
        recovery.walk(|record, _| {
            if self.owns(record, generation) {
                writes.extend(record.extents.iter().map(|extent| (extent.offset, extent.len_bytes)));
            }
            Ok(())
        })?;
        let pieces = final_pieces(&writes);
        let _position = Unappended::begin(self.fd)?;
        self.write(&recovery, generation, &pieces)?;
        file::sync(self.fd)?;
        let mut missing = Vec::new();
        for piece in pieces {
            if !file::is_on_device(self.fd, piece.offset, piece.len_bytes as u64)? {
                missing.push(piece);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        // An extent that was allocated but could not be marked as written (ext4: "failed to convert unwritten
        // extents") reads as zeroes once the kernel has dropped its pages. Dropping the cached pages and
        // writing again repairs that; a concurrent reader may see the zeroes until then.
        for Piece { offset, len_bytes, .. } in &missing {
            file::drop_cached_range(self.fd, *offset, *len_bytes as u64);
        }
        self.write(&recovery, generation, &missing)?;
        file::sync(self.fd)?;
        for Piece { offset, len_bytes, .. } in missing {
            if !file::is_on_device(self.fd, offset, len_bytes as u64)? {
                return Err(Errno(libc::EIO));
            }
        }
        Ok(())
    }

    /// Writes `pieces`, which are sorted by the number of the write in the file's records.
    fn write(
        &self,
        recovery: &Recovery<impl Device>,
        generation: u64,
        pieces: &[Piece],
    ) -> Result<(), Errno> {
        let mut number = 0;
        recovery.walk(|record, bytes| {
            if !self.owns(record, generation) {
                return Ok(());
            }
            for extent in &record.extents {
                let first = pieces.partition_point(|piece| piece.write < number);
                for piece in pieces[first..].iter().take_while(|piece| piece.write == number) {
                    let Piece { skip_bytes, offset, len_bytes, .. } = *piece;
                    file::write_at(self.fd, offset, &bytes[extent.at + skip_bytes..][..len_bytes])?;
                }
                number += 1;
            }
            Ok(())
        })?;
        Ok(())
    }
}

/// Clears O_APPEND while it lives: Linux appends in pwrite(2) otherwise ("Bugs"). The program shares the open
/// file description, so it must not write meanwhile.
struct Unappended {
    fd: OwnRef,
    flags: i32,
}

impl Unappended {
    fn begin(fd: OwnRef) -> Result<Option<Self>, Errno> {
        let flags = file::flags(fd)?;
        if flags & libc::O_APPEND == 0 {
            return Ok(None);
        }
        file::set_flags(fd, flags & !libc::O_APPEND)?;
        Ok(Some(Self { fd, flags }))
    }
}

impl Drop for Unappended {
    fn drop(&mut self) {
        // The kernel accepts a flag that was set before.
        let _ = file::set_flags(self.fd, self.flags);
    }
}
