//! Carrying out a copy plan on a block's pages.
//!
//! Everything here runs under the destination's lock (and the source's, if that is a block), inside
//! a `Critical`. Only present pages are touched; absent ones get their bytes in a resident page of ours
//! first and are then moved in, so that no other thread ever sees half a page.

use crate::account::sampling;
use crate::arena::pages::Resident;
use crate::arena::segment::{Draft, Segment};
use crate::range::block::{BlockRef, HELD_A_VIEW, Locked};
use crate::service::activation::ENGINE;
use crate::state::counters;
use smallvec::SmallVec;
use uncopy_core::addr::{ByteRange, PAGE_BYTES, PageRange};
use uncopy_core::page_map::{Dropped, Kind, SiteId, State, View};
use uncopy_core::plan::{Piece, Step};
use uncopy_core::policy::COPY_OVER_PAGES;
use uncopy_core::stats::Counter;
use uncopy_sys::bytes;
use uncopy_sys::errno::Errno;
use uncopy_sys::presence::Section;
use uncopy_sys::sync::atomic::Ordering::Relaxed;

/// Where the bytes of a copy come from.
pub struct Source<'a> {
    /// Offset in the destination's block of the first byte.
    pub start: usize,
    /// The source's pieces, in order.
    pub pieces: &'a [Piece<Segment>],
    /// Address of the source's first byte; plain pieces are read relative to it.
    pub plain: usize,
}

impl Source<'_> {
    /// Copies what [`apply`] left missing. No lock may be held: pages fault.
    ///
    /// # Safety
    /// As for [`Source::fetch`]; `base` is the address of the destination's block.
    pub unsafe fn fetch_missing(&self, section: &Section, missing: &[ByteRange], base: usize) {
        if missing.is_empty() {
            return;
        }
        counters::add(Counter::Fallbacks, 1);
        section.leave_for(|| {
            for range in missing {
                // SAFETY: the caller's promise.
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
            // SAFETY: the caller's promise for both ends; a segment's bytes are present while the
            // piece holds a reference.
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

/// What [`apply`] did, for the account.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Bytes that are views now and were not copied.
    pub elided_bytes: usize,
    /// Of these, bytes that read as zeroes.
    pub empty_bytes: usize,
    /// Bytes really copied.
    pub copied_bytes: usize,
    /// Of these, bytes of pages that the program is known to touch.
    pub learned_bytes: usize,
    /// `UFFDIO_MOVE` calls.
    pub moves: usize,
    /// Pages they moved.
    pub moved_pages: usize,
    /// Bytes that could not be put in place: the caller copies them once it holds no lock, and faults.
    pub missing: SmallVec<[ByteRange; 2]>,
}

impl Done {
    /// What moving pages out of the way is charged, ns: at most what the call saved.
    ///
    /// Moving out is an investment that the next calls on the same buffer draw on: on a machine where moving
    /// 128 pages costs 12 µs and copying them 7, an echo server with twelve buffers was switched off before
    /// any buffer was used twice. Where it is for nothing, because the program puts the pages in place again,
    /// every call still loses the tracking.
    #[must_use]
    pub fn moves_ns(&self, saved_ns: i64) -> i64 {
        ENGINE.costs.moves_ns(self.moves, self.moved_pages).min(saved_ns)
    }

    /// What moves and copies of the call take by the constants, ns.
    #[must_use]
    pub fn known_ns(&self) -> i64 {
        ENGINE.costs.moves_ns(self.moves, self.moved_pages) + ENGINE.costs.copy_ns(self.copied_bytes)
    }
}

/// Carries out `steps`. Where pages cannot be made absent, their bytes are copied; where absent pages cannot
/// be filled (no memory, the descriptor is gone), they stay as they are and are returned as missing.
///
/// # Safety
/// The destination block must be registered; `source` must be readable as [`Source::fetch`] says.
/// The steps must be a plan of the source for this block. Where source and destination overlap, the
/// source's plain bytes must have been staged elsewhere first.
pub unsafe fn apply(
    destination: &mut Locked,
    source: &Source<'_>,
    steps: &[Step<Segment>],
    site: SiteId,
    dropped: &mut Dropped<Segment>,
) -> Done {
    let mut done = Done::default();
    for step in steps {
        match step {
            Step::Bytes { range } => {
                // SAFETY: the caller's promise.
                unsafe { put_bytes(destination, source, *range, site, &mut done, dropped) };
                done.copied_bytes += range.len();
            }
            Step::Touched { pages } => {
                // SAFETY: the caller's promise.
                unsafe { put_touched(destination, source, *pages, &mut done, dropped) };
                done.copied_bytes += pages.len_bytes();
                done.learned_bytes += pages.len_bytes();
            }
            Step::View { pages, segment, offset_bytes } => {
                // SAFETY: the caller's promise.
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
                destination.at.block.flags.fetch_or(HELD_A_VIEW, Relaxed);
            }
            Step::Empty { pages } => {
                // SAFETY: the caller's promise.
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

type Runs = SmallVec<[PageRange; 8]>;

/// The runs of pages in `pages` that are not present.
fn absent_runs(block: &Locked, pages: PageRange) -> Runs {
    runs(block, pages, |kind| kind != Kind::Present)
}

/// The runs of pages in `pages` that are present.
fn present_runs(block: &Locked, pages: PageRange) -> Runs {
    runs(block, pages, |kind| kind == Kind::Present)
}

/// The runs of pages in `pages` whose state is one of those wanted.
fn runs(block: &Locked, pages: PageRange, wanted: impl Fn(Kind) -> bool) -> Runs {
    let mut runs = Runs::new();
    if let Some(map) = block.map() {
        map.for_each_kind(pages, |run, kind| {
            if wanted(kind) {
                match runs.last_mut() {
                    Some(last) if last.end == run.start => last.end = run.end,
                    _ => runs.push(run),
                }
            }
        });
    }
    runs
}

/// Makes the pages of a step absent as far as that pays: long present runs are moved to the
/// reservoir, short ones (and those that cannot be moved) get their bytes copied over.
///
/// # Safety
/// As for [`apply`].
unsafe fn make_absent(block: &mut Locked, source: &Source<'_>, pages: PageRange, done: &mut Done) {
    for run in present_runs(block, pages) {
        let mut kept = run;
        let spent_ns = block.at.block.copied_over_ns.load(Relaxed);
        let (moves, spent_ns) = ENGINE.costs.moves_out(run.len(), spent_ns);
        block.at.block.copied_over_ns.store(spent_ns, Relaxed);
        if moves {
            block.populate(run);
            let out = move_out(block, run);
            done.moves += 1;
            done.moved_pages += out as usize;
            kept.start += out;
        }
        if !kept.is_empty() {
            let range = ByteRange::from(kept);
            // SAFETY: the pages are present and the program's; the caller's promise for the source.
            unsafe { source.fetch(range, block.at.base + range.start) };
            done.copied_bytes += range.len();
        }
    }
}

/// Moves the long present runs of a block that was just freed to the reservoir, so that its next user
/// finds pages that can be viewed at once. Without this a block's old bytes were moved in and out again
/// with every realloc: Redis SET of 256 KiB moved 20 pages for nothing.
///
/// Its first page and the last that was asked for stay: there the next user writes its header and its end, or
/// has a fringe. Without that Redis faulted twice for each value of 256 KiB that YCSB A set.
pub fn clear_long_runs(block: &mut Locked) {
    let (first, last) = block.at.block.edges();
    for run in present_runs(block, block.at.all()) {
        for part in [run.start.max(first + 1)..run.end.min(last), run.start.max(last + 1)..run.end] {
            if part.len() > COPY_OVER_PAGES as usize {
                move_out(block, PageRange::new(part.start, part.end));
            }
        }
    }
}

/// Puts zeroes into those of the block's edges that are absent.
pub fn fill_edges(block: &mut Locked, dropped: &mut Dropped<Segment>) {
    let (first, last) = block.at.block.edges();
    for page in [first, last] {
        make_present(block, PageRange::new(page, page + 1), dropped);
    }
}

/// Moves present pages to the reservoir and marks them empty; returns how many, from the start.
fn move_out(block: &mut Locked, run: PageRange) -> u32 {
    let Ok(room) = ENGINE.arena.take_nonresident(run.len()) else { return 0 };
    let from = block.at.base + run.start_bytes();
    // SAFETY: both ranges are ours to rearrange: the block is locked, the room was just taken.
    let placed =
        unsafe { ENGINE.arena.uffd().move_pages(ENGINE.arena.address(room.start), from, run.len_bytes()) };
    let mut moved = (placed.done_bytes / PAGE_BYTES) as u32;
    ENGINE.arena.give_resident(PageRange::new(room.start, room.start + moved));
    ENGINE.arena.give_nonresident(PageRange::new(room.start + moved, room.end));
    counters::add(Counter::MovedPages, moved as usize);
    if placed.error == Some(Errno::ENOENT) {
        // The program gave this page back to the kernel itself: it is absent already.
        moved += 1;
    }
    // Their old bytes are about to be overwritten whole.
    block.change(|map| map.set_empty(PageRange::new(run.start, run.start + moved), &mut Dropped::new()));
    moved
}

/// Longest absent run whose bytes are set aside in a segment of their own. Moving pages in instead, and out
/// again for the next message, made a Redis GET of a value that is 4/5 plain cost 1.3 times the CPU.
const PATCH_PAGES: u32 = 1024;

/// Really copies bytes, whatever the state of the pages they belong in: into present pages directly;
/// for absent ones into a small segment of their own, so that they stay absent (moving pages in now
/// and out again for the next message would cost two system calls); at the edges, which the program
/// is likely to touch, into pages that are then present.
///
/// # Safety
/// As for [`apply`].
unsafe fn put_bytes(
    block: &mut Locked,
    source: &Source<'_>,
    range: ByteRange,
    site: SiteId,
    done: &mut Done,
    dropped: &mut Dropped<Segment>,
) {
    let whole = range.whole_pages();
    let mut at = range.start;
    while at < range.end {
        let page = (at / PAGE_BYTES) as u32;
        let mut rest = ByteRange { start: at, end: range.end }.touched_pages();
        // An edge page by itself, then the whole pages, then the other edge.
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
            // SAFETY: present pages of the program; the caller's promise for the source.
            unsafe { source.fetch(part, block.at.base + part.start) };
            continue;
        }
        let is_patch = run.len_bytes() == part.len() && run.len() <= PATCH_PAGES;
        // SAFETY: the caller's promise.
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

/// Really copies whole pages that the program is going to touch: they are present afterwards.
///
/// # Safety
/// As for [`apply`].
unsafe fn put_touched(
    block: &mut Locked,
    source: &Source<'_>,
    pages: PageRange,
    done: &mut Done,
    dropped: &mut Dropped<Segment>,
) {
    let mut at = pages.start;
    while at < pages.end {
        let rest = PageRange::new(at, pages.end);
        let (run, state) = block.map().map_or((rest, State::Present), |map| map.at(at, rest));
        at = run.end;
        let part = ByteRange::from(run);
        if state == State::Present {
            // SAFETY: present pages of the program; the caller's promise for the source.
            unsafe { source.fetch(part, block.at.base + part.start) };
            continue;
        }
        done.moves += 1;
        done.moved_pages += run.len() as usize;
        // SAFETY: the caller's promise.
        if !unsafe { fill(block, source, run, part, &state, dropped) } {
            done.missing.push(part);
        }
    }
}

/// Copies the bytes of whole absent pages into a segment of their own and makes the pages views of it.
/// False, and nothing done, without memory.
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
    // SAFETY: the draft is ours alone and long enough; the caller's promise for the source.
    unsafe { source.fetch(ByteRange::from(run), draft.address()) };
    let site = sampling::copied(site);
    let view = View { segment: draft.freeze(site), offset_bytes: 0, site };
    block.change(|map| map.set_viewed(run, view, dropped));
    block.at.block.flags.fetch_or(HELD_A_VIEW, Relaxed);
    true
}

/// Makes an absent run present with `part` of it taken from the source and the rest as it reads.
/// False if that failed: pages of the run are then still absent, with their old bytes.
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
    let Ok(Resident { pages: resident, .. }) = ENGINE.arena.take_resident(run.len()) else {
        return false;
    };
    let address = ENGINE.arena.address(resident.start);
    let whole = ByteRange::from(run);
    let keep =
        [ByteRange { start: whole.start, end: part.start }, ByteRange { start: part.end, end: whole.end }];
    for edge in keep.into_iter().filter(|edge| !edge.is_empty()) {
        let to = (address + (edge.start - whole.start)) as *mut u8;
        // SAFETY: the resident pages are ours alone; a view's segment is present.
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
    // SAFETY: the resident pages are ours alone; the caller's promise for the source.
    unsafe { source.fetch(part, address + (part.start - whole.start)) };
    let placed = put_pages(block.at, run.start, resident);
    block.change(|map| map.set_present(PageRange::new(run.start, run.start + placed), dropped));
    placed == run.len()
}

/// Puts resident pages of ours into absent pages of the program, moved if possible, else copied; gives back
/// what is left. Returns how many pages were placed, from the start.
pub fn put_pages(at: BlockRef, first_page: u32, resident: PageRange) -> u32 {
    let (uffd, destination) = (at.uffd(), at.base + first_page as usize * PAGE_BYTES);
    let source = ENGINE.arena.address(resident.start);
    // SAFETY: the destination is absent, locked and the program's; the source was taken by the caller.
    let placed = unsafe { uffd.move_pages(destination, source, resident.len_bytes()) };
    let moved = (placed.done_bytes / PAGE_BYTES) as u32;
    counters::add(Counter::MovedPages, moved as usize);
    ENGINE.arena.give_nonresident(PageRange::new(resident.start, resident.start + moved));
    let rest = PageRange::new(resident.start + moved, resident.end);
    if rest.is_empty() {
        return moved;
    }
    // SAFETY: as above; the bytes are present.
    let copied = unsafe {
        uffd.copy(
            destination + moved as usize * PAGE_BYTES,
            ENGINE.arena.address(rest.start),
            rest.len_bytes(),
        )
    };
    ENGINE.arena.give_resident(rest);
    moved + (copied.done_bytes / PAGE_BYTES) as u32
}

/// Makes the pages that `range` covers present, because the program is about to overwrite exactly
/// these bytes: whole pages get any page of ours, edges keep what they hold.
///
/// Only saves faults; what it cannot do is left to the fault service.
pub fn prepare_overwrite(block: &mut Locked, range: ByteRange, dropped: &mut Dropped<Segment>) {
    let whole = range.whole_pages();
    for run in absent_runs(block, whole) {
        let Ok(Resident { pages: resident, .. }) = ENGINE.arena.take_resident(run.len()) else {
            continue;
        };
        let placed = put_pages(block.at, run.start, resident);
        block.change(|map| map.set_present(PageRange::new(run.start, run.start + placed), dropped));
    }
    let touched = range.touched_pages();
    make_present(block, PageRange::new(touched.start, whole.start), dropped);
    make_present(block, PageRange::new(whole.end.max(touched.start), touched.end), dropped);
}

/// Times that a page which cannot be put in place is tried again.
const TRIES: u32 = 100;

/// Puts the bytes of the views among `pages` in place, and does not give up easily.
pub fn fill_views(block: &mut Locked, pages: PageRange, dropped: &mut Dropped<Segment>) {
    let is_viewed = |kind| kind == Kind::Viewed;
    for _ in 0..TRIES {
        for run in runs(block, pages, is_viewed) {
            make_present(block, run, dropped);
        }
        if runs(block, pages, is_viewed).is_empty() {
            return;
        }
        uncopy_sys::thread::pause();
    }
}

/// Puts the bytes of `pages` in place.
pub fn make_present(block: &mut Locked, pages: PageRange, dropped: &mut Dropped<Segment>) {
    let mut at = pages.start;
    while at < pages.end {
        let Some((run, state)) = block.map().map(|map| map.at(at, PageRange::new(at, pages.end))) else {
            return;
        };
        let progress = match state {
            State::Present => true,
            State::Empty => crate::service::handler::fill_empty(block, run, dropped),
            State::Viewed(view) => crate::service::handler::materialize(block, run, view, dropped),
        };
        if !progress {
            return;
        }
        at = run.end;
    }
}
