//! Redis whose append-only file is in a log that has the only copy: every acknowledged write is there after each kill.

use std::path::Path;
use std::time::Duration;

use uncopy_core::options::LogMode;
use uncopy_core::stats::Counter;
use uncopy_testbed::servers::{self, Service as _};
use uncopy_tests::artifacts::{installed, skipped};
use uncopy_tests::counters::Counters;
use uncopy_tests::crash_cycles::scaled_cycles;
use uncopy_tests::log_runs::LogRuns;
use uncopy_tests::random::{Random, bytes, seed};
use uncopy_tests::redis::{Connection, Redis};
use uncopy_tests::scratch::wait_until;
use uncopy_tests::{Mode, Scratch};

/// Number of kills in tests of size 10.
const CYCLES: u64 = 30;
const KEYS: usize = 40;
const OPTIONS: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

/// Returns version `version` of a key's value.
fn value(key: usize, version: u64) -> Vec<u8> {
    let len = 10 + (key * 7919 + usize::try_from(version).expect("small") * 104_729) % 60_000;
    [version.to_le_bytes().to_vec(), bytes((key as u64) << 32 | version, len)].concat()
}

/// Versions of keys: the last one that the server has acknowledged, and the last one that was sent.
#[derive(Debug, Default, Clone, Copy)]
struct Versions {
    acknowledged: u64,
    sent: u64,
}

/// Sets random keys until the server is gone or `number` were set; returns how many were acknowledged.
fn set(client: &mut Connection, random: &mut Random, keys: &mut [Versions], number: usize) -> usize {
    for done in 0..number {
        let key = random.below(keys.len());
        keys[key].sent += 1;
        let name = format!("key{key}");
        if client.command(&[b"SET", name.as_bytes(), &value(key, keys[key].sent)]).is_err() {
            return done;
        }
        keys[key].acknowledged = keys[key].sent;
    }
    number
}

/// Checks that each key has its last acknowledged version, or one that was sent after it.
fn check(client: &mut Connection, keys: &mut [Versions], what: &str) {
    for (key, versions) in keys.iter_mut().enumerate() {
        let answer = client.command(&[b"GET", format!("key{key}").as_bytes()]).expect("an answer");
        let found = match answer {
            uncopy_tests::redis::Answer::Bulk(found) => found,
            other => {
                assert_eq!(versions.acknowledged, 0, "{what}: key {key} is {}", other.short());
                continue;
            }
        };
        let version = u64::from_le_bytes(found[..8].try_into().expect("eight bytes"));
        let is_possible = (versions.acknowledged..=versions.sent).contains(&version);
        assert!(is_possible, "{what}: key {key} has version {version}, not {versions:?}");
        assert!(found == value(key, version), "{what}: key {key}, version {version}");
        *versions = Versions { acknowledged: version, sent: version };
    }
}

fn start(runs: &LogRuns, scratch: &Scratch, name: &str, data: &Path) -> Redis {
    let program =
        runs.program(&scratch.join(&format!("{name}.counters"))).arg(installed(servers::Redis::PROGRAM));
    Redis::start_by(program, scratch, name, data, OPTIONS)
}

#[test]
fn redis_killed_under_load_keeps_acknowledged_writes() {
    const TEST: &str = "redis_killed_under_load_keeps_acknowledged_writes";
    if skipped() {
        return;
    }
    let runs = LogRuns::new(LogMode::Only, "log-redis");
    if !runs.can_log(TEST) {
        return;
    }
    let data = runs.disk().directory("data");
    let seed = seed(1);
    eprintln!("seed {seed}");
    let mut random = Random::new(seed);
    let mut keys = [Versions::default(); KEYS];
    let mut acknowledged = 0;
    for turn in 0..scaled_cycles(CYCLES) {
        let what = format!("turn {turn}, seed {seed}");
        let redis = start(&runs, runs.disk(), &format!("redis{turn}"), &data);
        let mut client = redis.client();
        check(&mut client, &mut keys, &what);
        acknowledged += set(&mut client, &mut random, &mut keys, 300);
        // Saves and rewrites fork, while the parent goes on writing.
        let background: &[&[u8]] = if turn % 2 == 0 { &[b"BGREWRITEAOF"] } else { &[b"BGSAVE"] };
        client.command(background).expect("an answer");
        acknowledged += set(&mut client, &mut random, &mut keys, 50 + random_more(turn));
        let pid = redis.0.running.pid();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20 + turn * 13 % 200));
            // SAFETY: kill(2) accesses no memory; the process is the server, which was not waited for.
            assert_eq!(unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) }, 0);
        });
        acknowledged += set(&mut client, &mut random, &mut keys, usize::MAX);
        killer.join().expect("killed");
        if turn % 3 == 2 {
            // Both are gone: the next start recovers the log.
            for keeper in runs.keepers() {
                // SAFETY: kill(2) accesses no memory; the keeper may have ended by itself.
                unsafe { libc::kill(keeper, libc::SIGKILL) };
            }
        }
        wait_until(&format!("the end; {what}"), || redis.0.running.has_ended().then_some(()));
        drop(redis);
        // A child that rewrites the file ends soon after its parent.
        runs.wait_until_kept();
    }
    eprintln!("{acknowledged} acknowledged writes");
    let redis = start(&runs, runs.disk(), "last", &data);
    let mut client = redis.client();
    check(&mut client, &mut keys, "at the end");
    set(&mut client, &mut random, &mut keys, 200);
    redis.send_shutdown();
    let finished = redis.0.running.finish();
    assert!(finished.status.success(), "{}", finished.text());
    let counters = Counters::read(&runs.disk().join("last.counters")).expect("counters");
    assert!(counters.get(Counter::LogAppends) > 0, "the append-only file was not in the log: {counters}");
    runs.wait_until_kept();
    runs.expect_settled(&data.join("appendonlydir"));
    let plain = Redis::start(Mode::Plain, runs.disk(), "plain", &data, OPTIONS);
    check(&mut plain.client(), &mut keys, "plain server on the same file");
    let _ = plain.shut_down();
}

/// Returns a number of further writes during a save or rewrite.
fn random_more(turn: u64) -> usize {
    usize::try_from(turn * 37 % 300).expect("small")
}
