//! Pipes and bump areas, each in use by one thread at a time.
//!
//! They belong to no thread: a thread takes the one that it had last, or another that is free, so there are as many
//! as threads were ever sending at the same moment, and none goes when a thread ends. A signal handler that sends
//! on top of a sending thread takes another. One that leaves the send by `longjmp` keeps it for good; when all are
//! taken, bytes are copied.
//!
//! A forked child has its parent's descriptors and memory. It uses neither: a slot names the process that it belongs to
//! ([`lineage`]), and who finds another's there closes the descriptor, gives the memory up and begins anew.

use crate::bump::Bump;
use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use uncopy_sys::errno::Errno;
use uncopy_sys::pipe::Pipe;
use uncopy_sys::{lineage, lock};

/// Threads that send by reference at the same moment, at most; as many descriptors are taken.
const SLOTS: usize = 64;
/// Pipes that may be refused, or made anew because the program closed them or put something in their place: where that
/// goes on, bytes are copied.
const MAX_REMADE: usize = 1000;

/// What a send by reference needs.
pub struct Tools {
    pipe: Option<Pipe>,
    /// Where ordinary bytes go.
    pub bump: Bump,
}

struct Slot {
    /// The process in the upper half, the thread that has it in the lower one (0: none).
    owner: AtomicU64,
    tools: UnsafeCell<Tools>,
}

// SAFETY: the tools are only touched by the thread that the owner's word names.
unsafe impl Sync for Slot {}

static POOL: [Slot; SLOTS] = [const {
    Slot { owner: AtomicU64::new(0), tools: UnsafeCell::new(Tools { pipe: None, bump: Bump::new() }) }
}; SLOTS];
static REMADE: AtomicUsize = AtomicUsize::new(0);

uncopy_sys::locals! {
    /// The slot that this thread had last.
    static LAST: Cell<usize> = Cell::new(0);
}

/// A slot that the calling thread has; given back when dropped.
pub struct Taken {
    index: usize,
    free: u64,
}

/// Takes a slot; `None`: all are taken, or forks cannot be told here.
pub fn take() -> Option<Taken> {
    let process = u64::from(lineage::number()?) << 32;
    let last = LAST.with(Cell::get);
    if let Some(taken) = try_take(last, process) {
        return Some(taken);
    }
    // In order, so that the first ones serve everybody.
    let taken = (0..SLOTS).find_map(|index| try_take(index, process))?;
    LAST.with(|last| last.set(taken.index));
    Some(taken)
}

fn try_take(index: usize, process: u64) -> Option<Taken> {
    let slot = &POOL[index];
    let found = slot.owner.load(Ordering::Relaxed);
    let is_inherited = found & !u64::from(u32::MAX) != process;
    if !is_inherited && found != process {
        return None;
    }
    let own = process | u64::from(lock::thread_id());
    slot.owner.compare_exchange(found, own, Ordering::Acquire, Ordering::Relaxed).ok()?;
    let mut taken = Taken { index, free: process };
    if is_inherited && found != 0 {
        taken.tools().disinherit();
    }
    Some(taken)
}

impl Taken {
    /// What is in the slot.
    pub fn tools(&mut self) -> &mut Tools {
        // SAFETY: the owner's word names this thread, which has one `Taken` of this slot.
        unsafe { &mut *POOL[self.index].tools.get() }
    }

    /// An empty pipe that is ours; `trusted`: nobody in this process closes what is not theirs.
    pub fn pipe(&mut self, trusted: bool) -> Result<Pipe, Errno> {
        // Marks begin at 1.
        let mark = self.index as i32 + 1;
        let tools = self.tools();
        if let Some(pipe) = tools.pipe {
            if trusted || pipe.is_ours() {
                return Ok(pipe);
            }
            tools.pipe = None;
            REMADE.fetch_add(1, Ordering::Relaxed);
        }
        if REMADE.load(Ordering::Relaxed) > MAX_REMADE {
            return Err(Errno(libc::EMFILE));
        }
        let pipe = Pipe::open(mark).inspect_err(|_| _ = REMADE.fetch_add(1, Ordering::Relaxed))?;
        tools.pipe = Some(pipe);
        Ok(pipe)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        POOL[self.index].owner.store(self.free, Ordering::Release);
    }
}

impl Tools {
    /// Throws away the `len_bytes` bytes that are left in the pipe.
    pub fn empty(&mut self, len_bytes: usize) {
        if !self.pipe.is_some_and(|pipe| pipe.empty(len_bytes)) {
            self.discard();
        }
    }

    /// Closes the pipe and what is left in it.
    pub fn discard(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            pipe.close();
        }
    }

    /// Gives up what a forking process had.
    #[cold]
    fn disinherit(&mut self) {
        self.discard();
        self.bump.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_finds_the_slot_that_it_had() {
        let first = take().expect("a slot");
        let index = first.index;
        let second = take().expect("another");
        assert_ne!(second.index, index);
        let other = second.index;
        drop(first);
        drop(second);
        assert_eq!(take().expect("the last one").index, other);
    }

    #[test]
    fn a_child_has_pipes_of_its_own() {
        let mut taken = take().expect("a slot");
        let pipe = taken.pipe(false).expect("a pipe");
        let index = taken.index;
        // SAFETY: the child looks at its slots and ends; the parent waits for it.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let process = u64::from(lineage::number().unwrap_or(0)) << 32;
                let mut again = try_take(index, process);
                let is_new = again.as_mut().is_some_and(|again| {
                    again.tools().pipe.is_none() && !pipe.is_ours() && again.pipe(false).is_ok()
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
