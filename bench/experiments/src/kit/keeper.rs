//! The keeper of a log: the process that `uncopy run --log DIR` starts beside the program, and that writes logged data
//! back to the files. The keeper is no descendant of the program, and may outlive it by some seconds.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

/// Name of the log's directory within the server's directory.
pub const LOG_DIRECTORY: &str = "uncopy-log";

/// Returns the log keeper of a server whose directory is `directory`, if there is one.
#[must_use]
pub fn find_pid(directory: &Path) -> Option<Pid> {
    // Independent of how the path was written: only the directory's own name is compared.
    let log = PathBuf::from(directory.file_name()?).join(LOG_DIRECTORY);
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let words = std::fs::read(process.path().join("cmdline")).ok()?;
        if is_keeper_command(&words, &log) { Pid::from_raw(pid) } else { None }
    })
}

/// True if `command_line`, NUL-terminated words, is `uncopy log keep DIR` for a DIR that ends with `log`.
fn is_keeper_command(command_line: &[u8], log: &Path) -> bool {
    let mut words = command_line.split(|byte| *byte == 0);
    let names_log = |word: &[u8]| Path::new(OsStr::from_bytes(word)).ends_with(log);
    words.any(|word| word == b"log") && words.next() == Some(b"keep") && words.any(names_log)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::processes::cleanup::TemporaryDirectory;
    use crate::kit::processes::process::Process;
    use std::process::Command;

    #[test]
    fn a_keeper_is_known_by_its_command_line() {
        let log = Path::new("uncopy-bench-x/uncopy-log");
        for (line, expected) in [
            ("/usr/bin/uncopy\0log\0keep\0/tmp/uncopy-bench-x/uncopy-log\0", true),
            ("uncopy\0log\0keep\0--quiet\0/tmp/uncopy-bench-x/uncopy-log\0", true),
            ("uncopy\0log\0keep\0/tmp/uncopy-bench-y/uncopy-log\0", false),
            ("uncopy\0log\0keep\0/tmp/uncopy-bench-x/uncopy-log/more\0", false),
            ("uncopy\0log\0show\0/tmp/uncopy-bench-x/uncopy-log\0", false),
            ("uncopy\0run\0--log\0/tmp/uncopy-bench-x/uncopy-log\0--\0redis-server\0", false),
            ("", false),
        ] {
            assert_eq!(is_keeper_command(line.as_bytes(), log), expected, "{line:?}");
        }
    }

    #[test]
    fn a_keeper_that_runs_is_found() {
        let directory = TemporaryDirectory::make().expect("a writable TMPDIR");
        assert_eq!(find_pid(directory.path()), None);
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo; read line", "log", "keep"]).arg(directory.join(LOG_DIRECTORY));
        command.stdin(std::process::Stdio::piped());
        let process = Process::start_with_input(command, "sh").expect("it starts");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        // Until exec(2), the command line is still that of this test.
        while find_pid(directory.path()).is_none() {
            assert!(std::time::Instant::now() < deadline, "it was never found");
            std::thread::yield_now();
        }
        assert_eq!(find_pid(directory.path()), Some(process.pid()));
    }
}
