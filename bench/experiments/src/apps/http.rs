//! A client for documents by HTTP: several connections in one thread for each of its processors, each with a
//! request in flight at all times, so that the server is never idle; every byte of every body is compared.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;
use uncopy_testbed::network::prepare;

use crate::clients;
use crate::kit::traffic::{self, Exchange, LoadResult, Period};
use crate::kit::{Failure, Random, Result, While, compare};

/// Maximum time without a byte from the server.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a connection attempt is repeated. The kernel itself would wait for one second, then for
/// three, after a server whose backlog was full (Icecast's has five places).
const CONNECT_TIMEOUT: Duration = Duration::from_millis(5);
/// Longest head of an answer, bytes.
const MAX_HEAD_BYTES: usize = 8192;
/// Maximum number of threads: a server with one processor is kept busy by fewer.
const MAX_THREADS: usize = 4;

/// A document that a server delivers.
#[derive(Clone, Debug)]
pub struct Document {
    /// Path of the document, beginning with a slash.
    pub path: String,
    /// Expected bytes of the body.
    pub body: Vec<u8>,
}

impl Document {
    /// Returns `count` different documents of `size_bytes` below `/`.
    #[must_use]
    pub fn random_set(count: usize, size_bytes: usize) -> Vec<Self> {
        let document = |number: usize| Self {
            path: format!("/{size_bytes}-{number}.bin"),
            body: Random::new((size_bytes as u64) << 16 | number as u64).bytes(size_bytes),
        };
        (0..count).map(document).collect()
    }

    /// Writes the document below `root`.
    ///
    /// # Errors
    /// [`Failure`] when the disk is full.
    pub fn write(&self, root: &std::path::Path) -> Result<()> {
        std::fs::write(root.join(&self.path[1..]), &self.body).doing("writing a file to serve")
    }
}

/// Requests for documents of one server.
#[derive(Clone, Copy, Debug)]
pub struct Requests<'a> {
    /// The server's name in messages.
    pub name: &'static str,
    /// Address at which the server listens.
    pub server: SocketAddr,
    /// Documents to request, in random order.
    pub documents: &'a [Document],
    /// Whether a connection serves many requests; otherwise each request opens one.
    pub keep_alive: bool,
}

/// Connections of several threads.
#[derive(Debug)]
pub struct Clients<'a> {
    threads: Vec<Connections<'a>>,
    processors: Option<CpuSet>,
}

impl<'a> Clients<'a> {
    /// Opens `count` connections, in threads on `processors`.
    ///
    /// # Errors
    /// [`Failure`] when the server does not accept.
    pub fn open(requests: Requests<'a>, count: usize, processors: Option<CpuSet>) -> Result<Self> {
        let available = processors.map_or(1, |processors| processors.count() as usize);
        let threads = available.clamp(1, MAX_THREADS).min(count.max(1));
        let open = |thread: usize| Connections::open(requests, (thread..count).step_by(threads));
        Ok(Self { threads: (0..threads).map(open).collect::<Result<_>>()?, processors })
    }
}

impl clients::Clients for Clients<'_> {
    fn reconnect(&mut self) -> Result<()> {
        for Connections { requests, connections, .. } in &mut self.threads {
            for connection in connections.iter_mut().filter(|_| requests.keep_alive) {
                connection.stream = Some(requests.connect()?);
            }
        }
        Ok(())
    }

    fn load(&mut self, duration: Duration) -> Result<LoadResult> {
        traffic::in_parallel(&mut self.threads, self.processors, duration, |connections, period| {
            connections.run(period)
        })
    }
}

#[derive(Debug)]
struct Connection {
    stream: Option<TcpStream>,
    random: Random,
    /// Index of the requested document.
    requested: usize,
    sent: Instant,
}

/// The connections of one thread.
#[derive(Debug)]
struct Connections<'a> {
    requests: Requests<'a>,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
}

impl<'a> Connections<'a> {
    fn open(requests: Requests<'a>, numbers: impl Iterator<Item = usize>) -> Result<Self> {
        let open = |number: usize| {
            let stream = requests.keep_alive.then(|| requests.connect()).transpose()?;
            let random = Random::new(number as u64);
            Ok(Connection { stream, random, requested: 0, sent: Instant::now() })
        };
        let longest = requests.documents.iter().map(|document| document.body.len()).max().unwrap_or(0);
        let buffer = vec![0; MAX_HEAD_BYTES + longest];
        Ok(Self { requests, connections: numbers.map(open).collect::<Result<_>>()?, buffer })
    }

    fn run(&mut self, period: Period) -> Result<LoadResult> {
        let (requests, buffer) = (self.requests, &mut self.buffer);
        traffic::in_turn(
            &mut self.connections,
            period,
            |connection| connection.send_request(requests),
            |connection| connection.receive(requests, buffer),
        )
    }
}

impl Requests<'_> {
    fn connect(&self) -> Result<TcpStream> {
        let what = || format!("connecting to {} at {}", self.name, self.server);
        let begin = Instant::now();
        let stream = loop {
            match TcpStream::connect_timeout(&self.server, CONNECT_TIMEOUT) {
                Err(error) if error.kind() == ErrorKind::TimedOut && begin.elapsed() < TIMEOUT => {}
                stream => break stream.doing(what())?,
            }
        };
        prepare(&stream, TIMEOUT).doing(what())?;
        Ok(stream)
    }

    fn failure(&self, what: impl std::fmt::Display) -> Failure {
        Failure::new(format!("{}: {what}", self.name))
    }
}

impl Connection {
    fn send_request(&mut self, requests: Requests<'_>) -> Result<()> {
        self.requested = usize::try_from(self.random.next() >> 33).unwrap_or(0) % requests.documents.len();
        let path = &requests.documents[self.requested].path;
        let request = if requests.keep_alive {
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: uncopy-bench\r\n\r\n")
        } else {
            format!("GET {path} HTTP/1.0\r\nUser-Agent: uncopy-bench\r\n\r\n")
        };
        self.sent = Instant::now();
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => requests.connect()?,
        };
        stream.write_all(request.as_bytes()).doing(format_args!("sending a request to {}", requests.name))?;
        self.stream = Some(stream);
        Ok(())
    }

    fn receive(&mut self, requests: Requests<'_>, buffer: &mut [u8]) -> Result<Exchange> {
        let document = &requests.documents[self.requested];
        let mut stream = self.stream.take().ok_or_else(|| requests.failure("no request was sent"))?;
        let (begin, mut filled, length) = receive_head(requests, &mut stream, buffer)?;
        let end = begin + document.body.len();
        if length.is_some_and(|length| length != document.body.len()) {
            let length = length.unwrap_or(0);
            return Err(requests.failure(format_args!(
                "{} has a Content-Length of {length}, not {}",
                document.path,
                document.body.len()
            )));
        }
        let limit = if requests.keep_alive { end } else { buffer.len() };
        let what = || format!("receiving {} from {}", document.path, requests.name);
        while filled < limit {
            match stream.read(&mut buffer[filled..limit]) {
                Ok(0) => break,
                Ok(got) => filled += got,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::while_doing(what(), &error)),
            }
        }
        let received = Instant::now();
        compare(&document.body, &buffer[begin..filled.max(begin)]).map_err(|mismatch| {
            requests.failure(format_args!("wrong body of {}: {mismatch}", document.path))
        })?;
        if requests.keep_alive {
            self.stream = Some(stream);
        }
        Ok(Exchange { sent: self.sent, received, verified_bytes: document.body.len() as u64 })
    }
}

/// Receives up to the end of the head. Returns the body's offset, the bytes received, and the declared length.
fn receive_head(
    requests: Requests<'_>,
    stream: &mut TcpStream,
    buffer: &mut [u8],
) -> Result<(usize, usize, Option<usize>)> {
    let mut filled = 0;
    loop {
        let got = match stream.read(&mut buffer[filled..]) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            got => got.doing(format_args!("receiving from {}", requests.name))?,
        };
        if got == 0 {
            return Err(requests.failure("the connection ended before the end of the response header"));
        }
        filled += got;
        let head = &buffer[..filled.min(MAX_HEAD_BYTES)];
        match head.windows(4).position(|four| four == b"\r\n\r\n") {
            Some(end) => {
                let length = content_length(&buffer[..end]).map_err(|what| requests.failure(what))?;
                return Ok((end + 4, filled, length));
            }
            None if filled >= MAX_HEAD_BYTES => {
                return Err(requests.failure("the response header is too long"));
            }
            None => {}
        }
    }
}

/// Returns the length of the body that the head of an answer of status 200 declares, if any.
fn content_length(head: &[u8]) -> std::result::Result<Option<usize>, String> {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    if first.split(' ').nth(1) != Some("200") {
        return Err(format!("unexpected response \"{}\"", first.escape_debug()));
    }
    let fields = lines.filter_map(|line| line.split_once(':'));
    let mut length = None;
    for (name, value) in fields {
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok();
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(format!("the body is {}, without a Content-Length", value.trim().escape_debug()));
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::Clients as _;
    use crate::kit::network::server_address;
    use std::net::TcpListener;

    /// Starts a server that gives `answer` to one connection and closes it.
    fn answering(answer: Vec<u8>) -> (SocketAddr, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind((server_address(), 0)).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(&answer);
        });
        (address, thread)
    }

    fn result_of(keep_alive: bool, answer: &[u8]) -> Result<LoadResult> {
        let (server, thread) = answering(answer.to_vec());
        let documents = [Document { path: "/page".into(), body: b"page".to_vec() }];
        let requests = Requests { name: "it", server, documents: &documents, keep_alive };
        let load = Clients::open(requests, 1, None).and_then(|mut clients| clients.load(Duration::ZERO));
        thread.join().expect("no panic");
        load
    }

    fn failure_of(answer: &[u8]) -> String {
        result_of(true, answer).expect_err("a wrong answer").to_string()
    }

    #[test]
    fn wrong_short_and_refused_answers_are_reported() {
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n";
        assert!(failure_of(format!("{head}pagf").as_bytes()).contains("wrong body of /page: byte 3"));
        assert!(failure_of(format!("{head}pa").as_bytes()).contains("wrong body of /page"));
        assert!(failure_of(b"HTTP/1.1 404 No\r\n\r\n").contains("404"));
        assert!(
            failure_of(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\npagef").contains("Content-Length of 5")
        );
        assert!(failure_of(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").contains("chunked"));
        assert!(failure_of(b"HTTP/1.1 200 OK\r\n").contains("ended before"));
    }

    #[test]
    fn a_body_that_ends_with_the_connection_is_compared_to_its_end() {
        let load = result_of(false, b"HTTP/1.0 200 OK\r\n\r\npage").expect("the page");
        assert_eq!((load.exchanges, load.verified_bytes), (1, 4));
        let failure = result_of(false, b"HTTP/1.0 200 OK\r\n\r\npages").expect_err("too long").to_string();
        assert!(failure.contains("nothing was sent"), "{failure}");
    }
}
