//! Removes counters that ended programs left behind.
//!
//! A program that a signal ends cannot remove its own file. Whoever runs or looks at the next one
//! does: only in the user's own directory, only files that are named for a process that is gone.

use std::path::Path;

use crate::{live, os};
use uncopy_core::stats::CONTROL_SUFFIX;

/// Removes the files of ended processes from `parent/uncopy-USER`. What cannot be removed stays.
pub fn sweep(parent: &Path) {
    let directory = live::directory_of(parent, os::effective_user_id());
    let Ok(entries) = std::fs::read_dir(&directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_ended = name.to_str().is_some_and(|name| {
            let pid = name.strip_suffix(CONTROL_SUFFIX).unwrap_or(name);
            !pid.is_empty()
                && pid.bytes().all(|byte| byte.is_ascii_digit())
                && !Path::new("/proc").join(pid).exists()
        });
        if is_ended {
            // Someone else may have been faster.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_ended_processes_are_removed() {
        let parent = std::env::temp_dir().join(format!("uncopy-sweep-test-{}", std::process::id()));
        let directory = live::directory_of(&parent, os::effective_user_id());
        std::fs::create_dir_all(&directory).expect("temporary directory");
        let alive = std::process::id().to_string();
        // Above the largest pid of any kernel.
        let ended = "4194999";
        let pipes = [format!("{alive}{CONTROL_SUFFIX}"), format!("{ended}{CONTROL_SUFFIX}")];
        for name in [&alive, ended, "note", &pipes[0], &pipes[1]] {
            std::fs::write(directory.join(name), "x").expect("written");
        }
        sweep(&parent);
        let left = |name: &str| directory.join(name).exists();
        assert!(left(&alive) && left("note") && !left(ended));
        assert!(left(&pipes[0]) && !left(&pipes[1]));
        std::fs::remove_dir_all(&parent).expect("cleaned up");
    }
}
