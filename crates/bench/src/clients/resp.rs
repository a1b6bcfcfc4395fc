//! A small client of the Redis protocol (RESP 2): just enough to set values, read them back and
//! ask a server whether it is there. The server's replies are not trusted.

use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::kit::failure::{Failure, Result, While};

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
/// Bytes asked for before a value's length is known.
const HEAD_BYTES: usize = 64;

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
        self.reply(&name)
    }

    /// Waits for the reply to the command `name`.
    fn reply(&mut self, name: &str) -> Result<Reply> {
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

    /// Sets a value that is given in parts, without putting them together.
    ///
    /// # Errors
    /// As [`Connection::set`].
    pub fn set_parts(&mut self, key: &[u8], parts: &[&[u8]]) -> Result<()> {
        let len_bytes: usize = parts.iter().map(|part| part.len()).sum();
        let head = [
            format!("*3\r\n$3\r\nSET\r\n${}\r\n", key.len()).as_bytes(),
            key,
            format!("\r\n${len_bytes}\r\n").as_bytes(),
        ]
        .concat();
        let all = [&head[..]].into_iter().chain(parts.iter().copied()).chain([&b"\r\n"[..]]);
        let mut slices: Vec<IoSlice<'_>> = all.map(IoSlice::new).collect();
        let mut left = &mut slices[..];
        while !left.is_empty() {
            match self.stream.write_vectored(left) {
                Ok(0) => return Err(Failure::new("the server took no more of a SET")),
                Ok(sent_bytes) => IoSlice::advance_slices(&mut left, sent_bytes),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::while_doing("sending SET", &error)),
            }
        }
        match self.reply("SET")? {
            Reply::Simple(text) if text == "OK" => Ok(()),
            other => Err(unexpected("SET", &other)),
        }
    }

    /// Reads a value into `value`, in place of what it held; `false` if there is none.
    ///
    /// # Errors
    /// As [`Connection::get`].
    pub fn get_into(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let what = "waiting for the reply to GET";
        self.stream.write_all(&encode(&[b"GET", key])).doing("sending GET")?;
        let mut head = [0; HEAD_BYTES];
        let mut filled = 0;
        let line_bytes = loop {
            if let Some(line_bytes) = head[..filled].windows(2).position(|pair| pair == b"\r\n") {
                break line_bytes;
            }
            match self.stream.read(&mut head[filled..]).doing(what)? {
                0 if filled == HEAD_BYTES => {
                    return Err(Failure::new("the reply to GET has a line without an end"));
                }
                0 => return Err(Failure::new("the server closed the connection during GET")),
                got => filled += got,
            }
        };
        let line = &head[..line_bytes];
        let len_bytes = match line.split_first() {
            Some((b'$', digits)) => length(digits, BULK_LIMIT_BYTES)
                .map_err(|Malformed(how)| Failure::new(format!("the reply to GET {how}")))?,
            _ => return Err(Failure::new(format!("unexpected reply to GET: {}", line.escape_ascii()))),
        };
        let Some(len_bytes) = len_bytes else { return Ok(false) };
        let begun = &head[line_bytes + 2..filled];
        value.resize(len_bytes + 2, 0);
        if begun.len() > value.len() {
            return Err(Failure::new("the reply to GET is longer than it says"));
        }
        let (there, missing) = value.split_at_mut(begun.len());
        there.copy_from_slice(begun);
        self.stream.read_exact(missing).doing(what)?;
        if !value.ends_with(b"\r\n") {
            return Err(Failure::new("the reply to GET has a string that does not end where it says"));
        }
        value.truncate(len_bytes);
        Ok(true)
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
    use crate::kit::network::server_address;
    use crate::kit::random::Random;
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
        let listener = TcpListener::bind((server_address(), 0)).expect("a free port");
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
    fn values_are_read_in_place_and_bad_replies_are_told() {
        let mut value = b"older and longer".to_vec();
        let mut get = |answer| {
            let (address, thread) = answering(answer);
            let mut connection = Connection::open(address, Duration::from_secs(5)).expect("listening");
            let got = connection.get_into(b"k", &mut value);
            thread.join().expect("no panic");
            got.map(|found| found.then(|| value.clone())).map_err(|failure| failure.to_string())
        };
        assert_eq!(get(b"$3\r\nabc\r\n"), Ok(Some(b"abc".to_vec())));
        assert_eq!(get(b"$-1\r\n"), Ok(None));
        for (answer, part) in [
            (&b"-ERR told you\r\n"[..], "told you"),
            (b"$3\r\nab", "waiting for the reply to GET"),
            (b"$3\r\nabcde", "does not end where it says"),
            (b"$3\r\nabc\r\nmore", "longer than it says"),
            (b"$x\r\n", "number that is none"),
            (b"$3", "closed the connection"),
            (&[b'$'; 100], "without an end"),
        ] {
            let failure = get(answer).expect_err("a bad answer");
            assert!(failure.contains(part), "{failure}");
        }
    }

    #[test]
    fn a_value_in_parts_is_one_command() {
        let listener = TcpListener::bind((server_address(), 0)).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let expected = encode(&[b"SET", b"key", b"abcdef"]);
        let len_bytes = expected.len();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = vec![0; len_bytes];
            stream.read_exact(&mut request).expect("the command");
            stream.write_all(b"+OK\r\n").expect("the client waits");
            request
        });
        let mut connection = Connection::open(address, Duration::from_secs(5)).expect("listening");
        connection.set_parts(b"key", &[b"ab", b"", b"cdef"]).expect("OK");
        assert_eq!(server.join().expect("no panic"), expected);
    }

    #[test]
    fn values_are_read_whole() {
        let (address, thread) = answering(b"$3\r\nabc\r\n");
        let mut connection = Connection::open(address, Duration::from_secs(5)).expect("listening");
        assert_eq!(connection.get(b"k"), Ok(Some(b"abc".to_vec())));
        thread.join().expect("no panic");
    }
}
