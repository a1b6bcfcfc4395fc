//! A small client of the Redis protocol (RESP 2): just enough to set values, read them back and
//! ask a server whether it is there. The server's replies are not trusted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::failure::{Failure, Result, While};

/// Longest line outside bulk strings, bytes.
const LINE_LIMIT_BYTES: usize = 64 * 1024;
/// Longest bulk string, bytes: the limit of Redis itself.
const BULK_LIMIT_BYTES: usize = 512 << 20;
/// Most elements of an array.
const ARRAY_LIMIT: usize = 1 << 16;
/// Deepest nesting of arrays.
const DEPTH_LIMIT: usize = 4;
/// Bytes asked for in one read.
const READ_BYTES: usize = 256 * 1024;

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`.
    Simple(String),
    /// `-ERR …`.
    Error(String),
    /// `:7`.
    Integer(i64),
    /// `$5` and five bytes.
    Bulk(Vec<u8>),
    /// `$-1` or `*-1`.
    Null,
    /// `*2` and two replies.
    Array(Vec<Reply>),
}

/// How a reply was malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(&'static str);

/// Reads one reply from the front of `bytes`: the reply and its length in bytes, or `None` if it
/// is not complete yet.
///
/// # Errors
/// [`Malformed`] when no continuation could make it a reply.
pub fn parse(bytes: &[u8]) -> std::result::Result<Option<(Reply, usize)>, Malformed> {
    parse_nested(bytes, DEPTH_LIMIT)
}

fn parse_nested(bytes: &[u8], depth: usize) -> std::result::Result<Option<(Reply, usize)>, Malformed> {
    let Some((kind, rest)) = bytes.split_first() else { return Ok(None) };
    if !b"+-:$*".contains(kind) {
        return Err(Malformed("begins with none of + - : $ *"));
    }
    let searched = &rest[..rest.len().min(LINE_LIMIT_BYTES)];
    let Some(line_bytes) = searched.windows(2).position(|pair| pair == b"\r\n") else {
        return if rest.len() > LINE_LIMIT_BYTES {
            Err(Malformed("has a line without an end"))
        } else {
            Ok(None)
        };
    };
    let line = &rest[..line_bytes];
    let head_bytes = 1 + line_bytes + 2;
    let text = || String::from_utf8_lossy(line).into_owned();
    match kind {
        b'+' => Ok(Some((Reply::Simple(text()), head_bytes))),
        b'-' => Ok(Some((Reply::Error(text()), head_bytes))),
        b':' => Ok(Some((Reply::Integer(integer(line)?), head_bytes))),
        b'$' => {
            let Some(len_bytes) = length(line, BULK_LIMIT_BYTES)? else {
                return Ok(Some((Reply::Null, head_bytes)));
            };
            let body = &bytes[head_bytes..];
            if body.len() < len_bytes + 2 {
                return Ok(None);
            }
            if &body[len_bytes..len_bytes + 2] != b"\r\n" {
                return Err(Malformed("has a string that does not end where it says"));
            }
            Ok(Some((Reply::Bulk(body[..len_bytes].to_vec()), head_bytes + len_bytes + 2)))
        }
        _ => {
            let Some(count) = length(line, ARRAY_LIMIT)? else {
                return Ok(Some((Reply::Null, head_bytes)));
            };
            let depth = depth.checked_sub(1).ok_or(Malformed("is nested too deeply"))?;
            let mut elements = Vec::new();
            let mut used_bytes = head_bytes;
            for _ in 0..count {
                let Some((element, element_bytes)) = parse_nested(&bytes[used_bytes..], depth)? else {
                    return Ok(None);
                };
                elements.push(element);
                used_bytes += element_bytes;
            }
            Ok(Some((Reply::Array(elements), used_bytes)))
        }
    }
}

fn integer(line: &[u8]) -> std::result::Result<i64, Malformed> {
    std::str::from_utf8(line)
        .ok()
        .filter(|text| !text.starts_with('+'))
        .and_then(|text| text.parse().ok())
        .ok_or(Malformed("has a number that is none"))
}

/// A length of at most `limit`; `None` for -1.
fn length(line: &[u8], limit: usize) -> std::result::Result<Option<usize>, Malformed> {
    match integer(line)? {
        -1 => Ok(None),
        value => usize::try_from(value)
            .ok()
            .filter(|length| *length <= limit)
            .map(Some)
            .ok_or(Malformed("has a length out of range")),
    }
}

/// One command as the array of bulk strings that servers expect.
#[must_use]
pub fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32 + words.iter().map(|word| word.len() + 32).sum::<usize>());
    bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Connection {
    /// Connects to `address`; every later wait is at most `timeout` too.
    ///
    /// # Errors
    /// [`Failure`] when the server does not accept within `timeout`.
    pub fn open(address: SocketAddr, timeout: Duration) -> Result<Self> {
        let what = || format!("connecting to {address}");
        let stream = TcpStream::connect_timeout(&address, timeout).doing(what())?;
        stream.set_read_timeout(Some(timeout)).doing(what())?;
        stream.set_write_timeout(Some(timeout)).doing(what())?;
        stream.set_nodelay(true).doing(what())?;
        Ok(Self { stream, received: Vec::new() })
    }

    /// Sends one command and waits for its reply.
    ///
    /// # Errors
    /// [`Failure`] when the connection ends, a wait takes too long, the reply is malformed, or
    /// the server answers with an error.
    pub fn call(&mut self, words: &[&[u8]]) -> Result<Reply> {
        let name = String::from_utf8_lossy(words.first().copied().unwrap_or_default()).into_owned();
        self.stream.write_all(&encode(words)).doing(format_args!("sending {name}"))?;
        loop {
            match parse(&self.received) {
                Ok(Some((reply, used_bytes))) => {
                    self.received.drain(..used_bytes);
                    return match reply {
                        Reply::Error(text) => {
                            Err(Failure::new(format!("{name} was answered with \"{}\"", text.escape_debug())))
                        }
                        reply => Ok(reply),
                    };
                }
                Ok(None) => {}
                Err(Malformed(how)) => return Err(Failure::new(format!("the reply to {name} {how}"))),
            }
            let filled = self.received.len();
            if filled > BULK_LIMIT_BYTES + LINE_LIMIT_BYTES {
                return Err(Failure::new(format!("the reply to {name} does not end")));
            }
            self.received.resize(filled + READ_BYTES, 0);
            let got = self.stream.read(&mut self.received[filled..]);
            self.received.truncate(filled + got.as_ref().copied().unwrap_or(0));
            if got.doing(format_args!("waiting for the reply to {name}"))? == 0 {
                return Err(Failure::new(format!("the server closed the connection during {name}")));
            }
        }
    }

    /// Sets a value.
    ///
    /// # Errors
    /// As [`Connection::call`], and when the answer is not `OK`.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match self.call(&[b"SET", key, value])? {
            Reply::Simple(text) if text == "OK" => Ok(()),
            other => Err(unexpected("SET", &other)),
        }
    }

    /// Reads a value; `None` if there is none.
    ///
    /// # Errors
    /// As [`Connection::call`], and when the answer is not a string.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.call(&[b"GET", key])? {
            Reply::Bulk(value) => Ok(Some(value)),
            Reply::Null => Ok(None),
            other => Err(unexpected("GET", &other)),
        }
    }
}

fn unexpected(name: &str, reply: &Reply) -> Failure {
    let mut text = format!("{reply:?}");
    text.truncate(text.char_indices().nth(80).map_or(text.len(), |(index, _)| index));
    Failure::new(format!("unexpected reply to {name}: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use std::net::TcpListener;

    #[test]
    fn every_kind_of_reply_is_read_and_its_length_told() {
        for (bytes, reply) in [
            (&b"+OK\r\n"[..], Reply::Simple("OK".into())),
            (b"-ERR no\r\n", Reply::Error("ERR no".into())),
            (b":-7\r\n", Reply::Integer(-7)),
            (b"$5\r\na\r\nbc\r\n", Reply::Bulk(b"a\r\nbc".to_vec())),
            (b"$0\r\n\r\n", Reply::Bulk(Vec::new())),
            (b"$-1\r\n", Reply::Null),
            (b"*2\r\n:1\r\n*0\r\n", Reply::Array(vec![Reply::Integer(1), Reply::Array(Vec::new())])),
        ] {
            let mut more = bytes.to_vec();
            more.extend_from_slice(b"+next");
            assert_eq!(parse(&more), Ok(Some((reply, bytes.len()))));
            for cut in 0..bytes.len() {
                assert_eq!(parse(&bytes[..cut]), Ok(None), "{cut} bytes of {:?}", bytes.escape_ascii());
            }
        }
    }

    #[test]
    fn hostile_replies_are_refused() {
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
            assert!(parse(bytes).is_err(), "{}", bytes[..bytes.len().min(40)].escape_ascii());
        }
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
            if let Ok(Some((_, used_bytes))) = parse(&bytes) {
                assert!(used_bytes <= bytes.len());
            }
        }
    }

    #[test]
    fn commands_are_arrays_of_strings() {
        assert_eq!(encode(&[b"SET", b"k", b"a\r\nb"]), b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n");
    }

    /// A server that answers the first bytes it gets with `answer` and closes.
    fn answering(answer: &'static [u8]) -> (SocketAddr, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = [0; 256];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(answer);
        });
        (address, thread)
    }

    #[test]
    fn servers_that_err_misbehave_or_go_away_give_messages() {
        for (answer, part) in [
            (&b"-ERR told you\r\n"[..], "told you"),
            (b"garbage", "begins with none"),
            (b"$10\r\nabc", "closed the connection"),
            (b":3\r\n", "unexpected reply to GET"),
        ] {
            let (address, thread) = answering(answer);
            let mut connection = Connection::open(address, Duration::from_secs(5)).expect("listening");
            let failure = connection.get(b"k").expect_err("a bad answer").to_string();
            assert!(failure.contains(part), "{failure}");
            thread.join().expect("no panic");
        }
    }

    #[test]
    fn values_are_read_whole() {
        let (address, thread) = answering(b"$3\r\nabc\r\n");
        let mut connection = Connection::open(address, Duration::from_secs(5)).expect("listening");
        assert_eq!(connection.get(b"k"), Ok(Some(b"abc".to_vec())));
        thread.join().expect("no panic");
    }
}
