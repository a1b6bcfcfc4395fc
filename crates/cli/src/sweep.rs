//! Removes files that ended programs and log keepers left behind.
//!
//! A process that a signal ends cannot remove its own file. The next command of the same user does,
//! only in the user's own directory. Stats files and pipes must be of an ended process of the same
//! pid namespace; sockets of keepers may be of any.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::{live, os};
use uncopy_core::stats::{CONTROL_SUFFIX, StatsName};
use uncopy_sys::descriptor::Descriptor as _;
use uncopy_sys::private_directory::PrivateDirectory;

/// Prefix of the name of a keeper's socket; the [`StatsName`] of the process that the keeper was
/// started for follows.
pub const KEEPER_PREFIX: &str = "log-";

/// Removes the files of ended processes from `parent/uncopy-USER`. Files that cannot be removed
/// stay, and so do all if the directory is not private.
pub fn sweep(parent: &Path) {
    let Ok(directory) = live::open_own_directory(parent) else { return };
    let namespace = live::own_namespace();
    for c_name in os::names_in(&directory).unwrap_or_default() {
        let Ok(name) = c_name.to_str() else { continue };
        let keeper_suffix = name.strip_prefix(KEEPER_PREFIX);
        let name_of_stats =
            keeper_suffix.unwrap_or_else(|| name.strip_suffix(CONTROL_SUFFIX).unwrap_or(name));
        let Some(StatsName { pid, namespace: found }) = StatsName::parse(name_of_stats) else { continue };
        // Whether a process of another pid namespace lives is unknown here, but a connection shows
        // whether its keeper does.
        let has_ended = match keeper_suffix {
            Some(_) => !os::child::process_exists(pid) && has_no_listener(&directory, name),
            None => found == namespace && !os::child::process_exists(pid),
        };
        if has_ended {
            // Another command may have been faster.
            directory.remove(&c_name);
        }
    }
}

/// Whether no process listens on a socket: a keeper outlives the process that it was started for as
/// long as that has children. A live keeper does not notice the attempt, which fails with
/// EPROTOTYPE because its socket is not a stream.
fn has_no_listener(directory: &PrivateDirectory, name: &str) -> bool {
    // Linux has no connectat(2).
    let path = format!("/proc/self/fd/{}/{name}", directory.fd().number());
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
        let namespace = live::own_namespace();
        let of = |pid, namespace| StatsName { pid, namespace }.to_string();
        // Above the largest pid of any kernel, here and in another pid namespace.
        let (own, others) = (of(4_194_999, namespace), of(4_194_999, namespace ^ 1));
        let alive = of(std::process::id(), namespace);
        let pipes = [format!("{alive}{CONTROL_SUFFIX}"), format!("{own}{CONTROL_SUFFIX}")];
        for name in [&alive, &own, &others, "note", &pipes[0], &pipes[1]] {
            std::fs::write(directory.join(name), "x").expect("written");
        }
        let keepers =
            [format!("log-{}", std::process::id()), "log-4194998".to_owned(), "log-4194999".to_owned()];
        // Only the second keeper's socket keeps its listener.
        let [_, kept, _] =
            keepers.each_ref().map(|name| UnixListener::bind(directory.join(name)).expect("bound"));
        sweep(&parent);
        let remains = |name: &str| directory.join(name).exists();
        assert!(remains(&alive) && remains("note") && remains(&others) && !remains(&own));
        assert!(remains(&pipes[0]) && !remains(&pipes[1]));
        assert!(remains(&keepers[0]) && remains(&keepers[1]) && !remains(&keepers[2]));
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
