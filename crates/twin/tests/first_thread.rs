//! A first thread that ends before the others does not make the handler thread keep the process. Without the harness:
//! `pthread_exit` leaves no frame that catches panics.

#![no_main]

mod common;

use common::{can_lend, lend_all, pattern};
use core::ffi::{c_char, c_int, c_void};
use uncopy_twin::{Buffer, Until};

unsafe extern "C-unwind" {
    fn pthread_exit(value: *mut c_void) -> !;
}

/// The program: passes if its child ends by itself, with status 0.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn main(_count: c_int, _arguments: *mut *mut c_char) -> c_int {
    // SAFETY: the child goes on as a process of its own.
    let child = unsafe { libc::fork() };
    if child == 0 {
        if lend_and_leave_a_thread() {
            // SAFETY: no frame of this thread has anything to drop.
            unsafe { pthread_exit(core::ptr::null_mut()) };
        }
        return 0;
    }
    watch(child)
}

/// Waits for the child, 20 seconds at most. No signal but SIGKILL reaches a handler thread.
fn watch(child: libc::pid_t) -> c_int {
    for _ in 0..2000 {
        let mut status = 0;
        // SAFETY: the child is ours.
        if unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child {
            return c_int::from(status != 0);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // SAFETY: as above.
    unsafe { libc::kill(child, libc::SIGKILL) };
    eprintln!("the process did not end with its last thread");
    1
}

fn lend_and_leave_a_thread() -> bool {
    let Some(_alone) = can_lend("first_thread") else { return false };
    let buffer = Buffer::copy_of(&pattern(1, 8192)).expect("memory");
    drop(lend_all(&buffer, Until::Dropped).expect("lent"));
    drop(Buffer::copy_of(&[1; 100]));
    std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_millis(50)));
    true
}
