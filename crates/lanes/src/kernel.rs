//! The kernel's side of a stream's end: which stream a descriptor is an end of, how far it is, tokens and literal bytes.

use crate::board::Slot;
use crate::ends::End;
use crate::protocol::{Address, Stream};
use crate::{receive, send};
use uncopy_net::name;
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec::Part;
use uncopy_sys::{diag, socket, stream, unix};

/// The inode of no socket.
const NO_INODE: u64 = 0;

/// The stream that a descriptor is an end of; `None`: it is no connected TCP or UNIX stream.
pub(crate) fn stream_of(fd: i32) -> Option<Stream> {
    let (domain, kind, protocol) = socket::kind(fd).ok()?;
    match domain {
        _ if kind != libc::SOCK_STREAM => None,
        libc::AF_UNIX => net_stream(fd).or_else(|| unix_stream(fd)),
        libc::AF_INET | libc::AF_INET6 if protocol == libc::IPPROTO_TCP => {
            let [near, far] = socket::ends(fd)?.map(|address| parse(&address));
            Some(Stream::Tcp { namespace: socket::namespace(fd).ok()?, near: near?, far: far? })
        }
        _ => None,
    }
}

/// The connection of a service, at whichever of its ends.
fn net_stream(fd: i32) -> Option<Stream> {
    let known = |name: unix::Name| name::Connection::parse(&name);
    let own = unix::own_name(fd).and_then(known);
    let known = own.or_else(|| unix::peer_name(fd).and_then(known))?;
    let connection = u64::from(known.slot) << 32 | u64::from(known.serial);
    Some(Stream::Net { service: known.service, connection, is_named: own.is_some() })
}

/// A connected UNIX stream. Where its ends cannot be told, as of one that belongs to another network namespace, it is one that no
/// other end matches: it is not asked again.
fn unix_stream(fd: i32) -> Option<Stream> {
    match diag::unix_ends(fd) {
        Ok([near, far]) => Some(Stream::Unix { near, far }),
        Err(Errno(libc::ENOENT | libc::EPROTONOSUPPORT | libc::EPERM | libc::EACCES)) => {
            Some(Stream::Unix { near: socket::cookie(fd).ok()?, far: NO_INODE })
        }
        Err(_) => None,
    }
}

/// An address as the kernel writes it.
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

/// Offset in a TCP stream of the next byte that is read. Nobody else reads meanwhile.
pub(crate) fn read_bytes(fd: i32) -> Option<u64> {
    let mut unread = stream::unread(fd).ok()? as u64;
    // What can be read only grows, and was so much all the while where it has not.
    loop {
        let received = stream::progress(fd).ok()?.received_bytes;
        let now = stream::unread(fd).ok()? as u64;
        if now == unread {
            return Some(received.wrapping_sub(now));
        }
        unread = now;
    }
}

/// Whether a socket's bytes are something else on the way (kTLS), or the kernel counts them for the program: a token is one byte,
/// whatever it stands for. What is set later is seen when it is set.
pub(crate) fn needs_every_byte(fd: i32) -> bool {
    socket::has_upper_layer(fd) || socket::least_bytes(fd) != Ok(1)
}

/// A socket's side of an end.
pub(crate) struct Kernel<'a> {
    pub(crate) fd: i32,
    pub(crate) end: &'a End,
    pub(crate) own: &'a Slot,
    pub(crate) far: &'a Slot,
    pub(crate) flags: i32,
}

impl Kernel<'_> {
    const fn is_tcp(&self) -> bool {
        matches!(self.end.stream, Stream::Tcp { .. })
    }

    /// Reads one byte, without waiting; EAGAIN also at the end.
    pub(crate) fn take_byte(&self) -> Result<u8, Errno> {
        let mut byte = [0u8; 1];
        let part = Part { address: byte.as_mut_ptr() as usize, len_bytes: 1 };
        self.own.receiving.begin_reading();
        // SAFETY: one byte of our own.
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
            let sent = self.far.receiving.quiet_bytes(is_empty)?;
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
