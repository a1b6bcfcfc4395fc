//! A client of memcached's text protocol, as small as the tests need.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use crate::random::{Random, bytes};
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

/// Bytes of the largest value that [`walk`] stores by itself.
const VALUE_LIMIT: usize = 8 << 20;

/// One client's random commands on keys of its own, every answer compared with a model.
///
/// # Panics
/// When an answer is another.
pub fn walk(client: &mut Memcached, name: &str, random: &mut Random, steps: usize) {
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for step in 0..steps {
        let key = format!("{name}-{}", random.below(5));
        let held = model.get(&key).cloned();
        let len = random.length(VALUE_LIMIT);
        let value = bytes(random.word(), len);
        let what =
            format!("{name}, step {step}, {key} of {:?} bytes, value of {len}", held.as_ref().map(Vec::len));
        let stored = |exists: bool| if exists { "STORED" } else { "NOT_STORED" };
        match random.below(10) {
            0..4 => {
                assert_eq!(client.store("set", &key, &value), "STORED", "set: {what}");
                model.insert(key, value);
            }
            4 | 5 => {
                let found = client.get_many(&[&key]);
                assert_eq!(found.len(), usize::from(held.is_some()), "get: {what}");
                assert!(found.first().map(|found| &found.2) == held.as_ref(), "get: {what}: another value");
            }
            6 => {
                let value = &value[..len.min(1 << 20)];
                let (command, both) = match (&held, random.one_in(2)) {
                    (Some(held), true) => ("append", [held, value].concat()),
                    (Some(held), false) => ("prepend", [value, held].concat()),
                    (None, _) => ("append", Vec::new()),
                };
                if both.len() < 15 << 20 {
                    assert_eq!(
                        client.store(command, &key, value),
                        stored(held.is_some()),
                        "{command}: {what}"
                    );
                    if held.is_some() {
                        model.insert(key, both);
                    }
                }
            }
            7 => {
                let (command, allowed) =
                    if random.one_in(2) { ("add", held.is_none()) } else { ("replace", held.is_some()) };
                assert_eq!(client.store(command, &key, &value), stored(allowed), "{command}: {what}");
                if allowed {
                    model.insert(key, value);
                }
            }
            8 => {
                if let Some((_, unique, _)) = client.get_many(&[&key]).pop() {
                    assert_eq!(client.compare_and_store(&key, unique, &value), "STORED", "cas: {what}");
                    assert_eq!(client.compare_and_store(&key, unique, b"late"), "EXISTS", "cas: {what}");
                    model.insert(key, value);
                }
            }
            _ => {
                let keys: Vec<&str> = model.keys().map(String::as_str).collect();
                if !keys.is_empty() {
                    let found: BTreeMap<String, Vec<u8>> =
                        client.get_many(&keys).into_iter().map(|(key, _, value)| (key, value)).collect();
                    assert!(found == model, "get of all: {what}: other values");
                }
                if random.one_in(2) {
                    let answer = client.command(&format!("delete {key}"));
                    assert_eq!(
                        answer,
                        if held.is_some() { "DELETED" } else { "NOT_FOUND" },
                        "delete: {what}"
                    );
                    model.remove(&key);
                }
            }
        }
    }
}
