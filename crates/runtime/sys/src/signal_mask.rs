//! The calling thread's signal mask.

/// glibc's internal signal by which setuid and similar calls reach every thread
/// (nptl/internaltypes.h). They would wait for ever for a thread that blocks it.
const SETXID: i32 = 33;

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Signals that are blocked in a [`Critical`](crate::lock::Critical): all but those of synchronous faults.
pub(crate) const BLOCKED: u64 = !(bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGILL)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGABRT)
    | bit(SETXID));

#[cfg(loom)]
pub(crate) fn set_mask(_mask: u64, _old: Option<&mut u64>) {}

#[cfg(not(loom))]
pub(crate) fn set_mask(mask: u64, old: Option<&mut u64>) {
    let old = old.map_or(core::ptr::null_mut(), |old| old as *mut u64);
    // A direct system call, not libc's wrapper, because each tracked copy makes it twice.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: both pointers are null or point to a kernel signal set of 8 bytes; a system call
    // clobbers rax, rcx and r11 only.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_rt_sigprocmask => _,
            in("rdi") libc::SIG_SETMASK,
            in("rsi") &raw const mask,
            in("rdx") old,
            in("r10") 8,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: both pointers are null or point to a kernel signal set of 8 bytes.
    unsafe {
        syscall!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, old, 8);
    }
}
