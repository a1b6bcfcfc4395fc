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

use crate::arena::segment::Segment;
use crate::call::input::Part;
use crate::range::apply::Done;
use crate::service::activation::{ENGINE, Phase};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering::Relaxed};
use uncopy_core::addr::PAGE_BYTES;
use uncopy_core::ledger::Field;
use uncopy_core::page_map::SiteId;
use uncopy_core::plan::Piece;
use uncopy_core::policy::Kind;
use uncopy_core::recording::{Call, SAMPLES, Sampled, Tally};
use uncopy_record::samples::{self, Row};
use uncopy_record::{Stack, session};

// The processor's, also under model: nothing is sampled there, and every look at one of the model's is one more place to
// switch threads at.
static IS_ON: AtomicBool = AtomicBool::new(false);
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Processor time of the process when sampling began, ns.
static BEGAN_NS: AtomicI64 = AtomicI64::new(0);

const ROW: SiteId = 1 << 15;
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

/// Whether inputs are sampled.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    IS_ON.load(Relaxed)
}

/// Begins, or ends. Views that were made stay, and count until the recording ends.
pub(crate) fn switch(is_on: bool) {
    if is_on && !IS_ON.load(Relaxed) {
        renew();
        BEGAN_NS.store(processor_ns(), Relaxed);
        let is_active = ENGINE.phase() == Phase::Active;
        session::set_sampled(if is_active { Sampled::Yes } else { Sampled::No });
    }
    IS_ON.store(is_on, Relaxed);
}

/// In a forked child, whose rows are not its parent's.
pub(crate) fn renew() {
    GENERATION.fetch_add(1, Relaxed);
}

fn processor_ns() -> i64 {
    uncopy_sys::ids::processor_ns().cast_signed()
}

/// Says in the recording whether samples are to be had.
pub(crate) fn say(sampled: Sampled) {
    if is_on() {
        session::set_sampled(sampled);
    }
}

/// Whether an input into these parts has to be looked at: it is sampled, or goes where pages are absent. Asked once for each
/// call.
#[must_use]
pub fn is_candidate(parts: &[Part], caller: usize) -> bool {
    if ENGINE.samples_all() {
        return true;
    }
    let min_bytes = ENGINE.min_size_bytes();
    parts.iter().filter(|part| part.len_bytes >= min_bytes).fold(false, |concerned, part| {
        let site = ENGINE.sites.site(Kind::Input, caller, part.len_bytes);
        let is_due = ENGINE.sampling.is_due(site);
        concerned | is_due | ENGINE.find(part.address).is_some_and(|at| at.may_have_absent_pages())
    })
}

/// Why an input is not sampled.
pub(crate) fn reject_reason(site: SiteId) -> Option<Field> {
    let is_sampled = ENGINE.samples_all()
        || ENGINE.sampling.is_over(site)
            && ENGINE.sampling.settle(site, processor_ns() - BEGAN_NS.load(Relaxed));
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
    ((GENERATION.load(Relaxed) % GENERATIONS) << ROW_BITS) as SiteId
}

/// The id of a stack, if sampling needs it.
#[inline(always)]
pub(crate) fn stack() -> Option<u32> {
    is_on().then(|| uncopy_record::id_of(Stack::here()))
}

/// Whether it numbers a row and not a site's account.
#[inline]
pub(crate) const fn is_row(site: SiteId) -> bool {
    site & ROW != 0
}

/// The number for bytes that were copied, and are viewed only because their pages were absent.
pub(crate) const fn copied(site: SiteId) -> SiteId {
    if is_row(site) { NOBODY } else { site }
}

fn row_of(site: SiteId) -> Option<Row> {
    let generation_bits = !ROW & !((1 << ROW_BITS) - 1);
    let is_of_now = is_row(site) && site != NOBODY && site & generation_bits == generation();
    is_of_now.then(|| samples::at(usize::from(site) % (1 << ROW_BITS))).flatten()
}

/// Whether some of the bytes are of a sampled input.
pub(crate) fn have_sampled(pieces: &[Piece<Segment>]) -> bool {
    is_on()
        && pieces
            .iter()
            .any(|piece| matches!(piece, Piece::Segment { segment, .. } if is_row(segment.site())))
}

/// Enters what a sampled call made views of.
pub(crate) fn enter(site: SiteId, done: &Done) {
    if !is_row(site) {
        return;
    }
    spend((done.elided_bytes / PAGE_BYTES) as i64 * COLD_PAGE_NS);
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

/// Enters what sampling cost.
#[inline]
pub(crate) fn spend(ns: i64) {
    if is_on() {
        ENGINE.sampling.spend(ns);
    }
}
