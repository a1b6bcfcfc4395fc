//! State of this process only: whether and with which descriptor it protects pages, and its locks.
//!
//! The state reads as zero in a forked child, however it was forked. So a child starts out dormant, with all
//! locks free and no caches owned, and begins to protect pages when it first lends some.

use crate::classes::MAX_CLASSES;
use crate::counters::{COUNTERS, Statistics};
use crate::options::Options;
use crate::pages::{PAGE_BYTES, PAGES, address_of};
use crate::status::{InactiveReason, Status};
use crate::table::{Entry, Table};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use uncopy_sys::lock::{Critical, Guard, Lock, thread_id};
use uncopy_sys::thread;
use uncopy_sys::uffd::Uffd;

use Ordering::{Acquire, Relaxed, Release};

const DORMANT: u8 = 0;
const ACTIVE: u8 = 1;
const INACTIVE: u8 = 2;

/// Maximum pages replaced by one call; size of the buffers.
pub(crate) const BATCH_PAGES: u32 = 64;

/// State that reads as zero in every child.
#[repr(C)]
pub(crate) struct Process {
    phase: AtomicU8,
    fd: AtomicI32,
    /// Serialises the start and the end of protection.
    pub activation: Lock,
    /// Processor on which a thread last lent pages, plus one; 0 if unknown.
    lender: AtomicU32,
    pool: Lock,
    /// Held while pages are absent for a moment, since a fork at that time would lose them.
    pub replacing: Lock,
    /// Guards the list of each size class.
    pub classes: [Lock; MAX_CLASSES],
    pub owners: [Owner; THREAD_CACHES],
}

// SAFETY: all fields are atomics or locks: all-zero bytes are valid, and shared references allow changes.
unsafe impl Entry for Process {}

pub(crate) static TABLE: Table<Process> = Table::new();
/// Serialises the initial reservations.
pub(crate) static START: Lock = Lock::new();
pub(crate) static IS_READY: AtomicBool = AtomicBool::new(false);
/// Last descriptor, kept for children, which must close their copy.
static LAST_FD: AtomicI32 = AtomicI32::new(-1);
/// True if the program asked that nothing be lent.
pub(crate) static IS_OFF: AtomicBool = AtomicBool::new(false);
static WHY: AtomicU8 = AtomicU8::new(0);
static WHY_ERRNO: AtomicI32 = AtomicI32::new(0);
pub(crate) static BUFFERS: Buffers = Buffers { zeroes: AtomicUsize::new(0), scratch: AtomicUsize::new(0) };

/// Two buffers of [`BATCH_PAGES`]: zeroes, and scratch space for bytes being moved.
pub(crate) struct Buffers {
    pub zeroes: AtomicUsize,
    pub scratch: AtomicUsize,
}

/// Number of thread caches; further threads allocate under the class's lock.
pub(crate) const THREAD_CACHES: usize = 128;

/// Owner of a cache: a thread's number plus one; 0 for none.
#[repr(transparent)]
pub(crate) struct Owner(pub AtomicU32);

pub(crate) static OPTIONS: Settings = Settings {
    pageblock_pages: AtomicU32::new(Options::new().pageblock_pages as u32),
    large_threshold: AtomicU32::new(Options::new().large_threshold as u32),
    cap_pages: AtomicU32::new(u32::MAX),
};

pub(crate) struct Settings {
    pub pageblock_pages: AtomicU32,
    pub large_threshold: AtomicU32,
    pub cap_pages: AtomicU32,
}

pub(crate) fn pageblock_pages() -> u32 {
    OPTIONS.pageblock_pages.load(Relaxed)
}

/// Returns this process's state. Must not be called before the allocator is ready.
#[inline]
pub(crate) fn process() -> &'static Process {
    TABLE.get(0)
}

/// True if the allocator is initialised.
#[inline]
pub(crate) fn is_ready() -> bool {
    IS_READY.load(Acquire)
}

pub(crate) fn pool() -> Guard<'static> {
    process().pool.guard()
}

impl Process {
    /// Returns the descriptor if pages are protected in this process.
    #[inline]
    pub(crate) fn uffd(&self) -> Option<Uffd> {
        (self.phase.load(Acquire) == ACTIVE).then(|| Uffd::from_fd(self.fd.load(Relaxed)))
    }

    /// Returns the descriptor even after lending has stopped, since pages may still be protected.
    pub(crate) fn uffd_if_started(&self) -> Option<Uffd> {
        let fd = self.fd.load(Relaxed);
        (self.phase.load(Acquire) != DORMANT && fd > 0).then(|| Uffd::from_fd(fd))
    }

    /// True if nothing has been lent so far.
    #[inline]
    pub(crate) fn is_dormant(&self) -> bool {
        self.phase.load(Acquire) == DORMANT
    }

    /// Starts protecting pages with this descriptor.
    pub(crate) fn set_active(&self, uffd: Uffd) {
        self.fd.store(uffd.fd(), Relaxed);
        LAST_FD.store(uffd.fd(), Relaxed);
        self.phase.store(ACTIVE, Release);
    }

    /// Records the current processor as one that lends: writers are likely to run there, too.
    #[inline]
    pub(crate) fn record_lending_cpu(&self) {
        let processor = thread::processor() + 1;
        if self.lender.load(Relaxed) != processor {
            self.lender.store(processor, Relaxed);
        }
    }

    pub(crate) fn lending_cpu(&self) -> Option<u32> {
        self.lender.load(Relaxed).checked_sub(1)
    }

    /// Stops lending for the given reason. Protected pages stay protected.
    pub(crate) fn stop(&self, why: InactiveReason, errno: i32) {
        record_reason(why, errno);
        self.phase.store(INACTIVE, Release);
    }
}

pub(crate) fn record_reason(why: InactiveReason, errno: i32) {
    WHY_ERRNO.store(errno, Relaxed);
    WHY.store(why as u8, Release);
}

/// Closes a forked child's copy of the parent's descriptor, because operations on it would affect the parent.
pub(crate) fn close_inherited() {
    let fd = LAST_FD.swap(-1, Relaxed);
    if fd >= 0 && process().uffd_if_started().is_none() {
        Uffd::from_fd(fd).close_if_ours();
    }
}

/// Returns the address of [`BATCH_PAGES`] of zeroes. Valid only once pages are protected.
pub(crate) fn zeroes() -> usize {
    BUFFERS.zeroes.load(Relaxed)
}

/// Returns the address of the scratch space of [`BATCH_PAGES`], for the holder of [`Process::replacing`].
pub(crate) fn scratch() -> usize {
    BUFFERS.scratch.load(Relaxed)
}

/// Returns whether this process sends twin memory by reference, and if not, why.
#[must_use]
pub fn status() -> Status {
    if !is_ready() {
        let why = InactiveReason::ALL.into_iter().find(|why| *why as u8 == WHY.load(Acquire));
        return why.map_or(Status::Dormant, |why| Status::Inactive { why, errno: WHY_ERRNO.load(Relaxed) });
    }
    match process().phase.load(Acquire) {
        DORMANT if IS_OFF.load(Relaxed) => Status::Inactive { why: InactiveReason::SwitchedOff, errno: 0 },
        DORMANT => Status::Dormant,
        ACTIVE => Status::Active,
        _ => {
            let why = InactiveReason::ALL.into_iter().find(|why| *why as u8 == WHY.load(Acquire));
            Status::Inactive {
                why: why.unwrap_or(InactiveReason::SwitchedOff),
                errno: WHY_ERRNO.load(Relaxed),
            }
        }
    }
}

/// Called when a thread ends. A process ends with its last thread, which would be the handler thread, so a
/// first thread that ends before others (`pthread_exit`) waits here for them. `rearm` must arrange a call in
/// the next round of destructors; the program's own have run before the last round.
pub(crate) fn on_thread_end(rearm: impl FnOnce()) {
    const ROUNDS: u8 = 3; // PTHREAD_DESTRUCTOR_ITERATIONS (glibc) is 4.
    static ROUND: AtomicU8 = AtomicU8::new(0);
    if thread_id() != std::process::id() || process().uffd_if_started().is_none() {
        return;
    }
    if ROUND.fetch_add(1, Relaxed) < ROUNDS {
        rearm();
        return;
    }
    thread::wait_for_other_threads();
    // The last thread of a process exits likewise in glibc.
    std::process::exit(0);
}

/// Stops lending permanently, in this process and its children: everything is copied.
pub fn switch_off() {
    IS_OFF.store(true, Relaxed);
    record_reason(InactiveReason::SwitchedOff, 0);
    if is_ready() {
        let _critical = Critical::enter();
        let _guard = process().activation.guard();
        process().stop(InactiveReason::SwitchedOff, 0);
    }
}

/// True if this process has a handler thread, which lives as long as the process.
#[must_use]
pub fn has_handler() -> bool {
    is_ready() && process().uffd_if_started().is_some()
}

/// Returns the allocator's statistics.
#[must_use]
pub fn statistics() -> Statistics {
    let mut statistics = COUNTERS.snapshot();
    if is_ready() {
        let _critical = Critical::enter();
        let _guard = pool();
        // SAFETY: `usage` requires the pool's lock, which the guard holds.
        let (used, resident) = unsafe { PAGES.usage() };
        (statistics.used_bytes, statistics.free_resident_bytes) = (used as u64, resident as u64);
    }
    statistics
}

/// Acquires all locks for a fork, so that a child's state is consistent.
pub(crate) fn lock_all() {
    START.lock();
    if !is_ready() {
        return;
    }
    let process = process();
    process.activation.lock();
    process.classes.iter().for_each(Lock::lock);
    process.pool.lock();
    process.replacing.lock();
}

/// Releases all locks, in the parent and in the child.
pub(crate) fn unlock_all() {
    if is_ready() {
        let process = process();
        process.replacing.unlock();
        process.pool.unlock();
        process.classes.iter().for_each(Lock::unlock);
        process.activation.unlock();
    }
    START.unlock();
}

/// Returns the address and length in bytes of a run of pages.
pub(crate) fn bytes_of(first: u32, pages: u32) -> (usize, usize) {
    (address_of(first), pages as usize * PAGE_BYTES)
}
