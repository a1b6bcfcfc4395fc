//! The log of this process if it is mapped and has the only copy of what is written.
//!
//! Each append is committed at once, so that a sync has nothing left to do, and the keeper may digest every record
//! that it sees committed.

use crate::layout::Identity;
use crate::lock;
use crate::log_files::boot;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Mutex;
use uncopy_mapped::digest::Digester;
use uncopy_mapped::log::Log;
use uncopy_mapped::mapping::{Flushing, Mapping};
use uncopy_mapped::parts::{AppendError, Part};
use uncopy_mapped::recovery::Recovery;
use uncopy_mapped::table::{self, FileId};
use uncopy_sys::descriptor::OwnRef;
use uncopy_sys::errno::Errno;
use uncopy_sys::mem::FileMapping;
use uncopy_sys::{clock, file};

/// No chunks: all bytes are inline.
const NO_CHUNKS: &[Mapping] = &[];
/// Interval at which a program that appends looks whether its keeper lives, milliseconds.
const LOOK_MS: u64 = 100;

/// A mapped log, open for appending.
#[derive(Debug)]
pub struct MappedLog {
    memory: FileMapping,
    file: OwnRef,
    is_persistent: bool,
    log: Mutex<Log<Mapping>>,
    /// Time of the last look at the keeper, ms.
    looked_ms: AtomicU64,
}

fn mapping(memory: &FileMapping, is_persistent: bool) -> Result<Mapping, Errno> {
    let flushing = if is_persistent { Flushing::detect() } else { Flushing::NotNeeded };
    // SAFETY: the file is mapped writable until `FileMapping::detach`, after which no file is in the log. This process
    // uses the memory through values of this type only. Records are streamed into room that no other thread accesses:
    // the log's lock is held, and a digester reads committed records, which follow a fence.
    let mapping = unsafe { Mapping::new(memory.address() as *mut u8, memory.len_bytes(), flushing) };
    mapping.ok_or(Errno::EINVAL)
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
        let attached = mapping(&memory, is_persistent).and_then(|mapping| {
            let recovery = Recovery::open(mapping, NO_CHUNKS, boot()).map_err(|_| Errno(libc::EPROTO))?;
            let empty = recovery.finish().map_err(|_| Errno(libc::EPROTO))?;
            Ok(Log::attach(empty, boot(), u64::from(std::process::id())))
        });
        let log = attached.inspect_err(|_| memory.detach())?;
        Ok(Self { memory, file, is_persistent, log: Mutex::new(log), looked_ms: AtomicU64::new(0) })
    }

    /// Whether the log survives power loss.
    #[must_use]
    pub const fn is_persistent(&self) -> bool {
        self.is_persistent
    }

    /// Registers a file; `None`: the table of files is full, or the path too long.
    #[must_use]
    pub fn register(&self, identity: &Identity) -> Option<FileId> {
        let Identity { device, inode, generation, path } = identity.clone();
        let identity = table::Identity { device, inode, generation, path };
        if !self.is_whole() {
            return None;
        }
        lock(&self.log).register(&identity).ok()
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

    /// Appends a write and makes it durable.
    ///
    /// # Errors
    /// See [`AppendError`]; `TooLong` also if the log was truncated.
    pub fn append(&self, id: FileId, offset: u64, parts: &[Part<'_>]) -> Result<(), AppendError> {
        let mut log = lock(&self.log);
        if !self.is_whole() {
            return Err(AppendError::TooLong);
        }
        log.append(NO_CHUNKS, id, offset, parts)?;
        log.commit();
        Ok(())
    }

    /// Returns the number of bytes in use, the capacity, and the end of the retired records.
    #[must_use]
    pub fn fill_level(&self) -> (u64, u64, u64) {
        let mut log = lock(&self.log);
        let tail = log.release();
        (log.used_bytes(), log.superblock().ring_bytes() as u64, tail.0)
    }

    /// Returns the maximum number of bytes of one record.
    #[must_use]
    pub fn max_record_bytes(&self) -> usize {
        lock(&self.log).superblock().max_record_bytes()
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

    /// Whether it is time to look whether the keeper lives.
    pub fn is_look_due(&self) -> bool {
        let now_ms = clock::now_ms();
        let last_ms = self.looked_ms.load(Relaxed);
        now_ms.saturating_sub(last_ms) >= LOOK_MS
            && self.looked_ms.compare_exchange(last_ms, now_ms, Relaxed, Relaxed).is_ok()
    }

    /// Replaces the mapping by inaccessible memory. No file is in the log any more.
    pub fn detach(&self) {
        let _log = lock(&self.log);
        self.memory.detach();
    }
}
