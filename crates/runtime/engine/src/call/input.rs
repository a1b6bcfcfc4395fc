//! Inputs: received from the kernel into a fresh segment, of which the buffer becomes a view.

use crate::account::work::{Work, call_ns};
use crate::account::{accounts, books, sampling};
use crate::arena::segment::{Draft, OpenEnd, Segment, allocate_shared};
use crate::background::{activation, release};
use crate::call::in_flight::{CallResources, InProgress, RedirectedParts};
use crate::call::redirected::{Redirected, Target};
use crate::range::apply::{Source, apply};
use crate::range::block::{BlockRef, Flag, Locked};
use crate::range::carriers;
use crate::range::directory;
use crate::range::foreign::FOREIGN;
use crate::range::heap::HEAP;
use crate::range::page_in::prepare_overwrite;
use crate::state::gate::is_in_heap;
use crate::state::policy::POLICY;
use crate::state::{counters, gate, ledger, recording, warmup};
use uncopy_core::addr::{ByteRange, PAGE_BYTES, PageRange, SegmentPages};
use uncopy_core::ledger::Field;
use uncopy_core::options::Policy;
use uncopy_core::page_map::{Dropped, SiteId, State};
use uncopy_core::plan::{Piece, plan, with_touched};
use uncopy_core::policy::SiteKind;
use uncopy_core::policy::sites::{CLAIM_NS, Exit, INPUT_NS};
use uncopy_core::recording::Call;
use uncopy_core::stats::Counter;
use uncopy_sys::bytes;
pub use uncopy_sys::iovec::Part;
use uncopy_sys::lock::Critical;
use uncopy_sys::presence::Section;
use uncopy_sys::stack_room;

/// Most parts of a scattered input; calls with more go to libc unchanged.
pub const MAX_PARTS: usize = 64;
/// Longest part received into a segment, bytes.
pub(super) const MAX_PART_BYTES: usize = 64 << 20;

/// Outcome of a receive.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveResult {
    /// Return value of libc's function.
    pub result: isize,
    /// Whether the engine handled the call.
    pub handled_by_engine: bool,
}

impl ReceiveResult {
    /// A receive that the engine did not handle.
    #[must_use]
    pub const fn passthrough(result: isize) -> Self {
        Self { result, handled_by_engine: false }
    }
}

type Ranges = smallvec::SmallVec<[ByteRange; 4]>;

/// Whether an input into these parts may be elided: cheap, takes no lock.
#[must_use]
pub fn is_candidate(parts: &[Part]) -> bool {
    let min_bytes = gate::min_engine_bytes();
    parts.len() <= MAX_PARTS
        && parts
            .iter()
            .any(|part| part.len_bytes >= min_bytes && (is_in_heap(part.address) || FOREIGN.is_on()))
}

/// Whether an input into these parts is sampled, or goes where pages are absent. To be asked once for each call.
fn may_be_sampled(parts: &[Part], caller: usize) -> bool {
    if POLICY.is_configured_as(Policy::Always) {
        return true;
    }
    let min_bytes = gate::min_engine_bytes();
    parts.iter().filter(|part| part.len_bytes >= min_bytes).fold(false, |is_affected, part| {
        let site = POLICY.sites.site(SiteKind::Input, caller, part.len_bytes);
        let is_due = POLICY.sampling.is_due(site);
        is_affected | is_due | directory::find(part.address).is_some_and(|at| at.may_have_absent_pages())
    })
}

/// Redirected inputs, to be finished with the number of bytes that arrived.
pub struct Input<'a> {
    parts: &'a mut [Part],
    progress: InProgress,
    /// Time spent before the call for each part, ns.
    begun_ns: Option<i64>,
    /// The last field, so that all others are dropped while no signal handler of the program can run.
    section: Section,
}

impl<'a> Input<'a> {
    /// Redirects the eligible ones of `parts`, in place. `None`: make the call unchanged.
    #[must_use]
    pub fn begin(parts: &'a mut [Part], caller: usize) -> Option<Self> {
        if warmup::is_warming_up()
            || recording::is_on() && !may_be_sampled(parts, caller)
            || needs_no_engine(parts)
        {
            return None;
        }
        let first = match &*parts {
            [part] if is_eligible(part) => Some(Judged::new(part, caller)),
            _ => None,
        };
        if let Some(judged) = first
            && judged.is_left_as_usual(parts[0].address)
        {
            judged.record_refusal();
            return None;
        }
        // Checked before the larger stack frames below are entered.
        if stack_room::is_available(stack_room::FOR_COPY_BYTES) {
            Self::redirect(parts, caller, first)
        } else {
            None
        }
    }

    /// `first`: the only part's site, if that is known already.
    #[inline(never)]
    fn redirect(parts: &'a mut [Part], caller: usize, mut first: Option<Judged>) -> Option<Self> {
        HEAP.make_stack_plain();
        let work = Work::begin();
        let section = Section::enter()?;
        release::release_if_memory_low();
        let mut redirected = RedirectedParts::new();
        for (index, part) in parts.iter_mut().enumerate() {
            if !is_eligible(part) {
                continue;
            }
            let judged = first.take().unwrap_or_else(|| Judged::new(part, caller));
            let Some(examined) = Examined::new(judged, part, caller) else { continue };
            let plan = examined.decide();
            if let Some(why_not) = plan.why_not() {
                ledger::record_refusal(examined.site, why_not);
            }
            if matches!(plan, Plan::Leave(_)) {
                continue;
            }
            if !activation::activate() {
                // Parts that were redirected before the engine was told to end are still received.
                break;
            }
            if let Some(input) = examined.execute(plan, part) {
                part.address = input.target.address() + input.lead_bytes;
                redirected.push((index, input));
            }
        }
        if redirected.is_empty() {
            return None;
        }
        let begun_ns = work.took_ns().map(|ns| ns / redirected.len() as i64);
        let progress = InProgress::new(CallResources::Input(redirected));
        Some(Self { section, parts, progress, begun_ns })
    }

    /// Parts for the system call.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        self.parts
    }

    /// Runs the program's system call, outside the critical section.
    pub fn call<T>(&self, call: impl FnOnce(&[Part]) -> T) -> T {
        self.progress.run(|| self.section.run_outside(|| call(self.parts)))
    }

    /// Distributes the bytes that arrived to the program's buffers. `got_bytes`: their number, in order of
    /// the parts; 0 if the call failed.
    pub fn finish(self, got_bytes: usize) {
        let parts = self.parts.len();
        self.finish_messages(&[(parts, got_bytes)]);
    }

    /// Finishes several messages, each given by its number of parts and the number of bytes that arrived.
    pub fn finish_messages(self, messages: &[(usize, usize)]) {
        let Self { section, parts, progress, begun_ns } = self;
        if section.is_outside() {
            progress.end_outside_engine(|held| put_in_buffers(&section, held, parts, messages));
            return;
        }
        let CallResources::Input(redirected) = progress.take() else { return };
        let mut redirected = redirected.into_iter().peekable();
        for (index, len_bytes) in arrivals(parts, messages) {
            if let Some((_, target)) = redirected.next_if(|(at, _)| *at == index) {
                install(&section, target, len_bytes, begun_ns);
            }
        }
    }
}

/// Whether a part has a length of which the engine takes care.
fn is_eligible(part: &Part) -> bool {
    (gate::min_engine_bytes()..=MAX_PART_BYTES).contains(&part.len_bytes)
}

/// The site of a part of an input.
#[derive(Clone, Copy)]
struct Judged {
    account: SiteId,
    /// Reason why no input of this site and size is to become a view; `None`: it may.
    why_not: Option<Field>,
}

impl Judged {
    /// Looks a part's site up. To be done once for each part: it counts.
    fn new(part: &Part, caller: usize) -> Self {
        let account = POLICY.sites.site(SiteKind::Input, caller, part.len_bytes);
        ledger::record_call(account, SiteKind::Input, caller, part.len_bytes);
        Self { account, why_not: reject_reason(account, POLICY.costs.copy_ns(part.len_bytes)) }
    }

    /// Whether the input is received in place because it is not worth it and its buffer is ordinary memory. Takes no
    /// lock: most inputs of most programs end here.
    fn is_left_as_usual(self, address: usize) -> bool {
        let is_special = |at: BlockRef| at.block.has(Flag::REGISTERED.or(Flag::DISOWNED));
        self.why_not.is_some()
            && !(gate::has_registered() && directory::find(address).is_some_and(is_special))
    }

    fn record_refusal(self) {
        ledger::record_refusal(self.account, self.why_not.unwrap_or(Field::Refused));
    }
}

/// A part of an input, and what was found at its buffer.
struct Examined {
    at: BlockRef,
    range: ByteRange,
    site: SiteId,
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
enum Plan {
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
    const fn why_not(self) -> Option<Field> {
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
    fn new(judged: Judged, part: &Part, caller: usize) -> Option<Self> {
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

    fn decide(&self) -> Plan {
        decide(self.why_not, self.open.is_some(), self.is_absent, self.fills)
    }

    /// Finds room for an input that is not received in place. `None`: there is none.
    fn execute(self, plan: Plan, part: &Part) -> Option<Redirected> {
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

/// The index of each part of the call, and the number of bytes that arrived in it.
fn arrivals(parts: &[Part], messages: &[(usize, usize)]) -> impl Iterator<Item = (usize, usize)> {
    let mut next = 0;
    messages.iter().flat_map(move |&(count, got_bytes)| {
        let first = next;
        next += count;
        let fill = |missing: &mut usize, (index, part): (usize, &Part)| {
            let len_bytes = part.len_bytes.min(*missing);
            *missing -= len_bytes;
            Some((index, len_bytes))
        };
        parts.iter().enumerate().skip(first).take(count).scan(got_bytes, fill)
    })
}

/// Copies the bytes that arrived to the program's buffers, without changing page maps.
fn put_in_buffers(section: &Section, held: &CallResources, parts: &[Part], messages: &[(usize, usize)]) {
    let CallResources::Input(redirected) = held else { return };
    for (index, len_bytes) in arrivals(parts, messages) {
        if let Some((_, part)) = redirected.iter().find(|(at, _)| *at == index) {
            let to = part.at.base + part.range.start;
            // SAFETY: the program passed this buffer for an input, so it is writable; the target holds the
            // bytes; no lock is held.
            section.run_outside(|| unsafe {
                bytes::copy(to as *mut u8, (part.target.address() + part.lead_bytes) as *const u8, len_bytes);
            });
        }
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

fn install(section: &Section, part: Redirected, len_bytes: usize, begun_ns: Option<i64>) {
    let work = Work::begin();
    let Redirected { at, range, target, lead_bytes, site, account, allowed } = part;
    POLICY.sites.record_input(account, len_bytes);
    // The cost of filling the draft is charged separately.
    let draft_ns = if let Target::Draft(draft) = &target { draft.cost_ns() } else { 0 };
    let begun_ns = begun_ns.map(|ns| (ns - draft_ns).max(0));
    // Savings of copies are credited to the site that began the segment, so that site pays.
    let payer = if let Target::Open(open) = &target { open.segment.site() } else { site };
    let charge = |known_ns| {
        let took_ns = begun_ns.zip(work.took_ns()).map(|(begun_ns, ns)| begun_ns + ns);
        accounts::debit(payer, call_ns(site, took_ns, known_ns, INPUT_NS));
    };
    let room_bytes = range.len() - len_bytes;
    let range = ByteRange::at(range.start, len_bytes);
    let is_worth_it = len_bytes >= gate::min_engine_bytes() && range.whole_pages().len() > 1;
    let mut dropped = Dropped::new();
    let mut locked = at.lock();
    let (segment, filled_bytes) = match target {
        // A view whatever the site's account says: the input extends a view.
        Target::Open(open) => {
            open.segment.touch();
            (open.segment, lead_bytes + len_bytes)
        }
        Target::Draft(draft) if is_worth_it && allowed && locked.register().is_ok() => {
            // The draft's cost is an investment: the next draft finds these pages in the reservoir. See
            // `PlanResult::moves_ns`.
            accounts::debit(site, draft.cost_ns().min(POLICY.costs.copy_ns(len_bytes) / 2));
            (draft.freeze(site), lead_bytes + len_bytes)
        }
        // Other processes may see the bytes behind the filled ones, so these must not change: such a
        // segment has no open end.
        Target::Shared(draft) if is_worth_it && allowed && locked.register().is_ok() => {
            let filled_bytes = lead_bytes + len_bytes;
            (draft.freeze(filled_bytes).freeze(site), filled_bytes)
        }
        target @ (Target::Draft(_) | Target::Shared(_)) => {
            put_in_buffer(section, locked, target, lead_bytes, range, is_worth_it, &mut dropped);
            ledger::add(site, Field::CopiedBytes, len_bytes as u64);
            recording::spend(POLICY.costs.copy_ns(len_bytes));
            charge(0);
            return;
        }
    };
    let pieces = [Piece::Segment { segment: segment.clone(), offset_bytes: lead_bytes, len_bytes }];
    let source = Source { start: range.start, pieces: &pieces, plain: 0 };
    let mut missing = smallvec::SmallVec::new();
    let mut known_ns = 0;
    // If the mapping changed during the system call, the bytes go to the buffer, which faults like any memory.
    let can_view = locked.register().is_ok();
    if len_bytes > 0 && !can_view {
        missing.push(range);
    } else if len_bytes > 0 {
        let steps =
            with_touched(plan(range.start, &pieces, 1), range.overlapped_pages(), POLICY.pages_to_copy(site));
        // SAFETY: the block is registered and locked; the source is a segment, whose bytes are present
        // while `pieces` holds it.
        let done = unsafe { apply(&mut locked, &source, &steps, site, &mut dropped) };
        books::enter_input(site, payer, len_bytes, &done);
        known_ns = done.known_ns();
        at.set_last_buffer(site, range.overlapped_pages());
        missing = done.missing;
    }
    let open = OpenEnd { segment, filled_bytes, next_address: at.base + range.end };
    // Kept only while the program is likely to ask for the rest; otherwise the room goes back at once.
    let is_own = open.segment.shared().is_none();
    let keeps = can_view && is_own && room_bytes >= gate::min_engine_bytes() && open.has_room();
    let closed = if keeps { locked.exchange_open(Some(open)) } else { Some(open) };
    if let Some(open) = closed {
        open.close();
    }
    drop(locked);
    // SAFETY: the program passed this buffer for an input, so it is writable; `source` holds the segment;
    // no lock is held.
    unsafe { source.fetch_missing(section, &missing, at.base) };
    drop(dropped);
    charge(known_ns);
}

/// Puts received bytes into the buffer itself: by moving pages where it has none, otherwise by copying.
#[allow(clippy::too_many_arguments, reason = "the parts of one redirected input")]
fn put_in_buffer(
    section: &Section,
    mut locked: Locked,
    mut target: Target,
    lead_bytes: usize,
    range: ByteRange,
    moves_pages: bool,
    dropped: &mut Dropped<Segment>,
) {
    if range.is_empty() {
        return;
    }
    let base = locked.at.base;
    let mut moved = Ranges::new();
    if let Target::Draft(draft) = &mut target {
        draft.shorten(lead_bytes + range.len());
        if moves_pages {
            moved = move_in(&mut locked, draft, range, dropped);
        }
    }
    let mut missing = Ranges::new();
    subtract(range, &moved, &mut missing);
    for part in &missing {
        prepare_overwrite(&mut locked, *part, dropped);
    }
    drop(locked);
    section.run_outside(|| {
        for part in &missing {
            let from = target.address() + lead_bytes + (part.start - range.start);
            // SAFETY: the program passed this buffer for an input, so it is writable; the target holds the
            // bytes; no lock is held.
            unsafe { bytes::copy((base + part.start) as *mut u8, from as *const u8, part.len()) };
        }
    });
    counters::add(Counter::CopiedBytes, missing.iter().map(|part| part.len()).sum());
}

/// Moves the draft's pages, or copies of them, into the absent whole pages of `range`. Returns the ranges placed.
fn move_in(
    locked: &mut Locked,
    draft: &mut Draft,
    range: ByteRange,
    dropped: &mut Dropped<Segment>,
) -> Ranges {
    let mut placed_ranges = Ranges::new();
    let whole = range.whole_pages();
    let first_page = (range.start / PAGE_BYTES) as u32;
    let mut page = whole.start;
    while page < whole.end {
        let Some((run, state)) = locked.map().map(|map| map.at(page, PageRange::new(page, whole.end))) else {
            break;
        };
        page = run.end;
        if state == State::Present {
            continue;
        }
        drop(state);
        let from = draft.address() + (run.start - first_page) as usize * PAGE_BYTES;
        let (uffd, destination) = (locked.at.uffd(), locked.at.base + run.start_bytes());
        // SAFETY: the destination is absent and its block locked; the draft is used by this call alone.
        let moved = unsafe { uffd.move_pages(destination, from, run.len_bytes()) }.done_bytes;
        let moved_pages = (moved / PAGE_BYTES) as u32;
        counters::add(Counter::MovedPages, moved_pages as usize);
        draft.record_moved_out(SegmentPages::new(
            run.start - first_page,
            run.start + moved_pages - first_page,
        ));
        // SAFETY: the destination is absent and its block locked; the draft's pages that were not moved are present.
        let copied = unsafe { uffd.copy(destination + moved, from + moved, run.len_bytes() - moved) };
        let placed =
            PageRange::new(run.start, run.start + moved_pages + (copied.done_bytes / PAGE_BYTES) as u32);
        locked.change(|map| map.set_present(placed, dropped));
        placed_ranges.push(ByteRange::from(placed));
    }
    placed_ranges
}

/// Appends the parts of `range` outside `holes`, which are in order, to `rest`.
fn subtract(range: ByteRange, holes: &[ByteRange], rest: &mut Ranges) {
    let mut start = range.start;
    for hole in holes {
        if hole.start > start {
            rest.push(ByteRange { start, end: hole.start });
        }
        start = start.max(hole.end);
    }
    if start < range.end {
        rest.push(ByteRange { start, end: range.end });
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
