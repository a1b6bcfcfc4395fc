//! Runs a program and kills it as it enters one of its system calls. Calls of all threads count,
//! from the first that accepts or makes a connection.
//!
//! ```text
//! tracer FILE NUMBER PROGRAM ARGUMENTS…      0: it is not killed; how many there were is written to FILE
//! ```

use std::os::unix::process::CommandExt;
use std::process::Command;

use libc::{c_int, c_long, pid_t};

/// Signal of a stop at a system call, with PTRACE_O_TRACESYSGOOD.
const SYSCALL_STOP: c_int = libc::SIGTRAP | 0x80;

fn trace(request: libc::c_uint, pid: pid_t, data: usize) -> c_long {
    // SAFETY: requests that take no address; `data` is a number.
    unsafe { libc::ptrace(request, pid, 0usize, data) }
}

/// Returns the number of the system call that a thread enters; `None` if it leaves one.
fn entered_call(pid: pid_t) -> Option<u64> {
    // SAFETY: ptrace_syscall_info is plain data, of which zeroes are a valid value.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let len = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: `info` has room for the `len` bytes that the request writes.
    let got = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid, len, &raw mut info) };
    if got <= 0 || info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return None;
    }
    // SAFETY: at the entry the kernel fills in that part of the union.
    Some(unsafe { info.u.entry.nr })
}

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let file = arguments.next().expect("a file");
    let number: u64 = arguments.next().and_then(|word| word.to_str()?.parse().ok()).expect("a number");
    let mut command = Command::new(arguments.next().expect("a program"));
    command.args(arguments);
    // SAFETY: the closure makes one system call.
    unsafe {
        command.pre_exec(|| match trace(libc::PTRACE_TRACEME, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let child = command.spawn().expect("the program").id().cast_signed();
    let (mut calls, mut is_counting, mut is_set) = (0u64, false, false);
    loop {
        let mut status = 0;
        // SAFETY: a place for the status. All children are the program's threads.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
        if pid < 0 {
            break;
        }
        if !libc::WIFSTOPPED(status) {
            continue;
        }
        if !is_set {
            let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
            trace(libc::PTRACE_SETOPTIONS, pid, options as usize);
            is_set = true;
        }
        let signal = libc::WSTOPSIG(status);
        if signal == SYSCALL_STOP
            && let Some(call) = entered_call(pid)
        {
            is_counting |=
                [libc::SYS_accept, libc::SYS_accept4, libc::SYS_connect].contains(&call.cast_signed());
            calls += u64::from(is_counting);
            if is_counting && calls == number {
                // SAFETY: the child was not waited for to its end.
                unsafe { libc::kill(child, libc::SIGKILL) };
            }
        }
        // Stops caused by tracing itself are not passed on to the program.
        let is_own = [SYSCALL_STOP, libc::SIGTRAP, libc::SIGSTOP].contains(&signal);
        trace(libc::PTRACE_SYSCALL, pid, if is_own { 0 } else { signal as usize });
    }
    std::fs::write(file, calls.to_string()).expect("the file");
}
