//! What a walk depended on, so that the next one from the same place can be told to be the same without walking.
//!
//! A stack follows from where it begins, the words that are read on the way and the tables. So if none of these has
//! changed, neither has the stack. Only for the thread's own stack: its words can be read as long as the thread lives.

use crate::registers::Registers;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Frames of a stack at most.
pub const FRAMES: usize = 64;

/// Part of every key: what was learned before an object was unloaded is never found again.
static GENERATION: AtomicU64 = AtomicU64::new(0);
/// Words that are noted; a longer walk is not repeatable.
pub const READS: usize = 40;

/// See [`crate::forget`].
pub fn forget() {
    GENERATION.fetch_add(1, Relaxed);
}

/// Changes with every [`forget`].
#[inline]
pub fn generation() -> u64 {
    GENERATION.load(Relaxed)
}

/// What one walk depended on.
#[derive(Clone, Copy, Debug)]
pub struct Trace {
    start: Registers,
    generation: u64,
    /// Lowest and highest address that was read.
    range: (usize, usize),
    count: usize,
    is_repeatable: bool,
    needs_bp: bool,
    /// Where the `rbp` of the frame came from; 0: it is the one that the walk began with.
    bp_from: usize,
    reads: [(usize, usize); READS],
}

impl Trace {
    /// Of no walk.
    pub const NONE: Self = Self {
        start: Registers { ip: 0, sp: 0, bp: 0 },
        generation: 0,
        range: (0, 0),
        count: 0,
        is_repeatable: false,
        needs_bp: false,
        bp_from: 0,
        reads: [(0, 0); READS],
    };

    pub(crate) fn begin(&mut self, start: Registers) {
        self.start = start;
        self.generation = generation();
        self.range = (start.sp, start.sp);
        self.count = 0;
        self.is_repeatable = true;
        self.needs_bp = false;
        self.bp_from = 0;
    }

    /// A word was read.
    #[inline]
    pub(crate) fn note(&mut self, address: usize, value: usize) {
        match self.reads.get_mut(self.count) {
            Some(read) => {
                *read = (address, value);
                self.count += 1;
                self.range = (self.range.0.min(address), self.range.1.max(address));
            }
            None => self.is_repeatable = false,
        }
    }

    /// `rbp` was taken from this address.
    #[inline]
    pub(crate) fn bp_from(&mut self, address: usize) {
        self.bp_from = address;
    }

    /// The walk depends on what `rbp` is.
    #[inline]
    pub(crate) fn uses_bp(&mut self, bp: usize) {
        match self.bp_from {
            0 => self.needs_bp = true,
            address => self.note(address, bp),
        }
    }

    /// The walk ended for a reason that may be gone the next time.
    pub(crate) fn spoil(&mut self) {
        self.is_repeatable = false;
    }

    /// Whether a walk from `start` would be the same. Reads nothing but the calling thread's own stack.
    #[inline]
    #[must_use]
    pub fn holds(&self, start: Registers) -> bool {
        self.is_repeatable
            && (self.start.ip, self.start.sp) == (start.ip, start.sp)
            && (!self.needs_bp || self.start.bp == start.bp)
            && self.generation == generation()
            && self.is_own(start.sp)
            && self.reads[..self.count].iter().all(|(address, value)| {
                // SAFETY: an aligned word on the calling thread's own stack, as `is_own` has found.
                unsafe { (*address as *const usize).read_volatile() == *value }
            })
    }

    /// Whether everything lies on the stack that the thread has for its whole life.
    #[inline]
    fn is_own(&self, sp: usize) -> bool {
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        return uncopy_sys::stack::around(sp, false)
            .is_some_and(|own| own.start <= self.range.0 && self.range.1 + size_of::<usize>() <= own.end);
        #[cfg(not(all(target_arch = "x86_64", not(loom))))]
        {
            let _ = sp;
            false
        }
    }
}
