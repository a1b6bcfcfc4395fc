//! Pages of a block put in place, or moved out of the way, under the block's lock.
//!
//! A page that comes in appears whole: its bytes are put into a resident page of ours first, which is then moved in, or
//! they are copied in by one call of userfaultfd.

use crate::arena::pages::{ARENA, Resident};
use crate::arena::segment::Segment;
use crate::range::block::{BlockRef, Flag, Locked};
use crate::range::heap_memory::HEAP_MEMORY;
use crate::state::counters;
use crate::state::gate::is_in_heap;
use smallvec::SmallVec;
use uncopy_core::addr::{ArenaPages, ByteRange, PAGE_BYTES, PageRange, SegmentPages};
use uncopy_core::page_map::{Dropped, Kind, State, View};
use uncopy_core::policy::COPY_OVER_PAGES;
use uncopy_core::stats::Counter;
use uncopy_sys::errno::Errno;
use uncopy_sys::sync::atomic::{AtomicU32, Ordering::Relaxed};
use uncopy_sys::uffd::{self, Uffd};
use uncopy_sys::{bytes, mem};

uncopy_sys::statics! {
    /// Placements that the kernel refused in a row.
    static REFUSED: AtomicU32 = AtomicU32::new(0);
}

pub(super) type Runs = SmallVec<[PageRange; 8]>;

/// The runs of pages in `pages` that are not present.
pub(super) fn absent_runs(block: &Locked, pages: PageRange) -> Runs {
    runs(block, pages, |kind| kind != Kind::Present)
}

/// The runs of pages in `pages` that are present.
pub(super) fn present_runs(block: &Locked, pages: PageRange) -> Runs {
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

/// Moves present pages to the reservoir, or drops them where pages are not moved, and marks them empty; returns how
/// many, from the start.
pub(super) fn move_out(block: &mut Locked, run: PageRange) -> u32 {
    if !uffd::moves() {
        return drop_out(block, run);
    }
    let Ok(room) = ARENA.take_nonresident(run.len()) else { return 0 };
    let from = block.at.base + run.start_bytes();
    // SAFETY: both ranges are ours to rearrange: the block is locked, the room was just taken.
    let placed = unsafe { ARENA.uffd().move_pages(ARENA.address(room.start), from, run.len_bytes()) };
    let mut moved = (placed.done_bytes / PAGE_BYTES) as u32;
    ARENA.give_resident(ArenaPages::new(room.start, room.start + moved));
    ARENA.give_nonresident(ArenaPages::new(room.start + moved, room.end));
    counters::add(Counter::MovedPages, moved as usize);
    if placed.error == Some(Errno::ENOENT) {
        // The program gave this page back to the kernel itself: it is absent already.
        moved += 1;
    }
    // Their old bytes are about to be overwritten whole.
    block.change(|map| map.set_empty(PageRange::new(run.start, run.start + moved), &mut Dropped::new()));
    moved
}

/// Drops present pages and marks them empty; returns how many. Of the heap's: dropping others is reported.
fn drop_out(block: &mut Locked, run: PageRange) -> u32 {
    let from = block.at.base + run.start_bytes();
    // Their bytes are about to be overwritten whole, or nobody's.
    if !is_in_heap(from) || HEAP_MEMORY.discard(from, run.len_bytes()).is_err() {
        return 0;
    }
    counters::add(Counter::TrimmedBytes, run.len_bytes());
    block.change(|map| map.set_empty(run, &mut Dropped::new()));
    run.len()
}

/// Puts a page of zeroes in place, or wakes the thread if the page is there already.
pub(crate) fn zeroes(uffd: Uffd, page_address: usize) -> bool {
    match ARENA.fill_zeroes(uffd, page_address, PAGE_BYTES) {
        Ok(()) => true,
        // Present, or not registered any more, or the mapping is gone: whoever waits must see for itself.
        Err((_, Errno::EEXIST | Errno::ENOENT | Errno::ESRCH | Errno::EFAULT | Errno::EINVAL)) => {
            uffd.wake(page_address, PAGE_BYTES)
        }
        // Takes less memory.
        Err(_) => match uffd.zero_page(page_address) {
            Ok(()) => true,
            Err(Errno::EEXIST) => uffd.wake(page_address, PAGE_BYTES),
            Err(_) => false,
        },
    }
}

/// Refused placements in a row after which the bytes are put in place by replacing the mapping.
const MAX_REFUSED: u32 = 64;

/// Records a placement that succeeded.
fn note_placement() {
    REFUSED.store(0, Relaxed);
}

/// Records a refused placement; returns whether there were so many in a row that the kernel will not come round.
fn note_refusal() -> bool {
    REFUSED.fetch_add(1, Relaxed) >= MAX_REFUSED
}

/// The last resort where userfaultfd fails: a mapping with the right bytes takes the place of absent pages.
/// What it replaces is not registered any more, so the block can hold no further view.
fn replace(locked: &Locked, pages: PageRange, fill: impl Fn(usize)) -> bool {
    let address = locked.at.base + pages.start_bytes();
    if !is_in_heap(address) {
        // The kernel would report it, and wait until the handler has read that.
        return false;
    }
    locked.at.block.set(Flag::DISOWNED.or(Flag::OTHER_PROPERTIES));
    // SAFETY: absent pages of a block that is locked; `fill` writes the bytes that belong there.
    let replaced = unsafe { mem::replace(address, pages.len_bytes(), fill) }.is_ok();
    replaced && locked.at.uffd().wake(address, pages.len_bytes())
}

/// Puts zeroes into empty pages. False: nothing could be placed; try again.
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
        // Those who wait on what was placed just now were woken by that.
        uffd.wake(locked.at.base + done.start_bytes(), done.len_bytes());
    }
    !done.is_empty()
}

/// Where copying pages in fails: moves some in that `fill` has filled, or replaces the mapping. Returns how
/// many pages were placed, from the start.
fn place_otherwise(locked: &Locked, pages: PageRange, fill: impl Fn(usize)) -> u32 {
    let placed = ARENA.take_resident(pages.len()).map_or(0, |Resident { pages: resident, .. }| {
        fill(ARENA.address(resident.start));
        put_pages(locked.at, pages.start, resident)
    });
    if placed > 0 {
        note_placement();
        return placed;
    }
    if note_refusal() && replace(locked, pages, fill) { pages.len() } else { 0 }
}

/// Puts the bytes of `pages`, which are viewed by `view` from their first page on, in place: moves the
/// segment's pages where this was its last reference, else copies. False: nothing could be placed.
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
    // The page map's own reference is dropped first: it is the last one but ours only if no other
    // view and no call in progress holds the segment.
    let mut handles = Dropped::new();
    locked.change(|map| map.set_present(pages, &mut handles));
    drop(handles);
    if Segment::is_congruent(offset_bytes)
        && pages.len() > 1
        && let Some(draft) = segment.sole()
    {
        // SAFETY: the destination is absent, ours and locked; nobody else knows the segment.
        let placed = unsafe { uffd.move_pages(destination, source, pages.len_bytes()) };
        done = (placed.done_bytes / PAGE_BYTES) as u32;
        let first = (offset_bytes / PAGE_BYTES) as u32;
        draft.moved_out(SegmentPages::new(first, first + done));
        counters::add(Counter::MovedPages, done as usize);
    }
    while done < pages.len() {
        let skip = done as usize * PAGE_BYTES;
        // SAFETY: the segment's bytes are present and stay so while `segment` is held.
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
            // SAFETY: `to` has room for the rest; the segment's bytes are present.
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

/// Puts resident pages of ours into absent pages of the program, moved if possible, else copied; gives back
/// what is left. Returns how many pages were placed, from the start.
pub fn put_pages(at: BlockRef, first_page: u32, resident: ArenaPages) -> u32 {
    let (uffd, destination) = (at.uffd(), at.base + first_page as usize * PAGE_BYTES);
    let source = ARENA.address(resident.start);
    // SAFETY: the destination is absent, locked and the program's; the source was taken by the caller.
    let placed = unsafe { uffd.move_pages(destination, source, resident.len_bytes()) };
    let moved = (placed.done_bytes / PAGE_BYTES) as u32;
    counters::add(Counter::MovedPages, moved as usize);
    ARENA.give_nonresident(ArenaPages::new(resident.start, resident.start + moved));
    let rest = ArenaPages::new(resident.start + moved, resident.end);
    if rest.is_empty() {
        return moved;
    }
    // SAFETY: the destination's page is absent, locked and the program's; the source's bytes are present.
    let copied = unsafe {
        uffd.copy(destination + moved as usize * PAGE_BYTES, ARENA.address(rest.start), rest.len_bytes())
    };
    ARENA.give_resident(rest);
    moved + (copied.done_bytes / PAGE_BYTES) as u32
}

/// Makes the pages that `range` covers present, because the program is about to overwrite exactly
/// these bytes: whole pages get any page of ours, edges keep what they hold.
///
/// Only saves faults; what it cannot do is left to the fault service.
pub fn prepare_overwrite(block: &mut Locked, range: ByteRange, dropped: &mut Dropped<Segment>) {
    let whole = range.whole_pages();
    for run in absent_runs(block, whole) {
        if !uffd::moves() {
            fill_empty(block, run, dropped);
            continue;
        }
        let Ok(Resident { pages: resident, .. }) = ARENA.take_resident(run.len()) else {
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
            State::Empty => fill_empty(block, run, dropped),
            State::Viewed(view) => materialize(block, run, view, dropped),
        };
        if !progress {
            return;
        }
        at = run.end;
    }
}
