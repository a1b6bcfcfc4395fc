//! The client of `cache`: some connections in one thread, which always have a request under way each, so that the
//! server is never idle and the client's own work is small. Every byte of every answer is compared.

use std::cell::Cell;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv, sockopt};

use rustix::thread::CpuSet;

use crate::kit::network::client_address;
use crate::kit::pattern::Mismatch;
use crate::kit::traffic::{self, Exchange, Load, Period};
use crate::kit::{Failure, Random, Result, While, compare};

/// How long a server may be silent.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer by UDP may take before it is asked for again, and how often.
const RESEND: Duration = Duration::from_millis(200);
const RESENDS: usize = 20;
/// Where in the pool values begin, bytes: few enough for the processor's cache, because comparing is to cost little.
const POOL_BYTES: usize = 128 << 10;
/// Distance of one key's bytes from the next one's in the pool, and of one version's: primes.
const KEY_STEP_BYTES: usize = 7919;
const VERSION_STEP_BYTES: usize = 4099;
/// What follows a value in the answer to `get`.
const TAIL: &[u8] = b"\r\nEND\r\n";
/// memcached's frame header by UDP, bytes.
const FRAME_BYTES: usize = 8;
/// Room for answers by UDP that were not read yet; the kernel's limit may be lower.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// What the values are: any of them, at any version, is a piece of one pool of random bytes.
#[derive(Debug)]
pub struct Content {
    pool: Vec<u8>,
    size_bytes: usize,
    keys: usize,
}

impl Content {
    /// `keys` values of `size_bytes`.
    #[must_use]
    pub fn new(size_bytes: usize, keys: usize) -> Self {
        Self { pool: Random::new(29).bytes(POOL_BYTES + size_bytes), size_bytes, keys }
    }

    /// Bytes of all values together.
    #[must_use]
    pub fn total_bytes(&self) -> usize {
        self.size_bytes * self.keys
    }

    fn value(&self, key: usize, version: usize) -> &[u8] {
        let at = (key * KEY_STEP_BYTES + version * VERSION_STEP_BYTES) % POOL_BYTES;
        &self.pool[at..at + self.size_bytes]
    }

    /// The key has such a length that the text in front of the value has an even one: others than such datagrams the
    /// transmit engine does not send by reference.
    fn head(&self, key: usize) -> Vec<u8> {
        format!("VALUE k{key:07} 0 {}\r\n", self.size_bytes).into_bytes()
    }

    /// Stores the first version of all of them, and fetches each some times.
    ///
    /// # Errors
    /// [`Failure`] when the server does not take them or gives others back.
    pub fn store(&self, server: SocketAddr) -> Result<()> {
        let mut stream = connect(server)?;
        for key in 0..self.keys {
            send_set(&mut stream, self, key, 0)?;
            receive_stored(&mut stream)?;
            let expected = [&self.head(key)[..], self.value(key, 0), TAIL].concat();
            let mut answer = vec![0; expected.len()];
            for _ in 0..FETCHES_BEFORE {
                stream.write_all(get_line(key).as_bytes()).doing("sending a request")?;
                receive_exactly(&stream, &mut answer)?;
                compare(&expected, &answer).map_err(wrong)?;
            }
        }
        Ok(())
    }
}

/// How often each value is fetched before anything is measured: the server copies a value until it was fetched some
/// times, and the steady state is what is measured.
const FETCHES_BEFORE: usize = 10;

/// How the server is reached.
#[derive(Clone, Copy, Debug)]
pub enum Peer {
    /// By TCP.
    Tcp(SocketAddr),
    /// By UDP.
    Udp(SocketAddr),
}

impl Peer {
    fn connect(self) -> Result<Socket> {
        match self {
            Self::Tcp(server) => connect(server).map(Socket::Tcp),
            Self::Udp(server) => udp(server).map(Socket::Udp),
        }
    }
}

/// What the connections do.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// With whom.
    pub peer: Peer,
    /// The values.
    pub content: &'a Content,
    /// One of so many operations stores a value.
    pub operations_per_set: u64,
    /// Number of connections in all: no two use the same key.
    pub connections: usize,
}

fn connect(server: SocketAddr) -> Result<TcpStream> {
    let what = || format!("connecting to the cache at {server}");
    let stream = TcpStream::connect_timeout(&server, TIMEOUT).doing(what())?;
    stream.set_nodelay(true).doing(what())?;
    stream.set_read_timeout(Some(TIMEOUT)).doing(what())?;
    stream.set_write_timeout(Some(TIMEOUT)).doing(what())?;
    Ok(stream)
}

fn send_set(stream: &mut TcpStream, content: &Content, key: usize, version: usize) -> Result<()> {
    let head = format!("set k{key:07} 0 0 {}\r\n", content.size_bytes);
    let mut parts =
        [IoSlice::new(head.as_bytes()), IoSlice::new(content.value(key, version)), IoSlice::new(b"\r\n")];
    let mut parts = &mut parts[..];
    while !parts.is_empty() {
        let sent = stream.write_vectored(parts).doing("sending a value")?;
        IoSlice::advance_slices(&mut parts, sent);
    }
    Ok(())
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

/// One connection and what it waits for.
#[derive(Debug)]
struct Connection {
    socket: Socket,
    /// The keys that it alone uses, and the version of each.
    keys: Vec<(usize, usize)>,
    random: Random,
    operations: u64,
    waits_for: Waiting,
    sent: Instant,
}

#[derive(Clone, Copy, Debug)]
enum Waiting {
    Nothing,
    Stored,
    /// The value at this place of `keys`.
    Value(usize),
}

/// Connections in several threads.
#[derive(Debug)]
pub struct Clients<'a> {
    threads: Vec<Connections<'a>>,
    processors: Option<CpuSet>,
}

impl<'a> Clients<'a> {
    /// All connections of `work`, in `threads` threads on `processors`.
    ///
    /// # Errors
    /// [`Failure`] when they cannot be opened.
    pub fn open(work: &Work<'a>, threads: usize, processors: Option<CpuSet>) -> Result<Self> {
        let threads = threads.min(work.connections);
        let open = |thread| Connections::open(work, (thread..work.connections).step_by(threads));
        Ok(Self { threads: (0..threads).map(open).collect::<Result<_>>()?, processors })
    }

    /// Exchanges for `duration`.
    ///
    /// # Errors
    /// [`Failure`] at the first wrong or missing answer.
    pub fn load(&mut self, duration: Duration) -> Result<Load> {
        traffic::at_once(&mut self.threads, self.processors, duration, |connections, period| {
            connections.run(period)
        })
    }

    /// Makes every connection anew.
    ///
    /// # Errors
    /// [`Failure`] when the server does not accept.
    pub fn reconnect(&mut self) -> Result<()> {
        for thread in &mut self.threads {
            for connection in &mut thread.connections {
                connection.socket = thread.work.peer.connect()?;
            }
        }
        Ok(())
    }

    /// What the reader must know about the answers.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        match self.threads.iter().map(|thread| thread.lost.get()).sum() {
            0 => Vec::new(),
            lost => vec![format!("{lost} answers by UDP were lost and asked for again")],
        }
    }
}

/// Some connections in one thread.
#[derive(Debug)]
struct Connections<'a> {
    work: Work<'a>,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
    lost: Cell<u64>,
}

impl<'a> Connections<'a> {
    /// Opens the connections with these numbers, each with keys of its own.
    fn open(work: &Work<'a>, numbers: impl Iterator<Item = usize>) -> Result<Self> {
        let numbers: Vec<usize> = numbers.collect();
        let open = |number: &usize| {
            let socket = work.peer.connect()?;
            let keys = (*number..work.content.keys).step_by(work.connections);
            Ok(Connection {
                socket,
                keys: keys.map(|key| (key, 0)).collect(),
                random: Random::new(*number as u64),
                operations: 0,
                waits_for: Waiting::Nothing,
                sent: Instant::now(),
            })
        };
        let connections = numbers.iter().map(open).collect::<Result<Vec<_>>>()?;
        let room = work.content.size_bytes + 4096;
        Ok(Self { work: *work, connections, buffer: vec![0; room], lost: Cell::new(0) })
    }

    fn run(&mut self, period: Period) -> Result<Load> {
        let (work, lost, buffer) = (self.work, &self.lost, &mut self.buffer);
        traffic::in_turn(
            &mut self.connections,
            period,
            |connection| connection.ask(&work),
            |connection| connection.receive(&work, buffer, lost),
        )
    }
}

fn udp(server: SocketAddr) -> Result<UdpSocket> {
    let what = || format!("connecting to the cache at {server} by UDP");
    let socket = UdpSocket::bind((client_address(), 0)).doing(what())?;
    socket.connect(server).doing(what())?;
    socket.set_read_timeout(Some(RESEND)).doing(what())?;
    let _ = sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES);
    Ok(socket)
}

impl Connection {
    fn ask(&mut self, work: &Work<'_>) -> Result<()> {
        let choice = self.random.next();
        let place = usize::try_from(choice >> 32).unwrap_or(0) % self.keys.len();
        let (key, version) = self.keys[place];
        self.operations += 1;
        self.sent = Instant::now();
        if let Socket::Tcp(stream) = &mut self.socket
            && self.operations.is_multiple_of(work.operations_per_set)
        {
            self.keys[place].1 = version + 1;
            self.waits_for = Waiting::Stored;
            return send_set(stream, work.content, key, version + 1);
        }
        self.waits_for = Waiting::Value(place);
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

    fn receive(&mut self, work: &Work<'_>, buffer: &mut Vec<u8>, lost: &Cell<u64>) -> Result<Exchange> {
        let Waiting::Value(place) = std::mem::replace(&mut self.waits_for, Waiting::Nothing) else {
            if let Socket::Tcp(stream) = &mut self.socket {
                receive_stored(stream)?;
            }
            return Ok(Exchange { sent: self.sent, received: Instant::now(), verified_bytes: 0 });
        };
        let (key, version) = self.keys[place];
        let head = work.content.head(key);
        let value = work.content.value(key, version);
        let whole = head.len() + value.len() + TAIL.len();
        let answer = match &mut self.socket {
            Socket::Tcp(stream) => {
                receive_exactly(stream, &mut buffer[..whole])?;
                &buffer[..whole]
            }
            Socket::Udp(_) => {
                self.receive_frame(key, buffer, lost)?;
                let answer = &buffer[FRAME_BYTES..];
                &answer[..whole.min(answer.len())]
            }
        };
        let received = Instant::now();
        let (got_head, rest) = answer.split_at(head.len());
        let (got_value, got_tail) = rest.split_at(value.len());
        compare(&head, got_head).map_err(wrong)?;
        compare(value, got_value).map_err(wrong)?;
        compare(TAIL, got_tail).map_err(wrong)?;
        Ok(Exchange { sent: self.sent, received, verified_bytes: value.len() as u64 })
    }

    /// Receives the one datagram of the answer to the request under way, asking again when it does not come.
    fn receive_frame(&mut self, key: usize, buffer: &mut Vec<u8>, lost: &Cell<u64>) -> Result<()> {
        for _ in 0..RESENDS {
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
                            // A late answer to a request that was sent again.
                            continue;
                        }
                        if buffer[2..6] != [0, 0, 0, 1] {
                            return Err(Failure::new("an answer in several datagrams"));
                        }
                        // What an earlier answer left behind it is not this one's.
                        buffer[got..].fill(0);
                        return Ok(());
                    }
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                        break;
                    }
                    Err(error) => return Err(Failure::while_doing("receiving by UDP".to_owned(), &error)),
                }
            }
            lost.set(lost.get() + 1);
            self.send_get(key)?;
        }
        Err(Failure::new("the cache does not answer by UDP"))
    }
}

fn get_line(key: usize) -> String {
    format!("get k{key:07}\r\n")
}

fn wrong(mismatch: Mismatch) -> Failure {
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
