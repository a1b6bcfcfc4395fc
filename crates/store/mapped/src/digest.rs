//! The digester: takes committed records to their files and retires them.
//!
//! ```text
//! plan ──► the caller carries out each file's plan, then syncs the files ──► retire ──► room and chunks are free
//! plan_file, until the last ──► the same for one file ──► forget ──► others may change the file
//! ```
//!
//! There is one digester at a time. It may run in another process than the writer and beside it.

use crate::chunks::Chunks;
use crate::layout::{Checkpoint, Lsn, RELEASED_AT, Unreadable};
use crate::memory::{LINE_BYTES, Persistent};
use crate::plan::{FilePlan, Planner};
use crate::reader::{Damage, Reader};
use crate::record::{Change, Record, Reference, Source, State};
use crate::table::{Entry, FileId, entry_at, entry_word};
use std::collections::BTreeMap;

/// Bounds of a batch. The last record may exceed them.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of extents: bounds the memory that planning takes, some 200 bytes per extent.
    pub extents: usize,
    /// Maximum number of bytes of records: bounds the time until their room is free.
    pub bytes: u64,
}

impl Default for Limits {
    /// Returns 65,536 extents and 64 MiB.
    fn default() -> Self {
        Self { extents: 1 << 16, bytes: 64 << 20 }
    }
}

/// Records to be digested together.
#[derive(Clone, Debug)]
pub struct Batch {
    from: Lsn,
    /// End of the batch's records.
    pub through: Lsn,
    /// Plans of the files, in the order in which the files were registered.
    pub files: Vec<FilePlan>,
    /// References of the records, in their order. Whoever holds chunks for the log drops them after the batch
    /// was [retired](Digester::retire).
    pub references: Vec<Reference>,
    /// Number of records, without padding.
    pub records: u64,
}

impl Batch {
    /// Whether the batch has no records at all, and nothing to retire.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.from == self.through
    }
}

/// Records of one file to be digested together.
#[derive(Clone, Debug)]
pub struct FileBatch {
    /// Position to continue from.
    pub through: Lsn,
    /// Plan of the file; `None`: none of its records is in the batch.
    pub plan: Option<FilePlan>,
    /// Whether no committed record follows.
    pub is_last: bool,
}

/// Plans of files under construction.
#[derive(Default)]
struct Planners {
    /// State of each file's entry.
    entries: BTreeMap<FileId, Option<Planner>>,
    references: Vec<Reference>,
    records: u64,
    extents: usize,
}

impl Planners {
    fn add<M: Persistent, C: Chunks + ?Sized>(
        &mut self,
        reader: &Reader<M>,
        chunks: &C,
        record: Record,
    ) -> Result<(), Damage> {
        self.extents += 1;
        if record.change == Change::Pad {
            return Ok(());
        }
        self.records += 1;
        let planner = match self.entries.entry(record.file) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(vacant) => {
                vacant.insert(match reader.entry(record.file) {
                    Entry::Live(identity) => Some(Planner::new(record.file, identity)),
                    Entry::Forgotten => None,
                    Entry::Invalid => return Err(Damage::File(record.lsn)),
                })
            }
        };
        if let Change::Write { extents, .. } = &record.change {
            self.extents += extents.len();
            for extent in extents {
                let Source::Chunk { chunk, at } = extent.source else { continue };
                if planner.is_some() && !chunks.has(chunk, at, extent.len_bytes) {
                    return Err(Damage::Chunk(record.lsn));
                }
                let len_bytes = u32::try_from(extent.len_bytes).unwrap_or(u32::MAX);
                self.references.push(Reference { chunk, at, len_bytes });
            }
        }
        if let Some(planner) = planner {
            planner.add(record.change);
        }
        Ok(())
    }

    fn finish(self) -> (Vec<FilePlan>, Vec<Reference>, u64) {
        let mut planners: Vec<Planner> = self.entries.into_values().flatten().collect();
        planners.sort_by_key(Planner::incarnation);
        (planners.into_iter().map(Planner::finish).collect(), self.references, self.records)
    }
}

/// Plans the records from `from` to `end`, or as many as `limits` allow.
pub(crate) fn plan<M: Persistent, C: Chunks + ?Sized>(
    reader: &Reader<M>,
    chunks: &C,
    from: Lsn,
    end: Lsn,
    limits: Limits,
) -> Result<Batch, Damage> {
    let (mut planners, mut through) = (Planners::default(), from);
    for record in reader.records(from) {
        if through >= end || planners.extents >= limits.extents || through.since(from) >= limits.bytes {
            break;
        }
        through = record.end();
        planners.add(reader, chunks, record)?;
    }
    let (files, references, records) = planners.finish();
    Ok(Batch { from, through, files, references, records })
}

/// Retires a batch; false: it does not begin at the tail.
#[track_caller]
pub(crate) fn retire<M: Persistent>(reader: &mut Reader<M>, batch: &Batch, time_ns: u64) -> bool {
    let is_next = batch.from == reader.checkpoint().tail;
    if is_next && !batch.is_empty() {
        reader.write_checkpoint(Checkpoint { tail: batch.through, time_ns, ..*reader.checkpoint() });
    }
    is_next
}

/// The digester of a log with a living writer.
#[derive(Debug)]
pub struct Digester<M> {
    reader: Reader<M>,
}

impl<M: Persistent> Digester<M> {
    /// Opens a log for digesting.
    ///
    /// # Errors
    /// The reason why the log is not usable.
    pub fn open(memory: M) -> Result<Self, Unreadable> {
        Ok(Self { reader: Reader::open(memory)? })
    }

    /// Returns the reader of the log.
    #[must_use]
    pub const fn reader(&self) -> &Reader<M> {
        &self.reader
    }

    /// Returns the end of the committed records, whose commit is persistent from now on.
    fn committed_from(&self, from: Lsn) -> Lsn {
        let Some(last) = self.reader.last(from, State::Committed) else { return from };
        // Rule 11: the writer may be about to flush the commit word that is visible here.
        let memory = self.reader.memory();
        memory.flush(self.reader.superblock().position(last.lsn), LINE_BYTES);
        memory.fence();
        last.end()
    }

    /// Plans the committed records from the tail on, as many as `limits` allow.
    ///
    /// # Errors
    /// Damage of the log, which nothing was planned of.
    pub fn plan<C: Chunks + ?Sized>(&mut self, chunks: &C, limits: Limits) -> Result<Batch, Damage> {
        // The writer may have attached since, and recorded its boot.
        self.reader.refresh();
        let tail = self.reader.checkpoint().tail;
        let end = self.committed_from(tail);
        plan(&self.reader, chunks, tail, end, limits)
    }

    /// Retires a batch at `time_ns` ([`Checkpoint::time_ns`]): its records no longer count, and their room and
    /// chunks may be reused. Returns false, and does nothing, if the batch was not planned since the last call.
    ///
    /// The caller has carried out all plans of the batch, and synced the files (rule 6).
    pub fn retire(&mut self, batch: &Batch, time_ns: u64) -> bool {
        let is_retired = retire(&mut self.reader, batch, time_ns);
        if is_retired {
            // Rule 8: only now may the writer reuse the room.
            self.reader.memory().store_word(RELEASED_AT, batch.through.0);
        }
        is_retired
    }

    /// Writes a checkpoint with another time: the digester writes to files, or their writer is alive. Does nothing
    /// before the writer has attached, which writes a checkpoint of its own.
    pub fn heartbeat(&mut self, time_ns: u64) {
        self.note(|now| now.time_ns = time_ns);
    }

    /// Notes that a file could not be digested, and will be modified by nobody until `time_ns` and by others from
    /// then on.
    pub fn note_failure(&mut self, failure: u32, time_ns: u64) {
        self.note(|now| (now.failure, now.time_ns) = (failure, time_ns));
    }

    fn note(&mut self, change: impl FnOnce(&mut Checkpoint)) {
        self.reader.refresh();
        let mut next = *self.reader.checkpoint();
        if next.process != 0 {
            change(&mut next);
            self.reader.write_checkpoint(next);
        }
    }

    /// Plans the committed records of one file from `from` on: at first the tail, `None`, then where the last batch
    /// ended.
    ///
    /// # Errors
    /// Damage of the log, which nothing was planned of.
    pub fn plan_file<C: Chunks + ?Sized>(
        &mut self,
        chunks: &C,
        file: FileId,
        from: Option<Lsn>,
        limits: Limits,
    ) -> Result<FileBatch, Damage> {
        self.reader.refresh();
        let from = from.unwrap_or(self.reader.checkpoint().tail);
        let end = self.committed_from(from);
        let (mut planners, mut through) = (Planners::default(), from);
        for record in self.reader.records(from) {
            if through >= end || planners.extents >= limits.extents {
                break;
            }
            through = record.end();
            if record.file == file {
                planners.add(&self.reader, chunks, record)?;
            }
        }
        let (files, ..) = planners.finish();
        Ok(FileBatch { through, plan: files.into_iter().next(), is_last: through >= end })
    }

    /// Makes the records of a file void, so that others may change the file. Returns false if the entry belongs to
    /// another registration.
    ///
    /// The caller has carried out all plans of the file and synced it, and the writer appends no more for this
    /// registration. Chunks and room of the records stay in use until they are retired.
    pub fn forget(&mut self, file: FileId) -> bool {
        let superblock = self.reader.superblock();
        let Some(at) = entry_at(superblock, file.entry) else { return false };
        let (live, forgotten) = (entry_word(superblock, file, false), entry_word(superblock, file, true));
        let memory = self.reader.memory();
        if memory.load_word(at) != live {
            return false;
        }
        // Rule 10: persistent before others change the file.
        memory.store_word(at, forgotten);
        memory.flush(at, LINE_BYTES);
        memory.fence();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{EmptyLog, Log};
    use crate::memory::Persistent;
    use crate::parts::Part;
    use crate::testing::{Counted, identity, superblock};

    const NONE: &[Counted] = &[];

    fn memory() -> Counted {
        Counted::new(superblock(8 << 10).len_bytes as usize)
    }

    fn log_in(memory: &Counted) -> Log<&Counted> {
        Log::attach(EmptyLog::create(memory, &superblock(8 << 10)).expect("a log"), 1, 1)
    }

    #[test]
    fn only_committed_records_are_digested_and_each_once() {
        let memory = memory();
        let mut log = log_in(&memory);
        let mut digester = Digester::open(&memory).expect("a log");
        let file = log.register(&identity(1)).expect("a free entry");
        log.append(NONE, file, 0, &[Part::Bytes(b"abc")]).expect("room");
        assert!(digester.plan(NONE, Limits::default()).expect("no damage").is_empty());
        log.commit();
        log.append(NONE, file, 3, &[Part::Bytes(b"def")]).expect("room");
        let batch = digester.plan(NONE, Limits::default()).expect("no damage");
        assert_eq!((batch.records, batch.files[0].writes[0].len_bytes), (1, 3));
        assert!(digester.retire(&batch, 5) && !digester.retire(&batch, 5));
        assert_eq!(log.release(), batch.through);
    }

    #[test]
    fn a_digester_opened_before_the_writer_attached_keeps_its_boot() {
        let memory = memory();
        let empty = EmptyLog::create(&memory, &superblock(8 << 10)).expect("a log");
        let mut digester = Digester::open(&memory).expect("a log");
        let mut log = Log::attach(empty, 9, 4);
        let file = log.register(&identity(1)).expect("a free entry");
        log.append(NONE, file, 0, &[Part::Bytes(b"abc")]).expect("room");
        log.commit();
        let batch = digester.plan(NONE, Limits::default()).expect("no damage");
        assert!(digester.retire(&batch, 5));
        assert_eq!((digester.reader().checkpoint().boot, digester.reader().checkpoint().process), (9, 4));
        assert_eq!(digester.reader().checkpoint().time_ns, 5);
    }

    #[test]
    fn heartbeats_move_the_time_only_and_begin_with_the_writer() {
        let memory = memory();
        let empty = EmptyLog::create(&memory, &superblock(8 << 10)).expect("a log");
        let mut digester = Digester::open(&memory).expect("a log");
        digester.heartbeat(7);
        assert_eq!(digester.reader().checkpoint().serial, 1, "the writer's checkpoint is the next");
        let mut log = Log::attach(empty, 9, 4);
        let file = log.register(&identity(1)).expect("a free entry");
        log.append(NONE, file, 0, &[Part::Bytes(b"abc")]).expect("room");
        log.commit();
        let batch = digester.plan(NONE, Limits::default()).expect("no damage");
        digester.heartbeat(8);
        digester.note_failure(28, 9);
        let found = *Digester::open(&memory).expect("a log").reader().checkpoint();
        assert_eq!((found.time_ns, found.failure, found.process, found.boot), (9, 28, 4, 9));
        assert!(digester.retire(&batch, 10), "a heartbeat keeps the tail");
    }

    #[test]
    fn batches_are_bounded_and_superseded_bytes_are_skipped_within_one() {
        let memory = memory();
        let mut log = log_in(&memory);
        let file = log.register(&identity(1)).expect("a free entry");
        for byte in 0..6 {
            log.append(NONE, file, 0, &[Part::Bytes(&[byte; 100])]).expect("room");
        }
        log.commit();
        let mut digester = Digester::open(&memory).expect("a log");
        let (mut records, mut superseded_bytes) = (Vec::new(), 0);
        loop {
            let limits = Limits { extents: 4, ..Limits::default() };
            let batch = digester.plan(NONE, limits).expect("no damage");
            if batch.is_empty() {
                break;
            }
            records.push(batch.records);
            superseded_bytes += batch.files[0].superseded_bytes;
            assert!(digester.retire(&batch, 5));
        }
        assert_eq!((records, superseded_bytes), (vec![2, 2, 2], 300));
    }

    #[test]
    fn one_file_is_digested_and_forgotten_while_others_stay() {
        let memory = memory();
        let mut log = log_in(&memory);
        let (first, second) = (log.register(&identity(1)), log.register(&identity(2)));
        let (first, second) = (first.expect("a free entry"), second.expect("a free entry"));
        for number in 0..3 {
            log.append(NONE, first, number, &[Part::Bytes(b"a")]).expect("room");
            log.append(NONE, second, number, &[Part::Bytes(b"b")]).expect("room");
        }
        log.commit();
        let mut digester = Digester::open(&memory).expect("a log");
        let (mut from, mut written_bytes) = (None, 0);
        loop {
            let limits = Limits { extents: 1, ..Limits::default() };
            let batch = digester.plan_file(NONE, first, from, limits).expect("no damage");
            let writes = batch.plan.iter().flat_map(|plan| &plan.writes);
            written_bytes += writes.map(|write| write.len_bytes).sum::<u64>();
            from = Some(batch.through);
            if batch.is_last {
                break;
            }
        }
        assert_eq!(written_bytes, 3);
        assert!(!digester.forget(FileId { incarnation: Lsn(64), ..first }), "another registration");
        assert!(digester.forget(first) && !digester.forget(first));
        let batch = digester.plan(NONE, Limits::default()).expect("no damage");
        assert_eq!((batch.files.len(), batch.files[0].file, batch.records), (1, second, 6));
        assert_eq!(digester.reader().files().collect::<Vec<_>>(), [(second, identity(2))]);
    }

    #[test]
    fn references_are_planned_and_given_back() {
        let memory = memory();
        let chunks = [Counted::new(512)];
        chunks[0].store(100, b"xyz");
        let mut log = log_in(&memory);
        let file = log.register(&identity(1)).expect("a free entry");
        let reference = Reference { chunk: 0, at: 100, len_bytes: 3 };
        log.append(&chunks[..], file, 5, &[Part::Bytes(b"ab"), Part::Reference(reference)]).expect("room");
        log.commit();
        let mut digester = Digester::open(&memory).expect("a log");
        let batch = digester.plan(&chunks[..], Limits::default()).expect("no damage");
        assert_eq!(batch.references, [reference]);
        let write = &batch.files[0].writes[0];
        assert_eq!((write.offset, write.len_bytes, write.sources.len()), (5, 5, 2));
        let mut bytes = [0; 3];
        assert!(crate::chunks::load(&&memory, &chunks[..], write.sources[1].source, &mut bytes));
        assert_eq!(&bytes, b"xyz");
        assert!(digester.plan(NONE, Limits::default()).is_err(), "a log without its chunks");
    }
}
