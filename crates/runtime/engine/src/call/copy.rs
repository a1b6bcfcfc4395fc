//! Copies between the program's buffers: memcpy and memmove.

use crate::account::work::Work;
use crate::account::{books, sampling};
use crate::arena::segment::Segment;
use crate::background::release;
use crate::range::apply::{Source, apply};
use crate::range::block::{BlockRef, Flag, Locked};
use crate::range::carriers;
use crate::range::directory;
use crate::range::foreign::FOREIGN;
use crate::range::heap::{Allocation, HEAP};
use crate::range::heap_memory::HEAP_MEMORY;
use crate::range::page_in::{make_present, prepare_overwrite};
use crate::state::phase::STATE;
use crate::state::policy::POLICY;
use crate::state::{counters, gate, ledger, recording};
use uncopy_core::addr::ByteRange;
use uncopy_core::ledger::Field;
use uncopy_core::options::Policy;
use uncopy_core::page_map::{Dropped, SiteId};
use uncopy_core::plan::{Piece, Pieces, Steps, elided_bytes, plan, with_touched};
use uncopy_core::policy::SiteKind;
use uncopy_core::policy::sites::CLAIM_NS;
use uncopy_core::policy::trials::catalogue::ELISION;
use uncopy_core::recording::Call;
use uncopy_core::stats::Counter;
use uncopy_sys::bytes;
use uncopy_sys::lock::Critical;
use uncopy_sys::presence::Section;
use uncopy_sys::probes;
use uncopy_sys::stack_room;

/// Shortest view that a copy makes, pages. A patch of one page becomes a view again with the next copy.
const MIN_PAGES: u32 = 1;

/// Copies `len_bytes` bytes as memmove does, eliding where possible. False: nothing was done, and the
/// caller should use an ordinary memmove. `caller` only distinguishes call sites.
///
/// # Safety
/// As for memmove.
pub unsafe fn copy(destination: usize, source: usize, len_bytes: usize, caller: usize) -> bool {
    carriers::record_copy(destination, source, len_bytes);
    if !gate::has_registered() {
        books::enter_bypass(caller, len_bytes, Field::Plain);
        return false;
    }
    let from = directory::find(source).filter(BlockRef::may_have_absent_pages);
    let to = directory::find(destination);
    if from.is_none() && !to.as_ref().is_some_and(BlockRef::may_have_absent_pages) {
        books::enter_bypass(caller, len_bytes, Field::Plain);
        return false;
    }
    // Checked before the larger stack frames below are entered.
    if !stack_room::is_available(stack_room::FOR_COPY_BYTES) {
        return false;
    }
    // SAFETY: the caller promises the requirements of memmove, which `copy_found` has, too.
    unsafe { copy_found(from, to, [destination, source], len_bytes, caller) }
}

/// Copies as [`copy`] does; `from` and `to` are the blocks at source and destination.
#[inline(never)]
unsafe fn copy_found(
    from: Option<BlockRef>,
    to: Option<BlockRef>,
    [destination, source]: [usize; 2],
    len_bytes: usize,
    caller: usize,
) -> bool {
    HEAP.make_stack_plain();
    let Some(section) = Section::enter() else { return false };
    release::release_if_memory_low();
    if !STATE.is_active() {
        return false;
    }
    let from = from.and_then(|at| Some((at, at.range(source, len_bytes)?)));
    let to = to.and_then(|at| Some((at, at.range(destination, len_bytes)?)));
    let overlaps = source.abs_diff(destination) < len_bytes;
    if overlaps && from.is_some() != to.is_some() {
        // One end lies partly outside a foreign range that holds the other: memmove is correct, with faults.
        return false;
    }
    // Taken while no lock is held.
    let stack = from.and_then(|_| sampling::stack());
    match (from, to) {
        (None, None) => false,
        (None, Some((at, range))) => {
            books::enter_bypass(caller, len_bytes, Field::Plain);
            let mut dropped = Dropped::new();
            prepare_overwrite(&mut at.lock(), range, &mut dropped);
            drop(dropped);
            false
        }
        // SAFETY: memmove's caller promises that source and destination are valid for the length.
        (Some((at, range)), None) => unsafe {
            match claim((at, range), destination, len_bytes, caller) {
                // The claim may have joined the source's range with the destination's.
                Some(to) => {
                    match directory::find(source).and_then(|at| Some((at, at.range(source, len_bytes)?))) {
                        Some(from) => {
                            between(&section, &Ends { from, to, destination, source }, caller, stack)
                        }
                        None => false,
                    }
                }
                None => {
                    books::enter_bypass(caller, len_bytes, Field::Refused);
                    gather(&section, at, range, destination, source)
                }
            }
        },
        // SAFETY: memmove's caller promises that source and destination are valid for the length.
        (Some(from), Some(to)) => unsafe {
            between(&section, &Ends { from, to, destination, source }, caller, stack)
        },
    }
}

/// Reason why a copy that could elide `elidable_bytes` is not elided. To be asked once for each call: each
/// time brings the next probe of a site that is switched off nearer.
fn reject_reason(site: SiteId, elidable_bytes: usize, pieces: &[Piece<Segment>]) -> Option<Field> {
    let is_probed = |site| !recording::is_row(site) && POLICY.sites.is_probed(site);
    let is_probed =
        |piece: &Piece<Segment>| matches!(piece, Piece::Segment { segment, .. } if is_probed(segment.site()));
    match POLICY.mode() {
        _ if elidable_bytes == 0 => Some(Field::Plain),
        _ if recording::is_row(site) => None,
        Policy::Always => None,
        Policy::Never => Some(Field::Off),
        Policy::Auto if POLICY.costs.copy_ns(elidable_bytes) <= POLICY.costs.track_ns() => Some(Field::Small),
        Policy::Auto if !POLICY.elides() => Some(Field::Withheld),
        Policy::Auto if POLICY.sites.allows(site, Policy::Auto) => None,
        Policy::Auto => (!pieces.iter().any(is_probed)).then_some(Field::Off),
    }
}

/// Whether eliding is left out because it does not pay, not only for a trial's slice.
fn is_left_out_permanently() -> bool {
    POLICY.mode() == Policy::Auto && POLICY.trial_disables_eliding() && uncopy_trials::is_a_loss(ELISION)
}

/// Whether the reason will hold the next time as well: then see [`place_views`]. For a copy of plain pages only,
/// costs were not considered.
fn is_permanent(why_not: Field, all_plain: bool) -> bool {
    match why_not {
        Field::Off => !all_plain,
        Field::Withheld | Field::Plain => is_left_out_permanently(),
        _ => false,
    }
}

/// Longest block that is made plain as a whole, bytes: other threads wait for its lock meanwhile.
const MAX_PLAIN_BYTES: usize = 4 << 20;

/// Places the bytes of a range that was copied again and again without being elided. While eliding is left
/// out for good the whole block is made plain, so that copying it needs no engine; but not a foreign range,
/// whose changes must not be read meanwhile (`changes`).
fn place_views(locked: &mut Locked, range: ByteRange, dropped: &mut Dropped<Segment>) {
    if is_left_out_permanently() && locked.at.slot.is_none() && locked.at.bytes() <= MAX_PLAIN_BYTES {
        locked.make_plain(dropped);
    } else {
        make_present(locked, range.overlapped_pages(), dropped);
    }
}

/// Claims memory outside the heap as a foreign range, for a view that the copy can make, if that may pay.
fn claim(
    (from, range): (BlockRef, ByteRange),
    destination: usize,
    len_bytes: usize,
    caller: usize,
) -> Option<(BlockRef, ByteRange)> {
    if !FOREIGN.is_on() || carriers::will_be_replaced(destination) {
        return None;
    }
    let pays = match POLICY.mode() {
        _ if recording::is_on() => sampling::contain_sampled(&from.lock().pieces(range)),
        Policy::Always => true,
        Policy::Never => false,
        Policy::Auto => {
            POLICY.costs.copy_ns(len_bytes) > POLICY.costs.track_ns()
                && POLICY.elides()
                && POLICY.sites.allows(POLICY.sites.site(SiteKind::Copy, caller, len_bytes), Policy::Auto)
        }
    };
    // Claiming opens a file, which a cancelled thread must not do in a section that holds locks.
    let _critical = pays.then(Critical::enter)?;
    recording::spend(CLAIM_NS);
    let at = FOREIGN.claim(destination, len_bytes)?;
    Some((at, at.range(destination, len_bytes)?))
}

const fn is_plain(piece: &Piece<Segment>) -> bool {
    matches!(piece, Piece::Plain { .. })
}

/// Copies from a block to memory that holds no views, directly from the segments.
///
/// # Safety
/// As for memmove; the destination must not overlap the block.
unsafe fn gather(
    section: &Section,
    at: BlockRef,
    range: ByteRange,
    destination: usize,
    source: usize,
) -> bool {
    let mut dropped = Dropped::new();
    let mut locked = at.lock();
    let pieces = locked.pieces(range);
    let all_plain = pieces.iter().all(is_plain);
    // Memory that holds no views will hold none the next time either.
    let is_permanent = if all_plain { is_left_out_permanently() } else { POLICY.mode() == Policy::Auto };
    if is_permanent && !recording::is_on() && at.block.count_copy() {
        place_views(&mut locked, range, &mut dropped);
    }
    if all_plain {
        return false;
    }
    drop(locked);
    drop(dropped);
    // No lock is held, since the destination may fault. The pieces keep the segments alive.
    section.run_outside(|| {
        let all = Source { start: range.start, pieces: &pieces, plain: source };
        // SAFETY: memmove's caller promises that source and destination are valid for the length.
        unsafe { all.fetch(range, destination) };
    });
    counters::add(Counter::CopiedBytes, range.len());
    true
}

/// Locks two blocks in the order of locks, or one if they are the same.
fn lock_both(from: BlockRef, to: BlockRef) -> (Option<Locked>, Locked) {
    if from.is(&to) {
        (None, to.lock())
    } else if from.comes_before(&to) {
        let from = from.lock();
        (Some(from), to.lock())
    } else {
        let to = to.lock();
        (Some(from.lock()), to)
    }
}

struct Ends {
    from: (BlockRef, ByteRange),
    to: (BlockRef, ByteRange),
    destination: usize,
    source: usize,
}

/// Steps that elide a copy of these pieces, and the number of bytes elided.
#[inline(always)]
fn decide(pieces: &Pieces<Segment>, to_range: ByteRange, site: SiteId) -> (Steps<Segment>, usize) {
    let mut steps = plan(to_range.start, pieces, MIN_PAGES);
    let mut elidable_bytes = elided_bytes(&steps);
    if elidable_bytes > 0 {
        steps = with_touched(steps, to_range.overlapped_pages(), POLICY.pages_to_copy(site));
        elidable_bytes = elided_bytes(&steps);
    }
    (steps, elidable_bytes)
}

/// Prepares the blocks, still locked, for a copy that is not elided because of `why_not`.
#[inline(never)]
fn prepare_plain_copy(
    Ends { from: (from, from_range), to: (to, to_range), .. }: &Ends,
    (from_locked, to_locked): (Option<&mut Locked>, &mut Locked),
    (overlaps, all_plain): (bool, bool),
    why_not: Field,
    dropped: &mut Dropped<Segment>,
) {
    if !all_plain {
        to.block.set(Flag::UNTRIED);
    }
    if overlaps {
        let start = from_range.start.min(to_range.start);
        let union = ByteRange { start, end: from_range.end.max(to_range.end) };
        make_present(to_locked, union.overlapped_pages(), dropped);
    } else {
        prepare_overwrite(to_locked, *to_range, dropped);
    }
    if let Some(from_locked) = from_locked.filter(|_| is_permanent(why_not, all_plain))
        && from.block.count_copy()
    {
        place_views(from_locked, *from_range, dropped);
    }
}

/// Copies between two blocks, or within one.
///
/// # Safety
/// As for memmove.
unsafe fn between(section: &Section, ends: &Ends, caller: usize, stack: Option<u32>) -> bool {
    let Ends { from: (from, from_range), to: (to, to_range), destination, source } = *ends;
    let work = Work::begin();
    let overlaps = source.abs_diff(destination) < from_range.len();
    if !from.is(&to) && (overlaps || from.shares_record(&to)) {
        // One of them is a foreign range that was just replaced by the other; its bytes were placed.
        return false;
    }
    let len_bytes = from_range.len();
    let mut site = POLICY.sites.site(SiteKind::Copy, caller, len_bytes);
    ledger::record_call(site, SiteKind::Copy, caller, len_bytes);
    let mut dropped = Dropped::new();
    let (mut from_locked, mut to_locked) = lock_both(from, to);
    let pieces = from_locked.as_ref().unwrap_or(&to_locked).pieces(from_range);
    if let Some(stack) = stack.filter(|_| sampling::contain_sampled(&pieces)) {
        site = sampling::site(stack, Call::Copy);
    }
    let (steps, elidable_bytes) = decide(&pieces, to_range, site);
    // Within one block the alternative is to place every view first, which costs more than tracking.
    let must_elide = overlaps && elidable_bytes > len_bytes / 2;
    let why_not = reject_reason(site, elidable_bytes, &pieces)
        .filter(|_| !must_elide)
        .or_else(|| to_locked.register().is_err().then_some(Field::Refused));
    if let Some(why_not) = why_not {
        ledger::record_refusal(site, why_not);
        recording::spend(POLICY.costs.track_ns());
        let all_plain = pieces.iter().all(is_plain);
        let locked = (from_locked.as_mut(), &mut to_locked);
        prepare_plain_copy(ends, locked, (overlaps, all_plain), why_not, &mut dropped);
        drop((from_locked, to_locked));
        drop(dropped);
        if all_plain || overlaps {
            return false;
        }
        section.run_outside(|| {
            let all = Source { start: from_range.start, pieces: &pieces, plain: source };
            // SAFETY: memmove's caller promises that both ends are valid; no lock is held.
            unsafe { all.fetch(from_range, destination) };
        });
        counters::add(Counter::CopiedBytes, len_bytes);
        ledger::add(site, Field::CopiedBytes, len_bytes as u64);
        return true;
    }
    let staged = overlaps.then(|| stage(to_range.start, &pieces, source));
    if let Some(None) = staged {
        // No memory for staging: memmove does the copy, with faults.
        make_present(&mut to_locked, to_range.overlapped_pages(), &mut dropped);
        make_present(&mut to_locked, from_range.overlapped_pages(), &mut dropped);
        drop((from_locked, to_locked));
        drop(dropped);
        return false;
    }
    let staged = staged.flatten();
    let all = Source { start: to_range.start, pieces: staged.as_ref().unwrap_or(&pieces), plain: source };
    // SAFETY: memmove's caller promises that both ends are valid; both blocks are locked and the destination is
    // registered. Plain bytes of the source are copied, never viewed, so the steps hold for the staged pieces, too.
    let done = unsafe { apply(&mut to_locked, &all, &steps, site, &mut dropped) };
    to_locked.at.set_last_buffer(site, to_range.overlapped_pages());
    from.block.forget_copies();
    drop((from_locked, to_locked));
    // SAFETY: memmove's caller promises that both ends are valid; no lock is held.
    unsafe { all.fetch_missing(section, &done.missing, to.base) };
    drop(dropped);
    books::enter_copy(site, &pieces, &done, work);
    if done.elided_bytes > 0 {
        probes::elided_copy(destination, source, len_bytes, done.elided_bytes);
    }
    true
}

/// Returns the pieces of an overlapping move with the plain bytes, which the move could overwrite, saved in
/// a segment. `None` if there is no memory.
fn stage(start: usize, pieces: &Pieces<Segment>, plain: usize) -> Option<Pieces<Segment>> {
    let plain_bytes: usize = pieces.iter().filter(|piece| is_plain(piece)).map(Piece::len_bytes).sum();
    if plain_bytes == 0 {
        return Some(pieces.clone());
    }
    let draft = crate::arena::segment::Draft::new(plain_bytes).ok()?;
    let all = Source { start, pieces, plain };
    let mut at = start;
    let mut filled = 0;
    for piece in pieces {
        let range = ByteRange::at(at, piece.len_bytes());
        at = range.end;
        if is_plain(piece) {
            // SAFETY: the draft is long enough and used by this call alone; the source's plain pages are
            // present, under the block's lock.
            unsafe { all.fetch(range, draft.address() + filled) };
            filled += range.len();
        }
    }
    let segment = draft.freeze(0);
    let mut offset_bytes = 0;
    let staged = pieces.iter().map(|piece| match piece {
        Piece::Plain { len_bytes } => {
            let staged = Piece::Segment { segment: segment.clone(), offset_bytes, len_bytes: *len_bytes };
            offset_bytes += len_bytes;
            staged
        }
        other => other.clone(),
    });
    Some(staged.collect())
}

/// Call site under which a realloc's copy is entered: one for each size of blocks, because the caller of
/// realloc says little about the later use of the bytes.
const fn realloc_site(to: &BlockRef) -> usize {
    to.pages as usize
}

/// Moves the first `len_bytes` bytes of a block, or as many as it has, to another block, for realloc.
///
/// A new block without pages gets the old block's pages. A new block with pages is written to, and the old
/// block keeps its pages, which its next owner would have to fault in again.
///
/// # Safety
/// The program must own both blocks and use neither during the call.
pub unsafe fn transfer(from: BlockRef, to: Allocation, len_bytes: usize) {
    if to.is_zero && HEAP.relocate(from, to.at) {
        return;
    }
    let (is_bare, to) = (to.is_zero, to.at);
    let len_bytes = len_bytes.min(from.room_bytes()).min(to.room_bytes());
    // SAFETY: the caller promises that the program owns both blocks and uses neither meanwhile; lengths are
    // within both, and blocks do not overlap.
    unsafe {
        if !copy(to.start(), from.start(), len_bytes, realloc_site(&to)) {
            if is_bare && !to.block.has(Flag::REGISTERED) {
                // One call instead of a fault for every page. After a refusal the pages fault.
                let _ = HEAP_MEMORY.populate(to.base, to.block.lead_bytes() + len_bytes);
            }
            bytes::copy(to.start() as *mut u8, from.start() as *const u8, len_bytes);
        }
    }
}
