//! A model of memcached's content.

use std::collections::BTreeMap;

use uncopy_testbed::servers;

pub use uncopy_testbed::clients::memcached::Memcached;

use crate::random::{Random, bytes};

/// The server, with room for these values.
pub const SERVER: servers::Memcached =
    servers::Memcached { threads: 2, memory_mib: 512, value_mib: 16, by_udp: false };
/// Size in bytes of the largest value that [`walk`] stores.
const VALUE_LIMIT: usize = 8 << 20;

/// Sends one client's random commands on keys of its own, and compares every answer with a model.
///
/// # Panics
/// When an answer differs.
pub fn walk(client: &mut Memcached, name: &str, random: &mut Random, steps: usize) {
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for step in 0..steps {
        let key = format!("{name}-{}", random.below(5));
        let current = model.get(&key).cloned();
        let len = random.length(VALUE_LIMIT);
        let value = bytes(random.next_u64(), len);
        let what = format!(
            "{name}, step {step}, {key} of {:?} bytes, value of {len}",
            current.as_ref().map(Vec::len)
        );
        let stored = |exists: bool| if exists { "STORED" } else { "NOT_STORED" };
        match random.below(10) {
            0..4 => {
                assert_eq!(client.store("set", &key, &value).as_deref(), Ok("STORED"), "set: {what}");
                model.insert(key, value);
            }
            4 | 5 => {
                let found = client.get_many(&[&key]).expect("values");
                assert_eq!(found.len(), usize::from(current.is_some()), "get: {what}");
                assert!(
                    found.first().map(|found| &found.2) == current.as_ref(),
                    "get: {what}: another value"
                );
            }
            6 => {
                let value = &value[..len.min(1 << 20)];
                let (command, both) = match (&current, random.one_in(2)) {
                    (Some(current), true) => ("append", [current, value].concat()),
                    (Some(current), false) => ("prepend", [value, current].concat()),
                    (None, _) => ("append", Vec::new()),
                };
                if both.len() < 15 << 20 {
                    assert_eq!(
                        client.store(command, &key, value).as_deref(),
                        Ok(stored(current.is_some())),
                        "{command}: {what}"
                    );
                    if current.is_some() {
                        model.insert(key, both);
                    }
                }
            }
            7 => {
                let (command, allowed) = if random.one_in(2) {
                    ("add", current.is_none())
                } else {
                    ("replace", current.is_some())
                };
                assert_eq!(
                    client.store(command, &key, &value).as_deref(),
                    Ok(stored(allowed)),
                    "{command}: {what}"
                );
                if allowed {
                    model.insert(key, value);
                }
            }
            8 => {
                if let Some((_, unique, _)) = client.get_many(&[&key]).expect("values").pop() {
                    let mut compare =
                        |value: &[u8]| client.compare_and_store(&key, unique, value).expect("an answer");
                    assert_eq!(compare(&value), "STORED", "cas: {what}");
                    assert_eq!(compare(b"late"), "EXISTS", "cas: {what}");
                    model.insert(key, value);
                }
            }
            _ => {
                let keys: Vec<&str> = model.keys().map(String::as_str).collect();
                if !keys.is_empty() {
                    let found: BTreeMap<String, Vec<u8>> = client
                        .get_many(&keys)
                        .expect("values")
                        .into_iter()
                        .map(|(key, _, value)| (key, value))
                        .collect();
                    assert!(found == model, "get of all: {what}: other values");
                }
                if random.one_in(2) {
                    let answer = client.command(&format!("delete {key}"));
                    assert_eq!(
                        answer.expect("an answer"),
                        if current.is_some() { "DELETED" } else { "NOT_FOUND" },
                        "delete: {what}"
                    );
                    model.remove(&key);
                }
            }
        }
    }
}
