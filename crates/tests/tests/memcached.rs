//! The packaged memcached with values up to 8 MiB, every one compared.

use std::collections::BTreeMap;

use uncopy_core::stats::Counter;
use uncopy_tests::artifacts::packaged;
use uncopy_tests::memcached::Memcached;
use uncopy_tests::random::{Random, bytes, rounds, seed};
use uncopy_tests::running::Running;
use uncopy_tests::scratch::free_port;
use uncopy_tests::{Mode, Program, Scratch};

const VALUE_LIMIT: usize = 8 << 20;

fn start(mode: Mode, scratch: &Scratch) -> (Running, u16) {
    let port = free_port();
    let server = Program::new(packaged("/usr/bin/memcached", "memcached"))
        .args(["-l", "127.0.0.1", "-p", &port.to_string(), "-u", "root", "-I", "16m", "-m", "512", "-t", "2"])
        .args(["-U", "0"])
        .mode(mode)
        .start(scratch, "memcached");
    (server, port)
}

/// One client's commands on keys of its own.
fn walk(client: &mut Memcached, name: &str, random: &mut Random, steps: usize) {
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

fn random_commands(mode: Mode) {
    let scratch = Scratch::new("memcached");
    let (server, port) = start(mode, &scratch);
    let seed = seed(71);
    eprintln!("seed {seed}");
    std::thread::scope(|scope| {
        for number in 0..2 {
            scope.spawn(move || {
                let mut client = Memcached::connect(port);
                walk(&mut client, &format!("client{number}"), &mut Random::new(seed + number), rounds(80));
            });
        }
    });
    let done = server.stop(libc::SIGTERM).expect_success();
    let _ = done.expect_counters(&[Counter::InputBytes, Counter::OutputBytes]);
}

#[test]
fn large_values_with_everything_elided() {
    random_commands(Mode::Always);
}

#[test]
fn large_values_with_the_default_policy() {
    random_commands(Mode::Auto);
}
