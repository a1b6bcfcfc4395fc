//! Whether a thread has room on its stack for the engine's work.
//!
//! A hook runs on whatever stack the program calls it on: a signal handler's alternate stack of 8 KiB (sigaltstack(2)), a
//! coroutine's, that of a thread made with `PTHREAD_STACK_MIN`. libc's functions need a few hundred bytes there, the
//! engine many times that. So the engine works only where the calling thread is on the stack that the kernel or libc gave
//! it, far enough from its end; elsewhere calls are made as they are, and the kernel's faults are served.
//!
//! Where the stack ends is asked once for each thread (2 us). Where a seccomp filter forbids that, every stack is
//! taken for one with room.

use crate::filter;
use crate::own::own;
use core::sync::atomic::{Ordering::Relaxed, compiler_fence};

/// For copies and inputs, bytes: the frames of the release library's deepest path from `memcpy` are 12.5 KiB together.
pub const FOR_ONE: usize = 24 << 10;
/// For outputs, which may be gathered from many parts: one frame of 33 KiB (`uncopy_transmit::gather`).
pub const FOR_OUTPUT: usize = 48 << 10;
/// For several messages in one call: one more of 26 KiB.
pub const FOR_MESSAGES: usize = 96 << 10;

/// How often a thread asks: it may be on another stack.
const MAX_ASKED: u32 = 16;
/// How far the first thread's stack may reach down, bytes, whatever its limit.
const MAX_FIRST_BYTES: usize = 64 << 20;

/// Whether the calling thread has so many bytes left on its own stack. `errno` is kept.
#[inline]
#[must_use]
pub fn is_left(need_bytes: usize) -> bool {
    let sp: usize;
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags));
    }
    let own = own();
    let (low, high) = (own.room_low.load(Relaxed) as usize, own.room_high.load(Relaxed) as usize);
    if low <= sp && sp < high { sp - low >= need_bytes } else { high == 0 && ask(sp, need_bytes) }
}

#[cold]
#[inline(never)]
fn ask(sp: usize, need_bytes: usize) -> bool {
    let own = own();
    let asked = own.room_asked.load(Relaxed);
    if asked >= MAX_ASKED {
        return own.room_is_unknown.load(Relaxed) != 0;
    }
    own.room_asked.store(asked + 1, Relaxed);
    let _errno = crate::errno::Keep::new();
    if !filter::allows(filter::Feature::Proc) {
        own.room_is_unknown.store(1, Relaxed);
        own.room_asked.store(MAX_ASKED, Relaxed);
        return true;
    }
    // Without /proc nobody knows.
    let Ok(found) = crate::procmap::range_at(sp) else { return true };
    let Some((mapping, is_first)) = found else { return false };
    let thread: usize;
    // SAFETY: the first word of a thread's area is its own address (the x86-64 ABI's thread-local storage).
    unsafe {
        core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) thread, options(nostack, readonly, preserves_flags));
    }
    let (low, high) = match is_first {
        // It grows as far as its limit lets it.
        true => (mapping.end.saturating_sub(first_bytes()), mapping.end),
        false if sp < thread && mapping.contains(&thread) => (mapping.start, thread),
        // Another stack, of which it is not known where it ends.
        false => return false,
    };
    own.room_low.store(low as u64, Relaxed);
    // A handler in between finds nothing known, and notes the same.
    compiler_fence(core::sync::atomic::Ordering::SeqCst);
    own.room_high.store(high as u64, Relaxed);
    low <= sp && sp - low >= need_bytes
}

/// How long the first thread's stack may become, bytes.
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
            assert!(is_left(STACK_BYTES / 2));
            assert!(!is_left(STACK_BYTES * 2));
            assert!(is_left(STACK_BYTES / 2), "what was found is kept");
        };
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(check);
        thread.expect("a thread").join().expect("the checks hold");
    }
}
