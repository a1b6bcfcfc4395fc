//! Helpers for tests: sending by reference like a transmit engine, and reading at the peer.
#![allow(
    dead_code,
    clippy::cast_possible_truncation,
    reason = "each test program uses a part of it; numbers of tests are small"
)]

use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use uncopy_twin::{Loan, Until, lend};

/// Both ends of a pipe that holds 1 MiB.
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipe {
    pub fn new() -> Self {
        let mut ends = [0; 2];
        // SAFETY: pipe2(2) writes two descriptors to `ends`, which has room for them; fcntl(2) accesses no
        // memory; each descriptor gets one owner.
        unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
            assert!(libc::fcntl(ends[1], libc::F_SETPIPE_SZ, 1 << 20) >= 1 << 20);
            Self { read: OwnedFd::from_raw_fd(ends[0]), write: OwnedFd::from_raw_fd(ends[1]) }
        }
    }

    /// Moves references to these bytes into the pipe.
    pub fn vmsplice(&self, bytes: &[u8]) {
        let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: vmsplice(2) reads the iovec, which outlives the call, and refers to readable memory.
        let done = unsafe { libc::vmsplice(self.write.as_raw_fd(), &raw const part, 1, 0) };
        assert_eq!(done, bytes.len() as isize, "{}", std::io::Error::last_os_error());
    }

    pub fn splice_to(&self, to: i32, len: usize) {
        let mut left = len;
        while left > 0 {
            // SAFETY: splice(2) without offsets accesses no user memory.
            let done = unsafe {
                let none = core::ptr::null_mut();
                libc::splice(self.read.as_raw_fd(), none, to, none, left, libc::SPLICE_F_MOVE)
            };
            assert!(done > 0, "{}", std::io::Error::last_os_error());
            left -= done as usize;
        }
    }
}

/// Returns a connection whose buffers hold all that a test sends before anyone reads.
pub fn connection() -> (OwnedFd, UnixStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let sender = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (receiver, _) = listener.accept().expect("a connection");
    for (socket, option) in [
        (sender.as_raw_fd(), libc::SO_SNDBUF),
        (sender.as_raw_fd(), libc::SO_SNDBUFFORCE),
        (receiver.as_raw_fd(), libc::SO_RCVBUF),
        (receiver.as_raw_fd(), libc::SO_RCVBUFFORCE),
    ] {
        let bytes: i32 = 16 << 20;
        // SAFETY: setsockopt(2) reads 4 bytes at `bytes`, an `i32` that outlives the call.
        unsafe {
            let len = size_of::<i32>() as u32;
            libc::setsockopt(socket, libc::SOL_SOCKET, option, (&raw const bytes).cast(), len);
        }
    }
    receiver.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    // `UnixStream` reads from a socket of any family.
    (OwnedFd::from(sender), UnixStream::from(OwnedFd::from(receiver)))
}

pub fn receive(from: &mut UnixStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes).expect("the bytes arrive");
    bytes
}

/// Acquires the right to use the allocator's statistics, for one test at a time.
pub fn exclusive() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Like [`exclusive`], but returns `None` and reports the test as skipped if pages cannot be protected here.
pub fn can_lend(test: &str) -> Option<MutexGuard<'static, ()>> {
    let exclusive = exclusive();
    let object = uncopy_twin::allocate(8192);
    assert!(!object.is_null());
    let loan = lend(object as usize, 8192, Until::Dropped);
    let can = loan.is_some();
    drop(loan);
    // SAFETY: `object` was allocated above, is not null, and nothing uses it any more.
    unsafe { uncopy_twin::deallocate(object) };
    if !can {
        use std::io::Write;
        // Written to the real stderr, because the harness captures what tests print.
        let _ = writeln!(std::io::stderr().lock(), "skipped: {test}: {}", uncopy_twin::status());
    }
    can.then_some(exclusive)
}

pub fn lend_all(bytes: &[u8], until: Until) -> Option<Loan> {
    lend(bytes.as_ptr() as usize, bytes.len(), until)
}

/// Returns bytes that depend on seed and position.
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(97)) as u8).collect()
}

/// Runs `body` in a forked child, for at most 10 seconds, and returns the child's status.
pub fn in_child(body: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child runs only `body`, which must not need locks of other threads, and ends by _exit(2).
    // `status` outlives waitpid(2).
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            libc::alarm(10);
            let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
            libc::_exit(i32::from(!ok));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status
    }
}
