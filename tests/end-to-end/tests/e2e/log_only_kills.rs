//! Programs and keepers that are killed: every write that returned is in the file, at once or after a recovery.

use std::time::Duration;

use uncopy_core::options::LogMode;
use uncopy_tests::artifacts::skipped;
use uncopy_tests::crash_cycles::scaled_cycles;
use uncopy_tests::log_runs::LogRuns;
use uncopy_tests::random::{Random, seed};
use uncopy_tests::running::Running;
use uncopy_tests::scratch::wait_until;

const PROGRAM: &str = env!("CARGO_BIN_EXE_log_only");
/// Number of cycles of each kind in tests of size 10.
const CYCLES: u64 = 20;
/// Length of a record and of what precedes the first (`log_only records`).
const RECORD_BYTES: usize = 500;
const ENTRY_BYTES: usize = 600;
/// Number of records before the kill, at least.
const MIN_RECORDS: usize = 200;
/// Number of records after the keeper's death, at least.
const RECORDS_ALONE: usize = 1000;

/// Processes that are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    Program,
    /// The program is killed later.
    Keeper,
    Both,
}

/// Returns the number of the newest record whose write has returned.
pub(crate) fn newest(running: &Running) -> usize {
    let output = running.output();
    let whole = output.rfind('\n').map_or("", |end| &output[..end]);
    whole.lines().filter_map(|line| line.strip_prefix("written ")?.parse().ok()).next_back().unwrap_or(0)
}

fn kill(pid: i32) {
    // SAFETY: kill(2) accesses no memory; the process is the test's own child, or its keeper.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
}

/// Checks that a file has the records up to `acknowledged`, and after that nothing but further records.
fn check_records(found: &[u8], acknowledged: usize, what: &str) {
    let records = &found[ENTRY_BYTES..];
    assert!(records.len() >= (acknowledged + 1) * RECORD_BYTES, "{what}: {} bytes", records.len());
    for (number, record) in records.chunks(RECORD_BYTES).enumerate() {
        let head = format!("0000 {number:08} ");
        let rest = (0..RECORD_BYTES - head.len())
            .map(|at| u8::try_from((number * 31 + at / 251 + at) % 255 + 1).expect("a byte"));
        let expected: Vec<u8> = head.into_bytes().into_iter().chain(rest).collect();
        assert!(record == &expected[..record.len()], "{what}: record {number}");
        assert!(record.len() == RECORD_BYTES || number > acknowledged, "{what}: record {number} is cut");
    }
}

fn run_cycle(mode: LogMode, killed: Killed, flags: &str, after: Duration) {
    let what = format!("{killed:?} killed, log mode {}, {flags}, {after:?}", mode.word());
    let runs = LogRuns::new(mode, "log-kills");
    if !runs.can_log(&what) {
        return;
    }
    let files = runs.disk().directory("files");
    let program = runs.program(&runs.disk().join("stats"));
    let running =
        program.args([PROGRAM, "records", "file", flags]).directory(&files).start(runs.disk(), "run");
    let reach = |number: usize| {
        wait_until(&format!("record {number}; {what}"), || {
            assert!(!running.has_ended(), "{what}: {}", running.errors());
            (newest(&running) >= number).then_some(())
        });
    };
    reach(MIN_RECORDS);
    std::thread::sleep(after);
    let keepers = runs.keepers();
    assert_eq!(keepers.len(), 1, "{what}");
    if killed != Killed::Program {
        kill(keepers[0]);
    }
    if killed == Killed::Keeper {
        reach(newest(&running) + RECORDS_ALONE);
    }
    let errors = running.errors();
    running.signal(libc::SIGKILL);
    wait_until(&format!("the end; {what}"), || running.has_ended().then_some(()));
    let acknowledged = newest(&running);
    drop(running.finish());
    if killed == Killed::Program {
        let _ = runs.log_command(&["wait", "--timeout", "300"]);
    } else {
        runs.wait_until_kept();
        let _ = runs.log_command(&["check"]);
        let _ = runs.log_command(&["recover"]);
    }
    assert!(!errors.contains("panicked"), "{what}: {errors}");
    check_records(&std::fs::read(files.join("file")).expect("the file"), acknowledged, &what);
    runs.wait_until_kept();
    runs.expect_settled(&files);
}

fn run_cycles(mode: LogMode, killed: Killed) {
    if skipped() {
        return;
    }
    let seed = seed(match killed {
        Killed::Program => 1,
        Killed::Keeper => 2,
        Killed::Both => 3,
    });
    let mut random = Random::new(seed);
    for turn in 0..scaled_cycles(CYCLES) {
        let after = Duration::from_millis(random.below(1500) as u64);
        let flags = ["append,sync", "append", "sync", "none"][usize::try_from(turn).expect("few") % 4];
        // A log beside the page cache has only files that are synced.
        let flags = if mode == LogMode::Beside && !flags.contains("sync") { "append,sync" } else { flags };
        run_cycle(mode, killed, flags, after);
    }
}

#[test]
fn killed_program_loses_no_write_beside() {
    run_cycles(LogMode::Beside, Killed::Program);
}

#[test]
fn killed_program_loses_no_write_only() {
    run_cycles(LogMode::Only, Killed::Program);
}

#[test]
fn killed_keeper_loses_no_write_beside() {
    run_cycles(LogMode::Beside, Killed::Keeper);
}

#[test]
fn killed_keeper_loses_no_write_only() {
    run_cycles(LogMode::Only, Killed::Keeper);
}

#[test]
fn killed_program_and_keeper_lose_no_write_beside() {
    run_cycles(LogMode::Beside, Killed::Both);
}

#[test]
fn killed_program_and_keeper_lose_no_write_only() {
    run_cycles(LogMode::Only, Killed::Both);
}
