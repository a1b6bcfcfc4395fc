//! `dlopen` and `dlclose`. After a dlclose another object may be mapped at the same addresses, so cached return
//! addresses become invalid. An object opened with RTLD_DEEPBIND calls libc's functions directly, and may be given
//! blocks to free.

use crate::memory::families;
use core::ffi::{c_char, c_int, c_void};
use uncopy_interpose::slots;

slots! {
    DLOPEN = c"dlopen": unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    DLCLOSE = c"dlclose": unsafe extern "C" fn(*mut c_void) -> c_int;
}

/// Hooks dlopen(3). libc finds the calling object by the return address, so the call is a jump.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen() {
    core::arch::naked_asm!(
        "mov rax, qword ptr [rip + {slot}]",
        "test rax, rax",
        "je 2f",
        "test esi, {deep}",
        "jne 2f",
        "jmp rax",
        "2:",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "mov edi, esi",
        "call {prepare}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "je 3f",
        "jmp rax",
        "3:",
        "ret",
        slot = sym DLOPEN,
        deep = const libc::RTLD_DEEPBIND,
        prepare = sym before_dlopen,
    )
}

/// Prepares for a dlopen and returns the address of libc's function; 0: there is none.
#[cfg(target_arch = "x86_64")]
extern "C" fn before_dlopen(flags: c_int) -> usize {
    if flags & libc::RTLD_DEEPBIND != 0 {
        families::before_deep_binding();
    }
    DLOPEN.find().map_or(0, |function| function as usize)
}
/// Hooks dlclose(3). Calls inside libc bypass this hook: see [`uncopy_unwind::invalidate_cache`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    // Before glibc 2.34, dlclose is in a library of its own, which may be loaded after this one.
    let Some(real) = DLCLOSE.find() else { return -1 };
    // SAFETY: the handle is the program's, passed on to libc's dlclose unchanged.
    let result = unsafe { real(handle) };
    uncopy_unwind::invalidate_cache();
    result
}
