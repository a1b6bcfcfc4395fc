//! `unshare` and `setns`: several of their kinds are refused to a process with more than one thread, and
//! all of them reach the calling thread only. Our handler thread must not be in the way, nor stay behind; that of lanes ends for
//! good.

use crate::{credentials, lanes};
use core::ffi::c_int;
use uncopy_engine::life::alone::alone;
use uncopy_interpose::slots;

slots! {
    UNSHARE = c"unshare": unsafe extern "C" fn(c_int) -> c_int;
    SETNS = c"setns": unsafe extern "C" fn(c_int, c_int) -> c_int;
}

/// What the handler thread has of its own anyway.
const OF_THE_CALLER_ONLY: c_int = libc::CLONE_FILES | libc::CLONE_SYSVSEM;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    let real = UNSHARE.call();
    // SAFETY: unshare touches no memory.
    unshared(flags, || unsafe { real(flags) })
}

/// Makes an unshare of these flags.
pub fn unshared<T>(flags: c_int, call: impl FnOnce() -> T) -> T {
    if flags & !OF_THE_CALLER_ONLY == 0 {
        return call();
    }
    credentials::before_namespaces(flags);
    alone_without_lanes(call)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    let real = SETNS.call();
    // SAFETY: setns touches no memory.
    moved(kind, || unsafe { real(fd, kind) })
}

/// Makes a setns to namespaces of these kinds; 0: whatever the descriptor names.
pub fn moved<T>(kinds: c_int, call: impl FnOnce() -> T) -> T {
    credentials::before_namespaces(kinds);
    alone_without_lanes(call)
}

/// Makes a call in a process that has none of our threads.
fn alone_without_lanes<T>(call: impl FnOnce() -> T) -> T {
    lanes::end_begun();
    alone(call)
}
