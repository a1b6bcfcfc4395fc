//! Pool of pipes and bump areas, each used by one thread at a time.
//!
//! Slots do not belong to threads: a thread takes the slot that it had last, or another free one. So there
//! are as many pipes as threads ever sent simultaneously, and none is lost when a thread ends. A signal
//! handler that sends while its thread is sending takes another slot, and if it leaves by `longjmp`, the slot
//! stays taken. When all slots are taken, bytes are copied.
//!
//! A forked child inherits descriptors and memory, but uses neither. A slot holds the lineage number of the
//! process that used it last ([`lineage`]); a process that finds another's number closes the descriptor, unmaps
//! the memory and starts afresh.

use crate::bump::Bump;
use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use uncopy_sys::errno::Errno;
use uncopy_sys::pipe::Pipe;
use uncopy_sys::{lineage, lock};

/// Maximum threads that send by reference at the same time. Each slot has at most one pipe.
const SLOTS: usize = 64;
/// Maximum number of lost pipes, counted in `LOST_PIPES`. After that no pipe is opened, and bytes are copied.
const MAX_LOST_PIPES: usize = 1000;

pub struct Resources {
    /// Opened at first use, and empty between uses.
    pipe: Option<Pipe>,
    /// Holds the copied parts of messages.
    pub bump: Bump,
}

struct Slot {
    /// Lineage number in the upper half (0: never used), id of the thread that holds the slot in the lower half
    /// (0: free).
    owner: AtomicU64,
    resources: UnsafeCell<Resources>,
}

// SAFETY: only the thread named by `owner`, which changes with Acquire and Release, accesses `resources`.
unsafe impl Sync for Slot {}

static POOL: [Slot; SLOTS] = [const {
    Slot { owner: AtomicU64::new(0), resources: UnsafeCell::new(Resources { pipe: None, bump: Bump::new() }) }
}; SLOTS];
/// Number of pipes that the program closed or replaced, or that failed to open.
static LOST_PIPES: AtomicUsize = AtomicUsize::new(0);

uncopy_sys::locals! {
    /// The slot that this thread used last.
    static LAST: Cell<usize> = Cell::new(0);
}

/// Ownership of a slot, released on drop.
pub struct SlotGuard {
    index: usize,
    free_word: u64,
}

/// Takes a slot. Returns `None` if all are taken, or if forks cannot be detected on this system.
pub fn acquire() -> Option<SlotGuard> {
    let lineage = u64::from(lineage::number()?) << 32;
    let last = LAST.with(Cell::get);
    if let Some(slot) = try_acquire(last, lineage) {
        return Some(slot);
    }
    // Lowest first, so that few slots serve all threads.
    let slot = (0..SLOTS).find_map(|index| try_acquire(index, lineage))?;
    LAST.with(|last| last.set(slot.index));
    Some(slot)
}

/// Takes a slot if it is free. `lineage`: this process's number, in the upper half.
fn try_acquire(index: usize, lineage: u64) -> Option<SlotGuard> {
    let slot = &POOL[index];
    let current = slot.owner.load(Ordering::Relaxed);
    // This process has not used the slot: nobody has, or an ancestor before the fork.
    let is_first_use = current & !u64::from(u32::MAX) != lineage;
    if !is_first_use && current != lineage {
        return None;
    }
    let owner_word = lineage | u64::from(lock::thread_id());
    slot.owner.compare_exchange(current, owner_word, Ordering::Acquire, Ordering::Relaxed).ok()?;
    let mut guard = SlotGuard { index, free_word: lineage };
    if is_first_use && current != 0 {
        guard.resources().discard_inherited();
    }
    Some(guard)
}

impl SlotGuard {
    pub fn resources(&mut self) -> &mut Resources {
        // SAFETY: `owner` names this thread, and the slot's only `SlotGuard` is borrowed mutably.
        unsafe { &mut *POOL[self.index].resources.get() }
    }

    /// Returns the slot's pipe, which opens at first use. It is empty, and the caller must leave it empty. If
    /// `trusted`, skips the check that the descriptor is still the pipe that was opened, because nothing in this
    /// process closes descriptors of others.
    pub fn open_pipe(&mut self, trusted: bool) -> Result<Pipe, Errno> {
        // Pipe marks start at 1.
        let mark = self.index as i32 + 1;
        let resources = self.resources();
        if let Some(pipe) = resources.pipe {
            if trusted || pipe.is_ours() {
                return Ok(pipe);
            }
            resources.pipe = None;
            LOST_PIPES.fetch_add(1, Ordering::Relaxed);
        }
        if LOST_PIPES.load(Ordering::Relaxed) > MAX_LOST_PIPES {
            return Err(Errno(libc::EMFILE));
        }
        let pipe = Pipe::open(mark).inspect_err(|_| _ = LOST_PIPES.fetch_add(1, Ordering::Relaxed))?;
        resources.pipe = Some(pipe);
        Ok(pipe)
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        POOL[self.index].owner.store(self.free_word, Ordering::Release);
    }
}

impl Resources {
    /// Drains the `len_bytes` bytes left in the pipe.
    pub fn drain(&mut self, len_bytes: usize) {
        if !self.pipe.is_some_and(|pipe| pipe.drain(len_bytes)) {
            self.discard();
        }
    }

    pub fn discard(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            pipe.close();
        }
    }

    /// Gives up a pipe and memory that were inherited by fork.
    #[cold]
    fn discard_inherited(&mut self) {
        self.discard();
        self.bump.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_finds_the_slot_that_it_had() {
        let first = acquire().expect("a slot");
        let index = first.index;
        let second = acquire().expect("another");
        assert_ne!(second.index, index);
        let other = second.index;
        drop(first);
        drop(second);
        assert_eq!(acquire().expect("the last one").index, other);
    }

    #[test]
    fn a_child_has_pipes_of_its_own() {
        let mut slot = acquire().expect("a slot");
        let pipe = slot.open_pipe(false).expect("a pipe");
        let index = slot.index;
        // SAFETY: fork(2) copies the calling thread only; the child uses no lock of another thread and ends
        // by _exit(2). `status` outlives waitpid(2).
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let lineage = u64::from(lineage::number().unwrap_or(0)) << 32;
                let mut again = try_acquire(index, lineage);
                let is_new = again.as_mut().is_some_and(|again| {
                    again.resources().pipe.is_none() && !pipe.is_ours() && again.open_pipe(false).is_ok()
                });
                libc::_exit(i32::from(!is_new));
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(status, 0);
        }
        assert!(pipe.is_ours(), "the parent's is as it was");
    }
}
