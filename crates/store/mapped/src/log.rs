//! The writer: appends records and makes them persistent.

use crate::chunks::Chunks;
use crate::layout::{
    CHECKPOINTS_AT, Checkpoint, FileId, Identity, Lsn, MAX_PATH_BYTES, RELEASED_AT, Superblock,
};
use crate::memory::{LINE_BYTES, Persistent};
use crate::reader::Reader;
use crate::record::{
    Change, Extent, MAX_EXTENTS, MAX_FILE_BYTES, Record, Reference, Source, State, commit_word, encode,
    head_bytes,
};
use core::fmt;

/// Minimum length of inline bytes that are stored past the cache. Below, a store and a flush of a few lines cost
/// less than the partial lines that non-temporal stores leave in the write-combining buffers. A guess, to be
/// measured on real persistent memory.
pub const MIN_STREAM_BYTES: usize = 256;

/// Part of a write.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// Bytes that the record gets a copy of.
    Bytes(&'a [u8]),
    /// Bytes in a chunk, which the record refers to. They must not change before the record is retired.
    Reference(Reference),
}

impl Part<'_> {
    const fn len_bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Reference(reference) => reference.len_bytes as usize,
        }
    }
}

/// Reason why a record was not appended. The log is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendError {
    /// No room until a digest has retired records.
    Full,
    /// The record would be longer than [`Superblock::max_record_bytes`], or have more than [`MAX_EXTENTS`] extents.
    TooLong,
    /// The write or the new size ends behind [`MAX_FILE_BYTES`].
    FileTooLarge,
    /// A reference is not within a chunk.
    NoSuchChunk,
    /// The file is not registered.
    NotRegistered,
}

impl fmt::Display for AppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the log is full",
            Self::TooLong => "the write is too long for one record",
            Self::FileTooLarge => "the file would exceed the maximum size",
            Self::NoSuchChunk => "a reference is not within a chunk",
            Self::NotRegistered => "the file is not registered",
        })
    }
}

impl core::error::Error for AppendError {}

/// Reason why a file was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// All entries of the table belong to files with records that are not retired.
    TableFull,
    /// The path is longer than [`MAX_PATH_BYTES`].
    PathTooLong,
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TableFull => f.write_str("the log's table of files is full"),
            Self::PathTooLong => write!(f, "the path is longer than {MAX_PATH_BYTES} bytes"),
        }
    }
}

impl core::error::Error for RegisterError {}

/// Use of an entry of the table of files by this writer.
#[derive(Clone, Copy, Debug)]
struct Slot {
    file: FileId,
    is_live: bool,
    /// End of the file's last record.
    end: Lsn,
}

/// A log without records, to which a writer can [attach](Log::attach).
#[derive(Debug)]
pub struct EmptyLog<M> {
    reader: Reader<M>,
}

impl<M: Persistent> EmptyLog<M> {
    /// Formats memory as a log, whose identifier no log in this memory had before. Whatever the memory held is lost.
    ///
    /// Returns `None` if the superblock is not [possible](Superblock::is_possible), or the memory too short.
    pub fn create(memory: M, superblock: &Superblock) -> Option<Self> {
        if !superblock.is_possible() || superblock.len_bytes > memory.len_bytes() as u64 {
            return None;
        }
        // Not the beginning, so that zeroes are no sequence number.
        let tail = Lsn(superblock.ring_bytes() as u64);
        let checkpoint = Checkpoint { serial: 1, tail, boot: 0, process: 0 };
        // An older log in the same memory is gone before anything of it is overwritten.
        memory.store(0, &[0; LINE_BYTES]);
        memory.flush(0, LINE_BYTES);
        memory.fence();
        memory.store(CHECKPOINTS_AT[0], &checkpoint.encode(superblock));
        memory.flush(CHECKPOINTS_AT[0], LINE_BYTES);
        memory.fence();
        memory.store(0, &superblock.encode());
        memory.flush(0, LINE_BYTES);
        memory.fence();
        Some(Self { reader: Reader::open(memory).ok()? })
    }

    /// Returns the log behind a reader whose records are all retired.
    pub(crate) const fn of(reader: Reader<M>) -> Self {
        Self { reader }
    }

    /// Returns the superblock of the log.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        self.reader.superblock()
    }
}

/// The writer of a log. One process at a time has one; its threads share it under a lock.
#[derive(Debug)]
pub struct Log<M> {
    memory: M,
    superblock: Superblock,
    /// Sequence number of the next record.
    head: Lsn,
    /// First record whose room may not be reused.
    tail: Lsn,
    /// End of the committed records.
    committed: Lsn,
    /// The record before `head`, unless it is committed; its first line is not flushed.
    last: Option<Lsn>,
    slots: Vec<Option<Slot>>,
    /// Buffer for the head of a record.
    front: Vec<u8>,
}

impl<M: Persistent> Log<M> {
    /// Makes this process the owner of the log. `boot` identifies the running kernel ([`Checkpoint::boot`]).
    pub fn attach(mut log: EmptyLog<M>, boot: u64, process: u64) -> Self {
        // Rule 5: a kill after the first append is recognised as one.
        log.reader.set_owner(boot, process);
        let (memory, superblock, Checkpoint { tail, .. }) = log.reader.into_memory();
        let slots = vec![None; superblock.entries as usize];
        Self { memory, superblock, head: tail, tail, committed: tail, last: None, slots, front: Vec::new() }
    }

    /// Returns the superblock of the log.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the end of the written records.
    #[must_use]
    pub const fn head(&self) -> Lsn {
        self.head
    }

    /// Returns the end of the committed records.
    #[must_use]
    pub const fn committed(&self) -> Lsn {
        self.committed
    }

    /// Returns the number of bytes of the ring in use, as of the last [`Log::release`].
    #[must_use]
    pub const fn used_bytes(&self) -> u64 {
        self.head.since(self.tail)
    }

    /// Registers a file, so that records can be appended for it. A file may be registered again while older records
    /// of it are digested; it is then a different file for this crate.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn register(&mut self, identity: &Identity) -> Result<FileId, RegisterError> {
        if identity.path.len() > MAX_PATH_BYTES {
            return Err(RegisterError::PathTooLong);
        }
        self.release();
        // Rule 9: records of the entry's last file are retired persistently.
        let is_free = |slot: &Option<Slot>| slot.is_none_or(|slot| !slot.is_live && slot.end <= self.tail);
        let index = self.slots.iter().position(is_free).ok_or(RegisterError::TableFull)?;
        let file = FileId { entry: index as u16, incarnation: self.head };
        let at = self.superblock.entry_at(file.entry).ok_or(RegisterError::TableFull)?;
        let bytes = identity.encode(file, &self.superblock);
        // Rule 4: in any order, since nothing refers to the entry; persistent with the first commit of a record that
        // does.
        self.memory.store(at, &bytes);
        self.memory.flush(at, bytes.len());
        self.slots[index] = Some(Slot { file, is_live: true, end: self.tail });
        Ok(file)
    }

    /// Ends appending for a file, whose entry is reused once all of its records are retired. If the digester
    /// [forgets](crate::digest::Digester::forget) the file, it must have done so before.
    pub fn leave(&mut self, file: FileId) {
        if let Some(slot) = self.slot(file) {
            slot.is_live = false;
        }
    }

    fn slot(&mut self, file: FileId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::from(file.entry))?.as_mut()?;
        (slot.is_live && slot.file == file).then_some(slot)
    }

    /// Appends a write of `parts`, back to back, to `offset` of a file. Returns the end of the record. The record
    /// survives the death of this process from now on, and power loss once [`Log::sync`] or [`Log::commit`] has
    /// returned. A write without bytes appends nothing.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn append<C: Chunks + ?Sized>(
        &mut self,
        chunks: &C,
        file: FileId,
        offset: u64,
        parts: &[Part<'_>],
    ) -> Result<Lsn, AppendError> {
        let (extents, inline_bytes) = measure(chunks, offset, parts)?;
        if extents.is_empty() {
            return Ok(self.head);
        }
        let head_len = head_bytes(extents.len());
        let len_bytes = head_len.checked_add(inline_bytes).ok_or(AppendError::TooLong)?;
        let change = Change::Write { offset, extents };
        self.put(file, change, len_bytes, |memory, at| {
            // Rule 1: all payload is flushed or streamed before the record is written.
            let mut to = at + head_len;
            for part in parts {
                match part {
                    Part::Bytes(bytes) if inline_bytes >= MIN_STREAM_BYTES => memory.stream(to, bytes),
                    Part::Bytes(bytes) => memory.store(to, bytes),
                    Part::Reference(reference) => {
                        if let Some(chunk) = chunks.memory(reference.chunk) {
                            chunk.flush(reference.at as usize, reference.len_bytes as usize);
                        }
                        continue;
                    }
                }
                to += part.len_bytes();
            }
            if inline_bytes < MIN_STREAM_BYTES {
                memory.flush(at + head_len, inline_bytes);
            }
        })
    }

    /// Appends a change of a file's size. Returns the end of the record. See [`Log::append`].
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn resize(&mut self, file: FileId, size: u64) -> Result<Lsn, AppendError> {
        if size > MAX_FILE_BYTES {
            return Err(AppendError::FileTooLarge);
        }
        self.put(file, Change::Resize(size), LINE_BYTES, |_, _| {})
    }

    /// Appends a record of `len_bytes`, rounded up to lines, whose payload `fill` stores.
    fn put(
        &mut self,
        file: FileId,
        change: Change,
        len_bytes: usize,
        fill: impl FnOnce(&M, usize),
    ) -> Result<Lsn, AppendError> {
        self.slot(file).ok_or(AppendError::NotRegistered)?;
        if len_bytes > self.superblock.max_record_bytes() {
            return Err(AppendError::TooLong);
        }
        let len_bytes = len_bytes.next_multiple_of(LINE_BYTES);
        let end = self.make_room(len_bytes)?;
        let at = self.superblock.position(self.head);
        fill(&self.memory, at);
        let (lsn, state) = (self.head, State::Written);
        self.put_head(&Record { lsn, state, len_bytes, file, change });
        if let Some(slot) = self.slot(file) {
            slot.end = end;
        }
        Ok(end)
    }

    /// Makes sure that a record of `len_bytes` fits at the head without wrapping around, and returns its end.
    fn make_room(&mut self, len_bytes: usize) -> Result<Lsn, AppendError> {
        let left_bytes = self.superblock.bytes_before_wrap(self.head);
        let pad_bytes = if len_bytes > left_bytes { left_bytes } else { 0 };
        let needed_bytes = (pad_bytes + len_bytes) as u64;
        let end = self.head.after(needed_bytes).ok_or(AppendError::Full)?;
        let ring_bytes = self.superblock.ring_bytes() as u64;
        if end.since(self.tail) > ring_bytes && end.since(self.release()) > ring_bytes {
            return Err(AppendError::Full);
        }
        if pad_bytes > 0 {
            let file = FileId { entry: 0, incarnation: self.head };
            let (lsn, state, change) = (self.head, State::Written, Change::Pad);
            self.put_head(&Record { lsn, state, len_bytes: pad_bytes, file, change });
        }
        Ok(end)
    }

    /// Stores the head of a record whose payload is stored, and moves the log's head behind the record.
    fn put_head(&mut self, record: &Record) {
        let at = self.superblock.position(record.lsn);
        encode(record, &self.superblock, &mut self.front);
        if let Some(last) = self.last {
            // Rule 2: the line that the last record left in the cache.
            self.memory.flush(self.superblock.position(last), LINE_BYTES);
        }
        self.memory.store(at + 8, &self.front[8..]);
        if self.front.len() > LINE_BYTES {
            self.memory.flush(at + LINE_BYTES, self.front.len() - LINE_BYTES);
        }
        // Rule 1: visible after everything else of the record.
        self.memory.store_word(at, commit_word(&self.superblock, record.lsn, State::Written));
        self.last = Some(record.lsn);
        self.head = record.end();
    }

    /// Makes all records of a file persistent. Returns false if they were: then nothing was done. Otherwise all
    /// records of the log are committed together, with two fences and one flushed line.
    ///
    /// # Errors
    /// [`AppendError::NotRegistered`].
    pub fn sync(&mut self, file: FileId) -> Result<bool, AppendError> {
        let committed = self.committed;
        let slot = self.slot(file).ok_or(AppendError::NotRegistered)?;
        let has_more = slot.end > committed;
        if has_more {
            self.commit();
        }
        Ok(has_more)
    }

    /// Makes all records persistent. A caller also does this before it waits for room: a digester beside a living
    /// writer takes committed records only.
    pub fn commit(&mut self) {
        let Some(last) = self.last.take() else { return };
        let at = self.superblock.position(last);
        // Rule 2: everything that the commit word vouches for is persistent before it is stored.
        self.memory.fence();
        self.memory.store_word(at, commit_word(&self.superblock, last, State::Committed));
        // Rule 3: so is the commit word before the caller acknowledges anything.
        self.memory.flush(at, LINE_BYTES);
        self.memory.fence();
        self.committed = self.head;
    }

    /// Takes back the room of records that the digester has retired, and returns the first record that it has not.
    pub fn release(&mut self) -> Lsn {
        // Rule 8: this word follows the fence of the checkpoint, which may be visible and not persistent.
        let released = Lsn(self.memory.load_word(RELEASED_AT));
        // Another process stores it: a value outside of the log's records counts for nothing.
        if self.tail < released && released <= self.head && released.0.is_multiple_of(LINE_BYTES as u64) {
            self.tail = released;
        }
        self.tail
    }
}

/// Checks the parts of a write to `offset`. Returns its extents, with positions relative to the record, and the
/// number of inline bytes.
fn measure<C: Chunks + ?Sized>(
    chunks: &C,
    offset: u64,
    parts: &[Part<'_>],
) -> Result<(Vec<Extent>, usize), AppendError> {
    let mut extents: Vec<Extent> = Vec::new();
    let (mut inline_bytes, mut end) = (0usize, offset);
    for part in parts.iter().filter(|part| part.len_bytes() > 0) {
        let len_bytes = part.len_bytes();
        end = end
            .checked_add(len_bytes as u64)
            .filter(|end| *end <= MAX_FILE_BYTES)
            .ok_or(AppendError::FileTooLarge)?;
        let source = match part {
            Part::Bytes(_) => {
                inline_bytes = inline_bytes.checked_add(len_bytes).ok_or(AppendError::TooLong)?;
                Source::Inline(inline_bytes - len_bytes)
            }
            Part::Reference(Reference { chunk, at, .. }) => {
                if !chunks.has(*chunk, *at, len_bytes) {
                    return Err(AppendError::NoSuchChunk);
                }
                Source::Chunk { chunk: *chunk, at: *at }
            }
        };
        // Neighbours become one extent if that is not too long for the format.
        let merged = extents.last_mut().filter(|last| {
            last.source.skip(last.len_bytes) == source && u32::try_from(last.len_bytes + len_bytes).is_ok()
        });
        match merged {
            Some(last) => last.len_bytes += len_bytes,
            None => extents.push(Extent { source, len_bytes }),
        }
        if extents.len() > MAX_EXTENTS || inline_bytes > crate::layout::MAX_RECORD_BYTES {
            return Err(AppendError::TooLong);
        }
    }
    let head_len = head_bytes(extents.len());
    for extent in &mut extents {
        if let Source::Inline(at) = &mut extent.source {
            *at += head_len;
        }
    }
    Ok((extents, inline_bytes))
}
