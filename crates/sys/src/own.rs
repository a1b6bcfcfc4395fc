//! What each thread has of its own where even a signal handler's first instruction can reach it: by the
//! thread pointer and a constant, without a call (the initial-exec model of thread-local storage). A
//! `thread_local!` of a shared library is reached through a function that may allocate.
//!
//! On x86-64 only. Elsewhere handlers are not put off (`deferral`).

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// A thread's own words. Only this thread and handlers on top of it touch them, hence no order is ever
/// needed; atomics, because a handler may come between any two instructions.
#[repr(C, align(64))]
pub(crate) struct Own {
    /// Not 0 in a section in which handlers are put off: what a wrapper looks at, see `deferral`.
    pub inside: AtomicU32,
    /// Whether a handler was put off in this section, and every signal is blocked since.
    pub is_put_off: AtomicU8,
    /// Whether signals are blocked all the same: the thread may be cancelled anywhere.
    pub blocks: AtomicU8,
    /// Whether the handlers that the process has were looked at on behalf of this thread.
    pub has_looked: AtomicU8,
    /// The thread's kernel id; 0: not asked for yet.
    pub id: AtomicU32,
    /// The thread's number plus one; 0: none yet.
    pub number: AtomicU32,
    /// The mask that the end of the section restores.
    pub mask: AtomicU64,
    /// First address of the thread's stack as far as it is known; see `stack`.
    pub stack_low: AtomicU64,
    /// One past the last; 0: not known.
    pub stack_high: AtomicU64,
    /// How often it was asked for.
    pub stack_asked: AtomicU32,
    /// How often it was asked for by `stack_room`.
    pub room_asked: AtomicU32,
    /// Whether nobody may ask.
    pub room_is_unknown: AtomicU8,
    /// The lowest address that the thread's stack may have; see `stack_room`.
    pub room_low: AtomicU64,
    /// One past the highest; 0: not known.
    pub room_high: AtomicU64,
}

const OWN_BYTES: usize = 128;
const _: () = assert!(size_of::<Own>() <= OWN_BYTES && align_of::<Own>() <= 64);

// Zero bytes: a thread that is in no section, and of which nothing is known.
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

/// The calling thread's.
#[inline(always)]
pub(crate) fn own() -> &'static Own {
    let own: *const Own;
    // SAFETY: the thread's area begins where fs:0 says, and lives as long as the thread, which alone uses
    // the reference.
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
