//! memcpy and memmove between the program's buffers.

use crate::account::work::Work;
use crate::account::{books, sampling};
use crate::arena::segment::Segment;
use crate::range::apply::{Source, apply};
use crate::range::block::{BlockRef, Flag, Locked};
use crate::range::carrying;
use crate::range::directory;
use crate::range::foreign::FOREIGN;
use crate::range::heap::{Allocation, HEAP};
use crate::range::heap_memory::HEAP_MEMORY;
use crate::range::page_in::{make_present, prepare_overwrite};
use crate::service::release;
use crate::state::phase::STATE;
use crate::state::policy::POLICY;
use crate::state::{counters, ledger, recording};
use uncopy_core::addr::ByteRange;
use uncopy_core::ledger::Field;
use uncopy_core::options::Policy;
use uncopy_core::page_map::{Dropped, SiteId};
use uncopy_core::plan::{Piece, Pieces, elided_bytes, plan, with_touched};
use uncopy_core::policy::Kind;
use uncopy_core::policy::sites::CLAIM_NS;
use uncopy_core::policy::trials::catalogue::ELISION;
use uncopy_core::recording::Call;
use uncopy_core::stats::Counter;
use uncopy_sys::bytes;
use uncopy_sys::lock::Critical;
use uncopy_sys::presence::Section;
use uncopy_sys::stack_room;

/// Shortest view that a copy makes, pages. A patch of one page is viewed on by the next copy.
const MIN_PAGES: u32 = 1;

/// Copies `len_bytes` bytes as memmove does, eliding what it can. False: nothing was done, and an
/// ordinary memmove is the right thing.
///
/// # Safety
/// As for memmove. `caller` is only used to tell call sites apart.
pub unsafe fn copy(destination: usize, source: usize, len_bytes: usize, caller: usize) -> bool {
    carrying::copied(destination, source, len_bytes);
    let from = directory::find(source).filter(BlockRef::may_have_absent_pages);
    let to = directory::find(destination);
    if from.is_none() && !to.as_ref().is_some_and(BlockRef::may_have_absent_pages) {
        books::enter_bypass(caller, len_bytes, Field::Plain);
        return false;
    }
    // Before the frames of what follows are made.
    if !stack_room::is_left(stack_room::FOR_ONE) {
        return false;
    }
    // SAFETY: as for memmove, says the caller.
    unsafe { copy_found(from, to, [destination, source], len_bytes, caller) }
}

/// The same; `from` and `to` are what was found there.
#[inline(never)]
unsafe fn copy_found(
    from: Option<BlockRef>,
    to: Option<BlockRef>,
    [destination, source]: [usize; 2],
    len_bytes: usize,
    caller: usize,
) -> bool {
    HEAP.leave_stack_alone();
    let Some(section) = Section::enter() else { return false };
    release::release_if_low();
    if !STATE.is_active() {
        return false;
    }
    let from = from.and_then(|at| Some((at, at.range(source, len_bytes)?)));
    let to = to.and_then(|at| Some((at, at.range(destination, len_bytes)?)));
    let overlaps = source.abs_diff(destination) < len_bytes;
    if overlaps && from.is_some() != to.is_some() {
        // One end reaches out of a foreign range that holds the other: memmove finds its way by faults.
        return false;
    }
    // Read while no lock is held.
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
        // SAFETY: source and destination are valid for the length, as memmove's caller promises.
        (Some((at, range)), None) => unsafe {
            match claim((at, range), destination, len_bytes, caller) {
                // The claim may have joined the source's range with the destination's.
                Some(to) => {
                    match directory::find(source).and_then(|at| Some((at, at.range(source, len_bytes)?))) {
                        Some(from) => between(&section, from, to, destination, source, caller, stack),
                        None => false,
                    }
                }
                None => {
                    books::enter_bypass(caller, len_bytes, Field::Refused);
                    gather(&section, at, range, destination, source)
                }
            }
        },
        // SAFETY: source and destination are valid for the length, as memmove's caller promises.
        (Some(from), Some(to)) => unsafe { between(&section, from, to, destination, source, caller, stack) },
    }
}

/// Why a copy that could elide so many bytes does not. Asked once for each call: it brings the next probe of
/// a site that is switched off nearer.
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

/// Whether what was not elided for this reason will not be the next time either: then views that are copied again and
/// again are put in place, where copying them needs nothing of ours.
fn is_for_good(why_not: Field) -> bool {
    match why_not {
        Field::Off => true,
        Field::Withheld => uncopy_trials::is_a_loss(ELISION),
        _ => false,
    }
}

/// Makes memory outside the heap a foreign range that the copy can make a view in, if that may pay.
fn claim(
    (from, range): (BlockRef, ByteRange),
    destination: usize,
    len_bytes: usize,
    caller: usize,
) -> Option<(BlockRef, ByteRange)> {
    if !FOREIGN.is_on() || carrying::will_be_replaced(destination) {
        return None;
    }
    let pays = match POLICY.mode() {
        _ if recording::is_on() => sampling::have_sampled(&from.lock().pieces(range)),
        Policy::Always => true,
        Policy::Never => false,
        Policy::Auto => {
            POLICY.costs.copy_ns(len_bytes) > POLICY.costs.track_ns()
                && POLICY.elides()
                && POLICY.sites.allows(POLICY.sites.site(Kind::Copy, caller, len_bytes), Policy::Auto)
        }
    };
    // It opens a file, which a cancelled thread may not do in a section that holds locks.
    let _critical = pays.then(Critical::enter)?;
    recording::spend(CLAIM_NS);
    let at = FOREIGN.claim(destination, len_bytes)?;
    Some((at, at.range(destination, len_bytes)?))
}

/// Whether a piece is the block's own memory, and no view.
const fn is_plain(piece: &Piece<Segment>) -> bool {
    matches!(piece, Piece::Plain { .. })
}

/// Copies from a block to memory that holds no views, straight from the segments.
///
/// # Safety
/// As for memmove; the destination does not overlap the block.
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
    if pieces.iter().all(is_plain) {
        return false;
    }
    // Memory that holds no views holds none the next time either: views that are copied to it again and again are put in place.
    if POLICY.mode() == Policy::Auto && !recording::is_on() && at.block.count_copy() {
        make_present(&mut locked, range.touched_pages(), &mut dropped);
    }
    drop(locked);
    drop(dropped);
    // No lock is held: the destination may fault. The pieces keep the segments alive.
    section.leave_for(|| {
        let all = Source { start: range.start, pieces: &pieces, plain: source };
        // SAFETY: source and destination are valid for the length, as memmove's caller promises.
        unsafe { all.fetch(range, destination) };
    });
    counters::add(Counter::CopiedBytes, range.len());
    true
}

/// Locks two blocks, the heap's before foreign ranges, in order of address or slot; one if they are the same.
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

/// Copies between blocks.
///
/// # Safety
/// As for memmove.
#[allow(clippy::too_many_arguments, reason = "both ends of one copy, and who makes it")]
unsafe fn between(
    section: &Section,
    (from, from_range): (BlockRef, ByteRange),
    (to, to_range): (BlockRef, ByteRange),
    destination: usize,
    source: usize,
    caller: usize,
    stack: Option<u32>,
) -> bool {
    let work = Work::begin();
    let overlaps = source.abs_diff(destination) < from_range.len();
    if !from.is(&to) && (overlaps || from.shares_record(&to)) {
        // One of them is a foreign range that has just given way to the other: what it held is in place.
        return false;
    }
    let len_bytes = from_range.len();
    let mut site = POLICY.sites.site(Kind::Copy, caller, len_bytes);
    ledger::call(site, Kind::Copy, caller, len_bytes);
    let mut dropped = Dropped::new();
    let (mut from_locked, mut to_locked) = lock_both(from, to);
    let pieces = from_locked.as_ref().unwrap_or(&to_locked).pieces(from_range);
    if let Some(stack) = stack.filter(|_| sampling::have_sampled(&pieces)) {
        site = sampling::site(stack, Call::Copy);
    }
    let mut steps = plan(to_range.start, &pieces, MIN_PAGES);
    let mut elidable_bytes = elided_bytes(&steps);
    if elidable_bytes > 0 {
        steps = with_touched(steps, to_range.touched_pages(), POLICY.to_copy(site));
        elidable_bytes = elided_bytes(&steps);
    }
    // Within one block the alternative is to put every view in place first, which costs more than tracking.
    let must_shift = overlaps && elidable_bytes > len_bytes / 2;
    let why_not = reject_reason(site, elidable_bytes, &pieces)
        .filter(|_| !must_shift)
        .or_else(|| to_locked.register().is_err().then_some(Field::Refused));
    if let Some(why_not) = why_not {
        ledger::refused(site, why_not);
        recording::spend(POLICY.costs.track_ns());
        let all_plain = pieces.iter().all(is_plain);
        if !all_plain {
            to.block.set(Flag::UNTRIED);
        }
        if overlaps {
            let union = ByteRange {
                start: from_range.start.min(to_range.start),
                end: from_range.end.max(to_range.end),
            };
            make_present(&mut to_locked, union.touched_pages(), &mut dropped);
        } else {
            prepare_overwrite(&mut to_locked, to_range, &mut dropped);
        }
        if let Some(from_locked) = from_locked.as_mut().filter(|_| !all_plain && is_for_good(why_not))
            && from.block.count_copy()
        {
            make_present(from_locked, from_range.touched_pages(), &mut dropped);
        }
        drop((from_locked, to_locked));
        drop(dropped);
        if all_plain || overlaps {
            return false;
        }
        section.leave_for(|| {
            let all = Source { start: from_range.start, pieces: &pieces, plain: source };
            // SAFETY: both ends are valid, as memmove's caller promises; no lock is held.
            unsafe { all.fetch(from_range, destination) };
        });
        counters::add(Counter::CopiedBytes, len_bytes);
        ledger::add(site, Field::CopiedBytes, len_bytes as u64);
        return true;
    }
    let staged = overlaps.then(|| stage(to_range.start, &pieces, source));
    if let Some(None) = staged {
        // No memory to stage in: let memmove fault its way through.
        make_present(&mut to_locked, to_range.touched_pages(), &mut dropped);
        make_present(&mut to_locked, from_range.touched_pages(), &mut dropped);
        drop((from_locked, to_locked));
        drop(dropped);
        return false;
    }
    let staged = staged.flatten();
    let all = Source { start: to_range.start, pieces: staged.as_ref().unwrap_or(&pieces), plain: source };
    // SAFETY: both ends are valid, as memmove's caller promises; both blocks are locked and the destination is registered. What was
    // plain in the source is copied, never viewed, so the steps hold for the staged pieces too.
    let done = unsafe { apply(&mut to_locked, &all, &steps, site, &mut dropped) };
    to_locked.at.note_buffer(site, to_range.touched_pages());
    from.block.forget_copies();
    drop((from_locked, to_locked));
    // SAFETY: both ends are valid, as memmove's caller promises; no lock is held.
    unsafe { all.fetch_missing(section, &done.missing, to.base) };
    drop(dropped);
    books::enter_copy(site, &pieces, &done, work);
    true
}

/// The pieces of an overlapping move with the plain bytes, which could change under us, set aside in a
/// segment. `None` without memory.
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
            // SAFETY: the draft is ours and long enough; the source's plain pages are present.
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

/// Call site that a realloc's copy is entered under: one for each size of blocks, because the caller of realloc says little
/// about what becomes of the bytes.
const fn realloc_site(to: &BlockRef) -> usize {
    to.pages as usize
}

/// Moves the first `len_bytes` bytes of a block, or as many as it has, to another block: what realloc does.
///
/// A new block without pages gets the old one's; where it has pages of its own, these are written, and the old block
/// keeps the ones that its next owner would have to fault in again.
///
/// # Safety
/// The program owns both blocks and uses neither during the call.
pub unsafe fn transfer(from: BlockRef, to: Allocation, len_bytes: usize) {
    if to.is_zero && HEAP.relocate(from, to.at) {
        return;
    }
    let (is_bare, to) = (to.is_zero, to.at);
    let len_bytes = len_bytes.min(from.room_bytes()).min(to.room_bytes());
    // SAFETY: the program owns both blocks and uses neither meanwhile; blocks do not overlap.
    unsafe {
        if !copy(to.start(), from.start(), len_bytes, realloc_site(&to)) {
            if is_bare && !to.block.has(Flag::REGISTERED) {
                // One call instead of a fault for every page. Where it is refused, they fault.
                let _ = HEAP_MEMORY.populate(to.base, to.block.lead_bytes() + len_bytes);
            }
            bytes::copy(to.start() as *mut u8, from.start() as *const u8, len_bytes);
        }
    }
}
