//! Bytes of a write that lie in the service's memory, where they arrived, and that records refer to.
//!
//! A record's holds are dropped once it is retired: only then may the service reuse the bytes.

use super::chunk_pool::MIN_REFERENCE_BYTES;
use crate::mapped::service_memory::{FILE_BYTES, ServiceMemory};
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::collections::VecDeque;
use uncopy_mapped::layout::Lsn;
use uncopy_mapped::record::Reference;
use uncopy_sys::descriptor::OwnFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::iovec::Part;
use uncopy_sys::mem;

/// Maximum number of bytes of the service that records refer to. Beyond, they are copied: the service needs room for
/// what arrives next.
pub const MAX_HELD_BYTES: u64 = 64 << 20;

/// Holder of bytes of the service, which do not change before it is dropped.
pub type Hold = Box<dyn Any + Send + Sync>;

/// Views of the service's memory in a write.
pub trait Received {
    /// Returns the file that a part of the write lies in, by its inode, and its offset there.
    fn locate(&self, part: Part) -> Option<(u64, u64)>;

    /// Keeps a part's bytes unchanged.
    fn hold(&self, part: Part) -> Option<Hold>;

    /// Id of this process's lanes, by which the service knows it.
    fn holder(&self) -> u64;
}

/// The log's keeper, as far as it knows of the service's files.
pub trait FileKeeper {
    /// Has the file with this inode get a name of the log, because records of the `holder` are to refer to it. Returns its
    /// number, and the open file.
    ///
    /// # Errors
    /// ENOENT if the log's directory has no such file; other errors of the keeper or the connection.
    fn adopt(&self, inode: u64, holder: u64) -> Result<(usize, OwnFd), Errno>;

    /// Whether the log's memory is persistent.
    fn is_persistent(&self) -> bool;
}

struct Held {
    end: Lsn,
    len_bytes: u64,
    _hold: Hold,
}

/// Bytes of the service that records refer to, in the order of the records.
pub struct ReceivedPins {
    held: Guarded<VecDeque<Held>>,
    bytes: AtomicU64,
    /// Inodes of files that the keeper has refused.
    refused: Guarded<Vec<u64>>,
}

impl core::fmt::Debug for ReceivedPins {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ReceivedPins").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// A reference to the service's memory, and what it holds.
pub struct ReceivedPart {
    /// Reference of the record.
    pub reference: Reference,
    hold: Hold,
}

impl ReceivedPins {
    /// Pins of no records.
    #[allow(clippy::declare_interior_mutable_const, reason = "each use is a new value")]
    pub const NONE: Self = Self {
        held: Guarded::new(VecDeque::new()),
        bytes: AtomicU64::new(0),
        refused: Guarded::new(Vec::new()),
    };

    /// Returns how a record refers to a part; `None`: it is copied.
    pub fn refer(
        &self,
        keeper: &dyn FileKeeper,
        service: &ServiceMemory,
        received: &dyn Received,
        part: Part,
    ) -> Option<ReceivedPart> {
        let len_bytes = u32::try_from(part.len_bytes).ok()?;
        let is_long = part.len_bytes >= MIN_REFERENCE_BYTES;
        if !is_long || self.bytes() + u64::from(len_bytes) > MAX_HELD_BYTES {
            return None;
        }
        let (inode, at) = received.locate(part)?;
        let number = match service.number_of(inode) {
            Some(number) => number,
            None => self.adopt(keeper, service, received, inode)?,
        };
        let chunk = u32::try_from(number).ok()? + 1;
        Some(ReceivedPart { reference: Reference { chunk, at, len_bytes }, hold: received.hold(part)? })
    }

    /// Has the keeper give a file a name of the log.
    #[cold]
    fn adopt(
        &self,
        keeper: &dyn FileKeeper,
        service: &ServiceMemory,
        received: &dyn Received,
        inode: u64,
    ) -> Option<usize> {
        static IS_REPORTED: AtomicBool = AtomicBool::new(false);
        if self.refused.lock().contains(&inode) {
            return None;
        }
        let adopted = keeper.adopt(inode, received.holder()).and_then(|(number, file)| {
            service.insert(number, &file, inode, keeper.is_persistent()).map(|()| number)
        });
        if let Ok(number) = adopted {
            return Some(number);
        }
        self.refused.lock().push(inode);
        let is_elsewhere = adopted == Err(Errno::ENOENT);
        if is_elsewhere && !IS_REPORTED.swap(true, Relaxed) {
            mem::write_stderr(format_args!(
                "uncopy: the log copies what arrives: 'uncopy net --memory-dir' must name the log's directory\n"
            ));
        }
        None
    }

    /// Keeps what the record that ends at `end` refers to.
    pub fn pin(&self, end: Lsn, parts: Vec<ReceivedPart>) {
        let mut held = self.held.lock();
        for ReceivedPart { reference, hold } in parts {
            let len_bytes = u64::from(reference.len_bytes);
            self.bytes.fetch_add(len_bytes, Relaxed);
            held.push_back(Held { end, len_bytes, _hold: hold });
        }
    }

    /// Releases what retired records refer to: those before `tail`. Returns the number of bytes that others refer to.
    pub fn retire(&self, tail: Lsn) -> u64 {
        let mut retired = Vec::new();
        {
            let mut held = self.held.lock();
            while held.front().is_some_and(|held| held.end <= tail) {
                retired.extend(held.pop_front());
            }
        }
        let bytes: u64 = retired.iter().map(|held| held.len_bytes).sum();
        self.bytes.fetch_sub(bytes, Relaxed) - bytes
    }

    /// Returns the number of bytes that records refer to; bytes with several references count several times.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

const _: () = assert!(FILE_BYTES <= MAX_HELD_BYTES as usize);
