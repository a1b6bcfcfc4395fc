//! The writer: appends records and makes them persistent.

use crate::chunks::Chunks;
use crate::layout::{CHECKPOINTS_AT, Checkpoint, Lsn, RELEASED_AT, Superblock};
use crate::memory::{LINE_BYTES, Persistent};
use crate::parts::{AppendError, Part, RegisterError, measure};
use crate::reader::Reader;
use crate::record::{Change, MAX_FILE_BYTES, Record, State, commit_word, encode, head_bytes};
use crate::table::{FileId, Identity, MAX_PATH_BYTES, entry_at};

/// Minimum length of inline bytes that are stored past the cache. Below, a store and a flush of a few lines cost
/// less than the partial lines that non-temporal stores leave in the write-combining buffers. A guess, to be
/// measured on real persistent memory.
pub const MIN_STREAM_BYTES: usize = 256;

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
        let checkpoint = Checkpoint { serial: 1, tail, boot: 0, process: 0, time_ns: 0, failure: 0 };
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
        let at = entry_at(&self.superblock, file.entry).ok_or(RegisterError::TableFull)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::{Digester, Limits};
    use crate::layout::MIN_RING_BYTES;
    use crate::record::Reference;
    use crate::testing::{Counted, identity, superblock};

    const NONE: &[Counted] = &[];

    fn log_in(memory: &Counted) -> Log<&Counted> {
        let of = superblock(memory.len_bytes() - superblock(0).len_bytes as usize);
        Log::attach(EmptyLog::create(memory, &of).expect("a log"), 1, 1)
    }

    fn memory(ring_bytes: usize) -> Counted {
        Counted::new(superblock(ring_bytes).len_bytes as usize)
    }

    fn digest(memory: &Counted) {
        let mut digester = Digester::open(memory).expect("a log");
        let batch = digester.plan(NONE, Limits::default()).expect("no damage");
        assert!(digester.retire(&batch, 1));
    }

    #[test]
    fn a_sync_costs_two_fences_and_each_line_is_flushed_once() {
        let memory = memory(64 << 10);
        let mut log = log_in(&memory);
        let file = log.register(&identity(1)).expect("a free entry");
        let other = log.register(&identity(2)).expect("a free entry");
        memory.take_counts();
        log.append(NONE, file, 0, &[Part::Bytes(&[1; 100])]).expect("room");
        assert_eq!(memory.take_counts(), (0, 2, 0), "the payload, not the head");
        assert_eq!(log.sync(file), Ok(true));
        assert_eq!(memory.take_counts(), (2, 1, 0), "the head with its commit word");
        log.append(NONE, file, 100, &[Part::Bytes(&[2; 4096])]).expect("room");
        log.append(NONE, other, 0, &[Part::Bytes(&[3; 60]), Part::Bytes(&[4; 4])]).expect("room");
        assert_eq!(memory.take_counts(), (0, 2, 4096), "the first head when the second record comes");
        assert_eq!(log.sync(file), Ok(true));
        assert_eq!(memory.take_counts(), (2, 1, 0));
        assert_eq!((log.sync(file), log.sync(other)), (Ok(false), Ok(false)));
        log.commit();
        assert_eq!(memory.take_counts(), (0, 0, 0), "the other file was committed with the first");
    }

    #[test]
    fn a_full_log_has_room_again_once_a_digest_has_retired_records() {
        let memory = memory(MIN_RING_BYTES);
        let mut log = log_in(&memory);
        let file = log.register(&identity(1)).expect("a free entry");
        let mut offset = 0;
        for lap in 0..5 {
            let mut appended = 0;
            let end = loop {
                match log.append(NONE, file, offset, &[Part::Bytes(&[7; 300])]) {
                    Ok(_) => (offset, appended) = (offset + 300, appended + 1),
                    Err(why) => break why,
                }
            };
            // 384 bytes each in a ring of 4,096; padding at its end may take the room of one.
            assert_eq!(end, AppendError::Full);
            assert!((9..=10).contains(&appended), "{appended} records in lap {lap}");
            assert!(log.used_bytes() <= MIN_RING_BYTES as u64);
            let head = log.head();
            log.commit();
            digest(&memory);
            assert_eq!((log.release(), log.used_bytes()), (head, 0));
        }
    }

    #[test]
    fn a_write_that_cannot_be_a_record_changes_nothing() {
        let memory = memory(MIN_RING_BYTES);
        let chunks = [Counted::new(512)];
        let mut log = log_in(&memory);
        let file = log.register(&identity(1)).expect("a free entry");
        let head = log.head();
        let reference = |at, len_bytes| Part::Reference(Reference { chunk: 0, at, len_bytes });
        let refused = [
            (0, Part::Bytes(&[0; 2048]), AppendError::TooLong),
            (MAX_FILE_BYTES, Part::Bytes(&[0; 1]), AppendError::FileTooLarge),
            (u64::MAX, Part::Bytes(&[0; 1]), AppendError::FileTooLarge),
            (0, reference(500, 13), AppendError::NoSuchChunk),
            (0, reference(u64::MAX, 2), AppendError::NoSuchChunk),
        ];
        for (offset, part, why) in refused {
            assert_eq!(log.append(&chunks[..], file, offset, &[part]), Err(why));
        }
        let chunk = Reference { chunk: 1, at: 0, len_bytes: 1 };
        assert_eq!(
            log.append(&chunks[..], file, 0, &[Part::Reference(chunk)]),
            Err(AppendError::NoSuchChunk)
        );
        assert_eq!(log.resize(file, MAX_FILE_BYTES + 1), Err(AppendError::FileTooLarge));
        let scattered: Vec<Part<'_>> = (0..=1024).map(|at| reference(at % 2 * 2, 1)).collect();
        let large = Counted::new(superblock(1 << 20).len_bytes as usize);
        let mut large_log = log_in(&large);
        let large_file = large_log.register(&identity(1)).expect("a free entry");
        let append = |log: &mut Log<_>, parts| log.append(&chunks[..], large_file, 0, parts);
        assert_eq!(append(&mut large_log, &scattered), Err(AppendError::TooLong));
        assert!(append(&mut large_log, &scattered[1..]).is_ok());
        assert_eq!(log.append(NONE, file, 0, &[Part::Bytes(&[])]), Ok(head), "no bytes, no record");
        log.leave(file);
        assert_eq!(log.append(NONE, file, 0, &[Part::Bytes(b"a")]), Err(AppendError::NotRegistered));
        assert_eq!(log.sync(file), Err(AppendError::NotRegistered));
        assert_eq!(log.head(), head);
    }

    #[test]
    fn an_entry_is_reused_once_its_records_are_retired() {
        let memory = memory(MIN_RING_BYTES);
        let mut log = log_in(&memory);
        let first = log.register(&identity(1)).expect("a free entry");
        let second = log.register(&identity(2)).expect("a free entry");
        assert_eq!(log.register(&identity(3)), Err(RegisterError::TableFull));
        let long = Identity { path: vec![b'a'; MAX_PATH_BYTES + 1], ..identity(3) };
        assert_eq!(log.register(&long), Err(RegisterError::PathTooLong));
        log.append(NONE, first, 0, &[Part::Bytes(b"a")]).expect("room");
        log.leave(first);
        assert_eq!(log.register(&identity(3)), Err(RegisterError::TableFull));
        log.commit();
        digest(&memory);
        let third = log.register(&identity(3)).expect("the entry of the first");
        assert_eq!((third.entry, third == first), (first.entry, false));
        log.leave(second);
        assert!(log.register(&identity(4)).is_ok(), "a file without records holds nothing");
    }

    #[test]
    fn impossible_released_words_do_not_count() {
        let memory = memory(MIN_RING_BYTES);
        let mut log = log_in(&memory);
        let file = log.register(&identity(1)).expect("a free entry");
        let tail = log.release();
        log.append(NONE, file, 0, &[Part::Bytes(b"a")]).expect("room");
        for word in [0, tail.0 + 1, log.head().0 + 64, u64::MAX] {
            memory.store_word(RELEASED_AT, word);
            assert_eq!(log.release(), tail);
        }
        assert!(EmptyLog::create(&memory, &superblock(MIN_RING_BYTES + 64)).is_none(), "too short");
    }
}
