//! Touch sampling: what programs touch of what they receive and copy, found out while it is recorded.
//!
//! While a recording is on nothing is elided, but for one input in so many ([`uncopy_core::policy::sampling`]): that one
//! is received into a segment, and all copies of it are elided. Views are made under a number that names a row of the
//! recording instead of a site, so that a fault on one shows whose bytes the program touched.
//!
//! ```text
//! number of a site's account   0 | site
//! number of a row              1 | generation (5 bits) | row (10 bits)
//! ```
//!
//! A row is of this recording of this process, hence the generation: a forked child goes on with its parent's views, and
//! one recording may follow another. Rows, counts and what sampling costs are kept without a lock: the fault service
//! enters there, too. The accounts by which sites are switched on and off neither gain nor lose meanwhile.

use crate::account::done::Done;
use crate::arena::segment::Segment;
use crate::state::policy::POLICY;
use crate::state::recording::{self, ROW};
use uncopy_core::addr::PAGE_BYTES;
use uncopy_core::ledger::Field;
use uncopy_core::options::Policy;
use uncopy_core::page_map::SiteId;
use uncopy_core::plan::Piece;
use uncopy_core::recording::{Call, SAMPLES, Tally};
use uncopy_record::Stack;
use uncopy_record::samples::{self, Row};

const ROW_BITS: u32 = 10;
const GENERATIONS: u32 = 1 << (SiteId::BITS - 1 - ROW_BITS);
/// The row of samples that find no room, and of bytes that are viewed although they were copied.
const NOBODY: SiteId = ROW | ((1 << ROW_BITS) - 1);
const _: () = assert!(SAMPLES <= 1 << ROW_BITS);

/// What a page of a sampled view costs beyond what is charged for it where it happens, ns: it comes from the reservoir and
/// goes back there by the next call that is not sampled, cold for the processor's caches both times. With less than
/// this an echo server of 64 KiB and three copies spent 8 % of its time on samples instead of 1 %: 47 µs for each of
/// 64 pages in four buffers.
const COLD_PAGE_NS: i64 = 800;

/// Why an input is not sampled.
pub(crate) fn reject_reason(site: SiteId) -> Option<Field> {
    let is_sampled = POLICY.is_set_to(Policy::Always)
        || POLICY.sampling.is_over(site) && POLICY.sampling.settle(site, recording::elapsed_ns());
    (!is_sampled).then_some(Field::Off)
}

/// The number under which a call from this stack makes views that are sampled.
pub(crate) fn site(stack: u32, call: Call) -> SiteId {
    match samples::row(stack, call).and_then(|row| SiteId::try_from(row.index()).ok()) {
        Some(index) if index < NOBODY & !ROW => ROW | generation() | index,
        _ => NOBODY,
    }
}

fn generation() -> SiteId {
    ((recording::generation() % GENERATIONS) << ROW_BITS) as SiteId
}

/// The id of a stack, if sampling needs it.
#[inline(always)]
pub(crate) fn stack() -> Option<u32> {
    recording::is_on().then(|| uncopy_record::id_of(Stack::here()))
}

/// The number for bytes that were copied, and are viewed only because their pages were absent.
pub(crate) const fn copied(site: SiteId) -> SiteId {
    if recording::is_row(site) { NOBODY } else { site }
}

fn row_of(site: SiteId) -> Option<Row> {
    let generation_bits = !ROW & !((1 << ROW_BITS) - 1);
    let is_of_now = recording::is_row(site) && site != NOBODY && site & generation_bits == generation();
    is_of_now.then(|| samples::at(usize::from(site) % (1 << ROW_BITS))).flatten()
}

/// Whether some of the bytes are of a sampled input.
pub(crate) fn have_sampled(pieces: &[Piece<Segment>]) -> bool {
    recording::is_on()
        && pieces
            .iter()
            .any(|piece| matches!(piece, Piece::Segment { segment, .. } if recording::is_row(segment.site())))
}

/// Enters what a sampled call made views of.
pub(crate) fn enter(site: SiteId, done: &Done) {
    if !recording::is_row(site) {
        return;
    }
    recording::spend((done.elided_bytes / PAGE_BYTES) as i64 * COLD_PAGE_NS);
    let sampled_bytes = (done.elided_bytes - done.empty_bytes) as u64;
    if let Some(row) = row_of(site).filter(|_| sampled_bytes > 0) {
        row.add(Tally { events: 1, sampled_bytes, ..Tally::default() });
    }
}

/// Enters that a page of a sampled view was touched.
pub(crate) fn touched(site: SiteId) {
    if let Some(row) = row_of(site) {
        row.add(Tally { touched_bytes: PAGE_BYTES as u64, touched_pages: 1, faults: 1, ..Tally::default() });
    }
}
