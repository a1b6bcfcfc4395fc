//! Checks whether this user may use userfaultfd, by the system call or by `/dev/userfaultfd`, and
//! what decides about each.

use super::{Check, State};
use crate::os::{self, uffd};
use crate::probe::{self, Device, is_denial};
use std::fs;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;

/// Bit of `CAP_SYS_PTRACE` in the capability sets of `/proc/self/status`.
const CAP_SYS_PTRACE: u32 = 19;
const SYSCTL: &str = "/proc/sys/vm/unprivileged_userfaultfd";

/// Command for kernels without the device.
const ALLOW_EVERYBODY: &str = "sudo sysctl vm.unprivileged_userfaultfd=1";
/// Command that does what the package does (60-uncopy.rules, uncopy.conf), and survives reboots.
const MAKE_GROUP: &str = "sudo groupadd --system uncopy && \
    echo 'KERNEL==\"userfaultfd\", GROUP=\"uncopy\", MODE=\"0660\"' | sudo tee /etc/udev/rules.d/60-uncopy.rules && \
    sudo udevadm control --reload && sudo udevadm trigger --name-match=userfaultfd && \
    sudo usermod -aG uncopy $(id -un)  # and log in again";

/// State of the group that may open the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Missing,
    /// The group exists, but does not have the device.
    WithoutDevice,
    WithDevice,
}

impl Group {
    fn find() -> Self {
        let Some(group) = os::group_id(c"uncopy") else { return Self::Missing };
        let owns_device = fs::metadata(probe::DEVICE)
            .is_ok_and(|device| device.gid() == group && device.mode() & 0o060 == 0o060);
        if owns_device { Self::WithDevice } else { Self::WithoutDevice }
    }
}

/// Results of opening a userfaultfd in both ways.
pub struct Access {
    syscall: Result<(), io::Error>,
    device: Result<Device, io::Error>,
    /// Result of the system call with UFFD_USER_MODE_ONLY, which needs no privilege.
    user_mode: Result<(), io::Error>,
}

impl Access {
    /// Tries both ways of opening.
    pub fn try_both(inherited: Option<RawFd>) -> Self {
        Self {
            syscall: uffd::open_by_syscall(false).map(drop),
            device: Device::open(inherited).and_then(|device| device.userfaultfd().map(|_| device)),
            user_mode: uffd::open_by_syscall(true).map(drop),
        }
    }

    /// Opens a userfaultfd by the device if that works, else by the system call.
    pub fn open(&self) -> Option<OwnedFd> {
        match &self.device {
            Ok(device) => device.userfaultfd().ok(),
            Err(_) => uffd::open_by_syscall(false).ok(),
        }
    }

    const fn is_granted(&self) -> bool {
        self.syscall.is_ok() || self.device.is_ok()
    }

    /// Returns the state of a check whose way of opening failed.
    const fn failure_state(&self) -> State {
        if self.is_granted() { State::Warning } else { State::Missing }
    }
}

/// Fields of `/proc/self/status` that affect permissions.
#[derive(Debug, Default, PartialEq, Eq)]
struct Status {
    seccomp: u32,
    can_trace: bool,
}

impl Status {
    fn parse(text: &str) -> Self {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let capabilities = field("CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
        Self {
            seccomp: field("Seccomp:").and_then(|mode| mode.parse().ok()).unwrap_or(0),
            can_trace: capabilities >> CAP_SYS_PTRACE & 1 == 1,
        }
    }
}

/// Returns the checks of permissions, in the order in which to fix them.
pub fn checks(access: &Access) -> Vec<Check> {
    let status = Status::parse(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    let sysctl = fs::read_to_string(SYSCTL).ok().map(|text| text.trim().to_string());
    let misc = fs::read_to_string("/proc/misc").unwrap_or_default();
    vec![
        device(access, &misc, Group::find()),
        syscall(access, &status, &misc),
        unprivileged(access, sysctl.as_deref()),
        privilege(access, &status),
        seccomp(access, &status),
    ]
}

/// Returns the symbolic name of an error, under which documentation lists it.
fn error_name(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM) => "EPERM".to_string(),
        Some(libc::EACCES) => "EACCES".to_string(),
        Some(libc::ENOSYS) => "ENOSYS".to_string(),
        Some(libc::ENOENT) => "ENOENT".to_string(),
        _ => error.to_string(),
    }
}

fn syscall(access: &Access, status: &Status, misc: &str) -> Check {
    const NAME: &str = "userfaultfd system call";
    let Err(error) = &access.syscall else { return Check::ok(NAME, "permitted") };
    let other =
        if access.device.is_ok() { format!("; {} works instead", probe::DEVICE) } else { String::new() };
    let found = format!("refused ({}){other}", error_name(error));
    let check = Check::new(NAME, access.failure_state(), found);
    // A device can be given to one group; the sysctl applies to the whole machine.
    let has_device = access.device.as_ref().err().is_some_and(is_denial) || device_minor(misc).is_some();
    if access.is_granted() || access.user_mode.is_err() || status.can_trace || !is_denial(error) || has_device
    {
        return check;
    }
    check.with_fix(ALLOW_EVERYBODY)
}

fn device(access: &Access, misc: &str, group: Group) -> Check {
    const NAME: &str = "/dev/userfaultfd";
    let Err(error) = &access.device else {
        return Check::ok(NAME, "can be opened; programs that drop root inherit it");
    };
    let found = match &access.syscall {
        Ok(()) => format!(
            "cannot be opened ({}): programs that drop their privileges will elide nothing",
            error_name(error)
        ),
        Err(_) => format!("cannot be opened ({})", error_name(error)),
    };
    let check = Check::new(NAME, access.failure_state(), found);
    if is_denial(error) {
        return check.with_fix(match group {
            Group::Missing => MAKE_GROUP,
            Group::WithoutDevice => {
                "sudo udevadm control --reload && sudo udevadm trigger --name-match=userfaultfd"
            }
            Group::WithDevice => "sudo usermod -aG uncopy $(id -un)  # and log in again",
        });
    }
    match device_minor(misc) {
        Some(minor) => check.with_fix(format!("sudo mknod -m 600 /dev/userfaultfd c 10 {minor}")),
        None => check,
    }
}

/// Returns the device's minor number if the kernel has the driver.
fn device_minor(misc: &str) -> Option<u32> {
    misc.lines().find_map(|line| line.trim().strip_suffix(" userfaultfd")?.trim().parse().ok())
}

fn unprivileged(access: &Access, value: Option<&str>) -> Check {
    const NAME: &str = "vm.unprivileged_userfaultfd";
    match value {
        Some("1") => Check::ok(NAME, "1: everybody may use the system call"),
        Some(value) if access.is_granted() => {
            Check::ok(NAME, format!("{value}: only privileged users may use the system call"))
        }
        Some(value) => {
            Check::warning(NAME, format!("{value}: only privileged users may use the system call"))
        }
        None if access.is_granted() => Check::ok(NAME, "does not exist here"),
        None => Check::warning(NAME, "does not exist: the kernel has no userfaultfd, or /proc/sys is hidden"),
    }
}

fn privilege(access: &Access, status: &Status) -> Check {
    const NAME: &str = "privilege";
    let can = if status.can_trace { "with" } else { "without" };
    let found = format!("user {}, {can} CAP_SYS_PTRACE", os::effective_user_id());
    if status.can_trace || access.is_granted() {
        return Check::ok(NAME, found);
    }
    Check::warning(NAME, found)
}

fn seccomp(access: &Access, status: &Status) -> Check {
    const NAME: &str = "seccomp";
    let kind = match status.seccomp {
        0 => "no filter",
        1 => "strict mode",
        _ => "a filter",
    };
    match &access.user_mode {
        Ok(()) => Check::ok(NAME, format!("{kind}; userfaultfd is allowed")),
        // Without a filter, only a kernel or a security module refuses this mode.
        Err(error) if status.seccomp == 0 => {
            let state = if access.is_granted() { State::Ok } else { State::Warning };
            Check::new(NAME, state, format!("{kind}; the kernel refuses userfaultfd ({})", error_name(error)))
        }
        Err(error) => {
            let found = format!("{kind} refuses userfaultfd ({})", error_name(error));
            Check::new(NAME, access.failure_state(), found)
                .with_fix("docker run --cap-add SYS_PTRACE --device /dev/userfaultfd …  # in a container")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed<T>(error: i32) -> Result<T, io::Error> {
        Err(io::Error::from_raw_os_error(error))
    }

    fn denied(user_mode: Result<(), io::Error>) -> Access {
        Access { syscall: failed(libc::EPERM), device: failed(libc::EACCES), user_mode }
    }

    #[test]
    fn status_file_is_read() {
        let text = "Name:\tx\nCapEff:\t0000000000080000\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        assert_eq!(Status::parse(text), Status { seccomp: 2, can_trace: true });
        assert_eq!(Status::parse("CapEff:\tnonsense\n"), Status::default());
    }

    #[test]
    fn a_way_that_is_closed_matters_only_if_the_other_is_closed_too() {
        let neither = denied(Ok(()));
        let closed = syscall(&neither, &Status::default(), "");
        assert_eq!(closed.state, State::Missing);
        assert_eq!(device(&neither, "", Group::Missing).state, State::Missing);
        let open_by_syscall = Access { syscall: Ok(()), device: failed(libc::ENOENT), user_mode: Ok(()) };
        assert_eq!(syscall(&open_by_syscall, &Status::default(), "").state, State::Ok);
        assert_eq!(device(&open_by_syscall, "", Group::Missing).state, State::Warning);
    }

    #[test]
    fn a_group_is_let_in_where_there_is_a_device_and_everybody_only_where_there_is_none() {
        let fix = |check: Check| check.fix;
        let denied_device = denied(Ok(()));
        assert_eq!(fix(syscall(&denied_device, &Status::default(), "")), None);
        for (group, words) in [
            (Group::Missing, "groupadd --system uncopy"),
            (Group::WithoutDevice, "udevadm trigger"),
            (Group::WithDevice, "usermod -aG uncopy"),
        ] {
            let command = fix(device(&denied_device, "", group)).expect("a command");
            assert!(command.contains(words) && !command.contains("sysctl"), "{command}");
        }
        // The rule that doctor prints is the installed one.
        let rule = include_str!("../../systemd/60-uncopy.rules").lines().find(|line| !line.starts_with('#'));
        assert!(MAKE_GROUP.contains(rule.expect("a rule")), "{MAKE_GROUP}");

        let old_kernel =
            Access { syscall: failed(libc::EPERM), device: failed(libc::ENOENT), user_mode: Ok(()) };
        assert_eq!(fix(syscall(&old_kernel, &Status::default(), "")).as_deref(), Some(ALLOW_EVERYBODY));
        assert_eq!(fix(syscall(&old_kernel, &Status::default(), "257 userfaultfd\n")), None);
    }

    #[test]
    fn a_filter_is_told_from_a_missing_privilege() {
        let filtered = Status { seccomp: 2, can_trace: false };
        assert_eq!(seccomp(&denied(Ok(())), &filtered).state, State::Ok);
        let check = seccomp(&denied(failed(libc::EPERM)), &filtered);
        assert_eq!(check.state, State::Missing);
        assert!(check.found.contains("a filter refuses"), "{}", check.found);
        assert_eq!(syscall(&denied(failed(libc::EPERM)), &filtered, "").fix, None, "sysctl would not help");
    }

    #[test]
    fn a_missing_device_file_can_be_made() {
        let missing =
            Access { syscall: failed(libc::EPERM), device: failed(libc::ENOENT), user_mode: Ok(()) };
        let check = device(&missing, "130 watchdog\n257 userfaultfd\n", Group::Missing);
        assert_eq!(check.fix.as_deref(), Some("sudo mknod -m 600 /dev/userfaultfd c 10 257"));
        assert_eq!(device(&missing, "", Group::Missing).fix, None);
    }
}
