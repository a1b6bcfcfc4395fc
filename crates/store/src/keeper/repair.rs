//! A file whose sync has failed: what its records have is put there again.
//!
//! A kernel that could not write pages drops them, or takes them for written, and the next sync says that all is well (fsync(2),
//! "EIO"; Linux 4.13). So a sync that has failed is not made up for by one that succeeds: only by writing the bytes anew and then syncing
//! (`store_failing::a_device_that_takes_it_again_gets_all_while_the_program_goes_on`).

use crate::device::Device;
use crate::layout::Record;
use crate::overlay::{Piece, last_of};
use crate::recovery::{Recovery, Unreadable};
use uncopy_sys::errno::Errno;
use uncopy_sys::file;

/// An open file, as records name it.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// A descriptor that can write to it.
    pub fd: i32,
    /// Device and inode.
    pub inode: (u64, u64),
}

impl Target {
    fn owns(&self, record: &Record, generation: u64) -> bool {
        let file = &record.file;
        (file.device, file.inode) == self.inode && file.generation == generation
    }

    /// Writes to it what all records of a log leave in it, and syncs it. Each byte is written once, and is the last one that a sync has
    /// promised: where nothing newer was written, whoever reads the file meanwhile reads what was there, or should be.
    ///
    /// # Errors
    /// What the log or the file says.
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
        let pieces = last_of(&writes);
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
        // An extent that was allocated and could not be marked as written (ext4: "failed to convert unwritten extents") reads as
        // zeroes once the kernel has dropped its pages. They are read anew and written again; somebody may read the zeroes until then.
        for Piece { offset, len_bytes, .. } in &missing {
            file::forget_cached_run(self.fd, *offset, *len_bytes as u64);
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

    /// Writes these pieces, which lie in the order of the writes that its records have.
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

/// A file whose writes go where they say, also one of a program that appends (pwrite(2), "Bugs"). The program shares the open file: it
/// must not write meanwhile.
struct Unappended {
    fd: i32,
    flags: i32,
}

impl Unappended {
    fn begin(fd: i32) -> Result<Option<Self>, Errno> {
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
        // What was taken away a moment ago the kernel gives back.
        let _ = file::set_flags(self.fd, self.flags);
    }
}
