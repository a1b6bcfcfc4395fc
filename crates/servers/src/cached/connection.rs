//! One connection: a socket, its place in the protocol, and what waits to be sent.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};

use smallvec::SmallVec;

use crate::admission::Client;
use crate::cached::arguments::Transmit;
use crate::cached::cache::{Cache, Caller};
use crate::cached::outlet::{self, Lent};
use crate::cached::response::{Piece, Response};
use crate::cached::session::Session;
use crate::cached::statistics::{Counter, Counters};
use crate::clock;
use crate::event_loop::Next;

/// Room for what is received at once: the requests of a client that sends many, or the begin of a value.
pub const SCRATCH_BYTES: usize = 16 << 10;
/// Missing bytes from which on a value is received where it belongs instead of into the scratch room.
const DIRECT_BYTES: usize = 2048;
/// Receptions in one turn; then other connections have theirs.
const ROUNDS: usize = 16;

/// Parts of a message that are gathered without allocating.
const INLINE_PARTS: usize = 16;

/// A client's connection.
#[derive(Debug)]
pub struct Connection {
    socket: Client,
    session: Session,
    response: Response,
    lent: Lent,
    /// What was received and not taken yet: an incomplete line, or requests that have to wait until answers are sent.
    input: Vec<u8>,
    /// Requests wait there until answers are sent.
    has_stopped: bool,
    /// The socket has nothing more.
    is_drained: bool,
    has_hung_up: bool,
    progress_ms: u64,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Connection {
    /// The connection of a client that was just accepted.
    pub fn new(socket: Client, transmit: Transmit) -> Self {
        outlet::own(transmit, socket.as_fd());
        Self {
            socket,
            session: Session::default(),
            response: Response::default(),
            lent: Lent::default(),
            input: Vec::new(),
            has_stopped: false,
            is_drained: false,
            has_hung_up: false,
            progress_ms: clock::now_ms(),
        }
    }

    /// The peer will send nothing more, or is gone: what is left is read to its end.
    pub fn note_hang_up(&mut self) {
        self.has_hung_up = true;
    }

    /// The socket has an error, or a notice that the kernel has done with some values.
    pub fn note_error(&mut self) {
        if !self.lent.is_empty() {
            self.lent.take_back(self.socket.as_fd());
        }
    }

    /// Whether answers wait for the client to read.
    pub fn is_blocked(&self) -> bool {
        self.response.pending_bytes() > 0
    }

    /// Whether it holds memory that others may need: answers that the client does not read, a value that it does not
    /// send.
    pub fn holds_memory(&mut self) -> bool {
        self.is_blocked() || self.session.draft().is_some()
    }

    /// Sends what waits, and serves nothing more: whether there is nothing left to do.
    pub fn finish(&mut self, cache: &Cache, counters: &Counters) -> bool {
        self.flush(cache, counters).unwrap_or(true)
    }

    /// When something was last received or sent, milliseconds.
    pub fn progress_ms(&self) -> u64 {
        self.progress_ms
    }

    /// Receives, serves and sends until the socket has nothing more, takes nothing more, or others are to have a turn.
    pub fn turn(&mut self, cache: &Cache, counters: &Counters, scratch: &mut [u8; SCRATCH_BYTES]) -> Next {
        // What was known may have changed: there was an event.
        self.is_drained = false;
        self.turns(cache, counters, scratch).unwrap_or(Next::Close)
    }

    fn turns(
        &mut self,
        cache: &Cache,
        counters: &Counters,
        scratch: &mut [u8; SCRATCH_BYTES],
    ) -> io::Result<Next> {
        for _ in 0..ROUNDS {
            if !self.flush(cache, counters)? {
                return Ok(Next::Event);
            }
            if self.session.is_closing() {
                return Ok(Next::Close);
            }
            if self.has_stopped {
                // Requests that had to wait until answers were sent.
                let input = std::mem::take(&mut self.input);
                let taken = self.feed(&input, cache, counters);
                self.keep(&input[taken..]);
                continue;
            }
            if self.is_drained {
                return Ok(Next::Event);
            }
            match self.receive(cache, counters, scratch) {
                Ok(0) => return Ok(Next::Close),
                Ok(received_bytes) => {
                    counters.add(Counter::BytesRead, received_bytes as u64);
                    self.progress_ms = clock::now_ms();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_drained = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Next::Turn)
    }

    /// Receives once and serves what came. A short reception says that there is nothing more (epoll(7)), unless the
    /// client has hung up: then the end is still to be read.
    fn receive(
        &mut self,
        cache: &Cache,
        counters: &Counters,
        scratch: &mut [u8; SCRATCH_BYTES],
    ) -> io::Result<usize> {
        if let Some(draft) = self.session.draft()
            && draft.missing_bytes() >= DIRECT_BYTES
        {
            let wanted_bytes = draft.missing_bytes();
            let received_bytes = draft.receive(self.socket.as_fd())?;
            self.is_drained = received_bytes < wanted_bytes && !self.has_hung_up;
            self.feed(&[], cache, counters);
            return Ok(received_bytes);
        }
        let kept = self.input.len();
        scratch[..kept].copy_from_slice(&self.input);
        let received_bytes = rustix::io::read(&self.socket, &mut scratch[kept..])?;
        let input = &scratch[..kept + received_bytes];
        self.is_drained = input.len() < SCRATCH_BYTES && !self.has_hung_up;
        if received_bytes > 0 {
            let taken = self.feed(input, cache, counters);
            self.keep(&input[taken..]);
        }
        Ok(received_bytes)
    }

    fn feed(&mut self, input: &[u8], cache: &Cache, counters: &Counters) -> usize {
        let mut caller = Caller { cache, counters, response: &mut self.response };
        let taken = self.session.feed(input, &mut caller);
        self.has_stopped = self.response.is_full() && taken < input.len();
        taken
    }

    /// Keeps what was not taken, in as much memory as that needs.
    fn keep(&mut self, rest: &[u8]) {
        self.input.clear();
        if rest.is_empty() {
            self.input = Vec::new();
        } else {
            self.input.extend_from_slice(rest);
        }
    }

    /// Sends what waits: whether all of it was taken.
    fn flush(&mut self, cache: &Cache, counters: &Counters) -> io::Result<bool> {
        while self.response.pending_bytes() > 0 {
            let mut parts: SmallVec<[Piece<'_>; INLINE_PARTS]> = SmallVec::new();
            self.response.gather(&mut parts);
            let sent = outlet::send(cache.settings.transmit, self.socket.as_fd(), &parts, &mut self.lent);
            drop(parts);
            match sent {
                Ok(sent_bytes) => {
                    counters.add(Counter::BytesWritten, sent_bytes as u64);
                    self.response.advance(sent_bytes);
                    self.progress_ms = clock::now_ms();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
