//! Carrying out a copy plan on a block's pages.
//!
//! All of this runs under the destination's lock (and the source's, if that is a block), inside a
//! `Critical`. Only present pages are touched. The bytes of absent pages are put together in a resident
//! page of the arena first, which is then moved in, so that no other thread sees half a page.

use crate::account::plan_result::PlanResult;
use crate::account::sampling;
use crate::arena::pages::{ARENA, ResidentPages};
use crate::arena::segment::{Draft, Segment};
use crate::range::block::{Flag, Locked};
use crate::range::page_in::{absent_runs, move_out, place_pages, present_runs};
use crate::state::counters;
use crate::state::policy::POLICY;
use uncopy_core::addr::{ByteRange, PAGE_BYTES, PageRange};
use uncopy_core::page_map::{Dropped, SiteId, State, View};
use uncopy_core::plan::{Piece, Step};
use uncopy_sys::presence::Section;
use uncopy_sys::{bytes, pins, uffd};

/// Source of a copy's bytes.
pub struct Source<'a> {
    /// Offset of the copy's first byte in the destination's block.
    pub start: usize,
    /// The source's pieces, in order.
    pub pieces: &'a [Piece<Segment>],
    /// Address of the source's first byte; plain pieces are read relative to it.
    pub plain: usize,
}

impl Source<'_> {
    /// Copies the bytes that [`apply`] left missing. No lock may be held: pages may fault.
    ///
    /// # Safety
    /// As for [`Source::fetch`]; `base` is the address of the destination's block.
    pub unsafe fn fetch_missing(&self, section: &Section, missing: &[ByteRange], base: usize) {
        if missing.is_empty() {
            return;
        }
        counters::add_fallback("pages could not be placed");
        section.run_outside(|| {
            for range in missing {
                // SAFETY: `apply`'s caller promised that the destination is writable and plain pieces are readable.
                unsafe { self.fetch(*range, base + range.start) };
            }
        });
    }

    /// Copies the bytes that belong at `range` of the destination's block to `to`.
    ///
    /// # Safety
    /// `to` must be writable for the range's length; plain pieces must be readable.
    pub unsafe fn fetch(&self, range: ByteRange, to: usize) {
        let mut at = self.start;
        for piece in self.pieces {
            let whole = ByteRange::at(at, piece.len_bytes());
            at = whole.end;
            let part = whole.intersection(range);
            if part.is_empty() {
                continue;
            }
            let destination = (to + (part.start - range.start)) as *mut u8;
            let skip = part.start - whole.start;
            // SAFETY: the caller promises that `to` is writable for the range and plain pieces are
            // readable; a segment's bytes are present while the piece holds a reference.
            unsafe {
                match piece {
                    Piece::Plain { .. } => {
                        let from = self.plain + (part.start - self.start);
                        bytes::copy(destination, from as *const u8, part.len());
                    }
                    Piece::Zeroes { .. } => bytes::zero(destination, part.len()),
                    Piece::Segment { segment, offset_bytes, .. } => {
                        bytes::copy(
                            destination,
                            (segment.address() + offset_bytes + skip) as *const u8,
                            part.len(),
                        );
                    }
                }
            }
        }
    }
}

/// Carries out `steps`. Where pages cannot be made absent, their bytes are copied; where absent pages
/// cannot be filled (no memory, userfaultfd closed), they stay as they are and are returned as missing.
///
/// # Safety
/// The destination block must be registered; `source` must be readable as [`Source::fetch`] says. The steps
/// must be a plan of the source for this block. Where source and destination overlap, the source's plain
/// bytes must have been staged elsewhere first.
pub unsafe fn apply(
    destination: &mut Locked,
    source: &Source<'_>,
    steps: &[Step<Segment>],
    site: SiteId,
    dropped: &mut Dropped<Segment>,
) -> PlanResult {
    let mut done = PlanResult::default();
    for step in steps {
        match step {
            Step::Bytes { range } => {
                // SAFETY: the caller of `apply` promises a registered block, locked by `destination`, and a
                // readable source.
                unsafe { put_bytes(destination, source, *range, site, &mut done, dropped) };
                done.copied_bytes += range.len();
            }
            Step::Touched { pages } => {
                // SAFETY: the caller of `apply` promises a registered block, locked by `destination`, and a
                // readable source.
                unsafe { put_touched(destination, source, *pages, &mut done, dropped) };
                done.copied_bytes += pages.len_bytes();
                done.learned_bytes += pages.len_bytes();
            }
            Step::View { pages, segment, offset_bytes } => {
                // SAFETY: the caller of `apply` promises a registered block, locked by `destination`, and a
                // readable source.
                unsafe { make_absent(destination, source, *pages, &mut done) };
                let absent = absent_runs(destination, *pages);
                for run in absent {
                    let view = View {
                        segment: segment.clone(),
                        offset_bytes: offset_bytes + (run.start - pages.start) as usize * PAGE_BYTES,
                        site,
                    };
                    destination.change(|map| map.set_viewed(run, view, dropped));
                    done.elided_bytes += run.len_bytes();
                }
                destination.at.block.set(Flag::HELD_A_VIEW);
            }
            Step::Empty { pages } => {
                // SAFETY: the caller of `apply` promises a registered block, locked by `destination`, and a
                // readable source.
                unsafe { make_absent(destination, source, *pages, &mut done) };
                for run in absent_runs(destination, *pages) {
                    destination.change(|map| map.set_empty(run, dropped));
                    done.elided_bytes += run.len_bytes();
                    done.empty_bytes += run.len_bytes();
                }
            }
        }
    }
    done
}

/// Makes the pages of a step absent as far as that pays: long present runs are moved to the reservoir or
/// dropped; short runs, and those for which both fail, have their bytes copied over.
///
/// # Safety
/// As for [`apply`].
unsafe fn make_absent(block: &mut Locked, source: &Source<'_>, pages: PageRange, done: &mut PlanResult) {
    let mut may_drop = None;
    for run in present_runs(block, pages) {
        let mut kept = run;
        let spent_ns = block.at.block.copied_over_ns();
        let (moves, spent_ns) = POLICY.costs.moves_out(run.len(), spent_ns);
        block.at.block.set_copied_over_ns(spent_ns);
        // A move refuses pinned pages; without moves, finding out whether pages may be dropped takes longer
        // than a move.
        if moves && (uffd::can_move_pages() || *may_drop.get_or_insert_with(pins::has_no_pins)) {
            block.populate(run);
            let out = move_out(block, run);
            done.moves += 1;
            done.moved_pages += out as usize;
            kept.start += out;
        }
        if !kept.is_empty() {
            let range = ByteRange::from(kept);
            // SAFETY: `kept` is present and belongs to the locked block, so it is writable; the caller of
            // `apply` promises a readable source.
            unsafe { source.fetch(range, block.at.base + range.start) };
            done.copied_bytes += range.len();
        }
    }
}

/// Longest absent run whose bytes get a segment of their own. Moving pages in instead, and out again for
/// the next message, made a Redis GET of a value that is 4/5 plain cost 1.3 times the CPU.
const PATCH_PAGES: u32 = 1024;

/// Copies bytes, whatever the state of their pages: directly into present pages; for absent pages into a
/// small segment, so that they stay absent (moving pages in, and out again for the next message, would cost
/// two system calls); at the edges, which the program is likely to touch, into pages that become present.
///
/// # Safety
/// As for [`apply`].
unsafe fn put_bytes(
    block: &mut Locked,
    source: &Source<'_>,
    range: ByteRange,
    site: SiteId,
    done: &mut PlanResult,
    dropped: &mut Dropped<Segment>,
) {
    let whole = range.whole_pages();
    let mut at = range.start;
    while at < range.end {
        let page = (at / PAGE_BYTES) as u32;
        let mut rest = ByteRange { start: at, end: range.end }.overlapped_pages();
        // The edge page, then the whole pages, then the other edge.
        rest.end = if page < whole.start {
            page + 1
        } else if page < whole.end {
            whole.end
        } else {
            rest.end
        };
        let (run, state) = match block.map() {
            Some(map) => map.at(page, rest),
            None => (rest, State::Present),
        };
        let part = ByteRange::from(run).intersection(range);
        at = part.end;
        if state == State::Present {
            // SAFETY: the pages are present and belong to the locked block, so they are writable; the
            // caller of `apply` promises a readable source.
            unsafe { source.fetch(part, block.at.base + part.start) };
            continue;
        }
        let is_patch = run.len_bytes() == part.len() && run.len() <= PATCH_PAGES;
        // SAFETY: the caller of `apply` promises a registered block, locked by `block`, and a readable source.
        unsafe {
            if is_patch && patch(block, source, run, site, dropped) {
                continue;
            }
            if !fill(block, source, run, part, &state, dropped) {
                done.missing.push(part);
            }
        }
    }
}

/// Copies whole pages that the program is going to touch, and makes them present.
///
/// # Safety
/// As for [`apply`].
unsafe fn put_touched(
    block: &mut Locked,
    source: &Source<'_>,
    pages: PageRange,
    done: &mut PlanResult,
    dropped: &mut Dropped<Segment>,
) {
    let mut at = pages.start;
    while at < pages.end {
        let rest = PageRange::new(at, pages.end);
        let (run, state) = block.map().map_or((rest, State::Present), |map| map.at(at, rest));
        at = run.end;
        let part = ByteRange::from(run);
        if state == State::Present {
            // SAFETY: the pages are present and belong to the locked block, so they are writable; the
            // caller of `apply` promises a readable source.
            unsafe { source.fetch(part, block.at.base + part.start) };
            continue;
        }
        done.moves += 1;
        done.moved_pages += run.len() as usize;
        // SAFETY: the caller of `apply` promises a registered block, locked by `block`, and a readable source.
        if !unsafe { fill(block, source, run, part, &state, dropped) } {
            done.missing.push(part);
        }
    }
}

/// Copies the bytes of whole absent pages into a segment of their own and makes the pages views of the
/// segment. False, with nothing changed, if there is no memory.
///
/// # Safety
/// As for [`apply`].
unsafe fn patch(
    block: &mut Locked,
    source: &Source<'_>,
    run: PageRange,
    site: SiteId,
    dropped: &mut Dropped<Segment>,
) -> bool {
    let Ok(draft) = Draft::new(run.len_bytes()) else { return false };
    // SAFETY: the draft is at least `run` long and used by this call alone; the caller of `apply` promises
    // a readable source.
    unsafe { source.fetch(ByteRange::from(run), draft.address()) };
    let site = sampling::copied_site(site);
    let view = View { segment: draft.freeze(site), offset_bytes: 0, site };
    block.change(|map| map.set_viewed(run, view, dropped));
    block.at.block.set(Flag::HELD_A_VIEW);
    true
}

/// Makes an absent run present, with `part` taken from the source and the rest unchanged. False on failure:
/// the rest of the run is then still absent, with the old bytes.
///
/// # Safety
/// As for [`apply`].
unsafe fn fill(
    block: &mut Locked,
    source: &Source<'_>,
    run: PageRange,
    part: ByteRange,
    state: &State<Segment>,
    dropped: &mut Dropped<Segment>,
) -> bool {
    let Ok(ResidentPages { pages: resident, .. }) = ARENA.take_resident(run.len()) else {
        return false;
    };
    let address = ARENA.address(resident.start);
    let whole = ByteRange::from(run);
    let keep =
        [ByteRange { start: whole.start, end: part.start }, ByteRange { start: part.end, end: whole.end }];
    for edge in keep.into_iter().filter(|edge| !edge.is_empty()) {
        let to = (address + (edge.start - whole.start)) as *mut u8;
        // SAFETY: `to` lies in resident pages that this call has taken; `view` holds a reference to the
        // segment, whose bytes are present.
        unsafe {
            match state {
                State::Viewed(view) => {
                    let from = view.segment.address() + view.offset_bytes + (edge.start - whole.start);
                    bytes::copy(to, from as *const u8, edge.len());
                }
                State::Empty | State::Present => bytes::zero(to, edge.len()),
            }
        }
    }
    // SAFETY: `part` lies in resident pages that this call has taken; the caller of `apply` promises a
    // readable source.
    unsafe { source.fetch(part, address + (part.start - whole.start)) };
    let placed = place_pages(block.at, run.start, resident);
    block.change(|map| map.set_present(PageRange::new(run.start, run.start + placed), dropped));
    placed == run.len()
}
