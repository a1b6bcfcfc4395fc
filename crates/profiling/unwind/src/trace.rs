//! Record of an unwind's inputs, by which a later capture from the same place is recognised as identical
//! without unwinding again.
//!
//! A stack is determined by its starting registers, the stack words that the unwind reads, and the unwind
//! tables. If none of these has changed, neither has the stack. A trace holds only on the thread's own stack,
//! whose words stay readable for the life of the thread.

use crate::registers::Registers;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Maximum frames of a captured stack.
pub const MAX_FRAMES: usize = 64;

/// Part of every cache key. Incremented when an object is unloaded, which invalidates all rules.
static GENERATION: AtomicU64 = AtomicU64::new(0);
/// Maximum words that a trace records; a longer unwind is not repeatable.
pub const MAX_READS: usize = 40;

pub fn invalidate_cache() {
    GENERATION.fetch_add(1, Relaxed);
}

/// Returns a number that changes with every [`invalidate_cache`].
#[inline]
pub fn generation() -> u64 {
    GENERATION.load(Relaxed)
}

/// The inputs of one unwind.
#[derive(Clone, Copy, Debug)]
pub struct Trace {
    start: Registers,
    generation: u64,
    /// Lowest and highest address read, or the initial stack pointer.
    range: (usize, usize),
    count: usize,
    is_repeatable: bool,
    needs_bp: bool,
    /// Address from which the current frame's `rbp` was loaded; 0 if `rbp` still has its initial value.
    bp_from: usize,
    reads: [(usize, usize); MAX_READS],
}

impl Trace {
    /// The trace of no unwind, which holds for no stack.
    pub const NONE: Self = Self {
        start: Registers { ip: 0, sp: 0, bp: 0 },
        generation: 0,
        range: (0, 0),
        count: 0,
        is_repeatable: false,
        needs_bp: false,
        bp_from: 0,
        reads: [(0, 0); MAX_READS],
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

    /// Records that the word at `address` was read as `value`.
    #[inline]
    pub(crate) fn record_read(&mut self, address: usize, value: usize) {
        match self.reads.get_mut(self.count) {
            Some(read) => {
                *read = (address, value);
                self.count += 1;
                self.range = (self.range.0.min(address), self.range.1.max(address));
            }
            None => self.is_repeatable = false,
        }
    }

    /// Records that `rbp` was loaded from `address`.
    #[inline]
    pub(crate) fn record_bp_load(&mut self, address: usize) {
        self.bp_from = address;
    }

    /// Records that the unwind depends on the value of `rbp`.
    #[inline]
    pub(crate) fn record_bp_use(&mut self, bp: usize) {
        match self.bp_from {
            0 => self.needs_bp = true,
            address => self.record_read(address, bp),
        }
    }

    /// Marks the unwind as not repeatable, because the condition that ended it may be transient.
    pub(crate) fn mark_unrepeatable(&mut self) {
        self.is_repeatable = false;
    }

    /// True if an unwind from `start` would give the same stack. Reads only the calling thread's own stack.
    #[inline]
    #[must_use]
    pub fn matches(&self, start: Registers) -> bool {
        self.is_repeatable
            && (self.start.ip, self.start.sp) == (start.ip, start.sp)
            && (!self.needs_bp || self.start.bp == start.bp)
            && self.generation == generation()
            && self.is_on_own_stack(start.sp)
            && self.reads[..self.count].iter().all(|(address, value)| {
                // SAFETY: `is_on_own_stack` has checked that all recorded addresses lie on the calling thread's own
                // stack, which stays mapped while the thread runs. `StackMemory` has only recorded aligned
                // addresses.
                unsafe { (*address as *const usize).read_volatile() == *value }
            })
    }

    /// True if all recorded addresses lie on the calling thread's own stack.
    #[inline]
    fn is_on_own_stack(&self, sp: usize) -> bool {
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        return uncopy_sys::stack::mapped_range(sp, false)
            .is_some_and(|own| own.start <= self.range.0 && self.range.1 + size_of::<usize>() <= own.end);
        #[cfg(not(all(target_arch = "x86_64", not(loom))))]
        {
            let _ = sp;
            false
        }
    }
}
