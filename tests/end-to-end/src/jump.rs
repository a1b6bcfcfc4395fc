//! `sigsetjmp` and `siglongjmp`, in a form that is sound to use: the function that returns twice
//! is called from assembly, never from a Rust frame.

use std::arch::global_asm;
use std::cell::UnsafeCell;
use std::ffi::c_void;

/// Room for glibc's `sigjmp_buf` (200 bytes on x86-64).
#[repr(C, align(16))]
#[derive(Debug)]
pub struct JumpPoint(UnsafeCell<[u8; 256]>);

// SAFETY: only glibc accesses the bytes; a jump point is used by one thread at a time.
unsafe impl Sync for JumpPoint {}

impl Default for JumpPoint {
    fn default() -> Self {
        Self::new()
    }
}

global_asm!(
    ".globl uncopy_test_catch",
    ".type uncopy_test_catch, @function",
    "uncopy_test_catch:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    "push r12",
    ".cfi_adjust_cfa_offset 8",
    "push r13",
    ".cfi_adjust_cfa_offset 8",
    "mov r12, rsi",
    "mov r13, rdx",
    "mov esi, 1",
    "call __sigsetjmp@PLT",
    "test eax, eax",
    "jne 2f",
    "mov rdi, r13",
    "call r12",
    "xor eax, eax",
    "2:",
    "pop r13",
    ".cfi_adjust_cfa_offset -8",
    "pop r12",
    ".cfi_adjust_cfa_offset -8",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
);

unsafe extern "C" {
    fn uncopy_test_catch(point: *mut c_void, run: extern "C" fn(*mut c_void), argument: *mut c_void) -> i32;
    fn siglongjmp(point: *mut c_void, value: i32) -> !;
}

impl JumpPoint {
    /// A point that nothing jumps to yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(UnsafeCell::new([0; 256]))
    }

    /// Runs `run(argument)`. True if a jump to this point ended the call.
    ///
    /// # Safety
    /// The frames that a jump leaves must not hold anything that has to be dropped.
    pub unsafe fn catch(&self, run: extern "C" fn(*mut c_void), argument: *mut c_void) -> bool {
        // SAFETY: the buffer is big enough for sigsetjmp; the caller promises that the skipped
        // frames hold nothing to drop.
        unsafe { uncopy_test_catch(self.0.get().cast(), run, argument) != 0 }
    }

    /// Jumps to the `catch` that is running.
    ///
    /// # Safety
    /// A `catch` of this point must be running in this thread.
    pub unsafe fn jump(&self) -> ! {
        // SAFETY: the caller promises that the point is set.
        unsafe { siglongjmp(self.0.get().cast(), 1) }
    }
}
