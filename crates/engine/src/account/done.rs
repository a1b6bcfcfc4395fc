//! What one call did, for the books.

use crate::state::policy::POLICY;
use smallvec::SmallVec;
use uncopy_core::addr::ByteRange;

/// Outcome of carrying out a plan.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Bytes that are views now and were not copied.
    pub elided_bytes: usize,
    /// Of these, bytes that read as zeroes.
    pub empty_bytes: usize,
    /// Bytes really copied.
    pub copied_bytes: usize,
    /// Of these, bytes of pages that the program is known to touch.
    pub learned_bytes: usize,
    /// `UFFDIO_MOVE` calls.
    pub moves: usize,
    /// Pages they moved.
    pub moved_pages: usize,
    /// Bytes that could not be put in place: the caller copies them once it holds no lock, and faults.
    pub missing: SmallVec<[ByteRange; 2]>,
}

impl Done {
    /// What moving pages out of the way is charged, ns: at most what the call saved.
    ///
    /// Moving out is an investment that the next calls on the same buffer draw on: on a machine where moving
    /// 128 pages costs 12 µs and copying them 7, an echo server with twelve buffers was switched off before
    /// any buffer was used twice. Where it is for nothing, because the program puts the pages in place again,
    /// every call still loses the tracking.
    #[must_use]
    pub fn moves_ns(&self, saved_ns: i64) -> i64 {
        POLICY.costs.moves_ns(self.moves, self.moved_pages).min(saved_ns)
    }

    /// What moves and copies of the call take by the constants, ns.
    #[must_use]
    pub fn known_ns(&self) -> i64 {
        POLICY.costs.moves_ns(self.moves, self.moved_pages) + POLICY.costs.copy_ns(self.copied_bytes)
    }
}
