//! The digester: takes committed records to their files and retires them.
//!
//! ```text
//! plan ──► the caller carries out each file's plan, then syncs the files ──► retire ──► room and chunks are free
//! plan_file, until the last ──► the same for one file ──► forget ──► others may change the file
//! ```
//!
//! There is one digester at a time. It may run in another process than the writer and beside it.

use crate::chunks::Chunks;
use crate::layout::{Checkpoint, Entry, FileId, Lsn, RELEASED_AT, Unreadable};
use crate::memory::{LINE_BYTES, Persistent};
use crate::plan::{FilePlan, Planner};
use crate::reader::{Damage, Reader};
use crate::record::{Change, Record, Reference, Source, State};
use std::collections::BTreeMap;

/// Bounds of a batch. The last record may exceed them.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of extents: bounds the memory that planning takes, some 100 bytes per extent.
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

/// Plans the records from the tail to `end`, or as many as `limits` allow.
pub(crate) fn plan<M: Persistent, C: Chunks + ?Sized>(
    reader: &Reader<M>,
    chunks: &C,
    end: Lsn,
    limits: Limits,
) -> Result<Batch, Damage> {
    let from = reader.checkpoint().tail;
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
pub(crate) fn retire<M: Persistent>(reader: &mut Reader<M>, batch: &Batch) -> bool {
    let is_next = batch.from == reader.checkpoint().tail;
    if is_next && !batch.is_empty() {
        reader.write_checkpoint(Checkpoint { tail: batch.through, ..*reader.checkpoint() });
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
        let end = self.committed_from(self.reader.checkpoint().tail);
        plan(&self.reader, chunks, end, limits)
    }

    /// Retires a batch: its records no longer count, and their room and chunks may be reused. Returns false, and
    /// does nothing, if the batch was not planned since the last call.
    ///
    /// The caller has carried out all plans of the batch, and synced the files (rule 6).
    pub fn retire(&mut self, batch: &Batch) -> bool {
        let is_retired = retire(&mut self.reader, batch);
        if is_retired {
            // Rule 8: only now may the writer reuse the room.
            self.reader.memory().store_word(RELEASED_AT, batch.through.0);
        }
        is_retired
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
        let Some(at) = superblock.entry_at(file.entry) else { return false };
        let (live, forgotten) = (superblock.entry_word(file, false), superblock.entry_word(file, true));
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
