//! `clone` and `syscall`: the ways to a new process that are not `fork`.
//!
//! | call | what is done |
//! |---|---|
//! | shares the memory (CLONE_VM, vfork) | nothing: the child's faults are served by this process's handler |
//! | a process of its own memory | what `_Fork` does |
//! | `SYS_exit` of the main thread | waits for the program's other threads, and ends as the last of them |
//! | `SYS_unshare`, `SYS_setns` | what the functions of that name do |
//! | seccomp, limits, mlockall, execve, execveat, io_uring_setup | [`crate::limits`] is told first |
//! | setuid to capset, landlock_restrict_self | what [`crate::credentials`] does |
//! | rt_sigaction | handlers are not put off from then on |
//! | mmap, munmap, mprotect, madvise and their like | [`crate::mapping`] is told first |
//! | any, with `--log` | [`crate::files`] is told first |
//! | anything else | libc's `syscall`, by a few compares and a jump |
//!
//! A clone instruction of the program's own, and one that gives a forked child another stack through
//! `syscall`, cannot be followed: viewed pages read as zeroes in that child.

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
/// A child with another thread-specific area than its parent's: ours would be lost there too.
const SETTLS: usize = libc::CLONE_SETTLS as usize;

/// The head of `struct clone_args` (linux/sched.h).
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

/// System calls have smaller numbers.
const NUMBERS: usize = 512;

/// [`crate::limits`] is told of a system call before it is made.
const TOLD_FIRST: u8 = 1;
/// A system call goes to the body.
const TAKEN: u8 = 2;

/// What becomes of a system call, by its number: 0, [`TOLD_FIRST`] or [`TAKEN`].
static LOOKED_AT: [u8; NUMBERS] = {
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
        looked_at[limits[index] as usize] = TOLD_FIRST;
        index += 1;
    }
    index = 0;
    while index < crate::mapping::CALLS.len() {
        looked_at[crate::mapping::CALLS[index] as usize] = TOLD_FIRST;
        index += 1;
    }
    index = 0;
    while index < NUMBERS {
        if crate::credentials::is_change(index as c_long) {
            looked_at[index] = TAKEN;
        }
        index += 1;
    }
    looked_at
};

/// What libc makes of the kernel's result.
fn result_of(result: i64) -> c_long {
    if (-4095..0).contains(&result) {
        errno::set(-result as c_int);
        return -1;
    }
    result
}

/// Whether descriptors are shared with a child of these flags, which must then not close the parent's.
fn memory_of(flags: usize) -> Memory {
    if flags & FILES != 0 { Memory::OfItsOwnOnly } else { Memory::AndDescriptors }
}

/// `clone`. The fifth to seventh argument are only looked at by the kernel where a flag says so; taking
/// them in any case is what every libc does.
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
        // SAFETY: the program's own arguments, for libc's clone.
        return unsafe { CLONE.call()(function, stack, flags, argument, parent_tid, tls, child_tid) };
    };
    // The child begins on its copy of this stack, whatever room the one that it is given has, and goes
    // over there when the engine works in it.
    let arguments = [bits, 0, parent_tid, child_tid, tls, 0];
    // SAFETY: the child gets a copy of this memory and of this stack.
    let result = forked(memory_of(bits), || unsafe { call(libc::SYS_clone as usize, arguments) });
    if result == 0 {
        // SAFETY: `stack` is the upper end of a stack, as clone demands; the child needs nothing of this one
        // any more.
        unsafe { run_on(stack as usize, function, argument, end_thread) };
    }
    result_of(result) as c_int
}

alias!(__clone = clone
(function: Option<Function>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent_tid: usize, tls: usize,
child_tid: usize) -> c_int);

/// Ends the calling thread; the program with it, if it is the one that began it.
extern "C" fn end_thread(status: c_int) -> ! {
    let mut number = libc::SYS_exit;
    // Sealed, strict mode may be in force, which lets nothing else through.
    if !exit::is_sealed() && thread::ours_live() && lock::thread_id() == std::process::id() {
        if thread::others_live() {
            last_thread::first_is_outlived();
            thread::outlast_others();
        }
        exit::finish();
        if !last_thread::is_watched() {
            number = libc::SYS_exit_group;
        }
    }
    loop {
        // SAFETY: ends the thread or the process; nothing of it is needed any more.
        unsafe { call(number as usize, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// `syscall`, entry: what makes a process of its own memory, or ends a thread, goes to the body; the rest
/// on to libc, or straight to the kernel while libc's own address is not known.
///
/// A child that shares this memory comes back from here on its parent's stack, or on another: no frame of
/// ours may lie in its way.
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
        // Files take part in a log.
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
        looked_at = sym LOOKED_AT,
        told_first = const TOLD_FIRST,
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

/// The arguments of `clone3` if they ask for a child with memory of its own, on a copy of this stack.
fn forking_arguments(address: usize, len_bytes: usize) -> Option<CloneArguments> {
    let known_bytes = size_of::<CloneArguments>();
    if len_bytes < known_bytes || !is_readable(address, known_bytes) {
        return None;
    }
    // SAFETY: just found to be readable; the program passes the structure.
    let arguments = unsafe { (address as *const CloneArguments).read_unaligned() };
    (arguments.stack == 0 && arguments.flags as usize & VM == 0).then_some(arguments)
}

/// Whether a `clone3` goes to the body.
extern "C" fn clone3_forks(_number: c_long, address: usize, len_bytes: usize) -> bool {
    forking_arguments(address, len_bytes).is_some()
}

/// A system call before libc's function is known.
unsafe extern "C" fn direct(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the program's own system call; a fork goes by way of `body`.
    result_of(unsafe { call(number as usize, [a, b, c, d, e, f]) })
}

/// A child of its own memory, another namespace, another user, or the end of a thread.
unsafe extern "C" fn body(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the program's own system call.
    let as_it_is = || unsafe { direct(number, a, b, c, d, e, f) };
    let flags = match number {
        libc::SYS_unshare => return namespaces::unshared(a as c_int, as_it_is),
        libc::SYS_setns => return namespaces::moved(b as c_int, as_it_is),
        libc::SYS_rt_sigaction => {
            if b != 0 {
                // A handler that is not wrapped, perhaps.
                uncopy_sys::deferral::end();
            }
            let result = as_it_is();
            if result == 0 && c != 0 {
                // SAFETY: the kernel stored the action that there was.
                unsafe { uncopy_sys::deferral::unwrap_stored(c) };
            }
            return result;
        }
        _ if credentials::is_change(number) => return credentials::change(number, [a, b, c], as_it_is),
        libc::SYS_exit => end_thread(a as c_int),
        libc::SYS_clone => a,
        libc::SYS_clone3 => forking_arguments(a, b).map_or(SETTLS, |arguments| arguments.flags as usize),
        libc::SYS_fork => 0,
        // Beside those that are looked for.
        _ => return as_it_is(),
    };
    if flags & SETTLS != 0 {
        return as_it_is();
    }
    // SAFETY: the child gets a copy of this memory and of this stack.
    result_of(forked(memory_of(flags), || unsafe { call(number as usize, [a, b, c, d, e, f]) }))
}
