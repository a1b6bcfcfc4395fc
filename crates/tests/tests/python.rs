//! The packaged Python under uncopy prints what it prints without: digests of everything that it
//! received, edited and sent.

use std::time::Duration;

use uncopy_core::stats::Counter;
use uncopy_tests::artifacts::{packaged, script};
use uncopy_tests::{Mode, Program, Scratch};

fn prints_the_same(name: &str, expected: &[Counter]) {
    let run = |mode: Mode| {
        let scratch = Scratch::new("python");
        let python = packaged("/usr/bin/python3", "python3");
        Program::new(python)
            .args([script(name)])
            .directory(scratch.path())
            .mode(mode)
            .limit(Duration::from_secs(90))
            .run(&scratch, name)
            .expect_success()
    };
    let plain = run(Mode::Plain);
    assert!(!plain.output.is_empty(), "{name} printed nothing");
    for mode in Mode::BOTH {
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
    prints_the_same("sockets.py", &[Counter::ElidedBytes, Counter::InputBytes, Counter::OutputBytes]);
}

#[test]
fn edits_of_received_bytes_and_files() {
    prints_the_same("edits.py", &[Counter::ElidedBytes, Counter::InputBytes]);
}

#[test]
fn pipes_threads_and_multiprocessing() {
    prints_the_same("processes.py", &[Counter::InputBytes]);
}

#[test]
fn asynchronous_streams() {
    prints_the_same("streams.py", &[Counter::ElidedBytes, Counter::InputBytes]);
}
