//! A small client of the Redis protocol (RESP 2): just enough to set values, read them back and
//! ask a server whether it is there. The server's replies are not trusted.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::kit::{Failure, Result, While};

/// Longest line outside bulk strings, bytes.
const LINE_LIMIT_BYTES: usize = 64 * 1024;
/// Longest bulk string, bytes: the limit of Redis itself.
const BULK_LIMIT_BYTES: usize = 512 << 20;
/// Bytes asked for before a value's length is known.
const HEAD_BYTES: usize = 64;

/// The first line of the reply to the command `name`, and what came behind it.
fn read_line(stream: &mut impl Read, name: &str) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut line = Vec::new();
    loop {
        if let Some(end) = line.windows(2).position(|pair| pair == b"\r\n") {
            let rest = line.split_off(end + 2);
            line.truncate(end);
            return Ok((line, rest));
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
        let got = stream.read(&mut line[filled..]);
        line.truncate(filled + got.as_ref().copied().unwrap_or(0));
        if got.doing(format_args!("waiting for the reply to {name}"))? == 0 {
            return Err(Failure::new(format!("the server closed the connection during {name}")));
        }
    }
}

/// The text of the simple string that answers the command `name`.
fn read_status(stream: &mut impl Read, name: &str) -> Result<String> {
    let (line, _) = read_line(stream, name)?;
    match line.split_first() {
        Some((b'+', text)) => Ok(String::from_utf8_lossy(text).into_owned()),
        _ => Err(unexpected(name, &line)),
    }
}

/// Reads the value that answers a GET into `value`, in place of what it held; `false` if there is none.
fn read_value(stream: &mut impl Read, value: &mut Vec<u8>) -> Result<bool> {
    let (line, begun) = read_line(stream, "GET")?;
    let len_bytes = match line.split_first() {
        Some((b'$', b"-1")) => return Ok(false),
        Some((b'$', digits)) => length(digits)?,
        _ => return Err(unexpected("GET", &line)),
    };
    value.resize(len_bytes + 2, 0);
    if begun.len() > value.len() {
        return Err(Failure::new("the reply to GET is longer than it says"));
    }
    let (there, missing) = value.split_at_mut(begun.len());
    there.copy_from_slice(&begun);
    stream.read_exact(missing).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => {
            Failure::new("waiting for the reply to GET: the server closed the connection")
        }
        _ => Failure::while_doing("waiting for the reply to GET", &error),
    })?;
    if !value.ends_with(b"\r\n") {
        return Err(Failure::new("the reply to GET has a string that does not end where it says"));
    }
    value.truncate(len_bytes);
    Ok(true)
}

/// The length of a bulk string.
fn length(digits: &[u8]) -> Result<usize> {
    if !digits.iter().all(u8::is_ascii_digit) {
        return Err(Failure::new("the reply to GET has a number that is none"));
    }
    let length = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
    length
        .filter(|length| *length <= BULK_LIMIT_BYTES)
        .ok_or_else(|| Failure::new("the reply to GET has a length out of range"))
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

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
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
        Ok(Self { stream })
    }

    /// Sends the command `name` as the array of bulk strings that servers expect; the last of `words` is `parts`, which
    /// are not put together.
    fn send(&mut self, name: &str, words: &[&[u8]], parts: &[&[u8]]) -> Result<()> {
        let len_bytes: usize = parts.iter().map(|part| part.len()).sum();
        let mut head = format!("*{}\r\n${}\r\n{name}\r\n", words.len() + 2, name.len()).into_bytes();
        for word in words {
            head.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            head.extend_from_slice(word);
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(format!("${len_bytes}\r\n").as_bytes());
        let all = [&head[..]].into_iter().chain(parts.iter().copied()).chain([&b"\r\n"[..]]);
        let mut slices: Vec<IoSlice<'_>> = all.map(IoSlice::new).collect();
        let mut left = &mut slices[..];
        while !left.is_empty() {
            match self.stream.write_vectored(left) {
                Ok(0) => return Err(Failure::new(format!("the server took no more of a {name}"))),
                Ok(sent_bytes) => IoSlice::advance_slices(&mut left, sent_bytes),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::while_doing(format_args!("sending {name}"), &error)),
            }
        }
        Ok(())
    }

    /// Whether the server answers.
    ///
    /// # Errors
    /// [`Failure`] when the connection ends, a wait takes too long, or the answer is not `PONG`.
    pub fn ping(&mut self) -> Result<()> {
        self.stream.write_all(b"*1\r\n$4\r\nPING\r\n").doing("sending PING")?;
        self.expect("PING", "PONG")
    }

    /// Asks the server to write its append-only file anew, which it begins to do.
    ///
    /// # Errors
    /// [`Failure`] when the connection ends, a wait takes too long, or the server does not want to.
    pub fn rewrite_log(&mut self) -> Result<()> {
        self.stream.write_all(b"*1\r\n$12\r\nBGREWRITEAOF\r\n").doing("sending BGREWRITEAOF")?;
        self.expect("BGREWRITEAOF", "Background append only file rewriting started")
    }

    fn expect(&mut self, name: &str, status: &str) -> Result<()> {
        match read_status(&mut self.stream, name)? {
            text if text == status => Ok(()),
            other => Err(unexpected(name, other.as_bytes())),
        }
    }

    /// Sets a value that is given in parts, without putting them together.
    ///
    /// # Errors
    /// [`Failure`] when the connection ends, a wait takes too long, or the answer is not `OK`.
    pub fn set_parts(&mut self, key: &[u8], parts: &[&[u8]]) -> Result<()> {
        self.send("SET", &[key], parts)?;
        self.expect("SET", "OK")
    }

    /// Reads a value into `value`, in place of what it held; `false` if there is none.
    ///
    /// # Errors
    /// [`Failure`] when the connection ends, a wait takes too long, or the answer is malformed or not a string.
    pub fn get_into(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.send("GET", &[], &[key])?;
        read_value(&mut self.stream, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::network::server_address;
    use crate::kit::random::Random;
    use std::net::TcpListener;

    fn value_of(mut reply: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = b"older and longer".to_vec();
        read_value(&mut reply, &mut value).map(|found| found.then_some(value))
    }

    #[test]
    fn values_and_statuses_are_read_in_pieces_of_any_size() {
        for (reply, value) in [
            (&b"$5\r\na\r\nbc\r\n"[..], Some(&b"a\r\nbc"[..])),
            (b"$0\r\n\r\n", Some(b"")),
            (b"$-1\r\n", None),
        ] {
            for cut in 0..=reply.len() {
                let mut value_in_pieces = Vec::new();
                let found = read_value(&mut reply[..cut].chain(&reply[cut..]), &mut value_in_pieces);
                assert_eq!(found.map(|found| found.then_some(&value_in_pieces[..])), Ok(value));
                assert!(cut == reply.len() || value_of(&reply[..cut]).is_err(), "{cut} bytes are not all");
            }
        }
        assert_eq!(read_status(&mut &b"+PONG\r\n"[..], "PING"), Ok("PONG".to_owned()));
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
            let shown = bytes[..bytes.len().min(40)].escape_ascii();
            assert!(value_of(bytes).is_err() && read_status(&mut &bytes[..], "SET").is_err(), "{shown}");
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
            if let Ok(Some(value)) = value_of(&bytes) {
                assert!(value.len() < bytes.len());
            }
        }
    }

    #[test]
    fn servers_that_err_misbehave_or_go_away_give_messages() {
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

    /// A server that takes `request` and answers it with `answer`.
    fn answering(request: &'static [u8], answer: &'static [u8]) -> (Connection, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind((server_address(), 0)).expect("a free port");
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
    fn a_value_in_parts_is_one_command() {
        let request = b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$6\r\nab\r\nef\r\n";
        let (mut connection, thread) = answering(request, b"+OK\r\n");
        connection.set_parts(b"key", &[b"ab", b"", b"\r\nef"]).expect("OK");
        thread.join().expect("the right command");
    }

    #[test]
    fn values_are_read_whole() {
        let (mut connection, thread) = answering(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", b"$3\r\nabc\r\n");
        let mut value = Vec::new();
        assert_eq!((connection.get_into(b"k", &mut value), &value[..]), (Ok(true), &b"abc"[..]));
        thread.join().expect("the right command");
    }
}
