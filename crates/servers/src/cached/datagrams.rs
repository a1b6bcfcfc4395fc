//! Requests and answers by UDP, with memcached's frame header:
//!
//! ```text
//! 0      2         4          6         8
//! │ id   │ number  │ count    │ 0       │ request, or a piece of the answer …
//! ```
//!
//! A reference cannot be sent to an address in one call, and in two the kernel sums up all bytes of the datagram
//! (`__ip_append_data` leaves that to the device unless there is MSG_MORE). So a peer that gets a large value has a
//! socket of its own, bound to the same port and connected to it; the kernel then gives it that peer's requests too. By
//! the loopback device only where references are asked for: there the socket costs more than they save.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrAny, SocketFlags, SocketType, sockopt};
use smallvec::SmallVec;

use crate::cached::arguments::Transmit;
use crate::cached::cache::{Cache, Caller};
use crate::cached::outlet::{self, Lent};
use crate::cached::response::{Kind, Piece, Response};
use crate::cached::session::Session;
use crate::cached::statistics::{Counter, Counters};
use crate::transmit;
use uncopy_transmit::PAGE_BYTES;

/// The frame header, bytes.
const HEADER_BYTES: usize = 8;
/// Room for the frame header and the text that precedes a value, bytes.
const HEAD_BYTES: usize = 512;
/// The longest datagram, bytes.
const DATAGRAM_LIMIT_BYTES: usize = 65_507;
/// Requests answered in one turn.
const ROUNDS: usize = 64;
/// From this length on a value may be worth a reference.
const REFERENCE_BYTES: usize = 8 << 10;
/// Peers with sockets of their own; the one that was silent for longest makes room.
const PEERS: usize = 32;
/// Pages of values in one datagram: one splice takes 16, and one of them is for the text in front of the value.
const PAGES: usize = 15;

/// A peer with a socket of its own.
#[derive(Debug)]
struct Peer {
    address: SocketAddrAny,
    socket: OwnedFd,
    used: u64,
}

/// A UDP socket of one thread, and those of its peers.
#[derive(Debug)]
pub struct Endpoint {
    socket: OwnedFd,
    peers: Vec<Peer>,
    /// Answers by reference so far.
    answers: u64,
    buffer: Vec<u8>,
    response: Response,
}

impl Endpoint {
    /// On a bound, non-blocking socket that only this thread uses.
    pub fn new(socket: OwnedFd) -> Self {
        let (buffer, response) = (vec![0; DATAGRAM_LIMIT_BYTES], Response::default());
        Self { socket, peers: Vec::new(), answers: 0, buffer, response }
    }

    /// The endpoint's own socket.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Answers what has come on the socket with this number, for a while: 0 is the endpoint's own, others those of
    /// peers. `watch` is asked to have a new socket's events told with its number.
    pub fn turn(
        &mut self,
        number: usize,
        cache: &Cache,
        counters: &Counters,
        watch: &dyn Fn(&OwnedFd, usize) -> bool,
    ) {
        for _ in 0..ROUNDS {
            let socket = match number.checked_sub(1) {
                None => &self.socket,
                Some(peer) => match self.peers.get(peer) {
                    Some(peer) => &peer.socket,
                    None => return,
                },
            };
            match rustix::net::recvfrom(socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((len_bytes, _, Some(peer))) => self.serve(len_bytes, &peer, cache, counters, watch),
                // Refused: an earlier answer found nobody.
                Err(Errno::INTR | Errno::CONNREFUSED) | Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    /// The number of the socket that is connected to `address`, as an index; it is made if there is none.
    fn own_socket(
        &mut self,
        address: &SocketAddrAny,
        watch: &dyn Fn(&OwnedFd, usize) -> bool,
    ) -> Option<usize> {
        self.answers += 1;
        let known = self.peers.iter().position(|peer| peer.address == *address);
        let at = match known {
            Some(at) => at,
            None => {
                let socket = self.connected(address).ok()?;
                transmit::own(socket.as_fd(), false);
                let at = match self.peers.len() {
                    PEERS.. => (0..PEERS).min_by_key(|at| self.peers[*at].used)?,
                    at => at,
                };
                if !watch(&socket, at + 1) {
                    return None;
                }
                let peer = Peer { address: address.clone(), socket, used: 0 };
                match self.peers.get_mut(at) {
                    Some(silent) => *silent = peer,
                    None => self.peers.push(peer),
                }
                at
            }
        };
        self.peers[at].used = self.answers;
        Some(at)
    }

    fn connected(&self, address: &SocketAddrAny) -> rustix::io::Result<OwnedFd> {
        let local = rustix::net::getsockname(&self.socket)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(local.address_family(), SocketType::DGRAM, flags, None)?;
        sockopt::set_socket_reuseport(&socket, true)?;
        if local.address_family() == AddressFamily::INET6 {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        let _ = sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES);
        rustix::net::bind(&socket, &local)?;
        // Until it is connected it may get other peers' requests; they are answered all the same.
        rustix::net::connect(&socket, address)?;
        Ok(socket)
    }

    fn serve(
        &mut self,
        len_bytes: usize,
        peer: &SocketAddrAny,
        cache: &Cache,
        counters: &Counters,
        watch: &dyn Fn(&OwnedFd, usize) -> bool,
    ) {
        if len_bytes <= HEADER_BYTES {
            return;
        }
        counters.count(Counter::Datagrams);
        counters.add(Counter::BytesRead, len_bytes as u64);
        let buffer = std::mem::take(&mut self.buffer);
        let (header, request) = buffer[..len_bytes].split_at(HEADER_BYTES);
        let id = [header[0], header[1]];
        if header[4..6] == [0, 1] {
            let mut caller = Caller { cache, counters, response: &mut self.response };
            Session::default().feed(request, &mut caller);
        } else {
            self.response.line(b"SERVER_ERROR multi-packet request not supported");
        }
        self.buffer = buffer;
        if self.response.pending_bytes() > 0 {
            let transmit = cache.settings.transmit;
            let refers = transmit != Transmit::Copy
                && self.response.largest_bytes() >= REFERENCE_BYTES
                && (transmit != Transmit::Auto || !is_loopback(peer));
            let own = if refers { self.own_socket(peer, watch) } else { None };
            self.answer(id, peer, own, cache, counters);
        }
        self.response.clear();
    }

    /// Sends the answer, by reference on the peer's own socket if it has one.
    fn answer(
        &self,
        id: [u8; 2],
        peer: &SocketAddrAny,
        own: Option<usize>,
        cache: &Cache,
        counters: &Counters,
    ) {
        let mut parts = SmallVec::<[Piece<'_>; 8]>::new();
        self.response.gather(&mut parts);
        let room = usize::try_from(cache.settings.datagram_bytes).unwrap_or(0) - HEADER_BYTES;
        let pieces = cut(&parts, room, if own.is_some() { PAGES } else { usize::MAX });
        let Ok(count) = u16::try_from(pieces.len()) else { return };
        let mut at = Place::default();
        for (number, piece) in (0..count).zip(&pieces) {
            let mut head = SmallVec::<[u8; HEAD_BYTES]>::new();
            head.extend_from_slice(&id);
            head.extend_from_slice(&number.to_be_bytes());
            head.extend_from_slice(&count.to_be_bytes());
            head.extend_from_slice(&[0, 0]);
            let mut slices = SmallVec::<[Piece<'_>; 8]>::new();
            at = at.take(&parts, *piece, |slice| slices.push(slice));
            let mut slices = &slices[..];
            if let [text, rest @ ..] = slices
                && text.bytes.len() < HEAD_BYTES - HEADER_BYTES
            {
                head.extend_from_slice(text.bytes);
                slices = rest;
            }
            let mut datagram = SmallVec::<[Piece<'_>; 8]>::new();
            datagram.push(Piece { bytes: &head, kind: Kind::Text });
            datagram.extend_from_slice(slices);
            let sent = match own {
                // Nobody reads these sockets' error queues, so that nothing is lent until it is done with.
                Some(at) => {
                    let socket = self.peers[at].socket.as_fd();
                    outlet::send(cache.settings.transmit, socket, &datagram, &mut Lent::default())
                }
                None => outlet::send_to(self.socket.as_fd(), &datagram, peer),
            };
            match sent {
                Ok(sent_bytes) => counters.add(Counter::BytesWritten, sent_bytes as u64),
                // The rest would be of no use.
                Err(_) => return counters.count(Counter::DatagramsDropped),
            }
        }
    }
}

/// Whether a peer is reached by the loopback device: with a socket for each fewer requests are answered at a time, which costs
/// more there than references save.
fn is_loopback(peer: &SocketAddrAny) -> bool {
    SocketAddr::try_from(peer.clone()).is_ok_and(|peer| peer.ip().to_canonical().is_loopback())
}

/// Where the pieces of an answer begin and end.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    part: usize,
    offset: usize,
}

impl Place {
    /// Gives the next `len_bytes` of `parts`, and says where it ended.
    fn take<'a>(
        mut self,
        parts: &[Piece<'a>],
        mut len_bytes: usize,
        mut give: impl FnMut(Piece<'a>),
    ) -> Self {
        while len_bytes > 0
            && let Some(part) = parts.get(self.part)
        {
            let rest = &part.bytes[self.offset..];
            let taken = rest.len().min(len_bytes);
            give(Piece { bytes: &rest[..taken], kind: part.kind });
            len_bytes -= taken;
            self.offset += taken;
            if taken == rest.len() {
                self = Self { part: self.part + 1, offset: 0 };
            }
        }
        self
    }
}

/// The lengths of the datagrams that `parts` are cut into: each has at most `room` bytes, and its values, as opposed
/// to the text between them, lie in at most `pages` pages.
fn cut(parts: &[Piece<'_>], room: usize, pages: usize) -> SmallVec<[usize; 8]> {
    let mut pieces = SmallVec::new();
    let (mut len_bytes, mut pages_left) = (0, pages);
    for part in parts {
        let mut rest = part.bytes;
        while !rest.is_empty() {
            let in_page = rest.as_ptr().addr() % PAGE_BYTES;
            let is_text = part.kind == Kind::Text || part.bytes.len() < REFERENCE_BYTES;
            let fitting = if is_text {
                usize::MAX
            } else {
                pages_left.saturating_mul(PAGE_BYTES).saturating_sub(in_page)
            };
            let taken = rest.len().min(room - len_bytes).min(fitting);
            len_bytes += taken;
            if !is_text {
                pages_left -= if pages == usize::MAX { 0 } else { (in_page + taken).div_ceil(PAGE_BYTES) };
            }
            rest = &rest[taken..];
            if !rest.is_empty() {
                pieces.push(len_bytes);
                (len_bytes, pages_left) = (0, pages);
            }
        }
    }
    if len_bytes > 0 {
        pieces.push(len_bytes);
    }
    pieces
}

/// What UDP sockets may queue, bytes; the kernel's own limit is lower on most machines.
pub const SEND_BUFFER_BYTES: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_hold_no_more_than_a_datagram_and_its_pages() {
        let value = vec![7_u8; 300_000];
        let from = value.as_ptr().align_offset(PAGE_BYTES);
        for (offset, len_bytes) in
            [(0, 1000), (0, 65_000), (100, 61_440), (4000, 200_000), (1, REFERENCE_BYTES)]
        {
            let value = &value[from + offset..from + offset + len_bytes];
            let text = |bytes| Piece { bytes, kind: Kind::Text };
            let value = Piece { bytes: value, kind: Kind::Settled };
            let parts = [text(b"VALUE a 0 9\r\n"), value, text(b"END\r\n")];
            for (room, pages) in [(248, usize::MAX), (1392, PAGES), (65_499, PAGES), (65_499, usize::MAX)] {
                let pieces = cut(&parts, room, pages);
                assert!(pieces.iter().all(|piece| (1..=room).contains(piece)));
                let mut at = Place::default();
                let mut whole = Vec::new();
                for piece in &pieces {
                    let mut touched = 0;
                    at = at.take(&parts, *piece, |slice| {
                        let bytes = slice.bytes;
                        if slice.kind == Kind::Settled {
                            let in_page = bytes.as_ptr().addr() % PAGE_BYTES;
                            touched += (in_page + bytes.len()).div_ceil(PAGE_BYTES);
                        }
                        whole.extend_from_slice(bytes);
                    });
                    assert!(len_bytes < REFERENCE_BYTES || touched <= pages, "{touched} pages");
                }
                assert_eq!(whole, parts.iter().flat_map(|part| part.bytes.to_vec()).collect::<Vec<_>>());
            }
        }
    }
}
