//! The client of `files`: some connections in one thread, which always have a request under way each, so that the
//! server is never idle and the client's own work is small. Every byte of every answer is compared.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::kit::traffic::{self, Exchange, Load};
use crate::kit::{Failure, Random, Result, While, compare};

/// How long a server may be silent.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest head of an answer, bytes.
const HEAD_LIMIT_BYTES: usize = 4096;
/// Distance of one file's bytes from the next one's in the pool.
const STEP_BYTES: usize = 7919;
/// Bytes of all files of one length together, about; so many files that no cache of the processor holds them all,
/// where they are large.
const TOTAL_BYTES: usize = 64 << 20;
/// The mail of 2001 (sendfile-zerocopy-cpu-load) had 63 files; fewer where they are large.
const MAX_FILES: usize = 63;
const MIN_FILES: usize = 8;

/// The files of one length: pieces of one pool of random bytes.
#[derive(Debug)]
pub struct Content {
    pool: Vec<u8>,
    size_bytes: usize,
    count: usize,
}

impl Content {
    /// Files of `size_bytes`.
    #[must_use]
    pub fn new(size_bytes: usize) -> Self {
        let count = (TOTAL_BYTES / size_bytes.max(1)).clamp(MIN_FILES, MAX_FILES);
        let pool = Random::new(31 + size_bytes as u64).bytes(size_bytes + count * STEP_BYTES);
        Self { pool, size_bytes, count }
    }

    fn file(&self, number: usize) -> &[u8] {
        &self.pool[number * STEP_BYTES..number * STEP_BYTES + self.size_bytes]
    }

    fn name(&self, number: usize) -> String {
        format!("{}-{number}.bin", self.size_bytes)
    }

    /// Writes all of them into `directory`.
    ///
    /// # Errors
    /// [`Failure`] when there is no room.
    pub fn write(&self, directory: &Path) -> Result<()> {
        (0..self.count).try_for_each(|number| {
            std::fs::write(directory.join(self.name(number)), self.file(number))
                .doing("writing a file to serve")
        })
    }
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    random: Random,
    /// The file that was asked for.
    asked: usize,
    sent: Instant,
}

/// Some connections in one thread.
#[derive(Debug)]
pub struct Connections<'a> {
    content: &'a Content,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
}

impl<'a> Connections<'a> {
    /// Opens the connections with these numbers to `server`.
    ///
    /// # Errors
    /// [`Failure`] when it does not accept.
    pub fn open(
        server: SocketAddr,
        content: &'a Content,
        numbers: impl Iterator<Item = usize>,
    ) -> Result<Self> {
        let open = |number: usize| {
            let what = || format!("connecting to uncopy-files at {server}");
            let stream = TcpStream::connect_timeout(&server, TIMEOUT).doing(what())?;
            stream.set_nodelay(true).doing(what())?;
            stream.set_read_timeout(Some(TIMEOUT)).doing(what())?;
            stream.set_write_timeout(Some(TIMEOUT)).doing(what())?;
            Ok(Connection { stream, random: Random::new(number as u64), asked: 0, sent: Instant::now() })
        };
        let connections = numbers.map(open).collect::<Result<_>>()?;
        let buffer = vec![0; HEAD_LIMIT_BYTES + content.size_bytes];
        Ok(Self { content, connections, buffer })
    }

    /// Exchanges for `duration`, the connections in turn.
    ///
    /// # Errors
    /// [`Failure`] at the first wrong or missing answer.
    pub fn run(&mut self, duration: Duration) -> Result<Load> {
        let (content, buffer) = (self.content, &mut self.buffer);
        for connection in &mut self.connections {
            connection.ask(content)?;
        }
        let count = self.connections.len() as u64;
        let connections = &mut self.connections;
        let load = traffic::repeat(duration, |number| {
            let at = usize::try_from(number % count).unwrap_or(0);
            let connection = &mut connections[at];
            let done = connection.receive(content, buffer)?;
            connection.ask(content)?;
            Ok(done)
        })?;
        for connection in &mut self.connections {
            connection.receive(content, &mut self.buffer)?;
        }
        Ok(load)
    }
}

impl Connection {
    fn ask(&mut self, content: &Content) -> Result<()> {
        self.asked = usize::try_from(self.random.next() >> 33).unwrap_or(0) % content.count;
        let mut request = String::with_capacity(128);
        let name = content.name(self.asked);
        let _ =
            write!(request, "GET /{name} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: uncopy-bench\r\n\r\n");
        self.sent = Instant::now();
        self.stream.write_all(request.as_bytes()).doing("sending a request")
    }

    fn receive(&mut self, content: &Content, buffer: &mut [u8]) -> Result<Exchange> {
        let mut filled = 0;
        let body = loop {
            let got = self.stream.read(&mut buffer[filled..]).doing("receiving from uncopy-files")?;
            if got == 0 {
                return Err(Failure::new("uncopy-files closed the connection, or its answer is too long"));
            }
            filled += got;
            let head = &buffer[..filled.min(HEAD_LIMIT_BYTES)];
            match head.windows(4).position(|four| four == b"\r\n\r\n") {
                Some(end) => break end + 4,
                None if filled >= HEAD_LIMIT_BYTES => {
                    return Err(Failure::new("the head of an answer does not end"));
                }
                None => {}
            }
        };
        check_head(&buffer[..body], content.size_bytes)?;
        let end = body + content.size_bytes;
        if filled < end {
            self.stream.read_exact(&mut buffer[filled..end]).doing("receiving from uncopy-files")?;
        }
        let received = Instant::now();
        let found = &buffer[body..end.max(filled)];
        compare(content.file(self.asked), found)
            .map_err(|mismatch| Failure::new(format!("wrong file from uncopy-files: {mismatch}")))?;
        Ok(Exchange { sent: self.sent, received, verified_bytes: content.size_bytes as u64 })
    }
}

/// Whether an answer is of the right status and length.
fn check_head(head: &[u8], len_bytes: usize) -> Result<()> {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let length = lines.find_map(|line| line.strip_prefix("Content-Length: "));
    if !first.starts_with("HTTP/1.1 200 ") || length != Some(&len_bytes.to_string()) {
        let length = length.unwrap_or("none");
        return Err(Failure::new(format!("uncopy-files answered \"{first}\", with length {length}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::network::server_address;
    use std::net::TcpListener;

    /// What the client says of an answer with this head and the second file with one byte more or less.
    fn failure_of(head: &str, change: impl FnOnce(&mut Vec<u8>)) -> String {
        let content = Content { pool: Random::new(1).bytes(STEP_BYTES + 100), size_bytes: 100, count: 1 };
        let listener = TcpListener::bind((server_address(), 0)).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let mut answer = content.file(0).to_vec();
        change(&mut answer);
        let answer = [head.as_bytes(), &answer].concat();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(&answer);
        });
        let mut client = Connections::open(address, &content, 0..1).expect("listening");
        let outcome = client.connections[0].ask(&content).and_then(|()| {
            client.connections[0].receive(&content, &mut client.buffer).map(|done| done.verified_bytes)
        });
        thread.join().expect("no panic");
        match outcome {
            Ok(bytes) => format!("{bytes} bytes are right"),
            Err(failure) => failure.to_string(),
        }
    }

    #[test]
    fn right_files_are_verified_and_wrong_ones_told() {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n";
        assert_eq!(failure_of(head, |_| ()), "100 bytes are right");
        assert!(failure_of(head, |file| file[99] ^= 1).contains("byte 99"));
        assert!(failure_of(head, |file| file.truncate(50)).contains("receiving"));
        assert!(failure_of(&head.replace("200", "404"), |_| ()).contains("404"));
        assert!(failure_of(&head.replace("100", "99"), |_| ()).contains("length 99"));
        assert!(failure_of("HTTP/1.1 200 OK\r\n", |file| file.clear()).contains("closed"));
    }

    #[test]
    fn files_differ_and_there_are_as_many_as_are_to_be_had() {
        assert_eq!([1 << 10, 350_000, 8 << 20].map(|size| Content::new(size).count), [63, 63, 8]);
        let content = Content::new(1024);
        assert_ne!(content.file(0), content.file(1));
    }
}
