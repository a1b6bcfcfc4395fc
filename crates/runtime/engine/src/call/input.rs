//! Inputs: received from the kernel into a fresh segment, of which the buffer becomes a view.

use crate::account::work::{Work, call_ns};
use crate::account::{accounts, books};
use crate::arena::segment::{Draft, OpenEnd, Segment};
use crate::background::{activation, release};
use crate::call::examined::{Examined, Judged, Plan, is_eligible, needs_no_engine};
use crate::call::in_flight::{CallResources, InProgress, RedirectedParts};
use crate::call::redirected::{Redirected, Target};
use crate::range::apply::{Source, apply};
use crate::range::block::Locked;
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
use uncopy_core::page_map::{Dropped, State};
use uncopy_core::plan::{Piece, plan, with_touched};
use uncopy_core::policy::SiteKind;
use uncopy_core::policy::sites::INPUT_NS;
use uncopy_core::stats::Counter;
use uncopy_sys::bytes;
pub use uncopy_sys::iovec::Part;
use uncopy_sys::presence::Section;
use uncopy_sys::stack_room;

/// Most parts of a scattered input; calls with more go to libc unchanged.
pub const MAX_PARTS: usize = 64;

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
