//! Hooks of `sigaction` and its older relatives: the program's handlers are wrapped, so that they can be deferred
//! without a system call while the engine works ([`uncopy_sys::deferral`]).
//!
//! The relatives are implemented by `sigaction` as in glibc, which does not call its own through the symbol.
//! `sigignore`, `sighold` and the like install no handlers and need no hook.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use libc::{sighandler_t, sigset_t};
use uncopy_interpose::{alias, slots};
use uncopy_sys::deferral::{note_cancellation, set_async_cancellation, unwrap, wrap};
use uncopy_sys::errno;

type Action = libc::sigaction;

slots! {
    SIGACTION = c"sigaction": unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;
    SIGINTERRUPT = c"siginterrupt": unsafe extern "C" fn(c_int, c_int) -> c_int;
    CANCEL = c"pthread_cancel": unsafe extern "C" fn(libc::pthread_t) -> c_int;
    SETCANCELTYPE = c"pthread_setcanceltype": unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
}

/// Signals that interrupt system calls by request of `siginterrupt`, one bit each.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

const SIG_HOLD: sighandler_t = 2;
const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;
/// Signals 32 and 33, which glibc uses internally; these functions refuse them.
const INTERNAL: core::ops::RangeInclusive<c_int> = 32..=33;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    let real = SIGACTION.call();
    // SAFETY: the program's actions are null or valid, as sigaction requires; the structure passed on is a copy.
    unsafe {
        let result = if new.is_null() {
            real(signal, new, old)
        } else {
            let mut action = *new;
            wrap(signal, &mut action);
            real(signal, &raw const action, old)
        };
        if result == 0 && !old.is_null() {
            unwrap(&mut *old);
        }
        result
    }
}

alias!(__sigaction = sigaction (signal: c_int, new: *const Action, old: *mut Action) -> c_int);

fn action(handler: sighandler_t, flags: c_int) -> Action {
    // SAFETY: sigaction consists of integers and optional pointers, for which zero is valid.
    let mut action: Action = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    action
}

/// Installs an action; returns the previous handler, or `SIG_ERR`.
fn install(signal: c_int, new: &Action) -> sighandler_t {
    let mut old = action(libc::SIG_DFL, 0);
    // SAFETY: `new` is a valid action, and `old` a local to be written.
    let result = unsafe { sigaction(signal, new, &raw mut old) };
    if result == 0 { old.sa_sigaction } else { libc::SIG_ERR }
}

fn refused() -> sighandler_t {
    errno::set(libc::EINVAL);
    libc::SIG_ERR
}

fn is_signal(signal: c_int) -> bool {
    (1..=64).contains(&signal) && !INTERNAL.contains(&signal)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if handler == libc::SIG_ERR || !is_signal(signal) {
        return refused();
    }
    let interrupts = INTERRUPTING.load(Relaxed) & (1 << (signal - 1)) != 0;
    let mut new = action(handler, if interrupts { 0 } else { libc::SA_RESTART });
    // SAFETY: `sa_mask` is an initialized set, and `signal` was checked to be valid.
    unsafe { libc::sigaddset(&raw mut new.sa_mask, signal) };
    install(signal, &new)
}

alias!(bsd_signal = signal (number: c_int, handler: sighandler_t) -> sighandler_t);

alias!(ssignal = signal (number: c_int, handler: sighandler_t) -> sighandler_t);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // Flag SA_INTERRUPT of glibc, which the kernel ignores.
    const INTERRUPT: c_int = 0x2000_0000;
    if handler == libc::SIG_ERR || !is_signal(signal) {
        return refused();
    }
    install(signal, &action(handler, libc::SA_RESETHAND | libc::SA_NODEFER | INTERRUPT))
}

alias!(sysv_signal = __sysv_signal (signal: c_int, handler: sighandler_t) -> sighandler_t);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if handler == libc::SIG_ERR || !is_signal(signal) {
        return refused();
    }
    // SAFETY: zero bytes are an empty set, and all pointers are to locals that outlive the calls.
    unsafe {
        let mut set: sigset_t = core::mem::zeroed();
        let mut before: sigset_t = core::mem::zeroed();
        libc::sigaddset(&raw mut set, signal);
        let mut change = |how| libc::sigprocmask(how, &raw const set, &raw mut before);
        let old = if handler == SIG_HOLD {
            if change(libc::SIG_BLOCK) < 0 {
                return libc::SIG_ERR;
            }
            let mut old = action(libc::SIG_DFL, 0);
            if libc::sigismember(&raw const before, signal) == 0
                && sigaction(signal, core::ptr::null(), &raw mut old) < 0
            {
                return libc::SIG_ERR;
            }
            old.sa_sigaction
        } else {
            let old = install(signal, &action(handler, 0));
            if old == libc::SIG_ERR || change(libc::SIG_UNBLOCK) < 0 {
                return libc::SIG_ERR;
            }
            old
        };
        if libc::sigismember(&raw const before, signal) == 1 { SIG_HOLD } else { old }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    // SAFETY: siginterrupt(3) takes any numbers and accesses no memory of the program.
    let result = unsafe { SIGINTERRUPT.call()(signal, interrupts) };
    if result == 0 && is_signal(signal) {
        let bit = 1 << (signal - 1);
        if interrupts == 0 {
            INTERRUPTING.fetch_and(!bit, Relaxed);
        } else {
            INTERRUPTING.fetch_or(bit, Relaxed);
        }
    }
    result
}

/// Hooks pthread_setcanceltype: no thread may be cancelled asynchronously while it holds locks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_setcanceltype(new: c_int, old: *mut c_int) -> c_int {
    let real = SETCANCELTYPE.call();
    let is_async = new == PTHREAD_CANCEL_ASYNCHRONOUS;
    if is_async {
        set_async_cancellation(true);
    }
    // SAFETY: `old` is null or writable, as pthread_setcanceltype requires.
    let result = unsafe { real(new, old) };
    if result == 0 && !is_async {
        set_async_cancellation(false);
    }
    result
}

/// Hooks pthread_cancel: from the first call on, threads with asynchronous cancellation block signals while they
/// hold locks. Not before, because Redis makes its main thread one, so as to kill it after a crash, and each
/// section would cost two system calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cancel(thread: libc::pthread_t) -> c_int {
    note_cancellation();
    // SAFETY: the program passes one of its threads that was not joined, as pthread_cancel requires.
    unsafe { CANCEL.call()(thread) }
}
