//! The handler thread: places the bytes of viewed and empty pages when the program, or the kernel on its
//! behalf, touches them.
//!
//! The handler never waits for a lock. A fault in a block that another thread has locked is kept and
//! retried. A fault in a block that the faulting thread itself has locked is at a page that the program
//! gave back to the kernel, which reads as zeroes.

use crate::account::books;
use crate::arena::pages::ARENA;
use crate::arena::segment::Segment;
use crate::background::fork_window::Turn;
use crate::background::release;
use crate::background::requests::Inbox;
use crate::background::upkeep::Rounds;
use crate::range::block::{BlockRef, Locked};
use crate::range::changes::CHANGES;
use crate::range::directory;
use crate::range::foreign::FOREIGN;
use crate::range::page_in::{fill_empty, materialize, place_zeroes};
use crate::state::phase::{Phase, STATE};
use crate::state::{children, counters, recording};
use core::ffi::c_void;
use uncopy_core::addr::{PAGE_BYTES, PageRange};
use uncopy_core::page_map::{Dropped, State, View};
use uncopy_core::stats::REASON_RELEASED;
use uncopy_sys::control::Control;
use uncopy_sys::errno::Errno;
use uncopy_sys::handler::{HandlerStart, OwnersFault};
use uncopy_sys::last_thread::{self, LastThread, Role};
use uncopy_sys::lock::Critical;
use uncopy_sys::probes;
use uncopy_sys::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};
use uncopy_sys::thread;
use uncopy_sys::uffd::{Change, Fault, Message, Uffd, wait};

/// Most pages placed by one fault: with sequential access the batch doubles up to this.
const MAX_BATCH: u32 = 128;
/// Pages placed by the first fault in an empty run.
const BATCH_EMPTY: u32 = 4;
/// Pause before a fault that could not be served is retried, ms.
const RETRY_MS: i32 = 1;
/// Number of retries without a pause, before those with one.
const EAGER_TRIES: u32 = 200;
/// Initial capacity for faults and changes of mappings: the handler must not wait for the allocator while a
/// fork holds it.
const MAX_LIST: usize = 2048;

/// Number of tries to make ranges plain whose mappings have changed.
const CLEAR_TRIES: u32 = 2_000;

uncopy_sys::statics! {
    static START: HandlerStart = HandlerStart::new(Role::Faults);
    /// Page whose fault tells the handler thread to end; 0: none; [`ENDING`]: the handler is ending.
    static END_PAGE: AtomicUsize = AtomicUsize::new(0);
}

const ENDING: usize = 1;
/// Number of polls before `stop` gives up.
const MAX_END_POLLS: u32 = 50_000;

/// Ends the handler thread and waits until it is gone. False: it could not be ended and goes on.
///
/// To be called by the program's only thread, while no signal handler of the program can run. No view may
/// be touched until a handler runs again.
pub(crate) fn stop() -> bool {
    if ARENA.uffd().wake_handler(|page| END_PAGE.store(page, Release)).is_err() {
        return false;
    }
    for _ in 0..MAX_END_POLLS {
        if END_PAGE.load(Acquire) == ENDING {
            break;
        }
        thread::pause();
    }
    // A thread that has stored `ENDING` ends without further conditions.
    let ends = END_PAGE.swap(0, AcqRel) == ENDING;
    while ends && thread::has_handler() {
        thread::pause();
    }
    if ends {
        last_thread::forget(Role::Faults);
    }
    ends
}

/// Starts the handler thread of the heap's userfaultfd and of the foreign ranges', and waits until it has
/// its own copies of the descriptors.
///
/// # Errors
/// The errors of pthread_create(3).
pub fn start(main: Uffd, foreign: Option<Uffd>) -> Result<(), Errno> {
    let foreign_fd = foreign.map_or(-1, Uffd::fd);
    START.run(run, main.fd() as u32 as usize | (foreign_fd as u32 as usize) << 32)
}

/// State of the handler thread.
struct Handler {
    main: Uffd,
    foreign: Option<Uffd>,
    control: Control,
    inbox: Inbox,
    last_thread: LastThread,
    /// Faults that could not be served yet.
    waiting: Vec<(Uffd, Fault)>,
    /// Changes that were not followed yet.
    changes: Vec<Change>,
    owners_fault: OwnersFault,
    /// True if changes of foreign ranges are to be read, but a hook is making a range plain.
    has_unread_changes: bool,
    /// True while ranges with changed mappings are still to be made plain.
    must_clear: bool,
    /// True while views are being turned back into plain memory.
    must_release: bool,
    /// True if the thread was told to end, once it has nothing left to do.
    must_end: bool,
    /// Upkeep, for idle times.
    rounds: Rounds,
}

extern "C" fn run(argument: *mut c_void) -> *mut c_void {
    let (main, foreign) = (argument as usize as i32, (argument as usize >> 32) as i32);
    let _critical = Critical::enter();
    // A refusal (seccomp) leaves the descriptors shared with the program, which then must not close them.
    let (is_isolated, last_thread) = START.isolate([main, foreign]);
    let (main, foreign) = (Uffd::from_fd(main), (foreign >= 0).then(|| Uffd::from_fd(foreign)));
    ARENA.descriptor().set_handler_fd(Some(main).filter(|_| is_isolated));
    CHANGES.descriptor().set_handler_fd(foreign.filter(|_| is_isolated));
    let mut handler = Handler {
        main,
        foreign,
        control: if is_isolated { counters::open_control() } else { Control::NONE },
        inbox: Inbox::new(),
        last_thread,
        waiting: Vec::with_capacity(MAX_LIST),
        changes: Vec::with_capacity(MAX_LIST),
        owners_fault: OwnersFault::default(),
        has_unread_changes: false,
        must_clear: false,
        must_release: false,
        must_end: false,
        rounds: Rounds::new(),
    };
    START.report(Ok(()));
    handler.serve_all();
    handler.rounds.end();
    core::ptr::null_mut()
}

impl Handler {
    fn serve_all(&mut self) {
        let mut tries = 0;
        loop {
            let is_idle = self.waiting.is_empty() && self.changes.is_empty() && !self.is_busy();
            let timeout_ms = match tries {
                _ if is_idle => self.rounds.timeout_ms(),
                0..EAGER_TRIES => 0,
                _ => RETRY_MS,
            };
            let before = (self.waiting.len(), self.changes.len());
            if !self.read(timeout_ms) {
                return;
            }
            self.rounds.wake();
            let after = (self.waiting.len(), self.changes.len());
            let turn = Turn::begin();
            let is_free = turn.is_free();
            if is_free {
                self.work();
                if self.waiting.is_empty() && self.changes.is_empty() && !self.is_busy() {
                    self.rounds.step();
                }
            } else {
                self.work_during_a_fork(&turn);
            }
            drop(turn);
            // A fork waits for the end of a turn, so the turn is ended before this thread sleeps. A round
            // of upkeep continues after the fork.
            if !is_free && self.waiting.is_empty() {
                thread::pause();
            }
            let left = (self.waiting.len(), self.changes.len());
            if self.must_end && left == (0, 0) && !self.must_release {
                let end_page = END_PAGE.load(Acquire);
                if end_page > ENDING && END_PAGE.compare_exchange(end_page, ENDING, AcqRel, Acquire).is_ok() {
                    return;
                }
                self.must_end = false;
            }
            if left != after || left != before {
                tries = 0;
            } else if left != (0, 0) || self.is_busy() {
                tries += 1;
                // Ranges that could not be made plain by now are still served.
                self.must_clear &= tries < CLEAR_TRIES;
                thread::pause();
            }
        }
    }

    /// Whether there is other work than serving faults and following changes.
    const fn is_busy(&self) -> bool {
        self.has_unread_changes || self.must_clear || self.must_release
    }

    /// Waits, and reads faults, changes and requests. False if there is nothing left to serve.
    fn read(&mut self, timeout_ms: i32) -> bool {
        let timeout_ms = self.last_thread.timeout_ms(timeout_ms);
        let ready = wait(self.main, self.foreign, self.control, self.last_thread.fd(), timeout_ms);
        if self.last_thread.has_ended(ready.program) {
            last_thread::end_process();
        }
        if ready.is_closed {
            return false;
        }
        if let Some(foreign) = self.foreign.filter(|_| ready.second && CHANGES.begin_read()) {
            let is_open = foreign.read(|message| match message {
                Message::Fault(fault) => self.waiting.push((foreign, fault)),
                Message::Change(change) => self.changes.push(change),
            });
            FOREIGN.mark_changed(&self.changes);
            self.has_unread_changes = false;
            if !is_open {
                self.foreign = None;
            }
        } else if ready.second {
            self.has_unread_changes = true;
            thread::pause();
        } else if core::mem::take(&mut self.has_unread_changes) {
            CHANGES.cancel_read();
        }
        self.must_release |= ready.control && self.inbox.take(self.control);
        let main = self.main;
        !ready.first
            || main.read(|message| {
                if let Message::Fault(fault) = message {
                    self.must_end |= fault.address / PAGE_BYTES * PAGE_BYTES == END_PAGE.load(Acquire);
                    self.waiting.push((main, fault));
                }
            })
    }

    fn work(&mut self) {
        if !self.changes.is_empty() {
            // In order, because a moved mapping is reported as unmapped right after.
            let done = self.changes.iter().take_while(|change| FOREIGN.follow(**change)).count();
            self.changes.drain(..done);
            self.must_clear = true;
            FOREIGN.mark_changed(&self.changes);
        }
        if self.must_clear && self.changes.is_empty() {
            self.must_clear = !FOREIGN.clear_changed();
        }
        if self.must_release && self.changes.is_empty() {
            let is_retired = STATE.phase() == Phase::Inactive || release::try_retire(REASON_RELEASED);
            self.must_release = !(is_retired && release::try_release_pass());
        }
        // A fault in unknown memory may be where a mapping has just been moved.
        let is_settled = self.changes.is_empty();
        let owners_fault = &mut self.owners_fault;
        self.waiting.retain(|(uffd, fault)| !serve(*uffd, *fault, is_settled, owners_fault));
    }

    /// Serves faults only, as far as possible, while a fork is in progress.
    fn work_during_a_fork(&mut self, turn: &Turn) {
        let changes = &self.changes;
        self.waiting.retain(|(uffd, fault)| {
            let page_address = fault.address / PAGE_BYTES * PAGE_BYTES;
            !turn.serve(*uffd, page_address, changes)
        });
    }
}

/// Position of a fault, as far as known without the block's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    /// In the arena, whose pages are present while in use: the bell of `upkeep`, or the handler's own.
    Arena,
    /// In no block and no foreign range.
    Unknown,
    /// In a block whose lock the faulting thread holds.
    OwnersBlock {
        /// True once the same fault was seen often enough: see [`OwnersFault`].
        is_waiting: bool,
    },
    /// In a block of the heap whose lock is not the faulting thread's.
    HeapBlock,
    /// In a foreign range whose lock is not the faulting thread's.
    ForeignRange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Zeroes,
    /// Only wake the thread, which faults again if the page is still absent.
    Wake,
    Retry,
    /// Place the bytes that the block's map has for the page.
    FromMap,
}

/// Chooses the way of serving a fault at `place`. `is_settled`: every reported change of mappings has been followed.
const fn decide(place: Location, is_settled: bool) -> Action {
    match (place, is_settled) {
        // If a page of the arena in use were absent after all, zeroes beat a hang.
        (Location::Arena, _) | (Location::OwnersBlock { is_waiting: true }, _) => Action::Zeroes,
        // The page is left over from a foreign range that is gone, and is empty.
        (Location::Unknown, true) => Action::Zeroes,
        (Location::OwnersBlock { is_waiting: false }, _) => Action::Wake,
        // A change that was not followed may have moved a mapping here, or unmapped the page.
        (Location::Unknown | Location::ForeignRange, false) => Action::Retry,
        (Location::HeapBlock, _) | (Location::ForeignRange, true) => Action::FromMap,
    }
}

/// Serves one fault; false: it must be retried.
fn serve(uffd: Uffd, fault: Fault, is_settled: bool, owners_fault: &mut OwnersFault) -> bool {
    let page_address = fault.address / PAGE_BYTES * PAGE_BYTES;
    let is_in_arena = ARENA.contains(page_address);
    let block = if is_in_arena { None } else { directory::find(page_address) };
    let place = match block {
        None if is_in_arena => Location::Arena,
        None => Location::Unknown,
        Some(at) if at.block.lock.owner() == fault.thread_id => {
            Location::OwnersBlock { is_waiting: owners_fault.is_waiting(fault, at.block.lock_count()) }
        }
        Some(at) if at.slot.is_some() => Location::ForeignRange,
        Some(_) => Location::HeapBlock,
    };
    match decide(place, is_settled) {
        Action::Zeroes => place_zeroes(uffd, page_address),
        Action::Wake => uffd.wake(page_address, PAGE_BYTES),
        Action::Retry => false,
        Action::FromMap => block.and_then(|at| at.try_lock()).is_some_and(|mut locked| {
            !locked.is_stale() && serve_locked(&mut locked, page_address, fault.thread_id)
        }),
    }
}

#[derive(Debug, PartialEq)]
enum Filling {
    /// A page of zeroes: the block has no map any more, or the page is present and the thread only needs to be woken.
    Zeroes,
    /// A run of pages that read as zeroes.
    Empty(PageRange),
    /// A run of pages with a view's bytes.
    View(PageRange, View<Segment>),
}

/// Chooses the filling for a fault at `page`. `found`: the page's state and the run of pages that share it.
/// `wants_run`: fill the whole run at once; otherwise `batch` returns the part worth filling.
fn fill(
    page: u32,
    found: Option<(PageRange, State<Segment>)>,
    wants_run: bool,
    batch: impl FnOnce(PageRange, u32) -> PageRange,
) -> Filling {
    match found {
        None | Some((_, State::Present)) => Filling::Zeroes,
        Some((run, State::Empty)) => Filling::Empty(batch(run, BATCH_EMPTY)),
        Some((run, State::Viewed(view))) if wants_run => Filling::View(run, view),
        // Placed along with others, a page would not show whether the program touches it.
        Some((_, State::Viewed(view))) if recording::is_row(view.site) => {
            Filling::View(PageRange::new(page, page + 1), view)
        }
        Some((run, State::Viewed(view))) => Filling::View(batch(run, 1), view),
    }
}

fn serve_locked(locked: &mut Locked, page_address: usize, thread_id: u32) -> bool {
    let at = locked.at;
    let page = ((page_address - at.base) / PAGE_BYTES) as u32;
    let found = locked.map().map(|map| map.at(page, PageRange::new(page, at.pages)));
    let mut dropped = Dropped::new();
    match fill(page, found, locked.has_many_views(), |run, first| batch(at, page, run, first)) {
        Filling::Zeroes => place_zeroes(at.uffd(), page_address),
        Filling::Empty(pages) => {
            let alloc_site = at.slot.is_none().then(|| at.block.alloc_site());
            books::enter_empty_fault(alloc_site, pages);
            probes::fault(page_address, pages.len(), false, thread_id);
            fill_empty(locked, pages, &mut dropped)
        }
        Filling::View(pages, view) => {
            books::enter_view_fault(&view, at.buffer(view.site, page), pages);
            if view.segment.is_inherited() {
                children::record_read(pages.len());
            }
            probes::fault(page_address, pages.len(), true, thread_id);
            materialize(locked, pages, view, &mut dropped)
        }
    }
}

/// Pages to place for a fault at `page` in `run`: `first` pages, or twice the last batch if the program
/// touches pages in order.
fn batch(at: BlockRef, page: u32, run: PageRange, first: u32) -> PageRange {
    let last = at.block.last_batch();
    let len = if last.end == page { (last.pages * 2).clamp(first, MAX_BATCH) } else { first };
    let end = run.end.min(page + len);
    at.block.set_last_batch(end, len);
    PageRange::new(page, end)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_its_action() {
        use Action::{FromMap, Retry, Wake, Zeroes};
        let (early, believed) =
            (Location::OwnersBlock { is_waiting: false }, Location::OwnersBlock { is_waiting: true });
        // Each place, with its action before and after changes of mappings were followed.
        let table = [
            (Location::Arena, Zeroes, Zeroes),
            (Location::Unknown, Retry, Zeroes),
            (early, Wake, Wake),
            (believed, Zeroes, Zeroes),
            (Location::HeapBlock, FromMap, FromMap),
            (Location::ForeignRange, Retry, FromMap),
        ];
        for (place, unsettled, settled) in table {
            assert_eq!((decide(place, false), decide(place, true)), (unsettled, settled), "{place:?}");
        }
    }

    #[test]
    fn pages_that_are_not_viewed_are_filled_with_zeroes() {
        let (run, part) = (PageRange::new(3, 90), PageRange::new(5, 9));
        let found = |state| Some((run, state));
        let given = |state, wants_run| {
            fill(5, state, wants_run, |of, first| {
                assert_eq!((of, first), (run, BATCH_EMPTY));
                part
            })
        };
        assert_eq!(given(None, false), Filling::Zeroes);
        assert_eq!(given(found(State::Present), true), Filling::Zeroes);
        // Many views do not make empty pages worth more.
        assert_eq!(given(found(State::Empty), true), Filling::Empty(part));
        assert_eq!(given(found(State::Empty), false), Filling::Empty(part));
    }
}
