//! Chunks of this process's shared memory: sealed memory, or files in a directory of logs, whose records can refer to
//! them.

extern crate alloc;
use crate::pool::{CHUNK_BYTES, Logged, Pool};
use alloc::ffi::CString;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::OnceLock;
use uncopy_sys::errno::Errno;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::mem::{self, SharedMemory};
use uncopy_sys::memory_file::{self, LogName};
use uncopy_sys::thread::now_ms;

/// Directory of the files.
static DIRECTORY: OnceLock<CString> = OnceLock::new();
/// Inodes of this process's files.
static MADE: Guarded<Vec<u64>> = Guarded::new(Vec::new());
/// Function that the lanes' thread calls.
static EACH_ROUND: OnceLock<fn()> = OnceLock::new();

/// Interval at which the directory is read for what logs refer to, milliseconds.
const LOOK_MS: u64 = 1000;

/// Makes the chunks of this process files in a private directory of logs. For a service, before its lanes begin.
///
/// # Errors
/// EPERM or ENOTDIR if the directory is not private to this user; EOPNOTSUPP if it cannot have such files; other errors
/// of the file system.
pub fn make_in_directory(directory: CString) -> Result<(), Errno> {
    memory_file::remove_stale(&directory)?;
    let tried = SharedMemory::make_in(&directory, CHUNK_BYTES)?;
    memory_file::remove(&directory, tried.inode().unwrap_or(0));
    tried.unmap();
    let _ = DIRECTORY.set(directory);
    Ok(())
}

/// Sets a function that the lanes' thread calls after each round of its work, at least each second. It must not wait for
/// other threads, and has no descriptor of the program.
pub fn set_each_round(function: fn()) {
    let _ = EACH_ROUND.set(function);
}

/// Removes this process's names of its files, before it ends.
pub fn remove_files() {
    if let Some(directory) = DIRECTORY.get() {
        MADE.lock().drain(..).for_each(|inode| memory_file::remove(directory, inode));
    }
}

pub(crate) fn each_round() {
    if let Some(function) = EACH_ROUND.get() {
        function();
    }
}

/// Chunks of this process, by number.
#[derive(Default)]
pub(crate) struct Chunks {
    all: Vec<SharedMemory>,
    /// Time of the last look into the directory, ms.
    looked_ms: u64,
}

impl Chunks {
    /// Returns the memory of all chunks, by number.
    pub(crate) fn all(&self) -> &[SharedMemory] {
        &self.all
    }

    /// Makes a chunk: sealed memory if the directory has no room.
    ///
    /// # Errors
    /// Those of [`SharedMemory::make`].
    pub(crate) fn make(&self) -> Result<SharedMemory, Errno> {
        static IS_REPORTED: AtomicBool = AtomicBool::new(false);
        let in_directory = DIRECTORY.get().map(|directory| SharedMemory::make_in(directory, CHUNK_BYTES));
        match in_directory {
            Some(Ok(chunk)) => {
                MADE.lock().extend(chunk.inode());
                return Ok(chunk);
            }
            Some(Err(why)) if !IS_REPORTED.swap(true, Relaxed) => mem::write_stderr(format_args!(
                "uncopy: no more memory in --memory-dir: {why}; logs copy what arrives in other memory\n"
            )),
            _ => {}
        }
        SharedMemory::make(c"uncopy-lane", CHUNK_BYTES)
    }

    pub(crate) fn add(&mut self, chunk: SharedMemory) {
        self.all.push(chunk);
    }

    /// Returns the chunks that logs of a peer refer to.
    pub(crate) fn logged_by(&self, peer: u64) -> Vec<u32> {
        let names = names();
        let chunks = (0u32..).zip(&self.all);
        chunks.filter(|(_, chunk)| is_logged(&names, chunk, peer)).map(|(number, _)| number).collect()
    }

    /// Releases what is kept for logs of peers that have ended, once the logs do not refer to it any more.
    pub(crate) fn release_logged(&mut self, pool: &Pool) {
        let now_ms = now_ms();
        if DIRECTORY.get().is_none() || now_ms.wrapping_sub(self.looked_ms) < LOOK_MS {
            return;
        }
        let logged = pool.logged();
        if logged.is_empty() {
            return;
        }
        self.looked_ms = now_ms;
        let names = names();
        let is_over = |logged: &Logged| {
            let chunk = self.all.get(logged.chunk as usize);
            chunk.is_none_or(|chunk| !is_logged(&names, chunk, logged.peer))
        };
        logged.into_iter().filter(is_over).for_each(|logged| pool.release_logged(logged));
    }
}

/// Names that logs have given to files of the directory; `None`: it cannot be read.
fn names() -> Option<Vec<LogName>> {
    let Some(directory) = DIRECTORY.get() else { return Some(Vec::new()) };
    memory_file::open(directory).and_then(|directory| memory_file::log_names(&directory)).ok()
}

fn is_logged(names: &Option<Vec<LogName>>, chunk: &SharedMemory, peer: u64) -> bool {
    let Some(inode) = chunk.inode() else { return false };
    // Without an answer nothing is reused.
    names.as_ref().is_none_or(|names| names.iter().any(|name| (name.inode, name.holder) == (inode, peer)))
}
