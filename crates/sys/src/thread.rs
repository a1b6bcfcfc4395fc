//! The handler thread.
//!
//! It has a table of file descriptors of its own that holds nothing but the userfaultfd, so that a
//! program that closes every descriptor (as daemons do) cannot take its views' bytes away with it;
//! and it blocks every signal, so that the program's handlers never run on it.

use crate::call::{kernel, syscall};
pub use crate::clock::{doze, now_ms, pause};
use crate::errno::{Errno, check};
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::ffi::c_void;

const STACK_BYTES: usize = 256 << 10;

/// The threads of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The engine's, which serves faults.
    Faults,
    /// The twin allocator's.
    Twin,
    /// The lanes'.
    Lanes,
}

/// Starts a detached thread that runs `body(argument)`.
///
/// # Errors
/// What pthread_create says.
pub fn spawn(body: extern "C" fn(*mut c_void) -> *mut c_void, argument: usize) -> Result<(), Errno> {
    // The stack also holds the thread's static TLS, which is large in some programs.
    let mut result = Err(Errno(libc::EINVAL));
    for stack_bytes in [STACK_BYTES, 16 * STACK_BYTES, 256 * STACK_BYTES] {
        result = spawn_with(body, argument, stack_bytes);
        if result != Err(Errno(libc::EINVAL)) {
            break;
        }
    }
    result
}

#[cfg(loom)]
fn spawn_with(
    body: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: usize,
    _stack_bytes: usize,
) -> Result<(), Errno> {
    crate::sync::spawn_detached(move || {
        body(argument as *mut c_void);
    });
    Ok(())
}

#[cfg(not(loom))]
fn spawn_with(
    body: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: usize,
    stack_bytes: usize,
) -> Result<(), Errno> {
    let mut attributes = core::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = 0;
    // SAFETY: the attributes are initialised before use and destroyed after; the body takes any
    // argument.
    let result = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack_bytes);
        let mut create =
            || match libc::pthread_create(&mut thread, attributes.as_ptr(), body, argument as *mut c_void) {
                0 => 0,
                number => {
                    crate::errno::set(number);
                    -1
                }
            };
        let result = check(i64::from(kernel!(Thread, create())));
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        result
    };
    result.map(drop)
}

/// Threads that have a number.
static NUMBERS: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// Number of threads that have one.
#[must_use]
pub fn numbers() -> u32 {
    NUMBERS.load(Relaxed)
}

#[cold]
fn next_number() -> u32 {
    NUMBERS.fetch_add(1, Relaxed) + 1
}

#[cfg(not(all(target_arch = "x86_64", not(loom))))]
crate::locals! {
    static NUMBER: core::cell::Cell<u32> = core::cell::Cell::new(0);
}

/// The calling thread's number, from 0 in the order in which threads first asked for theirs. Never given
/// to another.
#[inline]
#[must_use]
pub fn number() -> u32 {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    {
        let own = &crate::own::own().number;
        if own.load(Relaxed) == 0 {
            own.store(next_number(), Relaxed);
        }
        own.load(Relaxed) - 1
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    NUMBER.with(|own| {
        if own.get() == 0 {
            own.set(next_number());
        }
        own.get() - 1
    })
}

/// The processor that the calling thread runs on just now.
#[inline]
#[must_use]
pub fn processor() -> u32 {
    // SAFETY: no requirements; glibc reads what the kernel keeps in the thread's own memory (rseq), or asks the vDSO.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// Has the calling thread run on this processor only. A refusal changes nothing.
pub fn stay_on(processor: u32) {
    let mut set = [0u64; 128];
    let Some(word) = set.get_mut(processor as usize / 64) else { return };
    *word = 1 << (processor % 64);
    let _errno = crate::errno::Keep::new();
    // SAFETY: the set is readable for its length.
    unsafe { kernel!(Limit, syscall!(libc::SYS_sched_setaffinity, 0, size_of_val(&set), set.as_ptr())) };
}

crate::statics! {
    /// Kernel id of the handler thread; 0: there is none.
    static HANDLER: AtomicU32 = AtomicU32::new(0);
    /// The same for the one that serves the twin allocator.
    static SECOND: AtomicU32 = AtomicU32::new(0);
    /// The same for the one that serves lanes.
    static THIRD: AtomicU32 = AtomicU32::new(0);
}

fn place(role: Role) -> &'static AtomicU32 {
    match role {
        Role::Faults => &HANDLER,
        Role::Twin => &SECOND,
        Role::Lanes => &THIRD,
    }
}

/// Whether there are threads besides the calling one and the handlers. False if that cannot be told.
#[must_use]
pub fn others_live() -> bool {
    find_other() == Ok(true)
}

/// The same; true if that cannot be told.
#[must_use]
pub(crate) fn others_may_live() -> bool {
    find_other() != Ok(false)
}

fn find_other() -> Result<bool, Errno> {
    if cfg!(loom) {
        return Ok(false);
    }
    let ours = [crate::lock::thread_id(), HANDLER.load(Relaxed), SECOND.load(Relaxed), THIRD.load(Relaxed)];
    let leader = std::process::id();
    let mut is_found = false;
    let _errno = crate::errno::Keep::new();
    crate::fd::each_number(c"/proc/self/task", |id, _| {
        let id = id.cast_unsigned();
        // A first thread that has ended stays in the list until the process is gone.
        is_found |= !(ours.contains(&id) || id == leader && first_has_ended());
    })?;
    Ok(is_found)
}

/// Whether the process's first thread has ended. False if that cannot be told.
fn first_has_ended() -> bool {
    // pid (name) state: the name, of 15 bytes at most, may have parentheses itself.
    let mut text = [0u8; 64];
    let mut path = [0u8; 48];
    let id = std::process::id();
    let written = {
        use std::io::Write;
        let mut rest = &mut path[..];
        write!(rest, "/proc/self/task/{id}/stat\0").is_ok()
    };
    let Ok(path) = core::ffi::CStr::from_bytes_until_nul(&path) else { return false };
    let got_bytes = if written { crate::fd::read_start(path, &mut text) } else { 0 };
    let behind = text[..got_bytes].iter().rposition(|byte| *byte == b')');
    behind.and_then(|at| text.get(at + 2)).is_some_and(|state| matches!(state, b'Z' | b'X'))
}

/// Waits until no thread is left but the calling one and the handlers: as long as the program's own threads live.
pub fn outlast_others() {
    while others_live() {
        doze();
    }
}

/// Whether the handler thread exists.
#[must_use]
pub fn handler_lives() -> bool {
    let handler = HANDLER.load(Relaxed);
    let _errno = crate::errno::Keep::new();
    handler != 0 && lives(handler)
}

/// A thread of ours has ended, or is the parent's of a forked child: its id may come to be another thread's.
pub(crate) fn forget(role: Role) {
    place(role).store(0, Relaxed);
}

/// The process's first thread ends while there are no threads of ours: libc makes the program's last thread that of the
/// process, which a thread of ours would take from it.
static FIRST_ENDS: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);

/// Notes that the process's first thread ends while there are no threads of ours: there will be none.
pub fn first_ends() {
    FIRST_ENDS.store(true, Relaxed);
}

/// Whether threads of ours can be started: the process's first thread has not ended without them.
#[must_use]
pub fn ours_may_start() -> bool {
    !FIRST_ENDS.load(Relaxed)
}

/// In a forked child, whose first thread is the one that forked.
pub(crate) fn first_is_new() {
    FIRST_ENDS.store(false, Relaxed);
}

/// Whether there is the thread of ours with this role.
pub(crate) fn has(role: Role) -> bool {
    place(role).load(Relaxed) != 0
}

/// Whether there are threads of ours.
#[must_use]
pub fn ours_live() -> bool {
    HANDLER.load(Relaxed) != 0 || SECOND.load(Relaxed) != 0 || THIRD.load(Relaxed) != 0
}

/// Whether a thread of this process with that id exists.
#[must_use]
pub fn lives(id: u32) -> bool {
    // SAFETY: signal 0 is only a question.
    unsafe { syscall!(libc::SYS_tgkill, std::process::id(), id, 0) == 0 }
}

/// Whether the calling thread is the handler.
#[inline]
#[must_use]
pub fn is_handler() -> bool {
    HANDLER.load(Relaxed) == crate::lock::thread_id()
}

/// Gives the calling thread of ours a table of descriptors that holds only `kept` (in any order; -1: none), and its name.
///
/// # Errors
/// What the kernel says; the thread then shares the program's table.
pub(crate) fn isolate(role: Role, kept: [i32; 3]) -> Result<(), Errno> {
    let name = match role {
        Role::Faults => c"uncopy-faults",
        Role::Twin => c"uncopy-twin",
        Role::Lanes => c"uncopy-lanes",
    };
    place(role).store(crate::lock::thread_id(), Relaxed);
    keep_only(kept, name)
}

fn keep_only(mut kept: [i32; 3], name: &core::ffi::CStr) -> Result<(), Errno> {
    if cfg!(loom) {
        return Ok(());
    }
    // SAFETY: a terminated name; prctl copies it.
    unsafe { kernel!(Limit, syscall!(libc::SYS_prctl, libc::PR_SET_NAME, name.as_ptr())) };
    // SAFETY: affects only this thread's table.
    let unshared = check(unsafe { kernel!(Unshare, syscall!(libc::SYS_unshare, libc::CLONE_FILES)) });
    // The filters of containers refuse unshare(2) whatever it is asked for, and let this through (Linux 5.9).
    unshared.or_else(|_| unshare_by_closing())?;
    kept.sort_unstable();
    let mut next = 0;
    // SAFETY: this table belongs to this thread alone, which uses nothing but `kept`.
    unsafe {
        for kept in kept.into_iter().filter_map(|kept| u32::try_from(kept).ok()) {
            if kept > next {
                kernel!(Close, syscall!(libc::SYS_close_range, next, kept - 1, 0));
            }
            next = kept + 1;
        }
        kernel!(Close, syscall!(libc::SYS_close_range, next, u32::MAX, 0));
    }
    Ok(())
}

/// Gives the calling thread a table of descriptors of its own by closing in it a descriptor that cannot exist: numbers end
/// at `sysctl fs.nr_open`, which is at most half of this one.
fn unshare_by_closing() -> Result<i64, Errno> {
    let (last, flag) = (u32::MAX, libc::CLOSE_RANGE_UNSHARE);
    // SAFETY: affects only this thread's table.
    check(unsafe { kernel!(Unshare, syscall!(libc::SYS_close_range, last, last, flag)) })
}

crate::statics! {
    /// Key whose destructor runs at a thread's end.
    static END_KEY: EndKey = EndKey::new();
}

/// Has `end` called when the calling thread ends (not when the process does). Always the same function. Where
/// that is refused, it is not called.
///
/// Not a `thread_local!` with a destructor: registering one allocates from the program's heap.
pub fn watch_end(end: extern "C" fn()) {
    END_KEY.watch(end);
}

/// A key whose destructor calls one function: [`watch_end`] for another layer.
pub struct EndKey(
    /// The key plus one; 0: there is none yet.
    AtomicU32,
);

impl EndKey {
    crate::constant! {
        /// A key that has not been made yet.
        #[must_use]
        pub const fn new() -> Self {
            Self(AtomicU32::new(0))
        }
    }

    /// Has `end` called when the calling thread ends, as [`watch_end`] does.
    pub fn watch(&self, end: extern "C" fn()) {
        if cfg!(loom) {
            return;
        }
        extern "C" fn at_end(end: *mut c_void) {
            // SAFETY: the value of the key is only set below, to a function of this type.
            let end: extern "C" fn() = unsafe { core::mem::transmute::<*mut c_void, extern "C" fn()>(end) };
            end();
        }
        let mut key = self.0.load(Relaxed);
        if key == 0 {
            let mut made: libc::pthread_key_t = 0;
            // SAFETY: the pointer is valid; the destructor takes what is set below.
            if unsafe { libc::pthread_key_create(&raw mut made, Some(at_end)) } != 0 {
                return;
            }
            match self.0.compare_exchange(0, made + 1, Relaxed, Relaxed) {
                Ok(_) => key = made + 1,
                Err(other) => {
                    // SAFETY: made just now and used by nobody.
                    unsafe { libc::pthread_key_delete(made) };
                    key = other;
                }
            }
        }
        // SAFETY: the key exists and is never deleted.
        unsafe { libc::pthread_setspecific(key - 1, end as *const c_void) };
    }
}

impl Default for EndKey {
    fn default() -> Self {
        Self::new()
    }
}
