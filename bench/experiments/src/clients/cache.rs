//! A client of memcached: several connections in one thread, each with a request in flight at all times, so
//! that the server is never idle and the client does little work. Every byte of every answer is compared.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv, sockopt};
use rustix::thread::CpuSet;
use uncopy_testbed::clients::memcached::send_store;
use uncopy_testbed::network::connect;

use crate::kit::network::client_address;
use crate::kit::pattern::Mismatch;
use crate::kit::traffic::{self, Exchange, LoadResult, Period};
use crate::kit::{Failure, Random, Result, While, compare};

/// Maximum time without a byte from the server.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a request by UDP is repeated, and the maximum number of repetitions.
const RESEND_INTERVAL: Duration = Duration::from_millis(200);
const MAX_RESENDS: usize = 20;
/// Range of the pool in which values begin, bytes: it fits the processor's cache, because comparing must cost
/// little.
const POOL_BYTES: usize = 128 << 10;
/// Distance in the pool from one key's bytes to the next key's, and from one version's to the next version's: primes.
const KEY_STEP_BYTES: usize = 7919;
const VERSION_STEP_BYTES: usize = 4099;
/// End of the answer to `get`, after the value.
const TAIL: &[u8] = b"\r\nEND\r\n";
/// Length of memcached's frame header by UDP, bytes.
const FRAME_BYTES: usize = 8;
/// Size of the receive buffer for answers by UDP; the kernel's limit may be lower.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// The expected values: the value of any key at any version is a part of one pool of random bytes.
#[derive(Debug)]
pub struct Content {
    pool: Vec<u8>,
    size_bytes: usize,
    keys: usize,
}

impl Content {
    /// Makes `keys` values of `size_bytes`.
    #[must_use]
    pub fn new(size_bytes: usize, keys: usize) -> Self {
        Self { pool: Random::new(29).bytes(POOL_BYTES + size_bytes), size_bytes, keys }
    }

    fn value(&self, key: usize, version: usize) -> &[u8] {
        let at = (key * KEY_STEP_BYTES + version * VERSION_STEP_BYTES) % POOL_BYTES;
        &self.pool[at..at + self.size_bytes]
    }

    /// The key's length makes the head's length even: the transmit engine only sends such datagrams by reference.
    fn head(&self, key: usize) -> Vec<u8> {
        format!("VALUE k{key:07} 0 {}\r\n", self.size_bytes).into_bytes()
    }

    /// Stores the first version of all values, and fetches each several times.
    ///
    /// # Errors
    /// [`Failure`] when the server refuses a value or returns a wrong one.
    pub fn store(&self, server: SocketAddr) -> Result<()> {
        let mut stream =
            connect(server, TIMEOUT).doing(format_args!("connecting to the cache at {server}"))?;
        for key in 0..self.keys {
            send_set(&mut stream, self, key, 0)?;
            receive_stored(&mut stream)?;
            let expected = [&self.head(key)[..], self.value(key, 0), TAIL].concat();
            let mut answer = vec![0; expected.len()];
            for _ in 0..WARM_UP_FETCHES {
                stream.write_all(get_line(key).as_bytes()).doing("sending a request")?;
                receive_exactly(&stream, &mut answer)?;
                compare(&expected, &answer).map_err(wrong_answer)?;
            }
        }
        Ok(())
    }
}

/// Number of fetches of each value before measuring, because the measurement is of values that are sent repeatedly.
const WARM_UP_FETCHES: usize = 10;

/// Transport and address of the server.
#[derive(Clone, Copy, Debug)]
pub enum CacheAddress {
    /// A server reached by TCP.
    Tcp(SocketAddr),
    /// A server reached by UDP.
    Udp(SocketAddr),
}

impl CacheAddress {
    fn connect(self) -> Result<Socket> {
        match self {
            Self::Tcp(server) => {
                let stream = connect(server, TIMEOUT);
                stream.map(Socket::Tcp).doing(format_args!("connecting to the cache at {server}"))
            }
            Self::Udp(server) => open_udp(server).map(Socket::Udp),
        }
    }
}

/// Server and load of the connections.
#[derive(Clone, Copy, Debug)]
pub struct CacheLoad<'a> {
    /// Server to connect to.
    pub address: CacheAddress,
    /// Values to store and to fetch.
    pub content: &'a Content,
    /// Number of operations for each one that stores a value.
    pub operations_per_set: u64,
    /// Number of connections in all; no two use the same key.
    pub connections: usize,
}

fn send_set(stream: &mut TcpStream, content: &Content, key: usize, version: usize) -> Result<()> {
    let key_name = format!("k{key:07}");
    send_store(stream, "set", &key_name, "0", content.value(key, version), "").doing("sending a value")
}

fn receive_stored(stream: &mut TcpStream) -> Result<()> {
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).doing("receiving from the cache")?;
    if &answer == b"STORED\r\n" {
        return Ok(());
    }
    Err(Failure::new(format!("the cache answered \"{}\" to a set", answer.escape_ascii())))
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

/// A connection and its request in flight.
#[derive(Debug)]
struct Connection {
    socket: Socket,
    /// The keys used by this connection only, and the version of each.
    keys: Vec<(usize, usize)>,
    random: Random,
    operations: u64,
    expected_answer: Expected,
    sent: Instant,
}

#[derive(Clone, Copy, Debug)]
enum Expected {
    Nothing,
    Stored,
    /// The value at this index of `keys`.
    Value(usize),
}

/// Connections of several threads.
#[derive(Debug)]
pub struct Clients<'a> {
    threads: Vec<Connections<'a>>,
    processors: Option<CpuSet>,
}

impl<'a> Clients<'a> {
    /// Opens all connections of `work`, in `threads` threads on `processors`.
    ///
    /// # Errors
    /// [`Failure`] when a connection cannot be opened.
    pub fn open(work: &CacheLoad<'a>, threads: usize, processors: Option<CpuSet>) -> Result<Self> {
        let threads = threads.min(work.connections);
        let open = |thread| Connections::open(work, (thread..work.connections).step_by(threads));
        Ok(Self { threads: (0..threads).map(open).collect::<Result<_>>()?, processors })
    }
}

impl super::Clients for Clients<'_> {
    fn load(&mut self, duration: Duration) -> Result<LoadResult> {
        traffic::in_parallel(&mut self.threads, self.processors, duration, |connections, period| {
            connections.run(period)
        })
    }

    fn reconnect(&mut self) -> Result<()> {
        for thread in &mut self.threads {
            for connection in &mut thread.connections {
                connection.socket = thread.work.address.connect()?;
            }
        }
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        match self.threads.iter().map(|thread| thread.lost_answers.get()).sum() {
            0 => Vec::new(),
            lost_answers => vec![format!("{lost_answers} UDP responses were lost and requested again")],
        }
    }
}

/// Connections of one thread.
#[derive(Debug)]
struct Connections<'a> {
    work: CacheLoad<'a>,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
    lost_answers: Cell<u64>,
}

impl<'a> Connections<'a> {
    /// Opens the connections with these numbers, each with its own keys.
    fn open(work: &CacheLoad<'a>, numbers: impl Iterator<Item = usize>) -> Result<Self> {
        let numbers: Vec<usize> = numbers.collect();
        let open = |number: &usize| {
            let socket = work.address.connect()?;
            let keys = (*number..work.content.keys).step_by(work.connections);
            Ok(Connection {
                socket,
                keys: keys.map(|key| (key, 0)).collect(),
                random: Random::new(*number as u64),
                operations: 0,
                expected_answer: Expected::Nothing,
                sent: Instant::now(),
            })
        };
        let connections = numbers.iter().map(open).collect::<Result<Vec<_>>>()?;
        let room = work.content.size_bytes + 4096;
        Ok(Self { work: *work, connections, buffer: vec![0; room], lost_answers: Cell::new(0) })
    }

    fn run(&mut self, period: Period) -> Result<LoadResult> {
        let (work, lost_answers, buffer) = (self.work, &self.lost_answers, &mut self.buffer);
        traffic::in_turn(
            &mut self.connections,
            period,
            |connection| connection.send_request(&work),
            |connection| connection.receive(&work, buffer, lost_answers),
        )
    }
}

fn open_udp(server: SocketAddr) -> Result<UdpSocket> {
    let what = || format!("connecting to the cache at {server} by UDP");
    let socket = UdpSocket::bind((client_address(), 0)).doing(what())?;
    socket.connect(server).doing(what())?;
    socket.set_read_timeout(Some(RESEND_INTERVAL)).doing(what())?;
    let _ = sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES);
    Ok(socket)
}

impl Connection {
    fn send_request(&mut self, work: &CacheLoad<'_>) -> Result<()> {
        let choice = self.random.next();
        let index = usize::try_from(choice >> 32).unwrap_or(0) % self.keys.len();
        let (key, version) = self.keys[index];
        self.operations += 1;
        self.sent = Instant::now();
        if let Socket::Tcp(stream) = &mut self.socket
            && self.operations.is_multiple_of(work.operations_per_set)
        {
            self.keys[index].1 = version + 1;
            self.expected_answer = Expected::Stored;
            return send_set(stream, work.content, key, version + 1);
        }
        self.expected_answer = Expected::Value(index);
        self.send_get(key)
    }

    fn send_get(&mut self, key: usize) -> Result<()> {
        let request = get_line(key);
        match &mut self.socket {
            Socket::Tcp(stream) => stream.write_all(request.as_bytes()).doing("sending a request"),
            Socket::Udp(socket) => {
                let id = u16::try_from(self.operations & 0xffff).unwrap_or(0).to_be_bytes();
                let frame = [id[0], id[1], 0, 0, 0, 1, 0, 0];
                socket.send(&[&frame[..], request.as_bytes()].concat()).doing("sending a request").map(|_| ())
            }
        }
    }

    fn receive(
        &mut self,
        work: &CacheLoad<'_>,
        buffer: &mut Vec<u8>,
        lost_answers: &Cell<u64>,
    ) -> Result<Exchange> {
        let Expected::Value(index) = std::mem::replace(&mut self.expected_answer, Expected::Nothing) else {
            if let Socket::Tcp(stream) = &mut self.socket {
                receive_stored(stream)?;
            }
            return Ok(Exchange { sent: self.sent, received: Instant::now(), verified_bytes: 0 });
        };
        let (key, version) = self.keys[index];
        let head = work.content.head(key);
        let value = work.content.value(key, version);
        let total_bytes = head.len() + value.len() + TAIL.len();
        let answer = match &mut self.socket {
            Socket::Tcp(stream) => {
                receive_exactly(stream, &mut buffer[..total_bytes])?;
                &buffer[..total_bytes]
            }
            Socket::Udp(_) => {
                self.receive_frame(key, buffer, lost_answers)?;
                let answer = &buffer[FRAME_BYTES..];
                &answer[..total_bytes.min(answer.len())]
            }
        };
        let received = Instant::now();
        let (got_head, rest) = answer.split_at(head.len());
        let (got_value, got_tail) = rest.split_at(value.len());
        compare(&head, got_head).map_err(wrong_answer)?;
        compare(value, got_value).map_err(wrong_answer)?;
        compare(TAIL, got_tail).map_err(wrong_answer)?;
        Ok(Exchange { sent: self.sent, received, verified_bytes: value.len() as u64 })
    }

    /// Receives the datagram that answers the request in flight; repeats the request if the answer does not come.
    fn receive_frame(&mut self, key: usize, buffer: &mut Vec<u8>, lost_answers: &Cell<u64>) -> Result<()> {
        for _ in 0..MAX_RESENDS {
            loop {
                let Socket::Udp(socket) = &self.socket else { return Ok(()) };
                buffer.resize(buffer.capacity(), 0);
                match socket.recv(buffer) {
                    Ok(got) if got < FRAME_BYTES => {
                        return Err(Failure::new("a datagram without a frame header"));
                    }
                    Ok(got) => {
                        let id = u64::from(u16::from_be_bytes([buffer[0], buffer[1]]));
                        if id != self.operations & 0xffff {
                            // A late answer to a request that was repeated.
                            continue;
                        }
                        if buffer[2..6] != [0, 0, 0, 1] {
                            return Err(Failure::new("an answer in several datagrams"));
                        }
                        // Bytes left by an earlier answer do not belong to this one.
                        buffer[got..].fill(0);
                        return Ok(());
                    }
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                        break;
                    }
                    Err(error) => return Err(Failure::while_doing("receiving by UDP".to_owned(), &error)),
                }
            }
            lost_answers.set(lost_answers.get() + 1);
            self.send_get(key)?;
        }
        Err(Failure::new("the cache does not answer by UDP"))
    }
}

fn get_line(key: usize) -> String {
    format!("get k{key:07}\r\n")
}

fn wrong_answer(mismatch: Mismatch) -> Failure {
    Failure::new(format!("wrong answer of the cache: {mismatch}"))
}

/// Fills `buffer`, in as few calls as the kernel needs.
fn receive_exactly(stream: &TcpStream, mut buffer: &mut [u8]) -> Result<()> {
    while !buffer.is_empty() {
        match recv(stream.as_fd(), &mut *buffer, RecvFlags::WAITALL) {
            Ok((_, 0)) => return Err(Failure::new("the cache closed the connection")),
            Ok((_, got)) => buffer = &mut buffer[got..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::while_doing("receiving".to_owned(), &error.into())),
        }
    }
    Ok(())
}
