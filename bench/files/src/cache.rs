//! Whole files in twin memory, each valid as long as the file on disk is unchanged.
//!
//! Every request opens the file and compares device, inode, length, and the times of the last changes. Twin memory
//! never changes while the kernel may hold it: an answer in flight keeps its bytes when the file changes or leaves
//! the cache.
//!
//! Invariant: [`CHARGED_BYTES`] ≤ [`MAX_CACHE_BYTES`], except for files that are being refused.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Stat, fstat};
use uncopy_transmit::{PAGE_BYTES, ProgramFd};
use uncopy_twin::Buffer;
use uncopy_twin::send::sendmsg;

use crate::socket::{IoBytes, Socket, iovec_of, message};

/// Memory for files, bytes. A file larger than a quarter of it is not kept.
const MAX_CACHE_BYTES: usize = 256 << 20;
/// Memory of all files that are in the cache, being read, or being sent, bytes.
static CHARGED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Contents of one file.
pub struct CachedFile {
    buffer: Buffer,
    stat: Stat,
    _charge: MemoryCharge,
}

/// Bytes counted as held until this value is dropped.
struct MemoryCharge(usize);

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        CHARGED_BYTES.fetch_sub(self.0, Relaxed);
    }
}

impl CachedFile {
    /// Sends `head`, copied, and the bytes from `at` on, by reference where that pays. Returns the number of bytes
    /// sent.
    pub fn send(&self, socket: &Socket, head: &[u8], at: usize) -> IoBytes {
        let mut parts = [iovec_of(head), iovec_of(self.buffer.get(at..).unwrap_or_default())];
        let (fd, message) = (ProgramFd::of(&socket.fd), message(&mut parts));
        // SAFETY: sendmsg requires the message and its two parts to live through the call, for which they are borrowed.
        // The kernel may hold twin memory longer: a later write replaces the page instead of changing its bytes.
        let sent = unsafe { sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// The cache, used by all threads: files by device and inode.
#[derive(Default)]
pub struct Cache(Mutex<HashMap<(u64, u64), Arc<CachedFile>>>);

impl Cache {
    /// Returns the bytes of `file`, whose attributes are `stat`: those in the cache if they are still the
    /// file's, otherwise newly read. `None` if they cannot be kept: too many, changing, or no memory.
    pub fn get(&self, file: &File, stat: &Stat) -> Option<Arc<CachedFile>> {
        let key = (stat.st_dev, stat.st_ino);
        let kept = self.lock().get(&key).cloned();
        if kept.as_ref().is_some_and(|stored| identity(&stored.stat) == identity(stat)) {
            return kept;
        }
        self.lock().remove(&key);
        drop(kept);
        let stored = Arc::new(self.read(file, stat)?);
        self.lock().insert(key, Arc::clone(&stored));
        Some(stored)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(u64, u64), Arc<CachedFile>>> {
        // A panic leaves nothing in the map half-done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, file: &File, stat: &Stat) -> Option<CachedFile> {
        let len = usize::try_from(stat.st_size).ok().filter(|len| *len <= MAX_CACHE_BYTES / 4)?;
        if !is_stable(stat) {
            return None;
        }
        let charge = MemoryCharge(len.next_multiple_of(PAGE_BYTES));
        if CHARGED_BYTES.fetch_add(charge.0, Relaxed) + charge.0 > MAX_CACHE_BYTES {
            // Files that are being sent stay counted.
            self.lock().clear();
            if CHARGED_BYTES.load(Relaxed) > MAX_CACHE_BYTES {
                return None;
            }
        }
        let mut buffer = Buffer::zeroed(len).ok()?;
        file.read_exact_at(&mut buffer, 0).ok()?;
        // Bytes read while the file changed may mix two states.
        let is_whole = fstat(file).is_ok_and(|now| identity(&now) == identity(stat));
        is_whole.then(|| CachedFile { buffer, stat: *stat, _charge: charge })
    }
}

/// Returns a value that differs between any two states of a file.
fn identity(stat: &Stat) -> impl PartialEq {
    let times = (stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec);
    (stat.st_dev, stat.st_ino, stat.st_size, times)
}

/// True if any later change would alter the file's times. Kernels before 6.13 take times from the tick, at most 10 ms
/// apart; file systems with whole seconds may store every other one only (FAT). Times in the future prove nothing.
fn is_stable(stat: &Stat) -> bool {
    let (seconds, ns) = (stat.st_ctime, stat.st_ctime_nsec).max((stat.st_mtime, stat.st_mtime_nsec));
    let changed_ns = i128::from(seconds) * 1_000_000_000 + i128::from(ns);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let limit_ns = if ns == 0 { 3_000_000_000 } else { 50_000_000 };
    i128::try_from(now.as_nanos()).is_ok_and(|now_ns| now_ns - changed_ns >= limit_ns)
}
