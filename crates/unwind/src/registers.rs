//! What a stack is unwound from.

/// The registers that a frame of x86-64 is found by, at one moment of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// Where it executes (`rip`).
    pub ip: usize,
    /// Its stack pointer there (`rsp`).
    pub sp: usize,
    /// Its `rbp` there, whether or not that points to a frame.
    pub bp: usize,
}

impl Registers {
    /// Those of the function that this is inlined into, at this very place.
    #[inline(always)]
    #[must_use]
    pub fn here() -> Self {
        let (ip, sp, bp);
        // SAFETY: copies three registers; touches neither memory nor flags.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            core::arch::asm!(
                "lea {ip}, [rip]",
                "mov {sp}, rsp",
                "mov {bp}, rbp",
                ip = out(reg) ip,
                sp = out(reg) sp,
                bp = out(reg) bp,
                options(nomem, nostack, preserves_flags),
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            (ip, sp, bp) = (0, 0, 0);
        }
        Self { ip, sp, bp }
    }
}
