//! Scratch directories, loopback ports and waiting for a condition with a deadline.

use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use uncopy_testbed::network;

/// Time limit of every wait. A wait that succeeds takes some seconds; but a machine under load, or its disk, may
/// stand still for minutes, which is no failure of what is tested.
pub const HANG_LIMIT: Duration = Duration::from_secs(300);

/// A directory of one test, removed at its end unless `UNCOPY_TEST_KEEP=1`.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a fresh directory whose name begins with `name`.
    ///
    /// # Panics
    /// When the directory cannot be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self::make_in(&std::env::temp_dir(), name)
    }

    /// Makes a fresh directory in memory.
    ///
    /// # Panics
    /// When the directory cannot be made.
    #[must_use]
    pub fn in_memory(name: &str) -> Self {
        Self::make_in(Path::new("/dev/shm"), name)
    }

    /// Makes a fresh directory beside the build's files, which normally lie on a disk.
    ///
    /// # Panics
    /// When the directory cannot be made.
    #[must_use]
    pub fn on_disk(name: &str) -> Self {
        let built = crate::artifacts::bin_dir().join("../tmp");
        std::fs::create_dir_all(&built).expect("directory");
        Self::make_in(&built.canonicalize().expect("directory"), name)
    }

    fn make_in(parent: &Path, name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("uncopy-test-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("scratch directory");
        Self(path)
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A path inside the directory.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a directory inside the directory.
    ///
    /// # Panics
    /// When the directory cannot be made.
    #[must_use]
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        std::fs::create_dir_all(&path).expect("directory");
        path
    }

    /// Replaces a file inside the directory atomically: a program that still reads the old file
    /// finds all of it.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let (path, new) = (self.join(name), self.join(&format!("{name}.new")));
        std::fs::write(&new, bytes).expect("scratch file");
        std::fs::rename(&new, &path).expect("scratch file");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::env::var_os("UNCOPY_TEST_KEEP").is_none() {
            // A directory that stays behind in /tmp is not a failure.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// Returns a loopback port that nothing listens on and that the kernel does not choose for connections.
///
/// # Panics
/// When no port is free.
#[must_use]
pub fn free_port() -> u16 {
    network::free_port(Ipv4Addr::LOCALHOST).unwrap_or_else(|failure| panic!("{failure}"))
}

/// Waits until something listens on a loopback port, without connecting to it.
///
/// # Panics
/// When nothing does within [`HANG_LIMIT`].
pub fn wait_for_listener(port: u16) {
    wait_until(&format!("a listener on port {port}"), || {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("the table of sockets");
        network::has_listener(&table, (Ipv4Addr::LOCALHOST, port).into()).then_some(())
    });
}

/// Polls `ready` until it returns a value.
///
/// # Panics
/// When [`HANG_LIMIT`] is over; the message names `what`.
pub fn wait_until<T>(what: &str, ready: impl FnMut() -> Option<T>) -> T {
    try_wait_until(ready).unwrap_or_else(|| panic!("waited {HANG_LIMIT:?} in vain for {what}"))
}

/// Polls `ready` until it returns a value; `None` if [`HANG_LIMIT`] passes first.
pub fn try_wait_until<T>(ready: impl FnMut() -> Option<T>) -> Option<T> {
    network::wait_until(HANG_LIMIT, ready)
}

/// Connects to a loopback port as soon as something listens there.
///
/// # Panics
/// When nothing listens within [`HANG_LIMIT`].
#[must_use]
pub fn connect(port: u16) -> TcpStream {
    let address = (Ipv4Addr::LOCALHOST, port).into();
    wait_until(&format!("a listener on port {port}"), || network::connect(address, HANG_LIMIT).ok())
}
