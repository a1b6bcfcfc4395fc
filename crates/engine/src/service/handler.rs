//! The fault service: puts the bytes of viewed and empty pages in place when they are touched, by the
//! program or by the kernel on its behalf.
//!
//! It never waits for a lock. A fault in a block that another thread holds is kept and tried again;
//! a fault in a block whose lock the faulting thread itself holds is a page that the program gave
//! back to the kernel behind our back: it reads as zeroes.

use crate::account::books;
use crate::arena::pages::ARENA;
use crate::arena::segment::Segment;
use crate::range::block::{BlockRef, Locked};
use crate::range::changes::CHANGES;
use crate::range::directory;
use crate::range::foreign::FOREIGN;
use crate::range::page_in::{fill_empty, materialize, zeroes};
use crate::service::release;
use crate::service::requests::Inbox;
use crate::service::upkeep::Rounds;
use crate::service::window::Turn;
use crate::state::phase::{Phase, STATE};
use crate::state::policy::POLICY;
use crate::state::{counters, recording};
use core::ffi::c_void;
use uncopy_core::addr::{PAGE_BYTES, PageRange};
use uncopy_core::page_map::{Dropped, State};
use uncopy_core::stats::REASON_RELEASED;
use uncopy_sys::control::Control;
use uncopy_sys::errno::Errno;
use uncopy_sys::handler::{OwnersFault, Start};
use uncopy_sys::last_thread::{self, LastThread, Role};
use uncopy_sys::lock::Critical;
use uncopy_sys::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};
use uncopy_sys::thread;
use uncopy_sys::uffd::{Change, Fault, Message, Uffd, wait};

/// Pages put in place by one fault at most: sequential touching doubles up to here.
const MAX_BATCH: u32 = 128;
/// Pages put in place by the first fault in an empty stretch.
const BATCH_EMPTY: u32 = 4;
/// How long a fault that cannot be served yet waits for the next try, ms.
const RETRY_MS: i32 = 1;
/// Tries without a pause before that.
const EAGER_TRIES: u32 = 200;
/// Faults, and changes of mappings, that there is room for from the start: the handler must not wait for the
/// allocator while a fork holds it.
const MAX_LIST: usize = 2048;

/// Tries to make ranges plain whose mappings have changed.
const CLEAR_TRIES: u32 = 2_000;

uncopy_sys::statics! {
    static START: Start = Start::new(Role::Faults);
    /// The page whose fault tells the handler thread to end; 0: none; [`ENDS`]: it does.
    static BELL: AtomicUsize = AtomicUsize::new(0);
}

const ENDS: usize = 1;
/// Polls before abandoning shutdown.
const MAX_END_POLLS: u32 = 50_000;

/// Ends the handler thread and waits until the kernel has forgotten it. False: it goes on.
///
/// For the only thread that the program has, while no handler of the program can run: nobody may touch a view from here on
/// until a handler runs again.
pub(crate) fn stop() -> bool {
    if ARENA.uffd().ring(|page| BELL.store(page, Release)).is_err() {
        return false;
    }
    for _ in 0..MAX_END_POLLS {
        if BELL.load(Acquire) == ENDS {
            break;
        }
        thread::pause();
    }
    // Once it has said that it ends, it does.
    let ends = BELL.swap(0, AcqRel) == ENDS;
    while ends && thread::handler_lives() {
        thread::pause();
    }
    if ends {
        last_thread::forget(Role::Faults);
    }
    ends
}

/// Starts the handler thread of the heap's userfaultfd and of the foreign ranges', and waits until it holds
/// the descriptors by itself.
///
/// # Errors
/// What pthread_create says.
pub fn start(main: Uffd, foreign: Option<Uffd>) -> Result<(), Errno> {
    let foreign_fd = foreign.map_or(-1, Uffd::fd);
    START.run(run, main.fd() as u32 as usize | (foreign_fd as u32 as usize) << 32)
}

/// What the handler thread knows.
struct Handler {
    main: Uffd,
    foreign: Option<Uffd>,
    control: Control,
    inbox: Inbox,
    last_thread: LastThread,
    /// Faults that cannot be served yet.
    waiting: Vec<(Uffd, Fault)>,
    /// Changes that are not dealt with yet.
    changes: Vec<Change>,
    owners_fault: OwnersFault,
    /// There is something to read of foreign ranges, but a hook is making one plain.
    wants_changes: bool,
    /// Ranges that changes concerned are not all plain yet.
    clears: bool,
    /// Views are being turned back into plain memory.
    releases: bool,
    /// It has been told to end, once it has nothing left to do.
    is_called: bool,
    /// What it does when there is nothing else to do.
    rounds: Rounds,
}

extern "C" fn run(argument: *mut c_void) -> *mut c_void {
    let (main, foreign) = (argument as usize as i32, (argument as usize >> 32) as i32);
    let _critical = Critical::enter();
    // A refusal (seccomp) leaves the descriptors shared with the program, which then must not close them.
    let (is_isolated, last_thread) = START.isolate([main, foreign]);
    let (main, foreign) = (Uffd::from_fd(main), (foreign >= 0).then(|| Uffd::from_fd(foreign)));
    ARENA.descriptor().isolate(Some(main).filter(|_| is_isolated));
    CHANGES.descriptor().isolate(foreign.filter(|_| is_isolated));
    let mut handler = Handler {
        main,
        foreign,
        control: if is_isolated { counters::open_control() } else { Control::NONE },
        inbox: Inbox::new(),
        last_thread,
        waiting: Vec::with_capacity(MAX_LIST),
        changes: Vec::with_capacity(MAX_LIST),
        owners_fault: OwnersFault::default(),
        wants_changes: false,
        clears: false,
        releases: false,
        is_called: false,
        rounds: Rounds::new(),
    };
    START.tell(Ok(()));
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
            // A round of upkeep goes on as soon as the fork is over. The fork waits for the end of a turn: none lasts while this thread
            // sleeps.
            if !is_free && self.waiting.is_empty() {
                thread::pause();
            }
            let left = (self.waiting.len(), self.changes.len());
            if self.is_called && left == (0, 0) && !self.releases {
                let bell = BELL.load(Acquire);
                if bell > ENDS && BELL.compare_exchange(bell, ENDS, AcqRel, Acquire).is_ok() {
                    return;
                }
                self.is_called = false;
            }
            if left != after || left != before {
                tries = 0;
            } else if left != (0, 0) || self.is_busy() {
                tries += 1;
                // What cannot be made plain by now goes on being served.
                self.clears &= tries < CLEAR_TRIES;
                thread::pause();
            }
        }
    }

    /// Whether there is more to do than faults and changes to serve.
    const fn is_busy(&self) -> bool {
        self.wants_changes || self.clears || self.releases
    }

    /// Waits and takes in what there is; false when there is nothing left to serve.
    fn read(&mut self, timeout_ms: i32) -> bool {
        let timeout_ms = self.last_thread.timeout_ms(timeout_ms);
        let ready = wait(self.main, self.foreign, self.control, self.last_thread.fd(), timeout_ms);
        if self.last_thread.has_ended(ready.program) {
            last_thread::end_process();
        }
        if ready.is_closed {
            return false;
        }
        if let Some(foreign) = self.foreign.filter(|_| ready.second && CHANGES.begin_change()) {
            let is_open = foreign.read(|message| match message {
                Message::Fault(fault) => self.waiting.push((foreign, fault)),
                Message::Change(change) => self.changes.push(change),
            });
            FOREIGN.mark_changed(&self.changes);
            self.wants_changes = false;
            if !is_open {
                self.foreign = None;
            }
        } else if ready.second {
            self.wants_changes = true;
            thread::pause();
        } else if core::mem::take(&mut self.wants_changes) {
            CHANGES.end_change();
        }
        self.releases |= ready.control && self.inbox.take(self.control);
        let main = self.main;
        !ready.first
            || main.read(|message| {
                if let Message::Fault(fault) = message {
                    self.is_called |= fault.address / PAGE_BYTES * PAGE_BYTES == BELL.load(Acquire);
                    self.waiting.push((main, fault));
                }
            })
    }

    /// One try at everything that is to be done.
    fn work(&mut self) {
        if !self.changes.is_empty() {
            // In order: a mapping that has moved is reported as gone right after.
            let done = self.changes.iter().take_while(|change| FOREIGN.follow(**change)).count();
            self.changes.drain(..done);
            self.clears = true;
            FOREIGN.mark_changed(&self.changes);
        }
        if self.clears && self.changes.is_empty() {
            self.clears = !FOREIGN.clear_changed();
        }
        if self.releases && self.changes.is_empty() {
            let is_retired = STATE.phase() == Phase::Inactive || release::try_retire(REASON_RELEASED);
            self.releases = !(is_retired && release::round_without_waiting());
        }
        // A fault where nothing is known may lie where a mapping has just moved to.
        let is_settled = self.changes.is_empty();
        let owners_fault = &mut self.owners_fault;
        self.waiting.retain(|(uffd, fault)| !serve(*uffd, *fault, is_settled, owners_fault));
    }

    /// The same while a fork is under way: nothing but faults, as far as they can be served.
    fn work_during_a_fork(&mut self, turn: &Turn) {
        let changes = &self.changes;
        self.waiting.retain(|(uffd, fault)| {
            let page_address = fault.address / PAGE_BYTES * PAGE_BYTES;
            !turn.serve(*uffd, page_address, changes)
        });
    }
}

/// Serves one fault; false if it has to be tried again. `is_settled`: every change of mappings has been
/// dealt with.
fn serve(uffd: Uffd, fault: Fault, is_settled: bool, owners_fault: &mut OwnersFault) -> bool {
    let page_address = fault.address / PAGE_BYTES * PAGE_BYTES;
    if ARENA.contains(page_address) {
        // The bell of `upkeep`, or the handler's own. Else the arena is always present while in use; should it not
        // be, zeroes beat a hang.
        return zeroes(uffd, page_address);
    }
    let Some(at) = directory::find(page_address) else {
        // What is left of a foreign range that is gone is empty.
        return is_settled && zeroes(uffd, page_address);
    };
    if at.block.lock.owner() == fault.thread_id {
        let is_waiting = owners_fault.is_waiting(fault, at.block.turns());
        return if is_waiting { zeroes(uffd, page_address) } else { uffd.wake(page_address, PAGE_BYTES) };
    }
    if at.slot.is_some() && !is_settled {
        // The page may be one that a change took away.
        return false;
    }
    at.try_lock().is_some_and(|mut locked| !locked.is_another() && serve_locked(&mut locked, page_address))
}

fn serve_locked(locked: &mut Locked, page_address: usize) -> bool {
    let at = locked.at;
    let page = ((page_address - at.base) / PAGE_BYTES) as u32;
    let Some((run, state)) = locked.map().map(|map| map.at(page, PageRange::new(page, at.pages))) else {
        return zeroes(at.uffd(), page_address);
    };
    if state == State::Present {
        return zeroes(at.uffd(), page_address);
    }
    let is_whole = locked.has_many_views() && state != State::Empty;
    let pages = match &state {
        _ if is_whole => run,
        // What is put in place with it would not show whether it is touched.
        State::Viewed(view) if recording::is_row(view.site) => PageRange::new(page, page + 1),
        _ => batch(at, page, run, &state),
    };
    let mut dropped = Dropped::new();
    let served = match state {
        State::Present => true,
        State::Empty => {
            let alloc_site = at.slot.is_none().then(|| at.block.alloc_site());
            books::enter_empty_fault(alloc_site, pages);
            let (first, last) = at.block.edges();
            if let Some(site) = alloc_site.filter(|_| page == first || page == last) {
                POLICY.placement.touched_an_edge(site);
            }
            fill_empty(locked, pages, &mut dropped)
        }
        State::Viewed(view) => {
            books::enter_view_fault(&view, at.buffer(view.site, page), pages);
            materialize(locked, pages, view, &mut dropped)
        }
    };
    drop(dropped);
    served
}

/// The pages to put in place for a fault at `page` in `run`: more of them the longer the program goes
/// on touching in order.
fn batch(at: BlockRef, page: u32, run: PageRange, state: &State<Segment>) -> PageRange {
    let first = if *state == State::Empty { BATCH_EMPTY } else { 1 };
    let last = at.block.last_batch();
    let len = if last.end == page { (last.pages * 2).clamp(first, MAX_BATCH) } else { first };
    let end = run.end.min(page + len);
    at.block.set_last_batch(end, len);
    PageRange::new(page, end)
}
