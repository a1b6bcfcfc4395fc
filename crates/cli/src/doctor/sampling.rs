//! Checks what `uncopy profile --pid` and `-a` may sample of processes that are not under uncopy.

use super::{Check, State};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use uncopy_attach::Permission;

/// Symbols of the kernel, with addresses of zero if they are hidden.
const SYMBOLS: &str = "/proc/kallsyms";

/// Tries to sample this process.
pub fn check() -> Check {
    describe(Permission::read(), &uncopy_attach::try_sampling(), has_kernel_symbols())
}

fn has_kernel_symbols() -> bool {
    let mut line = String::new();
    let read = File::open(SYMBOLS).and_then(|file| BufReader::new(file).read_line(&mut line));
    read.is_ok()
        && line.split_whitespace().next().is_some_and(|address| address.bytes().any(|digit| digit != b'0'))
}

/// Describes what a user may sample. It never keeps `uncopy run` from being active.
fn describe(permission: Permission, tried: &io::Result<()>, has_kernel_symbols: bool) -> Check {
    const NAME: &str = "sampling";
    let level = permission.paranoid.map_or_else(|| "missing".to_owned(), |level| level.to_string());
    if tried.is_err() {
        let check = Check::warning(
            NAME,
            format!(
                "refused (kernel.perf_event_paranoid is {level}): uncopy profile cannot sample plain processes"
            ),
        );
        return match permission.paranoid {
            // Neither a setting nor a capability is missing, but a filter of system calls refuses.
            None => check,
            Some(_) if permission.may_sample() => {
                check.with_fix("docker run --cap-add PERFMON …  # in a container")
            }
            // For one command; the setting would allow it to every user.
            Some(_) => check.with_fix("sudo uncopy profile --pid PID"),
        };
    }
    let whose = if permission.may_sample_machine() { "every process" } else { "own processes" };
    let (state, kernel) = match (permission.samples_kernel(), has_kernel_symbols) {
        (false, _) => (State::Warning, ", without time in the kernel"),
        (true, false) => (State::Ok, "; the kernel's copies by system call only (kernel.kptr_restrict)"),
        (true, true) => (State::Ok, ", also in the kernel"),
    };
    let check = Check::new(NAME, state, format!("{whose}{kernel} (kernel.perf_event_paranoid is {level})"));
    if state == State::Ok { check } else { check.with_fix("sudo sysctl kernel.perf_event_paranoid=1") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_cure_is_named() {
        let permission = |level| Permission { paranoid: Some(level), is_privileged: false, can_trace: false };
        let refused = Err(io::Error::from_raw_os_error(libc::EACCES));
        let check = describe(permission(3), &refused, false);
        assert_eq!(check.fix.as_deref(), Some("sudo uncopy profile --pid PID"));
        let check = describe(permission(1), &refused, false);
        assert!(check.fix.expect("a cure").contains("--cap-add PERFMON"));
        let check = describe(permission(2), &Ok(()), false);
        assert_eq!(check.state, State::Warning);
        assert_eq!(check.fix.as_deref(), Some("sudo sysctl kernel.perf_event_paranoid=1"));
        let check = describe(permission(1), &Ok(()), false);
        assert!(check.state == State::Ok && check.found.contains("kptr_restrict"), "{}", check.found);
        let check = describe(permission(-1), &Ok(()), true);
        assert!(check.found.starts_with("every process, also in the kernel"), "{}", check.found);
    }
}
