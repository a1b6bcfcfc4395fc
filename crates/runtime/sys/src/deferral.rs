//! Deferring the program's signal handlers without a system call.
//!
//! A signal handler that interrupts a thread which holds one of our locks could deadlock with that
//! thread. Blocking signals costs two system calls, more than everything else that a tracked copy
//! does. So each handler that the program installs is passed to the kernel as a wrapper function,
//! which tests a word of its thread. Outside a section it jumps to the program's handler, with the
//! kernel's frame and the program's own stack, mask and flags.
//!
//! ```text
//!             ┌ outside ──► jump to the handler
//!  signal ──► wrapper
//!             └ inside ──► block every signal, now and in the interrupted frame;
//!                          queue the signal again for this thread, where it stays pending
//!  end of the section: inside = 0; if a handler was deferred: restore the mask, and the signal arrives
//! ```
//!
//! *A section defers at most one signal, because all are blocked from then on.* Wrappers of signals
//! that arrive together are nested: the last to arrive runs first, and the one that runs last
//! leaves the mask of the interrupted section, the only code that it interrupted.
//!
//! The handler behind a wrapper never changes, so the kernel's table alone says which handler a signal has. A
//! child that shares the memory (vfork) and changes its own table changes nothing here.
//!
//! A queued signal comes after those of its number that are already pending. Of a standard signal only one is
//! ever pending; real-time signals keep their order, so their handlers cannot be wrapped.
//!
//! The scheme holds only if every handler that could run in a section is wrapped. [`begin`] checks this
//! before the first section, and each thread before its own first unless another thread has just done so. Any
//! other handler (for a real-time signal, with SA_RESETHAND, beyond the number of wrappers, or installed by a
//! direct system call) ends the scheme for good ([`end`]): sections then block signals.
//!
//! Two kinds of signals are neither wrapped nor checked: those that a section never blocks, and glibc's 32,
//! by which `pthread_cancel` reaches a thread. That signal does nothing to a thread without asynchronous
//! cancellation, and a thread that has it has reported so ([`set_async_cancellation`]); its sections block
//! signals once the program calls `pthread_cancel` ([`note_cancellation`]), before which nobody sends
//! the signal.

use crate::signal_mask::{BLOCKED, set_mask};
use crate::thread_words::thread_words;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Number of handlers with SA_SIGINFO that can be wrapped, and of those without.
const WRAPPERS_PER_KIND: usize = 32;
const WRAPPERS: usize = 2 * WRAPPERS_PER_KIND;
/// Distance between the entries of two wrappers, bytes.
const STEP_BYTES: usize = 32;
/// glibc's internal signal of pthread_cancel (nptl/internaltypes.h).
const CANCEL: c_int = 32;
const SIGNALS: c_int = 64;

const UNKNOWN: u8 = 0;
const ON: u8 = 1;
const OFF: u8 = 2;

/// Milliseconds during which a new thread relies on another's check. A check takes some fifty
/// system calls, which a server with one thread for each connection would make for each.
const CHECK_INTERVAL_MS: u64 = 10;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
static CANCELS: AtomicBool = AtomicBool::new(false);
/// Time of the last check of all handlers, milliseconds.
static LAST_CHECK_MS: AtomicU64 = AtomicU64::new(0);
/// Handlers of the wrappers: first those without SA_SIGINFO. Each entry is written once.
static HANDLERS: [AtomicUsize; WRAPPERS] = [const { AtomicUsize::new(0) }; WRAPPERS];

/// The code of all wrappers, at intervals of [`STEP_BYTES`].
#[unsafe(naked)]
unsafe extern "C" fn wrappers() {
    core::arch::naked_asm!(
        ".set uncopy_wrapper, 0",
        ".rept {wrappers}",
        ".balign {step}",
        "mov rax, qword ptr [rip + uncopy_own@GOTTPOFF]",
        // Tests the `inside` word.
        "cmp dword ptr fs:[rax], 0",
        "jne 2f",
        "jmp qword ptr [rip + {handlers} + uncopy_wrapper * 8]",
        "2:",
        "mov ecx, uncopy_wrapper",
        "jmp {on_signal}",
        ".set uncopy_wrapper, uncopy_wrapper + 1",
        ".endr",
        wrappers = const WRAPPERS,
        step = const STEP_BYTES,
        handlers = sym HANDLERS,
        on_signal = sym on_signal,
    )
}

fn first_wrapper() -> usize {
    (wrappers as *const () as usize).next_multiple_of(STEP_BYTES)
}

/// Returns the entry whose wrapper begins at `address`.
fn entry_of(address: usize) -> Option<usize> {
    let offset = address.wrapping_sub(first_wrapper());
    (offset < WRAPPERS * STEP_BYTES && offset.is_multiple_of(STEP_BYTES)).then_some(offset / STEP_BYTES)
}

/// Whether handlers of this signal are deferred in a section.
fn is_blockable(signal: c_int) -> bool {
    let is_fixed = signal == libc::SIGKILL || signal == libc::SIGSTOP || signal == CANCEL;
    (1..=SIGNALS).contains(&signal) && !is_fixed && BLOCKED & (1 << (signal - 1)) != 0
}

fn is_function(handler: usize) -> bool {
    handler != libc::SIG_DFL && handler != libc::SIG_IGN && handler != libc::SIG_ERR
}

/// Replaces the program's action by the one to pass to the kernel.
pub fn wrap(signal: c_int, action: &mut libc::sigaction) {
    let handler = action.sa_sigaction;
    if !is_blockable(signal)
        || !is_function(handler)
        || STATE.load(Relaxed) == OFF
        || entry_of(handler).is_some()
    {
        return;
    }
    let has_info = action.sa_flags & libc::SA_SIGINFO != 0;
    let can_be_deferred = signal < CANCEL && action.sa_flags & libc::SA_RESETHAND == 0;
    match can_be_deferred.then(|| entry(handler, has_info)).flatten() {
        Some(entry) => {
            action.sa_sigaction = first_wrapper() + entry * STEP_BYTES;
            action.sa_flags |= libc::SA_SIGINFO;
        }
        None => end(),
    }
}

/// Replaces an action of the kernel by the one that the program installed.
pub fn unwrap(action: &mut libc::sigaction) {
    let Some(entry) = entry_of(action.sa_sigaction) else { return };
    action.sa_sigaction = HANDLERS[entry].load(Acquire);
    if entry < WRAPPERS_PER_KIND {
        action.sa_flags &= !libc::SA_SIGINFO;
    }
}

/// Does the same as [`unwrap`] for a `struct sigaction` that the system call has stored.
///
/// # Safety
/// The kernel must have stored an action at this address.
pub unsafe fn unwrap_stored(action: usize) {
    // SAFETY: the caller vouches for the action, which is read and written unaligned.
    unsafe {
        let mut stored = (action as *const KernelAction).read_unaligned();
        let Some(entry) = entry_of(stored.handler) else { return };
        stored.handler = HANDLERS[entry].load(Acquire);
        if entry < WRAPPERS_PER_KIND {
            stored.flags &= !(libc::SA_SIGINFO as u64);
        }
        (action as *mut KernelAction).write_unaligned(stored);
    }
}

/// Returns the entry of a handler, which is allocated at first use; `None` if all are taken.
fn entry(handler: usize, has_info: bool) -> Option<usize> {
    let first = if has_info { WRAPPERS_PER_KIND } else { 0 };
    (first..first + WRAPPERS_PER_KIND).find(|entry| {
        match HANDLERS[*entry].compare_exchange(0, handler, Release, Acquire) {
            Ok(_) => true,
            Err(held) => held == handler,
        }
    })
}

/// Starts deferring handlers, if all that are installed allow it. Called once, by a library that
/// passes every later handler through [`wrap`].
pub fn begin() {
    let state = if cfg!(loom) || crate::ids::is_filtered() || !all_are_wrapped() { OFF } else { ON };
    // [`end`] may have been called already.
    let _ = STATE.compare_exchange(UNKNOWN, state, Relaxed, Relaxed);
}

/// Makes sections block signals from here on: a handler that cannot be wrapped is about to be installed.
pub fn end() {
    if STATE.swap(OFF, Relaxed) == ON {
        wait_for_sections();
    }
}

/// Waits 5 ms for sections that have begun, each of which takes about a microsecond.
fn wait_for_sections() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    // SAFETY: nanosleep(2) reads `time`, which lives through the call, and writes nothing through a
    // null pointer. A direct system call, because libc's function is a cancellation point.
    unsafe { crate::raw::call(libc::SYS_nanosleep as usize, [(&raw const time) as usize, 0, 0, 0, 0, 0]) };
}

/// Makes sections of threads with asynchronous cancellation block signals from here on: the program
/// is about to cancel a thread.
pub fn note_cancellation() {
    if !CANCELS.swap(true, Relaxed) && STATE.load(Relaxed) == ON {
        wait_for_sections();
    }
}

/// Notes whether the calling thread has asynchronous cancellation.
pub fn set_async_cancellation(is_so: bool) {
    thread_words().blocks.store(u8::from(is_so), Relaxed);
}

/// Whether the calling thread may begin a section without blocking signals.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    if STATE.load(Relaxed) != ON {
        return false;
    }
    let own = thread_words();
    if own.has_checked.load(Relaxed) == 0 {
        check_again();
    }
    (own.blocks.load(Relaxed) == 0 || !CANCELS.load(Relaxed)) && STATE.load(Relaxed) == ON
}

#[cold]
fn check_again() {
    thread_words().has_checked.store(1, Relaxed);
    let now_ms = crate::clock::now_ms();
    if now_ms.saturating_sub(LAST_CHECK_MS.load(Relaxed)) < CHECK_INTERVAL_MS {
        return;
    }
    LAST_CHECK_MS.store(now_ms, Relaxed);
    if !all_are_wrapped() {
        end();
    }
}

/// `struct sigaction` of the kernel (x86-64: arch/x86/include/uapi/asm/signal.h).
#[repr(C)]
#[derive(Default)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// Whether all handlers that must be deferred are wrapped.
fn all_are_wrapped() -> bool {
    (1..=SIGNALS).filter(|signal| is_blockable(*signal)).all(|signal| {
        let mut action = KernelAction::default();
        let arguments = [signal as usize, 0, (&raw mut action) as usize, 8, 0, 0];
        // SAFETY: rt_sigaction(2) writes the old action to `action`, laid out as the kernel's.
        let result = unsafe { crate::raw::call(libc::SYS_rt_sigaction as usize, arguments) };
        result == 0 && (!is_function(action.handler) || entry_of(action.handler).is_some())
    })
}

/// Begins a section; returns the state that [`leave`] restores.
#[inline(always)]
pub(crate) fn enter() -> u32 {
    let inside = &thread_words().inside;
    let before = inside.load(Relaxed);
    inside.store(1, Relaxed);
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    before
}

/// Ends a section; a deferred handler runs now.
#[inline(always)]
pub(crate) fn leave(before: u32) {
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    let own = thread_words();
    debug_assert_ne!(own.inside.load(Relaxed), 0, "of two sections the one that began later ends first");
    own.inside.store(before, Relaxed);
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    if own.is_deferred.load(Relaxed) != 0 && before == 0 {
        run_deferred();
    }
}

#[cold]
fn run_deferred() {
    let own = thread_words();
    own.is_deferred.store(0, Relaxed);
    set_mask(own.mask.load(Relaxed), None);
}

type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Entry of a wrapper whose thread is in a section.
///
/// # Safety
/// Only a wrapper may call this, with the arguments of a handler with SA_SIGINFO.
unsafe extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, entry: u32) {
    // SAFETY: the three arguments are those that the kernel passed to this handler.
    if !unsafe { defer(signal, info, context) } {
        // The signal could not be queued: running the handler too early is better than losing it.
        let handler = HANDLERS[entry as usize].load(Acquire);
        // SAFETY: `HANDLERS[entry]` is the handler that the program installed for this wrapper. One
        // that takes a single argument ignores the registers of the other two.
        unsafe { core::mem::transmute::<usize, Handler>(handler)(signal, info, context) };
    }
}

/// Queues a signal again, to arrive when the section ends. Returns false if the kernel refuses.
///
/// # Safety
/// See [`on_signal`].
unsafe fn defer(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) -> bool {
    let mut mask = 0;
    // With SA_NODEFER the signal is not blocked and would arrive at once.
    set_mask(BLOCKED, Some(&mut mask));
    // SAFETY: getpid(2) and gettid(2) take no arguments; rt_tgsigqueueinfo(2) reads `info`, which the kernel
    // wrote. The ids are not the cached ones, because a child that shares this memory has others.
    let result = unsafe {
        let process = crate::raw::call(libc::SYS_getpid as usize, [0; 6]);
        let thread = crate::raw::call(libc::SYS_gettid as usize, [0; 6]);
        let arguments = [process as usize, thread as usize, signal as usize, info as usize, 0, 0];
        crate::raw::call(libc::SYS_rt_tgsigqueueinfo as usize, arguments)
    };
    if result != 0 {
        set_mask(mask, None);
        return false;
    }
    let own = thread_words();
    // SAFETY: the kernel wrote `context`; its 8-byte mask begins libc's larger one.
    let resumed = unsafe { &mut *(&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>() };
    own.mask.store(*resumed, Relaxed);
    own.is_deferred.store(1, Relaxed);
    *resumed |= BLOCKED;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

    fn action(handler: usize, flags: c_int) -> libc::sigaction {
        // SAFETY: all-zero bytes are a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        action
    }

    fn install(signal: c_int, handler: usize, flags: c_int) {
        let mut new = action(handler, flags);
        // SAFETY: the actions live through the calls, and the handlers of these tests only use atomics.
        unsafe {
            libc::sigaddset(&raw mut new.sa_mask, libc::SIGURG);
            wrap(signal, &mut new);
            assert_eq!(libc::sigaction(signal, &raw const new, core::ptr::null_mut()), 0);
        }
    }

    fn send(signal: c_int, value: u64) {
        let mut info = [0u64; 16];
        info[0] = signal as u64;
        info[1] = u64::from(libc::SI_QUEUE as u32);
        info[3] = value;
        // SAFETY: rt_tgsigqueueinfo(2) reads `info`, which is as large as a `siginfo_t`.
        let result = unsafe {
            let (process, thread) = (libc::getpid(), crate::lock::thread_id());
            crate::call::syscall!(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info.as_ptr())
        };
        assert_eq!(result, 0);
    }

    fn mask() -> u64 {
        let mut mask = 0u64;
        // SAFETY: rt_sigprocmask(2) writes the kernel's 8-byte set to `mask`.
        unsafe { crate::call::syscall!(libc::SYS_rt_sigprocmask, 0, 0, &raw mut mask, 8) };
        mask
    }

    /// Signals that arrived: their values as decimal digits in order of arrival, their number, and
    /// the mask during the last.
    struct Arrived {
        sum: AtomicU64,
        count: AtomicI32,
        mask: AtomicU64,
    }

    impl Arrived {
        const fn new() -> Self {
            Self { sum: AtomicU64::new(0), count: AtomicI32::new(0), mask: AtomicU64::new(0) }
        }

        fn take(&self, info: *const libc::siginfo_t) {
            // SAFETY: `info` is the `siginfo_t` that `send` queued, whose value is its fourth word.
            let value = unsafe { info.cast::<u64>().add(3).read() };
            self.sum.store(self.sum.load(SeqCst) * 10 + value, SeqCst);
            self.mask.store(mask(), SeqCst);
            self.count.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn a_handler_waits_for_the_end_of_the_section_and_finds_all_as_without() {
        static ARRIVED: Arrived = Arrived::new();
        extern "C" fn handler(_signal: c_int, info: *const libc::siginfo_t, _context: *const c_void) {
            ARRIVED.take(info);
        }
        for (round, flags) in [(0, 0), (1, libc::SA_NODEFER)] {
            let signal = libc::SIGUSR1;
            install(signal, handler as *const () as usize, libc::SA_SIGINFO | flags);
            let outside = mask();
            let outer = enter();
            send(signal, 1);
            let stays = 1u64 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
            assert_eq!(mask() | stays, BLOCKED | stays, "only one is put off");
            let inner = enter();
            leave(inner);
            assert_eq!(ARRIVED.count.load(SeqCst), 2 * round);
            leave(outer);
            assert_eq!(ARRIVED.count.load(SeqCst), 2 * round + 1);
            assert_eq!(mask(), outside);
            let seen = ARRIVED.mask.load(SeqCst);
            assert_ne!(seen & (1 << (libc::SIGURG - 1)), 0, "the handler's own mask");
            assert_eq!(seen & (1 << (signal - 1)) == 0, flags != 0);
            // Outside a section the handler runs at once.
            send(signal, 4);
            assert_eq!(ARRIVED.count.load(SeqCst), 2 * round + 2);
        }
        assert_eq!(ARRIVED.sum.load(SeqCst), 1414, "each with its value");
    }

    #[test]
    fn several_signals_at_once_leave_the_mask_of_the_section() {
        static HITS: AtomicI32 = AtomicI32::new(0);
        extern "C" fn handler(_signal: c_int) {
            HITS.fetch_add(1, SeqCst);
        }
        let signals = [libc::SIGWINCH, libc::SIGIO, libc::SIGVTALRM];
        signals.iter().for_each(|signal| install(*signal, handler as *const () as usize, 0));
        let outside = mask();
        let all = signals.iter().fold(0, |mask, signal| mask | 1 << (signal - 1));
        let section = enter();
        // All three become pending, and arrive together.
        set_mask(outside | all, None);
        signals.iter().for_each(|signal| send(*signal, 0));
        set_mask(outside, None);
        assert_eq!(HITS.load(SeqCst), 0);
        leave(section);
        assert_eq!((HITS.load(SeqCst), mask()), (3, outside));
    }

    #[test]
    fn the_program_is_told_of_the_actions_that_it_installed() {
        extern "C" fn handler(_signal: c_int) {}
        let handler = handler as *const () as usize;
        for flags in [0, libc::SA_SIGINFO | libc::SA_RESTART, libc::SA_ONSTACK] {
            let mut new = action(handler, flags);
            wrap(libc::SIGPIPE, &mut new);
            assert_ne!(new.sa_sigaction, handler);
            let wrapped = (new.sa_sigaction, new.sa_flags);
            wrap(libc::SIGPIPE, &mut new);
            assert_eq!((new.sa_sigaction, new.sa_flags), wrapped, "a wrapper is not wrapped");
            unwrap(&mut new);
            assert_eq!((new.sa_sigaction, new.sa_flags), (handler, flags));
        }
        for (signal, handler) in [
            (libc::SIGSEGV, handler),
            (libc::SIGPIPE, libc::SIG_IGN),
            (libc::SIGPIPE, libc::SIG_DFL),
            (0, handler),
        ] {
            let mut new = action(handler, 0);
            wrap(signal, &mut new);
            assert_eq!((new.sa_sigaction, new.sa_flags), (handler, 0));
        }
    }
}
