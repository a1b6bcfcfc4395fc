//! Connections with timeouts, and memory whose pages are replaced before they are written to again.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::cast_possible_truncation, reason = "lengths of tests")]

use std::io::Read;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use uncopy_transmit::{Envelope, Errno, Part, ProgramFd, Sent};

pub use uncopy_sys::PAGE_BYTES;
const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Tcp4,
    Tcp6,
    Unix,
    Udp4,
    Udp6,
}

pub const STREAMS: [Family; 3] = [Family::Tcp4, Family::Tcp6, Family::Unix];
pub const DATAGRAMS: [Family; 2] = [Family::Udp4, Family::Udp6];

impl Family {
    pub fn is_stream(self) -> bool {
        STREAMS.contains(&self)
    }

    pub fn host(self) -> &'static str {
        match self {
            Self::Tcp4 | Self::Udp4 => "127.0.0.1:0",
            _ => "[::1]:0",
        }
    }
}

/// Both ends of a connection; reads and writes fail after [`TIMEOUT`].
pub struct Connection {
    pub here: OwnedFd,
    pub there: OwnedFd,
}

pub fn connect(family: Family) -> Connection {
    let (here, there): (OwnedFd, OwnedFd) = match family {
        Family::Tcp4 | Family::Tcp6 => {
            let listener = TcpListener::bind(family.host()).expect("a listener");
            let here = TcpStream::connect(listener.local_addr().expect("address")).expect("connected");
            let (there, _) = listener.accept().expect("accepted");
            here.set_nodelay(true).expect("option");
            (here.into(), there.into())
        }
        Family::Unix => {
            let (here, there) = UnixStream::pair().expect("sockets");
            (here.into(), there.into())
        }
        Family::Udp4 | Family::Udp6 => {
            let there = UdpSocket::bind(family.host()).expect("a socket");
            let here = UdpSocket::bind(family.host()).expect("a socket");
            here.connect(there.local_addr().expect("address")).expect("connected");
            there.connect(here.local_addr().expect("address")).expect("connected");
            (here.into(), there.into())
        }
    };
    let connection = Connection { here, there };
    for fd in [connection.here.as_raw_fd(), connection.there.as_raw_fd()] {
        set_timeval(fd, libc::SO_RCVTIMEO);
        set_timeval(fd, libc::SO_SNDTIMEO);
        // The descriptor may have belonged to another test a moment ago.
        uncopy_transmit::declare_owner(ProgramFd::new(fd), uncopy_transmit::SocketOwner::default());
    }
    connection
}

fn set_timeval(fd: i32, name: i32) {
    let time = libc::timeval { tv_sec: TIMEOUT.as_secs() as i64, tv_usec: 0 };
    // SAFETY: setsockopt(2) reads `size_of_val(&time)` bytes at `time`, which outlives the call.
    let set = unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const time).cast(), size_of_val(&time) as u32)
    };
    assert_eq!(set, 0);
}

pub fn set_option(fd: i32, level: i32, name: i32, value: i32) {
    // SAFETY: setsockopt(2) reads 4 bytes at `value`, an `i32` that outlives the call.
    let set = unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), 4) };
    assert_eq!(set, 0, "option {name}");
}

pub fn set_non_blocking(fd: i32) {
    // SAFETY: fcntl(2) with F_SETFL takes an integer and accesses no memory.
    let set = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK) };
    assert_eq!(set, 0);
}

impl Connection {
    pub fn fd(&self) -> i32 {
        self.here.as_raw_fd()
    }

    pub fn read(&self, len_bytes: usize) -> Vec<u8> {
        let mut file = std::fs::File::from(self.there.try_clone().expect("a duplicate"));
        let mut bytes = vec![0; len_bytes];
        file.read_exact(&mut bytes).expect("bytes in time");
        bytes
    }

    pub fn receive(&self) -> Vec<u8> {
        let mut bytes = vec![0; 70_000];
        // SAFETY: recv(2) writes at most `bytes.len()` bytes to `bytes`, which outlives the call.
        let len = unsafe { libc::recv(self.there.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        bytes.truncate(usize::try_from(len).expect("a datagram in time"));
        bytes
    }
}

/// Memory that can be lent: like twin memory, its pages are replaced before they are written to again.
pub struct Lendable {
    base: *mut u8,
    len_bytes: usize,
}

// SAFETY: `base` points to a private mapping that only this value refers to.
unsafe impl Send for Lendable {}

impl Lendable {
    pub fn new(pages: usize) -> Self {
        let len_bytes = pages * PAGE_BYTES;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: without an address hint or MAP_FIXED, mmap(2) affects no existing mapping.
        let base = unsafe { libc::mmap(core::ptr::null_mut(), len_bytes, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Self { base: base.cast(), len_bytes }
    }

    pub fn len(&self) -> usize {
        self.len_bytes
    }

    /// Replaces the pages, then sets each byte to `byte(offset)`.
    pub fn fill(&mut self, byte: impl Fn(usize) -> u8) {
        // SAFETY: `base` and `len_bytes` describe this value's mapping, which is borrowed exclusively.
        let bytes = unsafe {
            libc::madvise(self.base.cast(), self.len_bytes, libc::MADV_DONTNEED);
            core::slice::from_raw_parts_mut(self.base, self.len_bytes)
        };
        bytes.iter_mut().enumerate().for_each(|(at, slot)| *slot = byte(at));
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `base` and `len_bytes` describe this value's readable mapping, which lives as long as
        // `self`.
        unsafe { core::slice::from_raw_parts(self.base, self.len_bytes) }
    }

    pub fn part(&self, offset: usize, len: usize) -> Part {
        assert!(offset + len <= self.len_bytes);
        Part::Lent { ptr: self.base.wrapping_add(offset), len }
    }
}

impl Drop for Lendable {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping with this length, and `self` is its only owner.
        unsafe { libc::munmap(self.base.cast(), self.len_bytes) };
    }
}

pub fn copied(bytes: &[u8]) -> Part {
    Part::Copied { ptr: bytes.as_ptr(), len: bytes.len() }
}

pub fn send(fd: i32, parts: &[Part], flags: i32) -> Result<Sent, Errno> {
    let total = parts.iter().map(|part| part.len()).sum();
    let lent = parts.iter().filter(|part| part.is_lent()).map(|part| part.len()).sum();
    let envelope = Envelope::default();
    let fd = ProgramFd::new(fd);
    let plan = uncopy_transmit::plan(fd, total, lent, flags, &envelope);
    uncopy_transmit::send(fd, parts, flags, &envelope, plan)
}

/// Sends the same parts by libc's `sendmsg`.
pub fn send_plain(fd: i32, parts: &[Part], flags: i32) -> Result<usize, i32> {
    let mut vectors: Vec<_> = parts
        .iter()
        .map(|part| libc::iovec { iov_base: part.address() as *mut _, iov_len: part.len() })
        .collect();
    // SAFETY: all-zero bytes are a valid `msghdr`; `vectors` and the parts outlive the call.
    unsafe {
        let mut header: libc::msghdr = core::mem::zeroed();
        header.msg_iov = vectors.as_mut_ptr();
        header.msg_iovlen = vectors.len() as _;
        let sent = libc::sendmsg(fd, &raw const header, flags);
        usize::try_from(sent).map_err(|_| *libc::__errno_location())
    }
}

/// Deterministic generator of pseudorandom numbers.
pub struct Random(u64);

impl Random {
    pub fn new(name: &str) -> Self {
        let seed =
            std::env::var("UNCOPY_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
                let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                time.map_or(1, |time| time.as_nanos() as u64)
            });
        println!("{name}: UNCOPY_TEST_SEED={seed}");
        Self(seed | 1)
    }

    pub fn next(&mut self) -> u64 {
        // The xorshift64* algorithm (Vigna 2016).
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit.max(1)
    }

    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

/// Runs `section` in a forked child, waits for the child, and asserts that `section` returned true.
pub fn in_child(section: impl FnOnce() -> bool) {
    // SAFETY: the child runs only `section`, which must not need locks of other threads, and ends by
    // _exit(2). `status` outlives waitpid(2).
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            let fine = section();
            libc::_exit(i32::from(!fine));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0, "the child found something wrong");
    }
}

pub fn duplicate(fd: i32) -> OwnedFd {
    // SAFETY: fcntl(2) with F_DUPFD_CLOEXEC returns a new descriptor, which `OwnedFd` takes over.
    unsafe { OwnedFd::from_raw_fd(libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0)) }
}
