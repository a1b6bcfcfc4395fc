//! `unshare` and `setns`. The kernel refuses some kinds of namespaces to a process with more than one thread, and
//! all apply to the calling thread only. So the handler thread must neither prevent the call nor stay behind in
//! the old namespaces; the thread of lanes ends for good.

use crate::{credentials, lanes};
use core::ffi::c_int;
use uncopy_engine::life::single_threaded::without_handler;
use uncopy_interpose::slots;

slots! {
    UNSHARE = c"unshare": unsafe extern "C" fn(c_int) -> c_int;
    SETNS = c"setns": unsafe extern "C" fn(c_int, c_int) -> c_int;
}

/// Flags that do not concern the handler thread, which has its own table and undo list anyway.
const OF_THE_CALLER_ONLY: c_int = libc::CLONE_FILES | libc::CLONE_SYSVSEM;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    let real = UNSHARE.call();
    // SAFETY: unshare(2) takes any flags and accesses no memory.
    with_unshare(flags, || unsafe { real(flags) })
}

/// Makes an unshare with these flags.
pub fn with_unshare<T>(flags: c_int, call: impl FnOnce() -> T) -> T {
    if flags & !OF_THE_CALLER_ONLY == 0 {
        return call();
    }
    credentials::before_namespaces(flags);
    alone_without_lanes(call)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    let real = SETNS.call();
    // SAFETY: setns(2) takes any numbers and accesses no memory.
    with_setns(kind, || unsafe { real(fd, kind) })
}

/// Makes a setns to namespaces of these kinds; 0: the kind that the descriptor names.
pub fn with_setns<T>(kinds: c_int, call: impl FnOnce() -> T) -> T {
    credentials::before_namespaces(kinds);
    alone_without_lanes(call)
}

/// Makes a call while the process has none of this library's threads.
fn alone_without_lanes<T>(call: impl FnOnce() -> T) -> T {
    lanes::end_if_started();
    without_handler(call)
}
