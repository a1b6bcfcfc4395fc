//! Answers HTTP: `GET /metrics`, one request for each connection.

use super::fail;
use super::text::Format;
use crate::output::{self, Reason};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// Connections that are answered at a time; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 8;
/// Longest request, bytes.
const MAX_REQUEST_BYTES: usize = 16 << 10;
/// Header lines of a request.
const MAX_HEADERS: usize = 64;
/// What a connection may take altogether.
const LIMIT: Duration = Duration::from_secs(5);

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
}

/// Serves until a signal ends the process.
pub fn serve(address: SocketAddr) -> u8 {
    let bound = TcpListener::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (address, listener) = match bound {
        Ok(bound) => bound,
        Err(error) => return fail(format_args!("cannot listen at {address}: {}", Reason(&error))),
    };
    output::complain(format_args!("metrics at http://{address}/metrics"));
    // Whoever has it looks at all processes.
    let look = Mutex::new(());
    let metrics = |format| {
        let _one = look.lock();
        super::now(format)
    };
    let (sender, receiver) = mpsc::sync_channel(0);
    let receiver = Mutex::new(receiver);
    thread::scope(|scope| {
        // They end when it is dropped.
        let sender = sender;
        for _ in 0..MAX_CONNECTIONS {
            scope.spawn(|| {
                while let Some(connection) = next(&receiver) {
                    // Who went away needs no answer.
                    let _ = converse(connection, &metrics);
                }
            });
        }
        loop {
            match listener.accept() {
                // It waits here until somebody has time for it.
                Ok((connection, _)) => drop(sender.send(connection)),
                Err(error) if is_of_the_connection(&error) => {}
                Err(error) => return fail(format_args!("cannot accept connections: {}", Reason(&error))),
            }
        }
    })
}

/// The next connection; `None`: there will be no more.
fn next(receiver: &Mutex<Receiver<TcpStream>>) -> Option<TcpStream> {
    receiver.lock().ok()?.recv().ok()
}

/// Whether an error of accept(2) says nothing of the listening socket.
fn is_of_the_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

/// Reads a request and answers it.
fn converse(mut connection: TcpStream, metrics: &dyn Fn(Format) -> String) -> io::Result<()> {
    let deadline = Instant::now() + LIMIT;
    let mut request = Vec::new();
    let answer = loop {
        if let Some(answer) = answer(&request, metrics) {
            break answer;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break Answer::refusal("408 Request Timeout");
        }
        connection.set_read_timeout(Some(left))?;
        let mut part = [0; 4096];
        match connection.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(length) => request.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    };
    let is_head = request.starts_with(b"HEAD ");
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        answer.status,
        answer.media_type,
        answer.body.len()
    );
    connection.set_write_timeout(Some(LIMIT))?;
    connection.write_all(head.as_bytes())?;
    if !is_head {
        connection.write_all(answer.body.as_bytes())?;
    }
    connection.shutdown(std::net::Shutdown::Write)
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
}
