//! One end of connections that are measured by themselves: a stream in one direction, or many idle connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use clap::Args;
use rustix::net::sockopt::set_tcp_congestion;

use crate::kit::processes::process::raise_descriptor_limit;
use crate::kit::processes::wait;
use crate::kit::{Experiment, Failure, Outcome, Random, Result, While, compare, seconds};

/// Block length of a stream, bytes. Each block begins with its number.
pub const BLOCK_BYTES: usize = 16 << 10;
const STAMP_BYTES: usize = 8;
/// Bytes that cross an idle connection in each direction before it is idle.
pub const GREETING_BYTES: usize = 1 << 10;
/// Timeout of every expected event.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout of a single read, after which the elapsed time is checked.
const TICK: Duration = Duration::from_millis(100);
/// Congestion control set at the kernel's end; a service uses it by default.
const CONGESTION_CONTROL: &str = "cubic";

/// Accept connections of one kind
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Peer {
    /// Address to listen at, at any free port
    #[arg(long, value_name = "ADDRESS")]
    pub host: Ipv4Addr,
    /// Send until the other end closes
    #[arg(long)]
    pub send: bool,
    /// Receive for this long, and print the number of bytes
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "send")]
    pub receive: Option<Duration>,
    /// Greet this number of connections, and keep them open until the last one ends
    #[arg(long, value_name = "N", default_value = "1")]
    pub hold: usize,
}

impl Experiment for Peer {
    const IS_SERVER: bool = true;

    fn run(&self) -> Result<Outcome> {
        raise_descriptor_limit();
        let listener = TcpListener::bind((self.host, 0)).doing("listening")?;
        // A connection inherits the congestion control of its listener.
        use_cubic(&listener)?;
        println!("listening {}", listener.local_addr().doing("listening")?.port());
        if self.send {
            send(&accept_one(&listener)?)?;
        } else if let Some(duration) = self.receive {
            println!("received {}", receive(&accept_one(&listener)?, duration)?);
        } else {
            let mut connections = Vec::new();
            for _ in 0..self.hold {
                let mut connection = accept_one(&listener)?;
                let mut greeting = [0; GREETING_BYTES];
                connection.read_exact(&mut greeting).doing("waiting for the greeting")?;
                connection.write_all(&greeting).doing("greeting")?;
                connections.push(connection);
            }
            if let Some(mut last) = connections.last() {
                let _ = last.read(&mut [0]);
            }
        }
        Ok(Outcome::Status(0))
    }
}

/// Sets a kernel socket to CUBIC; a socket of a service is left as it is.
///
/// # Errors
/// [`Failure`] if the kernel has no CUBIC.
pub fn use_cubic(socket: impl std::os::fd::AsFd) -> Result<()> {
    set_tcp_congestion(socket, CONGESTION_CONTROL).doing("using CUBIC")
}

/// Accepts the next connection within [`TIMEOUT`].
fn accept_one(listener: &TcpListener) -> Result<TcpStream> {
    if !wait::until_readable(listener, Some(TIMEOUT)).doing("waiting for a connection")? {
        return Err(Failure::new("no connection arrived in time"));
    }
    Ok(listener.accept().doing("accepting")?.0)
}

/// Returns the address in the line `listening PORT` of a peer at `host`.
///
/// # Errors
/// [`Failure`] for any other line.
pub fn parse_address(host: Ipv4Addr, line: &str) -> Result<SocketAddr> {
    parse_number(line, "listening ").map(|port: u16| SocketAddr::from((host, port)))
}

/// Returns the number after `begin` in a line of a peer.
///
/// # Errors
/// [`Failure`] for any other line.
pub fn parse_number<T: std::str::FromStr>(line: &str, begin: &str) -> Result<T> {
    let number = line.strip_prefix(begin).and_then(|number| number.trim().parse().ok());
    number.ok_or_else(|| Failure::new(format!("unexpected output of the peer: \"{}\"", line.escape_debug())))
}

/// Buffer with the current block of a stream.
struct Blocks(Vec<u8>);

impl Blocks {
    fn new() -> Self {
        Self(Random::new(19).bytes(BLOCK_BYTES))
    }

    fn numbered(&mut self, number: u64) -> &[u8] {
        self.0[..STAMP_BYTES].copy_from_slice(&number.to_le_bytes());
        &self.0
    }
}

/// Sends until the other end closes the connection.
///
/// # Errors
/// [`Failure`] when sending fails otherwise, or blocks for [`TIMEOUT`].
pub fn send(mut stream: &TcpStream) -> Result<()> {
    stream.set_write_timeout(Some(TIMEOUT)).doing("sending")?;
    let mut blocks = Blocks::new();
    for number in 0.. {
        match stream.write_all(blocks.numbered(number)) {
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => break,
            sent => sent.doing("sending")?,
        }
    }
    Ok(())
}

/// Receives for `duration`, compares all whole blocks, and returns the number of bytes received.
///
/// # Errors
/// [`Failure`] on wrong bytes, or when the stream ends.
pub fn receive(mut stream: &TcpStream, duration: Duration) -> Result<u64> {
    stream.set_read_timeout(Some(TICK)).doing("receiving")?;
    let mut blocks = Blocks::new();
    let (mut buffer, mut filled, mut number) = (vec![0; BLOCK_BYTES], 0, 0);
    let begin = Instant::now();
    while begin.elapsed() < duration {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => return Err(Failure::new("the stream ended too early")),
            Ok(got) => filled += got,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(Failure::while_doing("receiving", &error)),
        }
        if filled == BLOCK_BYTES {
            let expected = blocks.numbered(number);
            compare(expected, &buffer)
                .map_err(|mismatch| Failure::new(format!("wrong block {number}: {mismatch}")))?;
            (number, filled) = (number + 1, 0);
        }
    }
    Ok(number * BLOCK_BYTES as u64 + filled as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("a listener");
        (near, listener.accept().expect("a client").0)
    }

    #[test]
    fn a_stream_is_received_until_the_time_is_over_and_wrong_bytes_are_found() {
        let (near, far) = pair();
        std::thread::scope(|scope| {
            let sender = scope.spawn(move || send(&far));
            let got = receive(&near, Duration::from_millis(50)).expect("the right bytes");
            assert!(got > BLOCK_BYTES as u64, "{got}");
            drop(near);
            sender.join().expect("no panic").expect("the end is none");
        });
        let (near, mut far) = pair();
        far.write_all(&[7; BLOCK_BYTES]).expect("room");
        let wrong = receive(&near, TIMEOUT).expect_err("not what is sent");
        assert!(wrong.to_string().contains("wrong block 0"), "{wrong}");
    }

    #[test]
    fn only_the_peers_own_line_gives_a_number() {
        assert_eq!(parse_address(Ipv4Addr::LOCALHOST, "listening 7000").expect("an address").port(), 7000);
        for line in ["", "listening", "listening 70000", "received 5"] {
            assert!(parse_address(Ipv4Addr::LOCALHOST, line).is_err(), "{line}");
        }
    }
}
