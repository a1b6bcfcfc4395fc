//! The one way to the kernel: every call of this crate that can fail is made by [`kernel!`].
//!
//! In an ordinary build the macro is the bare call. With the feature `inject`, which no release is built
//! with, it counts the calls and lets the one that a test names fail: see `inject`.
//!
//! Not made by it are the calls that cannot fail (`rt_sigprocmask` with valid arguments, `gettid`,
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

/// ioctl(2), not by libc's function, which the library interposes on.
macro_rules! ioctl {
    ($fd:expr, $request:expr, $argument:expr) => {
        $crate::raw::system_call(libc::SYS_ioctl, [$fd as usize, $request as usize, $argument as usize])
            as i32
    };
}

pub(crate) use crate::raw::syscall;
pub(crate) use ioctl;
pub(crate) use kernel;
