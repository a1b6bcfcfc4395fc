//! The stack that the kernel or libc gave the calling thread, which exists as long as the thread.
//!
//! ```text
//!   first thread:  [stack] ............................................. end of the mapping
//!   others:        guard | stack ........ | the thread's own area (fs:0) | ...
//!                          low               high
//! ```
//!
//! Other stacks (coroutines', sigaltstack's) may be freed at any time: nothing is known about them.

use crate::thread_words::thread_words;
use core::ops::Range;
use core::sync::atomic::{Ordering::Relaxed, compiler_fence};

/// Maximum number of queries by a thread, which may be on another stack, or whose stack may have grown.
const MAX_QUERIES: u32 = 16;
/// Distance below the known part at which a grown stack may be in use, bytes: the kernel keeps that
/// much free below the first thread's stack (mm/util.c, `MIN_GAP`).
const MAX_GROWS_BYTES: u64 = 128 << 20;

/// Returns the mapped part of the calling thread's own stack, if `sp` is in it. Queries the kernel
/// (2 µs) a few times in a thread's life. `errno` is kept.
#[must_use]
pub fn mapped_range(sp: usize, may_query: bool) -> Option<Range<usize>> {
    let own = thread_words();
    let (low, high) = (own.stack_low.load(Relaxed), own.stack_high.load(Relaxed));
    if low <= sp as u64 && (sp as u64) < high {
        return Some(low as usize..high as usize);
    }
    let may_have_grown = high == 0 || (sp as u64).saturating_add(MAX_GROWS_BYTES) >= low && (sp as u64) < low;
    (may_query && may_have_grown).then(|| ask(sp)).flatten()
}

#[cold]
fn ask(sp: usize) -> Option<Range<usize>> {
    let own = thread_words();
    let queries = own.stack_queries.load(Relaxed);
    if queries >= MAX_QUERIES {
        return None;
    }
    own.stack_queries.store(queries + 1, Relaxed);
    let _errno = crate::errno::SavedErrno::new();
    let (mapping, is_first) = crate::procmap::range_at(sp).ok()??;
    let thread: usize;
    // SAFETY: the first word of a thread's area is the area's address (x86-64 ABI, thread-local storage).
    unsafe {
        core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) thread, options(nostack, readonly, preserves_flags));
    }
    let high = match is_first {
        true => mapping.end,
        false if sp < thread && mapping.contains(&thread) => thread,
        false => return None,
    };
    // A signal handler in between finds the bounds unknown, and stores the same ones.
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
            let found = mapped_range(at, true).expect("a stack");
            assert!(found.contains(&at) && found.len() >= crate::PAGE_BYTES);
            assert_eq!(mapped_range(at, false), Some(found));
            let other = Box::new(0u8);
            assert_eq!(mapped_range(&raw const *other as usize, true), None);
        };
        check();
        std::thread::spawn(check).join().expect("thread ends");
    }
}
