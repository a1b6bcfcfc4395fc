//! What is known of a descriptor: asked once for each socket, and now and then whether it is still the same one.
//!
//! A number may come to stand for another socket at any time, and nobody tells. So what is kept here decides which way
//! is *tried*. A message that one call to the kernel sends is right on every socket; before one is sent in pieces, as only
//! a stream's may be, [`is_same`] asks (0.25 µs).
//!
//! ```text
//! a word   │ cookie (40) │ promises (8) │ kind (4) │ uses (12) │
//! ```

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use uncopy_sys::errno::Keep;
use uncopy_sys::socket;

/// Descriptors of which anything is kept; those above share places.
const PLACES: usize = 1 << 16;
/// Uses after which the socket is asked for its cookie again.
const USES: u64 = 64;
const USES_MASK: u64 = (1 << 12) - 1;
const KIND_SHIFT: u32 = 12;
const PROMISES_SHIFT: u32 = 16;
const COOKIE_SHIFT: u32 = 24;

/// Kinds of descriptors that references can go to. To a peer on this machine, to another, by a UNIX socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Nothing else: bytes are copied.
    Other = 1,
    /// TCP on this machine.
    TcpHere,
    /// TCP to another one.
    TcpFar,
    /// UDP on this machine, or not connected.
    UdpHere,
    /// UDP to another one.
    UdpFar,
    /// A UNIX stream.
    Unix,
    /// TCP on this machine whose congestion BBR controls.
    BbrHere,
    /// The same to another one.
    BbrFar,
}

impl Kind {
    fn of(number: u64) -> Option<Self> {
        Some(match number {
            1 => Self::Other,
            2 => Self::TcpHere,
            3 => Self::TcpFar,
            4 => Self::UdpHere,
            5 => Self::UdpFar,
            6 => Self::Unix,
            7 => Self::BbrHere,
            8 => Self::BbrFar,
            _ => return None,
        })
    }

    /// Whether what is sent leaves the machine.
    pub const fn is_far(self) -> bool {
        matches!(self, Self::TcpFar | Self::UdpFar | Self::BbrFar)
    }

    /// Whether messages are datagrams.
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::UdpHere | Self::UdpFar)
    }
}

static WORDS: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

fn word(fd: i32) -> &'static AtomicU64 {
    &WORDS[fd as u32 as usize % PLACES]
}

/// Whether both ends have the same address, or the peer a loopback one (127.0.0.0/8, ::1).
fn is_here(ends: &[[u8; 28]; 2]) -> bool {
    let [own, peer] = ends;
    match i32::from(u16::from_ne_bytes([peer[0], peer[1]])) {
        libc::AF_INET => peer[4] == 127 || own[4..8] == peer[4..8],
        libc::AF_INET6 => own[8..24] == peer[8..24],
        _ => false,
    }
}

fn ask(fd: i32) -> Kind {
    let Ok((domain, kind, protocol)) = socket::kind(fd) else { return Kind::Other };
    let is_here = || socket::ends(fd).is_none_or(|ends| is_here(&ends));
    match (domain, kind, protocol) {
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, libc::IPPROTO_TCP) => {
            match (socket::has_upper_layer(fd), socket::has_bbr(fd), is_here()) {
                (true, ..) => Kind::Other,
                (_, true, true) => Kind::BbrHere,
                (_, true, false) => Kind::BbrFar,
                (_, _, true) => Kind::TcpHere,
                (_, _, false) => Kind::TcpFar,
            }
        }
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_UDP) => {
            if is_here() {
                Kind::UdpHere
            } else {
                Kind::UdpFar
            }
        }
        (libc::AF_UNIX, libc::SOCK_STREAM, _) => Kind::Unix,
        _ => Kind::Other,
    }
}

fn pack(cookie: u64, promises: u8, kind: Kind) -> u64 {
    cookie << COOKIE_SHIFT | u64::from(promises) << PROMISES_SHIFT | (kind as u64) << KIND_SHIFT
}

/// What is kept of `fd`: its kind and its owner's promises. `errno` is kept.
pub fn of(fd: i32) -> (Kind, u8) {
    let word = word(fd);
    let kept = word.load(Relaxed);
    let promises = (kept >> PROMISES_SHIFT) as u8;
    if let Some(kind) = Kind::of(kept >> KIND_SHIFT & 0xf)
        && kept & USES_MASK < USES
    {
        word.store(kept + 1, Relaxed);
        return (kind, promises);
    }
    refresh(fd, kept)
}

#[cold]
fn refresh(fd: i32, kept: u64) -> (Kind, u8) {
    let _errno = Keep::new();
    let cookie = socket::cookie(fd).unwrap_or(0);
    if let Some(kind) = Kind::of(kept >> KIND_SHIFT & 0xf)
        && kept >> COOKIE_SHIFT == cookie << COOKIE_SHIFT >> COOKIE_SHIFT
        && kind != Kind::Other
    {
        word(fd).store(kept & !USES_MASK, Relaxed);
        return (kind, (kept >> PROMISES_SHIFT) as u8);
    }
    let kind = ask(fd);
    word(fd).store(pack(cookie, 0, kind), Relaxed);
    (kind, 0)
}

/// Whether a descriptor is the very socket of which something is kept. `errno` is changed.
pub fn is_same(fd: i32) -> bool {
    let kept = word(fd).load(Relaxed) >> COOKIE_SHIFT;
    let is_same =
        kept != 0 && socket::cookie(fd).is_ok_and(|cookie| kept == cookie << COOKIE_SHIFT >> COOKIE_SHIFT);
    if !is_same {
        doubt(fd);
    }
    is_same
}

/// Has the descriptor looked at again the next time: what was kept does not seem to be true.
pub fn doubt(fd: i32) {
    word(fd).fetch_or(USES_MASK, Relaxed);
}

/// Notes what the owner of a socket promises, and what kind it is now.
pub fn own(fd: i32, promises: u8) {
    let _errno = Keep::new();
    word(fd).store(pack(socket::cookie(fd).unwrap_or(0), promises, ask(fd)), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    /// Sets who controls a socket's congestion; false: not here.
    fn control(socket: &impl AsRawFd, name: &core::ffi::CStr) -> bool {
        let len_bytes = name.count_bytes() as u32;
        // SAFETY: the name has so many bytes.
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
        // Other tests of this process may just have had a number.
        let kind = |fd| {
            doubt(fd);
            of(fd).0
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let stream = TcpStream::connect(listener.local_addr().expect("address")).expect("connected");
        for (name, expected) in [(c"reno", Kind::TcpHere), (c"bbr", Kind::BbrHere)] {
            if control(&stream, name) {
                own(stream.as_raw_fd(), 0);
                assert_eq!(of(stream.as_raw_fd()).0, expected);
            }
        }
        let datagrams = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        assert_eq!(kind(datagrams.as_raw_fd()), Kind::UdpHere);
        let (one, _other) = UnixStream::pair().expect("sockets");
        assert_eq!(kind(one.as_raw_fd()), Kind::Unix);
        let (messages, _end) = UnixDatagram::pair().expect("sockets");
        assert_eq!(kind(messages.as_raw_fd()), Kind::Other);
        let file = std::fs::File::open("/dev/null").expect("a file");
        assert_eq!(kind(file.as_raw_fd()), Kind::Other);
        assert_eq!(kind(-1), Kind::Other);
    }

    #[test]
    fn a_number_that_is_used_again_is_noticed() {
        let (one, _other) = UnixStream::pair().expect("sockets");
        let fd = one.as_raw_fd();
        own(fd, 3);
        assert_eq!(of(fd), (Kind::Unix, 3));
        let (messages, _end) = UnixDatagram::pair().expect("sockets");
        // SAFETY: replaces our own descriptor.
        unsafe { libc::dup2(messages.as_raw_fd(), fd) };
        (0..=USES).for_each(|_| _ = of(fd));
        assert_eq!(of(fd), (Kind::Other, 0));
        let stream = TcpListener::bind("127.0.0.1:0").expect("a listener");
        assert!(control(&stream, c"reno"), "every kernel has it, and any process may ask for it");
        own(fd, 0);
        assert!(is_same(fd));
        // SAFETY: replaces our own descriptor.
        unsafe { libc::dup2(stream.as_raw_fd(), fd) };
        assert!(!is_same(fd), "asked, it is noticed at once");
        assert_eq!(of(fd).0, Kind::TcpHere);
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
        assert!(is_here(&[address([10, 0, 0, 1]), address([10, 0, 0, 1])]));
        assert!(is_here(&[address([127, 0, 0, 1]), address([127, 0, 0, 9])]));
        assert!(!is_here(&[address([10, 0, 0, 1]), address([10, 0, 0, 2])]));
    }
}
