//! The one place where this crate makes system calls that can fail: the macro [`kernel!`].
//!
//! In an ordinary build the macro is the bare call. With the feature `inject`, which no release is
//! built with, it counts the calls and makes the one that a test names fail: see `inject`.
//!
//! Calls that cannot fail (`rt_sigprocmask` with valid arguments, `gettid`, `geteuid`, `getauxval`,
//! `sysconf`) do not use it, nor does `FUTEX_WAKE`, from whose failure no caller could recover.

/// Makes a call of the given kind: `kernel!(Map, libc::mmap(…))` has the value of the call.
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

/// Calls ioctl(2) directly, because the library interposes on libc's function.
macro_rules! ioctl {
    ($fd:expr, $request:expr, $argument:expr) => {
        $crate::raw::syscall!(libc::SYS_ioctl, $fd, $request, $argument) as i32
    };
}

pub(crate) use crate::raw::syscall;
pub(crate) use ioctl;
pub(crate) use kernel;
