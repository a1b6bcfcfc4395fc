//! What a program and the keeper of its log tell each other in memory that both write.
//!
//! Everything is atomic, and nothing that the other side may write is trusted further than to what a file of the same user's could be
//! changed: a keeper that is wrong about a file can only sync it too often or not at all.

use core::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence,
};

/// Bytes before the places: what only a program and its keeper write. Children of the program part with them.
pub const OWN_BYTES: usize = 4 << 10;
/// Files of a program that take part at a time, at most.
pub const MAX_FILES: usize = 64;
/// Length of the memory, bytes.
pub const STATE_BYTES: usize = 16 << 10;

/// The program may not count on its records of this file: it has been synced by another way, or somebody else writes to it.
pub const LEFT: u32 = 1;
/// A process forked by the program may write to it.
pub const TOUCHED: u32 = 1 << 1;
/// The keeper has the file.
pub const HELD: u32 = 1 << 2;

/// A sync of the file by the file system has failed: it may not have what its records have.
pub const FAILED: u32 = 1 << 3;
/// The program has written to the file, or is writing to it, what no record has.
pub const UNSYNCED: u32 = 1 << 4;
/// It is time to try a failed file again: the program sees to it that nobody writes meanwhile.
pub const DUE: u32 = 1 << 5;
/// The program syncs the file by the file system: what that says the keeper does not hear (errors are told once for each open file).
pub const SYNCING: u32 = 1 << 6;

/// A moment of a log: all records before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Where the next record would go: bytes from the ring's beginning, counted on where it wraps around.
    pub head: u64,
    /// The next record's number.
    pub sequence: u64,
}

/// A file.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Place {
    /// [`LEFT`], [`TOUCHED`], [`HELD`].
    pub flags: AtomicU32,
    /// What a sync of the keeper's has said, for the program's next one: an error number, or 0.
    pub error: AtomicU32,
}

/// All of it.
#[repr(C)]
#[derive(Debug)]
pub struct State {
    /// Odd while the moment is changed.
    version: AtomicU64,
    head: AtomicU64,
    sequence: AtomicU64,
    /// Up to here records were given back; the keeper's.
    tail: AtomicU64,
    /// Up to the next page.
    unused: [AtomicU64; OWN_BYTES / 8 - 4],
    /// The files.
    pub places: [Place; MAX_FILES],
}

const _: () = assert!(size_of::<State>() <= STATE_BYTES);
const _: () = assert!(core::mem::offset_of!(State, places) == OWN_BYTES);

impl Default for State {
    fn default() -> Self {
        Self {
            version: AtomicU64::new(0),
            head: AtomicU64::new(0),
            sequence: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            unused: [const { AtomicU64::new(0) }; OWN_BYTES / 8 - 4],
            places: core::array::from_fn(|_| Place::default()),
        }
    }
}

impl State {
    /// All records before this moment are written. One thread at a time.
    pub fn set_moment(&self, moment: Moment) {
        let version = self.version.load(Relaxed);
        self.version.store(version | 1, Relaxed);
        fence(Release);
        self.head.store(moment.head, Relaxed);
        self.sequence.store(moment.sequence, Relaxed);
        self.version.store((version | 1) + 1, Release);
    }

    /// The last moment that was set; `None`: it is being changed, which takes no time while the other side lives.
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

    /// Up to where records were given back.
    #[must_use]
    pub fn tail(&self) -> u64 {
        self.tail.load(Acquire)
    }

    /// Records up to there are given back.
    pub fn set_tail(&self, tail: u64) {
        self.tail.store(tail, Release);
    }
}
