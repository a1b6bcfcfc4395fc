//! Reading a log, and writing its records to their files.

use crate::device::{Aligned, Device};
use crate::layout::{
    BLOCK_BYTES, CHECKPOINTS, Checkpoint, Expected, Identity, RING_OFFSET, Record, Superblock,
    SuperblockError, decode_record, record_bytes, sequence_of,
};
use std::collections::{BTreeMap, BTreeSet};
use uncopy_sys::errno::Errno;

/// Reason why a log cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// An error of the device.
    Device(Errno),
    /// The superblock is not usable.
    Superblock(SuperblockError),
    /// Neither checkpoint is valid.
    NoCheckpoint,
}

impl From<Errno> for Unreadable {
    fn from(errno: Errno) -> Self {
        Self::Device(errno)
    }
}

/// A log that is open for reading.
#[derive(Debug)]
pub struct Recovery<D> {
    device: D,
    superblock: Superblock,
    checkpoint: Checkpoint,
}

/// End of a log's valid records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Position and sequence number of the next record.
    head: u64,
    sequence: u64,
    /// Whether valid records follow an invalid one that had been durable: the log is damaged.
    pub is_damaged: bool,
}

/// Result of looking for a record's file.
#[derive(Debug)]
pub enum FileLookup<F> {
    /// The file, open for writing.
    File(F),
    /// The file was removed, or does not rely on this log any more.
    Gone,
    /// The file was not found, or may have been changed since: its records are not written.
    Unresolved,
}

/// Access to the files of a log's records.
pub trait Files {
    /// A file that is open for writing.
    type File;

    /// Looks for a file that relies on this log. Called once per file.
    fn find(&mut self, file: &Identity, log: u64) -> FileLookup<Self::File>;

    /// Writes bytes of a record to a file.
    ///
    /// # Errors
    /// An error of the kernel.
    fn write_at(&mut self, file: &mut Self::File, offset: u64, bytes: &[u8]) -> Result<(), Errno>;

    /// Syncs a file.
    ///
    /// # Errors
    /// An error of the kernel.
    fn sync(&mut self, file: &mut Self::File) -> Result<(), Errno>;
}

/// Result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Number of records written to their files.
    pub records: u64,
    /// Bytes of those records.
    pub bytes: u64,
    /// Number of records whose files are gone.
    pub gone_records: u64,
}

/// Summary of a log's undigested records.
#[derive(Clone, Debug)]
pub struct Survey {
    /// End of the records.
    pub end: End,
    /// Number of undigested records.
    pub records: u64,
    /// Bytes of files in the records.
    pub bytes: u64,
    /// Time of the newest record, ns since 1970; 0: there is none.
    pub newest_ns: u64,
    /// Files of the records.
    pub files: BTreeSet<Identity>,
}

/// Results of looking for the files of a log's records.
pub type FileLookups<F> = BTreeMap<Identity, FileLookup<<F as Files>::File>>;

impl<D: Device> Recovery<D> {
    /// Reads the superblock and the checkpoints of a log.
    ///
    /// # Errors
    /// The reason why the log cannot be read.
    pub fn open(device: D) -> Result<Self, Unreadable> {
        let mut block = [0; BLOCK_BYTES];
        device.read_at(0, &mut block)?;
        let superblock = Superblock::decode(&block).map_err(Unreadable::Superblock)?;
        let mut newest = None::<Checkpoint>;
        for at in CHECKPOINTS {
            device.read_at(at, &mut block)?;
            let found = Checkpoint::decode(&block, &superblock);
            let is_newer = |found: &Checkpoint| newest.is_none_or(|newest| found.serial > newest.serial);
            newest = found.filter(is_newer).or(newest);
        }
        Ok(Self { device, superblock, checkpoint: newest.ok_or(Unreadable::NoCheckpoint)? })
    }

    /// Returns the superblock of the log.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the current checkpoint of the log.
    #[must_use]
    pub const fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    const fn expected(&self, sequence: u64) -> Expected {
        self.superblock.expected(self.checkpoint.epoch, sequence)
    }

    /// Reads the record at an offset, with all of its bytes, if it is the expected one.
    fn record_at(&self, at: u64, expected: &Expected, bytes: &mut Aligned) -> Result<Option<Record>, Errno> {
        let left_bytes = self.superblock.len_bytes - at;
        if left_bytes < expected.granule_bytes as u64 {
            return Ok(None);
        }
        bytes.resize(expected.granule_bytes);
        self.device.read_at(at, bytes)?;
        let Some(len_bytes) =
            record_bytes(bytes, expected).filter(|len_bytes| *len_bytes as u64 <= left_bytes)
        else {
            return Ok(None);
        };
        if len_bytes > expected.granule_bytes {
            bytes.resize(len_bytes);
            // The offset of the record is aligned for the device; the rest of it may not be.
            self.device.read_at(at, bytes)?;
        }
        Ok(decode_record(bytes, expected))
    }

    /// Calls `each` with every undigested record, in order, and the record's bytes.
    ///
    /// # Errors
    /// An error of the device or of `each`.
    pub fn each_record(&self, each: impl FnMut(&Record, &[u8]) -> Result<(), Errno>) -> Result<End, Errno> {
        let (at, sequence) = self.walk(each)?;
        let head = if at == self.superblock.len_bytes { RING_OFFSET } else { at };
        Ok(End { head, sequence, is_damaged: self.has_survivors(at, sequence)? })
    }

    /// Like [`Recovery::each_record`], without the search for damage behind the end. Returns the offset and the
    /// sequence number of the first missing record.
    ///
    /// # Errors
    /// An error of the device or of `each`.
    pub fn walk(
        &self,
        mut each: impl FnMut(&Record, &[u8]) -> Result<(), Errno>,
    ) -> Result<(u64, u64), Errno> {
        let (mut at, mut sequence) = (self.checkpoint.tail, self.checkpoint.sequence);
        let mut bytes = Aligned::default();
        loop {
            let expected = self.expected(sequence);
            let mut record = self.record_at(at, &expected, &mut bytes)?;
            if record.is_none() && at != RING_OFFSET {
                record = self.record_at(RING_OFFSET, &expected, &mut bytes)?;
                at = if record.is_some() { RING_OFFSET } else { at };
            }
            let Some(record) = record else { break };
            each(&record, &bytes)?;
            at += record.len_bytes as u64;
            sequence += 1;
        }
        Ok((at, sequence))
    }

    /// Returns whether a record behind the first missing one shows that the latter had been durable.
    fn has_survivors(&self, from: u64, missing: u64) -> Result<bool, Errno> {
        // Records written concurrently with the missing one lie within this range.
        const LOOKED_AT_BYTES: u64 = 2 * crate::layout::MAX_RECORD_BYTES as u64;
        const STEP_BYTES: u64 = 1 << 20;
        let granule_bytes = self.superblock.granule_bytes as usize;
        let end = self.superblock.len_bytes.min(from + LOOKED_AT_BYTES);
        let mut bytes = Aligned::default();
        let mut step = Aligned::default();
        step.resize(STEP_BYTES.min(end.saturating_sub(from)) as usize);
        for step_at in (from..end).step_by(STEP_BYTES as usize) {
            let len = (end - step_at).min(STEP_BYTES) as usize / granule_bytes * granule_bytes;
            self.device.read_at(step_at, &mut step[..len])?;
            for (granule, front) in step[..len].chunks_exact(granule_bytes).enumerate() {
                let at = step_at + (granule * granule_bytes) as u64;
                let sequence = sequence_of(front).unwrap_or(0);
                let expected = self.expected(sequence);
                if sequence > missing
                    && record_bytes(front, &expected).is_some()
                    && let Some(record) = self.record_at(at, &expected, &mut bytes)?
                    && record.flushed > missing
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Reads all undigested records and summarises them.
    ///
    /// # Errors
    /// An error of the device.
    pub fn survey(&self) -> Result<Survey, Errno> {
        let (mut records, mut bytes, mut newest_ns, mut files) = (0, 0, 0, BTreeSet::new());
        let end = self.each_record(|record, _| {
            records += 1;
            bytes += record.extents.iter().map(|extent| extent.len_bytes as u64).sum::<u64>();
            newest_ns = newest_ns.max(record.time_ns);
            files.insert(record.file.clone());
            Ok(())
        })?;
        Ok(Survey { end, records, bytes, newest_ns, files })
    }

    /// Looks for the files of the records.
    pub fn look_up<F: Files>(&self, survey: &Survey, files: &mut F) -> FileLookups<F> {
        let found = |file: &Identity| (file.clone(), files.find(file, self.superblock.log));
        survey.files.iter().map(found).collect()
    }

    /// Writes every undigested record to its file, if that was [found](Recovery::look_up), and syncs the files.
    /// Can be repeated, also after an interruption, until the log is [emptied](Recovery::emptied).
    ///
    /// # Errors
    /// An error of the device or of the files.
    pub fn replay<F: Files>(&self, files: &mut F, found: &mut FileLookups<F>) -> Result<Replayed, Errno> {
        let mut done = Replayed::default();
        self.each_record(|record, bytes| {
            match found.get_mut(&record.file) {
                Some(FileLookup::File(file)) => {
                    for extent in &record.extents {
                        let bytes = &bytes[extent.at..extent.at + extent.len_bytes];
                        files.write_at(file, extent.offset, bytes)?;
                        done.bytes += bytes.len() as u64;
                    }
                    done.records += 1;
                }
                Some(FileLookup::Gone) => done.gone_records += 1,
                _ => {}
            }
            Ok(())
        })?;
        for file in found.values_mut() {
            if let FileLookup::File(file) = file {
                files.sync(file)?;
            }
        }
        Ok(done)
    }

    /// Returns the checkpoint of the emptied log, after all records are in their files.
    /// [`Checkpoints::begin`](crate::log::Checkpoints::begin) writes it.
    #[must_use]
    pub fn emptied(self, end: End, time_ns: u64) -> (D, Superblock, Checkpoint) {
        let Checkpoint { serial, epoch, .. } = self.checkpoint;
        let End { head: tail, sequence, .. } = end;
        let (boot, process) = (self.checkpoint.boot, 0);
        let checkpoint = Checkpoint {
            serial: serial + 1,
            epoch: epoch + 1,
            tail,
            sequence,
            time_ns,
            boot,
            process,
            failure: None,
        };
        (self.device, self.superblock, checkpoint)
    }
}
