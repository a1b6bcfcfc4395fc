//! Forks: preparation of a child before it runs.
//!
//! The child has the segments and the page maps by copy-on-write, but the kernel drops the registration
//! with userfaultfd, so that an absent page would read as zeroes there. Every lock is therefore held across
//! the fork, and the child opens its own userfaultfd, registers the same ranges and starts its own handler
//! before anything else of the program runs in it.

use crate::arena::pages::ARENA;
use crate::arena::segment::Segment;
use crate::background::activation::{self, Obstacle};
use crate::background::{fork_window, release, shared_views, upkeep};
use crate::call::in_flight;
use crate::range::block::{BlockRef, Flag};
use crate::range::changes::CHANGES;
use crate::range::directory;
use crate::range::foreign::FOREIGN;
use crate::range::heap::HEAP;
use crate::range::registration::can_hold_views;
use crate::state::phase::{Phase, STATE};
use crate::state::{bell, children, clock, counters, ledger, recording, warmup};
use uncopy_core::addr::{PAGE_BYTES, PageRange};
use uncopy_core::page_map::{Dropped, State};
use uncopy_core::stats::Counter;
use uncopy_sys::bytes;
use uncopy_sys::errno::Errno;
use uncopy_sys::last_thread::{self, Role};
use uncopy_sys::lock::{Critical, Lock, forget_thread_id, thread_id};
use uncopy_sys::presence;
use uncopy_sys::sync::UnsafeCell;
use uncopy_sys::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of waits of 20 µs for the handler to follow changes of mappings.
const SETTLE_TRIES: u32 = 50_000;

struct ForkState {
    /// Held by the forking thread: one fork at a time.
    lock: Lock,
    critical: UnsafeCell<Option<Critical>>,
    gauges: UnsafeCell<Option<counters::Gauges>>,
    /// Classes whose lock the forking thread held already, one bit each.
    skipped_classes: AtomicU64,
    /// Lock of the private allocator.
    private: UnsafeCell<Option<&'static Lock>>,
}

// SAFETY: the cells are accessed only by the thread that holds `lock`; `private` is written once, before
// other threads exist.
unsafe impl Sync for ForkState {}

uncopy_sys::statics! {
    static FORK: ForkState = ForkState {
        lock: Lock::new(),
        critical: UnsafeCell::new(None),
        gauges: UnsafeCell::new(None),
        skipped_classes: AtomicU64::new(0),
        private: UnsafeCell::new(None),
    };
}

/// Sets the lock of the private allocator. Called once, before threads exist.
pub fn set_private_allocator_lock(lock: &'static Lock) {
    // SAFETY: no other thread exists yet, so nothing reads or writes the cell at the same time.
    unsafe { *FORK.private.get() = Some(lock) };
}

fn private_lock() -> Option<&'static Lock> {
    // SAFETY: the cell is written once, before other threads exist, so this read cannot race with a write.
    unsafe { *FORK.private.get() }
}

/// Waits until no thread is in the engine, calls `work`, then takes every lock, in the engine's order.
fn close(work: impl FnOnce()) {
    presence::begin_fork();
    work();
    fork_window::begin();
    shared_views::place_all_views();
    lock_all();
}

/// Reverses [`close`]: releases every lock and admits threads.
fn open() {
    unlock_all();
    fork_window::end();
    presence::end_fork();
}

fn lock_all() {
    STATE.activation.lock();
    for (index, lock) in HEAP.class_locks().enumerate() {
        if lock.owner() == thread_id() {
            // A signal handler forks on top of a malloc or free of uncopy: that call continues, in parent
            // and child, when the handler returns.
            FORK.skipped_classes.fetch_or(1 << index, Relaxed);
        } else {
            lock.lock();
        }
    }
    HEAP.for_each_block(|at| at.block.lock.lock());
    FOREIGN.lock_all();
    in_flight::lock_all();
    ARENA.lock().lock();
    if let Some(lock) = private_lock() {
        lock.lock();
    }
}

/// Releases every lock, in reverse order: blocks are added only under their class's lock.
fn unlock_all() {
    unlock_inner();
    unlock_outer();
}

/// Releases the locks that are taken after those of blocks.
fn unlock_inner() {
    if let Some(lock) = private_lock() {
        lock.unlock();
    }
    ARENA.lock().unlock();
    in_flight::unlock_all();
}

/// Releases the locks of blocks, and those taken before.
fn unlock_outer() {
    FOREIGN.unlock_all();
    HEAP.for_each_block(|at| at.block.lock.unlock());
    let skipped = FORK.skipped_classes.swap(0, Relaxed);
    for (index, lock) in HEAP.class_locks().enumerate() {
        if skipped & (1 << index) == 0 {
            lock.unlock();
        }
    }
    STATE.activation.unlock();
}

/// Prepares a fork: waits until no engine work is in progress, and keeps new work out.
pub fn prepare() {
    prepare_with(|| ());
}

/// Prepares a fork, and calls `work` as soon as no engine work is in progress, before locks are taken: it
/// may allocate.
pub fn prepare_with(work: impl FnOnce()) {
    if !HEAP.is_reserved() && STATE.phase() != Phase::Active && !counters::are_published() {
        work();
        return;
    }
    let critical = Critical::enter();
    FORK.lock.lock();
    if counters::get(Counter::SegmentsBytes) > 0 {
        children::prepare();
    }
    close(work);
    // Changes that the handler has read must be followed before the fork: the child's handler cannot know them.
    for _ in 0..SETTLE_TRIES {
        if CHANGES.is_settled() {
            break;
        }
        open();
        uncopy_sys::thread::pause();
        close(|| ());
    }
    // SAFETY: this thread holds `FORK.lock`, which guards the cells.
    unsafe {
        *FORK.critical.get() = Some(critical);
        *FORK.gauges.get() = Some(counters::gauges());
    }
    fork_window::open();
}

fn is_forking_thread() -> bool {
    FORK.lock.owner() == thread_id()
}

/// Resumes in the parent after a fork, also if it failed.
pub fn parent() {
    if is_forking_thread() {
        let mut dropped = Dropped::new();
        // With the locks held, so that no segment is made at the same time.
        clock::note_fork();
        unlock_inner();
        fork_window::close(&mut dropped);
        unlock_outer();
        fork_window::end();
        presence::end_fork();
        drop(dropped);
        finish();
        if counters::get(Counter::SegmentsBytes) > 0 {
            // Children may read views.
            bell::request_upkeep();
        }
    }
}

fn finish() {
    // SAFETY: this thread holds `FORK.lock`, which guards the cell.
    let critical = unsafe { (*FORK.critical.get()).take() };
    FORK.lock.unlock();
    drop(critical);
}

/// Resumes in the child after a fork, before anything of the program runs.
pub fn child() {
    resume_child(false, true);
}

/// Resumes in a child for which fork handlers did not run. `stays_plain`: start no handler thread, because threads
/// that the child lacks may hold libc's locks. `has_own_descriptors`: they are not shared with the parent.
pub fn child_without_handlers(stays_plain: bool, has_own_descriptors: bool) {
    resume_child(stays_plain, has_own_descriptors);
}

fn resume_child(stays_plain: bool, has_own_descriptors: bool) {
    let was_prepared = is_forking_thread();
    let parent = thread_id();
    forget_thread_id();
    last_thread::reset_in_child(Role::Faults, has_own_descriptors);
    ledger::restart_in_child();
    clock::begin_in_child();
    recording::begin_generation();
    uncopy_trials::restart_in_child();
    HEAP.mark_uninherited_unmapped();
    if STATE.phase() == Phase::Dormant {
        warmup::restart_in_child();
    }
    if !was_prepared {
        return;
    }
    unlock_all();
    presence::end_fork_in_child();
    upkeep::in_child();
    // Before anything is counted: the page of counters is still the parent's.
    // SAFETY: this thread holds `FORK.lock`, which guards the cell.
    if let Some(alive) = unsafe { (*FORK.gauges.get()).take() } {
        counters::restart_in_child(alive);
    }
    in_flight::in_child(parent);
    let mut served = Dropped::new();
    fork_window::end_in_child(&mut served);
    drop(served);
    if STATE.phase() != Phase::Active {
        forget_uffds();
        // Views that could not be released are served by the parent's handler only.
        fill_all_views();
    } else {
        CHANGES.settle_in_child();
        if has_own_descriptors {
            // The descriptors are the parent's: requests on them would apply to the parent.
            for old in [ARENA.descriptor().open(), CHANGES.open()].into_iter().flatten() {
                old.close_if_ours();
            }
        }
        forget_uffds();
        if stays_plain {
            fill_all_views();
            release::retire("a child made without fork handlers by a program with threads");
        } else if let Err(why) = activate_in_child() {
            fill_all_views();
            STATE.give_up(&why.to_string());
        }
    }
    finish();
}

/// Forgets the parent's userfaultfds, which are of no use in the child.
fn forget_uffds() {
    ARENA.descriptor().forget();
    CHANGES.descriptor().forget();
}

fn activate_in_child() -> Result<(), Obstacle> {
    activation::open_uffds()?;
    register_everything().map_err(|errno| {
        activation::close_uffds();
        Obstacle::Registration(errno)
    })
}

fn register_everything() -> Result<(), Errno> {
    let main = ARENA.uffd();
    ARENA.register_again()?;
    // Adjacent blocks are registered with one call.
    let mut run: Option<(usize, usize)> = None;
    let mut result = Ok(());
    let mut flush = |run: &mut Option<(usize, usize)>| {
        if let Some((start, end)) = run.take()
            && result.is_ok()
        {
            result = main.register(start, end - start);
        }
    };
    let is_registered = |at: &BlockRef| at.block.has(Flag::REGISTERED);
    HEAP.for_each_block(|at| {
        let registered = is_registered(&at);
        match &mut run {
            Some((_, end)) if registered && *end == at.base => *end += at.bytes(),
            _ => {
                flush(&mut run);
                if registered {
                    run = Some((at.base, at.base + at.bytes()));
                }
            }
        }
    });
    flush(&mut run);
    FOREIGN.for_each_range(|at| {
        if !is_registered(&at) {
            return;
        }
        if !can_hold_views(at.base, at.base + at.bytes()) {
            // Another thread was changing the mapping, and the parent's handler had not read that yet.
            let mut dropped = Dropped::new();
            fill_views(at, &mut dropped);
            at.lock_for_handler().forget_registration();
        } else if result.is_ok() {
            result = at.uffd().register(at.base, at.bytes());
        }
    });
    result
}

/// Writes the bytes of every view where they belong, without a userfaultfd: absent pages are ordinary ones
/// in this process.
pub(crate) fn fill_all_views() {
    directory::for_each_block(|at| {
        let mut dropped = Dropped::new();
        fill_views(at, &mut dropped);
        drop(dropped);
    });
}

/// Writes the bytes of the views of one block. In a foreign range, only where the memory can still hold
/// views: another thread may have replaced the mapping.
fn fill_views(at: BlockRef, dropped: &mut Dropped<Segment>) {
    if !at.block.has(Flag::REGISTERED) {
        return;
    }
    let is_there = |pages: PageRange| {
        let start = at.base + pages.start_bytes();
        at.slot.is_none() || can_hold_views(start, start + pages.len_bytes())
    };
    let mut locked = at.lock_for_handler();
    if let Some(map) = locked.map() {
        map.for_each(at.all(), |pages, state| {
            let State::Viewed(view) = state else { return };
            let step = if is_there(pages) { pages.len() } else { 1 };
            for first in (pages.start..pages.end).step_by(step as usize) {
                let part = PageRange::new(first, (first + step).min(pages.end));
                if step > 1 || is_there(part) {
                    let skip_bytes = (first - pages.start) as usize * PAGE_BYTES;
                    let to = (at.base + part.start_bytes()) as *mut u8;
                    let from = (view.segment.address() + view.offset_bytes + skip_bytes) as *const u8;
                    // SAFETY: `to` is writable memory of this process, not registered, so absent pages can
                    // be written; the view holds the segment.
                    unsafe { bytes::copy(to, from, part.len_bytes()) };
                }
            }
        });
    }
    locked.change(|map| map.set_present(at.all(), dropped));
}
