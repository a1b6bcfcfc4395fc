//! Contract of the memory that a log and its chunks lie in.
//!
//! ```text
//! store, store_word ──► processor's cache ──flush──┐
//!                            │ eviction, any time   ├──► on the way ──fence──► persistent
//! stream ───────────────────────────────────────────┘
//! ```
//!
//! The model is the one of Px86 (Raad et al., POPL 2020), weakened to what every platform gives:
//!
//! - A store is *visible* to every thread and process that maps the memory, in program order except for
//!   [`Persistent::stream`], and stays so if the storing process is killed.
//! - A store becomes *persistent* at any time between the store and the fence that follows its flush. Without
//!   flush and fence, power loss may undo it.
//! - Stores to different lines of 64 bytes become persistent in any order, and so do stores to different words of
//!   one line: nothing here relies on the order within a line.
//! - An aligned word of 8 bytes written by [`Persistent::store_word`] is never torn. Everything else may be torn at
//!   any byte.

/// Length of a cache line, bytes.
pub const LINE_BYTES: usize = 64;

/// Byte-addressable memory that survives power loss, once stores were flushed and fenced.
///
/// Positions are byte offsets from the beginning of the memory. Stores by different threads must be serialised by
/// the caller. Stores, flushes and fences are `#[track_caller]`, so that a simulated memory can tell the call sites
/// apart and omit each in turn.
///
/// # Panics
/// All methods may panic if a range is not within the memory. This crate validates every position that it reads
/// from the memory before it uses it.
pub trait Persistent {
    /// Returns the length of the memory, bytes.
    fn len_bytes(&self) -> usize;

    /// Copies `into.len()` bytes out of the memory. A concurrent store may be seen in part.
    fn load(&self, at: usize, into: &mut [u8]);

    /// Loads an aligned word. Later loads see every `store` that came before the `store_word` of this value.
    fn load_word(&self, at: usize) -> u64;

    /// Copies bytes to the memory through the cache.
    #[track_caller]
    fn store(&self, at: usize, bytes: &[u8]);

    /// Stores an aligned word, visibly after all earlier stores and indivisibly.
    #[track_caller]
    fn store_word(&self, at: usize, value: u64);

    /// Copies bytes to the memory past the cache. They are persistent, and other threads see them, after the next
    /// [`fence`](Self::fence) of this thread. They may not be loaded before that.
    #[track_caller]
    fn stream(&self, at: usize, bytes: &[u8]);

    /// Begins to write the lines of a range to memory. All earlier stores to them are persistent after the next
    /// [`fence`](Self::fence) of this thread.
    #[track_caller]
    fn flush(&self, at: usize, len_bytes: usize);

    /// Waits until everything that this thread flushed or streamed before, in any memory, is persistent.
    #[track_caller]
    fn fence(&self);
}

impl<M: Persistent + ?Sized> Persistent for &M {
    fn len_bytes(&self) -> usize {
        (**self).len_bytes()
    }

    fn load(&self, at: usize, into: &mut [u8]) {
        (**self).load(at, into);
    }

    fn load_word(&self, at: usize) -> u64 {
        (**self).load_word(at)
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        (**self).store(at, bytes);
    }

    fn store_word(&self, at: usize, value: u64) {
        (**self).store_word(at, value);
    }

    fn stream(&self, at: usize, bytes: &[u8]) {
        (**self).stream(at, bytes);
    }

    fn flush(&self, at: usize, len_bytes: usize) {
        (**self).flush(at, len_bytes);
    }

    fn fence(&self) {
        (**self).fence();
    }
}
