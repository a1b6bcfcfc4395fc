//! HTTP server for `GET /metrics`, one request for each connection.
//!
//! One thread serves all clients as they become ready, so that no client waits for a slow one. Each
//! client has a deadline. The number of clients is bounded: a new one beyond the bound drops the
//! oldest.

use super::fail;
use super::text::Format;
use crate::output::{self, Reason};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Maximum number of clients at a time.
const MAX_CLIENTS: usize = 64;
/// Maximum number of connections accepted before clients are served.
const MAX_ACCEPTED: usize = 16;
/// Maximum length of a request, bytes.
const MAX_REQUEST_BYTES: usize = 16 << 10;
/// Maximum number of header lines.
const MAX_HEADERS: usize = 64;
/// Time limit for sending the request, and again for reading the response.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without accepting while the system lacks descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bytes read from a client at a time.
const CHUNK_BYTES: usize = 4096;
/// Maximum number of bytes after a request that are discarded at a time.
const MAX_DRAINED_BYTES: usize = 16 * CHUNK_BYTES;

struct Response {
    status: &'static str,
    media_type: &'static str,
    body: String,
}

impl Response {
    fn error_response(status: &'static str) -> Self {
        Self { status, media_type: "text/plain; charset=utf-8", body: format!("{status}; see /metrics\n") }
    }

    /// Encodes the response; without the body for HEAD.
    fn encode(self, is_head: bool) -> Vec<u8> {
        let Self { status, media_type, body } = self;
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        if is_head { head.into_bytes() } else { (head + &body).into_bytes() }
    }
}

/// Serves until a signal ends the process.
pub fn serve(address: SocketAddr) -> u8 {
    let bound = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok((listener.local_addr()?, listener))
    });
    let (address, listener) = match bound {
        Ok(bound) => bound,
        Err(error) => return fail(format_args!("cannot listen at {address}: {}", Reason(&error))),
    };
    output::print_message(format_args!("metrics at http://{address}/metrics"));
    let mut server = Server { listener, clients: VecDeque::new(), paused_until: None };
    loop {
        if let Err(error) = server.poll_once(&super::render) {
            return fail(format_args!("cannot serve: {}", Reason(&error)));
        }
    }
}

struct Server {
    listener: TcpListener,
    /// Clients in the order of arrival.
    clients: VecDeque<Client>,
    /// Time before which no connection is accepted.
    paused_until: Option<Instant>,
}

impl Server {
    /// Waits until a socket is ready or a deadline passes, and serves the clients concerned.
    fn poll_once(&mut self, metrics: &dyn Fn(Format) -> String) -> io::Result<()> {
        let mut poll_fds: Vec<PollFd<'_>> =
            self.clients.iter().map(|client| PollFd::new(&client.connection, client.events())).collect();
        if self.paused_until.is_none() {
            poll_fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        let times = self.clients.iter().map(|client| client.deadline).chain(self.paused_until);
        let left = times.min().map(|time| time.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut poll_fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        let ready: Vec<bool> = poll_fds.iter().map(|poll_fd| !poll_fd.revents().is_empty()).collect();
        let now = Instant::now();
        let mut index = 0;
        self.clients.retain_mut(|client| {
            let is_ready = ready[index];
            index += 1;
            let is_overdue = client.deadline <= now;
            // A client that disconnected needs no response.
            !(is_ready || is_overdue) || client.advance(is_overdue, metrics).unwrap_or(false)
        });
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
        }
        if ready.get(index) == Some(&true) { self.accept() } else { Ok(()) }
    }

    /// Accepts waiting connections, dropping the oldest client for each beyond the maximum.
    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..MAX_ACCEPTED {
            match self.listener.accept() {
                Ok((connection, _)) => {
                    if self.clients.len() == MAX_CLIENTS {
                        self.clients.pop_front();
                    }
                    if connection.set_nonblocking(true).is_ok() {
                        self.clients.push_back(Client::new(connection));
                    }
                }
                Err(error) => match AcceptError::classify(&error) {
                    AcceptError::NonePending => break,
                    AcceptError::Connection => {}
                    AcceptError::NoDescriptors if self.clients.pop_front().is_some() => {}
                    AcceptError::NoDescriptors | AcceptError::NoResources => {
                        self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
                        break;
                    }
                    AcceptError::Listener => return Err(error),
                },
            }
        }
        Ok(())
    }
}

/// Class of an error of accept(2).
#[derive(Debug, PartialEq, Eq)]
enum AcceptError {
    NonePending,
    /// The waiting connection or its network is gone; accept(2) advises to retry.
    Connection,
    /// The process has reached its descriptor limit.
    NoDescriptors,
    /// The system lacks descriptors or memory.
    NoResources,
    /// The listening socket is unusable.
    Listener,
}

impl AcceptError {
    fn classify(error: &io::Error) -> Self {
        match error.raw_os_error().unwrap_or(0) {
            libc::EAGAIN => Self::NonePending,
            libc::EMFILE => Self::NoDescriptors,
            libc::ENFILE | libc::ENOBUFS | libc::ENOMEM => Self::NoResources,
            libc::EBADF | libc::EFAULT | libc::EINVAL | libc::ENOTSOCK => Self::Listener,
            _ => Self::Connection,
        }
    }
}

/// Phase of serving a client.
enum Phase {
    /// Bytes of the request so far.
    Reading(Vec<u8>),
    /// Response, and the number of bytes sent.
    Writing(Vec<u8>, usize),
    /// The response has been sent. Further input is discarded, because unread bytes would make the
    /// kernel discard the response.
    Draining,
}

struct Client {
    connection: TcpStream,
    deadline: Instant,
    phase: Phase,
}

impl Client {
    fn new(connection: TcpStream) -> Self {
        Self { connection, deadline: Instant::now() + CLIENT_TIMEOUT, phase: Phase::Reading(Vec::new()) }
    }

    fn events(&self) -> PollFlags {
        if matches!(self.phase, Phase::Writing(..)) { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Does what is possible without blocking. Returns whether there is more to do later.
    fn advance(&mut self, is_overdue: bool, metrics: &dyn Fn(Format) -> String) -> io::Result<bool> {
        if let Phase::Reading(request) = &mut self.phase {
            let response = loop {
                let mut chunk = [0; CHUNK_BYTES];
                match nonblocking(self.connection.read(&mut chunk))? {
                    Some(0) => return Ok(false),
                    Some(len_bytes) => request.extend_from_slice(&chunk[..len_bytes]),
                    None if is_overdue => break Response::error_response("408 Request Timeout"),
                    None => return Ok(true),
                }
                if let Some(response) = respond(request, metrics) {
                    break response;
                }
            };
            let is_head = request.starts_with(b"HEAD ");
            self.phase = Phase::Writing(response.encode(is_head), 0);
            self.deadline = Instant::now() + CLIENT_TIMEOUT;
        } else if is_overdue {
            return Ok(false);
        }
        if let Phase::Writing(bytes, sent_bytes) = &mut self.phase {
            while *sent_bytes < bytes.len() {
                match nonblocking(self.connection.write(&bytes[*sent_bytes..]))? {
                    Some(len_bytes) => *sent_bytes += len_bytes,
                    None => return Ok(true),
                }
            }
            self.connection.shutdown(Shutdown::Write)?;
            self.phase = Phase::Draining;
        }
        let mut drained_bytes = 0;
        while drained_bytes < MAX_DRAINED_BYTES {
            match nonblocking(self.connection.read(&mut [0; CHUNK_BYTES]))? {
                Some(0) => return Ok(false),
                Some(len_bytes) => drained_bytes += len_bytes,
                None => return Ok(true),
            }
        }
        Ok(true)
    }
}

/// Maps a result that would have blocked to `None`.
fn nonblocking(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(len_bytes) => Ok(Some(len_bytes)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns the response to a request; `None` if the request is incomplete.
fn respond(request: &[u8], metrics: &dyn Fn(Format) -> String) -> Option<Response> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if request.len() < MAX_REQUEST_BYTES => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Some(Response::error_response("431 Request Header Fields Too Large"));
        }
        Err(_) => return Some(Response::error_response("400 Bad Request")),
    }
    if !matches!(parsed.method, Some("GET" | "HEAD")) {
        return Some(Response::error_response("405 Method Not Allowed"));
    }
    let path = parsed.path.unwrap_or_default().split('?').next();
    if path != Some("/metrics") {
        return Some(Response::error_response("404 Not Found"));
    }
    let accepts = parsed.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("accept"));
    let wants_openmetrics = accepts.flat_map(|header| std::str::from_utf8(header.value)).any(|value| {
        value.split(',').any(|kind| kind.trim_start().starts_with("application/openmetrics-text"))
    });
    let format = if wants_openmetrics { Format::OpenMetrics } else { Format::Prometheus };
    Some(Response { status: "200 OK", media_type: format.media_type(), body: metrics(format) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &[u8]) -> Option<&'static str> {
        respond(request, &|format| format.media_type().to_owned()).map(|response| response.status)
    }

    #[test]
    fn what_is_asked_for_decides_the_format() {
        let asked = |accept: &str| {
            let request = format!("GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\naccept: {accept}\r\n\r\n");
            respond(request.as_bytes(), &|format| format!("{format:?}")).expect("whole").body
        };
        assert_eq!(asked("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"), "OpenMetrics");
        assert_eq!(asked("text/plain, application/openmetrics-text"), "OpenMetrics");
        assert_eq!(asked("*/*"), "Prometheus");
    }

    #[test]
    fn every_beginning_of_a_request_waits_for_more_and_others_are_refused() {
        let request = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
        for length in 0..request.len() {
            assert_eq!(status(&request[..length]), None, "{length}");
        }
        assert_eq!(status(request), Some("200 OK"));
        assert_eq!(status(b"GET / HTTP/1.0\r\n\r\n"), Some("404 Not Found"));
        assert_eq!(status(b"POST /metrics HTTP/1.1\r\n\r\n"), Some("405 Method Not Allowed"));
        assert_eq!(status(b"\x16\x03\x01\x02"), Some("400 Bad Request"));
        let mut long = b"GET /metrics HTTP/1.1\r\nA: ".to_vec();
        long.resize(MAX_REQUEST_BYTES, b'a');
        assert_eq!(status(&long), Some("431 Request Header Fields Too Large"));
        let many =
            [&b"GET /metrics HTTP/1.1\r\n"[..], &b"A: b\r\n".repeat(MAX_HEADERS + 1), b"\r\n"].concat();
        assert_eq!(status(&many), Some("431 Request Header Fields Too Large"));
    }

    #[test]
    fn only_an_error_of_the_listening_socket_ends_the_service() {
        let of = |number| AcceptError::classify(&io::Error::from_raw_os_error(number));
        assert_eq!(of(libc::EAGAIN), AcceptError::NonePending);
        for number in
            [libc::ECONNABORTED, libc::ECONNRESET, libc::EINTR, libc::EPROTO, libc::EPERM, libc::ENETDOWN]
        {
            assert_eq!(of(number), AcceptError::Connection, "{number}");
        }
        assert_eq!(of(libc::EMFILE), AcceptError::NoDescriptors);
        assert_eq!(of(libc::ENFILE), AcceptError::NoResources);
        assert_eq!(of(libc::EBADF), AcceptError::Listener);
    }

    #[test]
    fn a_client_that_is_late_is_told_and_then_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let mut client_end = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (server_end, _) = listener.accept().expect("it connected");
        server_end.set_nonblocking(true).expect("set");
        let metrics = |_| String::new();
        let mut client = Client::new(server_end);
        assert!(client.advance(false, &metrics).expect("it waits"));
        assert!(client.advance(true, &metrics).expect("it is told"));
        assert!(matches!(client.phase, Phase::Draining));
        assert!(!client.advance(true, &metrics).expect("it is over"));
        drop(client);
        let mut text = String::new();
        client_end.read_to_string(&mut text).expect("told");
        assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
    }
}
