//! `clone` and `syscall`: process creation without `fork`.
//!
//! | call | action |
//! |---|---|
//! | shares the memory (CLONE_VM, vfork) | nothing: this process's handler serves the child's faults |
//! | a process of its own memory | as for `_Fork` |
//! | `SYS_exit` of the main thread | waits for the program's other threads, and ends as the last of them |
//! | `SYS_unshare`, `SYS_setns` | as for the functions of that name |
//! | seccomp, limits, mlockall, execve, execveat, io_uring_setup | calls [`crate::limits`] first |
//! | setuid to capset, landlock_restrict_self | as in [`crate::credentials`] |
//! | rt_sigaction | handlers are not deferred from then on |
//! | mmap, munmap, mprotect, madvise and their like | calls [`crate::mapping`] first |
//! | any, with `--log` | calls [`uncopy_store_hooks`] first |
//! | anything else | libc's `syscall`, by a few compares and a jump |
//!
//! Not supported: the program's own clone instructions, and a `syscall` that gives a forked child another stack.
//! In such a child, viewed pages read as zeroes.

use crate::process::{Memory, forked};
use crate::{credentials, exit, namespaces};
use core::ffi::{c_int, c_long, c_void};
use uncopy_interpose::{alias, slots};
use uncopy_sys::raw::{call, run_on};
use uncopy_sys::readable::is_readable;
use uncopy_sys::{errno, last_thread, lock, thread};

type Function = unsafe extern "C" fn(*mut c_void) -> c_int;
type Clone =
    unsafe extern "C" fn(Option<Function>, *mut c_void, c_int, *mut c_void, usize, usize, usize) -> c_int;
type Syscall = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

slots! {
    CLONE = c"clone": Clone;
    SYSCALL = c"syscall": Syscall;
}

const VM: usize = libc::CLONE_VM as usize;
const FILES: usize = libc::CLONE_FILES as usize;
/// Flag for a child with another thread-local area than its parent's, in which this library's would be missing.
const SETTLS: usize = libc::CLONE_SETTLS as usize;

/// Beginning of `struct clone_args` (linux/sched.h).
#[repr(C)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
}

/// Upper bound of system call numbers.
const NUMBERS: usize = 512;

/// System call of which [`crate::limits`] is notified before it is made.
const NOTIFY_FIRST: u8 = 1;
/// System call that is handled by [`body`].
const HANDLED: u8 = 2;

/// Handling of each system call, by number: 0, [`NOTIFY_FIRST`] or [`HANDLED`].
static HANDLING: [u8; NUMBERS] = {
    let mut looked_at = [0; NUMBERS];
    let limits = [
        libc::SYS_seccomp,
        libc::SYS_prlimit64,
        libc::SYS_setrlimit,
        libc::SYS_prctl,
        libc::SYS_mlockall,
        libc::SYS_ioctl,
        libc::SYS_execveat,
        libc::SYS_io_uring_setup,
    ];
    let mut index = 0;
    while index < limits.len() {
        looked_at[limits[index] as usize] = NOTIFY_FIRST;
        index += 1;
    }
    index = 0;
    while index < crate::mapping::CALLS.len() {
        looked_at[crate::mapping::CALLS[index] as usize] = NOTIFY_FIRST;
        index += 1;
    }
    index = 0;
    while index < NUMBERS {
        if crate::credentials::is_change(index as c_long) {
            looked_at[index] = HANDLED;
        }
        index += 1;
    }
    looked_at
};

/// Converts the kernel's result as libc does, setting `errno` on errors.
fn result_of(result: i64) -> c_long {
    if (-4095..0).contains(&result) {
        errno::set(-result as c_int);
        return -1;
    }
    result
}

/// Returns whether a child with these flags has its own descriptor table; otherwise it must not close the parent's
/// descriptors.
fn memory_of(flags: usize) -> Memory {
    if flags & FILES != 0 { Memory::OfItsOwnOnly } else { Memory::AndDescriptors }
}

/// Hooks clone(2). The kernel reads the fifth to seventh argument only if a flag says so; every libc takes them in
/// any case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    function: Option<Function>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: usize,
    tls: usize,
    child_tid: usize,
) -> c_int {
    let bits = flags as u32 as usize;
    let (Some(function), false, false) = (function, stack.is_null(), bits & (VM | SETTLS) != 0) else {
        // SAFETY: the program's own arguments, passed on to libc's clone unchanged.
        return unsafe { CLONE.call()(function, stack, flags, argument, parent_tid, tls, child_tid) };
    };
    // The child starts on its copy of this stack, because the given one may be too small for the engine, and
    // switches to the given one afterwards.
    let arguments = [bits, 0, parent_tid, child_tid, tls, 0];
    // SAFETY: without CLONE_VM and with no stack, the child gets a copy of this memory, including this stack.
    let result = forked(memory_of(bits), || unsafe { call(libc::SYS_clone as usize, arguments) });
    if result == 0 {
        // SAFETY: `stack` is the upper end of a stack, as clone(2) requires; the child does not return to this
        // one.
        unsafe { run_on(stack as usize, function, argument, end_thread) };
    }
    result_of(result) as c_int
}

alias!(__clone = clone
(function: Option<Function>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent_tid: usize, tls: usize,
child_tid: usize) -> c_int);

/// Ends the calling thread. If it is the main thread, waits for the others and ends the process.
extern "C" fn end_thread(status: c_int) -> ! {
    let mut number = libc::SYS_exit;
    // Once sealed, seccomp's strict mode may be in force, which allows nothing else.
    if !exit::is_sealed() && thread::has_library_threads() && lock::thread_id() == std::process::id() {
        if thread::has_other_threads() {
            last_thread::note_first_thread_ended();
            thread::wait_for_other_threads();
        }
        exit::finish();
        if !last_thread::is_watched() {
            number = libc::SYS_exit_group;
        }
    }
    loop {
        // SAFETY: exit(2) and exit_group(2) take any status and do not return.
        unsafe { call(number as usize, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Hooks syscall(2): calls that create a process with its own memory or end a thread go to [`body`]; the others to
/// libc, or directly to the kernel while libc's address is not known.
///
/// A child that shares this memory returns on its parent's stack, or on another one, so this function must not
/// have a frame.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        "lea rax, [rdi - {clone}]",
        "cmp rax, {exit} - {clone}",
        "ja 2f",
        "cmp rdi, {fork}",
        "je {body}",
        "cmp rdi, {execve}",
        "je 5f",
        "cmp rdi, {exit}",
        "je {body}",
        "cmp rdi, {clone}",
        "jne 3f",
        "test esi, {vm}",
        "jne 3f",
        "test rdx, rdx",
        "je {body}",
        "jmp 3f",
        "2:",
        "cmp rdi, {unshare}",
        "je {body}",
        "cmp rdi, {setns}",
        "je {body}",
        "cmp rdi, {sigaction}",
        "je {body}",
        "cmp rdi, {clone3}",
        "jne 4f",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {forks}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test al, al",
        "jne {body}",
        "3:",
        "mov rax, qword ptr [rip + {slot}]",
        "test rax, rax",
        "je {direct}",
        "jmp rax",
        "4:",
        "cmp rdi, {numbers}",
        "jae 6f",
        "lea rax, [rip + {looked_at}]",
        "cmp byte ptr [rax + rdi], {told_first}",
        "je 5f",
        "ja {body}",
        "6:",
        // Set while files take part in a log.
        "cmp byte ptr [rip + {files}], 0",
        "je 3b",
        "5:",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {limits}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp 3b",
        numbers = const NUMBERS,
        looked_at = sym HANDLING,
        told_first = const NOTIFY_FIRST,
        sigaction = const libc::SYS_rt_sigaction,
        execve = const libc::SYS_execve,
        files = sym uncopy_store::program::IS_ON,
        limits = sym crate::limits::before_call,
        clone = const libc::SYS_clone,
        fork = const libc::SYS_fork,
        exit = const libc::SYS_exit,
        clone3 = const libc::SYS_clone3,
        unshare = const libc::SYS_unshare,
        setns = const libc::SYS_setns,
        vm = const libc::CLONE_VM,
        slot = sym SYSCALL,
        body = sym body,
        direct = sym direct,
        forks = sym clone3_forks,
    )
}

/// Reads the arguments of a `clone3` that creates a child with its own memory, on a copy of this stack; `None` for
/// others.
fn forking_arguments(address: usize, len_bytes: usize) -> Option<CloneArguments> {
    let known_bytes = size_of::<CloneArguments>();
    if len_bytes < known_bytes || !is_readable(address, known_bytes) {
        return None;
    }
    // SAFETY: `arguments` was checked to be readable for the length of the structure, which any bytes are valid
    // for.
    let arguments = unsafe { (address as *const CloneArguments).read_unaligned() };
    (arguments.stack == 0 && arguments.flags as usize & VM == 0).then_some(arguments)
}

/// True if this `clone3` is handled by [`body`].
extern "C" fn clone3_forks(_number: c_long, address: usize, len_bytes: usize) -> bool {
    forking_arguments(address, len_bytes).is_some()
}

/// Makes a system call while libc's function is not known.
unsafe extern "C" fn direct(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the program's own system call, with its arguments; calls that fork do not come here.
    result_of(unsafe { call(number as usize, [a, b, c, d, e, f]) })
}

/// Handles system calls that create a process with its own memory, change namespaces or credentials, or end a
/// thread.
unsafe extern "C" fn body(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the program's own system call, with its arguments; it does not fork.
    let as_it_is = || unsafe { direct(number, a, b, c, d, e, f) };
    let flags = match number {
        libc::SYS_unshare => return namespaces::with_unshare(a as c_int, as_it_is),
        libc::SYS_setns => return namespaces::with_setns(b as c_int, as_it_is),
        libc::SYS_rt_sigaction => {
            if b != 0 {
                // The new handler may be one that is not wrapped.
                uncopy_sys::deferral::end();
            }
            let result = as_it_is();
            if result == 0 && c != 0 {
                // SAFETY: the kernel has just stored the old action at `c`, so it is valid and writable.
                unsafe { uncopy_sys::deferral::unwrap_stored(c) };
            }
            return result;
        }
        _ if credentials::is_change(number) => return credentials::change(number, [a, b, c], as_it_is),
        libc::SYS_exit => end_thread(a as c_int),
        libc::SYS_clone => a,
        libc::SYS_clone3 => forking_arguments(a, b).map_or(SETTLS, |arguments| arguments.flags as usize),
        libc::SYS_fork => 0,
        // Includes numbers whose handling the entry could not decide alone.
        _ => return as_it_is(),
    };
    if flags & SETTLS != 0 {
        return as_it_is();
    }
    // SAFETY: without CLONE_VM and with no stack, the child gets a copy of this memory, including this stack.
    result_of(forked(memory_of(flags), || unsafe { call(number as usize, [a, b, c, d, e, f]) }))
}
