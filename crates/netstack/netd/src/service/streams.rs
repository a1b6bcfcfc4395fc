//! Bytes: from TCP to programs' streams, and from streams to TCP.

use super::Service;
use crate::connection::{Connection, Stage};
use crate::payload::Bytes;
use crate::receive_buffers::copy_to_buffer;
use crate::settings::{config, with_options};
use crate::stream::{PullResult, Stream};
use rustix::event::epoll::{self, EventData, EventFlags};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use uncopy_lanes::process::Process;
use uncopy_net::message::Options;
use uncopy_net::name;
use uncopy_net::state_table::ConnectionState;
use uncopy_sys::errno::Errno;
use uncopy_sys::unix;
use uncopy_tcp::connection::Received;
use uncopy_tcp::error::Error;
use uncopy_tcp::payload::Payload as _;
use uncopy_tcp::stack::ConnectionId;
use uncopy_tcp::wire::Tuple;

/// Maximum number of bytes queued for a program outside TCP's receive buffer.
const MAX_WAITING_BYTES: usize = 1 << 20;

/// Replaces the pieces by copies, as the socket API makes them. Returns the number of bytes.
fn copy_all<'a>(process: &'static Process, pieces: impl Iterator<Item = &'a mut Bytes>) -> u64 {
    let copy = |piece: &'a mut Bytes| {
        *piece = copy_to_buffer(process, piece);
        piece.len_bytes() as u64
    };
    pieces.map(copy).sum()
}

impl Service {
    /// Opens a connection whose stream the program has filled.
    fn begin_connection(&mut self, slot: u32) {
        let now_ns = self.now_ns();
        let Some(connection) = self.connections.get(slot) else { return };
        connection.stage = Stage::Opening;
        let base = config(&*self.link, &self.settings, connection.tuple.local.is_ipv6());
        let options = with_options(base, connection.options);
        match self.stack.connect(connection.tuple, Some(options), now_ns) {
            Ok(id) => {
                connection.id = Some(id);
                self.by_id.insert(id, slot);
            }
            Err(error) => self.fail_connection(slot, error),
        }
    }

    pub(crate) fn begin_stream(&mut self, slot: u32, fd: OwnedFd) {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let watched = epoll::add(&self.epoll, &fd, EventData::new_u64(slot.into()), flags);
        if let Some(connection) = self.connections.get(slot) {
            connection.stream = Some(Stream::new(fd, self.process));
        }
        if watched.is_err() {
            self.fail_connection(slot, Error::NoBuffers);
        }
    }

    pub(super) fn deliver_accepted(&mut self) {
        for _ in 0..self.accepted.len() {
            let Some((id, address)) = self.accepted.pop_front() else { return };
            match self.deliver(id, address) {
                Ok(()) => {}
                Err(Errno::EAGAIN) => self.accepted.push_back((id, address)),
                Err(_) => self.stack.abort(id),
            }
        }
    }

    fn deliver(&mut self, id: ConnectionId, address: SocketAddr) -> Result<(), Errno> {
        let tuple = self.stack.tuple(id).ok_or(Errno(libc::ENOTCONN))?;
        let path = self.listeners.next(address).ok_or(Errno(libc::ECONNREFUSED))?;
        let fd = unix::nonblocking_stream()?;
        let connection =
            Connection { id: Some(id), ..Connection::new(Stage::Open, tuple, Options::default()) };
        let (slot, serial) = self.add(connection).ok_or(Errno(libc::ENOBUFS))?;
        let Tuple { local, remote } = tuple;
        let named = name::Connection { service: self.id, slot, serial, local, remote };
        self.state_table.set(slot, serial, ConnectionState::Established);
        match unix::bind(&fd, &named.name()).and_then(|()| unix::connect(&fd, &path)) {
            Ok(()) => {
                self.by_id.insert(id, slot);
                self.begin_stream(slot, fd.into());
                self.serve(slot);
                Ok(())
            }
            Err(errno) => {
                self.connections.remove(slot);
                if errno == Errno(libc::ECONNREFUSED) {
                    for at in self.listeners.on_refused(&path) {
                        self.stack.unlisten(at);
                    }
                    // Retried with one listener fewer.
                    return self.deliver(id, address);
                }
                if errno != Errno::EAGAIN {
                    self.remove_gone_listeners(|at| at.port() == address.port());
                }
                Err(errno)
            }
        }
    }

    pub(super) fn on_stream_event(&mut self, slot: u32, flags: EventFlags) {
        if let Some(stream) = self.connections.get(slot).and_then(|connection| connection.stream.as_mut()) {
            stream.is_readable |=
                flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
            stream.is_writable |= flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR);
            stream.has_hung_up |= flags.intersects(EventFlags::HUP | EventFlags::ERR);
            self.serve(slot);
        }
    }

    /// Fails a connection, and announces the error in the state table.
    pub(super) fn fail_connection(&mut self, slot: u32, error: Error) {
        let serial = self.connections.serial(slot);
        self.state_table.set(slot, serial, ConnectionState::Failed(error.errno()));
        self.detach(slot, true);
    }

    /// Detaches a connection from its program; `is_reset` selects RST instead of FIN.
    pub(super) fn detach(&mut self, slot: u32, is_reset: bool) {
        let Some(connection) = self.connections.remove(slot) else { return };
        if let Some(id) = connection.id {
            self.by_id.remove(&id);
            if is_reset {
                self.stack.abort(id);
            } else {
                self.stack.close(id, self.now_ns());
            }
        }
    }

    /// Moves bytes in both directions as far as possible.
    pub(super) fn serve(&mut self, slot: u32) {
        let Some(connection) = self.connections.get(slot) else { return };
        if connection.stage == Stage::Filling
            && let Some(stream) = &connection.stream
        {
            match (stream.is_filled(), stream.has_hung_up) {
                // Closed before the connection began: no further event reports it.
                (_, true) => self.fail_connection(slot, Error::ConnectionReset),
                (true, false) => self.begin_connection(slot),
                (false, false) => {}
            }
            return;
        }
        let Some(id) = connection.id else { return };
        if connection.stage == Stage::Opening {
            let state = self.stack.get(id).map(|tcp| tcp.state());
            match state {
                Some(uncopy_tcp::connection::State::SynSent | uncopy_tcp::connection::State::SynReceived) => {
                    if connection.stream.as_ref().is_some_and(|stream| stream.has_hung_up) {
                        // Closed, or shut by a program that may query the error.
                        self.fail_connection(slot, Error::ConnectionReset);
                    }
                    return;
                }
                Some(uncopy_tcp::connection::State::Closed) | None => {
                    let error = self.stack.take_error(id).unwrap_or(Error::ConnectionReset);
                    self.fail_connection(slot, error);
                    return;
                }
                Some(_) => {
                    let serial = self.connections.serial(slot);
                    self.state_table.set(slot, serial, ConnectionState::Established);
                    let Some(connection) = self.connections.get(slot) else { return };
                    let Some(stream) = connection.stream.as_mut() else { return };
                    if stream.drain_filling().is_err() {
                        self.detach(slot, true);
                        return;
                    }
                    connection.stage = Stage::Open;
                }
            }
        }
        self.pump_to_program(slot, id);
        self.pump_to_tcp(slot, id);
    }

    fn pump_to_program(&mut self, slot: u32, id: ConnectionId) {
        let serial = self.connections.serial(slot);
        let Some(connection) = self.connections.get(slot) else { return };
        let Some(stream) = connection.stream.as_mut() else { return };
        while connection.keeps_received || stream.is_writable && !connection.write_shut {
            let old_pieces = stream.to_program.len();
            while stream.waiting_bytes() < MAX_WAITING_BYTES
                && !connection.has_ended
                && connection.failure.is_none()
            {
                match self.stack.receive(id, usize::MAX) {
                    Ok(Received::Piece(piece)) => {
                        connection.received_bytes += piece.len_bytes() as u64;
                        stream.put(piece);
                    }
                    Ok(Received::Pending) => break,
                    Ok(Received::End) => connection.has_ended = true,
                    Err(error) => connection.failure = Some(error),
                }
            }
            if self.settings.makes_api_copies {
                self.copied_bytes += copy_all(self.process, stream.to_program.range_mut(old_pieces..));
            }
            if connection.has_ended && connection.failure.is_none() {
                // A reset may follow the end of the stream.
                connection.failure = self.stack.take_error(id);
            }
            if stream.waiting_bytes() == 0 || connection.keeps_received {
                break;
            }
            connection.write_shut = stream.flush().is_err();
        }
        if connection.write_shut {
            // Bytes that the program has sent must still be read.
            stream.has_hung_up = true;
            stream.is_readable = true;
            return;
        }
        if stream.waiting_bytes() > 0 {
            return;
        }
        if let Some(error) = connection.failure {
            self.fail_connection(slot, error);
        } else if connection.has_ended
            && self.state_table.get(slot, serial) == Some(ConnectionState::Established)
        {
            self.state_table.set(slot, serial, ConnectionState::PeerEnded);
            stream.shutdown_write();
        }
    }

    fn pump_to_tcp(&mut self, slot: u32, id: ConnectionId) {
        loop {
            let Some(connection) = self.connections.get(slot) else { return };
            let Some(stream) = connection.stream.as_mut() else { return };
            while let Some(front) = stream.from_program.front_mut() {
                match self.stack.send(id, front) {
                    Ok(sent) if sent == front.len_bytes() => _ = stream.from_program.pop_front(),
                    Ok(sent) => {
                        *front = front.slice(sent..front.len_bytes());
                        // An event reports when there is room.
                        return;
                    }
                    Err(error) => {
                        if connection.failure.is_none() && error != Error::BrokenPipe {
                            connection.failure = Some(error);
                        }
                        // TCP accepts no more bytes.
                        stream.from_program.clear();
                    }
                }
            }
            // Idle connections hold no memory.
            stream.from_program.shrink_to_fit();
            if let Some(error) = connection.failure
                && stream.waiting_bytes() == 0
            {
                self.fail_connection(slot, error);
                return;
            }
            if stream.has_ended && stream.has_hung_up {
                // Options set before the program closed the stream must be known first.
                self.handle_all_requests();
                let Some(connection) = self.connections.get(slot) else { return };
                let Some(stream) = connection.stream.as_ref() else { return };
                let is_reset = connection.options.resets_on_close || stream.waiting_bytes() > 0;
                self.detach(slot, is_reset);
                return;
            }
            if stream.has_ended {
                if !std::mem::replace(&mut connection.has_shut_down, true) {
                    let _ = self.stack.shutdown(id);
                }
                return;
            }
            if !stream.is_readable {
                return;
            }
            match stream.pull(&mut self.read_buffer) {
                PullResult::Bytes if self.settings.makes_api_copies => {
                    self.copied_bytes += copy_all(self.process, stream.from_program.iter_mut());
                }
                PullResult::Bytes | PullResult::End => {}
                PullResult::Nothing => return,
                PullResult::NoRoom => {
                    self.awaiting_buffer.push(slot);
                    return;
                }
                PullResult::Broken => {
                    self.detach(slot, true);
                    return;
                }
            }
        }
    }
}
