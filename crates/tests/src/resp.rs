//! A client of the Redis protocol (RESP 2), as small as the tests need.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use crate::scratch::connect;

/// An answer of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `+OK` and the like.
    Status(String),
    /// `-ERR …`.
    Error(String),
    /// A number.
    Integer(i64),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// No value.
    Nil,
    /// Several answers.
    Array(Vec<Answer>),
}

impl Answer {
    /// The answer, shortened for a message.
    #[must_use]
    pub fn short(&self) -> String {
        match self {
            Self::Bulk(bytes) => {
                format!("{} bytes {}…", bytes.len(), bytes[..bytes.len().min(24)].escape_ascii())
            }
            Self::Array(answers) => format!("array of {}", answers.len()),
            other => format!("{other:?}"),
        }
    }
}

/// A connection to a Redis server.
#[derive(Debug)]
pub struct Resp {
    input: BufReader<TcpStream>,
    output: TcpStream,
    /// Bytes of one `write` at most.
    piece_bytes: usize,
}

impl Resp {
    /// Connects to a server on the loopback port.
    ///
    /// # Panics
    /// When nothing listens.
    #[must_use]
    pub fn connect(port: u16) -> Self {
        let stream = connect(port);
        let output = stream.try_clone().expect("descriptor");
        Self { input: BufReader::with_capacity(1 << 20, stream), output, piece_bytes: usize::MAX }
    }

    /// Sends what follows in pieces of this many bytes.
    pub const fn send_in_pieces_of(&mut self, bytes: usize) {
        self.piece_bytes = bytes;
    }

    /// Sends commands without waiting for their answers.
    ///
    /// # Panics
    /// When the connection fails.
    pub fn send(&mut self, commands: &[Vec<&[u8]>]) {
        let mut bytes = Vec::new();
        for command in commands {
            bytes.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
            for word in command {
                bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        for piece in bytes.chunks(self.piece_bytes) {
            self.output.write_all(piece).expect("command sent");
        }
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        self.input.read_until(b'\n', &mut line).expect("answer");
        assert!(
            line.ends_with(b"\r\n"),
            "the server closed the connection: {:?}",
            String::from_utf8_lossy(&line)
        );
        String::from_utf8_lossy(&line[..line.len() - 2]).into_owned()
    }

    /// Receives one answer.
    ///
    /// # Panics
    /// When the connection fails or the answer is not RESP.
    pub fn receive(&mut self) -> Answer {
        let line = self.line();
        let (kind, rest) = line.split_at(1);
        let number = || rest.parse::<i64>().unwrap_or_else(|_| panic!("bad answer {line:?}"));
        match kind {
            "+" => Answer::Status(rest.to_owned()),
            "-" => Answer::Error(rest.to_owned()),
            ":" => Answer::Integer(number()),
            "$" => match usize::try_from(number()) {
                Err(_) => Answer::Nil,
                Ok(len) => {
                    let mut bytes = vec![0; len + 2];
                    self.input.read_exact(&mut bytes).expect("value");
                    assert!(bytes.ends_with(b"\r\n"), "a value of {len} bytes is not followed by its end");
                    bytes.truncate(len);
                    Answer::Bulk(bytes)
                }
            },
            "*" => match usize::try_from(number()) {
                Err(_) => Answer::Nil,
                Ok(count) => Answer::Array((0..count).map(|_| self.receive()).collect()),
            },
            _ => panic!("bad answer {line:?}"),
        }
    }

    /// Sends a command and receives its answer.
    pub fn command(&mut self, words: &[&[u8]]) -> Answer {
        self.send(&[words.to_vec()]);
        self.receive()
    }

    /// The value of a key.
    ///
    /// # Panics
    /// When the answer is neither a string nor nil.
    pub fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        match self.command(&[b"GET", key]) {
            Answer::Bulk(value) => Some(value),
            Answer::Nil => None,
            other => panic!("GET {}: {other:?}", key.escape_ascii()),
        }
    }

    /// A field of `INFO`.
    ///
    /// # Panics
    /// When there is no such field.
    pub fn info(&mut self, field: &str) -> String {
        let Answer::Bulk(text) = self.command(&[b"INFO", b"everything"]) else { panic!("INFO") };
        let text = String::from_utf8_lossy(&text).into_owned();
        let prefix = format!("{field}:");
        let value = text.lines().find_map(|line| line.strip_prefix(&prefix));
        value.unwrap_or_else(|| panic!("INFO has no {field}")).trim().to_owned()
    }
}
