//! Bytes: from TCP to programs' streams, and from those to TCP.

use super::Service;
use crate::connection::{Connection, Stage};
use crate::payload::Bytes;
use crate::rooms::copied;
use crate::settings::{config, with_options};
use crate::stream::{Pulled, Stream};
use rustix::event::epoll::{self, EventData, EventFlags};
use std::net::SocketAddr;
use std::os::fd::{FromRawFd as _, OwnedFd};
use uncopy_lanes::process::Process;
use uncopy_net::board::Condition;
use uncopy_net::message::Options;
use uncopy_net::name;
use uncopy_sys::errno::Errno;
use uncopy_sys::unix;
use uncopy_tcp::connection::Received;
use uncopy_tcp::error::Error;
use uncopy_tcp::payload::Payload as _;
use uncopy_tcp::stack::ConnectionId;
use uncopy_tcp::wire::Tuple;

/// Bytes that are taken out of TCP before a program has taken them.
const MAX_WAITING_BYTES: usize = 1 << 20;

/// Puts copies in place of these, as an API of sockets makes them. How many bytes.
fn copy_all<'a>(process: &'static Process, pieces: impl Iterator<Item = &'a mut Bytes>) -> u64 {
    let copy = |piece: &'a mut Bytes| {
        *piece = copied(process, piece);
        piece.len_bytes() as u64
    };
    pieces.map(copy).sum()
}

impl Service {
    /// Begins a connection whose stream its program has filled.
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
            Err(error) => self.lose(slot, error),
        }
    }

    pub(crate) fn begin_stream(&mut self, slot: u32, fd: OwnedFd) {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let watched = epoll::add(&self.epoll, &fd, EventData::new_u64(slot.into()), flags);
        if let Some(connection) = self.connections.get(slot) {
            connection.stream = Some(Stream::new(fd, self.process));
        }
        if watched.is_err() {
            self.lose(slot, Error::NoBuffers);
        }
    }

    /// Gives programs the connections that have come.
    pub(super) fn hand_out(&mut self) {
        for _ in 0..self.accepted.len() {
            let Some((id, address)) = self.accepted.pop_front() else { return };
            match self.hand(id, address) {
                Ok(()) => {}
                Err(Errno::EAGAIN) => self.accepted.push_back((id, address)),
                Err(_) => self.stack.abort(id),
            }
        }
    }

    fn hand(&mut self, id: ConnectionId, address: SocketAddr) -> Result<(), Errno> {
        let tuple = self.stack.tuple(id).ok_or(Errno(libc::ENOTCONN))?;
        let path = self.listeners.next(address).ok_or(Errno(libc::ECONNREFUSED))?;
        let fd = unix::stream_without_waiting()?;
        // SAFETY: just made.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        let connection =
            Connection { id: Some(id), ..Connection::new(Stage::Open, tuple, Options::default()) };
        let (slot, serial) = self.add(connection).ok_or(Errno(libc::ENOBUFS))?;
        let Tuple { local, remote } = tuple;
        let named = name::Connection { service: self.id, slot, serial, local, remote };
        self.board.set(slot, serial, Condition::Established);
        match unix::bind(fd, &named.name()).and_then(|()| unix::connect(fd, &path)) {
            Ok(()) => {
                self.by_id.insert(id, slot);
                self.begin_stream(slot, owned);
                self.serve(slot);
                Ok(())
            }
            Err(errno) => {
                self.connections.remove(slot);
                if errno == Errno(libc::ECONNREFUSED) {
                    for at in self.listeners.silence(&path) {
                        self.stack.unlisten(at);
                    }
                    // One fewer listens.
                    return self.hand(id, address);
                }
                if errno != Errno::EAGAIN {
                    self.forget_listeners(|at| at.port() == address.port());
                }
                Err(errno)
            }
        }
    }

    pub(super) fn note(&mut self, slot: u32, flags: EventFlags) {
        if let Some(stream) = self.connections.get(slot).and_then(|connection| connection.stream.as_mut()) {
            stream.is_readable |=
                flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
            stream.is_writable |= flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR);
            stream.has_hung_up |= flags.intersects(EventFlags::HUP | EventFlags::ERR);
            self.serve(slot);
        }
    }

    /// A connection has failed: its program is told so.
    pub(super) fn lose(&mut self, slot: u32, error: Error) {
        let serial = self.connections.serial(slot);
        self.board.set(slot, serial, Condition::Failed(error.number()));
        self.forget(slot, true);
    }

    /// A connection is the program's no more.
    pub(super) fn forget(&mut self, slot: u32, resets: bool) {
        let Some(connection) = self.connections.remove(slot) else { return };
        if let Some(id) = connection.id {
            self.by_id.remove(&id);
            if resets {
                self.stack.abort(id);
            } else {
                self.stack.close(id, self.now_ns());
            }
        }
    }

    /// Moves what can be moved at a stream, both ways.
    pub(super) fn serve(&mut self, slot: u32) {
        let Some(connection) = self.connections.get(slot) else { return };
        if connection.stage == Stage::Filling
            && let Some(stream) = &connection.stream
        {
            match (stream.is_filled(), stream.has_hung_up) {
                // Given up before it has begun: no event tells so again.
                (_, true) => self.lose(slot, Error::ConnectionReset),
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
                        // It was closed, or shut by a program that may ask for its error.
                        self.lose(slot, Error::ConnectionReset);
                    }
                    return;
                }
                Some(uncopy_tcp::connection::State::Closed) | None => {
                    let error = self.stack.take_error(id).unwrap_or(Error::ConnectionReset);
                    self.lose(slot, error);
                    return;
                }
                Some(_) => {
                    let serial = self.connections.serial(slot);
                    self.board.set(slot, serial, Condition::Established);
                    let Some(connection) = self.connections.get(slot) else { return };
                    let Some(stream) = connection.stream.as_mut() else { return };
                    if stream.empty().is_err() {
                        self.forget(slot, true);
                        return;
                    }
                    connection.stage = Stage::Open;
                }
            }
        }
        self.give(slot, id);
        self.take(slot, id);
    }

    /// From TCP to the program.
    fn give(&mut self, slot: u32, id: ConnectionId) {
        let serial = self.connections.serial(slot);
        let Some(connection) = self.connections.get(slot) else { return };
        let Some(stream) = connection.stream.as_mut() else { return };
        while connection.is_kept || stream.is_writable && !connection.is_deaf {
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
                // A reset behind the end.
                connection.failure = self.stack.take_error(id);
            }
            if stream.waiting_bytes() == 0 || connection.is_kept {
                break;
            }
            connection.is_deaf = stream.flush().is_err();
        }
        if connection.is_deaf {
            // What it has sent is still to be read.
            stream.has_hung_up = true;
            stream.is_readable = true;
            return;
        }
        if stream.waiting_bytes() > 0 {
            return;
        }
        if let Some(error) = connection.failure {
            self.lose(slot, error);
        } else if connection.has_ended && self.board.get(slot, serial) == Some(Condition::Established) {
            self.board.set(slot, serial, Condition::Ended);
            stream.end();
        }
    }

    /// From the program to TCP.
    fn take(&mut self, slot: u32, id: ConnectionId) {
        loop {
            let Some(connection) = self.connections.get(slot) else { return };
            let Some(stream) = connection.stream.as_mut() else { return };
            while let Some(front) = stream.from_program.front_mut() {
                match self.stack.send(id, front) {
                    Ok(sent) if sent == front.len_bytes() => _ = stream.from_program.pop_front(),
                    Ok(sent) => {
                        *front = front.slice(sent..front.len_bytes());
                        // An event tells when there is room.
                        return;
                    }
                    Err(error) => {
                        if connection.failure.is_none() && error != Error::BrokenPipe {
                            connection.failure = Some(error);
                        }
                        // Nobody takes it any more.
                        stream.from_program.clear();
                    }
                }
            }
            // An idle connection keeps no room.
            stream.from_program.shrink_to_fit();
            if let Some(error) = connection.failure
                && stream.waiting_bytes() == 0
            {
                self.lose(slot, error);
                return;
            }
            if stream.has_ended && stream.has_hung_up {
                // What the program has said of it before it has closed it.
                self.hear_all();
                let Some(connection) = self.connections.get(slot) else { return };
                let Some(stream) = connection.stream.as_ref() else { return };
                let resets = connection.options.resets || stream.waiting_bytes() > 0;
                self.forget(slot, resets);
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
            match stream.pull(&mut self.read_room) {
                Pulled::Bytes if self.settings.makes_api_copies => {
                    self.copied_bytes += copy_all(self.process, stream.from_program.iter_mut());
                }
                Pulled::Bytes | Pulled::End => {}
                Pulled::Nothing => return,
                Pulled::NoRoom => {
                    self.starved.push(slot);
                    return;
                }
                Pulled::Broken => {
                    self.forget(slot, true);
                    return;
                }
            }
        }
    }
}
