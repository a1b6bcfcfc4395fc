//! The stack that the kernel or libc gave the calling thread: memory that stays as long as the thread does.
//!
//! ```text
//!   first thread:  [stack] ............................................. end of the mapping
//!   others:        guard | stack ........ | the thread's own area (fs:0) | ...
//!                          low               high
//! ```
//!
//! Other stacks that a thread may run on (coroutines', sigaltstack's) may go at any moment: nothing is known of them.

use crate::own::own;
use core::ops::Range;
use core::sync::atomic::{Ordering::Relaxed, compiler_fence};

/// How often a thread asks for its stack: it may be on another one, or its stack may have grown.
const MAX_ASKED: u32 = 16;
/// How far below what is known of it a stack that has grown may be used, bytes: the kernel keeps that much free below
/// the first thread's (mm/util.c, `MIN_GAP`).
const MAX_GROWS_BYTES: u64 = 128 << 20;

/// The part of the calling thread's own stack that is mapped, if `sp` lies in it. Asks the kernel (2 µs) a few times
/// in a thread's life. `errno` is kept.
#[must_use]
pub fn around(sp: usize, may_ask: bool) -> Option<Range<usize>> {
    let own = own();
    let (low, high) = (own.stack_low.load(Relaxed), own.stack_high.load(Relaxed));
    if low <= sp as u64 && (sp as u64) < high {
        return Some(low as usize..high as usize);
    }
    let may_have_grown = high == 0 || (sp as u64).saturating_add(MAX_GROWS_BYTES) >= low && (sp as u64) < low;
    (may_ask && may_have_grown).then(|| ask(sp)).flatten()
}

#[cold]
fn ask(sp: usize) -> Option<Range<usize>> {
    let own = own();
    let asked = own.stack_asked.load(Relaxed);
    if asked >= MAX_ASKED {
        return None;
    }
    own.stack_asked.store(asked + 1, Relaxed);
    let _errno = crate::errno::Keep::new();
    let (mapping, is_first) = crate::procmap::range_at(sp).ok()??;
    let thread: usize;
    // SAFETY: the first word of a thread's area is its own address (the x86-64 ABI's thread-local storage).
    unsafe {
        core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) thread, options(nostack, readonly, preserves_flags));
    }
    let high = match is_first {
        true => mapping.end,
        false if sp < thread && mapping.contains(&thread) => thread,
        false => return None,
    };
    // A handler in between finds nothing known, and notes the same.
    own.stack_high.store(0, Relaxed);
    compiler_fence(core::sync::atomic::Ordering::SeqCst);
    own.stack_low.store(mapping.start as u64, Relaxed);
    compiler_fence(core::sync::atomic::Ordering::SeqCst);
    own.stack_high.store(high as u64, Relaxed);
    Some(mapping.start..high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_on_its_own_stack_and_other_memory_is_not_on_it() {
        let check = || {
            let here = 0u8;
            let at = &raw const here as usize;
            let found = around(at, true).expect("a stack");
            assert!(found.contains(&at) && found.len() >= crate::PAGE_BYTES);
            assert_eq!(around(at, false), Some(found));
            let other = Box::new(0u8);
            assert_eq!(around(&raw const *other as usize, true), None);
        };
        check();
        std::thread::spawn(check).join().expect("thread ends");
    }
}
