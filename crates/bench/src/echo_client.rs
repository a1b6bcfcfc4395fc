//! The client of the echo server: one connection, one message at a time, every byte of every echo
//! compared with what was sent.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::failure::{Failure, Result, While};
use crate::pattern::{Pattern, compare};

/// How long the server may be silent.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// Messages that came back, all of them right.
    pub messages: u64,
    /// Bytes of echoes that were compared with what was sent.
    pub verified_bytes: u64,
    /// From the first message's first byte to the last echo's last, with the time in between in
    /// which the client stamps messages and compares echoes.
    pub elapsed: Duration,
    /// Time of each exchange, from sending a message's first byte to receiving its echo's last,
    /// ns, sorted.
    pub latencies_ns: Vec<u64>,
}

/// A connection to an echo server.
#[derive(Debug)]
pub struct EchoClient {
    stream: TcpStream,
    pattern: Pattern,
    echo: Vec<u8>,
}

impl EchoClient {
    /// Connects to a server that expects messages of `size_bytes`.
    ///
    /// # Errors
    /// [`Failure`] when the server does not accept.
    pub fn connect(address: SocketAddr, size_bytes: usize, seed: u64) -> Result<Self> {
        let what = || format!("connecting to the echo server at {address}");
        let stream = TcpStream::connect_timeout(&address, TIMEOUT).doing(what())?;
        stream.set_nodelay(true).doing(what())?;
        stream.set_read_timeout(Some(TIMEOUT)).doing(what())?;
        stream.set_write_timeout(Some(TIMEOUT)).doing(what())?;
        Ok(Self { stream, pattern: Pattern::new(size_bytes, seed), echo: vec![0; size_bytes] })
    }

    /// Exchanges messages for `duration`, at least one.
    ///
    /// # Errors
    /// [`Failure`] when the connection fails, or an echo differs from what was sent.
    pub fn run(&mut self, duration: Duration) -> Result<Load> {
        let mut load = Load::default();
        let begin = Instant::now();
        loop {
            let message = self.pattern.advance();
            let sent = Instant::now();
            self.stream.write_all(message).doing("sending to the echo server")?;
            self.stream.read_exact(&mut self.echo).doing("receiving from the echo server")?;
            let received = Instant::now();
            compare(message, &self.echo).map_err(|mismatch| {
                Failure::new(format!("wrong echo of message {}: {mismatch}", load.messages + 1))
            })?;
            load.messages += 1;
            load.verified_bytes += self.echo.len() as u64;
            let latency_ns = received.duration_since(sent).as_nanos();
            load.latencies_ns.push(u64::try_from(latency_ns).unwrap_or(u64::MAX));
            load.elapsed = received.duration_since(begin);
            if load.elapsed >= duration {
                load.latencies_ns.sort_unstable();
                return Ok(load);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// An echo server of one connection that flips a bit of message `wrong` (from 0).
    fn flipping(size_bytes: usize, wrong: usize) -> (SocketAddr, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut message = vec![0; size_bytes];
            for number in 0.. {
                if stream.read_exact(&mut message).is_err() {
                    return;
                }
                if number == wrong {
                    message[size_bytes / 2] ^= 1;
                }
                let _ = stream.write_all(&message);
            }
        });
        (address, thread)
    }

    #[test]
    fn every_echoed_byte_is_counted() {
        let (address, thread) = flipping(3000, usize::MAX);
        let mut client = EchoClient::connect(address, 3000, 1).expect("listening");
        let load = client.run(Duration::from_millis(20)).expect("right echoes");
        assert!(load.messages > 0);
        assert_eq!(load.verified_bytes, 3000 * load.messages);
        assert_eq!(load.latencies_ns.len() as u64, load.messages);
        assert!(load.latencies_ns.is_sorted());
        drop(client);
        thread.join().expect("no panic");
    }

    #[test]
    fn a_flipped_bit_fails_the_run() {
        let (address, thread) = flipping(3000, 2);
        let mut client = EchoClient::connect(address, 3000, 1).expect("listening");
        let failure = client.run(Duration::from_secs(10)).expect_err("a wrong echo").to_string();
        assert!(failure.contains("message 3") && failure.contains("byte 1500"), "{failure}");
        drop(client);
        thread.join().expect("no panic");
    }

    #[test]
    fn a_server_that_goes_away_fails_the_run() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut client =
            EchoClient::connect(listener.local_addr().expect("bound"), 10, 1).expect("listening");
        drop(listener);
        assert!(client.run(Duration::from_secs(10)).is_err());
    }
}
