//! Calls in progress: what a blocked input or output holds while the program's own system call runs.
//!
//! Such a call may never come back: a signal handler jumps out of it, its thread is cancelled, or the process
//! forks and its thread is not there in the child. So what it holds is not kept in its stack frame but in a
//! list, and is given back when the call turns out to be over:
//!
//! - at a later call of the same thread, if the word that the call left in its frame is gone: other frames
//!   lie there now. While a call is in progress nothing else writes to its frame, whatever stack it is on
//!   (an alternate one, a coroutine's), so that none is ever given back too early;
//! - at the end of its thread;
//! - in a forked child, if it was another thread's.
//!
//! There are several lists, of which each thread uses one, so that threads do not wait for each other.

use crate::arena::segment::Segment;
use crate::call::redirected::Redirected;
use core::cell::Cell;
use core::ptr::null_mut;
use core::sync::atomic::AtomicUsize;
use smallvec::SmallVec;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::lock::{Critical, thread_id};
use uncopy_sys::presence;
use uncopy_sys::readable;
use uncopy_sys::sync::atomic::Ordering::Relaxed;
use uncopy_sys::thread;

/// Parts of an input that are redirected, with their index.
pub(crate) type RedirectedParts = SmallVec<[(usize, Redirected); 2]>;
/// What keeps the bytes of an output.
pub(crate) type Segments = SmallVec<[Segment; 16]>;

/// What a call holds.
pub(crate) enum Held {
    /// Where an input is received.
    Input(RedirectedParts),
    /// What an output is sent from.
    Output(Segments),
}

impl Held {
    fn give_back(self) {
        match self {
            Self::Input(parts) => parts.into_iter().for_each(|(_, part)| part.give_back()),
            Self::Output(segments) => drop(segments),
        }
    }
}

/// An entry of a list.
struct Record {
    thread: u32,
    /// Index of its list.
    list: usize,
    /// Address of the word in the call's frame.
    mark: usize,
    /// What is there while the call is in progress.
    value: usize,
    previous: *mut Record,
    next: *mut Record,
    held: Held,
}

/// Lists; a model's threads share one.
const LISTS: usize = if cfg!(loom) { 1 } else { 64 };

#[repr(align(128))]
struct List {
    /// The first record. The lock is taken last of the engine's, with those of the other lists in order; nothing is
    /// allocated or released under it.
    first: Guarded<First>,
}

struct First(*mut Record);

// SAFETY: the records are only linked, unlinked and looked at under the list's lock.
unsafe impl Send for First {}

impl List {
    uncopy_sys::constant! {
        const fn new() -> Self {
            Self { first: Guarded::new(First(null_mut())) }
        }
    }
}

#[cfg(not(loom))]
static ALL: [List; LISTS] = [const { List::new() }; LISTS];
#[cfg(loom)]
uncopy_sys::statics! {
    static ALL: [List; LISTS] = core::array::from_fn(|_| List::new());
}

/// Index of the calling thread's list.
fn own_list() -> usize {
    if cfg!(loom) { 0 } else { thread::number() as usize % LISTS }
}

/// Makes marks differ from one another, and from what else may be in a frame.
const MARK_STEP: usize = 0x9E37_79B9_7F4A_7C15 | 1;

uncopy_sys::locals! {
    /// Records of this thread in the list.
    static MINE: Cell<usize> = Cell::new(0);
    /// Calls that this thread has made.
    static CALLS: Cell<usize> = Cell::new(0);
    /// Whether this thread's end is watched.
    static WATCHED: Cell<bool> = Cell::new(false);
}

/// A call that is about to be made, or in progress. Must be made and dropped inside a `Critical`.
pub(crate) struct InProgress {
    record: *mut Record,
    mark: AtomicUsize,
}

impl InProgress {
    pub(crate) fn new(held: Held) -> Self {
        let thread = thread_id();
        let (previous, next) = (null_mut(), null_mut());
        let record = Record { thread, list: own_list(), mark: 0, value: 0, previous, next, held };
        Self { record: Box::into_raw(Box::new(record)), mark: AtomicUsize::new(0) }
    }

    /// Runs `call`, during which the thread may jump away.
    pub(crate) fn run<T>(&self, call: impl FnOnce() -> T) -> T {
        if !WATCHED.with(|watched| watched.replace(true)) {
            thread::watch_end(end_of_thread);
        }
        let calls = CALLS.with(|calls| calls.replace(calls.get() + 1));
        let value = ((thread::number() as usize) << 40 | calls).wrapping_mul(MARK_STEP) | 1;
        self.mark.store(value, Relaxed);
        // Calls that ended in the middle are few, and usually none.
        if MINE.with(Cell::get) > 0 {
            let me = thread_id();
            take_where(own_list(), |record| record.thread == me && !record.is_in_progress());
        }
        // SAFETY: the record is this call's, and not in the list.
        unsafe {
            (*self.record).mark = self.mark.as_ptr() as usize;
            (*self.record).value = value;
            link(self.record);
        }
        let result = call();
        if presence::is_outside() {
            // It stays in the list, where the thread's next call, or a child, finds that it is over.
            self.mark.store(0, Relaxed);
            return result;
        }
        // SAFETY: linked above.
        unsafe { unlink(self.record) };
        self.mark.store(0, Relaxed);
        result
    }

    /// A call that never comes back.
    #[cfg(all(test, loom))]
    pub(crate) fn leave_by_a_jump(self) {
        // SAFETY: as in `run`.
        unsafe { link(self.record) };
        core::mem::forget(self);
    }

    /// Ends a call whose thread could not come back in ([`presence::is_outside`]): `inspect` sees what it holds,
    /// which is given back later.
    pub(crate) fn leave(self, inspect: impl FnOnce(&Held)) {
        // SAFETY: the record is in the list, and only this thread, or a child, takes it out.
        inspect(unsafe { &(*self.record).held });
        core::mem::forget(self);
    }

    /// Looks at what the call holds: before it is made, or after it came back in.
    pub(crate) fn inspect<T>(&self, inspect: impl FnOnce(&Held) -> T) -> T {
        // SAFETY: the record is this call's, and not in the list.
        inspect(unsafe { &(*self.record).held })
    }

    /// What the call holds.
    pub(crate) fn take(self) -> Held {
        // SAFETY: the record is this call's, not in the list, and forgotten here.
        let record = unsafe { Box::from_raw(self.record) };
        core::mem::forget(self);
        record.held
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        if presence::is_outside() {
            return;
        }
        // SAFETY: the record is this call's and not in the list.
        unsafe { Box::from_raw(self.record) }.held.give_back();
    }
}

impl Record {
    /// Whether the call's frame is as it was left.
    fn is_in_progress(&self) -> bool {
        // SAFETY: the word was found readable; frames are aligned.
        readable::is_readable(self.mark, size_of::<usize>())
            && unsafe { (self.mark as *const usize).read_volatile() } == self.value
    }
}

/// # Safety
/// The record must be the caller's and not in the list.
unsafe fn link(record: *mut Record) {
    // SAFETY: the record is the caller's alone; those in the list are alive while the list is locked.
    unsafe {
        let mut first = ALL[(*record).list].first.lock();
        (*record).previous = null_mut();
        (*record).next = first.0;
        if let Some(next) = first.0.as_mut() {
            next.previous = record;
        }
        first.0 = record;
    }
    MINE.with(|mine| mine.set(mine.get() + 1));
}

/// # Safety
/// The record must be the calling thread's and in the list.
unsafe fn unlink(record: *mut Record) {
    // SAFETY: a record in the list is alive, and its list's lock is taken for it.
    unsafe { unlink_from(&mut ALL[(*record).list].first.lock(), record) };
    MINE.with(|mine| mine.set(mine.get() - 1));
}

/// # Safety
/// The record must be in the list that `first` begins.
unsafe fn unlink_from(first: &mut First, record: *mut Record) {
    // SAFETY: both neighbours are in the locked list too, and so alive.
    unsafe {
        let Record { previous, next, .. } = *record;
        match previous.as_mut() {
            Some(previous) => previous.next = next,
            None => first.0 = next,
        }
        if let Some(next) = next.as_mut() {
            next.previous = previous;
        }
    }
}

/// Takes records out of a list and gives back what they hold.
fn take_where(list: usize, is_over: impl Fn(&Record) -> bool) {
    let me = thread_id();
    let mut over: *mut Record = null_mut();
    {
        let mut first = ALL[list].first.lock();
        let mut at = first.0;
        while !at.is_null() {
            // SAFETY: records in the list are alive, and linked only under the lock.
            unsafe {
                let next = (*at).next;
                if is_over(&*at) {
                    unlink_from(&mut first, at);
                    if (*at).thread == me {
                        MINE.with(|mine| mine.set(mine.get() - 1));
                    }
                    (*at).next = over;
                    over = at;
                }
                at = next;
            }
        }
    }
    while !over.is_null() {
        // SAFETY: taken out of the list above: nobody else knows it.
        let record = unsafe { Box::from_raw(over) };
        over = record.next;
        record.held.give_back();
    }
}

/// A thread ends: whatever calls it made are over.
pub(crate) extern "C" fn end_of_thread() {
    let _critical = Critical::enter();
    WATCHED.with(|watched| watched.set(false));
    if MINE.with(Cell::get) > 0 {
        let me = thread_id();
        take_where(own_list(), |record| record.thread == me);
    }
}

/// Takes the lists' locks, to be held across a fork.
pub(crate) fn lock_all() {
    ALL.iter().for_each(|list| list.first.raw().lock());
}

/// Gives them back.
pub(crate) fn unlock_all() {
    ALL.iter().for_each(|list| list.first.raw().unlock());
}

/// In a forked child: the calls of other threads are over. `parent` is the forking thread's id in the parent.
pub(crate) fn in_child(parent: u32) {
    let me = thread_id();
    for (index, list) in ALL.iter().enumerate() {
        take_where(index, |record| record.thread != parent);
        let first = list.first.lock();
        let mut at = first.0;
        while !at.is_null() {
            // SAFETY: records in the list are alive, and linked only under the lock, which is held.
            unsafe {
                (*at).thread = me;
                at = (*at).next;
            }
        }
    }
}
