//! A client of PostgreSQL's protocol, version 3: COPY in binary, and large objects by function calls.

use std::time::{Duration, Instant};

use super::{Client, Place, Stream, expect_equal};
use crate::kit::processes::process::TIMEOUT;
use crate::kit::traffic::Exchange;
use crate::kit::{Failure, Pattern, Result};

const NAME: &str = "PostgreSQL";
/// Interval at which a starting server is polled.
const INTERVAL: Duration = Duration::from_millis(10);
/// Version of the protocol: 3.0.
const PROTOCOL: u32 = 3 << 16;
/// Beginning of a binary COPY: signature, flags, length of the extension.
const COPY_HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// End of a binary COPY.
const COPY_TRAILER: [u8; 2] = u16::MAX.to_be_bytes();
/// Length of a row's head: number of columns, length of the key, the key, length of the value.
const ROW_HEAD_BYTES: usize = 2 + 4 + 4 + 4;
/// Mode for reading and writing (`libpq/libpq-fs.h`).
const INV_READ_WRITE: u32 = 0x0004_0000 | 0x0002_0000;

/// Operation by which values are stored and read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A row, stored by `COPY … FROM STDIN` and read by `COPY … TO STDOUT`.
    Copy,
    /// A large object, written by `lowrite` and read by `loread`.
    LargeObject,
}

/// A connection to the server.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    message: Vec<u8>,
}

fn len_u32(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

impl Connection {
    /// Connects as `user` to the database `postgres`; the server must not ask for a password.
    ///
    /// # Errors
    /// [`Failure`] when the server refuses the connection.
    pub fn open(server: &Place, user: &str) -> Result<Self> {
        let mut connection = Self { stream: Stream::open_at(server, NAME)?, message: Vec::new() };
        let words = format!("user\0{user}\0database\0postgres\0\0");
        let len = len_u32(8 + words.len()).to_be_bytes();
        connection.stream.send(&[&len, &PROTOCOL.to_be_bytes(), words.as_bytes()])?;
        loop {
            match connection.next()? {
                b'Z' => return Ok(connection),
                b'R' if connection.message != [0; 4] => {
                    return Err(connection.stream.wrong("it asks for a password"));
                }
                _ => {}
            }
        }
    }

    /// Receives a message and returns its type.
    fn next(&mut self) -> Result<u8> {
        let [kind, len @ ..] = self.stream.array::<5>()?;
        let len_bytes = usize::try_from(u32::from_be_bytes(len)).unwrap_or(0);
        let len_bytes =
            len_bytes.checked_sub(4).ok_or_else(|| self.stream.wrong("a message without a length"))?;
        self.stream.message(len_bytes, &mut self.message)?;
        if kind == b'E' {
            // Each field is a letter and a string.
            let fields = self.message.split(|byte| *byte == 0);
            let message = fields.filter_map(|field| field.strip_prefix(b"M")).next().unwrap_or_default();
            return Err(self.stream.wrong(String::from_utf8_lossy(message)));
        }
        Ok(kind)
    }

    /// Waits until the server is ready for the next command. Calls `take` with the body of each message of type
    /// `wanted`.
    fn finish(&mut self, wanted: u8, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        loop {
            match self.next()? {
                b'Z' => return Ok(()),
                kind if kind == wanted => take(&self.message)?,
                _ => {}
            }
        }
    }

    fn query(&mut self, text: &str) -> Result<()> {
        let len = len_u32(4 + text.len() + 1).to_be_bytes();
        self.stream.send(&[b"Q", &len, text.as_bytes(), b"\0"])
    }

    /// Executes `text`; returns the first column of its last row, or an empty string if there are no rows.
    ///
    /// # Errors
    /// [`Failure`] with the server's message.
    pub fn execute(&mut self, text: &str) -> Result<String> {
        self.query(text)?;
        let mut answer = String::new();
        self.finish(b'D', |row| {
            // Number of columns, length of the first column, the first column.
            let column = row.get(6..).unwrap_or_default();
            answer = String::from_utf8_lossy(column).into_owned();
            Ok(())
        })?;
        Ok(answer)
    }

    /// Stores a row by a binary COPY.
    ///
    /// # Errors
    /// [`Failure`] with the server's message.
    pub fn copy_in(&mut self, table: &str, id: u32, value: &[u8]) -> Result<()> {
        self.query(&format!("copy {table} from stdin (format binary)"))?;
        while self.next()? != b'G' {}
        let head = row_head(id, value.len());
        let body = COPY_HEADER.len() + head.len() + value.len() + COPY_TRAILER.len();
        let len = len_u32(4 + body).to_be_bytes();
        let done = [b'c', 0, 0, 0, 4];
        self.stream.send(&[b"d", &len, COPY_HEADER, &head, value, &COPY_TRAILER, &done])?;
        self.finish(0, |_| Ok(()))
    }

    /// Reads the result of a query by a binary COPY: the concatenated bytes of all messages.
    ///
    /// # Errors
    /// [`Failure`] with the server's message.
    pub fn copy_out(&mut self, query: &str, bytes: &mut Vec<u8>) -> Result<()> {
        self.query(&format!("copy ({query}) to stdout (format binary)"))?;
        bytes.clear();
        self.finish(b'd', |data| {
            bytes.extend_from_slice(data);
            Ok(())
        })
    }

    /// Calls the function with the number `function`, with all arguments and the result in binary.
    fn call(&mut self, function: u32, arguments: &[&[u8]], result: &mut Vec<u8>) -> Result<()> {
        let mut heads = Vec::with_capacity(arguments.len());
        let mut body = 4 + 4 + 2 + 2 + 2 + 2;
        for argument in arguments {
            heads.push(len_u32(argument.len()).to_be_bytes());
            body += 4 + argument.len();
        }
        let mut head = vec![b'F'];
        head.extend_from_slice(&len_u32(body).to_be_bytes());
        head.extend_from_slice(&function.to_be_bytes());
        // One format code applies to all arguments: binary.
        head.extend_from_slice(&[0, 1, 0, 1]);
        head.extend_from_slice(&u16::try_from(arguments.len()).unwrap_or(0).to_be_bytes());
        let mut parts: Vec<&[u8]> = vec![&head];
        for (len, argument) in heads.iter().zip(arguments) {
            parts.extend([&len[..], argument]);
        }
        parts.push(&[0, 1]);
        self.stream.send(&parts)?;
        result.clear();
        self.finish(b'V', |answer| {
            result.extend_from_slice(answer.get(4..).unwrap_or_default());
            Ok(())
        })
    }
}

fn row_head(id: u32, len_bytes: usize) -> [u8; ROW_HEAD_BYTES] {
    let mut head = [0; ROW_HEAD_BYTES];
    head[..6].copy_from_slice(&[0, 2, 0, 0, 0, 4]);
    head[6..10].copy_from_slice(&id.to_be_bytes());
    head[10..].copy_from_slice(&len_u32(len_bytes).to_be_bytes());
    head
}

/// Numbers of the functions of large objects (`pg_proc.dat`), which are part of the protocol and do not change.
mod function {
    pub const OPEN: u32 = 952;
    pub const CLOSE: u32 = 953;
    pub const READ: u32 = 954;
    pub const WRITE: u32 = 955;
    pub const CREATE: u32 = 957;
    pub const UNLINK: u32 = 964;
}

/// A connection that stores values of one size, each read back once.
#[derive(Debug)]
pub struct Values {
    connection: Connection,
    operation: Operation,
    pattern: Pattern,
    received: Vec<u8>,
    first_id: u32,
}

/// Creates the table for [`Values`], once the server answers, which may be later than it listens.
///
/// # Errors
/// [`Failure`] with the server's message.
pub fn prepare(server: &Place, user: &str) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    let mut connection = loop {
        match Connection::open(server, user) {
            Err(failure) if failure.to_string().contains("starting up") && Instant::now() < deadline => {
                std::thread::sleep(INTERVAL);
            }
            connection => break connection?,
        }
    };
    // No compression: random bytes do not compress, and the server's own copies are to be measured.
    connection.execute("create table large (id int primary key, b bytea)")?;
    connection.execute("alter table large alter b set storage external").map(drop)
}

/// Maximum number of rows of each connection; older ones are removed.
const ROWS: u64 = 16;

impl Values {
    /// Opens the `number`th connection of `user`, for values of `size_bytes`.
    ///
    /// # Errors
    /// [`Failure`] when the server refuses the connection.
    pub fn open(
        server: &Place,
        user: &str,
        operation: Operation,
        size_bytes: usize,
        number: u32,
    ) -> Result<Self> {
        Ok(Self {
            connection: Connection::open(server, user)?,
            operation,
            pattern: Pattern::new(size_bytes, u64::from(number)),
            received: Vec::new(),
            first_id: number << 16,
        })
    }

    fn copy(&mut self, id: u32) -> Result<Exchange> {
        let value = self.pattern.advance();
        let sent = Instant::now();
        self.connection.copy_in("large", id, value)?;
        self.connection.copy_out(&format!("select id, b from large where id = {id}"), &mut self.received)?;
        let received = Instant::now();
        let expected = [COPY_HEADER, &row_head(id, value.len()), value, &COPY_TRAILER];
        let mut at = 0;
        for part in expected {
            let got = self.received.get(at..).unwrap_or_default();
            expect_equal(NAME, part, &got[..part.len().min(got.len())])?;
            at += part.len();
        }
        if self.received.len() != at {
            return Err(Failure::new(format!("{NAME} sent {} bytes of {at}", self.received.len())));
        }
        self.connection.execute(&format!("delete from large where id = {id}"))?;
        Ok(Exchange { sent, received, verified_bytes: value.len() as u64 })
    }

    fn large_object(&mut self) -> Result<Exchange> {
        let value = self.pattern.advance();
        let sent = Instant::now();
        let (connection, answer) = (&mut self.connection, &mut Vec::new());
        // A large object is only open within a transaction.
        connection.execute("begin")?;
        let mode = INV_READ_WRITE.to_be_bytes();
        connection.call(function::CREATE, &[&mode], answer)?;
        let object = answer.clone();
        for reads in [false, true] {
            connection.call(function::OPEN, &[&object, &mode], answer)?;
            let descriptor = answer.clone();
            if reads {
                let len = len_u32(value.len()).to_be_bytes();
                connection.call(function::READ, &[&descriptor, &len], &mut self.received)?;
            } else {
                connection.call(function::WRITE, &[&descriptor, value], answer)?;
                if answer[..] != len_u32(value.len()).to_be_bytes() {
                    return Err(Failure::new(format!("{NAME} wrote only a part of a large object")));
                }
            }
            connection.call(function::CLOSE, &[&descriptor], answer)?;
        }
        let received = Instant::now();
        expect_equal(NAME, value, &self.received)?;
        connection.call(function::UNLINK, &[&object], answer)?;
        connection.execute("commit")?;
        Ok(Exchange { sent, received, verified_bytes: value.len() as u64 })
    }
}

impl Client for Values {
    fn exchange(&mut self, number: u64) -> Result<Exchange> {
        match self.operation {
            Operation::Copy => {
                let id = self.first_id + u32::try_from(number % ROWS).unwrap_or(0);
                self.copy(id)
            }
            Operation::LargeObject => self.large_object(),
        }
    }
}
