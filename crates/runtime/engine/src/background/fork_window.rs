//! The window: faults that are served while a fork holds every lock.
//!
//! libc takes its own locks, malloc's among them, after the fork handlers have run. A thread that holds one
//! of those may be waiting for a page: the fork waits for that thread, the thread for the handler, and the
//! handler would wait for locks that the fork holds. But the forking thread does not use what it has
//! locked. So the handler may read it, and place a page without updating page maps:
//!
//! ```text
//! fork     begin: the handler does nothing else any more ──► take every lock ──► open
//! handler  note the page ──► place its bytes ──► (refused: remove the note)
//! parent   close ──► enter the noted pages as present ──► release the locks ──► end
//! child    the same with its copy of the notes; pages noted and not yet placed are written
//! ```

use crate::arena::segment::Segment;
use crate::range::block::BlockRef;
use crate::range::directory;
use crate::range::page_in::place_zeroes;
use core::mem::ManuallyDrop;
use uncopy_core::addr::{PAGE_BYTES, PageRange};
use uncopy_core::page_map::Dropped;
use uncopy_sys::errno::Errno;
use uncopy_sys::sync::atomic::{
    AtomicU32, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};
use uncopy_sys::uffd::{Change, Uffd};
use uncopy_sys::{bytes, mem, thread};

/// Bound on the runs of pages served during one fork: a thread that the fork waits for touches few.
#[cfg(not(loom))]
const MAX_RUNS: usize = 1024;
#[cfg(loom)]
const MAX_RUNS: usize = 4;

const BUSY: u32 = 1;
/// A fork is in progress: the handler changes nothing and takes no lock.
const FORK: u32 = 1 << 1;
/// The forking thread holds every lock: the handler may read the data that they guard.
const OPEN: u32 = 1 << 2;

struct Window {
    state: AtomicU32,
    count: AtomicUsize,
    /// First address, and the one after the last, of each run of placed pages.
    runs: [(AtomicUsize, AtomicUsize); MAX_RUNS],
}

uncopy_sys::statics! {
    static WINDOW: Window = Window {
        state: AtomicU32::new(0),
        count: AtomicUsize::new(0),
        #[cfg(not(loom))]
        runs: [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; MAX_RUNS],
        #[cfg(loom)]
        runs: core::array::from_fn(|_| (AtomicUsize::new(0), AtomicUsize::new(0))),
    };
}

/// A turn of the handler, with its permissions; a fork waits until it is dropped.
pub(crate) struct Turn(u32);

impl Turn {
    pub(crate) fn begin() -> Self {
        Self(WINDOW.state.fetch_or(BUSY, AcqRel))
    }

    /// Whether the handler may take locks and change data that they guard.
    pub(crate) const fn is_free(&self) -> bool {
        self.0 & FORK == 0
    }

    /// Serves a fault while a fork is in progress; false: it must be retried. `changes`: changes of
    /// mappings that were not followed.
    pub(crate) fn serve(&self, uffd: Uffd, page_address: usize, changes: &[Change]) -> bool {
        if self.0 & OPEN == 0 {
            return false;
        }
        let Some(at) = directory::find(page_address) else {
            return changes.is_empty() && place_zeroes(uffd, page_address);
        };
        // A page that was placed before and is absent again was dropped by the program meanwhile (madvise).
        let is_gone = is_noted(page_address)
            || changes.iter().any(|change| (change.start..change.end).contains(&page_address));
        let Some(noted) = note(page_address) else { return false };
        let is_placed = place(uffd, at, page_address, is_gone);
        if !is_placed {
            noted.remove();
        }
        is_placed
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        WINDOW.state.fetch_and(!BUSY, AcqRel);
    }
}

/// A page noted last, so that the note can be removed.
struct Note {
    run: usize,
    page_address: usize,
}

impl Note {
    fn remove(self) {
        let (start, end) = &WINDOW.runs[self.run];
        end.store(self.page_address, Relaxed);
        if start.load(Relaxed) == self.page_address {
            WINDOW.count.store(self.run, Relaxed);
        }
    }
}

fn is_noted(page_address: usize) -> bool {
    let count = WINDOW.count.load(Relaxed).min(MAX_RUNS);
    WINDOW.runs[..count]
        .iter()
        .any(|(start, end)| (start.load(Relaxed)..end.load(Relaxed)).contains(&page_address))
}

/// Notes that a page is about to be placed. The kernel orders the note before effects of the page: a child
/// that has the page has the note.
fn note(page_address: usize) -> Option<Note> {
    let count = WINDOW.count.load(Relaxed);
    if let Some(last) = count.checked_sub(1)
        && WINDOW.runs[last].1.load(Relaxed) == page_address
    {
        WINDOW.runs[last].1.store(page_address + PAGE_BYTES, Relaxed);
        return Some(Note { run: last, page_address });
    }
    let (start, end) = WINDOW.runs.get(count)?;
    start.store(page_address, Relaxed);
    end.store(page_address + PAGE_BYTES, Relaxed);
    WINDOW.count.store(count + 1, uncopy_sys::sync::atomic::Ordering::Release);
    Some(Note { run: count, page_address })
}

/// Places a page without updating the page map.
fn place(uffd: Uffd, at: BlockRef, page_address: usize, is_gone: bool) -> bool {
    // SAFETY: the window is open, so the lock is held by the forking thread, which does not touch the block
    // meanwhile.
    let seen = unsafe { at.assume_locked() };
    let target = seen.map().and_then(|map| map.target(at.page(page_address)));
    let Some((segment, offset_bytes)) = target.filter(|_| !is_gone) else {
        return place_zeroes(uffd, page_address);
    };
    // SAFETY: the segment's bytes are present while its view is in the page map, which nothing changes
    // while the window is open; `copy` fills absent pages only.
    let placed = unsafe { at.uffd().copy(page_address, segment.address() + offset_bytes, PAGE_BYTES) };
    match placed.error {
        None => true,
        Some(Errno::EEXIST) => uffd.wake(page_address, PAGE_BYTES),
        Some(_) => false,
    }
}

/// Waits until the handler has finished its turn, and restricts later ones. To be called before the locks are taken.
pub(crate) fn begin() {
    WINDOW.state.fetch_or(FORK, AcqRel);
    wait_for_the_handler();
}

/// Opens the window: the calling thread holds every lock and touches no guarded data until [`close`].
pub(crate) fn open() {
    WINDOW.count.store(0, Relaxed);
    WINDOW.state.fetch_or(OPEN, AcqRel);
}

/// Closes the window in the parent, with the locks of all blocks still held, and enters the pages that were
/// placed as present. `dropped` is to be released after the locks.
pub(crate) fn close(dropped: &mut Dropped<Segment>) {
    WINDOW.state.fetch_and(!OPEN, AcqRel);
    wait_for_the_handler();
    enter_notes(dropped);
}

/// Ends the restrictions, once the locks are released.
pub(crate) fn end() {
    WINDOW.state.fetch_and(!FORK, AcqRel);
}

fn wait_for_the_handler() {
    while WINDOW.state.load(Acquire) & BUSY != 0 {
        thread::pause();
    }
}

/// Does the work of [`close`] and [`end`] in the child, which has no handler yet and whose memory is not registered.
pub(crate) fn end_in_child(dropped: &mut Dropped<Segment>) {
    WINDOW.state.store(0, Relaxed);
    for_each_noted(|at, page_address| {
        // SAFETY: a forked child has one thread, so no other one uses the block.
        let seen = unsafe { at.assume_locked() };
        if let Some((segment, offset_bytes)) = seen.map().and_then(|map| map.target(at.page(page_address)))
            && !mem::is_present_or_swapped(page_address)
        {
            let source = segment.address() + offset_bytes;
            // SAFETY: the page belongs to the program, is absent and not registered, so writing to it is
            // possible; the view holds the segment.
            unsafe { bytes::copy(page_address as *mut u8, source as *const u8, PAGE_BYTES) };
        }
    });
    enter_notes(dropped);
}

fn enter_notes(dropped: &mut Dropped<Segment>) {
    for_each_noted(|at, page_address| {
        let page = at.page(page_address);
        // SAFETY: the calling thread holds the block's lock, or is the only one of a forked child.
        let mut seen: ManuallyDrop<_> = unsafe { at.assume_locked() };
        seen.change(|map| map.set_present(PageRange::new(page, page + 1), dropped));
    });
    WINDOW.count.store(0, Relaxed);
}

fn for_each_noted(mut each: impl FnMut(BlockRef, usize)) {
    for (start, end) in &WINDOW.runs[..WINDOW.count.load(Acquire)] {
        for page_address in (start.load(Relaxed)..end.load(Relaxed)).step_by(PAGE_BYTES) {
            if let Some(at) = directory::find(page_address) {
                each(at, page_address);
            }
        }
    }
}
