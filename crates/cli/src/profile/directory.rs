//! Directory that programs write their recordings to.
//!
//! The directory lies in shared memory, has mode 0700 and is named after this process. A directory
//! that a killed command left behind is removed by the next command of the same user.

use crate::live;
use crate::os;
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::file;
use uncopy_sys::private_directory::PrivateDirectory;

const PREFIX: &str = "uncopy-profile-";

/// Directory for recordings, removed with everything in it when dropped.
pub struct Directory {
    path: PathBuf,
    opened: PrivateDirectory,
}

impl Directory {
    /// Creates a directory that belongs to `user`.
    pub fn make(user: u32) -> io::Result<Self> {
        Self::make_in(live::shared_memory(), user)
    }

    fn make_in(parent: &Path, user: u32) -> io::Result<Self> {
        remove_stale(parent);
        let name = format!("{PREFIX}{}-{}", std::process::id(), uncopy_sys::clock::now_ns());
        let path = parent.join(name);
        let opened = PrivateDirectory::make(&os::c_path(&path)?)?;
        let mut directory = Self { path, opened };
        if user != os::effective_user_id() {
            directory.opened.set_owner(user)?;
        }
        Ok(directory)
    }

    /// Returns the absolute path, for the programs that write to the directory. This command never
    /// uses the path, because the directory's owner may have put something else there.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the open directory.
    pub const fn opened(&self) -> &PrivateDirectory {
        &self.opened
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Remaining files take room in memory until the next command removes them.
        if let Ok(path) = os::c_path(&self.path) {
            remove(&self.opened, &path);
        }
    }
}

/// Removes the files of a directory, and the directory. What has the directory's name by now is
/// removed only if it is an empty directory.
fn remove(directory: &PrivateDirectory, path: &CStr) {
    for name in os::names_in(directory).unwrap_or_default() {
        directory.remove(&name);
    }
    file::unlink_at(ProgramFd::CURRENT_DIRECTORY, path, libc::AT_REMOVEDIR);
}

/// Removes directories that ended commands of this user left behind.
fn remove_stale(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok());
        if pid.is_some_and(|pid| !os::child::process_exists(pid))
            && let Ok(path) = CString::new(entry.path().as_os_str().as_bytes())
            && let Ok(directory) = PrivateDirectory::open(&path, os::effective_user_id())
        {
            remove(&directory, &path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, DirBuilder};
    use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, symlink};

    #[test]
    fn a_directory_is_private_goes_away_and_takes_what_dead_commands_left() {
        let parent = std::env::temp_dir().join(format!("uncopy-directory-test-{}", std::process::id()));
        fs::create_dir_all(&parent).expect("writable");
        // Above the largest pid of any kernel.
        let stale = parent.join(format!("{PREFIX}4194999-1"));
        let foreign = parent.join("uncopy-profile-x");
        DirBuilder::new().mode(0o700).create(&stale).expect("made");
        fs::write(stale.join("1.rec"), b"x").expect("written");
        // Files behind a symbolic link must survive.
        let precious = parent.join("precious");
        DirBuilder::new().mode(0o700).create(&precious).expect("made");
        fs::write(precious.join("1.rec"), b"x").expect("written");
        symlink(&precious, parent.join(format!("{PREFIX}4194999-2"))).expect("planted");
        fs::create_dir(&foreign).expect("made");
        let directory = Directory::make_in(&parent, os::effective_user_id()).expect("made");
        let path = directory.path().to_path_buf();
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, 0o700);
        assert!(!stale.exists() && foreign.exists());
        fs::write(path.join("x.rec"), b"x").expect("written");
        drop(directory);
        assert!(!path.exists() && precious.join("1.rec").exists());
        fs::remove_dir_all(&parent).expect("removed");
    }

    #[test]
    fn a_directory_whose_name_was_given_to_another_is_emptied_and_the_other_stays() {
        let parent = std::env::temp_dir().join(format!("uncopy-directory-swap-{}", std::process::id()));
        fs::create_dir_all(&parent).expect("writable");
        let directory = Directory::make_in(&parent, os::effective_user_id()).expect("made");
        let (path, moved) = (directory.path().to_path_buf(), parent.join("aside"));
        fs::write(path.join("x.rec"), b"x").expect("written");
        fs::rename(&path, &moved).expect("moved");
        fs::create_dir(&path).expect("made");
        fs::write(path.join("precious"), b"x").expect("written");
        drop(directory);
        assert!(path.join("precious").exists() && !moved.join("x.rec").exists());
        fs::remove_dir_all(&parent).expect("removed");
    }
}
