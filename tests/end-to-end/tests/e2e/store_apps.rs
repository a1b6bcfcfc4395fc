//! Redis, SQLite and PostgreSQL with a log: after any kill or power loss, every acknowledged
//! transaction is there, and the servers' own checks pass. Also: files in a log as others see them,
//! and several programs at once.
//!
//! `UNCOPY_TEST_SIZE` sets the number of cycles of each kind, `UNCOPY_TEST_SEED` the first seed. The
//! tests need root to mount, and are skipped otherwise.

use uncopy_testbed::servers::{Postgresql, Redis, Service as _};
use uncopy_tests::artifacts::{installed, packaged};
use uncopy_tests::crash_cycles::{can_mount, run_script, scaled_cycles};
use uncopy_tests::random::{Random, seed};

/// Default number of cycles of each kind, with every possible file in the log, and with files chosen.
const CYCLES: (u64, u64) = (3, 2);
/// Number of cycles on one file system.
const CYCLES_PER_FILE_SYSTEM: usize = 3;

/// Ways to end a cycle, in turn: by killing, or by power loss.
const KILLS: &[&str] = &["program", "keeper", "both"];
const POWER_LOSSES: &[&str] = &["power", "keeper-power"];
/// As `KILLS`, and one process of the server, which then ends the others itself.
const SERVER_KILLS: &[&str] = &["part", "program", "keeper", "both", "end"];

/// Runs cycles of an application, each on the files that the previous one left, ended at random
/// moments in these ways.
fn run_cycles(app: &str, policy: &str, ends: &[&str]) {
    let test = format!("{app}, {policy}, {ends:?}");
    if !can_mount(&test) {
        return;
    }
    let is_forced = policy != "auto";
    let number =
        usize::try_from(scaled_cycles(if is_forced { CYCLES.0 } else { CYCLES.1 })).expect("a number");
    // Short runs of the two policies start with different ways.
    let begin = if is_forced { 0 } else { 2 };
    let is_short = number < ends.len();
    let ends: Vec<&str> = ends.iter().copied().cycle().skip(begin).take(number).collect();
    for (turn, ends) in ends.chunks(CYCLES_PER_FILE_SYSTEM).enumerate() {
        let seed = seed(1) + turn as u64;
        // Other moments for each test.
        let mut random = Random::new(seed + test.bytes().map(u64::from).sum::<u64>());
        let picked: Vec<(&str, usize, &str)> = ends
            .iter()
            .map(|end| {
                let max_ms = random.pick(&[10, 1200]);
                // A log in memory is made only then.
                let least_ms = if policy == "only" && is_short { 800 } else { 0 };
                (*end, least_ms + random.below(max_ms), random.pick(&["log", "log", "plain"]))
            })
            .collect();
        // On a busy machine no cycle may last until its first sync by the log: retry with longer cycles.
        let has_synced = [1, 10].into_iter().any(|times| {
            let mut arguments = vec![app.to_owned(), policy.to_owned(), seed.to_string()];
            arguments.extend(picked.iter().map(|(end, ms, next)| format!("{end}:{}:{next}", ms * times)));
            let output = run_script(&["app_crash_cycles.sh"], &format!("{test}: {arguments:?}"), &arguments);
            let syncs = output.lines().find_map(|line| line.strip_prefix("log_syncs ")).expect("log_syncs");
            eprintln!("{arguments:?}: {syncs} syncs by the log");
            !is_forced || syncs != "0"
        });
        assert!(has_synced, "{test}, cycles from {seed} on: nothing went by the log");
    }
}

/// Runs cycles with every possible file in the log, and with files for which logging has paid.
fn run_cycles_by_each_policy(app: &str, ends: &[&str]) {
    for policy in ["always", "auto"] {
        run_cycles(app, policy, ends);
    }
}

fn needs_redis() {
    let _ = installed(Redis::PROGRAM);
    let _ = packaged("/usr/bin/redis-check-aof", "redis-tools");
}

#[test]
fn redis_keeps_acknowledged_writes() {
    needs_redis();
    run_cycles_by_each_policy("redis", KILLS);
}

#[test]
fn redis_keeps_acknowledged_writes_after_power_loss() {
    needs_redis();
    run_cycles_by_each_policy("redis", POWER_LOSSES);
}

#[test]
fn sqlite_with_a_write_ahead_log_keeps_acknowledged_writes() {
    run_cycles_by_each_policy("sqlite-wal", KILLS);
}

#[test]
fn sqlite_with_a_write_ahead_log_keeps_acknowledged_writes_after_power_loss() {
    run_cycles_by_each_policy("sqlite-wal", POWER_LOSSES);
}

#[test]
fn sqlite_with_a_rollback_journal_keeps_acknowledged_writes() {
    run_cycles("sqlite-delete", "always", KILLS);
    run_cycles("sqlite-truncate", "auto", KILLS);
    run_cycles("sqlite-persist", "always", KILLS);
}

#[test]
fn sqlite_with_a_rollback_journal_keeps_acknowledged_writes_after_power_loss() {
    run_cycles("sqlite-delete", "always", POWER_LOSSES);
    run_cycles("sqlite-truncate", "always", POWER_LOSSES);
    run_cycles("sqlite-persist", "auto", POWER_LOSSES);
}

#[test]
fn postgresql_keeps_acknowledged_writes() {
    let _ = installed(Postgresql::PROGRAM);
    run_cycles_by_each_policy("postgresql", SERVER_KILLS);
}

#[test]
fn redis_keeps_acknowledged_writes_of_which_the_log_has_the_only_copy() {
    needs_redis();
    run_cycles("redis", "only", KILLS);
}

#[test]
fn sqlite_keeps_acknowledged_writes_of_which_the_log_has_the_only_copy() {
    run_cycles("sqlite-wal", "only", KILLS);
    run_cycles("sqlite-delete", "only", KILLS);
}

#[test]
fn postgresql_keeps_acknowledged_writes_of_which_the_log_has_the_only_copy() {
    let _ = installed(Postgresql::PROGRAM);
    run_cycles("postgresql", "only", SERVER_KILLS);
}

/// Runs a Python script that starts programs with logs itself, with different seeds.
fn run_script_with_seeds(name: &str, kind: &str, amount: &str) {
    if !can_mount(&format!("{name} {kind}")) {
        return;
    }
    for number in 0..scaled_cycles(1) {
        let seed = (seed(1) + number).to_string();
        let title = format!("{name} {kind}, seed {seed}");
        let _ = run_script(&["on_disk.sh", name], &title, &[kind, &seed, amount]);
    }
}

#[test]
fn other_processes_see_appended_data_as_written() {
    run_script_with_seeds("concurrent_readers.py", "append", "12");
}

#[test]
fn other_processes_see_overwritten_data_as_written() {
    run_script_with_seeds("concurrent_readers.py", "over", "11");
}

#[test]
fn programs_with_one_log_directory_alternate_on_one_file() {
    run_script_with_seeds("shared_log.py", "turns", "3");
}

#[test]
fn daemon_continues_with_a_logged_file() {
    run_script_with_seeds("shared_log.py", "daemon", "3");
}

#[test]
fn nonblocking_open_of_a_logged_file_succeeds_soon() {
    run_script_with_seeds("concurrent_readers.py", "nonblocking", "2");
}

#[test]
fn file_is_logged_again_after_others_close_it() {
    run_script_with_seeds("concurrent_readers.py", "held", "2");
}

#[test]
fn file_open_across_fork_is_logged() {
    run_script_with_seeds("concurrent_readers.py", "forked", "2");
}

#[test]
fn file_passed_to_another_program_is_no_longer_logged() {
    run_script_with_seeds("concurrent_readers.py", "given", "2");
}
