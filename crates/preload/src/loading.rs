//! `dlopen` and `dlclose`. Another object may come to lie where one was that is closed, and return addresses there mean something else
//! then. An object that is opened with RTLD_DEEPBIND finds libc's functions in front of ours, and may be given blocks to free.

use crate::families;
use core::ffi::{c_char, c_int, c_void};
use uncopy_interpose::slots;

slots! {
    DLOPEN = c"dlopen": unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    DLCLOSE = c"dlclose": unsafe extern "C" fn(*mut c_void) -> c_int;
}

/// libc looks at the return address for the object that asks: it stays where it is.
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

/// Returns the address of libc's function; 0: there is none.
#[cfg(target_arch = "x86_64")]
extern "C" fn before_dlopen(flags: c_int) -> usize {
    if flags & libc::RTLD_DEEPBIND != 0 {
        families::before_deep_binding();
    }
    DLOPEN.find().map_or(0, |function| function as usize)
}
/// libc's own calls of it do not come here: see [`uncopy_unwind::forget`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    // Before glibc 2.34 it is in a library of its own, which may have been loaded after this one.
    let Some(real) = DLCLOSE.find() else { return -1 };
    // SAFETY: the program's own handle.
    let result = unsafe { real(handle) };
    uncopy_unwind::forget();
    result
}
