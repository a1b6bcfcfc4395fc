//! The one door to the kernel: every call of this crate that can fail goes through [`kernel!`].
//!
//! In an ordinary build the macro is the bare call. With the feature `inject`, which no release is built
//! with, it counts the calls and lets the one that a test names fail: see `inject`.
//!
//! Not behind the door are the calls that cannot fail (`rt_sigprocmask` with valid arguments, `gettid`,
//! `geteuid`, `getauxval`, `sysconf`) and `FUTEX_WAKE`, whose loss no caller could mend.

/// Makes a call of the given kind: `kernel!(Map, libc::mmap(…))` is the value of the call.
macro_rules! kernel {
    ($kind:ident, $call:expr) => {{
        #[cfg(feature = "inject")]
        {
            if $crate::inject::refuses($crate::inject::Kind::$kind) {
                $crate::inject::Refusal::refusal()
            } else {
                $call
            }
        }
        #[cfg(not(feature = "inject"))]
        {
            $call
        }
    }};
}

/// Makes a system call by its number: `syscall!(libc::SYS_close, fd)`; -1 and `errno` if it fails. Not libc's
/// function of that name, which the library interposes on.
macro_rules! syscall {
    ($number:expr $(, $argument:expr)* $(,)?) => {
        $crate::call::system_call($number, [$($argument as usize),*])
    };
}

pub(crate) use {kernel, syscall};

/// See [`syscall!`].
///
/// # Safety
/// What the call asks of its arguments.
#[inline(always)]
pub(crate) unsafe fn system_call<const COUNT: usize>(number: i64, arguments: [usize; COUNT]) -> i64 {
    let mut all = [0; 6];
    all[..COUNT].copy_from_slice(&arguments);
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the caller's promise.
        let result = unsafe { crate::raw::call(number as usize, all) };
        // The kernel's error numbers end at 4095 (include/linux/err.h).
        if (-4095..0).contains(&result) {
            crate::errno::set(-result as i32);
            return -1;
        }
        result
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise; the library interposes on this function on x86-64 only.
    unsafe {
        libc::syscall(number, all[0], all[1], all[2], all[3], all[4], all[5])
    }
}
