//! Putting off the program's signal handlers without a system call.
//!
//! A handler that ran on top of a thread which holds a lock of ours could wait for itself. Blocking signals
//! costs two system calls, more than all else that a tracked copy does. So what the program installs as a
//! handler is given to the kernel as one of [`WRAPPERS`], which looks at a word of its thread: outside of a
//! section it jumps on to the program's handler, at no cost that a program could see; its frame, its stack,
//! its mask and its flags are the kernel's and the program's own.
//!
//! ```text
//!             ┌ not inside ──► jump to the handler
//!  signal ──► wrapper
//!             └ inside ──► block every signal, here and (in the frame) where it came from;
//!                          send it again to this thread, where it now waits
//!  end of the section: inside = 0; if one was put off: restore the mask, and it arrives
//! ```
//!
//! *Only one is put off in a section, because all are blocked then*; wrappers of signals that arrive together
//! stand on top of each other, the last to arrive runs first, and the one that runs last leaves the mask of the
//! interrupted section: it interrupted nothing else.
//!
//! What a wrapper stands for never changes, so the kernel's own table is the only truth about which handler
//! a signal has; a child that shares our memory (vfork) and changes its own changes nothing here.
//!
//! A signal sent again comes behind those of its number that wait already. Of ordinary signals only one ever
//! waits; real-time signals keep their order, so their handlers cannot be wrapped.
//!
//! All this holds only if every handler that could run in a section is a wrapped one. [`begin`] looks before the
//! first, a thread again before its first unless another has just done so. Whatever else is installed (for a
//! real-time signal, with SA_RESETHAND, more than there are wrappers, by the system call) ends it for good
//! ([`end`]), and sections block signals. Not wrapped, and not looked at, are the signals that a section lets
//! through in any case, and glibc's 32, by which `pthread_cancel` reaches a thread: it does nothing to a thread that
//! cannot be cancelled anywhere, and one that can has told so ([`cancels_anywhere`]). Such a thread blocks signals in its sections once the program calls
//! `pthread_cancel` ([`cancels`]); until then nobody sends that signal.

use crate::own::own;
use crate::signal_mask::{BLOCKED, set_mask};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Handlers that can be wrapped: with and without SA_SIGINFO, so many each.
const EACH: usize = 32;
const WRAPPERS: usize = 2 * EACH;
/// Distance of the wrappers' entries.
const STEP_BYTES: usize = 32;
/// glibc's internal signal of pthread_cancel (nptl/internaltypes.h).
const CANCEL: c_int = 32;
const SIGNALS: c_int = 64;

const UNKNOWN: u8 = 0;
const ON: u8 = 1;
const OFF: u8 = 2;

/// A new thread does not look again so soon after another: some fifty system calls, which a server with a thread for
/// each connection made once for each.
const LOOKED_MS: u64 = 10;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
/// The program cancels threads.
static CANCELS: AtomicBool = AtomicBool::new(false);
/// When it was last looked at all handlers.
static LAST_LOOK_MS: AtomicU64 = AtomicU64::new(0);
/// The handlers that wrappers stand for: those without SA_SIGINFO first. An entry is written once.
static HANDLERS: [AtomicUsize; WRAPPERS] = [const { AtomicUsize::new(0) }; WRAPPERS];

/// The wrappers, one behind the other.
#[unsafe(naked)]
unsafe extern "C" fn wrappers() {
    core::arch::naked_asm!(
        ".set uncopy_wrapper, 0",
        ".rept {wrappers}",
        ".balign {step}",
        "mov rax, qword ptr [rip + uncopy_own@GOTTPOFF]",
        // `inside`.
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

/// The entry that an address is the wrapper of.
fn entry_of(address: usize) -> Option<usize> {
    let offset = address.wrapping_sub(first_wrapper());
    (offset < WRAPPERS * STEP_BYTES && offset.is_multiple_of(STEP_BYTES)).then_some(offset / STEP_BYTES)
}

/// Whether a handler of this signal must not run in a section.
fn must_wait(signal: c_int) -> bool {
    let is_fixed = signal == libc::SIGKILL || signal == libc::SIGSTOP || signal == CANCEL;
    (1..=SIGNALS).contains(&signal) && !is_fixed && BLOCKED & (1 << (signal - 1)) != 0
}

fn is_function(handler: usize) -> bool {
    handler != libc::SIG_DFL && handler != libc::SIG_IGN && handler != libc::SIG_ERR
}

/// What to give to the kernel in place of the program's action.
pub fn wrap(signal: c_int, action: &mut libc::sigaction) {
    let handler = action.sa_sigaction;
    if !must_wait(signal)
        || !is_function(handler)
        || STATE.load(Relaxed) == OFF
        || entry_of(handler).is_some()
    {
        return;
    }
    let has_info = action.sa_flags & libc::SA_SIGINFO != 0;
    let can_be_put_off = signal < CANCEL && action.sa_flags & libc::SA_RESETHAND == 0;
    match can_be_put_off.then(|| entry(handler, has_info)).flatten() {
        Some(entry) => {
            action.sa_sigaction = first_wrapper() + entry * STEP_BYTES;
            action.sa_flags |= libc::SA_SIGINFO;
        }
        None => end(),
    }
}

/// The other way round: what the program is told of an action that the kernel has.
pub fn unwrap(action: &mut libc::sigaction) {
    let Some(entry) = entry_of(action.sa_sigaction) else { return };
    action.sa_sigaction = HANDLERS[entry].load(Acquire);
    if entry < EACH {
        action.sa_flags &= !libc::SA_SIGINFO;
    }
}

/// The same for what the system call stored, a `struct sigaction` as the kernel has it.
///
/// # Safety
/// The kernel has stored an action there.
pub unsafe fn unwrap_stored(action: usize) {
    // SAFETY: the kernel has just stored an action there, says the caller; it may lie at any address.
    unsafe {
        let mut stored = (action as *const KernelAction).read_unaligned();
        let Some(entry) = entry_of(stored.handler) else { return };
        stored.handler = HANDLERS[entry].load(Acquire);
        if entry < EACH {
            stored.flags &= !(libc::SA_SIGINFO as u64);
        }
        (action as *mut KernelAction).write_unaligned(stored);
    }
}

/// The entry of a handler; it gets one if it has none. `None`: there are too many.
fn entry(handler: usize, has_info: bool) -> Option<usize> {
    let first = if has_info { EACH } else { 0 };
    (first..first + EACH).find(|entry| {
        match HANDLERS[*entry].compare_exchange(0, handler, Release, Acquire) {
            Ok(_) => true,
            Err(held) => held == handler,
        }
    })
}

/// Puts handlers off from here on, if those that there are allow it. To be called once, by a library that
/// has every later one go through [`wrap`].
pub fn begin() {
    let state = if cfg!(loom) || crate::ids::is_filtered() || !all_are_wrapped() { OFF } else { ON };
    // Unless something has ended it already.
    let _ = STATE.compare_exchange(UNKNOWN, state, Relaxed, Relaxed);
}

/// From here on signals are blocked: a handler that cannot be wrapped is about to be installed.
pub fn end() {
    if STATE.swap(OFF, Relaxed) == ON {
        wait_for_sections();
    }
}

/// Sections that have begun end meanwhile: each takes a microsecond.
fn wait_for_sections() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    // SAFETY: the time is valid. The call itself: libc's function would be a point of cancellation.
    unsafe { crate::raw::call(libc::SYS_nanosleep as usize, [(&raw const time) as usize, 0, 0, 0, 0, 0]) };
}

/// From here on the sections of threads that can be cancelled at any instruction block signals: the program is
/// about to cancel one.
pub fn cancels() {
    if !CANCELS.swap(true, Relaxed) && STATE.load(Relaxed) == ON {
        wait_for_sections();
    }
}

/// The calling thread can, or cannot, be cancelled at any instruction from here on.
pub fn cancels_anywhere(is_so: bool) {
    own().blocks.store(u8::from(is_so), Relaxed);
}

/// Whether the calling thread may begin a section without blocking signals.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    if STATE.load(Relaxed) != ON {
        return false;
    }
    let own = own();
    if own.has_looked.load(Relaxed) == 0 {
        look_again();
    }
    (own.blocks.load(Relaxed) == 0 || !CANCELS.load(Relaxed)) && STATE.load(Relaxed) == ON
}

#[cold]
fn look_again() {
    own().has_looked.store(1, Relaxed);
    let now_ms = crate::clock::now_ms();
    if now_ms.saturating_sub(LAST_LOOK_MS.load(Relaxed)) < LOOKED_MS {
        return;
    }
    LAST_LOOK_MS.store(now_ms, Relaxed);
    if !all_are_wrapped() {
        end();
    }
}

/// `struct sigaction` as the kernel has it (x86-64: arch/x86/include/uapi/asm/signal.h).
#[repr(C)]
#[derive(Default)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// Whether there is no handler that is not a wrapped one.
fn all_are_wrapped() -> bool {
    (1..=SIGNALS).filter(|signal| must_wait(*signal)).all(|signal| {
        let mut action = KernelAction::default();
        let arguments = [signal as usize, 0, (&raw mut action) as usize, 8, 0, 0];
        // SAFETY: the kernel stores the action; nothing is changed.
        let result = unsafe { crate::raw::call(libc::SYS_rt_sigaction as usize, arguments) };
        result == 0 && (!is_function(action.handler) || entry_of(action.handler).is_some())
    })
}

/// Begins a section; returns what [`leave`] needs.
#[inline(always)]
pub(crate) fn enter() -> u32 {
    let inside = &own().inside;
    let before = inside.load(Relaxed);
    inside.store(1, Relaxed);
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    before
}

/// Ends a section; a handler that was put off runs now.
#[inline(always)]
pub(crate) fn leave(before: u32) {
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    let own = own();
    debug_assert_ne!(own.inside.load(Relaxed), 0, "of two sections the one that began later ends first");
    own.inside.store(before, Relaxed);
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    if own.is_put_off.load(Relaxed) != 0 && before == 0 {
        run_deferred();
    }
}

#[cold]
fn run_deferred() {
    let own = own();
    own.is_put_off.store(0, Relaxed);
    set_mask(own.mask.load(Relaxed), None);
}

type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Where a wrapper goes that found its thread inside.
///
/// # Safety
/// Called as the kernel calls a handler with SA_SIGINFO.
unsafe extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, entry: u32) {
    // SAFETY: the three arguments are those that the kernel gave this handler.
    if !unsafe { put_off(signal, info, context) } {
        // Rather a handler too early than none.
        let handler = HANDLERS[entry as usize].load(Acquire);
        // SAFETY: what the program installed. It may take one argument or three: the others are in registers.
        unsafe { core::mem::transmute::<usize, Handler>(handler)(signal, info, context) };
    }
}

/// Sends a signal again, to arrive when the section ends. False if the kernel does not allow it.
///
/// # Safety
/// As for [`on_signal`].
unsafe fn put_off(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) -> bool {
    let mut mask = 0;
    // It may not be blocked (SA_NODEFER), and would arrive at once.
    set_mask(BLOCKED, Some(&mut mask));
    // SAFETY: neither has requirements; the kernel wrote what `info` points to. Not the ids that are
    // remembered: a child that shares this memory has others.
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
    let own = own();
    // SAFETY: the frame's mask; the kernel's is the first 8 bytes of libc's.
    let resumed = unsafe { &mut *(&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>() };
    own.mask.store(*resumed, Relaxed);
    own.is_put_off.store(1, Relaxed);
    *resumed |= BLOCKED;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

    fn action(handler: usize, flags: c_int) -> libc::sigaction {
        // SAFETY: zero bytes are an action.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        action
    }

    /// Installs a handler as the hook does.
    fn install(signal: c_int, handler: usize, flags: c_int) {
        let mut new = action(handler, flags);
        // SAFETY: the handlers here only touch atomics.
        unsafe {
            libc::sigaddset(&raw mut new.sa_mask, libc::SIGURG);
            wrap(signal, &mut new);
            assert_eq!(libc::sigaction(signal, &raw const new, core::ptr::null_mut()), 0);
        }
    }

    /// Sends a signal with a value to the calling thread.
    fn send(signal: c_int, value: u64) {
        let mut info = [0u64; 16];
        info[0] = signal as u64;
        info[1] = u64::from(libc::SI_QUEUE as u32);
        info[3] = value;
        // SAFETY: the information is readable.
        let result = unsafe {
            let (process, thread) = (libc::getpid(), crate::lock::thread_id());
            crate::call::syscall!(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info.as_ptr())
        };
        assert_eq!(result, 0);
    }

    fn mask() -> u64 {
        let mut mask = 0u64;
        // SAFETY: the kernel's set has 8 bytes.
        unsafe { crate::call::syscall!(libc::SYS_rt_sigprocmask, 0, 0, &raw mut mask, 8) };
        mask
    }

    /// What arrived: the sum of the values and the number of them, and the mask that the last saw.
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
            // SAFETY: what `send` sent; digits in the order of arrival.
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
            // Outside of a section, at once.
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
