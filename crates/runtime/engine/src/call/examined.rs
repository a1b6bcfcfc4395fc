//! Parts of an input: whether they are received in place, behind a view, or elsewhere.

use crate::account::{accounts, sampling};
use crate::arena::segment::{Draft, OpenEnd, allocate_shared};
use crate::background::activation;
use crate::call::redirected::{Redirected, Target};
use crate::range::block::{BlockRef, Flag};
use crate::range::carriers;
use crate::range::directory;
use crate::range::foreign::FOREIGN;
use crate::state::gate::is_in_heap;
use crate::state::policy::POLICY;
use crate::state::{counters, gate, ledger, recording};
use uncopy_core::addr::{ByteRange, PAGE_BYTES};
use uncopy_core::ledger::Field;
use uncopy_core::options::Policy;
use uncopy_core::page_map::SiteId;
use uncopy_core::policy::SiteKind;
use uncopy_core::policy::sites::{CLAIM_NS, Exit};
use uncopy_core::recording::Call;
use uncopy_sys::iovec::Part;
use uncopy_sys::lock::Critical;

/// Longest part received into a segment, bytes.
pub(super) const MAX_PART_BYTES: usize = 64 << 20;

/// Whether a part has a length of which the engine takes care.
pub(super) fn is_eligible(part: &Part) -> bool {
    (gate::min_engine_bytes()..=MAX_PART_BYTES).contains(&part.len_bytes)
}

/// The site of a part of an input.
#[derive(Clone, Copy)]
pub(super) struct Judged {
    account: SiteId,
    /// Reason why no input of this site and size is to become a view; `None`: it may.
    why_not: Option<Field>,
}

impl Judged {
    /// Looks a part's site up. To be done once for each part: it counts.
    pub(super) fn new(part: &Part, caller: usize) -> Self {
        let account = POLICY.sites.site(SiteKind::Input, caller, part.len_bytes);
        ledger::record_call(account, SiteKind::Input, caller, part.len_bytes);
        Self { account, why_not: reject_reason(account, POLICY.costs.copy_ns(part.len_bytes)) }
    }

    /// Whether the input is received in place because it is not worth it and its buffer is ordinary memory. Takes no
    /// lock: most inputs of most programs end here.
    pub(super) fn is_left_as_usual(self, address: usize) -> bool {
        let is_special = |at: BlockRef| at.block.has(Flag::REGISTERED.or(Flag::DISOWNED));
        self.why_not.is_some()
            && !(gate::has_registered() && directory::find(address).is_some_and(is_special))
    }

    pub(super) fn record_refusal(self) {
        ledger::record_refusal(self.account, self.why_not.unwrap_or(Field::Refused));
    }
}

/// A part of an input, and what was found at its buffer.
pub(super) struct Examined {
    at: BlockRef,
    range: ByteRange,
    pub(super) site: SiteId,
    account: SiteId,
    /// Reason why no input of this site and size is to become a view; `None`: it may.
    why_not: Option<Field>,
    /// Open end of a view that the input continues.
    open: Option<OpenEnd>,
    /// Whether pages that the input is likely to fill are absent.
    is_absent: bool,
    /// Whether inputs of this site usually fill their buffers.
    fills: bool,
}

/// Treatment of an input into a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Received in place, unchanged.
    Leave(Field),
    /// Received behind a view, which it extends.
    Continue,
    /// Received elsewhere, then made a view.
    View,
    /// Received elsewhere because pages are absent, then copied.
    Copy(Field),
}

impl Plan {
    pub(super) const fn why_not(self) -> Option<Field> {
        match self {
            Self::Leave(why_not) | Self::Copy(why_not) => Some(why_not),
            Self::Continue | Self::View => None,
        }
    }
}

/// Chooses the treatment of an input. `why_not`: reason why it must not become a view of its own.
const fn decide(why_not: Option<Field>, continues_view: bool, is_absent: bool, fills: bool) -> Plan {
    match why_not {
        // An input that continues a view is part of it, whatever inputs of this size are worth by themselves.
        _ if continues_view => Plan::Continue,
        Some(why_not) if !is_absent => Plan::Leave(why_not),
        _ if !fills => Plan::Leave(Field::Roomy),
        // Receiving into absent pages would fault page by page; pages that are not filled may stay absent.
        Some(why_not) => Plan::Copy(why_not),
        None => Plan::View,
    }
}

impl Examined {
    /// Examines the buffer of a part. `None`: received in place, with the reason entered in the ledger.
    pub(super) fn new(judged: Judged, part: &Part, caller: usize) -> Option<Self> {
        let Judged { account, why_not } = judged;
        let mut site = account;
        let found =
            directory::find(part.address).and_then(|at| Some((at, at.range(part.address, part.len_bytes)?)));
        let claimed = match found {
            None if why_not.is_none() && carriers::may_claim(caller) => claim(site, part),
            found => found,
        };
        let Some((at, range)) = claimed else {
            judged.record_refusal();
            return None;
        };
        if at.block.has(Flag::DISOWNED) {
            // The program has changed the mapping, so the memory may not be writable.
            ledger::record_refusal(site, Field::Refused);
            return None;
        }
        let likely_bytes = POLICY.sites.likely_bytes(account, part.len_bytes);
        let (open, is_absent) = survey(at, range, part, likely_bytes);
        // An input that continues a sampled one is sampled, too.
        let is_view = why_not.is_none() || open.is_some();
        if let Some(stack) = is_view.then(sampling::stack).flatten() {
            site = sampling::site(stack, Call::Input);
        }
        // `fills` counts how often it is asked.
        let is_asked = open.is_none() && (why_not.is_none() || is_absent);
        let fills = !is_asked || POLICY.sites.is_likely_to_fill(account, part.len_bytes);
        Some(Self { at, range, site, account, why_not, open, is_absent, fills })
    }

    pub(super) fn decide(&self) -> Plan {
        decide(self.why_not, self.open.is_some(), self.is_absent, self.fills)
    }

    /// Finds room for an input that is not received in place. `None`: there is none.
    pub(super) fn execute(self, plan: Plan, part: &Part) -> Option<Redirected> {
        let Self { at, range, site, account, open, .. } = self;
        let (target, lead_bytes) = if let Some(open) = open {
            let filled_bytes = open.filled_bytes;
            (Target::Open(open), filled_bytes)
        } else {
            let lead_bytes = range.start % PAGE_BYTES;
            let len_bytes = lead_bytes + part.len_bytes;
            let leaves = |exit: &Exit| plan == Plan::View && POLICY.sites.leaves_by(*exit, account);
            let exit = Exit::ALL.into_iter().find(leaves);
            let shared = exit.and_then(|exit| allocate_shared(exit, len_bytes));
            let target = shared.map(Target::Shared).or_else(|| Draft::new(len_bytes).ok().map(Target::Draft));
            let Some(target) = target else {
                counters::add_fallback("no memory for an input");
                ledger::record_refusal(site, Field::Refused);
                return None;
            };
            (target, lead_bytes)
        };
        let allowed = matches!(plan, Plan::View | Plan::Continue);
        Some(Redirected { at, range, target, lead_bytes, site, account, allowed })
    }
}

/// Claims a buffer outside the heap as a foreign range.
pub(super) fn claim(site: SiteId, part: &Part) -> Option<(BlockRef, ByteRange)> {
    if !FOREIGN.is_on() || is_in_heap(part.address) || carriers::will_be_replaced(part.address) {
        return None;
    }
    // Claiming opens a file, which a cancelled thread must not do in a section that holds locks.
    let _critical = Critical::enter();
    if !activation::activate() {
        return None;
    }
    accounts::debit(site, CLAIM_NS);
    let at = FOREIGN.claim(part.address, part.len_bytes)?;
    Some((at, at.range(part.address, part.len_bytes)?))
}

/// Reason why an input must not become a view, which would save at most `saved_ns`.
pub(super) fn reject_reason(site: SiteId, saved_ns: i64) -> Option<Field> {
    match POLICY.mode() {
        _ if recording::is_on() => sampling::reject_reason(site),
        Policy::Always => None,
        Policy::Never => Some(Field::Off),
        // An input can save a later copy only if that copy could pay.
        Policy::Auto if saved_ns <= POLICY.costs.track_ns() => Some(Field::Small),
        Policy::Auto if !POLICY.elides() => Some(Field::Withheld),
        Policy::Auto => (!POLICY.sites.allows(site, Policy::Auto)).then_some(Field::Off),
    }
}

/// Whether an input into these parts needs no engine: nothing is elided, and no part has absent pages.
pub(super) fn needs_no_engine(parts: &[Part]) -> bool {
    let has_absent = |part: &Part| directory::find(part.address).is_some_and(|at| at.may_have_absent_pages());
    POLICY.mode() == Policy::Auto
        && !POLICY.elides()
        && !(gate::has_registered() && parts.iter().any(has_absent))
}

/// The open end that an input into this part continues, and whether pages of its first `likely_bytes` bytes
/// are absent. Another open end is closed.
fn survey(at: BlockRef, range: ByteRange, part: &Part, likely_bytes: usize) -> (Option<OpenEnd>, bool) {
    let likely = ByteRange::at(range.start, likely_bytes.min(range.len()));
    if !at.block.has(Flag::REGISTERED) {
        return (None, false);
    }
    let mut locked = at.lock();
    let absent = locked.map().is_some_and(|map| !map.is_present(likely.overlapped_pages()));
    match locked.exchange_open(None) {
        Some(open) if open.continues(part.address, part.len_bytes) => (Some(open), absent),
        Some(open) => {
            open.close();
            (None, absent)
        }
        None => (None, absent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_left_where_it_is_unless_that_would_fault_or_another_place_pays() {
        let (off, roomy) = (Some(Field::Off), Plan::Leave(Field::Roomy));
        for (why_not, continues_view, is_absent, fills, plan) in [
            (None, false, false, true, Plan::View),
            (None, false, true, true, Plan::View),
            (None, false, false, false, roomy),
            (off, false, false, true, Plan::Leave(Field::Off)),
            (off, false, true, true, Plan::Copy(Field::Off)),
            (off, false, true, false, roomy),
            (off, true, false, true, Plan::Continue),
            (None, true, true, true, Plan::Continue),
        ] {
            assert_eq!(decide(why_not, continues_view, is_absent, fills), plan);
        }
    }
}
