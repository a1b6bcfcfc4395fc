//! The threads of the library, above all the handler thread.
//!
//! The handler thread has its own table of file descriptors, which holds only the userfaultfd: a
//! program that closes every descriptor, as daemons do, would otherwise lose the bytes of its
//! views. The thread blocks all signals, so that the program's handlers never run on it.

use crate::call::{kernel, syscall};
pub use crate::clock::{now_ms, pause, sleep_10_ms};
use crate::errno::{Errno, check};
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::ffi::c_void;

const STACK_BYTES: usize = 256 << 10;

/// Roles of the library's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The engine's handler thread, which serves page faults.
    Faults,
    /// The handler thread of the twin allocator.
    Twin,
    /// The thread that serves lanes.
    Lanes,
}

/// Starts a detached thread that runs `body(argument)`.
///
/// # Errors
/// Errors of pthread_create(2).
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
    // SAFETY: the attributes are initialised before use and destroyed after; `body` accepts any argument.
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

static NUMBERS: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// Returns the number of threads that have been numbered.
#[must_use]
pub fn numbered_threads() -> u32 {
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

/// Returns the calling thread's number, counted from 0 in the order of the first calls; never reused.
#[inline]
#[must_use]
pub fn number() -> u32 {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    {
        let own = &crate::thread_words::thread_words().number;
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

/// Returns the processor that the calling thread runs on at this moment.
#[inline]
#[must_use]
pub fn processor() -> u32 {
    // SAFETY: sched_getcpu has no preconditions; glibc reads the thread's rseq area or calls the vDSO.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// Pins the calling thread to a processor. Errors are ignored.
pub fn pin_to_processor(processor: u32) {
    let mut set = [0u64; 128];
    let Some(word) = set.get_mut(processor as usize / 64) else { return };
    *word = 1 << (processor % 64);
    let _errno = crate::errno::SavedErrno::new();
    // SAFETY: sched_setaffinity(2) reads `size_of_val(&set)` bytes of `set`, which lives through the call.
    unsafe { kernel!(Limit, syscall!(libc::SYS_sched_setaffinity, 0, size_of_val(&set), set.as_ptr())) };
}

crate::statics! {
    /// Kernel id of the handler thread; 0 if there is none.
    static HANDLER: AtomicU32 = AtomicU32::new(0);
    /// Kernel id of the twin allocator's thread; 0 if there is none.
    static TWIN: AtomicU32 = AtomicU32::new(0);
    /// Kernel id of the lanes' thread; 0 if there is none.
    static LANES: AtomicU32 = AtomicU32::new(0);
}

fn id_of(role: Role) -> &'static AtomicU32 {
    match role {
        Role::Faults => &HANDLER,
        Role::Twin => &TWIN,
        Role::Lanes => &LANES,
    }
}

/// Whether the process has threads besides the calling one and the library's. False if unknown.
#[must_use]
pub fn has_other_threads() -> bool {
    find_other() == Ok(true)
}

/// Whether the process may have threads besides the calling one and the library's. True if unknown.
#[must_use]
pub(crate) fn may_have_other_threads() -> bool {
    find_other() != Ok(false)
}

fn find_other() -> Result<bool, Errno> {
    if cfg!(loom) {
        return Ok(false);
    }
    let ours = [crate::lock::thread_id(), HANDLER.load(Relaxed), TWIN.load(Relaxed), LANES.load(Relaxed)];
    let leader = std::process::id();
    let mut is_found = false;
    let _errno = crate::errno::SavedErrno::new();
    crate::fd::each_number(c"/proc/self/task", |id, _| {
        let id = id.cast_unsigned();
        // A first thread that has ended stays in the list until the process is gone.
        is_found |= !(ours.contains(&id) || id == leader && first_has_ended());
    })?;
    Ok(is_found)
}

/// Whether the process's first thread has ended. False if unknown.
fn first_has_ended() -> bool {
    // Format: pid (name) state. The name, of up to 15 bytes, may itself contain parentheses.
    let mut text = [0u8; 64];
    let mut path = [0u8; 48];
    let id = std::process::id();
    let written = {
        use std::io::Write;
        let mut rest = &mut path[..];
        write!(rest, "/proc/self/task/{id}/stat\0").is_ok()
    };
    let Ok(path) = core::ffi::CStr::from_bytes_until_nul(&path) else { return false };
    let got_bytes = if written { crate::file::read_start(path, &mut text).unwrap_or(0) } else { 0 };
    let behind = text[..got_bytes].iter().rposition(|byte| *byte == b')');
    behind.and_then(|at| text.get(at + 2)).is_some_and(|state| matches!(state, b'Z' | b'X'))
}

/// Waits until only the calling thread and the library's are left, as long as the program's threads live.
pub fn wait_for_other_threads() {
    while has_other_threads() {
        sleep_10_ms();
    }
}

/// Whether the handler thread exists.
#[must_use]
pub fn has_handler() -> bool {
    let handler = HANDLER.load(Relaxed);
    let _errno = crate::errno::SavedErrno::new();
    handler != 0 && exists(handler)
}

/// Forgets a thread of the library that has ended, or is not in a forked child: ids are reused.
pub(crate) fn forget(role: Role) {
    id_of(role).store(0, Relaxed);
}

/// Whether the process's first thread ended while the library had no threads. libc then treats the
/// program's last thread as the process's last; a thread of the library would take that place.
static FIRST_HAS_ENDED: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);

/// Notes that the process's first thread ends while the library has no threads, and prevents later ones.
pub fn forbid_library_threads() {
    FIRST_HAS_ENDED.store(true, Relaxed);
}

/// Whether threads of the library may be started: the first thread has not ended without them.
#[must_use]
pub fn may_start_library_threads() -> bool {
    !FIRST_HAS_ENDED.load(Relaxed)
}

/// Resets the state in a forked child, whose first thread is the one that forked.
pub(crate) fn reset_first_thread() {
    FIRST_HAS_ENDED.store(false, Relaxed);
}

pub(crate) fn has(role: Role) -> bool {
    id_of(role).load(Relaxed) != 0
}

/// Whether the calling thread is one of the library.
#[must_use]
pub fn is_of_library() -> bool {
    let own = crate::lock::thread_id();
    [Role::Faults, Role::Twin, Role::Lanes].into_iter().any(|role| id_of(role).load(Relaxed) == own)
}

/// Whether any thread of the library exists.
#[must_use]
pub fn has_library_threads() -> bool {
    HANDLER.load(Relaxed) != 0 || TWIN.load(Relaxed) != 0 || LANES.load(Relaxed) != 0
}

/// Whether a thread with this id exists in this process.
#[must_use]
pub fn exists(id: u32) -> bool {
    // SAFETY: tgkill(2) takes only integers, and signal 0 is not delivered.
    unsafe { syscall!(libc::SYS_tgkill, std::process::id(), id, 0) == 0 }
}

/// Whether the calling thread is the handler thread.
#[inline]
#[must_use]
pub fn is_handler() -> bool {
    HANDLER.load(Relaxed) == crate::lock::thread_id()
}

/// Gives the calling thread its name and its own table of descriptors, which holds only `kept` (in
/// any order; -1 for none).
///
/// # Errors
/// Errors of unshare(2) and close_range(2); the thread then shares the program's table.
pub(crate) fn isolate(role: Role, kept: [i32; 3]) -> Result<(), Errno> {
    let name = match role {
        Role::Faults => c"uncopy-faults",
        Role::Twin => c"uncopy-twin",
        Role::Lanes => c"uncopy-lanes",
    };
    id_of(role).store(crate::lock::thread_id(), Relaxed);
    keep_only(kept, name)
}

fn keep_only(mut kept: [i32; 3], name: &core::ffi::CStr) -> Result<(), Errno> {
    if cfg!(loom) {
        return Ok(());
    }
    // SAFETY: PR_SET_NAME copies a NUL-terminated name that lives through the call.
    unsafe { kernel!(Limit, syscall!(libc::SYS_prctl, libc::PR_SET_NAME, name.as_ptr())) };
    // SAFETY: unshare(2) takes only integers, and CLONE_FILES affects only this thread's table.
    let unshared = check(unsafe { kernel!(Unshare, syscall!(libc::SYS_unshare, libc::CLONE_FILES)) });
    // Containers' filters refuse unshare(2) altogether, but allow this (Linux 5.9).
    unshared.or_else(|_| unshare_by_closing())?;
    kept.sort_unstable();
    let mut next = 0;
    // SAFETY: the table belongs to this thread alone, which uses no descriptor but `kept`.
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

/// Gives the calling thread its own table of descriptors by closing in it a number that no
/// descriptor has: numbers end at `sysctl fs.nr_open`, which is at most half of this one.
fn unshare_by_closing() -> Result<i64, Errno> {
    let (last, flag) = (u32::MAX, libc::CLOSE_RANGE_UNSHARE);
    // SAFETY: close_range(2) takes only integers, and the flag makes it affect only this thread's table.
    check(unsafe { kernel!(Unshare, syscall!(libc::SYS_close_range, last, last, flag)) })
}

crate::statics! {
    /// Key whose destructor runs when a thread ends.
    static END_KEY: EndKey = EndKey::new();
}

/// Calls `end` when the calling thread ends (not when the process does). `end` must always be the
/// same function. Errors are ignored: `end` is then not called.
///
/// A `thread_local!` with a destructor would not do: registering one allocates from the program's heap.
pub fn on_thread_end(end: extern "C" fn()) {
    END_KEY.watch(end);
}

/// A key whose destructor calls one function. See [`on_thread_end`].
pub struct EndKey(
    /// The pthread key plus one; 0 if not created yet.
    AtomicU32,
);

impl EndKey {
    crate::constant! {
        /// Returns a key that has not been created yet.
        #[must_use]
        pub const fn new() -> Self {
            Self(AtomicU32::new(0))
        }
    }

    /// Calls `end` when the calling thread ends. See [`on_thread_end`].
    pub fn watch(&self, end: extern "C" fn()) {
        if cfg!(loom) {
            return;
        }
        extern "C" fn at_end(end: *mut c_void) {
            // SAFETY: the key's value is set only below, to a function of this type.
            let end: extern "C" fn() = unsafe { core::mem::transmute::<*mut c_void, extern "C" fn()>(end) };
            end();
        }
        let mut key = self.0.load(Relaxed);
        if key == 0 {
            let mut made: libc::pthread_key_t = 0;
            // SAFETY: `made` lives through the call, and the destructor accepts the values set below.
            if unsafe { libc::pthread_key_create(&raw mut made, Some(at_end)) } != 0 {
                return;
            }
            match self.0.compare_exchange(0, made + 1, Relaxed, Relaxed) {
                Ok(_) => key = made + 1,
                Err(other) => {
                    // SAFETY: the key was created above, and no value was set for it.
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
