//! A client of MariaDB's protocol: blobs stored by a prepared statement and read by a query.

use std::net::SocketAddr;

use super::{Client, Stream, Value};
use crate::kit::Result;
use crate::kit::traffic::Exchange;

const NAME: &str = "MariaDB";
/// Maximum length of a part of a message; a part of this length is followed by another, possibly empty.
const PART_BYTES: usize = 0xff_ffff;
/// Long passwords, protocol 4.1, authentication of 4.1, and named authentication methods.
const CAPABILITIES: u32 = 0x1 | 0x200 | 0x8000 | 0x8_0000;
/// The character set `binary`.
const BINARY: u8 = 63;
const METHOD: &[u8] = b"mysql_native_password\0";
const COMMAND_QUERY: u8 = 0x03;
const COMMAND_PREPARE: u8 = 0x16;
const COMMAND_EXECUTE: u8 = 0x17;
/// A long integer and a blob of any length.
const PARAMETER_TYPES: [u8; 4] = [0x08, 0, 0xfb, 0];
/// First bytes of the server's answers.
const OK: u8 = 0x00;
const END: u8 = 0xfe;
const ERROR: u8 = 0xff;
/// Length from which a message that begins with [`END`] is not an end.
const END_LIMIT_BYTES: usize = 9;

/// A connection to the server.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    message: Vec<u8>,
    /// Sequence number of the next part, counted over both directions.
    sequence: u8,
}

/// Returns a length-encoded number and the length of its encoding, bytes.
fn decode_length(bytes: &[u8]) -> Option<(usize, usize)> {
    let (first, rest) = bytes.split_first()?;
    let wide = match first {
        0..=0xfa => return Some((usize::from(*first), 1)),
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        _ => return None,
    };
    let mut number = [0; 8];
    number[..wide].copy_from_slice(rest.get(..wide)?);
    Some((usize::try_from(u64::from_le_bytes(number)).ok()?, 1 + wide))
}

impl Connection {
    /// Connects as `root`, who must not have a password.
    ///
    /// # Errors
    /// [`Failure`](crate::kit::failure::Failure) when the server refuses the connection.
    pub fn open(server: SocketAddr) -> Result<Self> {
        let mut connection = Self { stream: Stream::open(server, NAME)?, message: Vec::new(), sequence: 0 };
        connection.receive()?;
        let mut login = CAPABILITIES.to_le_bytes().to_vec();
        login.extend_from_slice(&u32::MAX.to_le_bytes());
        login.push(BINARY);
        login.extend_from_slice(&[0; 23]);
        // The proof for an empty password is empty.
        login.extend_from_slice(b"root\0\0");
        login.extend_from_slice(METHOD);
        connection.send(&[&login])?;
        if connection.receive()? == END {
            // The server prefers another method, for which the proof is empty, too.
            connection.send(&[])?;
            connection.receive()?;
        }
        connection.expect(OK)?;
        Ok(connection)
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<()> {
        let total_bytes: usize = parts.iter().map(|part| part.len()).sum();
        if total_bytes < PART_BYTES {
            let head = self.head(total_bytes);
            let parts: Vec<&[u8]> = std::iter::once(&head[..]).chain(parts.iter().copied()).collect();
            return self.stream.send(&parts);
        }
        let bytes = parts.concat();
        let mut rest = &bytes[..];
        loop {
            let (part, after) = rest.split_at(rest.len().min(PART_BYTES));
            let head = self.head(part.len());
            self.stream.send(&[&head, part])?;
            rest = after;
            if part.len() < PART_BYTES {
                return Ok(());
            }
        }
    }

    fn head(&mut self, len_bytes: usize) -> [u8; 4] {
        let [a, b, c, ..] = len_bytes.to_le_bytes();
        let head = [a, b, c, self.sequence];
        self.sequence = self.sequence.wrapping_add(1);
        head
    }

    /// Receives a message and returns its first byte.
    fn receive(&mut self) -> Result<u8> {
        self.message.clear();
        let mut part = Vec::new();
        loop {
            let [a, b, c, sequence] = self.stream.array()?;
            if sequence != self.sequence {
                return Err(self
                    .stream
                    .wrong(format_args!("packet {sequence} instead of {}", self.sequence)));
            }
            self.sequence = sequence.wrapping_add(1);
            let len_bytes = usize::try_from(u32::from_le_bytes([a, b, c, 0])).unwrap_or(0);
            if self.message.is_empty() {
                self.stream.message(len_bytes, &mut self.message)?;
            } else {
                self.stream.message(len_bytes, &mut part)?;
                self.message.extend_from_slice(&part);
            }
            if len_bytes < PART_BYTES {
                break;
            }
        }
        let first = self.message.first().copied().ok_or_else(|| self.stream.wrong("an empty answer"))?;
        if first == ERROR {
            let message = String::from_utf8_lossy(self.message.get(9..).unwrap_or_default());
            return Err(self.stream.wrong(message));
        }
        Ok(first)
    }

    fn expect(&self, first: u8) -> Result<()> {
        if self.message.first() == Some(&first) {
            return Ok(());
        }
        let length = self.message.len();
        Err(self.stream.wrong(format_args!("an answer of {length} bytes that does not begin with {first}")))
    }

    fn command(&mut self, parts: &[&[u8]]) -> Result<()> {
        self.sequence = 0;
        self.send(parts)
    }

    /// Executes a statement that gives no rows.
    ///
    /// # Errors
    /// [`Failure`](crate::kit::failure::Failure) with the server's message.
    pub fn execute(&mut self, text: &str) -> Result<()> {
        self.command(&[&[COMMAND_QUERY], text.as_bytes()])?;
        self.receive()?;
        self.expect(OK)
    }

    /// Prepares a statement and returns its number.
    ///
    /// # Errors
    /// [`Failure`](crate::kit::failure::Failure) with the server's message.
    pub fn prepare(&mut self, text: &str) -> Result<u32> {
        self.command(&[&[COMMAND_PREPARE], text.as_bytes()])?;
        self.receive()?;
        self.expect(OK)?;
        let &[_, a, b, c, d, columns, columns_high, parameters, parameters_high, ..] = &self.message[..]
        else {
            return Err(self.stream.wrong("a short answer to a statement"));
        };
        for (low, high) in [(parameters, parameters_high), (columns, columns_high)] {
            let count = u16::from_le_bytes([low, high]);
            // One description for each, and an end.
            let messages = if count == 0 { 0 } else { u32::from(count) + 1 };
            for _ in 0..messages {
                self.receive()?;
            }
        }
        Ok(u32::from_le_bytes([a, b, c, d]))
    }

    /// Executes the prepared statement with a number and a blob.
    ///
    /// # Errors
    /// [`Failure`](crate::kit::failure::Failure) with the server's message.
    pub fn execute_prepared(&mut self, statement: u32, id: u64, blob: &[u8]) -> Result<()> {
        let mut head = vec![COMMAND_EXECUTE];
        head.extend_from_slice(&statement.to_le_bytes());
        // No cursor, one iteration, no null parameter, and types follow.
        head.extend_from_slice(&[0, 1, 0, 0, 0, 0, 1]);
        head.extend_from_slice(&PARAMETER_TYPES);
        head.extend_from_slice(&id.to_le_bytes());
        head.push(0xfe);
        head.extend_from_slice(&(blob.len() as u64).to_le_bytes());
        self.command(&[&head, blob])?;
        self.receive()?;
        self.expect(OK)
    }

    /// Reads the only column of the only row that a query returns.
    ///
    /// # Errors
    /// [`Failure`](crate::kit::failure::Failure) with the server's message, or when there is not exactly one row.
    pub fn value(&mut self, text: &str, value: &mut Vec<u8>) -> Result<()> {
        self.command(&[&[COMMAND_QUERY], text.as_bytes()])?;
        if self.receive()? != 1 {
            return Err(self.stream.wrong("a result without exactly one column"));
        }
        // The column's description, and the end of descriptions.
        self.receive()?;
        self.receive()?;
        let mut rows = 0;
        loop {
            if self.receive()? == END && self.message.len() < END_LIMIT_BYTES {
                break;
            }
            let Some((len_bytes, at)) = decode_length(&self.message) else {
                return Err(self.stream.wrong("a row without a length"));
            };
            if self.message.len() != at + len_bytes {
                return Err(self.stream.wrong("a row with a wrong length"));
            }
            rows += 1;
            value.clear();
            value.extend_from_slice(&self.message[at..]);
        }
        if rows == 1 { Ok(()) } else { Err(self.stream.wrong(format_args!("{rows} rows instead of one"))) }
    }
}

/// Creates the table for [`Values`].
///
/// # Errors
/// [`Failure`](crate::kit::failure::Failure) with the server's message.
pub fn prepare(server: SocketAddr) -> Result<()> {
    let mut connection = Connection::open(server)?;
    connection.execute("create database large")?;
    connection.execute("create table large.blobs (id bigint primary key, b longblob) engine=innodb")
}

/// Number of rows of each connection.
const ROWS: u64 = 8;

/// A connection that stores blobs of one size, each read back once.
#[derive(Debug)]
pub struct Values {
    connection: Connection,
    statement: u32,
    value: Value,
    first_id: u64,
}

impl Values {
    /// Opens the `number`th connection, for blobs of `size_bytes`.
    ///
    /// # Errors
    /// [`Failure`](crate::kit::failure::Failure) when the server refuses the connection.
    pub fn open(server: SocketAddr, size_bytes: usize, number: u64) -> Result<Self> {
        let mut connection = Connection::open(server)?;
        let statement = connection.prepare("replace into large.blobs values (?, ?)")?;
        Ok(Self { connection, statement, value: Value::new(size_bytes, number), first_id: number << 16 })
    }
}

impl Client for Values {
    fn exchange(&mut self, number: u64) -> Result<Exchange> {
        let id = self.first_id + number % ROWS;
        let (connection, statement) = (&mut self.connection, self.statement);
        self.value.exchange(NAME, |value, received| {
            connection.execute_prepared(statement, id, value)?;
            connection.value(&format!("select b from large.blobs where id = {id}"), received)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_in_every_width_and_short_ones_refused() {
        assert_eq!(decode_length(&[7]), Some((7, 1)));
        assert_eq!(decode_length(&[0xfc, 1, 2]), Some((0x201, 3)));
        assert_eq!(decode_length(&[0xfd, 1, 2, 3, 9]), Some((0x3_0201, 4)));
        assert_eq!(decode_length(&[0xfe, 1, 0, 0, 0, 1, 0, 0, 0]), Some((0x1_0000_0001, 9)));
        for bytes in [&[][..], &[0xfb], &[0xfc, 1], &[0xfd, 1, 2], &[0xfe, 1, 2, 3, 4, 5, 6, 7], &[0xff]] {
            assert_eq!(decode_length(bytes), None, "{bytes:?}");
        }
    }
}
