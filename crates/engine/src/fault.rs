//! The fault service: puts the bytes of viewed and empty pages in place when they are touched, by the
//! program or by the kernel on its behalf.
//!
//! It never waits for a lock. A fault in a block that another thread holds is kept and tried again;
//! a fault in a block whose lock the faulting thread itself holds is a page that the program gave
//! back to the kernel behind our back: it reads as zeroes.

use crate::accounts;
use crate::apply::put_pages;
use crate::arena::Resident;
use crate::block::{BlockRef, DISOWNED, Locked};
use crate::engine::{ENGINE, Phase};
use crate::live;
use crate::release;
use crate::requests::Inbox;
use crate::sampling;
use crate::segment::Segment;
use crate::upkeep::Rounds;
use crate::window::Turn;
use core::ffi::c_void;
use uncopy_core::addr::{PAGE_BYTES, PageRange};
use uncopy_core::ledger::Field;
use uncopy_core::page_map::{Dropped, State, View};
use uncopy_core::stats::Counter;
use uncopy_core::stats::REASON_RELEASED;
use uncopy_sys::control::Control;
use uncopy_sys::errno::Errno;
use uncopy_sys::handler::{OwnersFault, Start};
use uncopy_sys::lock::Critical;
use uncopy_sys::sync::atomic::{
    AtomicU32, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use uncopy_sys::uffd::{Change, Fault, Message, Uffd, wait};
use uncopy_sys::{bytes, mem, thread};

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
    static START: Start = Start::new();
    /// The page whose fault tells the handler thread to end; 0: none; [`ENDS`]: it does.
    static BELL: AtomicUsize = AtomicUsize::new(0);
    /// Placements that the kernel refused in a row.
    static REFUSED: AtomicU32 = AtomicU32::new(0);
}

const ENDS: usize = 1;
/// Pauses until it is believed that it will not.
const MAX_PAUSES: u32 = 50_000;

/// Ends the handler thread and waits until the kernel has forgotten it. False: it goes on.
///
/// For the only thread that the program has, with signals blocked: nobody may touch a view from here on
/// until a handler runs again.
pub(crate) fn stop_handler(uffd: Uffd) -> bool {
    if uffd.ring(|page| BELL.store(page, Release)).is_err() {
        return false;
    }
    for _ in 0..MAX_PAUSES {
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
    ends
}

/// Starts the handler thread of the heap's userfaultfd and of the foreign ranges', and waits until it holds
/// the descriptors by itself.
///
/// # Errors
/// What pthread_create says.
pub fn start_handler(main: Uffd, foreign: Option<Uffd>) -> Result<(), Errno> {
    let foreign_fd = foreign.map_or(-1, Uffd::fd);
    START.run(run, main.fd() as u32 as usize | (foreign_fd as u32 as usize) << 32)
}

/// What the handler thread knows.
struct Handler {
    main: Uffd,
    foreign: Option<Uffd>,
    control: Control,
    inbox: Inbox,
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
    let is_isolated = thread::isolate([main, foreign]).is_ok();
    let mut handler = Handler {
        main: Uffd::from_fd(main),
        foreign: (foreign >= 0).then(|| Uffd::from_fd(foreign)),
        control: if is_isolated { live::open_control() } else { Control::NONE },
        inbox: Inbox::new(),
        waiting: Vec::with_capacity(MAX_LIST),
        changes: Vec::with_capacity(MAX_LIST),
        owners_fault: OwnersFault::default(),
        wants_changes: false,
        clears: false,
        releases: false,
        is_called: false,
        rounds: Rounds::new(Uffd::from_fd(main)),
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
            if turn.is_free() {
                self.work();
                if self.waiting.is_empty() && self.changes.is_empty() && !self.is_busy() {
                    self.rounds.step();
                }
            } else {
                self.work_during_a_fork(&turn);
            }
            drop(turn);
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
        let ready = wait(self.main, self.foreign, self.control, timeout_ms);
        if ready.is_closed {
            return false;
        }
        if let Some(foreign) = self.foreign.filter(|_| ready.second && ENGINE.foreign.begin_change()) {
            let is_open = foreign.read(|message| match message {
                Message::Fault(fault) => self.waiting.push((foreign, fault)),
                Message::Change(change) => self.changes.push(change),
            });
            ENGINE.foreign.mark_changed(&self.changes);
            self.wants_changes = false;
            if !is_open {
                self.foreign = None;
            }
        } else if ready.second {
            self.wants_changes = true;
            thread::pause();
        } else if core::mem::take(&mut self.wants_changes) {
            ENGINE.foreign.end_change();
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
            let done = self.changes.iter().take_while(|change| ENGINE.foreign.follow(**change)).count();
            self.changes.drain(..done);
            self.clears = true;
            ENGINE.foreign.mark_changed(&self.changes);
        }
        if self.clears && self.changes.is_empty() {
            self.clears = !ENGINE.foreign.clear_changed();
        }
        if self.releases && self.changes.is_empty() {
            let is_retired = ENGINE.phase() == Phase::Inactive || ENGINE.try_retire(REASON_RELEASED);
            self.releases = !(is_retired && release::round_without_waiting(self.main));
        }
        // A fault where nothing is known may lie where a mapping has just moved to.
        let is_settled = self.changes.is_empty();
        let owners_fault = &mut self.owners_fault;
        self.waiting.retain(|(uffd, fault)| !serve(*uffd, *fault, is_settled, owners_fault));
    }

    /// The same while a fork is under way: nothing but faults, as far as they can be served.
    fn work_during_a_fork(&mut self, turn: &Turn) {
        if self.waiting.is_empty() {
            // A round of upkeep goes on as soon as the fork is over.
            thread::pause();
        }
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
    if ENGINE.arena.contains(page_address) {
        // The bell of `upkeep`, or the handler's own. Else the arena is always present while in use; should it not
        // be, zeroes beat a hang.
        return zeroes(uffd, page_address);
    }
    let Some(at) = ENGINE.find(page_address) else {
        // What is left of a foreign range that is gone is empty.
        return is_settled && zeroes(uffd, page_address);
    };
    if at.block.lock.owner() == fault.thread_id {
        let is_waiting = owners_fault.is_waiting(fault, at.block.turns.load(Acquire));
        return if is_waiting { zeroes(uffd, page_address) } else { uffd.wake(page_address, PAGE_BYTES) };
    }
    if at.slot.is_some() && !is_settled {
        // The page may be one that a change took away.
        return false;
    }
    at.try_lock()
        .is_some_and(|mut locked| !locked.is_another() && serve_locked(uffd, &mut locked, page_address))
}

/// Puts a page of zeroes in place, or wakes the thread if the page is there already.
pub(crate) fn zeroes(uffd: Uffd, page_address: usize) -> bool {
    match ENGINE.arena.fill_zeroes(uffd, page_address, PAGE_BYTES) {
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

/// So many of them, and the bytes are put in place by replacing the mapping.
const MAX_REFUSED: u32 = 64;

/// Counts whether a placement succeeded; true: the kernel does not come round.
fn is_desperate(placed: bool) -> bool {
    if placed {
        REFUSED.store(0, Relaxed);
        return false;
    }
    REFUSED.fetch_add(1, Relaxed) >= MAX_REFUSED
}

/// The last resort where userfaultfd fails: a mapping with the right bytes takes the place of absent pages.
/// What it replaces is not registered any more, so the block can hold no further view.
fn replace(uffd: Uffd, locked: &Locked, pages: PageRange, fill: impl Fn(usize)) -> bool {
    let address = locked.at.base + pages.start_bytes();
    if !ENGINE.heap.contains(address) {
        // The kernel would report it, and wait until the handler has read that.
        return false;
    }
    locked.at.block.flags.fetch_or(DISOWNED, Relaxed);
    // SAFETY: absent pages of a block that is locked; `fill` writes the bytes that belong there.
    let replaced = unsafe { mem::replace(address, pages.len_bytes(), fill) }.is_ok();
    replaced && uffd.wake(address, pages.len_bytes())
}

fn serve_locked(uffd: Uffd, locked: &mut Locked, page_address: usize) -> bool {
    let at = locked.at;
    let page = ((page_address - at.base) / PAGE_BYTES) as u32;
    let Some((run, state)) = locked.map().map(|map| map.at(page, PageRange::new(page, at.pages))) else {
        return zeroes(uffd, page_address);
    };
    if state == State::Present {
        return zeroes(uffd, page_address);
    }
    live::add(Counter::Faults, 1);
    let is_whole = locked.has_many_views() && state != State::Empty;
    let pages = match &state {
        _ if is_whole => run,
        // What is put in place with it would not show whether it is touched.
        State::Viewed(view) if sampling::is_row(view.site) => PageRange::new(page, page + 1),
        _ => batch(at, page, run, &state),
    };
    let mut dropped = Dropped::new();
    let served = match state {
        State::Present => true,
        State::Empty => {
            let site = at.block.alloc_site.load(Relaxed);
            if let Some(entry) = accounts::allocation(site).filter(|_| at.slot.is_none()) {
                entry.fault(pages.len());
                entry.add(Field::SpentNs, ENGINE.costs.fault_ns(pages.len()).cast_unsigned());
            }
            sampling::spend(ENGINE.costs.fault_ns(pages.len()));
            let (first, last) = at.block.edges();
            if (page == first || page == last) && at.slot.is_none() {
                ENGINE.placement.touched_an_edge(site);
            }
            fill_empty(uffd, locked, pages, &mut dropped)
        }
        State::Viewed(view) => {
            if sampling::is_row(view.site) {
                sampling::touched(view.site);
            } else if let Some(buffer) = at.buffer(view.site, page) {
                ENGINE.touches.record(view.site, buffer, pages);
            }
            if let Some(entry) = accounts::entry(view.site) {
                entry.fault(pages.len());
            }
            let cost_ns = ENGINE.costs.fault_ns(pages.len());
            accounts::debit(view.site, cost_ns);
            if view.segment.site() != view.site {
                accounts::debit(view.segment.site(), cost_ns / 2);
            }
            materialize(uffd, locked, pages, view, &mut dropped)
        }
    };
    drop(dropped);
    served
}

/// The pages to put in place for a fault at `page` in `run`: more of them the longer the program goes
/// on touching in order.
fn batch(at: BlockRef, page: u32, run: PageRange, state: &State<Segment>) -> PageRange {
    let first = if *state == State::Empty { BATCH_EMPTY } else { 1 };
    let len = if at.block.fault_end.load(Relaxed) == page {
        (at.block.fault_batch.load(Relaxed) * 2).clamp(first, MAX_BATCH)
    } else {
        first
    };
    let end = run.end.min(page + len);
    at.block.fault_end.store(end, Relaxed);
    at.block.fault_batch.store(len, Relaxed);
    PageRange::new(page, end)
}

/// Puts zeroes into empty pages. False: nothing could be placed; try again.
pub(crate) fn fill_empty(
    uffd: Uffd,
    locked: &mut Locked,
    pages: PageRange,
    dropped: &mut Dropped<Segment>,
) -> bool {
    let uffd = locked.at.uffd(uffd);
    let address = locked.at.base + pages.start_bytes();
    let done_bytes = match ENGINE.arena.fill_zeroes(uffd, address, pages.len_bytes()) {
        Ok(()) => pages.len_bytes(),
        Err((done_bytes, Errno::EEXIST)) => done_bytes + PAGE_BYTES,
        Err((done_bytes @ 1.., _)) => done_bytes,
        Err((0, _)) if uffd.zero_page(address) == Ok(()) => PAGE_BYTES,
        Err((0, _)) if is_desperate(false) && replace(uffd, locked, pages, |_| ()) => pages.len_bytes(),
        Err((0, _)) => 0,
    };
    if done_bytes > 0 {
        is_desperate(true);
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
fn place_otherwise(uffd: Uffd, locked: &Locked, pages: PageRange, fill: impl Fn(usize)) -> u32 {
    let placed =
        ENGINE.arena.take_resident(uffd, pages.len()).map_or(0, |Resident { pages: resident, .. }| {
            fill(ENGINE.arena.address(resident.start));
            put_pages(uffd, locked.at.base + pages.start_bytes(), resident)
        });
    if is_desperate(placed > 0) && replace(uffd, locked, pages, fill) { pages.len() } else { placed }
}

/// Puts the bytes of `pages`, which are viewed by `view` from their first page on, in place: moves the
/// segment's pages where this was its last reference, else copies. False: nothing could be placed.
pub(crate) fn materialize(
    uffd: Uffd,
    locked: &mut Locked,
    pages: PageRange,
    view: View<Segment>,
    dropped: &mut Dropped<Segment>,
) -> bool {
    let uffd = locked.at.uffd(uffd);
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
        draft.moved_out(PageRange::new(first, first + done));
        live::add(Counter::MovedPages, done as usize);
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
        done += place_otherwise(uffd, locked, PageRange::new(pages.start + done, pages.end), |to| {
            let skip = done as usize * PAGE_BYTES;
            // SAFETY: `to` has room for the rest; the segment's bytes are present.
            unsafe {
                bytes::copy(to as *mut u8, (source + skip) as *const u8, pages.len_bytes() - skip);
            }
        });
    } else {
        is_desperate(true);
    }
    live::add(Counter::MaterializedBytes, done as usize * PAGE_BYTES);
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
