//! Lanes across fork. A child may use its parent's descriptors, and cannot interpret tokens sent later. So nothing
//! goes by reference from before a fork until every child has executed another program or ended. Streams that such
//! a program keeps are permanently literal, see [`shared_streams`]. The parent keeps the memory of what was announced
//! before and not received; a child that reads there gets a connection reset.

use crate::shared_streams;
use uncopy_sys::descriptor::{OwnSlot, ProgramFd};
use uncopy_sys::guarded::Guarded;
use uncopy_sys::last_thread::{self, Role};
use uncopy_sys::lifeline::{self, Lifeline, LifelineEvent};
use uncopy_sys::lock::Lock;
use uncopy_sys::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Maximum number of watched children; beyond it, nothing goes by reference.
const MAX_CHILDREN: usize = 8;

static FORKING: Lock = Lock::new();
/// Lifeline of the child being forked.
static LINE: Guarded<Option<Lifeline>> = Guarded::new(None);
/// Watching ends of the children's lifelines.
static CHILDREN: [OwnSlot; MAX_CHILDREN] = [const { OwnSlot::empty() }; MAX_CHILDREN];
/// Lock that serializes reading the lifelines.
static READING: Guarded<()> = Guarded::new(());
static HAS_CHILDREN: AtomicBool = AtomicBool::new(false);
/// True once a child could not be watched: nothing goes by reference any more.
static IS_UNWATCHED: AtomicBool = AtomicBool::new(false);
/// Held ends of this process's own lifeline and its ancestors'.
static HELD: [OwnSlot; MAX_CHILDREN] = [const { OwnSlot::empty() }; MAX_CHILDREN];

/// Prepares a fork: streams count as shared from here on.
pub(crate) fn prepare() {
    FORKING.lock();
    let line = Lifeline::make();
    IS_UNWATCHED.store(IS_UNWATCHED.load(Relaxed) || line.is_err(), Relaxed);
    *LINE.lock() = line.ok();
}

/// True if the calling thread is forking.
pub(crate) fn is_forking() -> bool {
    FORKING.owner() == uncopy_sys::lock::thread_id()
}

/// Resumes in the parent, also after a failed fork.
pub(crate) fn parent() {
    if let Some(Lifeline { watched, .. }) = LINE.lock().take() {
        match CHILDREN.iter().find(|child| child.get().is_none()) {
            Some(slot) => drop(slot.replace(Some(watched))),
            None => IS_UNWATCHED.store(true, Relaxed),
        }
        HAS_CHILDREN.store(true, Release);
    }
    FORKING.unlock();
}

/// Resumes in the child, before its cached thread id is reset. `has_own_descriptors`: unless CLONE_FILES.
pub(crate) fn child(has_own_descriptors: bool) {
    FORKING.unlock();
    last_thread::reset_in_child(Role::Lanes, has_own_descriptors);
    HAS_CHILDREN.store(false, Relaxed);
    IS_UNWATCHED.store(false, Relaxed);
    for watched in CHILDREN.iter().filter_map(OwnSlot::take) {
        watched.close_in_child(has_own_descriptors);
    }
    if let Some(Lifeline { watched, held }) = LINE.lock().take() {
        watched.close_in_child(has_own_descriptors);
        match HELD.iter().find(|slot| slot.get().is_none()) {
            Some(slot) => drop(slot.replace(Some(held))),
            // No slot is free: the descriptor stays open until the process ends.
            None => _ = held.leave_open(),
        }
    }
}

/// Tells the processes that watch this one that a program about to be executed keeps the socket with this cookie.
pub(crate) fn report_kept_socket(cookie: u64) {
    for held in HELD.iter().filter_map(OwnSlot::get) {
        lifeline::send_word(held, cookie);
    }
}

/// Reads a child's lifeline; returns true if the child is alive.
fn is_alive(slot: &OwnSlot) -> bool {
    let Some(watched) = slot.get() else { return false };
    loop {
        match lifeline::next_event(watched) {
            LifelineEvent::Nothing => return true,
            // The child executes a program that keeps this socket.
            LifelineEvent::Word(cookie) => shared_streams::note_shared(cookie),
            LifelineEvent::Ended => {
                drop(slot.take());
                return false;
            }
        }
    }
}

/// True if a child that may use these streams is alive. If none is, all streams that programs kept are known.
pub fn is_shared() -> bool {
    if FORKING.owner() != 0 {
        return true;
    }
    if !HAS_CHILDREN.load(Acquire) {
        return false;
    }
    if IS_UNWATCHED.load(Relaxed) {
        return true;
    }
    // One thread at a time: whoever finds no child alive has read every message.
    let _reading = READING.lock();
    let are_alive = CHILDREN.iter().filter(|slot| is_alive(slot)).count() > 0;
    if !are_alive && FORKING.owner() == 0 {
        HAS_CHILDREN.store(false, Release);
        if CHILDREN.iter().any(|slot| slot.get().is_some()) {
            HAS_CHILDREN.store(true, Release);
            return true;
        }
    }
    are_alive
}

/// Returns the program-visible numbers of this module's descriptors, in no order.
pub fn descriptors() -> impl Iterator<Item = ProgramFd> {
    CHILDREN.iter().chain(&HELD).filter_map(OwnSlot::as_program)
}
