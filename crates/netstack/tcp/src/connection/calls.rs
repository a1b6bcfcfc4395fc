//! Calls of the program: send, receive, shut down, close, and query events.

use super::state::{Acknowledgement, Connection, Events, Received, State};
use crate::config::TIME_WAIT_NS;
use crate::error::Error;
use crate::payload::Payload;

impl<P: Payload> Connection<P> {
    /// Returns the state of RFC 9293.
    pub fn state(&self) -> State {
        self.state
    }

    /// True if the connection was opened passively.
    pub fn is_passive(&self) -> bool {
        self.is_passive
    }

    /// True if the connection has ended and has nothing left to send.
    pub fn is_finished(&self) -> bool {
        self.state == State::Closed && self.pending.reset.is_none()
    }

    /// Returns and clears the changes since the last call.
    pub fn take_events(&mut self) -> Events {
        std::mem::take(&mut self.events)
    }

    /// Returns and clears the error that ended the connection (SO_ERROR).
    pub fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    /// Returns the number of bytes that [`Connection::send`] accepts.
    pub fn room_bytes(&self) -> usize {
        if self.queue.pieces() >= self.config.max_send_pieces {
            return 0;
        }
        self.config.send_buffer_bytes.saturating_sub(self.queue.len_bytes() as usize)
    }

    /// Queues as many bytes as fit and returns their number.
    ///
    /// # Errors
    ///
    /// The error that ended the connection, once; then, and after [`Connection::shutdown`], EPIPE.
    pub fn send(&mut self, piece: &P) -> Result<usize, Error> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.is_send_ended || self.state == State::Closed {
            return Err(Error::BrokenPipe);
        }
        let len = piece.len_bytes().min(self.room_bytes());
        match len {
            0 => {}
            _ if len < piece.len_bytes() => self.queue.push(piece.slice(0..len)),
            _ => self.queue.push(piece.clone()),
        }
        Ok(len)
    }

    /// Returns received bytes, at most `max_bytes`.
    ///
    /// # Errors
    ///
    /// The error that ended the connection, once.
    pub fn receive(&mut self, max_bytes: usize) -> Result<Received<P>, Error> {
        let Some(mut piece) = self.receiver.read() else {
            return match self.error.take() {
                Some(error) => Err(error),
                None if self.is_receive_ended() => Ok(Received::End),
                None => Ok(Received::Pending),
            };
        };
        if piece.len_bytes() > max_bytes {
            self.receiver.unread(piece.slice(max_bytes..piece.len_bytes()));
            piece = piece.slice(0..max_bytes);
        }
        let can_receive = matches!(self.state, State::Established | State::FinWait1 | State::FinWait2);
        if can_receive && self.receiver.is_update_due(self.receive_shift, self.segment_bytes()) {
            self.acknowledgement = Acknowledgement::Now;
        }
        Ok(Received::Piece(piece))
    }

    /// Returns the number of bytes ready to receive.
    pub fn ready_bytes(&self) -> usize {
        self.receiver.ready_bytes() as usize
    }

    /// Returns the number of pieces in the receive buffer, in order or not.
    pub fn received_pieces(&self) -> usize {
        self.receiver.pieces()
    }

    /// Returns the number of ranges on the scoreboard.
    pub fn sacked_ranges(&self) -> usize {
        self.recovery.sacked_ranges()
    }

    fn is_receive_ended(&self) -> bool {
        !matches!(
            self.state,
            State::SynSent | State::SynReceived | State::Established | State::FinWait1 | State::FinWait2
        )
    }

    /// Ends this side's stream after the queued bytes (CLOSE of RFC 9293, section 3.10.4; `SHUT_WR`).
    ///
    /// # Errors
    ///
    /// ENOTCONN if the connection is closed.
    pub fn shutdown(&mut self) -> Result<(), Error> {
        match self.state {
            State::Closed => return Err(Error::NotConnected),
            State::SynSent => self.end(None),
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            // SYN-RECEIVED becomes FIN-WAIT-1 once the handshake completes.
            _ => {}
        }
        self.is_send_ended = true;
        Ok(())
    }

    /// Closes the connection (`close`). Queued bytes are still delivered. If received bytes are
    /// unread, the peer gets a RST instead (RFC 2525, section 2.17).
    pub fn close(&mut self, now_ns: u64) {
        self.is_orphaned = true;
        if self.receiver.ready_bytes() > 0 && self.state != State::Closed {
            self.abort();
            return;
        }
        self.receiver.discard();
        let _ = self.shutdown();
        if self.state == State::FinWait2 {
            self.deadlines.time_wait = Some(now_ns + TIME_WAIT_NS);
        }
    }

    /// Aborts the connection by RST and drops queued bytes (RFC 9293, section 3.10.5; `SO_LINGER` of 0).
    pub fn abort(&mut self) {
        self.is_orphaned = true;
        if !matches!(self.state, State::Closed | State::SynSent | State::TimeWait) {
            self.reset_peer();
        }
        self.end(Some(Error::ConnectionAborted));
    }
}
