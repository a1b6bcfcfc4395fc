//! Touch sampling: measures, while a program is recorded, which of the bytes that it receives and copies it touches.
//!
//! While a recording is on nothing is elided but a sample of the inputs ([`uncopy_core::policy::sampling`]): a
//! sampled input is received into a segment, and all copies of it are elided. The views' site id names a row of the
//! recording, so that a fault on such a view shows whose bytes the program touched.
//!
//! ```text
//! site's account     0 | site
//! recording's row    1 | generation (5 bits) | row (10 bits)
//! ```
//!
//! A row belongs to one recording of one process, hence the generation: a forked child inherits its parent's views,
//! and one recording may follow another. Rows, counts and costs of sampling are kept without a lock, because the
//! handler thread enters there, too. The accounts by which sites are switched on and off stay unchanged meanwhile.

use crate::account::plan_result::PlanResult;
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
/// Row of samples for which the table is full, and of copied bytes that are viewed all the same.
const NO_ROW: SiteId = ROW | ((1 << ROW_BITS) - 1);
const _: () = assert!(SAMPLES <= 1 << ROW_BITS);

/// Extra cost of a page of a sampled view, beyond the charges entered elsewhere, ns: the page comes from
/// the reservoir and goes back with the next call that is not sampled, cache-cold both times. With less
/// than this an echo server of 64 KiB and three copies spent 8 % of its time on samples instead of 1 %: 47
/// µs for each of 64 pages in four buffers.
const COLD_PAGE_NS: i64 = 800;

/// Reason why an input is not sampled; `None`: sample it.
pub(crate) fn reject_reason(site: SiteId) -> Option<Field> {
    let is_sampled = POLICY.is_configured_as(Policy::Always)
        || POLICY.sampling.is_over(site) && POLICY.sampling.start_interval(site, recording::elapsed_ns());
    (!is_sampled).then_some(Field::Off)
}

/// Site id for the sampled views of a call from this stack.
pub(crate) fn site(stack: u32, call: Call) -> SiteId {
    match samples::row(stack, call).and_then(|row| SiteId::try_from(row.index()).ok()) {
        Some(index) if index < NO_ROW & !ROW => ROW | generation() | index,
        _ => NO_ROW,
    }
}

fn generation() -> SiteId {
    ((recording::generation() % GENERATIONS) << ROW_BITS) as SiteId
}

/// Id of the calling stack while sampling is on.
#[inline(always)]
pub(crate) fn stack() -> Option<u32> {
    recording::is_on().then(|| uncopy_record::stack_id(Stack::here()))
}

/// Site id for bytes that were copied, and are viewed only because their pages were absent.
pub(crate) const fn copied_site(site: SiteId) -> SiteId {
    if recording::is_row(site) { NO_ROW } else { site }
}

fn row_of(site: SiteId) -> Option<Row> {
    let generation_bits = !ROW & !((1 << ROW_BITS) - 1);
    let is_of_now = recording::is_row(site) && site != NO_ROW && site & generation_bits == generation();
    is_of_now.then(|| samples::at(usize::from(site) % (1 << ROW_BITS))).flatten()
}

pub(crate) fn contain_sampled(pieces: &[Piece<Segment>]) -> bool {
    recording::is_on()
        && pieces
            .iter()
            .any(|piece| matches!(piece, Piece::Segment { segment, .. } if recording::is_row(segment.site())))
}

/// Enters the views of a sampled call.
pub(crate) fn enter(site: SiteId, done: &PlanResult) {
    if !recording::is_row(site) {
        return;
    }
    recording::spend((done.elided_bytes / PAGE_BYTES) as i64 * COLD_PAGE_NS);
    let sampled_bytes = (done.elided_bytes - done.empty_bytes) as u64;
    if let Some(row) = row_of(site).filter(|_| sampled_bytes > 0) {
        row.add(Tally { events: 1, sampled_bytes, ..Tally::default() });
    }
}

/// Enters a touched page of a sampled view.
pub(crate) fn record_touch(site: SiteId) {
    if let Some(row) = row_of(site) {
        row.add(Tally { touched_bytes: PAGE_BYTES as u64, touched_pages: 1, faults: 1, ..Tally::default() });
    }
}
