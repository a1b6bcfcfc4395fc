//! Scratch directories, loopback ports and waiting for a condition with a deadline.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The first port of [`free_port`]: many below have a name.
const FIRST_PORT: u16 = 10_240;
/// How often it looks for one.
const PORT_ATTEMPTS: usize = 100;

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
        Self::below(&std::env::temp_dir(), name)
    }

    /// The same in memory.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn in_memory(name: &str) -> Self {
        Self::below(Path::new("/dev/shm"), name)
    }

    /// The same on a disk, as far as what was built lies on one.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn on_disk(name: &str) -> Self {
        let built = crate::artifacts::bin_dir().join("../tmp");
        std::fs::create_dir_all(&built).expect("directory");
        Self::below(&built.canonicalize().expect("directory"), name)
    }

    fn below(parent: &Path, name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("uncopy-test-{name}-{}-{number}", std::process::id()));
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

/// A loopback port that nothing listens on, and that the kernel gives to no connection. One of those that it gives may be
/// taken before the server has it: by another test's client, or by whoever tries to connect to this very port, for then
/// TCP connects it with itself.
///
/// # Panics
/// When the machine has no loopback, or no such port is free.
#[must_use]
pub fn free_port() -> u16 {
    let range =
        std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").expect("the kernel's ports");
    let first_of_kernel: u16 =
        range.split_whitespace().next().and_then(|port| port.parse().ok()).expect("a port");
    assert!(
        first_of_kernel > FIRST_PORT,
        "the kernel gives all ports from {first_of_kernel} on to connections"
    );
    let ports = FIRST_PORT..first_of_kernel;
    // Whoever asks next, in this process or another, should begin elsewhere: the hasher's keys are random.
    let start = RandomState::new().build_hasher().finish() % ports.len() as u64;
    let start = usize::try_from(start).expect("below a length");
    let mut attempts = ports.cycle().skip(start).take(PORT_ATTEMPTS);
    attempts.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}

/// Waits until something listens on a loopback port, without a connection.
///
/// # Panics
/// When nothing does within [`MAX_WAIT`].
pub fn wait_for_listener(port: u16) {
    // Address, as the number that its bytes are in memory, and port; TCP_LISTEN.
    let local = format!("{:08X}:{port:04X}", u32::from_ne_bytes([127, 0, 0, 1]));
    wait_until(&format!("a listener on port {port}"), || {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("the table of sockets");
        let mut sockets = table.lines().skip(1).map(|line| line.split_whitespace().skip(1));
        sockets.any(|mut words| words.next() == Some(&local) && words.nth(1) == Some("0A")).then_some(())
    });
}

/// What is waited for may take so long on a machine that others load.
const MAX_WAIT: Duration = Duration::from_secs(90);

/// Asks `ready` again and again until it gives something.
///
/// # Panics
/// When [`MAX_WAIT`] is over; the message names `what`.
pub fn wait_until<T>(what: &str, ready: impl FnMut() -> Option<T>) -> T {
    try_wait_until(ready).unwrap_or_else(|| panic!("waited {MAX_WAIT:?} in vain for {what}"))
}

/// The same; `None`: [`MAX_WAIT`] is over.
pub fn try_wait_until<T>(mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    while start.elapsed() < MAX_WAIT {
        if let Some(result) = ready() {
            return Some(result);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    None
}

/// Connects to a loopback port as soon as something listens there.
///
/// # Panics
/// When nothing listens within [`MAX_WAIT`].
#[must_use]
pub fn connect(port: u16) -> TcpStream {
    let stream =
        wait_until(&format!("a listener on port {port}"), || TcpStream::connect(("127.0.0.1", port)).ok());
    let limit = Some(Duration::from_secs(30));
    stream.set_read_timeout(limit).expect("timeout");
    stream.set_write_timeout(limit).expect("timeout");
    stream.set_nodelay(true).expect("nodelay");
    stream
}
