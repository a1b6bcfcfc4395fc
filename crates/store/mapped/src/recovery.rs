//! Recovery: from whatever the memory holds to writes of files.
//!
//! ```text
//! open ──► damage? ──► plan ──► the caller writes and syncs ──► retire ──┐
//!   │ reads only        ▲ None: all is retired └──────────────────────────┘
//!   └─────────────────── finish ──► EmptyLog
//! ```
//!
//! A recovery can be interrupted at any point, by a kill or by power loss, and repeated.

use crate::chunks::{Chunks, Pins};
use crate::digest::{self, Batch, Limits};
use crate::layout::{Checkpoint, ENTRY_BYTES, Lsn, Unreadable};
use crate::log::EmptyLog;
use crate::memory::{LINE_BYTES, Persistent};
use crate::reader::{Damage, Reader};
use crate::record::{Change, Record, Reference, Source, State, commit_word};
use crate::table::{Entry, FileId, Identity, entry_at};
use std::collections::{BTreeMap, BTreeSet};

/// Summary of the records of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSummary {
    /// Identity of the file; `None`: it was forgotten, its records are void.
    pub identity: Option<Identity>,
    /// Number of records of the file.
    pub records: u64,
    /// Bytes of the file in the records.
    pub bytes: u64,
    /// Those of the bytes that lie in chunks.
    pub referenced_bytes: u64,
}

/// A log whose writer is gone.
#[derive(Debug)]
pub struct Recovery<M> {
    reader: Reader<M>,
    accepts: State,
    /// End of the records that count.
    end: Lsn,
    damage: Option<Damage>,
    /// Whether all records before `end` are persistent.
    is_sealed: bool,
}

fn references_of(record: &Record) -> impl Iterator<Item = Reference> {
    let extents = match &record.change {
        Change::Write { extents, .. } => extents.as_slice(),
        _ => &[],
    };
    extents.iter().filter_map(|extent| match extent.source {
        Source::Inline(_) => None,
        Source::Chunk { chunk, at } => {
            Some(Reference { chunk, at, len_bytes: u32::try_from(extent.len_bytes).unwrap_or(u32::MAX) })
        }
    })
}

impl<M: Persistent> Recovery<M> {
    /// Finds the records that count. `boot` identifies the running kernel: if the writer attached under it, every
    /// record that was written counts, otherwise those that were committed. Stores nothing.
    ///
    /// # Errors
    /// The reason why the log is not usable.
    pub fn open<C: Chunks + ?Sized>(memory: M, chunks: &C, boot: u64) -> Result<Self, Unreadable> {
        let reader = Reader::open(memory)?;
        let checkpoint = *reader.checkpoint();
        let is_same_boot = checkpoint.process != 0 && checkpoint.boot == boot;
        let accepts = if is_same_boot { State::Written } else { State::Committed };
        let mut end = reader.last(checkpoint.tail, accepts).map_or(checkpoint.tail, |last| last.end());
        let mut damage = None;
        let mut known = BTreeSet::new();
        for record in reader.records(checkpoint.tail).take_while(|record| record.lsn < end) {
            let has_references = references_of(&record).next().is_some();
            if record.change == Change::Pad || (!has_references && known.contains(&record.file)) {
                continue;
            }
            if let Err(found) = reader.check(&record, chunks) {
                (damage, end) = (Some(found), record.lsn);
                break;
            }
            known.insert(record.file);
        }
        if damage.is_none() && reader.has_survivors(checkpoint.tail, accepts) {
            let missing = reader.records(checkpoint.tail).last().map_or(checkpoint.tail, |last| last.end());
            damage = Some(Damage::Record(missing));
        }
        Ok(Self { reader, accepts, end, damage, is_sealed: accepts == State::Committed })
    }

    /// Returns the reader of the log.
    #[must_use]
    pub const fn reader(&self) -> &Reader<M> {
        &self.reader
    }

    /// Returns the records that count: all written ones after a kill, the committed ones after power loss.
    #[must_use]
    pub const fn accepts(&self) -> State {
        self.accepts
    }

    /// Returns the damage that keeps the recovery from writing anything, if any.
    #[must_use]
    pub const fn damage(&self) -> Option<Damage> {
        self.damage
    }

    /// Gives up the damaged record and all later ones. Loses acknowledged bytes: the user must have said so.
    pub const fn give_up_damaged(&mut self) {
        self.damage = None;
    }

    fn records(&self) -> impl Iterator<Item = Record> {
        self.reader.records(self.reader.checkpoint().tail).take_while(|record| record.lsn < self.end)
    }

    /// Summarises the records that count, by file.
    #[must_use]
    pub fn summary(&self) -> BTreeMap<FileId, FileSummary> {
        let mut files = BTreeMap::new();
        for record in self.records().filter(|record| record.change != Change::Pad) {
            let summary = files.entry(record.file).or_insert_with(|| {
                let identity = match self.reader.entry(record.file) {
                    Entry::Live(identity) => Some(identity),
                    _ => None,
                };
                FileSummary { identity, records: 0, bytes: 0, referenced_bytes: 0 }
            });
            summary.records += 1;
            if let Change::Write { extents, .. } = &record.change {
                summary.bytes += extents.iter().map(|extent| extent.len_bytes as u64).sum::<u64>();
            }
            let referenced = references_of(&record).map(|reference| u64::from(reference.len_bytes));
            summary.referenced_bytes += referenced.sum::<u64>();
        }
        files
    }

    /// Returns the references of all records that count: their chunks may not be reused yet (rule 7).
    #[must_use]
    pub fn pins(&self) -> Pins {
        let mut pins = Pins::new();
        self.records().for_each(|record| pins.pin(record.end(), references_of(&record)));
        pins
    }

    /// Plans the next records; `None`: all are retired.
    ///
    /// # Errors
    /// Damage of the log.
    pub fn plan<C: Chunks + ?Sized>(&mut self, chunks: &C, limits: Limits) -> Result<Option<Batch>, Damage> {
        self.plan_from(chunks, self.reader.checkpoint().tail, limits)
    }

    /// Plans the records from `from` on, the end of an earlier batch that is not retired; `None`: there are no more.
    ///
    /// # Errors
    /// Damage of the log.
    pub fn plan_from<C: Chunks + ?Sized>(
        &mut self,
        chunks: &C,
        from: Lsn,
        limits: Limits,
    ) -> Result<Option<Batch>, Damage> {
        if let Some(damage) = self.damage {
            return Err(damage);
        }
        self.seal(chunks);
        let batch = digest::plan(&self.reader, chunks, from, self.end, limits)?;
        Ok((!batch.is_empty()).then_some(batch))
    }

    /// Retires a batch, as [`Digester::retire`](crate::digest::Digester::retire) does.
    pub fn retire(&mut self, batch: &Batch) -> bool {
        let time_ns = self.reader.checkpoint().time_ns;
        digest::retire(&mut self.reader, batch, time_ns)
    }

    /// Writes a checkpoint with another time ([`Checkpoint::time_ns`]): the recovery writes to files until then.
    pub fn note_time(&mut self, time_ns: u64) {
        self.reader.write_checkpoint(Checkpoint { time_ns, ..*self.reader.checkpoint() });
    }

    /// Commits the records that a killed writer had written.
    fn seal<C: Chunks + ?Sized>(&mut self, chunks: &C) {
        if core::mem::replace(&mut self.is_sealed, true) {
            return;
        }
        // The commit word of the last committed record may be visible and not persistent.
        let tail = self.reader.checkpoint().tail;
        let committed = self.reader.last(tail, State::Committed).map_or(tail, |last| last.lsn);
        let (superblock, memory) = (self.reader.superblock(), self.reader.memory());
        let mut last = None;
        let mut entries = BTreeSet::new();
        for record in self.records().filter(|record| record.lsn >= committed) {
            memory.flush(superblock.position(record.lsn), record.len_bytes);
            for Reference { chunk, at, len_bytes } in references_of(&record) {
                // Those of forgotten files were not checked.
                let memory = chunks.memory(chunk).filter(|_| chunks.has(chunk, at, len_bytes as usize));
                if let Some(memory) = memory {
                    memory.flush(at as usize, len_bytes as usize);
                }
            }
            entries.insert(record.file.entry);
            last = Some(record.lsn);
        }
        let Some(last) = last else { return };
        for at in entries.into_iter().filter_map(|entry| entry_at(superblock, entry)) {
            memory.flush(at, ENTRY_BYTES);
        }
        // Rules 2 and 3, for the dead writer; rule 11: before a file gets bytes of these records.
        memory.fence();
        let at = superblock.position(last);
        memory.store_word(at, commit_word(superblock, last, State::Committed));
        memory.flush(at, LINE_BYTES);
        memory.fence();
    }

    /// Ends a recovery whose records are all retired. A writer may attach to the log now, and files may be changed.
    ///
    /// # Errors
    /// The recovery itself, if records are not retired, or damage was not given up.
    pub fn finish(mut self) -> Result<EmptyLog<M>, Self> {
        let (checkpoint, ring_bytes) = (*self.reader.checkpoint(), self.reader.superblock().ring_bytes());
        if checkpoint.tail != self.end || self.damage.is_some() {
            return Err(self);
        }
        // Rule 12: behind every record that may lie in the ring, torn or whole. Persistent when a writer attaches: the
        // records are retired already.
        let Some(tail) = self.end.after(ring_bytes as u64) else { return Err(self) };
        self.reader.store_checkpoint(Checkpoint { tail, process: 0, failure: 0, ..checkpoint });
        Ok(EmptyLog::of(self.reader))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Log;
    use crate::parts::Part;
    use crate::testing::{Counted, identity, superblock};

    const NONE: &[Counted] = &[];

    /// Returns memory with a committed record of 3 bytes and a written one of 5.
    fn memory() -> (Counted, Lsn) {
        let memory = Counted::new(superblock(8 << 10).len_bytes as usize);
        let mut log = Log::attach(EmptyLog::create(&memory, &superblock(8 << 10)).expect("a log"), 1, 4);
        let file = log.register(&identity(1)).expect("a free entry");
        let first = log.head();
        log.append(NONE, file, 0, &[Part::Bytes(b"abc")]).expect("room");
        log.commit();
        log.append(NONE, file, 3, &[Part::Bytes(b"defgh")]).expect("room");
        (memory, first)
    }

    #[test]
    fn written_records_count_under_the_same_boot_only() {
        for (boot, wanted_bytes) in [(1, 8), (2, 3)] {
            let (memory, _) = memory();
            let mut recovery = Recovery::open(&memory, NONE, boot).expect("a log");
            let summary = recovery.summary();
            assert_eq!(summary.values().map(|file| file.bytes).sum::<u64>(), wanted_bytes);
            let batch = recovery.plan(NONE, Limits::default()).expect("no damage").expect("records");
            assert_eq!(batch.files[0].writes[0].len_bytes, wanted_bytes);
            let Err(mut recovery) = recovery.finish() else { panic!("finished before all is retired") };
            assert!(recovery.retire(&batch));
            assert!(recovery.plan(NONE, Limits::default()).expect("no damage").is_none());
            assert!(recovery.finish().is_ok());
            let again = Recovery::open(&memory, NONE, boot).expect("a log");
            assert!(again.summary().is_empty() && again.damage().is_none());
        }
    }

    #[test]
    fn records_are_planned_beyond_a_batch_that_stays() {
        let (memory, _) = memory();
        let mut recovery = Recovery::open(&memory, NONE, 1).expect("a log");
        let limits = Limits { extents: 1, ..Limits::default() };
        let first = recovery.plan(NONE, limits).expect("no damage").expect("records");
        let second = recovery.plan_from(NONE, first.through, limits).expect("no damage").expect("records");
        assert_eq!((first.files[0].writes[0].offset, second.files[0].writes[0].offset), (0, 3));
        assert!(recovery.plan_from(NONE, second.through, limits).expect("no damage").is_none());
        assert!(!recovery.retire(&second), "the first batch is not retired");
        recovery.note_time(9);
        assert!(recovery.retire(&first) && recovery.retire(&second));
        assert_eq!(recovery.reader().checkpoint().time_ns, 9);
        assert!(recovery.finish().is_ok());
    }

    #[test]
    fn an_interrupted_recovery_keeps_what_it_had_accepted() {
        let (memory, _) = memory();
        let mut recovery = Recovery::open(&memory, NONE, 1).expect("a log");
        recovery.plan(NONE, Limits::default()).expect("no damage").expect("records");
        let after_power_loss = Recovery::open(&memory, NONE, 2).expect("a log");
        assert_eq!(after_power_loss.summary().values().map(|file| file.records).sum::<u64>(), 2);
    }

    #[test]
    fn a_damaged_log_is_left_alone_until_its_owner_gives_up() {
        let (memory, first) = memory();
        let of = superblock(8 << 10);
        memory.store(of.position(first) + 20, b"!");
        let mut recovery = Recovery::open(&memory, NONE, 1).expect("a log");
        assert_eq!(recovery.damage(), Some(Damage::Record(first)));
        assert_eq!(recovery.plan(NONE, Limits::default()).err(), Some(Damage::Record(first)));
        let Err(mut recovery) = recovery.finish() else { panic!("finished in spite of damage") };
        recovery.give_up_damaged();
        assert!(recovery.plan(NONE, Limits::default()).expect("given up").is_none());
        assert!(recovery.finish().is_ok());
        assert_eq!(Recovery::open(&memory, NONE, 1).expect("a log").damage(), None);
    }

    #[test]
    fn references_stay_pinned_until_they_are_retired() {
        let memory = Counted::new(superblock(8 << 10).len_bytes as usize);
        let chunks = [Counted::new(512)];
        let mut log = Log::attach(EmptyLog::create(&memory, &superblock(8 << 10)).expect("a log"), 1, 4);
        let file = log.register(&identity(1)).expect("a free entry");
        let reference = Reference { chunk: 0, at: 0, len_bytes: 100 };
        log.append(&chunks[..], file, 0, &[Part::Reference(reference)]).expect("room");
        let mut recovery = Recovery::open(&memory, &chunks[..], 1).expect("a log");
        assert!(recovery.pins().is_pinned(0));
        let batch = recovery.plan(&chunks[..], Limits::default()).expect("no damage").expect("records");
        assert!(recovery.retire(&batch) && !recovery.pins().is_pinned(0));
        assert_eq!(batch.references, [reference]);
    }
}
