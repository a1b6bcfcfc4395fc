//! Cache of socket properties by descriptor, refreshed now and then.
//!
//! A descriptor may refer to another socket at any time, without notice. So cached properties only decide
//! which way is *tried*: a message sent in one system call is correct on any socket. Before a message is sent
//! in pieces, which only streams allow, [`is_same`] checks the socket's identity (0.25 µs).
//!
//! ```text
//! word     │ cookie (40) │ promises (8) │ kind (4) │ uses (12) │
//! ```

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::SavedErrno;
use uncopy_sys::socket;

/// Number of entries. Descriptors above that share entries.
const ENTRIES: usize = 1 << 16;
/// Number of uses after which the socket's cookie is checked again.
const MAX_USES: u64 = 64;
const USES_MASK: u64 = (1 << 12) - 1;
const KIND_SHIFT: u32 = 12;
const PROMISES_SHIFT: u32 = 16;
const COOKIE_SHIFT: u32 = 24;

/// Kind of destination: on this host ("here"), on another host ("far"), or a UNIX socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Any other descriptor, to which bytes are copied.
    Other = 1,
    /// TCP to a peer on this host.
    TcpLocal,
    /// TCP to another host.
    TcpRemote,
    /// UDP to a peer on this host, or unconnected.
    UdpLocal,
    /// UDP to another host.
    UdpRemote,
    /// A UNIX stream socket.
    Unix,
    /// TCP to a peer on this host, with BBR congestion control.
    BbrLocal,
    /// TCP to another host, with BBR congestion control.
    BbrRemote,
}

impl Kind {
    fn of(number: u64) -> Option<Self> {
        Some(match number {
            1 => Self::Other,
            2 => Self::TcpLocal,
            3 => Self::TcpRemote,
            4 => Self::UdpLocal,
            5 => Self::UdpRemote,
            6 => Self::Unix,
            7 => Self::BbrLocal,
            8 => Self::BbrRemote,
            _ => return None,
        })
    }

    /// True if the peer is on another host.
    pub const fn is_remote(self) -> bool {
        matches!(self, Self::TcpRemote | Self::UdpRemote | Self::BbrRemote)
    }

    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::UdpLocal | Self::UdpRemote)
    }
}

static CACHE: [AtomicU64; ENTRIES] = [const { AtomicU64::new(0) }; ENTRIES];

fn entry(fd: ProgramFd) -> &'static AtomicU64 {
    &CACHE[fd.slot(ENTRIES)]
}

/// True if both ends have the same address, or the peer has a loopback address (127.0.0.0/8, ::1).
fn is_local(ends: &[[u8; 28]; 2]) -> bool {
    let [own, peer] = ends;
    match i32::from(u16::from_ne_bytes([peer[0], peer[1]])) {
        libc::AF_INET => peer[4] == 127 || own[4..8] == peer[4..8],
        libc::AF_INET6 => own[8..24] == peer[8..24],
        _ => false,
    }
}

fn query(fd: ProgramFd) -> Kind {
    let Ok((domain, kind, protocol)) = socket::kind(fd) else { return Kind::Other };
    let is_local = || socket::addresses(fd).is_none_or(|ends| is_local(&ends));
    match (domain, kind, protocol) {
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, libc::IPPROTO_TCP) => {
            match (socket::has_upper_layer(fd), socket::has_bbr(fd), is_local()) {
                (true, ..) => Kind::Other,
                (_, true, true) => Kind::BbrLocal,
                (_, true, false) => Kind::BbrRemote,
                (_, _, true) => Kind::TcpLocal,
                (_, _, false) => Kind::TcpRemote,
            }
        }
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_UDP) => {
            if is_local() {
                Kind::UdpLocal
            } else {
                Kind::UdpRemote
            }
        }
        (libc::AF_UNIX, libc::SOCK_STREAM, _) => Kind::Unix,
        _ => Kind::Other,
    }
}

fn pack(cookie: u64, promises: u8, kind: Kind) -> u64 {
    cookie << COOKIE_SHIFT | u64::from(promises) << PROMISES_SHIFT | (kind as u64) << KIND_SHIFT
}

/// Returns the kind of `fd` and its owner's promises. Preserves `errno`.
pub fn of(fd: ProgramFd) -> (Kind, u8) {
    let entry = entry(fd);
    let cached = entry.load(Relaxed);
    let promises = (cached >> PROMISES_SHIFT) as u8;
    if let Some(kind) = Kind::of(cached >> KIND_SHIFT & 0xf)
        && cached & USES_MASK < MAX_USES
    {
        entry.store(cached + 1, Relaxed);
        return (kind, promises);
    }
    refresh(fd, cached)
}

#[cold]
fn refresh(fd: ProgramFd, cached: u64) -> (Kind, u8) {
    let _errno = SavedErrno::new();
    let cookie = socket::cookie(fd).unwrap_or(0);
    if let Some(kind) = Kind::of(cached >> KIND_SHIFT & 0xf)
        && cached >> COOKIE_SHIFT == cookie << COOKIE_SHIFT >> COOKIE_SHIFT
        && kind != Kind::Other
    {
        entry(fd).store(cached & !USES_MASK, Relaxed);
        return (kind, (cached >> PROMISES_SHIFT) as u8);
    }
    let kind = query(fd);
    entry(fd).store(pack(cookie, 0, kind), Relaxed);
    (kind, 0)
}

/// True if `fd` is still the socket that its entry describes. Changes `errno`.
pub fn is_same(fd: ProgramFd) -> bool {
    let cached = entry(fd).load(Relaxed) >> COOKIE_SHIFT;
    let is_same = cached != 0
        && socket::cookie(fd).is_ok_and(|cookie| cached == cookie << COOKIE_SHIFT >> COOKIE_SHIFT);
    if !is_same {
        invalidate(fd);
    }
    is_same
}

/// Forces a check of the entry at its next use, because the entry seems to be wrong.
pub fn invalidate(fd: ProgramFd) {
    entry(fd).fetch_or(USES_MASK, Relaxed);
}

/// Stores the owner's promises and the socket's current kind.
pub fn set_owner(fd: ProgramFd, promises: u8) {
    let _errno = SavedErrno::new();
    entry(fd).store(pack(socket::cookie(fd).unwrap_or(0), promises, query(fd)), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use uncopy_sys::descriptor::Descriptor as _;

    /// Selects a socket's congestion control. Returns false if this kernel does not have it.
    fn control(socket: &impl AsRawFd, name: &core::ffi::CStr) -> bool {
        let len_bytes = name.count_bytes() as u32;
        // SAFETY: setsockopt(2) reads `len_bytes` bytes at `name`, which has that length and is alive.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_CONGESTION,
                name.as_ptr().cast(),
                len_bytes,
            )
        };
        result == 0
    }

    #[test]
    fn sockets_are_told_apart() {
        // Another test of this process may just have used the same descriptor.
        let kind = |fd| {
            invalidate(fd);
            of(fd).0
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let stream = TcpStream::connect(listener.local_addr().expect("address")).expect("connected");
        for (name, expected) in [(c"reno", Kind::TcpLocal), (c"bbr", Kind::BbrLocal)] {
            if control(&stream, name) {
                set_owner(ProgramFd::of(&stream), 0);
                assert_eq!(of(ProgramFd::of(&stream)).0, expected);
            }
        }
        let datagrams = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        assert_eq!(kind(ProgramFd::of(&datagrams)), Kind::UdpLocal);
        let (one, _other) = UnixStream::pair().expect("sockets");
        assert_eq!(kind(ProgramFd::of(&one)), Kind::Unix);
        let (messages, _end) = UnixDatagram::pair().expect("sockets");
        assert_eq!(kind(ProgramFd::of(&messages)), Kind::Other);
        let file = std::fs::File::open("/dev/null").expect("a file");
        assert_eq!(kind(ProgramFd::of(&file)), Kind::Other);
        assert_eq!(kind(ProgramFd::NONE), Kind::Other);
    }

    #[test]
    fn a_number_that_is_used_again_is_noticed() {
        let (one, _other) = UnixStream::pair().expect("sockets");
        let fd = ProgramFd::of(&one);
        set_owner(fd, 3);
        assert_eq!(of(fd), (Kind::Unix, 3));
        let (messages, _end) = UnixDatagram::pair().expect("sockets");
        // SAFETY: dup2(2) accesses no memory; `fd` belongs to this test, which drops `one` only afterwards.
        unsafe { libc::dup2(messages.as_raw_fd(), fd.number()) };
        (0..=MAX_USES).for_each(|_| _ = of(fd));
        assert_eq!(of(fd), (Kind::Other, 0));
        let stream = TcpListener::bind("127.0.0.1:0").expect("a listener");
        assert!(control(&stream, c"reno"), "every kernel has it, and any process may ask for it");
        set_owner(fd, 0);
        assert!(is_same(fd));
        // SAFETY: dup2(2) accesses no memory; `fd` belongs to this test.
        unsafe { libc::dup2(stream.as_raw_fd(), fd.number()) };
        assert!(!is_same(fd), "asked, it is noticed at once");
        assert_eq!(of(fd).0, Kind::TcpLocal);
        assert!(is_same(fd));
    }

    #[test]
    fn a_machine_is_not_far_from_itself() {
        let address = |bytes: [u8; 4]| {
            let mut address = [0; 28];
            address[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            address[4..8].copy_from_slice(&bytes);
            address
        };
        assert!(is_local(&[address([10, 0, 0, 1]), address([10, 0, 0, 1])]));
        assert!(is_local(&[address([127, 0, 0, 1]), address([127, 0, 0, 9])]));
        assert!(!is_local(&[address([10, 0, 0, 1]), address([10, 0, 0, 2])]));
    }
}
