//! A program that is watched while this process does something else: its start, its end, the signals that come
//! meanwhile, and the terminal that the two share.

use super::{Ending, Watch};
use std::io;
use std::mem;
use std::os::fd::AsRawFd as _;

/// A program that this process started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    pid: libc::pid_t,
    has_own_group: bool,
}

/// What has become of a child.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// It ended; processor time of it and those of its children that it waited for, seconds.
    Ended(Ending, f64),
    /// It was stopped by this signal.
    Stopped(i32),
}

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// Whether a process sent it, and not the kernel (a key on the terminal, a child that ended).
    pub is_sent: bool,
    /// Who, if so.
    pub sender: u32,
}

impl Watch {
    /// Starts `section` in a child process, which ends with the status that it returns; to be called while this process
    /// has one thread. `own_group`: in a process group of its own, so that keys on the terminal do not reach it.
    pub fn start(&self, own_group: bool, section: impl FnOnce() -> u8) -> io::Result<Child> {
        // SAFETY: this process has one thread, so the child can do whatever the parent could.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                if own_group {
                    // SAFETY: setpgid takes numbers.
                    unsafe { libc::setpgid(0, 0) };
                }
                self.end();
                std::process::exit(i32::from(section()))
            }
            _ => {
                if own_group {
                    // In both, because either may be the first to need it. SAFETY: as above.
                    unsafe { libc::setpgid(pid, pid) };
                }
                Ok(Child { pid, has_own_group: own_group })
            }
        }
    }
}

impl Child {
    /// Its pid.
    pub fn pid(self) -> u32 {
        self.pid.cast_unsigned()
    }

    /// What has become of it since the last call.
    pub fn change(self) -> Option<Change> {
        let mut status = 0;
        // SAFETY: rusage consists of numbers, for which zero bytes are a value.
        let mut usage: libc::rusage = unsafe { mem::zeroed() };
        // SAFETY: status and usage are writable; the child is ours and not waited for by anybody else.
        let waited = unsafe {
            libc::wait4(self.pid, &raw mut status, libc::WNOHANG | libc::WUNTRACED, &raw mut usage)
        };
        if waited != self.pid {
            return None;
        }
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        let cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
        if libc::WIFEXITED(status) {
            let status = u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(u8::MAX);
            Some(Change::Ended(Ending::Exited(status), cpu_seconds))
        } else if libc::WIFSIGNALED(status) {
            Some(Change::Ended(Ending::Killed(libc::WTERMSIG(status)), cpu_seconds))
        } else {
            Some(Change::Stopped(libc::WSTOPSIG(status)))
        }
    }

    /// Sends it a signal.
    pub fn signal(self, number: i32) {
        // SAFETY: kill takes numbers; the child has not been waited for to its end, so the pid is still its own.
        unsafe { libc::kill(self.pid, number) };
    }

    /// Gives it the terminal, and lets it go on. Whether it has a group that can have one.
    pub fn give_terminal(self) -> bool {
        if !self.has_own_group {
            return false;
        }
        // SAFETY: both take numbers. Every signal is kept back, so that SIGTTOU cannot stop this process.
        unsafe { libc::tcsetpgrp(0, self.pid) == 0 && libc::kill(-self.pid, libc::SIGCONT) == 0 }
    }
}

/// Takes the terminal back from whichever program has it.
pub fn take_terminal() {
    // SAFETY: both take numbers. Every signal is kept back, so that SIGTTOU cannot stop this process.
    unsafe { libc::tcsetpgrp(0, libc::getpgrp()) };
}

/// Whether standard input is a terminal whose keys go to this process.
pub fn has_terminal() -> bool {
    // SAFETY: all take numbers.
    unsafe { libc::isatty(0) == 1 && libc::tcgetpgrp(0) == libc::getpgrp() }
}

/// Stops this process, as the child was stopped.
pub fn stop() {
    // SAFETY: raise takes a number.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// The next signal that came or comes within `milliseconds`; signals are kept back by a [`Watch`].
pub fn next_signal(milliseconds: u32) -> Option<Signal> {
    // SAFETY: the set, the information and the time are plain data that the calls read or write.
    unsafe {
        let mut all: libc::sigset_t = mem::zeroed();
        let mut information: libc::siginfo_t = mem::zeroed();
        libc::sigfillset(&raw mut all);
        let timeout = libc::timespec {
            tv_sec: libc::time_t::from(milliseconds / 1000),
            tv_nsec: libc::c_long::from(milliseconds % 1000) * 1_000_000,
        };
        let number = libc::sigtimedwait(&raw const all, &raw mut information, &raw const timeout);
        (number > 0).then(|| Signal {
            number,
            is_sent: information.si_code <= 0,
            sender: information.si_pid().cast_unsigned(),
        })
    }
}

/// Whether there is a process with this pid, perhaps of somebody else.
pub fn exists(pid: u32) -> bool {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return false };
    // SAFETY: signal 0 only asks.
    let status = unsafe { libc::kill(pid, 0) };
    status == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// Columns of the terminal that a stream is; `None` if it is none.
pub fn columns(stream: &impl std::os::fd::AsFd) -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one winsize.
    let status = unsafe { libc::ioctl(stream.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (status == 0 && size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Clock ticks of /proc in a second.
pub fn ticks_per_second() -> u64 {
    // SAFETY: sysconf has no preconditions.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1)
}

/// Gives a directory to a user.
pub fn give_to(path: &std::path::Path, user: u32) -> io::Result<()> {
    std::os::unix::fs::lchown(path, Some(user), None)
}
