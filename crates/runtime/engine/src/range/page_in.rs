//! Placing pages of a block, and moving them out, under the block's lock.
//!
//! A page appears whole: either its bytes are put together in a resident page of the arena, which is then
//! moved in, or one call of userfaultfd copies them in.

use crate::arena::pages::{ARENA, ResidentPages};
use crate::arena::segment::Segment;
use crate::range::block::{BlockRef, Flag, Locked};
use crate::range::heap_memory::HEAP_MEMORY;
use crate::state::counters;
use crate::state::gate::is_in_heap;
use smallvec::SmallVec;
use uncopy_core::addr::{ArenaPages, ByteRange, PAGE_BYTES, PageRange, SegmentPages};
use uncopy_core::page_map::{Dropped, PageKind, State, View};
use uncopy_core::policy::COPY_OVER_PAGES;
use uncopy_core::stats::Counter;
use uncopy_sys::errno::Errno;
use uncopy_sys::sync::atomic::{AtomicU32, Ordering::Relaxed};
use uncopy_sys::uffd::{self, Uffd};
use uncopy_sys::{bytes, mem};

uncopy_sys::statics! {
    /// Number of placements in a row that the kernel refused.
    static REFUSED: AtomicU32 = AtomicU32::new(0);
}

pub(super) type Runs = SmallVec<[PageRange; 8]>;

pub(super) fn absent_runs(block: &Locked, pages: PageRange) -> Runs {
    runs(block, pages, |kind| kind != PageKind::Present)
}

pub(super) fn present_runs(block: &Locked, pages: PageRange) -> Runs {
    runs(block, pages, |kind| kind == PageKind::Present)
}

/// The runs of pages in `pages` with a wanted kind of state.
fn runs(block: &Locked, pages: PageRange, wanted: impl Fn(PageKind) -> bool) -> Runs {
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

/// Moves the long present runs of a freed block to the reservoir, so that its next owner gets pages that
/// can become views at once. Without this, a block's old bytes were moved in and out again with every
/// realloc: Redis SET of 256 KiB moved 20 pages for nothing.
///
/// The first page and the last one asked for stay: the next owner writes a header and an end there, or has
/// a fringe. Without that, Redis faulted twice for each value of 256 KiB that YCSB A set.
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

/// Moves present pages to the reservoir, or drops them where pages are not moved, and marks them empty.
/// Returns how many, from the start of the run.
pub(super) fn move_out(block: &mut Locked, run: PageRange) -> u32 {
    if !uffd::can_move_pages() {
        return drop_out(block, run);
    }
    let Ok(room) = ARENA.take_nonresident(run.len()) else { return 0 };
    let from = block.at.base + run.start_bytes();
    // SAFETY: the block is locked, and the bytes of `run` are about to be overwritten whole or belong to a
    // freed block; the room was taken by this call.
    let placed = unsafe { ARENA.uffd().move_pages(ARENA.address(room.start), from, run.len_bytes()) };
    let mut moved = (placed.done_bytes / PAGE_BYTES) as u32;
    ARENA.give_resident(ArenaPages::new(room.start, room.start + moved));
    ARENA.give_nonresident(ArenaPages::new(room.start + moved, room.end));
    counters::add(Counter::MovedPages, moved as usize);
    if placed.error == Some(Errno::ENOENT) {
        // The program gave this page back to the kernel: it is absent already.
        moved += 1;
    }
    // The old bytes are about to be overwritten whole.
    block.change(|map| map.set_empty(PageRange::new(run.start, run.start + moved), &mut Dropped::new()));
    moved
}

/// Drops present pages of the heap and marks them empty; returns how many. Dropping pages of foreign ranges
/// would be reported.
fn drop_out(block: &mut Locked, run: PageRange) -> u32 {
    let from = block.at.base + run.start_bytes();
    // The bytes are about to be overwritten whole, or belong to no owner.
    if !is_in_heap(from) || HEAP_MEMORY.discard(from, run.len_bytes()).is_err() {
        return 0;
    }
    counters::add(Counter::TrimmedBytes, run.len_bytes());
    block.change(|map| map.set_empty(run, &mut Dropped::new()));
    run.len()
}

/// Places a page of zeroes, or wakes the faulting thread if the page is present already.
pub(crate) fn place_zeroes(uffd: Uffd, page_address: usize) -> bool {
    match ARENA.fill_zeroes(uffd, page_address, PAGE_BYTES) {
        Ok(()) => true,
        // Present, not registered any more, or unmapped: the woken thread repeats the access.
        Err((_, Errno::EEXIST | Errno::ENOENT | Errno::ESRCH | Errno::EFAULT | Errno::EINVAL)) => {
            uffd.wake(page_address, PAGE_BYTES)
        }
        // UFFDIO_ZEROPAGE needs less memory.
        Err(_) => match uffd.zero_page(page_address) {
            Ok(()) => true,
            Err(Errno::EEXIST) => uffd.wake(page_address, PAGE_BYTES),
            Err(_) => false,
        },
    }
}

/// Number of refused placements in a row after which the mapping is replaced.
const MAX_REFUSED: u32 = 64;

fn note_placement() {
    REFUSED.store(0, Relaxed);
}

/// Records a refused placement; returns whether so many were refused in a row that the kernel is not
/// expected to recover.
fn note_refusal() -> bool {
    REFUSED.fetch_add(1, Relaxed) >= MAX_REFUSED
}

/// Replaces absent pages by a mapping with the right bytes: the last resort where userfaultfd fails. The
/// new mapping is not registered, so the block can hold no further view.
fn replace(locked: &Locked, pages: PageRange, fill: impl Fn(usize)) -> bool {
    let address = locked.at.base + pages.start_bytes();
    if !is_in_heap(address) {
        // The kernel would report the change and wait until the handler has read it.
        return false;
    }
    locked.at.block.set(Flag::DISOWNED.or(Flag::OTHER_PROPERTIES));
    // SAFETY: the pages are absent and their block is locked, so no thread uses the old mapping; `fill`
    // writes the bytes that belong there.
    let replaced = unsafe { mem::replace(address, pages.len_bytes(), fill) }.is_ok();
    replaced && locked.at.uffd().wake(address, pages.len_bytes())
}

/// Fills empty pages with zeroes. False: no page could be placed; retry.
pub(crate) fn fill_empty(locked: &mut Locked, pages: PageRange, dropped: &mut Dropped<Segment>) -> bool {
    let uffd = locked.at.uffd();
    let address = locked.at.base + pages.start_bytes();
    let done_bytes = match ARENA.fill_zeroes(uffd, address, pages.len_bytes()) {
        Ok(()) => pages.len_bytes(),
        Err((done_bytes, Errno::EEXIST)) => done_bytes + PAGE_BYTES,
        Err((done_bytes @ 1.., _)) => done_bytes,
        Err((0, _)) if uffd.zero_page(address) == Ok(()) => PAGE_BYTES,
        Err((0, _)) if note_refusal() && replace(locked, pages, |_| ()) => pages.len_bytes(),
        Err((0, _)) => 0,
    };
    if done_bytes > 0 {
        note_placement();
    }
    let done = PageRange::new(pages.start, pages.start + (done_bytes / PAGE_BYTES) as u32);
    locked.change(|map| map.set_present(done, dropped));
    if !done.is_empty() {
        // Also for threads that wait for a page found present, which placing has not woken.
        uffd.wake(locked.at.base + done.start_bytes(), done.len_bytes());
    }
    !done.is_empty()
}

/// Places pages where copying them in fails: moves in pages that `fill` has filled, or replaces the
/// mapping. Returns the number of pages placed, from the start.
fn place_otherwise(locked: &Locked, pages: PageRange, fill: impl Fn(usize)) -> u32 {
    let placed = ARENA.take_resident(pages.len()).map_or(0, |ResidentPages { pages: resident, .. }| {
        fill(ARENA.address(resident.start));
        place_pages(locked.at, pages.start, resident)
    });
    if placed > 0 {
        note_placement();
        return placed;
    }
    if note_refusal() && replace(locked, pages, fill) { pages.len() } else { 0 }
}

/// Places the bytes of `pages`, which `view` covers from their first page on: moves the segment's pages if
/// this was the last reference, else copies. False: no page could be placed.
pub(crate) fn materialize(
    locked: &mut Locked,
    pages: PageRange,
    view: View<Segment>,
    dropped: &mut Dropped<Segment>,
) -> bool {
    let uffd = locked.at.uffd();
    let destination = locked.at.base + pages.start_bytes();
    let View { mut segment, offset_bytes, .. } = view;
    let source = segment.address() + offset_bytes;
    let mut done = 0;
    // The page map's reference is dropped first. The one held here is then the last, unless another view or
    // a call in progress holds the segment.
    let mut handles = Dropped::new();
    locked.change(|map| map.set_present(pages, &mut handles));
    drop(handles);
    if Segment::is_congruent(offset_bytes)
        && pages.len() > 1
        && let Some(draft) = segment.as_unique_draft()
    {
        // SAFETY: the destination is absent and its block locked; `as_unique_draft` found no other reference to the segment.
        let placed = unsafe { uffd.move_pages(destination, source, pages.len_bytes()) };
        done = (placed.done_bytes / PAGE_BYTES) as u32;
        let first = (offset_bytes / PAGE_BYTES) as u32;
        draft.record_moved_out(SegmentPages::new(first, first + done));
        counters::add(Counter::MovedPages, done as usize);
    }
    while done < pages.len() {
        let skip = done as usize * PAGE_BYTES;
        // SAFETY: the segment's bytes are present while `segment` is held; `copy` fills absent pages only.
        let placed = unsafe { uffd.copy(destination + skip, source + skip, pages.len_bytes() - skip) };
        done += (placed.done_bytes / PAGE_BYTES) as u32;
        match placed.error {
            None => {}
            Some(Errno::EEXIST) => done += 1,
            Some(_) => break,
        }
    }
    if done < pages.len() {
        done += place_otherwise(locked, PageRange::new(pages.start + done, pages.end), |to| {
            let skip = done as usize * PAGE_BYTES;
            // SAFETY: `place_otherwise` passes memory with room for the rest; the segment's bytes are
            // present while `segment` is held.
            unsafe {
                bytes::copy(to as *mut u8, (source + skip) as *const u8, pages.len_bytes() - skip);
            }
        });
    } else {
        note_placement();
    }
    counters::add(Counter::MaterializedBytes, done as usize * PAGE_BYTES);
    let rest = PageRange::new(pages.start + done, pages.end);
    if !rest.is_empty() {
        let offset_bytes = offset_bytes + done as usize * PAGE_BYTES;
        let site = view.site;
        let again = View { segment: segment.clone(), offset_bytes, site };
        locked.change(|map| map.set_viewed(rest, again, dropped));
    }
    dropped.push(segment);
    if done > 0 {
        uffd.wake(destination, done as usize * PAGE_BYTES);
    }
    done > 0
}

/// Places resident pages of the arena in absent pages of the program, by moving if possible, else by
/// copying; gives the rest back. Returns the number of pages placed, from the start.
pub fn place_pages(at: BlockRef, first_page: u32, resident: ArenaPages) -> u32 {
    let (uffd, destination) = (at.uffd(), at.base + first_page as usize * PAGE_BYTES);
    let source = ARENA.address(resident.start);
    // SAFETY: the destination is absent and its block locked; the caller has taken the source pages.
    let placed = unsafe { uffd.move_pages(destination, source, resident.len_bytes()) };
    let moved = (placed.done_bytes / PAGE_BYTES) as u32;
    counters::add(Counter::MovedPages, moved as usize);
    ARENA.give_nonresident(ArenaPages::new(resident.start, resident.start + moved));
    let rest = ArenaPages::new(resident.start + moved, resident.end);
    if rest.is_empty() {
        return moved;
    }
    // SAFETY: the destination is absent and its block locked; the source pages are present and the caller
    // has taken them.
    let copied = unsafe {
        uffd.copy(destination + moved as usize * PAGE_BYTES, ARENA.address(rest.start), rest.len_bytes())
    };
    ARENA.give_resident(rest);
    moved + (copied.done_bytes / PAGE_BYTES) as u32
}

/// Makes the pages that `range` covers present, because the program is about to overwrite exactly these
/// bytes: whole pages get any page of the arena, edges keep their bytes.
///
/// This only saves faults; pages that cannot be made present are left to the handler.
pub fn prepare_overwrite(block: &mut Locked, range: ByteRange, dropped: &mut Dropped<Segment>) {
    let whole = range.whole_pages();
    for run in absent_runs(block, whole) {
        if !uffd::can_move_pages() {
            fill_empty(block, run, dropped);
            continue;
        }
        let Ok(ResidentPages { pages: resident, .. }) = ARENA.take_resident(run.len()) else {
            continue;
        };
        let placed = place_pages(block.at, run.start, resident);
        block.change(|map| map.set_present(PageRange::new(run.start, run.start + placed), dropped));
    }
    let overlapped = range.overlapped_pages();
    make_present(block, PageRange::new(overlapped.start, whole.start), dropped);
    make_present(block, PageRange::new(whole.end.max(overlapped.start), overlapped.end), dropped);
}

/// Number of tries to put views in place.
const TRIES: u32 = 100;

/// Places the bytes of all views among `pages`, with retries.
pub fn fill_views(block: &mut Locked, pages: PageRange, dropped: &mut Dropped<Segment>) {
    let is_viewed = |kind| kind == PageKind::Viewed;
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

/// Places the bytes of `pages`, as far as possible.
pub fn make_present(block: &mut Locked, pages: PageRange, dropped: &mut Dropped<Segment>) {
    let mut at = pages.start;
    while at < pages.end {
        let Some((run, state)) = block.map().map(|map| map.at(at, PageRange::new(at, pages.end))) else {
            return;
        };
        let progress = match state {
            State::Present => true,
            State::Empty => fill_empty(block, run, dropped),
            State::Viewed(view) => materialize(block, run, view, dropped),
        };
        if !progress {
            return;
        }
        at = run.end;
    }
}
