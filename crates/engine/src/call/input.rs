//! What comes from the kernel: received into a fresh segment, of which the buffer becomes a view.

use crate::account::work::{Work, call_ns};
use crate::account::{accounts, books, sampling};
use crate::arena::segment::{Draft, Open, Segment, take_shared};
use crate::call::in_flight::{Held, InProgress, RedirectedParts};
use crate::call::redirected::{Redirected, Target};
use crate::range::apply::{Source, apply};
use crate::range::block::{BlockRef, Flag, Locked};
use crate::range::carrying;
use crate::range::directory;
use crate::range::foreign::FOREIGN;
use crate::range::heap::HEAP;
use crate::range::page_in::prepare_overwrite;
use crate::service::{activation, release};
use crate::state::gate::is_in_heap;
use crate::state::policy::POLICY;
use crate::state::{counters, early, gate, ledger, recording};
use uncopy_core::addr::{ByteRange, PAGE_BYTES, PageRange, SegmentPages};
use uncopy_core::ledger::Field;
use uncopy_core::options::Policy;
use uncopy_core::page_map::{Dropped, SiteId, State};
use uncopy_core::plan::{Piece, plan, with_touched};
use uncopy_core::policy::Kind;
use uncopy_core::policy::sites::{CLAIM_NS, INPUT_NS};
use uncopy_core::recording::Call;
use uncopy_core::stats::Counter;
use uncopy_sys::bytes;
pub use uncopy_sys::iovec::Part;
use uncopy_sys::lock::Critical;
use uncopy_sys::presence::Section;
use uncopy_sys::stack_room;

/// Parts of a scattered input at most; calls with more go to libc as they are.
pub const MAX_PARTS: usize = 64;
/// Longest part received into a segment, bytes.
pub(super) const MAX_PART_BYTES: usize = 64 << 20;

type Ranges = smallvec::SmallVec<[ByteRange; 4]>;

/// Whether an input into these parts is worth a closer look: cheap, no lock.
#[must_use]
pub fn is_candidate(parts: &[Part]) -> bool {
    let min_bytes = gate::min_size_bytes();
    parts.len() <= MAX_PARTS
        && parts
            .iter()
            .any(|part| part.len_bytes >= min_bytes && (is_in_heap(part.address) || FOREIGN.is_on()))
}

/// Whether an input into these parts has to be looked at: it is sampled, or goes where pages are absent. Asked once for each
/// call.
fn may_be_sampled(parts: &[Part], caller: usize) -> bool {
    if POLICY.is_set_to(Policy::Always) {
        return true;
    }
    let min_bytes = gate::min_size_bytes();
    parts.iter().filter(|part| part.len_bytes >= min_bytes).fold(false, |concerned, part| {
        let site = POLICY.sites.site(Kind::Input, caller, part.len_bytes);
        let is_due = POLICY.sampling.is_due(site);
        concerned | is_due | directory::find(part.address).is_some_and(|at| at.may_have_absent_pages())
    })
}

/// Inputs that have been redirected; to be finished with the number of bytes that arrived.
pub struct Input<'a> {
    parts: &'a mut [Part],
    progress: InProgress,
    /// What it took until the call for each part, ns.
    begun_ns: Option<i64>,
    /// Last, so that everything else is dropped while no handler of the program can run.
    section: Section,
}

impl<'a> Input<'a> {
    /// Redirects those of `parts` that are worth it, in place. `None`: make the call unchanged.
    #[must_use]
    pub fn begin(parts: &'a mut [Part], caller: usize) -> Option<Self> {
        if early::is_early() || recording::is_on() && !may_be_sampled(parts, caller) || is_withheld(parts) {
            return None;
        }
        // Before the frames of what follows are made.
        if stack_room::is_left(stack_room::FOR_ONE) { Self::redirect(parts, caller) } else { None }
    }

    #[inline(never)]
    fn redirect(parts: &'a mut [Part], caller: usize) -> Option<Self> {
        HEAP.leave_stack_alone();
        let work = Work::begin();
        let section = Section::enter()?;
        release::release_if_low();
        let mut redirected = RedirectedParts::new();
        for (index, part) in parts.iter_mut().enumerate() {
            if part.len_bytes < gate::min_size_bytes() || part.len_bytes > MAX_PART_BYTES {
                continue;
            }
            let account = POLICY.sites.site(Kind::Input, caller, part.len_bytes);
            let mut site = account;
            ledger::call(site, Kind::Input, caller, part.len_bytes);
            let why_not = reject_reason(site, POLICY.costs.copy_ns(part.len_bytes));
            let allowed = why_not.is_none();
            let found = directory::find(part.address)
                .and_then(|at| Some((at, at.range(part.address, part.len_bytes)?)));
            let claimed = match found {
                None if allowed && carrying::may_claim(caller) => claim(site, part),
                found => found,
            };
            let Some((at, range)) = claimed else {
                ledger::refused(site, why_not.unwrap_or(Field::Refused));
                continue;
            };
            if at.block.has(Flag::DISOWNED) {
                // What may be stored there is the program's and the kernel's to know.
                ledger::refused(site, Field::Refused);
                continue;
            }
            // Receiving into absent pages would fault page by page, allowed or not; those that are not filled may stay so.
            let (open, absent) = survey(at, range, part, POLICY.sites.likely_bytes(account, part.len_bytes));
            // What goes on with a view is part of it, whatever inputs of this size are worth by themselves.
            let allowed = allowed || open.is_some();
            // What goes on with a sample is one.
            if let Some(stack) = allowed.then(sampling::stack).flatten() {
                site = sampling::site(stack, Call::Input);
            }
            if let Some(why_not) = why_not.filter(|_| !allowed) {
                ledger::refused(site, why_not);
                if !absent {
                    continue;
                }
            }
            if !activation::activate() {
                // What was redirected before it was told to end is received all the same.
                break;
            }
            let (target, lead_bytes) = if let Some(open) = open {
                let filled_bytes = open.filled_bytes;
                (Target::Open(open), filled_bytes)
            } else if !POLICY.sites.fills(account, part.len_bytes) {
                ledger::refused(site, Field::Roomy);
                continue;
            } else {
                let lead_bytes = range.start % PAGE_BYTES;
                let len_bytes = lead_bytes + part.len_bytes;
                let shared = if allowed && POLICY.sites.leaves_by_lane(account) {
                    take_shared(len_bytes)
                } else {
                    None
                };
                let target =
                    shared.map(Target::Shared).or_else(|| Draft::new(len_bytes).ok().map(Target::Draft));
                let Some(target) = target else {
                    counters::add(Counter::Fallbacks, 1);
                    ledger::refused(site, Field::Refused);
                    continue;
                };
                (target, lead_bytes)
            };
            part.address = target.address() + lead_bytes;
            redirected.push((index, Redirected { at, range, target, lead_bytes, site, account, allowed }));
        }
        if redirected.is_empty() {
            return None;
        }
        let begun_ns = work.took_ns().map(|ns| ns / redirected.len() as i64);
        let progress = InProgress::new(Held::Input(redirected));
        Some(Self { section, parts, progress, begun_ns })
    }

    /// The parts as the system call should see them.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        self.parts
    }

    /// Runs the program's system call, signals unblocked.
    pub fn call<T>(&self, call: impl FnOnce(&[Part]) -> T) -> T {
        self.progress.run(|| self.section.leave_for(|| call(self.parts)))
    }

    /// Puts what arrived (`got_bytes` in all, in order of the parts; 0 if the call failed) where the
    /// program expects it.
    pub fn finish(self, got_bytes: usize) {
        let parts = self.parts.len();
        self.finish_messages(&[(parts, got_bytes)]);
    }

    /// The same for several messages: for each, its number of parts and what arrived in them.
    pub fn finish_messages(self, messages: &[(usize, usize)]) {
        let Self { section, parts, progress, begun_ns } = self;
        if section.is_outside() {
            progress.leave(|held| put_in_buffers(&section, held, parts, messages));
            return;
        }
        let Held::Input(redirected) = progress.take() else { return };
        let mut redirected = redirected.into_iter().peekable();
        for (index, len_bytes) in arrivals(parts, messages) {
            if let Some((_, target)) = redirected.next_if(|(at, _)| *at == index) {
                install(&section, target, len_bytes, begun_ns);
            }
        }
    }
}

/// The index of each part that a call was made with, and what arrived in it.
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

/// Copies what arrived to the program's buffers and leaves all else as it is.
fn put_in_buffers(section: &Section, held: &Held, parts: &[Part], messages: &[(usize, usize)]) {
    let Held::Input(redirected) = held else { return };
    for (index, len_bytes) in arrivals(parts, messages) {
        if let Some((_, part)) = redirected.iter().find(|(at, _)| *at == index) {
            let to = part.at.base + part.range.start;
            // SAFETY: the program gave this buffer to an input; no lock is held.
            section.leave_for(|| unsafe {
                bytes::copy(to as *mut u8, (part.target.address() + part.lead_bytes) as *const u8, len_bytes);
            });
        }
    }
}

/// Makes a buffer outside the heap a foreign range.
pub(super) fn claim(site: SiteId, part: &Part) -> Option<(BlockRef, ByteRange)> {
    if !FOREIGN.is_on() || is_in_heap(part.address) || carrying::will_be_replaced(part.address) {
        return None;
    }
    // It opens a file, which a cancelled thread may not do in a section that holds locks.
    let _critical = Critical::enter();
    if !activation::activate() {
        return None;
    }
    accounts::debit(site, CLAIM_NS);
    let at = FOREIGN.claim(part.address, part.len_bytes)?;
    Some((at, at.range(part.address, part.len_bytes)?))
}

/// Why an input is not to become a view that saves so much at most.
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

/// Whether nothing is to be done for an input into these parts: nothing is elided, and none has absent pages.
pub(super) fn is_withheld(parts: &[Part]) -> bool {
    let has_absent = |part: &Part| directory::find(part.address).is_some_and(|at| at.may_have_absent_pages());
    POLICY.mode() == Policy::Auto && !POLICY.elides() && !parts.iter().any(has_absent)
}

/// The open end that an input into this part goes on with, and whether pages of its first `likely_bytes` bytes are absent.
/// An open end that it does not go on with is closed.
fn survey(at: BlockRef, range: ByteRange, part: &Part, likely_bytes: usize) -> (Option<Open>, bool) {
    let likely = ByteRange::at(range.start, likely_bytes.min(range.len()));
    if !at.block.has(Flag::REGISTERED) {
        return (None, false);
    }
    let mut locked = at.lock();
    let absent = locked.map().is_some_and(|map| !map.is_present(likely.touched_pages()));
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
    // What filling the draft cost is charged by itself.
    let draft_ns = if let Target::Draft(draft) = &target { draft.cost_ns() } else { 0 };
    let begun_ns = begun_ns.map(|ns| (ns - draft_ns).max(0));
    // What copies save is credited to whoever began the segment, so that is who pays.
    let payer = if let Target::Open(open) = &target { open.segment.site() } else { site };
    let charge = |known_ns| {
        let took_ns = begun_ns.zip(work.took_ns()).map(|(begun_ns, ns)| begun_ns + ns);
        accounts::debit(payer, call_ns(site, took_ns, known_ns, INPUT_NS));
    };
    let room_bytes = range.len() - len_bytes;
    let range = ByteRange::at(range.start, len_bytes);
    let is_worth_it = len_bytes >= gate::min_size_bytes() && range.whole_pages().len() > 1;
    let mut dropped = Dropped::new();
    let mut locked = at.lock();
    let (segment, filled_bytes) = match target {
        // A view whatever the site's account says: what it goes on with is one already.
        Target::Open(open) => {
            open.segment.touch();
            (open.segment, lead_bytes + len_bytes)
        }
        Target::Draft(draft) if is_worth_it && allowed && locked.register().is_ok() => {
            // An investment: the next draft finds these pages in the reservoir. See `Done::moves_ns`.
            accounts::debit(site, draft.cost_ns().min(POLICY.costs.copy_ns(len_bytes) / 2));
            (draft.freeze(site), lead_bytes + len_bytes)
        }
        // Others may be shown what lies behind its filled bytes, which never changes either: nothing goes on there.
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
    // Disowned while the system call ran: the bytes go to the buffer, which faults like any memory.
    let can_view = locked.register().is_ok();
    if len_bytes > 0 && !can_view {
        missing.push(range);
    } else if len_bytes > 0 {
        let steps = with_touched(plan(range.start, &pieces, 1), range.touched_pages(), POLICY.to_copy(site));
        // SAFETY: the block is registered and locked; the segment is present and not in the heap.
        let done = unsafe { apply(&mut locked, &source, &steps, site, &mut dropped) };
        books::enter_input(site, payer, len_bytes, &done);
        known_ns = done.known_ns();
        at.note_buffer(site, range.touched_pages());
        missing = done.missing;
    }
    let open = Open { segment, filled_bytes, next_address: at.base + range.end };
    // Kept only while the program is likely to ask for the rest; else its room goes back at once.
    let is_own = open.segment.shared().is_none();
    let keeps = can_view && is_own && room_bytes >= gate::min_size_bytes() && open.has_place();
    let closed = if keeps { locked.exchange_open(Some(open)) } else { Some(open) };
    if let Some(open) = closed {
        open.close();
    }
    drop(locked);
    // SAFETY: the program gave this buffer to an input; no lock is held.
    unsafe { source.fetch_missing(section, &missing, at.base) };
    drop(dropped);
    charge(known_ns);
}

/// Puts what was received into the buffer itself: by moving pages where it has none, else by copying.
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
    section.leave_for(|| {
        for part in &missing {
            let from = target.address() + lead_bytes + (part.start - range.start);
            // SAFETY: the program gave this buffer to an input; no lock is held.
            unsafe { bytes::copy((base + part.start) as *mut u8, from as *const u8, part.len()) };
        }
    });
    counters::add(Counter::CopiedBytes, missing.iter().map(|part| part.len()).sum());
}

/// Moves the draft's pages, or copies of them, into those whole pages of `range` that are absent. Returns the ranges whose bytes
/// are in place then.
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
        // SAFETY: the destination is absent and locked, the draft ours alone.
        let moved = unsafe { uffd.move_pages(destination, from, run.len_bytes()) }.done_bytes;
        let moved_pages = (moved / PAGE_BYTES) as u32;
        counters::add(Counter::MovedPages, moved_pages as usize);
        draft.moved_out(SegmentPages::new(run.start - first_page, run.start + moved_pages - first_page));
        // SAFETY: as above; the draft's other pages are present.
        let copied = unsafe { uffd.copy(destination + moved, from + moved, run.len_bytes() - moved) };
        let placed =
            PageRange::new(run.start, run.start + moved_pages + (copied.done_bytes / PAGE_BYTES) as u32);
        locked.change(|map| map.set_present(placed, dropped));
        placed_ranges.push(ByteRange::from(placed));
    }
    placed_ranges
}

/// `range` without `holes` (in order).
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
