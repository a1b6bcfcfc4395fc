//! Programs whose files a log has, beside the page cache or as the only copy: each operation returns the same as
//! without a log, and the files are the same afterwards.

use std::path::{Path, PathBuf};

use uncopy_core::options::LogMode;
use uncopy_core::stats::Counter;
use uncopy_tests::artifacts::{packaged, skipped};
use uncopy_tests::counters::Counters;
use uncopy_tests::log_runs::{EMULATES, LogRuns, files, has_marks_in_memory, plain};
use uncopy_tests::running::Finished;

const PROGRAM: &str = env!("CARGO_BIN_EXE_log_only");
/// Number of syncs of the scenario `quiet-syncs`.
const SYNCS: usize = 100;

/// Properties of a scenario that differ from the usual ones.
#[derive(Clone, Copy, Default)]
struct Row {
    /// The files' times are compared.
    has_times: bool,
    /// The order of the bytes is up to chance; the program checks them.
    is_unordered: bool,
    /// The program leaves no counters: a signal ends it, or another program takes its place.
    has_no_counters: bool,
    /// A child goes on after the program's end, and then writes this file.
    last_file: Option<&'static str>,
}

/// Starts the program, plain or with a log, in a directory `name` of `parent`, and waits for its end.
fn run(runs: &LogRuns, parent: &Path, is_plain: bool, scenario: &str, row: Row) -> Finished {
    let name = if is_plain { "plain" } else { "logged" };
    let directory = parent.join(name);
    std::fs::create_dir(&directory).expect("a directory");
    let program = if is_plain { plain() } else { runs.program(&parent.join("stats")) };
    let entry: &[PathBuf] = if is_plain { &[] } else { &["--warm".into(), parent.join("warm")] };
    let program = match row.last_file {
        None => program.arg(PROGRAM).args(entry).arg(scenario),
        Some(last) => {
            let script = format!(
                "\"$0\" \"$@\"; status=$?; for turn in $(seq 15000); do [ -s {last} ] && exit $status; sleep 0.02; done; exit 99"
            );
            program.args(["sh", "-c", &script, PROGRAM]).args(entry).arg(scenario)
        }
    };
    let place = if parent == runs.memory().path() { "memory" } else { "disk" };
    program.directory(&directory).start(runs.disk(), &format!("{name}-{place}")).finish()
}

/// Runs a scenario plain and with a log, with its files in `parent`, and compares.
fn compare(runs: &LogRuns, mode: LogMode, parent: &Path, scenario: &str, row: Row) {
    let expected = run(runs, parent, true, scenario, row);
    let found = run(runs, parent, false, scenario, row);
    let what = format!("{scenario}, log mode {}, files in {}", mode.word(), parent.display());
    assert_eq!(found.status, expected.status, "{what}: {}{}", expected.text(), found.text());
    assert!(expected.status.success() || row.has_no_counters, "{what}: {}", expected.text());
    let text = |finished: &Finished| String::from_utf8_lossy(&finished.output).into_owned();
    let (expected_text, found_text) = (text(&expected), text(&found));
    let differing = expected_text.lines().zip(found_text.lines()).find(|(one, other)| one != other);
    assert!(
        expected_text == found_text,
        "{what}: {differing:?}\nplain:\n{expected_text}\nlogged:\n{found_text}"
    );
    let errors = found.errors_but_waits();
    let errors = errors.strip_prefix(EMULATES).unwrap_or(&errors);
    assert_eq!(errors, expected.errors, "{what}");
    let (mut plain_files, mut logged_files) = (files(&parent.join("plain")), files(&parent.join("logged")));
    if row.is_unordered {
        plain_files.values_mut().chain(logged_files.values_mut()).for_each(|file| file.digest = 0);
    }
    if !row.has_times {
        plain_files.values_mut().chain(logged_files.values_mut()).for_each(|file| file.modified_s = 0);
    }
    assert_eq!(logged_files, plain_files, "{what}");
    runs.wait_until_kept();
    runs.expect_settled(&parent.join("logged"));
    if !row.has_no_counters {
        let counters = Counters::read(&parent.join("stats")).expect("counters");
        let counter = if mode == LogMode::Only { Counter::LogAppends } else { Counter::LogSyncs };
        assert!(counters.get(counter) > 0, "{what}: no file was in the log: {counters}");
    }
}

/// Compares a scenario in both modes, and in the mode `only` also with files on tmpfs.
fn compare_in_both_modes(scenario: &str, row: Row) {
    if skipped() {
        return;
    }
    for mode in [LogMode::Beside, LogMode::Only] {
        let runs = LogRuns::new(mode, "log-only");
        if !runs.can_log(scenario) {
            return;
        }
        compare(&runs, mode, runs.disk().path(), scenario, row);
        if mode == LogMode::Only && has_marks_in_memory(runs.memory().path()) {
            compare(&runs, mode, runs.memory().path(), scenario, row);
        }
    }
}

macro_rules! rows {
    ($($test:ident: $scenario:literal $({ $($member:ident: $value:expr),* })?;)*) => {
        $(
            #[test]
            fn $test() {
                compare_in_both_modes($scenario, Row { $($($member: $value,)*)? ..Row::default() });
            }
        )*
    };
}

rows! {
    writes_at_the_file_offset: "write";
    writes_at_offsets: "pwrite";
    writes_of_several_parts: "writev";
    appends: "append";
    writes_from_memory_that_cannot_be_read: "faults";
    writes_up_to_a_limit_on_file_size: "limits";
    overlapping_writes: "overlapping";
    writes_that_leave_holes: "holes";
    writes_beyond_four_gibibytes: "far";
    syncs_of_every_kind: "syncs";
    file_offsets: "seek";
    flags_of_a_descriptor: "flags";
    status_by_every_call: "status";
    files_closed_and_looked_at: "closed";
    reads_by_others_between_writes: "readers";
    mappings_of_a_written_file: "mapping";
    transfers_into_the_file: "sendfile";
    truncation_between_writes: "truncate";
    file_opened_again_and_truncated: "reopen";
    allocation_between_writes: "fallocate";
    renamed_files: "rename";
    removed_files: "unlink";
    linked_files: "link";
    times_set_between_writes: "times" { has_times: true };
    time_of_the_last_write: "modification";
    streams_of_libc_on_the_descriptor: "streams";
    duplicates_of_the_descriptor: "dup";
    children_that_use_the_descriptor: "fork";
    file_opened_again_beside_a_child: "reopen-beside-child";
    child_that_outlives_the_program: "orphan" { last_file: Some("orphan") };
    programs_executed_with_the_descriptor: "exec" { has_no_counters: true };
    programs_spawned_with_the_descriptor: "spawn";
    descriptor_passed_to_another_process: "passed";
    exit_without_close: "exit";
    abort_without_close: "abort" { has_no_counters: true };
    threads_that_append: "threads" { is_unordered: true };
    threads_with_one_file_offset: "writers" { is_unordered: true };
    threads_that_are_cancelled: "cancelled";
    reads_by_the_descriptor: "reads";
    reads_by_a_descriptor_that_appends: "reads-append";
    reads_around_libc: "reads-around-libc";
    mappings_by_the_descriptor: "own-mapping";
    transfers_out_of_the_file: "transfers-out";
    threads_that_read: "reading-threads";
    random_reads_and_writes: "random";
}

/// Returns the names of the system calls that a process made between a call of getppid(2) and the next one, for each
/// pair of such calls, from the output of `strace -f`.
fn calls_between_markers(trace: &str) -> Vec<Vec<String>> {
    let marker = trace.lines().find(|line| line.contains("getppid()")).expect("a marker");
    let pid = marker.split_whitespace().next().expect("a pid");
    let own = trace.lines().filter_map(|line| line.strip_prefix(pid)).map(str::trim_start);
    let names: Vec<&str> = own.map(|call| call.split('(').next().unwrap_or(call)).collect();
    let between = names.split(|name| *name == "getppid").skip(1).step_by(2);
    between.map(|calls| calls.iter().map(|name| (*name).to_owned()).collect()).collect()
}

#[test]
fn syncs_make_no_system_call() {
    if skipped() {
        return;
    }
    let strace = packaged("/usr/bin/strace", "strace");
    let runs = LogRuns::new(LogMode::Only, "log-calls");
    if !runs.can_log("syncs_make_no_system_call") {
        return;
    }
    let (trace, stats) = (runs.disk().join("trace"), runs.disk().join("stats"));
    let program = runs.program(&stats).arg(strace).args(["-f", "-qq", "-o"]).arg(&trace);
    let program = program
        .args([PROGRAM, "--warm"])
        .arg(runs.disk().join("warm"))
        .arg("quiet-syncs")
        .directory(runs.disk().directory("files"));
    let finished = program.start(runs.disk(), "traced").finish();
    assert!(finished.status.success(), "{}", finished.text());
    let calls = calls_between_markers(&std::fs::read_to_string(&trace).expect("the trace"));
    assert_eq!(calls.len(), SYNCS, "{}", finished.text());
    assert!(calls.iter().all(Vec::is_empty), "{calls:?}\n{}", finished.text());
    runs.wait_until_kept();
    runs.expect_settled(&runs.disk().join("files"));
}
