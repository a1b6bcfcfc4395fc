//! The packaged Redis server, and a model of its content.

use std::collections::BTreeMap;
use std::path::Path;

use uncopy_testbed::Result;
use uncopy_testbed::servers::{self, Service};

pub use uncopy_testbed::clients::resp::{Answer, Connection};

use crate::launch::{Mode, Program};
use crate::packaged_server::{PackagedServer, program};
use crate::random::{Random, bytes};
use crate::running::Finished;
use crate::scratch::{HANG_LIMIT, Scratch, wait_until};

/// A running Redis server.
#[derive(Debug)]
pub struct Redis(pub PackagedServer);

impl Redis {
    /// Starts a server with the append-only file in `directory`.
    ///
    /// # Panics
    /// When the server does not start.
    #[must_use]
    pub fn start(mode: Mode, scratch: &Scratch, name: &str, directory: &Path, options: &[&str]) -> Self {
        Self::start_by(program(servers::Redis::PROGRAM, mode), scratch, name, directory, options)
    }

    /// Starts a server by `program`, which is Redis or executes Redis.
    ///
    /// # Panics
    /// As [`Redis::start`].
    #[must_use]
    pub fn start_by(
        program: Program,
        scratch: &Scratch,
        name: &str,
        directory: &Path,
        options: &[&str],
    ) -> Self {
        Self(PackagedServer::start_by(program, &servers::Redis { options }, scratch, name, directory))
    }

    /// A fresh connection.
    ///
    /// # Panics
    /// When the connection is not accepted.
    #[must_use]
    pub fn client(&self) -> Connection {
        Connection::open(self.0.address(), HANG_LIMIT).expect("a connection")
    }

    /// Asks the server to end without saving.
    ///
    /// # Panics
    /// When the server refuses the command.
    pub fn send_shutdown(&self) {
        self.client().send(&[&[b"SHUTDOWN", b"NOSAVE"]]).expect("asked");
    }

    /// Ends the server without saving; returns the result.
    #[must_use]
    pub fn shut_down(self) -> Finished {
        self.send_shutdown();
        self.0.running.finish().expect_success()
    }

    /// Waits until a background save or rewrite (`rdb_bgsave`, `aof_rewrite`) has succeeded.
    ///
    /// # Panics
    /// When the operation takes too long or failed.
    pub fn wait_for_background(&self, client: &mut Connection, what: &str) {
        let running = format!("{what}_in_progress");
        let mut info = |field: &str| client.info(field).expect("a field");
        wait_until(&running, || {
            (info(&running) == "0" && (what != "aof_rewrite" || info("aof_rewrite_scheduled") == "0"))
                .then_some(())
        });
        let status =
            if what == "rdb_bgsave" { "rdb_last_bgsave_status" } else { "aof_last_bgrewrite_status" };
        assert_eq!(info(status), "ok", "{status}");
    }
}

/// Expected value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    String(Vec<u8>),
    List(Vec<Vec<u8>>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
}

/// Expected content of the server, changed by the same commands.
#[derive(Debug, Default)]
pub struct Model {
    keys: BTreeMap<String, Value>,
}

/// A value whose bytes follow from its seed.
fn value(random: &mut Random, limit: usize) -> Vec<u8> {
    let len = random.length(limit);
    bytes(random.next_u64(), len)
}

impl Model {
    /// Makes `steps` random commands and compares every answer.
    ///
    /// # Panics
    /// When an answer differs from the model.
    pub fn walk(&mut self, client: &mut Connection, random: &mut Random, steps: usize, limit: usize) {
        for step in 0..steps {
            if random.one_in(10) {
                let pieces = random.pick(&[usize::MAX, usize::MAX, 100_000, 16_384, 5000]);
                client.send_in_pieces_of(pieces);
            }
            self.step(client, random, step, limit);
        }
        client.send_in_pieces_of(usize::MAX);
    }

    fn step(&mut self, client: &mut Connection, random: &mut Random, step: usize, limit: usize) {
        let key = format!("string:{}", random.below(8));
        let name = key.as_bytes();
        let stored = match self.keys.get(&key) {
            Some(Value::String(stored)) => stored.clone(),
            _ => Vec::new(),
        };
        match random.below(12) {
            0..3 => {
                let new = value(random, limit);
                expect(step, "SET", client.command(&[b"SET", name, &new]), &status("OK"));
                self.keys.insert(key, Value::String(new));
            }
            3 | 4 => {
                let expected = if stored.is_empty() { Answer::Nil } else { Answer::Bulk(stored) };
                expect(step, "GET", client.command(&[b"GET", name]), &expected);
            }
            5 if stored.len() < 8 << 20 => {
                let more = value(random, limit / 2);
                let len = Answer::Integer(i64::try_from(stored.len() + more.len()).expect("small"));
                expect(step, "APPEND", client.command(&[b"APPEND", name, &more]), &len);
                self.keys.insert(key, Value::String([stored, more].concat()));
            }
            6 if !stored.is_empty() => {
                let (at, len) = random.range(stored.len());
                let (first, last) = (at.to_string(), (at + len - 1).to_string());
                let answer = client.command(&[b"GETRANGE", name, first.as_bytes(), last.as_bytes()]);
                expect(step, "GETRANGE", answer, &Answer::Bulk(stored[at..at + len].to_vec()));
            }
            7 => {
                let at = random.below(stored.len() + 5000);
                let new = value(random, limit / 4);
                let mut after = stored;
                after.resize(after.len().max(at + new.len()), 0);
                after[at..at + new.len()].copy_from_slice(&new);
                let len = Answer::Integer(i64::try_from(after.len()).expect("small"));
                let answer = client.command(&[b"SETRANGE", name, at.to_string().as_bytes(), &new]);
                expect(step, "SETRANGE", answer, &len);
                self.keys.insert(key, Value::String(after));
            }
            8 => {
                let len = Answer::Integer(i64::try_from(stored.len()).expect("small"));
                expect(step, "STRLEN", client.command(&[b"STRLEN", name]), &len);
            }
            9 => self.set_many(client, random, step, limit),
            10 => self.push_and_read(client, random, step, limit),
            _ => self.hash(client, random, step, limit),
        }
    }

    /// `MSET` of several values, then `MGET`, both in one go.
    fn set_many(&mut self, client: &mut Connection, random: &mut Random, step: usize, limit: usize) {
        let first = random.below(6);
        let names: Vec<String> = (first..first + 3).map(|number| format!("string:{number}")).collect();
        let values: Vec<Vec<u8>> = names.iter().map(|_| value(random, limit / 2)).collect();
        let mut set: Vec<&[u8]> = vec![b"MSET"];
        let mut get: Vec<&[u8]> = vec![b"MGET"];
        for (name, value) in names.iter().zip(&values) {
            set.extend([name.as_bytes(), value]);
            get.push(name.as_bytes());
        }
        client.send(&[&set, &get]).expect("sent");
        expect(step, "MSET", client.receive(), &status("OK"));
        let expected = values.iter().map(|value| Answer::Bulk(value.clone())).collect();
        expect(step, "MGET", client.receive(), &Answer::Array(expected));
        self.keys.extend(names.into_iter().zip(values.into_iter().map(Value::String)));
    }

    fn push_and_read(&mut self, client: &mut Connection, random: &mut Random, step: usize, limit: usize) {
        let key = format!("list:{}", random.below(2));
        let new = value(random, limit / 2);
        let entry = self.keys.entry(key.clone()).or_insert_with(|| Value::List(Vec::new()));
        let Value::List(list) = entry else { panic!("{key} is a list") };
        list.insert(0, new.clone());
        let len = Answer::Integer(i64::try_from(list.len()).expect("small"));
        expect(step, "LPUSH", client.command(&[b"LPUSH", key.as_bytes(), &new]), &len);
        if list.len() > 4 {
            list.truncate(3);
            expect(step, "LTRIM", client.command(&[b"LTRIM", key.as_bytes(), b"0", b"2"]), &status("OK"));
        }
        let all = Answer::Array(list.iter().cloned().map(Answer::Bulk).collect());
        expect(step, "LRANGE", client.command(&[b"LRANGE", key.as_bytes(), b"0", b"-1"]), &all);
    }

    /// Sends one `HSET`, then reads the field with `HGET`.
    fn hash(&mut self, client: &mut Connection, random: &mut Random, step: usize, limit: usize) {
        let field = format!("field:{}", random.below(3)).into_bytes();
        let new = value(random, limit / 2);
        let entry = self.keys.entry("hash".to_owned()).or_insert_with(|| Value::Hash(BTreeMap::new()));
        let Value::Hash(fields) = entry else { panic!("hash is a hash") };
        let added = Answer::Integer(i64::from(!fields.contains_key(&field)));
        expect(step, "HSET", client.command(&[b"HSET", b"hash", &field, &new]), &added);
        fields.insert(field.clone(), new.clone());
        expect(step, "HGET", client.command(&[b"HGET", b"hash", &field]), &Answer::Bulk(new));
    }

    /// Compares everything that the server holds with the model.
    ///
    /// # Panics
    /// When the server and the model differ.
    pub fn compare(&self, client: &mut Connection, what: &str) {
        let size = Answer::Integer(i64::try_from(self.keys.len()).expect("small"));
        assert_eq!(client.command(&[b"DBSIZE"]).as_ref(), Ok(&size), "{what}: number of keys");
        for (key, value) in &self.keys {
            let name = key.as_bytes();
            match value {
                Value::String(stored) => {
                    assert!(
                        client.get(name).expect("an answer").as_ref() == Some(stored),
                        "{what}: {key} has another value"
                    );
                }
                Value::List(list) => {
                    let answer = client.command(&[b"LRANGE", name, b"0", b"-1"]);
                    let all = Answer::Array(list.iter().cloned().map(Answer::Bulk).collect());
                    assert!(answer == Ok(all), "{what}: {key} is another list");
                }
                Value::Hash(fields) => {
                    for (field, stored) in fields {
                        let answer = client.command(&[b"HGET", name, field]);
                        assert!(
                            answer == Ok(Answer::Bulk(stored.clone())),
                            "{what}: a field of {key} has another value"
                        );
                    }
                }
            }
        }
    }
}

fn status(text: &str) -> Answer {
    Answer::Status(text.to_owned())
}

fn expect(step: usize, what: &str, found: Result<Answer>, expected: &Answer) {
    let found = &found.unwrap_or_else(|failure| panic!("step {step}, {what}: {failure}"));
    assert!(
        found == expected,
        "step {step}, {what}: answered {}, must be {}",
        found.short(),
        expected.short()
    );
}
