//! Calls in progress: resources that a blocked input or output holds while the program's own system call runs.
//!
//! Such a call may never return: a signal handler jumps out of it, its thread is cancelled, or the process
//! forks and the child lacks its thread. Its resources are therefore kept in a list, not in its stack
//! frame, and are given back when the call turns out to be over:
//!
//! - at a later call of the same thread, if the mark that the call left in its frame is gone, because other
//!   frames overwrote it. While a call is in progress nothing else writes to its frame, whatever stack it
//!   is on (an alternate one, a coroutine's), so that resources are never given back too early;
//! - at the end of its thread;
//! - in a forked child, if it was another thread's.
//!
//! There are several lists, of which each thread uses one, to avoid contention.

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

/// Redirected parts of an input, with their indices.
pub(crate) type RedirectedParts = SmallVec<[(usize, Redirected); 2]>;
/// References that keep the bytes of an output.
pub(crate) type Segments = SmallVec<[Segment; 16]>;

/// Resources of a call.
pub(crate) enum CallResources {
    /// Segments that an input is received into.
    Input(RedirectedParts),
    /// Segments that an output is sent from.
    Output(Segments),
}

impl CallResources {
    fn give_back(self) {
        match self {
            Self::Input(parts) => parts.into_iter().for_each(|(_, part)| part.give_back()),
            Self::Output(segments) => drop(segments),
        }
    }
}

struct Record {
    thread: u32,
    list: usize,
    /// Address of the mark in the call's frame.
    mark: usize,
    /// Value of the mark while the call is in progress.
    value: usize,
    previous: *mut Record,
    next: *mut Record,
    held: CallResources,
}

/// Number of lists; the threads of a model share one.
const LISTS: usize = if cfg!(loom) { 1 } else { 64 };

#[repr(align(128))]
struct List {
    /// First record. The lock is taken after those of blocks and of earlier lists; nothing is allocated or
    /// released under it.
    first: Guarded<First>,
}

struct First(*mut Record);

// SAFETY: the records are linked, unlinked and read only under the list's lock.
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

fn own_list() -> usize {
    if cfg!(loom) { 0 } else { thread::number() as usize % LISTS }
}

/// Factor that makes marks differ from one another, and from other contents of a frame.
const MARK_STEP: usize = 0x9E37_79B9_7F4A_7C15 | 1;

uncopy_sys::locals! {
    /// Number of this thread's records in the list.
    static OWN_RECORDS: Cell<usize> = Cell::new(0);
    static CALLS: Cell<usize> = Cell::new(0);
    static WATCHED: Cell<bool> = Cell::new(false);
}

/// A call that is about to be made, or in progress. To be created and dropped inside a `Critical`.
pub(crate) struct InProgress {
    record: *mut Record,
    mark: AtomicUsize,
}

impl InProgress {
    pub(crate) fn new(held: CallResources) -> Self {
        let thread = thread_id();
        let (previous, next) = (null_mut(), null_mut());
        let record = Record { thread, list: own_list(), mark: 0, value: 0, previous, next, held };
        Self { record: Box::into_raw(Box::new(record)), mark: AtomicUsize::new(0) }
    }

    /// Runs `call`, during which the thread may jump away.
    pub(crate) fn run<T>(&self, call: impl FnOnce() -> T) -> T {
        if !WATCHED.with(|watched| watched.replace(true)) {
            thread::on_thread_end(end_of_thread);
        }
        let calls = CALLS.with(|calls| calls.replace(calls.get() + 1));
        let value = ((thread::number() as usize) << 40 | calls).wrapping_mul(MARK_STEP) | 1;
        self.mark.store(value, Relaxed);
        // Records of abandoned calls are few, and usually there are none.
        if OWN_RECORDS.with(Cell::get) > 0 {
            let me = thread_id();
            take_where(own_list(), |record| record.thread == me && !record.is_in_progress());
        }
        // SAFETY: the record was made by `new`, is not in the list, and is used by this call alone.
        unsafe {
            (*self.record).mark = self.mark.as_ptr() as usize;
            (*self.record).value = value;
            link(self.record);
        }
        let result = call();
        if presence::is_outside() {
            // The record stays in the list, where the thread's next call, or a child, finds that the call is over.
            self.mark.store(0, Relaxed);
            return result;
        }
        // SAFETY: the record was linked above by this thread, and only this thread or a child takes it out.
        unsafe { unlink(self.record) };
        self.mark.store(0, Relaxed);
        result
    }

    /// Simulates a call that never returns.
    #[cfg(all(test, loom))]
    pub(crate) fn leave_by_a_jump(self) {
        // SAFETY: the record was made by `new`, is not in the list, and is used by this call alone.
        unsafe { link(self.record) };
        core::mem::forget(self);
    }

    /// Ends a call whose thread could not enter the engine again ([`presence::is_outside`]). `inspect` sees
    /// the resources, which are given back later.
    pub(crate) fn end_outside_engine(self, inspect: impl FnOnce(&CallResources)) {
        // SAFETY: the record is in the list and alive: only this thread, or a child, takes it out.
        inspect(unsafe { &(*self.record).held });
        core::mem::forget(self);
    }

    /// Inspects the resources before the call is made, or after the thread has entered the engine again.
    pub(crate) fn inspect<T>(&self, inspect: impl FnOnce(&CallResources) -> T) -> T {
        // SAFETY: the record was made by `new`, is not in the list, and is used by this call alone.
        inspect(unsafe { &(*self.record).held })
    }

    pub(crate) fn take(self) -> CallResources {
        // SAFETY: the record came from `Box::into_raw` and is not in the list; `self` is forgotten below,
        // so it is freed once.
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
        // SAFETY: the record came from `Box::into_raw` and is not in the list; `self` is being dropped, so
        // it is freed once.
        unsafe { Box::from_raw(self.record) }.held.give_back();
    }
}

impl Record {
    /// Whether the mark in the call's frame is intact.
    fn is_in_progress(&self) -> bool {
        // SAFETY: `is_readable` found the word readable; the mark is a `usize` in a frame, so aligned.
        readable::is_readable(self.mark, size_of::<usize>())
            && unsafe { (self.mark as *const usize).read_volatile() } == self.value
    }
}

/// # Safety
/// The record must be the caller's and not in the list.
unsafe fn link(record: *mut Record) {
    // SAFETY: the caller has the only access to the record; records in the list are alive while its lock is held.
    unsafe {
        let mut first = ALL[(*record).list].first.lock();
        (*record).previous = null_mut();
        (*record).next = first.0;
        if let Some(next) = first.0.as_mut() {
            next.previous = record;
        }
        first.0 = record;
    }
    OWN_RECORDS.with(|mine| mine.set(mine.get() + 1));
}

/// # Safety
/// The record must be the calling thread's and in the list.
unsafe fn unlink(record: *mut Record) {
    // SAFETY: the caller promises that the record is in the list, and so alive; its list's lock is taken
    // for the call.
    unsafe { unlink_from(&mut ALL[(*record).list].first.lock(), record) };
    OWN_RECORDS.with(|mine| mine.set(mine.get() - 1));
}

/// # Safety
/// The record must be in the list that `first` begins.
unsafe fn unlink_from(first: &mut First, record: *mut Record) {
    // SAFETY: the record and both neighbours are in the locked list, and so alive.
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

/// Takes matching records out of a list and gives back their resources.
fn take_where(list: usize, is_over: impl Fn(&Record) -> bool) {
    let me = thread_id();
    let mut over: *mut Record = null_mut();
    {
        let mut first = ALL[list].first.lock();
        let mut at = first.0;
        while !at.is_null() {
            // SAFETY: records in the list are alive and are linked only under its lock, which is held.
            unsafe {
                let next = (*at).next;
                if is_over(&*at) {
                    unlink_from(&mut first, at);
                    if (*at).thread == me {
                        OWN_RECORDS.with(|mine| mine.set(mine.get() - 1));
                    }
                    (*at).next = over;
                    over = at;
                }
                at = next;
            }
        }
    }
    while !over.is_null() {
        // SAFETY: the record came from `Box::into_raw` and was taken out of the list above, so there is no
        // other reference.
        let record = unsafe { Box::from_raw(over) };
        over = record.next;
        record.held.give_back();
    }
}

/// Gives back the resources of all calls of a thread that ends.
pub(crate) extern "C" fn end_of_thread() {
    let _critical = Critical::enter();
    WATCHED.with(|watched| watched.set(false));
    if OWN_RECORDS.with(Cell::get) > 0 {
        let me = thread_id();
        take_where(own_list(), |record| record.thread == me);
    }
}

/// Takes the locks of all lists, to be held across a fork.
pub(crate) fn lock_all() {
    ALL.iter().for_each(|list| list.first.raw().lock());
}

pub(crate) fn unlock_all() {
    ALL.iter().for_each(|list| list.first.raw().unlock());
}

/// Gives back the resources of other threads' calls, in a forked child. `parent`: the forking thread's id
/// in the parent.
pub(crate) fn in_child(parent: u32) {
    let me = thread_id();
    for (index, list) in ALL.iter().enumerate() {
        take_where(index, |record| record.thread != parent);
        let first = list.first.lock();
        let mut at = first.0;
        while !at.is_null() {
            // SAFETY: records in the list are alive and are linked only under its lock, which is held.
            unsafe {
                (*at).thread = me;
                at = (*at).next;
            }
        }
    }
}
