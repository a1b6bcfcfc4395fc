//! Removes what ended programs and keepers of logs left behind.
//!
//! What a signal ends cannot remove its own file. Whoever runs or looks at the next one
//! does: only in the user's own directory, only files that are named for a process that is gone.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::{live, os};
use uncopy_core::stats::CONTROL_SUFFIX;
use uncopy_sys::directory::PrivateDirectory;

/// What the name of a keeper's socket begins with; the number of the process that it was started for follows.
pub const KEEPER_PREFIX: &str = "log-";

/// Removes the files of ended processes from `parent/uncopy-USER`. What cannot be removed stays, and all of it does where the
/// directory is not the user's alone.
pub fn sweep(parent: &Path) {
    let Ok(directory) = live::open_own(parent) else { return };
    for c_name in os::names_in(&directory).unwrap_or_default() {
        let Ok(name) = c_name.to_str() else { continue };
        let of_keeper = name.strip_prefix(KEEPER_PREFIX);
        let pid = of_keeper.unwrap_or_else(|| name.strip_suffix(CONTROL_SUFFIX).unwrap_or(name));
        let is_number = !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit());
        // Above all numbers of processes: of none that lives.
        let lives = || pid.parse().is_ok_and(os::child::exists);
        if is_number && !lives() && (of_keeper.is_none() || is_refused(&directory, name)) {
            // Someone else may have been faster.
            directory.remove(&c_name);
        }
    }
}

/// Whether nobody listens at a socket any more: a keeper outlives what it was started for as long as that has children. One that is
/// there says EPROTOTYPE, since its links are no streams: it hears nothing of this, and is not waited for.
fn is_refused(directory: &PrivateDirectory, name: &str) -> bool {
    // There is no connectat(2).
    let path = format!("/proc/self/fd/{}/{name}", directory.fd());
    UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, DirBuilder, Permissions};
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_files_of_ended_processes_are_removed() {
        let parent = std::env::temp_dir().join(format!("uncopy-sweep-test-{}", std::process::id()));
        let directory = live::directory_of(&parent, os::effective_user_id());
        DirBuilder::new().recursive(true).mode(0o700).create(&directory).expect("temporary directory");
        let alive = std::process::id().to_string();
        // Above the largest pid of any kernel.
        let ended = "4194999";
        let pipes = [format!("{alive}{CONTROL_SUFFIX}"), format!("{ended}{CONTROL_SUFFIX}")];
        for name in [&alive, ended, "note", &pipes[0], &pipes[1]] {
            std::fs::write(directory.join(name), "x").expect("written");
        }
        let keepers = [format!("log-{alive}"), "log-4194998".to_owned(), "log-4194999".to_owned()];
        // Only the second goes on listening.
        let [_, kept, _] =
            keepers.each_ref().map(|name| UnixListener::bind(directory.join(name)).expect("bound"));
        sweep(&parent);
        let left = |name: &str| directory.join(name).exists();
        assert!(left(&alive) && left("note") && !left(ended));
        assert!(left(&pipes[0]) && !left(&pipes[1]));
        assert!(left(&keepers[0]) && left(&keepers[1]) && !left(&keepers[2]));
        drop(kept);
        std::fs::remove_dir_all(&parent).expect("cleaned up");
    }

    #[test]
    fn nothing_is_removed_through_a_link_or_where_others_may_write() {
        let parent = std::env::temp_dir().join(format!("uncopy-sweep-link-{}", std::process::id()));
        let (directory, real) = (live::directory_of(&parent, os::effective_user_id()), parent.join("real"));
        let file = real.join("4194999");
        fs::create_dir_all(&real).expect("temporary directory");
        fs::set_permissions(&real, Permissions::from_mode(0o700)).expect("ours");
        fs::write(&file, "x").expect("written");
        symlink("real", &directory).expect("planted");
        sweep(&parent);
        assert!(file.exists(), "through a link");
        fs::remove_file(&directory).expect("removed");
        fs::rename(&real, &directory).expect("in its place");
        let file = directory.join("4194999");
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).expect("ours");
        sweep(&parent);
        assert!(file.exists(), "in a directory that others can enter");
        fs::set_permissions(&directory, Permissions::from_mode(0o700)).expect("ours");
        sweep(&parent);
        assert!(!file.exists());
        fs::remove_dir_all(&parent).expect("cleaned up");
    }
}
