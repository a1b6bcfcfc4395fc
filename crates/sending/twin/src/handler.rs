//! The page fault handler: a thread that serves writes to protected pages.
//!
//! The handler never waits for a lock: a fault in a unit that another thread is working on is retried later.
//! Faults of the kernel on the program's behalf (`read` into an object in flight) are served likewise.

use crate::counters::{COUNTERS, count};
use crate::pages::{self, PAGE_BYTES, PAGES, address_of};
use crate::process::{BATCH_PAGES, process, zeroes};
use crate::replace::{Replaced, replace, replace_at_once, replace_mapping_of_page};
use crate::unit::{Id, Kind, LocalState, Unit, state};
use core::ffi::c_void;
use core::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};
use uncopy_sys::control::Control;
use uncopy_sys::errno::Errno;
use uncopy_sys::handler::{HandlerStart, OwnersFault};
use uncopy_sys::last_thread::{self, LastThread, Role};
use uncopy_sys::lock::Critical;
use uncopy_sys::uffd::{Access, Fault, Uffd, wait};
use uncopy_sys::{bytes, filter, mem, thread};

/// Maximum queued faults; others wait in the kernel.
const MAX_WAITING: usize = 64;
/// Maximum faults read at once.
const MAX_READ: usize = 16;
/// Retries without a pause.
const EAGER_TRIES: u32 = 50;
/// Retries, 70 µs apart, after which a page is replaced in a way for which a fork need not be excluded: the
/// fork may be waiting for a lock of libc held by the very thread whose write is to be served.
const PATIENT_TRIES: u32 = 200;
/// Cost of a fault, and of each page replaced, in pages sent by reference instead of copied: 10 µs and 1 µs,
/// at 0.4 µs per page (loopback TCP: 21 µs against 12 for 64 KiB, 143 µs against 101 for 512 KiB).
const FAULT_COST_PAGES: u32 = 24;
const PAGE_COST_PAGES: u32 = 2;
/// Maximum value of the field `Unit::back_off`.
const MAX_BACK_OFF: u8 = 14;

static START: HandlerStart = HandlerStart::new(Role::Twin);

/// Starts the handler thread of a userfaultfd and waits until the thread has its own copy of the descriptor.
///
/// # Errors
/// Returns the error of pthread_create(3), or ENOMEM if there is no memory for the handler's buffer.
pub(crate) fn start(uffd: Uffd) -> Result<(), Errno> {
    START.run(run, uffd.fd() as usize)
}

struct Handler {
    uffd: Uffd,
    /// Address of a buffer of BATCH_PAGES pages.
    scratch: usize,
    waiting: [Option<(Fault, Access)>; MAX_WAITING],
    count: usize,
    /// Unit of the last fault, the page after the range served, and the number of pages served.
    last_range: (Option<Id>, u32, u32),
    owners_fault: OwnersFault,
    tries: u32,
    last_thread: LastThread,
    /// Processor that the thread is pinned to, if any. The outer option is `None` under a seccomp filter,
    /// which might kill the process for pinning.
    pinned_to: Option<Option<u32>>,
}

extern "C" fn run(argument: *mut c_void) -> *mut c_void {
    let _critical = Critical::enter();
    let fd = argument as usize as i32;
    // If the kernel refuses (seccomp), the descriptors stay shared with the program, which must keep them.
    let (_, last_thread) = START.isolate([fd, -1]);
    // SAFETY: without an address hint the kernel chooses an unused range, so no existing mapping is affected.
    let scratch = unsafe { mem::map_private(BATCH_PAGES as usize * PAGE_BYTES, None) };
    START.report(scratch.map(drop));
    if let Ok(scratch) = scratch {
        let mut handler = Handler {
            uffd: Uffd::from_fd(fd),
            scratch,
            waiting: [None; MAX_WAITING],
            count: 0,
            last_range: (None, 0, 0),
            owners_fault: OwnersFault::default(),
            tries: 0,
            last_thread,
            pinned_to: (!filter::is_filtered()).then_some(None),
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
                self.follow_lender();
            } else {
                self.tries += 1;
                thread::pause();
            }
        }
    }

    /// Waits for events if the queue is empty. Returns true if faults can be read.
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

    /// Moves to the processor where pages are lent. A blocked writer frees that processor, so the handler
    /// starts at once; on another one it must first be woken: 4 µs per fault against 12 (2 virtual
    /// processors, otherwise idle).
    fn follow_lender(&mut self) {
        let lender = process().lending_cpu();
        if self.pinned_to.is_some_and(|pinned_to| pinned_to != lender)
            && let Some(processor) = lender
        {
            thread::pin_to_processor(processor);
            self.pinned_to = Some(lender);
        }
    }

    /// Serves one fault. Returns false if the fault must be retried.
    fn serve(&mut self, fault: Fault, access: Access) -> bool {
        if !pages::contains(fault.address) {
            return self.uffd.wake(fault.address / PAGE_BYTES * PAGE_BYTES, PAGE_BYTES);
        }
        let page = pages::page_of(fault.address);
        let Some(id) = PAGES.unit_at(page) else {
            return self.zeroes(page, 1, false);
        };
        let (unit, local) = (PAGES.unit(id), PAGES.local(id));
        if local.lock.owner() == fault.thread_id {
            return self.serve_owner(page, fault, access);
        }
        if !local.lock.try_lock() {
            return false;
        }
        let (start, end) = unit.span();
        if !(start..end).contains(&page) {
            // The page has moved to another unit meanwhile.
            local.lock.unlock();
            return false;
        }
        let is_served = match access {
            Access::Missing => self.serve_missing(id, unit, page),
            Access::Protected => self.serve_write(id, unit, local, page),
        };
        local.lock.unlock();
        is_served
    }

    /// Serves a fault of the thread that holds the unit's lock. Such a thread touches only present pages,
    /// unless the program gave the page back to the kernel, in which case it reads as zeroes.
    fn serve_owner(&mut self, page: u32, fault: Fault, access: Access) -> bool {
        // No turn is needed: the holder of a unit's lock does not give up a page that it touches later.
        if self.owners_fault.is_waiting(fault, 0) && access == Access::Missing {
            return self.zeroes(page, 1, false);
        }
        self.uffd.wake(address_of(page), PAGE_BYTES)
    }

    /// Returns how many pages to serve at once: four times as many as before for sequential faults.
    fn batch_pages(&mut self, id: Id, unit: &Unit, page: u32) -> u32 {
        let (last, next, pages) = self.last_range;
        let is_sequential = last == Some(id) && next == page;
        let max_pages = if is_sequential { (pages * 4).min(BATCH_PAGES) } else { 1 };
        max_pages.min(unit.span().1 - page)
    }

    fn serve_missing(&mut self, id: Id, unit: &Unit, page: u32) -> bool {
        count(&COUNTERS.missing_faults, 1);
        let max_pages = if unit.kind() == Kind::Large { self.batch_pages(id, unit, page) } else { 1 };
        let protected = PAGES.state(page).load(SeqCst) & state::PROTECTED;
        let is_alike = |more: &u32| {
            let found = PAGES.state(page + more).load(SeqCst);
            found & state::FILLED == 0 && found & state::PROTECTED == protected
        };
        let run = (1..max_pages).take_while(is_alike).count() as u32 + 1;
        self.last_range = (Some(id), page + run, run);
        self.zeroes(page, run, protected != 0)
    }

    /// Fills absent pages with zeroes. If the first page is already present, wakes its waiters.
    fn zeroes(&self, first: u32, pages: u32, is_protected: bool) -> bool {
        let (address, len_bytes) = (address_of(first), pages as usize * PAGE_BYTES);
        // SAFETY: `zeroes()` is readable for BATCH_PAGES pages and never written to; `pages` is at most that,
        // and the destination is the allocator's own.
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
            // The waiting thread may write before the page could be protected.
            mark_unprotected(first);
        }
        match self.uffd.zero_page(address) {
            Ok(()) => true,
            // The page is present or not registered any more; the waiting thread must retry its access.
            Err(Errno::EEXIST | Errno::ENOENT | Errno::ESRCH | Errno::EFAULT) => {
                self.uffd.wake(address, PAGE_BYTES)
            }
            Err(_) => {
                // SAFETY: `scratch` belongs to this thread and has at least a page; both pages are private
                // memory of the allocator that may be moved. Moving needs no new memory.
                let is_moved = unsafe {
                    bytes::zero(self.scratch as *mut u8, PAGE_BYTES);
                    self.uffd.move_pages(address, self.scratch, PAGE_BYTES).is_complete()
                };
                // The last resort is a mapping of zeroes, after which nothing of the unit is lent.
                is_moved || replace_mapping_of_page(self.uffd, first, zeroes())
            }
        }
    }

    /// Serves a write to a protected page. The caller must hold the unit's lock.
    fn serve_write(&mut self, id: Id, unit: &Unit, local: &LocalState, page: u32) -> bool {
        let found = PAGES.state(page).load(SeqCst);
        if found & state::PROTECTED == 0 {
            // Protection was lifted meanwhile; any protection that remains on a page not recorded as
            // protected guards nothing.
            let address = address_of(page);
            let lifted = self.uffd.unprotect(address, PAGE_BYTES);
            return lifted.is_ok() || self.uffd.wake(address, PAGE_BYTES);
        }
        let max_pages = self.batch_pages(id, unit, page);
        let mask = state::PROTECTED | state::LENT;
        // Only present pages can be copied: nobody would serve a fault of this thread.
        let wanted = found & mask | state::FILLED;
        let is_alike = |more: &u32| PAGES.state(page + more).load(SeqCst) & (mask | state::FILLED) == wanted;
        let run = (1..max_pages).take_while(is_alike).count() as u32 + 1;
        let run = mem::leading_present_pages(address_of(page), run as usize) as u32;
        if run == 0 {
            // The program gave the page back to the kernel; the next fault finds it missing.
            return self.uffd.wake(address_of(page), PAGE_BYTES);
        }
        let may_vanish = process().replacing.try_lock();
        let is_patient = self.tries < PATIENT_TRIES;
        if !may_vanish && is_patient && (found & state::LENT != 0 || local.tally().1 > 0) {
            return false;
        }
        // Cleared first, so that a thread that is lending these pages does not rely on their protection.
        (page..page + run).for_each(|page| _ = PAGES.state(page).fetch_and(!mask, SeqCst));
        local.generation.fetch_add(1, SeqCst);
        let is_in_flight = found & state::LENT != 0 || local.tally().1 > 0;
        let is_served = if !is_in_flight {
            let lifted = self.uffd.unprotect(address_of(page), run as usize * PAGE_BYTES).is_ok();
            count(&COUNTERS.lifted_pages, if lifted { run as usize } else { 0 });
            lifted
        } else if may_vanish {
            // SAFETY: this thread holds the unit's lock and `replacing`. The pages were just found present,
            // and are protected, so no thread can write to them. `scratch` is this thread's and has
            // BATCH_PAGES pages.
            unsafe { replace(self.uffd, unit, page, run, self.scratch) != Replaced::Refused }
        } else if !is_patient {
            // SAFETY: this thread holds the unit's lock. The pages were just found to be present, and are
            // protected, so no thread can write to them.
            unsafe { replace_at_once(self.uffd, unit, page, run) != Replaced::Refused }
        } else {
            false
        };
        if may_vanish {
            process().replacing.unlock();
        }
        if is_served {
            count(&COUNTERS.write_faults, 1);
            charge(unit, run, self.last_range != (Some(id), page, self.last_range.2));
            self.last_range = (Some(id), page + run, run);
        } else {
            // Protection that could not be lifted is recorded again, so that the next try replaces the page.
            (page..page + run).for_each(|page| _ = PAGES.state(page).fetch_or(mask, SeqCst));
        }
        is_served
    }
}

/// Records that a page is not protected, so that loans of it are not confirmed. Always returns true.
fn mark_unprotected(page: u32) -> bool {
    PAGES.state(page).fetch_and(!(state::PROTECTED | state::LENT), SeqCst);
    if let Some(id) = PAGES.unit_at(page) {
        PAGES.local(id).generation.fetch_add(1, SeqCst);
    }
    true
}

/// Charges a unit for a write to protected pages. A unit that is written to too often is not lent for a
/// while, twice as long each time (ZCopy §3.2.3 lifts the protection, but does not say when to give up).
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
