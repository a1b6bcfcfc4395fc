//! The kernel's side of a stream end: identity of the stream, byte counts, sending and receiving.

use crate::board::Slot;
use crate::ends::End;
use crate::protocol::{Address, Stream};
use crate::{receive, send};
use uncopy_net::name;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec::Part;
use uncopy_sys::{sock_diag, socket, stream, unix};

const NO_INODE: u64 = 0;

/// Returns the stream of a descriptor; `None` if it is not a connected TCP or UNIX stream.
pub(crate) fn stream_of(fd: ProgramFd) -> Option<Stream> {
    let (domain, kind, protocol) = socket::kind(fd).ok()?;
    match domain {
        _ if kind != libc::SOCK_STREAM => None,
        libc::AF_UNIX => net_stream(fd).or_else(|| unix_stream(fd)),
        libc::AF_INET | libc::AF_INET6 if protocol == libc::IPPROTO_TCP => {
            let [near, far] = socket::addresses(fd)?.map(|address| parse(&address));
            Some(Stream::Tcp { namespace: socket::namespace(fd).ok()?, near: near?, far: far? })
        }
        _ => None,
    }
}

/// Returns the `uncopy net` connection of which the descriptor is either end.
fn net_stream(fd: ProgramFd) -> Option<Stream> {
    let known = |name: unix::Name| name::Connection::parse(&name);
    let own = unix::own_name(fd).and_then(known);
    let known = own.or_else(|| unix::peer_name(fd).and_then(known))?;
    let connection = u64::from(known.slot) << 32 | u64::from(known.serial);
    Some(Stream::Net { service: known.service, connection, is_named: own.is_some() })
}

/// Returns the stream of a connected UNIX socket. If its peer cannot be determined, as in another network
/// namespace, returns a stream that matches no remote end, so that it is not looked up again.
fn unix_stream(fd: ProgramFd) -> Option<Stream> {
    match sock_diag::unix_inodes(fd) {
        Ok([near, far]) => Some(Stream::Unix { near, far }),
        Err(Errno(libc::ENOENT | libc::EPROTONOSUPPORT | libc::EPERM | libc::EACCES)) => {
            Some(Stream::Unix { near: socket::cookie(fd).ok()?, far: NO_INODE })
        }
        Err(_) => None,
    }
}

/// Parses a `sockaddr` of AF_INET or AF_INET6.
fn parse(address: &[u8; 28]) -> Option<Address> {
    let family = i32::from(u16::from_ne_bytes([address[0], address[1]]));
    let port = u16::from_be_bytes([address[2], address[3]]);
    let mut ip = [0u8; 16];
    match family {
        libc::AF_INET => {
            ip[10..12].fill(0xff);
            ip[12..].copy_from_slice(&address[4..8]);
        }
        libc::AF_INET6 => ip.copy_from_slice(&address[8..24]),
        _ => return None,
    }
    let word = |half: &[u8]| half.try_into().map_or(0, u64::from_be_bytes);
    Some(Address { ip: [word(&ip[..8]), word(&ip[8..])], port })
}

/// Returns the offset in a TCP stream of the next byte to read. Nobody reads meanwhile.
pub(crate) fn read_bytes(fd: ProgramFd) -> Option<u64> {
    let mut unread = stream::unread(fd).ok()? as u64;
    // The unread count only grows meanwhile: if it is equal before and after, it held for `received_bytes`.
    loop {
        let received = stream::progress(fd).ok()?.received_bytes;
        let now = stream::unread(fd).ok()? as u64;
        if now == unread {
            return Some(received.wrapping_sub(now));
        }
        unread = now;
    }
}

/// True if bytes on the wire differ from the socket's (kTLS), or the kernel counts bytes for the program
/// (SO_RCVLOWAT): a token is one byte, whatever it stands for. Later changes of these options are seen by the hook
/// of setsockopt.
pub(crate) fn needs_every_byte(fd: ProgramFd) -> bool {
    socket::has_upper_layer(fd) || socket::receive_low_water_bytes(fd) != Ok(1)
}

/// Kernel side of one end, with its slots.
pub(crate) struct Kernel<'a> {
    pub(crate) fd: ProgramFd,
    pub(crate) end: &'a End,
    pub(crate) own: &'a Slot,
    pub(crate) far: &'a Slot,
    pub(crate) flags: i32,
}

impl Kernel<'_> {
    const fn is_tcp(&self) -> bool {
        matches!(self.end.stream, Stream::Tcp { .. })
    }

    /// Reads one byte without blocking; EAGAIN also at end of file.
    pub(crate) fn take_byte(&self) -> Result<u8, Errno> {
        let mut byte = [0u8; 1];
        let part = Part { address: byte.as_mut_ptr() as usize, len_bytes: 1 };
        self.own.receiving.begin_reading();
        // SAFETY: `part` describes `byte`, a local that nothing else refers to.
        let taken = unsafe { socket::receive(self.fd, &[part], libc::MSG_DONTWAIT) };
        self.own.receiving.end_reading(*taken.as_ref().unwrap_or(&0));
        taken.and_then(|taken| if taken == 1 { Ok(byte[0]) } else { Err(Errno(libc::EAGAIN)) })
    }
}

impl receive::Socket for Kernel<'_> {
    fn unread(&self) -> Result<usize, Errno> {
        stream::unread(self.fd)
    }

    fn read_bytes(&self, _unread: usize) -> Option<u64> {
        Some(self.own.receiving.read_bytes())
    }

    fn take_token(&self) -> Result<(), Errno> {
        self.take_byte().map(drop)
    }
}

impl send::Socket for Kernel<'_> {
    fn sent_bytes(&self) -> Option<u64> {
        if self.is_tcp() {
            return stream::progress(self.fd).ok().map(|progress| progress.sent_bytes);
        }
        self.end.sent_bytes().or_else(|| {
            let is_empty = || stream::unsent(self.fd) == Ok(0);
            let sent = self.far.receiving.read_bytes_if_empty(is_empty)?;
            self.end.count_from(sent);
            Some(sent)
        })
    }

    fn send(&self, parts: &[Part]) -> Result<usize, Errno> {
        let flags = self.flags | libc::MSG_DONTWAIT;
        let sent = socket::send(self.fd, parts, flags, &socket::Envelope::default());
        if let Ok(sent) = sent {
            self.end.count_sent(sent);
        }
        sent
    }
}
