//! The directory that programs write their recordings to, and who clears up after whom.
//!
//! It lies in shared memory, mode 0700, named after this process; what a command left behind that was killed is cleared up
//! by the next one of the same user.

use crate::live;
use crate::os;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, lchown};
use std::path::{Path, PathBuf};

const PREFIX: &str = "uncopy-profile-";

/// The directory; removed with everything in it when dropped.
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Makes one, owned by `user`.
    ///
    /// # Errors
    /// What the file system says.
    pub fn make(user: u32) -> io::Result<Self> {
        Self::make_in(live::shared_memory(), user)
    }

    fn make_in(parent: &Path, user: u32) -> io::Result<Self> {
        clear_up(parent);
        let name = format!("{PREFIX}{}-{}", std::process::id(), uncopy_sys::clock::now_ns());
        let path = parent.join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        let made = Self { path };
        if user != os::effective_user_id() {
            lchown(&made.path, Some(user), None)?;
        }
        Ok(made)
    }

    /// Its path, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Whatever is left of it takes room in memory, and the next command clears it up.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes what commands of this user left behind that are no more.
fn clear_up(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok());
        let is_ours = |entry: &fs::DirEntry| {
            entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == os::effective_user_id())
        };
        if pid.is_some_and(|pid| !os::child::exists(pid)) && is_ours(&entry) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_private_goes_away_and_takes_what_dead_commands_left() {
        let parent = std::env::temp_dir().join(format!("uncopy-directory-test-{}", std::process::id()));
        fs::create_dir_all(&parent).expect("writable");
        // Above the largest pid of any kernel.
        let left = parent.join(format!("{PREFIX}4194999-1"));
        let foreign = parent.join("uncopy-profile-x");
        fs::create_dir(&left).expect("made");
        fs::create_dir(&foreign).expect("made");
        let directory = Directory::make_in(&parent, os::effective_user_id()).expect("made");
        let path = directory.path().to_path_buf();
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, 0o700);
        assert!(!left.exists() && foreign.exists());
        fs::write(path.join("x.rec"), b"x").expect("written");
        drop(directory);
        assert!(!path.exists());
        fs::remove_dir_all(&parent).expect("removed");
    }
}
