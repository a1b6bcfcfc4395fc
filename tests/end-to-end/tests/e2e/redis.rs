//! The packaged Redis, with every value compared: random commands, snapshots while values change,
//! and the append-only file loaded by a plain server.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use uncopy_core::stats::Counter;
use uncopy_tests::random::{Random, bytes, rounds, seed};
use uncopy_tests::redis::{Answer, Connection, Model, Redis};
use uncopy_tests::scratch::wait_until;
use uncopy_tests::{Mode, Program, Scratch};

const MIB: usize = 1 << 20;
const APPEND_ONLY: &[&str] = &["--appendonly", "yes"];
const WORKED: &[Counter] = &[Counter::ElidedBytes, Counter::InputBytes, Counter::OutputBytes];

/// Runs random commands, and a rewrite of the append-only file, then a plain server on it.
fn random_commands(mode: Mode, first_seed: u64, options: &[&str]) {
    let scratch = Scratch::new("redis-commands");
    let directory = scratch.directory("data");
    let seed = seed(first_seed);
    eprintln!("seed {seed}");
    let mut random = Random::new(seed);
    let mut model = Model::default();
    let redis = Redis::start(mode, &scratch, "redis", &directory, options);
    let mut client = redis.client();
    model.walk(&mut client, &mut random, rounds(150), 4 * MIB);
    client.command(&[b"BGREWRITEAOF"]).expect("an answer");
    model.walk(&mut client, &mut random, rounds(60), MIB);
    redis.wait_for_background(&mut client, "aof_rewrite");
    model.walk(&mut client, &mut random, rounds(60), 2 * MIB);
    model.compare(&mut client, "running server");
    let _ = redis.shut_down().expect_counters(WORKED);
    let plain = Redis::start(Mode::Plain, &scratch, "plain", &directory, APPEND_ONLY);
    model.compare(&mut plain.client(), "plain server on the same append-only file");
    let _ = plain.shut_down();
}

#[test]
fn random_commands_with_everything_elided() {
    random_commands(Mode::Always, 31, APPEND_ONLY);
}

#[test]
fn random_commands_with_the_default_policy() {
    random_commands(Mode::Sliced, 32, APPEND_ONLY);
}

#[test]
fn random_commands_with_threads_for_input_and_output() {
    let options = [APPEND_ONLY, &["--io-threads", "3", "--io-threads-do-reads", "yes"]].concat();
    random_commands(Mode::Always, 33, &options);
}

/// A server under uncopy loads the append-only file correctly.
#[test]
fn append_only_file_loaded_under_uncopy() {
    let scratch = Scratch::new("redis-load");
    let directory = scratch.directory("data");
    let mut model = Model::default();
    let plain = Redis::start(Mode::Plain, &scratch, "plain", &directory, APPEND_ONLY);
    model.walk(&mut plain.client(), &mut Random::new(seed(41)), 80, 2 * MIB);
    let _ = plain.shut_down();
    for mode in Mode::FOR_APPLICATIONS {
        let redis = Redis::start(mode, &scratch, &format!("{mode:?}"), &directory, APPEND_ONLY);
        model.compare(&mut redis.client(), "server that loaded the file");
        let _ = redis.shut_down();
    }
}

/// Returns version `version` of a key's value: the version number, then bytes derived from both.
fn version_of(key: usize, version: u64) -> Vec<u8> {
    let mut value = version.to_le_bytes().to_vec();
    value.extend(bytes((key as u64) << 32 | version, MIB - 8));
    value
}

/// Returns the version of a value, after checking every byte.
fn read_version(key: usize, value: &[u8], what: &str) -> u64 {
    let version = u64::from_le_bytes(value[..8].try_into().expect("eight bytes"));
    assert!(version < 1000 && value == version_of(key, version), "{what}: key {key} is no whole version");
    version
}

fn set_version(client: &mut Connection, key: usize, version: u64) {
    let name = format!("key:{key}");
    let value = version_of(key, version);
    client.set_parts(name.as_bytes(), &[&value]).expect("OK");
}

/// Sets a flag when dropped, so that threads also end when a check fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Takes snapshots while `SET`s of 1 MiB run: every value in the dump is a whole one, not older
/// than the last set before the snapshot began, and not newer than the first set after it began.
fn snapshot_while_values_change(mode: Mode, first_seed: u64) {
    const KEYS: usize = 24;
    const SETS_PER_ROUND: usize = 200;
    let scratch = Scratch::new("redis-snapshot");
    let directory = scratch.directory("data");
    // A rewrite started by the server would prevent a snapshot.
    let options = [APPEND_ONLY, &["--auto-aof-rewrite-percentage", "0"]].concat();
    let redis = Redis::start(mode, &scratch, "redis", &directory, &options);
    let mut client = redis.client();
    for key in 0..KEYS {
        set_version(&mut client, key, 0);
    }
    let mut current: BTreeMap<usize, u64> = (0..KEYS).map(|key| (key, 0)).collect();
    for round in 0..3 {
        let stop = AtomicBool::new(false);
        // Every writer has its own third of the keys, and reports the versions that it set before
        // and after the moment when the snapshot had certainly begun.
        let began = AtomicBool::new(false);
        let started = AtomicUsize::new(0);
        let bounds: Vec<(usize, u64, u64)> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|writer| {
                    let (stop, began, started, redis, current) = (&stop, &began, &started, &redis, &current);
                    scope.spawn(move || {
                        let mut client = redis.client();
                        let mut random = Random::new(seed(first_seed) + round * 10 + writer);
                        let own: Vec<usize> = (0..KEYS)
                            .filter(|key| key % 3 == usize::try_from(writer).expect("small"))
                            .collect();
                        let mut versions: BTreeMap<usize, u64> =
                            own.iter().map(|key| (*key, current[key])).collect();
                        let mut newest: Option<BTreeMap<usize, u64>> = None;
                        for _ in 0..SETS_PER_ROUND {
                            if stop.load(Ordering::SeqCst) {
                                break;
                            }
                            if newest.is_none() && began.load(Ordering::SeqCst) {
                                newest = Some(versions.clone());
                            }
                            let key = random.pick(&own);
                            let version = versions[&key] + 1;
                            set_version(&mut client, key, version);
                            started.fetch_add(1, Ordering::SeqCst);
                            versions.insert(key, version);
                        }
                        let newest = newest.unwrap_or_else(|| versions.clone());
                        own.iter().map(|key| (*key, newest[key], versions[key])).collect::<Vec<_>>()
                    })
                })
                .collect();
            let _stops = SetOnDrop(&stop);
            // Start the snapshot among the writers' commands.
            wait_until("the writers' first values", || (started.load(Ordering::SeqCst) >= 4).then_some(()));
            let answer = client.command(&[b"BGSAVE"]);
            began.store(true, Ordering::SeqCst);
            assert!(matches!(answer, Ok(Answer::Status(_))), "BGSAVE: {answer:?}");
            redis.wait_for_background(&mut client, "rdb_bgsave");
            stop.store(true, Ordering::SeqCst);
            writers.into_iter().flat_map(|writer| writer.join().expect("writer")).collect()
        });
        let dump = scratch.directory(&format!("dump-{round}"));
        std::fs::copy(directory.join("dump.rdb"), dump.join("dump.rdb")).expect("dump");
        let plain =
            Redis::start(Mode::Plain, &scratch, &format!("plain-{round}"), &dump, &["--appendonly", "no"]);
        let mut reader = plain.client();
        let newest: BTreeMap<usize, u64> = bounds.iter().map(|(key, newest, _)| (*key, *newest)).collect();
        for key in 0..KEYS {
            let value =
                reader.get(format!("key:{key}").as_bytes()).expect("an answer").expect("every key was set");
            let version = read_version(key, &value, "dump");
            let (oldest, newest) = (current[&key], *newest.get(&key).unwrap_or(&current[&key]));
            assert!(
                (oldest..=newest).contains(&version),
                "dump: key {key} has version {version}, not {oldest} to {newest}"
            );
        }
        let _ = plain.shut_down();
        for (key, _, last) in bounds {
            current.insert(key, last);
        }
        for (key, last) in &current {
            let value =
                client.get(format!("key:{key}").as_bytes()).expect("an answer").expect("every key was set");
            assert_eq!(read_version(*key, &value, "running server"), *last, "running server: key {key}");
        }
    }
    let _ = redis.shut_down().expect_counters(WORKED);
    let plain = Redis::start(Mode::Plain, &scratch, "plain-aof", &directory, APPEND_ONLY);
    let mut reader = plain.client();
    for (key, last) in &current {
        let value =
            reader.get(format!("key:{key}").as_bytes()).expect("an answer").expect("every key was set");
        assert_eq!(read_version(*key, &value, "append-only file"), *last, "append-only file: key {key}");
    }
    let _ = plain.shut_down();
}

#[test]
fn snapshot_while_values_change_with_everything_elided() {
    snapshot_while_values_change(Mode::Always, 51);
}

#[test]
fn snapshot_while_values_change_with_the_default_policy() {
    snapshot_while_values_change(Mode::Sliced, 52);
}

/// Several concurrent clients, each with its own keys.
#[test]
fn many_clients_at_once() {
    for mode in Mode::FOR_APPLICATIONS {
        let scratch = Scratch::new("redis-clients");
        let directory = scratch.directory("data");
        let redis = Redis::start(mode, &scratch, "redis", &directory, APPEND_ONLY);
        std::thread::scope(|scope| {
            for number in 0..6 {
                let redis = &redis;
                scope.spawn(move || {
                    let mut client = redis.client();
                    let mut random = Random::new(seed(60) + number);
                    let mut values: Vec<Option<Vec<u8>>> = vec![None; 4];
                    for _ in 0..rounds(40) {
                        let slot = random.below(4);
                        let name = format!("{number}:{slot}");
                        if random.one_in(2) {
                            let len = random.length(MIB);
                            let value = bytes(random.next_u64(), len);
                            client.set_parts(name.as_bytes(), &[&value]).expect("OK");
                            values[slot] = Some(value);
                        } else {
                            assert!(
                                client.get(name.as_bytes()).as_ref() == Ok(&values[slot]),
                                "{name} has another value"
                            );
                        }
                    }
                });
            }
        });
        let _ = redis.shut_down().expect_counters(WORKED);
    }
}

/// A client that stores values, some of them several at a time, and compares the answers.
const CLIENT: &str = r#"
import hashlib, socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
received = b""
def receive(length):
    global received
    parts = [received[:length]]
    received, missing = received[length:], length - len(parts[0])
    while missing > 0:
        part = connection.recv(300000)
        assert part, "closed"
        parts.append(part[:missing])
        received, missing = part[missing:], missing - len(part)
    return b"".join(parts)
def receive_line():
    text = b""
    while not text.endswith(b"\r\n"):
        text += receive(1)
    return text[:-2]
def receive_answer():
    head = receive_line()
    if not head.startswith(b"$"):
        return head
    value = receive(int(head[1:]))
    assert receive(2) == b"\r\n"
    return value
def command(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
def value(number):
    return hashlib.shake_128(b"%d" % number).digest([3, 70001, 300000, 1 << 20, 40000][number % 5])
stored = {}
for round in range(60):
    keys = [b"%d" % ((round * 7 + at) % 11) for at in range(1 + round % 4)]
    for at, key in enumerate(keys):
        stored[key] = value(round * 4 + at)
    connection.sendall(b"".join(command(b"SET", key, stored[key]) for key in keys))
    assert [receive_answer() for _ in keys] == [b"+OK"] * len(keys), f"round {round}"
    requested = sorted(stored)[: 1 + round % 5]
    connection.sendall(b"".join(command(b"GET", key) for key in requested))
    for key in requested:
        assert receive_answer() == stored[key], f"round {round}, key {key}"
    length = len(stored[requested[0]])
    connection.sendall(command(b"APPEND", requested[0], b"end") + command(b"GETRANGE", requested[0], b"%d" % (length // 2), b"-1"))
    stored[requested[0]] += b"end"
    assert receive_answer() == b":%d" % (length + 3)
    assert receive_answer() == stored[requested[0]][length // 2 :], f"round {round}"
"#;

#[test]
fn a_client_on_the_same_host_by_lanes() {
    let scratch = Scratch::new("redis-lanes");
    let redis = Redis::start(Mode::Lanes, &scratch, "redis", &scratch.directory("data"), &[]);
    let script = scratch.write("client.py", CLIENT);
    let client = Program::new("/usr/bin/python3")
        .args([script.to_str().expect("UTF-8"), &redis.0.port.to_string()])
        .mode(Mode::Lanes)
        .run(&scratch, "client")
        .expect_success();
    for done in [client, redis.shut_down()] {
        let counters = done.counters.expect("counters");
        for counter in [Counter::LaneSentBytes, Counter::LaneReceivedBytes] {
            assert!(counters.get(counter) > 1 << 20, "{counters}");
        }
    }
}
