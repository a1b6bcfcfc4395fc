//! Redis, SQLite and PostgreSQL with a log: after any kill or power loss, every acknowledged
//! transaction is there, and the servers' own checks pass. Also: files in a log as others see them,
//! and several programs at once.
//!
//! `UNCOPY_TEST_SIZE` sets the number of lives of each kind, `UNCOPY_TEST_SEED` the first seed. The
//! tests need root to mount, and are skipped otherwise.

use uncopy_testbed::servers::{Postgresql, Redis, Service as _};
use uncopy_tests::artifacts::{installed, packaged};
use uncopy_tests::lives::{can_mount, lives, run_script};
use uncopy_tests::random::{Random, seed};

/// Default number of lives of each kind, with every possible file in the log, and with files chosen.
const LIVES: (u64, u64) = (3, 2);
/// Number of lives on one file system.
const LIVES_EACH: usize = 3;

/// Ways to end a life, in turn: by killing, or by power loss.
const KILLS: &[&str] = &["program", "keeper", "both"];
const LOSSES: &[&str] = &["power", "keeper-power"];
/// As `KILLS`, and one process of the server, which then ends the others itself.
const PARTS: &[&str] = &["part", "program", "keeper", "both", "end"];

/// Runs lives of an application, each on the files that the previous one left, ended at random
/// moments in these ways.
fn lives_of(app: &str, policy: &str, ends: &[&str]) {
    let test = format!("{app}, {policy}, {ends:?}");
    if !can_mount(&test) {
        return;
    }
    let is_forced = policy == "always";
    let number = usize::try_from(lives(if is_forced { LIVES.0 } else { LIVES.1 })).expect("a number");
    // Short runs of the two policies start with different ways.
    let begin = if is_forced { 0 } else { 2 };
    let ends: Vec<&str> = ends.iter().copied().cycle().skip(begin).take(number).collect();
    for (turn, ends) in ends.chunks(LIVES_EACH).enumerate() {
        let seed = seed(1) + turn as u64;
        // Other moments for each test.
        let mut random = Random::new(seed + test.bytes().map(u64::from).sum::<u64>());
        let picked: Vec<(&str, usize, &str)> = ends
            .iter()
            .map(|end| {
                let most = random.pick(&[10, 1200]);
                (*end, random.below(most), random.pick(&["log", "log", "plain"]))
            })
            .collect();
        // On a busy machine no life may last until its first sync by the log: retry with longer lives.
        let has_synced = [1, 10].into_iter().any(|times| {
            let mut arguments = vec![app.to_owned(), policy.to_owned(), seed.to_string()];
            arguments.extend(picked.iter().map(|(end, ms, next)| format!("{end}:{}:{next}", ms * times)));
            let said = run_script(&["app_lives.sh"], &format!("{test}: {arguments:?}"), &arguments);
            let syncs = said.lines().find_map(|line| line.strip_prefix("log_syncs ")).expect("log_syncs");
            eprintln!("{arguments:?}: {syncs} syncs by the log");
            !is_forced || syncs != "0"
        });
        assert!(has_synced, "{test}, lives from {seed} on: nothing went by the log");
    }
}

/// Runs lives with every possible file in the log, and with files for which logging has paid.
fn lives_by_each_policy(app: &str, ends: &[&str]) {
    for policy in ["always", "auto"] {
        lives_of(app, policy, ends);
    }
}

fn needs_redis() {
    let _ = installed(Redis::PROGRAM);
    let _ = packaged("/usr/bin/redis-check-aof", "redis-tools");
}

#[test]
fn redis_keeps_what_it_acknowledged() {
    needs_redis();
    lives_by_each_policy("redis", KILLS);
}

#[test]
fn redis_keeps_what_it_acknowledged_when_the_power_is_lost() {
    needs_redis();
    lives_by_each_policy("redis", LOSSES);
}

#[test]
fn sqlite_with_a_write_ahead_log_keeps_what_it_acknowledged() {
    lives_by_each_policy("sqlite-wal", KILLS);
}

#[test]
fn sqlite_with_a_write_ahead_log_keeps_what_it_acknowledged_when_the_power_is_lost() {
    lives_by_each_policy("sqlite-wal", LOSSES);
}

#[test]
fn sqlite_with_a_rollback_journal_keeps_what_it_acknowledged() {
    lives_of("sqlite-delete", "always", KILLS);
    lives_of("sqlite-truncate", "auto", KILLS);
    lives_of("sqlite-persist", "always", KILLS);
}

#[test]
fn sqlite_with_a_rollback_journal_keeps_what_it_acknowledged_when_the_power_is_lost() {
    lives_of("sqlite-delete", "always", LOSSES);
    lives_of("sqlite-truncate", "always", LOSSES);
    lives_of("sqlite-persist", "auto", LOSSES);
}

#[test]
fn postgresql_keeps_what_it_acknowledged() {
    let _ = installed(Postgresql::PROGRAM);
    lives_by_each_policy("postgresql", PARTS);
}

/// Runs a Python script that starts programs with logs itself, with different seeds.
fn scripts_of(name: &str, kind: &str, amount: &str) {
    if !can_mount(&format!("{name} {kind}")) {
        return;
    }
    for number in 0..lives(1) {
        let seed = (seed(1) + number).to_string();
        let title = format!("{name} {kind}, seed {seed}");
        let _ = run_script(&["on_disk.sh", name], &title, &[kind, &seed, amount]);
    }
}

#[test]
fn others_see_a_file_that_grows_as_it_was_written() {
    scripts_of("meanwhile.py", "append", "12");
}

#[test]
fn others_see_a_file_that_is_written_over_as_it_was_written() {
    scripts_of("meanwhile.py", "over", "11");
}

#[test]
fn programs_with_logs_in_one_directory_write_to_one_file_by_turns() {
    scripts_of("mates.py", "turns", "3");
}

#[test]
fn a_daemon_goes_on_with_a_file_that_took_part() {
    scripts_of("mates.py", "daemon", "3");
}

#[test]
fn who_opens_a_file_without_waiting_can_soon() {
    scripts_of("meanwhile.py", "nonblocking", "2");
}

#[test]
fn a_file_that_others_had_open_takes_part_again() {
    scripts_of("meanwhile.py", "held", "2");
}

#[test]
fn a_file_takes_part_that_was_open_when_its_program_forked() {
    scripts_of("meanwhile.py", "forked", "2");
}

#[test]
fn a_file_that_another_program_was_given_takes_part_no_more() {
    scripts_of("meanwhile.py", "given", "2");
}
