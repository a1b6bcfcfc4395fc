//! Listeners: new connections, and answers to segments without a connection.
//!
//! Once a listener, or the stack, has its maximum of half-open connections, SYNs are answered by SYN cookies
//! (RFC 4987, section 3.6). Such a connection has no window scaling, timestamps, SACK or ECN.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::{ConnectionId, Stack};
use crate::config::{Config, DEFAULT_PEER_MSS};
use crate::connection::Connection;
use crate::error::Error;
use crate::options::Options;
use crate::payload::Payload;
use crate::secret::COOKIE_TICK_NS;
use crate::segment::{Flags, Header, Segment};
use crate::wire::Tuple;

/// Maximum number of queued answers to segments without a connection; further ones are dropped.
const MAX_QUEUED_ANSWERS: usize = 256;

#[derive(Debug)]
pub(super) struct Listener {
    config: Arc<Config>,
    backlog: usize,
    pub(super) half_open: usize,
    pub(super) accepted: VecDeque<ConnectionId>,
    /// Time until which an acknowledgement may carry a cookie.
    cookies_until_ns: u64,
}

impl Listener {
    fn is_full(&self) -> bool {
        self.accepted.len() >= self.backlog
    }
}

impl<P: Payload> Stack<P> {
    /// Listens at an address, or at a port of all addresses if the address is unspecified.
    ///
    /// # Errors
    ///
    /// EADDRINUSE if a listener has this address.
    pub fn listen(
        &mut self,
        address: SocketAddr,
        backlog: usize,
        config: Option<Config>,
    ) -> Result<(), Error> {
        if self.listeners.contains_key(&address) {
            return Err(Error::AddressInUse);
        }
        let config = config.map_or_else(|| Arc::clone(&self.config), Arc::new);
        let listener = Listener {
            config,
            backlog: backlog.max(1),
            half_open: 0,
            accepted: VecDeque::new(),
            cookies_until_ns: 0,
        };
        self.listeners.insert(address, listener);
        Ok(())
    }

    /// Removes a listener and resets its connections that were not accepted.
    pub fn unlisten(&mut self, address: SocketAddr) {
        if self.listeners.remove(&address).is_none() {
            return;
        }
        for index in 0..self.slots.len() as u32 {
            if let Some(entry) = self.entry(index)
                && entry.listener == Some(address)
            {
                entry.connection.abort();
                entry.is_orphaned = true;
                self.touch(index);
            }
        }
    }

    /// Returns the next connection to accept.
    pub fn accept(&mut self, address: SocketAddr) -> Option<ConnectionId> {
        let id = self.listeners.get_mut(&address)?.accepted.pop_front()?;
        self.entry(id.index)?.listener = None;
        Some(id)
    }

    /// Returns the listener's address for segments to `local`.
    pub(super) fn listening_address(&self, local: SocketAddr) -> Option<SocketAddr> {
        let any = match local.ip() {
            IpAddr::V4(_) => IpAddr::from([0; 4]),
            IpAddr::V6(_) => IpAddr::from([0; 16]),
        };
        let addresses = [local, SocketAddr::new(any, local.port())];
        addresses.into_iter().find(|address| self.listeners.contains_key(address))
    }

    /// Processes a segment without a connection (RFC 9293, sections 3.10.7.1 and 3.10.7.2).
    pub(super) fn on_syn(
        &mut self,
        tuple: Tuple,
        segment: Segment<P>,
        reuse_initial: Option<u32>,
        now_ns: u64,
    ) {
        let flags = segment.header.flags;
        let address = self.listening_address(tuple.local);
        let (Some(address), true, false, false) = (address, flags.syn, flags.ack, flags.rst) else {
            // A listener ignores segments with neither SYN nor ACK.
            let is_ignored = address.is_some() && !flags.ack && !flags.syn;
            let has_cookie =
                address.is_some_and(|address| self.accept_cookie(address, tuple, &segment, now_ns));
            if let Some(header) = segment.reset()
                && !is_ignored
                && !has_cookie
            {
                self.answer(tuple, header);
            }
            return;
        };
        let listener = &self.listeners[&address];
        if listener.is_full() {
            // Dropped: the peer retransmits the SYN.
            return;
        }
        if listener.half_open >= listener.backlog || self.half_open >= self.limits.max_half_open {
            self.answer_by_cookie(address, tuple, &segment.header, now_ns);
            return;
        }
        let initial = reuse_initial.unwrap_or_else(|| self.secret.initial_sequence(&tuple, now_ns));
        let offset = self.secret.timestamp_offset(tuple.local.ip(), tuple.remote.ip());
        let config = Arc::clone(&listener.config);
        let connection = Connection::accept(config, initial, offset, &segment.header, now_ns);
        self.add_accepted(address, tuple, connection);
    }

    /// Queues an answer to a segment without a connection, unless too many are queued.
    fn answer(&mut self, tuple: Tuple, header: Header) {
        if self.answers.len() < MAX_QUEUED_ANSWERS {
            self.answers.push_back((tuple, header));
        }
    }

    /// Adds a connection to a listener, unless the limit is reached.
    fn add_accepted(&mut self, address: SocketAddr, tuple: Tuple, connection: Connection<P>) {
        if self.connections() >= self.limits.max_connections {
            return;
        }
        // `touch` decrements both once the handshake has completed: after a cookie, at once.
        self.half_open += 1;
        self.listeners.get_mut(&address).expect("it was found").half_open += 1;
        self.add(tuple, Some(address), connection);
    }

    /// Answers a SYN by a cookie (RFC 4987, section 3.6). Options other than the MSS are lost.
    fn answer_by_cookie(&mut self, address: SocketAddr, tuple: Tuple, syn: &Header, now_ns: u64) {
        let Some(listener) = self.listeners.get_mut(&address) else { return };
        listener.cookies_until_ns = now_ns + 2 * COOKIE_TICK_NS;
        let own_mss = listener.config.mss;
        let window = listener.config.receive_buffer_bytes.min(0xffff) as u16;
        let mss = syn.options.max_segment_size.unwrap_or(DEFAULT_PEER_MSS);
        let header = Header {
            sequence: self.secret.cookie(&tuple, syn.sequence, mss, now_ns),
            acknowledgement: syn.sequence.wrapping_add(1),
            flags: Flags { syn: true, ack: true, ..Flags::default() },
            window,
            options: Options { max_segment_size: Some(own_mss), ..Options::default() },
            ..Header::default()
        };
        self.answer(tuple, header);
    }

    /// Returns whether a segment acknowledges a cookie; its connection is then added, or dropped if
    /// the backlog is full.
    fn accept_cookie(
        &mut self,
        address: SocketAddr,
        tuple: Tuple,
        segment: &Segment<P>,
        now_ns: u64,
    ) -> bool {
        let (header, flags) = (&segment.header, segment.header.flags);
        let Some(listener) = self.listeners.get(&address) else { return false };
        if !flags.ack || flags.syn || flags.rst || now_ns >= listener.cookies_until_ns {
            return false;
        }
        let cookie = header.acknowledgement.wrapping_sub(1);
        let peer_initial = header.sequence.wrapping_sub(1);
        let Some(mss) = self.secret.cookie_mss(&tuple, peer_initial, cookie, now_ns) else { return false };
        if listener.is_full() {
            return true;
        }
        let syn = Header {
            sequence: peer_initial,
            flags: Flags { syn: true, ..Flags::default() },
            window: header.window,
            options: Options { max_segment_size: Some(mss), ..Options::default() },
            ..Header::default()
        };
        let config = Arc::clone(&listener.config);
        let mut connection = Connection::accept_by_cookie(config, cookie, &syn, now_ns);
        connection.on_segment(segment.clone(), now_ns);
        self.add_accepted(address, tuple, connection);
        true
    }
}
