//! Programs that this process starts and watches while it does something else: their start, their end, the signals
//! that come meanwhile, and the terminal that they share.

use rustix::process::{Pid, getpgrp};
use rustix::stdio::stdin;
use rustix::termios::{isatty, tcgetpgrp, tcgetwinsize, tcsetpgrp};
use std::io;
use std::mem;
use std::time::Duration;

/// Signals that this process keeps from being delivered, to look at them when it wants to, and what `SIGCHLD`
/// did before.
pub struct Watch {
    before: libc::sigset_t,
    child_before: libc::sighandler_t,
}

/// How a child has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With this exit status.
    Exited(u8),
    /// By this signal.
    Killed(i32),
}

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

fn all_signals() -> libc::sigset_t {
    // SAFETY: a signal set is plain data, for which zero bytes are a value, and which sigfillset writes.
    unsafe {
        let mut all: libc::sigset_t = mem::zeroed();
        libc::sigfillset(&raw mut all);
        all
    }
}

impl Watch {
    /// Begins to keep signals back.
    pub fn begin() -> Self {
        let (all, mut before) = (all_signals(), all_signals());
        // SAFETY: both sets are valid for the call; SIG_DFL installs no handler.
        unsafe {
            libc::sigprocmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
            // If it were ignored, nobody could tell how a child has ended.
            Self { before, child_before: libc::signal(libc::SIGCHLD, libc::SIG_DFL) }
        }
    }

    /// Puts everything back as it was.
    pub fn end(&self) {
        // SAFETY: the set and the disposition are those that `begin` found.
        unsafe {
            libc::signal(libc::SIGCHLD, self.child_before);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut());
        }
    }

    /// Runs `section` in a child process, which ends with the status that it returns; to be called while this
    /// process has one thread. Signals that somebody sends to this process go to the child.
    pub fn run(&self, section: impl FnOnce() -> u8) -> io::Result<Ending> {
        Ok(self.start(false, section)?.wait(None))
    }

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
                    // In both, because either may be the first to need it.
                    // SAFETY: setpgid takes numbers.
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

    /// Waits for its end and passes signals on meanwhile, except `own`: see [`Child::pass_on`].
    pub fn wait(self, own: Option<i32>) -> Ending {
        loop {
            match self.change() {
                Some(Change::Ended(ending, _)) => return ending,
                // So is this process, for whoever waits for it.
                Some(Change::Stopped(_)) => stop(),
                None => next_signal(None).into_iter().for_each(|signal| self.pass_on(signal, own)),
            }
        }
    }

    /// Passes on a signal that somebody sent to this process, unless it is `own`, which is for this process. What the
    /// terminal sends reaches the child by itself.
    pub fn pass_on(self, signal: Signal, own: Option<i32>) {
        let is_for_it = signal.is_sent && signal.sender != self.pid() && Some(signal.number) != own;
        if signal.number != libc::SIGCHLD && (is_for_it || signal.number == libc::SIGCONT) {
            self.signal(signal.number);
        }
    }

    /// Sends it a signal.
    pub fn signal(self, number: i32) {
        // SAFETY: kill takes numbers; the child has not been waited for to its end, so the pid is still its own.
        unsafe { libc::kill(self.pid, number) };
    }

    /// Gives it the terminal, and lets it go on. Whether it has a group that can have one.
    pub fn give_terminal(self) -> bool {
        let Some(group) = Pid::from_raw(self.pid).filter(|_| self.has_own_group) else { return false };
        // Every signal is kept back, so that SIGTTOU cannot stop this process.
        tcsetpgrp(stdin(), group).is_ok()
            && rustix::process::kill_process_group(group, rustix::process::Signal::CONT).is_ok()
    }
}

/// Takes the terminal back from whichever program has it.
pub fn take_terminal() {
    // Every signal is kept back, so that SIGTTOU cannot stop this process. Without a terminal there is none to take.
    let _ = tcsetpgrp(stdin(), getpgrp());
}

/// Whether standard input is a terminal whose keys go to this process.
pub fn has_terminal() -> bool {
    isatty(stdin()) && tcgetpgrp(stdin()) == Ok(getpgrp())
}

/// Stops this process, as the child was stopped.
pub fn stop() {
    // SAFETY: raise takes a number.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// The next signal that came or comes within `timeout` (`None`: however long it takes); signals are kept back by a
/// [`Watch`].
pub fn next_signal(timeout: Option<Duration>) -> Option<Signal> {
    let all = all_signals();
    let time = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
    });
    // SAFETY: the set, the information and the time, if there is one, are valid for the call; siginfo_t is plain data,
    // whose sender the kernel writes for every signal that a process sends.
    unsafe {
        let mut information: libc::siginfo_t = mem::zeroed();
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let number = libc::sigtimedwait(&raw const all, &raw mut information, time);
        (number > 0).then(|| Signal {
            number,
            is_sent: information.si_code <= 0,
            sender: information.si_pid().cast_unsigned(),
        })
    }
}

/// Whether there is a process with this pid, perhaps of somebody else.
pub fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| {
        matches!(rustix::process::test_kill_process(pid), Ok(()) | Err(rustix::io::Errno::PERM))
    })
}

/// Columns of the terminal that a stream is; `None` if it is none.
pub fn columns(stream: &impl std::os::fd::AsFd) -> Option<usize> {
    tcgetwinsize(stream).ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Ends this process as another one ended: without a core dump of its own.
pub fn end_like(ending: Ending) -> u8 {
    match ending {
        Ending::Exited(status) => status,
        Ending::Killed(signal) => {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: the limit and the set are plain data; SIG_DFL installs no handler.
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
