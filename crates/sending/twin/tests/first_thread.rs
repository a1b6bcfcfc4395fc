//! The handler thread does not keep a process alive whose first thread ends before the others. Runs without
//! the test harness, whose frames catch panics and cannot be left by `pthread_exit`.

#![no_main]

mod common;

use common::{can_lend, lend_all, pattern};
use core::ffi::{c_char, c_int, c_void};
use uncopy_twin::{Buffer, Until};

unsafe extern "C-unwind" {
    fn pthread_exit(value: *mut c_void) -> !;
}

/// Passes if the child exits by itself with status 0.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn main(_count: c_int, _arguments: *mut *mut c_char) -> c_int {
    // cargo-nextest lists the tests, and those that are ignored.
    let is_asked = |word: &str| std::env::args().any(|argument| argument == word);
    if is_asked("--list") {
        if !is_asked("--ignored") {
            println!("a_first_thread_that_ends_before_the_others: test");
        }
        return 0;
    }
    // SAFETY: fork(2) is called while this process has one thread, so the child may call any function.
    let child = unsafe { libc::fork() };
    if child == 0 {
        if lend_and_leave_a_thread() {
            // SAFETY: pthread_exit(3) unwinds this thread, whose frames have no destructors to run.
            unsafe { pthread_exit(core::ptr::null_mut()) };
        }
        return 0;
    }
    watch(child)
}

/// Waits up to 20 seconds for the child, then kills it. Only SIGKILL ends a handler thread.
fn watch(child: libc::pid_t) -> c_int {
    for _ in 0..2000 {
        let mut status = 0;
        // SAFETY: waitpid(2) writes to `status`, which outlives the call.
        if unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child {
            return c_int::from(status != 0);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // SAFETY: kill(2) accesses no memory, and `child` is an unreaped child of this process.
    unsafe { libc::kill(child, libc::SIGKILL) };
    eprintln!("the process did not end with its last thread");
    1
}

fn lend_and_leave_a_thread() -> bool {
    let Some(_guard) = can_lend("first_thread") else { return false };
    let buffer = Buffer::copy_of(&pattern(1, 8192)).expect("memory");
    drop(lend_all(&buffer, Until::Dropped).expect("lent"));
    drop(Buffer::copy_of(&[1; 100]));
    std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_millis(50)));
    true
}
