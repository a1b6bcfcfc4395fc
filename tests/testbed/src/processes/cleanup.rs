//! Cleanup of everything that must not outlive this program: processes and temporary directories.
//!
//! Both are registered while they exist, so that a signal can end them, and dropped by their
//! owners otherwise. Invariant: a registered pid has not been waited for, so it cannot belong to
//! another process.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open};

use crate::failure::{Failure, Result, While};
use crate::processes::descendants::{self, Held};
use crate::processes::signals::Requests;
use crate::processes::wait;

/// Time limit for processes to end by themselves when a signal ends this program.
const GRACE: Duration = Duration::from_secs(2);

/// Time limit for descendants to end after the registered processes.
const DESCENDANT_GRACE: Duration = Duration::from_millis(200);

/// Processes and directories to clean up when this program ends.
#[derive(Debug)]
pub struct Registry {
    pids: Vec<Pid>,
    directories: Vec<PathBuf>,
    /// Kernel settings that were changed, with their old values.
    settings: Vec<(PathBuf, String)>,
}

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { pids: Vec::new(), directories: Vec::new(), settings: Vec::new() });

/// Returns the registry, locked. Start and wait for processes while holding the lock.
pub fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// Adds a process that was just started.
    pub fn add(&mut self, pid: Pid) {
        self.pids.push(pid);
    }

    /// Removes a process that was just waited for.
    pub fn remove(&mut self, pid: Pid) {
        self.pids.retain(|known| *known != pid);
    }

    /// Records that a kernel setting is about to change, and its old value.
    pub fn change(&mut self, setting: &Path, before: String) {
        self.settings.push((setting.to_owned(), before));
    }

    /// Restores a setting, as far as that is permitted.
    pub fn restore(&mut self, setting: &Path) {
        for (_, before) in self.settings.extract_if(.., |(path, _)| path == setting) {
            let _ = std::fs::write(setting, before);
        }
    }

    /// Ends every process, removes every directory, and restores every setting.
    fn end_all(&mut self) {
        // Children of a server may outlive the server.
        descendants::adopt();
        for pid in &self.pids {
            let _ = kill_process(*pid, Signal::TERM);
        }
        let deadline = Instant::now() + GRACE;
        for pid in &self.pids {
            let left = deadline.saturating_duration_since(Instant::now());
            let ended = pidfd_open(*pid, PidfdFlags::empty())
                .is_ok_and(|pidfd| wait::until_readable(&pidfd, Some(left)).unwrap_or(false));
            if !ended {
                let _ = kill_process(*pid, Signal::KILL);
            }
        }
        Held::below(getpid()).end(DESCENDANT_GRACE);
        descendants::end_all(GRACE);
        for directory in &self.directories {
            let _ = std::fs::remove_dir_all(directory);
        }
        for (setting, before) in &self.settings {
            let _ = std::fs::write(setting, before);
        }
    }
}

/// Makes SIGINT, SIGTERM and SIGHUP end everything in the registry and then this program, with
/// exit status 128 + signal.
///
/// # Errors
/// [`Failure`] when the handlers or the thread cannot be set up.
pub fn end_all_on_signals() -> Result<()> {
    let requests = Requests::install().doing("installing signal handlers")?;
    let watch = move || {
        let Ok(Some(signal)) = requests.wait(None) else { return };
        // The lock is kept until the process is gone, so that nothing more is started or reaped.
        let mut registry = registry();
        registry.end_all();
        // SAFETY: _exit takes any status and does not return; everything that had to be undone
        // has been undone.
        unsafe { libc::_exit(128 + signal) }
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(watch)
        .map(drop)
        .doing("starting the signal thread")
}

/// A directory of this program's own that is removed with everything in it.
#[derive(Debug)]
pub struct TemporaryDirectory {
    path: PathBuf,
}

impl TemporaryDirectory {
    /// Makes a directory, readable by this user only, under `$TMPDIR` or `/tmp`.
    ///
    /// # Errors
    /// [`Failure`] when the directory cannot be made.
    pub fn make() -> Result<Self> {
        Self::make_in(&std::env::temp_dir())
    }

    /// Makes a directory in `parent`.
    ///
    /// # Errors
    /// [`Failure`] when the directory cannot be made.
    pub fn make_in(parent: &Path) -> Result<Self> {
        let template = parent.join("uncopy-bench-XXXXXX");
        let what = || format!("making a directory {}", template.display());
        let template_bytes = CString::new(template.as_os_str().as_bytes())
            .map_err(|_| Failure::new("TMPDIR holds a zero byte"))?;
        let mut registry = registry();
        let raw = template_bytes.into_raw();
        // SAFETY: `raw` is a writable, NUL-terminated string; mkdtemp(3) keeps its length.
        let made = unsafe { !libc::mkdtemp(raw).is_null() };
        let error = std::io::Error::last_os_error();
        // SAFETY: raw came from into_raw and its length is unchanged.
        let filled = unsafe { CString::from_raw(raw) };
        if !made {
            return Err(Failure::while_doing(what(), &error));
        }
        let path = PathBuf::from(std::ffi::OsString::from_vec(filled.into_bytes()));
        registry.directories.push(path.clone());
        Ok(Self { path })
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a path inside the directory.
    #[must_use]
    pub fn join(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(name.as_ref())
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        let mut registry = registry();
        let _ = std::fs::remove_dir_all(&self.path);
        registry.directories.retain(|known| *known != self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn temporary_directory_is_private_and_removed_with_contents() {
        let directory = TemporaryDirectory::make().expect("a writable TMPDIR");
        let path = directory.path().to_path_buf();
        assert_eq!(std::fs::metadata(&path).expect("it exists").mode() & 0o777, 0o700);
        std::fs::create_dir(directory.join("deeper")).expect("writable");
        std::fs::write(directory.join("deeper/file"), b"x").expect("writable");
        drop(directory);
        assert!(!path.exists());
        assert!(!registry().directories.contains(&path));
    }
}
