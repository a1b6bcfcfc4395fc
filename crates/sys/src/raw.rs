//! System calls made by hand: those that come back twice, and those that a program makes through
//! libc's `syscall` before libc's own can be asked.

use core::ffi::{c_int, c_void};

/// Makes a system call; the kernel's own result: an error is its negated number.
///
/// # Safety
/// What the call requires. One that forks must leave the stack pointer alone.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn call(number: usize, arguments: [usize; 6]) -> i64 {
    let result: i64;
    // SAFETY: what the call asks of its arguments holds, says the caller; it clobbers rax, rcx and r11 only.
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

/// Makes a system call by its number: `syscall!(libc::SYS_close, fd)`; -1 and `errno` if it fails. Not libc's
/// function of that name, which the library interposes on.
macro_rules! syscall {
    ($number:expr $(, $argument:expr)* $(,)?) => {
        $crate::raw::system_call($number, [$($argument as usize),*])
    };
}

pub(crate) use syscall;

/// See [`syscall!`].
///
/// # Safety
/// What the call asks of its arguments.
#[inline(always)]
pub(crate) unsafe fn system_call<const COUNT: usize>(number: i64, arguments: [usize; COUNT]) -> i64 {
    let mut all = [0; 6];
    all[..COUNT].copy_from_slice(&arguments);
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: what the call asks of its arguments holds, says the caller.
        let result = unsafe { call(number as usize, all) };
        // The kernel's error numbers end at 4095 (include/linux/err.h).
        if (-4095..0).contains(&result) {
            crate::errno::set(-result as i32);
            return -1;
        }
        result
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: what the call asks of its arguments holds, says the caller; the library interposes on this function on
    // x86-64 only.
    unsafe {
        libc::syscall(number, all[0], all[1], all[2], all[3], all[4], all[5])
    }
}

/// Goes over to another stack, calls `function(argument)` there and then `end` with what it returned.
///
/// # Safety
/// `stack` is the upper end of memory that is a stack's, and nothing of the present one is needed.
#[cfg(target_arch = "x86_64")]
pub unsafe fn run_on(
    stack: usize,
    function: unsafe extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
    end: extern "C" fn(c_int) -> !,
) -> ! {
    // SAFETY: the caller gives up the present stack and passes the end of another; it is aligned as a call
    // requires, and a frame pointer of zero ends a stack trace.
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
        // SAFETY: neither call has requirements.
        unsafe {
            assert_eq!(call(libc::SYS_getpid as usize, [0; 6]), i64::from(std::process::id()));
            assert_eq!(call(libc::SYS_close as usize, [usize::MAX; 6]), -i64::from(libc::EBADF));
        }
    }

    #[test]
    fn a_function_runs_on_another_stack() {
        unsafe extern "C" fn sum(argument: *mut c_void) -> c_int {
            let local = 30;
            // SAFETY: the test passes two numbers: one to add, one that says where its stack is.
            let [number, base] = unsafe { *argument.cast::<[usize; 2]>() };
            let inside = (base..base + (64 << 10)).contains(&(&raw const local as usize));
            c_int::try_from(number).unwrap_or(0) + local + c_int::from(inside)
        }
        extern "C" fn end(status: c_int) -> ! {
            // SAFETY: ends the child of the test.
            unsafe { libc::syscall(libc::SYS_exit_group, status) };
            unreachable!()
        }
        let mut stack = vec![0u8; 64 << 10];
        let base = stack.as_mut_ptr() as usize;
        let mut numbers = [11, base];
        // SAFETY: the child only goes to the other stack, which is its own copy, and ends; SIGCHLD.
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
