//! Answers HTTP: `GET /metrics`, one request for each connection.
//!
//! One thread serves all clients as each is ready, so that nobody waits for a slow one. Each has a deadline of its own, and their
//! number is bounded: when there are more, the oldest is dropped.

use super::fail;
use super::text::Format;
use crate::output::{self, Reason};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Clients at a time.
const MAX_CLIENTS: usize = 64;
/// Connections that are accepted before the clients have their turn.
const MAX_ACCEPTED: usize = 16;
/// Longest request, bytes.
const MAX_REQUEST_BYTES: usize = 16 << 10;
/// Header lines of a request.
const MAX_HEADERS: usize = 64;
/// What a client may take for its request, and for reading the answer.
const LIMIT: Duration = Duration::from_secs(5);
/// How long nobody is accepted where the system has no descriptors or no memory.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes that a client is read of at a time.
const PART_BYTES: usize = 4096;
/// Bytes behind a request that are thrown away in one turn.
const MAX_DRAINED_BYTES: usize = 16 * PART_BYTES;

/// What is answered.
struct Answer {
    status: &'static str,
    media_type: &'static str,
    body: String,
}

impl Answer {
    fn refusal(status: &'static str) -> Self {
        Self { status, media_type: "text/plain; charset=utf-8", body: format!("{status}; see /metrics\n") }
    }

    /// As it is sent; the head alone for HEAD.
    fn bytes(self, is_head: bool) -> Vec<u8> {
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
    output::complain(format_args!("metrics at http://{address}/metrics"));
    let mut server = Server { listener, clients: VecDeque::new(), paused_until: None };
    loop {
        if let Err(error) = server.turn(&super::now) {
            return fail(format_args!("cannot serve: {}", Reason(&error)));
        }
    }
}

struct Server {
    listener: TcpListener,
    /// In the order in which they came.
    clients: VecDeque<Client>,
    /// Nobody is accepted before.
    paused_until: Option<Instant>,
}

impl Server {
    /// Waits until somebody is ready or a time is up, and serves whom that concerns.
    fn turn(&mut self, metrics: &dyn Fn(Format) -> String) -> io::Result<()> {
        let mut waited_for: Vec<PollFd<'_>> =
            self.clients.iter().map(|client| PollFd::new(&client.connection, client.events())).collect();
        if self.paused_until.is_none() {
            waited_for.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        let times = self.clients.iter().map(|client| client.deadline).chain(self.paused_until);
        let left = times.min().map(|time| time.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut waited_for, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        let ready: Vec<bool> = waited_for.iter().map(|waited| !waited.revents().is_empty()).collect();
        let now = Instant::now();
        let mut index = 0;
        self.clients.retain_mut(|client| {
            let is_ready = ready[index];
            index += 1;
            let is_late = client.deadline <= now;
            // Who went away needs no answer.
            !(is_ready || is_late) || client.proceed(is_late, metrics).unwrap_or(false)
        });
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
        }
        if ready.get(index) == Some(&true) { self.accept() } else { Ok(()) }
    }

    /// Accepts who waits, and drops the oldest where there would be too many.
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
                Err(error) => match Refusal::of(&error) {
                    Refusal::NobodyWaits => break,
                    Refusal::OfOne => {}
                    Refusal::NoDescriptor if self.clients.pop_front().is_some() => {}
                    Refusal::NoDescriptor | Refusal::NoRoom => {
                        self.paused_until = Some(Instant::now() + PAUSE);
                        break;
                    }
                    Refusal::OfTheListener => return Err(error),
                },
            }
        }
        Ok(())
    }
}

/// What an error of accept(2) says.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    NobodyWaits,
    /// The one that waited is gone, or its network is: accept(2) says to go on.
    OfOne,
    /// This process has all that it may have.
    NoDescriptor,
    /// The system is short of something.
    NoRoom,
    /// The listening socket is of no use.
    OfTheListener,
}

impl Refusal {
    fn of(error: &io::Error) -> Self {
        match error.raw_os_error().unwrap_or(0) {
            libc::EAGAIN => Self::NobodyWaits,
            libc::EMFILE => Self::NoDescriptor,
            libc::ENFILE | libc::ENOBUFS | libc::ENOMEM => Self::NoRoom,
            libc::EBADF | libc::EFAULT | libc::EINVAL | libc::ENOTSOCK => Self::OfTheListener,
            _ => Self::OfOne,
        }
    }
}

/// How far a client is.
enum Phase {
    /// What it has sent of its request.
    Reading(Vec<u8>),
    /// The answer, and how much of it has been sent.
    Writing(Vec<u8>, usize),
    /// It has its answer. What it still sends is read, because unread bytes would make the kernel throw the answer away.
    Draining,
}

struct Client {
    connection: TcpStream,
    deadline: Instant,
    phase: Phase,
}

impl Client {
    fn new(connection: TcpStream) -> Self {
        Self { connection, deadline: Instant::now() + LIMIT, phase: Phase::Reading(Vec::new()) }
    }

    fn events(&self) -> PollFlags {
        if matches!(self.phase, Phase::Writing(..)) { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Does what can be done without waiting; whether there is more to do later.
    fn proceed(&mut self, is_late: bool, metrics: &dyn Fn(Format) -> String) -> io::Result<bool> {
        if let Phase::Reading(request) = &mut self.phase {
            let answer = loop {
                let mut part = [0; PART_BYTES];
                match received(self.connection.read(&mut part))? {
                    Some(0) => return Ok(false),
                    Some(len_bytes) => request.extend_from_slice(&part[..len_bytes]),
                    None if is_late => break Answer::refusal("408 Request Timeout"),
                    None => return Ok(true),
                }
                if let Some(answer) = answer(request, metrics) {
                    break answer;
                }
            };
            let is_head = request.starts_with(b"HEAD ");
            self.phase = Phase::Writing(answer.bytes(is_head), 0);
            self.deadline = Instant::now() + LIMIT;
        } else if is_late {
            return Ok(false);
        }
        if let Phase::Writing(bytes, sent_bytes) = &mut self.phase {
            while *sent_bytes < bytes.len() {
                match received(self.connection.write(&bytes[*sent_bytes..]))? {
                    Some(len_bytes) => *sent_bytes += len_bytes,
                    None => return Ok(true),
                }
            }
            self.connection.shutdown(Shutdown::Write)?;
            self.phase = Phase::Draining;
        }
        let mut drained_bytes = 0;
        while drained_bytes < MAX_DRAINED_BYTES {
            match received(self.connection.read(&mut [0; PART_BYTES]))? {
                Some(0) => return Ok(false),
                Some(len_bytes) => drained_bytes += len_bytes,
                None => return Ok(true),
            }
        }
        Ok(true)
    }
}

/// What a call that waits for nothing gave; `None`: it would have waited.
fn received(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(len_bytes) => Ok(Some(len_bytes)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The answer to a request; `None`: there is more of it to come.
fn answer(request: &[u8], metrics: &dyn Fn(Format) -> String) -> Option<Answer> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if request.len() < MAX_REQUEST_BYTES => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Some(Answer::refusal("431 Request Header Fields Too Large"));
        }
        Err(_) => return Some(Answer::refusal("400 Bad Request")),
    }
    if !matches!(parsed.method, Some("GET" | "HEAD")) {
        return Some(Answer::refusal("405 Method Not Allowed"));
    }
    let path = parsed.path.unwrap_or_default().split('?').next();
    if path != Some("/metrics") {
        return Some(Answer::refusal("404 Not Found"));
    }
    let accepts = parsed.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("accept"));
    let wants = accepts.flat_map(|header| std::str::from_utf8(header.value)).any(|value| {
        value.split(',').any(|kind| kind.trim_start().starts_with("application/openmetrics-text"))
    });
    let format = if wants { Format::OpenMetrics } else { Format::Prometheus };
    Some(Answer { status: "200 OK", media_type: format.media_type(), body: metrics(format) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &[u8]) -> Option<&'static str> {
        answer(request, &|format| format.media_type().to_owned()).map(|answer| answer.status)
    }

    #[test]
    fn what_is_asked_for_decides_the_format() {
        let asked = |accept: &str| {
            let request = format!("GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\naccept: {accept}\r\n\r\n");
            answer(request.as_bytes(), &|format| format!("{format:?}")).expect("whole").body
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
        let of = |number| Refusal::of(&io::Error::from_raw_os_error(number));
        assert_eq!(of(libc::EAGAIN), Refusal::NobodyWaits);
        for number in
            [libc::ECONNABORTED, libc::ECONNRESET, libc::EINTR, libc::EPROTO, libc::EPERM, libc::ENETDOWN]
        {
            assert_eq!(of(number), Refusal::OfOne, "{number}");
        }
        assert_eq!(of(libc::EMFILE), Refusal::NoDescriptor);
        assert_eq!(of(libc::ENFILE), Refusal::NoRoom);
        assert_eq!(of(libc::EBADF), Refusal::OfTheListener);
    }

    #[test]
    fn a_client_that_is_late_is_told_and_then_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let mut far = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (near, _) = listener.accept().expect("it connected");
        near.set_nonblocking(true).expect("set");
        let metrics = |_| String::new();
        let mut client = Client::new(near);
        assert!(client.proceed(false, &metrics).expect("it waits"));
        assert!(client.proceed(true, &metrics).expect("it is told"));
        assert!(matches!(client.phase, Phase::Draining));
        assert!(!client.proceed(true, &metrics).expect("it is over"));
        drop(client);
        let mut text = String::new();
        far.read_to_string(&mut text).expect("told");
        assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
    }
}
