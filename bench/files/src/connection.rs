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
use crate::socket::{IoBytes, Socket, send_copied};
use crate::ways::{Content, SpareBuffers, Way, read_header};

/// Bytes moved before other connections get their turn.
const TURN_BYTES: usize = 2 << 20;
/// Minimum number of bytes charged for a step, because a call takes time even if few bytes move.
const MIN_STEP_BYTES: usize = 32 << 10;
/// Bytes of an answer that a client must take within the idle limit.
const PROGRESS_BYTES: usize = 64 << 10;
/// Time for which input is thrown away after the last answer.
const LINGER: Duration = Duration::from_secs(2);

/// The directory and the way in which its files are sent.
pub struct ServeConfig {
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
    response: Option<Response>,
    /// True if no answer follows the current one.
    is_last: bool,
    /// Bytes sent since the deadline was set.
    progress_bytes: usize,
    /// Time by which the client must have made progress.
    pub deadline: Instant,
}

/// Rest of an answer: of its head, and of the file after it.
struct Response {
    head: Vec<u8>,
    content: Option<Content>,
    range: Range<u64>,
}

impl Connection {
    /// Makes the state of a connection that was just accepted. `fd` must not block.
    pub fn new(fd: OwnedFd, config: &ServeConfig) -> Self {
        let socket = Socket { fd, allows_zerocopy: None };
        let (received, response, is_last, progress_bytes) = Default::default();
        let deadline = Instant::now() + config.idle_limit;
        Self { socket, received, response, is_last, progress_bytes, deadline }
    }

    /// Does as much as is possible without waiting, up to one turn's share. Returns [`io::ErrorKind::WouldBlock`] if
    /// the connection waits for its socket. After any other error the caller closes it.
    pub fn drive(&mut self, config: &ServeConfig, spare: &mut SpareBuffers) -> io::Result<()> {
        let mut moved_bytes = 0;
        while moved_bytes < TURN_BYTES {
            match self.step(config, spare) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                step_bytes => moved_bytes += step_bytes?.max(MIN_STEP_BYTES),
            }
        }
        Ok(())
    }

    /// Advances the connection by one step: sends, receives, or prepares the next answer.
    fn step(&mut self, config: &ServeConfig, spare: &mut SpareBuffers) -> IoBytes {
        if self.response.is_some() {
            return self.send(config, spare);
        }
        if self.is_last {
            self.received.clear();
            return self.receive();
        }
        let (response, keep_alive) = match parse(&self.received) {
            Ok(None) => return self.receive(),
            Ok(Some((len, request))) => {
                self.received.drain(..len);
                (Response::to_request(&request, config, spare)?, request.keep_alive)
            }
            Err(status) => (Response::head_only(status, false, 0), false),
        };
        (self.response, self.is_last) = (Some(response), !keep_alive);
        self.extend_deadline(config.idle_limit);
        Ok(0)
    }

    fn extend_deadline(&mut self, time: Duration) {
        self.progress_bytes = 0;
        self.deadline = Instant::now() + time;
    }

    fn receive(&mut self) -> IoBytes {
        self.received.reserve(MAX_HEAD_BYTES);
        match recv(&self.socket.fd, spare_capacity(&mut self.received), RecvFlags::empty())? {
            (0, _) => Err(io::ErrorKind::UnexpectedEof.into()),
            (len, _) => Ok(len),
        }
    }

    fn send(&mut self, config: &ServeConfig, spare: &mut SpareBuffers) -> IoBytes {
        let Some(response) = &mut self.response else { return Ok(0) };
        let head = &response.head[..];
        let Range { start, end } = response.range;
        let sent = match &mut response.content {
            Some(content) => content.send(&mut self.socket, head, start, end - start)?,
            None => send_copied(&self.socket, [head, &[]], false)?,
        };
        let of_head = sent.min(head.len());
        response.head.drain(..of_head);
        response.range.start += (sent - of_head) as u64;
        let is_done = response.head.is_empty() && response.range.is_empty();
        self.progress_bytes += sent;
        if is_done || self.progress_bytes >= PROGRESS_BYTES {
            self.extend_deadline(config.idle_limit);
        }
        if is_done {
            if let Some(content) = self.response.take().and_then(|response| response.content) {
                content.finish(spare);
            }
            if self.is_last {
                shutdown(&self.socket.fd, Shutdown::Write)?;
                self.extend_deadline(LINGER);
            }
        }
        Ok(sent)
    }
}

impl Response {
    fn to_request(request: &Request, config: &ServeConfig, spare: &mut SpareBuffers) -> io::Result<Self> {
        let Some((file, stat)) = config.root.find(&request.path)? else {
            return Ok(Self::head_only(NOT_FOUND, request.keep_alive, 0));
        };
        let len_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        read_header(config.way, &file, len_bytes);
        let mut response = Self::head_only("200 OK", request.keep_alive, len_bytes);
        if !request.is_head && len_bytes > 0 {
            response.content = Some(Content::new(config.way, &config.cache, file, &stat, spare)?);
            response.range = 0..len_bytes;
        }
        Ok(response)
    }

    fn head_only(status: Status, keep_alive: bool, len_bytes: u64) -> Self {
        let connection = if keep_alive { "keep-alive" } else { "close" };
        let head = format!(
            "HTTP/1.1 {status}\r\nConnection: {connection}\r\nAllow: GET, HEAD\r\n\
             Content-Type: application/octet-stream\r\nContent-Length: {len_bytes}\r\n\r\n"
        );
        Self { head: head.into_bytes(), content: None, range: 0..0 }
    }
}
