//! Appending to a log, and giving back what was digested.
//!
//! ```text
//! append ─► flush: what was appended survives ─► … ─► the file is synced ─► retire: its room is free
//! ```
//!
//! A checkpoint is flushed before the room that it gives back is written to: there is always one from which the records that are
//! still needed can be found.

use crate::device::Device;
use crate::layout::{
    BLOCK_BYTES, CHECKPOINTS, Checkpoint, Identity, RING_OFFSET, Superblock, measure, seal_record,
};
use uncopy_sys::errno::Errno;

/// What is known of a log that is appended to. One thread at a time.
#[derive(Debug)]
pub struct Log<D> {
    device: D,
    superblock: Superblock,
    /// The last one that was flushed.
    checkpoint: Checkpoint,
    /// Where the next record goes, and its number.
    head: u64,
    sequence: u64,
    /// All records below this number were flushed.
    flushed: u64,
}

/// A moment of a log: all records before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    head: u64,
    sequence: u64,
}

impl<D: Device> Log<D> {
    /// Makes a new one, which overwrites whatever was there: the whole device must have been written to before, or the first flush of
    /// each place is slow.
    ///
    /// # Errors
    /// What the device says.
    pub fn create(device: D, superblock: Superblock, time_ns: u64) -> Result<Self, Errno> {
        let checkpoint = Checkpoint { serial: 1, epoch: 1, tail: RING_OFFSET, sequence: 1, time_ns };
        for at in CHECKPOINTS {
            device.write_at(at, &[0; BLOCK_BYTES])?;
        }
        device.write_at(0, &superblock.encode())?;
        device.flush()?;
        Self::begin(device, superblock, checkpoint)
    }

    /// Goes on with a log of which nothing is needed any more, from a checkpoint that was not written yet.
    ///
    /// # Errors
    /// What the device says.
    pub fn begin(device: D, superblock: Superblock, checkpoint: Checkpoint) -> Result<Self, Errno> {
        write_checkpoint(&device, &superblock, &checkpoint)?;
        let Checkpoint { tail: head, sequence, .. } = checkpoint;
        Ok(Self { device, superblock, checkpoint, head, sequence, flushed: sequence })
    }

    /// The checkpoint in force.
    #[must_use]
    pub const fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Now.
    #[must_use]
    pub const fn moment(&self) -> Moment {
        Moment { head: self.head, sequence: self.sequence }
    }

    /// Whether all of it was given back.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.sequence == self.checkpoint.sequence
    }

    /// Bytes that are in use, with what is left out at the end of the ring.
    #[must_use]
    pub const fn used_bytes(&self) -> u64 {
        let (tail, ring) = (self.checkpoint.tail, self.superblock.len_bytes - RING_OFFSET);
        if self.is_empty() {
            0
        } else if self.head > tail {
            self.head - tail
        } else {
            ring - (tail - self.head)
        }
    }

    /// Where a record of so many bytes goes; `None`: there is no room before something is given back.
    const fn place(&self, len_bytes: u64) -> Option<u64> {
        let (head, tail, end) = (self.head, self.checkpoint.tail, self.superblock.len_bytes);
        if self.is_empty() || head > tail {
            // The beginning of the ring must not be reached by what wraps around: then all would look empty.
            let wrapped_end = if self.is_empty() { end } else { tail - 1 };
            if head + len_bytes <= end {
                Some(head)
            } else if RING_OFFSET + len_bytes <= wrapped_end {
                Some(RING_OFFSET)
            } else {
                None
            }
        } else if head + len_bytes < tail {
            Some(head)
        } else {
            None
        }
    }

    /// Appends a record of these extents (offset in the file, length) whose bytes `fill` puts one behind the other; its number.
    /// `Ok(None)`: it is too long, or there is no room before something is given back. It survives once [`Log::flush`] has returned.
    ///
    /// # Errors
    /// What the device, or `fill`, says. The log is not to be appended to any more after an error of the device.
    pub fn append(
        &mut self,
        time_ns: u64,
        file: &Identity,
        extents: &[(u64, usize)],
        fill: impl FnOnce(&mut [u8]) -> Result<(), Errno>,
    ) -> Result<Option<u64>, Errno> {
        let granule_bytes = self.superblock.granule_bytes as usize;
        let Some((front, whole)) = measure(&file.path, extents, granule_bytes) else { return Ok(None) };
        let Some(at) = self.place(whole as u64) else { return Ok(None) };
        let mut record = vec![0; whole];
        let len_bytes: usize = extents.iter().map(|(_, len_bytes)| len_bytes).sum();
        fill(&mut record[front..front + len_bytes])?;
        let expected = self.superblock.expected(self.checkpoint.epoch, self.sequence);
        seal_record(&mut record, &expected, time_ns, self.flushed, file, extents);
        self.device.write_at(at, &record)?;
        self.head = at + whole as u64;
        self.sequence += 1;
        Ok(Some(expected.sequence))
    }

    /// Waits until all that was appended survives.
    ///
    /// # Errors
    /// What the device says: the log is not to be appended to any more.
    pub fn flush(&mut self) -> Result<(), Errno> {
        self.device.flush()?;
        self.flushed = self.sequence;
        Ok(())
    }

    /// What was appended before that moment is not needed any more: the files that it belongs to were synced after it.
    ///
    /// # Errors
    /// What the device says: nothing is given back.
    pub fn retire(&mut self, before: Moment, time_ns: u64) -> Result<(), Errno> {
        let checkpoint = Checkpoint {
            serial: self.checkpoint.serial + 1,
            epoch: self.checkpoint.epoch,
            tail: if before.head == self.superblock.len_bytes { RING_OFFSET } else { before.head },
            sequence: before.sequence,
            time_ns,
        };
        write_checkpoint(&self.device, &self.superblock, &checkpoint)?;
        self.checkpoint = checkpoint;
        if self.is_empty() {
            self.head = checkpoint.tail;
        }
        Ok(())
    }
}

/// Writes a checkpoint over the one before the last.
///
/// # Errors
/// What the device says.
pub(crate) fn write_checkpoint(
    device: &impl Device,
    superblock: &Superblock,
    checkpoint: &Checkpoint,
) -> Result<(), Errno> {
    device.write_at(CHECKPOINTS[checkpoint.serial as usize % 2], &checkpoint.encode(superblock.log))?;
    device.flush()
}
