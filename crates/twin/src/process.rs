//! What is true of this process only: whether it protects pages, and by which descriptor; its locks.
//!
//! All of it lies in memory that reads as zeroes in a forked child, however it was forked. So a child finds itself
//! dormant, every lock free and no lane owned, and begins to protect pages when it first lends some.

use crate::counters::COUNTERS;
use crate::options::{ConfigureError, Options};
use crate::pages::{PAGE_BYTES, PAGES, address_of};
use crate::small::{LANES, Owner};
use crate::table::{Entry, Table};
use crate::{handler, small};
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, Ordering};
use uncopy_sys::errno::Errno;
use uncopy_sys::lock::{Critical, Guard, Lock, thread_id};
use uncopy_sys::uffd::{OpenError, Reports, Uffd};
use uncopy_sys::{filter, mem, thread};

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
    activation: Lock,
    /// Processor that a thread lent something on last, plus one; 0: none, or it does not matter.
    lender: AtomicU32,
    /// Of the pool of pages.
    pool: Lock,
    /// Of whoever makes pages vanish for a moment: a fork in between would lose them.
    pub replacing: Lock,
    /// Of the lists of each size class.
    pub classes: [Lock; crate::classes::MAX_CLASSES],
    /// Who has each lane.
    pub owners: [Owner; LANES],
}

// SAFETY: atomics and locks; zero bytes are a value.
unsafe impl Entry for Process {}

static TABLE: Table<Process> = Table::new();
static START: Lock = Lock::new();
static IS_READY: AtomicBool = AtomicBool::new(false);
/// Whether children find zeroes where they must: else nothing is ever lent.
static IS_WIPED: AtomicBool = AtomicBool::new(false);
static DEVICE: AtomicI32 = AtomicI32::new(-1);
/// The last descriptor, kept for children, which must close their copy of it.
static LAST_FD: AtomicI32 = AtomicI32::new(-1);
/// Whether the program asked for nothing to be lent.
static IS_OFF: AtomicBool = AtomicBool::new(false);
static WHY: AtomicU8 = AtomicU8::new(0);
static WHY_ERRNO: AtomicI32 = AtomicI32::new(0);
static ZEROES: AtomicUsizePair = AtomicUsizePair::new();

/// Two buffers of [`BATCH_PAGES`]: zeroes, and room for bytes on their way.
struct AtomicUsizePair {
    zeroes: core::sync::atomic::AtomicUsize,
    room: core::sync::atomic::AtomicUsize,
}

impl AtomicUsizePair {
    const fn new() -> Self {
        let none = core::sync::atomic::AtomicUsize::new;
        Self { zeroes: none(0), room: none(0) }
    }
}

/// Options that were set before the first allocation.
static OPTIONS: Settings = Settings {
    pageblock_pages: AtomicU32::new(Options::new().pageblock_pages as u32),
    large_threshold: AtomicU32::new(Options::new().large_threshold as u32),
    cap_pages: AtomicU32::new(u32::MAX),
};

struct Settings {
    pageblock_pages: AtomicU32,
    large_threshold: AtomicU32,
    cap_pages: AtomicU32,
}

/// Pages of a pageblock.
pub(crate) fn pageblock_pages() -> u32 {
    OPTIONS.pageblock_pages.load(Relaxed)
}

/// Why nothing is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Why {
    /// userfaultfd was refused.
    Refused = 1,
    /// userfaultfd cannot protect pages (Linux 5.7).
    NoFeature = 2,
    /// The memory could not be registered.
    NotRegistered = 3,
    /// The handler thread could not be started.
    NoHandler = 4,
    /// The kernel cannot keep what belongs to one process from its children (Linux 4.14).
    NotWiped = 5,
    /// A seccomp filter ends processes for calls that this needs.
    Filtered = 6,
    /// The kernel's pages have another size.
    PageSize = 7,
    /// No memory for what is needed.
    NoMemory = 8,
    /// The program closed the descriptor, or the kernel refused to protect pages.
    NotProtected = 9,
    /// The program asked for it.
    Asked = 10,
}

impl Why {
    const ALL: [Self; 10] = [
        Self::Refused,
        Self::NoFeature,
        Self::NotRegistered,
        Self::NoHandler,
        Self::NotWiped,
        Self::Filtered,
        Self::PageSize,
        Self::NoMemory,
        Self::NotProtected,
        Self::Asked,
    ];

    const fn text(self) -> &'static str {
        match self {
            Self::Refused => "userfaultfd was refused",
            Self::NoFeature => "userfaultfd lacks write protection (Linux 5.7)",
            Self::NotRegistered => "the memory could not be registered with userfaultfd",
            Self::NoHandler => "the handler thread could not be started",
            Self::NotWiped => "memory cannot be wiped in forked children (Linux 4.14)",
            Self::Filtered => "a seccomp filter ends processes for calls that uncopy makes",
            Self::PageSize => "the kernel's pages have not 4096 bytes",
            Self::NoMemory => "no memory for the allocator's own data",
            Self::NotProtected => "pages could not be protected against writes",
            Self::Asked => "switched off",
        }
    }
}

/// Whether twin memory is sent by reference in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing has been lent yet.
    Dormant,
    /// It is.
    Active,
    /// It is copied, for good.
    Inactive {
        /// Why.
        why: Why,
        /// What the kernel said; 0: nothing.
        errno: i32,
    },
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dormant => f.write_str("dormant: nothing has been lent yet"),
            Self::Active => f.write_str("active"),
            Self::Inactive { why, errno: 0 } => write!(f, "inactive: {}", why.text()),
            Self::Inactive { why, errno } => write!(f, "inactive: {}: {}", why.text(), Errno(*errno)),
        }
    }
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

/// Takes the options.
pub(crate) fn configure(options: Options) -> Result<(), ConfigureError> {
    let pages = options.pageblock_pages;
    if !(1..=64).contains(&pages) {
        return Err(ConfigureError::PageblockPages(pages));
    }
    let threshold = options.large_threshold;
    let most = crate::classes::MAX_SMALL_BYTES.min(pages * PAGE_BYTES / 2);
    if !(crate::ALIGNMENT..=most).contains(&threshold) {
        return Err(ConfigureError::LargeThreshold(threshold));
    }
    let _critical = Critical::enter();
    let _guard = START.guard();
    if is_ready() {
        return Err(ConfigureError::InUse);
    }
    let cap_pages = match options.memory_cap {
        0 => u32::MAX,
        bytes => u32::try_from(bytes / PAGE_BYTES).unwrap_or(u32::MAX),
    };
    OPTIONS.pageblock_pages.store(pages as u32, Relaxed);
    OPTIONS.large_threshold.store(threshold as u32, Relaxed);
    OPTIONS.cap_pages.store(cap_pages, Relaxed);
    DEVICE.store(options.uffd_device.unwrap_or(-1), Relaxed);
    Ok(())
}

/// Reserves what is needed, once. False where the kernel refuses; it is tried again the next time.
#[cold]
pub(crate) fn make_ready() -> bool {
    let _critical = Critical::enter();
    let _guard = START.guard();
    if is_ready() {
        return true;
    }
    if mem::page_size() != PAGE_BYTES {
        say(Why::PageSize, 0);
        return false;
    }
    let created = TABLE.create(1, true).and_then(|is_wiped| {
        let cap_pages = OPTIONS.cap_pages.load(Relaxed);
        Ok(PAGES.create(cap_pages)? & is_wiped)
    });
    let Ok(is_wiped) = created else { return false };
    if !TABLE.reach(1) {
        return false;
    }
    IS_WIPED.store(is_wiped, Relaxed);
    small::set_classes(&Options {
        pageblock_pages: pageblock_pages() as usize,
        large_threshold: OPTIONS.large_threshold.load(Relaxed) as usize,
        ..Options::new()
    });
    IS_READY.store(true, Release);
    crate::fork::watch();
    true
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

    /// The descriptor; begins to protect pages if that was not needed before.
    #[inline]
    pub(crate) fn activate(&self) -> Option<Uffd> {
        match self.phase.load(Acquire) {
            ACTIVE => Some(Uffd::from_fd(self.fd.load(Relaxed))),
            DORMANT => self.begin(),
            _ => None,
        }
    }

    #[cold]
    fn begin(&self) -> Option<Uffd> {
        let _critical = Critical::enter();
        let _guard = self.activation.guard();
        if self.phase.load(Acquire) == DORMANT {
            match self.start() {
                Ok(uffd) => {
                    self.fd.store(uffd.fd(), Relaxed);
                    LAST_FD.store(uffd.fd(), Relaxed);
                    self.phase.store(ACTIVE, Release);
                }
                Err((why, errno)) => self.stop(why, errno),
            }
        }
        self.uffd()
    }

    fn start(&self) -> Result<Uffd, (Why, i32)> {
        if IS_OFF.load(Relaxed) {
            return Err((Why::Asked, 0));
        }
        if !IS_WIPED.load(Relaxed) {
            return Err((Why::NotWiped, 0));
        }
        let device = Some(DEVICE.load(Relaxed)).filter(|fd| *fd >= 0);
        if filter::is_filtered() {
            filter::try_out(device).map_err(|errno| (Why::Filtered, errno.0))?;
        }
        close_inherited();
        let batch_bytes = BATCH_PAGES as usize * PAGE_BYTES;
        if ZEROES.room.load(Acquire) == 0 {
            let zeroes = mem::map_zeroes(batch_bytes).map_err(|errno| (Why::NoMemory, errno.0))?;
            // SAFETY: a mapping at an address of the kernel's choice.
            let room = unsafe { mem::map_private(batch_bytes, None) };
            ZEROES.zeroes.store(zeroes, Release);
            ZEROES.room.store(room.map_err(|errno| (Why::NoMemory, errno.0))?, Release);
        }
        let uffd = Uffd::open(device, Reports::Writes).map_err(|error| match error {
            OpenError::Refused(errno) => (Why::Refused, errno.0),
            OpenError::NoFeature(errno) => (Why::NoFeature, errno.0),
        })?;
        let started = handler::start(uffd).map_err(|errno| (Why::NoHandler, errno.0)).and_then(|()| {
            let range = crate::pages::range();
            let registered = uffd.register_with_writes(range.base(), range.len_bytes());
            registered.map_err(|errno| (Why::NotRegistered, errno.0))
        });
        if started.is_err() {
            // A handler that has started ends when its descriptor turns out to be of no use.
            uffd.close();
        }
        started.map(|()| uffd)
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

fn say(why: Why, errno: i32) {
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
    ZEROES.zeroes.load(Relaxed)
}

/// Room for [`BATCH_PAGES`], for whoever holds [`Process::replacing`].
pub(crate) fn room() -> usize {
    ZEROES.room.load(Relaxed)
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
pub fn statistics() -> crate::Statistics {
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
