//! Direct system calls: those that return twice, and those that a program makes through libc's
//! `syscall` before libc's own function has been resolved.

use core::ffi::{c_int, c_void};

/// Makes a system call; returns the kernel's result, in which an error is its negated number.
///
/// # Safety
/// The requirements of the call must hold. One that forks must leave the stack pointer alone.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn call(number: usize, arguments: [usize; 6]) -> i64 {
    let result: i64;
    // SAFETY: the caller vouches for the arguments; the instruction clobbers rax, rcx and r11 only.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result
}

/// An argument of a system call.
#[doc(hidden)]
pub trait Argument {
    /// The argument as the word that the kernel expects.
    fn word(self) -> usize;
}

macro_rules! arguments {
    ($($type:ty $(: $parameter:ident)?),*) => {
        $(impl $(<$parameter>)? Argument for $type {
            #[inline(always)]
            fn word(self) -> usize {
                self as usize
            }
        })*
    };
}

arguments!(i32, u32, i64, u64, usize, *const T: T, *mut T: T);

/// Makes a system call by number: `syscall!(libc::SYS_close, fd)`; returns -1 and sets `errno` if
/// it fails. Not libc's `syscall`, on which the library interposes.
macro_rules! syscall {
    ($number:expr $(, $argument:expr)* $(,)?) => {
        $crate::raw::system_call($number, [$($crate::raw::Argument::word($argument)),*])
    };
}

pub(crate) use syscall;

/// See [`syscall!`].
///
/// # Safety
/// The requirements of the call must hold.
#[inline(always)]
pub(crate) unsafe fn system_call<const COUNT: usize>(number: i64, arguments: [usize; COUNT]) -> i64 {
    let mut all = [0; 6];
    all[..COUNT].copy_from_slice(&arguments);
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the caller vouches for the arguments.
        let result = unsafe { call(number as usize, all) };
        // The kernel's error numbers end at 4095 (include/linux/err.h).
        if (-4095..0).contains(&result) {
            crate::errno::set(-result as i32);
            return -1;
        }
        result
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller vouches for the arguments; the library interposes on this function on x86-64 only.
    unsafe {
        libc::syscall(number, all[0], all[1], all[2], all[3], all[4], all[5])
    }
}

/// Switches to another stack, calls `function(argument)` there, then `end` with its result.
///
/// # Safety
/// `stack` must be the upper end of memory for a stack, and the present stack no longer needed.
#[cfg(target_arch = "x86_64")]
pub unsafe fn run_on(
    stack: usize,
    function: unsafe extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
    end: extern "C" fn(c_int) -> !,
) -> ! {
    // SAFETY: the caller gives up the present stack and passes the end of another. It is aligned as
    // a call requires, and a frame pointer of zero ends stack traces.
    unsafe {
        core::arch::asm!(
            "mov rsp, rcx",
            "and rsp, -16",
            "xor ebp, ebp",
            "call rax",
            "mov edi, eax",
            "call r12",
            "ud2",
            in("rcx") stack,
            in("rax") function,
            in("rdi") argument,
            in("r12") end,
            options(noreturn),
        );
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn results_are_the_kernels() {
        // SAFETY: getpid(2) takes no arguments, and close(2) of an invalid descriptor changes nothing.
        unsafe {
            assert_eq!(call(libc::SYS_getpid as usize, [0; 6]), i64::from(std::process::id()));
            assert_eq!(call(libc::SYS_close as usize, [usize::MAX; 6]), -i64::from(libc::EBADF));
        }
    }

    #[test]
    fn a_function_runs_on_another_stack() {
        unsafe extern "C" fn sum(argument: *mut c_void) -> c_int {
            let local = 30;
            // SAFETY: the test passes a pointer to two numbers: one to add, and the base of the new stack.
            let [number, base] = unsafe { *argument.cast::<[usize; 2]>() };
            let inside = (base..base + (64 << 10)).contains(&(&raw const local as usize));
            c_int::try_from(number).unwrap_or(0) + local + c_int::from(inside)
        }
        extern "C" fn end(status: c_int) -> ! {
            // SAFETY: exit_group(2) ends the child of the test.
            unsafe { libc::syscall(libc::SYS_exit_group, status) };
            unreachable!()
        }
        let mut stack = vec![0u8; 64 << 10];
        let base = stack.as_mut_ptr() as usize;
        let mut numbers = [11, base];
        // SAFETY: the child only switches to the other stack, of which it has its own copy, and exits.
        unsafe {
            let flags = libc::SIGCHLD as usize;
            let child = call(libc::SYS_clone as usize, [flags, 0, 0, 0, 0, 0]);
            if child == 0 {
                run_on(base + stack.len() - 8, sum, (&raw mut numbers).cast(), end);
            }
            let mut status = 0;
            assert_eq!(i64::from(libc::waitpid(child as i32, &raw mut status, 0)), child);
            assert_eq!(status, 42 << 8);
        }
    }
}
