//! Requests and answers by UDP, with memcached's frame header:
//!
//! ```text
//! 0      2         4          6         8
//! │ id   │ number  │ count    │ 0       │ request, or a piece of the answer …
//! ```
//!
//! A reference cannot be sent to an address, only on a connected socket. So a peer that gets a large value has a socket
//! of its own, bound to the same port and connected to it; the kernel then gives it that peer's requests as well.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrAny, SocketFlags, SocketType, sockopt};
use smallvec::SmallVec;

use crate::arguments::Transmit;
use crate::cache::{Cache, Caller};
use crate::outlet::{self, PAGE_BYTES};
use crate::response::Response;
use crate::session::Session;
use crate::statistics::Counter;
use crate::statistics::Counters;

/// The frame header, bytes.
const HEADER_BYTES: usize = 8;
/// The longest datagram, bytes.
const DATAGRAM_LIMIT_BYTES: usize = 65_507;
/// Requests answered in one turn.
const ROUNDS: usize = 64;
/// Peers that have a socket of their own.
const PEERS: usize = 32;
/// From this length on a value is worth a socket of its own.
const REFERENCE_BYTES: usize = 8 << 10;
/// Pages of values in one datagram: a socket buffer has 17 fragments, a splice of one datagram takes 16, and one holds
/// the header.
const PAGES: usize = 15;

/// A peer with a socket of its own.
#[derive(Debug)]
struct Peer {
    address: SocketAddrAny,
    socket: OwnedFd,
    used: u64,
}

/// A UDP socket of one thread.
#[derive(Debug)]
pub struct Endpoint {
    socket: OwnedFd,
    event: u64,
    peers: Vec<Peer>,
    clock: u64,
    buffer: Vec<u8>,
    response: Response,
}

impl Endpoint {
    /// On a bound, non-blocking socket, whose events are told by `epoll` as `event`, and those of peers' sockets with
    /// their numbers from 1 on, 16 bits above.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn new(socket: OwnedFd, epoll: &OwnedFd, event: u64) -> rustix::io::Result<Self> {
        epoll::add(epoll, &socket, EventData::new_u64(event), EventFlags::IN)?;
        let buffer = vec![0; DATAGRAM_LIMIT_BYTES];
        Ok(Self { socket, event, peers: Vec::new(), clock: 0, buffer, response: Response::default() })
    }

    /// Answers what has come on one of its sockets, for a while.
    pub fn turn(&mut self, socket: usize, cache: &Cache, counters: &Counters, epoll: &OwnedFd) {
        for _ in 0..ROUNDS {
            let from = match socket.checked_sub(1) {
                None => &self.socket,
                Some(peer) => match self.peers.get(peer) {
                    Some(peer) => &peer.socket,
                    None => return,
                },
            };
            match rustix::net::recvfrom(from, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((len_bytes, _, Some(peer))) => self.serve(len_bytes, &peer, cache, counters, epoll),
                // An answer to an earlier datagram of ours: that peer is gone.
                Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::INTR) | Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    fn serve(
        &mut self,
        len_bytes: usize,
        peer: &SocketAddrAny,
        cache: &Cache,
        counters: &Counters,
        epoll: &OwnedFd,
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
            self.answer(id, peer, cache, counters, epoll);
        }
        self.response.clear();
    }

    fn answer(
        &mut self,
        id: [u8; 2],
        peer: &SocketAddrAny,
        cache: &Cache,
        counters: &Counters,
        epoll: &OwnedFd,
    ) {
        let mut parts = SmallVec::<[IoSlice<'_>; 8]>::new();
        self.response.gather(&mut parts);
        let transmit = cache.settings.transmit;
        let by_reference =
            transmit != Transmit::Copy && parts.iter().any(|part| part.len() >= REFERENCE_BYTES);
        let room = usize::try_from(cache.settings.datagram_bytes).unwrap_or(0) - HEADER_BYTES;
        let pieces = cut(&parts, room, if by_reference { PAGES } else { usize::MAX });
        let Ok(count) = u16::try_from(pieces.len()) else { return };
        let own = if by_reference {
            let (endpoint, event) = (&self.socket, self.event);
            self.clock += 1;
            peer_socket(&mut self.peers, peer, self.clock, endpoint, event, epoll)
        } else {
            None
        };
        let mut at = Place::default();
        for (number, piece) in (0..count).zip(&pieces) {
            let mut header = [0; HEADER_BYTES];
            header[..2].copy_from_slice(&id);
            header[2..4].copy_from_slice(&number.to_be_bytes());
            header[4..6].copy_from_slice(&count.to_be_bytes());
            let mut datagram = SmallVec::<[IoSlice<'_>; 8]>::new();
            datagram.push(IoSlice::new(&header));
            at = at.take(&parts, *piece, |slice| datagram.push(IoSlice::new(slice)));
            let sent = match own {
                Some(socket) => outlet::send(transmit, self.peers[socket].socket.as_fd(), &datagram),
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
        parts: &'a [IoSlice<'_>],
        mut len_bytes: usize,
        mut give: impl FnMut(&'a [u8]),
    ) -> Self {
        while len_bytes > 0
            && let Some(part) = parts.get(self.part)
        {
            let rest = &part[self.offset..];
            let taken = rest.len().min(len_bytes);
            give(&rest[..taken]);
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
fn cut(parts: &[IoSlice<'_>], room: usize, pages: usize) -> SmallVec<[usize; 8]> {
    let mut pieces = SmallVec::new();
    let (mut len_bytes, mut pages_left) = (0, pages);
    for part in parts {
        let mut rest: &[u8] = part;
        while !rest.is_empty() {
            let in_page = rest.as_ptr().addr() % PAGE_BYTES;
            let is_text = part.len() < REFERENCE_BYTES;
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

/// The number of the socket that is connected to `address`; it is made if there is none.
fn peer_socket(
    peers: &mut Vec<Peer>,
    address: &SocketAddrAny,
    clock: u64,
    endpoint: &OwnedFd,
    event: u64,
    epoll: &OwnedFd,
) -> Option<usize> {
    if let Some(at) = peers.iter().position(|peer| peer.address == *address) {
        peers[at].used = clock;
        return Some(at);
    }
    let make = || -> rustix::io::Result<OwnedFd> {
        let local = rustix::net::getsockname(endpoint)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let family: AddressFamily = local.address_family();
        let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
        sockopt::set_socket_reuseport(&socket, true)?;
        if family == AddressFamily::INET6 {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        let _ = sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES);
        rustix::net::bind(&socket, &local)?;
        rustix::net::connect(&socket, address)?;
        Ok(socket)
    };
    let socket = make().ok()?;
    outlet::own_datagrams(socket.as_fd());
    let at =
        if peers.len() < PEERS { peers.len() } else { (0..peers.len()).min_by_key(|at| peers[*at].used)? };
    let number = at as u64 + 1;
    epoll::add(epoll, &socket, EventData::new_u64(event | number << 16), EventFlags::IN).ok()?;
    let peer = Peer { address: address.clone(), socket, used: clock };
    if at == peers.len() {
        peers.push(peer);
    } else {
        peers[at] = peer;
    }
    Some(at)
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
            let parts = [IoSlice::new(b"VALUE a 0 9\r\n"), IoSlice::new(value), IoSlice::new(b"END\r\n")];
            for (room, pages) in [(248, usize::MAX), (1392, PAGES), (65_499, PAGES), (65_499, usize::MAX)] {
                let pieces = cut(&parts, room, pages);
                assert!(pieces.iter().all(|piece| (1..=room).contains(piece)));
                let mut at = Place::default();
                let mut whole = Vec::new();
                for piece in &pieces {
                    let mut touched = 0;
                    at = at.take(&parts, *piece, |slice| {
                        if slice.len() > 100 {
                            let in_page = slice.as_ptr().addr() % PAGE_BYTES;
                            touched += (in_page + slice.len()).div_ceil(PAGE_BYTES);
                        }
                        whole.extend_from_slice(slice);
                    });
                    assert!(len_bytes < REFERENCE_BYTES || touched <= pages, "{touched} pages");
                }
                assert_eq!(whole, parts.iter().flat_map(|part| part.to_vec()).collect::<Vec<_>>());
            }
        }
    }
}
