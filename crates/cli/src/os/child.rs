//! Child processes: their start and end, forwarding of signals, and the terminal that they share.

use rustix::process::{Pid, getpgrp};
use rustix::stdio::stdin;
use rustix::termios::{isatty, tcgetpgrp, tcgetwinsize, tcsetpgrp};
use std::io;
use std::mem;
use std::time::Duration;

/// Blocked signals, to be read by [`next_signal`], with the mask and the disposition of `SIGCHLD`
/// from before.
pub struct BlockedSignals {
    old_mask: libc::sigset_t,
    old_sigchld: libc::sighandler_t,
}

/// End of a child process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Exit with this status.
    Exited(u8),
    /// End by this signal.
    Killed(i32),
}

/// Program that this process started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    pid: libc::pid_t,
    has_own_group: bool,
}

/// Change in the state of a child.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ChildEvent {
    /// End of the child, with its processor time and that of children it waited for, seconds.
    Ended(Ending, f64),
    /// Stop by this signal.
    Stopped(i32),
}

/// Signal that this process received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    pub number: i32,
    /// Whether a process sent the signal, and not the kernel (a key on the terminal, a child that
    /// ended).
    pub is_sent: bool,
    /// Sender, if a process sent the signal.
    pub sender: u32,
}

fn all_signals() -> libc::sigset_t {
    // SAFETY: `sigset_t` is plain data, for which zero bytes are valid; sigfillset(3) writes only
    // to it.
    unsafe {
        let mut all: libc::sigset_t = mem::zeroed();
        libc::sigfillset(&raw mut all);
        all
    }
}

impl BlockedSignals {
    /// Blocks all signals and saves the mask.
    pub fn begin() -> Self {
        let (all, mut old_mask) = (all_signals(), all_signals());
        // SAFETY: sigprocmask(2) reads `all` and writes `old_mask`, both of which live through the
        // call. signal(2) gets a constant, SIG_DFL.
        unsafe {
            libc::sigprocmask(libc::SIG_BLOCK, &raw const all, &raw mut old_mask);
            // If SIGCHLD were ignored, wait4(2) could not report how a child ended.
            Self { old_mask, old_sigchld: libc::signal(libc::SIGCHLD, libc::SIG_DFL) }
        }
    }

    /// Restores the signal mask and the disposition of `SIGCHLD`.
    pub fn end(&self) {
        // SAFETY: signal(2) gets the disposition that it returned in `begin`; sigprocmask(2) reads
        // the mask that `begin` filled.
        unsafe {
            libc::signal(libc::SIGCHLD, self.old_sigchld);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const self.old_mask, std::ptr::null_mut());
        }
    }

    /// Runs `section` in a child process and waits for its end, forwarding signals. The child exits
    /// with the status that `section` returns. This process must have one thread.
    pub fn fork_and_wait(&self, section: impl FnOnce() -> u8) -> io::Result<Ending> {
        Ok(self.fork(false, section)?.wait(None))
    }

    /// Starts `section` in a child process, which exits with the status that `section` returns.
    /// With `own_group` the child has its own process group, so that keys on the terminal do not
    /// reach it. This process must have one thread.
    pub fn fork(&self, own_group: bool, section: impl FnOnce() -> u8) -> io::Result<Child> {
        // SAFETY: fork(2) copies only the calling thread; there is no other whose locks the child
        // would find held.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                if own_group {
                    // SAFETY: setpgid(2) takes numbers and accesses no memory.
                    unsafe { libc::setpgid(0, 0) };
                }
                self.end();
                std::process::exit(i32::from(section()))
            }
            _ => {
                if own_group {
                    // Both processes set the group, because either may need it first.
                    // SAFETY: setpgid(2) takes numbers and accesses no memory.
                    unsafe { libc::setpgid(pid, pid) };
                }
                Ok(Child { pid, has_own_group: own_group })
            }
        }
    }
}

impl Child {
    pub fn pid(self) -> u32 {
        self.pid.cast_unsigned()
    }

    /// Returns the change of the child's state since the last call, if any.
    pub fn poll(self) -> Option<ChildEvent> {
        let mut status = 0;
        // SAFETY: `rusage` consists of numbers, for which zero bytes are valid.
        let mut usage: libc::rusage = unsafe { mem::zeroed() };
        // SAFETY: wait4(2) writes `status` and `usage`, which are writable and live through the
        // call.
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
            Some(ChildEvent::Ended(Ending::Exited(status), cpu_seconds))
        } else if libc::WIFSIGNALED(status) {
            Some(ChildEvent::Ended(Ending::Killed(libc::WTERMSIG(status)), cpu_seconds))
        } else {
            Some(ChildEvent::Stopped(libc::WSTOPSIG(status)))
        }
    }

    /// Waits for the child's end. Meanwhile forwards signals except `own`: see [`Child::forward`].
    pub fn wait(self, own: Option<i32>) -> Ending {
        loop {
            match self.poll() {
                Some(ChildEvent::Ended(ending, _)) => return ending,
                // This process stops too, so that its parent sees the stop.
                Some(ChildEvent::Stopped(_)) => stop(),
                None => next_signal(None).into_iter().for_each(|signal| self.forward(signal, own)),
            }
        }
    }

    /// Forwards a signal that a process sent to this one, except `own`, which is for this process.
    /// Signals of the terminal reach the child directly; only SIGCONT is always forwarded.
    pub fn forward(self, signal: Signal, own: Option<i32>) {
        let is_for_child = signal.is_sent && signal.sender != self.pid() && Some(signal.number) != own;
        if signal.number != libc::SIGCHLD && (is_for_child || signal.number == libc::SIGCONT) {
            self.signal(signal.number);
        }
    }

    /// Sends a signal to the child.
    pub fn signal(self, number: i32) {
        // SAFETY: kill(2) takes numbers and accesses no memory. The child has not been reaped, so
        // the pid is still its own.
        unsafe { libc::kill(self.pid, number) };
    }

    /// Gives the terminal to the child's process group and continues it. Returns false if the child
    /// has no group of its own, or that fails.
    pub fn give_terminal(self) -> bool {
        let Some(group) = Pid::from_raw(self.pid).filter(|_| self.has_own_group) else { return false };
        // SIGTTOU is blocked, so that it cannot stop this process.
        tcsetpgrp(stdin(), group).is_ok()
            && rustix::process::kill_process_group(group, rustix::process::Signal::CONT).is_ok()
    }
}

/// Takes the terminal back from any other process group.
pub fn reclaim_terminal() {
    // SIGTTOU is blocked, so that it cannot stop this process. Without a terminal the call fails.
    let _ = tcsetpgrp(stdin(), getpgrp());
}

/// Whether standard input is a terminal that sends its keys to this process.
pub fn has_terminal() -> bool {
    isatty(stdin()) && tcgetpgrp(stdin()) == Ok(getpgrp())
}

/// Stops this process, as the child was stopped.
pub fn stop() {
    // SAFETY: raise(3) takes a number; no handler runs for SIGSTOP.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Returns the next pending signal, waiting for at most `timeout` (`None`: without limit). Signals
/// must be blocked by [`BlockedSignals`].
pub fn next_signal(timeout: Option<Duration>) -> Option<Signal> {
    let all = all_signals();
    let time = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
    });
    // SAFETY: sigtimedwait(2) reads the set and the time, if not null, and writes the information;
    // all live through the call. `siginfo_t` is plain data, for which zero bytes are valid, so that
    // `si_pid` is initialised for every signal.
    unsafe {
        let mut info: libc::siginfo_t = mem::zeroed();
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let number = libc::sigtimedwait(&raw const all, &raw mut info, time);
        (number > 0).then(|| Signal {
            number,
            is_sent: info.si_code <= 0,
            sender: info.si_pid().cast_unsigned(),
        })
    }
}

/// Whether a process with this pid exists, of any user.
pub fn process_exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| {
        matches!(rustix::process::test_kill_process(pid), Ok(()) | Err(rustix::io::Errno::PERM))
    })
}

/// Returns the columns of a terminal; `None` if `stream` is not one.
pub fn columns(stream: &impl std::os::fd::AsFd) -> Option<usize> {
    tcgetwinsize(stream).ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Ends this process as a child ended, without a core dump of its own. Returns the status if the
/// child exited.
pub fn exit_as(ending: Ending) -> u8 {
    match ending {
        Ending::Exited(status) => status,
        Ending::Killed(signal) => {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: setrlimit(2) reads `none`, signal(2) gets a constant, and the set functions
            // access `only`; both locals live through the calls. Zero bytes are a valid `sigset_t`.
            unsafe {
                libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
                libc::signal(signal, libc::SIG_DFL);
                let mut only: libc::sigset_t = mem::zeroed();
                libc::sigemptyset(&raw mut only);
                libc::sigaddset(&raw mut only, signal);
                libc::sigprocmask(libc::SIG_UNBLOCK, &raw const only, std::ptr::null_mut());
                libc::raise(signal);
            }
            u8::try_from(128 + signal).unwrap_or(u8::MAX)
        }
    }
}
