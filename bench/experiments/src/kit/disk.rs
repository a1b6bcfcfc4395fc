//! The file system of a directory, and its free space.

use std::fmt;
use std::path::Path;

use crate::kit::failure::{Failure, Result, While};

/// Returns the bytes available to this user in `directory`.
///
/// # Errors
/// [`Failure`] when statvfs(3) fails.
pub fn free_bytes(directory: &Path) -> Result<u64> {
    let stats = rustix::fs::statvfs(directory)
        .doing(format_args!("checking the free space of {}", directory.display()))?;
    Ok(stats.f_bavail.saturating_mul(stats.f_frsize))
}

/// A mounted file system, displayed as `ext4 on /dev/vda`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    kind: String,
    source: String,
}

impl FileSystem {
    /// Returns the file system of `directory`, an absolute path without symbolic links.
    ///
    /// # Errors
    /// [`Failure`] when the mount table cannot be read or has no such mount.
    pub fn of(directory: &Path) -> Result<Self> {
        const MOUNTS: &str = "/proc/self/mountinfo";
        let mounts = std::fs::read_to_string(MOUNTS).doing(format_args!("reading {MOUNTS}"))?;
        let unknown =
            || Failure::new(format!("{MOUNTS} does not list the file system of {}", directory.display()));
        Self::parse(&mounts, directory).ok_or_else(unknown)
    }

    /// Finds the mount that contains `directory` in lines `ID PARENT DEVICE ROOT PLACE OPTIONS … - KIND SOURCE …`
    /// (proc_pid_mountinfo(5)).
    fn parse(mounts: &str, directory: &Path) -> Option<Self> {
        let mounts = mounts.lines().filter_map(|line| {
            let (mount_point, file_system) = line.split_once(" - ")?;
            let (kind, source) = file_system.split_once(' ')?;
            let source = source.split(' ').next()?;
            let mount_point = mount_point.split(' ').nth(4)?.replace("\\040", " ");
            Some((mount_point, Self { kind: kind.to_owned(), source: source.to_owned() }))
        });
        // A later mount on the same path hides the earlier ones; `max_by_key` returns the last of equal elements.
        let around = mounts.filter(|(mount_point, _)| directory.starts_with(mount_point));
        around.max_by_key(|(mount_point, _)| mount_point.len()).map(|(_, file_system)| file_system)
    }

    /// True if the files are in memory only, so that there is nothing to sync.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        ["tmpfs", "ramfs"].contains(&self.kind.as_str())
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.kind, self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_on_what_is_mounted_nearest_above_it_and_last() {
        let mounts = "20 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            21 20 0:5 / /tmp rw - tmpfs tmpfs rw,size=1k\n\
            22 20 0:6 / /tmp rw - ramfs none rw\n\
            23 20 254:1 / /a\\040b rw - xfs /dev/vdb rw\nnonsense\n";
        for (directory, shown, is_memory) in [
            ("/home/x", "ext4 on /dev/vda", false),
            ("/tmp/x", "ramfs on none", true),
            ("/tmpx", "ext4 on /dev/vda", false),
            ("/a b", "xfs on /dev/vdb", false),
        ] {
            let found = FileSystem::parse(mounts, Path::new(directory)).expect("a file system");
            assert_eq!((found.to_string().as_str(), found.is_in_memory()), (shown, is_memory), "{directory}");
        }
        assert_eq!(FileSystem::parse("", Path::new("/")), None);
        assert!(FileSystem::of(Path::new("/proc")).expect("it is mounted").to_string().starts_with("proc "));
        assert!(free_bytes(Path::new("/nonexistent")).is_err());
    }
}
