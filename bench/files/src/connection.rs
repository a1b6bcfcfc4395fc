//! One connection: requests in, answers out, in turn, until a request or an error makes an answer the last one.
//!
//! After the last answer the connection lingers: this side has shut down its direction, and discards further input
//! for a while. Closing a socket with unread bytes makes the kernel reset the connection, and the client may lose
//! the answer (RFC 9112, section 9.6).

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};

use crate::cache::Cache;
use crate::request::{MAX_HEAD_BYTES, NOT_FOUND, Request, Status, parse};
use crate::root::Root;
use crate::socket::{Moved, Socket, send_copied};
use crate::ways::{Content, Spare, Way, look};

/// Bytes moved before other connections get their turn.
const TURN_BYTES: usize = 2 << 20;
/// Minimum number of bytes charged for a step, because a call takes time even if few bytes move.
const MIN_STEP_BYTES: usize = 32 << 10;
/// Bytes of an answer that a client must take within the idle limit.
const PROGRESS_BYTES: usize = 64 << 10;
/// Time for which input is thrown away after the last answer.
const LINGER: Duration = Duration::from_secs(2);

/// The directory and the way in which its files are sent.
pub struct Site {
    pub root: Root,
    pub way: Way,
    pub cache: Cache,
    /// Time for a request to come, and for each part of an answer to be taken.
    pub idle_limit: Duration,
}

/// State of one client's connection.
pub struct Connection {
    pub socket: Socket,
    /// Bytes received and not yet answered.
    received: Vec<u8>,
    answer: Option<Answer>,
    /// True if no answer follows the current one.
    is_last: bool,
    /// Bytes sent since the deadline was set.
    progress_bytes: usize,
    /// Time by which the client must have made progress.
    pub deadline: Instant,
}

/// Rest of an answer: of its head, and of the file after it.
struct Answer {
    head: Vec<u8>,
    content: Option<Content>,
    range: Range<u64>,
}

impl Connection {
    /// Makes the state of a connection that was just accepted. `fd` must not block.
    pub fn new(fd: OwnedFd, site: &Site) -> Self {
        let socket = Socket { fd, allows_zerocopy: None };
        let (received, answer, is_last, progress_bytes) = Default::default();
        let deadline = Instant::now() + site.idle_limit;
        Self { socket, received, answer, is_last, progress_bytes, deadline }
    }

    /// Does as much as is possible without waiting, up to one turn's share. Returns [`io::ErrorKind::WouldBlock`] if
    /// the connection waits for its socket. After any other error the caller closes it.
    pub fn drive(&mut self, site: &Site, spare: &mut Spare) -> io::Result<()> {
        let mut moved_bytes = 0;
        while moved_bytes < TURN_BYTES {
            match self.step(site, spare) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                step_bytes => moved_bytes += step_bytes?.max(MIN_STEP_BYTES),
            }
        }
        Ok(())
    }

    /// Advances the connection by one step: sends, receives, or prepares the next answer.
    fn step(&mut self, site: &Site, spare: &mut Spare) -> Moved {
        if self.answer.is_some() {
            return self.send(site, spare);
        }
        if self.is_last {
            self.received.clear();
            return self.receive();
        }
        let (answer, keep_alive) = match parse(&self.received) {
            Ok(None) => return self.receive(),
            Ok(Some((len, request))) => {
                self.received.drain(..len);
                (Answer::to(&request, site, spare)?, request.keep_alive)
            }
            Err(status) => (Answer::of_head(status, false, 0), false),
        };
        (self.answer, self.is_last) = (Some(answer), !keep_alive);
        self.extend(site.idle_limit);
        Ok(0)
    }

    fn extend(&mut self, time: Duration) {
        self.progress_bytes = 0;
        self.deadline = Instant::now() + time;
    }

    fn receive(&mut self) -> Moved {
        self.received.reserve(MAX_HEAD_BYTES);
        match recv(&self.socket.fd, spare_capacity(&mut self.received), RecvFlags::empty())? {
            (0, _) => Err(io::ErrorKind::UnexpectedEof.into()),
            (len, _) => Ok(len),
        }
    }

    fn send(&mut self, site: &Site, spare: &mut Spare) -> Moved {
        let Some(answer) = &mut self.answer else { return Ok(0) };
        let head = &answer.head[..];
        let Range { start, end } = answer.range;
        let sent = match &mut answer.content {
            Some(content) => content.send(&mut self.socket, head, start, end - start)?,
            None => send_copied(&self.socket, [head, &[]], false)?,
        };
        let of_head = sent.min(head.len());
        answer.head.drain(..of_head);
        answer.range.start += (sent - of_head) as u64;
        let is_done = answer.head.is_empty() && answer.range.is_empty();
        self.progress_bytes += sent;
        if is_done || self.progress_bytes >= PROGRESS_BYTES {
            self.extend(site.idle_limit);
        }
        if is_done {
            if let Some(content) = self.answer.take().and_then(|answer| answer.content) {
                content.finish(spare);
            }
            if self.is_last {
                shutdown(&self.socket.fd, Shutdown::Write)?;
                self.extend(LINGER);
            }
        }
        Ok(sent)
    }
}

impl Answer {
    fn to(request: &Request, site: &Site, spare: &mut Spare) -> io::Result<Self> {
        let Some((file, stat)) = site.root.find(&request.path)? else {
            return Ok(Self::of_head(NOT_FOUND, request.keep_alive, 0));
        };
        let len_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        look(site.way, &file, len_bytes);
        let mut answer = Self::of_head("200 OK", request.keep_alive, len_bytes);
        if !request.is_head && len_bytes > 0 {
            answer.content = Some(Content::new(site.way, &site.cache, file, &stat, spare)?);
            answer.range = 0..len_bytes;
        }
        Ok(answer)
    }

    fn of_head(status: Status, keep_alive: bool, len_bytes: u64) -> Self {
        let connection = if keep_alive { "keep-alive" } else { "close" };
        let head = format!(
            "HTTP/1.1 {status}\r\nConnection: {connection}\r\nAllow: GET, HEAD\r\n\
             Content-Type: application/octet-stream\r\nContent-Length: {len_bytes}\r\n\r\n"
        );
        Self { head: head.into_bytes(), content: None, range: 0..0 }
    }
}
