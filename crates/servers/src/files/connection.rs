//! One connection: requests in, answers out, one after the other.
//!
//! ```text
//!             a whole head                answer sent
//!   reading ───────────────► sending ─────────────────────► reading
//!      │  nothing readable,    │ and it was the last one
//!      │  or too late          ▼
//!      └──► sending ───────► lingering ──► closed
//! ```
//!
//! Lingering: this side has ended, and what the client still sends is thrown away for a while, because
//! closing a socket with unread bytes makes the kernel reset the connection, and the client may lose the
//! answer (RFC 9112, section 9.6).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{RecvFlags, Shutdown, recv, shutdown};

use crate::admission::Client;
use crate::event_loop::Next;
use crate::files::answer::{Site, answer, refusal};
use crate::files::clock::Clock;
use crate::files::request::{HEAD_LIMIT_BYTES, LINE_LIMIT_BYTES, Parsed, Request, parse};
use crate::files::status::Status;
use crate::files::transmission::Transmission;
use crate::files::ways::{Link, Tools, Zerocopy};

/// Bytes sent, and answers begun, after which other connections get their turn.
const TURN_BYTES: usize = 2 << 20;
const TURN_ANSWERS: usize = 64;
/// What a client must take within the send timeout, bytes.
const PROGRESS_BYTES: usize = 64 << 10;
/// Longest time and most bytes that are read after this side has ended.
const LINGER_MS: u64 = 2_000;
const LINGER_BYTES: usize = 1 << 20;

/// How long a client may take, milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// From a request's first byte to the end of its head.
    pub head_ms: u64,
    /// Without a request, after an answer.
    pub idle_ms: u64,
    /// For each 64 KiB of an answer.
    pub send_ms: u64,
}

/// What one thread's connections share.
#[derive(Debug)]
pub struct Shared<'a> {
    /// What is served.
    pub site: &'a Site,
    /// How long clients may take.
    pub timeouts: Timeouts,
    /// Buffers and pipes.
    pub tools: Tools,
    /// The time.
    pub clock: Clock,
    /// The server is going to end: every answer is the last of its connection.
    pub ending: bool,
    /// What was received by one call.
    pub received: Box<[u8]>,
    /// What happened so far.
    pub tally: Tally,
}

/// What happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Answers begun.
    pub answers: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Connections ended because the client took too long.
    pub timed_out: u64,
}

impl Tally {
    /// The sum.
    pub const fn plus(self, other: Self) -> Self {
        Self {
            answers: self.answers + other.answers,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            timed_out: self.timed_out + other.timed_out,
        }
    }
}

#[derive(Debug)]
enum Phase {
    Reading,
    Sending(Transmission),
    Lingering { left_bytes: usize },
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    socket: Client,
    zerocopy: Zerocopy,
    owned: bool,
    phase: Phase,
    /// What was received and not yet understood.
    pending: Vec<u8>,
    /// Bytes of a request's body still to be thrown away.
    discard_bytes: u64,
    /// The answer under way is the last one.
    is_last: bool,
    /// It was no answer to a request: the client may be in the middle of something.
    was_refused: bool,
    /// Sent since the deadline was set.
    progress_bytes: usize,
    deadline_ms: u64,
    /// When it began to wait for a request.
    waits_since_ms: u64,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Connection {
    /// A connection that was just accepted.
    pub fn new(socket: Client, shared: &Shared<'_>) -> Self {
        let now_ms = shared.clock.now_ms();
        Self {
            socket,
            zerocopy: Zerocopy::default(),
            owned: false,
            phase: Phase::Reading,
            pending: Vec::new(),
            discard_bytes: 0,
            is_last: false,
            was_refused: false,
            progress_bytes: 0,
            deadline_ms: now_ms + shared.timeouts.head_ms,
            waits_since_ms: now_ms,
        }
    }

    /// Whether it waits for a request of which nothing has come.
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Reading) && self.pending.is_empty()
    }

    /// Whether it waits for a request for so long.
    pub fn is_idle_for(&self, now_ms: u64, idle_ms: u64) -> bool {
        self.is_idle() && now_ms.saturating_sub(self.waits_since_ms) >= idle_ms
    }

    /// Whether the client took too long.
    pub fn is_late(&self, now_ms: u64) -> bool {
        now_ms >= self.deadline_ms
    }

    /// Ends it because the client took too long: with an answer if it had begun to ask.
    pub fn expire(&mut self, shared: &mut Shared<'_>) -> Next {
        shared.tally.timed_out += 1;
        if matches!(self.phase, Phase::Reading) && !self.pending.is_empty() {
            self.refuse(Status::RequestTimeout, shared);
            return self.drive(shared, false);
        }
        Next::Close
    }

    /// Does what can be done without waiting. `completed`: the error queue may hold completions.
    pub fn drive(&mut self, shared: &mut Shared<'_>, completed: bool) -> Next {
        if completed {
            self.zerocopy.complete(self.socket.as_fd());
        }
        let (mut sent_bytes, mut answers) = (0, 0);
        loop {
            let outcome = match &mut self.phase {
                Phase::Sending(_) if sent_bytes >= TURN_BYTES || answers >= TURN_ANSWERS => {
                    return Next::Turn;
                }
                Phase::Sending(transmission) => {
                    let (zerocopy, owned) = (&mut self.zerocopy, &mut self.owned);
                    let mut link = Link { socket: self.socket.as_fd(), zerocopy, owned };
                    match transmission.advance(&mut link, false) {
                        Ok(sent) => {
                            sent_bytes += sent;
                            shared.tally.sent_bytes += sent as u64;
                            let done = transmission.is_done();
                            self.note_progress(sent, done, shared);
                            if done {
                                answers += 1;
                                self.end_answer(shared);
                            }
                            Ok(Next::Turn)
                        }
                        Err(error) => Err(error),
                    }
                }
                Phase::Lingering { .. } => self.throw_away(shared),
                Phase::Reading => self.read(shared),
            };
            match outcome {
                Ok(Next::Turn) => {}
                Ok(next) => return next,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Next::Event,
                Err(_) => return Next::Close,
            }
        }
    }

    fn note_progress(&mut self, sent: usize, done: bool, shared: &Shared<'_>) {
        self.progress_bytes += sent;
        if done || self.progress_bytes >= PROGRESS_BYTES {
            self.progress_bytes = 0;
            self.deadline_ms = shared.clock.now_ms() + shared.timeouts.send_ms;
        }
    }

    fn end_answer(&mut self, shared: &mut Shared<'_>) {
        if let Phase::Sending(transmission) = std::mem::replace(&mut self.phase, Phase::Reading) {
            transmission.finish(&mut shared.tools);
        }
        let now_ms = shared.clock.now_ms();
        self.deadline_ms = now_ms + shared.timeouts.idle_ms;
        self.waits_since_ms = now_ms;
        if self.is_last {
            let unread = self.was_refused || self.discard_bytes > 0 || !self.pending.is_empty();
            if unread {
                let _ = shutdown(&self.socket, Shutdown::Write);
            }
            self.deadline_ms = now_ms + LINGER_MS;
            self.pending = Vec::new();
            self.phase = Phase::Lingering { left_bytes: if unread { LINGER_BYTES } else { 0 } };
        }
    }

    /// Takes a request out of what was received, or receives more.
    fn read(&mut self, shared: &mut Shared<'_>) -> io::Result<Next> {
        if !self.pending.is_empty() {
            let skipped = usize::try_from(self.discard_bytes).unwrap_or(usize::MAX).min(self.pending.len());
            self.pending.drain(..skipped);
            self.discard_bytes -= skipped as u64;
            if !self.pending.is_empty() {
                match parse(&self.pending) {
                    Parsed::Incomplete => {}
                    Parsed::Refused(status) => {
                        self.refuse(status, shared);
                        return Ok(Next::Turn);
                    }
                    Parsed::Complete(len, request) => {
                        self.pending.drain(..len);
                        self.begin_answer(&request, shared);
                        return Ok(Next::Turn);
                    }
                }
            }
        }
        self.receive(shared)
    }

    /// Receives until a request may be complete, or nothing more is there.
    fn receive(&mut self, shared: &mut Shared<'_>) -> io::Result<Next> {
        loop {
            let was_idle = self.pending.is_empty() && self.discard_bytes == 0;
            if was_idle && self.pending.capacity() > LINE_LIMIT_BYTES {
                self.pending = Vec::new();
            }
            let (_, got) = recv(&self.socket, &mut shared.received[..], RecvFlags::empty())?;
            if got == 0 {
                return Ok(Next::Close);
            }
            let bytes = &shared.received[..got];
            self.pending.extend_from_slice(bytes);
            if was_idle {
                self.deadline_ms = shared.clock.now_ms() + shared.timeouts.head_ms;
            }
            // A head that comes byte by byte is not parsed anew for every one of them.
            if bytes.contains(&b'\n') || self.pending.len() > LINE_LIMIT_BYTES || self.discard_bytes > 0 {
                return Ok(Next::Turn);
            }
        }
    }

    fn begin_answer(&mut self, request: &Request, shared: &mut Shared<'_>) {
        self.discard_bytes = request.body_bytes;
        self.is_last = !request.keep_alive || shared.ending;
        self.was_refused = !request.keep_alive && request.body_bytes > 0;
        let transmission = answer(shared.site, request, !self.is_last, &shared.clock, &mut shared.tools);
        // Reading a file into memory may have taken a while.
        shared.clock.update();
        self.begin(transmission, shared);
    }

    fn refuse(&mut self, status: Status, shared: &mut Shared<'_>) {
        (self.is_last, self.was_refused) = (true, true);
        let transmission = refusal(status, &shared.clock);
        self.begin(transmission, shared);
    }

    fn begin(&mut self, transmission: Transmission, shared: &mut Shared<'_>) {
        shared.tally.answers += 1;
        self.progress_bytes = 0;
        self.deadline_ms = shared.clock.now_ms() + shared.timeouts.send_ms;
        self.phase = Phase::Sending(transmission);
    }

    /// Reads what nobody wants any more, until the client ends too.
    fn throw_away(&mut self, shared: &mut Shared<'_>) -> io::Result<Next> {
        let Phase::Lingering { left_bytes } = &mut self.phase else { return Ok(Next::Close) };
        if *left_bytes == 0 {
            return Ok(Next::Close);
        }
        let (_, got) = recv(&self.socket, &mut shared.received[..], RecvFlags::empty())?;
        *left_bytes = left_bytes.saturating_sub(got);
        Ok(if got == 0 { Next::Close } else { Next::Turn })
    }
}

/// Room for what one call receives: a head as long as is allowed.
pub fn room() -> Box<[u8]> {
    vec![0; HEAD_LIMIT_BYTES].into_boxed_slice()
}
