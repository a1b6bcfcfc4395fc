//! Registers from which unwinding starts.

/// The x86-64 registers that locate a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// The instruction pointer (`rip`).
    pub ip: usize,
    /// The stack pointer (`rsp`).
    pub sp: usize,
    /// Value of `rbp`, whether or not `rbp` points to a frame.
    pub bp: usize,
}

impl Registers {
    /// Returns the registers of the function that this is inlined into.
    #[inline(always)]
    #[must_use]
    pub fn here() -> Self {
        let (ip, sp, bp);
        // SAFETY: the instructions only copy three registers to the outputs. They access no memory and leave
        // the flags alone, as `nomem`, `nostack` and `preserves_flags` declare.
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
