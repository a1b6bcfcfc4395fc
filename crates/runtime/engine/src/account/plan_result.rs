//! The outcome of one call, for the books.

use crate::state::policy::POLICY;
use smallvec::SmallVec;
use uncopy_core::addr::ByteRange;

/// Outcome of carrying out a plan.
#[derive(Clone, Debug, Default)]
pub struct PlanResult {
    /// Bytes that became views and were not copied.
    pub elided_bytes: usize,
    /// Bytes of `elided_bytes` that read as zeroes.
    pub empty_bytes: usize,
    /// Bytes that were copied.
    pub copied_bytes: usize,
    /// Bytes of `copied_bytes` in pages that the program is known to touch.
    pub learned_bytes: usize,
    /// Number of `UFFDIO_MOVE` calls.
    pub moves: usize,
    /// Pages moved by those calls.
    pub moved_pages: usize,
    /// Bytes that could not be placed: the caller copies them once it holds no lock, and may fault.
    pub missing: SmallVec<[ByteRange; 2]>,
}

impl PlanResult {
    /// Charge for moving pages out of the way, ns: at most `saved_ns`.
    ///
    /// Moving out is an investment that the next calls on the same buffer draw on. Without the cap, on a
    /// machine where moving 128 pages costs 12 µs and copying them 7, an echo server with twelve buffers
    /// was switched off before any buffer was used twice. Where the program puts the pages in place again,
    /// every call still loses the tracking.
    #[must_use]
    pub fn moves_ns(&self, saved_ns: i64) -> i64 {
        POLICY.costs.moves_ns(self.moves, self.moved_pages).min(saved_ns)
    }

    /// Time for moves and copies of the call, by the machine's constants, ns.
    #[must_use]
    pub fn known_ns(&self) -> i64 {
        POLICY.costs.moves_ns(self.moves, self.moved_pages) + POLICY.costs.copy_ns(self.copied_bytes)
    }
}
