//! Directories on tmpfs for tests, and a lock against forks.
//!
//! A child has copies of this process's descriptors until it calls exec, and with them the locks of logs. Tests that
//! expect a log to be unlocked keep other tests from starting children.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

static FORKS: RwLock<()> = RwLock::new(());

/// Keeps tests from starting children for as long as the guard lives. A thread has one guard at a time.
pub(crate) fn no_forks() -> RwLockReadGuard<'static, ()> {
    FORKS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a child, which has no descriptor of this process any more when this returns.
pub(crate) fn spawn(command: &mut Command) -> Child {
    let _guard = FORKS.write().unwrap_or_else(PoisonError::into_inner);
    command.spawn().expect("started")
}

/// Directory on tmpfs that is removed at the end.
#[derive(Debug)]
pub(crate) struct Directory(pub PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("uncopy-mapped-{}-{number}-{name}", std::process::id());
        let path = Path::new("/dev/shm").join(name);
        fs::create_dir(&path).expect("a directory");
        Self(path)
    }

    pub(crate) fn file(&self, name: &str, flags: i32) -> (PathBuf, File) {
        let path = self.0.join(name);
        let mut options = OpenOptions::new();
        let opened = options.write(true).create(true).truncate(false).custom_flags(flags).open(&path);
        (path, opened.expect("a file"))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
