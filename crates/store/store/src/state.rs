//! State that a program and its keeper share in memory that both write.
//!
//! All fields are atomic. Neither side trusts the other's fields further than files of the same user: a keeper
//! that is wrong about a file can only sync it too often or not at all.

use core::ops::Range;
use core::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence,
};

/// Offset of the slots, bytes. Children of the program do not share what lies before it.
pub const SLOTS_OFFSET: usize = 4 << 10;
/// Maximum number of logged files of a program.
pub const MAX_FILES: usize = 64;
/// Length of the shared memory, bytes.
pub const STATE_BYTES: usize = 16 << 10;

/// The program may not rely on the file's records: others synced the file, or may write to it.
pub const UNRELIABLE: u32 = 1;
/// A process forked by the program may write to the file.
pub const TOUCHED: u32 = 1 << 1;
/// The keeper holds the file.
pub const HELD: u32 = 1 << 2;

/// A sync by the file system has failed: the file may lack bytes of its records.
pub const FAILED: u32 = 1 << 3;
/// The program has written to the file, or is writing to it, without a record yet.
pub const UNSYNCED: u32 = 1 << 4;
/// A retry of a failed file is due, during which the program lets no thread write to it.
pub const RETRY_DUE: u32 = 1 << 5;
/// The program is syncing the file by the file system: an error of that is not reported to the keeper (once per
/// open file).
pub const SYNCING: u32 = 1 << 6;
/// The keeper has taken the file out of a mapped log: the kernel has all of it.
pub const SETTLED: u32 = 1 << 7;
/// Others may modify the file, though a mapped log has records that are not in it: only a recovery writes them.
pub const GIVEN_UP: u32 = 1 << 8;

/// A position in a log: all records before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Position of the next record: bytes from the ring's beginning, not wrapped.
    pub head: u64,
    /// Sequence number of the next record.
    pub sequence: u64,
}

/// Shared state of a logged file.
#[repr(C)]
#[derive(Debug, Default)]
pub struct FileSlot {
    /// Flags, such as [`UNRELIABLE`], [`TOUCHED`] and [`HELD`].
    pub flags: AtomicU32,
    /// Error number of the keeper's last sync, for the program's next one; 0: none.
    pub error: AtomicU32,
    /// 1 while a thread of the program appends a record for the file to a mapped log.
    appending: AtomicU32,
    /// 1 if the program opened the file with O_APPEND, which the keeper clears while a mapped log has the file.
    pub is_append: AtomicU32,
    /// File offset of the program's descriptor in a mapped log, bytes: the kernel's offset does not move then.
    pub position: AtomicU64,
    /// Size of the file with its records in a mapped log, bytes.
    pub size: AtomicU64,
    /// Time of the last write to a mapped log, ns since 1970; 0: none.
    pub modified_ns: AtomicU64,
    /// Range of the file whose blocks the keeper has reserved, bytes.
    reserved_from: AtomicU64,
    reserved_until: AtomicU64,
}

/// An append to a mapped log in progress: the keeper waits for its end before it takes the file away.
#[derive(Debug)]
pub struct Append<'a>(&'a FileSlot);

impl Drop for Append<'_> {
    fn drop(&mut self) {
        // A locked instruction: non-temporal stores of this thread are visible before the keeper goes on (Intel
        // SDM, volume 3, "Methods of Caching Available", write combining).
        self.0.appending.swap(0, SeqCst);
    }
}

impl FileSlot {
    /// Begins an append by the program; `None`: the keeper has taken the file, or a child may have written to it.
    /// One thread at a time may call this for a file.
    #[must_use]
    pub fn begin_append(&self) -> Option<Append<'_>> {
        self.appending.swap(1, SeqCst);
        let append = Append(self);
        self.is_usable().then_some(append)
    }

    /// Whether the program may go on with the file in a mapped log: the keeper has not taken it, no child may have written
    /// to it, and its device has not failed.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.flags.load(SeqCst) & (UNRELIABLE | TOUCHED | FAILED) == 0
    }

    /// Forbids further appends. An append in progress is not interrupted: see [`FileSlot::is_appending`].
    pub fn stop_appends(&self) {
        self.flags.fetch_or(UNRELIABLE, SeqCst);
    }

    /// Whether an append is in progress. After [`FileSlot::stop_appends`], false means that none will follow. The
    /// program may die during one: then this stays true, and the record is whole or absent.
    #[must_use]
    pub fn is_appending(&self) -> bool {
        self.appending.load(SeqCst) != 0
    }

    /// Returns the range of the file whose blocks the keeper has reserved, bytes.
    #[must_use]
    pub fn reserved(&self) -> Range<u64> {
        // In this order: with the end of an older range, this is at most a part of either.
        let until = self.reserved_until.load(Acquire);
        self.reserved_from.load(Acquire)..until
    }

    /// Announces that the keeper has reserved the blocks of a range, which ends behind the last one.
    pub fn set_reserved(&self, range: &Range<u64>) {
        self.reserved_from.store(range.start, Release);
        self.reserved_until.store(range.end, Release);
    }

    /// Prepares the slot for another file.
    pub fn clear(&self) {
        self.modified_ns.store(0, Release);
        self.reserved_until.store(0, Release);
        self.error.store(0, Release);
        self.appending.store(0, Release);
        self.is_append.store(0, Release);
        self.flags.store(0, Release);
    }
}

/// The shared memory of a program and its keeper.
#[repr(C)]
#[derive(Debug)]
pub struct State {
    /// Sequence lock of `head` and `sequence`: odd during a change.
    version: AtomicU64,
    head: AtomicU64,
    sequence: AtomicU64,
    /// End of the retired records; written by the keeper.
    tail: AtomicU64,
    /// Number of bytes in use at which the program asks for a digest of a mapped log; written by the keeper.
    pub digest_bytes: AtomicU64,
    /// Padding up to the next page.
    unused: [AtomicU64; SLOTS_OFFSET / 8 - 5],
    /// Slots of the logged files.
    pub slots: [FileSlot; MAX_FILES],
}

const _: () = assert!(size_of::<State>() <= STATE_BYTES);
const _: () = assert!(core::mem::offset_of!(State, slots) == SLOTS_OFFSET);

impl Default for State {
    fn default() -> Self {
        Self {
            version: AtomicU64::new(0),
            head: AtomicU64::new(0),
            sequence: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            digest_bytes: AtomicU64::new(0),
            unused: [const { AtomicU64::new(0) }; SLOTS_OFFSET / 8 - 5],
            slots: core::array::from_fn(|_| FileSlot::default()),
        }
    }
}

impl State {
    /// Publishes the moment before which all records are written. Only one thread may call this at a time.
    pub fn set_moment(&self, moment: Moment) {
        let version = self.version.load(Relaxed);
        self.version.store(version | 1, Relaxed);
        fence(Release);
        self.head.store(moment.head, Relaxed);
        self.sequence.store(moment.sequence, Relaxed);
        self.version.store((version | 1) + 1, Release);
    }

    /// Returns the moment published last; `None`: a change is in progress, which takes no time unless the
    /// writer died.
    #[must_use]
    pub fn moment(&self) -> Option<Moment> {
        for _ in 0..1000 {
            let version = self.version.load(Acquire);
            let moment = Moment { head: self.head.load(Relaxed), sequence: self.sequence.load(Relaxed) };
            fence(Acquire);
            if version.is_multiple_of(2) && self.version.load(Relaxed) == version {
                return Some(moment);
            }
            core::hint::spin_loop();
        }
        None
    }

    /// Returns the end of the retired records.
    #[must_use]
    pub fn tail(&self) -> u64 {
        self.tail.load(Acquire)
    }

    /// Sets the end of the retired records.
    pub fn set_tail(&self, tail: u64) {
        self.tail.store(tail, Release);
    }
}
