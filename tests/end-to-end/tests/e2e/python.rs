//! The packaged Python under uncopy prints the same digests of all data received, edited and sent.

use std::path::Path;

use uncopy_core::stats::Counter;
use uncopy_tests::artifacts::{bin_dir, packaged, script};
use uncopy_tests::scratch::wait_until;
use uncopy_tests::{Mode, Program, Scratch};

fn compare_with_plain(name: &str, expected: &[Counter]) {
    let run = |mode: Mode| {
        let scratch = Scratch::new("python");
        let python = packaged("/usr/bin/python3", "python3");
        Program::new(python)
            .args([script(name)])
            .directory(scratch.path())
            .mode(mode)
            .run(&scratch, name)
            .expect_success()
    };
    let plain = run(Mode::Plain);
    assert!(!plain.output.is_empty(), "{name} printed nothing");
    for mode in Mode::FOR_APPLICATIONS {
        let done = run(mode).expect_counters(expected);
        assert!(
            done.output == plain.output,
            "{name} in mode {mode:?} printed\n{}\nplain\n{}",
            done.text(),
            plain.text()
        );
    }
}

#[test]
fn sockets() {
    compare_with_plain("sockets.py", &[Counter::ElidedBytes, Counter::InputBytes, Counter::OutputBytes]);
}

#[test]
fn edits_of_received_bytes_and_files() {
    compare_with_plain("edits.py", &[Counter::ElidedBytes, Counter::InputBytes]);
}

#[test]
fn pipes_threads_and_multiprocessing() {
    compare_with_plain("processes.py", &[Counter::InputBytes]);
}

#[test]
fn asynchronous_streams() {
    compare_with_plain("streams.py", &[Counter::ElidedBytes, Counter::InputBytes]);
}

/// Returns the processes whose directory for temporary files is below `directory`.
fn processes_using(directory: &Path) -> Vec<String> {
    let variable = format!("TMPDIR={}/", directory.display());
    let is_there = |pid: &String| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|word| word.starts_with(variable.as_bytes()))
    };
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).filter(is_there).collect()
}

#[test]
fn interrupted_cpython_suites_leave_no_process_and_no_file() {
    let scratch = Scratch::new("suites");
    let directory = scratch.directory("room");
    let suites = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/suites");
    let command = bin_dir().join("uncopy");
    let running = Program::new(suites)
        .args(["quick", "--modules", "test_threading,test_io", "--uncopy"])
        .args([command])
        .env("TMPDIR", directory.display().to_string())
        .start(&scratch, "suites");
    wait_until("the tests of two modules", || (processes_using(&directory).len() >= 2).then_some(()));
    let done = running.stop(libc::SIGTERM);
    assert_eq!(done.status.code(), Some(128 + libc::SIGTERM), "{}", done.text());
    // A killed process ends only when it is scheduled.
    wait_until("the end of every process", || processes_using(&directory).is_empty().then_some(()));
    assert_eq!(std::fs::read_dir(&directory).expect("the room").count(), 0);
}
