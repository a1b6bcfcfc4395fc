//! Entry of each call and each fault: counters, accounts of sites, the ledger and samples together.

use crate::account::plan_result::PlanResult;
use crate::account::work::{Work, call_ns};
use crate::account::{accounts, sampling};
use crate::arena::segment::Segment;
use crate::state::policy::POLICY;
use crate::state::{counters, ledger, recording};
use uncopy_core::addr::PageRange;
use uncopy_core::ledger::Field;
use uncopy_core::page_map::{SiteId, View};
use uncopy_core::plan::Piece;
use uncopy_core::policy::SiteKind;
use uncopy_core::stats::Counter;

/// Enters a copy that is made as it is, for the reason `why`.
#[inline]
pub(crate) fn enter_bypass(caller: usize, len_bytes: usize, why: Field) {
    if ledger::are_kept() {
        let site = POLICY.sites.site(SiteKind::Copy, caller, len_bytes);
        ledger::record_call(site, SiteKind::Copy, caller, len_bytes);
        ledger::add(site, why, 1);
    }
}

/// Enters a copy of `pieces`, elided as far as `done` says. The copy's site gets savings and costs, the
/// sites of its inputs the net saving.
pub(crate) fn enter_copy(site: SiteId, pieces: &[Piece<Segment>], done: &PlanResult, work: Work) {
    counters::add(Counter::ElidedCopies, usize::from(done.elided_bytes > 0));
    counters::add(Counter::ElidedBytes, done.elided_bytes);
    counters::add(Counter::CopiedBytes, done.copied_bytes);
    let saved_ns = POLICY.costs.copy_ns(done.elided_bytes);
    let track_ns = call_ns(site, work.took_ns(), done.known_ns(), POLICY.costs.track_ns());
    let spent_ns = track_ns + done.moves_ns(saved_ns);
    accounts::credit(site, saved_ns);
    accounts::debit(site, spent_ns);
    accounts::record_elision(site, done);
    sampling::enter(site, done);
    let net_ns = (saved_ns - spent_ns).max(0);
    let total_bytes: usize = pieces.iter().map(Piece::len_bytes).sum();
    for piece in pieces {
        if let Piece::Segment { segment, len_bytes, .. } = piece {
            segment.touch();
            let share_ns = net_ns * *len_bytes as i64 / total_bytes as i64;
            accounts::credit(segment.site(), share_ns);
        }
    }
    debug_assert!(done.elided_bytes <= total_bytes);
}

/// Enters an input of `len_bytes` bytes at `site` that became a view. `payer` is the site that is charged.
pub(crate) fn enter_input(site: SiteId, payer: SiteId, len_bytes: usize, done: &PlanResult) {
    counters::add(Counter::ElidedInputs, 1);
    counters::add(Counter::InputBytes, len_bytes);
    counters::add(Counter::CopiedBytes, done.copied_bytes);
    accounts::debit(payer, done.moves_ns(POLICY.costs.copy_ns(done.elided_bytes) / 2));
    // Without eliding, these bytes would have been received in place.
    accounts::debit(payer, POLICY.costs.copy_ns(done.learned_bytes));
    accounts::record_elision(site, done);
    sampling::enter(site, done);
}

/// Enters an input of `len_bytes` bytes at `site`, in shared memory, that became a view instead of being
/// copied out. Returns the charge for moving pages out of the way, ns.
pub(crate) fn enter_shared_input(site: SiteId, len_bytes: usize, done: &PlanResult) -> i64 {
    counters::add(Counter::ElidedInputs, 1);
    counters::add(Counter::InputBytes, len_bytes);
    counters::add(Counter::CopiedBytes, done.copied_bytes);
    let saved_ns = POLICY.costs.fetch_ns(done.elided_bytes);
    accounts::credit(site, saved_ns);
    accounts::record_elision(site, done);
    done.moves_ns(saved_ns)
}

/// Enters a fault that put `pages` empty pages in place. `alloc_site`: allocation site of the heap's block;
/// `None` in a foreign range.
pub(crate) fn enter_empty_fault(alloc_site: Option<u16>, pages: PageRange) {
    counters::add(Counter::Faults, 1);
    let cost_ns = POLICY.costs.fault_ns(pages.len());
    if let Some(entry) = alloc_site.and_then(ledger::allocation_entry) {
        entry.fault(pages.len());
        entry.add(Field::SpentNs, cost_ns.cast_unsigned());
    }
    recording::spend(cost_ns);
}

/// Enters a fault that put `pages` of a view in place. `buffer`: the last buffer that the view's site made
/// in the block.
pub(crate) fn enter_view_fault(view: &View<Segment>, buffer: Option<PageRange>, pages: PageRange) {
    counters::add(Counter::Faults, 1);
    if recording::is_row(view.site) {
        sampling::record_touch(view.site);
    } else if let Some(buffer) = buffer {
        POLICY.touches.record(view.site, buffer, pages);
    }
    if let Some(entry) = ledger::entry(view.site) {
        entry.fault(pages.len());
    }
    let cost_ns = POLICY.costs.fault_ns(pages.len());
    accounts::debit(view.site, cost_ns);
    if view.segment.site() != view.site {
        accounts::debit(view.segment.site(), cost_ns / 2);
    }
}

/// Enters that `len_bytes` bytes of a view of `site` were put in place for children.
pub(crate) fn enter_settled(site: SiteId, len_bytes: usize) {
    accounts::debit(site, POLICY.costs.copy_ns(len_bytes));
}
