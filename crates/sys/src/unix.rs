//! UNIX stream sockets by their names (unix(7)): made, bound, connected, asked.

use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};
use crate::iovec::Part;
use crate::socket::{self, Envelope};

/// Bytes of a name, at most.
pub const MAX_NAME_BYTES: usize = 107;

/// A socket's name: a path, or behind a NUL any bytes, which are no file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    bytes: [u8; MAX_NAME_BYTES],
    len_bytes: u8,
}

impl Name {
    /// `None`: too long.
    #[must_use]
    pub fn new(name: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_NAME_BYTES];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Self { bytes, len_bytes: name.len() as u8 })
    }

    /// As the kernel has written it: an address of `len_bytes` bytes at most of which are there. `None`: it is no UNIX socket's.
    #[must_use]
    pub fn of_address(address: &[u8]) -> Option<Self> {
        let (family, name) = address.split_first_chunk()?;
        if i32::from(u16::from_ne_bytes(*family)) != libc::AF_UNIX {
            return None;
        }
        // A path ends with a NUL, or where there is no room for one.
        let end = if name.first() == Some(&0) { None } else { name.iter().position(|byte| *byte == 0) };
        Self::new(&name[..end.unwrap_or(name.len()).min(name.len())])
    }

    /// The name; empty: none.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len_bytes as usize]
    }

    fn address(&self) -> (libc::sockaddr_un, usize) {
        // SAFETY: all-zero bytes are a valid address.
        let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in address.sun_path.iter_mut().zip(self.bytes()) {
            *to = *from as libc::c_char;
        }
        (address, size_of::<libc::sa_family_t>() + self.bytes().len())
    }
}

fn make(kind: i32) -> Result<i32, Errno> {
    let kind = kind | libc::SOCK_CLOEXEC;
    // SAFETY: makes a descriptor, touches no memory.
    check(unsafe { kernel!(Open, syscall!(libc::SYS_socket, libc::AF_UNIX, kind, 0)) }).map(|fd| fd as i32)
}

/// A stream socket without a name, whose calls wait. Closed by `exec`.
///
/// # Errors
/// What socket says.
pub fn stream() -> Result<i32, Errno> {
    make(libc::SOCK_STREAM)
}

/// Two of them, connected. They may be given names.
///
/// # Errors
/// What socketpair says.
pub fn pair() -> Result<[i32; 2], Errno> {
    pair_of(libc::SOCK_STREAM | libc::SOCK_CLOEXEC)
}

/// The same of another kind.
///
/// # Errors
/// What socketpair says.
pub(crate) fn pair_of(kind: i32) -> Result<[i32; 2], Errno> {
    let mut ends = [-1; 2];
    // SAFETY: room for two descriptors.
    check(unsafe {
        kernel!(Open, syscall!(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr()))
    })?;
    Ok(ends)
}

/// One whose calls do not wait.
///
/// # Errors
/// What socket says.
pub fn stream_without_waiting() -> Result<i32, Errno> {
    make(libc::SOCK_STREAM | libc::SOCK_NONBLOCK)
}

/// Gives a socket its name.
///
/// # Errors
/// What bind says: EADDRINUSE where another has it.
pub fn bind(fd: i32, name: &Name) -> Result<(), Errno> {
    let (address, len_bytes) = name.address();
    // SAFETY: the address is valid for its length.
    check(unsafe { kernel!(Name, syscall!(libc::SYS_bind, fd, &raw const address, len_bytes)) }).map(drop)
}

/// Connects with whoever listens under a name.
///
/// # Errors
/// What connect says: ECONNREFUSED and ENOENT where nobody does, EAGAIN where it cannot wait.
pub fn connect(fd: i32, name: &Name) -> Result<(), Errno> {
    let (address, len_bytes) = name.address();
    // SAFETY: the address is valid for its length.
    check(unsafe { kernel!(Open, syscall!(libc::SYS_connect, fd, &raw const address, len_bytes)) }).map(drop)
}

/// Waits for `backlog` connections at most under the socket's name.
///
/// # Errors
/// What listen says.
pub fn listen(fd: i32, backlog: i32) -> Result<(), Errno> {
    // SAFETY: touches no memory.
    check(unsafe { kernel!(Open, syscall!(libc::SYS_listen, fd, backlog)) }).map(drop)
}

/// Takes a connection, and the name of the socket at its other end. Its calls do not wait; closed by `exec`.
///
/// # Errors
/// What accept4 says: EAGAIN where there is none.
pub fn accept(fd: i32) -> Result<(i32, Option<Name>), Errno> {
    let mut address = [0u8; size_of::<libc::sockaddr_un>()];
    let mut len_bytes = address.len() as u32;
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: room for as many bytes as is said.
    let accepted = check(unsafe {
        kernel!(Open, syscall!(libc::SYS_accept4, fd, address.as_mut_ptr(), &raw mut len_bytes, flags))
    })?;
    let known = address.get(..len_bytes as usize).and_then(Name::of_address);
    Ok((accepted as i32, known))
}

fn asked(call: i64, fd: i32) -> Option<Name> {
    let mut address = [0u8; size_of::<libc::sockaddr_un>()];
    let mut len_bytes = address.len() as u32;
    // SAFETY: room for as many bytes as is said.
    check(unsafe { kernel!(Ask, syscall!(call, fd, address.as_mut_ptr(), &raw mut len_bytes)) }).ok()?;
    Name::of_address(&address[..(len_bytes as usize).min(address.len())])
}

/// The name of a UNIX socket, which may be empty; `None`: it is something else.
#[must_use]
pub fn own_name(fd: i32) -> Option<Name> {
    asked(libc::SYS_getsockname, fd)
}

/// The name of the socket at the other end; `None`: it is something else, or not connected.
#[must_use]
pub fn peer_name(fd: i32) -> Option<Name> {
    asked(libc::SYS_getpeername, fd)
}

/// Whether a stream socket has this path as its name, listening or not.
#[must_use]
pub fn has_owner(path: &Name) -> bool {
    let Ok(probe) = make(libc::SOCK_DGRAM) else { return true };
    // The kernel says that the type is wrong if there is a socket, else that there is none.
    let found = connect(probe, path);
    crate::file::close(probe);
    !matches!(found, Err(Errno(libc::ECONNREFUSED | libc::ENOENT)))
}

/// Puts the open file of `from` in the place of `to`, with what `to` had to say of `exec`. `from` stays.
///
/// # Errors
/// What dup3 says.
pub fn replace(from: i32, to: i32) -> Result<(), Errno> {
    let flags = if crate::fd::closes_on_exec(to) == Some(true) { libc::O_CLOEXEC } else { 0 };
    // SAFETY: touches no memory.
    check(unsafe { kernel!(Open, syscall!(libc::SYS_dup3, from, to, flags)) }).map(drop)
}

/// Gives a socket what another one has: whether calls wait, how long they do, and whether closing waits.
///
/// # Errors
/// What fcntl, getsockopt and setsockopt say.
pub fn inherit(from: i32, to: i32) -> Result<(), Errno> {
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO, libc::SO_LINGER] {
        let mut value = [0u64; 2];
        let mut len_bytes = size_of_val(&value) as u32;
        // SAFETY: room for as many bytes as is said, and as many valid ones.
        unsafe {
            let (level, at) = (libc::SOL_SOCKET, value.as_mut_ptr());
            check(kernel!(Ask, syscall!(libc::SYS_getsockopt, from, level, name, at, &raw mut len_bytes)))?;
            check(kernel!(Ask, syscall!(libc::SYS_setsockopt, to, level, name, at, len_bytes)))?;
        }
    }
    let flags = crate::file::flags(from)?;
    // SAFETY: touches no memory.
    check(unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, to, libc::F_SETFL, flags)) }).map(drop)
}

/// What a program keeps at a socket for itself, and for whoever else comes to have it: SO_MAX_PACING_RATE, which means nothing to UNIX
/// sockets and holds 64 bits (Linux 4.20; checked with 6.18). `None`: nothing yet.
#[must_use]
pub fn note(fd: i32) -> Option<u64> {
    let mut value = u64::MAX;
    let mut len_bytes = size_of_val(&value) as u32;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
    // SAFETY: room for as many bytes as is said.
    let asked = unsafe {
        kernel!(Ask, syscall!(libc::SYS_getsockopt, fd, level, name, &raw mut value, &raw mut len_bytes))
    };
    check(asked).ok().filter(|_| len_bytes == 8 && value != u64::MAX).map(|_| value)
}

/// Keeps it; all ones: nothing.
///
/// # Errors
/// What setsockopt says.
pub fn set_note(fd: i32, note: u64) -> Result<(), Errno> {
    let (level, name, len_bytes) = (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, size_of_val(&note));
    // SAFETY: as many valid bytes as is said.
    check(unsafe {
        kernel!(Ask, syscall!(libc::SYS_setsockopt, fd, level, name, &raw const note, len_bytes))
    })
    .map(drop)
}

/// Zeroes that fill a stream's buffer.
pub const FILLING_BYTES: usize = 64 << 10;

/// Sends [`FILLING_BYTES`] zeroes: until they are read, poll says that the socket has no room. It must be connected and unused. Nothing
/// waits.
///
/// # Errors
/// What setsockopt and sendmsg say: EPIPE where the other end is closed.
pub fn fill(fd: i32) -> Result<(), Errno> {
    static ZEROES: [u8; FILLING_BYTES] = [0; FILLING_BYTES];
    /// Doubled by the kernel, Linux's default; a stream has no room, to poll, from a fourth of it on.
    const BUFFER_BYTES: i32 = 106_496;
    let size = BUFFER_BYTES;
    // SAFETY: a valid integer.
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
        assert!(!has_owner(&name));
        bind(listener, &name).expect("bound");
        assert!(has_owner(&name), "bound, not listening");
        listen(listener, 4).expect("listening");
        assert!(has_owner(&name));
        let near = stream().expect("a socket");
        let own = Name::new(b"\0uncopy-test-\0\xff").expect("short");
        let own = Name::new(&[own.bytes(), &std::process::id().to_ne_bytes()].concat()).expect("short");
        bind(near, &own).expect("bound");
        connect(near, &name).expect("connected");
        let (far, peer) = accept(listener).expect("accepted");
        assert!(peer == Some(own) && own_name(near) == Some(own) && peer_name(near) == Some(name));
        assert!(peer_name(far) == Some(own) && peer_name(listener).is_none());
        for fd in [near, far, listener] {
            crate::file::close(fd);
        }
        assert!(!has_owner(&name), "the file is there, the socket is not");
        std::fs::remove_file(std::str::from_utf8(name.bytes()).expect("UTF-8")).expect("the name");
        assert!(Name::new(&[1; MAX_NAME_BYTES + 1]).is_none());
    }

    #[test]
    fn what_is_kept_at_a_socket_is_there_for_everybody_who_has_it() {
        let fd = stream().expect("a socket");
        assert_eq!(note(fd), None);
        set_note(fd, 1 << 63 | 5).expect("kept");
        let other = stream().expect("a socket");
        replace(fd, other).expect("replaced");
        assert_eq!((note(fd), note(other)), (Some(1 << 63 | 5), Some(1 << 63 | 5)));
        [fd, other].into_iter().for_each(crate::file::close);
    }

    #[test]
    fn a_filled_socket_has_room_again_once_it_is_read() {
        let ends = pair().expect("sockets");
        let name = Name::new(&[&b"\0uncopy-test-"[..], &ends[0].to_ne_bytes()].concat()).expect("short");
        bind(ends[0], &name).expect("bound");
        assert_eq!(peer_name(ends[1]), Some(name));
        fill(ends[0]).expect("filled");
        assert_eq!(socket::readiness(ends[0], 0), Readiness::Full);
        let mut room = vec![7u8; 1 << 20];
        // SAFETY: room for as many bytes.
        let got = unsafe { libc::read(ends[1], room.as_mut_ptr().cast(), room.len()) };
        let got = usize::try_from(got).expect("read");
        assert_eq!((got, &room[..got]), (FILLING_BYTES, &[0; FILLING_BYTES][..]));
        assert_eq!(socket::readiness(ends[0], 0), Readiness::Room);
        ends.into_iter().for_each(crate::file::close);
    }
}
