//! Whether a thread has room on its stack for the engine's work.
//!
//! A hook runs on whatever stack the program calls it on: a signal handler's alternate stack of 8
//! KiB (sigaltstack(2)), a coroutine's, or one of `PTHREAD_STACK_MIN`. libc's functions need a few
//! hundred bytes there, the engine many times that. So the engine works only if the calling thread
//! is on the stack that the kernel or libc gave it, far enough from its end. Otherwise the call is
//! passed to libc, and the kernel's page faults are still served.
//!
//! The bounds of the stack are queried once for each thread (2 µs). If a seccomp filter forbids
//! that, every stack counts as one with room.

use crate::filter;
use crate::thread_words::{stack_pointer, thread_words};
use core::sync::atomic::{Ordering::Relaxed, compiler_fence};

/// Bytes needed for copies and inputs: the frames of the deepest path from `memcpy` take 12.5 KiB.
pub const FOR_COPY_BYTES: usize = 24 << 10;
/// Bytes needed for outputs, which may be gathered from many parts: one frame has 33 KiB
/// (`uncopy_transmit::gather`).
pub const FOR_OUTPUT_BYTES: usize = 48 << 10;
/// Bytes needed for several messages in one call: one more frame of 26 KiB.
pub const FOR_MESSAGES_BYTES: usize = 96 << 10;

/// Maximum number of queries by a thread, which may be on another stack each time.
const MAX_QUERIES: u32 = 16;
/// Maximum extent of the first thread's stack that is assumed, bytes, whatever its limit.
const MAX_FIRST_BYTES: usize = 64 << 20;

/// Whether the calling thread has `need_bytes` bytes left on its own stack. `errno` is kept.
#[inline]
#[must_use]
pub fn is_available(need_bytes: usize) -> bool {
    let sp = stack_pointer();
    let own = thread_words();
    let (low, high) = (own.room_low.load(Relaxed) as usize, own.room_high.load(Relaxed) as usize);
    if low <= sp && sp < high { sp - low >= need_bytes } else { high == 0 && ask(sp, need_bytes) }
}

#[cold]
#[inline(never)]
fn ask(sp: usize, need_bytes: usize) -> bool {
    let own = thread_words();
    let asked = own.room_queries.load(Relaxed);
    if asked >= MAX_QUERIES {
        return own.room_is_unknown.load(Relaxed) != 0;
    }
    own.room_queries.store(asked + 1, Relaxed);
    let _errno = crate::errno::SavedErrno::new();
    if !filter::allows(filter::CallGroup::Proc) {
        own.room_is_unknown.store(1, Relaxed);
        own.room_queries.store(MAX_QUERIES, Relaxed);
        return true;
    }
    // Without /proc the bounds are unknown, and room is assumed.
    let Ok(found) = crate::procmap::range_at(sp) else { return true };
    let Some((mapping, is_first)) = found else { return false };
    let thread: usize;
    // SAFETY: the first word of a thread's area is the area's address (x86-64 ABI, thread-local storage).
    unsafe {
        core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) thread, options(nostack, readonly, preserves_flags));
    }
    let (low, high) = match is_first {
        // The first thread's stack grows down to its limit.
        true => (mapping.end.saturating_sub(first_bytes()), mapping.end),
        false if sp < thread && mapping.contains(&thread) => (mapping.start, thread),
        // A foreign stack, whose bounds are unknown.
        false => return false,
    };
    own.room_low.store(low as u64, Relaxed);
    // A signal handler in between finds the bounds unknown, and stores the same ones.
    compiler_fence(core::sync::atomic::Ordering::SeqCst);
    own.room_high.store(high as u64, Relaxed);
    low <= sp && sp - low >= need_bytes
}

/// Returns the maximum length of the first thread's stack, bytes.
fn first_bytes() -> usize {
    let limit = crate::mem::stack_limit().map_or(MAX_FIRST_BYTES, |limit| limit as usize);
    limit.min(MAX_FIRST_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_the_room_that_its_stack_has() {
        const STACK_BYTES: usize = 256 << 10;
        let check = || {
            assert!(is_available(STACK_BYTES / 2));
            assert!(!is_available(STACK_BYTES * 2));
            assert!(is_available(STACK_BYTES / 2), "what was found is kept");
        };
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(check);
        thread.expect("a thread").join().expect("the checks hold");
    }
}
