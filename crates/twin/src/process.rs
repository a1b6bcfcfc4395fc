//! What is true of this process only: whether it protects pages, and by which descriptor; its locks.
//!
//! All of it lies in memory that reads as zeroes in a forked child, however it was forked. So a child finds itself
//! dormant, every lock free and no lane owned, and begins to protect pages when it first lends some.

use crate::classes::MAX_CLASSES;
use crate::counters::{COUNTERS, Statistics};
use crate::options::Options;
use crate::pages::{PAGE_BYTES, PAGES, address_of};
use crate::status::{Status, Why};
use crate::table::{Entry, Table};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use uncopy_sys::lock::{Critical, Guard, Lock, thread_id};
use uncopy_sys::thread;
use uncopy_sys::uffd::Uffd;

use Ordering::{Acquire, Relaxed, Release};

const DORMANT: u8 = 0;
const ACTIVE: u8 = 1;
const INACTIVE: u8 = 2;

/// Pages that one call replaces at most; the length of the buffer for their bytes.
pub(crate) const BATCH_PAGES: u32 = 64;

/// What is zero in every child.
#[repr(C)]
pub(crate) struct Process {
    phase: AtomicU8,
    fd: AtomicI32,
    /// Of whoever begins to protect pages, or has that stopped.
    pub activation: Lock,
    /// Processor that a thread lent something on last, plus one; 0: none, or it does not matter.
    lender: AtomicU32,
    /// Of the pool of pages.
    pool: Lock,
    /// Of whoever makes pages vanish for a moment: a fork in between would lose them.
    pub replacing: Lock,
    /// Of the lists of each size class.
    pub classes: [Lock; MAX_CLASSES],
    /// Who has each lane.
    pub owners: [Owner; LANES],
}

// SAFETY: atomics and locks; zero bytes are a value.
unsafe impl Entry for Process {}

pub(crate) static TABLE: Table<Process> = Table::new();
/// Of whoever reserves what is needed.
pub(crate) static START: Lock = Lock::new();
pub(crate) static IS_READY: AtomicBool = AtomicBool::new(false);
/// The last descriptor, kept for children, which must close their copy of it.
static LAST_FD: AtomicI32 = AtomicI32::new(-1);
/// Whether the program asked for nothing to be lent.
pub(crate) static IS_OFF: AtomicBool = AtomicBool::new(false);
static WHY: AtomicU8 = AtomicU8::new(0);
static WHY_ERRNO: AtomicI32 = AtomicI32::new(0);
pub(crate) static BUFFERS: Buffers = Buffers { zeroes: AtomicUsize::new(0), room: AtomicUsize::new(0) };

/// Two buffers of [`BATCH_PAGES`]: zeroes, and room for bytes on their way.
pub(crate) struct Buffers {
    pub zeroes: AtomicUsize,
    pub room: AtomicUsize,
}

/// Lanes of small objects; threads beyond that allocate under the lock of the class.
pub(crate) const LANES: usize = 128;

/// Who has a lane: a thread's number plus one; 0: nobody.
#[repr(transparent)]
pub(crate) struct Owner(pub AtomicU32);

/// Options that were set before the first allocation.
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

/// Pages of a pageblock.
pub(crate) fn pageblock_pages() -> u32 {
    OPTIONS.pageblock_pages.load(Relaxed)
}

/// What is true of this process; it must be ready.
#[inline]
pub(crate) fn process() -> &'static Process {
    TABLE.get(0)
}

/// Whether there is any memory to allocate from.
#[inline]
pub(crate) fn is_ready() -> bool {
    IS_READY.load(Acquire)
}

/// The pool, until the guard is dropped.
pub(crate) fn pool() -> Guard<'static> {
    process().pool.guard()
}

impl Process {
    /// The descriptor, if pages are protected in this process.
    #[inline]
    pub(crate) fn uffd(&self) -> Option<Uffd> {
        (self.phase.load(Acquire) == ACTIVE).then(|| Uffd::from_fd(self.fd.load(Relaxed)))
    }

    /// The same, also when nothing new is lent any more: what was protected still is.
    pub(crate) fn uffd_so_far(&self) -> Option<Uffd> {
        let fd = self.fd.load(Relaxed);
        (self.phase.load(Acquire) != DORMANT && fd > 0).then(|| Uffd::from_fd(fd))
    }

    /// Whether nothing was lent so far.
    #[inline]
    pub(crate) fn is_dormant(&self) -> bool {
        self.phase.load(Acquire) == DORMANT
    }

    /// Pages are protected from here on, by this userfaultfd.
    pub(crate) fn set_active(&self, uffd: Uffd) {
        self.fd.store(uffd.fd(), Relaxed);
        LAST_FD.store(uffd.fd(), Relaxed);
        self.phase.store(ACTIVE, Release);
    }

    /// Notes where pages are lent: whoever writes to them is likely to run there, too.
    #[inline]
    pub(crate) fn note_lender(&self) {
        let processor = thread::processor() + 1;
        if self.lender.load(Relaxed) != processor {
            self.lender.store(processor, Relaxed);
        }
    }

    /// The last processor that was noted.
    pub(crate) fn lender(&self) -> Option<u32> {
        self.lender.load(Relaxed).checked_sub(1)
    }

    /// Nothing is lent any more, for the reason given. What is protected stays so.
    pub(crate) fn stop(&self, why: Why, errno: i32) {
        say(why, errno);
        self.phase.store(INACTIVE, Release);
    }
}

pub(crate) fn say(why: Why, errno: i32) {
    WHY_ERRNO.store(errno, Relaxed);
    WHY.store(why as u8, Release);
}

/// Closes the copy of the parent's descriptor that a forked child has: what it does would happen to the parent.
pub(crate) fn close_inherited() {
    let fd = LAST_FD.swap(-1, Relaxed);
    if fd >= 0 && process().uffd_so_far().is_none() {
        Uffd::from_fd(fd).close_if_ours();
    }
}

/// [`BATCH_PAGES`] of zeroes; only where pages are protected.
pub(crate) fn zeroes() -> usize {
    BUFFERS.zeroes.load(Relaxed)
}

/// Room for [`BATCH_PAGES`], for whoever holds [`Process::replacing`].
pub(crate) fn room() -> usize {
    BUFFERS.room.load(Relaxed)
}

/// Whether this process sends twin memory by reference, and if not, why.
#[must_use]
pub fn status() -> Status {
    if !is_ready() {
        let why = Why::ALL.into_iter().find(|why| *why as u8 == WHY.load(Acquire));
        return why.map_or(Status::Dormant, |why| Status::Inactive { why, errno: WHY_ERRNO.load(Relaxed) });
    }
    match process().phase.load(Acquire) {
        DORMANT if IS_OFF.load(Relaxed) => Status::Inactive { why: Why::Asked, errno: 0 },
        DORMANT => Status::Dormant,
        ACTIVE => Status::Active,
        _ => {
            let why = Why::ALL.into_iter().find(|why| *why as u8 == WHY.load(Acquire));
            Status::Inactive { why: why.unwrap_or(Why::Asked), errno: WHY_ERRNO.load(Relaxed) }
        }
    }
}

/// A process ends when its last thread does, and the handler thread would be that one: a first thread that ends before
/// the others (`pthread_exit`) waits for them. Called at a thread's end; `again` has this called in the next round of
/// destructors, in the last of which the program's own have run.
pub(crate) fn thread_ends(again: impl FnOnce()) {
    const ROUNDS: u8 = 3; // PTHREAD_DESTRUCTOR_ITERATIONS (glibc) are 4.
    static ROUND: AtomicU8 = AtomicU8::new(0);
    if thread_id() != std::process::id() || process().uffd_so_far().is_none() {
        return;
    }
    if ROUND.fetch_add(1, Relaxed) < ROUNDS {
        again();
        return;
    }
    thread::outlast_others();
    // What glibc does in the last thread.
    std::process::exit(0);
}

/// Lends nothing from here on, in this process and in its children: everything is copied.
pub fn switch_off() {
    IS_OFF.store(true, Relaxed);
    say(Why::Asked, 0);
    if is_ready() {
        let _critical = Critical::enter();
        let _guard = process().activation.guard();
        process().stop(Why::Asked, 0);
    }
}

/// Whether a thread of the allocator's serves writes in this process: it lives as long as the process does.
#[must_use]
pub fn has_handler() -> bool {
    is_ready() && process().uffd_so_far().is_some()
}

/// What the allocator has done so far.
#[must_use]
pub fn statistics() -> Statistics {
    let mut statistics = COUNTERS.snapshot();
    if is_ready() {
        let _critical = Critical::enter();
        let _guard = pool();
        // SAFETY: under the lock of the pool.
        let (used, resident) = unsafe { PAGES.usage() };
        (statistics.used_bytes, statistics.free_resident_bytes) = (used as u64, resident as u64);
    }
    statistics
}

/// Locks that a fork holds: nobody is in the middle of anything that a child could not go on with.
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

/// The contrary, in the parent and in the child.
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

/// Address of a page and its length, bytes.
pub(crate) fn bytes_of(first: u32, pages: u32) -> (usize, usize) {
    (address_of(first), pages as usize * PAGE_BYTES)
}
