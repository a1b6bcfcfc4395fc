//! Permission to sample: `kernel.perf_event_paranoid`, capabilities, and what to type when the kernel refuses.
//!
//! | `perf_event_paranoid` | without CAP_PERFMON |
//! |---|---|
//! | -1, 0 | own processes, and the whole machine |
//! | 1 | own processes |
//! | 2 | own processes, without time in the kernel |
//! | 3 (Debian, Android) | nothing |

use crate::event::{self, KernelTime, Purpose, Scope};
use crate::target;
use rustix::thread::{CapabilitySet, capabilities};
use std::fmt;
use std::fs;
use std::io;

/// Path of the setting.
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";
/// Level from which only privileged users may sample the whole machine.
const WITHOUT_MACHINE: i32 = 1;
/// Level from which time in the kernel is not sampled.
const WITHOUT_KERNEL: i32 = 2;
/// Level from which nothing is allowed, on kernels with Debian's patch.
const WITHOUT_ANYTHING: i32 = 3;

/// Facts that decide which processes this user may sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// Value of `kernel.perf_event_paranoid`; `None` if the kernel has no perf_event_open(2).
    pub paranoid: Option<i32>,
    /// Whether this thread has CAP_PERFMON or CAP_SYS_ADMIN.
    pub is_privileged: bool,
    /// Whether this thread may inspect processes of other users (CAP_SYS_PTRACE).
    pub can_trace: bool,
}

impl Permission {
    /// Reads what holds for this thread.
    #[must_use]
    pub fn read() -> Self {
        let paranoid = fs::read_to_string(PARANOID).ok().and_then(|text| text.trim().parse().ok());
        let has = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        Self {
            paranoid,
            is_privileged: has.intersects(CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN),
            can_trace: has.contains(CapabilitySet::SYS_PTRACE),
        }
    }

    /// Whether time in the kernel is sampled.
    pub(crate) fn kernel_time(self) -> KernelTime {
        let level = self.paranoid.unwrap_or(WITHOUT_KERNEL);
        if self.is_privileged || level < WITHOUT_KERNEL { KernelTime::Sampled } else { KernelTime::Excluded }
    }

    /// Whether time in the kernel is sampled.
    #[must_use]
    pub fn samples_kernel(self) -> bool {
        self.kernel_time() == KernelTime::Sampled
    }

    /// Whether own processes can be sampled, as far as the setting tells.
    #[must_use]
    pub fn may_sample(self) -> bool {
        self.paranoid.is_some_and(|level| self.is_privileged || level < WITHOUT_ANYTHING)
    }

    /// Whether the whole machine can be sampled, as far as the setting tells.
    #[must_use]
    pub fn may_sample_machine(self) -> bool {
        self.paranoid.is_some_and(|level| self.is_privileged || level < WITHOUT_MACHINE)
    }
}

/// Whether time in the kernel is sampled for this user.
pub fn kernel_time() -> KernelTime {
    Permission::read().kernel_time()
}

/// Tries to sample this thread.
///
/// # Errors
/// Those of perf_event_open(2).
pub fn try_sampling() -> io::Result<()> {
    let cpu = event::online_processors()?.first().copied().unwrap_or(0);
    let clock = Purpose::Clock(1, kernel_time());
    event::open(Scope::Own, cpu, clock).map(drop)
}

/// Why nothing can be sampled. `Display` is a complete message.
#[derive(Debug)]
pub struct Refusal {
    /// Process; `None` if all were meant.
    pid: Option<u32>,
    error: io::Error,
    permission: Permission,
    /// User of this command.
    user: u32,
    /// User of the process, if it has not ended.
    owner: Option<u32>,
    /// Whether the error has nothing to do with perf_event_open(2).
    is_other: bool,
}

impl Refusal {
    fn new(pid: Option<u32>, error: io::Error, is_other: bool) -> Self {
        Self {
            pid,
            error,
            permission: Permission::read(),
            user: rustix::process::geteuid().as_raw(),
            owner: pid.and_then(target::owner),
            is_other,
        }
    }

    pub(crate) fn process(pid: u32, error: io::Error) -> Self {
        Self::new(Some(pid), error, false)
    }

    /// Refusal for the first of several processes.
    pub(crate) fn new_for(pid: Option<u32>, error: io::Error) -> Self {
        Self::new(pid, error, false)
    }

    pub(crate) fn machine(error: io::Error) -> Self {
        Self::new(None, error, false)
    }

    pub(crate) fn other(error: io::Error) -> Self {
        Self::new(None, error, true)
    }

    fn is_denial(&self) -> bool {
        matches!(self.error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
    }

    /// Words of the command that would be allowed.
    fn command(&self) -> String {
        match self.pid {
            Some(pid) => format!("sudo uncopy profile --pid {pid}"),
            None => "sudo uncopy profile -a".to_owned(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "cannot sample process {pid}: ")?,
            None => f.write_str("cannot sample this machine: ")?,
        }
        let level = self.permission.paranoid;
        match (self.error.raw_os_error(), level) {
            (Some(libc::ESRCH | libc::ENOENT), _) if self.pid.is_some() && self.owner.is_none() => {
                f.write_str("there is no such process")
            }
            (Some(libc::EMFILE | libc::ENFILE), _) => f.write_str(
                "too many open files: each thread needs a descriptor on each processor; raise the limit (ulimit -n)",
            ),
            _ if self.is_other || !self.is_denial() => {
                let text = self.error.to_string();
                f.write_str(text.split(" (os error").next().unwrap_or("unknown error"))
            }
            (_, None) => f.write_str("the kernel has no perf_event_open, or /proc/sys is hidden"),
            _ if self.permission.is_privileged && self.pid.is_none() => f.write_str(
                "perf_event_open is refused, by a filter of system calls or a security module: run this outside of \
                 the container",
            ),
            _ if self.owner.is_some_and(|owner| owner != self.user) && !self.permission.can_trace => write!(
                f,
                "it belongs to user {}, this command runs as user {}; type: {}",
                self.owner.unwrap_or_default(),
                self.user,
                self.command()
            ),
            (_, Some(level)) if !self.permission.is_privileged && level >= WITHOUT_ANYTHING => write!(
                f,
                "kernel.perf_event_paranoid is {level}, which leaves it to CAP_PERFMON; type: {}",
                self.command()
            ),
            (_, Some(level)) if !self.permission.is_privileged && self.pid.is_none() && level >= WITHOUT_MACHINE => {
                write!(
                    f,
                    "kernel.perf_event_paranoid is {level}, which allows own processes only; type: {}",
                    self.command()
                )
            }
            _ => write!(
                f,
                "perf_event_open is refused, by a filter of system calls, a security module, or because the process \
                 changed its user; type: {}",
                self.command()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permission(level: i32) -> Permission {
        Permission { paranoid: Some(level), is_privileged: false, can_trace: false }
    }

    fn refusal(pid: Option<u32>, errno: i32, level: i32, owner: Option<u32>) -> String {
        let error = io::Error::from_raw_os_error(errno);
        let permission = permission(level);
        Refusal { pid, error, permission, user: 1000, owner, is_other: false }.to_string()
    }

    #[test]
    fn levels_allow_what_the_kernel_documents() {
        let allowed = |level| {
            let permission = permission(level);
            (permission.may_sample_machine(), permission.may_sample(), permission.kernel_time())
        };
        assert_eq!(allowed(-1), (true, true, KernelTime::Sampled));
        assert_eq!(allowed(0), (true, true, KernelTime::Sampled));
        assert_eq!(allowed(1), (false, true, KernelTime::Sampled));
        assert_eq!(allowed(2), (false, true, KernelTime::Excluded));
        assert_eq!(allowed(3), (false, false, KernelTime::Excluded));
        let root = Permission { is_privileged: true, ..permission(3) };
        assert!(root.may_sample_machine() && root.kernel_time() == KernelTime::Sampled);
        let none = Permission { paranoid: None, ..root };
        assert!(!none.may_sample());
    }

    #[test]
    fn refusals_say_why_and_what_to_type() {
        assert_eq!(
            refusal(Some(7), libc::EACCES, 1, Some(33)),
            "cannot sample process 7: it belongs to user 33, this command runs as user 1000; type: sudo uncopy \
             profile --pid 7"
        );
        let text = refusal(Some(7), libc::EACCES, 3, Some(1000));
        assert!(
            text.contains("kernel.perf_event_paranoid is 3") && text.ends_with("sudo uncopy profile --pid 7")
        );
        let text = refusal(None, libc::EACCES, 2, None);
        assert!(text.contains("own processes only") && text.ends_with("sudo uncopy profile -a"), "{text}");
        assert_eq!(
            refusal(Some(7), libc::ESRCH, 1, None),
            "cannot sample process 7: there is no such process"
        );
        assert!(refusal(Some(7), libc::EMFILE, 1, Some(1000)).contains("ulimit -n"));
        assert!(refusal(Some(7), libc::EPERM, 1, Some(1000)).contains("a filter of system calls"));
    }
}
