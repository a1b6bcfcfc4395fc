//! A client of MongoDB's protocol (`OP_MSG`, MongoDB 3.6 and later): documents with one large value, inserted, found
//! and deleted. No package has a mongod: this was tried against the protocol's text and a server of the tests below.

use std::net::SocketAddr;

use super::{Client, Stream, Value};
use crate::kit::Result;
use crate::kit::traffic::Exchange;

const NAME: &str = "MongoDB";
/// `OP_MSG`.
const MESSAGE: u32 = 2013;
const HEAD_BYTES: usize = 16;
/// Flags and kind of the one section in front of its document.
const SECTION_BYTES: usize = 5;
/// Types of elements (bsonspec.org, version 1.1).
const DOUBLE: u8 = 0x01;
const TEXT: u8 = 0x02;
const DOCUMENT: u8 = 0x03;
const ARRAY: u8 = 0x04;
const BINARY: u8 = 0x05;
const INT32: u8 = 0x10;
const INT64: u8 = 0x12;

/// A document that is being written.
#[derive(Debug)]
struct Writer(Vec<u8>);

impl Writer {
    fn new() -> Self {
        // Its length, known at the end.
        Self(vec![0; 4])
    }

    fn element(mut self, kind: u8, name: &str, body: &[&[u8]]) -> Self {
        self.0.push(kind);
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(0);
        for part in body {
            self.0.extend_from_slice(part);
        }
        self
    }

    fn text(self, name: &str, text: &str) -> Self {
        let len = len_u32(text.len() + 1).to_le_bytes();
        self.element(TEXT, name, &[&len, text.as_bytes(), &[0]])
    }

    fn number(self, name: &str, number: u64) -> Self {
        self.element(INT64, name, &[&number.to_le_bytes()])
    }

    fn binary(self, name: &str, bytes: &[u8]) -> Self {
        self.element(BINARY, name, &[&len_u32(bytes.len()).to_le_bytes(), &[0], bytes])
    }

    fn document(self, name: &str, document: &[u8]) -> Self {
        self.element(DOCUMENT, name, &[document])
    }

    /// An array of one document.
    fn list(self, name: &str, document: &[u8]) -> Self {
        let list = Self::new().document("0", document).end();
        self.element(ARRAY, name, &[&list])
    }

    fn end(mut self) -> Vec<u8> {
        self.0.push(0);
        let len = len_u32(self.0.len()).to_le_bytes();
        self.0[..4].copy_from_slice(&len);
        self.0
    }
}

fn len_u32(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// A number of four bytes at `at`.
fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    let number = bytes.get(at..at.checked_add(4)?)?;
    usize::try_from(u32::from_le_bytes(number.try_into().ok()?)).ok()
}

/// The type and the body of the element `name` of a document; `None` where it is not there or the document is
/// malformed before it.
fn find<'a>(document: &'a [u8], name: &str) -> Option<(u8, &'a [u8])> {
    let mut rest = document.get(4..u32_at(document, 0)?)?;
    loop {
        let (kind, after) = rest.split_first()?;
        if *kind == 0 {
            return None;
        }
        let end = after.iter().position(|byte| *byte == 0)?;
        let (found, body) = (&after[..end], &after[end + 1..]);
        let len = match *kind {
            DOUBLE | INT64 | 0x09 | 0x11 => 8,
            TEXT => 4 + u32_at(body, 0)?,
            DOCUMENT | ARRAY => u32_at(body, 0)?,
            BINARY => 5 + u32_at(body, 0)?,
            0x07 => 12,
            0x08 => 1,
            0x0a => 0,
            INT32 => 4,
            _ => return None,
        };
        let value = body.get(..len)?;
        if found == name.as_bytes() {
            return Some((*kind, value));
        }
        rest = &body[len..];
    }
}

/// Whether an answer says that the command was executed, without errors of its parts.
fn succeeded(answer: &[u8]) -> bool {
    let ok = match find(answer, "ok") {
        Some((DOUBLE, body)) => body == 1f64.to_le_bytes(),
        Some((INT32, body)) => body == 1u32.to_le_bytes(),
        Some((INT64, body)) => body == 1u64.to_le_bytes(),
        _ => false,
    };
    ok && find(answer, "writeErrors").is_none()
}

/// The binary value `b` of the first document that was found.
fn first_value(answer: &[u8]) -> Option<&[u8]> {
    let (_, cursor) = find(answer, "cursor")?;
    let (_, batch) = find(cursor, "firstBatch")?;
    let (_, document) = find(batch, "0")?;
    match find(document, "b")? {
        (BINARY, body) => Some(&body[5..]),
        _ => None,
    }
}

/// A connection.
#[derive(Debug)]
struct Connection {
    stream: Stream,
    answer: Vec<u8>,
    requests: u32,
}

impl Connection {
    /// Sends a command and receives its answer.
    fn call(&mut self, command: &[u8]) -> Result<&[u8]> {
        self.requests += 1;
        let len = len_u32(HEAD_BYTES + SECTION_BYTES + command.len());
        let head: Vec<u8> =
            [len, self.requests, 0, MESSAGE].iter().flat_map(|word| word.to_le_bytes()).collect();
        self.stream.send(&[&head, &[0; SECTION_BYTES], command])?;
        let head = self.stream.array::<HEAD_BYTES>()?;
        let words = [0, 4, 8, 12].map(|at| u32_at(&head, at).unwrap_or(0));
        if words[2] != self.requests as usize || words[3] != MESSAGE as usize {
            return Err(self.stream.wrong("an answer to something else"));
        }
        let len_bytes = words[0].saturating_sub(HEAD_BYTES);
        self.stream.message(len_bytes, &mut self.answer)?;
        let answer = self.answer.get(SECTION_BYTES..).unwrap_or_default();
        if succeeded(answer) {
            return Ok(answer);
        }
        let said = match find(answer, "errmsg") {
            Some((TEXT, body)) => String::from_utf8_lossy(&body[4..]).into_owned(),
            _ => "a command failed".to_owned(),
        };
        Err(self.stream.wrong(said.trim_end_matches('\0')))
    }
}

/// A connection that inserts values of one size, each read back once and deleted.
#[derive(Debug)]
pub struct Values {
    connection: Connection,
    value: Value,
    first_id: u64,
}

impl Values {
    /// The `number`th connection, for values of `size_bytes`.
    ///
    /// # Errors
    /// [`Failure`](crate::kit::failure::Failure) when the server does not accept it.
    pub fn open(server: SocketAddr, size_bytes: usize, number: u64) -> Result<Self> {
        let stream = Stream::open(server, NAME)?;
        let mut connection = Connection { stream, answer: Vec::new(), requests: 0 };
        connection.call(&Writer::new().number("ping", 1).text("$db", "admin").end())?;
        Ok(Self { connection, value: Value::new(size_bytes, number), first_id: number << 32 })
    }
}

impl Client for Values {
    fn exchange(&mut self, number: u64) -> Result<Exchange> {
        let id = self.first_id + number;
        let wanted = Writer::new().number("_id", id).end();
        let connection = &mut self.connection;
        let done = self.value.exchange(NAME, |value, received| {
            let document = Writer::new().number("_id", id).binary("b", value).end();
            let command = Writer::new().text("insert", "large").list("documents", &document);
            connection.call(&command.text("$db", "test").end())?;
            let command = Writer::new().text("find", "large").document("filter", &wanted);
            let answer = connection.call(&command.text("$db", "test").end())?;
            received.clear();
            received.extend_from_slice(first_value(answer).unwrap_or_default());
            Ok(())
        })?;
        let deletion = Writer::new().document("q", &wanted).number("limit", 1).end();
        let command = Writer::new().text("delete", "large").list("deletes", &deletion);
        self.connection.call(&command.text("$db", "test").end())?;
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn documents_have_the_bytes_of_the_specification() {
        // bsonspec.org: {"hello": "world"}.
        let document = Writer::new().text("hello", "world").end();
        assert_eq!(document, b"\x16\0\0\0\x02hello\0\x06\0\0\0world\0\0");
        assert_eq!(find(&document, "hello"), Some((TEXT, &b"\x06\0\0\0world\0"[..])));
        assert_eq!(find(&document, "bye"), None);
        for len in 0..document.len() {
            assert_eq!(find(&document[..len], "hello"), None, "{len} bytes");
        }
    }

    #[test]
    fn an_answer_with_errors_is_no_success() {
        let one = 1f64.to_le_bytes();
        let good = || Writer::new().element(DOUBLE, "ok", &[&one]);
        assert!(succeeded(&good().end()));
        assert!(!succeeded(&good().list("writeErrors", &Writer::new().end()).end()));
        assert!(!succeeded(&Writer::new().element(DOUBLE, "ok", &[&[0; 8]]).end()));
        assert!(!succeeded(&[]));
    }

    /// Keeps one connection's documents.
    fn serve(listener: &TcpListener, corrupt: bool) {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut kept: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        let mut head = [0; HEAD_BYTES];
        while stream.read_exact(&mut head).is_ok() {
            let mut body = vec![0; u32_at(&head, 0).expect("a length") - HEAD_BYTES];
            stream.read_exact(&mut body).expect("a body");
            let command = &body[SECTION_BYTES..];
            let first = |name| find(find(command, name).expect(name).1, "0").expect("one").1;
            let mut answer = Writer::new();
            if find(command, "insert").is_some() {
                let document = first("documents");
                kept.insert(find(document, "_id").expect("_id").1.to_vec(), document.to_vec());
            } else if let Some((_, filter)) = find(command, "filter") {
                let mut document = kept[find(filter, "_id").expect("_id").1].clone();
                if corrupt {
                    let middle = document.len() / 2;
                    document[middle] ^= 1;
                }
                let cursor = Writer::new().list("firstBatch", &document).number("id", 0).end();
                answer = answer.document("cursor", &cursor);
            } else if find(command, "delete").is_some() {
                kept.remove(find(find(first("deletes"), "q").expect("q").1, "_id").expect("_id").1);
            }
            let answer = answer.element(DOUBLE, "ok", &[&1f64.to_le_bytes()]).end();
            let len = len_u32(HEAD_BYTES + SECTION_BYTES + answer.len()).to_le_bytes();
            let reply = [&len, &[9; 4], &head[4..8], &MESSAGE.to_le_bytes(), &[0; 5], &answer].concat();
            stream.write_all(&reply).expect("a client that reads");
        }
        assert!(corrupt || kept.is_empty(), "everything was deleted");
    }

    #[test]
    fn values_come_back_and_a_wrong_one_is_told() {
        for corrupt in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = listener.local_addr().expect("bound");
            std::thread::scope(|scope| {
                scope.spawn(|| serve(&listener, corrupt));
                let mut values = Values::open(address, 70_000, 3).expect("accepted");
                for number in 0..3 {
                    match values.exchange(number) {
                        Ok(done) => assert_eq!((done.verified_bytes, corrupt), (70_000, false)),
                        Err(failure) => assert!(corrupt && failure.to_string().contains("wrong value")),
                    }
                }
            });
        }
    }
}
