//! Faults that are served while a fork holds every lock.
//!
//! libc takes its own locks, malloc's among them, after the fork handlers have run. A thread that holds one
//! of those may be waiting for a page: the fork waits for that thread, the thread for the handler, and the
//! handler could wait for the locks that the fork holds. But the forking thread uses nothing of what it has
//! locked. So the handler may read it, and put a page in place without entering that anywhere:
//!
//! ```text
//! fork     close: the handler does nothing else any more ──► take every lock ──► open
//! handler  note the page ──► put its bytes in place ──► (refused: take the note back)
//! parent   shut ──► enter the noted pages as present ──► give the locks back ──► end
//! child    the same with its copy of the notes; what was noted and not yet placed is written
//! ```

use crate::arena::segment::Segment;
use crate::range::block::BlockRef;
use crate::range::directory;
use crate::range::page_in::zeroes;
use core::mem::ManuallyDrop;
use uncopy_core::addr::{PAGE_BYTES, PageRange};
use uncopy_core::page_map::Dropped;
use uncopy_sys::errno::Errno;
use uncopy_sys::sync::atomic::{
    AtomicU32, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};
use uncopy_sys::uffd::{Change, Uffd};
use uncopy_sys::{bytes, mem, thread};

/// Runs of pages that can be served during one fork: a thread that keeps it waiting touches few.
#[cfg(not(loom))]
const MAX_RUNS: usize = 1024;
#[cfg(loom)]
const MAX_RUNS: usize = 4;

/// The handler is at work.
const BUSY: u32 = 1;
/// A fork is under way: the handler changes nothing and takes no lock.
const FORK: u32 = 1 << 1;
/// The forking thread has every lock: the handler may read what they guard.
const OPEN: u32 = 1 << 2;

struct Window {
    state: AtomicU32,
    count: AtomicUsize,
    /// First address and the one after the last, of runs of pages that were put in place.
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

/// What the handler may do now; until it is dropped, a fork waits for it.
pub(crate) struct Turn(u32);

impl Turn {
    /// The handler's next turn.
    pub(crate) fn begin() -> Self {
        Self(WINDOW.state.fetch_or(BUSY, AcqRel))
    }

    /// Whether it may take locks and change what they guard.
    pub(crate) const fn is_free(&self) -> bool {
        self.0 & FORK == 0
    }

    /// Serves a fault where that is all it may do; false if it has to be tried again. `changes`: those of
    /// mappings that are not dealt with.
    pub(crate) fn serve(&self, uffd: Uffd, page_address: usize, changes: &[Change]) -> bool {
        if self.0 & OPEN == 0 {
            return false;
        }
        let Some(at) = directory::find(page_address) else {
            return changes.is_empty() && zeroes(uffd, page_address);
        };
        // What was put in place before and is absent again was given up by the program meanwhile (madvise).
        let is_gone = is_noted(page_address)
            || changes.iter().any(|change| (change.start..change.end).contains(&page_address));
        let Some(undo) = note(page_address) else { return false };
        let is_placed = place(uffd, at, page_address, is_gone);
        if !is_placed {
            undo.take_back();
        }
        is_placed
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        WINDOW.state.fetch_and(!BUSY, AcqRel);
    }
}

/// The last note.
struct Note {
    run: usize,
    page_address: usize,
}

impl Note {
    fn take_back(self) {
        let (start, end) = &WINDOW.runs[self.run];
        end.store(self.page_address, Relaxed);
        if start.load(Relaxed) == self.page_address {
            WINDOW.count.store(self.run, Relaxed);
        }
    }
}

/// Whether a page has been put in place during this fork.
fn is_noted(page_address: usize) -> bool {
    let count = WINDOW.count.load(Relaxed).min(MAX_RUNS);
    WINDOW.runs[..count]
        .iter()
        .any(|(start, end)| (start.load(Relaxed)..end.load(Relaxed)).contains(&page_address))
}

/// Notes that a page is about to be put in place. The kernel orders this before what follows from the page
/// being there: a child that has the page has the note.
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

/// Puts a page in place, entering that nowhere.
fn place(uffd: Uffd, at: BlockRef, page_address: usize, is_gone: bool) -> bool {
    // SAFETY: the window is open: the lock is held by a thread that does nothing with it.
    let seen = unsafe { at.seen_through() };
    let target = seen.map().and_then(|map| map.target(at.page(page_address)));
    let Some((segment, offset_bytes)) = target.filter(|_| !is_gone) else {
        return zeroes(uffd, page_address);
    };
    // SAFETY: the segment's bytes are present and stay so while the view is there.
    let placed = unsafe { at.uffd().copy(page_address, segment.address() + offset_bytes, PAGE_BYTES) };
    match placed.error {
        None => true,
        Some(Errno::EEXIST) => uffd.wake(page_address, PAGE_BYTES),
        Some(_) => false,
    }
}

/// Before the locks are taken: waits until the handler is at nothing, and keeps it so.
pub(crate) fn close() {
    WINDOW.state.fetch_or(FORK, AcqRel);
    wait_for_the_handler();
}

/// The calling thread has every lock and leaves everything alone until [`shut`].
pub(crate) fn open() {
    WINDOW.count.store(0, Relaxed);
    WINDOW.state.fetch_or(OPEN, AcqRel);
}

/// After the fork, in the parent, with the locks of all blocks still held: no page is served by the window
/// from here on, and those that were are entered as present. What is dropped is to be released when the
/// locks are given back.
pub(crate) fn shut(dropped: &mut Dropped<Segment>) {
    WINDOW.state.fetch_and(!OPEN, AcqRel);
    wait_for_the_handler();
    enter(dropped);
}

/// The locks are given back: the handler goes on.
pub(crate) fn end() {
    WINDOW.state.fetch_and(!FORK, AcqRel);
}

fn wait_for_the_handler() {
    while WINDOW.state.load(Acquire) & BUSY != 0 {
        thread::pause();
    }
}

/// [`shut`] and [`end`] in the child, which has no handler yet and whose memory is not registered.
pub(crate) fn end_in_child(dropped: &mut Dropped<Segment>) {
    WINDOW.state.store(0, Relaxed);
    for_each_noted(|at, page_address| {
        // SAFETY: nobody else is there, and this thread gave the locks back.
        let seen = unsafe { at.seen_through() };
        if let Some((segment, offset_bytes)) = seen.map().and_then(|map| map.target(at.page(page_address)))
            && !mem::is_there(page_address)
        {
            let source = segment.address() + offset_bytes;
            // SAFETY: a page of the program's that nothing is registered for; the view holds the segment.
            unsafe { bytes::copy(page_address as *mut u8, source as *const u8, PAGE_BYTES) };
        }
    });
    enter(dropped);
}

fn enter(dropped: &mut Dropped<Segment>) {
    for_each_noted(|at, page_address| {
        let page = at.page(page_address);
        // SAFETY: the calling thread holds the lock, or is the only one there is.
        let mut seen: ManuallyDrop<_> = unsafe { at.seen_through() };
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
