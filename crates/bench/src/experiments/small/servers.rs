//! Small I/O of packaged servers, where there is nothing to gain and nothing must be lost: memcached
//! with values of 100 bytes, nginx with a file of 1 KiB.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::kit::traffic::{self, Exchange, Load};
use crate::kit::{
    Comparison, Failure, Launcher, Progress, Random, Result, Schedule, Side, While, compare, processors, size,
};
use crate::servers::packaged::{MEMCACHED, NGINX, PAGE_NAME, Package};

/// How long a server may be silent.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Length of a value in memcached, bytes.
const VALUE_BYTES: usize = 100;
/// Length of the file that nginx serves, bytes.
const PAGE_BYTES: usize = 1024;
/// Longest head of an answer of nginx, bytes.
const HEAD_LIMIT_BYTES: usize = 4096;

/// The server that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// memcached: each exchange sets a value and gets it back.
    Memcached,
    /// nginx: each exchange gets the file.
    Nginx,
}

impl Kind {
    const fn package(self) -> Package {
        match self {
            Self::Memcached => MEMCACHED,
            Self::Nginx => NGINX,
        }
    }

    fn title(self) -> String {
        match self {
            Self::Memcached => format!("memcached set and get {}", size(VALUE_BYTES as u64)),
            Self::Nginx => format!("nginx {}", size(PAGE_BYTES as u64)),
        }
    }

    /// Bytes of values or files in one exchange.
    const fn exchange_bytes(self) -> u64 {
        match self {
            Self::Memcached => 2 * VALUE_BYTES as u64,
            Self::Nginx => PAGE_BYTES as u64,
        }
    }
}

/// Measures `kind` over `connections`; left out, with a note, where it is not installed.
pub fn measure(
    launcher: &Launcher,
    kind: Kind,
    connections: usize,
    schedule: &Schedule,
    progress: &mut Progress,
) -> Comparison {
    let sides: Vec<Side> = schedule.sides.iter().copied().filter(|side| *side != Side::Limit).collect();
    let mut comparison = Comparison::new(kind.title(), kind.exchange_bytes(), &sides);
    let program = match kind.package().find() {
        Ok(program) => program,
        Err(missing) => {
            comparison.skip(missing.to_string());
            return comparison;
        }
    };
    let page = Random::new(11).bytes(PAGE_BYTES);
    schedule.rounds.run_one(&mut comparison, progress, |side, _| {
        let (mut server, address) = kind.package().start(launcher, side, &program)?;
        if kind == Kind::Nginx {
            std::fs::write(server.directory().join(PAGE_NAME), &page).doing("writing the page")?;
        }
        let client = |number| Client::connect(address, kind, &page, number as u64);
        let mut clients = (0..connections).map(client).collect::<Result<Vec<_>>>()?;
        let others = processors::of_clients(processors::ONE_THREAD);
        let (sample, _) = traffic::sample(&mut server, schedule.duration, |duration| {
            traffic::at_once(&mut clients, others, |client| client.run(duration))
        })?;
        drop(clients);
        Ok(traffic::ended(launcher, side, server, sample))
    });
    comparison
}

/// One connection to either server.
#[derive(Debug)]
struct Client<'a> {
    stream: TcpStream,
    kind: Kind,
    page: &'a [u8],
    random: Random,
    number: u64,
}

impl<'a> Client<'a> {
    fn connect(address: SocketAddr, kind: Kind, page: &'a [u8], number: u64) -> Result<Self> {
        let what = || format!("connecting to {} at {address}", kind.package().name);
        let stream = TcpStream::connect_timeout(&address, TIMEOUT).doing(what())?;
        stream.set_nodelay(true).doing(what())?;
        stream.set_read_timeout(Some(TIMEOUT)).doing(what())?;
        stream.set_write_timeout(Some(TIMEOUT)).doing(what())?;
        Ok(Self { stream, kind, page, random: Random::new(number), number })
    }

    fn run(&mut self, duration: Duration) -> Result<Load> {
        traffic::repeat(duration, |_| match self.kind {
            Kind::Memcached => self.set_and_get(),
            Kind::Nginx => self.get_page(),
        })
    }

    fn send(&mut self, request: &[u8]) -> Result<()> {
        let name = self.kind.package().name;
        self.stream.write_all(request).doing(format_args!("sending to {name}"))
    }

    fn set_and_get(&mut self) -> Result<Exchange> {
        let key = format!("uncopy:{}", self.number);
        // Printable, so that a message about a wrong one can be read.
        let value: Vec<u8> = self.random.bytes(VALUE_BYTES).iter().map(|byte| b'0' + byte % 64).collect();
        let mut request = format!("set {key} 0 0 {VALUE_BYTES}\r\n").into_bytes();
        request.extend_from_slice(&value);
        request.extend_from_slice(format!("\r\nget {key}\r\n").as_bytes());
        let mut expected = format!("STORED\r\nVALUE {key} 0 {VALUE_BYTES}\r\n").into_bytes();
        expected.extend_from_slice(&value);
        expected.extend_from_slice(b"\r\nEND\r\n");
        let mut answer = vec![0; expected.len()];
        let sent = Instant::now();
        self.send(&request)?;
        self.stream.read_exact(&mut answer).doing("receiving from memcached")?;
        let received = Instant::now();
        compare(&expected, &answer)
            .map_err(|mismatch| Failure::new(format!("wrong answer of memcached: {mismatch}")))?;
        Ok(Exchange { sent, received, verified_bytes: answer.len() as u64 })
    }

    fn get_page(&mut self) -> Result<Exchange> {
        let sent = Instant::now();
        self.send(format!("GET /{PAGE_NAME} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
        let mut answer = Vec::with_capacity(2 * PAGE_BYTES);
        let body = loop {
            let filled = answer.len();
            answer.resize(filled + HEAD_LIMIT_BYTES, 0);
            let got = self.stream.read(&mut answer[filled..]).doing("receiving from nginx")?;
            answer.truncate(filled + got);
            let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
            match end {
                Some(end) if answer.len() >= end + 4 + self.page.len() => break end + 4,
                _ if got == 0 => return Err(Failure::new("nginx closed the connection")),
                _ if answer.len() > HEAD_LIMIT_BYTES + self.page.len() => {
                    return Err(Failure::new("the answer of nginx does not end"));
                }
                _ => {}
            }
        };
        let received = Instant::now();
        if !answer.starts_with(b"HTTP/1.1 200 ") {
            let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
            return Err(Failure::new(format!("nginx answered \"{}\"", line.escape_ascii())));
        }
        compare(self.page, &answer[body..])
            .map_err(|mismatch| Failure::new(format!("wrong page from nginx: {mismatch}")))?;
        Ok(Exchange { sent, received, verified_bytes: self.page.len() as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::network::server_address;
    use std::net::TcpListener;

    /// A server that answers whatever comes first with `answer` and closes.
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

    fn failure_of(kind: Kind, answer: &[u8]) -> String {
        let (address, thread) = answering(answer.to_vec());
        let mut client = Client::connect(address, kind, b"page", 1).expect("listening");
        let failure = client.run(TIMEOUT).expect_err("a wrong answer or none after it").to_string();
        thread.join().expect("no panic");
        failure
    }

    #[test]
    fn wrong_pages_and_answers_are_told() {
        let page = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\npagf";
        assert!(failure_of(Kind::Nginx, page).contains("wrong page from nginx: byte 3"));
        assert!(failure_of(Kind::Nginx, b"HTTP/1.1 404 No\r\n\r\npage").contains("404"));
        assert!(failure_of(Kind::Nginx, b"HTTP/1.1 200 OK\r\n\r\npa").contains("closed"));
        let stored = [b"STORED\r\n".to_vec(), vec![b'x'; 200]].concat();
        assert!(failure_of(Kind::Memcached, &stored).contains("wrong answer of memcached: byte 8"));
    }

    #[test]
    fn the_right_page_is_verified() {
        let (address, thread) = answering(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\npage".to_vec());
        let mut client = Client::connect(address, Kind::Nginx, b"page", 1).expect("listening");
        let load = client.run(Duration::ZERO).expect("the page");
        assert_eq!((load.exchanges, load.verified_bytes), (1, 4));
        thread.join().expect("no panic");
    }
}
