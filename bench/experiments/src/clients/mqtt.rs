//! A client of MQTT 3.1.1: messages of one size, published at quality 0 and received by subscribers.

use std::net::SocketAddr;
use std::time::Instant;

use super::{Client, Stream, expect_equal};
use crate::kit::traffic::Exchange;
use crate::kit::{Pattern, Result};

const NAME: &str = "mosquitto";
/// Packet types with their flags.
const CONNECT: u8 = 0x10;
const CONNECTED: u8 = 0x20;
const PUBLISH: u8 = 0x30;
const SUBSCRIBE: u8 = 0x82;
const SUBSCRIBED: u8 = 0x90;
/// Protocol name and level, clean session, no keep-alive.
const PROTOCOL: &[u8] = b"\0\x04MQTT\x04\x02\0\0";

/// Returns a string preceded by its length.
fn length_prefixed(words: &str) -> Vec<u8> {
    let len = u16::try_from(words.len()).unwrap_or(u16::MAX).to_be_bytes();
    [&len, words.as_bytes()].concat()
}

/// Returns the encoding of a packet's remaining length: seven bits a byte, the lowest first.
fn encode_length(mut len_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(len_bytes & 0x7f).unwrap_or(0);
        len_bytes >>= 7;
        bytes.push(if len_bytes > 0 { low | 0x80 } else { low });
        if len_bytes == 0 {
            return bytes;
        }
    }
}

#[derive(Debug)]
struct Connection {
    stream: Stream,
    packet: Vec<u8>,
}

impl Connection {
    fn open(server: SocketAddr, client: &str) -> Result<Self> {
        let mut connection = Self { stream: Stream::open(server, NAME)?, packet: Vec::new() };
        connection.send(CONNECT, &[PROTOCOL, &length_prefixed(client)])?;
        if connection.receive()? == CONNECTED && connection.packet == [0, 0] {
            return Ok(connection);
        }
        Err(connection.stream.wrong("it does not accept the connection"))
    }

    fn send(&mut self, kind: u8, parts: &[&[u8]]) -> Result<()> {
        let len = encode_length(parts.iter().map(|part| part.len()).sum());
        let head = [&[kind], &len[..]].concat();
        let parts: Vec<&[u8]> = std::iter::once(&head[..]).chain(parts.iter().copied()).collect();
        self.stream.send(&parts)
    }

    /// Receives a packet and returns its type.
    fn receive(&mut self) -> Result<u8> {
        let [kind] = self.stream.array()?;
        let mut len_bytes = 0usize;
        for at in 0..4 {
            let [byte] = self.stream.array()?;
            len_bytes |= usize::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                self.stream.message(len_bytes, &mut self.packet)?;
                return Ok(kind);
            }
        }
        Err(self.stream.wrong("a packet with an endless length"))
    }

    fn subscribe(&mut self, topic: &str) -> Result<()> {
        self.send(SUBSCRIBE, &[&[0, 1], &length_prefixed(topic), &[0]])?;
        if self.receive()? == SUBSCRIBED && self.packet == [0, 1, 0] {
            return Ok(());
        }
        Err(self.stream.wrong("it does not accept the subscription"))
    }
}

/// A publisher with a topic of its own, and its subscribers.
#[derive(Debug)]
pub struct Topic {
    name: Vec<u8>,
    publisher: Connection,
    subscribers: Vec<Connection>,
    pattern: Pattern,
}

impl Topic {
    /// Opens the `number`th topic, for messages of `size_bytes` to `subscribers` subscribers.
    ///
    /// # Errors
    /// [`Failure`](crate::kit::failure::Failure) when the server does not accept a client.
    pub fn open(server: SocketAddr, size_bytes: usize, subscribers: usize, number: u64) -> Result<Self> {
        let topic = format!("large/{number}");
        let subscribe = |at: usize| {
            let mut connection = Connection::open(server, &format!("subscriber{number}-{at}"))?;
            connection.subscribe(&topic)?;
            Ok(connection)
        };
        Ok(Self {
            name: length_prefixed(&topic),
            publisher: Connection::open(server, &format!("publisher{number}"))?,
            subscribers: (0..subscribers).map(subscribe).collect::<Result<_>>()?,
            pattern: Pattern::new(size_bytes, number),
        })
    }
}

impl Client for Topic {
    fn exchange(&mut self, _number: u64) -> Result<Exchange> {
        let message = self.pattern.advance();
        let sent = Instant::now();
        self.publisher.send(PUBLISH, &[&self.name, message])?;
        for subscriber in &mut self.subscribers {
            if subscriber.receive()? != PUBLISH {
                return Err(subscriber.stream.wrong("a packet that is not a message"));
            }
        }
        let received = Instant::now();
        for subscriber in &self.subscribers {
            let (topic, body) = subscriber.packet.split_at(self.name.len().min(subscriber.packet.len()));
            expect_equal(NAME, &self.name, topic)?;
            expect_equal(NAME, message, body)?;
        }
        let verified_bytes = (message.len() * self.subscribers.len()) as u64;
        Ok(Exchange { sent, received, verified_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_of_the_standards_table() {
        // Examples of MQTT 3.1.1, table 2.4.
        for (len_bytes, bytes) in [
            (0, &[0][..]),
            (127, &[0x7f]),
            (128, &[0x80, 1]),
            (16_383, &[0xff, 0x7f]),
            (16_384, &[0x80, 0x80, 1]),
            (268_435_455, &[0xff, 0xff, 0xff, 0x7f]),
        ] {
            assert_eq!(encode_length(len_bytes), bytes, "{len_bytes}");
        }
    }
}
