//! The fault service: a thread that lets writers go on.
//!
//! It never waits for a lock: a fault whose unit another thread is at work on is kept and tried again. It serves faults
//! that the kernel takes on the program's behalf (`read` into an object that is in flight) as it serves the program's.

use crate::counters::{COUNTERS, count};
use crate::pages::{self, PAGE_BYTES, PAGES, address_of};
use crate::process::{BATCH_PAGES, process, zeroes};
use crate::replace::{Replaced, map_over_page, replace, replace_at_once};
use crate::unit::{Id, Kind, Live, Unit, state};
use core::ffi::c_void;
use core::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};
use uncopy_sys::control::Control;
use uncopy_sys::errno::Errno;
use uncopy_sys::handler::{OwnersFault, Start};
use uncopy_sys::last_thread::{self, LastThread, Role};
use uncopy_sys::lock::Critical;
use uncopy_sys::uffd::{Access, Fault, Uffd, wait};
use uncopy_sys::{bytes, filter, mem, thread};

/// Faults that can wait here; others wait in the kernel.
const MAX_WAITING: usize = 64;
/// Faults that are read at once at most.
const MAX_READ: usize = 16;
/// Tries without a pause in between.
const EAGER_TRIES: u32 = 50;
/// Tries, some 70 µs apart, after which a page is replaced in a way that a fork need not wait for: libc's locks, which
/// the fork waits for, may be held by the very thread whose write is to be served.
const PATIENT_TRIES: u32 = 200;
/// What one fault costs, and each page that it replaces, in pages that are sent by reference instead of being copied:
/// 10 µs and 1 µs, at 0.4 µs a page (loopback TCP: 21 µs for 64 KiB against 12, 143 for 512 KiB against 101).
const FAULT_COST_PAGES: u32 = 24;
const PAGE_COST_PAGES: u32 = 2;
/// Largest power of two of refused loans.
const MAX_BACK_OFF: u8 = 14;

static START: Start = Start::new(Role::Twin);

/// Starts the handler thread of a userfaultfd and waits until it holds the descriptor by itself.
///
/// # Errors
/// What `pthread_create` says, or that there is no memory for the handler's buffer.
pub(crate) fn start(uffd: Uffd) -> Result<(), Errno> {
    START.run(run, uffd.fd() as usize)
}

struct Handler {
    uffd: Uffd,
    /// A batch of pages of its own.
    room: usize,
    waiting: [Option<(Fault, Access)>; MAX_WAITING],
    count: usize,
    /// Where the last write would go on, and how many pages it had.
    next: (Option<Id>, u32, u32),
    owners_fault: OwnersFault,
    tries: u32,
    last_thread: LastThread,
    /// The processor that the thread stays on, if any. The outer one is `None` under a seccomp filter, which might end
    /// the process for asking.
    stays: Option<Option<u32>>,
}

extern "C" fn run(argument: *mut c_void) -> *mut c_void {
    let _critical = Critical::enter();
    let fd = argument as usize as i32;
    // A refusal (seccomp) leaves the descriptors shared with the program, which then must not close them.
    let (_, last_thread) = START.isolate([fd, -1]);
    // SAFETY: a mapping at an address of the kernel's choice.
    let room = unsafe { mem::map_private(BATCH_PAGES as usize * PAGE_BYTES, None) };
    START.tell(room.map(drop));
    if let Ok(room) = room {
        let mut handler = Handler {
            uffd: Uffd::from_fd(fd),
            room,
            waiting: [None; MAX_WAITING],
            count: 0,
            next: (None, 0, 0),
            owners_fault: OwnersFault::default(),
            tries: 0,
            last_thread,
            stays: (!filter::is_filtered()).then_some(None),
        };
        handler.serve_all();
    }
    core::ptr::null_mut()
}

impl Handler {
    fn serve_all(&mut self) {
        loop {
            if self.is_ready() && self.count + MAX_READ <= MAX_WAITING {
                let (waiting, count) = (&mut self.waiting, &mut self.count);
                let is_open = self.uffd.read_faults(|fault, access| {
                    waiting[*count] = Some((fault, access));
                    *count += 1;
                });
                if !is_open {
                    return;
                }
            }
            let before = self.count;
            self.count = 0;
            for index in 0..before {
                let Some((fault, access)) = self.waiting[index].take() else { continue };
                if !self.serve(fault, access) {
                    self.waiting[self.count] = Some((fault, access));
                    self.count += 1;
                }
            }
            if self.count == 0 || self.count < before {
                self.tries = 0;
                self.follow();
            } else {
                self.tries += 1;
                thread::pause();
            }
        }
    }

    /// Waits if there is nothing else to do; whether to read now.
    fn is_ready(&mut self) -> bool {
        let timeout_ms = match self.tries {
            _ if self.count == 0 => self.last_thread.timeout_ms(-1),
            0..EAGER_TRIES => 0,
            _ => 1,
        };
        let ready = wait(self.uffd, None, Control::NONE, self.last_thread.fd(), timeout_ms);
        if self.last_thread.has_ended(ready.program) {
            last_thread::end_process();
        }
        ready.first
    }

    /// Goes where pages are lent. A writer that waits leaves its processor, on which the handler begins at once; another
    /// one has to be woken first: 4 µs a fault against 12 (2 virtual processors, otherwise idle).
    fn follow(&mut self) {
        let lender = process().lender();
        if self.stays.is_some_and(|stays| stays != lender)
            && let Some(processor) = lender
        {
            thread::stay_on(processor);
            self.stays = Some(lender);
        }
    }

    /// Serves one fault; false if it has to be tried again.
    fn serve(&mut self, fault: Fault, access: Access) -> bool {
        if !pages::contains(fault.address) {
            return self.uffd.wake(fault.address / PAGE_BYTES * PAGE_BYTES, PAGE_BYTES);
        }
        let page = pages::page_of(fault.address);
        let Some(id) = PAGES.unit_at(page) else {
            return self.zeroes(page, 1, false);
        };
        let (unit, live) = (PAGES.unit(id), PAGES.live(id));
        if live.lock.owner() == fault.thread_id {
            return self.serve_owner(page, fault, access);
        }
        if !live.lock.try_lock() {
            return false;
        }
        let (start, end) = unit.span();
        if !(start..end).contains(&page) {
            // It has come into other hands meanwhile.
            live.lock.unlock();
            return false;
        }
        let is_served = match access {
            Access::Missing => self.serve_missing(id, unit, page),
            Access::Protected => self.serve_write(id, unit, live, page),
        };
        live.lock.unlock();
        is_served
    }

    /// A thread that is at work on a unit touches only what is present there, unless the program gave the page back
    /// to the kernel behind our back: then it reads as zeroes.
    fn serve_owner(&mut self, page: u32, fault: Fault, access: Access) -> bool {
        // These locks count no turns: whoever holds one gives no page up that it touches later.
        if self.owners_fault.is_waiting(fault, 0) && access == Access::Missing {
            return self.zeroes(page, 1, false);
        }
        self.uffd.wake(address_of(page), PAGE_BYTES)
    }

    /// How many pages to serve at once: four times as many while a thread goes on where it was.
    fn batch(&mut self, id: Id, unit: &Unit, page: u32) -> u32 {
        let (last, next, pages) = self.next;
        let goes_on = last == Some(id) && next == page;
        let most = if goes_on { (pages * 4).min(BATCH_PAGES) } else { 1 };
        most.min(unit.span().1 - page)
    }

    fn serve_missing(&mut self, id: Id, unit: &Unit, page: u32) -> bool {
        count(&COUNTERS.missing_faults, 1);
        let most = if unit.kind() == Kind::Large { self.batch(id, unit, page) } else { 1 };
        let protected = PAGES.state(page).load(SeqCst) & state::PROTECTED;
        let is_alike = |more: &u32| {
            let found = PAGES.state(page + more).load(SeqCst);
            found & state::FILLED == 0 && found & state::PROTECTED == protected
        };
        let run = (1..most).take_while(is_alike).count() as u32 + 1;
        self.next = (Some(id), page + run, run);
        self.zeroes(page, run, protected != 0)
    }

    /// Puts pages of zeroes in place; whoever waits for one that is there already is woken.
    fn zeroes(&self, first: u32, pages: u32, is_protected: bool) -> bool {
        let (address, len_bytes) = (address_of(first), pages as usize * PAGE_BYTES);
        // SAFETY: the zeroes are readable for a batch, without a fault of ours.
        let placed = unsafe {
            if is_protected {
                self.uffd.copy_protected(address, zeroes(), len_bytes)
            } else {
                self.uffd.copy(address, zeroes(), len_bytes)
            }
        };
        let done = (placed.done_bytes / PAGE_BYTES) as u32;
        if first < PAGES.frontier() {
            (first..first + done).for_each(|page| _ = PAGES.state(page).fetch_or(state::FILLED, Relaxed));
        }
        if done > 0 {
            return true;
        }
        if placed.error == Some(Errno::EEXIST) {
            return self.uffd.wake(address, PAGE_BYTES);
        }
        if is_protected {
            // Whoever waits may write before it could be protected.
            open(first);
        }
        match self.uffd.zero_page(address) {
            Ok(()) => true,
            // Present, or not registered any more: whoever waits must see for itself.
            Err(Errno::EEXIST | Errno::ENOENT | Errno::ESRCH | Errno::EFAULT) => {
                self.uffd.wake(address, PAGE_BYTES)
            }
            Err(_) => {
                // Takes no memory: the room's own page goes there.
                // SAFETY: the room is the handler's; both are pages of ours that may be rearranged.
                let is_moved = unsafe {
                    bytes::zero(self.room as *mut u8, PAGE_BYTES);
                    self.uffd.move_pages(address, self.room, PAGE_BYTES).is_complete()
                };
                // Last, a mapping of zeroes; nothing of the unit is lent then.
                is_moved || map_over_page(self.uffd, first, zeroes())
            }
        }
    }

    /// A write to a protected page. Under the unit's lock.
    fn serve_write(&mut self, id: Id, unit: &Unit, live: &Live, page: u32) -> bool {
        let found = PAGES.state(page).load(SeqCst);
        if found & state::PROTECTED == 0 {
            // Lifted meanwhile; the protection of a page that is not known to be protected guards nothing.
            let address = address_of(page);
            let lifted = self.uffd.unprotect(address, PAGE_BYTES);
            return lifted.is_ok() || self.uffd.wake(address, PAGE_BYTES);
        }
        let most = self.batch(id, unit, page);
        let kind = state::PROTECTED | state::LENT;
        // What is to be copied must be present: nobody would serve a fault of this thread.
        let wanted = found & kind | state::FILLED;
        let is_alike = |more: &u32| PAGES.state(page + more).load(SeqCst) & (kind | state::FILLED) == wanted;
        let run = (1..most).take_while(is_alike).count() as u32 + 1;
        let run = mem::present(address_of(page), run as usize) as u32;
        if run == 0 {
            // Given back by the program behind our back: the next fault finds it missing.
            return self.uffd.wake(address_of(page), PAGE_BYTES);
        }
        let may_vanish = process().replacing.try_lock();
        let is_patient = self.tries < PATIENT_TRIES;
        if !may_vanish && is_patient && (found & state::LENT != 0 || live.tally().1 > 0) {
            return false;
        }
        // First, so that whoever lends these pages just now does not believe that they stay as they are.
        (page..page + run).for_each(|page| _ = PAGES.state(page).fetch_and(!kind, SeqCst));
        live.generation.fetch_add(1, SeqCst);
        let is_in_flight = found & state::LENT != 0 || live.tally().1 > 0;
        let is_served = if !is_in_flight {
            let lifted = self.uffd.unprotect(address_of(page), run as usize * PAGE_BYTES).is_ok();
            count(&COUNTERS.lifted_pages, if lifted { run as usize } else { 0 });
            lifted
        } else if may_vanish {
            // SAFETY: the unit's lock, and the right to let pages vanish, are held; the room is the handler's; the
            // pages are protected, and were there when they were protected.
            unsafe { replace(self.uffd, unit, page, run, self.room) != Replaced::Refused }
        } else if !is_patient {
            // SAFETY: the unit's lock is held; the pages are protected, and were there when they were
            // protected.
            unsafe { replace_at_once(self.uffd, unit, page, run) != Replaced::Refused }
        } else {
            false
        };
        if may_vanish {
            process().replacing.unlock();
        }
        if is_served {
            count(&COUNTERS.write_faults, 1);
            charge(unit, run, self.next != (Some(id), page, self.next.2));
            self.next = (Some(id), page + run, run);
        } else {
            // A page whose protection cannot be lifted is replaced at the next try.
            (page..page + run).for_each(|page| _ = PAGES.state(page).fetch_or(kind, SeqCst));
        }
        is_served
    }
}

/// A page that should be protected is not: loans that count on it are not confirmed. Always true.
fn open(page: u32) -> bool {
    PAGES.state(page).fetch_and(!(state::PROTECTED | state::LENT), SeqCst);
    if let Some(id) = PAGES.unit_at(page) {
        PAGES.live(id).generation.fetch_add(1, SeqCst);
    }
    true
}

/// Keeps account of what protecting a unit costs and has earned: one that is written too often is not lent for a while,
/// twice as long each time (ZCopy §3.2.3 lifts the protection; it does not say when to give up).
fn charge(unit: &Unit, pages: u32, is_first: bool) {
    let cost = FAULT_COST_PAGES + PAGE_COST_PAGES * pages;
    let earned = unit.earned.load(Relaxed);
    unit.earned.store(earned.saturating_sub(cost), Relaxed);
    if !is_first {
        return;
    }
    let level = unit.back_off.load(Relaxed);
    if earned >= cost {
        unit.back_off.store(level.saturating_sub(1), Relaxed);
    } else {
        let level = (level + 1).min(MAX_BACK_OFF);
        unit.back_off.store(level, Relaxed);
        unit.refusals.store((1 << level) - 1, Relaxed);
    }
}
