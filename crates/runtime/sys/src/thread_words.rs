//! Thread-local words that even a signal handler's first instruction can reach: at a constant
//! offset from the thread pointer, without a call (initial-exec thread-local storage). A
//! `thread_local!` of a shared library is reached through a function that may allocate.
//!
//! On x86-64 only. Elsewhere signal handlers are not deferred (`deferral`).

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// Words of one thread. Only the thread and signal handlers on top of it access them, so no memory
/// order is needed; they are atomics because a handler may run between any two instructions.
#[repr(C, align(64))]
pub(crate) struct ThreadWords {
    /// Not 0 in a section in which signal handlers are deferred; tested by the wrappers, see `deferral`.
    pub inside: AtomicU32,
    /// Whether a handler was deferred in this section, and every signal has been blocked since.
    pub is_deferred: AtomicU8,
    /// Whether the thread has asynchronous cancellation, so that its sections may have to block signals.
    pub blocks: AtomicU8,
    /// Whether the installed handlers were checked on behalf of this thread.
    pub has_checked: AtomicU8,
    /// Kernel thread id; 0 if not yet known.
    pub id: AtomicU32,
    /// Number of the thread plus one; 0 if it has none yet.
    pub number: AtomicU32,
    /// The mask that the end of the section restores.
    pub mask: AtomicU64,
    /// First address of the thread's stack as far as known; see `stack`.
    pub stack_low: AtomicU64,
    /// End of the stack (exclusive); 0 if unknown.
    pub stack_high: AtomicU64,
    /// Number of queries of the stack's bounds.
    pub stack_queries: AtomicU32,
    /// Number of queries by `stack_room`.
    pub room_queries: AtomicU32,
    /// Whether `stack_room` must not query.
    pub room_is_unknown: AtomicU8,
    /// Lowest address that the thread's stack may reach; see `stack_room`.
    pub room_low: AtomicU64,
    /// End of that range (exclusive); 0 if unknown.
    pub room_high: AtomicU64,
}

const OWN_BYTES: usize = 128;
const _: () = assert!(size_of::<ThreadWords>() <= OWN_BYTES && align_of::<ThreadWords>() <= 64);

// Zero bytes: the thread is in no section, and nothing is known about it.
core::arch::global_asm!(
    ".section .tbss.uncopy_own,\"awT\",@nobits",
    ".globl uncopy_own",
    ".hidden uncopy_own",
    ".type uncopy_own, @object",
    ".size uncopy_own, {bytes}",
    ".balign 64",
    "uncopy_own:",
    ".zero {bytes}",
    ".text",
    bytes = const OWN_BYTES,
);

#[inline(always)]
pub(crate) fn stack_pointer() -> usize {
    let sp: usize;
    // SAFETY: the instruction reads a register and accesses no memory.
    unsafe {
        core::arch::asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags));
    }
    sp
}

/// Returns the words of the calling thread.
#[inline(always)]
pub(crate) fn thread_words() -> &'static ThreadWords {
    let own: *const ThreadWords;
    // SAFETY: on x86-64 the thread's storage begins at the address in fs:0, and `uncopy_own` lies
    // at this offset from it; it lives as long as the thread, which alone uses the reference.
    unsafe {
        core::arch::asm!(
            "mov {own}, qword ptr fs:[0]",
            "add {own}, qword ptr [rip + uncopy_own@GOTTPOFF]",
            own = out(reg) own,
            options(nostack, readonly),
        );
        &*own
    }
}
