//! The client of the echo server: a connection with one message at a time, every byte of every echo compared with the
//! message, or its checksum if the server is a store.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use uncopy_testbed::clients::Place;

use crate::kit::traffic::{Exchange, LoadResult, Period, repeat};
use crate::kit::{Failure, Pattern, Result, While, checksum, compare};
use crate::servers::echo::server::{Reply, last_page};

/// A connection to an echo server.
#[derive(Debug)]
pub struct EchoClient {
    stream: TcpStream,
    pattern: Pattern,
    reply: Reply,
    answer: Vec<u8>,
}

impl EchoClient {
    /// Connects to a server that expects messages of `size_bytes`.
    ///
    /// # Errors
    /// [`Failure`] when the server does not accept.
    pub fn connect(address: &Place, size_bytes: usize, reply: Reply, seed: u64) -> Result<Self> {
        let stream = address.connect().doing(format_args!("connecting to the echo server at {address}"))?;
        let answer_bytes = match reply {
            Reply::Echo => size_bytes,
            Reply::Checksum | Reply::LastPage => size_of::<u64>(),
        };
        Ok(Self { stream, pattern: Pattern::new(size_bytes, seed), reply, answer: vec![0; answer_bytes] })
    }

    /// Exchanges messages for `duration`, at least one.
    ///
    /// # Errors
    /// [`Failure`] when the connection fails, or an echo differs from the message.
    pub fn run(&mut self, period: Period) -> Result<LoadResult> {
        repeat(period, |number| {
            let message = self.pattern.advance();
            let sent = Instant::now();
            self.stream.write_all(message).doing("sending to the echo server")?;
            self.stream.read_exact(&mut self.answer).doing("receiving from the echo server")?;
            let received = Instant::now();
            let read = if self.reply == Reply::LastPage { last_page(message) } else { message };
            let (what, compared) = match self.reply {
                Reply::Echo => ("echo", compare(message, &self.answer)),
                Reply::Checksum | Reply::LastPage => {
                    ("checksum", compare(&checksum::of(read).to_le_bytes(), &self.answer))
                }
            };
            compared.map_err(|mismatch| {
                Failure::new(format!("wrong {what} of message {}: {mismatch}", number + 1))
            })?;
            Ok(Exchange { sent, received, verified_bytes: read.len() as u64 })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::network::server_address;
    use std::net::TcpListener;
    use std::time::Duration;

    /// Starts an echo server for one connection that flips a bit of message `wrong` (from 0).
    fn flipping(size_bytes: usize, wrong: usize) -> (Place, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind((server_address(), 0)).expect("a free port");
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
        (Place::Tcp(address), thread)
    }

    #[test]
    fn every_echoed_byte_is_counted() {
        let (address, thread) = flipping(3000, usize::MAX);
        let mut client = EchoClient::connect(&address, 3000, Reply::Echo, 1).expect("listening");
        let load = client.run(Period::from_now(Duration::from_millis(20))).expect("right echoes");
        assert!(load.exchanges > 0);
        assert_eq!(load.verified_bytes, 3000 * load.exchanges);
        assert_eq!(load.latencies.len(), load.exchanges);
        drop(client);
        thread.join().expect("no panic");
    }

    #[test]
    fn a_wrong_checksum_fails_the_run() {
        let (address, thread) = flipping(8, usize::MAX);
        let mut client = EchoClient::connect(&address, 8, Reply::Checksum, 1).expect("listening");
        let failure = client
            .run(Period::from_now(Duration::from_secs(10)))
            .expect_err("an echo, no checksum")
            .to_string();
        assert!(failure.contains("wrong checksum of message 1"), "{failure}");
        drop(client);
        thread.join().expect("no panic");
    }

    #[test]
    fn a_flipped_bit_fails_the_run() {
        let (address, thread) = flipping(3000, 2);
        let mut client = EchoClient::connect(&address, 3000, Reply::Echo, 1).expect("listening");
        let failure =
            client.run(Period::from_now(Duration::from_secs(10))).expect_err("a wrong echo").to_string();
        assert!(failure.contains("message 3") && failure.contains("byte 1500"), "{failure}");
        drop(client);
        thread.join().expect("no panic");
    }

    #[test]
    fn a_server_that_goes_away_fails_the_run() {
        let listener = TcpListener::bind((server_address(), 0)).expect("a free port");
        let address = Place::Tcp(listener.local_addr().expect("bound"));
        let mut client = EchoClient::connect(&address, 10, Reply::Echo, 1).expect("listening");
        drop(listener);
        assert!(client.run(Period::from_now(Duration::from_secs(10))).is_err());
    }
}
