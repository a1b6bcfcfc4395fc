//! A client of memcached's text protocol, as small as the tests need.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use crate::scratch::connect;

/// A connection to memcached.
#[derive(Debug)]
pub struct Memcached {
    input: BufReader<TcpStream>,
    output: TcpStream,
}

impl Memcached {
    /// Connects to a server on the loopback port.
    ///
    /// # Panics
    /// When nothing listens.
    #[must_use]
    pub fn connect(port: u16) -> Self {
        let stream = connect(port);
        let output = stream.try_clone().expect("descriptor");
        Self { input: BufReader::with_capacity(1 << 20, stream), output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.input.read_line(&mut line).expect("answer");
        assert!(line.ends_with("\r\n"), "the server closed the connection: {line:?}");
        line.truncate(line.len() - 2);
        line
    }

    /// `set`, `add`, `replace`, `append` or `prepend`; the answer.
    ///
    /// # Panics
    /// When the connection fails.
    pub fn store(&mut self, command: &str, key: &str, value: &[u8]) -> String {
        let mut bytes = format!("{command} {key} 5 0 {}\r\n", value.len()).into_bytes();
        bytes.extend_from_slice(value);
        bytes.extend_from_slice(b"\r\n");
        self.output.write_all(&bytes).expect("command sent");
        self.line()
    }

    /// `cas` with the number that [`Memcached::get_many`] gave; the answer.
    ///
    /// # Panics
    /// When the connection fails.
    pub fn compare_and_store(&mut self, key: &str, unique: u64, value: &[u8]) -> String {
        let mut bytes = format!("cas {key} 5 0 {} {unique}\r\n", value.len()).into_bytes();
        bytes.extend_from_slice(value);
        bytes.extend_from_slice(b"\r\n");
        self.output.write_all(&bytes).expect("command sent");
        self.line()
    }

    /// A command without a value; the answer.
    ///
    /// # Panics
    /// When the connection fails.
    pub fn command(&mut self, command: &str) -> String {
        self.output.write_all(format!("{command}\r\n").as_bytes()).expect("command sent");
        self.line()
    }

    /// `gets` of several keys: key, number for `cas`, value.
    ///
    /// # Panics
    /// When the connection fails or the answer is not what the protocol says.
    pub fn get_many(&mut self, keys: &[&str]) -> Vec<(String, u64, Vec<u8>)> {
        self.output.write_all(format!("gets {}\r\n", keys.join(" ")).as_bytes()).expect("command sent");
        let mut found = Vec::new();
        loop {
            let line = self.line();
            if line == "END" {
                return found;
            }
            let words: Vec<&str> = line.split(' ').collect();
            let ["VALUE", key, "5", len, unique] = words[..] else { panic!("answer {line:?}") };
            let mut value = vec![0; len.parse::<usize>().expect("length") + 2];
            self.input.read_exact(&mut value).expect("value");
            assert!(value.ends_with(b"\r\n"), "a value of {len} bytes is not followed by its end");
            value.truncate(value.len() - 2);
            found.push((key.to_owned(), unique.parse().expect("number"), value));
        }
    }
}
