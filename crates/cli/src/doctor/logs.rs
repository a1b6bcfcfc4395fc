//! Checks what `run --log DIR` needs, and whether logs there hold bytes that are not in their
//! files.

use super::Check;
use crate::environment::Environment;
use crate::output::{Quoted, Reason};
use crate::settings::is_private_or_creatable;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uncopy_store::log_files;
use uncopy_store::logs;
use uncopy_store::mapped::file::{Backing, backing_in, is_mapped};
use uncopy_store::mapped::recover;

const LEASES: &str = "/proc/sys/fs/leases-enable";

/// Checks the log directory that the command line or the environment names, if any.
pub fn check(given: Option<&OsStr>, environment: &Environment) -> Option<Check> {
    let directory = given.or_else(|| environment.get(b"UNCOPY_LOG").map(OsStr::from_bytes))?;
    let has_leases = fs::read_to_string(LEASES).map_or(true, |text| text.trim() != "0");
    Some(check_directory(Path::new(directory), has_leases))
}

fn check_directory(directory: &Path, has_leases: bool) -> Check {
    const NAME: &str = "log";
    let shown = Quoted(directory.as_os_str());
    if !is_private_or_creatable(directory) {
        let found = format!("{shown} is not your own directory with mode 0700: run --log will use no log");
        return Check::warning(NAME, found).with_fix(format!("chmod 700 {shown}"));
    }
    if !has_leases {
        let found = "file leases are disabled (fs.leases-enable is 0): run --log will use no log";
        return Check::warning(NAME, found).with_fix("sysctl fs.leases-enable=1");
    }
    // A directory that does not exist yet will be on the file system of its parent.
    let existing = if directory.is_dir() { Some(directory) } else { directory.parent() };
    let backing = existing.and_then(|existing| backing_in(existing).ok());
    match existing.map(log_files::supports_logs) {
        Some(Ok(true)) => {}
        Some(Ok(false)) if backing == Some(Backing::Emulated) => {}
        Some(Err(errno)) => {
            return Check::warning(NAME, format!("{shown}: {}", Reason(&errno.into())));
        }
        Some(Ok(false)) | None => {
            let found = format!(
                "{shown} is on a file system that cannot hold a log: use a directory on ext4, XFS, btrfs or f2fs"
            );
            return Check::warning(NAME, found);
        }
    }
    let logs = logs::paths(directory).unwrap_or_default();
    match (logs.iter().filter(|log| needs_recovery(log)).count(), backing) {
        (0, Some(Backing::Emulated)) => Check::warning(
            NAME,
            format!(
                "{shown} is on tmpfs, whose logs do not survive power loss; --log-emulate-dax only emulates that"
            ),
        ),
        (0, Some(Backing::Persistent)) => {
            let found =
                format!("{shown}, {} logs; persistent memory, for --log-mode only as well", logs.len());
            Check::ok(NAME, found)
        }
        (0, _) => Check::ok(NAME, format!("{shown}, {} logs", logs.len())),
        (count, _) => Check::warning(
            NAME,
            format!("{shown}: {count} of {} logs have records that may not be in their files", logs.len()),
        )
        .with_fix(format!("uncopy log recover {shown}")),
    }
}

/// Whether a log may have records that are not in their files: it is neither in use nor empty.
fn needs_recovery(log: &Path) -> bool {
    if is_mapped(log) {
        return !recover::inspect(log)
            .is_ok_and(|contents| contents.is_in_use || contents.checkpoint.process == 0);
    }
    !log_files::inspect(log).is_ok_and(|contents| contents.is_in_use || contents.checkpoint.process == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_log_that_nobody_can_read_is_told_of() {
        let directory = std::env::temp_dir().join(format!("uncopy-doctor-log-{}", std::process::id()));
        assert_eq!(check_directory(&directory, false).state, State::Warning, "no leases");
        fs::create_dir(&directory).expect("a directory");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).expect("its owner");
        let can_hold_logs = log_files::supports_logs(&directory).expect("a directory");
        let emulates = backing_in(&directory) == Ok(Backing::Emulated);
        let empty = check_directory(&directory, true);
        fs::write(directory.join("0123456789abcdef.log"), "no log").expect("written");
        fs::write(directory.join("0123456789abcdef.mapped"), "no log").expect("written");
        let damaged = check_directory(&directory, true);
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("its owner");
        let open = check_directory(&directory, true);
        fs::remove_dir_all(&directory).expect("removed");
        assert_eq!(empty.state == State::Ok, can_hold_logs, "{empty:?}");
        assert!(!can_hold_logs && !emulates || damaged.found.contains("2 of 2 logs"), "{damaged:?}");
        assert!(open.found.contains("mode 0700") && open.fix.is_some(), "{open:?}");
    }
}
