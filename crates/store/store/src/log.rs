//! Appending to a log, and retiring digested records.
//!
//! ```text
//! append ─► flush: the records are durable ─► … ─► the file is synced ─► retire: their room is free
//! ```
//!
//! The program appends through a [`Log`], from several threads at once; its keeper retires through
//! [`Checkpoints`]. They share a [`State`]. A checkpoint is flushed before the room that it frees is reused, so
//! that a valid checkpoint always leads to all records that are still needed.

use crate::capture::Capture;
use crate::device::Device;
use crate::layout::{
    BLOCK_BYTES, CHECKPOINTS, Checkpoint, Failure, Identity, RING_OFFSET, Superblock, measure,
};
use crate::lock;
use crate::state::{Moment, State};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use uncopy_sys::errno::Errno;

/// Writer of a log's checkpoints.
#[derive(Debug)]
pub struct Checkpoints<'a, D> {
    device: D,
    superblock: Superblock,
    checkpoint: Checkpoint,
    state: &'a State,
}

/// Writes the superblock and first checkpoint of a log, overwriting what was there. The whole device must have
/// been written before, or the first flush of each range is slow.
///
/// # Errors
/// An error of the device.
pub fn create(device: &impl Device, superblock: &Superblock, time_ns: u64) -> Result<Checkpoint, Errno> {
    let checkpoint = Checkpoint {
        serial: 1,
        epoch: 1,
        tail: RING_OFFSET,
        sequence: 1,
        time_ns,
        boot: 0,
        process: 0,
        failure: None,
    };
    for at in CHECKPOINTS {
        device.write_at(at, &[0; BLOCK_BYTES])?;
    }
    device.write_at(0, &superblock.encode())?;
    device.flush()?;
    write_checkpoint(device, superblock, &checkpoint)?;
    Ok(checkpoint)
}

/// Writes a checkpoint over the older of the two, and flushes it.
///
/// # Errors
/// An error of the device.
pub(crate) fn write_checkpoint(
    device: &impl Device,
    superblock: &Superblock,
    checkpoint: &Checkpoint,
) -> Result<(), Errno> {
    device.write_at(CHECKPOINTS[checkpoint.serial as usize % 2], &checkpoint.encode(superblock.log))?;
    device.flush()
}

impl<'a, D: Device> Checkpoints<'a, D> {
    /// Begins using an empty log, with a checkpoint that was not written yet.
    ///
    /// # Errors
    /// An error of the device.
    pub fn begin(
        device: D,
        superblock: Superblock,
        checkpoint: Checkpoint,
        state: &'a State,
    ) -> Result<Self, Errno> {
        write_checkpoint(&device, &superblock, &checkpoint)?;
        let head = checkpoint.tail - RING_OFFSET;
        state.set_tail(head);
        state.set_moment(Moment { head, sequence: checkpoint.sequence });
        Ok(Self { device, superblock, checkpoint, state })
    }

    /// Returns the current checkpoint.
    #[must_use]
    pub const fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Returns the device of the log.
    #[must_use]
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// Retires the records before a moment. The files that they belong to must have been synced after it.
    ///
    /// # Errors
    /// An error of the device; nothing is retired.
    pub fn retire(&mut self, before: Moment, time_ns: u64) -> Result<(), Errno> {
        let ring_bytes = self.superblock.len_bytes - RING_OFFSET;
        let checkpoint = Checkpoint {
            serial: self.checkpoint.serial + 1,
            tail: RING_OFFSET + before.head % ring_bytes,
            sequence: before.sequence,
            time_ns,
            failure: None,
            ..self.checkpoint
        };
        write_checkpoint(&self.device, &self.superblock, &checkpoint)?;
        self.checkpoint = checkpoint;
        self.state.set_tail(before.head);
        Ok(())
    }

    /// Writes a checkpoint with the current time: the log's files may have been written to until then.
    ///
    /// # Errors
    /// An error of the device.
    pub fn heartbeat(&mut self, time_ns: u64) -> Result<(), Errno> {
        let checkpoint = Checkpoint { serial: self.checkpoint.serial + 1, time_ns, ..self.checkpoint };
        write_checkpoint(&self.device, &self.superblock, &checkpoint)?;
        self.checkpoint = checkpoint;
        Ok(())
    }

    /// Writes a checkpoint that keeps the records for files that lack their bytes.
    ///
    /// # Errors
    /// An error of the device.
    pub fn note_failure(&mut self, failure: Failure, time_ns: u64) -> Result<(), Errno> {
        let failure = Some(failure);
        let checkpoint =
            Checkpoint { serial: self.checkpoint.serial + 1, time_ns, failure, ..self.checkpoint };
        write_checkpoint(&self.device, &self.superblock, &checkpoint)?;
        self.checkpoint = checkpoint;
        Ok(())
    }

    /// Marks the log as empty and unused.
    ///
    /// # Errors
    /// An error of the device.
    pub fn end(mut self, time_ns: u64) -> Result<(), Errno> {
        let (serial, epoch) = (self.checkpoint.serial + 1, self.checkpoint.epoch + 1);
        let checkpoint = Checkpoint {
            serial,
            epoch,
            tail: RING_OFFSET,
            time_ns,
            process: 0,
            failure: None,
            ..self.checkpoint
        };
        self.checkpoint = checkpoint;
        write_checkpoint(&self.device, &self.superblock, &checkpoint)
    }
}

#[derive(Debug)]
struct Pending {
    /// End of the log once this record and all before it are written.
    after: Moment,
    is_written: bool,
}

#[derive(Debug)]
struct Queue {
    /// Position and sequence number of the next record.
    head: u64,
    sequence: u64,
    /// Records from the first unwritten one on, in order.
    pending: VecDeque<Pending>,
    waiters: usize,
}

/// A log that can be appended to.
#[derive(Debug)]
pub struct Log<'a, D> {
    device: D,
    superblock: Superblock,
    epoch: u64,
    state: &'a State,
    queue: Mutex<Queue>,
    written: Condvar,
    /// All records below this sequence number are written.
    complete: AtomicU64,
    /// All records below this sequence number were flushed.
    flushed: AtomicU64,
    /// Whether the device has failed: nothing after the last successful flush counts.
    is_broken: AtomicBool,
}

/// Finds the offset in the ring, and the head behind it, for a record, which must not wrap around.
fn ring_position(ring_bytes: u64, head: u64, tail: u64, len_bytes: u64) -> Option<(u64, u64)> {
    let at = head % ring_bytes;
    let begin = if at + len_bytes <= ring_bytes { head } else { head + (ring_bytes - at) };
    let end = begin.checked_add(len_bytes)?;
    // One byte at least stays free: in a checkpoint a full ring would look like an empty one.
    (len_bytes <= ring_bytes && end - tail < ring_bytes).then_some((begin % ring_bytes, end))
}

impl<'a, D: Device> Log<'a, D> {
    /// Begins appending at the position that [`Checkpoints`] have published.
    ///
    /// # Errors
    /// EAGAIN if the state has no consistent moment.
    pub fn attach(device: D, superblock: Superblock, epoch: u64, state: &'a State) -> Result<Self, Errno> {
        let Moment { head, sequence } = state.moment().ok_or(Errno::EAGAIN)?;
        Ok(Self {
            device,
            superblock,
            epoch,
            state,
            queue: Mutex::new(Queue { head, sequence, pending: VecDeque::new(), waiters: 0 }),
            written: Condvar::new(),
            complete: AtomicU64::new(sequence),
            flushed: AtomicU64::new(sequence),
            is_broken: AtomicBool::new(false),
        })
    }

    /// Returns the identifier of the log.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.superblock.log
    }

    /// Returns the length of the ring, bytes.
    #[must_use]
    pub const fn ring_bytes(&self) -> u64 {
        self.superblock.len_bytes - RING_OFFSET
    }

    /// Returns the number of bytes in use, with the gap at the end of the ring.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        lock(&self.queue).head.saturating_sub(self.state.tail())
    }

    /// Returns whether the device has failed: the log can no longer be appended to.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.is_broken.load(Acquire)
    }

    fn fail<T>(&self, errno: Errno) -> Result<T, Errno> {
        self.is_broken.store(true, Release);
        let _queue = lock(&self.queue);
        self.written.notify_all();
        Err(errno)
    }

    /// Appends a record of `written` and returns its sequence number; `Ok(None)`: it is too long or the log is
    /// full. The record is durable once [`Log::flush`] has returned.
    ///
    /// # Errors
    /// An error of the device, which breaks the log.
    pub fn append(&self, time_ns: u64, file: &Identity, written: &mut Capture) -> Result<Option<u64>, Errno> {
        let granule_bytes = self.superblock.granule_bytes as usize;
        let Some((front, whole)) = measure(&file.path, written.extents(), granule_bytes) else {
            return Ok(None);
        };
        let (at, sequence) = {
            let mut queue = lock(&self.queue);
            if self.is_broken() {
                return Err(Errno(libc::EIO));
            }
            let placed = ring_position(self.ring_bytes(), queue.head, self.state.tail(), whole as u64);
            let Some((at, head)) = placed else { return Ok(None) };
            let sequence = queue.sequence;
            queue.head = head;
            queue.sequence = sequence + 1;
            let after = Moment { head, sequence: sequence + 1 };
            queue.pending.push_back(Pending { after, is_written: false });
            (at, sequence)
        };
        let expected = self.superblock.expected(self.epoch, sequence);
        let record = written.sealed((front, whole), &expected, time_ns, self.flushed.load(Relaxed), file);
        match self.device.write_at(RING_OFFSET + at, record) {
            Ok(()) => self.note_written(sequence),
            Err(errno) => return self.fail(errno),
        }
        Ok(Some(sequence))
    }

    /// Notes that a record is written, and publishes the moment up to which all are.
    fn note_written(&self, sequence: u64) {
        let mut queue = lock(&self.queue);
        let first = queue.sequence - queue.pending.len() as u64;
        if let Some(pending) = queue.pending.get_mut((sequence - first) as usize) {
            pending.is_written = true;
        }
        let mut moment = None;
        while queue.pending.front().is_some_and(|pending| pending.is_written) {
            moment = queue.pending.pop_front().map(|pending| pending.after);
        }
        if let Some(moment) = moment {
            self.state.set_moment(moment);
            self.complete.store(moment.sequence, Release);
            // Waking nobody would still be a system call.
            if queue.waiters > 0 {
                self.written.notify_all();
            }
        }
    }

    /// Waits until a record and all before it are durable.
    ///
    /// # Errors
    /// An error of the device, which breaks the log.
    pub fn flush(&self, sequence: u64) -> Result<(), Errno> {
        if self.complete.load(Acquire) <= sequence {
            let mut queue = lock(&self.queue);
            while self.complete.load(Acquire) <= sequence {
                if self.is_broken() {
                    return Err(Errno(libc::EIO));
                }
                queue.waiters += 1;
                queue = self.written.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.waiters -= 1;
            }
        }
        let complete = self.complete.load(Acquire);
        match self.device.flush() {
            // A flush that has failed in another thread may have consumed the error.
            Ok(()) if !self.is_broken() => {
                self.flushed.fetch_max(complete, Release);
                Ok(())
            }
            Ok(()) => Err(Errno(libc::EIO)),
            Err(errno) => self.fail(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ring_position;

    #[test]
    fn records_do_not_wrap_around_and_a_ring_never_fills_up() {
        assert_eq!(ring_position(1024, 0, 0, 512), Some((0, 512)));
        assert_eq!(ring_position(1024, 0, 0, 1024), None);
        assert_eq!(ring_position(1024, 512, 0, 512), None);
        assert_eq!(ring_position(1024, 512, 512, 512), Some((512, 1024)));
        assert_eq!(ring_position(1536, 1024, 1024, 1024), None, "what is left out at the end counts");
        assert_eq!(ring_position(2048, 1536, 1536, 1024), Some((0, 3072)));
        assert_eq!(ring_position(2048, 2048, 1536, 1024), Some((0, 3072)));
        assert_eq!(ring_position(2048, 2048, 1024, 1024), None);
    }
}
