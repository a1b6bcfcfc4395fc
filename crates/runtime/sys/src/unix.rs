//! UNIX stream sockets (unix(7)): creating, binding, connecting, and querying their names.

use crate::call::{kernel, syscall};
use crate::descriptor::{Descriptor, OwnFd, ProgramFd};
use crate::errno::{Errno, check};
use crate::iovec::Part;
use crate::socket::{self, Envelope};

/// Maximum length of a name, bytes.
pub const MAX_NAME_BYTES: usize = 107;

/// A socket's name: a path, or a NUL followed by any bytes (an abstract name).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    bytes: [u8; MAX_NAME_BYTES],
    len_bytes: u8,
}

impl Name {
    /// Returns `None` if the name is too long.
    #[must_use]
    pub fn new(name: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_NAME_BYTES];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Self { bytes, len_bytes: name.len() as u8 })
    }

    /// Parses a socket address as the kernel writes it, possibly cut. `None` unless it is a UNIX socket's.
    #[must_use]
    pub fn of_address(address: &[u8]) -> Option<Self> {
        let (family, name) = address.split_first_chunk()?;
        if i32::from(u16::from_ne_bytes(*family)) != libc::AF_UNIX {
            return None;
        }
        // A path ends with a NUL, or with the address if that leaves no room for one.
        let end = if name.first() == Some(&0) { None } else { name.iter().position(|byte| *byte == 0) };
        Self::new(&name[..end.unwrap_or(name.len()).min(name.len())])
    }

    /// Bytes of the name; empty if the socket is unnamed.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len_bytes as usize]
    }

    fn address(&self) -> (libc::sockaddr_un, usize) {
        // SAFETY: `sockaddr_un` consists of integers, for which all-zero bytes are valid.
        let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in address.sun_path.iter_mut().zip(self.bytes()) {
            *to = *from as libc::c_char;
        }
        (address, size_of::<libc::sa_family_t>() + self.bytes().len())
    }
}

fn create(kind: i32) -> Result<OwnFd, Errno> {
    let kind = kind | libc::SOCK_CLOEXEC;
    // SAFETY: socket(2) takes only integers and returns a new descriptor.
    OwnFd::from_result(unsafe { kernel!(Open, syscall!(libc::SYS_socket, libc::AF_UNIX, kind, 0)) })
}

/// Creates an unnamed, blocking stream socket, closed on exec.
///
/// # Errors
/// Errors of socket(2).
pub fn stream() -> Result<OwnFd, Errno> {
    create(libc::SOCK_STREAM)
}

/// Creates a pair of connected stream sockets, which may still be bound to names.
///
/// # Errors
/// Errors of socketpair(2).
pub fn pair() -> Result<[OwnFd; 2], Errno> {
    pair_of(libc::SOCK_STREAM | libc::SOCK_CLOEXEC)
}

/// Creates a pair of connected sockets of type `kind`, which includes the flags.
///
/// # Errors
/// Errors of socketpair(2).
pub(crate) fn pair_of(kind: i32) -> Result<[OwnFd; 2], Errno> {
    let mut ends = [-1; 2];
    // SAFETY: socketpair(2) writes two descriptors, for which `ends` has room.
    check(unsafe {
        kernel!(Open, syscall!(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr()))
    })?;
    Ok(ends.map(OwnFd::new))
}

/// Creates an unnamed, non-blocking stream socket, closed on exec.
///
/// # Errors
/// Errors of socket(2).
pub fn nonblocking_stream() -> Result<OwnFd, Errno> {
    create(libc::SOCK_STREAM | libc::SOCK_NONBLOCK)
}

/// Binds a socket to a name.
///
/// # Errors
/// Errors of bind(2): EADDRINUSE if the name is taken.
pub fn bind(fd: impl Descriptor, name: &Name) -> Result<(), Errno> {
    let (address, len_bytes) = name.address();
    // SAFETY: `address` lives through the call and is `len_bytes` long; bind(2) only reads it.
    check(unsafe { kernel!(Name, syscall!(libc::SYS_bind, fd, &raw const address, len_bytes)) }).map(drop)
}

/// Connects to the socket that listens under a name.
///
/// # Errors
/// Errors of connect(2): ECONNREFUSED or ENOENT if no socket listens, EAGAIN if the call would block.
pub fn connect(fd: impl Descriptor, name: &Name) -> Result<(), Errno> {
    let (address, len_bytes) = name.address();
    // SAFETY: `address` lives through the call and is `len_bytes` long; connect(2) only reads it.
    check(unsafe { kernel!(Open, syscall!(libc::SYS_connect, fd, &raw const address, len_bytes)) }).map(drop)
}

/// Listens under the socket's name for at most `backlog` waiting connections.
///
/// # Errors
/// Errors of listen(2).
pub fn listen(fd: impl Descriptor, backlog: i32) -> Result<(), Errno> {
    // SAFETY: listen(2) takes only integers here, and accesses no memory of the process.
    check(unsafe { kernel!(Open, syscall!(libc::SYS_listen, fd, backlog)) }).map(drop)
}

/// Accepts a connection, and returns its socket, non-blocking and closed on exec, with the peer's name.
///
/// # Errors
/// Errors of accept4(2): EAGAIN if none waits.
pub fn accept(fd: impl Descriptor) -> Result<(OwnFd, Option<Name>), Errno> {
    let mut address = [0u8; size_of::<libc::sockaddr_un>()];
    let mut len_bytes = address.len() as u32;
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: accept4(2) writes at most the length passed, into a buffer of that length.
    let accepted = OwnFd::from_result(unsafe {
        kernel!(Open, syscall!(libc::SYS_accept4, fd, address.as_mut_ptr(), &raw mut len_bytes, flags))
    })?;
    let peer = address.get(..len_bytes as usize).and_then(Name::of_address);
    Ok((accepted, peer))
}

fn query_name(call: i64, fd: impl Descriptor) -> Option<Name> {
    let mut address = [0u8; size_of::<libc::sockaddr_un>()];
    let mut len_bytes = address.len() as u32;
    // SAFETY: getsockname(2) and getpeername(2) write at most `len_bytes` bytes, the size of `address`.
    check(unsafe { kernel!(Ask, syscall!(call, fd, address.as_mut_ptr(), &raw mut len_bytes)) }).ok()?;
    Name::of_address(&address[..(len_bytes as usize).min(address.len())])
}

/// Name of a UNIX socket, which may be empty; `None` if the descriptor is something else.
#[must_use]
pub fn own_name(fd: impl Descriptor) -> Option<Name> {
    query_name(libc::SYS_getsockname, fd)
}

/// Name of the peer; `None` if the descriptor is not a UNIX socket, or not connected.
#[must_use]
pub fn peer_name(fd: impl Descriptor) -> Option<Name> {
    query_name(libc::SYS_getpeername, fd)
}

/// Whether a stream socket is bound to this path, listening or not.
#[must_use]
pub fn is_bound(path: &Name) -> bool {
    let Ok(probe) = create(libc::SOCK_DGRAM) else { return true };
    // For a datagram socket, connect(2) gives EPROTOTYPE if a stream socket is bound there.
    !matches!(connect(&probe, path), Err(Errno(libc::ECONNREFUSED | libc::ENOENT)))
}

/// Makes `to` refer to the open file of `from`, which stays open. The close-on-exec flag of `to` is kept.
///
/// # Errors
/// Errors of dup3(2).
pub fn replace_descriptor(from: &OwnFd, to: ProgramFd) -> Result<(), Errno> {
    let flags = if crate::fd::closes_on_exec(to) == Some(true) { libc::O_CLOEXEC } else { 0 };
    // SAFETY: dup3(2) takes only integers here, and accesses no memory of the process.
    check(unsafe { kernel!(Open, syscall!(libc::SYS_dup3, from, to, flags)) }).map(drop)
}

/// Copies to a socket the options of another: non-blocking mode, time limits and SO_LINGER.
///
/// # Errors
/// Errors of fcntl(2), getsockopt(2) and setsockopt(2).
pub fn copy_options(from: ProgramFd, to: &OwnFd) -> Result<(), Errno> {
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO, libc::SO_LINGER] {
        let mut value = [0u64; 2];
        let mut len_bytes = size_of_val(&value) as u32;
        // SAFETY: getsockopt(2) writes at most `len_bytes` bytes, the size of `value`, and sets the
        // length that setsockopt(2) then reads; `value` lives through both calls.
        unsafe {
            let (level, at) = (libc::SOL_SOCKET, value.as_mut_ptr());
            check(kernel!(Ask, syscall!(libc::SYS_getsockopt, from, level, name, at, &raw mut len_bytes)))?;
            check(kernel!(Ask, syscall!(libc::SYS_setsockopt, to, level, name, at, len_bytes)))?;
        }
    }
    let flags = crate::file::flags(from)?;
    // SAFETY: fcntl(2) takes only integers here, and accesses no memory of the process.
    check(unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, to, libc::F_SETFL, flags)) }).map(drop)
}

/// Returns the number that [`store_word`] stored at a socket, for every process that has its open
/// file; `None` if there is none. It is kept as SO_MAX_PACING_RATE, which UNIX sockets ignore and
/// which has 64 bits (Linux 4.20; checked with 6.18).
#[must_use]
pub fn stored_word(fd: impl Descriptor) -> Option<u64> {
    let mut value = u64::MAX;
    let mut len_bytes = size_of_val(&value) as u32;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
    // SAFETY: getsockopt(2) writes at most the length passed, into a buffer of that length.
    let query_name = unsafe {
        kernel!(Ask, syscall!(libc::SYS_getsockopt, fd, level, name, &raw mut value, &raw mut len_bytes))
    };
    check(query_name).ok().filter(|_| len_bytes == 8 && value != u64::MAX).map(|_| value)
}

/// Stores a number at a socket, see [`stored_word`]; `u64::MAX` removes it.
///
/// # Errors
/// Errors of setsockopt(2).
pub fn store_word(fd: impl Descriptor, word: u64) -> Result<(), Errno> {
    let (level, name, len_bytes) = (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, size_of_val(&word));
    // SAFETY: setsockopt(2) reads the 8 bytes of `word`, which lives through the call.
    check(unsafe {
        kernel!(Ask, syscall!(libc::SYS_setsockopt, fd, level, name, &raw const word, len_bytes))
    })
    .map(drop)
}

/// Number of zero bytes that [`fill`] sends.
pub const FILLING_BYTES: usize = 64 << 10;

/// Sends [`FILLING_BYTES`] zeroes, without waiting: until they are read, poll(2) does not report
/// the socket as writable. The socket must be connected and unused.
///
/// # Errors
/// Errors of setsockopt(2) and sendmsg(2): EPIPE if the peer is closed.
pub fn fill(fd: impl Descriptor) -> Result<(), Errno> {
    static ZEROES: [u8; FILLING_BYTES] = [0; FILLING_BYTES];
    /// Linux's default, which the kernel doubles. Above a quarter, poll(2) finds no room.
    const BUFFER_BYTES: i32 = 106_496;
    let size = BUFFER_BYTES;
    // SAFETY: `size` lives through the call and its size is passed; setsockopt(2) only reads it.
    check(unsafe {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_SNDBUF);
        kernel!(Ask, syscall!(libc::SYS_setsockopt, fd, level, name, &raw const size, size_of_val(&size)))
    })?;
    let mut sent = 0;
    while sent < FILLING_BYTES {
        let part = Part { address: ZEROES[sent..].as_ptr() as usize, len_bytes: FILLING_BYTES - sent };
        sent += socket::send(fd, &[part], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL, &Envelope::default())?;
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::socket::Readiness;

    fn path(name: &str) -> Name {
        let path = std::env::temp_dir().join(format!("uncopy-unix-{}-{name}", std::process::id()));
        Name::new(path.to_str().expect("UTF-8").as_bytes()).expect("short")
    }

    #[test]
    fn both_ends_know_the_names() {
        let (listener, name) = (stream().expect("a socket"), path("names"));
        assert!(!is_bound(&name));
        bind(&listener, &name).expect("bound");
        assert!(is_bound(&name), "bound, not listening");
        listen(&listener, 4).expect("listening");
        assert!(is_bound(&name));
        let near = stream().expect("a socket");
        let own = Name::new(b"\0uncopy-test-\0\xff").expect("short");
        let own = Name::new(&[own.bytes(), &std::process::id().to_ne_bytes()].concat()).expect("short");
        bind(&near, &own).expect("bound");
        connect(&near, &name).expect("connected");
        let (far, peer) = accept(&listener).expect("accepted");
        assert!(peer == Some(own) && own_name(&near) == Some(own) && peer_name(&near) == Some(name));
        assert!(peer_name(&far) == Some(own) && peer_name(&listener).is_none());
        drop((near, far, listener));
        assert!(!is_bound(&name), "the file is there, the socket is not");
        std::fs::remove_file(std::str::from_utf8(name.bytes()).expect("UTF-8")).expect("the name");
        assert!(Name::new(&[1; MAX_NAME_BYTES + 1]).is_none());
    }

    #[test]
    fn what_is_kept_at_a_socket_is_there_for_everybody_who_has_it() {
        let fd = stream().expect("a socket");
        assert_eq!(stored_word(&fd), None);
        store_word(&fd, 1 << 63 | 5).expect("kept");
        let other = stream().expect("a socket");
        replace_descriptor(&fd, other.as_program()).expect("replaced");
        assert_eq!((stored_word(&fd), stored_word(&other)), (Some(1 << 63 | 5), Some(1 << 63 | 5)));
    }

    #[test]
    fn a_filled_socket_has_room_again_once_it_is_read() {
        let ends = pair().expect("sockets");
        let name =
            Name::new(&[&b"\0uncopy-test-"[..], &(&ends[0]).number().to_ne_bytes()].concat()).expect("short");
        bind(&ends[0], &name).expect("bound");
        assert_eq!(peer_name(&ends[1]), Some(name));
        fill(&ends[0]).expect("filled");
        assert_eq!(socket::readiness(&ends[0], 0), Readiness::Full);
        let mut room = vec![7u8; 1 << 20];
        // SAFETY: `room` has as many bytes as read(2) may write.
        let got = unsafe { libc::read((&ends[1]).number(), room.as_mut_ptr().cast(), room.len()) };
        let got = usize::try_from(got).expect("read");
        assert_eq!((got, &room[..got]), (FILLING_BYTES, &[0; FILLING_BYTES][..]));
        assert_eq!(socket::readiness(&ends[0], 0), Readiness::Room);
    }
}
