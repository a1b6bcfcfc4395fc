//! The log of this process if it is mapped and has the only copy of what is written.
//!
//! Each append is committed at once, so that a sync has nothing left to do, and the keeper may digest every record
//! that it sees committed.

use super::chunk_pool::{ChunkPool, ChunkRun};
use super::received::{FileKeeper, MAX_HELD_BYTES, Received, ReceivedPart, ReceivedPins};
use crate::layout::Identity;
use crate::lock;
use crate::log_files::boot;
use crate::mapped::file::LogMemory;
use crate::mapped::service_memory::ServiceMemory;
use crate::state::{Moment, State};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Mutex;
use uncopy_core::addr::PAGE_BYTES;
use uncopy_mapped::digest::Digester;
use uncopy_mapped::layout::{Lsn, Superblock};
use uncopy_mapped::log::Log;
use uncopy_mapped::mapping::{Flushing, Mapping};
use uncopy_mapped::parts::{AppendError, Part};
use uncopy_mapped::reader::Reader;
use uncopy_mapped::recovery::Recovery;
use uncopy_mapped::table::FileId;
use uncopy_sys::descriptor::OwnRef;
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec::Part as ProgramPart;
use uncopy_sys::mem::FileMapping;
use uncopy_sys::{clock, file, mem};

/// Memory of the log that is mapped ahead, bytes.
const MAPPED_AHEAD_BYTES: usize = 1 << 20;
/// Interval at which a program that appends looks whether its keeper lives, milliseconds.
const LOOK_MS: u64 = 100;

/// A mapped log, open for appending.
#[derive(Debug)]
pub struct MappedLog {
    memory: FileMapping,
    file: OwnRef,
    is_persistent: bool,
    superblock: Superblock,
    log: Mutex<Log<Mapping>>,
    /// The log and chunk 0 behind it.
    all: Mapping,
    pool: ChunkPool,
    /// The service's files that records refer to, and what they hold of them.
    service: ServiceMemory,
    received: ReceivedPins,
    /// Sequence number up to which the pages of records are mapped, and the number at which all are.
    mapped: AtomicU64,
    all_mapped: u64,
    /// Time of the last look at the keeper, ms.
    looked_ms: AtomicU64,
}

/// How much of a log is in use.
#[derive(Clone, Copy, Debug)]
pub struct FillLevel {
    /// Bytes of records that are not retired.
    pub used_bytes: u64,
    /// Capacity for records, bytes.
    pub ring_bytes: u64,
    /// Bytes of input that these records refer to.
    pub pinned_bytes: u64,
    /// Capacity for input, bytes.
    pub pool_bytes: u64,
    /// Bytes of the service that these records refer to.
    pub received_bytes: u64,
    /// End of the retired records.
    pub tail: Lsn,
}

impl FillLevel {
    /// Whether the log should be digested: half of its records or of its input is in use, or `digest_bytes` (0: no
    /// such limit).
    #[must_use]
    pub const fn is_digest_due(&self, digest_bytes: u64) -> bool {
        self.used_bytes > self.ring_bytes / 2
            || self.pinned_bytes > self.pool_bytes / 2
            || self.received_bytes > MAX_HELD_BYTES / 4
            || digest_bytes > 0 && self.used_bytes + self.pinned_bytes + self.received_bytes >= digest_bytes
    }
}

/// Returns the file's memory as a value of its own for each user.
fn mapping(memory: &FileMapping, is_persistent: bool) -> Result<Mapping, Errno> {
    let flushing = Flushing::of(is_persistent);
    // SAFETY: the file is mapped writable until `FileMapping::detach`, after which no file is in the log. This process
    // uses the memory of the log through values of this type only. Records are streamed into room that no other thread
    // accesses: the log's lock is held, and a digester reads committed records, which follow a fence. Chunk 0 is only
    // flushed through this type, and read by a digester once a record refers to it.
    let mapping = unsafe { Mapping::new(memory.address() as *mut u8, memory.len_bytes(), flushing) };
    mapping.ok_or(Errno::EINVAL)
}

/// Finds an empty log in a file, and makes this process its writer.
fn open(
    memory: &FileMapping,
    all: &Mapping,
    service: &ServiceMemory,
    is_persistent: bool,
) -> Result<Log<Mapping>, Errno> {
    let proto = Errno(libc::EPROTO);
    let reader = Reader::open(all).map_err(|_| proto)?;
    let chunks = LogMemory::new(all, reader.superblock(), service);
    let recovery = Recovery::open(mapping(memory, is_persistent)?, &chunks, boot()).map_err(|_| proto)?;
    let empty = recovery.finish().map_err(|_| proto)?;
    Ok(Log::attach(empty, boot(), u64::from(std::process::id())))
}

impl MappedLog {
    /// Maps an empty log and makes this process its writer.
    ///
    /// # Errors
    /// EPROTO if the file is no empty log of `len_bytes`; an error of mapping it.
    pub fn attach(file: OwnRef, len_bytes: u64, is_persistent: bool) -> Result<Self, Errno> {
        let is_whole = file::status(file).is_ok_and(|status| status.len_bytes >= len_bytes);
        if !is_whole {
            return Err(Errno(libc::EPROTO));
        }
        let memory = FileMapping::new(file, len_bytes as usize, is_persistent)?;
        let service = ServiceMemory::new();
        let attached = mapping(&memory, is_persistent)
            .and_then(|all| Ok((open(&memory, &all, &service, is_persistent)?, all)));
        let (log, all) = attached.inspect_err(|_| {
            let _ = memory.detach(core::iter::empty());
        })?;
        let (superblock, head) = (*log.superblock(), log.head().0);
        let pool_bytes = LogMemory::new(&all, &superblock, &service).pool_bytes();
        let pool = ChunkPool::new(memory.address() + memory.len_bytes() - pool_bytes, pool_bytes);
        Ok(Self {
            memory,
            file,
            is_persistent,
            superblock,
            log: Mutex::new(log),
            all,
            pool,
            service,
            received: ReceivedPins::NONE,
            mapped: AtomicU64::new(head),
            all_mapped: head + superblock.ring_bytes() as u64,
            looked_ms: AtomicU64::new(0),
        })
    }

    /// Whether the log survives power loss.
    #[must_use]
    pub const fn is_persistent(&self) -> bool {
        self.is_persistent
    }

    /// Registers a file; `None`: the table of files is full, or the path too long.
    #[must_use]
    pub fn register(&self, identity: &Identity) -> Option<FileId> {
        if !self.is_whole() {
            return None;
        }
        lock(&self.log).register(identity).ok()
    }

    /// Ends appending for a file whose records the digester has forgotten.
    pub fn leave(&self, id: FileId) {
        lock(&self.log).leave(id);
    }

    /// Whether the log's file has its full length. Stores behind the end of a file that its owner has truncated would
    /// raise SIGBUS.
    fn is_whole(&self) -> bool {
        file::status(self.file).is_ok_and(|status| status.len_bytes >= self.memory.len_bytes() as u64)
    }

    /// Appends a write, makes it durable, and announces the end of the records in `state`, which it returns. The record
    /// holds what was `received`.
    ///
    /// # Errors
    /// See [`AppendError`]; `TooLong` also if the log was truncated.
    pub fn append(
        &self,
        state: &State,
        id: FileId,
        offset: u64,
        parts: &[Part<'_>],
        received: Vec<ReceivedPart>,
    ) -> Result<Lsn, AppendError> {
        let mut log = lock(&self.log);
        if !self.is_whole() {
            return Err(AppendError::TooLong);
        }
        self.map_pages(log.head(), parts);
        let end = log.append(&self.contents(), id, offset, parts)?;
        let is_reference =
            |part: &Part<'_>| if let Part::Reference(reference) = part { Some(*reference) } else { None };
        // Before the commit: a digester may retire the record right after it.
        self.pool.pin(end, parts.iter().filter_map(is_reference).filter(|reference| reference.chunk == 0));
        self.received.pin(end, received);
        log.commit();
        // The lock makes this the only thread.
        state.set_moment(Moment { head: end.0, sequence: 0 });
        Ok(end)
    }

    /// Maps the pages of the next records together, in the first lap of the ring: a page fault for each page would take
    /// longer than the copy (measured on tmpfs: 12.9 µs for 4 KiB). The caller holds the log's lock.
    fn map_pages(&self, head: Lsn, parts: &[Part<'_>]) {
        let mapped = self.mapped.load(Relaxed);
        if mapped >= self.all_mapped {
            return;
        }
        let inline_bytes = |part: &Part<'_>| if let Part::Bytes(bytes) = part { bytes.len() } else { 0 };
        let record_bytes = parts.iter().map(inline_bytes).sum::<usize>() + PAGE_BYTES;
        let missing_bytes = (head.0 + record_bytes as u64).saturating_sub(mapped) as usize;
        if missing_bytes > 0 {
            let from = self.superblock.position(Lsn(mapped));
            let ring_end = self.superblock.ring_at() + self.superblock.ring_bytes();
            let len_bytes = (missing_bytes + MAPPED_AHEAD_BYTES).min(ring_end - from);
            let first_page = from / PAGE_BYTES * PAGE_BYTES;
            let end = (from + len_bytes).next_multiple_of(PAGE_BYTES).min(self.memory.len_bytes());
            // Before Linux 5.14, or without memory, each access faults instead.
            let _ = mem::populate(self.memory.address() + first_page, end - first_page);
            self.mapped.store(mapped + len_bytes as u64, Relaxed);
        }
    }

    /// Takes memory that records can refer to; `None`: there is no room now.
    #[must_use]
    pub fn alloc(&'static self, len_bytes: usize) -> Option<ChunkRun> {
        self.pool.alloc(len_bytes)
    }

    /// Returns a part of a write as a record has it: by reference where it can.
    ///
    /// # Safety
    /// The part's bytes must be readable for `'a`. Where they lie in the pool, they must not change before the record is
    /// retired; memory from [`MappedLog::alloc`] that was filled does not.
    #[must_use]
    pub unsafe fn part<'a>(&self, part: ProgramPart) -> Part<'a> {
        match self.pool.reference(part).filter(|_| super::REFERS.load(Relaxed)) {
            Some(reference) => Part::Reference(reference),
            None => {
                // SAFETY: the caller promises that the bytes are readable. Another thread of the program may change them
                // meanwhile, as it may during write(2): the log then has either value of each byte.
                let bytes = unsafe { core::slice::from_raw_parts(part.address as *const u8, part.len_bytes) };
                Part::Bytes(bytes)
            }
        }
    }

    /// Whether bytes lie in the memory that records can refer to.
    #[must_use]
    pub fn has(&self, part: ProgramPart) -> bool {
        self.pool.reference(part).is_some()
    }

    /// Whether a write of `len_bytes` fits, with the heads of its records.
    #[must_use]
    pub fn has_room(&self, len_bytes: usize) -> bool {
        let FillLevel { used_bytes, ring_bytes, .. } = self.fill_level();
        // Room for heads, and for the end of the ring that a record does not fit into.
        let slack_bytes = self.max_record_bytes().min(len_bytes) as u64 + MAPPED_AHEAD_BYTES as u64;
        used_bytes + len_bytes as u64 + slack_bytes <= ring_bytes
    }

    /// Returns how much of the log is in use, after taking back what the keeper has digested.
    #[must_use]
    pub fn fill_level(&self) -> FillLevel {
        let mut log = lock(&self.log);
        let tail = log.release();
        let pinned_bytes = self.pool.retire(tail);
        let received_bytes = self.received.retire(tail);
        let (ring_bytes, pool_bytes) = (self.superblock.ring_bytes() as u64, self.pool.len_bytes() as u64);
        FillLevel { used_bytes: log.used_bytes(), ring_bytes, pinned_bytes, pool_bytes, received_bytes, tail }
    }

    /// Releases what retired records refer to, unless another thread uses the log now.
    pub fn release(&self) {
        if self.received.bytes() > 0
            && let Ok(mut log) = self.log.try_lock()
        {
            let tail = log.release();
            drop(log);
            self.received.retire(tail);
        }
    }

    /// Returns how a record refers to a part of a write that arrived in the service's memory; `None`: it is copied.
    #[must_use]
    pub fn refer(
        &self,
        keeper: &dyn FileKeeper,
        received: &dyn Received,
        part: ProgramPart,
    ) -> Option<ReceivedPart> {
        let refers = super::REFERS.load(Relaxed);
        refers.then(|| self.received.refer(keeper, &self.service, received, part)).flatten()
    }

    /// Returns the maximum number of bytes of one record.
    #[must_use]
    pub const fn max_record_bytes(&self) -> usize {
        self.superblock.max_record_bytes()
    }

    /// Returns a digester of the log, for a process whose keeper has died.
    ///
    /// # Errors
    /// EIO if the log is damaged or was truncated.
    pub fn digester(&self) -> Result<Digester<Mapping>, Errno> {
        if !self.is_whole() {
            return Err(Errno(libc::EIO));
        }
        Digester::open(mapping(&self.memory, self.is_persistent)?).map_err(|_| Errno(libc::EIO))
    }

    /// Returns the end of the records.
    #[must_use]
    pub fn head(&self) -> Lsn {
        lock(&self.log).head()
    }

    /// Returns the memory of the log and of its chunks.
    #[must_use]
    pub fn contents(&self) -> LogMemory<'_> {
        LogMemory::new(&self.all, &self.superblock, &self.service)
    }

    /// Whether it is time to look whether the keeper lives.
    pub fn is_look_due(&self) -> bool {
        let now_ms = clock::now_ms();
        let last_ms = self.looked_ms.load(Relaxed);
        now_ms.saturating_sub(last_ms) >= LOOK_MS
            && self.looked_ms.compare_exchange(last_ms, now_ms, Relaxed, Relaxed).is_ok()
    }

    /// Stops sharing the log's file: inputs that were received there stay readable. No file is in the log any more.
    ///
    /// # Errors
    /// An error of mmap(2) or mremap(2); the file may then still be mapped.
    pub fn detach(&self) -> Result<(), Errno> {
        let _log = lock(&self.log);
        // No record is left.
        self.received.retire(Lsn(u64::MAX));
        self.service.forget()?;
        let pool_at = self.memory.len_bytes() - self.pool.len_bytes();
        let owned = self.pool.close();
        self.memory.detach(owned.into_iter().map(|(at, len_bytes)| (pool_at + at, len_bytes)))
    }
}
