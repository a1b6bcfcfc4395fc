//! Scratch directories, loopback ports and waiting for a condition with a deadline.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A directory of one test, removed with it unless `UNCOPY_TEST_KEEP=1`.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A fresh directory whose name begins with `name`.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("uncopy-test-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("scratch directory");
        Self(path)
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A path inside the directory.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A new directory inside the directory.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        std::fs::create_dir_all(&path).expect("directory");
        path
    }

    /// Writes a file inside the directory.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        std::fs::write(&path, bytes).expect("scratch file");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::env::var_os("UNCOPY_TEST_KEEP").is_none() {
            // A directory that stays behind in /tmp is no failure.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// A loopback port that nothing listens on.
///
/// # Panics
/// When the machine has no loopback.
#[must_use]
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    listener.local_addr().expect("bound").port()
}

/// Asks `ready` again and again until it gives something, at most for `limit`.
///
/// # Panics
/// When the time is over; the message names `what`.
pub fn wait_until<T>(what: &str, limit: Duration, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(result) = ready() {
            return result;
        }
        assert!(start.elapsed() < limit, "waited {limit:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Connects to a loopback port as soon as something listens there.
///
/// # Panics
/// When nothing listens within ten seconds.
#[must_use]
pub fn connect(port: u16) -> TcpStream {
    let stream = wait_until(&format!("a listener on port {port}"), Duration::from_secs(10), || {
        TcpStream::connect(("127.0.0.1", port)).ok()
    });
    let limit = Some(Duration::from_secs(30));
    stream.set_read_timeout(limit).expect("timeout");
    stream.set_write_timeout(limit).expect("timeout");
    stream.set_nodelay(true).expect("nodelay");
    stream
}
