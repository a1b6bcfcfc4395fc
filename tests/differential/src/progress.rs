//! Progress of a run, in a page shared with the driver, which thereby knows where a program died.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::program::{Kind, MAX_WORKERS};

/// Size of the page, in bytes.
const BYTES: usize = 4096;

/// Counters of a run.
#[repr(C)]
#[derive(Debug)]
pub struct Progress {
    /// For each worker, the number of its current operation plus one; 0 before the first.
    reached: [AtomicU64; MAX_WORKERS],
    /// For each kind, the number of operations done, also by forked children.
    kinds: [AtomicU64; 64],
    /// Number of those that forked children did.
    in_children: AtomicU64,
}

impl Progress {
    /// Maps the page in the file at `path`, which is created if missing.
    ///
    /// # Panics
    /// If the file cannot be created or mapped.
    #[must_use]
    pub fn open(path: &Path) -> &'static Self {
        let file: File = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .expect("progress file");
        file.set_len(BYTES as u64).expect("progress file");
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: without MAP_FIXED, mmap(2) chooses unused addresses, so no existing mapping changes.
        let start = unsafe {
            libc::syscall(
                libc::SYS_mmap,
                0usize,
                BYTES,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0usize,
            )
        };
        let start = usize::try_from(start).expect("mmap of the progress file");
        const { assert!(size_of::<Self>() <= BYTES && Kind::ALL.len() <= 64) };
        // SAFETY: the mapping has `BYTES`, at least the size of `Self`; it is page-aligned and
        // never unmapped; any bytes are valid counters.
        unsafe { &*std::ptr::with_exposed_provenance::<Self>(start) }
    }

    /// Records that `worker` begins operation `number` of a kind, `in_child` if in a forked child.
    pub fn begin(&self, worker: usize, number: usize, kind: Kind, in_child: bool) {
        self.kinds[kind as usize].fetch_add(1, Relaxed);
        if in_child {
            self.in_children.fetch_add(1, Relaxed);
        } else {
            self.reached[worker].store(number as u64 + 1, Relaxed);
        }
    }

    /// Returns the last operation that each worker began, in the order of the workers.
    #[must_use]
    pub fn reached(&self) -> [Option<usize>; MAX_WORKERS] {
        std::array::from_fn(|worker| {
            usize::try_from(self.reached[worker].load(Relaxed)).unwrap_or(0).checked_sub(1)
        })
    }

    /// Returns the number of operations done of each kind.
    #[must_use]
    pub fn kinds(&self) -> Vec<u64> {
        Kind::ALL.iter().map(|kind| self.kinds[*kind as usize].load(Relaxed)).collect()
    }

    /// Returns the number of operations that forked children did.
    #[must_use]
    pub fn in_children(&self) -> u64 {
        self.in_children.load(Relaxed)
    }
}
