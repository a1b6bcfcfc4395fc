//! Reading a log. Every byte may be torn or hostile; every loop is bounded by the length of the ring.

use crate::chunks::Chunks;
use crate::layout::{CHECKPOINTS_AT, Checkpoint, Lsn, RELEASED_AT, Superblock, Unreadable};
use crate::memory::{LINE_BYTES, Persistent};
use crate::record::{Change, Record, Source, State, decode, measure, state_of};
use crate::table::{Entry, FileId, Identity, entry_at, entry_word};
use core::fmt;

/// Damage of a record that had been acknowledged: the log has lost bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// This record is not readable, though a later one shows that it was persistent.
    Record(Lsn),
    /// The entry of this record's file is not readable.
    File(Lsn),
    /// A chunk that this record refers to is missing or too short.
    Chunk(Lsn),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record(lsn) => write!(f, "record {lsn} is damaged"),
            Self::File(lsn) => write!(f, "the file of record {lsn} is damaged"),
            Self::Chunk(lsn) => write!(f, "a chunk of record {lsn} is missing or too short"),
        }
    }
}

impl core::error::Error for Damage {}

/// A log with a valid superblock and checkpoint.
#[derive(Debug)]
pub struct Reader<M> {
    memory: M,
    superblock: Superblock,
    checkpoint: Checkpoint,
    /// Index of the slot that holds `checkpoint`.
    slot: usize,
    /// Whether the superblock and `checkpoint` are persistent for certain.
    is_persistent: bool,
}

fn line_at(memory: &impl Persistent, at: usize) -> [u8; LINE_BYTES] {
    let mut line = [0; LINE_BYTES];
    memory.load(at, &mut line);
    line
}

/// Returns the current checkpoint and its slot.
fn newest(memory: &impl Persistent, of: &Superblock) -> Option<(usize, Checkpoint)> {
    let found = CHECKPOINTS_AT.into_iter().map(|at| Checkpoint::decode(&line_at(memory, at), of));
    let valid = found.enumerate().filter_map(|(slot, checkpoint)| Some((slot, checkpoint?)));
    valid.max_by_key(|(_, checkpoint)| checkpoint.serial)
}

impl<M: Persistent> Reader<M> {
    /// Reads the superblock and the checkpoints.
    ///
    /// # Errors
    /// The reason why the log is not usable.
    pub fn open(memory: M) -> Result<Self, Unreadable> {
        if memory.len_bytes() < LINE_BYTES {
            return Err(Unreadable::Foreign);
        }
        let superblock = Superblock::decode(&line_at(&memory, 0))?;
        if superblock.len_bytes > memory.len_bytes() as u64 {
            return Err(Unreadable::Superblock);
        }
        let (slot, checkpoint) = newest(&memory, &superblock).ok_or(Unreadable::Checkpoints)?;
        Ok(Self { memory, superblock, checkpoint, slot, is_persistent: false })
    }

    /// Reads the checkpoints again. If neither is valid, the last known one stays.
    pub(crate) fn refresh(&mut self) {
        if let Some((slot, checkpoint)) = newest(&self.memory, &self.superblock)
            && checkpoint.serial > self.checkpoint.serial
        {
            (self.slot, self.checkpoint, self.is_persistent) = (slot, checkpoint, false);
        }
    }

    /// Returns the memory of the log.
    #[must_use]
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the superblock of the log.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the current checkpoint.
    #[must_use]
    pub const fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    pub(crate) fn into_memory(self) -> (M, Superblock, Checkpoint) {
        (self.memory, self.superblock, self.checkpoint)
    }

    /// Makes what a predecessor stored persistent, who may have been killed before the fence (rule 13).
    fn adopt(&mut self) {
        if !core::mem::replace(&mut self.is_persistent, true) {
            self.memory.flush(0, LINE_BYTES);
            self.memory.flush(CHECKPOINTS_AT[self.slot], LINE_BYTES);
            self.memory.fence();
        }
    }

    /// Stores a checkpoint in place of the older one, without making it persistent. The serial number is chosen here.
    #[track_caller]
    pub(crate) fn store_checkpoint(&mut self, next: Checkpoint) {
        self.adopt();
        let serial = self.checkpoint.serial + 1;
        self.checkpoint = Checkpoint { serial, ..next };
        self.slot = 1 - self.slot;
        self.is_persistent = false;
        self.memory.store(CHECKPOINTS_AT[self.slot], &self.checkpoint.encode(&self.superblock));
    }

    /// Makes a process the owner of a log without records.
    #[track_caller]
    pub(crate) fn set_owner(&mut self, boot: u64, process: u64) {
        self.memory.store_word(RELEASED_AT, self.checkpoint.tail.0);
        self.store_checkpoint(Checkpoint { boot, process, ..self.checkpoint });
    }

    /// Makes a checkpoint persistent (rule 6).
    #[track_caller]
    pub(crate) fn write_checkpoint(&mut self, next: Checkpoint) {
        self.store_checkpoint(next);
        self.memory.flush(CHECKPOINTS_AT[self.slot], LINE_BYTES);
        self.memory.fence();
        self.is_persistent = true;
    }

    /// Returns the state of the entry of a file.
    #[must_use]
    pub fn entry(&self, file: FileId) -> Entry {
        let Some(at) = entry_at(&self.superblock, file.entry) else { return Entry::Invalid };
        let word = self.memory.load_word(at);
        if word == entry_word(&self.superblock, file, true) {
            return Entry::Forgotten;
        }
        let identity = || {
            let mut bytes = vec![0; Identity::encoded_bytes(&line_at(&self.memory, at))?];
            self.memory.load(at, &mut bytes);
            Identity::decode(&bytes, file, &self.superblock)
        };
        let is_live = word == entry_word(&self.superblock, file, false);
        is_live.then(identity).flatten().map_or(Entry::Invalid, Entry::Live)
    }

    /// Returns the files in the log, in the order of the table: those that have an entry and are not forgotten.
    pub fn files(&self) -> impl Iterator<Item = (FileId, Identity)> {
        let entries = 0..u16::try_from(self.superblock.entries).unwrap_or(u16::MAX);
        entries.filter_map(|entry| {
            let incarnation =
                Identity::incarnation(&line_at(&self.memory, entry_at(&self.superblock, entry)?));
            let file = FileId { entry, incarnation };
            match self.entry(file) {
                Entry::Live(identity) => Some((file, identity)),
                Entry::Forgotten | Entry::Invalid => None,
            }
        })
    }

    /// Returns the record with this sequence number; `None`: there is none, or it is torn.
    #[must_use]
    pub fn record(&self, lsn: Lsn) -> Option<Record> {
        let at = self.superblock.position(lsn);
        // The word first: what was stored before it is visible then.
        let state = state_of(&self.superblock, lsn, self.memory.load_word(at))?;
        let line = line_at(&self.memory, at);
        let head_bytes = measure(&line, lsn, &self.superblock)?;
        if head_bytes == LINE_BYTES {
            return decode(&line, lsn, state, &self.superblock);
        }
        let mut head = vec![0; head_bytes];
        self.memory.load(at, &mut head);
        // Another process may have changed the head since.
        let is_same = measure(head.first_chunk()?, lsn, &self.superblock) == Some(head_bytes);
        if is_same { decode(&head, lsn, state, &self.superblock) } else { None }
    }

    /// Returns all records from `from`, a sequence number of a record or the head, up to the first that is missing.
    #[must_use]
    pub fn records(&self, from: Lsn) -> Records<'_, M> {
        let limit = from.after(self.superblock.ring_bytes() as u64).unwrap_or(from);
        Records { reader: self, next: from, limit }
    }

    /// Returns the last acceptable record from `from` on: the last committed one, or the last written one. It and all
    /// records before it count.
    #[must_use]
    pub fn last(&self, from: Lsn, accepts: State) -> Option<Record> {
        self.records(from).filter(|record| record.state >= accepts).last()
    }

    /// Whether an acceptable record lies behind the first one that is missing: it shows that the missing one was
    /// there. The search ends where no record begins within the maximum length of one.
    pub(crate) fn has_survivors(&self, from: Lsn, accepts: State) -> bool {
        let limit = Lsn(from.0.saturating_add(self.superblock.ring_bytes() as u64));
        let mut next = self.records(from).last().map_or(from, |record| record.end());
        let mut searched_bytes = 0;
        while next < limit && searched_bytes <= self.superblock.max_record_bytes() {
            // A whole head, not only the word: that alone can be there if power was lost during a commit.
            match self.record(next) {
                Some(record) if record.state >= accepts => return true,
                Some(record) => (next, searched_bytes) = (record.end(), 0),
                None => (next.0, searched_bytes) = (next.0 + LINE_BYTES as u64, searched_bytes + LINE_BYTES),
            }
        }
        false
    }

    /// Checks that a record's file and chunks are there.
    ///
    /// # Errors
    /// The damage of the file's entry or of a chunk.
    pub(crate) fn check<C: Chunks + ?Sized>(&self, record: &Record, chunks: &C) -> Result<(), Damage> {
        let entry = self.entry(record.file);
        if entry == Entry::Invalid {
            return Err(Damage::File(record.lsn));
        }
        if let (Change::Write { extents, .. }, Entry::Live(_)) = (&record.change, &entry) {
            let is_there = extents.iter().all(|extent| match extent.source {
                Source::Inline(_) => true,
                Source::Chunk { chunk, at } => chunks.has(chunk, at, extent.len_bytes),
            });
            if !is_there {
                return Err(Damage::Chunk(record.lsn));
            }
        }
        Ok(())
    }
}

/// Consecutive records of a log.
#[derive(Debug)]
pub struct Records<'a, M> {
    reader: &'a Reader<M>,
    next: Lsn,
    limit: Lsn,
}

impl<M: Persistent> Iterator for Records<'_, M> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        // Each record has at least one line, so a ring of them ends.
        let record = (self.next < self.limit).then(|| self.reader.record(self.next)).flatten()?;
        self.next = record.end();
        Some(record)
    }
}
