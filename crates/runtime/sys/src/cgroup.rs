//! The memory limit of the process's control group (version 1 or 2) and its ancestors.
//!
//! No limit is found if the groups are not mounted below /sys/fs/cgroup, or cannot be read.

use crate::file;
use std::ffi::CString;

/// Version 1 reports limits from here on for groups without a limit.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// Returns the lowest limit, bytes; `None` if there is none.
#[must_use]
pub fn memory_limit() -> Option<u64> {
    if cfg!(loom) {
        return None;
    }
    let mut text = [0u8; 4096];
    let len_bytes = file::read_start(c"/proc/self/cgroup", &mut text)?;
    let groups = core::str::from_utf8(&text[..len_bytes]).ok()?;
    groups.lines().filter_map(files).filter_map(|(file, path)| lowest(file, path)).min()
}

/// Parses a line of /proc/self/cgroup: returns the directory and name of the memory controller's
/// limit files, and the path of the group. `N:memory:PATH` is version 1, `0::PATH` version 2.
fn files(line: &str) -> Option<([&'static str; 2], &str)> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    if controllers.split(',').any(|name| name == "memory") {
        Some((["/sys/fs/cgroup/memory", "memory.limit_in_bytes"], path))
    } else if number == "0" && controllers.is_empty() {
        Some((["/sys/fs/cgroup", "memory.max"], path))
    } else {
        None
    }
}

/// Returns the lowest limit of a group and its ancestors. In a container the path may be the one
/// outside, of which only the root exists.
fn lowest([root, name]: [&str; 2], path: &str) -> Option<u64> {
    let mut path = path.trim_end_matches('/');
    let mut lowest: Option<u64> = None;
    loop {
        let limit = CString::new([root, path, "/", name].concat()).ok().and_then(|file| {
            let mut text = [0u8; 32];
            let len_bytes = file::read_start(&file, &mut text)?;
            limit(&text[..len_bytes])
        });
        lowest = lowest.into_iter().chain(limit).min();
        let Some(end) = path.rfind('/') else { return lowest };
        path = &path[..end];
    }
}

/// Parses the contents of a limit file: a number, or `max`.
fn limit(text: &[u8]) -> Option<u64> {
    let bytes: u64 = core::str::from_utf8(text).ok()?.trim().parse().ok()?;
    (bytes < UNLIMITED_BYTES).then_some(bytes)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn both_versions_name_their_files() {
        let version_1 = ["/sys/fs/cgroup/memory", "memory.limit_in_bytes"];
        assert_eq!(files("4:memory:/a/b"), Some((version_1, "/a/b")));
        assert_eq!(files("7:cpu,memory:/"), Some((version_1, "/")));
        assert_eq!(files("0::/user.slice/a:b"), Some((["/sys/fs/cgroup", "memory.max"], "/user.slice/a:b")));
        for other in ["9:name=systemd:/", "5:devices:/", "", "0:", "x"] {
            assert_eq!(files(other), None, "{other}");
        }
    }

    #[test]
    fn no_limit_is_none() {
        assert_eq!(limit(b"268435456\n"), Some(256 << 20));
        for none in ["max\n", "9223372036854771712\n", "", "-1\n"] {
            assert_eq!(limit(none.as_bytes()), None, "{none}");
        }
    }

    #[test]
    fn a_group_is_bound_by_those_above_it() {
        let root = std::env::temp_dir().join(format!("uncopy-cgroup-test-{}", std::process::id()));
        let deep = root.join("a/b");
        std::fs::create_dir_all(&deep).expect("temporary directory");
        std::fs::write(root.join("a/memory.max"), "1000\n").expect("written");
        std::fs::write(deep.join("memory.max"), "max\n").expect("written");
        let at = |path| lowest([root.to_str().expect("UTF-8"), "memory.max"], path);
        assert_eq!(at("/a/b"), Some(1000));
        assert_eq!(at("/a/b/gone"), Some(1000));
        assert_eq!(at("/"), None);
        std::fs::write(root.join("memory.max"), "500").expect("written");
        assert_eq!(at("/a/b"), Some(500));
        assert_eq!(at("/elsewhere"), Some(500), "a path of outside the container");
        std::fs::remove_dir_all(&root).expect("cleaned up");
    }
}
