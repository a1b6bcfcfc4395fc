//! What a fork means for lanes. A child may use what its parent's descriptors name, and knows nothing of tokens that come
//! later: so nothing goes by reference before it, or while a child lives that has not executed another program. Streams that
//! such a program has are literal for good, see [`handed`]. Of what was
//! announced before and was not received, the parent keeps the memory; a child that reads there is told that the connection
//! is lost.

use crate::handed;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::last_thread::{self, Role};
use uncopy_sys::lifeline::{self, Heard, Lifeline};
use uncopy_sys::lock::Lock;
use uncopy_sys::sync::atomic::{
    AtomicBool, AtomicI32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Children that are watched, at most; with more of them, nothing goes by reference until some have ended.
const MAX_CHILDREN: usize = 8;

/// Held across a fork.
static FORKING: Lock = Lock::new();
/// The lifeline of the child that is being made.
static LINE: Guarded<Option<Lifeline>> = Guarded::new(None);
/// This process's ends of its children's lifelines.
static CHILDREN: [AtomicI32; MAX_CHILDREN] = [const { AtomicI32::new(-1) }; MAX_CHILDREN];
/// Held while children are heard.
static HEARING: Guarded<()> = Guarded::new(());
/// Whether there may be any.
static HAS_CHILDREN: AtomicBool = AtomicBool::new(false);
/// A child could not be watched: nothing goes by reference any more.
static IS_UNWATCHED: AtomicBool = AtomicBool::new(false);
/// The ends that this process holds, of its own lifeline and its ancestors'.
static HELD: [AtomicI32; MAX_CHILDREN] = [const { AtomicI32::new(-1) }; MAX_CHILDREN];

/// Before a fork: from here on streams are shared.
pub(crate) fn prepare() {
    FORKING.lock();
    let line = Lifeline::make();
    IS_UNWATCHED.store(IS_UNWATCHED.load(Relaxed) || line.is_err(), Relaxed);
    *LINE.lock() = line.ok();
}

/// Whether the calling thread forks just now.
pub(crate) fn is_forking() -> bool {
    FORKING.owner() == uncopy_sys::lock::thread_id()
}

/// After a fork, in the parent, also if it failed.
pub(crate) fn parent() {
    if let Some(line) = LINE.lock().take() {
        lifeline::close(line.held);
        let is_free = |child: &&AtomicI32| child.load(Relaxed) < 0;
        match CHILDREN.iter().find(is_free) {
            Some(place) => place.store(line.watched, Release),
            None => {
                lifeline::close(line.watched);
                IS_UNWATCHED.store(true, Relaxed);
            }
        }
        HAS_CHILDREN.store(true, Release);
    }
    FORKING.unlock();
}

/// After a fork, in the child, before the thread's id is forgotten. `has_own_descriptors`: they are not shared with the
/// parent.
pub(crate) fn child(has_own_descriptors: bool) {
    FORKING.unlock();
    last_thread::in_child(Role::Lanes, has_own_descriptors);
    HAS_CHILDREN.store(false, Relaxed);
    IS_UNWATCHED.store(false, Relaxed);
    for place in &CHILDREN {
        let watched = place.swap(-1, Relaxed);
        if watched >= 0 && has_own_descriptors {
            lifeline::close(watched);
        }
    }
    if let Some(line) = LINE.lock().take() {
        if has_own_descriptors {
            lifeline::close(line.watched);
        }
        if let Some(place) = HELD.iter().find(|held| held.load(Relaxed) < 0) {
            place.store(line.held, Relaxed);
        }
    }
}

/// Says to all that watch this process that a program which is about to be executed has the socket with this cookie.
pub(crate) fn say(cookie: u64) {
    for held in HELD.iter().map(|held| held.load(Relaxed)).filter(|held| *held >= 0) {
        lifeline::say(held, cookie);
    }
}

/// Hears a child to its end, if it has come: whether it lives.
fn lives(place: &AtomicI32) -> bool {
    let watched = place.load(Acquire);
    if watched < 0 {
        return false;
    }
    loop {
        match lifeline::hear(watched) {
            Heard::Nothing => return true,
            // What another program has.
            Heard::Said(cookie) => handed::note(cookie),
            Heard::Ended => {
                place.store(-1, Release);
                lifeline::close(watched);
                return false;
            }
        }
    }
}

/// Whether a child lives that may use this process's streams. Once none does, it is known which of them other programs have.
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
    // One at a time: who finds that nobody lives has heard all.
    let _hearing = HEARING.lock();
    let are_alive = CHILDREN.iter().filter(|place| lives(place)).count() > 0;
    if !are_alive && FORKING.owner() == 0 {
        HAS_CHILDREN.store(false, Release);
        if CHILDREN.iter().any(|place| place.load(Acquire) >= 0) {
            HAS_CHILDREN.store(true, Release);
            return true;
        }
    }
    are_alive
}

/// The descriptors of this layer in the program's table, in no order.
pub fn descriptors() -> impl Iterator<Item = i32> {
    CHILDREN.iter().chain(&HELD).map(|place| place.load(Relaxed)).filter(|fd| *fd >= 0)
}
