//! How far a run has come: a page shared with the driver, so that it knows where a program died.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::program::{Kind, MAX_WORKERS};

/// Size of the page.
const BYTES: usize = 4096;

/// What is counted.
#[repr(C)]
#[derive(Debug)]
pub struct Progress {
    /// For each worker: the number of the operation that it runs, plus one.
    reached: [AtomicU64; MAX_WORKERS],
    /// For each kind: operations done, in forked children too.
    kinds: [AtomicU64; 64],
    /// Of those: done in forked children.
    in_children: AtomicU64,
}

impl Progress {
    /// Maps the page in the file at `path`, which is made if it is not there.
    ///
    /// # Panics
    /// When the file cannot be made.
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
        // SAFETY: a shared mapping at an address of the kernel's choice disturbs nothing.
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
        // SAFETY: the mapping is large enough, stays for good, and zeroes are valid counters.
        unsafe { &*std::ptr::with_exposed_provenance::<Self>(start) }
    }

    /// Notes that `worker` begins operation `number`, of `kind`; `in_child`: of a forked child.
    pub fn begin(&self, worker: usize, number: usize, kind: Kind, in_child: bool) {
        self.kinds[kind as usize].fetch_add(1, Relaxed);
        if in_child {
            self.in_children.fetch_add(1, Relaxed);
        } else {
            self.reached[worker].store(number as u64 + 1, Relaxed);
        }
    }

    /// The number of the operation that each worker has reached, in order of the workers.
    #[must_use]
    pub fn reached(&self) -> [Option<usize>; MAX_WORKERS] {
        std::array::from_fn(|worker| {
            usize::try_from(self.reached[worker].load(Relaxed)).unwrap_or(0).checked_sub(1)
        })
    }

    /// Operations done of each kind.
    #[must_use]
    pub fn kinds(&self) -> Vec<u64> {
        Kind::ALL.iter().map(|kind| self.kinds[*kind as usize].load(Relaxed)).collect()
    }

    /// Operations done by forked children.
    #[must_use]
    pub fn in_children(&self) -> u64 {
        self.in_children.load(Relaxed)
    }
}
