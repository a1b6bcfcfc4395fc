//! Directory for files that are synced.

use std::path::{Path, PathBuf};

use crate::kit::disk::{self, FileSystem};
use crate::kit::{Failure, Launcher, Result, Side, TemporaryDirectory, While, format_amount};

/// A directory that is in memory on every Linux.
const MEMORY: &str = "/dev/shm";

/// A directory on a device, with enough free space.
#[derive(Debug)]
pub struct StoreDirectory {
    /// Directory in memory, if the files lie there; its owner.
    _owned: Option<TemporaryDirectory>,
    path: PathBuf,
    file_system: FileSystem,
    /// Parent of logs that emulate DAX, each in a directory named after its server's.
    memory: TemporaryDirectory,
}

impl StoreDirectory {
    /// Checks that `directory` is on a device and has `min_free_bytes` free.
    ///
    /// # Errors
    /// [`Failure`] when the directory is in memory, where a sync does nothing, or has too little free space.
    pub fn of(directory: &Path, min_free_bytes: u64) -> Result<Self> {
        let path = directory.canonicalize().doing(format_args!("finding {}", directory.display()))?;
        let shown = path.display();
        let file_system = FileSystem::of(&path)?;
        if file_system.is_in_memory() {
            return Err(Failure::new(format!(
                "{shown} is in memory ({file_system}), where a sync does nothing; choose a directory on a \
                 disk with --dir"
            )));
        }
        let free_bytes = disk::free_bytes(&path)?;
        if free_bytes < min_free_bytes {
            let (free, needed) = (format_amount(free_bytes), format_amount(min_free_bytes));
            return Err(Failure::new(format!(
                "{shown} has {free} free and {needed} are needed; choose another directory with --dir"
            )));
        }
        let memory = TemporaryDirectory::make_in(Path::new(MEMORY))?;
        Ok(Self { _owned: None, path, file_system, memory })
    }

    /// Returns a directory in memory, which emulates persistent memory.
    ///
    /// # Errors
    /// [`Failure`] when the directory cannot be made.
    pub fn in_memory() -> Result<Self> {
        let memory = Path::new(MEMORY);
        let owned = TemporaryDirectory::make_in(memory)?;
        let (path, file_system) = (owned.path().to_owned(), FileSystem::of(memory)?);
        Ok(Self { _owned: Some(owned), path, file_system, memory: TemporaryDirectory::make_in(memory)? })
    }

    /// Returns the launcher for a server under `side` whose directory is `directory`.
    ///
    /// # Errors
    /// [`Failure`] when the directory of a log that emulates DAX cannot be made.
    pub fn launcher(&self, launcher: &Launcher, side: Side, directory: &Path) -> Result<Launcher> {
        let launcher = launcher.with_logged_files(directory);
        let Some(name) = directory.file_name().filter(|_| side.logs_in_memory()) else {
            return Ok(launcher.with_log_in(directory));
        };
        for earlier in self.memory.path().read_dir().doing("listing logs")?.flatten() {
            if !self.path.join(earlier.file_name()).exists() {
                let is_link = earlier.path().is_symlink();
                let remove = if is_link { std::fs::remove_file } else { std::fs::remove_dir_all };
                remove(earlier.path()).doing("removing a log")?;
            }
        }
        let logs = self.memory.join(name);
        match launcher.service_directory().filter(|_| side.receives_into_log()) {
            Some(service) => std::os::unix::fs::symlink(service, &logs),
            None => std::fs::create_dir(&logs),
        }
        .doing("creating a log's directory")?;
        Ok(launcher.with_log_in(&logs))
    }

    /// Returns the absolute path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name of the file system.
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
        let refused = |directory: &str, min_free_bytes| {
            StoreDirectory::of(Path::new(directory), min_free_bytes).expect_err("of no use").to_string()
        };
        assert!(refused("/nonexistent", 0).contains("/nonexistent"));
        assert!(refused(env!("CARGO_MANIFEST_DIR"), u64::MAX).contains("--dir"));
        if FileSystem::of(Path::new("/dev/shm")).is_ok_and(|file_system| file_system.is_in_memory()) {
            let failure = refused("/dev/shm", 0);
            assert!(failure.contains("is in memory") && failure.contains("--dir"), "{failure}");
        }
    }
}
