//! Where the files are written that are synced.

use std::path::{Path, PathBuf};

use crate::kit::disk::{self, FileSystem};
use crate::kit::{Failure, Result, While, amount};

/// A directory of a file system on a device, with room.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    file_system: FileSystem,
}

impl Place {
    /// The place `directory`, where `room_bytes` are needed.
    ///
    /// # Errors
    /// [`Failure`] when it is in memory only, where there is nothing to sync, or has too little room.
    pub fn of(directory: &Path, room_bytes: u64) -> Result<Self> {
        let path = directory.canonicalize().doing(format_args!("finding {}", directory.display()))?;
        let shown = path.display();
        let file_system = FileSystem::of(&path)?;
        if file_system.is_memory() {
            return Err(Failure::new(format!(
                "{shown} is in memory only ({file_system}), where a sync does nothing; name a directory on a disk with --dir"
            )));
        }
        let free_bytes = disk::free_bytes(&path)?;
        if free_bytes < room_bytes {
            let (free, needed) = (amount(free_bytes), amount(room_bytes));
            return Err(Failure::new(format!(
                "{shown} has {free} free and {needed} are needed; name another directory with --dir"
            )));
        }
        Ok(Self { path, file_system })
    }

    /// The directory, an absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What file system it is.
    #[must_use]
    pub fn file_system(&self) -> String {
        self.file_system.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_memory_or_without_room_is_refused() {
        let refused = |directory: &str, room_bytes| {
            Place::of(Path::new(directory), room_bytes).expect_err("of no use").to_string()
        };
        assert!(refused("/nonexistent", 0).contains("/nonexistent"));
        assert!(refused(env!("CARGO_MANIFEST_DIR"), u64::MAX).contains("--dir"));
        if FileSystem::of(Path::new("/dev/shm")).is_ok_and(|file_system| file_system.is_memory()) {
            let failure = refused("/dev/shm", 0);
            assert!(failure.contains("in memory only") && failure.contains("--dir"), "{failure}");
        }
    }
}
