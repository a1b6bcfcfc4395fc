//! A client of Redis's protocol (RESP 2). The server's replies are not trusted.
//!
//! Values are received directly into the caller's memory: at most the first 64 bytes of a reply are buffered.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::{LINE_LIMIT_BYTES, write_parts};
use crate::failure::{Failure, Result, While};
use crate::network::connect;

/// Maximum length of a bulk string, bytes: the limit of Redis itself.
const BULK_LIMIT_BYTES: usize = 512 << 20;
/// Bytes requested before a value's length is known.
const HEAD_BYTES: usize = 64;
/// Maximum nesting depth of arrays.
const MAX_DEPTH: usize = 4;

/// A reply of a RESP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `+OK` and the like.
    Status(String),
    /// `-ERR …`.
    Error(String),
    /// `:` and an integer.
    Integer(i64),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// The null reply, for a missing value.
    Nil,
    /// An array of replies.
    Array(Vec<Answer>),
}

impl Answer {
    /// Returns the reply, shortened for a message.
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

/// A connection to a server.
#[derive(Debug)]
pub struct Connection<S = TcpStream> {
    stream: S,
    /// Received bytes that are not consumed yet.
    received: Vec<u8>,
    /// Maximum number of bytes per `write` of [`Connection::send`].
    piece_bytes: usize,
}

impl Connection {
    /// Connects to `address`; every wait, also later ones, is at most `timeout`.
    ///
    /// # Errors
    /// [`Failure`] when the server does not accept within `timeout`.
    pub fn open(address: SocketAddr, timeout: Duration) -> Result<Self> {
        let stream = connect(address, timeout).doing(format_args!("connecting to {address}"))?;
        Ok(Self::from_stream(stream))
    }
}

impl<S: Read> Connection<S> {
    const fn from_stream(stream: S) -> Self {
        Self { stream, received: Vec::new(), piece_bytes: usize::MAX }
    }

    /// The first line of the reply to the command `name`.
    fn receive_line(&mut self, name: &str) -> Result<Vec<u8>> {
        loop {
            let line = &mut self.received;
            if let Some(end) = line.windows(2).position(|pair| pair == b"\r\n") {
                let rest = line.split_off(end + 2);
                line.truncate(end);
                return Ok(std::mem::replace(line, rest));
            }
            match line.first() {
                Some(kind) if !b"+-:$*".contains(kind) => {
                    return Err(Failure::new(format!("the reply to {name} begins with none of + - : $ *")));
                }
                Some(kind) if line.len() >= if *kind == b'$' { HEAD_BYTES } else { LINE_LIMIT_BYTES } => {
                    return Err(Failure::new(format!("the reply to {name} has a line without an end")));
                }
                _ => {}
            }
            let filled = line.len();
            line.resize(filled + HEAD_BYTES, 0);
            let got = self.stream.read(&mut line[filled..]);
            line.truncate(filled + got.as_ref().copied().unwrap_or(0));
            if got.doing(format_args!("waiting for the reply to {name}"))? == 0 {
                return Err(Failure::new(format!("the server closed the connection during {name}")));
            }
        }
    }

    /// Receives a string of `len_bytes` into `value`, replacing its content.
    fn receive_bulk(&mut self, name: &str, len_bytes: usize, value: &mut Vec<u8>) -> Result<()> {
        value.resize(len_bytes + 2, 0);
        let buffered_bytes = self.received.len().min(value.len());
        let (buffered, missing) = value.split_at_mut(buffered_bytes);
        buffered.copy_from_slice(&self.received[..buffered_bytes]);
        self.received.drain(..buffered_bytes);
        let what = format_args!("waiting for the reply to {name}");
        self.stream.read_exact(missing).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Failure::new(format!("{what}: the server closed the connection")),
            _ => Failure::while_doing(what, &error),
        })?;
        if !value.ends_with(b"\r\n") {
            let how = "has a string that does not end where it says";
            return Err(Failure::new(format!("the reply to {name} {how}")));
        }
        value.truncate(len_bytes);
        Ok(())
    }

    fn receive_answer(&mut self, name: &str, depth: usize) -> Result<Answer> {
        let line = self.receive_line(name)?;
        let (kind, rest) = line.split_first().ok_or_else(|| unexpected(name, &line))?;
        let text = || String::from_utf8_lossy(rest).into_owned();
        Ok(match kind {
            b'+' => Answer::Status(text()),
            b'-' => Answer::Error(text()),
            b':' => Answer::Integer(text().parse().map_err(|_| unexpected(name, &line))?),
            _ if rest == b"-1" => Answer::Nil,
            b'$' => {
                let mut value = Vec::new();
                self.receive_bulk(name, length(name, rest)?, &mut value)?;
                Answer::Bulk(value)
            }
            _ if depth == MAX_DEPTH => return Err(unexpected(name, &line)),
            _ => {
                let count = length(name, rest)?;
                Answer::Array(
                    (0..count).map(|_| self.receive_answer(name, depth + 1)).collect::<Result<_>>()?,
                )
            }
        })
    }

    /// Receives one reply.
    ///
    /// # Errors
    /// [`Failure`] when the connection ends, a wait takes too long, or the reply is malformed.
    pub fn receive(&mut self) -> Result<Answer> {
        self.receive_answer("a command", 0)
    }

    fn expect_status(&mut self, name: &str, status: &str) -> Result<()> {
        match self.receive_line(name)? {
            line if line.strip_prefix(b"+") == Some(status.as_bytes()) => Ok(()),
            other => Err(unexpected(name, &other)),
        }
    }

    /// Reads the reply to a GET into `value`, replacing its content; `false` if there is no value.
    /// Nothing may follow the reply.
    fn receive_value(&mut self, value: &mut Vec<u8>) -> Result<bool> {
        let line = self.receive_line("GET")?;
        match line.split_first() {
            Some((b'$', b"-1")) => return Ok(false),
            Some((b'$', digits)) => self.receive_bulk("GET", length("GET", digits)?, value)?,
            _ => return Err(unexpected("GET", &line)),
        }
        if self.received.is_empty() {
            return Ok(true);
        }
        Err(Failure::new("the reply to GET is longer than it says"))
    }
}

/// The length of a string or an array.
fn length(name: &str, digits: &[u8]) -> Result<usize> {
    if !digits.iter().all(u8::is_ascii_digit) {
        return Err(Failure::new(format!("the reply to {name} has a number that is none")));
    }
    let length = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
    length
        .filter(|length| *length <= BULK_LIMIT_BYTES)
        .ok_or_else(|| Failure::new(format!("the reply to {name} has a length out of range")))
}

fn unexpected(name: &str, line: &[u8]) -> Failure {
    match line.split_first() {
        Some((b'-', text)) => {
            let text = String::from_utf8_lossy(text);
            Failure::new(format!("{name} was answered with \"{}\"", text.escape_debug()))
        }
        _ => {
            let shown = line[..line.len().min(80)].escape_ascii();
            Failure::new(format!("unexpected reply to {name}: {shown}"))
        }
    }
}

/// Returns a command as an array of bulk strings, without the bytes of the last string, of `last_bytes`.
fn command_prefix(words: &[&[u8]], last_bytes: usize) -> Vec<u8> {
    let mut head = format!("*{}\r\n", words.len() + 1).into_bytes();
    for word in words {
        head.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        head.extend_from_slice(word);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(format!("${last_bytes}\r\n").as_bytes());
    head
}

impl<S: Read + Write> Connection<S> {
    /// Sends a command whose last word is the concatenation of `parts`, without copying them together.
    fn send_parts(&mut self, name: &str, words: &[&[u8]], parts: &[&[u8]]) -> Result<()> {
        let head = command_prefix(words, parts.iter().map(|part| part.len()).sum());
        let all = [&head[..]].into_iter().chain(parts.iter().copied()).chain([&b"\r\n"[..]]);
        write_parts(&mut self.stream, &all.collect::<Vec<_>>()).doing(format_args!("sending {name}"))
    }

    /// Makes [`Connection::send`] write at most this many bytes at a time.
    pub const fn send_in_pieces_of(&mut self, bytes: usize) {
        self.piece_bytes = bytes;
    }

    /// Sends commands without waiting for their replies.
    ///
    /// # Errors
    /// [`Failure`] when the connection ends or a wait takes too long.
    pub fn send(&mut self, commands: &[&[&[u8]]]) -> Result<()> {
        let mut bytes = Vec::new();
        for (last, words) in commands.iter().filter_map(|words| words.split_last()) {
            bytes.append(&mut command_prefix(words, last.len()));
            bytes.extend_from_slice(last);
            bytes.extend_from_slice(b"\r\n");
        }
        let mut pieces = bytes.chunks(self.piece_bytes);
        pieces.try_for_each(|piece| self.stream.write_all(piece)).doing("sending commands")
    }

    /// Sends a command and receives its reply.
    ///
    /// # Errors
    /// As [`Connection::send`] and [`Connection::receive`].
    pub fn command(&mut self, words: &[&[u8]]) -> Result<Answer> {
        self.send(&[words])?;
        self.receive()
    }

    /// Checks that the server answers.
    ///
    /// # Errors
    /// [`Failure`] when the connection ends, a wait takes too long, or the answer is not `PONG`.
    pub fn ping(&mut self) -> Result<()> {
        self.send(&[&[b"PING"]])?;
        self.expect_status("PING", "PONG")
    }

    /// Makes the server start to rewrite its append-only file.
    ///
    /// # Errors
    /// [`Failure`] when the connection ends, a wait takes too long, or the server refuses.
    pub fn rewrite_log(&mut self) -> Result<()> {
        self.send(&[&[b"BGREWRITEAOF"]])?;
        self.expect_status("BGREWRITEAOF", "Background append only file rewriting started")
    }

    /// Sets a value given in parts, without copying them together.
    ///
    /// # Errors
    /// [`Failure`] when the connection ends, a wait takes too long, or the answer is not `OK`.
    pub fn set_parts(&mut self, key: &[u8], parts: &[&[u8]]) -> Result<()> {
        self.send_parts("SET", &[b"SET", key], parts)?;
        self.expect_status("SET", "OK")
    }

    /// Reads a value into `value`, replacing its content; `false` if there is none.
    ///
    /// # Errors
    /// [`Failure`] when the connection ends, a wait takes too long, or the answer is malformed or not a string.
    pub fn get_into(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.send_parts("GET", &[b"GET"], &[key])?;
        self.receive_value(value)
    }

    /// Returns the value of a key; `None` if there is none.
    ///
    /// # Errors
    /// As [`Connection::get_into`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Returns a field of `INFO`.
    ///
    /// # Errors
    /// As [`Connection::command`], and when there is no such field.
    pub fn info(&mut self, field: &str) -> Result<String> {
        let answer = self.command(&[b"INFO", b"everything"])?;
        let Answer::Bulk(text) = &answer else { return Err(Failure::new(format!("INFO: {answer:?}"))) };
        let text = String::from_utf8_lossy(text);
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        let found = fields.find(|(name, _)| *name == field);
        found
            .map(|(_, value)| value.trim().to_owned())
            .ok_or_else(|| Failure::new(format!("INFO has no {field}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use std::net::TcpListener;

    fn value_of(reply: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = b"older and longer".to_vec();
        Connection::from_stream(reply).receive_value(&mut value).map(|found| found.then_some(value))
    }

    #[test]
    fn values_and_statuses_are_read_in_pieces_of_any_size() {
        for (reply, value) in [
            (&b"$5\r\na\r\nbc\r\n"[..], Some(&b"a\r\nbc"[..])),
            (b"$0\r\n\r\n", Some(b"")),
            (b"$-1\r\n", None),
        ] {
            for cut in 0..=reply.len() {
                let pieces = || Connection::from_stream(reply[..cut].chain(&reply[cut..]));
                let mut value_in_pieces = Vec::new();
                let found = pieces().receive_value(&mut value_in_pieces);
                assert_eq!(found.map(|found| found.then_some(&value_in_pieces[..])), Ok(value));
                let answer = value.map_or(Answer::Nil, |value| Answer::Bulk(value.to_vec()));
                assert_eq!(pieces().receive(), Ok(answer));
                assert!(cut == reply.len() || value_of(&reply[..cut]).is_err(), "{cut} bytes are not all");
            }
        }
        assert_eq!(Connection::from_stream(&b"+PONG\r\n"[..]).expect_status("PING", "PONG"), Ok(()));
    }

    #[test]
    fn hostile_replies_are_rejected() {
        let deep = b"*1\r\n".repeat(100_000);
        let endless = [b"+".to_vec(), vec![b'x'; LINE_LIMIT_BYTES + 1]].concat();
        for bytes in [
            &b"hello\r\n"[..],
            b"$-2\r\n",
            b"$99999999999999999999\r\n",
            b"$536870913\r\n",
            b"$+5\r\nabcde\r\n",
            b"$ 5\r\nabcde\r\n",
            b"$\r\n",
            b"*4294967296\r\n",
            b":x\r\n",
            b"$3\r\nabcde",
            &deep,
            &endless,
        ] {
            let shown = bytes[..bytes.len().min(40)].escape_ascii();
            assert!(value_of(bytes).is_err() && Connection::from_stream(bytes).receive().is_err(), "{shown}");
        }
    }

    #[test]
    fn pipelined_replies_are_read_one_by_one() {
        let mut replies =
            Connection::from_stream(&b"+OK\r\n*2\r\n$3\r\nabc\r\n$-1\r\n:-7\r\n-ERR no\r\n"[..]);
        let array = Answer::Array(vec![Answer::Bulk(b"abc".to_vec()), Answer::Nil]);
        let expected =
            [Answer::Status("OK".into()), array, Answer::Integer(-7), Answer::Error("ERR no".into())];
        assert_eq!([(); 4].map(|()| replies.receive()), expected.map(Ok));
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut random = Random::new(77);
        for _ in 0..20_000 {
            let len_bytes = usize::try_from(random.next() % 24).expect("small");
            let alphabet = b"+-:$*0123459\r\n\r\nab";
            let bytes: Vec<u8> = random
                .bytes(len_bytes)
                .iter()
                .map(|byte| alphabet[usize::from(*byte) % alphabet.len()])
                .collect();
            if let Ok(Some(value)) = value_of(&bytes) {
                assert!(value.len() < bytes.len());
            }
        }
    }

    #[test]
    fn server_failures_produce_messages() {
        for (answer, part) in [
            (&b"-ERR told you\r\n"[..], "told you"),
            (b"garbage", "begins with none"),
            (b"$10\r\nabc", "closed the connection"),
            (b":3\r\n", "unexpected reply to GET"),
            (b"$3\r\nab", "waiting for the reply to GET"),
            (b"$3\r\nabcde", "does not end where it says"),
            (b"$3\r\nabc\r\nmore", "longer than it says"),
            (b"$x\r\n", "number that is none"),
            (b"$3", "closed the connection"),
            (&[b'$'; 100], "without an end"),
        ] {
            let failure = value_of(answer).expect_err("a bad answer").to_string();
            assert!(failure.contains(part), "{failure}");
        }
    }

    /// Starts a server that expects `request` and sends `answer`.
    fn answering(request: &'static [u8], answer: &'static [u8]) -> (Connection, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut received = vec![0; request.len()];
            stream.read_exact(&mut received).expect("the command");
            assert_eq!(received, request);
            stream.write_all(answer).expect("the client waits");
        });
        (Connection::open(address, Duration::from_secs(5)).expect("listening"), thread)
    }

    #[test]
    fn set_parts_sends_one_command() {
        let request = b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$6\r\nab\r\nef\r\n";
        let (mut connection, thread) = answering(request, b"+OK\r\n");
        connection.set_parts(b"key", &[b"ab", b"", b"\r\nef"]).expect("OK");
        thread.join().expect("the right command");
    }

    #[test]
    fn get_reads_whole_values() {
        let (mut connection, thread) = answering(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", b"$3\r\nabc\r\n");
        let mut value = Vec::new();
        assert_eq!((connection.get_into(b"k", &mut value), &value[..]), (Ok(true), &b"abc"[..]));
        thread.join().expect("the right command");
    }
}
